"""A predictor of small networks, one for each site: `capture.fit` trains them, numpy runs them
here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import Choice, FloatArray, Gate, IntArray
from sim.policies.fitted import FittedPredictor, require_array
from sim.policies.requires import Arrays, FitError, FitFile, Requires, Shape

INPUTS = ("ids", "scores", "gate_input")
NORM = "raw"
"""The norm of the lookahead scores that networks are trained on."""
COMMAND = "capture fit predictor=... trace.path=TRACE output_dir=TRACE/fits"
"""The command that trains the networks."""
Floats = NDArray[np.float32]


class LearnedPerSite(FittedPredictor):
    """At each site a network forecasts the experts of the site that comes ``stride`` sites later.

    A row's features are, in this order:

    1. What ``inputs`` names. ``gate_input``: the router's input itself [H]. ``scores``: the raw
       scores that the routers of the next ``score_sites`` sites give that input, as far as the
       stack goes. ``ids``: nothing.
    2. For each expert, 1 if this site selected it, else 0.
    3. The same for each of the ``history`` sites before (0 where the stack has none).

    The network is one linear layer, or two with a ReLU between them; the sigmoid of its outputs is
    the likeliness. With a stride of k the first k sites of a stack have no forecast.

    Source: Zhou et al., FloE, arXiv:2505.05950, section 3.3.1 (stride 1, gate input and the history
    of selections, from one layer to two towards the shallow sites); Song et al., ProMoE,
    arXiv:2410.22134 (the stride).
    """

    kind = "learned"

    def __init__(
        self,
        inputs: str = "scores",
        stride: int = 1,
        history: int = 1,
        score_sites: int = 3,
        experts: str | int = "top_k",
        artefact: str | None = None,
    ) -> None:
        super().__init__(experts, artefact)
        if inputs not in INPUTS:
            raise ValueError(f"unknown predictor.inputs={inputs!r}; known: {', '.join(INPUTS)}")
        for name, value, least in (
            ("stride", stride, 1),
            ("history", history, 0),
            ("score_sites", score_sites, 1),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"predictor.{name}={value!r} must be a whole number >= {least}")
        self.inputs, self.stride, self.history = inputs, stride, history
        self.score_sites = score_sites if inputs == "scores" else 0

    @property
    def parameters(self) -> dict[str, str | int]:
        return {
            "inputs": self.inputs,
            "stride": self.stride,
            "history": self.history,
            "score_sites": self.score_sites,
        }

    @property
    def requires(self) -> Requires:
        return Requires(
            lookahead_sites=self.score_sites,
            row_scores=NORM if self.score_sites else None,
            gate_inputs=self.inputs == "gate_input",
            recorded=self.reads,
            fit=FitFile(self.kind, self.parameters, self.artefact, command=COMMAND),
        )

    def sources(self, shape: Shape) -> list[int]:
        """The sites that forecast another site."""
        return [site for site in range(shape.sites) if site + self.stride <= shape.last(site)]

    def features(
        self, shape: Shape, given: FloatArray | None, selections: Sequence[IntArray]
    ) -> Floats:
        """The features [R, F] of rows.

        ``given`` [R, G]: what they read beside selections, None for nothing. ``selections``: an
        array [R, K] of this site, and of each site before it that there is, latest first.
        """
        rows = len(selections[0])
        parts = [] if given is None else [given.astype(np.float32)]
        for back in range(self.history + 1):
            member = np.zeros((rows, shape.experts + 1), np.float32)
            if back < len(selections):
                member[np.arange(rows)[:, None], selections[back]] = (
                    1  # -1 falls into the column behind
                )
            parts.append(member[:, :-1])
        return np.concatenate(parts, axis=1)

    def num_given(self, shape: Shape, site: int, hidden: int) -> int:
        """How many features a site has beside the selections. ``hidden``: the width of a gate
        input.
        """
        reach = min(self.score_sites, shape.last(site) - site)
        return {"ids": 0, "scores": reach * shape.experts, "gate_input": hidden}[self.inputs]

    def _take(self, shape: Shape, arrays: Arrays) -> None:
        self._layers: dict[int, list[tuple[Floats, Floats]]] = {}
        for site in self.sources(shape):
            layers = 2 if f"site{site}_w1" in arrays else 1
            self._layers[site] = []
            width: int | None = None
            for layer in range(layers):
                out = shape.experts if layer == layers - 1 else None
                weight = require_array(arrays, f"site{site}_w{layer}", (width, out), "f").astype(
                    np.float32
                )
                bias = require_array(
                    arrays, f"site{site}_b{layer}", (weight.shape[1],), "f"
                ).astype(np.float32)
                self._layers[site].append((weight, bias))
                width = weight.shape[1]
            given = len(self._layers[site][0][0]) - (self.history + 1) * shape.experts
            if given < 0 or (
                self.inputs != "gate_input" and given != self.num_given(shape, site, 0)
            ):
                raise FitError(
                    f"array site{site}_w0 of the fit takes {given} features beside the selections,"
                    f" not {self.num_given(shape, site, 0)}; fit again"
                )

    def likeliness(self, site: int, features: FloatArray) -> Floats:
        """The likelinesses [R, E] of the site that ``site`` forecasts, from the features [R, F]."""
        values: Floats = features.astype(np.float32)
        for layer, (weight, bias) in enumerate(self._layers[site]):
            values = (np.maximum(values, 0) if layer else values) @ weight + bias
        return np.asarray(1 / (1 + np.exp(-np.clip(values, -60, 60))), np.float32)

    def forget(self) -> None:
        self._step = -1
        self._seen: list[IntArray] = []

    def _predict(self, gate: Gate, shape: Shape) -> Iterable[Choice]:
        if gate.site not in self._layers:
            return
        given = None
        if self.inputs != "ids":
            given = self._given(gate, shape)
            if given is None:
                return
        earlier = self._seen if gate.step == self._step else []
        features = self.features(shape, given, [gate.experts, *earlier[: self.history]])
        yield from self._forecast(
            gate.site + self.stride, shape, self.likeliness(gate.site, features)
        )

    def _given(self, gate: Gate, shape: Shape) -> FloatArray | None:
        if self.inputs == "gate_input":
            return gate.gate_input
        ahead = [
            gate.lookahead(j)
            for j in range(1, min(self.score_sites, shape.last(gate.site) - gate.site) + 1)
        ]
        there = [scores for scores in ahead if scores is not None]
        return np.concatenate(there, axis=1) if len(there) == len(ahead) else None

    def observe(self, gate: Gate) -> None:
        earlier = self._seen[: max(self.history - 1, 0)] if gate.step == self._step else []
        self._seen = [gate.experts, *earlier]
        self._step = gate.step
