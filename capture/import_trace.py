"""The command that turns published routing of real models into a trace.

``python -m capture.import_trace format=FORMAT path=FILE output_dir=DIR [key=value ...]``

A format is one line of `capture.importers.formats` and one module beside it. The module's docstring
says what the files look like and what they lack.

``bigmoe``
    The route trace of BigMoeOnEdge: prefill and decode of one prompt on a phone, and what its
    expert cache held.
``gpt_oss_fingerprint``, ``npz``
    The published decode routing of gpt-oss-20b, as its recorder's JSON or in four arrays.
``llama_moe_trace``
    The CSV of ``llama-moe-trace``: decoded tokens of a fork of llama.cpp.
``colibri``
    The ``ROUTE_TRACE`` stream of colibri.
``vllm``
    Responses of a vLLM server started with ``--enable-return-routed-experts``.
``sglang``, ``ktransformers``
    A dump of the expert distribution recorder of SGLang, or of KTransformers, in mode
    ``per_token``. In KTransformers the experts must run on the GPU.
``moe_cache_eval``
    An event directory of moe-cache-eval, as tensors or as ``events.csv``.
``megatron_router_trace``
    What Megatron-core's ``RouterTracer`` wrote, with what its routers read and their logits.
``commitmoe``
    Decode routing of Qwen3.5-35B-A3B with all logits, as a data set of Hugging Face.
``flame``
    A capture of FLAME-MoE-Traces.
``parquet``
    Routes of a data set of Hugging Face, under any names, with logits and router inputs
    (`capture.importers.parquet`).
``csv``, ``jsonl``
    This project's own table: one line for each token and site (`capture.importers.table`).

Nothing in a file is trusted. Sizes are checked before anything is read, no pickle is loaded that
could run code, and each refusal names the file, the field and the rule. Only formats that torch
wrote need torch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict

from rich.console import Console

from capture.importers.formats import import_into, parse, summary
from capture.importers.source import ImportFailure
from sim.process.interrupts import telling
from sim.process.printing import print_text
from sim.process.progress import Shown
from sim.results.folders import check_can_be_made, own_folder
from sim.traces.trace import TraceError, trace_sha256
from sim.verbs.names import run_of


@telling("nothing was written")
def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message on stderr when an argument or a file is wrong."""
    console = Console()
    try:
        overwrite = "overwrite=yes" in arguments
        own = [word for word in arguments if word not in ("overwrite=yes", "overwrite=no")]
        name, request, output_dir = parse(own)
        if (
            not overwrite
            and output_dir.exists()
            and (not output_dir.is_dir() or any(output_dir.iterdir()))
        ):
            raise ImportFailure(
                f"output_dir={output_dir} is not empty; choose another one, or remove it, or add"
                " overwrite=yes"
            )
        check_can_be_made(output_dir)
        begun = time.monotonic()
        with (
            own_folder(output_dir, overwrite, at_once=True) if overwrite else nullcontext(),
            Shown() as progress,
        ):
            header = import_into(
                name,
                request,
                output_dir,
                lambda items, text: progress.track(items, description=text),
            )
    except (ImportFailure, TraceError, OSError) as error:
        print(f"import: {error}", file=sys.stderr)
        return 2
    print_text(
        console,
        f"{summary(header)}\n{output_dir}, {trace_sha256(header)[:12]},"
        f" {time.monotonic() - begun:.1f} s\nnext: {run_of(asdict(header.model), output_dir)}",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
