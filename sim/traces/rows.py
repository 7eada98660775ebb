"""The rows of a trace in memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.traces.header import Header

PREFILL, DECODE, CHUNK = 0, 1, 2
ROW_DTYPES: Mapping[str, Any] = {
    "step": pl.Int32,
    "phase": pl.UInt8,
    "sequence": pl.Int32,
    "position": pl.Int32,
    "token": pl.Int32,
    "valid": pl.Boolean,
}

Float32s = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Trace:
    """A trace in memory: N token-rows, S sites, top-K of E experts.

    Rows [N], ordered by step, then by row in the step: ``step``; ``phase`` (PREFILL, DECODE, or
    CHUNK: several tokens on top of a cache); ``sequence`` (a number of the header); ``position`` in
    its sequence and ``token`` id (-1: unknown); ``valid``, False for padding, whose position is -1:
    padding is routed and loads experts, but is no token. Positions count on from the prompt to what
    is decoded, in encoder-decoder models too.

    Per row and site: ``ids`` [N, S, K], -1 where the model dropped the choice or chose a null
    expert; ``weights`` [N, S, K], as the model applied them, rounded if the header has a step for
    them (the smallest to 0, near-equal ones to ties); the order inside K is the model's own and
    need not be by weight. Where the model has an encoder, rows of a prompt visit its sites and
    decoded rows those of the decoder; elsewhere ids are -1, weights 0, and all else NaN.

    None (or empty) when not recorded or not asked for: ``logits`` [N, S, E]; ``lookahead``, by norm
    (`raw`: the router j sites on is fed this site's gate input; `renormed`: that input with this
    site's norm weight exchanged for the other's), [N, S, J, E], entry [n, s, j - 1] for router s +
    j, NaN where not recorded; ``expert_norms`` [N, S, K], the norm of each selected expert's output
    before weighting; ``active_shares`` [N, S, K, P], the share of channels at or above the
    threshold of each of the header's P sparsities, NaN where not recorded: those of ``|x W_up|``,
    or of what ``active_shares_of`` in the header's provenance names.

    ``prompt_forecasts``, by norm: what the rows of prompts, which then have no ``lookahead``, are
    forecast to choose together, as cells (`sim.traces.forecasts`); read with the norm's lookahead.
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
    prompt_forecasts: Mapping[str, pl.DataFrame] = field(default_factory=dict)
