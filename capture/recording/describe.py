"""Writes the README of a captured trace: its contents, how it was made, its licence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from fractions import Fraction

from capture.models.expert_forms import UP
from capture.recording.hidden import hidden_file
from sim.traces.header import COUNTS_FILE, NORMS, forecasts_file
from sim.traces.trace import Header


def describe(header: Header, num_rows: int, files: Collection[str]) -> str:
    """Markdown text for a trace of ``num_rows`` token-rows and these ``files``.

    It is made from the header, so the two cannot disagree.
    """
    lines = [
        *_summary(header),
        *["", "## Contents", ""],
        *_routes(header, files),
        *_tensors(header, files),
        *_hidden(header, files),
        *_left_out(header),
        *["", "## Rounding", ""],
        *_rounding(header, num_rows),
    ]
    return "\n".join(lines) + "\n"


def _summary(header: Header) -> list[str]:
    """Lines that say which model ran on what, and how the trace is made again."""
    model, made = header.model, header.provenance
    splits = Counter(item.split for item in header.sequences)
    prompts = sum(item.prompt_tokens for item in header.sequences)
    decoded = sum(item.decode_tokens for item in header.sequences)
    versions = ", ".join(f"{name} {version}" for name, version in sorted(header.versions.items()))
    return [
        f"# Trace {header.name}",
        "",
        f"What the {model.sites} routers of {model.name} ({model.architecture}: {model.experts}"
        f" experts, top {model.top_k}, hidden {model.hidden}, expert width"
        f" {model.expert_intermediate}) saw and chose, in {header.dtype}, experts run by"
        f" `{header.experts_implementation}`.",
        "",
        f"- {len(header.sequences)} sequences ({splits['fit']} fit, {splits['eval']} eval),"
        f" batch {made.get('batch', 1)}: {prompts} prefill and {decoded} decode"
        f" tokens. Continuation: {made.get('continuation', 'not stated')}.",
        f"- Versions: {versions}.",
        f"- Licence: {header.licence}.",
        "",
        "Made again by (plus `output_dir=...`):",
        "",
        f"    {made.get('command', 'not stated')}",
    ]


def _routes(header: Header, files: Collection[str]) -> list[str]:
    """Lines for the rows, the prompts' counts and what was forecast."""
    has_counts = header.prefill == "counts"
    row = "a site x decoded token" if has_counts else "a site x token"
    lines = [
        "- `header.json`: model, sites with their fitted routing rules, sequences, steps,"
        " sha256 of every other file.",
        f"- `routes.parquet`: a row is {row}; read it with `sim.traces.trace.read_trace`.",
    ]
    if has_counts:
        lines += [
            f"- `{COUNTS_FILE}`: prompts, as the number of tokens that chose an expert at a"
            " site in a step, and their weights' sum."
        ]
    if "logits" in header.steps:
        lines += [f"  Logits in steps of {_step_text(header.steps['logits'])}."]
    if "weights" in header.steps:
        lines += [
            f"  Weights are not exact: rounded to steps of {_step_text(header.steps['weights'])}."
        ]
    if header.lookahead is not None:
        ahead = header.lookahead
        rows = "all" if header.provenance.get("prefill_lookahead") == "rows" else "decode"
        scores = "float32" if ahead.step is None else f"steps of {_step_text(ahead.step)}"
        lines += [
            f"  Lookahead ({', '.join(ahead.norms)}; {ahead.depth}"
            f" sites{_position_text(ahead.position)}) for {rows} rows, in {scores}."
        ]
        lines += [
            f"- `{forecasts_file(norm)}`: what the tokens of a prompt are forecast to choose"
            " together: how many, with what weight, and their smallest score."
            for norm in NORMS
            if forecasts_file(norm) in files
        ]
    return lines


def _tensors(header: Header, files: Collection[str]) -> list[str]:
    """Lines for the routers' weights and the thresholds of channels."""
    lines = []
    if "routers.safetensors" in files:
        lines += [
            "- `routers.safetensors`: `router_weight` [S, E, H] and, for renormed lookahead,"
            " `norm_scale` [S, H]."
        ]
    if header.sparsities:
        shares = ", ".join(f"{share:.0%}" for share in header.sparsities)
        lines += [
            f"- `thresholds.safetensors`: `thresholds` [S, E, {len(header.sparsities)}] of "
            f"{header.provenance.get('active_shares_of', UP)} for sparsities of "
            f"{shares}, fitted per expert on the fit sequences."
        ]
    return lines


def _hidden(header: Header, files: Collection[str]) -> list[str]:
    """Lines for the routers' inputs, where some were kept."""
    kept = {path for path in files if path.startswith("hidden/")}
    if not kept:
        return []
    counts = Counter(item.split for item in header.sequences if hidden_file(item.sequence) in kept)
    lines = [
        f"- `hidden/sequence_NNN.safetensors`, decode rows of {counts['fit']} fit and"
        f" {counts['eval']} eval sequences:",
        f"  {_gate_in_text(header)} (relative RMS error "
        f"{header.provenance['hidden_relative_rms_error']:.4f}), `position` [T],",
    ]
    if header.sparsities:
        lines += [
            "  `mask_planes` uint8 [T, S, K, B, ceil(I / 8)], which channels are active at"
            " each sparsity:",
            "  see `capture.recording.extras.unpack_masks`.",
        ]
    return lines


def _rounding(header: Header, num_rows: int) -> list[str]:
    """Lines that say what rounding to steps changes."""
    lines = ["Share of selections that change when scores are rounded to their steps:", ""]
    lines += [
        f"- {key.removeprefix('rounding_changes_').replace('_', ' ')}: {value:.4%}"
        for key, value in sorted(header.provenance.items())
        if key.startswith("rounding_changes_") and isinstance(value, float)
    ] or ["none is rounded, or no rule selects from it"]
    if "weights" in header.steps:
        lines += [
            "",
            "Rounding the weights changes the need order (descending weight, then id) of"
            f" {header.provenance['rounding_reorders_weights']} of"
            f" {num_rows * header.model.sites} rows.",
        ]
    return lines


def _left_out(header: Header) -> list[str]:
    """Lines that say what the trace lacks or no rule describes, and why."""
    found = header.provenance
    lines = [
        f"- Not recorded: {key.removeprefix('not_recorded_')}. {reason}"
        for key, reason in sorted(found.items())
        if key.startswith("not_recorded_")
    ]
    if "sites_chosen_by_token_id" in found:
        sites = found["sites_chosen_by_token_id"]
        lines += [
            f"- At sites {sites} the token's id chooses: `token_experts_SITE` [vocabulary, K] in"
            " the routers' file."
        ]
    if "sites_without_rule" in found:
        lines += [f"- No rule reproduces the selections of sites {found['sites_without_rule']}."]
    if "null_experts" in found:
        lines += [
            f"- The last {found['null_experts']} of the {header.model.experts} experts compute"
            " nothing: choosing one is recorded as -1."
        ]
    if "choices_dropped_or_null" in found:
        lines += [
            f"- {found['choices_dropped_or_null']} choices of real tokens were dropped, or of null"
            " experts (-1)."
        ]
    return ["", "## What is not there", "", *lines] if lines else []


def _position_text(position: str) -> str:
    return {"gate_in": "", "attn_in": "; from attention inputs"}.get(
        position, "; from the next attention's inputs"
    )


def _gate_in_text(header: Header) -> str:
    if header.provenance.get("hidden_dtype", "int8") == "float16":
        return "`gate_in` float16 [T, S, H]"
    return "`gate_in` int8 [T, S, H] times `scale` [T, S]"


def _step_text(step: float) -> str:
    """The step as a fraction such as ``1/28`` where it is one exactly, else as a decimal."""
    fraction = Fraction(step).limit_denominator(1 << 20)
    return str(fraction) if float(fraction) == step else str(step)
