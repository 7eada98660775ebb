"""The command that makes a synthetic trace of a model whose weights are not at hand.

``python -m capture.synthesize like=NAME tokens=128 output_dir=DIR [key=value ...]``

The trace comes from a generative model that is fitted to published statistics of the model NAME.
`sim.synthetic.gate_walk` draws the inputs of the gates, with the knobs that ``python -m
capture.calibrate`` fitted. Synthetic routers choose experts from these inputs. Lookahead scores are
what later routers make of the same inputs.

=====================  ======================================================================
key                    meaning
=====================  ======================================================================
``reading``            which reading of the published numbers, where there are several
``sequences``          how many sequences
``prompt_tokens``      prompt tokens of each sequence
``tokens``             decoded tokens of each sequence
``seed``               seed of the random numbers
``lookahead``          how many sites ahead lookahead scores reach
``hidden_sequences``   of how many sequences gate inputs are kept, too (needs safetensors)
=====================  ======================================================================

docs/synthesis_check.md says what such a trace can and cannot stand for. Its header says ``source:
synthetic`` and carries the fit table. Needs no torch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from sim.process.interrupts import telling
from sim.process.printing import print_text
from sim.process.progress import tracked
from sim.results.folders import check_can_be_made, own_folder
from sim.synthetic.preset import Fit, Preset, load_fit, load_preset
from sim.synthetic.synthesis import Request, Synthetic, synthesize_like
from sim.traces.trace import DECODE, trace_sha256, write_trace
from sim.verbs.names import run_of
from sim.verbs.table import verb_of
from sim.verbs.words import read

ROUTERS_FILE = "routers.safetensors"


def hidden_files(synthetic: Synthetic) -> dict[str, bytes]:
    """Routers and kept gate inputs, as the files that a capture writes.

    Empty where no gate inputs were kept.
    """
    if not synthetic.inputs:
        return {}
    import safetensors.numpy

    from capture.recording.hidden import hidden_file

    trace = synthetic.trace
    files = {ROUTERS_FILE: safetensors.numpy.save({"router_weight": synthetic.routers.weight})}
    for number, inputs in synthetic.inputs.items():
        own = trace.sequence == number
        decoding = trace.phase[own] == DECODE
        kept = inputs[decoding]
        scale = np.maximum(np.abs(kept).max(-1), 1e-12).astype(np.float32) / 127
        tensors = {
            "gate_in": np.ascontiguousarray(np.rint(kept / scale[..., None]).astype(np.int8)),
            "scale": np.ascontiguousarray(scale),
            "position": trace.position[own][decoding],
        }
        files[hidden_file(number)] = safetensors.numpy.save(tensors)
    return files


def parse(arguments: Sequence[str]) -> tuple[Request, Path, bool]:
    """Request, output directory, and whether that may be emptied.

    Raise ValueError for the first argument that is wrong.
    """
    given = dict(read(verb_of("synthesize"), arguments).own)
    output_dir, overwrite = given.pop("output_dir", ""), given.pop("overwrite", "no") == "yes"
    if not output_dir:
        raise ValueError("missing output_dir=...: the folder of the trace")
    values: dict[str, Any] = {
        key: text if key in ("like", "reading") else int(text) for key, text in given.items()
    }
    return Request(**values), Path(output_dir), overwrite


@telling("nothing was written")
def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message on stderr when an argument is wrong."""
    begun = time.monotonic()
    console = Console()
    try:
        request, output_dir, overwrite = parse(arguments)
        check_can_be_made(output_dir)
        preset = load_preset(request.like)
        reading = preset.reading(request.reading or None)
        request = Request(**{**vars(request), "reading": reading})
        fit = load_fit(preset, reading)
        request.check(preset)
        synthetic = synthesize_like(
            preset,
            fit,
            request,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            progress=lambda numbers: tracked(numbers, "synthesising"),
        )
        with own_folder(output_dir, overwrite, at_once=True) if overwrite else nullcontext():
            header = write_trace(output_dir, synthetic.trace, hidden_files(synthetic))
    except (ValueError, OSError) as error:
        print(f"synthesize: {error}", file=sys.stderr)
        return 2
    except MemoryError as error:
        print(f"synthesize: {error}; take fewer sequences or tokens", file=sys.stderr)
        return 2
    print_text(console, _told(preset, reading, fit))
    shape = preset.shape
    print_text(
        console,
        f"{header.name}: {len(synthetic.trace.step)} tokens of {shape.sites} x {shape.experts}"
        f" top-{shape.top_k} in {output_dir}, {trace_sha256(header)[:12]},"
        f" {time.monotonic() - begun:.1f} s\nnext: {run_of(asdict(shape), output_dir)}",
    )
    return 0


def _told(preset: Preset, reading: str, fit: Fit) -> str:
    """A line that says which statistics the fit reached, missed and borrowed."""
    missed = [row.target.statistic for row in fit.rows if not row.is_reached]
    borrowed = [row.target.statistic for row in fit.rows if row.target.borrowed]
    return (
        f"SYNTHETIC, like {preset.name}, reading={reading} ({preset.readings[reading]})."
        f" {len(fit.rows)} published statistics: {len(fit.rows) - len(missed)} reached"
        + (f", missed {', '.join(missed)}" if missed else "")
        + (f"; borrowed from other models: {', '.join(borrowed)}" if borrowed else "")
        + "."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
