"""Importing moe-cache-eval's ``events.csv``: its sets become needs.

A run then does what the author's replay did.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from capture.importers.moe_cache_events import COLUMNS, REPLAYED_FILE
from helpers.import_fixtures import failure, imported, lacks, refusal
from sim.setup.build import build
from sim.setup.configure import configure
from sim.setup.execute import execute

FORMAT, LAYERS, EXPERTS = "moe_cache_eval", 3, 4
ASKED = ((0, 1), (0, 2), (0, 1), (0, 3), (0, 1))
"""Experts by step, at every layer: the conformance trace of arXiv:2608.07911, section 2."""
Event = list[str]


def events(asked: Sequence[Sequence[int]] = ASKED) -> list[Event]:
    """The lines that the author's script writes.

    LRU over two slots a layer finds all experts but the newcomers.
    """
    found: list[Event] = []
    for step, experts in enumerate(asked):
        before = set(asked[step - 1]) if step else set()
        for layer in range(LAYERS):
            misses = len(set(experts) - before)
            cells = (
                len(found),
                step,
                layer,
                " ".join(map(str, experts)),
                misses,
                len(experts) - misses,
            )
            found.append([str(cell) for cell in cells])
    return found


def write(
    folder: Path,
    lines: list[Event] | None = None,
    model: dict[str, Any] | None = None,
    names: Sequence[str] = COLUMNS,
) -> Path:
    folder.mkdir()
    told = {"num_layers": LAYERS, "num_experts_per_layer": EXPERTS} if model is None else model
    (folder / "manifest.json").write_text(
        json.dumps({"status": "complete", "model": told}), encoding="utf-8"
    )
    text = "".join(
        ",".join(line) + "\r\n" for line in [list(names), *(events() if lines is None else lines)]
    )
    (folder / "events.csv").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "of", [lambda folder: folder, lambda folder: folder / "events.csv"], ids=["folder", "file"]
)
def test_each_step_needs_its_sets(tmp_path: Path, of: Callable[[Path], Path]) -> None:
    trace = imported(FORMAT, of(write(tmp_path / "events")), tmp_path / "trace", model="toy")
    assert trace.ids.tolist() == [[list(experts)] * LAYERS for experts in ASKED]
    assert trace.step.tolist() == list(range(5))
    assert lacks(trace) == {"weights", "order", "rows", "sequences", "prefill", "tokens", "scores"}
    replayed = pl.read_parquet(tmp_path / "trace" / REPLAYED_FILE)
    assert replayed["misses"].to_list() == [2] * 3 + [1] * 12
    assert (trace.header.provenance["hits"], trace.header.provenance["misses"]) == (12, 18)


def test_a_run_under_the_replays_contract_hits_where_the_author_s_did(tmp_path: Path) -> None:
    imported(FORMAT, write(tmp_path / "events"), tmp_path / "trace", model="toy")
    words = (
        "system=lru",
        "cache=lru_per_site",
        "cache.initial=empty",
        "workload=recorded",
        "model=tiny_mixtral",
        f"model.sites={LAYERS}",
        f"model.experts={EXPERTS}",
        "model.top_k=2",
        "model.hidden=16",
        "model.expert_intermediate=32",
        f"trace.path={tmp_path}/trace",
        "budget.resident_share=0.5",
    )
    result = execute(build(*configure(*words)))
    found = result.frames.lookups.group_by("step", "site").agg(
        (pl.col("outcome") == "miss").sum().alias("misses")
    )
    replayed = pl.read_parquet(tmp_path / "trace" / REPLAYED_FILE)
    assert found.sort("step", "site")["misses"].to_list() == replayed["misses"].to_list()
    assert result.summary["lookups"]["hit"] == 12


def test_sets_may_differ_in_size(tmp_path: Path) -> None:
    trace = imported(
        FORMAT,
        write(tmp_path / "events", events(((0, 1, 3), (2,)))),
        tmp_path / "trace",
        model="toy",
    )
    assert trace.ids[:, 0].tolist() == [[0, 1, 3], [2, -1, -1]]


def change(line: int, column: str, value: str) -> list[Event]:
    found = events()
    found[line - 2][COLUMNS.index(column)] = value
    return found


@pytest.mark.parametrize(
    ("lines", "place", "rule"),
    [
        (
            change(2, "event_index", "1"),
            "line 2, event_index",
            "must be 0: events stand layer by layer",
        ),
        (change(4, "layer", "1"), "line 4, layer", "must be 2"),
        (
            change(3, "scheduler_step", "1"),
            "line 3, scheduler_step",
            "must be 0, as at the layers before",
        ),
        (change(5, "scheduler_step", "-1"), "line 5, scheduler_step", "must be a whole number"),
        (
            change(2, "requested_experts", "0 4"),
            "line 2, requested_experts",
            "must be a whole number in 0..3",
        ),
        (change(2, "requested_experts", "1 1"), "line 2, requested_experts", "must not repeat"),
        (
            change(2, "requested_experts", ""),
            "line 2, requested_experts",
            "must be a whole number in 0..3",
        ),
        (change(2, "misses", "1"), "line 2, misses", "must be 2 with the hits"),
        (events()[:-1], "layer", "must end at 2"),
        ([], "line 2", "must be an event"),
        ([["0", "0"]], "line 2", "must have 6 values"),
    ],
)
def test_what_does_not_add_up_is_refused_by_line(
    tmp_path: Path, lines: list[Event], place: str, rule: str
) -> None:
    error = refusal(FORMAT, write(tmp_path / "events", lines), model="toy")
    assert (error.file, error.field) == ("events.csv", place)
    assert rule in str(error)


def test_what_the_manifest_does_not_tell_is_refused(tmp_path: Path) -> None:
    error = refusal(FORMAT, write(tmp_path / "none", model={"num_layers": 3}), model="toy")
    assert error.field == "model.num_experts_per_layer"
    error = refusal(
        FORMAT, write(tmp_path / "names", names=("event_index", *COLUMNS[:-1])), model="toy"
    )
    assert "must name the column event_index once" in str(error)
    folder = write(tmp_path / "alone")
    (folder / "manifest.json").unlink()
    assert "manifest.json is missing" in failure(FORMAT, folder / "events.csv", model="toy")
