"""Lookups that a run does not have, and what became of one, from tables made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from sim.explain import USAGE, Explained, Question, main, parse

MS = 1_000_000


class Made(Explained):
    """A run of six sites and a trace whose sites are layers 0, 1, 4, .. (None: cannot be read)."""

    trace: Any = None

    def __init__(self, layers: list[int] | None, **tables: Any) -> None:
        mechanisms = {"precision": "Rerouting", "placement": "AbsentOnCpu"}
        self.run: Any = SimpleNamespace(
            sites=6,
            experts=4,
            units=5,
            choice=lambda *words: "/".join(words),
            mechanism=mechanisms.__getitem__,
            **{name: pl.DataFrame(table) for name, table in tables.items()},
        )
        if layers is not None:
            sites = [SimpleNamespace(layer=layer) for layer in layers]
            self.trace = SimpleNamespace(header=SimpleNamespace(sites=sites))


def test_a_layer_is_a_site_of_the_trace_or_refused_with_those_that_are() -> None:
    assert Made([0, 1, 4]).site_of(4) == 2
    with pytest.raises(ValueError, match=r"^layer=2 has no experts; layers with experts: 0, 1, 4$"):
        Made([0, 1, 4]).site_of(2)
    with pytest.raises(ValueError, match="layer=4") as refused:
        Made(None).site_of(4)
    assert str(refused.value) == (
        "layer=4: the trace that it replayed is not at trace/path (any more), which tells layers from sites; give site="
        " instead (0 to 5)"
    )


LOOKUPS = {"step": [3, 3, 3, 5], "site": [4, 1, 4, 0], "expert": [2, 0, 3, 1]}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ((3, 6, 0), "site=6 is not one of this run's 6; give site=0 to 5"),
        ((3, 0, 4), "expert=4 is not one of this run's 4; give expert=0 to 3"),
        ((4, 0, 0), "step=4 is none of this run's; it has steps 3 to 5"),
        ((3, 0, 0), "step=3 has no gate at site 0; it visits sites 1, 4"),
        ((3, 4, 0), "expert=0 was not asked for in step=3 at site 4; its needs were experts 2, 3"),
    ],
)
def test_a_lookup_that_is_not_there_is_told_with_what_is(
    asked: tuple[int, int, int], told: str
) -> None:
    made = Made(None, lookups=LOOKUPS)
    with pytest.raises(ValueError, match=r"=") as refused:
        made._lookup(Question(*asked))
    assert str(refused.value) == told
    assert made._lookup(Question(3, 4, 3)) == {"step": 3, "site": 4, "expert": 3}


@pytest.mark.parametrize(
    ("outcome", "more", "told"),
    [
        ("hit", {}, ""),
        ("hit", {"key": 8}, " Rerouting sent it to expert 3."),
        ("skip", {"key": 8}, " AbsentOnCpu left it out: it was not computed."),
        ("skip", {"wanted": None}, " Rerouting left it out: it was not computed."),
        ("cpu", {}, " The CPU computed it (AbsentOnCpu), done 0.500 ms later."),
        ("late", {}, " It was there 0.500 ms later."),
        ("miss", {"key": 8}, " Rerouting sent it to expert 3. It was there 0.500 ms later."),
    ],
)
def test_an_outcome_is_told_with_who_decided_it(
    outcome: str, more: dict[str, Any], told: str
) -> None:
    row = {
        "phase": "decode",
        "tick": 9,
        "key": 7,
        "wanted": "fp16",
        "served": None,
        "gate_ns": 2 * MS,
        "ready_ns": 2 * MS + MS // 2,
        "tokens": 1,
        "outcome": outcome,
    }
    tokens = {"step": [3, 4], "sequence": [6, 7], "position": [11, 12]}
    names: Any = SimpleNamespace(site=lambda site: f"layer {site}")
    found = Made(None, tokens=tokens)._outcome(Question(3, 1, 2), {**row, **more}, names)
    wanted = "a skip" if "wanted" in more else "fp16"
    assert found == (
        f"Step 3 (decode; sequence 6 position 11), layer 1, expert 2: {outcome.upper()} at 2.000 ms,"
        f" tick 9, for 1 token; {wanted} was wanted, nothing served.{told}"
    )


def test_of_many_tokens_three_are_named() -> None:
    row = dict.fromkeys(("tick", "key", "gate_ns", "ready_ns"), 0) | {
        "phase": "decode",
        "wanted": "fp16",
        "served": "fp16",
        "tokens": 4,
        "outcome": "hit",
    }
    tokens = {"step": [0] * 4, "sequence": [0, 1, 2, 3], "position": [5] * 4}
    names: Any = SimpleNamespace(site=lambda site: "x")
    found = Made(None, tokens=tokens)._outcome(Question(0, 0, 0), row, names)
    assert "sequence 1 position 5, sequence 2 position 5 ..), x" in found
    assert "for 4 tokens; fp16 was wanted, fp16 served." in found


def test_a_run_and_a_lookup_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["site=1", "expert=0", "step=2"]) == 2
    assert capsys.readouterr().err.startswith("explain: missing RUN")
    assert main(["run", "expert=0", "step=2"]) == 2
    assert capsys.readouterr().err == f"explain: give either layer= or site=: {USAGE}\n"
    given = {"site": 1, "expert": 0, "step": 2}
    assert parse(["run", "site=1", "expert=0", "step=2"]) == ("run", given)
    assert parse(["./run=1", "site=1", "expert=0", "step=2"])[0] == "./run=1"
