"""The command that turns published routing of real models into a trace.

``python -m capture.import_trace format=FORMAT path=FILE output_dir=DIR [key=value ...]``

A format is one line of ``FORMATS`` and one module of `capture.importers`. The module's docstring
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
``csv``, ``jsonl``
    This project's own table: one line for each token and site (`capture.importers.table`).

Nothing in a file is trusted. Sizes are checked before anything is read, no pickle is loaded that
could run code, and each refusal names the file, the field and the rule. Only formats that torch
wrote need torch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from capture.importers import (
    bigmoe,
    colibri,
    commitmoe,
    flame,
    gpt_oss_fingerprint,
    ktransformers,
    llama_moe_trace,
    megatron_router_trace,
    moe_cache_eval,
    npz,
    sglang,
    table,
    vllm,
)
from capture.importers.parts import Request, make_request
from capture.importers.source import Imported, ImportFailure, Track
from sim.traces.trace import Header, TraceError, trace_sha256, write_trace


@dataclass(frozen=True)
class Format:
    """An importer.

    ``keys`` are the arguments that the format knows beside the three of ``REQUIRED``. ``check``
    refuses wrong arguments before any file is read; ``read`` reads the files.
    """

    keys: tuple[str, ...]
    read: Callable[[Request, Track[Any]], Imported]
    check: Callable[[Request], None] = lambda request: None


FORMATS: Mapping[str, Format] = {
    "bigmoe": Format(bigmoe.KEYS, bigmoe.read),
    "gpt_oss_fingerprint": Format(
        gpt_oss_fingerprint.KEYS, gpt_oss_fingerprint.read, gpt_oss_fingerprint.check
    ),
    "npz": Format(npz.KEYS, npz.read, npz.check),
    "llama_moe_trace": Format(llama_moe_trace.KEYS, llama_moe_trace.read, llama_moe_trace.check),
    "colibri": Format(colibri.KEYS, colibri.read, colibri.check),
    "vllm": Format(vllm.KEYS, vllm.read, vllm.check),
    "sglang": Format(sglang.KEYS, sglang.read, sglang.check),
    "ktransformers": Format(ktransformers.KEYS, ktransformers.read, ktransformers.check),
    "moe_cache_eval": Format(moe_cache_eval.KEYS, moe_cache_eval.read),
    "megatron_router_trace": Format(
        megatron_router_trace.KEYS, megatron_router_trace.read, megatron_router_trace.check
    ),
    "commitmoe": Format(commitmoe.KEYS, commitmoe.read, commitmoe.check),
    "flame": Format(flame.KEYS, flame.read, flame.check),
    "csv": Format(table.KEYS, table.read_csv, table.check),
    "jsonl": Format(table.KEYS, table.read_jsonl, table.check),
}
REQUIRED = ("format", "path", "output_dir")
KEYS = (*REQUIRED, *dict.fromkeys(key for known in FORMATS.values() for key in known.keys))


def parse(arguments: Sequence[str]) -> tuple[str, Request, Path]:
    """Format, request and output directory.

    Raise `ImportFailure` for the first argument that is wrong.
    """
    given: dict[str, str] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals or key not in KEYS:
            raise ImportFailure(
                f"{argument!r} is not one of the known key=value; known keys: {', '.join(KEYS)}"
            )
        if key in given:
            raise ImportFailure(f"{key} is given twice; give it once")
        if not text:
            raise ImportFailure(f"{key} is empty; give a value, or leave it out")
        given[key] = text
    if missing := [key for key in REQUIRED if key not in given]:
        raise ImportFailure(
            f"missing {' and '.join(f'{key}=...' for key in missing)}; they have no default"
        )
    if given["format"] not in FORMATS:
        raise ImportFailure(
            f"unknown format={given['format']}; known formats: {', '.join(FORMATS)}"
        )
    chosen = FORMATS[given["format"]]
    for key, text in given.items():
        if key not in REQUIRED + chosen.keys:
            known = ", ".join(REQUIRED + chosen.keys)
            raise ImportFailure(
                f"{key}={text} is no key of format={given['format']}; leave it out (known: {known})"
            )
    request = make_request(given)
    chosen.check(request)
    return given["format"], request, Path(given["output_dir"])


def summary(header: Header) -> str:
    """One line that says what was imported (tokens, sequences, sites) and what the format lacks."""
    prompt = sum(item.prompt_tokens for item in header.sequences)
    decode = sum(item.decode_tokens for item in header.sequences)
    counts = [
        f"{number} {kind}" for number, kind in ((prompt, "prompt"), (decode, "decode")) if number
    ]
    sequences = f"{len(header.sequences)} sequence{'s' if len(header.sequences) > 1 else ''}"
    lacks = f"; lacks {header.provenance['lacks']}" if header.provenance["lacks"] else ""
    return (
        f"{header.name}: {' and '.join(counts)} tokens of {sequences} at {header.model.sites}"
        f" sites{lacks}"
    )


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message on stderr when an argument or a file is wrong."""
    console = Console()
    try:
        name, request, output_dir = parse(arguments)
        if output_dir.exists() and (not output_dir.is_dir() or any(output_dir.iterdir())):
            raise ImportFailure(
                f"output_dir={output_dir} is not empty; choose another one, or remove it"
            )
        begun = time.monotonic()
        with Progress(console=console, transient=True) as progress:
            imported = FORMATS[name].read(
                request, lambda items, text: progress.track(items, description=text)
            )
            progress.add_task("writing", total=None)
            header = write_trace(output_dir, imported.trace, imported.files)
    except (ImportFailure, TraceError) as error:
        print(f"import: {error}", file=sys.stderr)
        return 2
    console.print(
        f"{summary(header)}\n{output_dir}, {trace_sha256(header)[:12]},"
        f" {time.monotonic() - begun:.1f} s",
        markup=False,
        soft_wrap=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
