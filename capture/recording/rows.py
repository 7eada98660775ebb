"""The recorded rows, as arrays over token-rows and sites on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Rows:
    """Recorded token-rows, N of them, over S sites.

    Columns [N] and [N, S, ..] are those of `sim.traces.trace.Trace`. Inputs are [N, S, H] in the
    model's dtype: ``gate_in`` is what the router is fed, ``expert_in`` what the experts are fed
    (None: the same), ``attn_in`` what the attention, or whatever mixes tokens, in the site's layer
    is fed.

    Columns that were not asked for are None. At sites that a row does not visit (the decoder's, for
    a row of the encoder) ids are -1, weights 0, and the rest NaN.
    """

    step: Array
    phase: Array
    sequence: Array
    position: Array
    token: Array
    valid: Array
    ids: Array
    weights: Array
    logits: Array | None = None
    gate_in: torch.Tensor | None = None
    expert_in: torch.Tensor | None = None
    attn_in: torch.Tensor | None = None

    @property
    def expert_inputs(self) -> torch.Tensor | None:
        """What the experts are fed, whether or not the router is fed the same."""
        return self.gate_in if self.expert_in is None else self.expert_in


TOKEN_COLUMNS = ("step", "phase", "sequence", "position", "token", "valid")
INPUTS = ("gate_in", "expert_in", "attn_in")


def join_rows(parts: Sequence[Rows]) -> Rows:
    """The parts' rows, one part after the other.

    Raise ValueError unless all parts have the same columns.
    """
    joined: dict[str, Any] = {}
    for item in fields(Rows):
        values = [getattr(part, item.name) for part in parts]
        if any(value is None for value in values):
            if not all(value is None for value in values):
                raise ValueError(f"column {item.name} was recorded in only some of the parts")
            joined[item.name] = None
        else:
            joined[item.name] = torch.cat(values) if item.name in INPUTS else np.concatenate(values)
    return Rows(**joined)
