"""Converts what a run of the production code recorded into the rows of the reference."""

from __future__ import annotations

from differential.production import Driver, ScenarioWorkload, controller_for, durations_for
from differential.rows import (
    Cause,
    GateRow,
    IdleRow,
    Kind,
    LookupRow,
    ServiceRow,
    StepRow,
    Timeline,
    TransferRow,
)
from differential.scenario import Scenario
from sim.core.controller import Controller
from sim.core.transfer import Transfer
from sim.engine.simulate import simulate
from sim.machine.durations import Durations
from sim.results.stalls import split_stalls
from sim.values.record import CPU_RESULT, HOST_TIME, NO_REQUEST, Record
from sim.values.types import Outcome, PrefetchOutcome

OTHER_CAUSES: dict[int, Cause] = {
    CPU_RESULT: "cpu_join",
    HOST_TIME: "host",
    NO_REQUEST: "no_request",
}


def run(scenario: Scenario, driver: Driver = simulate) -> Timeline:  # type: ignore[assignment]
    """The timeline of the production code; ``driver`` is the engine or another driver of the
    same controller.
    """
    controller, workload = controller_for(scenario), ScenarioWorkload(scenario)
    durations = durations_for(scenario, workload)
    asked = _listen(controller)
    record = driver(controller, workload, durations)
    controller.check()
    return _timeline(controller, workload, durations, record, tuple(asked))


def _listen(controller: Controller) -> list[tuple[int, bool]]:
    """(key, found) of every lookup in RAM, while the run goes on."""
    asked: list[tuple[int, bool]] = []
    ram = controller.ram
    if ram is not None:
        look_up = ram.look_up

        def listening(key: int) -> bool:
            asked.append((key, look_up(key)))
            return asked[-1][1]

        ram.look_up = listening  # type: ignore[method-assign]
    return asked


def _timeline(
    controller: Controller,
    workload: ScenarioWorkload,
    durations: Durations,
    record: Record,
    asked: tuple[tuple[int, bool], ...],
) -> Timeline:
    makespan = record.makespan_ns
    stalls = split_stalls(record, controller.issued, durations, controller.slots.key_bytes)
    idle = sum(record.idle_end_ns) - sum(record.idle_start_ns)
    counts = {
        outcome.name.lower(): controller.prefetch_counts[outcome] for outcome in PrefetchOutcome
    }
    started = sum(t.prefetch for t in controller.issued)
    sites = [(step.index, site) for step in workload.steps for site in step.sites]
    return Timeline(
        gates=tuple(
            GateRow(tick, *sites[tick], gate, end)
            for tick, (gate, end) in enumerate(zip(record.gate_ns, record.end_ns, strict=True))
        ),
        lookups=_lookups(controller, workload, record),
        services=_services(controller, record),
        transfers=tuple(
            TransferRow(
                number,
                t.key,
                _kind(t),
                t.moved_bytes,
                tuple(t.victims),
                tuple((link, record.call_ns[call - 1]) for link, call in t.hops),
            )
            for number, t in enumerate(controller.issued)
        ),
        steps=tuple(
            StepRow(
                record.step_start_ns[step.index], record.step_end_ns[step.index], step.sequences
            )
            for step in workload.steps
        ),
        prefetch={**counts, "queued": controller.num_prefetches_queued, "started": started},
        makespan_ns=makespan,
        busy_ns=makespan - idle,
        stall={part: int(ns.sum()) for part, ns in stalls.items()},
        sequence_ends=tuple(
            (sequence, record.step_end_ns[step.index])
            for step in workload.steps
            for sequence in step.ends
        ),
        ram_lookups=asked,
        ram_evictions=tuple(key for _, key in controller.ram.evictions) if controller.ram else (),
        idle=tuple(_idle(controller, record)),
    )


def _kind(transfer: Transfer) -> Kind:
    return "dense" if transfer.dense else "prefetch" if transfer.prefetch else "demand"


def _lookups(
    controller: Controller, workload: ScenarioWorkload, record: Record
) -> tuple[LookupRow, ...]:
    visits = [step.needs[site] for step in workload.told for site in step.sites]
    ticks = [tick for tick, needs in enumerate(visits) for _ in needs]
    wanted = controller.lookup_wanted or [0] * len(ticks)
    columns = (
        ticks,
        controller.lookup_keys,
        wanted,
        controller.lookup_outcomes,
        record.lookup_ns,
        record.ready_ns,
    )
    return tuple(
        LookupRow(tick, key, want, Outcome(outcome).name.lower(), at, ready)
        for tick, key, want, outcome, at, ready in zip(*columns, strict=True)
    )


def _services(controller: Controller, record: Record) -> tuple[ServiceRow, ...]:
    """The reference calls urgent only what was a prefetch once."""
    columns = (
        record.service_number,
        record.service_link,
        record.service_engine,
        record.service_urgent,
        record.service_start_ns,
        record.service_end_ns,
        record.service_bytes,
    )
    return tuple(
        ServiceRow(
            number,
            link,
            engine,
            bool(urgent) and controller.issued[number].prefetch,
            start,
            end,
            moved,
        )
        for number, link, engine, urgent, start, end, moved in zip(*columns, strict=True)
    )


def _idle(controller: Controller, record: Record) -> list[IdleRow]:
    rows = []
    for start, end, cause in zip(
        record.idle_start_ns, record.idle_end_ns, record.idle_cause, strict=True
    ):
        if cause < 0:
            rows.append(IdleRow(start, end, OTHER_CAUSES[cause]))
        else:
            is_dense = controller.issued[cause].dense
            rows.append(IdleRow(start, end, "dense" if is_dense else "transfer", cause))
    return rows
