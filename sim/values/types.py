"""The types that policies, controller and drivers exchange; only the standard library is needed.

Code that runs at every gate uses plain ints. The enumerations here name these ints elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Final, NamedTuple

from sim.values.units import NS_PER_S

SKIP: Final = -1
"""A selector's answer for an expert that is not served at all."""
REROUTE: Final = -2
"""Stands, among the answers that a selector permits, for any other expert (`rerouted`)."""


def rerouted(expert: int, precision: int, precisions: int) -> int:
    """The selector's answer that ``expert`` serves instead, at ``precision`` of ``precisions``."""
    return (expert + 1) * precisions + precision


class Outcome(IntEnum):
    """What a lookup found. ``HIT`` is 0, so ``any(outcomes)`` tells whether any is no plain hit."""

    HIT = 0
    HIGH_FOR_LOW = 1
    LOW_FOR_HIGH = 2
    LATE = 3
    PROMOTED = 4
    MISS = 5
    CPU = 6
    SKIP = 7
    REROUTE = 8


class PrefetchOutcome(IntEnum):
    """What became of a prefetch: the first five were issued, the last three never were."""

    USED = 0
    LATE = 1
    DROPPED = 2
    EVICTED_UNUSED = 3
    UNUSED_AT_END = 4
    PROMOTED = 5
    CANCELLED = 6
    DROPPED_NO_SLOT = 7


EVENT_COLUMNS = ("call", "kind", "key", "value")
"""The columns of a controller's ``events``."""


class Event(IntEnum):
    """The kinds of rows in a controller's ``events``.

    The value of an ISSUE is the first key evicted for it. The value of an EVICT, which is a further
    victim, is the key that it made room for. Either may be -1, for none.
    """

    QUEUE_PREFETCH = 0
    CANCEL = 1
    DROP_NO_SLOT = 2
    ISSUE = 3
    EVICT = 4


class Cause(IntEnum):
    """Why a key became resident."""

    DEMAND = 0
    PREFETCH = 1
    INITIAL = 2


class Place(IntEnum):
    """Where a need is computed."""

    LOAD = 0
    CPU = 1
    SKIP = 2


@dataclass(frozen=True)
class Geometry:
    """The experts of a run as keys and bytes.

    A key is ``(precision * sites + site) * units + unit``. The unit after the last expert is the
    site's dense block.

    - ``precisions``: the names of the precisions in play, highest first. ``bits`` has their bits a
      weight, ``variant_bytes`` the bytes of one expert at the site where it is largest.
    - ``capacity_bytes``: the bytes that the device's expert slots may hold in all.
    - ``site_bytes[precision][site]``: the bytes of an expert where they differ between sites, else
      None.
    - ``held_bytes``: by precision, the bytes that a slot of the device holds of a variant, where it
      is dequantised to more than is moved. () where slots hold variants as they are moved; other
      tiers always do.
    - ``missing``: keys of variants that do not exist, so that no pool is filled with them at the
      start. Those of null experts are among them.
    - ``null_experts``: how many of a site's last experts have no weights.
    - ``keeps_copies``: whether a tier begins with lower copies, too, of what it holds at a higher
      precision.
    - ``layers``: by site, the number of its layer in the model, layers without experts counted; ()
      where every layer is a site.
    - ``device_of``: by key of a precision, the number of the device that has it; () where one
      device has all.
    """

    sites: int
    experts: int
    top_k: int
    precisions: tuple[str, ...]
    bits: tuple[float, ...]
    variant_bytes: tuple[int, ...]
    capacity_bytes: int
    site_bytes: tuple[tuple[int, ...], ...] | None = None
    missing: frozenset[int] = frozenset()
    null_experts: int = 0
    held_bytes: tuple[int, ...] = ()
    keeps_copies: bool = False
    layers: tuple[int, ...] = ()
    device_of: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.held_bytes and any(
            held < size for held, size in zip(self.held_bytes, self.variant_bytes, strict=True)
        ):
            raise ValueError(
                f"held_bytes {self.held_bytes} must be no less than variant_bytes"
                f" {self.variant_bytes}"
            )
        if (
            self.site_bytes is not None
            and tuple(max(sizes) for sizes in self.site_bytes) != self.variant_bytes
        ):
            raise ValueError(
                f"variant_bytes {self.variant_bytes} must be the largest of site_bytes, by"
                " precision"
            )

    @cached_property
    def units(self) -> int:
        return self.experts + 1

    @cached_property
    def plane(self) -> int:
        """The number of keys of one precision."""
        return self.sites * self.units

    @property
    def num_keys(self) -> int:
        return len(self.precisions) * self.plane

    def key(self, precision: int, site: int, unit: int) -> int:
        return (precision * self.sites + site) * self.units + unit

    def bytes_of(self, key: int) -> int:
        return self.key_bytes[key]

    @cached_property
    def key_bytes(self) -> tuple[int, ...]:
        """By key, the bytes of its variant."""
        by_site = self.site_bytes or [(size,) * self.sites for size in self.variant_bytes]
        return tuple(size for sizes in by_site for size in sizes for _ in range(self.units))

    @property
    def slot_sizes(self) -> tuple[int, ...]:
        """By precision, the bytes of a slot that can hold a variant of any site."""
        return self.held_bytes or self.variant_bytes

    @cached_property
    def slot_bytes(self) -> tuple[int, ...]:
        """By key, the bytes that the variant takes in its slot."""
        if not self.held_bytes:
            return self.key_bytes
        return tuple(size for size in self.held_bytes for _ in range(self.plane))

    def precision_of(self, key: int) -> int:
        return key // self.plane

    def site_of(self, key: int) -> int:
        return key // self.units % self.sites

    def expert_of(self, key: int) -> int:
        return key % self.units

    def layer_of(self, site: int) -> int:
        return self.layers[site] if self.layers else site

    def on_device(self, key: int) -> int:
        """The number of the device that has a key."""
        return self.device_of[key % self.plane] if self.device_of else 0

    def name_of(self, key: int) -> str:
        """``site 3 expert 5 fp16``, for messages."""
        return (
            f"site {self.site_of(key)} expert {self.expert_of(key)}"
            f" {self.precisions[self.precision_of(key)]}"
        )


@dataclass(frozen=True)
class PoolPlan:
    """The division of the device's expert bytes into pools, made by a cache policy.

    ``capacity_bytes`` is by pool, and ``pool_of[key]`` is the pool of a key. ``initial`` are the
    keys resident before the first gate, in the order in which the policy is told of them.
    """

    capacity_bytes: tuple[int, ...]
    pool_of: Sequence[int]
    initial: tuple[int, ...]


class Found(NamedTuple):
    """Tokens of prompts whose keys and values are held, by tier, and those that are read ``again``:
    an earlier request has read them, but nothing holds them.
    """

    device: int = 0
    ram: int = 0
    disk: int = 0
    again: int = 0

    @property
    def tokens(self) -> int:
        """How many need not be read."""
        return self.device + self.ram + self.disk


class Share(NamedTuple):
    """One sequence's part of a step: its rows, its tokens so far at the last of them, and how many
    of the rows are drafts that the step checks.
    """

    rows: int
    tokens: int
    drafts: int = 0


@dataclass(frozen=True)
class Step:
    """One forward call: token-rows ``start .. stop`` of the workload.

    ``token`` is the number of tokens of its sequence so far, this step included; of several
    sequences it is the largest. ``begins`` and ``ends`` are the sequences whose first and last step
    this is. ``decode`` is true where every row is a decoded one. ``sites`` are those that the step
    visits, ascending.

    Where tokens are drafted (contract C151), the n-th of ``drafters`` is how many of its sequences
    check n drafts or more, and ``kept`` has the number of rows that each of its sequences goes on
    after. It is empty where that is all rows. A ``drafting`` step drafts a token, and keeps no row (contract
    C184). ``found``: what the sequences that begin need not read (contract C177); None where
    nothing is reused. ``parts`` are the shares of its sequences; they may be left out where there
    is one.
    """

    index: int
    start: int
    stop: int
    sequences: tuple[int, ...]
    token: int
    decode: bool
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    sites: tuple[int, ...] = ()
    drafters: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    found: Found | None = None
    drafting: bool = False
    parts: tuple[Share, ...] = ()

    @property
    def rows(self) -> int:
        return self.stop - self.start

    @property
    def shares(self) -> tuple[Share, ...]:
        """What each of its sequences has of it."""
        return self.parts or (Share(self.rows, self.token, len(self.drafters)),)

    @property
    def gives_tokens(self) -> bool:
        """Whether every row is a decoded one, and none a draft's: the phase ``decode``."""
        return self.decode and not self.drafting

    @property
    def head_rows(self) -> int:
        """The rows for which the LM head runs: every decoded row, and the last of each prompt."""
        return self.rows if self.decode else len(self.sequences) + sum(self.drafters)


@dataclass(frozen=True)
class Route:
    """The links between the experts' home and the device, as far as decisions depend on them.

    ``engines`` and ``head_bytes`` are by link; link 0 ends at the device. A link with
    ``head_bytes`` above 0 lets the next link inwards begin after so many bytes (cut-through).
    ``ram_link`` is the link at whose inner end a managed RAM tier of ``ram_bytes`` lies, or None.

    ``link_of`` is given where several devices have links of their own (contract C158): by key of a
    precision, the link that ends at its device. All links end at devices then.
    """

    engines: tuple[int, ...] = (1,)
    head_bytes: tuple[int, ...] = (0,)
    ram_link: int | None = None
    ram_bytes: int = 0
    link_of: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.engines or min(self.engines) < 1 or len(self.head_bytes) != len(self.engines):
            raise ValueError(f"a route needs engines >= 1 and head_bytes for each link, got {self}")
        if min(self.head_bytes) < 0 or self.head_bytes[0]:
            raise ValueError(
                "head_bytes must be >= 0, and 0 for link 0, which ends at the device:"
                f" {self.head_bytes}"
            )
        for link, (engines, head) in enumerate(zip(self.engines, self.head_bytes, strict=True)):
            if head and engines > 1:
                raise ValueError(
                    f"link {link} has {engines} engines: cut-through needs one; set its engines to"
                    " 1, or its head_bytes to 0"
                )
        if self.ram_link is not None and not 1 <= self.ram_link < len(self.engines):
            raise ValueError(
                f"ram_link={self.ram_link} must be a link from 1 to {len(self.engines) - 1}"
            )
        if self.link_of and (
            sorted(set(self.link_of)) != list(range(len(self.engines)))
            or self.ram_link is not None
            or any(self.head_bytes)
        ):
            raise ValueError(
                "links of several devices each end at one, without RAM tier and cut-through, got"
                f" {self}"
            )

    @property
    def links(self) -> int:
        return len(self.engines)

    @property
    def out_of_ram(self) -> int:
        """The link on which what rests in RAM begins."""
        return 0 if self.ram_link is None else self.ram_link - 1

    @property
    def ends(self) -> int:
        """How many links end at a device: the first ones."""
        return len(self.engines) if self.link_of else 1


@dataclass(frozen=True)
class HostCosts:
    """Host time in ns: before a gate, after it, after an idle wait, at a site's end (in order).

    ``wakes``: where waking takes longer after a longer wait, points (wait, ns) by ascending wait,
    which take the place of ``wake_ns``. After a gate, for each load that it makes: ``load_ns``, and
    its bytes at ``load_bytes_per_s`` (None: at once).
    """

    sync_ns: int = 0
    issue_ns: int = 0
    wake_ns: int = 0
    post_ns: int = 0
    wakes: tuple[tuple[int, int], ...] = ()
    load_ns: int = 0
    load_bytes_per_s: float | None = None

    def loading_ns(self, moved_bytes: int) -> int:
        """The book-keeping for a load of so many bytes (contract C168)."""
        if self.load_bytes_per_s is None:
            return self.load_ns
        return self.load_ns + round(moved_bytes * NS_PER_S / self.load_bytes_per_s)

    def waking_ns(self, idle_ns: int) -> int:
        """The time to wake after standing idle for ``idle_ns`` (contract C67)."""
        if not self.wakes:
            return self.wake_ns
        at = bisect_left(self.wakes, (idle_ns,))
        if at in (0, len(self.wakes)):
            return self.wakes[min(at, len(self.wakes) - 1)][1]
        (x0, y0), (x1, y1) = self.wakes[at - 1], self.wakes[at]
        return y0 + (y1 - y0) * (idle_ns - x0) // (x1 - x0)


class CapacityError(ValueError):
    """A pool cannot hold what one token needs."""
