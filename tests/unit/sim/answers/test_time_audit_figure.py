"""The figure and the table of a time audit: a bar and a row for each cause, in ms a token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.drawn import is_all_inside, kept, named_bars, upright
from helpers.printed import rows_of, shows
from sim.answers.time_audit import Cause, TimeAudit
from sim.answers.time_audit_figure import draw
from sim.audit_time import sentence, table_of
from sim.results.labels import Labels
from sim.results.looks import COLOURS

CAUSES = (
    Cause("link rate", 31.4e6, ((2, 19.1e6), (5, 12.3e6)), ((1, 31.4e6),)),
    Cause("cpu", -47.3e6, ((3, -47.3e6),), ((0, -40.9e6), (7, -6.4e6))),
    Cause("host alone", 0.0, (), ()),
)
FOUND = TimeAudit(8, 203_000_000, 187_100_000, CAUSES)
"""Eight tokens of 25.375 ms; simulated 1.9875 ms less."""


def test_a_bar_is_a_cause_in_ms_a_token_the_first_on_top(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = kept(monkeypatch)
    draw(Path("nowhere"), FOUND, "lru on h", Labels(lossy="lossy (x)"))
    (axis,) = figures[0].axes
    (bars,) = named_bars(axis).values()
    assert list(bars)[::-1] == [cause.name for cause in CAUSES]
    assert list(bars.values())[::-1] == [
        pytest.approx(ends) for ends in ((0, 3.925), (0, -5.9125), (0, 0))
    ]
    colours = [bar.get_facecolor()[:3] for bar in axis.patches]
    assert colours[0] == colours[2] != colours[1]
    assert axis.patches[1].get_facecolor() == pytest.approx(
        [*(int(COLOURS[1][at : at + 2], 16) / 255 for at in (1, 3, 5)), 1.0]
    )
    assert upright(axis) == [0]
    assert axis.get_xlabel() == "simulated less recorded (ms a token)"
    assert is_all_inside(axis)
    assert figures[0].get_suptitle() == "lru on h\nlossy (x)"


def test_a_row_is_a_cause_and_the_last_row_is_their_sum() -> None:
    rate, cpu, host, all_of = rows_of(table_of(FOUND, "lru on h", Labels()))
    shows(rate["ms a token"], 3.925)
    shows(rate["%"], 31.4 / 203)
    shows(rate["mostly in steps"], 2, 19.1, 5, 12.3)
    shows(rate["mostly at sites"], 1, 31.4)
    shows(cpu["ms a token"], -5.9125)
    shows(cpu["mostly in steps"], 3, -47.3)
    shows(cpu["mostly at sites"], 0, -40.9, 7, -6.4)
    assert (host["ms a token"], host["mostly in steps"]) == ("+0.000", "")
    assert [row["cause"] for row in (rate, cpu, host, all_of)] == [
        *(cause.name for cause in CAUSES),
        "sum",
    ]
    shows(all_of["ms a token"], -1.9875)
    shows(all_of["%"], -15.9 / 203)


def test_the_sentence_names_the_largest_cause_of_either_sign() -> None:
    told = sentence(FOUND)
    shows(told, 187.1 / 8, 25.375, -15.9 / 203, 8, -5.9125)
    assert "most of it is cpu: " in told
    other = replace(FOUND, causes=(CAUSES[0], replace(CAUSES[1], ns=-1e6)))
    assert "most of it is link rate: " in sentence(other)
