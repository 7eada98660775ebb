"""Prefetches that wait as keys do what prefetches do (`sim.core.ranked`): the same calls of two
controllers, one of which makes each a transfer at once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim.core import controller as controllers
from sim.core.controller import Controller
from sim.core.loader import Loader
from sim.core.lookups import PROMOTED
from sim.core.simple import Simple
from sim.core.slots import UNUSED
from sim.core.transfer import Transfer
from sim.policies.placements import Load
from sim.policies.precisions import Fixed
from sim.policies.recency import LRU
from sim.policies.row_forecast import RowForecast
from sim.values.types import Event, Geometry, PrefetchOutcome

SITES, EXPERTS, TOP_K = 4, 8, 3
UNITS = EXPERTS + 1
FULL = Simple(*[False] * len(Simple._fields))
CODE = {"demand_evicts": "unmasked", "staging_slots": 2}
SWITCHES: tuple[dict[str, Any], ...] = (
    {},
    {"cancel_stale": False},
    {"replay_unit": "access"},
    {"prefetch_budget": 5},
    {"depth": "first_missing"},
    CODE,
    CODE | {"replay_unit": "access"},
    {"staging_slots": 2, "destination": "staging"},
)


class Says:
    """Names what a test wants."""

    lookahead_sites = 0
    learns = silent = False

    def __init__(self) -> None:
        self.rows: list[RowForecast] = []

    def predict(self, gate: Any) -> Iterable[RowForecast]:
        return self.rows

    def observe(self, gate: Any) -> None:
        raise AssertionError


class Run:
    """Random gates, forecasts and moments at which a link has something to do."""

    def __init__(self, seed: int, scope: str, switches: dict[str, Any]) -> None:
        self.dice = random.Random(seed)
        sizes = tuple(4 if site % 2 else 6 for site in range(SITES))
        geometry = Geometry(
            SITES, EXPERTS, TOP_K, ("fp16",), (16.0,), (6,), 72, site_bytes=(sizes,)
        )
        self.says = Says()
        loader = Loader(prefetch_order="likeliest", queue="replace", **switches)
        cache = LRU(scope, initial="empty")
        self.one = Controller(geometry, self.says, cache, Fixed("fp16"), Load(), loader)  # type: ignore[arg-type]
        self.flying: Transfer | None = None
        self.told: list[Any] = []
        for tick in range(80):
            self._gate(tick)
        self.one.finish()

    def _gate(self, tick: int) -> None:
        dice, one, site = self.dice, self.one, tick % SITES
        self.says.rows = [
            self._row(s) for s in range(SITES) if dice.random() < (0.2 if s == site else 0.7)
        ]
        needs = dice.sample(range(EXPERTS), dice.randint(1, TOP_K))
        gate = SimpleNamespace(
            site=site,
            tick=tick,
            step=tick // SITES,
            token=1 + tick // SITES,
            needs=needs,
            keys=[UNITS * site + expert for expert in needs],
            tokens=[1] * len(needs),
            scores=[0.0] * len(needs),
            experts=np.array([needs]),
        )
        self._note(one.gate(gate))  # type: ignore[arg-type]
        undone = list(one.admitted)
        while undone:
            key = undone.pop(0)
            while one.state[key] > UNUSED:
                self._work()
            if one.waiting:
                self._note(one.need_done(key))
                undone += one.admitted
        for _ in range(dice.randint(0, 3)):
            self._work()

    def _row(self, site: int) -> RowForecast:
        experts = self.dice.sample(range(EXPERTS), self.dice.randint(0, EXPERTS))
        likely = sorted((self.dice.randint(1, 4) / 4 for _ in experts), reverse=True)
        return RowForecast(site, UNITS, np.array([experts], np.int64), np.array([likely]))

    def _note(self, answer: Any) -> None:
        outcomes, waits = answer
        self.told.append((list(outcomes), sorted(waits or ())))

    def _work(self) -> None:
        """The link's next event; nothing where it is idle and nobody waits."""
        one, key = self.one, -1
        if self.flying is not None:
            key, self.flying = one.transfer_done(0, self.flying)
        elif any(one.queues[0]):
            self.flying = one.poll(0)
        self.told.append((key, self.flying and self.flying.key, any(one.queues[0])))

    @property
    def log(self) -> dict[str, Any]:
        one = self.one
        columns = (np.asarray(column).tolist() for column in one.event_columns.values())
        events = list(zip(*columns, strict=True))
        return {
            "told": self.told,
            "events": sorted(events),
            "order": [key for _, kind, key, _ in events if kind != Event.EVICT],
            "keys": one.lookup_keys,
            "outcomes": one.lookup_outcomes,
            "counts": one.prefetch_counts,
            "state": one.state,
            "calls": one.calls,
            "given_up": one.given_up,
        }


@pytest.mark.parametrize("scope", ["global", "site"])
@pytest.mark.parametrize(
    "switches", SWITCHES, ids=lambda switches: " ".join(map(str, switches.values())) or "plain"
)
def test_what_waits_as_keys_is_told_and_done_as_if_each_were_a_transfer(
    switches: dict[str, Any], scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Counter[Any] = Counter()
    for seed in range(8):
        short = Run(seed, scope, switches)
        assert short.one.simple.ranked
        with monkeypatch.context() as patch:
            patch.setattr(controllers, "how_simple", lambda *_, **__: FULL)
            full = Run(seed, scope, switches)
        assert short.log == full.log, seed
        seen["promoted"] += short.one.lookup_outcomes.count(PROMOTED)
        for outcome in (PrefetchOutcome.CANCELLED, PrefetchOutcome.DROPPED_NO_SLOT):
            seen[outcome] += short.one.prefetch_counts[outcome]
    assert min(seen.values()) >= 10, seen
