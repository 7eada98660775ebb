"""Networks in numpy against plain Python: features, layers, strides and stacks."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim.policies.fitted import Shape
from sim.policies.learned import LearnedPerSite

SHAPE = Shape(5, 4, 2)


def made_up(
    predictor: LearnedPerSite, shape: Shape, width: int = 3, hidden: int = 6
) -> dict[str, Any]:
    """Random networks, with two layers at the first site."""
    rng = np.random.default_rng(11)
    arrays: dict[str, Any] = {}
    for site in predictor.sources(shape):
        sizes = [
            predictor.num_given(shape, site, hidden) + (predictor.history + 1) * shape.experts,
            shape.experts,
        ]
        if site == 0:
            sizes.insert(1, width)
        for layer in range(len(sizes) - 1):
            arrays[f"site{site}_w{layer}"] = rng.standard_normal(
                (sizes[layer], sizes[layer + 1])
            ).astype(np.float16)
            arrays[f"site{site}_b{layer}"] = rng.standard_normal(sizes[layer + 1]).astype(
                np.float16
            )
    return arrays


class Walk:
    """Takes rows through all sites, with random inputs of every kind."""

    def __init__(self, shape: Shape, rows: int = 2, depth: int = 3, hidden: int = 6) -> None:
        rng = np.random.default_rng(5)
        self.shape, self.depth = shape, depth
        self.ids = np.argsort(rng.random((rows, shape.sites, shape.experts)), axis=2)[
            :, :, : shape.top_k
        ]
        self.ids[0, 2, 1] = -1
        self.scores = rng.standard_normal((rows, shape.sites, depth, shape.experts)).astype(
            np.float32
        )
        self.inputs = rng.standard_normal((rows, shape.sites, hidden)).astype(np.float32)

    def gate(self, site: int, step: int = 0) -> Any:
        def lookahead(j: int) -> Any:
            return self.scores[:, site, j - 1] if site + j <= self.shape.last(site) else None

        return SimpleNamespace(
            site=site,
            step=step,
            experts=self.ids[:, site],
            lookahead=lookahead,
            gate_input=self.inputs[:, site],
        )


def plain_likeliness(
    walk: Walk, predictor: LearnedPerSite, arrays: dict[str, Any], row: int, site: int
) -> list[float]:
    features: list[float] = []
    if predictor.inputs == "scores":
        for j in range(predictor.requires.lookahead_sites):
            if site + j + 1 <= walk.shape.last(site):
                features += walk.scores[row, site, j].tolist()
    elif predictor.inputs == "gate_input":
        features += walk.inputs[row, site].tolist()
    for back in range(predictor.history + 1):
        chosen = walk.ids[row, site - back].tolist() if site - back >= 0 else []
        features += [1.0 if expert in chosen else 0.0 for expert in range(walk.shape.experts)]
    values, layer = features, 0
    while f"site{site}_w{layer}" in arrays:
        weight, bias = (
            arrays[f"site{site}_w{layer}"].tolist(),
            arrays[f"site{site}_b{layer}"].tolist(),
        )
        if layer:
            values = [max(value, 0.0) for value in values]
        values = [
            bias[out] + sum(value * weight[place][out] for place, value in enumerate(values))
            for out in range(len(bias))
        ]
        layer += 1
    return [1 / (1 + math.exp(-value)) for value in values]


@pytest.mark.parametrize("inputs", ["ids", "scores", "gate_input"])
@pytest.mark.parametrize(("stride", "history"), [(1, 1), (1, 0), (2, 2), (3, 1)])
def test_the_networks_equal_plain_python(inputs: str, stride: int, history: int) -> None:
    predictor, walk = LearnedPerSite(inputs, stride, history, experts="all"), Walk(SHAPE)
    arrays = made_up(predictor, SHAPE)
    predictor.know(SHAPE, arrays)
    for site in range(5):
        found = list(predictor.predict(walk.gate(site)))
        if site + stride > 4:
            assert found == []
        else:
            (choice,) = found
            assert choice.site == site + stride
            for row in range(2):
                expected = plain_likeliness(walk, predictor, arrays, row, site)
                ranked = sorted(range(4), key=lambda e: -expected[e])
                assert choice.experts[row].tolist() == ranked
                assert choice.weights[row].tolist() == pytest.approx(
                    [expected[e] for e in ranked], rel=1e-4
                )
        predictor.observe(walk.gate(site))


def test_the_selections_of_an_earlier_step_are_no_history() -> None:
    predictor, walk = LearnedPerSite("ids"), Walk(SHAPE)
    predictor.know(SHAPE, made_up(predictor, SHAPE))
    alone = next(iter(predictor.predict(walk.gate(1, step=1)))).weights
    predictor.observe(walk.gate(0, step=0))
    assert (next(iter(predictor.predict(walk.gate(1, step=1)))).weights == alone).all()
    predictor.observe(walk.gate(0, step=1))
    assert (next(iter(predictor.predict(walk.gate(1, step=1)))).weights != alone).any()


def test_no_forecast_leaves_its_stack_or_stands_without_its_inputs() -> None:
    shape = Shape(5, 4, 2, encoder_sites=2)
    predictor = LearnedPerSite("scores", stride=2, score_sites=1)
    assert predictor.sources(shape) == [2]
    assert predictor.num_given(shape, 4, 0) == 0
    assert predictor.requires.lookahead_sites == 1
    predictor.know(shape, made_up(predictor, shape))
    without = Walk(shape).gate(2)
    without.lookahead = lambda j: None
    assert list(predictor.predict(without)) == []
    reader = LearnedPerSite("gate_input")
    reader.know(shape, made_up(reader, shape))
    without.gate_input = None
    assert list(reader.predict(without)) == []


def test_networks_of_other_inputs_are_refused() -> None:
    arrays = made_up(LearnedPerSite("scores"), SHAPE)
    with pytest.raises(
        ValueError, match="array site0_w0 of the fit takes 12 features beside the selections, not 0"
    ):
        LearnedPerSite("ids").know(SHAPE, arrays)
    arrays["site2_b0"] = np.array([np.nan] * 4)
    with pytest.raises(ValueError, match="site2_b0 of the fit has values that are not finite"):
        LearnedPerSite("scores").know(SHAPE, arrays)


def test_impossible_choices_are_refused_by_name() -> None:
    for choices, name in (
        ({"inputs": "hidden"}, "inputs"),
        ({"stride": 0}, "stride"),
        ({"history": -1}, "history"),
        ({"score_sites": 0}, "score_sites"),
    ):
        with pytest.raises(ValueError, match=rf"predictor\.{name}="):
            LearnedPerSite(**choices)  # type: ignore[arg-type]
