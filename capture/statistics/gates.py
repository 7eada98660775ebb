"""What gates see, say and weigh: similarity of inputs, lookahead, entropy, weights against
outputs, activations.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import polars as pl

from capture.statistics.sample import (
    Floats,
    Ints,
    Sample,
    Unavailable,
    membership,
    read_safetensors,
)
from sim.traces.routing import RoutingRule

DISTANCES = (1, 2, 3)
HIGH_UP_TO, LOW_UP_TO = 0.6, 0.9
"""HOBBIT's T1 and T2 for Mixtral-8x7B: scores up to T1 load high precision, up to T2 low, above
are skipped.
"""


def input_cosine(sample: Sample) -> pl.DataFrame:
    """``value``: mean cosine of the gate inputs of a site and the site ``distance`` further on; 5
    and 95 % quantiles.

    From the kept hidden states (decoded rows of some sequences). The source is Fate's position 2 of
    table 1; FloE's figure 4 is of the hidden states before a layer, which are more alike.
    """
    inputs = np.concatenate([tensors["gate_in"] for tensors in read_safetensors(sample, "hidden/")])
    vectors = inputs.astype(np.float32)
    norms = np.linalg.norm(vectors, axis=-1)
    parts = []
    for distance in DISTANCES:
        for site in range(vectors.shape[1] - distance):
            product = np.einsum("nh,nh->n", vectors[:, site], vectors[:, site + distance])
            cosine = product / np.maximum(norms[:, site] * norms[:, site + distance], 1e-12)
            low, high = np.quantile(cosine, [0.05, 0.95])
            parts.append(
                {
                    "site": site,
                    "distance": distance,
                    "rows": len(cosine),
                    "value": float(cosine.mean()),
                    "low": float(low),
                    "high": float(high),
                }
            )
    if not parts:
        raise Unavailable("the trace has one site; a cosine needs two")
    return pl.DataFrame(parts)


def lookahead_recall(sample: Sample) -> pl.DataFrame:
    """How well ``site``'s input, fed to the router ``ahead`` sites on, tells what that one selects.

    ``measure`` `top1`: the share of rows whose best forecast is among the experts selected
    (HOBBIT's top-1 accuracy); `topk`: the share of the selections that are among as many forecasts
    (Fate table 1); `quarter`: among a quarter of the experts, at least the top-k (Fate's 75th
    percentile). Forecasts are what the target's rule selects from the recorded scores. ``position``
    and ``norm`` are those of the recording.
    """
    recorded = sample.header.lookahead
    if recorded is None or not sample.trace.lookahead:
        raise Unavailable("lookahead was not recorded; capture with lookahead=3")
    experts, top_k = sample.num_experts, sample.header.model.top_k
    quarter = max(top_k, round(experts / 4))
    parts = []
    for norm, scores in sample.trace.lookahead.items():
        for site in range(scores.shape[1]):
            for ahead in range(1, scores.shape[2] + 1):
                target = site + ahead
                if target >= scores.shape[1]:
                    continue
                recorded_rows = np.isfinite(scores[:, site, ahead - 1]).all(-1)
                rows = np.flatnonzero(recorded_rows & (sample.ids[:, target] >= 0).any(-1))
                if not len(rows):
                    continue
                rule = sample.header.sites[target].rule or RoutingRule()
                used = sample.ids[rows, target]
                found = _recalls(rule, scores[rows, site, ahead - 1], used, top_k, quarter)
                for measure, (value, chance) in found.items():
                    parts.append(
                        {
                            "site": site,
                            "ahead": ahead,
                            "position": recorded.position,
                            "norm": norm,
                            "measure": measure,
                            "rows": len(rows),
                            "value": value,
                            "chance": chance / experts,
                        }
                    )
    if not parts:
        raise Unavailable("these rows have no lookahead scores: they are recorded for decoded rows")
    return pl.DataFrame(parts)


def _recalls(
    rule: RoutingRule, scores: Floats, used: Ints, top_k: int, quarter: int
) -> dict[str, tuple[float, float]]:
    """(value, experts named) by measure; without `quarter` where the rule's groups hold fewer
    experts.
    """
    member = membership(used, scores.shape[-1])
    some = member.sum(-1)
    forecast, _ = rule.route(scores, top_k)
    hits = np.take_along_axis(member, forecast.astype(np.int64), -1)
    found = {
        "top1": (float(hits[:, 0].mean()), float(some.mean())),
        "topk": (float(hits.sum() / some.sum()), float(top_k)),
    }
    try:
        forecast, _ = rule.route(scores, quarter)
    except ValueError:
        return found
    hits = np.take_along_axis(member, forecast.astype(np.int64), -1)
    return found | {"quarter": (float(hits.sum() / some.sum()), float(quarter))}


def router_entropy(sample: Sample) -> pl.DataFrame:
    """``value``: the mean entropy of a router's distribution over all experts, as a share of log2 E
    (1: even); ``top``: the mean of its largest probability.

    Source: Fang et al., Fate, figure 8: nearly even in shallow layers, decided in deep ones.
    """
    logits = sample.trace.logits
    if logits is None:
        raise Unavailable("logits were not recorded")
    parts = []
    for site in sample.sites:
        rows = np.isfinite(logits[:, site]).all(-1)
        rule = sample.header.sites[site].rule or RoutingRule()
        shares = _distribution(logits[rows, site].astype(np.float64), rule.score)
        bits = -(shares * np.log2(np.maximum(shares, 1e-300))).sum(-1)
        parts.append(
            {
                "site": site,
                "rows": int(rows.sum()),
                "bits": float(bits.mean()),
                "value": float(bits.mean() / np.log2(sample.num_experts))
                if sample.num_experts > 1
                else 0.0,
                "top": float(shares.max(-1).mean()),
            }
        )
    return pl.DataFrame(parts)


def _distribution(logits: Floats, score: str) -> Floats:
    """Scores as a router's rule makes them of logits, divided by their sum."""
    if score == "sigmoid":
        positive = 1 / (1 + np.exp(-logits))
    elif score == "sqrtsoftplus":
        positive = np.sqrt(np.logaddexp(0.0, logits))
    else:
        positive = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(positive / positive.sum(-1, keepdims=True))


def weight_norms(sample: Sample) -> pl.DataFrame:
    """Pearson correlation, over all selections of a site, of a gate weight and an expert's output
    norm.

    ``kind`` `weighted`: the norm of the weighted output, HOBBIT's |G E| against |G|; `shares`: both
    as shares of their token's sum; `output`: the norm before weighting, which says whether large
    weights go with large outputs. Source: Tang et al., HOBBIT, figure 5a (0.99, "after
    normalizing", Mixtral-8x7B).
    """
    norms = sample.trace.expert_norms
    if norms is None:
        raise Unavailable("expert_norms were not recorded; capture with sparsities=")
    parts = []
    for site in sample.sites:
        whole = ((sample.ids[:, site] >= 0) & np.isfinite(norms[:, site])).all(-1)
        weight, norm = (
            sample.trace.weights[whole, site].astype(np.float64),
            norms[whole, site].astype(np.float64),
        )
        weighted = weight * norm
        pairs: dict[str, tuple[Floats, Floats]] = {
            "weighted": (weight, weighted),
            "output": (weight, norm),
        }
        if weight.shape[-1] > 1:
            pairs["shares"] = (_shares(weight), _shares(weighted))
        parts += [
            {
                "site": site,
                "kind": kind,
                "rows": len(weight),
                "value": pearson(one.ravel(), other.ravel()),
            }
            for kind, (one, other) in pairs.items()
        ]
    known = [part for part in parts if part["value"] is not None]
    if not known:
        raise Unavailable(
            "these rows have no norms that differ: they are recorded for decoded rows"
        )
    return pl.DataFrame(known)


def _shares(values: Floats) -> Floats:
    return np.asarray(values / np.maximum(values.sum(-1, keepdims=True), 1e-30))


def pearson(one: Floats, other: Floats) -> float | None:
    """None where one of them does not vary."""
    if len(one) < 2 or not one.std() or not other.std():
        return None
    return float(np.corrcoef(one, other)[0, 1])


def score_shares(sample: Sample) -> pl.DataFrame:
    """Shares of the selections of each site by HOBBIT's score: the weight, over the sum of the
    selected, of those ranked above; 0 for the first. ``class``: `high` (score <= 0.6), `low` (<=
    0.9), `skip` (above).

    Source: Tang et al., HOBBIT, equation 2 and figure 5b; the thresholds are Mixtral-8x7B's.
    """
    parts = []
    for site in sample.sites:
        scores = selection_scores(sample.ids[:, site], sample.trace.weights[:, site])
        high, low = float((scores <= HIGH_UP_TO).mean()), float((scores <= LOW_UP_TO).mean())
        for name, value in (("high", high), ("low", low - high), ("skip", 1 - low)):
            parts.append({"site": site, "class": name, "selections": len(scores), "value": value})
    return pl.DataFrame(parts)


def selection_scores(ids: Ints, weights: Floats) -> Floats:
    """The score of every selection of ``ids`` [N, K] that is one, flat; equal weights by
    ascending id.
    """
    order = np.lexsort((ids, -weights, ids < 0), axis=-1)
    ranked = np.take_along_axis(weights, order, -1).astype(np.float64)
    shares = _shares(ranked)
    scores = np.cumsum(shares, -1) - shares
    # Rounding must not decide about the first, nor push a sum of shares above 1.
    scores[:, 0] = 0.0
    return np.asarray(scores[np.take_along_axis(ids, order, -1) >= 0])


def up_concentration(sample: Sample) -> pl.DataFrame:
    """How many channels of |x W_up| are near 0: ``value`` is the threshold below which a
    ``sparsity`` share of them lies, over that of the largest sparsity, mean over experts;
    ``gaussian`` the same of a normal distribution. Below it: more concentrated around 0 than a
    Gaussian. ``active``: the mean share of channels at or above the threshold in these rows, with
    the 5 and 95 % quantiles over selections; 1 - sparsity on the rows that it was fitted on.

    Source: Zhou et al., FloE, figure 2 (many activations near zero) and section 4.1 (thresholds).
    """
    shares, sparsities = sample.trace.active_shares, sample.header.sparsities
    if shares is None:
        raise Unavailable("active_shares were not recorded; capture with sparsities=0.5,0.8,0.9")
    (tensors,) = read_safetensors(sample, "thresholds.safetensors")
    thresholds = tensors["thresholds"].astype(np.float64)
    normal = [NormalDist().inv_cdf((1 + sparsity) / 2) for sparsity in sparsities]
    parts = []
    for site in sample.sites:
        mean = thresholds[site].mean(0)
        for place, sparsity in enumerate(sparsities):
            active = shares[:, site, :, place]
            active = active[np.isfinite(active)]
            if len(active):
                low, high = np.quantile(active, [0.05, 0.95])
                parts.append(
                    {
                        "site": site,
                        "sparsity": sparsity,
                        "threshold": float(mean[place]),
                        "value": float(mean[place] / mean[-1]),
                        "gaussian": normal[place] / normal[-1],
                        "active": float(active.mean()),
                        "low": float(low),
                        "high": float(high),
                    }
                )
    if not parts:
        raise Unavailable("these rows have no active_shares: they are recorded for decoded rows")
    return pl.DataFrame(parts)
