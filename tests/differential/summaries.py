"""A random scenario's run as users see it: its tables, its summary and its configuration."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from differential.production import (
    ScenarioWorkload,
    Schedule,
    controller_for,
    durations_for,
    speculation_of,
    tiers_of,
)
from differential.scenario import Host, Scenario, Step
from sim.audit.files import RunFiles
from sim.bounds.bounds import Bounds
from sim.engine.simulate import simulate
from sim.policies.predictors import NoPrediction
from sim.results.frames import Frames
from sim.results.metrics import summarise
from sim.results.run import Run
from sim.traces.synthesis import synthesize
from sim.traces.trace import DECODE, PREFILL, ModelShape, TraceSequence
from sim.values.types import Step as RunStep
from sim.workload.lengths import Lengths
from sim.workload.speculation import NO_DRAFTS
from sim.workload.unions import Needs

GIB = 2**30
HEADER = synthesize(ModelShape("tiny", "none", 1, 2, 1, 8, 8), tokens=1, lookahead=0).header


class MeasuredWorkload(ScenarioWorkload):
    """The steps of a scenario with what tables are made of: rows, needs, gates and requests.

    Of a step of several sequences the scenario does not say which rows are whose: the first has
    what the others leave, which have one each. Weights are not the scenario's either; some number
    stands for each.
    """

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.parts: list[Sequence[Any]] = []
        self.split, self.lengths = "all", Lengths()
        batching = scenario.batching
        self.batching = batching.kind if batching is not None else "recorded"
        self.together = batching.size if batching is not None else 1
        self.prefill_chunk = (batching.prefill_chunk or None) if batching is not None else None
        self.speculation = speculation_of(batching) if batching is not None else NO_DRAFTS
        self.tiers = tiers_of(batching) if batching is not None else None

    def _tell(self, steps: Sequence[Step]) -> None:
        """A prompt of one token is a prompt where its sites say so: an encoder's."""
        super()._tell(steps)
        self.steps = [
            replace(step, decode=False)
            if step.sites[0] == 0 and len(step.sites) < self.sites
            else step
            for step in self.steps
        ]

    def start(self) -> Schedule:
        self.parts = []
        schedule = super().start()
        compose = schedule._compose

        def noting(parts: Sequence[Any]) -> RunStep:
            self.parts.append(list(parts))
            return compose(parts)

        schedule._compose = noting  # type: ignore[method-assign]
        return schedule

    @property
    def arrivals_ns(self) -> dict[int, int]:
        if self.scenario.requests:
            return {
                number: request.arrival_ns for number, request in enumerate(self.scenario.requests)
            }
        return {number: 0 for step in self.told for number in step.members}

    @property
    def is_timed(self) -> bool:
        return max(self.arrivals_ns.values()) > 0

    @property
    def encoder_sites(self) -> int:
        """Of an encoder-decoder model, the sites that a prompt visits."""
        visits = [step.sites for step in self.steps if not step.decode]
        own = self.sites - self.speculation.sites
        return len(visits[0]) if visits and len(visits[0]) < own else 0

    def settle(self) -> None:
        """The run is over: what its steps were made of."""
        rows = [row for index in range(len(self.steps)) for row in self._rows_of(index)]
        positions = self._positions(rows)
        self.trace = SimpleNamespace(
            sequence=np.array([number for number, _ in rows]), position=np.array(positions)
        )
        self.row, self.phase = np.arange(len(rows)), np.array([phase for _, phase in rows])
        # Of a prompt, what was found is not read.
        found = {part.request.sequence: part.found.tokens for parts in self.parts for part in parts}
        # A draft that was wrong is read again, and is one token.
        of_phase = Counter(
            (number, phase)
            for number, phase, _ in {(*r, p) for r, p in zip(rows, positions, strict=True)}
        )
        self.sequences = [
            TraceSequence(
                number,
                "eval",
                "none",
                of_phase[number, PREFILL] + found.get(number, 0),
                of_phase[number, DECODE],
            )
            for number in sorted({number for number, _ in rows})
        ]
        gates = [(step.index, site) for step in self.steps for site in step.sites]
        self.num_gates = len(gates)
        self.gate_step, self.gate_site = (
            np.array(column, np.int64) for column in zip(*gates, strict=True)
        )
        needs = [
            (tick, need)
            for tick, (step, site) in enumerate(gates)
            for need in self.told[step].needs[site]
        ]
        self.needs = Needs(
            np.array([tick for tick, _ in needs], np.int64),
            np.array([need.expert for _, need in needs], np.int64),
            np.array([need.tokens for _, need in needs], np.int64),
            np.array([need.tokens * (1.25 - need.score) for _, need in needs]),
            lambda: np.array([need.score for _, need in needs]),
        )

    def _positions(self, rows: Sequence[tuple[int, int]]) -> list[int]:
        if self.parts:
            return [
                part.first + place
                for parts in self.parts
                for part in parts
                for place in range(part.count)
            ]
        seen: Counter[int] = Counter()
        positions = []
        for number, _ in rows:
            positions.append(seen[number])
            seen[number] += 1
        return positions

    def _rows_of(self, index: int) -> list[tuple[int, int]]:
        """Sequence and phase of the rows of a step."""
        step = self.steps[index]
        if self.parts:
            return [
                (part.request.sequence, DECODE if part.decode else PREFILL)
                for part in self.parts[index]
                for _ in range(part.count)
            ]
        first, *others = step.sequences
        members = [first] * (step.rows - len(others)) + others
        return [(number, DECODE if step.decode else PREFILL) for number in members]


def measured_run(scenario: Scenario) -> tuple[Run, Frames]:
    """A scenario, simulated, as a run that can be summarised. What was forecast is not kept."""
    controller, workload = controller_for(scenario), MeasuredWorkload(scenario)
    durations = durations_for(scenario, workload)
    record = simulate(controller, workload, durations)  # type: ignore[arg-type]
    workload.settle()
    controller.predictor = NoPrediction()
    ends, where = controller.route.ends, scenario.devices
    # Links of devices are named after the one link of the machine's file.
    links = tuple(
        f"link0_{link}" if 0 < link < ends else f"link{link}" for link in range(scenario.hops)
    )
    frames = Frames(controller, cast(Any, workload), durations, record, links)
    model = SimpleNamespace(
        name="tiny",
        transplant=None,
        part=None,
        keeps=lambda precision: True,
        stored="bf16",
        kv_bytes_per_token=sum(scenario.kv_bytes),
        gates_of=None,
    )
    run = SimpleNamespace(
        system="scenario",
        model=model,
        hardware=SimpleNamespace(
            name="machine",
            title=f"{len(where.slower)} x machine ({where.split})" if where else "machine",
            preset="none",
            compared=None,
            link_names=links,
            measured=None,
            devices=None,
        ),
        trace=SimpleNamespace(header=HEADER),
        workload=workload,
        controller=controller,
        durations=durations,
        ledger=SimpleNamespace(
            dense_bytes=scenario.variant_bytes[0], total_bytes=1000, overflow_bytes=0
        ),
        resident_share=0.5,
        seed=0,
        fitted_on=0,
        known=0,
        changed=(),
        recorded_bytes=None,
        config=_config(scenario, workload, controller, links),
    )
    run.policies = Run.policies.fget(run)  # type: ignore[attr-defined]
    return cast(Run, run), frames


def files_of(run: Run, frames: Frames) -> RunFiles:
    """What the run would leave in its folder."""
    summary = json.loads(json.dumps(summarise(run, frames, Bounds(1, 1, None, "a scenario"))))
    return RunFiles(summary, json.loads(json.dumps(run.config)), **frames.tables())


def _host(host: Host) -> dict[str, Any]:
    table = [[idle_ns / 1000, wake_ns / 1000] for idle_ns, wake_ns in host.wakes]
    return {
        "sync_us": host.sync_ns / 1000,
        "issue_us": host.issue_ns / 1000,
        "wake_us": table or host.wake_ns / 1000,
        "post_us": host.post_ns / 1000,
        "load_us": host.load_ns / 1000,
        "load_gb_per_s": 1 / host.load_byte_ns if host.load_byte_ns else None,
    }


def _config(
    scenario: Scenario, workload: MeasuredWorkload, controller: Any, links: Sequence[str]
) -> dict[str, Any]:
    pools = {"scope": "global" if len(scenario.pools) == 1 else "site", "initial": "ascending"}
    ram, ends, where = scenario.ram, controller.route.ends, scenario.devices
    machine: dict[str, Any] = {
        "name": "machine",
        "preset": "none",
        "validated": "none",
        "links": {name: {} for name in (links if ends == 1 else links[:1])},
        "devices": where
        and {
            "count": len(where.slower),
            "split": where.split,
            "links": "shared" if where.shared else "own",
        },
        "host": _host(scenario.host),
        "swap": scenario.swap and vars(scenario.swap),
        "prediction_us": scenario.prediction_ns / 1000,
        "ram": None,
    }
    if ram is not None:
        capacity = sum(pool.capacity_bytes for pool in ram.pools)
        machine["ram"] = {"capacity_gib": capacity / GIB, "filled_by": links[ram.link]}
    return {
        "seed": 0,
        "budget": {},
        "trace": {"split": "all"},
        "hardware": machine,
        "cache": pools,
        "ram_cache": pools,
        "model": {
            "name": "tiny",
            "sites": scenario.sites - workload.speculation.sites,
            "experts": scenario.experts,
            "encoder_sites": workload.encoder_sites,
        },
        "workload": {
            "batching": workload.batching,
            "together": workload.together,
            "prefill_chunk": workload.prefill_chunk,
            "draft_tokens": workload.speculation.tokens,
            "draft_accepted": workload.speculation.accepted,
            "draft_seed": workload.speculation.seed,
            "draft_layers": workload.speculation.layers,
            "draft_experts": workload.speculation.experts,
            "arrivals_per_s": None,
            "block_tokens": (scenario.batching and scenario.batching.block_tokens) or None,
            "arrivals_s": [request.arrival_ns / 1e9 for request in scenario.requests] or None,
        },
        "precision": {"held": "of the scenario"} if scenario.held_bytes else {},
        "payload": {
            "_target_": "Partial" if scenario.moves_partially else "sim.policies.payloads.Whole"
        },
        "loader": dict(vars(controller.loader)),
    }
