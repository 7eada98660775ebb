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

    Columns of the token-rows, each [N], ordered by step, then by row in the step:

    - ``step``: the forward call.
    - ``phase``: PREFILL, DECODE, or CHUNK (several tokens on top of a cache).
    - ``sequence``: a number of the header.
    - ``position``: in the sequence, counting on from the prompt to what is decoded, in
      encoder-decoder models too. -1 for padding.
    - ``token``: its id, -1 where unknown.
    - ``valid``: False for padding, which is routed and loads experts, but is no token.

    Columns by row and site, each [N, S, K]. The order inside K is the model's own and need not be
    by weight.

    - ``ids``: the chosen experts, -1 where the model dropped the choice or chose a null expert.
    - ``weights``: as the model applied them. If the header has a step for weights they are rounded
      to it: the smallest to 0, near-equal ones to ties.

    Where the model has an encoder, rows of a prompt visit its sites and decoded rows those of the
    decoder. At the other sites ids are -1, weights 0, and all else NaN.

    Optional columns, None (or empty) when not recorded or not asked for:

    - ``logits`` [N, S, E].
    - ``lookahead``, by norm, [N, S, J, E]: entry [n, s, j - 1] has the scores of the router of site
      s + j, NaN where not recorded. `raw` feeds that router this site's gate input; `renormed`
      feeds it the same with this site's norm weight exchanged for the other site's.
    - ``expert_norms`` [N, S, K]: the norm of each selected expert's output before weighting.
    - ``active_shares`` [N, S, K, P]: the share of channels at or above the threshold of each of the
      header's P sparsities, NaN where not recorded. The channels are those of ``|x W_up|``, or of
      what ``active_shares_of`` in the header's provenance names.
    - ``prompt_forecasts``, by norm: what the rows of prompts are forecast to choose together, as
      cells (`sim.traces.forecasts`). Rows of such prompts have no ``lookahead``. Read whenever the
      norm's lookahead is.
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
