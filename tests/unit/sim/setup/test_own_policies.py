"""What policies of one's own answer is refused by name where it cannot be: it went into lists as an
index, named other experts, and the run said a time.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim.policies.base import Payload, Placement, PrecisionSelector, Predictor
from sim.policies.recency import LRU
from sim.policies.row_forecast import RowForecast
from sim.setup.execute import execute
from sim.setup.own_policies import check_answers
from sim.study.trials import prepared
from sim.values.types import SKIP, Geometry, Place, PoolPlan

pytestmark = pytest.mark.pure
GEOMETRY = Geometry(4, 8, 2, ("fp16", "int4"), (16.0, 4.0), (100, 25), 1000)
UNITS = 9
WORDS = ("trace.max_sequences=1", "workload.decode_tokens=2", "budget.resident_share=0.4")
GATE = SimpleNamespace(site=0, tick=0, step=0, needs=[1, 2], keys=[1, 2], scores=[0.0, 0.6])
PAGE = r"; docs/add_policy\.md and sim/policies/base\.py say what it must answer$"


GATE_SEEN = {"needs": [1, 2], "keys": [1, 2], "scores": [0.0, 0.6]}


def checked(section: str, policy: Any) -> Any:
    check_answers({section: policy}, GEOMETRY)
    return policy


def forecast(site: int = 1, experts: Any = (1, 2), weights: Any = (0.6, 0.4), **said: Any) -> Any:
    made = RowForecast(site, UNITS, np.array([experts]), np.array([weights]))
    for name, value in said.items():
        setattr(made, name, value)
    return made


class Forecasts(Predictor):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def predict(self, gate: Any) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, r"`predict` is None \(NoneType\), and must be the Choices"),
        (forecast(), r"`predict` is <.*> \(RowForecast\), and must be the Choices"),
        ([[1, 2]], r"`predict` is \[1, 2\] \(list\), .* this one has no `site`"),
        (
            [forecast(site=4)],
            r"`predict: site` is 4 \(int\), and must be a whole number from 0 to 3",
        ),
        ([forecast(site=-1)], r"`predict: site` is -1 "),
        (
            [forecast(experts=(-3, 2))],
            r"`predict: needs` is \[-3, 2\] .* from 0 to 7, each an expert",
        ),
        ([forecast(experts=(8, 2))], r"`predict: needs` is \[8, 2\] "),
        ([forecast(experts=(1.5, 2.0))], r"`predict: needs` is \[1\.5, 2\.0\] "),
        ([forecast(experts=(1, 1))], r"`predict: needs` is \[1, 1\] .* different experts"),
        ([forecast(keys=[1, 2])], r"`predict: keys` is \[1, 2\] .* must be \[10, 11\], the keys"),
        ([forecast(tokens=[1])], r"`predict: tokens` is \[1\] .* 2 numbers"),
        ([forecast(weights=(np.nan, 0.4))], r"`predict: weights` is .* finite and not negative"),
        ([forecast(weights=(-1.0, 0.4))], r"`predict: weights` is .* finite and not negative"),
        ([forecast(weights=(0.4,))], r"`predict: weights` is .* which is \[1, 2\]"),
    ],
)
def test_a_forecast_of_no_experts_is_refused(answer: Any, told: str) -> None:
    policy = checked("predictor", Forecasts(answer))
    with pytest.raises(ValueError, match=rf"^predictor: \S+\.Forecasts: {told}.*{PAGE}"):
        list(policy.predict(GATE))
    with pytest.raises(ValueError, match=told):  # a second walk is checked, too
        list(copy.copy(policy).predict(GATE))


def test_forecasts_stay_lazy_and_what_arrays_and_tuples_say_is_taken() -> None:
    made = []

    class Lazy(Forecasts):
        def predict(self, gate: Any) -> Iterator[Any]:
            for site in (1, 2, 3):
                made.append(site)
                yield forecast(site, keys=tuple(site * UNITS + e for e in (1, 2)))

    assert next(iter(checked("predictor", Lazy(None)).predict(GATE))).site == 1
    assert made == [1, 1], "it is asked twice for the first one"


@pytest.mark.parametrize(
    ("sites", "far"),
    [((1, 1), 1), ((2, 1), 1), ((1, 0, 2), 2), ((0, 1, 2, 3, 0), None), ((1, 2, 3, 0), None)],
)
def test_sites_are_forecast_once_and_the_nearest_first(sites: Any, far: int | None) -> None:
    """The gate's own site comes first, or last. A generator without an end went on for ever."""
    policy = checked("predictor", Forecasts([forecast(site) for site in sites]))
    if far is None:
        assert [one.site for one in policy.predict(GATE)] == [*sites]
        return
    told = rf"`predict: site` is {far} .* each once, the nearest first, seen from site 0"
    with pytest.raises(ValueError, match=told):
        list(policy.predict(GATE))


def test_a_forecast_of_nobody_is_none() -> None:
    """Metrics ended in an IndexError where one was given."""
    nobody = RowForecast(1, UNITS, np.full((1, 2), -1), np.zeros((1, 2)))
    policy = checked("predictor", Forecasts([nobody, forecast(2)]))
    assert [one.site for one in policy.predict(GATE)] == [2]


class Counting(Predictor):
    """Forecasts the expert of the number of gates that it has seen."""

    learns = True

    def __init__(self, again: Callable[[Counting], Any], seen: int = 0) -> None:
        self.again, self.seen = again, seen

    def predict(self, gate: Any) -> Any:
        yield forecast(1, (self.seen % 8, 7 - self.seen % 8))

    def observe(self, gate: Any) -> None:
        self.seen += 1

    def afresh(self) -> Any:
        return self.again(self)


def walked(policy: Any) -> None:
    for step in range(5):
        list(policy.predict(SimpleNamespace(site=0, step=step, **GATE_SEEN)))
        policy.observe(GATE)


@pytest.mark.parametrize(
    ("again", "told"),
    [
        (lambda it: it, r"`afresh` is <.*Counting.*>.* another predictor of this class"),
        (lambda it: None, r"`afresh` is None .* another predictor of this class"),
        (copy.copy, r"forecasts site 1 experts \[5, 2\] at step 0, site 0, where the run's own "),
        (lambda it: Counting(it.again), None),
    ],
)
def test_a_predictor_afresh_is_as_before_its_first_gate(again: Any, told: str | None) -> None:
    """Metrics counted the forecasts of one that had seen the whole run."""
    policy = checked("predictor", Counting(again))
    walked(policy)
    with nullcontext() if told is None else pytest.raises(ValueError, match=told):
        walked(policy.afresh())


class Selects(PrecisionSelector):
    precisions = ("fp16", "int4")

    def __init__(self, answer: Any, may: Any = None) -> None:
        self.answer, self.may = answer, may

    def permitted(self, score: float) -> tuple[int, ...]:
        return super().permitted(score) if self.may is None else self.may  # type: ignore[no-any-return]

    def select(self, choice: Any, resident: Any) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("answer", "may", "told"),
    [
        (
            [0],
            None,
            r"`select` is \[0\] \(list\), and must be 2 whole numbers from -1 to 1, a prec",
        ),
        ([0, 2], None, r"`select` is \[0, 2\] "),
        ([0, -2], None, r"`select` is \[0, -2\] "),
        ([0, 1.0], None, r"`select` is \[0, 1\.0\] "),
        (None, None, r"`select` is None "),
        (
            [0, SKIP],
            (0, 1),
            r"`select` is -1 .* among \(0, 1\), which `permitted` says .* score 0\.6",
        ),
        ([0, 1], [0, 1], r"`permitted` is \[0, 1\] \(list\), and must be .* as a tuple"),
        ([0, 1], (7,), r"`permitted` is \(7,\) "),
    ],
)
def test_a_precision_that_there_is_not_is_refused(answer: Any, may: Any, told: str) -> None:
    policy = checked("precision", Selects(answer, may))
    with pytest.raises(ValueError, match=rf"^precision: \S+\.Selects: {told}.*{PAGE}"):
        policy.select(GATE, None)


def test_who_says_nothing_of_what_is_permitted_may_answer_anything() -> None:
    policy = checked("precision", Selects(np.array([SKIP, 1])))
    assert policy.permitted(0.3) == (0, 1, SKIP)
    assert policy.select(GATE, None) == [SKIP, 1]


class Places(Placement):
    def __init__(self, answer: Any, uses_cpu: bool = False, constant: int | None = None) -> None:
        self.answer, self.uses_cpu, self.constant = answer, uses_cpu, constant

    def place(self, *words: Any) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (Places([0]), r"`place` is \[0\] .* 2 whole numbers from 0 to 2, a Place for each key"),
        (Places([0, 3]), r"`place` is \[0, 3\] "),
        (Places(["cpu"] * 2), r"`place` is \['cpu', 'cpu'\] "),
        (Places([Place.CPU] * 2), r"must be without Place\.CPU, or say uses_cpu = True"),
        (Places([0, 0], constant=2), r"must be 2 throughout, as `constant` says"),
    ],
)
def test_a_place_that_there_is_not_is_refused(policy: Places, told: str) -> None:
    with pytest.raises(ValueError, match=rf"^placement: \S+\.Places: .*{told}.*{PAGE}"):
        checked("placement", policy).place(GATE, [1, 2], None, None)


class Names(LRU):
    def __init__(self, answer: Any, plan: Callable[[PoolPlan], Any] = lambda plan: plan) -> None:
        super().__init__(scope="global", initial="ascending")
        self.answer, self.plan = answer, plan

    def victims(self, *words: Any) -> Any:
        return self.answer

    def admit(self, *words: Any) -> Any:
        return self.answer

    def pools(self, geometry: Geometry) -> Any:
        return self.plan(super().pools(geometry))


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, r"`victims` is None \(NoneType\), and must be an iterator over resident keys"),
        ([-5], r"`victims: a key` is -5 \(int\), and must be a whole number from 0 to 71"),
        ([72], r"`victims: a key` is 72 "),
        ([3.0], r"`victims: a key` is 3\.0 \(float\)"),
        ([3, 3], r"`victims: a key` is 3 \(int\), and must be named once"),
    ],
)
def test_a_victim_that_is_no_key_is_refused(answer: Any, told: str) -> None:
    policy = checked("cache", Names(answer))
    with pytest.raises(ValueError, match=rf"^cache: \S+\.Names: {told}.*{PAGE}"):
        list(policy.victims(0, 1, bytearray(72)))


def test_victims_may_be_a_list_or_an_array_and_admit_says_yes_or_no() -> None:
    for answer in ([4, 3], (4, 3), np.array([4, 3])):
        assert next(checked("cache", Names(answer)).victims(0, 1, bytearray(72))) == 4
    assert checked("ram_cache", Names(np.True_)).admit(1, ()) is True
    with pytest.raises(
        ValueError, match=r"`admit` is None \(NoneType\), and must be True or False"
    ):
        checked("cache", Names(None)).admit(1, ())


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"pool_of": [0] * 71}, r"pool_of` .* 72 whole numbers from 0 to 0, a pool for each key"),
        ({"pool_of": [-1] * 72}, r"pool_of` is \[-1, "),
        ({"initial": (0, 0)}, r"initial` is \(0, 0\) .* keys of experts, each once"),
        ({"initial": (8,)}, r"initial` is \(8,\) .* keys of experts"),  # a dense block
        ({"initial": (-3,)}, r"initial` is \(-3,\) .* from 0 to 71"),
        ({"capacity_bytes": (1001,)}, r"capacity_bytes` is \(1001,\) .* from 0 to 1000"),
        (
            {"capacity_bytes": (600, 600)},
            r"capacity_bytes` is \(600, 600\) .* at most 1000 B togeth",
        ),
        ({"capacity_bytes": (9.5,)}, r"capacity_bytes` is \(9\.5,\) "),
    ],
)
def test_pools_that_cannot_be_are_refused(said: dict[str, Any], told: str) -> None:
    policy = checked("cache", Names(None, lambda plan: replace(plan, **said)))
    with pytest.raises(ValueError, match=rf"^cache: \S+\.Names: `pools: {told}.*{PAGE}"):
        policy.pools(GEOMETRY)


class Moves(Payload):
    partial = True

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def moved_bytes(self, *words: Any) -> Any:
        return self.answer

    forecast_bytes = missing_bytes = moved_bytes


@pytest.mark.parametrize("answer", [0, -5, 10.5, None, 10**6])
def test_bytes_that_cannot_be_are_refused(answer: Any) -> None:
    policy = checked("payload", Moves(answer))
    everything = 4 * UNITS * 125
    for question, words, least, most in (
        ("moved_bytes", (1, GATE, 0), 1, everything),
        ("forecast_bytes", (1, GATE, 0, GATE), 1, everything),
        ("missing_bytes", (1, GATE, 0, 3), 0, 100),
    ):
        if answer == least:
            assert getattr(policy, question)(*words) == answer
            continue
        told = rf"`{question}` is {answer} .* bytes: a whole number from {least} to {most}{PAGE}"
        with pytest.raises(ValueError, match=told):
            getattr(policy, question)(*words)


def test_a_run_is_refused_by_the_name_of_its_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "off_by_one.yaml").write_text("_target_: off_by_one.OffByOne\n")
    (tmp_path / "off_by_one.py").write_text(
        "from sim.policies.recency import LRU\n"
        "class OffByOne(LRU):\n"
        "    def __init__(self):\n"
        "        super().__init__(scope='global', initial='ascending')\n"
        "    def victims(self, pool, incoming, blocked):\n"
        "        return iter([len(blocked)])\n"
    )
    words = ("system=lru", "cache=off_by_one", f"hydra.searchpath=[{tmp_path}]")
    run = prepared([*words, *WORDS])
    with pytest.raises(ValueError, match=r"^cache: off_by_one\.OffByOne: `victims: a key` is 144 "):
        execute(run)


def test_the_projects_own_policies_are_left_as_they_are() -> None:
    assert type(checked("cache", LRU(scope="global", initial="ascending"))) is LRU


def test_a_variant_that_is_stored_nowhere_is_not_selected() -> None:
    geometry = replace(GEOMETRY, missing=frozenset({GEOMETRY.key(0, 0, 2)}))
    policy = Selects([0, 0])
    check_answers({"precision": policy}, geometry)
    choice = SimpleNamespace(needs=[1, 2], site=0)
    with pytest.raises(
        ValueError, match=r"`select` is \[0, 0\] .* without site 0 expert 2 fp16, whi"
    ):
        policy.select(choice, None)
    assert policy.select(SimpleNamespace(needs=[1, 3], site=0), None) == [0, 0]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (None, "a dict of texts"),
        ({3: 4}, "a dict of texts"),
        ({"x": object()}, "what JSON can hold"),
        ({"x": float("nan")}, "what JSON can hold"),
        ({"x": np.int64(3), "y": np.arange(2)}, None),
    ],
)
def test_what_a_policy_tells_fits_a_summary(said: Any, told: str | None) -> None:
    """The run was over when its summary could not be written."""

    class Tells(LRU):
        def told(self, sequences: Any) -> Any:
            return said

    policy = checked("cache", Tells("global", initial="ascending"))
    if told is None:
        assert json.dumps(policy.told([1])) == '{"x": 3, "y": [0, 1]}'
        return
    with pytest.raises(ValueError, match=rf"\.Tells: `told` is .*{told}"):
        policy.told([1])
