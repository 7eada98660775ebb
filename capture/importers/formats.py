"""The formats that are imported, and how one is read into a trace's folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    parquet,
    sglang,
    table,
    vllm,
)
from capture.importers.parts import Request, make_request
from capture.importers.source import Imported, ImportFailure, Track
from sim.results.folders import folder_for
from sim.traces.trace import Header, write_trace


@dataclass(frozen=True)
class Format:
    """An importer.

    ``keys`` are the arguments that the format knows beside those of ``SHARED``. ``check``
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
    "parquet": Format(parquet.KEYS, parquet.read, parquet.check),
    "csv": Format(table.KEYS, table.read_csv, table.check),
    "jsonl": Format(table.KEYS, table.read_jsonl, table.check),
}
REQUIRED = ("format", "path")
SHARED = (*REQUIRED, "output_dir")
KEYS = (*SHARED, *dict.fromkeys(key for known in FORMATS.values() for key in known.keys))


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
        if key not in SHARED + chosen.keys:
            known = ", ".join(SHARED + chosen.keys)
            raise ImportFailure(
                f"{key}={text} is no key of format={given['format']}; leave it out (known: {known})"
            )
    request = make_request(given)
    chosen.check(request)
    usual = Path("outputs/traces") / (Path(given["path"]).stem or given["format"])
    return given["format"], request, folder_for(given, usual)


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


def import_into(name: str, request: Request, output_dir: Path, track: Track[Any]) -> Header:
    """Read what ``request`` asks for and write it as a trace into an empty ``output_dir``.

    Raise `ImportFailure` or TraceError for files that are wrong.
    """
    imported = FORMATS[name].read(request, track)
    return write_trace(output_dir, imported.trace, imported.files)
