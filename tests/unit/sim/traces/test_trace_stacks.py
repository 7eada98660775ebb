"""Traces of encoder-decoder models: which rows visit which sites, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.stacks import ENCODER, SITES, both_stacks
from sim.traces.header_text import parse_header
from sim.traces.trace import CHUNK, Trace, TraceError, read_trace, write_trace


@pytest.mark.parametrize("step", [None, 1 / 16])
def test_a_trace_of_two_stacks_comes_back_as_it_was_written(
    tmp_path: Path, step: float | None
) -> None:
    trace = both_stacks()
    if step is not None:
        trace = replace(trace, header=replace(trace.header, steps={"logits": step}))
    write_trace(tmp_path / "trace", trace)
    back = read_trace(tmp_path / "trace", "all")
    assert [site.stack for site in back.header.sites] == ["encoder"] * ENCODER + ["decoder"] * (
        SITES - ENCODER
    )
    assert back.header.encoder_sites == ENCODER
    np.testing.assert_array_equal(back.ids, trace.ids)
    np.testing.assert_array_equal(back.lookahead["raw"], trace.lookahead["raw"])
    assert back.logits is not None
    away = np.isnan(back.logits).all(axis=-1)
    np.testing.assert_array_equal(away, (trace.ids < 0).all(axis=-1))
    assert away.any()


def test_a_header_that_names_no_stack_is_that_of_a_decoder_and_stays_so() -> None:
    header = both_stacks().header
    plain = json.loads(header.to_json())
    assert [site.pop("stack") for site in plain["sites"]] == ["encoder"] * ENCODER + ["decoder"] * (
        SITES - ENCODER
    )
    plain["files"]["routes.parquet"] = "0" * 64
    plain |= {"lookahead": None, "sparsities": []}
    parsed = parse_header(json.dumps(plain))
    assert parsed.encoder_sites == 0
    assert {site.stack for site in parsed.sites} == {"decoder"}
    assert json.loads(parsed.to_json()) == plain


@pytest.mark.parametrize(
    ("stacks", "rule"),
    [
        (
            ["decoder", "encoder", "decoder", "decoder"],
            "must be those of the encoder, if any, then at least one",
        ),
        (["encoder"] * SITES, "then at least one of the decoder"),
        (["encoder", "both", "decoder", "decoder"], r"must be one of \('encoder', 'decoder', "),
        (["encoder", "draft", "decoder", "decoder"], "one of the decoder, then those of draft"),
        (["encoder", 2, "decoder", "decoder"], "must be one of"),
    ],
)
def test_stacks_out_of_order_are_refused(tmp_path: Path, stacks: list[Any], rule: str) -> None:
    write_trace(tmp_path / "trace", both_stacks())
    place = tmp_path / "trace" / "header.json"
    header = json.loads(place.read_text())
    for site, stack in zip(header["sites"], stacks, strict=True):
        site["stack"] = stack
    place.write_text(json.dumps(header))
    with pytest.raises(TraceError, match=rule) as caught:
        read_trace(tmp_path / "trace")
    assert caught.value.file == "header.json"
    assert caught.value.field in ("sites[].stack", "sites[1].stack")


def changed(name: str, place: tuple[int, ...], value: float) -> Trace:
    trace = both_stacks()
    column = trace.lookahead["raw"] if name == "lookahead" else getattr(trace, name)
    column[place] = value
    return trace


# Rows 0 to 2 are prompts, 3 and 4 decoded. Sites 0 and 1 are the encoder's, 2 and 3 the decoder's.
AWAY = (
    "at a site that the row does not visit (prompts visit the encoder's, decoded rows the"
    " decoder's)"
)
REFUSED = {
    "a prompt at the decoder": (changed("ids", (1, 2, 0), 3), "ids[1, 2, 0]", f"must be -1 {AWAY}"),
    "a decoded row at the encoder": (
        changed("ids", (4, 0, 1), 2),
        "ids[4, 0, 1]",
        f"must be -1 {AWAY}",
    ),
    "logits at the other stack": (
        changed("logits", (0, 3, 1), 0.5),
        "logits[0, 3, 1]",
        f"must be NaN {AWAY}",
    ),
    "no logits where it is": (
        changed("logits", (0, 1, 1), np.nan),
        "logits[0, 1, 1]",
        "must be finite",
    ),
    "norms at the other stack": (
        changed("expert_norms", (3, 1, 0), 1.0),
        "expert_norms[3, 1, 0]",
        f"must be NaN {AWAY}",
    ),
    "shares at the other stack": (
        changed("active_shares", (3, 1, 0, 0), 1.0),
        "active_shares[3, 1, 0, 0]",
        f"must be NaN {AWAY}",
    ),
    "a forecast from the other stack": (
        changed("lookahead", (3, 0, 0, 2), 1.0),
        "lookahead_raw[3, 0, 0, 2]",
        f"must be NaN {AWAY}",
    ),
    "a forecast into the other stack": (
        changed("lookahead", (0, 1, 0, 2), 1.0),
        "lookahead_raw 1 sites ahead[0, 1, 2]",
        "must be NaN past the last site of its stack",
    ),
    "a prompt in parts": (
        changed("phase", (1,), CHUNK),
        "phase[1]",
        "must be 0 (prefill) or 1 (decode): an encoder reads a prompt whole",
    ),
    "a step of both": (
        changed("step", (3,), 0),
        "phase[3]",
        "must be the same in the whole step: prompts visit the encoder, decoded rows do not",
    ),
}


@pytest.mark.parametrize(("trace", "field", "rule"), REFUSED.values(), ids=REFUSED)
def test_what_no_encoder_decoder_model_does_is_refused(
    tmp_path: Path, trace: Trace, field: str, rule: str
) -> None:
    with pytest.raises(TraceError) as caught:
        write_trace(tmp_path / "trace", trace)
    assert (caught.value.file, caught.value.field, caught.value.rule) == (
        "routes.parquet",
        field,
        rule,
    )
