"""What a run takes of the device's memory, worked out by hand for one small model.

An expert takes 768 B in FP16, of which 40 B stay on the device in FloE's precision. A layer without
its experts takes 480 B, and all that is dense 1,776 B.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from helpers.round_machine import machine, small
from sim.machine.ledger import Ledger
from sim.setup.run_memory import check_run_memory, left_bytes
from sim.workload.steps import Limits

LOADER: dict[str, Any] = {
    "overflows": True,
    "retention": "after_batch",
    "in_flight": 3,
    "staging_slots": 2,
    "staging_holds": "experts",
    "dense_slots": 0,
}


def controller(capacity: tuple[int, ...], silent: bool = True, **loader: Any) -> Any:
    return SimpleNamespace(
        loader=SimpleNamespace(**(LOADER | loader)),
        slots=SimpleNamespace(capacity_bytes=capacity),
        geometry=SimpleNamespace(slot_sizes=(384, 768), sites=3, precisions=("fp16", "floe")),
        route=SimpleNamespace(engines=(2, 9)),
        predictor=SimpleNamespace(silent=silent),
    )


def limits(rows: int = 1) -> Any:
    return Limits(10, rows, 0)


def steps(is_timed: bool = False) -> Any:
    """Gates of sites 0, 1, 2 and 0 that ask for 2, 1, 3 and no experts."""
    needs = SimpleNamespace(tick=[0, 0, 1, 2, 2, 2])
    drafts = SimpleNamespace(layers_in_use=2)
    return SimpleNamespace(
        needs=needs,
        num_gates=4,
        gate_site=[0, 1, 2, 0],
        is_timed=is_timed,
        limits=limits(),
        speculation=drafts,
    )


def taken(one: Any, rows: int = 1, drafts: int = 0, workload: Any = None) -> Ledger:
    return check_run_memory(small(), machine(), limits(rows), one, drafts, workload)


def test_a_run_takes_slots_staging_parts_and_drafts() -> None:
    """Three layers of four experts keep 40 B each. Two draft layers have 480 B and all experts."""
    one = controller((2_000, 3_000, 4_000), overflows=False)
    assert vars(taken(one, drafts=2)) == {
        "dense_bytes": 1_776,
        "kv_bytes": 480,
        "activation_bytes": 192,
        "slot_bytes": 9_000,
        "staging_bytes": 1_536,
        "overflow_bytes": 0,
        "reserved_bytes": 1 << 28,
        "parts_bytes": 480,
        "draft_bytes": 2 * (480 + 3_072),
        "prefix_bytes": 0,
        "page_cache_bytes": 0,
    }
    # Of an expert's three projections in FP16 a slot holds one, 128 weights.
    by_projection = controller((2_000,), staging_holds="projections")
    assert taken(by_projection).staging_bytes == 2 * 256
    # Of three blocks of 480 B one slot is left.
    assert taken(controller((2_000,), dense_slots=1)).dense_bytes == 1_776 - 960


def test_a_run_that_takes_more_than_the_device_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^the device holds 1 GiB, but the run needs 1\.25 GiB"):
        taken(controller((1 << 30,), overflows=False))


@pytest.mark.parametrize(
    ("one", "rows", "workload", "over"),
    [
        # A row asks for two experts, 1,536 B. Six more may come, 4,608 B: with the pool's 2,000 B
        # held the union before does not fit beside them.
        (controller((2_000, 3_000)), 1, None, 2 * 1_536),
        # Nor do so many rows ask for more than all four experts.
        (controller((2_000, 3_000)), 5, None, 2 * 3_072),
        # Of the largest pools the union before is in none's way, or 144 B of it are.
        (controller((6_144,)), 1, None, 1_536),
        (controller((6_000,)), 1, None, 1_536 + 144),
        # Pools of sites: each of three holds 536 B more than its 1,000 B until its next visit,
        (controller((1_000, 3_000), retention="until_next_visit"), 1, None, 3_072 + 3 * 536),
        # or 0 where it fits, or all that comes besides where something is predicted;
        (controller((2_000, 3_000), retention="until_next_visit"), 1, None, 3_072),
        (
            controller((2_000, 3_000), silent=False, retention="until_next_visit"),
            1,
            None,
            3_072 + 3 * (1_536 + 4_608 - 2_000),
        ),
        # and one pool holds no more than after a batch.
        (controller((1_000,), silent=False, retention="until_next_visit"), 1, None, 3_072),
        # What gates ask for is 1,536 B, 768 B and 2,304 B: 536 B, 0 B and 1,304 B are over.
        (
            controller((1_000, 3_000), retention="until_next_visit"),
            1,
            steps(),
            2 * 2_304 + 536 + 1_304,
        ),
        (controller((1_000, 3_000), retention="until_next_visit"), 1, steps(True), 3_072 + 3 * 536),
        (controller((2_000, 3_000)), 1, steps(), 3_072),
    ],
)
def test_pools_may_hold_more_than_their_capacity(
    one: Any, rows: int, workload: Any, over: int
) -> None:
    assert taken(one, rows, 0, workload).overflow_bytes == over


def test_a_run_leaves_what_it_does_not_take() -> None:
    one, hardware = controller((2_000, 3_000, 4_000), overflows=False), machine()
    run: Any = SimpleNamespace(workload=steps(), model=small(), hardware=hardware, controller=one)
    takes = 1_776 + 480 + 192 + 9_000 + 1_536 + (1 << 28) + 480 + 7_104
    assert left_bytes(run) == (hardware.memory_bytes - takes,)
