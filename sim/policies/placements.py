"""Placements: where a need is computed."""

from __future__ import annotations

from collections.abc import Sequence

from sim.policies.base import Gate, Queued, Resident
from sim.types import Place


class Load:
    """Every need is computed on the device, its expert loaded if absent."""

    constant: int | None = Place.LOAD

    def place(self, gate: Gate, keys: Sequence[int], resident: Resident, queued: Queued) -> Sequence[int]:
        return [Place.LOAD] * len(keys)
