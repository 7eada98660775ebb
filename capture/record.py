"""Runs passages through a model under hooks and turns what was recorded into a trace and its extra files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from torch import nn

from capture.discover import MoELayer, gate_norms
from capture.extras import SiteExtras, check_linear, lookahead_scores, pack_masks, router_linear, site_extras
from capture.hooks import RouterHooks, Step
from capture.prompts import Passage, has_repetition
from capture.rules import fit_rule
from capture.settings import Settings
from sim.routing import RoutingRule
from sim.trace import DECODE, Header, Lookahead, Site, Trace, TraceSequence
from sim.trace_header import Scalar

ROUTERS_FILE = "routers.safetensors"
THRESHOLDS_FILE = "thresholds.safetensors"

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Rows:
    """All recorded token-rows: columns [N] as in `sim.trace.Trace`, inputs [N, S, H] in the model's dtype."""

    step: Array
    phase: Array
    sequence: Array
    position: Array
    token: Array
    valid: Array
    gate_in: torch.Tensor
    expert_in: torch.Tensor
    logits: Array
    ids: Array
    weights: Array


def run_passages(model: nn.Module, layers: Sequence[MoELayer], passages: Iterable[Passage], decode_tokens: int) -> Rows:
    """Run each passage alone (batch 1): its prompt in one step, then ``decode_tokens`` steps of one token with a cache.

    The tokens fed in decode are the passage's own; where it has none left, the model's most likely ones. Sequences are
    numbered from 0 in order.
    """
    device = next(model.parameters()).device
    parts = []
    with RouterHooks(layers) as hooks, torch.no_grad():
        for passage in passages:
            output = model(input_ids=torch.tensor([passage.prefill], device=device), use_cache=True)
            for index in range(decode_tokens):
                given = passage.following[index] if index < len(passage.following) else None
                token = output.logits[:, -1].argmax(-1, keepdim=True) if given is None else torch.tensor([[given]])
                output = model(input_ids=token.to(device), past_key_values=output.past_key_values, use_cache=True)
            parts.append(stack_steps(hooks.take()))
    return join_rows(parts)


def stack_steps(steps: Sequence[Step]) -> Rows:
    """One `Rows` of consecutive steps."""

    def column(name: str, dtype: type) -> Array:
        return torch.cat([getattr(step, name) for step in steps]).numpy().astype(dtype)

    def by_site(name: str) -> torch.Tensor:
        return torch.cat([torch.stack([getattr(site, name) for site in step.sites], dim=1) for step in steps])

    counts = [len(step.valid) for step in steps]
    together = all(site.expert_in is site.gate_in for step in steps for site in step.sites)
    gate_in = by_site("gate_in")
    return Rows(
        step=np.repeat([step.number for step in steps], counts).astype(np.int32),
        phase=np.repeat([step.phase for step in steps], counts).astype(np.uint8),
        sequence=column("sequence", np.int32),
        position=column("position", np.int32),
        token=column("token", np.int32),
        valid=column("valid", np.bool_),
        gate_in=gate_in,
        expert_in=gate_in if together else by_site("expert_in"),
        logits=by_site("logits").float().numpy(),
        ids=by_site("ids").numpy().astype(np.int16),
        weights=by_site("weights").float().numpy(),
    )


def join_rows(parts: Sequence[Rows]) -> Rows:
    """`Rows` one after the other."""

    def numpy_column(name: str) -> Array:
        return np.concatenate([getattr(part, name) for part in parts])

    names = ("step", "phase", "sequence", "position", "token", "valid", "logits", "ids", "weights")
    gate_in = torch.cat([part.gate_in for part in parts])
    together = all(part.expert_in is part.gate_in for part in parts)
    expert_in = gate_in if together else torch.cat([part.expert_in for part in parts])
    return Rows(gate_in=gate_in, expert_in=expert_in, **{name: numpy_column(name) for name in names})


def build_trace(
    model: nn.Module,
    layers: Sequence[MoELayer],
    rows: Rows,
    passages: Sequence[Passage],
    settings: Settings,
    header: Header,
    advance: Callable[[], None] = lambda: None,
) -> tuple[Trace, dict[str, bytes]]:
    """The trace of ``rows`` and its extra files, by relative path.

    ``header`` brings the facts known before the run (name, model, versions, provenance, licence); sites, sequences,
    lookahead, steps and rounding effects are filled in here. ``advance`` is called once a site, for a progress bar.
    """
    sites = [_site(layer, rows) for layer in layers]
    sequences = _sequences(rows, passages)
    files: dict[str, bytes] = {}
    lookahead = _lookahead(model, layers, rows, settings, files)
    decode, kept = rows.phase == DECODE, _kept(rows, sequences, settings)
    extras = _extras(layers, rows, decode, kept, sequences, settings, advance)
    provenance: dict[str, Scalar] = dict(header.provenance)
    norms = shares = None
    steps = {"logits": settings.logits_step}
    if settings.weights_step:
        steps["weights"] = settings.weights_step
        provenance["rounding_reorders_weights"] = _reordered(rows.ids, rows.weights, settings.weights_step)
    if extras:
        norms = _spread(decode, torch.stack([site.norms for site in extras], dim=1))
        shares = _spread(decode, torch.stack([site.shares for site in extras], dim=1))
        steps["expert_norms"] = _power_of_two_step(float(np.nanmax(norms)))
        steps["active_shares"] = 1 / extras[0].masks.shape[-1]
        thresholds = torch.stack([site.thresholds for site in extras])
        files[THRESHOLDS_FILE] = safetensors.numpy.save({"thresholds": thresholds.numpy()})
        provenance["thresholds_pooled_over_site"] = sum(site.num_pooled for site in extras)
    provenance |= _rounding(sites, rows, lookahead, settings)
    if kept.any():
        provenance["hidden_relative_rms_error"] = _hidden_files(rows, kept, extras, files)
    header = replace(
        header,
        sites=tuple(sites),
        sequences=sequences,
        lookahead=_lookahead_header(settings),
        steps=steps,
        sparsities=settings.sparsities,
        provenance=provenance,
    )
    names = ("step", "phase", "sequence", "position", "token", "valid", "ids", "weights", "logits")
    columns = {name: getattr(rows, name) for name in names}
    return Trace(header, **columns, lookahead=lookahead, expert_norms=norms, active_shares=shares), files


def _site(layer: MoELayer, rows: Rows) -> Site:
    own = slice(None), layer.site
    rule, match, error = fit_rule(layer, rows.logits[own], rows.ids[own], rows.weights[own])
    return Site(layer.site, layer.name, layer.layer, layer.kind, rule, match, error)


def _sequences(rows: Rows, passages: Sequence[Passage]) -> tuple[TraceSequence, ...]:
    sequences = []
    for number, passage in enumerate(passages):
        decoded = rows.valid & (rows.sequence == number) & (rows.phase == DECODE)
        sequences.append(
            TraceSequence(
                sequence=number,
                split=passage.prompt.split,
                domain=passage.prompt.domain,
                prompt_tokens=int((rows.valid & (rows.sequence == number)).sum() - decoded.sum()),
                decode_tokens=int(decoded.sum()),
                flags={"has_repetition": has_repetition(rows.token[decoded].tolist())},
            )
        )
    return tuple(sequences)


def _kept(rows: Rows, sequences: Sequence[TraceSequence], settings: Settings) -> Array:
    """Decode rows of the first ``hidden_sequences`` of each split."""
    numbers: list[int] = []
    for split in ("fit", "eval"):
        numbers += [item.sequence for item in sequences if item.split == split][: settings.hidden_sequences]
    return np.asarray(np.isin(rows.sequence, numbers) & (rows.phase == DECODE))


# Lookahead


def _lookahead_header(settings: Settings) -> Lookahead | None:
    if not settings.lookahead:
        return None
    return Lookahead("gate_in", settings.norms, settings.lookahead, settings.lookahead_step)


def _lookahead(
    model: nn.Module, layers: Sequence[MoELayer], rows: Rows, settings: Settings, files: dict[str, bytes]
) -> dict[str, Array]:
    """Lookahead columns [N, S, J, E], NaN outside decode; adds the router and norm weights to ``files``."""
    if not settings.lookahead:
        return {}
    for layer in layers:
        check_linear(layer, rows.gate_in[:, layer.site], torch.from_numpy(rows.logits[:, layer.site]))
    linears = [router_linear(layer) for layer in layers]
    tensors = {"router_weight": torch.stack([weight for weight, _ in linears])}
    biases = [bias for _, bias in linears if bias is not None]
    if biases:
        tensors["router_bias"] = torch.stack(biases)
    decode = rows.phase == DECODE
    columns = {}
    for norm in settings.norms:
        scales = gate_norms(model, list(layers)) if norm == "renormed" else None
        if scales is not None:
            tensors["norm_scale"] = torch.stack(scales).float().cpu()
        columns[norm] = _spread(decode, lookahead_scores(layers, rows.gate_in[decode], settings.lookahead, scales))
    files[ROUTERS_FILE] = safetensors.numpy.save({name: values.numpy() for name, values in tensors.items()})
    return columns


def _spread(chosen: Array, values: torch.Tensor) -> Array:
    """Values of the ``chosen`` rows among all rows, NaN elsewhere."""
    spread = np.full((len(chosen), *values.shape[1:]), np.nan, np.float32)
    spread[chosen] = values.numpy()
    return spread


def _rounding(sites: Sequence[Site], rows: Rows, lookahead: dict[str, Array], settings: Settings) -> dict[str, Scalar]:
    """Shares of selections that change when the stored scores are rounded to their steps."""
    top_k = rows.ids.shape[-1]
    rules = [site.rule or RoutingRule() for site in sites]
    shares: dict[str, Scalar] = {}
    changed = [_changed(rule, rows.logits[:, site], settings.logits_step, top_k) for site, rule in enumerate(rules)]
    shares["rounding_changes_logits"] = float(np.concatenate(changed).mean())
    for norm, scores in lookahead.items():
        changed = [
            _changed(rules[site + ahead], scores[rows.phase == DECODE, site, ahead - 1], settings.lookahead_step, top_k)
            for site in range(len(rules))
            for ahead in range(1, min(settings.lookahead, len(rules) - 1 - site) + 1)
        ]
        shares[f"rounding_changes_lookahead_{norm}"] = float(np.concatenate(changed).mean()) if changed else 0.0
    return shares


def _changed(rule: RoutingRule, scores: Array, step: float, top_k: int) -> Array:
    exact, _ = rule.route(scores, top_k)
    rounded, _ = rule.route(np.rint(scores / step) * step, top_k)
    return np.asarray((np.sort(exact, -1) != np.sort(rounded, -1)).any(-1))


def _reordered(ids: Array, weights: Array, step: float) -> int:
    """Rows x sites whose need order (descending weight, then id) changes when weights are rounded to ``step``."""

    def order(values: Array) -> Array:
        return np.take_along_axis(ids, np.lexsort((ids, -values, ids < 0), axis=-1), -1)

    rounded = (np.rint(weights / np.float64(step)) * np.float64(step)).astype(np.float32)
    return int((order(weights) != order(rounded)).any(-1).sum())


# Inside the experts


def _extras(
    layers: Sequence[MoELayer],
    rows: Rows,
    decode: Array,
    kept: Array,
    sequences: Sequence[TraceSequence],
    settings: Settings,
    advance: Callable[[], None],
) -> list[SiteExtras]:
    if not settings.sparsities:
        return []
    fit_numbers = [item.sequence for item in sequences if item.split == "fit"]
    fit = torch.from_numpy(np.isin(rows.sequence, fit_numbers) & rows.valid)
    extras = []
    for layer in layers:
        extras.append(
            site_extras(
                layer,
                rows.expert_in[:, layer.site],
                torch.from_numpy(rows.ids[:, layer.site]),
                fit=fit,
                decode=torch.from_numpy(decode),
                kept=torch.from_numpy(kept),
                sparsities=settings.sparsities,
            )
        )
        advance()
    return extras


def _power_of_two_step(largest: float) -> float:
    """The smallest power of two in whose multiples ``largest`` fits 16 bits."""
    return float(2.0 ** np.ceil(np.log2(max(largest, 1e-6) / np.iinfo(np.int16).max)))


def hidden_file(sequence: int) -> str:
    """Where in the trace a kept sequence's gate inputs and channel masks lie."""
    return f"hidden/sequence_{sequence:03d}.safetensors"


def _hidden_files(rows: Rows, kept: Array, extras: Sequence[SiteExtras], files: dict[str, bytes]) -> float:
    """Add a file of gate inputs and channel masks for each kept sequence; return the inputs' relative RMS error.

    ``gate_in`` int8 [T, S, H] times ``scale`` float32 [T, S]; ``position`` int32 [T]; ``mask_planes`` as in
    `capture.extras.pack_masks`, [T, S, K, B, ceil(I / 8)].
    """
    inputs = rows.gate_in[torch.from_numpy(kept)].float().numpy()
    scale = np.maximum(np.abs(inputs).max(-1), 1e-12).astype(np.float32) / 127
    stored = np.rint(inputs / scale[..., None]).astype(np.int8)
    tensors: dict[str, Array] = {"gate_in": stored, "scale": scale, "position": rows.position[kept]}
    if extras:
        tensors["mask_planes"] = pack_masks(torch.stack([site.masks for site in extras], dim=1).numpy())
    sequence = rows.sequence[kept]
    for number in np.unique(sequence).tolist():
        own = {name: np.ascontiguousarray(values[sequence == number]) for name, values in tensors.items()}
        files[hidden_file(number)] = safetensors.numpy.save(own)
    error = inputs - stored * scale[..., None]
    return float(np.sqrt((error**2).mean() / (inputs**2).mean()))
