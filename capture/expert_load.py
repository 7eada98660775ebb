"""``python -m capture.expert_load TRACE output=FILE.json``: how often each expert was chosen, for
serving with experts on several GPUs.

The file is what SGLang's ``--init-expert-location FILE.json`` reads::

    {"logical_count": [[12, 0, 3, ..], ..]}

It has a list for each layer of the model and a number for each expert: the rows that chose it.
Layers without experts have zeros. ``phase=decode`` or ``prompt`` counts only such rows (``all``
unless you say otherwise). Source, read in the code: sgl-project/sglang,
``python/sglang/srt/eplb/expert_location.py`` (``init_by_eplb``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.results.labels import synthetic_label
from sim.traces.trace import CHUNK, DECODE, PREFILL, Trace, read_trace
from sim.verbs.table import verb_of
from sim.verbs.words import read

PROMPT = (PREFILL, CHUNK)
PHASES = {"all": (*PROMPT, DECODE), "decode": (DECODE,), "prompt": PROMPT}


def load_of(trace: Trace, phase: str = "all") -> NDArray[np.int64]:
    """How many rows chose each expert, [layers of the model, experts].

    Padding counts for nothing. The model ends with its last layer of experts. Raise ValueError for
    an encoder's trace, whose two stacks have the same layer numbers, for two sites of one layer, and
    where no row is counted.
    """
    header = trace.header
    if header.encoder_sites:
        raise ValueError(
            f"trace {header.name} is of a model with an encoder, whose layers no engine's placement"
            " of experts numbers; name a trace of a decoder"
        )
    layers = [site.layer for site in header.sites]
    if twice := [layer for layer in layers if layers.count(layer) > 1]:
        raise ValueError(
            f"trace {header.name} has {layers.count(twice[0])} sites in layer {twice[0]}, and the"
            " file has one list for a layer; name a trace with one"
        )
    if header.prefill == "counts" and phase != "decode":
        raise ValueError(
            f"trace {header.name} keeps prompts as counts of tokens, not rows; say phase=decode"
        )
    rows = trace.valid & np.isin(trace.phase, PHASES[phase])
    if not rows.any():
        raise ValueError(f"trace {header.name} has no rows of phase={phase}; say phase=all")
    experts = header.model.experts
    found = np.zeros((max(site.layer for site in header.sites) + 1, experts), np.int64)
    for site in header.sites:
        chosen = trace.ids[rows, site.site]
        found[site.layer] = np.bincount(chosen[chosen >= 0], minlength=experts)
    return found


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0; 2 with one message where nothing can be written."""
    try:
        words = read(verb_of("load"), arguments)
        output, phase = Path(words.own["output"]), words.own.get("phase", "all")
        if output.exists() or output.suffix != ".json":
            why = (
                "exists" if output.exists() else "must end with .json, by which the engine reads it"
            )
            raise ValueError(f"output={output} {why}; choose another name")
        trace = read_trace(Path(words.places[0]))
        counts = load_of(trace, phase)
        output.write_text(json.dumps({"logical_count": counts.tolist()}) + "\n", encoding="utf-8")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    busiest = (counts.max(1) / np.maximum(counts.mean(1), 1e-9)).max()
    label = synthetic_label(trace.header)
    print(
        f"{output}: {len(counts)} layers of {counts.shape[1]} experts, {counts.sum()} choices; the"
        f" busiest expert of a layer is chosen {busiest:.3g} times as often as its mean"
        + (f" [{label}]" if label else "")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
