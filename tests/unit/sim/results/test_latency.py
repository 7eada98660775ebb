"""Rates and times of requests, where the runs of other tests have none to show."""

from __future__ import annotations

from sim.results.latency import _rate


def test_what_never_happened_or_took_no_time_has_no_rate() -> None:
    assert _rate(3, 1_500_000_000) == 2.0
    assert _rate(0, 1_500_000_000) is None
    assert _rate(3, 0) is None
