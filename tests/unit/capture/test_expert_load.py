"""How often each expert was chosen, in the file that SGLang reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from capture import expert_load
from capture.expert_load import load_of
from helpers.bundled import BUNDLED
from helpers.composed import make_trace
from sim.traces.trace import CHUNK, DECODE, PREFILL, read_trace


def test_a_layer_has_the_rows_that_chose_each_expert_and_dense_layers_have_none() -> None:
    """Six rows of which one is padding; the sites are layers 1 and 3 of the model."""
    trace = make_trace({0: (2, 4)}, 0, padding=1)
    sites = tuple(replace(site, layer=2 * site.site + 1) for site in trace.header.sites)
    trace = replace(trace, header=replace(trace.header, sites=sites))
    counts = load_of(trace)
    experts = trace.header.model.experts
    by_hand = np.zeros((2 * len(sites), experts), np.int64)
    for row in np.flatnonzero(trace.valid):
        for site in sites:
            for expert in trace.ids[row, site.site]:
                if expert >= 0:
                    by_hand[site.layer, expert] += 1
    assert counts.tolist() == by_hand.tolist()
    assert not counts[0].any()
    decoded = load_of(trace, "decode").sum()
    assert decoded + load_of(trace, "prompt").sum() == counts.sum()
    assert decoded == (trace.ids[trace.valid & (trace.phase == DECODE)] >= 0).sum()


def test_parts_of_a_prompt_count_as_the_whole_one_does() -> None:
    """Rows of phase chunk were left out, of all rows and of the prompt's."""
    whole = make_trace({0: (4, 2)}, 0)
    phase = np.where((whole.phase == PREFILL) & (whole.position > 1), np.uint8(CHUNK), whole.phase)
    parts = replace(whole, phase=phase)
    assert (parts.phase == CHUNK).sum() == 2
    for which in ("all", "prompt", "decode"):
        assert load_of(parts, which).tolist() == load_of(whole, which).tolist()


def test_two_sites_of_a_layer_are_refused_because_one_list_would_hide_the_other() -> None:
    trace = make_trace({0: (2, 4)}, 0)
    sites = tuple(replace(site, layer=site.site // 2) for site in trace.header.sites)
    with pytest.raises(ValueError, match="has 2 sites in layer 0, and the file has one list for"):
        load_of(replace(trace, header=replace(trace.header, sites=sites)))


def test_the_file_has_one_list_for_each_layer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "load.json"
    assert expert_load.main([str(BUNDLED), f"output={file}"]) == 0
    told = json.loads(file.read_text(encoding="utf-8"))
    assert list(told) == ["logical_count"]
    assert told["logical_count"] == load_of(read_trace(Path(BUNDLED))).tolist()
    assert "16 layers of 8 experts" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["output=load.json", "phase=prefill"], "prefill is none of all, decode, prompt"),
        (["output=load.pt"], "must end with .json"),
        (["output=there.json"], "there.json exists"),
        ([], "missing output=..."),
    ],
)
def test_what_cannot_be_written_is_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = Path(BUNDLED).absolute()
    monkeypatch.chdir(tmp_path)
    Path("there.json").touch()
    assert expert_load.main([str(place), *words]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert message in told
    assert [path.name for path in tmp_path.iterdir()] == ["there.json"]


def test_a_trace_with_an_encoder_or_without_such_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="a model with an encoder"):
        load_of(read_trace(Path("capture/assets/traces/tiny_switch")))
    with pytest.raises(ValueError, match="no rows of phase=decode; say phase=all"):
        load_of(make_trace({0: (3, 0)}, 0), "decode")
