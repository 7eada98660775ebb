"""How many heap events a run costs: a guard of speed without a clock."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from omegaconf import DictConfig

from differential.features import SIMULATED, random_feature, random_mixture
from differential.production import ScenarioWorkload, controller_for, durations_for
from differential.scenario import Scenario, random_scenario
from sim.core.controller import Controller
from sim.engine.clock import GATE, Clock, Entry
from sim.engine.engine import Engine
from sim.engine.simulate import simulate
from sim.machine.durations import Durations
from sim.setup.build import build
from sim.traces.trace import Trace
from sim.values.record import NO_REQUEST, Record
from sim.values.types import Outcome, Step

THE_END = (1, 2)
"""The event that stops the run; some releases of SimPy then put it back on the heap."""
pytestmark = pytest.mark.pure
BOTH_TIES = pytest.mark.parametrize("ties", [True, False], ids=["ties", "no ties"])


@dataclass
class Counts:
    """Events that were put on SimPy's heap, and those among them that were of gates."""

    events: int = 0
    gates: int = 0


@contextmanager
def counted() -> Iterator[Counts]:
    """Counted while the test runs."""
    count = Counts()

    class CountingClock(Clock):
        def __init__(self) -> None:
            super().__init__()
            self._push, self.put = self.put, self._count

        def _count(self, entry: Entry) -> None:
            count.events += 1
            count.gates += entry[1] >> 48 == GATE >> 48
            self._push(entry)

        def schedule(self, *args: object, **kwargs: object) -> None:
            count.events += 1
            super().schedule(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sim.engine.simulate.Clock", CountingClock)
        yield count


class Wishes:
    """Counts how often a service is asked to give way.

    As long as ``cut`` says yes it is one wish.
    """

    def __init__(self, controller: Controller) -> None:
        self.count = 0
        wished: dict[int, object] = {}
        cut = controller.cut

        def counted(link: int) -> bool:
            answer = cut(link)
            serving = (
                (controller._on_link[link][0], controller._on_link[link][0].left_bytes)
                if answer
                else None
            )
            self.count += answer and wished.get(link) != serving
            wished[link] = serving
            return answer

        controller.cut = counted  # type: ignore[method-assign]


@dataclass(frozen=True)
class Ran:
    """A scenario that has run, with the number of events that it put on the heap."""

    scenario: Scenario
    controller: Controller
    workload: ScenarioWorkload
    record: Record
    counts: Counts
    wishes: int

    def head_ns(self, service: int) -> int:
        """How long after its beginning a service hands its transfer on (section 5, cut-through)."""
        record, hop = self.record, self.scenario.hop_ns
        link, mine = record.service_link[service], record.service_bytes[service]
        head = self.scenario.head_bytes(link)
        following = self.controller.hop_bytes(
            self.controller.issued[record.service_number[service]], link - 1
        )
        never_starves = (
            hop(link, mine) + hop(link - 1, min(head, following)) - hop(link - 1, following)
        )
        return max(hop(link, min(head, mine)), never_starves)

    @property
    def heads(self) -> int:
        """How many services hand on before they end."""
        rows = zip(self.record.service_link, self.record.service_bytes, strict=True)
        return sum(
            self.scenario.head_bytes(link) > 0
            and self.head_ns(service) < self.scenario.hop_ns(link, moved)
            for service, (link, moved) in enumerate(rows)
        )

    @property
    def changes_of_shared_rates(self) -> int:
        """How often shared rates change on links with several engines.

        They change at ends of latencies and of services, and, without latency, at beginnings. Of
        engines with a pace of their own a copy's end costs one more.
        """
        scenario, found = self.scenario, 0
        for link in self.record.service_link:
            if scenario.is_laned(link):
                figures = scenario.links[link]
                latency_ns = scenario.latency_ns(link) + figures.wake_ns
                found += 1 + (latency_ns > 0) + (figures.copy_ns > 0)
            elif scenario.engines(link) > 1:
                found += 1 + (scenario.latency_ns(link) > 0)
        return found

    @property
    def changes_of_paces(self) -> int:
        """How many events the changes of pace cost where parties hold each other up.

        They are the end of each piece of work's latency, and, whenever work begins, ends, stops or
        goes on, each point of everybody's work in progress.
        """
        if self.scenario.rivalry is None:
            return 0
        gates, services = len(self.record.gate_ns), len(self.record.service_number)
        pieces = gates + len(self.workload.steps) + len(self.controller.lookup_keys) + services
        marks = sum(
            self.scenario.engines(link) * self.points(link) for link in range(self.scenario.hops)
        )
        waiting = sum(self.comes_from_a_head(link) for link in self.record.service_link)
        return pieces * (1 + 2 * (2 + marks)) + 2 * waiting * (2 + marks) + gates

    def points(self, link: int) -> int:
        """The points of a service on a link among rivals that ring.

        They are its end, a head or a cut, and where it waits for the link before it.
        """
        is_marked = self.scenario.head_bytes(link) > 0 or self.scenario.loader.chunk_bytes > 0
        return 1 + is_marked + self.comes_from_a_head(link)

    def comes_from_a_head(self, link: int) -> bool:
        return link + 1 < self.scenario.hops and self.scenario.head_bytes(link + 1) > 0

    @property
    def wave_gates(self) -> set[int]:
        """Ticks of gates that were served in waves."""
        calls = self.controller.wave_calls[::2]
        return {bisect_right(self.controller.gate_calls, call) - 1 for call in calls}

    @property
    def needs_of_waves(self) -> int:
        sizes = [len(step.needs[site]) for step in self.workload.told for site in step.sites]
        return sum(sizes[tick] for tick in self.wave_gates)

    @property
    def always(self) -> int:
        """The events that every feature costs.

        They are of gates on the heap, services, heads, CPU results, predictions, ends and begins of
        sequences, and waits for arrivals. A service that the end of the run cuts had its event, too;
        an issued transfer that is never served had none.
        """
        gates, record = len(self.record.gate_ns), self.record
        cpu = self.controller.lookup_outcomes.count(int(Outcome.CPU))
        predictions = gates if self.controller.predicts_later else 0
        arrivals = record.idle_cause.count(NO_REQUEST)
        return (
            self.counts.gates
            + len(record.service_number)
            + self.heads
            + cpu
            + predictions
            + boundaries(self.workload.steps)
            + arrivals
        )

    @property
    def is_exact(self) -> bool:
        """Whether no event of this run can ring in vain, or serve for two."""
        links, scenario = range(self.scenario.hops), self.scenario
        shares = any(scenario.engines(link) > 1 or scenario.is_laned(link) for link in links)
        cuts = shares or self.scenario.loader.chunk_bytes or self.scenario.rivalry
        return not (cuts or (self.scenario.placement and self.waves))

    @property
    def waves(self) -> int:
        """Calls of ``need_done``.

        Of a gate served in waves every need but the last may be released.
        """
        return len(self.controller.wave_calls) // 2


def boundaries(steps: Iterable[Step]) -> int:
    """How many steps end where sequences end or begin."""
    steps = list(steps)
    begins = sum(bool(after.begins) and not before.ends for before, after in pairwise(steps))
    return begins + sum(bool(step.ends) for step in steps)


@cache
def run(name: str, seed: int, ties: bool) -> Ran:
    """Run a random scenario: ``plain``, one of a feature, or a ``mixture``."""
    if name in SIMULATED:
        scenario = random_feature(name, seed, ties)
    else:
        scenario = random_scenario(seed, ties) if name == "plain" else random_mixture(seed, ties)
    controller, workload = controller_for(scenario), ScenarioWorkload(scenario)
    wishes = Wishes(controller)
    with counted() as counts:
        record = simulate(controller, workload, durations_for(scenario, workload))  # type: ignore[arg-type]
    return Ran(scenario, controller, workload, record, counts, wishes.count)


@BOTH_TIES
def test_a_run_costs_an_event_a_gate_a_service_a_wave_release_and_a_sequence_end(
    ties: bool,
) -> None:
    """In the plain case, with one link and no features, it costs exactly these."""
    waves = 0
    for seed in range(60):
        ran = run("plain", seed, ties)
        steps = ran.scenario.steps
        gates, services = ran.counts.gates, len(ran.record.service_number)
        ends = sum(step.ends for step in steps)
        assert gates <= len(steps) * ran.scenario.sites
        assert ran.counts.events - (gates + services + ran.waves + ends) in THE_END
        waves += ran.waves
    assert waves > 20


# Contracts: C119
@pytest.mark.alike
@BOTH_TIES
@pytest.mark.parametrize("name", [*SIMULATED, "mixture"])
def test_no_feature_costs_more_events_than_the_page_allows(name: str, ties: bool) -> None:
    """It costs exactly the events that the page names, where none can ring in vain."""
    for seed in range(30 if name == "mixture" else 4):
        ran = run(name, seed, ties)
        if ran.is_exact:
            assert ran.counts.events - (ran.always + ran.waves) in THE_END, seed
        else:
            allowed = (
                ran.always
                + ran.needs_of_waves
                + ran.wishes
                + ran.changes_of_shared_rates
                + ran.changes_of_paces
            )
            assert ran.counts.events <= allowed + max(THE_END), seed


@BOTH_TIES
def test_the_features_have_what_costs_them_events(ties: bool) -> None:
    """So the counts above are not zeros."""
    costly = ("engines", "cut_through", "chunks", "cpu", "prediction_latency", "arrivals")
    runs = [run(name, seed, ties) for name in costly for seed in range(10)]
    runs += [run("mixture", seed, ties) for seed in range(30)]
    assert sum(ran.changes_of_shared_rates for ran in runs) > 100
    assert sum(ran.heads for ran in runs) > 10
    assert sum(ran.wishes for ran in runs) > 2
    assert sum(ran.controller.lookup_outcomes.count(int(Outcome.CPU)) for ran in runs) > 100
    assert sum(ran.needs_of_waves for ran in runs) > 100
    assert sum(ran.controller.predicts_later for ran in runs) > 10
    assert sum(ran.record.idle_cause.count(NO_REQUEST) for ran in runs) > 2
    assert sum(ran.is_exact for ran in runs) > 20


@pytest.mark.alike
@pytest.mark.parametrize(
    "system", ["load_on_demand", "lru", "mixtral_offloading", "hobbit", "oracle"]
)
@pytest.mark.parametrize("share", [0.25, 0.6])
def test_every_system_costs_no_more(
    configure: Callable[..., DictConfig], bundled_trace: Trace, system: str, share: float
) -> None:
    overrides = (
        "trace.max_sequences=2",
        "experiment=more_memory",
        f"budget.resident_share={share}",
    )
    built = build(configure(f"system={system}", *overrides), system, bundled_trace)
    with counted() as counts:
        record = simulate(built.controller, built.workload, built.durations)
    releases = len(built.controller.wave_calls) // 2
    steps = built.workload.steps
    assert len(record.gate_ns) == 16 * len(steps) > 1000
    assert (
        counts.events - counts.gates - len(record.service_number) - releases - boundaries(steps)
        in THE_END
    )
    assert counts.gates == len(record.gate_ns) - gates_at_once(record, steps, built.durations)


def gates_at_once(record: Record, steps: Sequence[Step], durations: Durations) -> int:
    """How many gates follow the one before at once: gates of a step of one row, without host time,
    of which all is there and before which no transfer ends. These need no event.
    """
    if any(vars(durations.host).values()):
        return 0
    gates, ends = np.array(record.gate_ns), np.sort(record.service_end_ns)
    ended = np.searchsorted(ends, gates, side="right")
    waited = {at for at, ready in zip(record.lookup_ns, record.ready_ns, strict=True) if ready > at}
    found, tick = 0, 0
    for step in steps:
        for gate in range(tick, tick + len(step.sites) - 1):
            found += (
                step.rows == 1
                and ended[gate] == ended[gate + 1]
                and record.gate_ns[gate] not in waited
            )
        tick += len(step.sites)
    return found


# Contracts: C120
@pytest.mark.parametrize("chunks", ["null", "1048576"])
def test_what_runs_at_every_gate_finds_its_methods_fast(
    configure: Callable[..., DictConfig], bundled_trace: Trace, chunks: str
) -> None:
    """CPython keeps fewer than thirty attributes inside an object.

    With more, every call of a method takes the slow way.
    """
    built = build(
        configure("system=hobbit", f"loader.chunk_bytes={chunks}"), "hobbit", bundled_trace
    )
    engine = Engine(Clock(), built.controller, built.workload, built.durations)
    links = engine._polled[0][-1], built.controller.slots
    for one in (engine, built.controller, *links, built.controller.cache):
        assert len(vars(one)) < 30, type(one)
