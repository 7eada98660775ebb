"""Pairs of predicted and measured times: the file, the errors, the lines, and the figure."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

from real.suite.gather import CALIBRATION, HALF, OF_SAME_MACHINE, _file_of, basis_of
from real.suite.pairs import (
    COLUMNS,
    CONTROLS,
    FILE,
    ONE,
    STALL,
    TOKEN,
    Pair,
    PairsError,
    controlled,
    groups,
    read_pairs,
    validated_of,
    write_pairs,
)
from real.suite.pairs_page import (
    PUBLISHED,
    _each,
    _labels,
    _place,
    all_lines,
    cells,
    draw,
    line_cells,
    markdown,
)
from sim.reproduce.field import published
from sim.results.looks import COLOURS, MARKERS

PAIR = Pair("M", "m", CALIBRATION, "replay", "lru", 0.5, TOKEN, "predicted", 0.1, 0.103)


def test_the_file_gives_back_what_was_written(tmp_path: Path) -> None:
    pairs = [
        replace(PAIR, gates="SYNTHETIC", noise=0.01, controls={"rates_1.1": 0.2}),
        replace(PAIR, share=None, role="fitted", run="a, b"),
    ]
    write_pairs(tmp_path / "new" / "pairs.csv", pairs)
    assert read_pairs(tmp_path / "new" / "pairs.csv") == pairs


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("M,,b,replay,lru,,token,guessed,1,1,0,,,,", r":2: role='guessed'; allowed: predicted"),
        ("M,,b,replay,lru,,week,predicted,1,1,0,,,,", r":2: quantity='week'; allowed: token"),
        ("M,,b,replay,lru,,token,predicted,0,1,0,,,,", r":2: M, lru: 0.0 s measured"),
        ("M,,b,replay,lru,,token,predicted,fast,1,0,,,,", r":2: could not convert"),
        ("M", r":2: "),
    ],
)
def test_what_is_no_pair_is_refused_by_its_line(line: str, told: str, tmp_path: Path) -> None:
    place = tmp_path / "pairs.csv"
    place.write_text(f"{','.join(COLUMNS)}\n{line}\n")
    with pytest.raises(PairsError, match=told):
        read_pairs(place)


def test_another_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PairsError, match="is not there: moelab fidelity"):
        read_pairs(tmp_path / "pairs.csv")
    (tmp_path / "pairs.csv").write_text("a,b\n")
    with pytest.raises(PairsError, match="the columns must be machine"):
        read_pairs(tmp_path / "pairs.csv")


def test_errors_are_of_scored_pairs_and_the_worst_is_the_largest_factor() -> None:
    """Half as long is worse than 60 % too long."""
    of = [replace(PAIR, measured_s=1.0, predicted_s=time) for time in (1.6, 0.5, 1.1)]
    (group,) = groups([*of, replace(PAIR, role="fitted", predicted_s=9.0)])
    assert group.errors == pytest.approx((0.6, -0.5, 0.1))
    assert (group.median, group.worst, group.others) == pytest.approx((0.5, -0.5, 1))
    assert cells(group) == (
        "M",
        CALIBRATION,
        "a token",
        "3",
        "50.0 %",
        "-50.0 %",
        "+6.7 %",
        "1",
    )


def test_a_machines_errors_are_of_scored_runs_of_its_own_file() -> None:
    pairs = [
        replace(PAIR, measured_s=1.0, predicted_s=1.1),
        replace(PAIR, run="lru (other)", measured_s=1.0, predicted_s=1.1),
        replace(PAIR, role="calibrating", predicted_s=9.0),
        replace(PAIR, quantity=ONE, predicted_s=9.0),
        replace(PAIR, file="", predicted_s=9.0),
    ]
    (error,) = validated_of(pairs).values()
    assert (error.runs, error.systems) == (2, 1)
    assert error.worst_factor == pytest.approx(1.1)


def test_a_published_run_is_of_a_machines_file_where_its_words_leave_the_machine_as_it_is() -> None:
    """Not with another rate, nor with several devices, nor with a figure that another run gave."""
    of = {one.name: _file_of(one) for one in published()}
    assert of["lc-oss20-gb10-0k"] == "gb10"
    assert of["lc-oss20-4090-aug"] == "rtx4090_pcie4"
    assert not any(of[name] for name in ("lc-oss20-5080", "lc-oss20-m3u", "st-5090-layers"))
    drawn = [one.name for one in published() if one.fitted_on]
    assert len(drawn) > 40
    assert not any(of[name] for name in drawn)
    kept = {pair.machine: pair.file for pair in read_pairs(FILE) if pair.basis == "data sheets"}
    files = {one.machine: _file_of(one) for one in published() if _file_of(one)}
    assert {k: v for k, v in files.items() if k not in OF_SAME_MACHINE}.items() <= kept.items()


def test_lines_are_asked_of_a_measured_machine_and_of_the_phones_tokens() -> None:
    phone = replace(PAIR, machine="OnePlus 15R", basis=HALF, source="token", measured_s=1.0)
    pairs = [
        PAIR,
        replace(phone, quantity=STALL, predicted_s=1.05),
        replace(phone, quantity=ONE, predicted_s=1.05),
        replace(phone, quantity=STALL, predicted_s=9.0, role="fitted"),
        replace(phone, quantity=STALL, predicted_s=1.2, basis=basis_of("gpt-oss-120b")),
    ]
    found = {line.what: line for line in all_lines(pairs)}
    assert found["M, 1 replay: median error"].holds
    assert not found["OnePlus 15R, stall of one token: median error"].holds
    assert found["OnePlus 15R, one token: median error"].holds
    assert found["OnePlus 15R, gpt-oss-120b, stall of one token: median error"].holds
    assert not any("Gemma" in what for what in found)
    assert line_cells(found["OnePlus 15R, stall of one token: median error"]) == (
        "OnePlus 15R, stall of one token: median error",
        "5.0 %",
        "4.3 %",
        "**missed**",
    )


def test_an_unknown_control_is_refused() -> None:
    with pytest.raises(PairsError, match=r"control=off is unknown; known: rates_1\.1"):
        controlled([PAIR], "off")


# What the project keeps

KEPT = read_pairs()


def test_every_kind_of_run_is_kept() -> None:
    sources = {pair.source for pair in KEPT}
    assert sources == {"replay", "recording", "token", "published", "validation"}
    replays = [pair for pair in KEPT if pair.basis == CALIBRATION and pair.source == "replay"]
    recordings = [pair for pair in KEPT if pair.source == "recording"]
    assert (len(replays), len(recordings)) == (48, 17)
    assert all(set(pair.controls) == set(CONTROLS) for pair in replays)
    assert FILE.stat().st_size < 200_000


@pytest.mark.parametrize("control", ["rates_1.1", "rates_0.9"])
def test_a_machine_that_is_wrong_misses_lines_that_hold(control: str) -> None:
    """Lines that are missed anyway show nothing."""
    holding = {line.what for line in all_lines(KEPT) if line.holds}
    missed = {line.what for line in all_lines(controlled(KEPT, control)) if not line.holds}
    assert holding & missed


def test_who_slows_whom_cannot_be_told_from_these_runs() -> None:
    """The page says so; a machine's runs that can tell will fail here."""
    moved = [
        abs(pair.controls["contention_off"] / pair.predicted_s - 1)
        for pair in KEPT
        if pair.controls
    ]
    assert 0 < max(moved) < 0.004
    without = {line.what: line.holds for line in all_lines(controlled(KEPT, "contention_off"))}
    lines = {line.what: line.holds for line in all_lines(KEPT)}
    assert without == {what: lines[what] for what in without}


def test_the_page_has_the_tables_of_the_pairs() -> None:
    from sim.values.places import ROOT

    page = (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8")
    for line in markdown(KEPT).splitlines():
        assert line in page, line


def test_a_look_tells_one_basis_or_place_and_published_runs_are_one_place() -> None:
    pairs = read_pairs()
    bases, places = ({of(pair) for pair in pairs} for of in (attrgetter("basis"), _place))
    assert places == {"H100", "OnePlus 15R", "paced CPU", PUBLISHED}
    for names, looks in ((bases, COLOURS), (places, MARKERS)):
        found = _each(sorted(names) * 2, looks)
        assert found.keys() == names
        assert len(set(found.values())) == len(names)


def test_a_figure_counts_the_kinds_of_gates_of_published_runs() -> None:
    there = replace(PAIR, source="published")
    pairs = [
        replace(PAIR, gates="TRANSPLANTED: a"),
        replace(there, gates="SYNTHETIC gates: b"),
        replace(there, machine="N", gates="SYNTHETIC gates: TRANSPLANTED: c"),
        replace(there, machine="N", gates="SYNTHETIC gates: b"),
        replace(there, machine="O"),
    ]
    found = [(name, labels.synthetic) for name, labels in _labels(pairs)]
    text = "SYNTHETIC gates of 2 kinds, 1 of them TRANSPLANTED"
    assert found == [("M", "TRANSPLANTED: a"), (f"{PUBLISHED}, 3 machines", text)]
    assert _labels([PAIR, there]) == []


def test_the_figure_has_a_mark_for_each_run_filled_where_it_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    kept: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: kept.append(self))
    shown = [PAIR, replace(PAIR, role="fitted"), replace(PAIR, quantity=STALL)]
    draw(shown, tmp_path / "figure")
    (axis,) = kept[0].axes
    marks = [line for line in axis.lines if line.get_marker() != "None"]
    points = [np.asarray(line.get_xydata())[0].tolist() for line in marks]
    assert points == [pytest.approx([100, 103])] * 2
    assert [line.get_markerfacecolor() == "none" for line in marks] == [False, True]
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
