"""What the experts of a run compute: from blobs and a site's inputs, in any order, to what the site
adds up to.

A *live* run computes the model's own inputs. In a replay nobody knows them: experts get rows of
noise, so that they take as long as they would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from real.store.experts import ExpertForm, Tensors, add_up, rows_of
from real.store.neurons import PAIRS, UP, Numbers, of_neurons
from real.store.store import Store
from sim.values.types import Geometry

MOST_DRAWN = 2048
"""Rows of stand-in weights that are random."""


@dataclass(frozen=True)
class Weights:
    """A store, what its experts compute, and in which dtype. ``dense_params``: what stands in for
    the dense work of each site, and last of the head, where no model does it.
    """

    store: Store
    forms: Sequence[ExpertForm]
    dtype: torch.dtype
    hidden: int
    dense_params: Sequence[int]


@dataclass(frozen=True)
class SiteInputs:
    """What a site's experts are to compute: ``hidden`` [T, H], ``ids`` and ``weights`` [T, K]."""

    site: int
    hidden: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor


class ExpertWork:
    """The experts of one run, one site after another. Each output has a buffer of its own until
    the site ends.
    """

    def __init__(self, weights: Weights, geometry: Geometry) -> None:
        self.weights, self._geometry = weights, geometry
        self._inputs: SiteInputs | None = None
        self._outputs: dict[int, torch.Tensor] = {}
        self._dense: torch.Tensor | None = None
        self.resident = weights.store.read_resident()
        """What no slot holds of the experts, [distinct, bytes]."""
        draw = torch.Generator().manual_seed(0)
        self._noise = torch.randn(1, weights.hidden, generator=draw).to(weights.dtype)

    def begin_site(self, inputs: SiteInputs) -> None:
        self._inputs, self._outputs = inputs, {}

    def end_site(self) -> torch.Tensor:
        """What the site's experts add up to [T, H], in the model's own order; what was not
        computed adds nothing.
        """
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
    def run(
        self, key: int, blob: torch.Tensor, rows: torch.Tensor, neurons: Numbers | None = None
    ) -> None:
        """Compute an expert from a variant's bytes; of an expert that has come in part, what
        these ``neurons`` make.
        """
        output = self.output(key, blob, rows, neurons)
        if self._inputs is not None:
            self._outputs[self._geometry.expert_of(key)] = output

    def output(
        self, key: int, blob: torch.Tensor, rows: torch.Tensor, neurons: Numbers | None = None
    ) -> torch.Tensor:
        """What an expert makes of rows [n, H]."""
        return self._output(key, blob, rows, neurons, self.resident)

    def _output(
        self,
        key: int,
        blob: torch.Tensor,
        rows: torch.Tensor,
        neurons: Numbers | None,
        resident: torch.Tensor | None,
    ) -> torch.Tensor:
        g, weights = self._geometry, self.weights
        tensors: Tensors = weights.store.decode(g.precision_of(key), blob, weights.dtype)
        form = weights.forms[g.site_of(key)]
        if resident is not None:
            pairs, up = tensors[PAIRS], self._up(g.site_of(key), g.expert_of(key), resident)
            if neurons is not None:
                pairs, up = pairs[: len(neurons)], up[torch.from_numpy(neurons).to(up.device)]
            tensors = of_neurons(form, pairs, up)
        return form.forward(tensors, rows)

    def up_of(self, site: int, expert: int) -> torch.Tensor:
        """An expert's up projection [I, H], of experts that are stored by neuron."""
        assert self.resident is not None
        return self._up(site, expert, self.resident)

    def _up(self, site: int, expert: int, resident: torch.Tensor) -> torch.Tensor:
        """The same, from where it rests outside the slots."""
        header = self.weights.store.header
        assert header.resident is not None
        blob = resident[header.number(site, expert)]
        return header.resident.decode(blob, self.weights.dtype)[UP]

    @torch.no_grad()
    def run_dense(self, site: int, rows: int) -> None:
        """A product with as many stand-in parameters as a site's dense part, or the head (-1),
        has.
        """
        weights = self.weights
        outputs = [max(1, params // weights.hidden) for params in weights.dense_params]
        if self._dense is None:
            # The same rows again and again: a head of Mixtral's size would take seconds to draw.
            drawn = torch.randn(
                min(max(outputs), MOST_DRAWN),
                weights.hidden,
                generator=torch.Generator().manual_seed(1),
            )
            times = -(-max(outputs) // len(drawn))
            self._dense = drawn.to(weights.dtype).repeat(times, 1)[: max(outputs)].contiguous()
        torch.nn.functional.linear(self._noise.expand(rows, -1), self._dense[: outputs[site]])
