"""Published routing of real models, as traces.

``python -m capture.import_trace format=FORMAT path=FILE output_dir=DIR [key=value ...]``

A format is a module of `capture.importers` that reads what ``key=value`` describe into a trace, and one line of
``FORMATS``:

``npz``
    Decode routing in four arrays (`capture.importers.npz`), as published for gpt-oss-20b.
``bigmoe``
    The route trace of BigMoeOnEdge (`capture.importers.bigmoe`): prefill and decode of one prompt on a phone, and what
    its expert cache held at every lookup.

Nothing in a file is trusted: sizes are checked before anything is read, and each refusal names file, field and rule.
Needs no torch.
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

from capture.importers.bigmoe import BIGMOE_KEYS, make_bigmoe_source, read_bigmoe
from capture.importers.npz import GPT_OSS_20B_FACTS, NPZ_KEYS, SEQUENCES_FILE, Source, make_source, read_npz
from capture.importers.source import Imported, ImportFailure, Track, untracked
from sim.trace import Header, TraceError, trace_sha256, write_trace

__all__ = [
    "FORMATS", "GPT_OSS_20B_FACTS", "KEYS", "SEQUENCES_FILE", "ImportFailure", "Source", "main", "make_bigmoe_source",
    "make_source", "parse", "read_bigmoe", "read_npz", "untracked",
]  # fmt: skip


@dataclass(frozen=True)
class Format:
    """``source`` makes what ``read`` reads from the arguments, of which ``keys`` are the format's own."""

    keys: tuple[str, ...]
    source: Callable[[Mapping[str, str]], Any]
    read: Callable[[Any, Track[Any]], Imported]


FORMATS: Mapping[str, Format] = {
    "npz": Format(NPZ_KEYS, make_source, lambda source, track: Imported(read_npz(source, track))),
    "bigmoe": Format(BIGMOE_KEYS, make_bigmoe_source, read_bigmoe),
}
REQUIRED = ("format", "path", "output_dir")
KEYS = (*REQUIRED, *dict.fromkeys(key for known in FORMATS.values() for key in known.keys))


def parse(arguments: Sequence[str]) -> tuple[str, Any, Path]:
    """Format, source and output directory; raise `ImportFailure` for the first argument that is wrong."""
    given: dict[str, str] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals or key not in KEYS:
            raise ImportFailure(f"{argument!r} is not one of the known key=value; known keys: {', '.join(KEYS)}")
        if key in given:
            raise ImportFailure(f"{key} is given twice; give it once")
        if not text:
            raise ImportFailure(f"{key} is empty; give a value, or leave it out")
        given[key] = text
    if missing := [key for key in REQUIRED if key not in given]:
        raise ImportFailure(f"missing {' and '.join(f'{key}=...' for key in missing)}; they have no default")
    if given["format"] not in FORMATS:
        raise ImportFailure(f"unknown format={given['format']}; known formats: {', '.join(FORMATS)}")
    chosen = FORMATS[given["format"]]
    for key, text in given.items():
        if key not in REQUIRED + chosen.keys:
            known = ", ".join(REQUIRED + chosen.keys)
            raise ImportFailure(f"{key}={text} is no key of format={given['format']}; leave it out (known: {known})")
    return given["format"], chosen.source(given), Path(given["output_dir"])


def summary(header: Header) -> str:
    """What was imported: tokens, sequences, sites."""
    prompt = sum(item.prompt_tokens for item in header.sequences)
    decode = sum(item.decode_tokens for item in header.sequences)
    tokens = f"{prompt} prompt and {decode} decode tokens" if prompt else f"{decode} decode tokens"
    sequences = f"{len(header.sequences)} sequence{'s' if len(header.sequences) > 1 else ''}"
    return f"{header.name}: {tokens} of {sequences} at {header.model.sites} sites"


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message on stderr when an argument or a file is wrong."""
    console = Console()
    try:
        name, source, output_dir = parse(arguments)
        if output_dir.exists() and (not output_dir.is_dir() or any(output_dir.iterdir())):
            raise ImportFailure(f"output_dir={output_dir} is not empty; choose another one, or remove it")
        begun = time.monotonic()
        with Progress(console=console, transient=True) as progress:
            imported = FORMATS[name].read(source, lambda items, text: progress.track(items, description=text))
            progress.add_task("writing", total=None)
            header = write_trace(output_dir, imported.trace, imported.files)
    except (ImportFailure, TraceError) as error:
        print(f"import: {error}", file=sys.stderr)
        return 2
    console.print(
        f"{summary(header)} in {output_dir}, {trace_sha256(header)[:12]}, {time.monotonic() - begun:.1f} s",
        markup=False,
        soft_wrap=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
