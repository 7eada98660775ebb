"""A recorded run's folder, written by hand, and the words that simulate it again."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from sim.answers.recorded_run import COLUMNS, read_recorded, stored_bytes, words_of
from sim.results.kept_tables import TEXTS

SUMMARY: dict[str, Any] = {
    "schema": 1,
    "system": "hobbit seed=1 cache=lfu 'a=b c'",
    "hardware": "h",
    "budget": {"resident_share": 0.25},
}
CONFIG = "loader: {wait: all}\nmodel: {sites: 2}\n"


def written(folder: Path) -> Path:
    (folder / "summary.json").write_text(json.dumps(SUMMARY), encoding="utf-8")
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    for name, columns in COLUMNS.items():
        rows = pl.DataFrame(
            {
                column: [str(at) if column in TEXTS else at]
                for at, column in enumerate((*columns, "more"))
            }
        )
        rows.write_parquet(folder / f"{name}.parquet")
    return folder


def test_a_folder_is_read_with_the_columns_that_are_wanted(tmp_path: Path) -> None:
    found = read_recorded(written(tmp_path))
    assert found.summary == SUMMARY
    assert found.config == {"loader": {"wait": "all"}, "model": {"sites": 2}}
    tables = found.tables
    told = [table.row(0, named=True) for table in (tables.lookups, tables.transfers, tables.tokens)]
    assert told == [
        {name: str(at) if name in TEXTS else at for at, name in enumerate(names)}
        for names in COLUMNS.values()
    ]
    assert tables.wait == "all"


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("summary.json", None, "{folder} holds no run: no summary.json is in it; name"),
        ("summary.json", "{", "{folder}/summary.json cannot be read ("),
        (
            "summary.json",
            "[]",
            "{folder}/summary.json is no summary of a run: it is no JSON object",
        ),
        ("summary.json", '{"schema": 1, "system": "a"}', "{folder}/summary.json lacks hardware: "),
        ("config.yaml", None, "{folder}/config.yaml has no loader.wait or model ("),
        (
            "config.yaml",
            "loader: {wait: all}",
            "{folder}/config.yaml has no loader.wait or model (",
        ),
        ("config.yaml", "a: [", "{folder}/config.yaml has no loader.wait or model ("),
        ("tokens.parquet", None, "{folder} has no tokens.parquet; run again with outputs=all"),
        ("lookups.parquet", "x", "{folder}/lookups.parquet cannot be read ("),
    ],
)
def test_a_folder_without_a_run_is_refused_by_its_file(
    file: str, text: str | None, told: str, tmp_path: Path
) -> None:
    place = written(tmp_path) / file
    place.unlink()
    if text is not None:
        place.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"run again|run it again|moelab run") as refused:
        read_recorded(tmp_path)
    assert str(refused.value).startswith(told.format(folder=tmp_path))


def test_words_of_a_run_give_way_to_those_that_are_given() -> None:
    of_run = ["system=hobbit", "seed=1", "cache=lfu", "a=b c", "budget.resident_share=0.25"]
    assert words_of(SUMMARY, []) == of_run
    told = {**SUMMARY, "overrides": ["trace.path=x", "hardware.name=y"]}
    assert words_of(told, ["cache=lru", "trace.path=z"]) == [
        *(word for word in of_run if word != "cache=lfu"),
        "hardware.name=y",
        "cache=lru",
        "trace.path=z",
    ]


@pytest.mark.parametrize(
    "word",
    [
        "cache._target_=subprocess.run",
        "+cache={_target_: os.system, command: x}",
        r"+cache={_targ\et_: os.system}",
        "hydra.searchpath=[file:///tmp]",
        "++hydra.run.dir=/tmp",
    ],
)
def test_words_of_a_run_choose_no_class_and_no_folder(word: str) -> None:
    told = rf"^{re.escape(repr(word))} of the run chooses a class, or where files lie: give it"
    with pytest.raises(ValueError, match=told):
        words_of({**SUMMARY, "overrides": ["trace.path=x", word]}, [])
    with pytest.raises(ValueError, match=told):
        words_of({**SUMMARY, "system": f"lru {shlex.quote(word)}"}, [])
    assert word in words_of(SUMMARY, [word])


@pytest.mark.parametrize("overrides", [0, None, "x=1", ["x=1", 2]])
def test_words_of_a_run_that_are_no_list_of_texts_are_refused(overrides: object) -> None:
    with pytest.raises(ValueError, match=r"^overrides=.* of the run must be a list of words"):
        words_of({**SUMMARY, "overrides": overrides}, [])


@pytest.mark.parametrize("system", ["", "lru 'cache=x"])
def test_a_run_of_no_system_is_refused(system: str) -> None:
    with pytest.raises(ValueError, match=r"^system=.* of the run names no system$"):
        words_of({**SUMMARY, "system": system}, [])


def test_a_run_that_named_no_model_and_machine_is_simulated_with_its_own() -> None:
    """moelab real has other ones than moelab run where none is named."""
    told = {**SUMMARY, "model": "tiny_mixtral", "hardware": "paced_cpu", "overrides": ["x=1"]}
    usual = ["model=tiny_mixtral", "hardware=paced_cpu"]
    asked = [word for word in words_of(told, []) if word in usual]
    assert asked == usual
    assert "hardware=paced_cpu" not in words_of(told, ["hardware=rtx4090_pcie4"])
    told["overrides"] = ["model=tiny_mixtral", "model.top_k=1"]
    assert words_of(told, []).count("model=tiny_mixtral") == 1
    # A name that no file has is of a machine or model of one's own, which the words describe.
    assert not [word for word in words_of({**told, "hardware": "mine"}, []) if "mine" in word]


def test_the_bytes_of_a_store_are_told_by_precision_and_a_simulated_run_has_none() -> None:
    store = {"precisions": {"fp16": {"bytes": 80}, "int4": {"bytes": "20"}}}
    assert stored_bytes({"real": {"store": store}}) == (80, 20)
    nothing: list[dict[str, Any]] = [{}, {"real": None}, {"real": {}}, {"real": {"store": {}}}]
    assert [stored_bytes(one) for one in nothing] == [()] * 4
    for precisions in (3, {"fp16": 80}, {"fp16": {}}, {"fp16": {"bytes": "many"}}):
        with pytest.raises(
            ValueError, match=r"^real=.* must have store\.precisions, with the bytes"
        ):
            stored_bytes({"real": {"store": {"precisions": precisions}}})
