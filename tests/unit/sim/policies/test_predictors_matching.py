"""Activation matrices: distances and forecasts by hand, and plain Python on random requests."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from helpers.gates_told import gate_of, random_sample, told
from sim.policies.fitted import Sample, Shape
from sim.policies.matching import EPSILON, ActivationMatching

SHAPE = Shape(3, 2, 1)


def matched(matrices: Any, **choices: Any) -> ActivationMatching:
    predictor = ActivationMatching(**choices)
    counts = np.array(matrices, np.uint8)
    predictor.know(Shape(counts.shape[1], counts.shape[2], 1), {"matrices": counts})
    return predictor


# How often two requests, A and B, chose each of two experts at each of three sites.
A = [[4, 0], [4, 0], [0, 4]]
B = [[1, 3], [3, 1], [3, 1]]


def test_the_request_nearest_by_the_cosine_of_its_rows_is_the_match() -> None:
    """The running request chose 0 at site 0.

    Its cosine with A's row (1, 0) is 1, with B's (1, 3) 1 / sqrt(10), so A is the match. In A,
    expert 0 has all of site 1 and expert 1 all of site 2. Likeliness is (share + epsilon) * (1 -
    distance / 3).
    """
    predictor = matched([A, B])
    near, far = predictor.predict(gate_of(0, [[0]]))
    assert told([near, far]) == [(1, [0, 1]), (2, [1, 0])]
    assert near.weights[0].tolist() == [(1 + EPSILON) * (1 - 1 / 3), EPSILON * (1 - 1 / 3)]
    assert far.weights[0].tolist() == [(1 + EPSILON) * (1 - 2 / 3), EPSILON * (1 - 2 / 3)]
    # If it chose 1 instead, A's cosine is 0 and B's 3 / sqrt(10). In B, experts 0 and 1 have shares
    # of 3/4 and 1/4 at both later sites.
    near, far = predictor.predict(gate_of(0, [[1]]))
    assert told([near, far]) == [(1, [0, 1]), (2, [0, 1])]
    assert near.weights[0].tolist() == [
        (0.75 + EPSILON) * (1 - 1 / 3),
        (0.25 + EPSILON) * (1 - 1 / 3),
    ]


def test_what_came_before_in_the_request_counts() -> None:
    """After 1 at site 0 and 1 at site 1 (twice), 0 at site 0 leaves ((1, 2), (0, 2), (0, 0)).

    The cosines are 1 / sqrt(5) + 0 + 0 = 0.447 with A, and (1 + 6) / sqrt(5 * 10) + 1 / sqrt(10) =
    0.990 + 0.316 with B. B is the match.
    """
    predictor = matched([A, B])
    for _ in range(2):
        predictor.observe(gate_of(0, [[1]]))
        predictor.observe(gate_of(1, [[1]]))
    assert told(predictor.predict(gate_of(0, [[0]]))) == [(1, [0, 1]), (2, [0, 1])]
    # Another sequence has its own matrix.
    assert told(predictor.predict(gate_of(0, [[0]], sequence=7))) == [(1, [0, 1]), (2, [1, 0])]
    predictor.forget()
    assert told(predictor.predict(gate_of(0, [[0]]))) == [(1, [0, 1]), (2, [1, 0])]


def test_the_code_compares_later_rows_only() -> None:
    """At site 0 nothing later is known of a new request.

    So all cosines are 0, and the first of the collection is the match. From the second token on,
    the later rows of earlier tokens decide.
    """
    predictor = matched([A, B], compare="later")
    assert told(predictor.predict(gate_of(0, [[1]]))) == [(1, [0, 1]), (2, [1, 0])]
    predictor.observe(gate_of(2, [[0]]))
    # Row 2 is (1, 0): cosine with A's (0, 4) 0, with B's (3, 1) above 0.
    assert told(predictor.predict(gate_of(0, [[0]]))) == [(1, [0, 1]), (2, [0, 1])]


def test_without_a_collection_it_is_nearest_site_first_and_experts_by_id() -> None:
    predictor = ActivationMatching(collection="empty")
    assert not predictor.needs_artefact
    predictor.know(Shape(3, 4, 2), {})
    near, far = predictor.predict(gate_of(0, [[3, 1]]))
    assert told([near, far]) == [(1, [0, 1, 2, 3]), (2, [0, 1, 2, 3])]
    assert near.weights[0].tolist() == [EPSILON * (1 - 1 / 3)] * 4
    assert near.scores == pytest.approx([0, 0.25, 0.5, 0.75], abs=1e-12)


def test_the_best_of_all_later_experts_may_be_far() -> None:
    """A at site 0: 2/3 for expert 0 of site 1, 1/3 for expert 1 of site 2.

    Then come the epsilons of site 1 and those of site 2.
    """
    for best, named in (
        (1, [(1, [0])]),
        (2, [(1, [0]), (2, [1])]),
        (3, [(1, [0, 1]), (2, [1])]),
        (4, [(1, [0, 1]), (2, [1, 0])]),
        (None, [(1, [0, 1]), (2, [1, 0])]),
    ):
        assert told(matched([A, B], best=best).predict(gate_of(0, [[0]]))) == named


def test_each_sequence_of_a_step_is_matched_alone() -> None:
    """There are two rows, one like A and one like B.

    At site 2 A names 1, 0 and B names 0, 1. Both are named twice, so the larger sum decides: expert
    1 has A's 1 / 3 and B's 1/4 / 3, expert 0 has B's 3/4 / 3.
    """
    near, far = matched([A, B]).predict(gate_of(0, [[0], [1], [1]], sequence=[4, 9, 9]))
    assert (near.needs, near.tokens) == ([0, 1], [2, 2])
    assert (far.needs, far.tokens) == ([1, 0], [2, 2])
    assert len(far.experts) == 2


def test_a_fit_counts_each_request() -> None:
    sample = Sample(
        SHAPE,
        np.array([[[0], [1], [-1]], [[1], [1], [0]], [[0], [1], [0]]]),
        np.array([5, 3, 5]),
        np.full(3, -1),
    )
    matrices = ActivationMatching().fit(sample)["matrices"]
    assert matrices.tolist() == [[[0, 1], [0, 1], [1, 0]], [[2, 0], [0, 2], [1, 0]]]


def plain_likeliness(
    collection: list[Any], running: list[list[int]], site: int, compare: str, last: int
) -> Any:
    sites, experts = len(running), len(running[0])

    def cosine(a: list[int], b: list[int]) -> float:
        sizes = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
        return sum(x * y for x, y in zip(a, b, strict=True)) / sizes if sizes else 0.0

    rows = range(sites) if compare == "whole" else range(site + 1, sites)
    nearness = [
        sum(cosine(matrix[row], running[row]) for row in rows) / sites for matrix in collection
    ]
    best = next(i for i, value in enumerate(nearness) if value > max(nearness) - 1e-12)
    found = {}
    for later in range(site + 1, last + 1):
        total = sum(collection[best][later])
        found[later] = [
            (collection[best][later][e] / max(total, 1) + EPSILON) * (1 - (later - site) / sites)
            for e in range(experts)
        ]
    return found


@pytest.mark.parametrize("compare", ["whole", "later"])
@pytest.mark.parametrize("seed", range(5))
def test_matching_equals_plain_python(seed: int, compare: str) -> None:
    sample = random_sample(seed)
    predictor = ActivationMatching(compare=compare)
    predictor.know(sample.shape, predictor.fit(sample))
    collection = predictor.fit(sample)["matrices"].tolist()
    running = [[0] * sample.shape.experts for _ in range(5)]
    for step, row in enumerate(random_sample(seed + 30, rows=6).ids.tolist()):
        for site in range(5):
            for expert in row[site]:
                if expert >= 0:
                    running[site][expert] += 1
            gate = gate_of(site, [row[site]], step=step)
            expected = plain_likeliness(collection, running, site, compare, 4)
            found = list(predictor.predict(gate))
            assert [choice.site for choice in found] == list(expected)
            for choice in found:
                likeliness = expected[choice.site]
                assert choice.needs == sorted(range(6), key=lambda e: (-likeliness[e], e))
                assert choice.weights[0].tolist() == pytest.approx(
                    [likeliness[e] for e in choice.needs], rel=1e-12
                )
            predictor.observe(gate)


def test_impossible_choices_are_refused_by_name() -> None:
    for choices, name in (
        ({"collection": "old"}, "collection"),
        ({"compare": "all"}, "compare"),
        ({"best": 0}, "best"),
    ):
        with pytest.raises(ValueError, match=rf"predictor\.{name}="):
            ActivationMatching(**choices)  # type: ignore[arg-type]


def test_the_code_names_the_layer_that_has_just_routed_too_and_fades_by_one_more_site() -> None:
    """The request chose 1 at site 0, so B is the match.

    Its shares are 1/4 and 3/4 at site 0, then 3/4 and 1/4. Distances are 0, 1 and 2 of 4.
    """
    here, near, far = matched([A, B], fading="code", own_site=True).predict(gate_of(0, [[1]]))
    assert told([here, near, far]) == [(0, [1, 0]), (1, [0, 1]), (2, [0, 1])]
    assert here.weights[0].tolist() == [0.75 + EPSILON, 0.25 + EPSILON]
    assert near.weights[0].tolist() == [(0.75 + EPSILON) * 0.75, (0.25 + EPSILON) * 0.75]
    assert far.weights[0].tolist() == [(0.75 + EPSILON) * 0.5, (0.25 + EPSILON) * 0.5]


def test_at_the_last_site_only_its_own_experts_are_left_to_name() -> None:
    assert list(matched([A, B]).predict(gate_of(2, [[0]]))) == []
    assert told(matched([A, B], own_site=True).predict(gate_of(2, [[0]]))) == [(2, [0, 1])]
