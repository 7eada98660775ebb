"""One whole capture, from its settings to the written trace."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from capture.models.discover import CaptureError, MoELayer, discover
from capture.recording.load import (
    chat_wrapper,
    check_model,
    implementation_of,
    load_model,
    load_tokenizer,
    weights_sha256,
)
from capture.recording.plan import Plan, make_plan
from capture.recording.prompts import Passage, cut_passages, prompts_file, read_prompts, wrapped
from capture.recording.record import Recording
from capture.recording.settings import Settings
from capture.recording.shards import Shards
from sim.process.printing import print_text
from sim.process.progress import Shown
from sim.traces.trace import Header, ModelShape, trace_sha256
from sim.values.units import MIB
from sim.verbs.names import run_of

UNTOLD = ("output_dir", "threads")
"""Settings that do not decide what is recorded."""


def capture(settings: Settings, arguments: Sequence[str], console: Console) -> Header:
    """Load the model, run it, write the trace and print a report; returns the trace's header.

    ``arguments`` are kept in the trace, so that it can be made again. A capture that was killed is
    continued: sequences that it had recorded are not run again. Raise `CaptureError` if the output
    directory is not empty, or if model or prompts cannot be recorded as asked.
    """
    if settings.output_dir.exists() and any(settings.output_dir.iterdir()):
        raise CaptureError(
            f"output_dir={settings.output_dir} is not empty; choose another one, or remove it"
        )
    begun = time.monotonic()
    check_model(settings)
    passages, chat = _passages(settings)
    model = load_model(settings)
    layers = discover(model)
    plan = make_plan(model, layers, passages[0], settings)
    for key, reason in plan.left_out.items():
        console.print(f"[yellow]not recorded: {key}[/yellow] {escape(reason)}", highlight=False)
    header = _header(settings, arguments, model, layers, passages, plan, chat)
    recording = Recording(
        model, layers, passages, plan, settings, Shards(settings.output_dir, _identity(settings))
    )
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Shown(*columns) as progress:
        tasks = {
            name: progress.add_task(name, total=total)
            for name, total in (("sequences", len(passages)), ("sites", len(layers)))
        }
        recording.run(lambda task, done: progress.advance(tasks[task], done))
    ran = time.monotonic()
    header = recording.write(header)
    _report(console, settings.output_dir, header, ran - begun, time.monotonic() - ran)
    return header


def _passages(settings: Settings) -> tuple[list[Passage], bool]:
    """The passages, and whether their prompts were put into a chat template."""
    tokenizer = load_tokenizer(settings)
    greedy = settings.continuation == "greedy"
    passages = cut_passages(
        read_prompts(prompts_file(settings.prompts)),
        lambda text: tokenizer(text)["input_ids"],
        sequences=settings.sequences,
        prompt_tokens=settings.prompt_tokens,
        following_tokens=0 if greedy else settings.decode_tokens,
        seed=settings.seed,
    )
    wrap = chat_wrapper(tokenizer) if greedy and settings.chat == "auto" else None
    return (passages, False) if wrap is None else (wrapped(passages, wrap), True)


def _identity(settings: Settings) -> dict[str, Any]:
    """Everything that decides what is recorded.

    An unfinished capture is continued only by one of the same identity.
    """
    stated = {key: str(value) for key, value in asdict(settings).items() if key not in UNTOLD}
    return stated | {
        "weights_sha256": weights_sha256(settings.model),
        "prompts_sha256": _prompts_sha256(settings),
        **_versions(),
    }


def _versions() -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
    }


def _prompts_sha256(settings: Settings) -> str:
    return hashlib.sha256(prompts_file(settings.prompts).read_bytes()).hexdigest()


def _header(
    settings: Settings,
    arguments: Sequence[str],
    model: Any,
    layers: Sequence[MoELayer],
    passages: Sequence[Passage],
    plan: Plan,
    chat: bool,
) -> Header:
    """The header with what is known before the run: model, versions, text and command."""
    first = layers[0]
    config = getattr(first.stack, "config", None)
    hidden = next(
        (value for key in ("hidden_size", "d_model") if (value := getattr(config, key, 0))), 0
    )
    told = [argument for argument in arguments if not argument.startswith("output_dir=")]
    licences = sorted({passage.prompt.licence for passage in passages})
    domains = sorted({passage.prompt.domain for passage in passages})
    forcing = settings.continuation == "document"
    provenance: dict[str, str | int | float | bool] = {
        "command": " ".join(["python -m capture", *told]),
        "continuation": "the document's own text, teacher-forced"
        if forcing
        else "greedy, the model's own text",
        "batch": settings.batch,
        "seed": settings.seed,
        "domains": ", ".join(domains),
        "prompts_sha256": _prompts_sha256(settings),
        "weights_sha256": weights_sha256(settings.model),
    }
    if chat:
        provenance["chat_template"] = True
    if settings.prefill_chunk:
        provenance["prefill_chunk"] = settings.prefill_chunk
    if settings.prefill_lookahead != "counts":
        provenance["prefill_lookahead"] = settings.prefill_lookahead
    if settings.hidden_share < 1:
        provenance["hidden_share"] = settings.hidden_share
    if settings.hidden_dtype != "int8":
        provenance["hidden_dtype"] = settings.hidden_dtype
    return Header(
        name=settings.name or Path(settings.model).name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source="captured",
        model=ModelShape(
            name=Path(settings.model).name,
            architecture=type(model).__name__,
            sites=len(layers),
            experts=first.num_classes,
            top_k=first.top_k,
            hidden=int(hidden),
            expert_intermediate=plan.expert_intermediate,
        ),
        dtype=settings.dtype,
        experts_implementation=implementation_of(model),
        sites=(),
        sequences=(),
        licence=f"token ids of texts under: {'; '.join(licences)}",
        versions=_versions(),
        provenance=provenance,
        prefill=settings.prefill,
    )


def _report(
    console: Console, directory: Path, header: Header, run_s: float, write_s: float
) -> None:
    table = Table(title=f"{header.name}: {trace_sha256(header)[:12]}", show_header=False)
    decoded = sum(item.decode_tokens for item in header.sequences)
    prompts = sum(item.prompt_tokens for item in header.sequences)
    routed = (prompts + decoded) * header.model.sites
    table.add_row("sequences", str(len(header.sequences)))
    table.add_row("tokens", f"{prompts} prefill + {decoded} decode, at {header.model.sites} sites")
    if "logits" in header.columns:
        table.add_row(
            "selections reproduced",
            f"{min(site.rule_match for site in header.sites):.4%} at the worst site",
        )
    for key, value in header.provenance.items():
        if key.startswith("sites_") or key == "null_experts":
            table.add_row(key.replace("_", " "), str(value))
        elif isinstance(value, float):
            table.add_row(key.replace("_", " "), f"{value:.5f}")
        elif key == "rounding_reorders_weights":
            table.add_row("need orders changed by rounded weights", f"{value} of {routed}")
    sizes = {path: (directory / path).stat().st_size for path in header.files}
    for group in sorted({path.split("/")[0] for path in sizes}):
        size = sum(size for path, size in sizes.items() if path.split("/")[0] == group)
        table.add_row(group, f"{size / MIB:.2f} MiB")
    table.add_row(
        "all files",
        f"{(sum(sizes.values()) + (directory / 'header.json').stat().st_size) / MIB:.2f} MiB",
    )
    table.add_row("time", f"{run_s:.1f} s running, {write_s:.1f} s writing")
    console.print(table)
    # Of encoder-decoders and null experts a stand-in would need more words.
    is_plain = not header.encoder_sites and not header.null_experts
    run = f"; next: {run_of(asdict(header.model), directory)}" if is_plain else "."
    print_text(
        console, f"Recorded {decoded} decode tokens of {header.model.name} in {directory}{run}"
    )
