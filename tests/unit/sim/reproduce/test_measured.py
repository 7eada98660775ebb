"""The numbers that are kept of a run, worked out by hand from tables of a few rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from sim.reproduce import measured
from sim.reproduce.measured import LOADING, Measured


def step(decode: bool, sites: int) -> Any:
    return SimpleNamespace(decode=decode, sites=range(sites))


def idle(**parts: list[int]) -> dict[str, Any]:
    """The parts of four idle intervals."""
    names = (*LOADING, "host", "dense")
    return {name: np.array(parts.get(name, [0, 0, 0, 0])) for name in names}


def ran(*steps: Any) -> Any:
    """Three steps of 100, 200 and 50 ns. They are idle from 10; 120; 300 and 340 ns on."""
    return SimpleNamespace(
        record=SimpleNamespace(
            step_start_ns=[0, 100, 300],
            step_end_ns=[100, 300, 350],
            idle_start_ns=[10, 120, 300, 340],
        ),
        stalls=idle(
            demand=[5, 7, 1, 0], no_slot=[0, 3, 0, 2], host=[50, 4, 1, 1], dense=[9, 9, 9, 9]
        ),
        workload=SimpleNamespace(steps=steps),
    )


def test_loading_is_what_decode_steps_wait_for_loads_of_their_time() -> None:
    """7 + 3 in the first decode step and 1 + 2 in the other, of 250 ns."""
    prompt = step(False, 2)
    assert measured._loading_share(ran(prompt, step(True, 2), step(True, 1))) == 13 / 250
    assert measured._loading_share(ran(prompt, prompt, prompt)) == 0.0


def test_a_prompts_gates_share_the_hosts_time_in_steps_that_read_prompts() -> None:
    """50 and 1 + 1 ns, over three gates and one."""
    frames = ran(step(False, 3), step(True, 2), step(False, 1))
    assert measured._host_per_prefill_gate(frames, frames) == 52 / 4
    none = ran(*[step(True, 2)] * 3)
    assert measured._host_per_prefill_gate(none, none) == 0.0


LOOKUPS = [
    # tick, step, phase, outcome, wanted, skips
    (0, 0, "prefill", "miss", "fp16", "never"),
    (1, 1, "decode", "hit", "fp16", "never"),
    (1, 1, "decode", "miss", "int4", "never"),
    (1, 1, "decode", "skip", None, "always"),
    (2, 2, "decode", "miss", "fp16", "never"),
    (3, 3, "decode", "high_for_low", "int4", "never"),
]
COLUMNS = ("tick", "step", "phase", "outcome", "wanted", "skips")
GEOMETRY = SimpleNamespace(bits=(16.0, 4.0), precisions=("fp16", "int4"))


def test_lookups_count_for_their_sequences_and_a_miss_costs_its_bits() -> None:
    """Sequence 5 asks three times: a hit, a miss in four of sixteen bits, a whole miss."""
    frames: Any = SimpleNamespace(
        lookups=pl.DataFrame(LOOKUPS, COLUMNS, orient="row"),
        tokens=pl.DataFrame({"step": [0, 1, 2, 3], "sequence": [5, 5, 5, 7]}),
        sequences=pl.DataFrame({"sequence": [7, 5, 9]}),
    )
    run: Any = SimpleNamespace(controller=SimpleNamespace(geometry=GEOMETRY))
    assert measured._by_sequence(run, frames) == {
        "asked": [1, 3, 0],
        "found": [1, 1, 0],
        "missed": [0, 2, 0],
        "penalty": [0, 1.25, 0],
        "gates": 3,
    }


@pytest.mark.parametrize(("rows", "decode_gates"), [(3, 2), (0, 0)])
def test_what_is_kept_is_by_gate_by_service_of_the_first_link_and_by_sequence(
    rows: int, decode_gates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three gates, of which two decode; services of 10, 20 and, on the other link, 60 ns."""
    counted = {name: [1.0, 2.0] for name in ("asked", "found", "missed", "penalty")}
    monkeypatch.setattr(measured, "prefill_time", lambda frames: np.array([7.0, 8.0]))
    monkeypatch.setattr(
        measured,
        "decode_time_and_tokens",
        lambda frames: (np.array([3.0, 4.0]), np.array([5.0, 6.0])),
    )
    monkeypatch.setattr(
        measured, "_by_sequence", lambda run, frames: counted | {"gates": decode_gates}
    )
    monkeypatch.setattr(measured, "_loading_share", lambda frames: 0.25)
    monkeypatch.setattr(measured, "_host_per_prefill_gate", lambda run, frames: 9.0)
    labels = SimpleNamespace(kinds=lambda: {"lossy": None})
    monkeypatch.setattr(measured, "labels_of", lambda run, lookups: labels)
    transfers = {
        "link": ["pcie", "pcie", "nvme"],
        "start_ns": [0, 100, 0],
        "end_ns": [10, 120, 60],
    }
    frames: Any = SimpleNamespace(
        lookups=pl.DataFrame({"tick": [0, 1, 1, 2][: rows + 1] if rows else []}),
        link_names=("pcie", "nvme"),
        transfers=pl.DataFrame(transfers)[:rows],
        sequences=pl.DataFrame({"prompt_tokens": [11, 12]}),
        traffic=SimpleNamespace(busy_ns=lambda: {"pcie": 60 if rows else 0, "nvme": 9}),
    )
    issued = SimpleNamespace(column=lambda name: np.array([name == "prefetch", True, False]))
    run: Any = SimpleNamespace(
        controller=SimpleNamespace(issued=issued),
        ledger=SimpleNamespace(total_bytes=99),
        trace=SimpleNamespace(header=SimpleNamespace(name="gates of m")),
    )
    assert measured._measured(run, frames) == Measured(
        [3.0, 4.0],
        [5.0, 6.0],
        [7.0, 8.0],
        [11, 12],
        [1.0, 2.0],
        [1.0, 2.0],
        [1.0, 2.0],
        [1.0, 2.0],
        loading_share=0.25,
        host_ns_per_prefill_gate=9.0,
        link_ns_per_gate=20.0 if rows else 0.0,
        ns_per_transfer=15.0 if rows else 0.0,
        prefetches_per_gate=1.0 if rows else 2.0,
        device_bytes=99,
        gates="gates of m",
        labels={"lossy": None},
    )


@pytest.mark.parametrize("timing", [None, "given"])
def test_a_run_has_its_machines_durations_or_those_that_are_given(
    timing: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SimpleNamespace(
        durations="own",
        controller="c",
        workload="w",
        hardware=SimpleNamespace(link_names=("pcie",)),
    )
    monkeypatch.setattr(measured, "trace_in", lambda path: f"trace in {path}")
    monkeypatch.setattr(measured, "build", lambda *told: asked.append(told) or run)
    monkeypatch.setattr(measured, "timed", lambda run, timing: f"timed {timing}")
    monkeypatch.setattr(measured, "simulate", lambda *told: told)
    monkeypatch.setattr(measured, "Frames", lambda *told: told)
    monkeypatch.setattr(measured, "_measured", lambda run, frames: frames)
    asked: list[Any] = []
    durations = "own" if timing is None else "timed given"
    found: Any = measured.measure({"a": 1}, tmp_path, timing)
    assert found == ("c", "w", durations, ("c", "w", durations), ("pcie",))
    assert asked == [({"a": 1}, "arm", f"trace in {tmp_path}", measured._SHARED)]
