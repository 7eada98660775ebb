"""A study's file as a plan, key by key; what is no plan is refused with its place and the way out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sim.study import plan
from sim.study.plan import Plan, files_of, make_plan, nearest, read_plan, section

KEYS = "question, base, grid, list, search"
WHOLE = {
    "question": "Which?",
    "base": "system=lru machine=rtx4090_pcie4",
    "grid": [{"timeline_steps": [1, 2], "machine.memory_gib": [8, 16]}, {"cache": ["lru"]}],
    "list": ["seed=3 cache=lfu", ["seed=4"]],
}


def test_a_file_gives_its_words_grids_and_list_with_the_names_of_the_configuration() -> None:
    found = make_plan("s", WHOLE, "s.yaml")
    assert found == Plan(
        "s",
        "Which?",
        ("outputs=summary", "system=lru", "hardware=rtx4090_pcie4"),
        ({"timeline_steps": [1, 2], "hardware.memory_gib": [8, 16]}, {"cache": ["lru"]}),
        (("seed=3", "cache=lfu"), ("seed=4",)),
    )
    assert found.cells() == [
        *(
            ({"timeline_steps": steps, "hardware.memory_gib": gib}, ())
            for steps, gib in ((1, 8), (1, 16), (2, 8), (2, 16))
        ),
        ({"cache": "lru"}, ()),
        ({}, ("seed=3", "cache=lfu")),
        ({}, ("seed=4",)),
    ]
    assert found.with_last(["a=1"]).with_last(["b=2"]).last == ("a=1", "b=2")


def test_a_grid_a_list_or_a_search_is_enough_and_a_grid_may_stand_alone() -> None:
    assert make_plan("s", {"grid": {"seed": [1]}}, "f") == Plan(
        "s", "", ("outputs=summary",), ({"seed": [1]},)
    )
    assert make_plan("s", {"list": ["seed=1"]}, "f").listed == (("seed=1",),)
    search = {"parameters": {"seed": [1, 2]}, "trials": 3}
    assert make_plan("s", {"search": search}, "f").search == search
    empty: Any = {"grid": [], "list": [], "search": {}}
    with pytest.raises(ValueError, match=r"^f: nothing to run; give a grid, a list or a search$"):
        make_plan("s", empty, "f")


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([1], f"f must be a section of {KEYS}, got [1]"),
        (
            {"grdi": 1},
            f"f knows no key grdi (did you mean grid?); it may have {KEYS}; words of a run stand in"
            " base: [KEY=VALUE, ..], what varies in grid: {KEY: [VALUE, ..]}",
        ),
        (
            {"search": {"seeds": 1}},
            "f: search knows no key seeds (did you mean seed?); it may have parameters, objectives,"
            " trials, sampler, seed, together",
        ),
        (
            {"question": 3, "grid": {}},
            "f: question must be text, and grid values by key, or a list of such grids",
        ),
        (
            {"grid": "x"},
            "f: question must be text, and grid values by key, or a list of such grids",
        ),
        (
            {"grid": {}},
            "f: grid must hold values by key, such as budget.resident_share: [0.25, 0.5]; got {}",
        ),
        (
            {"grid": [["x"]]},
            "f: grid must hold values by key, such as budget.resident_share: [0.25, 0.5]; got"
            " ['x']",
        ),
        (
            {"grid": {"seed": [0, 1]}},
            "f: grid.seed: [0, 1] makes equal runs, as the seed is only repeated in a summary; what"
            " is drawn has a seed of its own: cache.seed, predictor.seed, workload.arrival_seed,"
            " workload.draft_seed",
        ),
        ({"grid": {"seed": []}}, "f: grid.seed must be a list of values, got []"),
        ({"grid": {"seed": 3}}, "f: grid.seed must be a list of values, got 3"),
        ({"list": "seed=1"}, "f: list must be a list, got 'seed=1'"),
        (
            {"list": [["seed=1", 2]]},
            "f: list must be overrides, such as [system=lru, budget.resident_share=0.5]; got"
            " ['seed=1', 2]",
        ),
        (
            {"base": {"seed": 1}},
            "f: base must be overrides, such as [system=lru, budget.resident_share=0.5]; got"
            " {'seed': 1}",
        ),
        *(
            (
                {"search": {"trials": 1}, **other},
                "f: a study is a search, or a grid and a list; take search out, or the others",
            )
            for other in ({"list": ["seed=1"]}, {"grid": {"seed": [1]}})
        ),
        (
            {"grid": {"sed": "all"}},
            "f: grid.sed: all stands for the files of a folder of conf",
        ),
    ],
)
def test_what_is_no_plan_is_refused_with_its_place_and_values(found: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make_plan("s", found, "f")


def test_a_section_is_copied_and_a_key_that_is_near_none_has_no_hint() -> None:
    found = {"a": 1}
    kept = section(found, ("a", "b"), "f")
    kept["b"] = 2
    assert found == {"a": 1}
    with pytest.raises(ValueError, match=r"^f knows no key 9; it may have a, b$"):
        section({9: 1}, ("a", "b"), "f")
    assert nearest("trails", ["trials", "trail"]) == " (did you mean trail?)"
    assert nearest("x", ["trials"]) == ""


def test_a_plan_is_read_from_a_file_or_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "STUDIES", tmp_path / "none")
    one = tmp_path / "one.yaml"
    one.write_text("grid: {seed: [1]}\n", encoding="utf-8")
    by_path = read_plan(str(one))
    assert (by_path.name, by_path.grids) == ("one", ({"seed": [1]},))
    with pytest.raises(
        ValueError,
        match=r"^name=nowhere is no study: neither in conf/study \(empty\) nor a file \(.*No such",
    ):
        read_plan("nowhere")
    monkeypatch.setattr(plan, "STUDIES", tmp_path)
    (tmp_path / "bad.yaml").write_text("a: [\n", encoding="utf-8")
    assert read_plan("one") == by_path
    with pytest.raises(ValueError, match=r"^name=nowhere is no study: .*/study \(bad, one\) nor"):
        read_plan("nowhere")
    with pytest.raises(ValueError, match=r"^/.*/bad\.yaml is no yaml: while parsing [^\n]*$"):
        read_plan("bad")


def test_all_of_a_group_are_its_files_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").mkdir()
    for name in ("lru.yaml", "fifo.yaml", "notes.txt"):
        (tmp_path / "cache" / name).touch()
    monkeypatch.setattr(plan, "CONF", tmp_path)
    assert files_of("cache", "f: grid") == ["fifo", "lru"]
    (grid,) = make_plan("s", {"grid": {"cache": "all", "seed": [0]}}, "f").grids
    assert grid == {"cache": ["fifo", "lru"], "seed": [0]}
