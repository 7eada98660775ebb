"""A scenario on a slower clock, so that threads can keep up with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from differential.production import ScenarioDurations, ScenarioWorkload
from differential.scenario import Scenario
from sim.values.types import HostCosts, Step


class Slowed:
    """The durations of a scenario, each multiplied by ``factor``."""

    def __init__(self, scenario: Scenario, workload: ScenarioWorkload, factor: int) -> None:
        self._durations, self._factor = ScenarioDurations(scenario, workload), factor
        host = self._durations.host
        rate = host.load_bytes_per_s
        self.host = HostCosts(
            sync_ns=host.sync_ns * factor,
            issue_ns=host.issue_ns * factor,
            wake_ns=host.wake_ns * factor,
            post_ns=host.post_ns * factor,
            wakes=tuple((idle * factor, ns * factor) for idle, ns in host.wakes),
            load_ns=host.load_ns * factor,
            load_bytes_per_s=None if rate is None else rate / factor,
        )
        self.prediction_ns = scenario.prediction_ns * factor

    def dense_ns(self, step: Step) -> Sequence[int]:
        return [ns * self._factor for ns in self._durations.dense_ns(step)]

    def tail_ns(self, step: Step) -> int:
        return self._durations.tail_ns(step) * self._factor

    def expert_ns(self, precision: int, site: int, tokens: int, rows: int = 0) -> int:
        return self._durations.expert_ns(precision, site, tokens, rows) * self._factor

    def cpu_ns(self, precision: int, site: int, tokens: int) -> int:
        return self._durations.cpu_ns(precision, site, tokens) * self._factor

    def hop_ns(self, link: int, moved_bytes: int) -> int:
        return self._durations.hop_ns(link, moved_bytes) * self._factor

    def latency_ns(self, link: int) -> int:
        return self._durations.latency_ns(link) * self._factor


def slowed(scenario: Scenario, factor: int) -> Scenario:
    """The scenario with arrival times multiplied by ``factor``; its durations are `Slowed`'s."""
    requests = tuple(
        replace(request, arrival_ns=request.arrival_ns * factor) for request in scenario.requests
    )
    return replace(scenario, requests=requests)
