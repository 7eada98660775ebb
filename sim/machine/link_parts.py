"""Parts of a link: reads of a drive, the page cache, dequantisation, gathering scattered rows.

Each gives the time of a service in closed form.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any

from sim.values.units import NS_PER_S, gb_per_s, require_flag, require_number, require_range, us

RATES = (1e-3, 1e5)
"""The GB/s that are accepted, from below any card reader to ten times a large GPU's memory.

What lies outside is a slip of units.
"""


@dataclass(frozen=True)
class Reads:
    """A drive that is read block by block, with at most ``queue_depth`` reads at once.

    A read is of ``block_bytes``. Its data is ready ``latency_us`` after it was asked for, and is
    passed on as soon as the drive's one channel has passed on all earlier reads. Where page faults
    ask for the reads, each has ``fault_us`` more, ``block_bytes`` is the readahead and
    ``queue_depth`` the number of threads. ``scattered`` says that an expert's blocks do not lie
    together: the drive then passes them on at ``scattered_gb_per_s``, if that is less than the
    link's bandwidth.
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
        """The time from the first request to the last byte, in seconds.

        Read k is asked for when read ``k - queue_depth`` is done. It is passed on when it is ready
        and read k - 1 has been passed on. So there are two cases, and the slower one holds: the
        channel is busy without a break, or every ``queue_depth`` reads wait for a latency.
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
    """The page cache: main memory in which the operating system keeps what was read.

    What is kept is read again at ``gb_per_s``, with ``overhead_us`` for each service.
    `sim.machine.page_cache` says what is kept.
    """

    capacity_gib: float
    gb_per_s: float
    overhead_us: float = 0.0

    def __post_init__(self) -> None:
        require_range("page_cache.capacity_gib", self.capacity_gib, 1e-6, 1e6, "GiB")
        require_range("page_cache.gb_per_s", self.gb_per_s, *RATES, "10**9 bytes a second")
        require_range("page_cache.overhead_us", self.overhead_us, 0, 1e7, "microseconds")

    def kept_ns(self, moved_bytes: int) -> int:
        """The time of a service of so many kept bytes: at least 1 ns.

        Services of 0 ns would end together, and which one a need waited for would be ambiguous.
        """
        return max(
            1, us(self.overhead_us) + round(moved_bytes * NS_PER_S / gb_per_s(self.gb_per_s))
        )


@dataclass(frozen=True)
class Unpack:
    """Dequantisation by the link's loader, after the copy and before an expert can be used.

    Experts are written out at ``bits`` a weight, at ``gb_per_s`` of what is written, after
    ``overhead_us``. Experts that have as many bits or more take no time here.

    Source: EdgeMoE (arXiv:2308.14352) section 4.4, where dequantising a token's experts takes
    longer than reading them.
    """

    gb_per_s: float
    bits: float = 16.0
    overhead_us: float = 0.0

    def __post_init__(self) -> None:
        require_range("unpack.gb_per_s", self.gb_per_s, *RATES, "10**9 bytes a second")
        require_range("unpack.bits", self.bits, 8, 32, "bits of a weight that is written out")
        require_range("unpack.overhead_us", self.overhead_us, 0, 1e7, "microseconds")

    def time_ns(self, moved_bytes: int, bits: float) -> int:
        """The time to dequantise ``moved_bytes`` that arrived at ``bits`` a weight."""
        if bits >= self.bits or moved_bytes <= 0:
            return 0
        return us(self.overhead_us) + round(
            moved_bytes * self.bits / bits * NS_PER_S / gb_per_s(self.gb_per_s)
        )


@dataclass(frozen=True)
class Gather:
    """The host gathers an expert's scattered parts into one buffer, in pieces of ``piece_bytes``.

    A piece is gathered before its copy begins; while it is copied the next one is gathered. Each of
    ``threads`` gathers ``gb_per_s_per_thread``. Gathering reads and writes memory, which together
    are at most ``dram_gb_per_s``, so at most half of that is gathered.
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
        """The time to gather ``moved_bytes`` and copy them at ``bytes_per_s``, in seconds.

        This is a line of two stages with equal pieces and a shorter last one. Its time is the
        largest, over all pieces k, of gathering the pieces up to k and then copying the pieces from
        k on. Between the first piece and the last but one this sum is linear in k. So the first,
        the last but one and the last piece suffice.
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


FORMS = ("staged", "zero_copy")
"""How scattered rows come: gathered by host threads and copied, or read over the link by a kernel."""


@dataclass(frozen=True)
class Scattered:
    """Measured rates at which chosen rows of an expert come, for moves of parts of experts.

    ``form`` says how: ``staged``, where ``threads`` of the host gather pieces of ``piece_bytes``
    and copy them, or ``zero_copy``, where a kernel brings ``piece_bytes`` in each program.
    ``rates`` are points (form, threads, bytes of a piece, GB/s). Between points of one form and
    number of threads the rate lies on a straight line over the logarithm of the piece; beyond them
    that of the nearest holds. ``choose_us`` is the host's time to choose the rows, before the first
    of them comes.
    """

    form: str
    threads: int
    piece_bytes: int
    rates: Sequence[Sequence[Any]]
    choose_us: float = 0.0

    def __post_init__(self) -> None:
        require_range("scattered.choose_us", self.choose_us, 0, 1e6, "microseconds")
        if self.form not in FORMS:
            raise ValueError(f"scattered.form={self.form!r}; allowed: {', '.join(FORMS)}")
        require_number("scattered.threads", self.threads, minimum=1, whole=True)
        require_number("scattered.piece_bytes", self.piece_bytes, minimum=1, whole=True)
        for point in self.rates:
            if not isinstance(point, list | tuple) or len(point) != 4:
                raise ValueError(
                    f"scattered.rates has {point!r}; each must be [form, threads, bytes of a piece,"
                    " GB/s]"
                )
            require_number("scattered.rates: bytes of a piece", point[2], minimum=1, whole=True)
            require_range("scattered.rates", point[3], *RATES, "10**9 bytes a second")
        if not self._points():
            known = sorted({(str(form), int(threads)) for form, threads, *_ in self.rates})
            raise ValueError(
                f"scattered.form={self.form} with threads={self.threads} was not measured; there"
                f" are {', '.join(f'{form} with {threads}' for form, threads in known)}"
            )

    def _points(self) -> list[tuple[int, float]]:
        return sorted(
            (int(piece), float(rate))
            for form, threads, piece, rate in self.rates
            if (form, threads) == (self.form, self.threads)
        )

    @property
    def bytes_per_s(self) -> float:
        pieces, rates = zip(*self._points(), strict=True)
        if self.piece_bytes <= pieces[0] or self.piece_bytes >= pieces[-1]:
            return gb_per_s(rates[0] if self.piece_bytes <= pieces[0] else rates[-1])
        at = bisect_right(pieces, self.piece_bytes)
        share = log(self.piece_bytes / pieces[at - 1]) / log(pieces[at] / pieces[at - 1])
        return gb_per_s(rates[at - 1] + (rates[at] - rates[at - 1]) * share)

    def time_ns(self, moved_bytes: int) -> int:
        """The time to choose rows and bring so many bytes of them, without a service's overhead."""
        return us(self.choose_us) + round(moved_bytes * NS_PER_S / self.bytes_per_s)
