"""A link between two memories: how long a service on it takes."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from sim.machine.contention import WHOLE
from sim.machine.lanes import UNITS, Lanes
from sim.machine.link_parts import RATES, Gather, Pages, Reads, Scattered, Unpack
from sim.values.units import GB, MOST, NS_PER_S, gb_per_s, require_number, require_range, us

ROUNDING = 1e-5
"""How far the figures of a file may be off for want of digits, as a share: two of six digits."""


@dataclass(frozen=True)
class Link:
    """One direction of a link between two memories.

    A service takes ``overhead + calls * per_call + bytes / (peak * efficiency)``.

    - ``engines``: how many transfers are served at once; they share the bandwidth.
    - ``head_bytes``: after so many bytes of a transfer the next link inwards may begin
      (cut-through); 0 where it must wait for all.
    - ``name``: the link's key in ``hardware.links``.
    - ``pageable``: the share of the bandwidth that copies from pageable memory reach.
    - ``calls``: a service is made of so many copies, or of more where each may have at most
      ``call_bytes`` (0: no limit).
    - ``reads``: the link begins at a drive that is read block by block.
    - ``gather``: the host first collects the scattered parts of what is copied.
    - ``page_cache``: the operating system keeps what it read.
    - ``unpack``: quantised experts are dequantised after their copy, before they can be used.
    - ``scattered``: how fast parts of experts come, whose rows do not lie together.
    - ``slot_us``: host time of every service for each slot of the device, where the engine searches
      all of them for a free one.
    """

    peak_gb_per_s: float
    efficiency: float
    overhead_us: float
    engines: int = 1
    head_bytes: int = 0
    name: str = ""
    pageable: float = 0.5
    per_call_us: float = 0.0
    calls: int = 1
    call_bytes: int = 0
    reads: Reads | None = None
    gather: Gather | None = None
    page_cache: Pages | None = None
    unpack: Unpack | None = None
    scattered: Scattered | None = None
    slot_us: float = 0.0
    engine_gb_per_s: float | None = None
    wake_us: float = 0.0
    copy_gb_per_s: float | None = None
    unit: str = "variant"

    def __post_init__(self) -> None:
        if self.name:
            self.check()

    def check(self) -> None:
        """Raise ValueError, naming the key, for values out of range or in conflict."""
        place = f"hardware.links.{self.name}"
        require_range(f"{place}.peak_gb_per_s", self.peak_gb_per_s, *RATES, "10**9 bytes a second")
        require_range(f"{place}.efficiency", self.efficiency, 1e-3, 1, "a share of the peak")
        for name in ("overhead_us", "per_call_us", "slot_us", "wake_us"):
            require_range(f"{place}.{name}", getattr(self, name), 0, 1e7, "microseconds")
        for name, least in (("engines", 1), ("calls", 1), ("head_bytes", 0), ("call_bytes", 0)):
            most = inf if name == "engines" else MOST  # it has a range below
            require_number(
                f"{place}.{name}", getattr(self, name), minimum=least, maximum=most, whole=True
            )
        require_range(
            f"{place}.engines", self.engines, 1, 64, "the transfers that it serves at once"
        )
        require_range(
            f"{place}.pageable",
            self.pageable,
            1e-3,
            1,
            "a share of the bandwidth from pinned memory",
        )
        for name, kind in (
            ("reads", Reads),
            ("gather", Gather),
            ("page_cache", Pages),
            ("unpack", Unpack),
            ("scattered", Scattered),
        ):
            part = getattr(self, name)
            if part is not None and not isinstance(part, kind):
                raise ValueError(
                    f"{place}.{name}={part!r} must be null or a section with its _target_"
                )
        if self.reads is not None and self.gather is not None:
            raise ValueError(
                f"{place} has reads and gather: a link begins at a drive or in memory; give two"
                " links"
            )
        if self.page_cache is not None and (self.engines > 1 or self.head_bytes):
            raise ValueError(
                f"{place}.page_cache does not go with engines={self.engines},"
                f" head_bytes={self.head_bytes}; set engines=1 and head_bytes=0, or page_cache=null"
            )
        if self.unpack is not None and (self.engines > 1 or self.head_bytes):
            raise ValueError(
                f"{place}.unpack does not go with engines={self.engines},"
                f" head_bytes={self.head_bytes}; set engines=1 and head_bytes=0, or unpack=null"
            )
        if self.engines > 1 and (
            self.reads is not None or self.gather is not None or self.call_bytes
        ):
            raise ValueError(
                f"{place}.engines={self.engines} does not go with reads, gather or call_bytes: what"
                " several engines share is a plain bandwidth; set engines=1 (reads.queue_depth has"
                " several reads at once)"
            )

        self._check_lanes(place)

    def _check_lanes(self, place: str) -> None:
        """Raise ValueError for figures of engines with a pace of their own that cannot be."""
        if self.unit not in UNITS:
            raise ValueError(f"{place}.unit={self.unit!r}; allowed: {', '.join(UNITS)}")
        for name in ("engine_gb_per_s", "copy_gb_per_s"):
            if getattr(self, name) is not None:
                require_range(
                    f"{place}.{name}", getattr(self, name), *RATES, "10**9 bytes a second"
                )
        if self.engine_gb_per_s is not None:
            own, rate = gb_per_s(self.engine_gb_per_s), self.bytes_per_s
            spare = 1 + ROUNDING
            if not own <= rate * spare or not rate <= own * self.engines * spare:
                raise ValueError(
                    f"{place}.engine_gb_per_s={self.engine_gb_per_s:g}: the {self.engines} engines"
                    f" of a link of {rate / GB:g} GB/s (peak_gb_per_s x efficiency) must each reach"
                    f" at most that, and all together at least that; give {rate / self.engines / GB:g}"
                    f" to {rate / GB:g}, or another peak_gb_per_s"
                )
        parts = ("head_bytes", "call_bytes", "reads", "gather", "page_cache", "unpack")
        if self.lanes is not None and (beside := [name for name in parts if getattr(self, name)]):
            raise ValueError(
                f"{place} has engine_gb_per_s={self.engine_gb_per_s}, wake_us={self.wake_us:g},"
                f" copy_gb_per_s={self.copy_gb_per_s}, unit={self.unit}, which do not go with"
                f" {', '.join(beside)} of the same link; leave out one or the other"
            )

    @property
    def lanes(self) -> Lanes | None:
        """How its engines serve where they have a pace of their own; else None."""
        own, copies = self.engine_gb_per_s, self.copy_gb_per_s
        lanes = Lanes(
            WHOLE if own is None else min(WHOLE, round(WHOLE * gb_per_s(own) / self.bytes_per_s)),
            us(self.wake_us),
            None if copies is None else gb_per_s(copies),
            self.unit == "projection",
        )
        return None if lanes == Lanes() else lanes

    def hop_ns(self, moved_bytes: int) -> int:
        """The time of one service that has the link to itself.

        `Hardware.hop_ns` takes measured times instead, where there are any, and `Roofline.hop_ns`
        adds what a model's variants cost beside (unpacking, scattered rows).
        """
        rate = self.bytes_per_s
        if self.reads is not None:
            copy_s = self.reads.time_s(moved_bytes, rate)
        elif self.gather is not None:
            copy_s = self.gather.time_s(moved_bytes, rate)
        else:
            return (
                self.latency_ns
                + self._more_calls(moved_bytes)
                + round(moved_bytes * NS_PER_S / rate)
            )
        return self.latency_ns + self._more_calls(moved_bytes) + round(copy_s * NS_PER_S)

    def _more_calls(self, moved_bytes: int) -> int:
        """The time, in ns, of the calls beyond ``calls`` that so many bytes make necessary."""
        if not self.call_bytes:
            return 0
        return max(0, -(-moved_bytes // self.call_bytes) - self.calls) * us(self.per_call_us)

    @property
    def latency_ns(self) -> int:
        """The part of every service that draws no bandwidth."""
        return us(self.overhead_us) + self.calls * us(self.per_call_us)

    @property
    def bytes_per_s(self) -> float:
        return gb_per_s(self.peak_gb_per_s) * self.efficiency
