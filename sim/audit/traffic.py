"""Rules for prefetches, bytes and links, from the tables ``transfers`` and ``decisions``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import polars as pl

from sim.audit.files import RunFiles
from sim.audit.rules import Between, Left, Rule, ratio
from sim.audit.sizes import GIB, UNKNOWN, moves_whole, slot_bytes, variant_bytes

MOVED = ("demand", "prefetch", "dense")
STARTED = ("used", "late", "dropped", "evicted_unused", "unused_at_end")
NEVER_STARTED = ("promoted", "cancelled", "dropped_no_slot")
LEAVES_QUEUE = {
    "lookup": "promoted",
    "cancel": "cancelled",
    "drop_no_slot": "dropped_no_slot",
    "issue": "issued",
}
"""By kind of decision, what becomes of a waiting prefetch."""
WASTED = ("dropped", "evicted_unused", "unused_at_end")


def rules(run: RunFiles) -> Iterator[Rule | Left]:
    yield from _prefetches(run)
    yield from _bytes(run)
    yield from _utilisation(run)
    yield from _ram(run)
    yield from _peaks(run)


# ---- prefetches


def never_started(run: RunFiles) -> Counter[str]:
    """The outcomes of the prefetches that were queued and never issued.

    They follow from a walk through the decisions, key by key.
    """
    waiting: set[int] = set()
    ends: Counter[str] = Counter()
    rows = run.decisions.filter((pl.col("kind") != "lookup") | (pl.col("outcome") == "promoted"))
    for kind, key in rows.select("kind", "key").iter_rows():
        if kind == "queue_prefetch":
            waiting.add(key)
        elif key in waiting and kind in LEAVES_QUEUE:
            waiting.remove(key)
            ends[LEAVES_QUEUE[kind]] += 1
    # What still waits when the run ends is cancelled.
    ends["cancelled"] += len(waiting)
    return ends


def _prefetches(run: RunFiles) -> Iterator[Rule]:
    started = run.transfers.filter(pl.col("class") == "prefetch").unique("number")
    outcomes, ends = Counter(started["outcome"].to_list()), never_started(run)
    queued = int((run.decisions["kind"] == "queue_prefetch").sum())
    yield Rule("prefetch.queued", queued, "decisions of kind queue_prefetch")
    yield Rule("prefetch.started", len(started), "transfers of class prefetch")
    for name in STARTED:
        yield Rule(
            f"prefetch.{name}", outcomes[name], "prefetches among the transfers with this outcome"
        )
    for name in NEVER_STARTED:
        yield Rule(
            f"prefetch.{name}",
            ends[name],
            "prefetches that were queued, never issued, and ended so",
        )
    wasted = run.transfers.filter(
        (pl.col("class") == "prefetch")
        & pl.col("outcome").is_in(WASTED)
        & pl.col("link").is_in(run.links[: run.last_links])
    )
    yield Rule(
        "prefetch.wasted_bytes",
        int(wasted["moved_bytes"].sum()),
        "bytes over the link to the device of prefetches that no lookup found",
    )


# ---- links


def _bytes(run: RunFiles) -> Iterator[Rule | Left]:
    parts, services = run.over_link
    each = (pl.col("moved_bytes") + (parts - 1)) // parts
    sums = {
        (link, kind): moved
        for link, kind, moved in run.transfers.group_by("link", "class")
        .agg(services * each.sum())
        .iter_rows()
    }
    for link in run.links:
        for kind in MOVED:
            yield Rule(
                f"bytes.{link}.{kind}",
                sums.get((link, kind), 0),
                "moved_bytes of the transfers of this class",
            )
        yield Rule(
            f"bytes.{link}.activation", 0, "no driver moves activations over a link that it models"
        )
        if link != run.links[0] or not run.config["loader"].get("write_back"):
            yield Rule(f"bytes.{link}.write_back", 0, "nothing is written back over this link")
        else:
            yield _written_back(run)


def _written_back(run: RunFiles) -> Rule | Left:
    """Everything that was evicted is written back, except the part that the run's end cut."""
    link, victims = run.links[0], run.decisions["victim"].drop_nulls().to_list()
    victims += run.decisions.filter(pl.col("kind") == "evict")["key"].to_list()
    sizes = [key_bytes(run, key) for key in victims]
    if None in sizes:
        return Left(f"bytes.{link}.write_back", UNKNOWN)
    total = sum(size or 0 for size in sizes)
    arrived = run.transfers.filter(
        (pl.col("link") == link) & (pl.col("end_ns") < run.tokens["end_ns"].max())
    )
    is_whole = arrived["number"].n_unique() == run.transfers["number"].n_unique()
    text = "bytes of everything that was evicted; less what the run's end cut"
    return Rule(
        f"bytes.{link}.write_back",
        total if is_whole else Between(0, total),
        text,
    )


def key_bytes(run: RunFiles, key: int) -> int | None:
    """The bytes of a key's stored variant; None where no file tells them."""
    precision, site = divmod(key // run.units, run.sites)
    return variant_bytes(run, run.precisions[precision], site)


def _utilisation(run: RunFiles) -> Iterator[Rule]:
    for link in run.links:
        hops = run.transfers.filter(pl.col("link") == link).sort("start_ns")
        busy_ns = until_ns = 0
        for start_ns, end_ns in hops.select("start_ns", "end_ns").iter_rows():
            busy_ns += max(0, end_ns - max(start_ns, until_ns))
            until_ns = max(until_ns, end_ns)
        # A transfer may be cut and wait, but the link then serves another one: it stays busy.
        yield Rule(
            f"link_utilisation.{link}",
            ratio(busy_ns, run.makespan_ns) or 0.0,
            "time in which a transfer is on the link / makespan",
        )


# ---- tiers


def _ram(run: RunFiles) -> Iterator[Rule | Left]:
    ram = run.config["hardware"].get("ram")
    if not ram:
        yield Rule("ram", None, "the machine manages no RAM")
        return
    capacity = round(float(ram["capacity_gib"]) * GIB)
    is_one_pool = (run.config.get("ram_cache") or {}).get("scope") == "global"
    yield Rule(
        "ram.capacity_bytes",
        capacity if is_one_pool else Between(0, capacity),
        "hardware.ram.capacity_gib",
    )
    ends = never_started(run)
    prefetches = int((run.decisions["kind"] == "queue_prefetch").sum())
    missed = int((run.lookups["outcome"] == "miss").sum())
    yield Rule("ram.lookups", missed + prefetches, "misses, and prefetches that were queued")
    if not moves_whole(run):
        why = "the rest of a partial move begins at RAM without asking it"
        yield from (Left(f"ram.{name}", why) for name in ("hits", "hit_ratio"))
        return
    inside = run.links[run.links.index(ram["filled_by"]) - 1]
    begun = run.transfers.filter((pl.col("hop") == 0) & (pl.col("class") != "dense"))
    hits = int((begun["link"] == inside).sum())
    # Where a prefetch that was never issued would have begun is in no file.
    unknown = ends["cancelled"] + ends["dropped_no_slot"]
    told = Between(hits, hits + unknown) if unknown else hits
    yield Rule(
        "ram.hits", told, "transfers that begin at RAM; prefetches never issued may be some, too"
    )
    lookups = missed + prefetches
    low, high = ratio(hits, lookups), ratio(hits + unknown, lookups)
    share = low if low is None or high is None or not unknown else Between(low, high)
    yield Rule("ram.hit_ratio", share, "ram.hits / ram.lookups")


def _peaks(run: RunFiles) -> Iterator[Rule | Left]:
    yield Left(
        "peak_bytes.device",
        "the dense weights, key-value cache and activations on the device are in no file",
    )
    slots = int(run.config["loader"].get("staging_slots") or 0)
    sizes = [slot_bytes(run, name, site) for name in run.precisions for site in range(run.sites)]
    if slots and None in sizes:
        yield Left("peak_bytes.staging", UNKNOWN)
    else:
        most = slots * max([size or 0 for size in sizes] if slots else [0])
        yield Rule(
            "peak_bytes.staging",
            Between(0, most),
            "at most loader.staging_slots x bytes of the largest slot",
        )
    ram = run.config["hardware"].get("ram")
    capacity = round(float(ram["capacity_gib"]) * GIB) if ram else 0
    yield Rule("peak_bytes.ram", Between(0, capacity), "at most hardware.ram.capacity_gib")
