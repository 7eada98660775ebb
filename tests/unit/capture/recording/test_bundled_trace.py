"""The bundled trace: it reads, holds what is promised, stays small, and can be made again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from capture.models.discover import discover
from capture.recording.extras import unpack_masks
from capture.recording.load import load_model
from capture.recording.prompts import Passage, Prompt
from capture.recording.run import run_passages
from capture.recording.settings import Settings
from sim.traces.trace import DECODE, Trace, read_trace
from sim.values.places import ROOT

ASSETS = ROOT / "capture" / "assets"
BUNDLED, MODEL = ASSETS / "traces" / "tiny_mixtral", ASSETS / "tiny_mixtral"
LARGEST_BYTES = 8_000_000

pytestmark = pytest.mark.skipif(
    not (BUNDLED / "header.json").exists(), reason="the bundled trace is not here"
)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return read_trace(BUNDLED, "all")


def test_counts_are_as_promised(trace: Trace) -> None:
    header = trace.header
    assert Counter(item.split for item in header.sequences) == {"fit": 32, "eval": 32}
    assert {item.decode_tokens for item in header.sequences} == {64}
    assert all(32 <= item.prompt_tokens <= 64 for item in header.sequences)
    assert len({item.domain for item in header.sequences}) >= 3
    assert (header.model.sites, header.model.experts, header.model.top_k) == (16, 8, 2)
    assert (header.lookahead is not None and header.lookahead.depth) == 3
    assert set(trace.lookahead) == {"raw", "renormed"}
    assert header.sparsities == (0.5, 0.8, 0.9)
    assert header.columns == ("logits", "lookahead", "expert_norms", "active_shares")


def test_it_stays_small_and_says_how_to_make_it_again() -> None:
    size = sum(path.stat().st_size for path in BUNDLED.rglob("*") if path.is_file())
    assert size <= LARGEST_BYTES
    text = (BUNDLED / "README.md").read_text()
    command = read_trace(BUNDLED).header.provenance["command"]
    assert str(command).startswith("python -m capture model=capture/assets/tiny_mixtral ")
    assert f"\n    {command}\n" in text
    assert "decode rows of 8 fit and 8 eval sequences" in text
    assert "Licence:" in text


def test_every_selection_is_reproduced_by_its_rule(trace: Trace) -> None:
    assert all(
        site.rule_match == 1.0 and site.rule_weight_error < 1e-6 for site in trace.header.sites
    )


def test_rounding_effects_are_stated_and_small(trace: Trace) -> None:
    provenance, rows = trace.header.provenance, trace.ids.shape[0] * trace.ids.shape[1]
    reordered = provenance["rounding_reorders_weights"]
    assert isinstance(reordered, int)
    assert 0 < reordered < 1e-3 * rows
    assert f"of {reordered} of {rows} rows" in (BUNDLED / "README.md").read_text()
    for name in ("logits", "lookahead_raw", "lookahead_renormed"):
        share = provenance[f"rounding_changes_{name}"]
        assert isinstance(share, float)
        assert 0 < share < 0.02
    assert float(provenance["hidden_relative_rms_error"]) < 0.01


def test_shares_meet_their_sparsities_on_average(trace: Trace) -> None:
    assert trace.active_shares is not None
    split = {item.sequence: item.split for item in trace.header.sequences}
    fit = np.array([split[number] == "fit" for number in trace.sequence.tolist()]) & (
        trace.phase == DECODE
    )
    means = trace.active_shares[fit].mean((0, 1, 2))
    np.testing.assert_allclose(means, [0.5, 0.2, 0.1], atol=0.02)


def test_hidden_files_agree_with_the_columns(trace: Trace) -> None:
    names = sorted(path for path in trace.header.files if path.startswith("hidden/"))
    splits = {item.sequence: item.split for item in trace.header.sequences}
    assert Counter(splits[int(name[-15:-12])] for name in names) == {"fit": 8, "eval": 8}
    for name in names:
        hidden = safetensors.numpy.load_file(BUNDLED / name)
        own = (trace.sequence == int(name[-15:-12])) & (trace.phase == DECODE)
        np.testing.assert_array_equal(hidden["position"], trace.position[own])
        masks = unpack_masks(hidden["mask_planes"], 3, trace.header.model.expert_intermediate)
        assert trace.active_shares is not None
        np.testing.assert_allclose(masks.mean(-1), trace.active_shares[own], atol=1e-6)


@pytest.mark.skipif(
    not (MODEL / "model.safetensors").exists(), reason="the bundled model is not here"
)
def test_recapturing_gives_the_same_routing(trace: Trace, tmp_path: Path) -> None:
    """Two sequences run again, with 16 decode tokens each, from the trace's token ids."""
    prompt = Prompt("", "", "fit", "", "")
    chosen, passages = [0, 63], []
    for number in chosen:
        own = trace.token[trace.sequence == number].tolist()
        length = next(
            item.prompt_tokens for item in trace.header.sequences if item.sequence == number
        )
        passages.append(Passage(prompt, tuple(own[:length]), tuple(own[length:])))
    model = load_model(Settings(model=str(MODEL), prompts=tmp_path, output_dir=tmp_path))
    rows = run_passages(model, discover(model), passages, decode_tokens=16)
    for again, number in enumerate(chosen):
        ours, theirs = rows.sequence == again, trace.sequence == number
        count = int(ours.sum())
        np.testing.assert_array_equal(rows.token[ours], trace.token[theirs][:count])
        same = np.sort(rows.ids[ours], -1) == np.sort(trace.ids[theirs][:count], -1)
        # Another machine's arithmetic may decide a near-tie otherwise; on most machines this is 1.
        assert same.mean() > 0.999
        chosen_alike = (rows.ids[ours] == trace.ids[theirs][:count]).all(-1)
        error = np.abs(rows.weights[ours] - trace.weights[theirs][:count])[chosen_alike]
        # Stored weights are rounded to their step.
        assert error.max() <= trace.header.steps["weights"] / 2 + 1e-4
