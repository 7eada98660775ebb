"""Recipes, searches and figures serve what the papers vary; claims are judged by pairs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from real.lossy.drawing import draw
from real.lossy.figures import FIGURES, Bench
from real.lossy.importance import Importance, least_important, profile, search
from real.lossy.loops import MODES
from real.lossy.loss import Estimate, TokenLoss
from real.lossy.mixture import LEFT_OUT, all_at
from real.lossy.recipes import above_score, by_popularity, by_table
from real.lossy.sweep import Order, Point, Sweep, verdict_of
from real.lossy.texts import Text
from real.lossy.variants import Scheme, Variants
from real.lossy.whole import Whole, changed_dense, row_scores
from real.quality_figures import main as figures_main
from real.store.experts import ExpertForm
from sim.verbs import machines


def test_the_figures_and_modes_that_options_name_are_those_that_there_are() -> None:
    assert (*FIGURES, "all") == machines.FIGURES
    assert machines.MODES == MODES


IDS = torch.tensor([[2, 5], [5, 1], [5, 2], [7, 5]])
WEIGHTS = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.3, 0.7], [0.6, 0.4]])


def _codes(decide: Any) -> list[list[int]]:
    served = decide(3, torch.zeros(4, 2), IDS, WEIGHTS)
    assert served.ids is IDS
    assert served.weights is WEIGHTS
    codes: list[list[int]] = served.codes.tolist()
    return codes


def test_scores_are_the_weight_ranked_above_each_choice_ties_by_id() -> None:
    expected = [[0, 0.9], [0.5, 0], [0.7, 0], [0, 0.6]]
    assert row_scores(IDS, WEIGHTS, 8) == pytest.approx(np.array(expected), abs=1e-7)
    dropped = row_scores(torch.tensor([[2, 8]]), torch.tensor([[0.4, 0.6]]), 8)
    assert dropped[0, 0] == 0
    assert np.isnan(dropped[0, 1])


def test_the_highest_scores_are_served_low_or_left_out() -> None:
    assert _codes(above_score(0.55, LEFT_OUT, 8)) == [[0, -1], [0, 0], [-1, 0], [0, -1]]
    assert _codes(above_score(0.65, 2, 8)) == [[0, 2], [0, 0], [2, 0], [0, 0]]


def test_a_share_of_a_gates_experts_goes_low_by_how_many_rows_chose_them() -> None:
    # How many rows chose each expert: 5 four, 2 two, 1 and 7 one.
    assert _codes(by_popularity(0.5, popular_first=False, experts=8)) == [
        [0, 0],
        [0, 1],
        [0, 0],
        [1, 0],
    ]
    assert _codes(by_popularity(0.5, popular_first=True, experts=8)) == [
        [1, 1],
        [1, 0],
        [1, 1],
        [0, 1],
    ]
    assert _codes(by_popularity(0.49, popular_first=True, experts=8)) == [
        [0, 1],
        [1, 0],
        [1, 0],
        [0, 1],
    ]
    assert _codes(by_popularity(1.0, popular_first=True, experts=8)) == [[1, 1]] * 4


def test_a_table_gives_each_expert_its_code() -> None:
    table = np.zeros((4, 8), int)
    table[3, 5], table[3, 7], table[2, 2] = 1, 2, 1
    assert _codes(by_table(table)) == [[0, 1], [1, 0], [1, 0], [2, 1]]


def test_everything_dense_is_changed_inside_the_block_and_restored_after(
    mixtral: Any, forms: list[ExpertForm]
) -> None:
    saved = {name: values.clone() for name, values in mixtral.state_dict().items()}
    with changed_dense(mixtral, forms, lambda w: w * 2) as count:
        changed = {
            name
            for name, values in mixtral.state_dict().items()
            if not torch.equal(values, saved[name])
        }
    assert (
        count == len(changed) == 16 * 5 + 2
    )  # q, k, v, o and the router of 16 layers; embedding and head
    assert not any("experts" in name or "norm" in name for name in changed)
    assert all(torch.equal(values, saved[name]) for name, values in mixtral.state_dict().items())


@dataclass
class Additive:
    """Stands in for a model whose log-perplexity rises by a known amount per expert at code 1."""

    cost: np.ndarray
    all_low: float = 1.0

    @property
    def forms(self) -> list[Any]:
        layer = SimpleNamespace(num_experts=self.cost.shape[1])
        return [SimpleNamespace(layer=layer)] * len(self.cost)

    def losses(
        self, variants: Any, decide: Any, forward: Any = None, track: Any = None
    ) -> list[TokenLoss]:
        experts = self.cost.shape[1]
        ids = torch.arange(experts)[None]
        codes = [
            decide(site, None, ids, torch.ones(1, experts)).codes[0].numpy()
            for site in range(len(self.cost))
        ]
        low = variants.precisions[-1] == "int2" and len(variants.precisions) == 1
        nats = self.all_low if low else float((np.array(codes) * self.cost).sum())
        full = np.ones(3)
        return [TokenLoss(full, full + nats, np.zeros(3), np.ones(3, bool))]


@pytest.fixture
def additive(monkeypatch: pytest.MonkeyPatch) -> Additive:
    def bare(forms: Any, precisions: Any, scheme: Any = None) -> Any:
        return SimpleNamespace(precisions=tuple(precisions))

    monkeypatch.setattr("real.lossy.importance.Variants", bare)
    return Additive(np.random.default_rng(0).random((4, 25)) / 100)


def test_the_profile_finds_what_each_expert_costs(additive: Additive) -> None:
    found = profile(additive, SimpleNamespace(precisions=("int4", "int2")))  # type: ignore[arg-type]
    assert found.loss == pytest.approx(np.expm1(additive.cost))


@pytest.mark.parametrize("tolerated", [0.02, 0.1, 0.3])
def test_the_search_takes_as_many_of_the_least_important_as_the_loss_allows(
    additive: Additive, tolerated: float
) -> None:
    importance = Importance("int4", "int2", np.expm1(additive.cost))
    found = search(additive, importance, tolerated, Scheme("channels"))  # type: ignore[arg-type]
    assert (found.high, found.low) == ("int4", "int2")
    cheapest = np.sort(additive.cost, axis=None)
    most = int((np.expm1(np.cumsum(cheapest)) <= tolerated).sum())
    assert most - 1 <= found.table.sum() <= most  # to 1 % of 100 experts
    assert additive.cost[found.table == 1].max() <= additive.cost[found.table == 0].min()
    assert found.loss == pytest.approx(np.expm1(cheapest[: found.table.sum()].sum()))
    assert found.loss <= tolerated
    assert found.bits == pytest.approx(4 - 2 * found.low_share)
    assert found.names()[0][0] == ("int4", "int2")[found.table[0, 0]]


def test_where_the_fewest_bits_are_within_the_loss_there_is_nothing_to_mix(
    additive: Additive,
) -> None:
    found = search(
        replace(additive, all_low=0.01),
        Importance("int4", "int2", additive.cost),
        0.1,  # type: ignore[arg-type]
        Scheme("channels"),
    )
    assert (found.high, found.low) == ("int2", "int2")
    with pytest.raises(ValueError, match="tolerated=0 must be"):
        search(additive, Importance("int4", "int2", additive.cost), 0, Scheme())  # type: ignore[arg-type]


def test_the_least_important_go_first_ties_by_site_then_expert() -> None:
    values = np.array([[2.0, 1.0], [1.0, 0.0]])
    assert least_important(values, 2).tolist() == [[0, 1], [0, 1]]
    assert least_important(values, 0).sum() == 0


def _point(curve: str, x: float, nats: float, divergence: float) -> Point:
    draw = np.random.default_rng(int(10 * x))
    losses = [
        TokenLoss(full := draw.random(5), full + nats, np.full(5, divergence), np.ones(5, bool))
        for _ in range(8)
    ]
    return Point(curve, x, losses)


def _sweep(**changes: Any) -> Sweep:
    points = [
        _point("a", 0.1, 0.01, 0.1),
        _point("b", 0.1, 0.02, 0.1),
        _point("a", 0.2, 0.05, 0.3),
        _point("b", 0.2, 0.04, 0.4),
    ]
    given = {
        "figure": "f",
        "title": "T",
        "source": "S",
        "axis": "share",
        "points": points,
        "orders": (Order("a is better", "a", "b", (0.1, 0.2)),),
    }
    return Sweep(**{**given, **changes})


def test_a_claim_is_judged_place_by_place_by_both_measures() -> None:
    said = _sweep().verdicts[0].text
    assert (
        said
        == "by perplexity it holds at 1, it is the other way round at 1 of 2; by KL it holds at 1,"
        " cannot be told at 1 of 2"
    )
    unsure = Estimate(-0.1, -0.2, 0.1)
    assert verdict_of([Estimate(-1, -2, -0.5)] * 2) == "holds at all 2"
    assert verdict_of([unsure]) == "cannot be told at 1 of 1"
    with pytest.raises(KeyError, match=r"no point of c at 0\.1"):
        _sweep().at("c", 0.1)


def test_curves_and_maps_are_drawn(tmp_path: Path) -> None:
    files = draw(_sweep(grid=[[0.1, -0.2], [0.3, 0.0]], grid_label="loss"), "tiny", tmp_path / "f")
    assert [file.suffix for file in files] == [".png", ".svg"]
    assert "increase of perplexity" in files[1].read_text() or files[1].stat().st_size > 5000


@pytest.fixture(scope="module")
def bench(mixtral: Any) -> Bench:
    texts = [Text(number, tuple(range(5 + number, 25 + number)), ()) for number in range(4)]
    return Bench("tiny_mixtral", mixtral, texts[:2], texts[2:], lambda: None)


def test_a_whole_text_at_full_precision_loses_nothing(bench: Bench) -> None:
    variants = Variants(bench.eval.forms, ("fp16",))
    assert all((loss.divergence == 0).all() for loss in bench.eval.losses(variants, all_at(0)))


@pytest.mark.parametrize(
    "name",
    [
        "floe_tables",
        *(
            pytest.param(name, marks=pytest.mark.thorough)
            for name in FIGURES
            if name != "floe_tables"
        ),
    ],
)
def test_a_figure_measures_every_point_of_its_claims(name: str, bench: Bench) -> None:
    sweep = FIGURES[name](bench)
    assert all(len(verdict.perplexity) == len(verdict.order.at) for verdict in sweep.verdicts)
    assert sweep.frame.height == len(sweep.points)
    assert (sweep.frame["divergence"] > 0).all()


def test_uses_count_the_rows_that_chose_each_expert(bench: Bench) -> None:
    uses = Whole(bench.model, bench.fit_texts).uses()
    assert uses.shape == (16, 8)
    assert (uses.sum(1) == 2 * 20 * 2).all()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["figure=fate_10", "eval=999"], "eval=999, but prompts=heldout has 32 texts"),
        (["figure=fate_10", "colour=red"], "colour is no option"),
    ],
)
def test_wrong_words_are_refused_in_one_line(
    words: list[str], told: str, tmp_path: Path, capsys: Any
) -> None:
    assert figures_main([*words, f"output_dir={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
