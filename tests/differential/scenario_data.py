"""A scenario: one run of the simulator as plain frozen data.

Nothing here decides anything. A scenario names the machine (sizes, times, pools), the policies (by
name and numbers), the loader's switches, and the routing (needs and forecasts of every gate:
`scenario_steps`). The reference and the production engine are given the same scenario.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from differential.scenario_steps import Batching, Forecast, Need, Request, Step

Key: TypeAlias = tuple[int, int, int]
"""A variant in words: (precision, site, expert)."""

CACHES = ("lru", "fifo", "lfu_resident", "lfu_sequence", "lfu_model", "weighted", "belady")
"""What a random scenario draws from."""
CacheName: TypeAlias = Literal[
    "lru",
    "fifo",
    "lfu_resident",
    "lfu_sequence",
    "lfu_model",
    "weighted",
    "belady",
    "class_lru",
    "lfru",
]
LAYOUTS = ("global", "per_precision", "per_site")

SKIP = -1
"""The wanted precision of a need that is left out; also the key of its lookup."""


@dataclass(frozen=True)
class PoolSpec:
    """A byte budget for variants of some precisions, at one site or at all (None). Initial keys
    came in this order.
    """

    capacity_bytes: int
    precisions: tuple[int, ...]
    site: int | None = None
    initial: tuple[Key, ...] = ()
    sites: tuple[int, ...] = ()
    """Those of a device, where there are several. `owned`: the sites and experts that it owns."""
    owned: frozenset[tuple[int, int]] = frozenset()

    def covers(self, key: Key) -> bool:
        is_here = not self.sites or key[1] in self.sites
        is_here = is_here and (not self.owned or key[1:] in self.owned)
        return key[0] in self.precisions and self.site in (None, key[1]) and is_here


@dataclass(frozen=True)
class Cache:
    """A victim order by name. The weights are those of `weighted`; it is the only one that reads
    them.

    `recency`: how LRU orders the needs of a gate of several rows, by need order or by `Step.ranks`.
    `half_life`: in steps, of `class_lru`.
    """

    name: CacheName = "lru"
    w_lru: float = 0.0
    w_lfu: float = 0.0
    w_lhu: float = 0.0
    w_fld: float = 0.0
    recency: Literal["needs", "rows"] = "needs"
    half_life: int = 128


@dataclass(frozen=True)
class Link:
    """`hop(l, bytes)` is linear; `head_bytes` > 0 is cut-through (never on link 0) with a head of
    so many bytes.

    `page_cache_bytes` > 0: so many bytes of what was read last are kept, and read again in
    `kept_ns` a byte.

    Of engines with a pace of their own: `pace` in millionths of the link's, `wake_ns` of one that
    stood idle, `copy_ns` a byte, and whether they read `by_projection`.
    """

    overhead_ns: int
    ns_per_byte: int
    engines: int = 1
    head_bytes: int = 0
    page_cache_bytes: int = 0
    kept_ns: int = 0
    pace: int = 1_000_000
    wake_ns: int = 0
    copy_ns: int = 0
    by_projection: bool = False

    def hop(self, moved: int) -> int:
        return self.overhead_ns + moved * self.ns_per_byte


@dataclass(frozen=True)
class Rivalry:
    """Who holds up whom while both are at work: parties are the compute stream, the CPU and the
    links, in this order.

    `kept`: (party, rival, millionths of its pace that the party keeps while the rival is at work).
    `draws`: by party, bytes a second of one memory that gives `memory` (0: a party that does not
    draw from it). `cpu_latency_ns`: of each CPU need's time the part in which it holds up nobody.
    """

    kept: tuple[tuple[int, int, int], ...]
    draws: tuple[int, ...]
    memory: int = 0
    cpu_latency_ns: int = 0


@dataclass(frozen=True)
class Devices:
    """Several devices with some sites each (`of`, by site). A site's work takes `slower[device]`
    times as long. Activations cross to another device in `cross_ns`, and so much more a row.

    With `owner` (by expert) each has some experts of every site instead, and the first all else.
    `turn`: by site, from which expert on they are counted; () from 0 at each.

    Each device has a link of its own: `links` of the scenario are by device. With `shared` they
    have one.
    """

    of: tuple[int, ...]
    slower: tuple[int, ...]
    head: int
    cross_ns: int = 0
    cross_row_ns: int = 0
    shared: bool = False
    owner: tuple[int, ...] = ()
    turn: tuple[int, ...] = ()

    @property
    def split(self) -> str:
        return "owners" if self.owner else "layers"

    def has(self, key: Key) -> int:
        """The device that has a key. Where devices own experts, dense blocks are home's."""
        if not self.owner:
            return self.of[key[1]]
        if key[2] == len(self.owner):
            return 0
        return self.owner[(key[2] + (self.turn[key[1]] if self.turn else 0)) % len(self.owner)]


@dataclass(frozen=True)
class RamTier:
    """A managed RAM at the inner end of `link` (1 or more)."""

    link: int
    pools: tuple[PoolSpec, ...]
    cache: Cache = Cache()


@dataclass(frozen=True)
class Swap:
    """Memory of `room_bytes` for weights, of which the oldest pages are swapped out. Dense bytes are
    by site; `rest_bytes` those of no site.
    """

    page_bytes: int
    room_bytes: int
    dense_bytes: tuple[int, ...]
    rest_bytes: int
    in_ns: int
    out_ns: int


@dataclass(frozen=True)
class Fixed:
    """Every need wants this precision."""

    precision: int = 0


@dataclass(frozen=True)
class Thresholds:
    """Score up to low_above: precision 0; up to skip_above: 1; above: the lowest if any is
    there, else SKIP.
    """

    low_above: float
    skip_above: float


@dataclass(frozen=True)
class Reroute:
    """Who serves instead: of (site, expert) the (expert, precision) in `instead`; of the others
    what the selector says.

    `by_forecast`: what was forecast for the site serves (one precision only); `instead` is empty
    then.
    """

    instead: tuple[tuple[tuple[int, int], tuple[int, int]], ...] = ()
    by_forecast: bool = False


Place: TypeAlias = Literal["load", "cpu", "skip"]


@dataclass(frozen=True)
class Placement:
    """The rule of an absent need: these (site, expert) go to the CPU (unless it has more rows),
    these are left out.
    """

    cpu: frozenset[tuple[int, int]] = frozenset()
    skip: frozenset[tuple[int, int]] = frozenset()
    cpu_rows: int = 1_000_000
    cpu_ns: int = 0
    cpu_row_ns: int = 0

    def place(self, site: int, expert: int, tokens: int) -> Place:
        if (site, expert) in self.skip:
            return "skip"
        return "cpu" if (site, expert) in self.cpu and tokens <= self.cpu_rows else "load"

    def time_ns(self, tokens: int) -> int:
        """`cpu_ns` of a need of so many rows, round trip included."""
        return self.cpu_ns + self.cpu_row_ns * tokens


@dataclass(frozen=True)
class Host:
    """Host time around the gate, before a stream that stood idle goes on, and at the end of a
    site.
    """

    sync_ns: int = 0
    issue_ns: int = 0
    wake_ns: int = 0
    post_ns: int = 0
    wakes: tuple[tuple[int, int], ...] = ()
    """Points (idle, wake) in place of `wake_ns`, by ascending idle."""
    load_ns: int = 0
    """After a gate, for each load that it makes."""
    load_byte_ns: int = 0
    """The same, for each byte of a load."""


@dataclass(frozen=True)
class Loader:
    """The loader's switches, by the names of docs/contracts. `lookahead`: the sites that the
    predictor sees ahead.

    `chunk_bytes`, `staging_slots` and `dense_slots` are off at 0.
    """

    lookahead: int = 0
    depth: Literal["all", "first_missing"] = "all"
    queue: Literal["append", "replace"] = "append"
    prefetch_order: Literal["nearest", "likeliest"] = "nearest"
    cancel_stale: bool = True
    demand_first: bool = True
    in_flight: Literal[1, 2] = 1
    wait: Literal["wait_all", "as_ready", "in_order", "by_projection"] = "as_ready"
    prefetch_budget: int | Literal["all", "until_next_gate"] = "all"
    low_for_high: bool = False
    chunk_bytes: int = 0
    write_back: bool = False
    destination: Literal["pool", "staging"] = "pool"
    staging_slots: int = 0
    demand_evicts: Literal["masked_last", "unmasked"] = "masked_last"
    dense_slots: int = 0
    retention: Literal["strict", "after_batch", "until_next_visit"] = "strict"
    replay_unit: Literal["union", "access"] = "union"


@dataclass(frozen=True)
class Scenario:
    """Everything that one run depends on. The defaults leave every feature off.

    Without `links` there is one link of one engine, on which a whole variant takes `service_ns` of
    its precision. Steps are those of `steps`, or composed of `requests` by `batching`.
    `variant_bytes` holds at all sites where `site_bytes` (by precision, then site) is not given.
    The device's policy refuses if there are any experts that are `refused`, at any site, or
    `displace_none`: admitted where nothing must go for them. `dense_bytes`: by site, for
    `dense_slots`. `held_bytes`: by precision, what a slot of the device holds of a variant, where
    that is not what is moved. `spare_bytes`: by step, what the pools have beside their capacity, where
    slots shrink. `projection_bytes`: by precision, of each of a variant's projections.
    `kv_bytes`: by site, of a token's keys and values, where these may come over links. `step_row_ns`: by
    precision, what an expert takes longer for each row of the step, its own or not; empty: nothing.
    """

    sites: int
    experts: int
    variant_bytes: tuple[int, ...]
    service_ns: tuple[int, ...]
    base_ns: tuple[int, ...]
    per_token_ns: tuple[int, ...]
    pools: tuple[PoolSpec, ...]
    steps: tuple[Step, ...]
    cache: Cache = Cache()
    selector: Fixed | Thresholds = Fixed()
    loader: Loader = Loader()
    links: tuple[Link, ...] = ()
    site_bytes: tuple[tuple[int, ...], ...] = ()
    ram: RamTier | None = None
    refused: frozenset[int] = frozenset()
    displace_none: frozenset[int] = frozenset()
    placement: Placement | None = None
    reroute: Reroute | None = None
    dense_bytes: tuple[int, ...] = ()
    host: Host = Host()
    prediction_ns: int = 0
    requests: tuple[Request, ...] = ()
    batching: Batching | None = None
    rivalry: Rivalry | None = None
    held_bytes: tuple[int, ...] = ()
    devices: Devices | None = None
    projection_bytes: tuple[tuple[int, ...], ...] = ()
    spare_bytes: tuple[int, ...] = ()
    kv_bytes: tuple[int, ...] = ()
    swap: Swap | None = None
    step_row_ns: tuple[int, ...] = ()

    def spare(self, step: int) -> int:
        """What keys and values leave in a step, by its number; the same again after the last."""
        return self.spare_bytes[step % len(self.spare_bytes)]

    @property
    def at_once(self) -> int:
        """Most needs of a gate of one row."""
        single = (len(needs) for step in self.steps if step.rows == 1 for needs in step.needs)
        rows = (
            len(routed)
            for r in self.requests
            for row in (*r.prompt, *r.decode)
            for routed in row.routed
        )
        return max([*single, *rows], default=1)

    def is_short(self, pool: PoolSpec) -> bool:
        """Whether a pool of the device holds less than the needs of one row, all of its largest
        variant, and there is staging to serve them from."""
        keys = (
            (p, site, 0)
            for p in pool.precisions
            for site in range(self.sites)
            if pool.site in (None, site) and site in (pool.sites or range(self.sites))
        )
        return self.loader.staging_slots > 0 and pool.capacity_bytes < self.at_once * max(
            map(self.slot, keys)
        )

    @property
    def precisions(self) -> int:
        return len(self.variant_bytes)

    @property
    def hops(self) -> int:
        """The number of links."""
        return len(self.links) or 1

    @property
    def last_links(self) -> tuple[int, ...]:
        """The links that end at a device."""
        return tuple(range(self.hops)) if self.devices and not self.devices.shared else (0,)

    def link_of(self, key: Key) -> int:
        """The link that ends at the device which has the key's site."""
        return self.devices.has(key) if self.devices and not self.devices.shared else 0

    def crossing_ns(self, before: int | None, site: int, rows: int) -> int:
        """The time in which a step's activations come to a site (the head: -1), from the one
        before (None: there is none).
        """
        where = self.devices
        if where is None or where.owner or before is None:
            return 0
        there = where.head if site < 0 else where.of[site]
        return 0 if where.of[before] == there else where.cross_ns + rows * where.cross_row_ns

    def work_ns(self, site: int, time: int) -> int:
        """What takes `time` on the first device takes so long where the site (the head: -1) is."""
        if self.devices is None:
            return time
        if self.owns:
            return self.device_ns(0, time)
        return time * self.devices.slower[self.devices.head if site < 0 else self.devices.of[site]]

    @property
    def owns(self) -> bool:
        """Whether devices own experts."""
        return bool(self.devices and self.devices.owner)

    def device_ns(self, device: int, time: int) -> int:
        """What takes `time` on a device that is not slower takes so long on this one."""
        return time * self.devices.slower[device] if self.devices else time

    def message_ns(self, rows: int) -> int:
        """The time in which activations go to another device, or back."""
        return self.devices.cross_ns + rows * self.devices.cross_row_ns if self.devices else 0

    def size(self, key: Key) -> int:
        """The bytes of a variant, or of a site's dense block."""
        precision, site, expert = key
        if expert == self.experts:
            return self.dense_bytes[site]
        return (
            self.site_bytes[precision][site] if self.site_bytes else self.variant_bytes[precision]
        )

    @property
    def kv_links(self) -> tuple[int, int]:
        """The links on which keys and values begin that rest in RAM, and on disk."""
        return self.ram.link - 1 if self.ram else 0, self.hops - 1

    def slot(self, key: Key) -> int:
        """The bytes that a variant takes in a slot of the device."""
        return self.held_bytes[key[0]] if self.held_bytes else self.size(key)

    def hop_ns(self, link: int, moved: int) -> int:
        """`hop(l, bytes)`."""
        if self.links:
            return self.links[link].hop(moved)
        return dict(zip(self.variant_bytes, self.service_ns, strict=True))[moved]

    def latency_ns(self, link: int) -> int:
        return self.links[link].overhead_ns if self.links else 0

    def engines(self, link: int) -> int:
        return self.links[link].engines if self.links else 1

    def is_laned(self, link: int) -> bool:
        """Whether the link's engines have a pace of their own."""
        if not self.links:
            return False
        one = self.links[link]
        return (one.pace, one.wake_ns, one.copy_ns, one.by_projection) != (1_000_000, 0, 0, False)

    def projections(self, precision: int, moved: int) -> list[int]:
        """The bytes of each projection: the last has what the others leave."""
        *others, _ = self.projection_bytes[precision]
        found = []
        for size in others:
            found.append(min(size, moved - sum(found)))
        return [*found, moved - sum(found)]

    def projection_ns(self, key: Key, tokens: int, rows: int) -> list[int]:
        """The times of a variant's projections: what is through at the end of each is rounded
        down.
        """
        whole, sizes = (
            self.expert_ns(key[0], tokens, rows),
            self.projections(key[0], self.size(key)),
        )
        through = [whole * sum(sizes[: place + 1]) // sum(sizes) for place in range(len(sizes))]
        return [end - begin for begin, end in zip([0, *through], through, strict=False)]

    def head_bytes(self, link: int) -> int:
        return self.links[link].head_bytes if self.links else 0

    def expert_ns(self, precision: int, tokens: int, rows: int) -> int:
        """Compute time of an expert at a precision for so many of a step's rows."""
        more_ns = rows * self.step_row_ns[precision] if self.step_row_ns else 0
        return self.base_ns[precision] + self.per_token_ns[precision] * tokens + more_ns

    def moved_bytes(self, key: Key, asked: Need | Forecast) -> int:
        """What a transfer for this need or forecast moves: `payload.moved_bytes`."""
        return (
            self.size(key) if asked.moved_bytes is None else min(asked.moved_bytes, self.size(key))
        )

    def missing_bytes(self, key: Key, need: Need, moved_bytes: int) -> int:
        """What a need lacks that finds a partial prefetch of so many bytes:
        `payload.missing_bytes`.
        """
        return max(0, self.moved_bytes(key, need) - moved_bytes)

    @property
    def refuses(self) -> bool:
        """Whether the device's policy may refuse what was loaded."""
        return bool(self.refused or self.displace_none)

    def admits(self, key: Key, victims: int) -> bool:
        """Whether that policy lets a key in for which so many must go."""
        return key[2] not in self.refused and not (victims and key[2] in self.displace_none)

    @property
    def moves_partially(self) -> bool:
        """Whether any transfer moves less than its variant."""
        return any(
            asked.moved_bytes is not None
            for step in self.steps
            for site in range(self.sites)
            for asked in (
                *step.needs[site],
                *(f for forecast in step.forecasts[site] for f in forecast or ()),
            )
        )

    def pack(self, key: Key) -> int:
        """The key as the one int of contract C3."""
        precision, site, expert = key
        return (precision * self.sites + site) * (self.experts + 1) + expert

    def unpack(self, packed: int) -> Key:
        rest, expert = divmod(packed, self.experts + 1)
        precision, site = divmod(rest, self.sites)
        return precision, site, expert
