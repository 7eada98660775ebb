"""A predictor by importance: which experts of a site got most gate weight recently."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import Choice, Gate
from sim.policies.fitted import FittedPredictor
from sim.policies.placements import DECODE
from sim.policies.requires import Arrays, Shape
from sim.values.units import require_flag, require_range


class RecentImportance(FittedPredictor):
    """Forecasts the experts of the gate's own site for its next step: those that its router gave
    most weight recently.

    An expert's importance is the sum of the gate weights that rows gave it, this gate's included.
    At each further gate of the site a weight is worth ``decay`` times as much; with 0 only this
    gate's count. Without ``prompts`` nothing is forecast in a step that has rows of prompts. The
    router's own choices count, whichever expert serves them. Nothing is fitted beforehand, and nothing is
    forgotten between sequences.

    Source: Kong et al., SwapMoE, arXiv:2308.15030: the experts in memory follow importance, beside
    the computation; its importance is weight times norm, over a window.
    """

    kind = "importance"

    def __init__(
        self, decay: float = 0.98, experts: str | int = "top_k", prompts: bool = True
    ) -> None:
        super().__init__(experts)
        require_range("predictor.decay", decay, 0.0, 1.0, "a share")
        require_flag("predictor.prompts", prompts)
        self.decay, self.prompts = decay, prompts

    @property
    def needs_artefact(self) -> bool:
        return False

    def _take(self, shape: Shape, arrays: Arrays) -> None:
        pass

    def forget(self) -> None:
        assert self.shape is not None
        self._importance = np.zeros((self.shape.sites, self.shape.experts))

    def _with(self, gate: Gate) -> NDArray[np.float64]:
        """[E]: the site's importances after this gate."""
        found: NDArray[np.float64] = self._importance[gate.site] * self.decay
        chosen = gate.experts >= 0
        np.add.at(found, gate.experts[chosen], gate.weights[chosen])
        return found

    def _predict(self, gate: Gate, shape: Shape) -> Iterable[Choice]:
        if not self.prompts and (gate.row_phase != DECODE).any():
            return ()
        return self._forecast(gate.site, shape, self._with(gate)[None])

    def observe(self, gate: Gate) -> None:
        self._importance[gate.site] = self._with(gate)
