"""Studies' files, and the configurations that follow from them.

They are the same as hydra's, and the same configurations have the same keys.
"""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationKeyError

from sim.setup.composing import plain_word
from sim.setup.configure import composed_by_hydra
from sim.setup.own_gates import with_gates
from sim.study.cells import Cell, _taken_apart, make_cell, plan_cells
from sim.study.plan import STUDIES, Plan, make_plan, read_plan
from sim.study.rows import NUMBERS, TEXTS
from sim.values.places import ROOT

VALUES: dict[str, list[Any]] = {
    "budget.resident_share": [0.25, 0.5],
    "hardware.links.pcie.peak_gb_per_s": [16, 31.5],
    "loader.in_flight": [1, 2],
    "loader.chunk_bytes": [None, 1048576],
    "trace.exclude": [[], ["loops"]],
    "seed": [3],
    "trace.max_sequences": [2],
    "predictor": ["none", "gate_lookahead_1"],
    "precision": ["hobbit", "fp16"],
    "cache": ["lru", "lfu"],
    "hardware": ["rtx4090_nvme", "jetson_agx_orin"],
    "workload": ["static_4"],
    "loader.cancel_stale": [True, False],
    "system": ["hobbit", "lru", "fate", "moe_infinity"],
    "workload.together": [1],
    "cache.initial": ["empty"],
    "model.name": ["a b"],
}


def plan(*base: str, last: tuple[str, ...] = ()) -> Plan:
    return Plan("x", base=base, last=last)


def by_hydra(words: tuple[str, ...]) -> dict[str, Any]:
    found = OmegaConf.to_container(composed_by_hydra(words, "config"), resolve=False)
    assert isinstance(found, dict)
    return with_gates({str(key): value for key, value in found.items() if key != "hydra"})


def told_to_hydra(cell: Cell) -> tuple[str, ...]:
    return tuple(
        f"{key}='{value}'" if " " in value else f"{key}={value}"
        for key, _, value in (word.partition("=") for word in cell.words)
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_cell_is_what_hydra_composes_of_its_words(seed: int) -> None:
    drawn = random.Random(seed)
    keys = drawn.sample(sorted(VALUES), 6)
    values = {
        key: drawn.choice(VALUES[key])
        for key in keys
        if not (key == "hardware.links.pcie.peak_gb_per_s" and "hardware" in keys)
    }
    cell = make_cell(plan("outputs=summary"), values)
    assert cell.config == by_hydra(told_to_hydra(cell))


WORDS = [
    f"{key}={value}"
    for key in ("seed", "trace.max_sequences", "hardware.links.pcie.peak_gb_per_s", "_a1.b2")
    for value in (
        "0",
        "-0",
        "7",
        "-12",
        "1.0",
        "-0.50",
        "007",
        "01.5",
        "1e3",
        "1_000",
        "+3",
        ".5",
        "5.",
        "true",
        "NULL",
        "nan",
        "-inf",
        "lru",
        "a_b2",
        "_x",
        "Trueish",
        "a-b",
        "'a'",
        "[1,2]",
        "{a:1}",
        "",
        "a b",
        "1,2",
        "é",
    )
]


def test_a_word_that_is_read_without_hydra_is_read_as_by_hydra() -> None:
    words = [word for word in WORDS if plain_word(word)]
    assert len(words) == 4 * 14, "most words are"
    for word in words:
        ours, theirs = _taken_apart(word), OverridesParser.create().parse_override(word)
        assert ours == (theirs.key_or_group, theirs.value(), None)
        assert type(ours[1]) is type(theirs.value())
        assert not theirs.is_sweep_override()


def test_what_is_no_plain_value_goes_through_hydra() -> None:
    words = ("++seed=5", "cache.weights={lru:0.5}", "~workload.together")
    cell = make_cell(plan("system=hobbit"), {}, words)
    assert cell.config == by_hydra(("system=hobbit", *words))
    assert cell.config["cache"]["weights"]["lru"] == 0.5
    assert set(cell.config["cache"]["weights"]) == {"lru", "lfu", "lhu", "fld"}


def test_the_command_line_holds_against_the_study_and_shows_in_its_axes() -> None:
    asked = Plan(
        "x",
        grids=({"system": ["lru", "hobbit"], "budget.resident_share": [0.25, 0.5]},),
        last=("system=fate", "seed=1"),
    )
    cells = plan_cells(asked)
    assert [cell.axes for cell in cells] == [
        {"system": "fate", "budget.resident_share": share} for share in (0.25, 0.5)
    ]
    assert {cell.system for cell in cells} == {"fate"}
    assert {cell.config["seed"] for cell in cells} == {1}


# Contracts: C133
def test_the_key_is_of_the_resolved_configuration_whatever_words_led_to_it() -> None:
    one = make_cell(plan("system=lru", "seed=0"), {"budget.resident_share": 0.25})
    same = make_cell(
        plan("budget.resident_share=0.25", "system=lru", "outputs=all", "timeline_steps=4"), {}
    )
    assert one.key == same.key
    others = [
        make_cell(plan("system=lru"), {"budget.resident_share": 0.26}),
        make_cell(plan("system=hobbit"), {}),
        make_cell(plan("system=lru", "budget.resident_share=0.25", "loader.in_flight=2"), {}),
        make_cell(plan("system=lru", "budget.resident_share=0.25", "trace.split=all"), {}),
    ]
    assert len({one.key, *(cell.key for cell in others)}) == 5


# Contracts: C133
def test_the_key_changes_with_the_trace_and_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from sim.study import cells

    config = make_cell(plan("system=lru"), {}).config
    one = cells.cell_key(config, "lru", "abc")
    assert cells.cell_key(config, "lru", "abd") != one
    monkeypatch.setattr(cells, "VERSION", "another")
    assert cells.cell_key(config, "lru", "abc") != one


# Contracts: C133
def test_the_key_changes_with_a_class_of_ones_own_and_with_a_file_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the same words would go on with the results of a policy or a fit that is no more."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    own, arrivals = tmp_path / "my_edited_cache.py", tmp_path / "arrivals.txt"
    own.write_text("from sim.policies import LRU\n\n\nclass Mine(LRU): ...\n", encoding="utf-8")
    arrivals.write_text("0\n1\n", encoding="utf-8")
    importlib.invalidate_caches()

    def key() -> str:
        words = "system=lru", "cache._target_=my_edited_cache.Mine"
        return make_cell(plan(*words, "workload.arrivals_s=arrivals.txt"), {}).key

    first = key()
    assert key() == first
    own.write_text(own.read_text(encoding="utf-8") + "\nTIMES = 2\n", encoding="utf-8")
    edited = key()
    arrivals.write_text("0\n2\n", encoding="utf-8")
    assert len({first, edited, key()}) == 3


def test_a_machine_may_be_called_so_in_every_part_of_a_study() -> None:
    one, other = (
        make_plan(
            "x",
            {
                "base": [f"{name}=rtx4090_pcie4"],
                "grid": {name: ["rtx3060_pcie4"], f"{name}.memory_gib": [8]},
                "list": [[f"{name}=a100_sxm_pcie4"]],
            },
            "x.yaml",
        )
        for name in ("hardware", "machine")
    )
    assert one == other
    assert one.cells()[0][0] == {"hardware": "rtx3060_pcie4", "hardware.memory_gib": 8}


@pytest.mark.parametrize(
    ("base", "values", "message"),
    [
        (
            (),
            {"budget.resident_shar": 0.5},
            r"budget\.resident_shar is no setting: .*did you mean resident_share",
        ),
        (
            (),
            {"budgt.resident_share": 0.5},
            r"the configuration has no budgt \(did you mean budget\?\)",
        ),
        ((), {"cache.weights.lru": 0.5, "cache": "lru"}, r"cache has no weights; it has .*scope"),
        (
            (),
            {"cache.weights": {"lruu": 0.5}},
            r"cache\.weights\.lruu is no setting: .*did you mean lru",
        ),
        (
            ("system=lru,hobbit",),
            {},
            r"system=lru,hobbit sweeps over values; put them into the study's grid",
        ),
        (("system",), {}, r"'system' is no override"),
        ((), {"system": "hobit"}, r"Could not find 'system/hobit'"),
    ],
)
def test_a_key_that_is_not_there_is_refused_before_anything_runs(
    base: tuple[str, ...], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        make_cell(plan(*base), values)
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize("word", ["trace.path=[1]", "~model"])
def test_a_wrong_trace_or_model_leaves_the_refusal_to_the_run(word: str) -> None:
    assert make_cell(plan(word), {}).trace_sha256 is None


def test_a_grid_gives_every_combination_and_a_list_its_items() -> None:
    grids = [{"trace.max_sequences": [1, 2], "system": ["lru"]}, {"trace.max_sequences": [3]}]
    found = make_plan(
        "x", {"grid": grids, "list": ["trace.max_sequences=4", ["trace.max_sequences=4"]]}, "x.yaml"
    )
    assert [cell.config["trace"]["max_sequences"] for cell in plan_cells(found)] == [1, 2, 3, 4], (
        "equal cells are one"
    )


@pytest.mark.alike
@pytest.mark.parametrize("name", sorted(path.stem for path in STUDIES.glob("*.yaml")))
def test_every_study_of_conf_can_be_planned(name: str) -> None:
    found = read_plan(name)
    assert found.question.endswith("?")
    if not found.search:
        assert len(plan_cells(found)) > 1


def test_the_columns_of_a_row_are_numbers_and_texts_of_a_summary() -> None:
    from sim.study.worker import run_cell

    words = ("system=hobbit", "trace.max_sequences=1", "outputs=summary", "bounds=max")
    row = run_cell("x", make_cell(plan(*words), {"seed": 4}), str(ROOT / "unused"))
    assert row["status"] == "done"
    assert row["error"] is None
    assert row["axis.seed"] == 4
    assert all(isinstance(row[name], int | float) for name in NUMBERS if name != "prediction.top1")
    assert all(isinstance(row[name], str) for name in TEXTS)
    assert len(row["sequence"]) == 1
    assert sum(row["decode_tokens"]) / sum(row["decode_ns"]) * 1e9 == pytest.approx(
        row["decode_tokens_per_s"]
    )


# Contracts: C135
def test_what_cells_share_is_changed_by_none_of_them() -> None:
    values = {"cache.weights.lru": 0.9, "cache.weights": {"lfu": 0.7}, "seed": 3}
    changed = make_cell(plan("system=hobbit"), values).config
    assert (
        changed["cache"]["weights"]["lru"],
        changed["cache"]["weights"]["lfu"],
        changed["seed"],
    ) == (0.9, 0.7, 3)
    assert make_cell(plan("system=hobbit"), {}).config == by_hydra(("system=hobbit",))


def test_a_word_is_taken_apart_into_what_it_sets_or_left_to_hydra() -> None:
    for word, key, value in (
        ("seed=3", "seed", 3),
        ("a.b=-1.5", "a.b", -1.5),
        ("loader.chunk_bytes=null", "loader.chunk_bytes", None),
        ("trace.exclude=[a,1]", "trace.exclude", ["a", 1]),
        ("cache.weights={lru:0.5}", "cache.weights", {"lru": 0.5}),
    ):
        assert _taken_apart(word) == (key, value, None)
    for word, key, value in (
        ("cache=lru", "cache", "lru"),
        ("cache=null", "cache", None),
        ("hydra.verbose=true", "hydra.verbose", True),
        ("hydra.x=1", "hydra.x", 1),
    ):
        assert _taken_apart(word) == (key, value, word)
    for word, value in (
        ("cache@x=lru", "lru"),
        ("++seed=5", 5),
        ("~workload.together", None),
        ("seed=${trace.max_sequences}", "${trace.max_sequences}"),
    ):
        assert _taken_apart(word) == (word, value, word)
    with pytest.raises(
        ValueError, match=r"^'a b' is no override: token recognition error at: ' '$"
    ):
        _taken_apart("a b")
    with pytest.raises(
        ValueError, match=r"^a=1,2 sweeps over values; put them into the study's grid$"
    ):
        _taken_apart("a=1,2")


def test_plain_words_never_ask_hydra_and_the_others_do_with_all_choices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sim.study import cells

    asked: list[tuple[str, ...]] = []

    def composes(*words: str) -> tuple[Any, str]:
        asked.append(words)
        if "x=2" in words:
            raise InterpolationKeyError("no\n such  key")
        return OmegaConf.create({"a": 1, "b": "${a}"}), "one cache=lru"

    monkeypatch.setattr(cells, "configure", composes)
    monkeypatch.setattr(cells, "_parse", lambda word: pytest.fail(word))
    cell = make_cell(plan("system=lru", "seed=3"), {"cache": "lfu", "trace.max_sequences": 2})
    assert (cell.system, cell.config["seed"], asked) == ("lru cache=lfu", 3, [])
    assert cells._compose.__wrapped__(("system=edgemoe", "x=1")) == ({"a": 1, "b": 1}, "one")
    assert asked == [("system=edgemoe", "x=1")]
    with pytest.raises(ValueError, match=r"^system=edgemoe x=2: no such key$"):
        cells._compose.__wrapped__(("system=edgemoe", "x=2"))


def test_a_cell_tells_its_words_as_an_override_writes_them_and_its_digest_is_of_plain_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sim.study import cells

    monkeypatch.setattr(cells, "_compose", lambda choices: ({**config}, "lru"))
    config: dict[str, Any] = {
        "trace": {"path": str(tmp_path)},
        "a": 1,
        "b": {"c": {"d": 1}, "e": 2},
    }
    values = {"b": {"c": {"d": [None, True]}}, "a": False, "b.e": 0.5}
    cell = make_cell(Plan("x", base=("a=3",), last=("a=4", "b.c.d=5")), values, ("b.e=0.25",))
    assert cell.words == (
        "a=3",
        "b={c:{d:[null,true]}}",
        "a=false",
        "b.e=0.5",
        "b.e=0.25",
        "a=4",
        "b.c.d=5",
    )
    assert cell.config == {"trace": config["trace"], "a": 4, "b": {"c": {"d": 5}, "e": 0.25}}
    assert config["b"] == {"c": {"d": 1}, "e": 2}
    assert cell.axes == {"b": values["b"], "a": 4, "b.e": 0.25}
    assert cell.trace_sha256 is None, "there is no header"
    turned = dict(reversed(cell.config.items()))
    assert cells.cell_key(turned, "lru", None) == cell.key
    assert len(cell.key) == 20
    with pytest.raises(ValueError, match=r"^b\.x is no setting: b has no x; it has c, e$"):
        make_cell(Plan("x"), {"b.x": 1})
    with pytest.raises(
        ValueError, match=r"^x is no setting: the configuration has no x; it has a, b, trace$"
    ):
        make_cell(Plan("x"), {"x": 1})
    with pytest.raises(ValueError, match=r"^a\.x\.y is no setting: a has no x; it has $"):
        make_cell(Plan("x"), {"a.x.y": 1})


@pytest.mark.parametrize("values", [{"devices": None}, {"predictor": None}])
def test_a_group_that_is_null_is_refused_in_the_words_of_a_study(values: dict[str, Any]) -> None:
    (key,) = values
    with pytest.raises(ValueError, match=rf"^{key}: null: {key} is chosen by the name of a file; "):
        make_cell(Plan("x"), values)


# Contracts: C156
def test_a_grid_can_have_one_device_beside_several() -> None:
    plan = Plan("x", base=("system=lru",), grids=({"devices": ["none", "layers_2"]},))
    one, two = plan_cells(plan)
    assert one.config["hardware"]["devices"] is None
    assert two.config["hardware"]["devices"]["count"] == 2
    plain = make_cell(Plan("x"), {"system": "lru"}).config["hardware"]
    assert one.config["hardware"] == plain | {"devices": None}
