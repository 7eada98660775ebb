"""Every cache policy under ``conf/`` keeps its contract (sim/policies/base.py).

A new policy is one class and one yaml; the yaml makes it appear here. Other kinds of policies are
tested in `test_question_contracts`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from property.contracts import CONF, GEOMETRY, GROUPS, PROFILE, Make, discover, each, unchanged
from sim.policies.large_gates import LargeGatesOnlyRead
from sim.policies.recency import LRU
from sim.values.types import Cause, Outcome

# Caches: any history that a controller could bring


@dataclass(frozen=True)
class Visit:
    """A gate's needs with rows and wanted precisions; then so many evictions; then prefetches.

    ``elsewhere`` are needs that are absent and never come in, because the CPU or staging has them;
    they go when the gate is over. ``first_wave``: the policy is told of so many needs first, and of
    the others when these are done.
    """

    site: int
    experts: tuple[int, ...]
    tokens: tuple[int, ...]
    wanted: tuple[int, ...]
    evictions: int
    prefetches: tuple[int, ...]
    masked: frozenset[int]
    new_sequence: bool
    elsewhere: frozenset[int] = frozenset()
    first_wave: int = 4


KEYS = st.integers(0, GEOMETRY.num_keys - 1).filter(
    lambda key: GEOMETRY.expert_of(key) < GEOMETRY.experts
)


@st.composite
def visits(draw: st.DrawFn) -> Visit:
    experts = draw(
        st.lists(st.integers(0, GEOMETRY.experts - 1), min_size=1, max_size=4, unique=True)
    )
    small = st.integers(1, 3)
    return Visit(
        site=draw(st.integers(0, GEOMETRY.sites - 1)),
        experts=tuple(experts),
        tokens=tuple(draw(small) for _ in experts),
        wanted=tuple(draw(st.integers(0, 1)) for _ in experts),
        evictions=draw(st.integers(0, 3)),
        prefetches=tuple(draw(st.lists(KEYS, max_size=3, unique=True))),
        masked=draw(st.frozensets(KEYS, max_size=3)),
        new_sequence=draw(st.booleans()),
        elsewhere=draw(st.frozensets(st.sampled_from(experts), max_size=2)),
        first_wave=draw(st.integers(1, 4)),
    )


class Life:
    """Takes a policy through a history, beside the plain set of what is resident."""

    def __init__(self, policy: Any, history: Sequence[Visit]) -> None:
        self.policy = policy
        self.requests = [
            [
                GEOMETRY.key(p, visit.site, e)
                for e, p in zip(visit.experts, visit.wanted, strict=True)
            ]
            for visit in history
        ]
        plan = planned(policy, self.requests)
        self.pool_of, self.pools = plan.pool_of, range(len(plan.capacity_bytes))
        self.resident: set[int] = set()
        self.passing: list[int] = []
        self.blocked = bytearray(GEOMETRY.num_keys)
        for key in plan.initial:
            self._insert(key, Cause.INITIAL)

    def _insert(self, key: int, cause: Cause) -> None:
        self.resident.add(key)
        assert self.policy.on_insert(key, cause) is None

    def victims(self, pool: int) -> list[int]:
        return list(self.policy.victims(pool, 0, self.blocked))

    def live(self, tick: int, visit: Visit, check: Callable[[], None] = lambda: None) -> None:
        """Do what a controller would do at one visit.

        It lets go what never came in, pins, asks, evicts what is not blocked, and loads. ``check``
        is called between two waves.
        """
        if visit.new_sequence:
            self.policy.on_sequence(tick, True)
        for key in self.passing:
            assert self.policy.on_evict(key) is None
        gate = SimpleNamespace(
            tick=tick,
            step=tick,
            site=visit.site,
            token=tick + 1,
            needs=visit.experts,
            keys=[visit.site * GEOMETRY.units + expert for expert in visit.experts],
            tokens=visit.tokens,
            experts=np.array([visit.experts]),
        )
        asked = list(zip(self.requests[tick], visit.wanted, strict=True))
        first, last = asked[: visit.first_wave], asked[visit.first_wave :]
        missed = self._ask(first, visit, gate)
        if last:
            check()
            missed += self._ask(last, visit, gate)
        keys = self.requests[tick]
        self.blocked[:] = bytes(
            key in keys or key in visit.masked for key in range(GEOMETRY.num_keys)
        )
        for _ in range(visit.evictions):
            victim = next(
                (
                    key
                    for pool in self.pools
                    for key in self.policy.victims(pool, keys[0], self.blocked)
                ),
                None,
            )
            if victim is not None:
                self.resident.remove(victim)
                assert self.policy.on_evict(victim) is None
        self.passing = [key for key in missed if GEOMETRY.expert_of(key) in visit.elsewhere]
        for key in missed:
            if key not in self.passing:
                # A masked key was prefetched; it comes late, as a prefetch.
                self._insert(key, Cause.PREFETCH if key in visit.masked else Cause.DEMAND)
        for key in visit.prefetches:
            if key not in self.resident and key not in self.passing:
                self._insert(key, Cause.PREFETCH)
        if visit.new_sequence:
            self.policy.on_sequence(tick, False)

    def _ask(self, asked: Sequence[tuple[int, int]], visit: Visit, gate: Any) -> list[int]:
        """Pin the needs of a wave, tell the policy of them, and return those that are absent."""
        keys, wanted = [key for key, _ in asked], [precision for _, precision in asked]
        self.blocked[:] = bytes(
            key in keys or key in visit.masked for key in range(GEOMETRY.num_keys)
        )
        missed = [key for key in keys if key not in self.resident]
        outcomes = [int(Outcome.MISS if key in missed else Outcome.HIT) for key in keys]
        assert self.policy.on_requests(keys, wanted, outcomes, gate) is None
        return missed

    def check(self) -> None:
        for pool in self.pools:
            order = unchanged(self.policy, partial(self.victims, pool))
            inside = {
                key for key in self.resident if self.pool_of[key] == pool and not self.blocked[key]
            }
            assert len(order) == len(set(order))
            assert set(order) == inside, "victims must be a permutation of what may go"
            self._check_laziness(pool, order)

    def _check_laziness(self, pool: int, order: list[int]) -> None:
        taken = self.policy.victims(pool, 0, self.blocked)
        assert isinstance(taken, Iterator), "victims are answered lazily"
        assert [key for _, key in zip(range(1), taken, strict=False)] == order[:1]
        assert list(taken) == order[1:]


def cache_contract(make_policy: Make, history: Sequence[Visit]) -> None:
    life, twin = Life(make_policy(), history), Life(make_policy(), history)
    life.check()
    for tick, visit in enumerate(history):
        life.live(tick, visit, life.check)
        # `moelab check` goes on from copies.
        twin.policy = pickle.loads(pickle.dumps(twin.policy))
        twin.live(tick, visit)
        life.check()
        # The twin had the same history but was asked only for its evictions: the order is the same.
        for pool in life.pools:
            assert twin.victims(pool) == life.victims(pool), "the same history, the same order"
    for key, victims in product((0, 8), ((), (1,), (1, 2))):
        admitted = unchanged(life.policy, partial(life.policy.admit, key, victims))
        assert admitted is True or not life.policy.admits_all, "it is said to admit all"


@settings(max_examples=25, deadline=None)
@given(history=st.lists(visits(), min_size=1, max_size=8))
def test_recency_by_rows_keeps_the_contract_too(history: list[Visit]) -> None:
    """This is a value of a switch, so it has no file of its own."""
    cache_contract(partial(LRU, recency="rows"), history)


@settings(max_examples=25, deadline=None)
@given(history=st.lists(visits(), min_size=1, max_size=8))
def test_a_cache_that_every_gate_only_reads_keeps_the_contract_too(history: list[Visit]) -> None:
    cache_contract(lambda: LargeGatesOnlyRead(LRU(), up_to_rows=0), history)


@pytest.mark.alike
@settings(max_examples=25, deadline=None)
@given(history=st.lists(visits(), min_size=1, max_size=8))
@each("cache", "ram_cache")
def test_a_cache_policy_orders_exactly_what_may_go_and_asking_changes_nothing(
    make_policy: Make, history: list[Visit]
) -> None:
    cache_contract(make_policy, history)


@each("cache", "ram_cache")
def test_a_cache_policy_divides_no_more_bytes_than_there_are(make_policy: Make) -> None:
    life = Life(make_policy(), [Visit(0, (0,), (1,), (0,), 0, (), frozenset(), False)])
    plan = make_policy_plan(make_policy)
    assert sum(plan.capacity_bytes) <= GEOMETRY.capacity_bytes
    assert len(plan.pool_of) == GEOMETRY.num_keys
    assert set(plan.pool_of) <= set(life.pools)
    for pool, capacity in enumerate(plan.capacity_bytes):
        held = [key for key in plan.initial if plan.pool_of[key] == pool]
        assert sum(GEOMETRY.variant_bytes[GEOMETRY.precision_of(key)] for key in held) <= capacity
    assert len(set(plan.initial)) == len(plan.initial)


def make_policy_plan(make_policy: Make) -> Any:
    return planned(make_policy(), [[0]])


def planned(policy: Any, requests: Sequence[Sequence[int]]) -> Any:
    """The pools of a policy that was told the future and the fit sequences, if it asks for them."""
    if hasattr(policy, "foresee"):
        policy.foresee(requests)
    if getattr(policy, "needs_profile", False):
        policy.profile(PROFILE)
    return policy.pools(GEOMETRY)


# A new policy


MOST_RECENT = '''
from sim.policies.recency import LRU


class MostRecent(LRU):
    """Most recently requested first."""

    def victims(self, pool, incoming, blocked):
        return iter(list(super().victims(pool, incoming, blocked))[::-1])


class Forgetful(LRU):
    """Forgets whom it names."""

    def victims(self, pool, incoming, blocked):
        for key in list(super().victims(pool, incoming, blocked)):
            self.on_evict(key)
            yield key


class Blind(LRU):
    """Names what may not go."""

    def victims(self, pool, incoming, blocked):
        return super().victims(pool, incoming, bytearray(len(blocked)))


class Eager(LRU):
    """Answers with a list."""

    def victims(self, pool, incoming, blocked):
        return list(super().victims(pool, incoming, blocked))


class Fragile(LRU):
    """Cannot forget what never came in."""

    def on_insert(self, key, cause):
        super().on_insert(key, cause)
        self.__dict__.setdefault("there", set()).add(key)

    def on_evict(self, key):
        assert key in self.there, "who is that?"
        self.there.remove(key)
        super().on_evict(key)


class Choosy(LRU):
    """Says that it admits all, and does not."""

    def admit(self, key, victims):
        return key > 0


class Changeable(LRU):
    """No two objects agree."""

    born = 0

    def __init__(self):
        super().__init__()
        Changeable.born += 1
        self.mine = Changeable.born

    def victims(self, pool, incoming, blocked):
        return iter(sorted(super().victims(pool, incoming, blocked), reverse=bool(self.mine % 2)))
'''
HISTORY = [
    Visit(0, (1, 2), (1, 1), (1, 1), 1, (8,), frozenset({3}), True, frozenset({2})),
    Visit(1, (3, 4), (2, 1), (0, 0), 2, (), frozenset(), False),
]


def test_a_new_policy_is_one_class_and_one_yaml_and_is_found_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = _conf_with(tmp_path, monkeypatch, "MostRecent")
    found = discover(conf, "cache")
    assert list(found) == ["new"]
    assert type(found["new"]()).__name__ == "MostRecent"
    cache_contract(found["new"], HISTORY)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Forgetful", "a question changed the policy"),
        ("Blind", "permutation"),
        ("Eager", "lazily"),
        ("Fragile", "who is that"),
        ("Choosy", "said to admit all"),
        ("Changeable", "the same history"),
    ],
)
def test_a_policy_that_breaks_its_contract_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    conf = _conf_with(tmp_path, monkeypatch, name)
    with pytest.raises(AssertionError, match=why):
        cache_contract(discover(conf, "cache")["new"], HISTORY)


def _conf_with(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Path:
    # Python caches modules by name, so every folder gets a module of its own.
    module = f"new_policy_{name.lower()}"
    (folder / f"{module}.py").write_text(MOST_RECENT, encoding="utf-8")
    (folder / "conf" / "cache").mkdir(parents=True)
    (folder / "conf" / "cache" / "new.yaml").write_text(
        f"_target_: {module}.{name}\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(folder)
    return folder / "conf"


@pytest.mark.parametrize("group", GROUPS)
def test_the_files_of_every_group_are_found(group: str) -> None:
    assert len(discover(CONF, group)) == len(list((CONF / group).iterdir())) >= 1
