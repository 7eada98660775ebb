"""Makes synthetic traces from a preset and the knobs that were fitted to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.synthetic.gate_walk import (
    Float32s,
    Routers,
    gate_inputs,
    logits_of,
    make_routers,
    output_norms,
)
from sim.synthetic.preset import KNOBS, Fit, Preset
from sim.traces.header import Header, Lookahead, Scalar, Site, TraceSequence
from sim.traces.synthesis import SCORE_STEP, UNDATED, rounded, sequence_rows
from sim.traces.trace import DECODE, Trace
from sim.values.fields import INT32_MAX
from sim.values.units import require_number


@dataclass(frozen=True)
class Request:
    """What to synthesise.

    Each of the ``sequences`` has ``prompt_tokens``, in one step, and ``tokens`` decoded ones.
    ``like`` names the preset, ``reading`` one of its readings ("" for the default). ``lookahead``
    is the depth of the decode rows' scores in sites, 0 for none. The first ``hidden_sequences``
    keep the gate inputs of their decode rows.
    """

    like: str
    tokens: int
    reading: str = ""
    sequences: int = 8
    prompt_tokens: int = 32
    seed: int = 0
    lookahead: int = 3
    hidden_sequences: int = 0

    def check(self, preset: Preset) -> None:
        """Raise ValueError for a number out of its range, or one that does not fit ``preset``."""
        for name, minimum in (
            ("tokens", 1),
            ("sequences", 1),
            ("prompt_tokens", 0),
            ("seed", 0),
            ("lookahead", 0),
            ("hidden_sequences", 0),
        ):
            require_number(name, getattr(self, name), minimum=minimum, whole=True)
        rows = self.sequences * (self.prompt_tokens + self.tokens)
        if rows > INT32_MAX:
            raise ValueError(
                f"sequences={self.sequences}, prompt_tokens={self.prompt_tokens}, tokens={self.tokens}"
                f" are {rows} rows, must be at most {INT32_MAX}: a trace numbers them so"
            )
        longest = max(map(len, preset.layers))
        if self.lookahead >= longest:
            raise ValueError(
                f"lookahead={self.lookahead} must be below {longest}, the sites of {preset.name} in"
                " a row"
            )
        if self.hidden_sequences > self.sequences:
            raise ValueError(
                f"hidden_sequences={self.hidden_sequences} exceeds sequences={self.sequences}"
            )
        if len(preset.layers) > 1:
            if not self.prompt_tokens:
                raise ValueError(
                    f"prompt_tokens=0, but the encoder of {preset.name} needs a prompt; give 1 or"
                    " more"
                )
            if self.hidden_sequences:
                raise ValueError(
                    f"hidden_sequences={self.hidden_sequences}: gate inputs are kept of decoders"
                    f" without an encoder only, and {preset.name} has one; set hidden_sequences=0"
                )


@dataclass(frozen=True, eq=False)
class Synthetic:
    """A synthetic trace, and the gate inputs [T, L, H] of the sequences that keep them.

    ``routers`` are those of the decoder.
    """

    trace: Trace
    routers: Routers
    inputs: Mapping[int, Float32s]


def synthesize_like(
    preset: Preset,
    fit: Fit,
    request: Request,
    *,
    created: str = UNDATED,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Synthetic:
    """A trace like ``preset`` with the knobs of ``fit``; the same arguments give the same arrays.

    Even sequences are of split eval, odd ones of split fit. Raise ValueError for a request that
    cannot be met.
    """
    request.check(preset)
    walk, shape = fit.walk, preset.shape
    length = request.prompt_tokens + request.tokens
    columns = sequence_rows(request.sequences, request.prompt_tokens, request.tokens)
    columns |= _empty_columns(preset, request, len(columns["step"]))
    stacks = [
        make_routers(walk, len(layers), shape.experts, request.seed, stack)
        for stack, layers in enumerate(preset.layers)
    ]
    inputs: dict[int, Float32s] = {}
    for number in progress(range(request.sequences)):
        first = number * length
        if len(stacks) == 1:
            parts = [(slice(first, first + length), 0)]
        else:
            parts = [
                (slice(first, first + request.prompt_tokens), 0),
                (slice(first + request.prompt_tokens, first + length), 1),
            ]
        for rows, stack in parts:
            drawn, ids = gate_inputs(
                walk, stacks[stack], rows.stop - rows.start, request.seed, number, stack
            )
            columns["token"][rows] = ids
            _fill(
                columns,
                rows,
                _sites(preset, stack),
                preset,
                fit,
                request,
                number,
                drawn,
                stacks[stack],
            )
            if number < request.hidden_sequences:
                inputs[number] = drawn.swapaxes(0, 1)
    scores = columns.pop("lookahead")
    header = _header(preset, fit, request, created)
    trace = Trace(header=header, **columns, lookahead={"raw": scores} if request.lookahead else {})
    return Synthetic(trace, stacks[-1], inputs)


def _sites(preset: Preset, stack: int) -> slice:
    first = sum(len(layers) for layers in preset.layers[:stack])
    return slice(first, first + len(preset.layers[stack]))


def _empty_columns(preset: Preset, request: Request, rows: int) -> dict[str, NDArray[Any]]:
    """Columns of rows that do not visit any site yet."""
    sites, experts, top_k = preset.shape.sites, preset.shape.experts, preset.shape.top_k
    return {
        "ids": np.full((rows, sites, top_k), -1, np.int16),
        "weights": np.zeros((rows, sites, top_k), np.float32),
        "logits": np.full((rows, sites, experts), np.nan, np.float32),
        "expert_norms": np.full((rows, sites, top_k), np.nan, np.float32),
        "lookahead": np.full((rows, sites, request.lookahead, experts), np.nan, np.float32),
    }


def _fill(
    columns: dict[str, NDArray[Any]],
    rows: slice,
    sites: slice,
    preset: Preset,
    fit: Fit,
    request: Request,
    sequence: int,
    inputs: Float32s,
    routers: Routers,
) -> None:
    """Write what one sequence's ``rows`` choose at the ``sites`` of a stack.

    ``inputs`` [L, T, H] are the inputs of their gates.
    """
    top_k = preset.shape.top_k
    logits = rounded(logits_of(inputs, routers)).swapaxes(0, 1)
    columns["logits"][rows, sites] = logits
    columns["ids"][rows, sites], columns["weights"][rows, sites] = preset.rule.route(logits, top_k)
    shape = (*logits.shape[:2], top_k)
    columns["expert_norms"][rows, sites] = output_norms(fit.walk, request.seed, sequence, shape)
    decoding = columns["phase"][rows] == DECODE
    for ahead in range(1, min(request.lookahead, len(inputs) - 1) + 1):
        scores = rounded(logits_of(inputs, routers, ahead)).swapaxes(0, 1)
        target = columns["lookahead"][rows, sites][:, : scores.shape[1], ahead - 1]
        target[decoding] = scores[decoding]


def _header(preset: Preset, fit: Fit, request: Request, created: str) -> Header:
    layers = [(stack, layer) for stack, numbers in enumerate(preset.layers) for layer in numbers]
    names = ("encoder", "decoder")[-len(preset.layers) :]
    provenance: dict[str, Scalar] = {
        "generator": (
            "capture.synthesize: a walk of gate inputs over layers and tokens, synthetic routers"
        ),
        "calibrated": True,
        "like": preset.name,
        "reading": f"{request.reading}: {preset.readings[preset.reading(request.reading or None)]}",
        "split": "even sequences eval, odd sequences fit",
        "seed": request.seed,
    }
    if preset.note:
        provenance["note"] = preset.note
    provenance |= {f"knob.{name}": getattr(fit.walk, name) for name in KNOBS}
    for row in fit.rows:
        target = row.target
        borrowed = f", borrowed from {target.borrowed}" if target.borrowed else ""
        provenance[f"target.{target.statistic}"] = (
            f"{target.value:g} +- {target.uncertainty:g} ({target.source}{borrowed});"
            f" {'fitted' if target.knob else 'not fitted'}, achieved {row.achieved:.3f} +-"
            f" {row.deviation:.3f}"
        )
    return Header(
        name=preset.shape.name,
        created=created,
        source="synthetic",
        model=preset.shape,
        dtype="float32",
        experts_implementation="none",
        sites=tuple(
            Site(site, f"{names[stack]}.{layer}", layer, "ffn", preset.rule, stack=names[stack])
            for site, (stack, layer) in enumerate(layers)
        ),
        sequences=tuple(
            TraceSequence(
                number,
                "fit" if number % 2 else "eval",
                "synthetic",
                request.prompt_tokens,
                request.tokens,
            )
            for number in range(request.sequences)
        ),
        licence="CC0-1.0",
        lookahead=(
            Lookahead("gate_in", ("raw",), request.lookahead, SCORE_STEP)
            if request.lookahead
            else None
        ),
        steps={"logits": SCORE_STEP},
        versions={"numpy": np.__version__},
        provenance=provenance,
    )
