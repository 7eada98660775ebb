"""Checks that a trace's rows agree with each other and with its header.

They cover shapes, dtypes, ranges, order and sums.
"""

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.traces.forecasts import check_forecasts
from sim.traces.header import ROUTES_FILE
from sim.traces.rows import CHUNK, DECODE, ROW_DTYPES, Float32s, Trace
from sim.values.fields import HEADER_FILE, TraceError

SUMS = ("norm", "softmax_topk")
"""Values of `RoutingRule.weight` with which a row's weights sum to the rule's scale."""


def check_rows(trace: Trace) -> None:
    """Raise `TraceError` unless every column has the right shape, dtype and range for the header.

    The rows must agree with each other, too: order, counts of tokens, sums of weights.
    """
    _check_shapes(trace)
    _check_choices(trace)
    _check_tokens(trace)
    _check_sums(trace)
    _check_lookahead(trace)
    if trace.header.encoder_sites:
        _check_stacks(trace)
    check_forecasts(trace)


def _refuse(name: str, wrong: NDArray[np.bool_], values: NDArray[Any], rule: str) -> None:
    """Raise `TraceError` with the first of the ``values`` marked ``wrong``, and its index."""
    if wrong.any():
        place = tuple(int(index) for index in np.argwhere(wrong)[0])
        raise TraceError(ROUTES_FILE, f"{name}{list(place)}", values[place].item(), rule)


def _check_shapes(trace: Trace) -> None:
    model, header = trace.header.model, trace.header
    num_rows = len(trace.step)
    per_site = (num_rows, model.sites)
    shapes: dict[str, tuple[NDArray[Any], tuple[int, ...], Any]] = {
        name: (getattr(trace, name), (num_rows,), pl.Series([], dtype=dtype).to_numpy().dtype)
        for name, dtype in ROW_DTYPES.items()
    }
    shapes["ids"] = (trace.ids, (*per_site, model.top_k), np.int16)
    shapes["weights"] = (trace.weights, (*per_site, model.top_k), np.float32)
    if trace.logits is not None:
        shapes["logits"] = (trace.logits, (*per_site, model.experts), np.float32)
    if trace.expert_norms is not None:
        shapes["expert_norms"] = (trace.expert_norms, (*per_site, model.top_k), np.float32)
    if trace.active_shares is not None:
        shares_shape = (*per_site, model.top_k, len(header.sparsities))
        shapes["active_shares"] = (trace.active_shares, shares_shape, np.float32)
    depth = 0 if header.lookahead is None else header.lookahead.depth
    for norm, scores in trace.lookahead.items():
        shapes[f"lookahead_{norm}"] = (scores, (*per_site, depth, model.experts), np.float32)
    for name, (values, shape, dtype) in shapes.items():
        if values.shape != shape or values.dtype != dtype:
            rule = f"must be {np.dtype(dtype)} {list(shape)}"
            raise TraceError(ROUTES_FILE, name, f"{values.dtype} {list(values.shape)}", rule)


def _check_choices(trace: Trace) -> None:
    ids, weights, experts = trace.ids, trace.weights, trace.header.model.experts
    _refuse("ids", (ids < -1) | (ids >= experts), ids, f"must lie in -1..{experts - 1}")
    ordered = np.sort(ids, axis=-1)
    repeated = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)
    _refuse(
        "ids", repeated, ordered, "must not repeat in a row (the id follows in ascending order)"
    )
    _refuse("weights", ~np.isfinite(weights) | (weights < 0), weights, "must be finite and >= 0")
    _refuse("weights", (ids < 0) & (weights != 0), weights, "must be 0 where the id is -1")
    if trace.logits is not None:
        recorded = _visited(trace) & _kept_rows(trace)[:, None]
        _refuse(
            "logits",
            ~np.isfinite(trace.logits) & recorded[..., None],
            trace.logits,
            "must be finite",
        )
    if trace.expert_norms is not None:
        wrong = (trace.expert_norms < 0) | np.isinf(trace.expert_norms)
        _refuse(
            "expert_norms", wrong, trace.expert_norms, "must be >= 0, or NaN where not recorded"
        )
    if trace.active_shares is not None:
        wrong = (trace.active_shares < 0) | (trace.active_shares > 1)
        _refuse("active_shares", wrong, trace.active_shares, "must lie in 0..1")


def _check_tokens(trace: Trace) -> None:
    _refuse(
        "phase", trace.phase > CHUNK, trace.phase, "must be 0 (prefill), 1 (decode) or 2 (chunk)"
    )
    _refuse(
        "step", np.diff(trace.step, prepend=trace.step[:1]) < 0, trace.step, "must not decrease"
    )
    _refuse("token", trace.token < -1, trace.token, "must be >= -1")
    _refuse(
        "position",
        trace.valid & (trace.position < 0),
        trace.position,
        "must be >= 0 in a valid row",
    )
    known = np.array([item.sequence for item in trace.header.sequences], dtype=np.int64)
    _refuse(
        "sequence", ~np.isin(trace.sequence, known), trace.sequence, f"must be in {HEADER_FILE}"
    )
    rows = np.flatnonzero(trace.valid)
    # The stable sort keeps the file's order inside a sequence: neighbours are successive tokens.
    rows = rows[np.argsort(trace.sequence[rows], kind="stable")]
    same = np.diff(trace.sequence[rows]) == 0
    back = np.zeros(len(trace.position), dtype=bool)
    back[rows[1:]] = same & (np.diff(trace.position[rows]) <= 0)
    _refuse("position", back, trace.position, "must increase inside a sequence")
    _check_counts(trace)


def _check_counts(trace: Trace) -> None:
    """Refuse sequences whose numbers of prompt and decoded rows are not those in the header."""
    numbers = np.array(sorted(item.sequence for item in trace.header.sequences), dtype=np.int64)
    place = np.searchsorted(numbers, trace.sequence)
    decoding = trace.phase == DECODE
    found = [
        dict(
            zip(
                numbers.tolist(),
                np.bincount(place[rows], minlength=len(numbers)).tolist(),
                strict=True,
            )
        )
        for rows in (trace.valid & ~decoding, trace.valid & decoding)
    ]
    for item in trace.header.sequences:
        for name, stated, rows in (
            ("prompt_tokens", item.prompt_tokens, found[0][item.sequence]),
            ("decode_tokens", item.decode_tokens, found[1][item.sequence]),
        ):
            if stated != rows:
                rule = f"must be {rows}, the valid rows of {ROUTES_FILE}"
                raise TraceError(HEADER_FILE, f"{name} of sequence {item.sequence}", stated, rule)


def _check_sums(trace: Trace) -> None:
    """Refuse weights that do not sum to the scale of their site's rule.

    Checked at sites whose rule reproduces every selection. A wrong fixed-point step in the header
    would scale all weights, and only their sum shows it.
    """
    top_k, step = trace.header.model.top_k, trace.header.steps.get("weights", 0.0)
    for site in trace.header.sites:
        rule = site.rule
        if rule is None or rule.weight not in SUMS or site.rule_match < 1:
            continue
        whole = (trace.ids[:, site.site] >= 0).all(-1) & _kept_rows(trace)
        sums = trace.weights[:, site.site].sum(-1, dtype=np.float64)
        allowed = top_k * (site.rule_weight_error + step / 2) + 1e-5 * max(1.0, abs(rule.scale))
        # A row whose scores are all 0 has weights of 0, whatever the scale.
        wrong = whole & (sums > 0) & (abs(sums - rule.scale) > allowed)
        text = f"must be {rule.scale:g} within {allowed:.2g}, as the site's rule says"
        _refuse(f"sum of weights at site {site.site}, row", wrong, sums, text)


def _check_lookahead(trace: Trace) -> None:
    num_sites, encoder = trace.header.model.sites, trace.header.encoder_sites
    stacks = [site.stack for site in trace.header.sites]
    ends = np.array([num_sites - stacks[::-1].index(stack) for stack in stacks])
    for norm, scores in trace.lookahead.items():
        _refuse(
            f"lookahead_{norm}",
            np.isinf(scores),
            scores,
            "must be finite, or NaN where not recorded",
        )
        for ahead in range(1, scores.shape[2] + 1):
            beyond = np.arange(num_sites) + ahead >= ends
            wrong = ~np.isnan(scores[:, :, ahead - 1]) & beyond[:, None]
            rule = "must be NaN past the last site" + (
                " of its stack" if encoder or trace.header.draft_sites else ""
            )
            _refuse(f"lookahead_{norm} {ahead} sites ahead", wrong, scores[:, :, ahead - 1], rule)


def _kept_rows(trace: Trace) -> NDArray[np.bool_]:
    """Which rows were recorded one by one, [N]: the decoded ones where prompts are counts."""
    return (
        np.ones(len(trace.phase), np.bool_)
        if trace.header.prefill == "rows"
        else trace.phase == DECODE
    )


def _visited(trace: Trace) -> NDArray[np.bool_]:
    """Which sites each row visits, [N, S]."""
    encoder = np.arange(trace.header.model.sites) < trace.header.encoder_sites
    if not encoder.any():
        return np.ones((len(trace.phase), len(encoder)), np.bool_)
    visited: NDArray[np.bool_] = np.equal.outer(trace.phase != DECODE, encoder)
    return visited


def _check_stacks(trace: Trace) -> None:
    """Refuse a step or a row that visits both the encoder and the decoder."""
    phase, decoding = trace.phase, trace.phase == DECODE
    rule = "must be 0 (prefill) or 1 (decode): an encoder reads a prompt whole"
    _refuse("phase", phase == CHUNK, phase, rule)
    mixed = np.zeros(len(phase), np.bool_)
    mixed[1:] = (np.diff(trace.step) == 0) & np.diff(decoding)
    _refuse(
        "phase",
        mixed,
        phase,
        "must be the same in the whole step: prompts visit the encoder, decoded rows do not",
    )
    away = ~_visited(trace)[..., None]
    rule = (
        "at a site that the row does not visit (prompts visit the encoder's, decoded rows the"
        " decoder's)"
    )
    _refuse("ids", (trace.ids >= 0) & away, trace.ids, f"must be -1 {rule}")
    columns: dict[str, Float32s | None] = {
        "logits": trace.logits,
        "expert_norms": trace.expert_norms,
    }
    columns |= {f"lookahead_{norm}": scores for norm, scores in trace.lookahead.items()}
    columns["active_shares"] = trace.active_shares
    for name, values in columns.items():
        if values is not None:
            where = away.reshape(away.shape + (1,) * (values.ndim - 3))
            _refuse(name, ~np.isnan(values) & where, values, f"must be NaN {rule}")
