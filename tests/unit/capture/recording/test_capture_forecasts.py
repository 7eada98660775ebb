"""``python -m capture prefill_lookahead=...``: what is kept of the forecasts of prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capture.__main__ import main
from capture.recording.settings import SettingError, parse_settings
from helpers.architectures import ENCODER_DECODER, tiny
from helpers.checkpoints import save_checkpoint, write_prompts
from helpers.tiny_models import build
from sim.traces.forecasts import PLACE
from sim.traces.trace import DECODE, Trace, read_trace
from sim.workload.steps import Workload

Ahead = dict[tuple[int, int, int], tuple[list[int], list[int], list[float]]]
FINE = (
    "lookahead_step=1/128",
    "sparsities=",
    "hidden_sequences=0",
    "threads=1",
    "decode_tokens=3",
    "sequences=4",
)


def captured(place: Path, family: str, name: str, *words: str) -> Trace:
    model, prompts = place / "model", place / "prompts.jsonl"
    if not model.exists():
        save_checkpoint(tiny(family) if family in ENCODER_DECODER else build(family), model)
        write_prompts(prompts)
    told = [
        f"model={model}",
        f"prompts={prompts}",
        f"output_dir={place / name}",
        "prompt_tokens=9-14",
    ]
    assert main([*told, *FINE, *words]) == 0
    return read_trace(place / name, "all")


def forecasts(trace: Trace, norm: str, **choice: Any) -> Ahead:
    """What prompts are forecast to need, by step, site and target.

    Experts are in order, with tokens and scores.
    """
    assert trace.header.lookahead is not None
    depth = trace.header.lookahead.depth
    workload = Workload(trace, split="all", lookahead=depth, norm=norm, **choice)
    gate, found = workload.gate(), {}
    for step in workload.steps:
        gate.open(step)
        for site in step.sites:
            gate.visit(site)
            if not step.decode:
                for ahead in gate.forecasts(depth):
                    found[step.index, site, ahead.site] = (
                        list(ahead.needs),
                        list(ahead.tokens),
                        list(ahead.scores),
                    )
    return found


def agree(one: Ahead, other: Ahead) -> None:
    """Check that two forecasts agree, but for a few near ties, which rounding decides."""
    assert one.keys() == other.keys()
    assert one
    moved = total = 0
    for place, (needs, tokens, _) in one.items():
        mine, theirs = (
            dict(zip(needs, tokens, strict=True)),
            dict(zip(*other[place][:2], strict=True)),
        )
        assert sum(mine.values()) == sum(theirs.values())
        moved += sum(
            abs(mine.get(expert, 0) - theirs.get(expert, 0)) for expert in {*mine, *theirs}
        )
        total += sum(mine.values())
    assert moved <= 0.01 * total


@pytest.mark.alike
@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("mixtral", ()),
        ("mixtral", ("prefill_chunk=5",)),
        ("mixtral", ("batch=2",)),
        ("switch_transformers", ("batch=2",)),
    ],
)
def test_prompts_are_forecast_together_as_their_rows_are(
    family: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    rows = captured(tmp_path, family, "rows", "prefill_lookahead=rows", *words)
    together = captured(tmp_path, family, "together", *words)
    prompts = together.valid & (together.phase != DECODE)
    np.testing.assert_array_equal(rows.ids, together.ids)
    assert together.header.lookahead is not None
    for norm in together.header.lookahead.norms:
        assert np.isnan(together.lookahead[norm][prompts]).all()
        np.testing.assert_array_equal(
            rows.lookahead[norm][~prompts], together.lookahead[norm][~prompts]
        )
        assert set(together.prompt_forecasts[norm].columns[:4]) == set(PLACE)
        assert not rows.prompt_forecasts
        batching = "recorded" if words else "sequential"
        agree(
            forecasts(together, norm, batching=batching), forecasts(rows, norm, batching=batching)
        )
    assert (
        "what the tokens of a prompt are forecast to choose together"
        in (tmp_path / "together" / "README.md").read_text()
    )
    assert "for all rows, in" in (tmp_path / "rows" / "README.md").read_text()


def test_with_prompts_as_counts_they_are_the_same_and_without_them_there_are_none(
    tmp_path: Path,
) -> None:
    together = captured(tmp_path, "mixtral", "together")
    counts = captured(tmp_path, "mixtral", "counts", "prefill=counts")
    for norm, frame in together.prompt_forecasts.items():
        assert counts.prompt_forecasts[norm].equals(frame)
    assert forecasts(counts, "raw", batching="sequential") == forecasts(
        together, "raw", batching="sequential"
    )
    none = captured(tmp_path, "mixtral", "none", "prefill_lookahead=no")
    assert not none.header.forecast_norms
    assert forecasts(none, "raw", batching="sequential") == {}


def test_rows_that_are_not_kept_have_no_scores_to_keep() -> None:
    required = ["model=m", "prompts=p", "output_dir=o"]
    assert parse_settings(required).prefill_lookahead == "counts"
    with pytest.raises(
        SettingError, match="prefill_lookahead=rows keeps scores of rows that prefill=counts"
    ):
        parse_settings([*required, "prefill=counts", "prefill_lookahead=rows"])
    with pytest.raises(SettingError, match="must be one of counts, rows, no"):
        parse_settings([*required, "prefill_lookahead=all"])
