"""What happens for nothing: an alarm whose reason was forgotten, a cut without room, a wait of 0 ns."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from sim.engine.contended_links import ContendedLink
from sim.engine.owners import OwnedEngine, Owner
from sim.values.record import CPU_RESULT, HOST_TIME

pytestmark = pytest.mark.pure
NOW = 7


@pytest.mark.parametrize(
    ("releases", "released", "is_set"),
    [
        ([], [], 0),
        ([(8, 3)], [], 1),
        ([(7, 3)], [(3, 7)], 0),
        ([(7, 3), (7, 4)], [(3, 7)], 1),
    ],
)
def test_an_owners_alarm_releases_the_need_whose_time_it_is(
    releases: list[tuple[int, int]], released: list[tuple[int, int]], is_set: int
) -> None:
    """The releases of a gate are forgotten with it, and its alarm still rings."""
    told: list[tuple[int, int]] = []
    alarms: list[int] = []
    owner: Any = SimpleNamespace(
        _release_is_set=True,
        _releases=deque(releases),
        _set_release=lambda: alarms.append(1),
        engine=SimpleNamespace(release_of=lambda of, key, now: told.append((key, now))),
    )
    Owner._on_need_done(owner, NOW)
    assert (told, len(alarms), owner._release_is_set) == (released, is_set, False)


@pytest.mark.parametrize("following", [None, "a demand"])
def test_a_cut_that_finds_no_transfer_to_serve_issues_none(following: str | None) -> None:
    """The demand for which a prefetch gives way may have no slot yet."""
    begun: list[int] = []
    settled: list[tuple[int, int, bool]] = []
    service: Any = SimpleNamespace(cut="alarm", draw="draw", chunks=3, transfer="it", row=1)
    link: Any = SimpleNamespace(
        _contest=SimpleNamespace(is_done=lambda *_: False, stop=lambda draw, now: None),
        _chunk_bytes=10,
        _ends=[-1, -1],
        _services=[0] * 12,
        _calls=[],
        _begin=begun.append,
        controller=SimpleNamespace(chunk_done=lambda index, transfer, moved: following),
        index=0,
        issued=deque(["waits"]),
        machine=SimpleNamespace(settle=lambda now, but, always: settled.append((now, but, always))),
        serving=[service],
    )
    ContendedLink._on_cut_due(link, service, 7)
    assert list(link.issued) == (["waits", following] if following else ["waits"])
    assert settled == [(7, 0, following is not None)]
    assert (link.serving, link._ends, link._calls, begun) == ([], [-1, 7], [7], [7])
    assert link._services == [0] * 11 + [30], "the last number of row 1 is what was moved"
    assert service.cut is None


@pytest.mark.parametrize(
    ("until_ns", "idle"),
    [(49, []), (50, []), (51, [(51, CPU_RESULT), (56, HOST_TIME)])],
)
def test_home_wakes_only_where_it_had_to_wait_for_another_device(
    until_ns: int, idle: list[tuple[int, int]]
) -> None:
    """Home is free at 50 ns, and waking takes 5."""
    told: list[tuple[int, int]] = []
    home: Any = SimpleNamespace(
        _free_ns=50,
        _idle=lambda until, cause: told.append((until, cause)),
        _waking_ns=lambda idle_ns: 5,
    )
    other: Any = SimpleNamespace(begun_ns=30, cause=3)
    OwnedEngine._wait_for(home, other, until_ns)
    assert told == idle
