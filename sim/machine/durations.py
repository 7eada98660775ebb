"""The durations that a driver needs, in whole ns: what they are, and durations given outright."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from sim.machine.contention import Contention
from sim.values.types import HostCosts, Step


class Durations(Protocol):
    """The durations that a driver needs, of one model on one machine."""

    host: HostCosts
    prediction_ns: int
    """The time from a gate to its forecasts; 0 for a predictor without latency."""

    def dense_ns(self, step: Step) -> Sequence[int]:
        """The dense work before each site's gate, [S]."""

    def tail_ns(self, step: Step) -> int:
        """The work after the last site."""

    def expert_ns(self, precision: int, site: int, tokens: int, rows: int = 0) -> int:
        """Computing one expert for ``tokens`` of a step's ``rows`` on the device. 0: for all of them."""

    def cpu_ns(self, precision: int, site: int, tokens: int) -> int:
        """Computing one expert on the CPU, with the round trip of its activations."""

    def hop_ns(self, link: int, moved_bytes: int) -> int:
        """One service on a link that serves nothing else."""

    def latency_ns(self, link: int) -> int:
        """The part of every service on a link that draws no bandwidth."""


@runtime_checkable
class PagedDurations(Protocol):
    """Durations of a machine whose page cache may keep what links read.

    See `sim.machine.page_cache`.
    """

    def page_cache_bytes(self, link: int) -> int:
        """The bytes that the page cache of a link's source may hold; 0 without one."""

    def kept_ns(self, link: int, moved_bytes: int) -> int:
        """One service on a link of an expert that the page cache holds."""


@runtime_checkable
class ContendedDurations(PagedDurations, Protocol):
    """Durations of a machine whose parties may slow each other down.

    All durations are those of a party that works alone.
    """

    contention: Contention | None
    cpu_latency_ns: int
    """The part of the CPU's time for an expert that draws no memory bandwidth: its round trip."""


@runtime_checkable
class OwnedDurations(Protocol):
    """Durations of a machine whose devices own experts (contract C170)."""

    @property
    def devices(self) -> int:
        """How many there are."""

    def expert_on_ns(
        self, device: int, precision: int, site: int, tokens: int, rows: int = 0
    ) -> int:
        """Computing one expert for ``tokens`` of a step's ``rows`` on a device."""

    def message_ns(self, rows: int) -> int:
        """Sending so many rows' activations to another device, or back."""


def least_hop_ns(durations: Durations, link: int, moved_bytes: int) -> int:
    """The shortest time that a service on a link can take, whatever the page cache holds."""
    hop_ns = durations.hop_ns(link, moved_bytes)
    if isinstance(durations, PagedDurations) and durations.page_cache_bytes(link):
        return min(hop_ns, durations.kept_ns(link, moved_bytes))
    return hop_ns


class FixedDurations:
    """Durations given outright, for worked examples and tests. Implements ``Durations``.

    - ``dense_ns`` are by site, the same for every step.
    - ``expert_ns`` and ``per_token_ns`` are by precision, the same at every site. ``per_token_ns``
      is added for every row.
    - ``hop_ns`` are by link, then by the bytes of the hop; a single mapping stands for one link.
    - ``latency_ns`` are by link.
    """

    def __init__(
        self,
        dense_ns: Sequence[int],
        tail_ns: int,
        expert_ns: Sequence[int],
        hop_ns: Mapping[int, int] | Sequence[Mapping[int, int]],
        per_token_ns: Sequence[int] | None = None,
        *,
        latency_ns: Sequence[int] | None = None,
        cpu_ns: int = 0,
        host: HostCosts | None = None,
        prediction_ns: int = 0,
    ) -> None:
        self._dense, self._tail, self._expert, self._cpu = dense_ns, tail_ns, expert_ns, cpu_ns
        self._hop = (hop_ns,) if isinstance(hop_ns, Mapping) else tuple(hop_ns)
        self._latency = latency_ns or [0] * len(self._hop)
        self._per_token = per_token_ns or [0] * len(expert_ns)
        self.host = host or HostCosts()
        self.prediction_ns = prediction_ns

    def dense_ns(self, step: Step) -> Sequence[int]:
        return self._dense

    def tail_ns(self, step: Step) -> int:
        return self._tail

    def expert_ns(self, precision: int, site: int, tokens: int, rows: int = 0) -> int:
        return self._expert[precision] + self._per_token[precision] * tokens

    def cpu_ns(self, precision: int, site: int, tokens: int) -> int:
        return self._cpu

    def hop_ns(self, link: int, moved_bytes: int) -> int:
        return self._hop[link][moved_bytes]

    def latency_ns(self, link: int) -> int:
        return self._latency[link]
