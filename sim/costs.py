"""What a model costs on a machine: durations in whole ns, and the device memory it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sim.hardware import Hardware
from sim.model import PRECISION_BITS, Model
from sim.types import HostCosts, Step
from sim.units import GIB, gib


class Durations(Protocol):
    """What a driver needs to know about time on this machine for this model."""

    host: HostCosts
    prediction_ns: int
    """From a gate to its forecasts, where the predictor has a latency."""

    def dense_ns(self, step: Step) -> Sequence[int]:
        """The work before each site's gate, [S]."""

    def tail_ns(self, step: Step) -> int:
        """The work after the last site."""

    def expert_ns(self, precision: int, site: int, tokens: int) -> int:
        """Computing one expert for ``tokens`` rows."""

    def cpu_ns(self, precision: int, site: int, tokens: int) -> int:
        """The same on the CPU, with the round trip of its activations."""

    def hop_ns(self, link: int, moved_bytes: int) -> int:
        """One service on a link that nothing else shares."""

    def latency_ns(self, link: int) -> int:
        """The part of every service on a link that draws no bandwidth."""


class FixedDurations:
    """Durations given outright: for worked examples and tests. ``per_token_ns`` is added for every row of an expert."""

    def __init__(self, dense_ns: Sequence[int], tail_ns: int, expert_ns: Sequence[int], transfer_ns: dict[int, int],
                 per_token_ns: Sequence[int] | None = None) -> None:  # fmt: skip
        self._dense, self._tail, self._expert, self._transfer = dense_ns, tail_ns, expert_ns, transfer_ns
        self._per_token = per_token_ns or [0] * len(expert_ns)

    def dense_ns(self, step: Step) -> Sequence[int]:
        return self._dense

    def tail_ns(self, step: Step) -> int:
        return self._tail

    def expert_ns(self, precision: int, tokens: int) -> int:
        return self._expert[precision] + self._per_token[precision] * tokens

    def transfer_ns(self, moved_bytes: int) -> int:
        return self._transfer[moved_bytes]


class Roofline:
    """Durations of a model on a machine, precision by precision. Implements ``Durations``.

    A step of several sequences is charged attention over the longest of them. Prefill's causal attention reads half its
    own rows on average. The LM head runs for the last row of each sequence.
    """

    def __init__(self, model: Model, hardware: Hardware, precisions: Sequence[str]) -> None:
        self.model, self.hardware = model, hardware
        self._bits = [PRECISION_BITS[precision] for precision in precisions]
        self._expert: dict[tuple[int, int], int] = {}
        self._dense: dict[tuple[int, int], int] = {}

    def dense_ns(self, step: Step) -> Sequence[int]:
        rows, context = step.rows, step.token
        if (rows, context) not in self._dense:
            m = self.model
            attended = context - (rows - 1) / 2
            flops = 2 * rows * m.site_params + 4 * rows * attended * m.heads * m.head_dim
            kv_bytes = m.kv_bytes_per_token / m.sites * context
            weight_bytes = m.site_params * m.dense_bits / 8
            compute = self.hardware.compute
            self._dense[rows, context] = compute.operation_ns(flops, weight_bytes + kv_bytes, compute.dense_launches)
        return [self._dense[rows, context]] * self.model.sites

    def tail_ns(self, step: Step) -> int:
        m, compute = self.model, self.hardware.compute
        flops = 2 * len(step.sequences) * m.head_params
        return compute.operation_ns(flops, m.head_params * m.dense_bits / 8, compute.tail_launches)

    def expert_ns(self, precision: int, tokens: int) -> int:
        if (precision, tokens) not in self._expert:
            params, compute = self.model.expert_params, self.hardware.compute
            self._expert[precision, tokens] = compute.operation_ns(
                2 * tokens * params, params * self._bits[precision] / 8, compute.expert_launches
            )
        return self._expert[precision, tokens]

    def transfer_ns(self, moved_bytes: int) -> int:
        return self.hardware.link.transfer_ns(moved_bytes)


@dataclass(frozen=True)
class Ledger:
    """What must fit on the device at once, in bytes."""

    dense_bytes: int
    kv_bytes: int
    activation_bytes: int
    slot_bytes: int
    reserved_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.dense_bytes + self.kv_bytes + self.activation_bytes + self.slot_bytes + self.reserved_bytes


def check_memory(model: Model, hardware: Hardware, steps: Sequence[Step], slot_bytes: int) -> Ledger:
    """The ledger at its highest. Raise ValueError, naming each part, if it exceeds the device's memory."""
    longest = max(step.token for step in steps)
    together = max(len(step.sequences) for step in steps)
    rows = max(step.rows for step in steps)
    ledger = Ledger(
        dense_bytes=model.dense_bytes,
        kv_bytes=together * longest * model.kv_bytes_per_token,
        activation_bytes=rows * 2 * (4 * model.hidden + 2 * model.top_k * model.expert_intermediate),
        slot_bytes=slot_bytes,
        reserved_bytes=gib(hardware.reserved_gib),
    )
    if ledger.total_bytes > hardware.memory_bytes:
        parts = ", ".join(f"{name.removesuffix('_bytes')} {size / GIB:.2f}" for name, size in vars(ledger).items())
        raise ValueError(
            f"the device holds {hardware.memory_gib:g} GiB, but the run needs {ledger.total_bytes / GIB:.2f} GiB "
            f"({parts} GiB); "
            f"lower budget.resident_share, or set hardware.memory_gib"
        )
    return ledger
