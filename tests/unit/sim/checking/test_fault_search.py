"""Faults of an engine with two slots, worked out by hand; and that a walk finds what a whole
replay finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sim.check import main
from sim.checking.cache_replay import Contract, Replayer
from sim.checking.cache_walk import (
    BUDGET,
    LOST,
    PINNED,
    UNREFRESHED,
    VICTIM,
    WAVES,
    CacheWalk,
    Difference,
    Fault,
)
from sim.checking.fault_search import FLAG, Explanation, FaultSearch, Found, _Spent
from sim.traces.residency_log import read_log
from unit.sim.checking.test_check import write

A, B, C, D, E = 0, 1, 2, 3, 4
LRU = Contract("lru", (("initial", "empty"), ("retention", "strict")))
ASKED = [A, B, A, C, A, D, A]
OPTIONS = (
    "budget=20B",
    "policy=lru",
    "scope=global",
    "initial=empty",
    "retention=strict",
    "recency=needs",
)
RIGHT = [False, False, True, False, True, False, True]
"""Two slots, least recently asked for goes: C goes in for B, D for C."""


def walk_of(
    folder: Path,
    lookups: Sequence[int],
    flags: Sequence[bool],
    contract: Contract = LRU,
    budget: int = 20,
    prompt: int = 1,
) -> CacheWalk:
    """A walk through a log of one lookup a step, experts of 10 B, with what was read as the
    flags say.
    """

    def change(columns: dict[str, Any]) -> None:
        columns.update(resident=list(flags), loaded_bytes=[0 if flag else 10 for flag in flags])

    replayer = Replayer(read_log(write(folder, change, lookups=lookups, prompt=prompt)))
    return CacheWalk(replayer, contract, budget, replayer.replay(contract, budget))


def explained(walk: CacheWalk) -> set[tuple[str, int, int, int, int]]:
    """Kind, first and last step, expert, other."""
    found = FaultSearch(walk).search()
    assert found.is_complete
    return {
        (e.kind, e.first.tick, e.last.tick, e.first.key, e.first.other) for e in found.explanations
    }


@pytest.mark.parametrize("flags", [RIGHT, [False] * 7, [True] * 7])
@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo", "fld"])
@pytest.mark.parametrize("retention", ["strict", "after_batch"])
def test_a_walk_finds_what_a_replay_finds_and_comes_back_from_every_checkpoint(
    tmp_path: Path, policy: str, retention: str, flags: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sim.checking.cache_walk.STRIDE", 2)
    scope = (("scope", "global"), ("shares", "[]")) if policy == "fld" else ()
    contract = Contract(policy, (("initial", "empty"), ("retention", retention), *scope))
    walk = walk_of(tmp_path, ASKED, flags, contract)
    # That the walk finds what the replay does is checked when it is made.
    first = next(walk.differences(), None)
    for tick in range(first.tick if first is not None else 7):
        assert walk.first_difference(Fault(BUDGET, tick)) == first


@pytest.mark.parametrize(
    ("retention", "stays"), [("strict", False), ("after_batch", False), ("until_next_visit", True)]
)
def test_what_a_batch_left_over_its_pool_goes_with_the_next_batch_or_at_the_next_visit(
    tmp_path: Path, retention: str, stays: bool
) -> None:
    """Two sites with a pool of two slots each. The prompt asks the first for A, B and C, then the
    second for A alone; a token asks both for A.
    """

    def change(columns: dict[str, Any]) -> None:
        columns.update(resident=[False] * 8, loaded_bytes=[10] * 8)

    options = ("initial", "empty"), ("scope", "site"), ("retention", retention)
    log = read_log(write(tmp_path, change, lookups=[A, A, B, A, C, A, A, A], prompt=3, sites=2))
    replayer, contract = Replayer(log), Contract("lru", options)
    replay = replayer.replay(contract, 40)
    if retention == "strict":
        with pytest.raises(ValueError, match=f"^{WAVES}$"):
            CacheWalk(replayer, contract, 40, replay)
        return
    walk = CacheWalk(replayer, contract, 40, replay)
    assert walk.found == [[False] * 3, [False], [stays], [True]]
    assert walk.evictions == [*([] if stays else [(1, A)]), (2, B)]


def test_a_cache_that_holds_the_same_but_remembers_otherwise_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three slots. A was not refreshed at step 3: it is older than B, and D goes in for it.

    Before step 6, where a checkpoint is, the slots are what they are without the fault.
    """
    monkeypatch.setattr("sim.checking.cache_walk.STRIDE", 2)
    flags = [False, False, False, True, True, True, False, True]
    walk = walk_of(tmp_path, [A, B, C, A, C, C, D, A], flags, budget=30)
    assert walk.first_difference(Fault(UNREFRESHED, 3, A)) == Difference(7, A, False)
    # A fault of nothing at step 1 is over at step 4, where the next checkpoint behind it is.
    before = walk.walked
    assert walk.first_difference(Fault(BUDGET, 1)) is None
    assert walk.walked == before + 4


def test_what_the_contract_evicted_is_known_by_batch(tmp_path: Path) -> None:
    assert walk_of(tmp_path, ASKED, RIGHT).evictions == [(3, B), (5, C)]


@pytest.mark.parametrize(
    ("fault", "first"),
    [
        # At step 3 A goes instead of B, so that step 4 does not find it.
        (Fault(VICTIM, 3, A, B), Difference(4, A, False)),
        # At step 2 A stays as old as it was: C goes in for it.
        (Fault(UNREFRESHED, 2, A), Difference(4, A, False)),
        (Fault(LOST, 0, A), Difference(2, A, False)),
        (Fault(LOST, 4, A), Difference(6, A, False)),
        # C stays, so that D goes in for A.
        (Fault(PINNED, 3, other=C), Difference(6, A, False)),
        (Fault(BUDGET, 0, change_bytes=-10), Difference(2, A, False)),
        (Fault(BUDGET, 2, change_bytes=-10), Difference(4, A, False)),
        (Fault(BUDGET, 2, change_bytes=10), None),
    ],
)
def test_a_fault_shows_where_it_does_by_hand(
    tmp_path: Path, fault: Fault, first: Difference | None
) -> None:
    walk = walk_of(tmp_path, ASKED, RIGHT)
    assert walk.first_difference(fault) == first
    assert walk.evictions == [(3, B), (5, C)], "those without a fault"


# Contracts: C139
def test_an_expert_that_went_too_soon_is_told_with_all_that_would_have_made_it_go(
    tmp_path: Path,
) -> None:
    """Step 4 finds no A: C went in for it at step 3, as it does if step 2 was not told of; or A
    was just dropped.
    """
    flags = [False, False, True, False, False, False, True]
    faults = (
        Fault(UNREFRESHED, 2, A),
        Fault(LOST, 2, A),
        Fault(VICTIM, 3, A, B),
        Fault(LOST, 3, A),
    )
    assert FaultSearch(walk_of(tmp_path, ASKED, flags)).search() == Found(
        tuple(Explanation(fault.kind, fault, fault, since=2, shown=4) for fault in faults), True
    )


def test_an_expert_that_is_never_evicted_is_told_of(tmp_path: Path) -> None:
    """B stays for good: from step 3 on one slot is left for the rest."""
    flags = [False, False, True, False, False, False, True]
    first, last = (Fault(PINNED, tick, other=B) for tick in (1, 3))
    walk = walk_of(tmp_path, [A, B, A, C, A, D, B], flags)
    assert FaultSearch(walk).search() == Found((Explanation(PINNED, first, last, 1, 6),), True)


def test_a_slot_that_is_missing_from_some_step_on_is_told_with_when_that_may_have_been(
    tmp_path: Path,
) -> None:
    """One slot from after step 2 on: of what was there only the last asked for stays, and
    nothing is found again.
    """
    flags = [False, False, True, False, False, False, False]
    found = explained(walk_of(tmp_path, ASKED, flags))
    assert {(first, last) for kind, first, last, *_ in found if kind == BUDGET} == {(2, 3)}


@pytest.mark.parametrize("policy", ["lru", "fifo"])
@pytest.mark.parametrize(
    ("asked", "flags", "budget", "change", "until"),
    [
        # C should have gone in for A at step 2: a third slot was there by then.
        ([A, B, C, A], [False, False, False, True], 20, 10, 1),
        # A should have stayed at step 2: two of three slots were left by then.
        ([A, B, C, A], [False] * 4, 30, -10, 2),
    ],
)
def test_a_slot_more_or_less_is_told_with_when_that_may_have_been(
    tmp_path: Path,
    policy: str,
    asked: list[int],
    flags: list[bool],
    budget: int,
    change: int,
    until: int,
) -> None:
    contract = Contract(policy, (("initial", "empty"), ("retention", "strict")))
    walk = walk_of(tmp_path, asked, flags, contract, budget)
    first, last = (Fault(BUDGET, tick, change_bytes=change) for tick in (0, until))
    tried: list[int] = []
    search = FaultSearch(walk)
    explains = search._last_span
    search._last_span = lambda faults: tried.append(faults[0].change_bytes) or explains(faults)  # type: ignore[method-assign,func-returns-value]
    assert list(search._budgets()) == [Explanation(BUDGET, first, last, -1, 3)]
    assert tried == ([change] if policy == "lru" else [-10, 10])


def test_who_went_in_whose_place_is_told_where_one_of_many_evictions_was_wrong(
    tmp_path: Path,
) -> None:
    """Three slots by use. A and B are used most, E next; C and D come in turns, each for the other.

    At step 58 C should go in for E, and goes in for A. That E stayed and that A is missing shows at
    the end, after many evictions more. So neither of the two alone says when it was.
    """
    turns = [C, D] * 4
    asked = [A] * 20 + [B] * 19 + turns + [E] * 11 + turns + [E, A, B]
    first = {asked.index(key) for key in (A, B, E)}
    wrong = len(asked) - len(turns) - 3
    flags = [key in (A, B, E) and tick not in first for tick, key in enumerate(asked)]
    flags[-2] = False
    contract = Contract("lfu", (("initial", "empty"), ("retention", "strict")))
    walk = walk_of(tmp_path, asked, flags, contract, 30)
    assert list(walk.differences()) == [
        Difference(len(asked) - 3, E, False),
        Difference(len(asked) - 2, A, True),
    ]
    assert (VICTIM, wrong, wrong, A, E) in explained(walk)


# Contracts: C139
def test_a_flag_that_what_was_read_does_not_bear_out_is_the_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(columns: dict[str, Any]) -> None:
        columns["resident"][6] = True

    folder = write(tmp_path, change)
    assert main([str(folder), *OPTIONS]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "  one fault explains every flag:" in lines
    assert (
        lines[lines.index("  one fault explains every flag:") + 1]
        == "    flag: row 6, step 6, layer 2 (site 0), expert 0 of layer 2 (site 0): the flag alone"
        " is wrong (what was read says the contrary)"
    )
    assert lines[-1] == "note: 1 flags are not what was read for them, the first in row 6"


def test_a_flag_alone_is_no_explanation_where_what_was_read_bears_it_out(tmp_path: Path) -> None:
    flags = [False, False, True, False, False, False, True]
    assert FLAG not in {kind for kind, *_ in explained(walk_of(tmp_path, ASKED, flags))}


# Contracts: C139
def test_a_search_that_may_walk_no_further_says_so(tmp_path: Path) -> None:
    flags = [False, False, True, False, False, False, True]
    assert not FaultSearch(walk_of(tmp_path, ASKED, flags), most_needs=3).search().is_complete


def test_a_search_may_walk_just_as_far_as_it_may(tmp_path: Path) -> None:
    walk = walk_of(tmp_path, ASKED, [False] * 7)
    search = FaultSearch(walk, most_needs=0)
    assert search._find([Fault(BUDGET, 0)], 0, 1) is None, "what was walked before does not count"
    walk.walked += 1
    with pytest.raises(_Spent):
        search._find([Fault(BUDGET, 0)], 0, 1)


def test_of_experts_that_went_unseen_only_the_latest_are_tried_and_the_others_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four slots A should go for E. It stayed: B, C or D went, of which none is asked for again."""
    monkeypatch.setattr("sim.checking.fault_search.UNSEEN", 2)
    walk = walk_of(tmp_path, [A, B, C, D, E, A], [False] * 5 + [True], budget=40)
    found = FaultSearch(walk).search()
    seen = {(e.kind, e.first.tick, e.first.key) for e in found.explanations}
    assert {(VICTIM, 4, D), (VICTIM, 4, C)} <= seen
    assert (VICTIM, 4, B) not in seen
    assert (found.untried, found.is_complete) == (1, True)


def test_no_more_experts_are_suspected_than_told_and_each_once(tmp_path: Path) -> None:
    asked = [A, B, C, D, E, A, A, B, C, D, E]
    search = FaultSearch(walk_of(tmp_path, asked, [False] * 11, budget=50))
    assert [one.key for one in search._suspects(True)] == [A, B, C]
    assert list(search._suspects(False)) == []


def test_budgets_are_not_looked_for_where_there_are_several_pools(tmp_path: Path) -> None:
    walk = walk_of(tmp_path, ASKED, [False] * 7)
    search = FaultSearch(walk)
    walk.pools = (10, 10)  # type: ignore[assignment]
    assert list(search._budgets()) == []


def test_where_a_batch_flags_one_expert_both_ways_no_fault_is_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The prompt asks for A and B twice: they are missing. The log's second flags say else."""
    walk = walk_of(tmp_path, [A, A, B, B, A], [False, True, False, True, True], prompt=4)
    assert list(walk.differences()) == []
    found = FaultSearch(walk).search()
    assert (found.explanations, found.is_complete) == ((), True)
    assert main([str(tmp_path / "log"), *OPTIONS]) == 1
    told = capsys.readouterr().out
    assert (
        "The batch's other lookups of it are flagged differently: one batch finds an expert one way."
        in told
    )
    assert "no single fault of the engine or the log that was tried" in told


def test_a_batch_that_exceeds_the_budget_is_walked_by_no_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=f"^{WAVES}$"):
        walk_of(tmp_path, [A, B, C], [False, False, True], budget=10, prompt=2)
    assert main([str(tmp_path / "log"), *OPTIONS[1:], "budget=10B"]) == 1
    assert f"\n  {WAVES}\n" in capsys.readouterr().out


def test_a_replay_of_another_budget_is_refused(tmp_path: Path) -> None:
    replayer = walk_of(tmp_path, ASKED, RIGHT).replayer
    with pytest.raises(ValueError, match=f"^{WAVES}$"):
        CacheWalk(replayer, LRU, 20, replayer.replay(LRU, 10))


def test_policies_hear_of_each_sequence_that_ends_and_begins(tmp_path: Path) -> None:
    walk = walk_of(tmp_path, ASKED, RIGHT)
    heard: list[tuple[int, bool]] = []
    walk.policy = SimpleNamespace(on_sequence=lambda *told: heard.append(told))  # type: ignore[assignment]
    first, second = (
        SimpleNamespace(begins=begins, ends=ends)
        for begins, ends in (((1, 2), (1,)), ((3,), (2, 3)))
    )
    for before, now in ((None, first), (first, first), (first, second), (second, first)):
        walk._change_sequences(before, now)  # type: ignore[arg-type]
    begun, went_on = [(1, True), (2, True)], [(1, False), (3, True)]
    assert heard == [*begun, *went_on, (2, False), (3, False), *begun]


def test_faults_are_not_looked_for_where_lookups_are_served_one_by_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="batches are looked up whole"):
        walk_of(
            tmp_path,
            ASKED,
            RIGHT,
            Contract("lru", (("initial", "empty"), ("replay_unit", "access"))),
        )


@pytest.mark.parametrize(
    ("count", "right", "span", "first_tried"),
    [
        # The last, the first, then every tenth.
        (
            101,
            range(50, 56),
            (50, 55),
            [100, *range(0, 60, 10), 41, 45, 47, 48, 49, 99, 74, 62, 56, 53, 54, 55],
        ),
        (101, range(101), (0, 100), [100]),
        (101, range(91, 100), None, [100, *range(0, 91, 10)]),
        (3, range(1, 2), (1, 1), [2, 0, 1]),
        (1, range(1), (0, 0), [0]),
        (0, range(0), None, []),
    ],
)
def test_places_are_tried_once_each_from_the_ends_and_then_the_edges_by_halving(
    tmp_path: Path,
    count: int,
    right: range,
    span: tuple[int, int] | None,
    first_tried: list[int],
) -> None:
    search = FaultSearch(walk_of(tmp_path, ASKED, [False] * 7))
    tried: list[int] = []
    search._explains = lambda fault: tried.append(fault.tick) or fault.tick in right  # type: ignore[assignment,func-returns-value,method-assign]
    found = search._span([Fault(LOST, tick) for tick in range(count)])
    assert (None if found is None else tuple(fault.tick for fault in found)) == span
    assert tried[: len(first_tried)] == first_tried
    assert len(tried) == len(set(tried))


STRICT = Contract("lru", (("initial", "ascending"), ("retention", "strict")))


def test_a_wrong_victim_goes_once_where_a_batch_loads_two(tmp_path: Path) -> None:
    """A, B and C are there; the prompt asks for D and E. C goes instead of A, then B."""
    walk = walk_of(tmp_path, [D, E, A], [False, False, True], STRICT, 30, prompt=2)
    assert walk.evictions == [(0, A), (0, B), (1, C)]
    assert walk.first_difference(Fault(VICTIM, 0, C, A)) is None


def test_a_fault_that_leaves_no_place_for_an_expert_explains_nothing(tmp_path: Path) -> None:
    """One slot that keeps A has none for B."""
    walk = walk_of(tmp_path, [A, B, A], [False, False, True], STRICT, 10)
    assert walk.first_difference(Fault(PINNED, 1, other=A)) == Difference(1, B, False)
    assert explained(walk) == set()


def test_an_expert_is_a_victim_in_the_pool_of_its_own_layer_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of two sites has two slots. Expert A of the first one is dropped in step 2 and loaded
    again in step 3; only the second one evicts then.
    """
    lookups = [A, A, B, B, B, C, A, A]

    def change(columns: dict[str, Any]) -> None:
        flags = [False, False, False, False, True, False, False, False]
        columns.update(resident=flags, loaded_bytes=[0 if flag else 10 for flag in flags])

    log = write(tmp_path, change, lookups=lookups, sites=2)
    options = ("budget=40B", "policy=lru", "scope=site", *OPTIONS[3:])
    assert main([str(log), *options]) == 1
    out = capsys.readouterr().out
    assert "dropped: " in out
    assert "victim: " not in out


def test_a_walk_counts_each_need_that_it_visits(tmp_path: Path) -> None:
    walk = walk_of(tmp_path, ASKED, RIGHT)
    assert walk.walked == 7
    walk.first_difference(Fault(BUDGET, 2, change_bytes=10))
    assert walk.walked == 14, "from the only checkpoint, which is before the first"
