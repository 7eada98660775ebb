"""Boards: who stands beside whom, in which order, and under which key."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.boards import STUDY, small
from sim.board import entries
from sim.board.entries import boards_of, code_of, entered, matrix
from sim.results.labels import TEXTS
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


def test_an_entrant_that_is_a_system_is_named_with_what_replaced_a_part_of_it() -> None:
    """A board of systems that all have another cache is not one of these systems as they stand."""
    row: Any = {
        "system": "lru cache=lfu loader.staging_slots=2",
        "overrides": "system=lru cache=lfu loader.staging_slots=2",
        "axis.system": "lru",
        "axis.cache": None,
    }
    assert entries._name(row, "system") == "lru cache=lfu loader.staging_slots=2"
    assert entries._name(row | {"axis.cache": "lfu"}, "cache") == "lfu loader.staging_slots=2"


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


# ---- by hand


def done(system: str, times: list[float], rate: float, **more: Any) -> dict[str, Any]:
    summary = {
        "labels": dict.fromkeys(TEXTS) | more.pop("labels", {}),
        "overrides": [],
        "trace": {"name": more.pop("trace", "t"), "split": "eval", "sequences": len(times)},
        "model": "m",
        "hardware": "h",
    }
    return {
        "status": "done",
        "error": "",
        "system": system,
        "overrides": f"system={system}",
        "decode_ns": times,
        "decode_tokens": [4] * len(times),
        "decode_tokens_per_s": rate,
        "summary": json.dumps(summary),
        "gib": 1.5,
    } | more


def test_rows_become_boards_of_equal_conditions_ranked_and_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The board of 1.5 GiB comes first because its first row does."""
    conditions = lambda row: {"bytes for experts": int(row["gib"] * 2**30)}  # noqa: E731
    monkeypatch.setattr(entries, "row_conditions", conditions)
    monkeypatch.setattr(entries, "coverage_at", lambda tokens: tokens.tolist())
    cache, precision = f"{entries.AXIS}cache", f"{entries.AXIS}precision"
    rows = [
        done("slow", [10.0, 30.0], 2.0),
        done("other", [10.0], 9.0, gib=2.25, trace="u"),
        done("fast", [5.0, 15.0], 4.0),
        done("seer", [1.0, 3.0], 20.0, labels={"knows_future": "knows the future"}),
        done(
            "lru",
            [5.0, 15.0],
            4.0,
            overrides="system=lru +cache.depth=2 cachet.x=1 loader.wait=all seed=3",
            **{cache: "lfu", precision: None},
        ),
        done("slow", [20.0, 60.0], 1.0),
        done("x", [10.0, 30.0], 3.0, **{cache: "lfu", precision: "int4"}),
        done("refused", [1.0], 1.0, status="refused", error="no room"),
        done("idle", [0.0, 0.0], 1.0),
        done("empty", [], 1.0),
    ]
    boards, left = boards_of(rows)
    assert [(one.words, one.why) for one in left] == [
        ("system=refused", "refused: no room"),
        ("system=idle", "it decodes nothing"),
        ("system=empty", "it decodes nothing"),
    ]
    assert [(one.name, one.title, one.coverage) for one in boards] == [
        ("1_t_h_1.5GiB", "t (eval, 2 sequences), m on h, 1.5 GiB for experts", [4.0, 4.0]),
        ("2_u_h_2.25GiB", "u (eval, 1 sequences), m on h, 2.25 GiB for experts", [4.0]),
    ]
    assert boards[0].conditions == {"bytes for experts": 3 * 2**29}
    assert [(one.name, one.part) for one in boards[0].entries] == [
        ("fast", "system"),
        ("lfu +cache.depth=2 loader.wait=all", "cache"),
        ("int4", "precision"),
        ("slow", "system"),
        ("slow #2", "system"),
        ("seer", "system"),
    ]
    board = boards[0]
    named = {name: board.entry(name) for name in ("slow", "lfu", "int4", "slow #2", "none", "s")}
    assert {name: one and one.tokens_per_s for name, one in named.items()} == {
        "slow": 2.0,
        "lfu": 4.0,
        "int4": 3.0,
        "slow #2": 1.0,
        "none": None,
        "s": None,
    }
    twice = replace(board, entries=(*board.entries, replace(board.entries[1], name="lfu seed=4")))
    assert twice.entry("lfu") is None, "two begin with it"
    ours, theirs = board.entries[0], board.entries[3]
    assert (board.ahead(ours, theirs).speedup, board.ahead(theirs, ours).speedup) == (2.0, 0.5)


@pytest.mark.parametrize(
    ("axes", "name", "told"),
    [
        ([{"cache": "lru"}, {"precision": "int4", "cache": "fifo"}], "lru", ""),
        ([{"cache": "lru"}], "lru cache.depth=2", ""),
        ([{"cache": "lru"}, {"precision": "int4", "cache": "fifo"}], "fifo", "fifo is no entrant"),
        ([{"cache": "lru"}, {"budget": 3}], "anybody", ""),
        ([{"cache": "lru"}], "", " is no entrant"),
        ([{"cache": "lru"}], "lrv", "lrv is no entrant; did you mean lru?"),
        ([{"cache": "lru"}], "q", "q is no entrant; moelab list policies has them"),
    ],
)
def test_a_rival_is_the_first_part_that_a_cell_names(
    axes: list[dict[str, Any]], name: str, told: str
) -> None:
    cells: Any = [SimpleNamespace(axes=one) for one in axes]
    if not told:
        entries.check_entrant(name, cells)
        return
    with pytest.raises(ValueError, match=r"^against=") as refused:
        entries.check_entrant(name, cells)
    assert str(refused.value).startswith(f"against={told}")
