"""The lines of a check, from verdicts and replays that are made by hand; and what is tried."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim import check
from sim.checking.cache_replay import Contract, Lapse


class Log(SimpleNamespace):
    def __len__(self) -> int:
        return 8


def verdict(name: str, *wrong: int) -> Any:
    return SimpleNamespace(
        contract=name, wrong=np.array(wrong, int), replay=SimpleNamespace(resident="R"), refusal=""
    )


def lines(*verdicts: Any, prefetched: int = 0, at_odds: tuple[int, ...] = ()) -> list[str]:
    log = Log(
        trace=SimpleNamespace(header=SimpleNamespace(name="log")),
        resident=np.arange(8) < 3,
        num_prefetched=prefetched,
        at_odds=np.isin(np.arange(8), at_odds),
        line=np.arange(8) + 100,
    )
    return check.report(SimpleNamespace(log=log), verdicts, 20)  # type: ignore[arg-type]


def test_a_report_has_the_best_contracts_their_deviations_and_notes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check, "hits_of", lambda log, resident: "hits")
    monkeypatch.setattr(check, "tell", lambda replayer, replay, lookup: f"lookup {lookup}.")
    monkeypatch.setattr(
        check, "faults", lambda replayer, best, budget: [f"{best.contract} {budget}"]
    )
    monkeypatch.setattr(check, "SHOWN", 2)
    monkeypatch.setattr(check, "ALONE", " Alone.")
    head = "log: 8 lookups, 3 of them flagged resident: hits"
    b = [
        "explains 7 of 8 flags (87.50 %): b: hits",
        "  first deviation: lookup 5. Alone.",
    ]
    c = ["explains 5 of 8 flags (62.50 %): c: hits", "  first deviation: lookup 1."]
    refused = SimpleNamespace(contract="f", wrong=None, replay=None, refusal="too little")
    rest = [
        verdict("b", 5),
        verdict("c", 1, 2, 3),
        verdict("d", *range(4)),
        verdict("e", *range(6)),
    ]
    assert lines(verdict("a"), verdict("a2"), *rest[:2], prefetched=4) == [
        head,
        "note: 4 found what the engine had prefetched; a replay prefetches nothing",
        "explains all 8 flags: a: hits",
        "explains all 8 flags: a2: hits",
        "this log cannot tell these contracts apart",
        *b,
        *c,
    ]
    assert lines(*rest, refused, at_odds=(3, 6)) == [
        head,
        "no contract explains every flag",
        *b,
        "  b 20",
        *c,
        "2 more explain fewer, down to 25.00 %",
        "note: 2 flags are not what was read for them, the first in row 103",
        "not replayed: f: too little",
    ]


PLACE = "row 102: step 9, layer 5 (site 1), expert 3 (slot 1, position 40): the log says"
LACKS = (
    "If the contract holds, the log may lack a lookup of it in this layer, from step {} to step 9."
)
OTHERWISE = (
    " The batch's other lookups of it are flagged differently: one batch finds an expert one way."
)


@pytest.mark.parametrize("other_flag", [True, False])
@pytest.mark.parametrize(
    ("found", "past", "victims", "story"),
    [
        (
            True,
            Lapse(None, None, None, None),
            [],
            "absent, the replay found it resident. In the replay it was there from the start, and"
            " not evicted since.",
        ),
        (
            True,
            Lapse(0, 1, None, None),
            [1],
            "absent, the replay found it resident. In the replay it was loaded at step 7, layer 0,"
            " last asked for at step 8, layer 0, and not evicted since.",
        ),
        (
            False,
            Lapse(None, None, None, None),
            [],
            "resident, the replay found it absent. In the replay it had never been there: no lookup"
            f" before asked for it. {LACKS.format(7)}",
        ),
        (
            False,
            Lapse(0, None, 1, None),
            [1, 6],
            "resident, the replay found it absent. In the replay it was never asked for and evicted"
            f" at step 8, layer 0 when its batch was over. {LACKS.format(7)} To load it the replay"
            " evicted expert 1 of layer 0 and expert 1 of layer 5 (site 1).",
        ),
        (
            False,
            Lapse(0, 1, 1, 0),
            [1],
            "resident, the replay found it absent. In the replay it was last asked for at step 8,"
            f" layer 0 and evicted at step 8, layer 0 for expert 0 of layer 0. {LACKS.format(8)} To"
            " load it the replay evicted expert 1 of layer 0.",
        ),
    ],
)
def test_a_deviation_is_told_with_its_past(
    found: bool, past: Lapse, victims: list[int], story: str, other_flag: bool
) -> None:
    """Gates 0 to 2 are of steps 7 to 9, the last of them of site 1; lookups 2 and 3 are alike."""
    log = SimpleNamespace(
        layers=[0, 5],
        line=[100, 101, 102, 103],
        step=[7, 8, 9, 9],
        site=[0, 0, 1, 1],
        expert=[1, 2, 3, 3],
        slot=[0, 0, 1, 0],
        row=[0, 1, 2, 2],
        resident=np.array([True, False, not found, (not found) == other_flag]),
        trace=SimpleNamespace(step=np.array([7, 8, 9]), position=[20, 30, 40]),
    )
    workload = SimpleNamespace(
        gate_step=[0, 1, 2],
        gate_site=[0, 0, 1],
        steps=[SimpleNamespace(start=start) for start in range(3)],
        row=np.arange(3),
    )
    replayer: Any = SimpleNamespace(
        log=log,
        workload=workload,
        units=5,
        tick=np.array([0, 1, 2, 2]),
        keys=np.array([1, 2, 8, 8]),
    )
    asked: list[tuple[Any, ...]] = []
    replay: Any = SimpleNamespace(
        resident=[False, False, found, found],
        lapse=lambda *given: asked.append(given) or past,
        victims=lambda *given: asked.append(given) or victims,
    )
    told = check.tell(replayer, replay, 2)
    assert told == f"{PLACE} {story}{'' if other_flag else OTHERWISE}"
    assert asked == [(8, 2, found), *([] if found else [(8, 2)])]


@pytest.mark.parametrize(
    ("phase", "told"),
    [
        ([0, 0, 2, 0], "hits 75.00 %"),
        ([0, 1, 1, 1], "hits 75.00 %, 66.66 % of decoded tokens'"),
    ],
)
def test_hits_are_shares_rounded_down(phase: list[int], told: str) -> None:
    """The last two lookups are of one row."""
    log: Any = SimpleNamespace(
        row=np.array([0, 1, 2, 2]), trace=SimpleNamespace(phase=np.array(phase))
    )
    assert check.hits_of(log, np.array([True, False, True, True])) == told
    assert (check._percent(9_999, 10_000), check._percent(99_999, 100_000)) == (
        "99.99 %",
        "99.99 %",
    )
    assert (check._percent(0, 3), check._percent(3, 3)) == ("0.00 %", "100.00 %")


@pytest.mark.parametrize(
    ("wrong", "options", "ranked"),
    [
        # The second contract explains all.
        ((2, 0), (), ["b", "a"]),
        # None does: the best one is tried with one lookup at a time, too, and ranked among all.
        ((2, 3), (), ["a access", "a", "b"]),
        ((None, 3), (), ["b access", "b", "a"]),
        # It was tried already, or nothing can be replayed.
        ((2, 3), (("replay_unit", "union"),), ["a", "b"]),
        ((None, None), (), ["a", "b"]),
    ],
    ids=str,
)
def test_verdicts_stand_by_what_they_do_not_explain(
    wrong: tuple[int | None, ...],
    options: tuple[tuple[str, str], ...],
    ranked: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made(replayer: Any, contract: Contract, budget: int) -> Any:
        assert budget == 20
        found = dict(zip("ab", wrong, strict=True))[contract.policy]
        if dict(contract.options).get("replay_unit") == "access":
            found = 1
        return check.Verdict(contract, None if found is None else np.zeros(found, int), None)

    monkeypatch.setattr(check, "check", made)
    contracts = [Contract(name, options) for name in "ab"]
    nobody: Any = None
    found = check.search(nobody, contracts, 20, lambda items: items)
    names = [
        one.contract.policy
        + (" access" if one.contract.options[-1:] == (("replay_unit", "access"),) else "")
        for one in found
    ]
    assert names == ranked


def test_contracts_that_are_tried_have_what_was_given_and_every_value_of_the_rest() -> None:
    told = [
        str(one) for one in check.candidates(["fifo", "lru"], {"recency": "rows", "scope": "x"})
    ]
    assert told == [
        f"policy=lru initial={initial} scope=x recency=rows retention={retention}"
        for initial in check.TRIED["initial"]
        for retention in check.TRIED["retention"]
    ]
    with pytest.raises(
        ValueError, match=r"^no policy has all of the options hue, scope; options"
    ) as (refused):
        check.candidates(["fifo"], {"hue": "1", "scope": "site"})
    known = str(refused.value).partition("options by policy: fifo: ")[2].split(", ")
    assert known[-2:] == ["retention", "replay_unit"]
    assert "_target_" not in known
    assert "scope" in known


def test_a_budget_takes_every_unit_and_the_ends_of_its_range() -> None:
    sizes = [check.parse_budget(f"3{unit}") for unit in check.UNITS]
    assert sizes == [3, 3, 3_000, 3_072, 3_000_000, 3 << 20, 3_000_000_000, 3 << 30]
    assert check.parse_budget("1") == 1
    assert check.parse_budget(f"{1 << 30}GiB") == 1 << 60
    assert check.parse_budget("1.25kB") == 1_250
    for text, size in ((f"{1 << 30}.1GiB", (1 << 60) + 107_374_182), ("0.9B", 0)):
        with pytest.raises(
            ValueError, match=rf"^budget={text} is {size} B, must be 1 to 1152921504606846976 B$"
        ):
            check.parse_budget(text)
    for text in ("3 B", "B", "3b", "1234567890123456789", "1.0123456789kB", ""):
        with pytest.raises(
            ValueError,
            match=rf"^budget={text} must be a number and a unit, such as 4000MiB \(units: B, kB, KiB,"
            r" MB, MiB, GB, GiB\)$",
        ):
            check.parse_budget(text)


@pytest.mark.parametrize("word", ["strict", "=lru", "policy=", ""])
def test_a_word_that_is_no_setting_is_refused(word: str) -> None:
    with pytest.raises(
        ValueError,
        match=rf"^{word!r} is no key=value; give budget=, policy= or an option of the policy$",
    ):
        check.parse(["log", word])
