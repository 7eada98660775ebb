"""The least number of slots with which LRU hits, against an LRU that is written out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim.policies.recency import FIFO, LRU
from sim.screening.frontier import (
    NEVER,
    Curve,
    Requests,
    least_loads,
    least_slots,
    require_slots,
    why_not_at_once,
)
from sim.screening.moves import ScreenError


def requests(*gates: list[int]) -> Requests:
    tick = np.repeat(np.arange(len(gates)), [len(gate) for gate in gates])
    return Requests(tick, np.concatenate(gates), np.ones(len(tick), np.bool_))


def hits_of(gates: list[list[int]], initial: list[int], slots: int) -> list[bool]:
    """An LRU that looks a whole gate up, then makes its needs recent, and keeps ``slots`` keys."""
    held = initial[:slots]
    found: list[bool] = []
    for gate in gates:
        found += [key in held for key in gate]
        held = [*(key for key in held if key not in gate), *gate][-slots:]
    return found


def test_distances_by_hand() -> None:
    """Of a pool that starts with 0, 1, 2, 3 the first one goes first."""
    told = least_slots(requests([4], [0], [3], [4], [5, 3], [0]), [0, 1, 2, 3], 8)
    # 4 was never there. 0 went for 4, whatever the slots. 3 needs the four slots that began with
    # it, and stays then. 4 has 0 and 3 above it. Both needs of [5, 3] are looked up before either
    # comes in: 3 has 4 above it. 0 has 3, 5 and 4 above it.
    assert told.tolist() == [NEVER, NEVER, 4, 3, NEVER, 2, 4]


def test_an_empty_pool_misses_what_comes_first() -> None:
    assert least_slots(requests([1], [2], [1]), [], 3).tolist() == [NEVER, NEVER, 2]


@pytest.mark.parametrize("seed", range(60))
def test_every_capacity_has_the_hits_of_a_run_of_its_own(seed: int) -> None:
    rng = np.random.default_rng(seed)
    keys, widest = int(rng.integers(3, 12)), int(rng.integers(1, 4))
    gates = [
        rng.choice(keys, int(rng.integers(1, min(widest, keys) + 1)), replace=False).tolist()
        for _ in range(40)
    ]
    initial = rng.permutation(keys)[: int(rng.integers(0, keys + 1))].tolist()
    told = least_slots(requests(*gates), initial, keys)
    for slots in range(max(map(len, gates)), keys + 1):
        if len(initial) in (0, keys) or slots <= len(initial):
            assert (told <= slots).tolist() == hits_of(gates, initial, slots), slots


def test_only_what_keeps_the_most_recent_is_told_by_one_pass() -> None:
    class Own(LRU):
        """With rules of its own, perhaps."""

    assert LRU().keeps_the_most_recent
    for other in (Own(), FIFO(), LRU(recency="rows"), LRU("site", quotas=(1, 2))):
        assert not other.keeps_the_most_recent


def controller(**changes: Any) -> Any:
    """What a screened run asks of its controller, of two sites."""
    values = {
        "cache": LRU(),
        "loader": SimpleNamespace(retention="strict", staging_slots=0),
        "slots": SimpleNamespace(capacity_bytes=(1,), initial=()),
        "geometry": SimpleNamespace(sites=2, precisions=("fp16",), site_bytes=None),
        "spare_bytes": None,
    }
    return SimpleNamespace(**(values | changes))


def test_why_one_pass_does_not_tell_every_capacity() -> None:
    assert why_not_at_once(controller()) is None
    two = SimpleNamespace(capacity_bytes=(1, 1))
    assert why_not_at_once(controller(slots=two)) is None, "a pool a site"
    three = SimpleNamespace(capacity_bytes=(1, 1, 1))
    assert why_not_at_once(controller(slots=three)) == "its pools do not divide the slots evenly"
    for retention, staging in (("lenient", 0), ("strict", 1)):
        loader = SimpleNamespace(retention=retention, staging_slots=staging)
        assert why_not_at_once(controller(loader=loader)) == "experts are held outside the pools"
    why = why_not_at_once(controller(cache=FIFO()))
    assert why == "it does not keep what was asked for last"


def test_slots_of_several_sizes_are_no_number_of_experts() -> None:
    require_slots(controller())
    sizes = SimpleNamespace(sites=2, precisions=("fp16",), site_bytes=((1, 2),))
    with pytest.raises(
        ScreenError,
        match=r"^model: experts of several sizes share these slots; choose a model whose layers are"
        r" stored alike \(moelab study budget\.resident_share=\.\. runs this one\)$",
    ):
        require_slots(controller(geometry=sizes))


def test_where_experts_stay_longer_the_fewest_loads_are_not_told() -> None:
    loader = SimpleNamespace(retention="lenient", staging_slots=0)
    asked = requests([0])
    assert least_loads(controller(loader=loader), SimpleNamespace(), asked) is None  # type: ignore[arg-type]


def test_a_point_lies_between_the_least_and_the_most_slots() -> None:
    asked = requests([0, 1], [0])
    curve = Curve(2, 3, np.array([NEVER, 3, 2]), asked)
    assert (curve.at(2).loads, curve.at(3).loads) == (2, 1)
    for slots in (1, 4):
        with pytest.raises(ValueError, match=f"^{slots} slots are not between 2 and 3$"):
            curve.at(slots)
