"""The README that lies in a captured trace: contents, how it was made, licence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from fractions import Fraction

from capture.record import hidden_file
from sim.trace import Trace


def describe(trace: Trace, files: Collection[str]) -> str:
    """Markdown text, made from the trace alone, so that it cannot disagree with it."""
    header, model = trace.header, trace.header.model
    splits = Counter(item.split for item in header.sequences)
    prompts = sum(item.prompt_tokens for item in header.sequences)
    decoded = sum(item.decode_tokens for item in header.sequences)
    lines = [
        f"# Trace {header.name}",
        "",
        f"What the {model.sites} routers of {model.name} ({model.architecture}: {model.experts} experts, top "
        f"{model.top_k}, hidden {model.hidden}, expert width {model.expert_intermediate}) saw and chose, in "
        f"{header.dtype}, experts run by `{header.experts_implementation}`.",
        "",
        f"- {len(header.sequences)} sequences ({splits['fit']} fit, {splits['eval']} eval), batch 1: {prompts} prefill "
        f"and {decoded} decode tokens. Continuation: {header.provenance.get('continuation', 'not stated')}.",
        f"- Versions: {', '.join(f'{name} {version}' for name, version in sorted(header.versions.items()))}.",
        f"- Licence: {header.licence}.",
        "",
        "Made again by (plus `output_dir=...`):",
        "",
        f"    {header.provenance.get('command', 'not stated')}",
        "",
        "## Contents",
        "",
        "- `header.json`: model, sites with their fitted routing rules, sequences, steps, sha256 of every other file.",
        "- `routes.parquet`: a row is a site x token; read it with `sim.trace.read_trace`.",
    ]
    if "logits" in header.steps:
        lines += [f"  Logits in steps of {_step_text(header.steps['logits'])}."]
    if "weights" in header.steps:
        lines += [f"  Weights are not exact: rounded to steps of {_step_text(header.steps['weights'])}."]
    if header.lookahead is not None:
        ahead = header.lookahead
        lines += [
            f"  Lookahead ({', '.join(ahead.norms)}; {ahead.depth} sites) for decode rows, in "
            f"{'float32' if ahead.step is None else f'steps of {_step_text(ahead.step)}'}.",
            "- `routers.safetensors`: `router_weight` [S, E, H] and, for renormed lookahead, `norm_scale` [S, H].",
        ]
    if header.sparsities:
        shares = ", ".join(f"{share:.0%}" for share in header.sparsities)
        lines += [
            f"- `thresholds.safetensors`: `thresholds` [S, E, {len(header.sparsities)}] of |x W_up| for sparsities of "
            f"{shares}, fitted per expert on the fit sequences.",
        ]
    kept = {path for path in files if path.startswith("hidden/")}
    if kept:
        counts = Counter(item.split for item in header.sequences if hidden_file(item.sequence) in kept)
        lines += [
            f"- `hidden/sequence_NNN.safetensors`, decode rows of {counts['fit']} fit and {counts['eval']} eval "
            "sequences:",
            "  `gate_in` int8 [T, S, H] times `scale` [T, S] (relative RMS error "
            f"{header.provenance['hidden_relative_rms_error']:.4f}), `position` [T],",
            "  `mask_planes` uint8 [T, S, K, B, ceil(I / 8)], which channels are active at each sparsity:",
            "  see `capture.extras.unpack_masks`.",
        ]
    lines += ["", "## Rounding", "", "Share of selections that change when scores are rounded to their steps:", ""]
    lines += [
        f"- {key.removeprefix('rounding_changes_').replace('_', ' ')}: {value:.4%}"
        for key, value in sorted(header.provenance.items())
        if key.startswith("rounding_changes_") and isinstance(value, float)
    ]
    if "weights" in header.steps:
        lines += [
            "",
            "Rounding the weights changes the need order (descending weight, then id) of "
            f"{header.provenance['rounding_reorders_weights']} of {len(trace.step) * model.sites} rows.",
        ]
    return "\n".join(lines) + "\n"


def _step_text(step: float) -> str:
    """``1/28`` rather than 0.0357..., where the step is such a fraction."""
    fraction = Fraction(step).limit_denominator(1 << 20)
    return str(fraction) if float(fraction) == step else str(step)
