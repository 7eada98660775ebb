"""Whatever leaves out sequences by a flag refuses one that no sequence has, with the nearest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from capture.stats import main as stats
from sim.fitting.fits import fit_sequences
from sim.traces.flags import check_flags
from sim.traces.synthesis import synthesize
from sim.traces.trace import ModelShape, Trace, write_trace
from sim.workload.selection import chosen_sequences

SHAPE = ModelShape("flagged", "none", 2, 4, 1, 8, 8)
WRONG = (
    r"exclude names has_repetitio, .* have the flags finished, has_repetition; did you mean has_rep"
)


@pytest.fixture
def flagged() -> Trace:
    """The last sequence of four has a flag."""
    trace = synthesize(SHAPE, tokens=3, sequences=4)
    *others, last = trace.header.sequences
    sequences = (*others, replace(last, flags={"has_repetition": True, "finished": False}))
    return replace(trace, header=replace(trace.header, sequences=sequences))


def test_runs_and_fits_refuse_it(flagged: Trace) -> None:
    for exclude in (["has_repetitio"], ["finished", "has_repetitio"]):
        with pytest.raises(ValueError, match=WRONG):
            chosen_sequences(flagged, "all", exclude, flagged.sequence)
        with pytest.raises(ValueError, match=WRONG):
            fit_sequences(flagged, exclude)
    left = chosen_sequences(flagged, "all", ["has_repetition", "finished"], flagged.sequence)
    assert len(left) == 3


def test_statistics_refuse_it_before_they_read_the_rows(
    flagged: Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "trace"
    write_trace(place, flagged)
    (place / "routes.parquet").unlink()
    assert stats([str(place), "exclude=has_repetitio", f"output_dir={tmp_path / 'out'}"]) == 2
    assert "did you mean has_repetition?" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_flag_of_one_of_several_traces_is_known(flagged: Trace) -> None:
    plain = synthesize(SHAPE, tokens=3, sequences=2).header
    check_flags(["has_repetition"], plain, flagged.header)
    with pytest.raises(ValueError, match=r"have the flags \(none\); leave it out"):
        check_flags(["has_repetition"], plain)
