"""Durations of a machine with several devices, from those of each device alone.

Contracts C159, C161 and C170 say what is added to them and what is divided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sim.machine.durations import Durations
from sim.machine.roofline import Roofline
from sim.values.types import HostCosts, Step

RowsTime = Callable[[int], int]
"""The time in ns of one message between devices, by rows."""


class Apart:
    """Devices of which each has experts that no other one has: what layers and owners share.

    - ``alone``: by device, the durations of a machine that has this device only.
    - ``is_shared``: all devices are behind link 0; else link d ends at device d.
    - ``crossing_ns``: the time in which the activations of so many rows cross to another device.
    """

    def __init__(self, alone: Sequence[Durations], is_shared: bool, crossing_ns: RowsTime) -> None:
        self._alone, self._is_shared, self._crossing_ns = alone, is_shared, crossing_ns
        self.contention = None
        self.host: HostCosts = alone[0].host
        self.prediction_ns = alone[0].prediction_ns
        self.slots = 0
        """The slots of all devices; no link of several devices searches them."""

    def cpu_ns(self, precision: int, site: int, tokens: int) -> int:
        return self._alone[0].cpu_ns(precision, site, tokens)

    def hop_ns(self, link: int, moved_bytes: int) -> int:
        return self._at(link).hop_ns(0, moved_bytes)

    def latency_ns(self, link: int) -> int:
        return self._at(link).latency_ns(0)

    def _at(self, link: int) -> Durations:
        return self._alone[0 if self._is_shared else link]


class OnLayers(Apart):
    """Layers on several devices (contract C159). Implements ``Durations``.

    ``device_of``: by site, the device that has it; ``head``: the device that has the head.
    """

    def __init__(
        self,
        alone: Sequence[Durations],
        device_of: Sequence[int],
        head: int,
        is_shared: bool,
        crossing_ns: RowsTime,
    ) -> None:
        super().__init__(alone, is_shared, crossing_ns)
        self._device_of, self._head = device_of, head

    def dense_ns(self, step: Step) -> Sequence[int]:
        of_device = [durations.dense_ns(step) for durations in self._alone]
        times = [of_device[device][site] for site, device in enumerate(self._device_of)]
        for before, site in zip(step.sites, step.sites[1:], strict=False):
            if self._device_of[before] != self._device_of[site]:
                times[site] += self._crossing_ns(step.rows)
        return times

    def tail_ns(self, step: Step) -> int:
        crosses = self._device_of[step.sites[-1]] != self._head
        return self._alone[self._head].tail_ns(step) + (
            self._crossing_ns(step.rows) if crosses else 0
        )

    def expert_ns(self, precision: int, site: int, tokens: int, rows: int = 0) -> int:
        return self._alone[self._device_of[site]].expert_ns(precision, site, tokens, rows)


class OnOwners(Apart):
    """Experts that devices own (contract C170). Implements ``Durations``, ``OwnedDurations``."""

    @property
    def devices(self) -> int:
        return len(self._alone)

    def dense_ns(self, step: Step) -> Sequence[int]:
        return self._alone[0].dense_ns(step)

    def tail_ns(self, step: Step) -> int:
        return self._alone[0].tail_ns(step)

    def expert_ns(self, precision: int, site: int, tokens: int, rows: int = 0) -> int:
        return self._alone[0].expert_ns(precision, site, tokens, rows)

    def expert_on_ns(
        self, device: int, precision: int, site: int, tokens: int, rows: int = 0
    ) -> int:
        return self._alone[device].expert_ns(precision, site, tokens, rows)

    def message_ns(self, rows: int) -> int:
        return self._crossing_ns(rows)


class InStep:
    """Devices that all do the same (contract C161). Implements ``Durations``.

    - ``dense`` and ``experts``: the durations of one device for its part of dense matrices, and
      for its part of experts.
    - ``parts``: a transfer moves so many parts of its bytes, one to each device; 1: all of them.
    - ``services``: so many services follow each other on a link for each transfer.
    - ``layers_at``: by site, how many layers it stands for.
    - ``sum_ns``: the time in which the devices add up the activations of so many rows.
    """

    def __init__(
        self,
        dense: Durations,
        experts: Durations,
        *,
        parts: int,
        services: int,
        layers_at: Sequence[int],
        sum_ns: RowsTime,
    ) -> None:
        self._dense, self._experts = dense, experts
        self._parts, self._services = parts, services
        self._layers_at, self._sum_ns = layers_at, sum_ns
        self.contention = None
        self.host: HostCosts = dense.host
        self.prediction_ns = dense.prediction_ns
        self.slots = 0
        """The slots of a device; no link of several devices searches them."""

    def dense_ns(self, step: Step) -> Sequence[int]:
        sum_ns = self._sum_ns(step.rows)
        times = [
            time + 2 * layers * sum_ns
            for time, layers in zip(self._dense.dense_ns(step), self._layers_at, strict=True)
        ]
        # What follows the last layer's experts is a part of the tail.
        times[step.sites[0]] -= sum_ns
        return times

    def tail_ns(self, step: Step) -> int:
        return self._dense.tail_ns(step) + self._sum_ns(step.rows)

    def expert_ns(self, precision: int, site: int, tokens: int, rows: int = 0) -> int:
        return self._experts.expert_ns(precision, site, tokens, rows)

    def cpu_ns(self, precision: int, site: int, tokens: int) -> int:
        raise ValueError(
            "hardware.devices.split: slices and copies compute no expert on the CPU; choose"
            " placement=load, or split=layers"
        )

    def hop_ns(self, link: int, moved_bytes: int) -> int:
        return self._services * self._experts.hop_ns(link, -(-moved_bytes // self._parts))

    def latency_ns(self, link: int) -> int:
        return self._services * self._experts.latency_ns(link)


Timed = Roofline | OnLayers | OnOwners | InStep
"""The durations of a run's machine, whatever its devices."""
