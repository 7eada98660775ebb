"""The rows of an answer: what one tells of a trial, which tie, and which show the same."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim.answers import ask
from sim.answers.ask import answer, behind_the_fastest, row_of, systems_at
from sim.answers.ask_parts import Change, Fit, Found, Need, Row, alike, fastest_first
from sim.results.labels import Labels
from sim.results.paired import Paired
from sim.values.units import GIB

LINKS = (SimpleNamespace(name="pcie"), SimpleNamespace(name="drive"))


def row(system: str, speed: float = 4.0, kind: str = "lossless", **parts: Any) -> Row:
    words = (f"system={system}", "precision=fp16")
    one = Row(system, "fp16", words, kind, 0.5, speed, None, 1.25, None, 0.75, "nothing", Labels())
    return replace(one, **parts)


SUMMARY: dict[str, Any] = {
    "labels": {},
    "overrides": ["a=b"],
    "budget": {
        "slots": {"int8": 3, "int4": 2},
        "resident_share": 0.5,
        "device_bytes": 30,
        "allowed_bytes": 40,
    },
    "quality_proxy": {"low_share": 0, "skip_share": 0, "reroute_share": 0},
    "decode_tokens_per_s": 12.5,
    "ttft_s": {"mean": 2.5},
    "ci95": {"decode_tokens_per_s": [11.0, 14.0], "ttft_s": [2.0, 3.0]},
    "stall_s": {"demand": 1.0, "host": 2.0},
    "makespan_s": 12.0,
    "storage_bytes": 3 << 29,
    "calibration": {"ci95": {"decode_tokens_per_s": [9.0, 16.0]}},
}
WORDS = ("system=x", "precision=int8")
FULL = Row(
    "x",
    "int8",
    WORDS,
    "lossless",
    0.375,
    12.5,
    (11.0, 14.0),
    2.5,
    (2.0, 3.0),
    0.25,
    "nothing",
    Labels(changed=("a=b",)),
    None,
    (9.0, 16.0),
    "the machine's error",
    1.5,
)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, {}),
        (
            {"ci95": {"decode_tokens_per_s": None, "ttft_s": None}, "calibration": {}},
            {"interval": None, "first_interval": None, "with_machine": None},
        ),
        ({"calibration": {"ci95": None}}, {"with_machine": None}),
        (
            {
                "calibration": {
                    "data_sheets": {"machines": 7},
                    "ci95": {"decode_tokens_per_s": [5.0, 30.0]},
                }
            },
            {"with_machine": (5.0, 30.0), "errors": "the error of data sheets"},
        ),
        (
            {"labels": {"lossy": "lossy (every expert at int8 or below)"}},
            {"kind": "lossy", "lost": "every expert at int8 or below"},
        ),
        (
            {
                "labels": {"lossy": "lossy (x)", "reference": "a reference"},
                "quality_proxy": {"low_share": 0.25, "skip_share": 0.125, "reroute_share": 0},
            },
            {"kind": "bound", "lost": "25% of needs at low precision, 12.5% skipped"},
        ),
    ],
)
def test_a_row_tells_what_a_trial_found(changed: dict[str, Any], expected: dict[str, Any]) -> None:
    """Pools take 30 of the 40 bytes that hold a half of the experts."""
    trial: Any = SimpleNamespace(summary={**SUMMARY, **changed})
    labels = Labels(**changed.get("labels", {}), changed=("a=b",))
    assert row_of(WORDS, trial) == replace(FULL, labels=labels, **expected)


@pytest.mark.parametrize(
    ("behind", "ties"),
    [
        (None, False),
        (Paired(1.5, (1.0, 2.0), None, 8), True),
        (Paired(1.5, (1.01, 2.0), None, 8), False),
        (Paired(1.0, None, None, 1), True),
        (Paired(1.01, None, None, 1), False),
    ],
)
def test_a_row_ties_where_the_fastest_may_be_as_slow(behind: Paired | None, ties: bool) -> None:
    assert row("a", behind=behind).ties is ties


LESS = "every expert at fp16 or below"


@pytest.mark.parametrize(
    ("of", "is_it"),
    [
        ({"share": 1.0, "waiting": 0.0}, True),
        ({"share": 1.5, "waiting": 0.0, "kind": "lossy", "lost": LESS}, True),
        # Faster than what holds all and computes all: 30.9 tokens/s for 28.7.
        ({"share": 1.0, "waiting": 0.0, "kind": "lossy", "lost": "12.5% skipped"}, False),
        ({"share": 1.0, "waiting": 0.0, "kind": "bound", "lost": LESS}, False),
        ({"share": 0.99, "waiting": 0.0}, False),
        ({"share": 1.0, "waiting": 0.01}, False),
        ({"share": 1.0, "waiting": 0.0, "kind": "bound"}, False),
    ],
)
def test_nothing_is_offloaded_where_all_is_held_and_nothing_waits(
    of: dict[str, Any], is_it: bool
) -> None:
    assert row("a", **of).is_all_resident is is_it


def test_each_row_is_compared_with_the_fastest_of_its_kind() -> None:
    rows = [
        row("a", 4),
        row("b", 8),
        row("c", 9, "lossy"),
        row("d", 3, "lossy"),
        row("e", 1, "bound"),
    ]
    times = {one.words: np.array([1.0, 2.0, 3.0]) * 24 / one.tokens_per_s for one in rows}
    found = behind_the_fastest(rows, times)
    assert [one.system for one in found] == ["a", "b", "c", "d", "e"]
    speedups = [None if one.behind is None else one.behind.speedup for one in found]
    assert speedups == [pytest.approx(2.0), None, None, pytest.approx(3.0), None]


def test_the_fastest_is_first_then_the_sooner_token_then_the_name() -> None:
    rows = [row("c"), row("b"), row("a", first_s=2.0), row("d", 5.0)]
    assert [one.system for one in fastest_first(rows)] == ["d", "b", "c", "a"]


def test_rows_that_show_the_same_numbers_stand_together() -> None:
    rows = [
        row("a"),
        row("b", 4.1),
        row("c", 4.0001, share=0.5001, first_s=1.2501),
        row("d", share=0.501),
        row("e", 4.001),
        row("f", first_s=1.26),
        row("g", lost="some"),
        row("h", precision="int8"),
    ]
    groups = [[one.system for one in group] for group in alike(rows).values()]
    assert groups == [["a", "c"], ["b"], ["d"], ["e"], ["f"], ["g"], ["h"]]


def test_what_fits_whole_is_asked_of_one_system_and_the_rest_of_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ask, "names", lambda kind: {"system": ["lru", "fate", "floe"]}[kind])
    chosen = {("fate", "precision"): "int4", ("floe", "precision"): "fp16"}
    monkeypatch.setattr(ask, "chosen_by", lambda system, group: chosen.get((system, group)))
    assert systems_at(("fp16", "int4"), ("int4", "int2")) == [
        ("system=lru", "precision=int4"),
        ("system=lru", "precision=int2"),
        ("system=lru", "precision=fp16"),
        ("system=fate",),
        ("system=floe", "precision=fp16"),
    ]


class Speed(float):
    """A trial that is no more than its speed, and the name of its system."""

    summary: dict[str, str]


class Asked:
    """A bench that ran what it is asked for: lru at the speeds given by precision."""

    def __init__(self, speeds: dict[str, float]) -> None:
        self.speeds, self.words = speeds, list[Any]()

    def all(self, words: Any) -> Any:
        self.words.append(list(words))
        found = {one: Speed(self.speeds[one[1]]) for one in words}
        for one, trial in found.items():
            trial.summary = {"system": f"lru {one[1]}"}
        return found, [("b", "no")]


def test_an_answer_has_rows_fits_changes_of_the_fastest_and_needs_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All fits from int8 on. Of precisions that fit those that are asked for and the best one are."""
    fits = (Fit("fp16", 9, False), Fit("int8", 5, True), Fit("int4", 3, True), Fit("int2", 2, True))
    kinds = {"precision=int8": "lossless", "precision=int2": "lossy"}
    rows = {
        words: row("lru", speed, kinds.get(words[1], "lossless"), words=words)
        for word, speed in (
            ("precision=fp16", 3.0),
            ("precision=int8", 5.0),
            ("precision=int2", 7.0),
        )
        for words in (("system=lru", word),)
    }
    monkeypatch.setattr(ask, "fits_of", lambda run: fits)
    monkeypatch.setattr(
        ask,
        "systems_at",
        lambda some, whole: (
            [*rows] if (some, whole) == (["fp16", "int2"], ["int8", "int2"]) else []
        ),
    )
    monkeypatch.setattr(ask, "row_of", lambda words, found: rows[words])
    monkeypatch.setattr(ask, "quality_of", lambda shape, system: (shape, system))
    monkeypatch.setattr(ask, "decode_time_and_tokens", lambda found: (np.array([1 / found]), None))
    monkeypatch.setattr(ask, "error_of", lambda run: run.error)
    change = Change("x", "y", 1.0, Paired(1, None, None, 1))
    monkeypatch.setattr(ask, "_changes", lambda one, run, bench: [replace(change, of=one.words[1])])
    for what in ("link", "memory"):
        need = Need(what, 1.0, what)
        monkeypatch.setattr(
            ask,
            f"_{what}",
            lambda one, run, bench, target, n=need: replace(n, value=one.tokens_per_s),
        )
    hardware = SimpleNamespace(
        title="h", memory_gib=24.0, devices=None, all_memory_bytes=96 * GIB, preset="p", links=LINKS
    )
    run: Any = SimpleNamespace(
        trace=SimpleNamespace(header=SimpleNamespace(model=SimpleNamespace(name="shape"))),
        hardware=hardware,
        model=SimpleNamespace(name="m", stored="fp16", keeps="fp16".__eq__),
        error=None,
    )
    speeds = {words[1]: one.tokens_per_s for words, one in rows.items()}
    bench: Any = Asked(speeds)
    found = answer(run, "gates", ["fp16", "int2"], 6.0, bench, 12.5)
    behind = Paired(pytest.approx(5 / 3), None, None, 1)
    at_asked = tuple(replace(row, behind=None) for row in found.rows[:2])
    assert found == Found(
        "m",
        "h",
        24.0,
        "gates",
        12.5,
        tuple(
            replace(
                rows["system=lru", f"precision={name}"],
                quality=("shape", f"lru precision={name}"),  # type: ignore[arg-type]
                behind=behind if name == "fp16" else None,
            )
            for name in ("fp16", "int2", "int8")
        ),
        (("b", "no"),),
        fits,
        (replace(change, of="precision=int8"), replace(change, of="precision=int2")),
        (Need("link", 5.0, "link"), Need("memory", 5.0, "memory")),
        6.0,
        "p",
        "",
        at_asked,
        home="drive",
    )
    assert not answer(run, "gates", ["fp16", "int2"], 5.0, bench, 12.5).needs, "it is met"
    hardware.devices, run.error = "some", 7.5
    again = answer(run, "gates", ["fp16", "int2"], None, bench, 12.5)
    assert (again.memory_gib, again.validated, again.needs) == (96.0, "7.5", ())


@pytest.mark.parametrize(
    ("stored", "precisions", "left_out", "asked"),
    [
        ("fp16", ["q4_k_m"], "fp16", ["slow at q4_k_m", "all at int2"]),
        ("fp16", ["fp16", "q4_k_m"], "", ["own at fp32", "all at int2"]),
        ("fp16", ["bf16"], "", ["own at fp32", "all at int2"]),
        ("q4_k_m", ["q4_k_m"], "", ["own at fp32", "all at int2"]),
        ("int2", ["q4_k_m"], "", ["own at fp32", "all at int2"]),  # it fits: lru is asked at it
    ],
)
def test_a_precision_above_the_models_own_is_no_answer_where_nobody_asked_for_that(
    stored: str,
    precisions: list[str],
    left_out: str,
    asked: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``precisions=q4_k_m`` was answered with EdgeMoE's IO-EXP in FP32, and what would change that."""
    rows = {
        one.words: one
        for one in (
            row("own", 0.5, "lossless", precision="fp32", words=("system=own",)),
            row("slow", 3, "lossy", precision="q4_k_m", words=("system=slow", "precision=q4_k_m")),
            row("slower", 2, "lossy", precision="q4_k_m", words=("system=x", "precision=q4_k_m")),
            row("all", 9, "lossy", precision="int2", words=("system=all", "precision=int2")),
        )
    }
    speeds = {words: Speed(one.tokens_per_s) for words, one in rows.items()}
    for words, trial in speeds.items():
        trial.summary = {"system": words[0]}
    monkeypatch.setattr(ask, "fits_of", lambda run: (Fit("fp16", 9, False), Fit("int2", 1, True)))
    monkeypatch.setattr(ask, "row_of", lambda words, found: rows[words])
    monkeypatch.setattr(ask, "quality_of", lambda shape, system: None)
    monkeypatch.setattr(ask, "decode_time_and_tokens", lambda found: (np.array([1 / found]), None))
    monkeypatch.setattr(ask, "error_of", lambda run: None)
    monkeypatch.setattr(
        ask, "_changes", lambda one, *_: [Change("x", one.name, 1.0, Paired(1, None, None, 1))]
    )
    model: Any = SimpleNamespace(name="m", stored=stored)
    model.keeps = lambda name: name in ("fp32", "fp16", "bf16", stored)
    hardware = SimpleNamespace(title="h", memory_gib=24.0, devices=None, preset="p", links=LINKS)
    header = SimpleNamespace(model=SimpleNamespace(name="shape"))
    run: Any = SimpleNamespace(trace=SimpleNamespace(header=header), hardware=hardware, model=model)
    bench: Any = SimpleNamespace(all=lambda _: (speeds, []))
    found = answer(run, "gates", precisions, None, bench, 12.5)
    assert found.left_out == left_out
    assert [one.of for one in found.changes] == asked
    named = [one.name for one in found.named("lossless")]
    assert named == ([] if left_out else ["own at fp32"])
    if "q4_k_m" in precisions:
        (at,) = found.best_at_asked().values()
        assert [one.name for one in at] == ["slow at q4_k_m", "slower at q4_k_m"]
        # Behind the fastest at its precision, not behind all of int2.
        assert [one.behind and one.behind.speedup for one in at] == [None, pytest.approx(1.5)]
