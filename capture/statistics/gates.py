"""Statistics of gates: similarity of inputs, lookahead, entropy, weights, activations."""

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
)
from sim.traces.gate_inputs import hidden_path, read_tensors, sequence_inputs
from sim.traces.routing import RoutingRule
from sim.traces.trace import TraceError

DISTANCES = (1, 2, 3)
THRESHOLDS_FILE = "thresholds.safetensors"
HIGH_UP_TO, LOW_UP_TO = 0.6, 0.9
"""HOBBIT's T1 and T2 for Mixtral-8x7B.

Experts with a score up to T1 are loaded at high precision, up to T2 at low precision; others are
skipped.
"""


def input_cosine(sample: Sample) -> pl.DataFrame:
    """Mean cosine (``value``) of the gate inputs of a site and of the site ``distance`` later.

    ``low`` and ``high`` are the 5 and 95 % quantiles. Computed from the gate inputs that are kept of
    these rows: a capture keeps those of decoded rows of some sequences. Source: Fate, table 1,
    position 2. FloE's figure 4 shows the hidden states before a layer, which are more alike.
    """
    vectors = _kept_inputs(sample)
    norms = np.linalg.norm(vectors, axis=-1)
    parts = []
    for distance in DISTANCES:
        for site in range(vectors.shape[1] - distance):
            product = np.einsum("nh,nh->n", vectors[:, site], vectors[:, site + distance])
            cosine = product / np.maximum(norms[:, site] * norms[:, site + distance], 1e-12)
            cosine = cosine[np.isfinite(cosine)]
            if not len(cosine):
                continue
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
        raise Unavailable("the rows visit one site; a cosine needs two")
    return pl.DataFrame(parts)


def _kept_inputs(sample: Sample) -> Floats:
    """The gate inputs [N, S, H] that are kept of the sample's rows; NaN at sites not visited."""
    model, parts = sample.header.model, []
    for number in np.unique(sample.trace.sequence).tolist():
        if sample.directory is not None and hidden_path(number) in sample.header.files:
            inputs, position = sequence_inputs(
                sample.directory / hidden_path(number), model.sites, model.hidden
            )
            own = sample.trace.position[sample.trace.sequence == number]
            parts.append(inputs[np.isin(position, own)])
    if not sum(map(len, parts)):
        raise Unavailable("no gate inputs are kept of these rows; capture with hidden_sequences=4")
    return np.concatenate(parts)


def lookahead_recall(sample: Sample) -> pl.DataFrame:
    """How well a site's input, fed to the router ``ahead`` sites later, forecasts its selection.

    The forecast is what the target's rule selects from the recorded scores. ``measure``:

    - `top1`: share of rows whose best forecast is among the selected experts (HOBBIT's top-1
      accuracy).
    - `topk`: share of the selections that are among as many forecasts (Fate, table 1).
    - `quarter`: share of the selections that are among the best quarter of the experts, at least
      the top-k (Fate's 75th percentile).

    ``position`` and ``norm`` are those of the recording.
    """
    recorded = sample.header.lookahead
    if recorded is None or not sample.trace.lookahead:
        raise Unavailable("lookahead was not recorded; capture with lookahead=3")
    # A forecast is among all experts that the router chooses from, null ones too.
    experts, top_k = sample.header.model.experts, sample.header.model.top_k
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
    """By measure: the value, and the number of experts that chance is computed from.

    `quarter` is missing where the rule's groups hold fewer experts than a quarter.
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
    """How decided a router is.

    ``value``: mean entropy of the router's distribution over all experts, as a share of log2 E (1
    is even). ``top``: mean of its largest probability. Source: Fang et al., Fate, figure 8, where
    shallow layers are nearly even and deep layers decided.
    """
    logits = sample.trace.logits
    if logits is None:
        raise Unavailable("logits were not recorded")
    experts = sample.header.model.experts
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
                "value": float(bits.mean() / np.log2(experts)) if experts > 1 else 0.0,
                "top": float(shares.max(-1).mean()),
            }
        )
    return pl.DataFrame(parts)


def _distribution(logits: Floats, score: str) -> Floats:
    """The scores that a rule makes of logits, divided by their sum."""
    if score == "sigmoid":
        positive = 1 / (1 + np.exp(-logits))
    elif score == "sqrtsoftplus":
        positive = np.sqrt(np.logaddexp(0.0, logits))
    else:
        positive = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(positive / positive.sum(-1, keepdims=True))


def weight_norms(sample: Sample) -> pl.DataFrame:
    """Pearson correlation of gate weights and experts' output norms over a site's selections.

    ``kind``:

    - `weighted`: with the norm of the weighted output, HOBBIT's |G E| against |G|.
    - `shares`: the same, both as shares of their token's sum.
    - `output`: with the norm before weighting; it shows whether large weights go with large
      outputs.

    Source: Tang et al., HOBBIT, figure 5a (0.99, "after normalizing", Mixtral-8x7B).
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
    """Pearson correlation; None where one of the two does not vary."""
    if len(one) < 2 or not one.std() or not other.std():
        return None
    return float(np.corrcoef(one, other)[0, 1])


def score_shares(sample: Sample) -> pl.DataFrame:
    """Shares of each site's selections by class of HOBBIT's score.

    A selection's score is the share of its token's weight that the selections ranked above it have;
    0 for the first. ``class``: `high` (score <= 0.6), `low` (<= 0.9) or `skip` (above).

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
    """The scores of the selections ``ids`` [N, K], flat and without those of -1.

    Selections are ranked by weight; equal weights by ascending id.
    """
    order = np.lexsort((ids, -weights, ids < 0), axis=-1)
    ranked = np.take_along_axis(weights, order, -1).astype(np.float64)
    shares = _shares(ranked)
    scores = np.cumsum(shares, -1) - shares
    # The first score is 0 exactly, whatever rounding made of it.
    scores[:, 0] = 0.0
    return np.asarray(scores[np.take_along_axis(ids, order, -1) >= 0])


def up_concentration(sample: Sample) -> pl.DataFrame:
    """How concentrated |x W_up| is around 0, by site and sparsity.

    - ``value``: the threshold below which a ``sparsity`` share of the channels lies (mean over
      experts), divided by the threshold of the largest sparsity.
    - ``gaussian``: the same for a normal distribution. A smaller ``value`` means more concentrated
      around 0 than a Gaussian.
    - ``active``: mean share of channels at or above the threshold in these rows; ``low`` and
      ``high`` are the 5 and 95 % quantiles over selections. On the rows of the fit it is 1 -
      sparsity.

    Source: Zhou et al., FloE, figure 2 (many activations near zero) and section 4.1 (thresholds).
    """
    shares, sparsities = sample.trace.active_shares, sample.header.sparsities
    if shares is None:
        raise Unavailable("active_shares were not recorded; capture with sparsities=0.5,0.8,0.9")
    thresholds = _thresholds(sample)
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


def _thresholds(sample: Sample) -> Floats:
    """The thresholds [S, E, P] of every site, expert and sparsity."""
    model, sparsities = sample.header.model, sample.header.sparsities
    if sample.directory is None or THRESHOLDS_FILE not in sample.header.files:
        raise Unavailable(f"the trace has no file {THRESHOLDS_FILE}; capture it with sparsities=")
    found = read_tensors(sample.directory / THRESHOLDS_FILE, ("thresholds",)).get("thresholds")
    shape = (model.sites, model.experts, len(sparsities))
    if found is None or found.shape != shape:
        told = "absent" if found is None else list(found.shape)
        raise TraceError(THRESHOLDS_FILE, "thresholds", told, f"must be {list(shape)}")
    return found.astype(np.float64)
