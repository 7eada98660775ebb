"""Parts of a machine besides links and compute.

They are host time, a managed RAM tier, the cost of running gates ahead, shared memory and swap.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.machine.link_parts import RATES
from sim.machine.measured import Points, check_points
from sim.values.types import HostCosts
from sim.values.units import GB, require_number, require_range, us


@dataclass(frozen=True)
class Host:
    """Host time that the compute stream waits for.

    It is spent before a gate (``sync``), after it (``issue``, and for each load that it makes
    ``load_us`` and its bytes at ``load_gb_per_s``), after an idle wait (``wake``) and at a site's
    end (``post``). Where a longer wait takes longer to wake from, ``wake_us`` is a table of (wait,
    microseconds): straight lines between its points, and beyond them the nearest one's time.
    """

    sync_us: float = 0.0
    issue_us: float = 0.0
    wake_us: float | Points = 0.0
    post_us: float = 0.0
    load_us: float = 0.0
    load_gb_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.load_gb_per_s is not None:
            require_range(
                "hardware.host.load_gb_per_s", self.load_gb_per_s, *RATES, "10**9 bytes a second"
            )
        for name in ("sync_us", "issue_us", "post_us", "load_us"):
            require_range(f"hardware.host.{name}", getattr(self, name), 0, 1e6, "microseconds")
        if isinstance(self.wake_us, list | tuple):
            check_points("hardware.host.wake_us", self.wake_us)
            for _, wake_us in self.wake_us:
                require_range("hardware.host.wake_us", wake_us, 0, 1e6, "microseconds")
        else:
            require_range("hardware.host.wake_us", self.wake_us, 0, 1e6, "microseconds")

    @property
    def _wakes(self) -> Points:
        wake_us = self.wake_us
        return [(0.0, wake_us)] if isinstance(wake_us, int | float) else wake_us

    @property
    def costs(self) -> HostCosts:
        points = tuple((us(wait), us(wake)) for wait, wake in self._wakes)
        wakes = points if len(points) > 1 else ()
        fixed = us(self.sync_us), us(self.issue_us), points[0][1], us(self.post_us)
        rate = None if self.load_gb_per_s is None else self.load_gb_per_s * GB
        return HostCosts(*fixed, wakes, us(self.load_us), rate)


@dataclass(frozen=True)
class Ram:
    """A RAM tier whose contents the controller manages.

    It has ``capacity_gib`` for experts and lies at the inner end of the link ``filled_by``.
    """

    capacity_gib: float
    filled_by: str

    def __post_init__(self) -> None:
        require_range("hardware.ram.capacity_gib", self.capacity_gib, 1e-6, 1e6, "GiB")


@dataclass(frozen=True)
class Forecasting:
    """The cost of running the gates of later sites ahead: their matrices are read and multiplied.

    ``on`` says where. On ``compute``, the device's compute stream, that happens before the gate
    whose input they are fed. On the host's ``cpu`` the forecasts come later than the gate.
    """

    on: str
    launches: int = 2

    def __post_init__(self) -> None:
        if self.on not in ("compute", "cpu"):
            raise ValueError(f"hardware.forecasting.on={self.on!r}; allowed: compute, cpu")
        require_number("hardware.forecasting.launches", self.launches, whole=True)


@dataclass(frozen=True)
class SharedMemory:
    """One memory of ``gb_per_s`` that several ``parties`` draw from.

    Parties are ``compute``, ``cpu`` and links by name. Where they would draw more than the memory
    gives, each is slowed by the same factor:

    - ``slows: always``: all the time, as though all parties that the system uses drew at once. A
      run with ``shared_memory: null`` is the other extreme.
    - ``slows: as_drawn``: only while the parties at work draw more (`sim.machine.contention`).
    """

    gb_per_s: float
    parties: tuple[str, ...]
    slows: str = "always"

    def __post_init__(self) -> None:
        require_range(
            "hardware.shared_memory.gb_per_s", self.gb_per_s, *RATES, "10**9 bytes a second"
        )
        if not isinstance(self.parties, tuple | list) or len(set(self.parties)) < 2:
            raise ValueError(
                f"hardware.shared_memory.parties={self.parties!r} must name two or more of compute,"
                " cpu, links"
            )
        if self.slows not in ("always", "as_drawn"):
            raise ValueError(
                f"hardware.shared_memory.slows={self.slows!r}; allowed: always, as_drawn"
            )


@dataclass(frozen=True)
class Swap:
    """Where weights go that the device's memory does not hold (contract C182).

    - ``gib``: how much may be swapped out.
    - ``page_kib``: the unit of what goes and comes.
    - ``in_us``, ``out_us``: what a page takes that comes back, and one that goes.
    """

    gib: float
    page_kib: float
    in_us: float
    out_us: float

    def __post_init__(self) -> None:
        require_range("hardware.swap.gib", self.gib, 1e-6, 1e6, "GiB")
        require_range("hardware.swap.page_kib", self.page_kib, 0.001, 1e6, "KiB")
        for name in ("in_us", "out_us"):
            require_range(f"hardware.swap.{name}", getattr(self, name), 0, 1e6, "microseconds")
