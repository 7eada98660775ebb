"""``python -m capture prefill=counts``: what is kept of prompts, and who reads such a trace."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from capture.__main__ import main
from capture.fit import _inputs as read_inputs
from capture.lint import lint
from capture.recording.settings import SettingError, parse_settings
from capture.statistics.sample import Unavailable, take
from helpers.checkpoints import save_checkpoint, write_prompts
from helpers.tiny_models import build
from sim.fitting.fits import sample_of
from sim.policies.learned import LearnedPerSite
from sim.traces.trace import DECODE, Trace, read_trace

Pair = tuple[Trace, Trace]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a capture of the prompts' rows (``rows``) and one of counts (``counts``)."""
    place = tmp_path_factory.mktemp("counts")
    model = save_checkpoint(build("mixtral"), place / "model")
    prompts = write_prompts(place / "prompts.jsonl")
    words = [
        "prompt_tokens=12-20",
        "decode_tokens=4",
        "sequences=4",
        "threads=1",
        "prefill_chunk=7",
    ]
    for prefill in ("rows", "counts"):
        told = [
            f"model={model}",
            f"prompts={prompts}",
            f"output_dir={place / prefill}",
            f"prefill={prefill}",
        ]
        assert main([*told, *words]) == 0
    return place


@pytest.fixture(scope="module")
def both(directory: Path) -> Pair:
    return read_trace(directory / "rows", "all"), read_trace(directory / "counts", "all")


def test_tokens_per_expert_step_and_site_are_those_of_the_rows(both: Pair) -> None:
    rows, counts = both
    assert (rows.header.prefill, counts.header.prefill) == ("rows", "counts")
    np.testing.assert_array_equal(rows.phase, counts.phase)
    np.testing.assert_array_equal(rows.sequence, counts.sequence)
    np.testing.assert_array_equal(rows.position, counts.position)
    for step in np.unique(rows.step):
        own = rows.step == step
        np.testing.assert_array_equal(own, counts.step == step)
        for site in range(rows.header.model.sites):
            tokens = [np.bincount(trace.ids[own, site].ravel(), minlength=6) for trace in both]
            weight = [
                np.bincount(t.ids[own, site].ravel(), t.weights[own, site].ravel(), 6) for t in both
            ]
            np.testing.assert_array_equal(*tokens)
            np.testing.assert_allclose(*weight, atol=1e-5)
    # Rows are dealt from the counts, so single rows are not those of the model.
    assert (rows.ids != counts.ids).any()


def test_decoded_rows_and_what_was_measured_inside_experts_are_the_same(
    both: Pair, directory: Path
) -> None:
    rows, counts = both
    decode = rows.phase == DECODE
    for name in ("ids", "weights", "logits", "token", "active_shares", "expert_norms"):
        np.testing.assert_array_equal(getattr(rows, name)[decode], getattr(counts, name)[decode])
    for path in ("thresholds.safetensors", "routers.safetensors"):
        assert rows.header.files[path] == counts.header.files[path]
    assert rows.header.sites == counts.header.sites
    stored = pl.read_parquet(directory / "counts" / "routes.parquet")
    assert stored.height == decode.sum() * rows.header.model.sites
    told = (directory / "counts" / "README.md").read_text()
    assert "`prefill_counts.parquet`: prompts, as the number of tokens" in told
    assert "a row is a site x decoded token" in told


def test_lint_and_statistics_look_at_decoded_rows_and_refuse_prompts_by_name(both: Pair) -> None:
    rows, counts = both
    assert len(take(counts).ids) == len(take(rows).ids)
    for phase in ("prompt", "all"):
        assert len(take(rows, phase).ids)
        with pytest.raises(Unavailable, match="keeps prompts as counts of tokens"):
            take(counts, phase)
    assert {finding.check for finding in lint(counts)} <= {finding.check for finding in lint(rows)}


def test_padding_is_not_counted() -> None:
    required = ["model=m", "prompts=p", "output_dir=o", "prefill=counts"]
    assert parse_settings(required).prefill == "counts"
    with pytest.raises(SettingError, match="prefill=counts keeps no padding"):
        parse_settings([*required, "batch=2"])
    with pytest.raises(SettingError, match="must be one of rows, counts"):
        parse_settings([*required[:3], "prefill=none"])


def test_networks_learn_from_the_rows_that_their_scores_belong_to(
    both: Pair, directory: Path
) -> None:
    sizes = []
    for trace in both:
        predictor = LearnedPerSite(inputs="scores", score_sites=1)
        request: Any = SimpleNamespace(
            trace=trace, sequences=(0, 2), choice=SimpleNamespace(path=str(directory))
        )
        sequences, given = read_inputs(request, predictor)
        assert given is not None
        assert len(given) == len(sample_of(trace, sequences).ids)
        sizes.append(len(given))
    prompts = sum(
        item.prompt_tokens for item in both[0].header.sequences if item.sequence in (0, 2)
    )
    assert sizes[0] - sizes[1] == prompts
