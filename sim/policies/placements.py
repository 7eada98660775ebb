"""Placements: where a need is computed."""

from __future__ import annotations

from collections.abc import Sequence

from sim.policies.base import Gate, Queued, Resident
from sim.types import Place
from sim.units import require_number


class Load:
    """Every need is computed on the device, its expert loaded if absent."""

    constant: int | None = Place.LOAD

    def place(self, gate: Gate, keys: Sequence[int], resident: Resident, queued: Queued) -> Sequence[int]:
        return [Place.LOAD] * len(keys)


class AbsentOnCpu:
    """What is absent is computed on the CPU, if no more than ``up_to_tokens`` rows chose it; else it is loaded.

    ``up_to_tokens`` None: whatever the number of rows.
    """

    constant: int | None = None

    def __init__(self, up_to_tokens: int | None = None) -> None:
        if up_to_tokens is not None:
            require_number("placement.up_to_tokens", up_to_tokens, minimum=1, whole=True)
        self.up_to_tokens = up_to_tokens

    def place(self, gate: Gate, keys: Sequence[int], resident: Resident, queued: Queued) -> Sequence[int]:
        if self.up_to_tokens is None:
            return [Place.CPU] * len(keys)
        tokens = dict(zip(gate.needs, gate.tokens, strict=True))
        return [Place.CPU if tokens[resident.expert_of(key)] <= self.up_to_tokens else Place.LOAD for key in keys]
