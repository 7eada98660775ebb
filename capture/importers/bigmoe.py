"""Importer of format bigmoe: a route trace of the streaming engine BigMoeOnEdge.

A file (``# route_trace v1``) records one run of one prompt. It is text: a preamble, then one line
for each *lookup*, an expert that a token's router chose in a layer::

    # route_trace v1
    # model=<path> arch=<text> n_layer=<int> n_expert=<int> n_expert_used=<int>
    # layer=<int> expert_bytes=<int> dense_bytes=<int>
    turn,phase,step,layer,slot,expert,weight,residency,expert_bytes[,dropped]

There is a ``# layer`` line for each layer; ``expert_bytes=0`` is a layer without experts. The
columns:

- ``phase``: 0 for prefill, 1 for decode.
- ``step``: the token's position in the context.
- ``slot``: the rank of the expert for this token.
- ``weight``: the weight that the model applied, to six digits.
- ``residency``: the cache as the layer's batch found it: 0 absent, 1 resident, 2 resident because
  it was prefetched and has not been looked up since.
- ``expert_bytes``: the bytes that this lookup read.
- ``dropped``: 1 if the expert was absent and was neither read nor applied.

Prefill is one pass: layer by layer, each with all tokens of the prompt in order. Decode goes token
by token, each through all layers. The last layer may have the last prompt token alone, because
llama.cpp routes there only tokens whose logits are asked for.

A batch is a layer's lookups in one pass: those of all prompt tokens, or of one decoded token. It
reads an absent expert once: the first lookup carries ``expert_bytes``, repeats carry 0, and all of
them have residency 0.

``dtype=NAME`` says how the experts are stored where the end of the GGUF's name does not. Runs of
the trace's own model at the precision of that name (such as ``q4_k_m``) take the logged bytes.

The trace has the choices. Two further files (`sim.traces.residency_log`) have what the cache did,
in the order of the file, and the bytes of an expert and of the dense part, by site.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from capture.importers.bigmoe_lookups import (
    Lookups,
    Preamble,
    check_choices,
    check_order,
    check_residency,
    lines_of_trace,
    read_lookups,
    read_preamble,
)
from capture.importers.parts import FACTS, Recording, Request, Rows, assemble, complete
from capture.importers.source import Imported, Refuse, Track
from sim.traces.residency_log import EXPERT_BYTES_FILE, RESIDENCY_FILE
from sim.traces.trace import DECODE, PREFILL, Trace

KEYS = (*(key for key in FACTS if key != "experts"), "dtype")
DTYPE = re.compile(r"[-.](I?Q\d\w*|TQ\d\w*|MXFP4\w*|BF16|F16|F32)$", re.IGNORECASE)
"""How a GGUF's experts are stored: by convention this is the end of its name."""
PUBLISHED: Mapping[tuple[str, str, int, int], Mapping[str, str]] = {
    ("Qwen3-30B-A3B-Q4_K_M", "qwen3moe", 48, 128): {
        "architecture": "Qwen3MoeForCausalLM",
        "hidden": "2048",
        "expert_intermediate": "768",
        "licence": "Apache-2.0 (routing); the prompt is not part of the trace",
    },
}
"""Facts that no file holds, for the traces that the engine's authors published.

The key is GGUF file, architecture, layers and experts.
"""
ORIGIN = "route trace of github.com/Helldez/BigMoeOnEdge"


def read(request: Request, track: Track[Any]) -> Imported:
    """The trace, what the device's cache did, and the bytes of experts.

    Raise `TraceError` or `ImportFailure`.
    """
    refuse = Refuse(request.path.name)
    lines = lines_of_trace(request.path, refuse)
    preamble = read_preamble(refuse, lines)
    facts = _facts(request, preamble)
    lookups = read_lookups(refuse, lines, preamble, track)
    prompt = check_order(lookups, preamble)
    check_choices(lookups)
    check_residency(lookups, preamble)
    trace = _trace(request, preamble, facts, lookups, prompt)
    return Imported(
        trace,
        {RESIDENCY_FILE: _residency(trace, preamble, lookups), EXPERT_BYTES_FILE: _bytes(preamble)},
    )


def _facts(request: Request, preamble: Preamble) -> dict[str, str]:
    """The model's facts: as given, else from the file, else as published for its model."""
    known = (preamble.model, preamble.architecture, len(preamble.expert_bytes), preamble.experts)
    own = {
        "model": preamble.model,
        "architecture": preamble.architecture,
        "experts": str(preamble.experts),
    }
    named = DTYPE.search(preamble.model)
    dtype = request.options.get("dtype") or (named[1] if named else "unknown")
    return complete(request.facts, {**own, **PUBLISHED.get(known, {}), "dtype": dtype}, "bigmoe")


def _trace(
    request: Request, preamble: Preamble, facts: Mapping[str, str], lookups: Lookups, prompt: int
) -> Trace:
    position = lookups.choices("step")[:, 0]
    num_tokens = int(position[-1] - position[0]) + 1
    token, site = position - position[0], preamble.sites(lookups.choices("layer")[:, 0])
    ids = np.full((num_tokens, len(preamble.layers), preamble.top_k), -1, np.int16)
    weights = np.zeros(ids.shape, np.float32)
    ids[token, site] = np.where(lookups.choices("dropped") == 1, -1, lookups.choices("expert"))
    weights[token, site] = lookups.choices("weight")
    rows = Rows(
        step=np.maximum(np.arange(num_tokens) - max(prompt - 1, 0), 0),
        phase=np.where(np.arange(num_tokens) < prompt, PREFILL, DECODE),
        sequence=np.zeros(num_tokens),
        position=position[0] + np.arange(num_tokens),
        ids=ids,
        weights=weights,
    )
    return assemble(
        facts, rows, _recording(request, preamble, facts, lookups, (prompt, num_tokens - prompt))
    )


def _residency(trace: Trace, preamble: Preamble, lookups: Lookups) -> bytes:
    row = np.repeat(lookups.choices("step")[:, 0] - lookups["step"][0], lookups.top_k)
    table = pl.DataFrame(
        {
            "site": preamble.sites(lookups["layer"]).astype(np.int16),
            "step": trace.step[row],
            "sequence": trace.sequence[row],
            "position": trace.position[row],
            "slot": lookups["slot"].astype(np.int16),
            "expert": lookups["expert"].astype(np.int16),
            "resident": lookups["residency"] > 0,
            "prefetched": lookups["residency"] == 2,
            "loaded_bytes": lookups["expert_bytes"],
            "dropped": lookups["dropped"] == 1,
        }
    )
    stream = io.BytesIO()
    table.write_parquet(stream, compression="zstd")
    return stream.getvalue()


def _bytes(preamble: Preamble) -> bytes:
    table = [
        {
            "site": site,
            "layer": layer,
            "expert_bytes": preamble.expert_bytes[layer],
            "dense_bytes": preamble.dense_bytes[layer],
        }
        for site, layer in enumerate(preamble.layers)
    ]
    return (json.dumps(table, indent=1) + "\n").encode()


def _recording(
    request: Request,
    preamble: Preamble,
    facts: Mapping[str, str],
    lookups: Lookups,
    tokens: tuple[int, int],
) -> Recording:
    """The header's account; ``tokens`` are the numbers of prompt tokens and of decoded tokens."""
    sums = lookups.choices("weight").sum(-1)
    alone = tokens[0] > 1 and len(lookups) < sum(tokens) * len(preamble.layers) * preamble.top_k
    return Recording(
        format="bigmoe",
        files={"file": request.path},
        layers=preamble.layers,
        lacks=("tokens", "scores"),
        also_missing="texts, cache budget, times",
        site_name="blk.{}",
        dtype=facts["dtype"],
        implementation="llama.cpp, streamed",
        versions={"polars": pl.__version__},
        told={
            "origin": ORIGIN,
            "gguf": preamble.model,
            "gguf_architecture": preamble.architecture,
            "steps": (
                "prefill is one step of all prompt tokens, batched layer by layer; each decoded"
                " token is a step"
            ),
            "last_site": (
                "routes the last prompt token only (ids -1 for the others)" if alone else "complete"
            ),
            "top_k": "as run (n_expert_used), which may override the model's own",
            "weights": (
                "as applied, six digits; equal neighbours set apart by a float32 ulp, to keep their"
                " rank"
            ),
            "weight_sum_least": float(sums.min()),
            "weight_sum_most": float(sums.max()),
            "dropped": int(lookups["dropped"].sum()),
            "residency": (
                f"{RESIDENCY_FILE}: what the device's cache held when each layer's batch began"
            ),
            "expert_bytes": (
                f"{EXPERT_BYTES_FILE}: bytes of an expert and of the dense part, by site"
            ),
        },
    )
