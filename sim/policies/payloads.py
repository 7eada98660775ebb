"""Payloads: how many of a variant's bytes an access moves."""

from __future__ import annotations

from collections.abc import Sequence

from sim.policies.base import Choice, FloatArray, Gate
from sim.types import Geometry
from sim.units import require_number

SHARES = ("recorded", "nominal")


class Whole:
    """Every access moves the whole variant."""

    whole = True
    active_share = 1.0
    """Of what moves, the share of weights that one token reads."""
    needs_shares = False
    """It reads the active shares of the trace: one that lacks them is refused."""

    def prepare(self, geometry: Geometry, sparsities: Sequence[float]) -> None:
        """Called once, before the run: the variants' bytes, and what the active shares of the trace stand for."""

    def moved_bytes(self, key: int, choice: Choice, index: int) -> int:
        raise NotImplementedError("a whole payload is never asked")

    def missing_bytes(self, key: int, gate: Gate, index: int, moved_bytes: int) -> int:
        raise NotImplementedError("a whole payload is never asked")


class WholeLayer(Whole):
    """What a gate loads brings its whole layer along: its needs share out the bytes of all experts, evenly.

    So a framework moves a layer that does not know which experts it needs. A layer is loaded as often as one of its
    needs is absent, each need's share at a time.

    Source: transformers 4.40 to 4.45 under accelerate call every expert, each loading its own weights; DeepSpeed
    gathers the MoE block as one leaf module (efeslab/fiddler@227715b, benchmarks/eval-baseline.py).
    """

    whole = False

    def prepare(self, geometry: Geometry, sparsities: Sequence[float]) -> None:
        self._geometry = geometry

    def moved_bytes(self, key: int, choice: Choice, index: int) -> int:
        each, extra = divmod(self._geometry.experts, len(choice.needs))
        return (each + (index < extra)) * self._geometry.bytes_of(key)

    def missing_bytes(self, key: int, gate: Gate, index: int, moved_bytes: int) -> int:
        return 0


class ActiveShare(Whole):
    """One row moves only the channels of an expert that it makes active; several rows move all of it.

    ``sparsity``: the share of channels below the threshold. ``shares``: ``recorded`` takes each access's from the
    trace's active shares at that sparsity, ``nominal`` is 1 - sparsity throughout, as forecasts are in any case. What a
    prefetch lacks of its row's channels is left out, not fetched.

    Source: Zhou et al., FloE, arXiv:2505.05950, sections 3.2.1 and 3.3.2.
    """

    whole = False

    def __init__(self, sparsity: float, shares: str = "recorded") -> None:
        require_number("payload.sparsity", sparsity)
        if not 0 <= sparsity < 1:
            raise ValueError(f"payload.sparsity={sparsity} must be at least 0 and below 1: the share of idle channels")
        if shares not in SHARES:
            raise ValueError(f"unknown payload.shares={shares}; known: {', '.join(SHARES)}")
        self.sparsity, self.active_share = sparsity, 1 - sparsity
        self.needs_shares = shares == "recorded"
        self._column = -1

    def prepare(self, geometry: Geometry, sparsities: Sequence[float]) -> None:
        """Raise ValueError if the trace has no active shares at this sparsity."""
        self._geometry = geometry
        if self.needs_shares:
            if self.sparsity not in sparsities:
                raise ValueError(
                    f"the trace records active shares at sparsities {list(sparsities)}, not at "
                    f"payload.sparsity={self.sparsity:g}; choose one of these, or payload.shares=nominal"
                )
            self._column = list(sparsities).index(self.sparsity)

    def moved_bytes(self, key: int, choice: Choice, index: int) -> int:
        whole = self._geometry.bytes_of(key)
        if len(choice.experts) > 1:
            return whole
        share = self.active_share
        # Only a gate knows them: a forecast has none.
        recorded: FloatArray | None = getattr(choice, "share", None) if self.needs_shares else None
        if recorded is not None:
            share = float(recorded[0, index, self._column])
        return min(whole, max(1, round(share * whole)))

    def missing_bytes(self, key: int, gate: Gate, index: int, moved_bytes: int) -> int:
        return self._geometry.bytes_of(key) - moved_bytes if len(gate.experts) > 1 else 0
