"""Steps and slots that others published: what the files hold, and arithmetic by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from sim.reproduce import field, field_figures
from sim.reproduce.field import published
from sim.reproduce.field_figures import (
    WHAT,
    Figure,
    Split,
    figures,
    simulated,
    slots_table,
    splits,
    steps_table,
)
from unit.sim.reproduce.test_field import gates

__all__ = ["gates"]
HEAD = "id,source,machine,what,measured,words,against\n"


def test_every_figure_names_its_source_and_has_the_words_of_its_run() -> None:
    found, runs = figures(), {one.name: one for one in published()}
    assert {one.what for one in found} == set(WHAT)
    for one in found:
        if one.name in runs:
            assert (one.words, one.source) == (runs[one.name].words, runs[one.name].source)


def test_slots_are_those_before_and_what_keys_and_values_give_back() -> None:
    """100 tokens at 16 bits of 30 bytes a token, then at 8: 1,500 bytes are 15 slots of 100."""
    one = Split("a", "https://b", "c", 25, 10, 100, 16, 100, 8, 30, 100)
    assert one.predicted == 25
    assert replace(one, tokens=200).predicted == 10
    assert replace(one, tokens=400).predicted == -20
    assert replace(one, slot_bytes=101).predicted == 24


def test_the_slots_of_a_run_are_those_of_its_share() -> None:
    """The shares in the words are slots over the model's experts."""
    run = next(one for one in published() if one.name == "kv-ft-8" and not one.fitted_on)
    (split,) = (one for one in splits() if one.name == "kv-ft-8")
    (budget,) = (word for word in run.words if word.startswith("budget."))
    share = float(budget.partition("=")[2])
    assert share == pytest.approx(split.measured / (30 * 128), abs=1e-4)
    assert split.source == run.source


def figure(gates: Path, name: str, what: str, *words: str, against: str = "") -> float:
    """A figure of a published run on small gates, with all drafts right."""
    one = next(run for run in published() if run.name == name)
    told = (*one.words, "trace.max_sequences=1", "workload.draft_accepted=1", *words)
    made = Figure("a", "https://b", "c", what, 1.0, told, tuple(against.split()))
    return simulated(gates, made)


def test_steps_are_compared_with_steps_of_other_words(gates: Path) -> None:
    words = ("workload.draft_tokens=1",)
    here = figure(gates, "r97-mtp4-prose", "step_ms", *words)
    plain = figure(gates, "r97-mtp4-prose", "step_ms", "workload.draft_tokens=0")
    more = figure(
        gates, "r97-mtp4-prose", "step_ms_more", *words, against="workload.draft_tokens=0"
    )
    times = figure(gates, "r97-mtp4-prose", "step_times", *words, against="workload.draft_tokens=0")
    assert more == pytest.approx(here - plain)
    assert times == pytest.approx(here / plain)
    assert here > plain


def test_a_union_is_its_experts_over_the_choices_of_its_rows(gates: Path) -> None:
    """Without drafts every choice is an expert of its own."""
    assert figure(gates, "r97-mtp4-prose", "union", "workload.draft_tokens=0") == 1
    assert 0.5 <= figure(gates, "r97-mtp4-prose", "union", "workload.draft_tokens=1") < 1


def test_the_tables_have_both_sides(gates: Path) -> None:
    one = figures()[0]
    short = replace(
        one, words=(*one.words, "trace.max_sequences=1", "workload.draft_tokens=1"), measured=2.0
    )
    made = steps_table(gates, [short])
    found = float(next(iter(made.columns[4].cells)))
    assert [*made.columns[5].cells] == [f"{simulated(gates, short) / 2:.2f}"]
    assert found > 0
    told = [list(column.cells) for column in slots_table(splits()[:1]).columns]
    assert told[2:] == [["131,096 to 131,158"], ["16 to 8.5"], ["694"], ["2,074"], ["2,015"]]


@pytest.mark.parametrize(
    "line",
    ["a,https://b,c,speed,1,system=lru,", "a,b,c,union,1,system=lru,", "a,https://b,c,union,1,,"],
)
def test_what_is_no_figure_is_refused(line: str, tmp_path: Path) -> None:
    place = tmp_path / "steps.csv"
    place.write_text(HEAD + line + "\n")
    with pytest.raises(ValueError, match=r":2: .* needs a source, words, and one of step_ms"):
        figures(place)


# ---- by hand


def test_each_kind_of_figure_is_of_its_words_and_those_it_is_compared_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step of 8 ms, or of 2 with the words that it is compared with."""
    words = [*field.WORDS, "trace.path=there", "x=1"]
    monkeypatch.setattr(
        field_figures, "_step_ms", lambda of: {tuple(words): 8.0, (*words, "y=2"): 2.0}[tuple(of)]
    )
    monkeypatch.setattr(field_figures, "_union", lambda of: {tuple(words): 0.75}[tuple(of)])
    monkeypatch.setattr(
        field_figures,
        "trial",
        lambda of: SimpleNamespace(summary={"hit_ratio": {tuple(words): 0.875}[tuple(of)]}),
    )
    names = {"step_ms": 8.0, "step_ms_more": 6.0, "step_times": 4.0, "union": 0.75, "misses": 0.125}
    made = {what: Figure("a", "s", "m", what, 1.0, ("x=1",), ("y=2",)) for what in WHAT}
    assert {what: simulated(Path("there"), one) for what, one in made.items()} == names
    gates = dict.fromkeys(names, "g2") | {"step_ms_more": "g1"}
    monkeypatch.setattr(field_figures, "_gates", lambda trace, one: gates[one.what])
    table = steps_table(Path("there"), [replace(one, measured=3.25) for one in made.values()])
    assert table.caption == "gates: g1; g2"
    assert [list(column.cells) for column in table.columns][2:] == [
        [
            *("ms a step", "ms a step more", "steps of one token", "experts over choices"),
            "absent, of its experts",
        ],
        ["3.25"] * 5,
        ["8", "6", "4", "0.75", "0.125"],
        ["2.46", "1.85", "1.23", "0.23", "0.04"],
    ]


def test_a_steps_time_is_the_mean_of_those_that_decode_in_ms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens = pl.DataFrame(
        {
            "phase": ["prefill", "decode", "decode"],
            "start_ns": [0, 10_000_000, 20_000_000],
            "end_ns": [90_000_000, 14_000_000, 22_000_000],
        }
    )
    monkeypatch.setattr(field_figures, "trial", lambda words: SimpleNamespace(tokens=tokens))
    assert field_figures._step_ms(["x"]) == 3.0


def test_a_union_is_of_decoded_steps_that_check_all_their_drafts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two drafts: three rows of two choices. The two full steps have a gate each, of 4 and 5."""
    steps = [(False, 3), (True, 3), (True, 2), (True, 3)]
    workload = SimpleNamespace(
        speculation=SimpleNamespace(tokens=2),
        steps=[SimpleNamespace(decode=decode, rows=rows) for decode, rows in steps],
        gate_step=np.array([0, 1, 2, 3]),
        needs=SimpleNamespace(tick=np.repeat([0, 1, 2, 3], [6, 4, 3, 5])),
        top_k=2,
    )
    model = SimpleNamespace(transplant=None)
    trace = SimpleNamespace(header=SimpleNamespace(model=SimpleNamespace(name="m")))
    run = SimpleNamespace(workload=workload, model=model, trace=trace)
    monkeypatch.setattr(field_figures, "prepared", lambda words: run)
    assert field_figures._union(["x"]) == 9 / (2 * 3 * 2)
    one = figures()[0]
    assert field_figures._gates(Path("there"), one) == "m"
    model.transplant = "TRANSPLANTED"
    assert field_figures._gates(Path("there"), one) == "TRANSPLANTED"
