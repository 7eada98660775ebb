"""``python -m capture model=DIR prompts=FILE output_dir=DIR [key=value ...]``: record a model's routing as a trace."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import transformers
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

from capture.describe import describe
from capture.discover import CaptureError, MoELayer, discover
from capture.extras import up_activations
from capture.prompts import Passage, cut_passages, read_prompts
from capture.record import build_trace, run_passages
from capture.settings import SettingError, Settings, parse_settings
from sim.trace import Header, ModelShape, TraceError, trace_sha256, write_trace

EXPERTS_IMPLEMENTATION = "eager"
# A trace is written once and read often: slow to write, and as small as parquet gets.
COMPRESSION: Final = "brotli"
COMPRESSION_LEVEL = 11


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message on stderr when the input is wrong."""
    try:
        capture(parse_settings(arguments), arguments, Console())
    except (SettingError, CaptureError, TraceError) as error:
        print(f"capture: {error}", file=sys.stderr)
        return 2
    return 0


def capture(settings: Settings, arguments: Sequence[str], console: Console) -> Header:
    """Load, run, write and report; ``arguments`` are kept in the trace so that it can be made again."""
    if settings.output_dir.exists() and any(settings.output_dir.iterdir()):
        raise CaptureError(f"output_dir={settings.output_dir} is not empty; choose another one, or remove it")
    begun = time.monotonic()
    model = load_model(settings)
    layers = discover(model)
    passages = _passages(settings)
    decode_tokens = settings.decode_tokens
    with Progress(console=console, transient=True) as progress:
        running = progress.add_task("sequences", total=len(passages))
        rows = run_passages(model, layers, progress.track(passages, task_id=running), decode_tokens)
        ran = time.monotonic()
        computing = progress.add_task("experts", total=len(layers) if settings.sparsities else 0)
        header = _header(settings, arguments, model, layers, passages)
        trace, files = build_trace(model, layers, rows, passages, settings, header, lambda: progress.advance(computing))
    files["README.md"] = describe(trace, files).encode()
    header = write_trace(
        settings.output_dir, trace, files, compression=COMPRESSION, compression_level=COMPRESSION_LEVEL
    )
    _report(console, settings.output_dir, header, ran - begun, time.monotonic() - ran)
    return header


def load_model(settings: Settings) -> Any:
    """The model in evaluation mode, experts run one by one (`eager`), which is the reference arithmetic."""
    # A misspelt path would otherwise be looked for on the hub, with retries.
    if not Path(settings.model).is_dir() and settings.model.count("/") != 1:
        raise CaptureError(f"model={settings.model} is no directory; give one, or OWNER/NAME for a model on the hub")
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(settings.seed)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            settings.model, dtype=getattr(torch, settings.dtype), trust_remote_code=False
        )
        model = model.to(settings.device)
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
        reason = str(error).strip().split("\n")[0]
        raise CaptureError(f"model={settings.model} cannot be loaded on {settings.device}: {reason}") from None
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation(EXPERTS_IMPLEMENTATION)
    return model.eval()


def _passages(settings: Settings) -> list[Passage]:
    try:
        tokenizer = AutoTokenizer.from_pretrained(settings.model, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().split("\n")[0]
        raise CaptureError(f"model={settings.model} has no tokenizer that loads: {reason}") from None
    return cut_passages(
        read_prompts(settings.prompts),
        lambda text: tokenizer(text)["input_ids"],
        sequences=settings.sequences,
        prompt_tokens=settings.prompt_tokens,
        following_tokens=settings.decode_tokens if settings.continuation == "document" else 0,
        seed=settings.seed,
    )


def _header(
    settings: Settings, arguments: Sequence[str], model: Any, layers: Sequence[MoELayer], passages: Sequence[Passage]
) -> Header:
    """What is known before the sites are read: model, versions, text and command."""
    first = layers[0]
    hidden = int(getattr(first.stack.config, "hidden_size", 0))
    name = settings.name or Path(settings.model).name
    told = [argument for argument in arguments if not argument.startswith("output_dir=")]
    licences = sorted({passage.prompt.licence for passage in passages})
    domains = sorted({passage.prompt.domain for passage in passages})
    forcing = settings.continuation == "document"
    return Header(
        name=name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source="captured",
        model=ModelShape(
            name=Path(settings.model).name,
            architecture=type(model).__name__,
            sites=len(layers),
            experts=first.num_experts,
            top_k=first.top_k,
            hidden=hidden,
            expert_intermediate=_expert_intermediate(first, hidden),
        ),
        dtype=settings.dtype,
        experts_implementation=EXPERTS_IMPLEMENTATION,
        sites=(),
        sequences=(),
        licence=f"token ids of texts under: {'; '.join(licences)}",
        versions={"torch": torch.__version__, "transformers": transformers.__version__, "numpy": np.__version__},
        provenance={
            "command": " ".join(["python -m capture", *told]),
            "continuation": "the document's own text, teacher-forced" if forcing else "greedy, the model's own text",
            "batch": 1,
            "seed": settings.seed,
            "domains": ", ".join(domains),
            "prompts_sha256": hashlib.sha256(settings.prompts.read_bytes()).hexdigest(),
            "weights_sha256": _weights_sha256(Path(settings.model)),
        },
    )


def _expert_intermediate(layer: MoELayer, hidden: int) -> int:
    try:
        parameter = next(layer.experts.parameters())
        probe = torch.zeros(1, hidden, dtype=parameter.dtype, device=parameter.device)
        return int(up_activations(layer.experts, 0, probe).shape[-1])
    except (CaptureError, RuntimeError):
        # An unknown layout still has a stated width in most configurations.
        for key in ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size"):
            value = getattr(layer.stack.config, key, None)
            if isinstance(value, int) and value > 0:
                return value
    raise CaptureError(f"{layer.name}: cannot tell the width of its experts")


def _weights_sha256(directory: Path) -> str:
    """Over the weight files in order of name; "unknown" for a model that is not a local directory."""
    files = sorted(directory.glob("*.safetensors")) if directory.is_dir() else []
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest() if files else "unknown"


def _report(console: Console, directory: Path, header: Header, run_s: float, compute_s: float) -> None:
    table = Table(title=f"{header.name}: {trace_sha256(header)[:12]}", show_header=False)
    decoded = sum(item.decode_tokens for item in header.sequences)
    prompts = sum(item.prompt_tokens for item in header.sequences)
    routed = (prompts + decoded) * header.model.sites
    table.add_row("sequences", str(len(header.sequences)))
    table.add_row("tokens", f"{prompts} prefill + {decoded} decode, at {header.model.sites} sites")
    table.add_row("selections reproduced", f"{min(site.rule_match for site in header.sites):.4%} at the worst site")
    for key, value in header.provenance.items():
        if isinstance(value, float):
            table.add_row(key.replace("_", " "), f"{value:.5f}")
        elif key == "rounding_reorders_weights":
            table.add_row("need orders changed by rounded weights", f"{value} of {routed}")
    sizes = {path: (directory / path).stat().st_size for path in header.files}
    for group in sorted({path.split("/")[0] for path in sizes}):
        size = sum(size for path, size in sizes.items() if path.split("/")[0] == group)
        table.add_row(group, f"{size / 1e6:.2f} MB")
    table.add_row("all files", f"{(sum(sizes.values()) + (directory / 'header.json').stat().st_size) / 1e6:.2f} MB")
    table.add_row("time", f"{run_s:.1f} s running, {compute_s:.1f} s computing extras and writing")
    console.print(table)
    console.print(f"Recorded {decoded} decode tokens of {header.model.name} in {directory}.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
