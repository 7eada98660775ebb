"""The causes of a gate's difference, on intervals and services made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sim.answers import time_audit
from sim.answers.time_audit import CAUSES, Cause, TimeAudit, audit_times
from sim.answers.time_parts import Interval, Service

GATE = Interval(
    7, 3, ((1, "miss"),), served_ns=500, queued_ns=40, moved_bytes=64, cpu_ns=6, own_ns=90
)


def service(moved_bytes: int, ns: int, is_first: bool) -> Service:
    return Service(1, 10, 10 + ns, moved_bytes, False, is_first)


LINK = [
    *(service(64, ns, True) for ns in (400, 90, 110)),
    *(service(64, ns, False) for ns in (70, 300, 80)),
    service(32, 1000, True),
    service(16, 1000, False),
]
"""Of 64 bytes the first ones take 110 and the others 80: 30 ns longer."""


@pytest.fixture
def audited(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(time_audit, "intervals_of", lambda of: of.intervals)
    monkeypatch.setattr(time_audit, "services_of", lambda of: of)

    def audit(
        was: Sequence[Interval],
        now: Sequence[Interval],
        was_link: Sequence[Service] = (),
        now_link: Sequence[Service] = (),
    ) -> TimeAudit:
        recorded: Any = SimpleNamespace(intervals=list(was), transfers=was_link)
        simulated: Any = SimpleNamespace(intervals=list(now), transfers=now_link)
        return audit_times(recorded, simulated)

    return audit


def causes(found: TimeAudit) -> dict[str, float]:
    assert tuple(one.name for one in found.causes) == CAUSES
    return {one.name: one.ns for one in found.causes if one.ns}


def now(**parts: Any) -> Interval:
    return replace(GATE, **parts)


def test_the_audit_has_the_times_of_both_and_one_token_for_each_step(audited: Any) -> None:
    later = replace(GATE, step=8)
    found = audited([GATE, GATE, later], [GATE, GATE, replace(later, own_ns=97)])
    assert (found.tokens, found.recorded_ns, found.simulated_ns) == (2, 3 * 636, 3 * 636 + 7)
    assert found.difference_ns == 7


def test_waits_of_gates_whose_needs_came_out_otherwise_are_one_cause(audited: Any) -> None:
    other = now(needs=((1, "late"),), served_ns=900, queued_ns=50, is_prefetch=True, is_first=True)
    assert causes(audited([GATE], [other], LINK, LINK)) == {"decided otherwise": 410}


@pytest.mark.parametrize("was", [True, False])
def test_a_wait_for_a_prefetch_in_either_run_is_a_late_prefetch(was: bool, audited: Any) -> None:
    pair = (now(is_prefetch=was), now(is_prefetch=not was, served_ns=507, queued_ns=41))
    assert causes(audited([pair[0]], [pair[1]])) == {"late prefetches": 8}


def test_a_wait_differs_by_its_service_and_by_the_wait_before_it(audited: Any) -> None:
    found = audited([GATE], [now(served_ns=520, queued_ns=43, cpu_ns=8)], LINK, LINK)
    assert causes(found) == {"link rate": 20, "queueing": 3, "cpu": 2}


def test_a_service_that_found_the_link_idle_has_its_latency(audited: Any) -> None:
    slow = [service(64, ns, is_first) for ns, is_first in ((150, True), (80, False))]
    simulated = audited([GATE], [now(served_ns=520, is_first=True)], LINK, slow)
    assert causes(simulated) == {"link latency": 70, "link rate": -50}
    recorded = audited([now(is_first=True)], [now(served_ns=520)], LINK, slow)
    assert causes(recorded) == {"link latency": -30, "link rate": 50}
    both = audited([now(is_first=True)], [now(is_first=True)], LINK, slow)
    assert causes(both) == {"link latency": 40, "link rate": -40}


@pytest.mark.parametrize("moved_bytes", [32, 16, 8])
def test_without_services_of_both_kinds_a_size_has_no_latency(
    moved_bytes: int, audited: Any
) -> None:
    one = now(is_first=True, moved_bytes=moved_bytes)
    for was, is_now in ((GATE, one), (one, GATE)):
        assert causes(audited([was], [replace(is_now, served_ns=501)], LINK, LINK)) == {
            "link rate": 1
        }


@pytest.mark.parametrize(
    ("met", "parts"),
    [
        ("after a wait", {}),
        ("beside copies", {"beside": True}),
        ("alone", {"served_ns": 0, "queued_ns": 0, "cpu_ns": 0}),
    ],
)
def test_work_of_its_own_is_told_by_what_the_recorded_gate_met(
    met: str, parts: dict[str, Any], audited: Any
) -> None:
    """Of 12 ns more 5 are computing."""
    was = now(compute_ns=30.0, **parts)
    is_now = replace(was, own_ns=102, compute_ns=35.0, beside=not was.beside)
    assert causes(audited([was], [is_now])) == {f"compute {met}": 5, f"host {met}": 7}


def test_a_cause_names_the_three_places_where_it_is_largest(audited: Any) -> None:
    """Each step has a site of its own but the last one, which has that of the first."""
    at = {1: (0, 5), 2: (1, -9), 3: (2, 0), 4: (3, 9), 5: (4, 1), 6: (0, 1)}
    was = [replace(GATE, step=step, site=site) for step, (site, _) in at.items()]
    later = [replace(one, queued_ns=40 + ns) for one, (_, ns) in zip(was, at.values(), strict=True)]
    found = audited(was, later).causes[CAUSES.index("queueing")]
    assert found == Cause("queueing", 7, ((2, -9), (4, 9), (1, 5)), ((1, -9), (3, 9), (0, 6)))
    few = audited(was[2::2], later[2::2]).causes[CAUSES.index("queueing")]
    assert (few.steps, few.sites) == (((5, 1),), ((4, 1),))


def test_runs_without_a_gate_or_with_other_gates_are_refused(audited: Any) -> None:
    with pytest.raises(
        ValueError, match="recorded run has 0 gates in decode steps, its simulation 0"
    ):
        audited([], [])
    with pytest.raises(
        ValueError, match="recorded run has 1 gates in decode steps, its simulation 1"
    ):
        audited([GATE], [now(site=4)])
