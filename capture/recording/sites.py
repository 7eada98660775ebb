"""Measures of a site that need all sequences: its rule, its thresholds, the effects of rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from capture.models.discover import CaptureError, MoELayer
from capture.models.expert_forms import form_of
from capture.recording.extras import SiteExtras, pack_masks, site_extras, unmeasured_extras
from capture.recording.plan import Plan
from capture.recording.rows import Array
from capture.recording.rules import LEAST_MATCH, Fit, fit_site
from capture.recording.settings import Settings
from capture.recording.shards import Shards
from sim.traces.routing import RoutingRule
from sim.traces.trace import DECODE


@dataclass(frozen=True, eq=False)
class Tokens:
    """The token columns [N] of all units.

    ``begins`` has the first row of each unit, and N last. ``kept`` rows keep their gate inputs in
    the trace. ``inputs`` are the numbers of the rows whose inputs were recorded.
    """

    units: tuple[str, ...]
    begins: tuple[int, ...]
    phase: Array
    sequence: Array
    token: Array
    valid: Array
    kept: Array
    inputs: Array

    @property
    def decode(self) -> Array:
        """Which rows are decoded real tokens, bool [N]."""
        return np.asarray(self.valid & (self.phase == DECODE))


def load_tokens(shards: Shards, units: Sequence[str]) -> Tokens:
    """The token columns of recorded units, read from their shards."""
    columns: dict[str, list[Array]] = {
        name: [] for name in ("phase", "sequence", "token", "valid", "kept")
    }
    begins, inputs = [0], []
    for unit in units:
        for name, parts in columns.items():
            parts.append(shards.tensor(unit, name).numpy())
        if shards.has_tensor(unit, "input_rows"):
            inputs.append(shards.tensor(unit, "input_rows").numpy() + begins[-1])
        begins.append(begins[-1] + len(columns["phase"][-1]))
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    places = np.concatenate(inputs) if inputs else np.zeros(0, np.int64)
    return Tokens(tuple(units), tuple(begins), **joined, inputs=places)


@dataclass(frozen=True)
class SiteFacts:
    """What was found out about one site.

    ``rule``, ``match``, ``weight_error`` and ``by_token`` are those of `Fit`. ``reordered`` counts
    rows whose need order the rounding of weights changes, ``null_choices`` choices that were
    dropped or of null experts. ``changed`` has, by column, how many selections rounding changes,
    and of how many.
    """

    rule: dict[str, Any] | None
    match: float
    weight_error: float
    by_token: bool
    reordered: int
    null_choices: int
    largest_norm: float = 0.0
    num_pooled: int = 0
    changed: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def fit(self) -> Fit:
        rule = None if self.rule is None else RoutingRule.from_json(self.rule)
        return Fit(rule, self.match, self.weight_error, self.by_token)


def site_name(site: int) -> str:
    """The name of a site's shard."""
    return f"site_{site:05d}"


def measure_site(
    layer: MoELayer,
    tokens: Tokens,
    plan: Plan,
    settings: Settings,
    fit_sequences: Sequence[int],
    shards: Shards,
) -> None:
    """Work out a site's facts and measure inside its experts, and save both as a shard.

    The shard has ``norms`` [D, K] and ``shares`` [D, K, P] over all decode rows, ``thresholds`` [E,
    P] and, over the kept rows, ``mask_planes``. Where nothing inside the experts can be measured
    values are NaN and masks name no channel.
    """
    site = layer.site
    ids, weights = (_gathered(shards, tokens, name, site) for name in ("ids", "weights"))
    logits = _gathered(shards, tokens, "logits", site)
    assert ids is not None
    assert weights is not None
    tensors: dict[str, torch.Tensor] = {}
    measured: dict[str, Any] = {}
    inputs = _inputs(shards, tokens, site) if plan.sparsities else None
    if plan.sparsities and inputs is not None:
        extras = _extras(layer, tokens, plan, inputs, ids, weights, fit_sequences)
        tensors = {"norms": extras.norms, "shares": extras.shares, "thresholds": extras.thresholds}
        if tokens.kept.any():
            tensors["mask_planes"] = torch.from_numpy(pack_masks(extras.masks.numpy()))
        largest = extras.norms.nan_to_num(0.0).max().item() if extras.norms.numel() else 0.0
        measured = {"largest_norm": largest, "num_pooled": extras.num_pooled}
    fit = Fit(None, 0.0, 0.0)
    changed: dict[str, tuple[int, int]] = {}
    if logits is not None:
        fit, changed = _fitted(layer, tokens, ids, weights, logits, plan, settings, shards)
    facts = SiteFacts(
        rule=None if fit.rule is None else fit.rule.to_json(),
        match=fit.match,
        weight_error=fit.weight_error,
        by_token=fit.by_token,
        reordered=_reordered(ids, weights, settings.weights_step) if settings.weights_step else 0,
        null_choices=int((ids[_visited(tokens, ids)] < 0).sum()),
        changed=changed,
        **measured,
    )
    shards.save(site_name(site), tensors, asdict(facts))


def _extras(
    layer: MoELayer,
    tokens: Tokens,
    plan: Plan,
    inputs: torch.Tensor,
    ids: Array,
    weights: Array,
    fit_sequences: Sequence[int],
) -> SiteExtras:
    rows = tokens.inputs
    chosen, decode, kept = (
        torch.from_numpy(values[rows]) for values in (ids, tokens.decode, tokens.kept)
    )
    if layer.site in plan.unmeasured:
        return unmeasured_extras(
            chosen,
            decode=decode,
            kept=kept,
            experts=layer.num_experts,
            width=plan.expert_intermediate,
            sparsities=plan.sparsities,
        )
    fit = torch.from_numpy(np.isin(tokens.sequence, fit_sequences) & tokens.valid)[rows]
    return site_extras(
        form_of(layer),
        inputs,
        chosen,
        torch.from_numpy(weights[rows]),
        fit=fit,
        decode=decode,
        kept=kept,
        sparsities=plan.sparsities,
    )


def _visited(tokens: Tokens, ids: Array) -> Array:
    """Which rows are real tokens that chose at least one expert at this site."""
    return np.asarray(tokens.valid & (ids >= 0).any(-1))


def _fitted(
    layer: MoELayer,
    tokens: Tokens,
    ids: Array,
    weights: Array,
    logits: Array,
    plan: Plan,
    settings: Settings,
    shards: Shards,
) -> tuple[Fit, dict[str, tuple[int, int]]]:
    """The fitted rule, and how many of its selections the rounding of each column changes.

    The columns are the logits and the lookahead scores, rounded to their steps.
    """
    own = tokens.valid & np.isfinite(logits).all(-1)
    fit = fit_site(layer, logits[own], ids[own], weights[own], tokens.token[own])
    if fit.rule is None:
        return fit, {}
    changed = {}
    if settings.logits_step:
        all_rows = np.isfinite(logits).all(-1)
        changed["logits"] = _changed(fit.rule, logits[all_rows], settings.logits_step, layer.top_k)
    for norm in plan.norms:
        counts = [0, 0]
        for ahead in range(1, min(plan.depth, layer.site) + 1):
            scores = _gathered(shards, tokens, f"lookahead_{norm}", layer.site - ahead)
            assert scores is not None
            known = scores[:, ahead - 1][np.isfinite(scores[:, ahead - 1]).all(-1)]
            found = _changed(fit.rule, known, settings.lookahead_step, layer.top_k)
            counts = [counts[0] + found[0], counts[1] + found[1]]
        changed[f"lookahead_{norm}"] = (counts[0], counts[1])
    return fit, changed


def _gathered(shards: Shards, tokens: Tokens, key: str, site: int) -> Array | None:
    """One site's column over all units; None where it was not recorded."""
    parts = [shards.site(unit, key, site) for unit in tokens.units]
    found = [part.numpy() for part in parts if part is not None]
    return np.concatenate(found) if found else None


def _inputs(shards: Shards, tokens: Tokens, site: int) -> torch.Tensor:
    """What the site's experts were fed in the rows ``tokens.inputs``, in the model's dtype."""
    parts = []
    for unit in tokens.units:
        values = shards.site(unit, "expert_in", site)
        values = shards.site(unit, "gate_in", site) if values is None else values
        if values is not None:
            parts.append(values)
    if not parts:
        raise CaptureError(
            "no row was decoded, so nothing inside the experts can be measured; record with"
            " sparsities="
        )
    return torch.cat(parts)


def _changed(rule: RoutingRule, scores: Array, step: float, top_k: int) -> tuple[int, int]:
    exact, _ = rule.route(scores, top_k)
    rounded, _ = rule.route(np.rint(scores / step) * step, top_k)
    return int((np.sort(exact, -1) != np.sort(rounded, -1)).any(-1).sum()), len(exact)


def _reordered(ids: Array, weights: Array, step: float) -> int:
    """How many rows change their need order when weights are rounded to ``step``.

    The need order is descending weight, then ascending id.
    """

    def order(values: Array) -> Array:
        return np.take_along_axis(ids, np.lexsort((ids, -values, ids < 0), axis=-1), -1)

    rounded = (np.rint(weights / np.float64(step)) * np.float64(step)).astype(np.float32)
    return int((order(weights) != order(rounded)).any(-1).sum())


def facts_of(shards: Shards, sites: int) -> list[SiteFacts]:
    """The facts of all sites, in order."""
    found = [shards.facts(site_name(site)) for site in range(sites)]
    return [
        SiteFacts(
            **{**facts, "changed": {key: tuple(pair) for key, pair in facts["changed"].items()}}
        )
        for facts in found
    ]


def told_of(facts: Sequence[SiteFacts], *, fitted: bool) -> dict[str, str | int | float]:
    """The entries of a trace's provenance that concern all of its sites together.

    ``fitted``: rules were looked for, since logits were recorded.
    """
    told: dict[str, str | int | float] = {}
    for column in sorted({column for item in facts for column in item.changed}):
        counts = [item.changed[column] for item in facts if column in item.changed]
        total = sum(of for _, of in counts)
        told[f"rounding_changes_{column}"] = (
            sum(count for count, _ in counts) / total if total else 0.0
        )
    tokens = [str(site) for site, item in enumerate(facts) if item.by_token]
    if tokens:
        told["sites_chosen_by_token_id"] = ", ".join(tokens)
    missing = [
        f"{site} (best {item.match:.4f})"
        for site, item in enumerate(facts)
        if fitted and item.match < LEAST_MATCH
    ]
    if missing:
        told["sites_without_rule"] = ", ".join(missing)
    null = sum(item.null_choices for item in facts)
    if null:
        told["choices_dropped_or_null"] = null
    return told
