"""Predictors from paths and conditionals: by hand, and against plain counting on random rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from helpers.gates_told import gate_of, random_sample, told
from sim.policies.fitted import Sample, Shape, require_array
from sim.policies.paths import ExpertPaths, NextSiteConditional

SEEDS = range(6)


def sample_of(ids: Any, experts: int) -> Sample:
    rows = np.array(ids)
    shape = Shape(rows.shape[1], experts, rows.shape[2])
    return Sample(shape, rows, np.zeros(len(rows), np.int64), np.full(len(rows), -1))


def known(predictor: Any, sample: Sample) -> Any:
    predictor.know(sample.shape, predictor.fit(sample))
    return predictor


# Top-1, three sites, three experts: the paths of six tokens.
#   0 0 1,  0 0 1,  0 0 2,  1 0 2,  1 1 0,  2 2 2
PATHS = [
    [[0], [0], [1]],
    [[0], [0], [1]],
    [[0], [0], [2]],
    [[1], [0], [2]],
    [[1], [1], [0]],
    [[2], [2], [2]],
]


@pytest.mark.parametrize(
    ("path", "likeliest"),
    [
        # D[2][(0, 0)]: of three tokens two went to 1 and one to 2. None went to 0, which is not
        # named.
        ((0, 0), [1, 2]),
        # D[2][(1, 0)]: the one token went to 2.
        ((1, 0), [2]),
        # (2, 0) never occurred: P(. | 0 at site 1), four tokens: 1 twice, 2 twice; the tie goes to
        # the smaller id.
        ((2, 0), [1, 2]),
        # (0, 1) never occurred: P(. | 1 at site 1), one token: 0.
        ((0, 1), [0]),
    ],
)
def test_the_dictionary_of_two_sites_backs_off_to_one(
    path: tuple[int, int], likeliest: list[int]
) -> None:
    predictor = known(ExpertPaths(), sample_of(PATHS, 3))
    predictor.observe(gate_of(0, [[path[0]]]))
    assert told(predictor.predict(gate_of(1, [[path[1]]]))) == [(2, likeliest)]


def test_at_the_first_site_one_choice_is_known() -> None:
    """D[1][0]: three tokens, all to 0. D[1][1]: one to 0, one to 1."""
    predictor = known(ExpertPaths(), sample_of(PATHS, 3))
    assert told(predictor.predict(gate_of(0, [[0]]))) == [(1, [0])]
    (forecast,) = predictor.predict(gate_of(0, [[1]]))
    assert (forecast.needs, forecast.weights.tolist()) == ([0, 1], [[0.5, 0.5, 0.0]])
    assert forecast.scores == [0.0, 0.5]
    assert forecast.keys == [4, 5], "three experts and a dense block a site"


def test_a_choice_that_never_occurred_at_its_site_leaves_the_marginal() -> None:
    """Without the sixth token, expert 2 is unknown at sites 0 and 1.

    At site 2 the others went to 1 twice, to 2 twice, to 0 once.
    """
    predictor = known(ExpertPaths(), sample_of(PATHS[:5], 3))
    predictor.observe(gate_of(0, [[2]]))
    (forecast,) = predictor.predict(gate_of(1, [[2]]))
    assert forecast.needs == [1, 2, 0]
    assert forecast.weights.tolist() == [[0.4, 0.4, 0.2]]


def test_another_step_is_no_path() -> None:
    """The choice at site 0 of an earlier step is forgotten.

    0 at site 1 alone goes to 1 and 2 equally often.
    """
    predictor = known(ExpertPaths(), sample_of(PATHS, 3))
    predictor.observe(gate_of(0, [[1]], step=4))
    assert told(predictor.predict(gate_of(1, [[0]], step=5))) == [(2, [1, 2])]
    assert told(predictor.predict(gate_of(1, [[0]], step=4))) == [(2, [2])]


def test_a_set_is_the_same_in_any_order_and_a_first_is_not() -> None:
    rows = [[[0, 1], [2, 3]], [[1, 0], [2, 0]]]
    whole, first = (known(ExpertPaths(key), sample_of(rows, 4)) for key in ("set", "first"))
    # After {0, 1}: two tokens, 2 both times, 0 and 3 once. After a first choice of 1: one token, 0
    # and 2.
    assert told(whole.predict(gate_of(0, [[1, 0]]))) == [(1, [2, 0, 3])]
    assert told(first.predict(gate_of(0, [[1, 3]]))) == [(1, [0, 2])]


def test_of_several_rows_what_more_of_them_name_comes_first() -> None:
    """Each row names its best (one expert): rows with 0, 0, 1, 2 at site 1 name 1, 1, 0, 2."""
    predictor = known(ExpertPaths(experts=1), sample_of(PATHS, 3))
    (forecast,) = predictor.predict(gate_of(1, [[0], [0], [1], [2]]))
    # 0 and 2 have one row each and likeliness 1, so the smaller id goes first.
    assert (forecast.needs, forecast.tokens) == ([1, 0, 2], [2, 1, 1])


def plain_path(
    sample: Sample, key: str, site: int, now: list[int], before: list[int] | None
) -> list[float]:
    """The likeliness of each expert at ``site + 1``, counted anew for one row."""

    def code(experts: list[int]) -> Any:
        there = [expert for expert in experts if expert >= 0]
        return there[:1] if key == "first" else sorted(there)

    rows = [row for row in sample.ids.tolist() if max(row[site + 1]) >= 0]
    levels = [lambda row: True, lambda row: code(row[site]) == code(now)]
    if before is not None:
        levels.append(
            lambda row: code(row[site]) == code(now) and code(row[site - 1]) == code(before)
        )
    for fits in reversed(levels):
        chosen = [row[site + 1] for row in rows if fits(row)]
        if chosen:
            counts = Counter(expert for experts in chosen for expert in set(experts) if expert >= 0)
            return [counts[expert] / len(chosen) for expert in range(sample.shape.experts)]
    return [0.0] * sample.shape.experts


def ranked(likeliness: list[float]) -> list[int]:
    return sorted((e for e, p in enumerate(likeliness) if p > 0), key=lambda e: (-likeliness[e], e))


@pytest.mark.parametrize("key", ["set", "first"])
@pytest.mark.parametrize("seed", SEEDS)
def test_paths_equal_plain_counting(key: str, seed: int) -> None:
    sample = random_sample(seed, encoder_sites=2 * (seed % 2))
    predictor, asked = known(ExpertPaths(key), sample), random_sample(seed + 100, rows=12)
    stacks = [range(2), range(2, 5)] if sample.shape.encoder_sites else [range(5)]
    for step, row in enumerate(asked.ids.tolist()):
        for stack in stacks:
            for site in stack:
                gate = gate_of(site, [row[site]], step=step * 2 + (stack.start > 0))
                found = list(predictor.predict(gate))
                if site == stack[-1]:
                    assert found == []
                else:
                    expected = plain_path(
                        sample, key, site, row[site], row[site - 1] if site > stack.start else None
                    )
                    assert told(found) == [(site + 1, ranked(expected))]
                    best = [expected[expert] for expert in found[0].needs]
                    assert found[0].weights[0][: len(best)].tolist() == pytest.approx(best, abs=0)
                predictor.observe(gate)


# Next site by conditionals


# Top-2, two sites, four experts: {0,1}->{2,3}, {0,2}->{2,1}, {1,3}->{3,0}
PAIRS = [[[0, 1], [2, 3]], [[0, 2], [2, 1]], [[1, 3], [3, 0]]]


def test_the_sum_of_conditionals_ranks_the_next_site() -> None:
    """P(.|0) = (0, 1/2, 1, 1/2), P(.|1) = (1/2, 0, 1/2, 1).

    The sum for {0, 1} is (1/2, 1/2, 3/2, 3/2).
    """
    predictor = known(NextSiteConditional(experts="all"), sample_of(PAIRS, 4))
    (forecast,) = predictor.predict(gate_of(0, [[0, 1]]))
    assert forecast.needs == [2, 3, 0, 1]
    assert forecast.weights.tolist() == [[1.5, 1.5, 0.5, 0.5]]
    # Scores are the shares, of a sum of 4, that are ranked above.
    assert forecast.scores == [0.0, 0.375, 0.75, 0.875]
    assert told(
        known(NextSiteConditional(), sample_of(PAIRS, 4)).predict(gate_of(0, [[0, 1]]))
    ) == [(1, [2, 3])]


def test_what_is_never_seen_before_says_nothing() -> None:
    predictor = known(NextSiteConditional(), sample_of(PAIRS[:1], 4))
    assert told(predictor.predict(gate_of(0, [[2, 3]]))) == []
    assert told(predictor.predict(gate_of(0, [[2, -1]]))) == []
    assert told(predictor.predict(gate_of(1, [[0, 1]]))) == [], "nothing comes after the last site"


def plain_conditional(sample: Sample, combine: str, site: int, now: list[int]) -> list[float]:
    rows = [row for row in sample.ids.tolist() if max(row[site]) >= 0 and max(row[site + 1]) >= 0]
    experts = range(sample.shape.experts)
    likeliness = []
    for after in experts:
        having = sum(after in row[site + 1] for row in rows)
        prior = (having + 1) / (len(rows) + len(experts))
        value = {"sum": 0.0, "logs": 1.0, "product": prior}[combine]
        for before in (expert for expert in now if expert >= 0):
            both = sum(before in row[site] and after in row[site + 1] for row in rows)
            uses = sum(before in row[site] for row in rows)
            if combine == "sum":
                value += both / uses if uses else 0.0
            else:
                value *= (both + 1) / ((having if combine == "product" else uses) + len(experts))
        likeliness.append(value)
    total = sum(likeliness)
    return likeliness if combine == "sum" else [value / total for value in likeliness]


@pytest.mark.parametrize("combine", ["sum", "logs", "product"])
@pytest.mark.parametrize("seed", SEEDS)
def test_conditionals_equal_plain_counting(combine: str, seed: int) -> None:
    sample = random_sample(seed, encoder_sites=2 * (seed % 2))
    predictor = known(NextSiteConditional(combine, experts="all"), sample)
    for row in random_sample(seed + 50, rows=10).ids.tolist():
        for site in range(4):
            found = list(predictor.predict(gate_of(site, [row[site]])))
            if sample.shape.encoder_sites == site + 1:
                assert found == []
                continue
            expected = plain_conditional(sample, combine, site, row[site])
            values = {expert: value for expert, value in enumerate(expected) if value > 0}
            assert set(found[0].needs) == set(values)
            best = found[0].weights[0][: len(values)]
            assert best.tolist() == pytest.approx(
                [expected[expert] for expert in found[0].needs], rel=1e-9
            )
            assert best.tolist() == sorted(best.tolist(), reverse=True)


def test_questions_before_there_is_an_answer_and_impossible_choices_are_refused() -> None:
    with pytest.raises(RuntimeError, match="call know"):
        ExpertPaths().predict(gate_of(0, [[0]]))
    with pytest.raises(ValueError, match=r"predictor\.key='pair'; known: set, first"):
        ExpertPaths("pair")
    with pytest.raises(ValueError, match=r"predictor\.combine='max'; known: sum, logs, product"):
        NextSiteConditional("max")
    with pytest.raises(ValueError, match=r"predictor\.experts=0 must be"):
        NextSiteConditional(experts=0)


def test_arrays_of_another_shape_are_refused_by_name() -> None:
    sample = sample_of(PAIRS, 4)
    arrays = NextSiteConditional().fit(sample)
    with pytest.raises(
        ValueError, match=r"array together of the fit is uint8 \[1, 4, 4\], must be \[1, 5, 5\]"
    ):
        NextSiteConditional().know(Shape(2, 5, 2), arrays)
    arrays = ExpertPaths().fit(sample)
    with pytest.raises(ValueError, match="one_keys of the fit names sets that are not there"):
        ExpertPaths().know(sample.shape, {**arrays, "one_keys": arrays["one_keys"] + 100})
    with pytest.raises(
        ValueError, match=r"^array all of the fit has a value -2, must be -1 or more; fit again$"
    ):
        require_array({"all": np.array([-1, -2, 3])}, "all", (3,))
    assert require_array({"all": np.array([-1, 3])}, "all", (2,)).tolist() == [-1, 3]
    assert require_array({"all": np.array([-2.0])}, "all", (1,), "f") == -2
    del arrays["two_rows"]
    with pytest.raises(ValueError, match="array two_rows of the fit is absent"):
        ExpertPaths().know(sample.shape, arrays)
