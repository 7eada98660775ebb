"""Placements: where a need is computed."""

from __future__ import annotations

from collections.abc import Sequence

from sim.policies.base import Gate, Placement, Queued, Resident
from sim.policies.requires import Given
from sim.values.types import Place
from sim.values.units import require_number

LONGEST_DECISION_US = 3600e6
"""A longer decision after every gate is taken for a slip of a setting."""
OBJECTIVES = ("sum", "max")
WHEN = ("always", "decode")
SCALES = ("none", "experts")
DECODE = 1
"""The phase of a decoded row. It equals `sim.traces.trace.DECODE`, which this layer may not
import.
"""


class Load(Placement):
    """Every need is computed on the device; an absent expert is loaded."""

    constant: int | None = Place.LOAD

    def place(
        self, gate: Gate, keys: Sequence[int], resident: Resident, queued: Queued
    ) -> Sequence[int]:
        return [Place.LOAD] * len(keys)


class AbsentOnCpu(Placement):
    """An absent expert is computed on the CPU if at most ``up_to_tokens`` rows chose it, else
    loaded.

    ``up_to_tokens`` None: on the CPU for any number of rows. ``when: decode``: gates that have a
    row of a prompt load all absent experts.
    """

    uses_cpu = True

    def __init__(self, up_to_tokens: int | None = None, when: str = "always") -> None:
        if up_to_tokens is not None:
            require_number("placement.up_to_tokens", up_to_tokens, minimum=1, whole=True)
        if when not in WHEN:
            raise ValueError(f"unknown placement.when={when}; known: {', '.join(WHEN)}")
        self.up_to_tokens, self.when = up_to_tokens, when

    def place(
        self, gate: Gate, keys: Sequence[int], resident: Resident, queued: Queued
    ) -> Sequence[int]:
        if self.when == "decode" and (gate.row_phase != DECODE).any():
            return [Place.LOAD] * len(keys)
        if self.up_to_tokens is None:
            return [Place.CPU] * len(keys)
        tokens = dict(zip(gate.needs, gate.tokens, strict=True))
        return [
            Place.CPU if tokens[resident.expert_of(key)] <= self.up_to_tokens else Place.LOAD
            for key in keys
        ]


class CpuForSmallBatches(Placement):
    """An absent expert is computed on the CPU in gates of fewer than ``min_rows`` rows, else loaded
    (contract C146).

    ``scale: experts`` multiplies ``min_rows`` by the experts of a layer over those that a token
    chooses. An expert of such a gate has ``min_rows`` rows on average.

    Source: ggml-org/llama.cpp, ``ggml_backend_cuda_device_offload_op`` (``GGML_OP_OFFLOAD_MIN_BATCH``,
    32 rows); scaled in ikawrakow/ik_llama.cpp, pull request 520.
    """

    uses_cpu = True

    def __init__(self, min_rows: int = 32, scale: str = "none") -> None:
        require_number("placement.min_rows", min_rows, whole=True)
        if scale not in SCALES:
            raise ValueError(f"unknown placement.scale={scale}; known: {', '.join(SCALES)}")
        self.min_rows, self.scale = min_rows, scale
        self._experts = self._top_k = 1

    def prepare(self, given: Given) -> None:
        if self.scale == "experts":
            self._experts, self._top_k = given.shape.experts, given.shape.top_k

    def place(
        self, gate: Gate, keys: Sequence[int], resident: Resident, queued: Queued
    ) -> Sequence[int]:
        is_small = len(gate.experts) * self._top_k < self.min_rows * self._experts
        return [Place.CPU if is_small else Place.LOAD] * len(keys)


class CpuByCost(Placement):
    """An absent expert is computed on the CPU or loaded, whichever costs less.

    The CPU costs ``cpu_per_token`` for each of its rows, a load costs ``load``, in any common unit.
    ``objective: sum`` minimises the sum of all costs, so each expert is decided alone. ``max``
    minimises the larger of two sums, the CPU's and the loads', which run side by side. Of equal
    assignments the one with more loads is taken.

    ``us_per_assignment``: the host time in microseconds, after every gate, for each of the 2^E
    assignments that the published code enumerates. The decision here needs no enumeration.

    Source: Kamahori et al., Fiddler, arXiv:2402.07033, section 3.3; efeslab/fiddler@227715b (7 and
    70, the sum).
    """

    uses_cpu = True

    def __init__(
        self, cpu_per_token: float, load: float, objective: str, us_per_assignment: float = 0.0
    ) -> None:
        for name, value in (
            ("cpu_per_token", cpu_per_token),
            ("load", load),
            ("us_per_assignment", us_per_assignment),
        ):
            require_number(f"placement.{name}", value)
        if objective not in OBJECTIVES:
            raise ValueError(
                f"unknown placement.objective={objective}; known: {', '.join(OBJECTIVES)}"
            )
        self.cpu_per_token, self.load, self.objective = cpu_per_token, load, objective
        self.us_per_assignment = us_per_assignment

    def decision_us(self, experts: int) -> float:
        """As in `Placement`. Raise ValueError for more than ``LONGEST_DECISION_US``."""
        if not self.us_per_assignment:
            return 0.0
        decision_us = self.us_per_assignment * 2.0**experts
        if decision_us > LONGEST_DECISION_US:
            raise ValueError(
                f"placement.us_per_assignment={self.us_per_assignment:g}: 2^{experts} assignments"
                f" take {decision_us / 1e6:.2g} s after every gate; set it to 0 (the decision needs"
                " no enumeration)"
            )
        return decision_us

    def place(
        self, gate: Gate, keys: Sequence[int], resident: Resident, queued: Queued
    ) -> Sequence[int]:
        rows = dict(zip(gate.needs, gate.tokens, strict=True))
        tokens = [rows[resident.expert_of(key)] for key in keys]
        if self.objective == "sum":
            return [Place.CPU if self.cpu_per_token * n < self.load else Place.LOAD for n in tokens]
        absent = [
            at
            for at, key in enumerate(keys)
            if not resident.has(0, gate.site, resident.expert_of(key))
        ]
        # All loads cost the same, so for any number of loads it is best to load the experts of the
        # most rows.
        absent.sort(key=lambda at: (-tokens[at], at))
        on_cpu = self.cpu_per_token * sum(tokens[at] for at in absent)
        best, loads = on_cpu, 0
        for count, at in enumerate(absent, start=1):
            on_cpu -= self.cpu_per_token * tokens[at]
            if max(on_cpu, count * self.load) <= best:
                best, loads = max(on_cpu, count * self.load), count
        loaded = {*absent[:loads]}
        return [Place.LOAD if at in loaded else Place.CPU for at in range(len(keys))]


class SkipAbsent(Placement):
    """An absent expert is left out, as by a gate that is masked to the resident experts.

    Source: Kong et al., SwapMoE, arXiv:2308.15030: only the experts in memory ("virtual experts")
    are routed to.
    """

    def place(
        self, gate: Gate, keys: Sequence[int], resident: Resident, queued: Queued
    ) -> Sequence[int]:
        return [Place.SKIP] * len(keys)
