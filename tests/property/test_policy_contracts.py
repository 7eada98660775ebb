"""Every policy under ``conf/`` keeps its contract (sim/policies/base.py). Policies are found by file name.

A new policy is one class and one yaml: the file makes it appear here.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from sim.build import ROOT, make_object
from sim.fitting.fits import fit_predictor, shape_of
from sim.fitting.prepare import future_needs
from sim.gate_inputs import GateInputs
from sim.policies.caches import LRU
from sim.policies.fitted import FittedPredictor
from sim.policies.learned import LearnedPerSite
from sim.policies.predictors import NoPrediction
from sim.policies.profile import Profile
from sim.synthesis import synthesize
from sim.trace import ModelShape
from sim.types import REROUTE, SKIP, Cause, Geometry, Outcome, Place
from sim.workload import StepGate, Workload

CONF = ROOT / "conf"
GROUPS = ("cache", "ram_cache", "predictor", "precision", "placement")
GIVEN = {"low_above": 0.3, "skip_above": 0.7}
"""Values for what an option file leaves open (???)."""
GEOMETRY = Geometry(3, 5, 2, ("fp16", "int4"), (16.0, 4.0), (8, 2), 3 * 5 * 8 // 2)
PROFILE = Profile(
    uses=np.random.default_rng(1).integers(0, 9, (3, 5)),
    decoded=np.random.default_rng(2).permuted(np.tile(np.arange(5), (9, 3, 1)), axis=2)[:, :, :2],
)
Make = Callable[[], Any]


def discover(conf: Path, group: str) -> dict[str, Make]:
    """By file name: a maker of fresh policies."""
    return {path.stem: partial(make, conf, group, path.stem) for path in sorted((conf / group).glob("*.yaml"))}


def make(conf: Path, group: str, name: str) -> Any:
    policy = make_object(composed(conf, group, name))
    if getattr(policy, "quantiles", None) is not None:
        policy.profile(np.linspace(0, 1, 101))
    return policy


@cache
def composed(conf: Path, group: str, name: str) -> Any:
    """Plain values: most of the time of these tests would go into OmegaConf's detours."""
    with initialize_config_dir(str(conf), version_base="1.3"):
        cfg = compose(f"{group}/{name}")
    for key in OmegaConf.missing_keys(cfg):
        OmegaConf.update(cfg, key, GIVEN[key.rpartition(".")[2]])
    return OmegaConf.to_container(cfg[group], resolve=True)


def each(*groups: str) -> pytest.MarkDecorator:
    found = {f"{group}/{name}": policy for group in groups for name, policy in discover(CONF, group).items()}
    return pytest.mark.parametrize("make_policy", found.values(), ids=found.keys())


def unchanged(policy: object, question: Callable[[], Any]) -> Any:
    """The answer to a question that is asked twice: no asking may change the policy, and both answers are equal."""
    before = pickle.dumps(policy)
    answer, again = question(), question()
    assert pickle.dumps(policy) == before, "a question changed the policy"
    assert answer == again
    return answer


# ---- caches: any history that a controller could bring ---------------------------------------------------------------


@dataclass(frozen=True)
class Visit:
    """A gate: its needs with rows and wanted precisions; then so many evictions; then prefetches that arrive.

    ``elsewhere``: of needs that are absent these never come in (the CPU has them, or staging): they go when the gate is
    over.
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


KEYS = st.integers(0, GEOMETRY.num_keys - 1).filter(lambda key: GEOMETRY.expert_of(key) < GEOMETRY.experts)


@st.composite
def visits(draw: st.DrawFn) -> Visit:
    experts = draw(st.lists(st.integers(0, GEOMETRY.experts - 1), min_size=1, max_size=4, unique=True))
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
    )


class Life:
    """A policy through a history, beside the plain set of what is resident."""

    def __init__(self, policy: Any, history: Sequence[Visit]) -> None:
        self.policy = policy
        self.requests = [
            [GEOMETRY.key(p, visit.site, e) for e, p in zip(visit.experts, visit.wanted, strict=True)]
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

    def live(self, tick: int, visit: Visit) -> None:
        """As a controller would: let go what never came in, pin, ask for, evict what is not blocked, load."""
        if visit.new_sequence:
            self.policy.on_sequence(tick, True)
        for key in self.passing:
            assert self.policy.on_evict(key) is None
        keys = self.requests[tick]
        self.blocked[:] = bytes(key in keys or key in visit.masked for key in range(GEOMETRY.num_keys))
        gate = SimpleNamespace(tick=tick, step=tick, site=visit.site, token=tick + 1,
                               needs=visit.experts, tokens=visit.tokens, experts=np.array([visit.experts]))  # fmt: skip
        missed = [key for key in keys if key not in self.resident]
        outcomes = [int(Outcome.MISS if key in missed else Outcome.HIT) for key in keys]
        assert self.policy.on_requests(keys, visit.wanted, outcomes, gate) is None
        for _ in range(visit.evictions):
            victim = next(
                (key for pool in self.pools for key in self.policy.victims(pool, keys[0], self.blocked)), None
            )
            if victim is not None:
                self.resident.remove(victim)
                assert self.policy.on_evict(victim) is None
        self.passing = [key for key in missed if GEOMETRY.expert_of(key) in visit.elsewhere]
        for key in missed:
            if key not in self.passing:
                # What was masked comes as the prefetch that it was: late.
                self._insert(key, Cause.PREFETCH if key in visit.masked else Cause.DEMAND)
        for key in visit.prefetches:
            if key not in self.resident and key not in self.passing:
                self._insert(key, Cause.PREFETCH)
        if visit.new_sequence:
            self.policy.on_sequence(tick, False)

    def check(self) -> None:
        for pool in self.pools:
            order = unchanged(self.policy, partial(self.victims, pool))
            inside = {key for key in self.resident if self.pool_of[key] == pool and not self.blocked[key]}
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
        life.live(tick, visit)
        twin.live(tick, visit)
        life.check()
        # The twin was never asked but for its evictions: the same history, the same order.
        for pool in life.pools:
            assert twin.victims(pool) == life.victims(pool), "the same history, the same order"
    for key, cause in product((0, 8), (Cause.DEMAND, Cause.PREFETCH)):
        admitted = unchanged(life.policy, partial(life.policy.admit, key, cause))
        assert admitted is True or not life.policy.admits_all, "it is said to admit all"


@settings(max_examples=40, deadline=None)
@given(history=st.lists(visits(), min_size=1, max_size=8))
def test_recency_by_rows_keeps_the_contract_too(history: list[Visit]) -> None:
    """A value of a switch, so no file of its own."""
    cache_contract(partial(LRU, recency="rows"), history)


@settings(max_examples=40, deadline=None)
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
    """The pools of a policy that has been told, if it asks, of the future and of the fit sequences."""
    if hasattr(policy, "foresee"):
        policy.foresee(requests)
    if getattr(policy, "needs_profile", False):
        policy.profile(PROFILE)
    return policy.pools(GEOMETRY)


# ---- selectors -------------------------------------------------------------------------------------------------------


SCORES = st.floats(0, 1) | st.sampled_from([0.0, 0.3, 0.7, 1.0])


@settings(max_examples=60, deadline=None)
@given(
    scores=st.lists(SCORES, max_size=6),
    resident=st.frozensets(st.tuples(st.integers(0, 1), st.integers(0, 5))),
    foreseen=st.lists(st.integers(0, 9), max_size=6, unique=True),
    is_gate=st.booleans(),
)
@each("precision")
def test_a_selector_answers_once_for_every_need_and_within_what_it_permits(
    make_policy: Make,
    scores: list[float],
    resident: frozenset[tuple[int, int]],
    foreseen: list[int],
    is_gate: bool,
) -> None:
    """Only the needs of a gate are sent to other experts, and to those that there are."""
    selector = make_policy()
    choice = SimpleNamespace(site=1, needs=list(range(len(scores))), tokens=[1] * len(scores), scores=scores,
                             experts=np.arange(len(scores))[None], **({"tick": 3} if is_gate else {}))  # fmt: skip
    held = SimpleNamespace(
        has=lambda precision, site, expert: site == 1 and (precision, expert) in resident, foreseen=foreseen
    )
    answers = unchanged(selector, lambda: list(selector.select(choice, held)))
    permitted = [unchanged(selector, partial(selector.permitted, score)) for score in scores]
    precisions = len(selector.precisions)
    assert len(answers) == len(scores)
    for answer, allowed in zip(answers, permitted, strict=True):
        assert set(allowed) <= {SKIP, *range(precisions)} | {REROUTE for _ in range(selector.reroutes)}
        if answer < precisions:
            assert answer in allowed
        else:
            assert is_gate
            assert REROUTE in allowed
            assert answer % precisions in allowed
            assert answer // precisions <= 10
    if selector.constant is not None:
        assert set(answers) <= {selector.constant}
        assert set(permitted) <= {(selector.constant,)}


# ---- predictors and placements ---------------------------------------------------------------------------------------


def _workload() -> Workload:
    """Of a trace with forecasts for three sites ahead and gate inputs of every row."""
    shape = ModelShape("small", "none", 5, 6, 2, 64, 64)
    trace = synthesize(shape, tokens=4, sequences=2, prompt_tokens=3, lookahead=3, lookahead_accuracy=0.5)
    rows = len(trace.sequence)
    trace = replace(trace, token=np.arange(rows, dtype=np.int32) % 5)
    workload = Workload(trace, split="all", batching="sequential", lookahead=3)
    inputs = np.random.default_rng(0).standard_normal((rows, 5, 64), np.float32)
    workload.gate_inputs = GateInputs(inputs, np.arange(rows))
    return workload


def _gates() -> list[StepGate]:
    """One at each site of a prefill and of some decode steps."""
    workload, gates = _workload(), []
    for step in workload.steps[:4]:
        for site in range(5):
            gate = workload.gate()
            gate.open(step)
            for before in range(site + 1):
                gate.visit(before)
            gates.append(gate)
    return gates


def ready(predictor: Any) -> Any:
    """The predictor with what it has to know beforehand: fitted on the gates' own trace, or made up."""
    workload = _workload()
    if hasattr(predictor, "foresee_needs"):
        predictor.foresee_needs(future_needs(workload))
    if isinstance(predictor, LearnedPerSite):
        shape, rng = shape_of(workload.trace.header), np.random.default_rng(1)
        arrays = {}
        for site in predictor.sources(shape):
            given = predictor.num_given(shape, site, 64)
            arrays[f"site{site}_w0"] = rng.standard_normal((given + 6 * (predictor.history + 1), 6))
            arrays[f"site{site}_b0"] = rng.standard_normal(6)
        predictor.know(shape, arrays)
    elif isinstance(predictor, FittedPredictor):
        sequences = [sequence.sequence for sequence in workload.sequences]
        fitted = fit_predictor(predictor, workload.trace, sequences) if predictor.needs_artefact else None
        predictor.know(shape_of(workload.trace.header), fitted.arrays if fitted else {})
    return predictor


Told = tuple[int, list[int], list[int], list[float], list[int]]


def told(predictor: Any, gate: StepGate) -> list[Told]:
    """The forecasts, read one at a time: a supplier may use one object again and again."""
    return [(c.site, list(c.keys), list(c.needs), list(c.scores), list(c.tokens)) for c in predictor.predict(gate)]


@each("predictor")
def test_a_predictor_names_later_sites_nearest_first_and_asking_changes_nothing(make_policy: Make) -> None:
    predictor = ready(make_policy())
    named = 0
    for gate in _gates():
        forecasts = unchanged(predictor, partial(told, predictor, gate))
        sites = [site for site, *_ in forecasts]
        assert all(a < b for a, b in pairwise([gate.site, *sites]))
        assert all(site < 5 for site in sites)
        for site, keys, needs, scores, tokens in forecasts:
            assert 0 < len(needs) == len(set(needs)) == len(scores) == len(tokens)
            assert set(needs) <= set(range(6))
            assert keys == [7 * site + expert for expert in needs], "keys are those of precision 0"
            assert all(0 <= score <= 1 for score in scores)
        assert [c.site for c, _ in zip(predictor.predict(gate), range(1), strict=False)] == sites[:1]
        assert predictor.observe(gate) is None
        named += len(forecasts)
    assert bool(named) == (not isinstance(predictor, NoPrediction))


@each("predictor")
def test_a_predictor_afresh_answers_as_it_did_at_first(make_policy: Make) -> None:
    """A second walk through the same gates gives the same answers, and leaves the first predictor as it is."""
    predictor = ready(make_policy())

    def walk(asked: Any) -> list[list[Told]]:
        answers = []
        for gate in _gates():
            answers.append(told(asked, gate))
            asked.observe(gate)
        return answers

    first = walk(predictor)
    after = pickle.dumps(predictor)
    assert walk(predictor.afresh()) == first
    assert pickle.dumps(predictor) == after


@each("predictor")
def test_a_predictor_that_says_it_learns_nothing_is_the_same_after_every_gate(make_policy: Make) -> None:
    """The controller never calls ``observe`` of one that does not learn."""
    predictor = ready(make_policy())
    before = pickle.dumps(predictor)
    for gate in _gates():
        predictor.observe(gate)
    assert predictor.learns or pickle.dumps(predictor) == before


class Held:
    """Read access to a device that holds these keys of five sites of six experts."""

    def __init__(self, keys: frozenset[int]) -> None:
        self.keys = keys

    def has(self, precision: int, site: int, expert: int) -> bool:
        return 7 * (5 * precision + site) + expert in self.keys

    def expert_of(self, key: int) -> int:
        return key % 7


@each("placement")
def test_a_placement_answers_once_for_every_key(make_policy: Make) -> None:
    """It is asked for the needs that are admitted: all of a gate, some, or none."""
    placement = make_policy()
    queued = SimpleNamespace(bytes_ahead=lambda link: 0)
    asked = 0
    for gate in _gates():
        for keys in (gate.keys, gate.keys[1:], []):
            held = Held(frozenset(gate.keys[::2]))
            answers = unchanged(placement, partial(placement.place, gate, keys, held, queued))
            assert len(answers) == len(keys)
            assert set(answers) <= set(Place)
            assert placement.constant is None or set(answers) <= {placement.constant}
            asked += len(keys)
    assert asked > 50


# ---- a new policy ----------------------------------------------------------------------------------------------------


MOST_RECENT = '''
from sim.policies.caches import LRU


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

    def admit(self, key, cause):
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
    # A module of its own for every folder: python keeps modules by name.
    module = f"new_policy_{name.lower()}"
    (folder / f"{module}.py").write_text(MOST_RECENT, encoding="utf-8")
    (folder / "conf" / "cache").mkdir(parents=True)
    (folder / "conf" / "cache" / "new.yaml").write_text(f"_target_: {module}.{name}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    return folder / "conf"


@pytest.mark.parametrize("group", GROUPS)
def test_the_files_of_every_group_are_found(group: str) -> None:
    assert len(discover(CONF, group)) == len(list((CONF / group).iterdir())) >= 1
