"""Boards: who stands beside whom, in which order, and under which key."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.boards import STUDY, small
from sim.board import entries
from sim.board.entries import boards_of, code_of, entered, matrix
from sim.results.paired import paired
from sim.study.cells import plan_cells
from sim.study.plan import make_plan


@pytest.mark.thorough
def test_only_the_same_bytes_and_machine_stand_on_one_board() -> None:
    boards, left = small()
    caches = {"lru", "fifo", "belady"}
    assert [{one.name for one in board.entries} for board in boards] == [caches, {*caches, "int4"}]
    assert {(one.name, one.part, one.kind) for one in boards[1].entries} >= {
        ("fifo", "cache", "lossless"),
        ("int4", "precision", "lossy"),
    }
    assert [one.why for one in left] == [
        "refused: the cache policy refuses variants: set loader.staging_slots >= 1"
    ] * 2


def test_systems_come_fastest_first_and_bounds_after_all_of_them() -> None:
    for board in small()[0]:
        kinds = [one.kind for one in board.entries]
        assert kinds[-1] == "a bound"
        assert "a bound" not in kinds[:-1]
        speeds = [one.tokens_per_s for one in board.entries[:-1]]
        assert speeds == sorted(speeds, reverse=True)
        assert board.entries[-1].name == "belady"


def test_every_pair_has_the_interval_of_a_comparison() -> None:
    board = small()[0][1]
    found = matrix(board)
    for i, ours in enumerate(board.entries):
        assert found[i][i] is None
        for j, theirs in enumerate(board.entries):
            if i != j:
                told, alone = found[i][j], paired(ours.decode_ns, theirs.decode_ns)
                assert told is not None
                assert told.interval == pytest.approx(alone.interval, rel=1e-12)
                assert (told.verdict, told.sequences) == (alone.verdict, alone.sequences)
                assert told.speedup == pytest.approx(alone.speedup, rel=1e-12)


def test_what_can_be_gained_is_above_what_an_oracle_gains() -> None:
    for board in small()[0]:
        oracle = board.entries[-1]
        for one in board.entries:
            if one.kind == "lossless":
                faster = one.summary["makespan_s"] / oracle.summary["makespan_s"]
                assert one.gain is not None
                assert one.gain >= faster


# Contracts: C134
def test_a_cell_of_other_code_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = plan_cells(make_plan("x", STUDY, "x.yaml"))[0]
    before = entered(cell).key
    assert entered(cell).key == before != cell.key
    monkeypatch.setattr(entries, "code_digest", lambda *_: "other")
    assert code_of(cell.config) == "other"
    assert entered(cell).key != before


def test_a_word_with_blanks_is_refused_before_anything_runs() -> None:
    cell = plan_cells(make_plan("x", STUDY, "x.yaml"))[0]
    with pytest.raises(ValueError, match=r"'trace\.path=my trace' has blanks"):
        entered(replace(cell, words=(*cell.words, "trace.path=my trace")))


def test_a_class_of_ones_own_is_in_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    config = {"cache": {"_target_": "my_own_cache.Mine"}}
    without = code_of(config)  # nobody has written it yet: its run is refused
    (tmp_path / "my_own_cache.py").write_text("class Mine: ...", encoding="utf-8")
    importlib.invalidate_caches()
    first = code_of(config)
    (tmp_path / "my_own_cache.py").write_text("class Mine: a = 1", encoding="utf-8")
    assert len({without, first, code_of(config)}) == 3


def test_who_is_meant_by_a_name_must_be_one() -> None:
    board = small()[0][0]
    found = board.entry("fifo")
    assert found is not None
    assert found.name == "fifo"
    assert board.entry("mru") is None


def test_rows_that_decode_nothing_are_told() -> None:
    row = {**small()[0][0].entries[0].row, "decode_ns": [], "overrides": "system=lru"}
    boards, left = boards_of([row])
    assert not boards
    assert left[0].why == "it decodes nothing"


def test_the_command_of_a_row_has_its_words() -> None:
    one = small()[0][0].entries[0]
    assert one.command.startswith("moelab run ")
    assert one.command.split()[2:] == one.row["overrides"].split()
    assert np.all(one.decode_ns > 0)
