"""The rows of a trace in memory, and what makes them consistent with the header."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.trace_header import HEADER_FILE, ROUTES_FILE, Header, TraceError

PREFILL, DECODE, CHUNK = 0, 1, 2
ROW_DTYPES: Mapping[str, Any] = {
    "step": pl.Int32, "phase": pl.UInt8, "sequence": pl.Int32, "position": pl.Int32, "token": pl.Int32,
    "valid": pl.Boolean,
}  # fmt: skip

Float32s = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Trace:
    """A trace in memory: N token-rows, S sites, top-K of E experts.

    Rows [N], ordered by step, then by row in the step: ``step``; ``phase`` (PREFILL, DECODE, or CHUNK: several tokens
    on top of a cache); ``sequence`` (a number of the header); ``position`` in its sequence and ``token`` id (-1:
    unknown); ``valid``, False for padding, whose position is -1: padding is routed and loads experts, but is no
    token. Positions count on from the prompt to what is decoded, in encoder-decoder models too.

    Per row and site: ``ids`` [N, S, K], -1 where the model dropped the choice or chose a null expert; ``weights`` [N,
    S, K], as the model applied them, rounded if the header has a step for them (the smallest to 0, near-equal ones to
    ties); the order inside K is the model's own and need not be by weight. Where the model has an encoder, rows of a
    prompt visit its sites and decoded rows those of the decoder; elsewhere ids are -1, weights 0, and all else NaN.

    None (or empty) when not recorded or not asked for: ``logits`` [N, S, E]; ``lookahead``, by norm (`raw`: the
    router j sites on is fed this site's gate input; `renormed`: that input with this site's norm weight exchanged for
    the other's), [N, S, J, E], entry [n, s, j - 1] for router s + j, NaN where not recorded; ``expert_norms`` [N, S,
    K], the norm of each selected expert's output before weighting; ``active_shares`` [N, S, K, P], the share of
    channels of ``|x W_up|`` at or above the threshold of each of the header's P sparsities, NaN where not recorded.
    """

    header: Header
    step: NDArray[np.int32]
    phase: NDArray[np.uint8]
    sequence: NDArray[np.int32]
    position: NDArray[np.int32]
    token: NDArray[np.int32]
    valid: NDArray[np.bool_]
    ids: NDArray[np.int16]
    weights: Float32s
    logits: Float32s | None = None
    lookahead: Mapping[str, Float32s] = field(default_factory=dict)
    expert_norms: Float32s | None = None
    active_shares: Float32s | None = None


def check_rows(trace: Trace) -> None:
    """Raise `TraceError` unless every column has its shape, dtype and range and agrees with the header."""
    _check_shapes(trace)
    _check_choices(trace)
    _check_tokens(trace)
    _check_lookahead(trace)
    if trace.header.encoder_sites:
        _check_stacks(trace)


def _refuse(name: str, wrong: NDArray[np.bool_], values: NDArray[Any], rule: str) -> None:
    """Raise `TraceError` with the first value that is ``wrong``, and where it stands."""
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
    _refuse("ids", repeated, ordered, "must not repeat in a row (the id follows in ascending order)")
    _refuse("weights", ~np.isfinite(weights) | (weights < 0), weights, "must be finite and >= 0")
    _refuse("weights", (ids < 0) & (weights != 0), weights, "must be 0 where the id is -1")
    if trace.logits is not None:
        _refuse("logits", ~np.isfinite(trace.logits) & _visited(trace)[..., None], trace.logits, "must be finite")
    if trace.expert_norms is not None:
        wrong = (trace.expert_norms < 0) | np.isinf(trace.expert_norms)
        _refuse("expert_norms", wrong, trace.expert_norms, "must be >= 0, or NaN where not recorded")
    if trace.active_shares is not None:
        wrong = (trace.active_shares < 0) | (trace.active_shares > 1)
        _refuse("active_shares", wrong, trace.active_shares, "must lie in 0..1")


def _check_tokens(trace: Trace) -> None:
    _refuse("phase", trace.phase > CHUNK, trace.phase, "must be 0 (prefill), 1 (decode) or 2 (chunk)")
    _refuse("step", np.diff(trace.step, prepend=trace.step[:1]) < 0, trace.step, "must not decrease")
    _refuse("token", trace.token < -1, trace.token, "must be >= -1")
    _refuse("position", trace.valid & (trace.position < 0), trace.position, "must be >= 0 in a valid row")
    known = np.array([item.sequence for item in trace.header.sequences], dtype=np.int64)
    _refuse("sequence", ~np.isin(trace.sequence, known), trace.sequence, f"must be in {HEADER_FILE}")
    rows = np.flatnonzero(trace.valid)
    # A stable sort keeps the file's order inside a sequence, so each neighbour pair is one step onwards.
    rows = rows[np.argsort(trace.sequence[rows], kind="stable")]
    same = np.diff(trace.sequence[rows]) == 0
    back = np.zeros(len(trace.position), dtype=bool)
    back[rows[1:]] = same & (np.diff(trace.position[rows]) <= 0)
    _refuse("position", back, trace.position, "must increase inside a sequence")
    decoding = trace.phase == DECODE
    for item in trace.header.sequences:
        mine = trace.valid & (trace.sequence == item.sequence)
        for name, stated, found in (
            ("prompt_tokens", item.prompt_tokens, int((mine & ~decoding).sum())),
            ("decode_tokens", item.decode_tokens, int((mine & decoding).sum())),
        ):
            if stated != found:
                rule = f"must be {found}, the valid rows of {ROUTES_FILE}"
                raise TraceError(HEADER_FILE, f"{name} of sequence {item.sequence}", stated, rule)


def _check_lookahead(trace: Trace) -> None:
    num_sites, encoder = trace.header.model.sites, trace.header.encoder_sites
    ends = np.where(np.arange(num_sites) < encoder, encoder, num_sites)
    for norm, scores in trace.lookahead.items():
        _refuse(f"lookahead_{norm}", np.isinf(scores), scores, "must be finite, or NaN where not recorded")
        for ahead in range(1, scores.shape[2] + 1):
            beyond = np.arange(num_sites) + ahead >= ends
            wrong = ~np.isnan(scores[:, :, ahead - 1]) & beyond[:, None]
            rule = "must be NaN past the last site" + (" of its stack" if encoder else "")
            _refuse(f"lookahead_{norm} {ahead} sites ahead", wrong, scores[:, :, ahead - 1], rule)


def _visited(trace: Trace) -> NDArray[np.bool_]:
    """Which sites each row visits, [N, S]."""
    encoder = np.arange(trace.header.model.sites) < trace.header.encoder_sites
    if not encoder.any():
        return np.ones((len(trace.phase), len(encoder)), np.bool_)
    visited: NDArray[np.bool_] = np.equal.outer(trace.phase != DECODE, encoder)
    return visited


def _check_stacks(trace: Trace) -> None:
    """Encoder and decoder: no step and no row may visit both."""
    phase, decoding = trace.phase, trace.phase == DECODE
    rule = "must be 0 (prefill) or 1 (decode): an encoder reads a prompt whole"
    _refuse("phase", phase == CHUNK, phase, rule)
    mixed = np.zeros(len(phase), np.bool_)
    mixed[1:] = (np.diff(trace.step) == 0) & np.diff(decoding)
    _refuse("phase", mixed, phase, "must be the same in the whole step: prompts visit the encoder, decoded rows do not")
    away = ~_visited(trace)[..., None]
    rule = "at a site that the row does not visit (prompts visit the encoder's, decoded rows the decoder's)"
    _refuse("ids", (trace.ids >= 0) & away, trace.ids, f"must be -1 {rule}")
    columns: dict[str, Float32s | None] = {"logits": trace.logits, "expert_norms": trace.expert_norms}
    columns |= {f"lookahead_{norm}": scores for norm, scores in trace.lookahead.items()}
    columns["active_shares"] = trace.active_shares
    for name, values in columns.items():
        if values is not None:
            where = away.reshape(away.shape + (1,) * (values.ndim - 3))
            _refuse(name, ~np.isnan(values) & where, values, f"must be NaN {rule}")
