"""What stands behind a link's bandwidth: reads of a drive, kept pages, a host that gathers.
Closed forms.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.values.units import NS_PER_S, gb_per_s, require_flag, require_number, require_range, us

RATES = (1e-3, 1e5)
"""GB/s: below any card reader, above ten times the memory of a large GPU. What lies outside is a
slip of units.
"""


@dataclass(frozen=True)
class Reads:
    """A drive that is read block by block: at most ``queue_depth`` reads of ``block_bytes`` are
    asked for at once.

    A read's data follows ``latency_us`` after it was asked for (plus ``fault_us`` where a page
    fault asks: then ``block_bytes`` is the readahead and ``queue_depth`` the number of threads), as
    soon as the drive's one channel has passed on what came before. ``scattered``: an expert's
    blocks do not lie together, and the drive passes them on at ``scattered_gb_per_s`` instead of
    the link's bandwidth.
    """

    block_bytes: int
    queue_depth: int
    latency_us: float
    fault_us: float = 0.0
    scattered: bool = False
    scattered_gb_per_s: float | None = None

    def __post_init__(self) -> None:
        require_number("reads.block_bytes", self.block_bytes, minimum=512, whole=True)
        require_number("reads.queue_depth", self.queue_depth, minimum=1, whole=True)
        require_range("reads.latency_us", self.latency_us, 0, 1e7, "microseconds")
        require_range("reads.fault_us", self.fault_us, 0, 1e6, "microseconds")
        require_flag("reads.scattered", self.scattered)
        if self.scattered_gb_per_s is not None:
            require_range(
                "reads.scattered_gb_per_s", self.scattered_gb_per_s, *RATES, "10**9 bytes a second"
            )
        elif self.scattered:
            raise ValueError(
                "reads.scattered=True needs reads.scattered_gb_per_s, the rate of such reads"
            )

    def time_s(self, moved_bytes: int, bytes_per_s: float) -> float:
        """From the first request to the last byte.

        Read k is asked for when read k - depth is done, and passed on when it is ready and read k -
        1 has been passed on. Either the channel never waits, or each ``queue_depth`` reads wait for
        the first of those before them.
        """
        if moved_bytes <= 0:
            return 0.0
        if self.scattered and self.scattered_gb_per_s is not None:
            bytes_per_s = min(bytes_per_s, gb_per_s(self.scattered_gb_per_s))
        latency = (self.latency_us + self.fault_us) / 1e6
        count = -(-moved_bytes // self.block_bytes)
        each = self.block_bytes / bytes_per_s
        last = (moved_bytes - (count - 1) * self.block_bytes) / bytes_per_s
        rounds, place = divmod(count - 1, self.queue_depth)
        busy = latency + (count - 1) * each + last
        waiting = rounds * (latency + each) + latency + place * each + last
        return max(busy, waiting)


@dataclass(frozen=True)
class Pages:
    """Main memory in which the operating system keeps what was read, and how fast that is read
    again.

    ``overhead_us``: of each service. Contents: `sim.machine.page_cache`.
    """

    capacity_gib: float
    gb_per_s: float
    overhead_us: float = 0.0

    def __post_init__(self) -> None:
        require_range("page_cache.capacity_gib", self.capacity_gib, 1e-6, 1e6, "GiB")
        require_range("page_cache.gb_per_s", self.gb_per_s, *RATES, "10**9 bytes a second")
        require_range("page_cache.overhead_us", self.overhead_us, 0, 1e7, "microseconds")

    def kept_ns(self, moved_bytes: int) -> int:
        """Never 0: of services that take no time several end at one instant, and which a need
        waited for is open.
        """
        return max(
            1, us(self.overhead_us) + round(moved_bytes * NS_PER_S / gb_per_s(self.gb_per_s))
        )


@dataclass(frozen=True)
class Unpack:
    """What arrives quantised is written out before it is usable, by the link's loader, after the
    copy: ``bits`` a weight, at ``gb_per_s`` of what is written, after ``overhead_us``. What has as
    many bits needs nothing.

    Source: EdgeMoE (arXiv:2308.14352) section 4.4, where a token's experts take longer to widen
    than to read.
    """

    gb_per_s: float
    bits: float = 16.0
    overhead_us: float = 0.0

    def __post_init__(self) -> None:
        require_range("unpack.gb_per_s", self.gb_per_s, *RATES, "10**9 bytes a second")
        require_range("unpack.bits", self.bits, 8, 32, "bits of a weight that is written out")
        require_range("unpack.overhead_us", self.overhead_us, 0, 1e7, "microseconds")

    def time_ns(self, moved_bytes: int, bits: float) -> int:
        """After ``moved_bytes`` at ``bits`` a weight."""
        if bits >= self.bits or moved_bytes <= 0:
            return 0
        return us(self.overhead_us) + round(
            moved_bytes * self.bits / bits * NS_PER_S / gb_per_s(self.gb_per_s)
        )


@dataclass(frozen=True)
class Gather:
    """The host copies an expert's scattered parts into one buffer, piece by piece, each piece
    before its copy begins.

    ``threads`` move ``gb_per_s_per_thread`` each, together at most ``dram_gb_per_s`` of the memory
    that they read and write (twice what they move). While a piece is copied the next is gathered.
    """

    threads: int
    gb_per_s_per_thread: float
    dram_gb_per_s: float
    piece_bytes: int

    def __post_init__(self) -> None:
        require_number("gather.threads", self.threads, minimum=1, whole=True)
        require_range(
            "gather.gb_per_s_per_thread", self.gb_per_s_per_thread, *RATES, "10**9 bytes a second"
        )
        require_range("gather.dram_gb_per_s", self.dram_gb_per_s, *RATES, "10**9 bytes a second")
        require_number("gather.piece_bytes", self.piece_bytes, minimum=1, whole=True)

    @property
    def bytes_per_s(self) -> float:
        return min(
            self.threads * gb_per_s(self.gb_per_s_per_thread), gb_per_s(self.dram_gb_per_s) / 2
        )

    def time_s(self, moved_bytes: int, bytes_per_s: float) -> float:
        """Gathered and copied at ``bytes_per_s``: two stages in a line, of equal pieces and a last
        shorter one.

        Of such a line the time is the largest, over the pieces k, of what gathers up to k and
        copies from k on take; between the first and the last but one that changes evenly, so that
        three of them are enough.
        """
        if moved_bytes <= 0:
            return 0.0
        gather, copy = 1 / self.bytes_per_s, 1 / bytes_per_s
        before = (-(-moved_bytes // self.piece_bytes) - 1) * self.piece_bytes
        last, first = moved_bytes - before, min(self.piece_bytes, moved_bytes)
        through_first = first * gather + moved_bytes * copy
        through_last = moved_bytes * gather + last * copy
        through_last_but_one = before * gather + (min(self.piece_bytes, before) + last) * copy
        return max(through_first, through_last, through_last_but_one)
