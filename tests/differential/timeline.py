"""The invariants of every timeline, whoever wrote it.

They need nothing but the scenario and the timeline's rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction
from itertools import pairwise

from differential.ref_steps import steps_of
from differential.rows import OUTCOMES, ServiceRow, Timeline, TransferRow
from differential.scenario import SKIP, Scenario


def check(scenario: Scenario, timeline: Timeline) -> None:
    _check_steps(scenario, timeline)
    _check_services(scenario, timeline)
    _check_transfers(scenario, timeline)
    _check_slots(scenario, timeline)
    _check_ram(scenario, timeline)
    _check_servings(scenario, timeline)
    _check_counts(timeline)
    _check_idle(timeline)


def _check_steps(scenario: Scenario, timeline: Timeline) -> None:
    """Steps and gates follow each other; lookups are in their gate, in need order; what is
    waited for has come.
    """
    plan, clock = steps_of(scenario), 0
    gates, lookups, ends = list(timeline.gates), list(timeline.lookups), []
    ends_here = scenario.last_links
    arrivals = {(row.number, row.end_ns) for row in timeline.services if row.link in ends_here}
    landed = {(timeline.transfers[number].key, end_ns) for number, end_ns in arrivals}
    for index, row in enumerate(timeline.steps):
        planned = plan.next(clock) or plan.next(row.start_ns)
        assert planned
        assert row.sequences == planned.step.members
        assert clock <= row.start_ns
        clock = row.start_ns
        before = None
        for site in planned.step.sites:
            gate = gates.pop(0)
            assert (gate.tick, gate.step, gate.site) == (
                len(timeline.gates) - len(gates) - 1,
                index,
                site,
            )
            dense_ns = scenario.work_ns(site, planned.step.dense_ns[site])
            dense_ns += scenario.crossing_ns(before, site, planned.step.rows)
            before = site
            assert clock + dense_ns + scenario.host.sync_ns <= gate.gate_ns
            assert gate.gate_ns + scenario.host.issue_ns + scenario.host.post_ns <= gate.end_ns
            clock = gate.end_ns
            for need in planned.step.needs[site]:
                look = lookups.pop(0)
                assert look.tick == gate.tick
                assert look.outcome in OUTCOMES
                assert gate.gate_ns <= look.lookup_ns <= look.ready_ns <= gate.end_ns
                if look.key == SKIP:
                    assert (look.outcome, look.wanted) == ("skip", SKIP)
                else:
                    at, expert = scenario.unpack(look.key)[1:]
                    assert at == site
                    assert expert == need.expert or scenario.reroute
                    assert expert != need.expert or look.outcome != "reroute"
                if look.outcome in ("late", "promoted", "miss"):
                    assert (look.key, look.ready_ns) in landed
                elif look.outcome == "cpu":
                    assert scenario.placement
                    assert look.ready_ns - look.lookup_ns >= scenario.placement.time_ns(need.tokens)
                else:
                    assert look.ready_ns == look.lookup_ns
        alone_ns = clock + scenario.work_ns(-1, planned.step.tail_ns)
        alone_ns += scenario.crossing_ns(before, -1, planned.step.rows)
        assert row.end_ns == alone_ns or (scenario.rivalry and row.end_ns > alone_ns)
        clock = row.end_ns
        ends += [(sequence, clock) for sequence in planned.ends]
    assert not gates
    assert not lookups
    assert plan.next(clock) is None
    assert plan.next_arrival() is None
    assert list(timeline.sequence_ends) == ends
    assert timeline.makespan_ns == clock


def _check_services(scenario: Scenario, timeline: Timeline) -> None:
    """An engine serves one at a time, the lowest free one first, each for exactly its time or
    its share of it.
    """
    assert all(a.start_ns <= b.start_ns for a, b in pairwise(timeline.services))
    for link in range(scenario.hops):
        rows = [row for row in timeline.services if row.link == link]
        free = [0] * scenario.engines(link)
        for row in rows:
            assert 0 <= row.engine < len(free)
            assert free[row.engine] <= row.start_ns <= timeline.makespan_ns
            assert all(
                free[lower] > row.start_ns or free[lower] < 0 for lower in range(row.engine)
            ) or _at_one(rows)
            free[row.engine] = timeline.makespan_ns if row.end_ns < 0 else row.end_ns
        _check_durations(scenario, timeline, rows)


def _at_one(rows: list[ServiceRow]) -> bool:
    """Whether any service takes no time: what is free at one instant then depends on the order
    within it.
    """
    times = [ns for row in rows for ns in (row.start_ns, row.end_ns)]
    return len(set(times)) < len(times)


def _check_durations(scenario: Scenario, timeline: Timeline, rows: list[ServiceRow]) -> None:
    """Integrate each service's share of the link, 1/m of what is active, to what it had to do
    beyond its latency.
    """
    if not rows:
        return
    link = rows[0].link
    latency = scenario.latency_ns(link)
    if scenario.is_laned(link):
        _check_lanes(scenario, timeline, rows)
        return
    spans = [
        (row.start_ns + latency, timeline.makespan_ns if row.end_ns < 0 else row.end_ns)
        for row in rows
    ]
    if scenario.rivalry:
        for row, (begins, ends) in zip(rows, spans, strict=True):
            works = [_duration(scenario, timeline, row) - latency]
            assert row.end_ns < 0 or ends - begins >= works[0]
        return
    if scenario.engines(link) == 1:
        for row, (begins, ends) in zip(rows, spans, strict=True):
            works = [_duration(scenario, timeline, row) - latency]
            if scenario.links and scenario.links[link].page_cache_bytes:
                works.append(
                    works[0]
                    - scenario.hop_ns(link, row.bytes)
                    + row.bytes * scenario.links[link].kept_ns
                )
            assert ends - begins in works if row.end_ns >= 0 else ends - begins <= max(works)
        return
    changes = sorted({ns for span in spans for ns in span})
    for row, (begins, ends) in zip(rows, spans, strict=True):
        work = _duration(scenario, timeline, row) - latency
        done, last = Fraction(0), Fraction(0)
        for a, b in pairwise(changes):
            if begins <= a and b <= ends:
                last = Fraction(1, sum(x <= a and b <= y for x, y in spans))
                done += (b - a) * last
        if row.end_ns < 0:
            assert done <= work
        else:
            assert ends >= begins
            assert done >= work
            assert done - last < work or not work


def _check_lanes(scenario: Scenario, timeline: Timeline, rows: list[ServiceRow]) -> None:
    """The same between latency and copy, each with at most its own pace (contract C165)."""
    link, free = scenario.links[rows[0].link], dict[int, int]()
    spans = []
    for row in rows:
        begins = row.start_ns + link.overhead_ns
        begins += link.wake_ns * (free.get(row.engine) != row.start_ns)
        free[row.engine] = row.end_ns
        is_cut = row.end_ns < 0
        ends = timeline.makespan_ns if is_cut else row.end_ns - row.bytes * link.copy_ns
        spans.append((begins, ends))
    changes = sorted({ns for span in spans for ns in span})
    for row, (begins, ends) in zip(rows, spans, strict=True):
        work, done, last = row.bytes * link.ns_per_byte, Fraction(0), Fraction(0)
        for a, b in pairwise(changes):
            if begins <= a and b <= ends:
                sharing = sum(x <= a and b <= y for x, y in spans)
                last = min(Fraction(1, sharing), Fraction(link.pace, 1_000_000))
                done += (b - a) * last
        if row.end_ns >= 0:
            assert ends >= begins
            assert done >= work
            assert done - last < work or not work


def _duration(scenario: Scenario, timeline: Timeline, row: ServiceRow) -> int:
    time = scenario.hop_ns(row.link, row.bytes)
    if row.link == 0 and scenario.loader.write_back:
        victims = timeline.transfers[row.number].victims
        time += sum(
            scenario.hop_ns(0, scenario.size(scenario.unpack(victim))) for victim in victims
        )
    return time


def _check_transfers(scenario: Scenario, timeline: Timeline) -> None:
    """Hops follow each other inwards; every byte is moved once on every link; nothing moves
    before it is queued.
    """
    services: dict[tuple[int, int], list[ServiceRow]] = defaultdict(list)
    for row in timeline.services:
        services[row.number, row.link].append(row)
    for number, transfer in enumerate(timeline.transfers):
        assert transfer.number == number
        links = [link for link, _ in transfer.hops]
        assert links == list(range(links[0], links[-1] - 1, -1))
        if scenario.devices:
            assert links == [scenario.link_of(scenario.unpack(transfer.key))]
        elif scenario.ram is None and transfer.kind != "dense":
            assert links[0] == scenario.hops - 1
        if transfer.kind == "dense" and scenario.kv_bytes:
            of_token = scenario.kv_bytes[scenario.unpack(transfer.key)[1]]
            assert transfer.moved_bytes > 0 == transfer.moved_bytes % of_token
        else:
            assert 0 < transfer.moved_bytes <= scenario.size(scenario.unpack(transfer.key))
        earlier = 0
        for position, (link, queued_ns) in enumerate(transfer.hops):
            served = services.pop((number, link), [])
            assert earlier <= queued_ns
            earlier = queued_ns
            assert all(queued_ns <= row.start_ns for row in served)
            moved = sum(row.bytes for row in served)
            assert moved <= _hop_bytes(scenario, transfer, link)
            if position + 1 < len(transfer.hops):
                handed_ns = transfer.hops[position + 1][1]
                last_ns = max(row.end_ns for row in served)
                assert served[0].start_ns <= handed_ns
                if handed_ns != last_ns:
                    assert scenario.head_bytes(link)
                    assert handed_ns < last_ns or last_ns < 0
                else:
                    assert moved == _hop_bytes(scenario, transfer, link)
    assert not services
    _check_cut_through(scenario, timeline)


def _check_cut_through(scenario: Scenario, timeline: Timeline) -> None:
    """What is handed on early is never through before the hop that it comes from."""
    ends: dict[tuple[int, int], int] = {}
    for row in timeline.services:
        ends[row.number, row.link] = row.end_ns
    for (number, link), end_ns in ends.items():
        outer = ends.get((number, link + 1), 0)
        if end_ns >= 0:
            assert 0 <= outer <= end_ns or not scenario.head_bytes(link + 1)


def _hop_bytes(scenario: Scenario, transfer: TransferRow, link: int) -> int:
    if scenario.ram and link >= scenario.ram.link and transfer.kind != "dense":
        return scenario.size(scenario.unpack(transfer.key))
    return transfer.moved_bytes


def _check_slots(scenario: Scenario, timeline: Timeline) -> None:
    """After each claim what is resident or on its way fits every pool; victims were there and had
    arrived.

    Claims are made at issue, in the order of services on link 0. Left out are loaders with which
    something bypasses the pools, slots that shrink, and links with lanes, whose services begin in another order than
    that of issue. (The reference asserts the capacity at every claim, whatever the loader.)
    """
    loader = scenario.loader
    is_laned = any(map(scenario.is_laned, scenario.last_links))
    trims = loader.retention != "strict" or scenario.spare_bytes
    if loader.staging_slots or trims or is_laned:
        return
    held = {key: 0 for pool in scenario.pools for key in pool.initial}
    claimed: set[int] = set()
    services: dict[int, list[ServiceRow]] = defaultdict(list)
    for row in timeline.services:
        services[row.number].append(row)
    for row in timeline.services:
        transfer = timeline.transfers[row.number]
        is_last = row.link in scenario.last_links
        if not is_last or row.number in claimed or transfer.kind == "dense":
            continue
        claimed.add(row.number)
        for packed in transfer.victims:
            arrived = held.pop(scenario.unpack(packed))
            assert 0 <= arrived <= row.start_ns
        key = scenario.unpack(transfer.key)
        assert key not in held
        last = [s for s in services[row.number] if s.link == row.link]
        held[key] = max(s.end_ns for s in last)
        ended = all(s.end_ns >= 0 for s in services[row.number])
        if ended and transfer.moved_bytes > sum(s.bytes for s in last):
            del held[key]
        for pool in scenario.pools:
            assert sum(scenario.size(k) for k in held if pool.covers(k)) <= pool.capacity_bytes
            if not pool.covers(key):
                assert not any(pool.covers(scenario.unpack(victim)) for victim in transfer.victims)


def _check_ram(scenario: Scenario, timeline: Timeline) -> None:
    """A transfer that was found in RAM begins inside it (so does the rest of a partial one, which
    is not looked up again); only what came to RAM leaves it."""
    if scenario.ram is None:
        assert not timeline.ram_lookups
        assert not timeline.ram_evictions
        return
    came = Counter(scenario.pack(key) for pool in scenario.ram.pools for key in pool.initial)
    for row in timeline.services:
        if row.link == scenario.ram.link and row.end_ns >= 0:
            came[timeline.transfers[row.number].key] += 1
    assert not Counter(timeline.ram_evictions) - came
    found = Counter(timeline.ram_lookups)
    for transfer in timeline.transfers:
        if transfer.kind != "dense":
            found[transfer.key, transfer.hops[0][0] < scenario.ram.link] -= 1
            assert transfer.hops[0][0] in (scenario.ram.link - 1, scenario.hops - 1)
    rests = -sum(count for count in found.values() if count < 0)
    assert rests <= timeline.prefetch["late"]
    assert all(inside for (_, inside), count in found.items() if count < 0)


def _check_servings(scenario: Scenario, timeline: Timeline) -> None:
    """At a gate one need at most brings an expert; only others that it serves may name it, too."""
    brought: Counter[tuple[int, int]] = Counter()
    for look in timeline.lookups:
        if look.key != SKIP and look.outcome != "reroute":
            brought[look.tick, scenario.unpack(look.key)[2]] += 1
    assert not brought or max(brought.values()) == 1


def _check_counts(timeline: Timeline) -> None:
    """Every count that can be had in two ways agrees."""
    fetched = timeline.prefetch
    kinds = Counter(transfer.kind for transfer in timeline.transfers)
    outcomes = Counter(row.outcome for row in timeline.lookups)
    issued = ("used", "late", "evicted_unused", "unused_at_end", "dropped")
    never_issued = ("promoted", "cancelled", "dropped_no_slot")
    assert fetched["started"] == sum(fetched[name] for name in issued)
    assert fetched["queued"] == fetched["started"] + sum(fetched[name] for name in never_issued)
    assert fetched["started"] == kinds["prefetch"]
    assert fetched["late"] == outcomes["late"]
    assert fetched["promoted"] == outcomes["promoted"]
    asked = outcomes["miss"] + outcomes["promoted"]
    assert asked <= kinds["demand"] <= asked + outcomes["late"]


def _check_idle(timeline: Timeline) -> None:
    """Idle intervals follow each other, and they and their parts are what is not computing."""
    assert sum(timeline.stall.values()) == timeline.makespan_ns - timeline.busy_ns
    assert min(timeline.stall.values()) >= 0
    if timeline.idle:
        assert (
            sum(row.end_ns - row.start_ns for row in timeline.idle)
            == timeline.makespan_ns - timeline.busy_ns
        )
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(timeline.idle))
        assert all(row.start_ns < row.end_ns for row in timeline.idle)
