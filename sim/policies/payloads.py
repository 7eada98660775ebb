"""Payloads: they say how many of a variant's bytes an access moves."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sim.policies.base import Choice, FloatArray, Gate, Payload
from sim.policies.fitted import require_array
from sim.policies.requires import Arrays, FitError, FitFile, Given, Requires
from sim.values.types import Geometry
from sim.values.units import require_number

SHARES = ("recorded", "nominal")
MISSED = ("dropped", "fetched")
COMMAND = "capture channels model=DIR trace=..."
"""The command that records which channels each row makes active."""


class Whole(Payload):
    """Every access moves the whole variant."""

    whole = True

    def moved_bytes(self, key: int, gate: Gate, index: int) -> int:
        raise NotImplementedError("a whole payload is never asked")

    def forecast_bytes(self, key: int, choice: Choice, index: int, gate: Gate) -> int:
        raise NotImplementedError("a whole payload is never asked")

    def missing_bytes(self, key: int, gate: Gate, index: int, moved_bytes: int) -> int:
        raise NotImplementedError("a whole payload is never asked")


class WholeLayer(Whole):
    """A load brings its whole layer along: a gate's needs share the bytes of all experts evenly.

    A framework that does not know which experts it needs moves a layer so. The share of a need is
    moved whenever the need is absent: its own bytes, and those of the experts that nobody needs,
    dealt to the needs in turn by ascending id. Experts may differ in width, but each has one width
    only.

    Source: transformers 4.40 to 4.45 under accelerate call every expert, each loading its own
    weights; DeepSpeed gathers the MoE block as one leaf module (efeslab/fiddler@227715b,
    benchmarks/eval-baseline.py).
    """

    whole = False

    def prepare(self, given: Given) -> None:
        """Raise ValueError where an expert may move at several precisions: an expert that nobody
        chose has no wanted precision.
        """
        geometry = given.geometry
        stored = range(geometry.experts - geometry.null_experts)
        planes, missing = range(len(geometry.precisions)), geometry.missing
        self._sizes: list[list[int]] = []
        """By site, the bytes of each stored expert."""
        for site in range(geometry.sites):
            keys = [
                [key for p in planes if (key := geometry.key(p, site, e)) not in missing]
                for e in stored
            ]
            if any(len(of_expert) != 1 for of_expert in keys):
                raise ValueError(
                    "payload=whole_layer brings experts that nobody chose, at no precision of "
                    f"{', '.join(geometry.precisions)}; choose a fixed one, or precision=per_expert"
                )
            self._sizes.append([geometry.bytes_of(key) for (key,) in keys])
        self._common = [sizes[0] if len(set(sizes)) == 1 else 0 for sizes in self._sizes]

    def moved_bytes(self, key: int, gate: Gate, index: int) -> int:
        return self._share_out(gate, index)

    def forecast_bytes(self, key: int, choice: Choice, index: int, gate: Gate) -> int:
        return self._share_out(choice, index)

    def _share_out(self, choice: Choice, index: int) -> int:
        sizes, needs = self._sizes[choice.site], choice.needs
        if common := self._common[choice.site]:
            each, extra = divmod(len(sizes), len(needs))
            return (each + (index < extra)) * common
        others = [size for expert, size in enumerate(sizes) if expert not in needs]
        return sizes[needs[index]] + sum(others[index :: len(needs)])

    def missing_bytes(self, key: int, gate: Gate, index: int, moved_bytes: int) -> int:
        return 0


class ActiveShare(Whole):
    """A gate of one row moves only the channels of an expert that the row makes active; a gate of
    several rows moves whole experts.

    ``sparsity``: the share of channels below the threshold. ``shares: recorded`` takes each
    access's active share from the trace, at that sparsity; ``nominal`` takes 1 - sparsity, as does
    a token that the trace recorded in a prompt, without any shares. A forecast always takes the
    nominal share. Channels that a prefetch lacks are left out, not fetched.

    Source: Zhou et al., FloE, arXiv:2505.05950, sections 3.2.1 and 3.3.2.
    """

    whole = False
    partial = True

    def __init__(self, sparsity: float, shares: str = "recorded") -> None:
        require_number("payload.sparsity", sparsity)
        if not 0 <= sparsity < 1:
            raise ValueError(
                f"payload.sparsity={sparsity} must be at least 0 and below 1: the share of idle"
                " channels"
            )
        if shares not in SHARES:
            raise ValueError(f"unknown payload.shares={shares}; known: {', '.join(SHARES)}")
        self.sparsity, self.active_share = sparsity, 1 - sparsity
        self._recorded = shares == "recorded"
        self._column = -1

    @property
    def requires(self) -> Requires:
        return Requires(active_shares=self._recorded)

    def prepare(self, given: Given) -> None:
        """Raise ValueError if the trace has no active shares at this sparsity."""
        self._geometry: Geometry = given.geometry
        if self._recorded:
            sparsities = list(given.sparsities)
            if self.sparsity not in sparsities:
                raise ValueError(
                    f"the trace records active shares at sparsities {sparsities}, not at"
                    f" payload.sparsity={self.sparsity:g}; choose one of these, or"
                    " payload=active_share_nominal"
                )
            self._column = sparsities.index(self.sparsity)

    def moved_bytes(self, key: int, gate: Gate, index: int) -> int:
        if len(gate.experts) > 1:
            return self._geometry.bytes_of(key)
        recorded: FloatArray | None = gate.share if self._recorded else None
        share = self.active_share if recorded is None else float(recorded[0, index, self._column])
        # Experts without channels (attention experts) have no recorded share, and move whole.
        return self._bytes(key, 1.0 if math.isnan(share) else share)

    def forecast_bytes(self, key: int, choice: Choice, index: int, gate: Gate) -> int:
        return (
            self._geometry.bytes_of(key)
            if len(choice.experts) > 1
            else self._bytes(key, self.active_share)
        )

    def missing_bytes(self, key: int, gate: Gate, index: int, moved_bytes: int) -> int:
        return self._geometry.bytes_of(key) - moved_bytes if len(gate.experts) > 1 else 0

    def _bytes(self, key: int, share: float) -> int:
        whole = self._geometry.bytes_of(key)
        return min(whole, max(1, round(share * whole)))


class ReusedChannels(ActiveShare):
    """As `ActiveShare`, but a prefetch moves the channels that a gate's own input makes active in
    the next site's up projections: the same matrices are used one layer early.

    ``missed`` is about active channels that the forecast did not name: ``dropped`` leaves them out,
    ``fetched`` moves them on demand.

    A fit records which channels were named and found, for the rows whose gate inputs the trace
    keeps. Other rows, and forecasts beyond the next site, move the nominal share. ``artefact``: the
    .json file of the fit; None is the one that comes with the project for the trace, if any.

    Source: Zhou et al., FloE, arXiv:2505.05950, section 3.3.2 (reused-based intra-expert predictor;
    that what it misses is left out is our reading).
    """

    kind = "channels"

    def __init__(
        self, sparsity: float, missed: str = "dropped", artefact: str | None = None
    ) -> None:
        super().__init__(sparsity)
        if missed not in MISSED:
            raise ValueError(f"unknown payload.missed={missed}; known: {', '.join(MISSED)}")
        self.missed, self.artefact = missed, artefact
        self._place: dict[tuple[int, int], int] = {}

    @property
    def requires(self) -> Requires:
        fit = FitFile(self.kind, None, self.artefact, command=COMMAND, optional=True, learnt=False)
        return replace(super().requires, fit=fit)

    def prepare(self, given: Given) -> None:
        super().prepare(given)
        if given.has_fit:
            self.know(given.fit.arrays)

    def know(self, arrays: Arrays) -> None:
        """Take what was recorded of M rows, whose ``sequence`` [M] and ``position`` [M] are given.

        Three arrays [M, S, E, P] count channels by row, site, expert and sparsity, each at most
        ``width`` [1]: ``named`` one site before; of the experts that the row chose, ``active``, and
        ``found``, those that are both. Raise `FitError` for other arrays.
        """
        sequence, position = (
            require_array(arrays, name, (None,), "u") for name in ("sequence", "position")
        )
        sites, experts = self._geometry.sites, self._geometry.experts
        shape = (len(sequence), sites, experts, None)
        counts = [
            require_array(arrays, name, shape, "u")[..., self._column]
            for name in ("named", "found", "active")
        ]
        self._named, self._found, self._active = counts
        self._width = int(require_array(arrays, "width", (1,), "u")[0])
        if (
            len(position) != len(sequence)
            or self._width < 1
            or max(int(c.max(initial=0)) for c in counts) > self._width
        ):
            raise FitError(
                f"channels of {len(sequence)} rows: counts must be of width={self._width} at most"
            )
        self._place = {
            at: m for m, at in enumerate(zip(sequence.tolist(), position.tolist(), strict=True))
        }

    def forecast_bytes(self, key: int, choice: Choice, index: int, gate: Gate) -> int:
        place = (
            self._row(gate) if choice.site == gate.site + 1 and len(choice.experts) == 1 else None
        )
        if place is None:
            return super().forecast_bytes(key, choice, index, gate)
        return self._bytes(
            key, int(self._named[place, choice.site, choice.needs[index]]) / self._width
        )

    def missing_bytes(self, key: int, gate: Gate, index: int, moved_bytes: int) -> int:
        place = self._row(gate) if len(gate.experts) == 1 and self.missed == "fetched" else None
        if place is None or not gate.site:
            return super().missing_bytes(key, gate, index, moved_bytes)
        at = (place, gate.site, gate.needs[index])
        lacking = int(self._active[at]) - int(self._found[at])
        return (
            min(self._bytes(key, lacking / self._width), self._geometry.bytes_of(key) - moved_bytes)
            if lacking
            else 0
        )

    def told(self, sequences: Collection[int]) -> Mapping[str, Any]:
        """``channels``: how good the forecasts of channels were, whether or not anything was moved
        for them.

        Of the channels that rows made active after the first site, ``recall`` is the share that was
        named; ``precision`` is the share of named channels that became active. ``rows``: of so
        many.
        """
        rows, active, found, named = self.channel_counts(sequences)
        channels = {
            "missed": self.missed,
            "rows": rows,
            "recall": found / active if active else None,
            "precision": found / named if named else None,
        }
        return {"channels": channels}

    def _row(self, gate: Gate) -> int | None:
        return self._place.get((int(gate.row_sequence[0]), int(gate.row_position[0])))

    def channel_counts(self, sequences: Iterable[int]) -> tuple[int, int, int, int]:
        """Four counts over the rows of these sequences: rows that are known; and, after the first
        site, the channels that were active, those of them that were named before, and all that were
        named for the same experts.
        """
        numbers = set(sequences)
        rows = [m for (sequence, _), m in self._place.items() if sequence in numbers]
        if not rows:
            return 0, 0, 0, 0
        active, found, named = (
            c[rows, 1:].astype(np.int64) for c in (self._active, self._found, self._named)
        )
        return len(rows), int(active.sum()), int(found.sum()), int(named[active > 0].sum())
