"""Every selector, predictor and placement under ``conf/`` keeps its contract.

The contracts are in sim/policies/base.py.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from property.contracts import Make, each, unchanged
from sim.fitting.fits import fit_from_rows, shape_of
from sim.fitting.prepare import future_needs
from sim.policies.expected_needs import ExpectedNeeds
from sim.policies.learned import LearnedPerSite
from sim.policies.requires import Fitted, Given
from sim.traces.gate_inputs import GateInputs
from sim.traces.synthesis import synthesize
from sim.traces.trace import ModelShape
from sim.values.types import REROUTE, SKIP, Place
from sim.workload.steps import StepGate, Workload

# Selectors


SCORES = st.floats(0, 1) | st.sampled_from([0.0, 0.3, 0.7, 1.0])


@pytest.mark.alike
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
    """Only the needs of a gate are sent to other experts, and only to experts that exist."""
    selector = make_policy()
    choice = SimpleNamespace(
        site=1,
        needs=list(range(len(scores))),
        tokens=[1] * len(scores),
        scores=scores,
        experts=np.arange(len(scores))[None],
        preferences=np.arange(8.0)[None] / 8,
        **({"tick": 3} if is_gate else {}),
    )
    held = SimpleNamespace(
        has=lambda precision, site, expert: site == 1 and (precision, expert) in resident,
        foreseen=foreseen,
    )
    answers = unchanged(selector, lambda: list(selector.select(choice, held)))
    permitted = [unchanged(selector, partial(selector.permitted, score)) for score in scores]
    precisions = len(selector.precisions)
    assert len(answers) == len(scores)
    for answer, allowed in zip(answers, permitted, strict=True):
        assert set(allowed) <= {SKIP, *range(precisions)} | {
            REROUTE for _ in range(selector.reroutes)
        }
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


# Predictors and placements


def _workload() -> Workload:
    """The workload of a trace with forecasts three sites ahead and gate inputs of every row."""
    shape = ModelShape("small", "none", 5, 6, 2, 64, 64)
    trace = synthesize(
        shape, tokens=4, sequences=2, prompt_tokens=3, lookahead=3, lookahead_accuracy=0.5
    )
    rows = len(trace.sequence)
    trace = replace(trace, token=np.arange(rows, dtype=np.int32) % 5)
    workload = Workload(trace, split="all", batching="sequential", lookahead=3)
    inputs = np.random.default_rng(0).standard_normal((rows, 5, 64), np.float32)
    workload.gate_inputs = GateInputs(inputs, np.arange(rows))
    return workload


def _gates() -> list[StepGate]:
    """One gate at each site, of a prefill step and of some decode steps."""
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
    """The predictor with what it must know beforehand: fitted on the gates' trace, or made up."""
    workload, requires = _workload(), predictor.requires
    shape, arrays = shape_of(workload.trace.header), {}
    if isinstance(predictor, LearnedPerSite):
        rng = np.random.default_rng(1)
        for site in predictor.sources(shape):
            given = predictor.num_given(shape, site, 64)
            arrays[f"site{site}_w0"] = rng.standard_normal((given + 6 * (predictor.history + 1), 6))
            arrays[f"site{site}_b0"] = rng.standard_normal(6)
    elif requires.fit is not None:
        sequences = [sequence.sequence for sequence in workload.sequences]
        arrays = dict(fit_from_rows(requires.fit, workload.trace, sequences).arrays)
    fit = None if requires.fit is None else Fitted(requires.fit.parameters, arrays)
    future = future_needs(workload) if requires.future else None
    predictor.prepare(Given(shape, fit=fit, future=future))
    return predictor


Told = tuple[int, list[int], list[int], list[float], list[int]]


def told(predictor: Any, gate: StepGate) -> list[Told]:
    """The forecasts, read one at a time, since a predictor may use one object again and again."""
    return [
        (c.site, list(c.keys), list(c.needs), list(c.scores), list(c.tokens))
        for c in predictor.predict(gate)
    ]


# Contracts: C29
@pytest.mark.alike
@each("predictor")
def test_a_predictor_names_later_sites_nearest_first_and_asking_changes_nothing(
    make_policy: Make,
) -> None:
    predictor = ready(make_policy())
    named = 0
    for gate in _gates():
        forecasts = unchanged(predictor, partial(told, predictor, gate))
        sites = [site for site, *_ in forecasts]
        # One of them goes round the stack: after the last site the next token's first, and at the
        # end the gate's own. For the others this is the first.
        wraps = isinstance(predictor, ExpectedNeeds)
        ahead = [(s - gate.site - 1) % 5 + 1 if wraps else s - gate.site for s in sites]
        assert all(a < b for a, b in pairwise([-1, *ahead])), (
            "nearest first, no site before its own"
        )
        assert all(site < 5 for site in sites)
        for site, keys, needs, scores, tokens in forecasts:
            assert 0 < len(needs) == len(set(needs)) == len(scores) == len(tokens)
            assert set(needs) <= set(range(6))
            assert keys == [7 * site + expert for expert in needs], "keys are those of precision 0"
            assert all(0 <= score <= 1 for score in scores)
        assert [c.site for c, _ in zip(predictor.predict(gate), range(1), strict=False)] == sites[
            :1
        ]
        assert predictor.observe(gate) is None
        named += len(forecasts)
    assert bool(named) == (not predictor.silent)


@each("predictor")
def test_a_predictor_afresh_answers_as_it_did_at_first(make_policy: Make) -> None:
    """A second walk through the same gates gives the same answers.

    It leaves the first predictor as it is.
    """
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
def test_a_predictor_that_says_it_learns_nothing_is_the_same_after_every_gate(
    make_policy: Make,
) -> None:
    """The controller never calls ``observe`` of such a predictor."""
    predictor = ready(make_policy())
    before = pickle.dumps(predictor)
    for gate in _gates():
        predictor.observe(gate)
    assert predictor.learns or pickle.dumps(predictor) == before


class Held:
    """Read access to a device that holds these keys, for five sites of six experts."""

    def __init__(self, keys: frozenset[int]) -> None:
        self.keys = keys

    def has(self, precision: int, site: int, expert: int) -> bool:
        return 7 * (5 * precision + site) + expert in self.keys

    def expert_of(self, key: int) -> int:
        return key % 7


@each("placement")
def test_a_placement_answers_once_for_every_key(make_policy: Make) -> None:
    """It is asked for the needs that are admitted: all of a gate's, some, or none."""
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
