"""What the experts of a run compute: from their bytes and a site's inputs to the site's sum.

In a *live* run experts compute the model's own inputs. A replay does not know them, so experts get
rows of noise and take as long as they would with real ones. Experts may be computed in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from real.store.experts import ExpertForm, Tensors
from real.store.neurons import PAIRS, UP, Numbers, of_neurons
from real.store.store import Store
from real.store.swapping import add_up, rows_of
from sim.values.types import Geometry

MOST_DRAWN = 2048
"""How many rows of stand-in weights are random; they repeat from there on."""


@dataclass(frozen=True)
class Weights:
    """A store, what its experts compute, and in which dtype.

    ``dense_params``: how many stand-in parameters take the place of each site's dense work where no
    model does it; the last number is the head's.
    """

    store: Store
    forms: Sequence[ExpertForm]
    dtype: torch.dtype
    hidden: int
    dense_params: Sequence[int]


@dataclass(frozen=True)
class SiteInputs:
    """The inputs of a site's experts: ``hidden`` [T, H], ``ids`` and ``weights`` [T, K]."""

    site: int
    hidden: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor


class ExpertWork:
    """The experts of one run, one site after another.

    Each output has a buffer of its own until the site ends.
    """

    def __init__(self, weights: Weights, geometry: Geometry) -> None:
        self.weights, self._geometry = weights, geometry
        self._inputs: SiteInputs | None = None
        self._outputs: dict[int, torch.Tensor] = {}
        self._dense: torch.Tensor | None = None
        self.resident = weights.store.read_resident()
        """The parts of experts that no slot holds, uint8 [distinct, bytes]; else None."""
        draw = torch.Generator().manual_seed(0)
        self._noise = torch.randn(1, weights.hidden, generator=draw).to(weights.dtype)

    def begin_site(self, inputs: SiteInputs) -> None:
        self._inputs, self._outputs = inputs, {}

    def end_site(self) -> torch.Tensor:
        """The sum [T, H] of the site's experts, added in the model's own order.

        Experts that were not computed add nothing.
        """
        inputs = self._inputs
        assert inputs is not None
        form = self.weights.forms[inputs.site]
        return add_up(form, inputs.hidden, inputs.ids, inputs.weights, self._outputs)

    def rows(self, key: int, count: int) -> torch.Tensor:
        """The rows [n, H] that an expert is to compute; of noise in a replay."""
        if self._inputs is None:
            return self._noise.expand(count, -1)
        return self._inputs.hidden[rows_of(self._inputs.ids, self._geometry.expert_of(key))[0]]

    @torch.no_grad()
    def run(
        self, key: int, blob: torch.Tensor, rows: torch.Tensor, neurons: Numbers | None = None
    ) -> None:
        """Compute an expert from a variant's bytes, and keep the output for the site's sum.

        ``neurons``: those that the bytes hold of an expert that has come in part; None: all.
        """
        output = self.output(key, blob, rows, neurons)
        if self._inputs is not None:
            self._outputs[self._geometry.expert_of(key)] = output

    def output(
        self, key: int, blob: torch.Tensor, rows: torch.Tensor, neurons: Numbers | None = None
    ) -> torch.Tensor:
        """An expert's output for rows [n, H], before its gate weight; ``neurons`` as in `run`."""
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
        """The same, read from where the parts outside the slots rest."""
        header = self.weights.store.header
        assert header.resident is not None
        blob = resident[header.number(site, expert)]
        return header.resident.decode(blob, self.weights.dtype)[UP]

    @torch.no_grad()
    def run_dense(self, site: int, rows: int) -> None:
        """Multiply rows of noise by stand-in weights in the place of dense work.

        They have as many parameters as the dense part of ``site`` has, or the head (-1).
        """
        weights = self.weights
        outputs = [max(1, params // weights.hidden) for params in weights.dense_params]
        if self._dense is None:
            # Repeated rows: those of a head of Mixtral's size would take seconds to draw.
            drawn = torch.randn(
                min(max(outputs), MOST_DRAWN),
                weights.hidden,
                generator=torch.Generator().manual_seed(1),
            )
            times = -(-max(outputs) // len(drawn))
            self._dense = drawn.to(weights.dtype).repeat(times, 1)[: max(outputs)].contiguous()
        torch.nn.functional.linear(self._noise.expand(rows, -1), self._dense[: outputs[site]])
