"""The predictor of docs/add_policy.md: a class and a yaml in somebody's own folder, and nothing
else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from helpers.pages import files_of
from sim.traces.trace import DECODE, Trace
from sim.values.places import ROOT

SEARCH = "hydra.searchpath=[mine]"
SITES, EXPERTS, TOP_K = 16, 8, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Beside ``mine``, with the two files of the page."""
    place = tmp_path_factory.mktemp("added")
    found = files_of((ROOT / "docs" / "add_policy.md").read_text(encoding="utf-8"))
    assert {"mine/two_sites.py", "mine/predictor/two_sites.yaml"} <= set(found)
    for name, text in found.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, encoding="utf-8")
    command(place, "sim.fit", SEARCH, "predictor=two_sites", "output_dir=fits")
    return place


def command(folder: Path, module: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), "mine"])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def counted(trace: Trace) -> Any:
    """[site, expert two sites before, expert one before, expert]: rows of the fit sequences, one by
    one.
    """
    fit = {item.sequence for item in trace.header.sequences if item.split == "fit"}
    counts = np.zeros((SITES, EXPERTS, EXPERTS, EXPERTS), int)
    for row in np.flatnonzero(trace.valid).tolist():
        if trace.sequence[row] not in fit:
            continue
        chosen = trace.ids[row].tolist()
        for site in range(2, SITES):
            for before, here, there in product(*chosen[site - 2 : site + 1]):
                counts[site, before, here, there] += 1
    return counts


@pytest.mark.thorough
def test_what_it_learns_is_what_the_fit_sequences_have_counted_one_by_one(
    folder: Path, bundled_trace: Trace
) -> None:
    told = json.loads((folder / "fits" / "two_sites.json").read_text(encoding="utf-8"))
    assert told["kind"] == "two_sites"
    assert told["trace"]["name"] == "tiny_mixtral"
    learnt = np.load(folder / "fits" / "two_sites.npz")["followed"]
    assert (learnt == counted(bundled_trace)).all()
    assert learnt.sum() > 10_000


def test_it_prefetches_what_followed_most_often(folder: Path, bundled_trace: Trace) -> None:
    """Its recall over the run's tokens is that of the same forecasts, made here row by row."""
    command(
        folder,
        "sim",
        SEARCH,
        "system=lru",
        "loader=hobbit",
        "predictor=two_sites",
        "predictor.artefact=fits/two_sites.json",
        "trace.max_sequences=1",
        "output_dir=run",
    )
    summary = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["system"].startswith("lru loader=hobbit predictor=two_sites")
    (number,) = summary["trace"]["numbers"]
    counts = counted(bundled_trace)
    needed, both, forecast = 0, 0, set()
    for row in np.flatnonzero((bundled_trace.sequence == number) & bundled_trace.valid):
        chosen, decoded = bundled_trace.ids[row], bundled_trace.phase[row] == DECODE
        for site in range(2, SITES):
            likely = counts[site][np.ix_(chosen[site - 2], chosen[site - 1])].sum(axis=(0, 1))
            best = np.argsort(-likely, kind="stable")[:TOP_K].tolist()
            forecast |= {(site, expert) for expert in best}
            if decoded:
                needs = set(chosen[site].tolist())
                needed, both = needed + len(needs), both + len(needs & set(best))
    assert summary["prediction"]["recall_at_issued"] == both / needed
    assert summary["prediction"]["fitted_on"] == 0
    assert summary["prefetch"]["used"] > 50
    transfers = pl.read_parquet(folder / "run" / "transfers.parquet")
    prefetched = transfers.filter(pl.col("class") == "prefetch")["key"].to_list()
    assert len(prefetched) == summary["prefetch"]["started"]
    found = {divmod(key, EXPERTS + 1) for key in prefetched}
    assert found <= forecast < set(product(range(2, SITES), range(EXPERTS)))


@pytest.mark.thorough
def test_a_study_takes_it_from_the_same_folder(folder: Path) -> None:
    """In worker processes of its own."""
    (folder / "study.yaml").write_text(
        "question: Is it found?\n"
        "base: system=lru loader=hobbit predictor.artefact=fits/two_sites.json"
        " trace.max_sequences=1 outputs=summary\n"
        "grid:\n  predictor: [two_sites]\n",
        encoding="utf-8",
    )
    told = command(folder, "sim.study", "name=study.yaml", "workers=1", SEARCH)
    assert "1 done" in told, told


@pytest.mark.thorough
def test_a_run_on_what_it_was_fitted_on_is_refused(folder: Path) -> None:
    with pytest.raises(AssertionError, match="the predictor was fitted on 1 of the seq"):
        command(
            folder,
            "sim",
            SEARCH,
            "system=lru",
            "predictor=two_sites",
            "predictor.artefact=fits/two_sites.json",
            "trace.max_sequences=1",
            "trace.split=fit",
        )
