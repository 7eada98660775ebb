"""A trace's directory appears whole, in a new place only."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.traces import make_trace
from sim.traces.header import Finding
from sim.traces.trace import TraceError, read_header, write_findings, write_trace
from sim.traces.writing import check_new


def _file(place: Path) -> None:
    place.touch()


def _filled(place: Path) -> None:
    place.mkdir()
    (place / "a").touch()


def _to_empty(place: Path) -> None:
    (place.parent / "other").mkdir()
    place.symlink_to(place.parent / "other")


def _to_nothing(place: Path) -> None:
    place.symlink_to(place.parent / "gone")


@pytest.mark.parametrize("make", [_file, _filled, _to_empty, _to_nothing])
def test_a_trace_is_written_to_no_file_link_or_directory_with_content(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path / "out")
    with pytest.raises(TraceError) as refused:
        check_new(tmp_path / "out")
    assert str(refused.value) == (
        f"{tmp_path / 'out'}: directory is 'not empty', must be new; choose another one, or remove"
        " it"
    )
    with pytest.raises(TraceError, match="must be new"):
        write_trace(tmp_path / "out", make_trace())


def test_a_new_place_or_an_empty_one_is_taken_with_its_parents_made(tmp_path: Path) -> None:
    check_new(tmp_path)
    place = tmp_path / "a" / "b" / "out"
    check_new(place)
    header = write_trace(place, make_trace(), {"x/y/notes.txt": b"one"})
    assert read_header(place) == header
    assert sorted(header.files) == ["routes.parquet", "x/y/notes.txt"]
    assert (place / "x" / "y" / "notes.txt").read_bytes() == b"one"
    mask = os.umask(0o077)
    os.umask(mask)
    assert place.stat().st_mode & 0o777 == 0o777 & ~mask
    # Others may be written beside it.
    write_trace(tmp_path / "a" / "b" / "more", make_trace())
    assert sorted(path.name for path in place.parent.iterdir()) == ["more", "out"]


def test_what_a_killed_command_left_of_a_trace_goes_when_it_is_written_again(
    tmp_path: Path,
) -> None:
    (tmp_path / ".out.draft.ab12").mkdir()
    (tmp_path / ".out.draft.ab12" / "routes.parquet").touch()
    write_trace(tmp_path / "out", make_trace())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_wrong_header_is_refused_before_wrong_rows_and_nothing_is_left(tmp_path: Path) -> None:
    trace = make_trace()
    twice = replace(trace.header, sequences=trace.header.sequences * 2)
    wrong = replace(trace, header=twice, weights=-trace.weights)
    with pytest.raises(TraceError, match=r"sequences\[\]\.sequence is .*, must be distinct"):
        write_trace(tmp_path / "out", wrong)
    # What only its text shows is found when that is made.
    guessed = replace(trace, header=replace(trace.header, source="guessed"))
    with pytest.raises(TraceError, match=r"source is 'guessed', must be one of"):
        write_trace(tmp_path / "out", guessed)
    assert list(tmp_path.iterdir()) == []


def test_new_findings_are_checked_before_the_header_is_touched(tmp_path: Path) -> None:
    write_trace(tmp_path / "out", make_trace())
    text = (tmp_path / "out" / "header.json").read_bytes()
    with pytest.raises(TraceError, match=r"findings\[1\]\.sites is \(3,\), must be among those of"):
        write_findings(
            tmp_path / "out", [Finding("a", False, "b"), Finding("a", True, "b", (), (3,))]
        )
    assert (tmp_path / "out" / "header.json").read_bytes() == text
