"""Properties that every run must have, whatever its features.

They concern bytes, causes, idle time, bounds of time, scaling and determinism. Nothing here says
that more memory or a faster link makes a run faster: with prefetching that is not so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from differential import production_rows
from differential.features import FEATURES
from differential.rows import Timeline, TransferRow
from differential.scenario import Fixed, Scenario, Step
from differential.timeline import check
from property.watched import Done, every_run, names, run, scenario_of
from sim.results.calls import KINDS

BOTH_TIES = pytest.mark.parametrize("ties", [True, False], ids=["ties", "no ties"])
NOT_OF_LINKS = ("cpu_join", "host", "no_request")
"""Parts of idle time that no link can shorten."""


def scenarios(ties: bool) -> Iterator[Scenario]:
    return (scenario_of(name, seed, ties) for name, seed in names())


# State, at every call


# Contracts: C21, C38
@pytest.mark.alike
@BOTH_TIES
def test_after_every_call_tiers_hold_what_their_policies_were_told_and_no_more_than_they_have_room_for(
    ties: bool,
) -> None:
    """``Watch`` asserts this, and that what is pinned stays. Here: it did so after every call."""
    for one in every_run(ties):
        assert one.watch.checks == one.controller.calls == len(one.record.call_ns) > 2, one.name


@BOTH_TIES
def test_questions_to_policies_are_asked_twice_and_change_no_run(ties: bool) -> None:
    """``Watch`` asserts that both answers are equal and leave the policy as it was.

    Here: the run is the same as without it.
    """
    for one in every_run(ties):
        assert production_rows.run(one.scenario) == one.timeline, one.name


@BOTH_TIES
def test_the_runs_ask_their_policies_and_make_every_call(ties: bool) -> None:
    """The runs must contain what is watched for."""
    called: Counter[str] = Counter()
    for one in every_run(ties):
        called += one.watch.called
    assert set(called) == set(KINDS)
    caches = [
        [one.watch.caches[0] for one in every_run(ties)],
        [cache for one in every_run(ties) for cache in one.watch.caches[1:]],
    ]
    for of_a_tier in caches:
        assert sum(cache.asked for cache in of_a_tier) > 200
        assert sum(cache.offered for cache in of_a_tier) > 200
    refusing = [one for one in every_run(ties) if not one.controller.cache.admits_all]
    assert refusing


# Bytes


@BOTH_TIES
def test_every_hop_moves_its_bytes_once_whatever_cuts_it(ties: bool) -> None:
    """Services that ended moved the bytes of the hops that ended, on every link.

    Beside these they moved only what was cut off.
    """
    moved_somewhere: Counter[int] = Counter()
    for one in every_run(ties):
        moved: dict[tuple[int, int], int] = defaultdict(int)
        for service in one.timeline.services:
            if service.end_ns >= 0:
                moved[service.number, service.link] += service.bytes
        cut: dict[tuple[int, int], int] = defaultdict(int)
        ended = set()
        for kind, link, number, count in one.watch.hops:
            if kind == "transfer_done":
                assert (number, link) not in ended
                ended.add((number, link))
            else:
                assert (number, link) not in ended
                cut[number, link] += count
        for number, transfer in enumerate(one.timeline.transfers):
            for link, _ in transfer.hops:
                whole = hop_bytes(one.scenario, transfer, link)
                expected = whole if (number, link) in ended else cut[number, link]
                assert moved.pop((number, link), 0) == expected, one.name
                assert expected < whole or (number, link) in ended
                moved_somewhere[link] += expected
        assert not moved
    assert set(moved_somewhere) == {0, 1, 2}


def hop_bytes(scenario: Scenario, transfer: TransferRow, link: int) -> int:
    """The bytes that a hop must move: the whole variant into RAM, then what is asked for."""
    if scenario.ram is not None and link >= scenario.ram.link:
        return scenario.size(scenario.unpack(transfer.key))
    return transfer.moved_bytes


@BOTH_TIES
def test_what_comes_in_over_the_last_link_is_there_or_has_gone(ties: bool) -> None:
    """Key by key: what was there at first or came in is still there or has gone, equally often."""
    for one in every_run(ties):
        device, scenario = one.watch.caches[0], one.scenario
        initial = Counter(scenario.pack(key) for pool in scenario.pools for key in pool.initial)
        assert initial + device.came - device.went == Counter(device.told), one.name
        arrived = Counter(
            one.timeline.transfers[number].key
            for kind, link, number, _ in one.watch.hops
            if (kind, link) == ("transfer_done", 0)
            and one.timeline.transfers[number].kind != "dense"
        )
        assert not device.came - arrived, "nothing comes in that has not arrived"
        if not scenario.loader.staging_slots:
            assert device.came == arrived
        claimed = Counter(key for transfer in one.timeline.transfers for key in transfer.victims)
        if scenario.loader.retention == "strict" and not scenario.loader.staging_slots:
            assert claimed == device.went


@BOTH_TIES
def test_what_comes_into_ram_came_over_its_link(ties: bool) -> None:
    seen = 0
    for one in every_run(ties):
        if one.scenario.ram is None:
            continue
        ram, link = one.watch.caches[1], one.scenario.ram.link
        initial = Counter(
            one.scenario.pack(key) for pool in one.scenario.ram.pools for key in pool.initial
        )
        arrived = Counter(
            one.timeline.transfers[number].key
            for kind, at, number, _ in one.watch.hops
            if (kind, at) == ("transfer_done", link)
        )
        assert ram.came == arrived
        assert initial + ram.came - ram.went == Counter(ram.told)
        assert Counter(one.timeline.ram_evictions) == ram.went
        seen += arrived.total()
    assert seen > 100


# Times


@BOTH_TIES
def test_every_run_keeps_the_rules_of_a_timeline(ties: bool) -> None:
    """Causes precede effects, engines serve one at a time, durations and sums are exact.

    Idle time is in whole ns.
    """
    for one in every_run(ties):
        check(one.scenario, one.timeline)


@BOTH_TIES
def test_work_and_idle_time_are_all_the_time_there_is(ties: bool) -> None:
    for one in every_run(ties):
        idle = sum(one.record.idle_end_ns) - sum(one.record.idle_start_ns)
        assert one.computing_ns + idle == one.timeline.makespan_ns, one.name
        assert sum(one.timeline.stall.values()) == idle
        assert min(one.timeline.stall.values()) >= 0


@BOTH_TIES
def test_a_run_takes_at_least_each_of_its_machines_and_at_most_one_after_another(
    ties: bool,
) -> None:
    """Nothing rests while the stream waits for it.

    So the stream's idle time is covered by links, the CPU, the host and arrivals.
    """
    for one in every_run(ties):
        parts, makespan = one.timeline.stall, one.timeline.makespan_ns
        links = [busy_ns(one, link) for link in range(one.scenario.hops)]
        on_cpu = sum(
            row.ready_ns - row.lookup_ns for row in one.timeline.lookups if row.outcome == "cpu"
        )
        waited = parts["host"] + parts["no_request"]
        assert max(*links, one.computing_ns) <= makespan, one.name
        assert makespan <= one.computing_ns + sum(links) + on_cpu + waited, one.name


def busy_ns(one: Done, link: int) -> int:
    """How long a link served anything, in ns."""
    spans = sorted(
        (row.start_ns, one.timeline.makespan_ns if row.end_ns < 0 else row.end_ns)
        for row in one.timeline.services
        if row.link == link
    )
    busy, until = 0, 0
    for start, end in spans:
        busy += max(0, end - max(start, until))
        until = max(until, end)
    return busy


# The same run again, otherwise


@BOTH_TIES
def test_a_machine_that_is_three_times_slower_does_the_same_in_three_times_the_time(
    ties: bool,
) -> None:
    """Links of several engines, and waking that takes longer after a longer wait, are left out.

    Both give whole ns of a share or of a straight line, which do not scale.
    """
    compared = 0
    for one in every_run(ties):
        single = all(one.scenario.engines(link) == 1 for link in range(one.scenario.hops))
        if single and not one.scenario.host.wakes:
            assert production_rows.run(slower(one.scenario, 3)) == scaled(one.timeline, 3), one.name
            compared += 1
    assert compared > 80


def slower(scenario: Scenario, factor: int) -> Scenario:
    """The scenario with every duration, and every arrival time, multiplied by ``factor``."""

    def longer(value: Any) -> Any:
        return tuple(factor * ns for ns in value) if isinstance(value, tuple) else factor * value

    def times(row: Any, *others: str) -> Any:
        columns = {
            name: value
            for name, value in vars(row).items()
            if name.endswith("_ns") or name in others
        }
        return replace(row, **{name: longer(value) for name, value in columns.items()})

    slow: Scenario = times(scenario)
    return replace(
        slow,
        steps=tuple(map(times, scenario.steps)),
        host=times(scenario.host),
        links=tuple(times(link, "ns_per_byte") for link in scenario.links),
        requests=tuple(map(times, scenario.requests)),
        placement=times(scenario.placement) if scenario.placement else None,
        batching=times(scenario.batching) if scenario.batching else None,
    )


def scaled(timeline: Timeline, factor: int) -> Timeline:
    """The timeline with every time and duration multiplied by ``factor``."""

    def rows(values: tuple[Any, ...]) -> tuple[Any, ...]:
        # A service that did not end has -1, whatever the machine.
        return tuple(
            replace(
                row,
                **{
                    n: factor * ns if ns >= 0 else ns
                    for n, ns in vars(row).items()
                    if n.endswith("_ns")
                },
            )
            for row in values
        )

    def hops(row: TransferRow) -> TransferRow:
        return replace(row, hops=tuple((link, factor * queued_ns) for link, queued_ns in row.hops))

    return replace(
        timeline,
        gates=rows(timeline.gates),
        lookups=rows(timeline.lookups),
        services=rows(timeline.services),
        steps=rows(timeline.steps),
        idle=rows(timeline.idle),
        transfers=tuple(map(hops, timeline.transfers)),
        makespan_ns=factor * timeline.makespan_ns,
        busy_ns=factor * timeline.busy_ns,
        stall={part: factor * ns for part, ns in timeline.stall.items()},
        sequence_ends=tuple((sequence, factor * ns) for sequence, ns in timeline.sequence_ends),
    )


@BOTH_TIES
def test_over_links_that_cost_nothing_a_run_waits_for_no_link(ties: bool) -> None:
    for scenario in scenarios(ties):
        links = tuple(replace(link, overhead_ns=0, ns_per_byte=0) for link in scenario.links)
        one = run(replace(scenario, links=links, service_ns=(0,) * scenario.precisions))
        waits = {part: ns for part, ns in one.timeline.stall.items() if part not in NOT_OF_LINKS}
        assert not any(waits.values()), waits
        beside = sum(one.timeline.stall[part] for part in NOT_OF_LINKS)
        assert one.timeline.makespan_ns == one.computing_ns + beside
        if (
            not scenario.placement
            and not any(vars(scenario.host).values())
            and not scenario.requests
        ):
            assert beside == 0


def roomy(scenario: Scenario) -> Scenario:
    """The scenario with room for everything, cold, without prefetches.

    All needs are computed on the device, at the highest precision.
    """
    pools = tuple(replace(pool, capacity_bytes=10**6, initial=()) for pool in scenario.pools)
    loader = replace(scenario.loader, lookahead=0, low_for_high=False)
    return replace(
        scenario,
        pools=pools,
        selector=Fixed(0),
        loader=loader,
        placement=None,
        refused=frozenset(),
        displace_none=frozenset(),
        reroute=None,
        steps=tuple(map(whole, scenario.steps)),
    )


def whole(step: Step) -> Step:
    """The step, asking for whole variants."""
    needs = tuple(
        tuple(replace(need, moved_bytes=None) for need in of_site) for of_site in step.needs
    )
    return replace(step, needs=needs, forecasts=((),) * len(step.needs))


@BOTH_TIES
def test_with_room_for_everything_each_variant_is_loaded_once_and_nothing_is_evicted(
    ties: bool,
) -> None:
    """There are only cold misses."""
    for scenario in scenarios(ties):
        one = run(roomy(scenario))
        asked = {
            (site, need.expert)
            for step in one.steps
            for site in step.sites
            for need in step.needs[site]
        }
        loaded = [transfer for transfer in one.timeline.transfers if transfer.kind != "dense"]
        assert sorted(scenario.unpack(transfer.key) for transfer in loaded) == sorted(
            (0, *pair) for pair in asked
        )
        assert not any(transfer.victims for transfer in loaded)
        assert one.outcomes["miss"] == len(asked)
        assert set(one.outcomes) <= {"miss", "hit"}


@BOTH_TIES
def test_with_ram_for_everything_no_variant_comes_into_it_twice(ties: bool) -> None:
    found = 0
    for scenario in scenarios(ties):
        if scenario.ram is None:
            continue
        pools = tuple(replace(pool, capacity_bytes=10**6) for pool in scenario.ram.pools)
        one = run(replace(scenario, ram=replace(scenario.ram, pools=pools)))
        there = {key for pool in pools for key in pool.initial}
        for transfer in one.timeline.transfers:
            links = [link for link, _ in transfer.hops]
            if scenario.ram.link in links and scenario.ram.link - 1 in links:
                assert scenario.unpack(transfer.key) not in there
                there.add(scenario.unpack(transfer.key))
        assert not one.timeline.ram_evictions
        found += sum(found for _, found in one.timeline.ram_lookups)
    assert found > 50


@BOTH_TIES
def test_a_forecast_that_is_always_wrong_never_settles_a_prefetch_as_used(ties: bool) -> None:
    """The forecast names experts that no gate needs.

    Where steps are composed, every row foresees such experts.
    """
    started = 0
    for scenario in scenarios(ties):
        timeline = production_rows.run(misled(replace(scenario, reroute=None)))
        assert (
            timeline.prefetch["used"]
            == timeline.prefetch["late"]
            == timeline.prefetch["promoted"]
            == 0
        )
        started += timeline.prefetch["started"]
    assert started > 100


def misled(scenario: Scenario) -> Scenario:
    unknown = scenario.experts  # one more expert, asked for by nobody

    def elsewhere(row: Any) -> Any:
        return replace(
            row,
            forecasts=tuple(
                tuple(
                    None if p is None else tuple(replace(f, expert=unknown) for f in p[:1])
                    for p in of_site
                )
                for of_site in row.forecasts
            ),
        )

    requests = tuple(
        replace(
            request,
            prompt=tuple(map(elsewhere, request.prompt)),
            decode=tuple(map(elsewhere, request.decode)),
        )
        for request in scenario.requests
    )
    pools = tuple(replace(pool, initial=()) for pool in scenario.pools)
    steps = tuple(replace(elsewhere(step), own=()) for step in scenario.steps)
    return replace(scenario, experts=unknown + 1, steps=steps, requests=requests, pools=pools)


@pytest.mark.alike
@pytest.mark.parametrize("name", [*FEATURES, "mixture"])
def test_a_run_is_the_same_again(name: str) -> None:
    """The scenario is built again, too: what runs share must keep no state."""
    for ties in (True, False):
        assert production_rows.run(scenario_of(name, 0, ties)) == production_rows.run(
            scenario_of(name, 0, ties)
        )
