"""What the experts of a run compute: from blobs and a site's inputs, in any order, to what the site adds up to.

A *live* run computes the model's own inputs. In a replay nobody knows them: experts get rows of noise, so that they
take as long as they would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from real.experts_swap import ExpertForm, add_up, rows_of
from real.store import Store
from sim.types import Geometry


@dataclass(frozen=True)
class Weights:
    """A store, what its experts compute, in which dtype, and the sizes of stand-in dense work (parameters)."""

    store: Store
    forms: Sequence[ExpertForm]
    dtype: torch.dtype
    hidden: int
    site_params: int
    head_params: int


@dataclass(frozen=True)
class SiteInputs:
    """What a site's experts are to compute: ``hidden`` [T, H], ``ids`` and ``weights`` [T, K]."""

    site: int
    hidden: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor


class ExpertWork:
    """The experts of one run, one site after another. Each output has a buffer of its own until the site ends."""

    def __init__(self, weights: Weights, geometry: Geometry) -> None:
        self.weights, self._geometry = weights, geometry
        self._inputs: SiteInputs | None = None
        self._outputs: dict[int, torch.Tensor] = {}
        draw = torch.Generator().manual_seed(0)
        self._noise = torch.randn(1, weights.hidden, generator=draw).to(weights.dtype)

    def begin_site(self, inputs: SiteInputs) -> None:
        self._inputs, self._outputs = inputs, {}

    def end_site(self) -> torch.Tensor:
        """What the site's experts add up to [T, H], in the model's own order; what was not computed adds nothing."""
        inputs = self._inputs
        assert inputs is not None
        form = self.weights.forms[inputs.site]
        return add_up(form, inputs.hidden, inputs.ids, inputs.weights, self._outputs)

    def rows(self, key: int, count: int) -> torch.Tensor:
        """The rows [n, H] that an expert is to compute."""
        if self._inputs is None:
            return self._noise.expand(count, -1)
        return self._inputs.hidden[rows_of(self._inputs.ids, self._geometry.expert_of(key))[0]]

    @torch.no_grad()
    def run(self, key: int, blob: torch.Tensor, rows: torch.Tensor) -> None:
        """Compute an expert from a variant's bytes."""
        g, weights = self._geometry, self.weights
        tensors = weights.store.decode(g.precision_of(key), blob, weights.dtype)
        output = weights.forms[g.site_of(key)].forward(tensors, rows)
        if self._inputs is not None:
            self._outputs[g.expert_of(key)] = output

    @torch.no_grad()
    def run_dense(self, is_tail: bool, rows: int) -> None:
        """A product with as many stand-in parameters as a layer's dense part, or the head, has."""
        hidden, params = self.weights.hidden, self.weights.head_params if is_tail else self.weights.site_params
        if not hasattr(self, "_dense"):
            most = max(self.weights.head_params, self.weights.site_params) // hidden
            draw = torch.Generator().manual_seed(1)
            self._dense = torch.randn(max(1, most), hidden, generator=draw).to(self.weights.dtype)
        torch.nn.functional.linear(self._noise.expand(rows, -1), self._dense[: max(1, params // hidden)])
