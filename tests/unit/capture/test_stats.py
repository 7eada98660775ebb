"""Every statistic against plain Python, on small random traces.

The traces have dropped choices, gaps and padding.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from capture.statistics.gates import lookahead_recall, router_entropy, score_shares, weight_norms
from capture.statistics.paths import covered, paths, prior_coverage
from capture.statistics.reuse import (
    BATCHES,
    LAGS,
    gini,
    least_popular,
    popularity,
    reuse_by_lag,
    reuse_distance,
    subset_products,
    unions,
)
from capture.statistics.sample import Sample, take
from helpers import brute_stats as brute
from helpers.brute_stats import at
from sim.traces.routing import RoutingRule
from sim.traces.synthesis import synthesize
from sim.traces.trace import ModelShape, Trace

SITES, EXPERTS, TOP_K = 4, 7, 3


def small(seed: int) -> Trace:
    """Five sequences of 3 + 14 tokens.

    Some choices are dropped, some rows are padding or without any choice, and some positions are
    left out. Weights have ties; decoded rows have output norms.
    """
    rng = np.random.default_rng(seed)
    shape = ModelShape(f"small {seed}", "none", SITES, EXPERTS, TOP_K, 8, 8)
    trace = synthesize(
        shape,
        tokens=14,
        prompt_tokens=3,
        sequences=5,
        seed=seed,
        lookahead=2,
        lookahead_accuracy=0.8,
    )
    ids, weights, valid, position = (
        np.array(getattr(trace, n)) for n in ("ids", "weights", "valid", "position")
    )
    weights = (np.rint(weights * 8) / 8 + np.float32(0.125)).astype(np.float32)
    dropped = rng.random(ids.shape) < 0.1
    dropped[rng.random(ids.shape[:2]) < 0.05] = True
    ids[dropped], weights[dropped] = -1, 0.0
    valid[rng.random(len(valid)) < 0.1] = False
    position = position + 2 * (np.arange(len(position)) % 17 > 9).astype(np.int32)
    norms = rng.uniform(0.5, 2, ids.shape).astype(np.float32)
    norms[trace.phase == 0] = np.nan
    return replace(
        trace, ids=ids, weights=weights, valid=valid, position=position, expert_norms=norms
    )


@pytest.fixture(params=range(4))
def sample(request: pytest.FixtureRequest) -> Sample:
    return take(small(request.param), "all")


def test_popularity_counts_each_use(sample: Sample) -> None:
    tokens, table = brute.tokens_of(sample), popularity(sample)
    for site in range(SITES):
        uses = Counter(expert for token in tokens for expert in brute.experts(token, site))
        rows = table.filter(site=site)
        assert rows["uses"].to_list() == [uses[expert] for expert in range(EXPERTS)]
        assert rows["share"].to_list() == pytest.approx(
            [uses[expert] / uses.total() for expert in range(EXPERTS)]
        )


def test_gini_is_the_mean_difference_over_twice_the_mean() -> None:
    values = np.random.default_rng(0).random(9)
    differences = [abs(one - other) for one in values for other in values]
    assert gini(values) == pytest.approx(np.mean(differences) / (2 * values.mean()))
    assert gini(np.full(5, 0.2)) == pytest.approx(0)


def test_reuse_by_lag_is_that_of_pairs_so_many_positions_apart(sample: Sample) -> None:
    tokens, table = brute.tokens_of(sample), reuse_by_lag(sample)
    for site in range(SITES):
        for lag in LAGS:
            value = brute.reuse(tokens, site, lag)
            rows = table.filter(site=site, lag=lag)
            assert len(rows) == (value is not None)
            if value is not None:
                row = rows.row(0, named=True)
                assert row["value"] == pytest.approx(value)
                assert row["popularity_alone"] == pytest.approx(
                    brute.popularity_alone(tokens, site, EXPERTS)
                )


def test_reuse_distance_counts_the_other_experts_since(sample: Sample) -> None:
    tokens, table = brute.tokens_of(sample), reuse_distance(sample)
    for site in range(SITES):
        rows = table.filter(site=site)
        assert dict(zip(rows["distance"], rows["selections"], strict=True)) == brute.distances(
            tokens, site
        )


def test_unions_are_expectations_over_all_batches(sample: Sample) -> None:
    tokens, table = brute.tokens_of(sample), unions(sample)
    for site in range(SITES):
        # All choices of 2 of 5 sequences and of a token of each. For 4 sequences there would be
        # 300,000 more.
        for batch in (1, 2):
            value = at(table, site=site, kind="sequences", batch=batch)["value"]
            assert value == pytest.approx(brute.union_of_sequences(tokens, site, batch))
        for batch in BATCHES:
            expected = brute.union_of_window(tokens, site, batch)
            rows = table.filter(site=site, kind="window", batch=batch)
            assert rows["value"].to_list() == (
                [] if expected is None else [pytest.approx(expected)]
            )
    assert sorted(set(table.filter(kind="sequences")["batch"])) == [1, 2, 4]


def test_unions_of_four_of_five_short_sequences() -> None:
    sample = take(synthesize(ModelShape("x", "none", 2, 6, 2, 8, 8), tokens=3, sequences=5))
    tokens, table = brute.tokens_of(sample), unions(sample)
    for site in range(2):
        value = at(table, site=site, kind="sequences", batch=4)["value"]
        assert value == pytest.approx(brute.union_of_sequences(tokens, site, 4))


def test_chances_are_those_of_even_draws() -> None:
    """A long trace without skew or persistence reaches what even draws would give."""
    shape = ModelShape("even", "none", 1, 6, 2, 8, 8)
    sample = take(
        synthesize(shape, tokens=4000, sequences=4, persistence=0.0, skew=0.0, lookahead=0)
    )
    for row in reuse_by_lag(sample).iter_rows(named=True):
        assert row["value"] == pytest.approx(2 / 6, abs=0.02)
        assert row["chance"] == pytest.approx(2 / 6)
        assert row["popularity_alone"] == pytest.approx(2 / 6, abs=0.01)
    for row in unions(sample).iter_rows(named=True):
        assert row["value"] == pytest.approx(row["chance"], rel=0.01)
    for row in prior_coverage(
        take(
            synthesize(replace(shape, sites=3), tokens=4000, sequences=4, persistence=0.0, skew=0.0)
        )
    ).iter_rows(named=True):
        assert row["value"] == pytest.approx(row["chance"], abs=0.03)


def test_subset_products_average_over_all_subsets() -> None:
    values = np.random.default_rng(1).random((6, 3))
    means = subset_products(values, 6)
    for size in range(7):
        subsets = list(brute.combinations(range(6), size))
        for column in range(3):
            expected = sum(math.prod(values[list(subset), column]) for subset in subsets) / len(
                subsets
            )
            assert means[size, column] == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(4))
def test_least_popular_experts_are_those_of_each_prompt(seed: int) -> None:
    sample = take(small(seed), "prompt")
    tokens, table = brute.tokens_of(sample), least_popular(sample)
    for row in table.iter_rows(named=True):
        assert row["value"] == pytest.approx(
            brute.least_popular(tokens, row["site"], row["experts"])
        )
    assert table.filter(experts=1.0)["value"].to_list() == pytest.approx([1.0] * SITES)


def test_coverage_ranks_by_counts_after_the_longest_key(sample: Sample) -> None:
    tokens, table = brute.tokens_of(sample), prior_coverage(sample)
    splits = {item.sequence: item.split for item in sample.header.sequences}
    fit = [token for token in tokens if splits[token[0]] == "fit"]
    held = [token for token in tokens if splits[token[0]] == "eval"]
    assert set(table["evaluated"]) == {"held out"}
    assert set(table["site"]) == {2, 3}
    for site in (2, 3):
        for key in ("first", "set"):
            for known in range(3):
                for top in (1, 2, 5, EXPERTS):
                    expected = brute.coverage(
                        fit, held, (site - 2, site - 1, site), known, key, top, EXPERTS
                    )
                    row = at(table, site=site, key=key, known=known, top=top)
                    assert row["value"] == pytest.approx(expected), (site, key, known, top)


def test_coverage_without_a_split_is_in_sample_and_says_so() -> None:
    trace = small(1)
    sequences = tuple(replace(item, split="eval") for item in trace.header.sequences)
    sample = take(replace(trace, header=replace(trace.header, sequences=sequences)), "all")
    tokens, table = brute.tokens_of(sample), prior_coverage(sample)
    assert set(table["evaluated"]) == {"in sample"}
    assert set(table["seen"]) == {1.0}
    row = at(table, site=3, key="set", known=2, top=2)
    assert row["value"] == pytest.approx(
        brute.coverage(tokens, tokens, (1, 2, 3), 2, "set", 2, EXPERTS)
    )


def test_paths_are_counted_and_the_control_keeps_each_sites_popularity(sample: Sample) -> None:
    table = paths(sample, seed=3)
    tokens = [
        token
        for token in brute.tokens_of(sample)
        if all(brute.first(token, s) >= 0 for s in range(SITES))
    ]
    assert set(table["site"]) == {0, 1, 2, 3}
    for row in table.iter_rows(named=True):
        num_paths, cover = brute.path_cover(tokens, row["site"], row["length"])
        assert (row["paths"], row["tokens"]) == (num_paths, len(tokens))
        assert row["value"] == pytest.approx(cover)
        assert row["tokens_per_path"] == pytest.approx(len(tokens) / num_paths)
        if row["length"] == 1:
            assert (row["control"], row["control_paths"]) == (row["value"], row["paths"])
    assert not paths(sample, seed=4).equals(table)
    assert paths(sample, seed=3).equals(table)


def test_layers_that_repeat_one_choice_have_few_paths_and_a_control_with_many() -> None:
    trace = small(0)
    ids = np.repeat(trace.ids[:, :1], SITES, axis=1)
    weights = np.repeat(trace.weights[:, :1], SITES, axis=1)
    whole = at(paths(take(replace(trace, ids=ids, weights=weights), "all")), site=0, length=SITES)
    assert whole["paths"] <= EXPERTS
    assert whole["control_paths"] > 5 * EXPERTS


def test_the_commonest_fifth_is_one_path_at_least() -> None:
    assert covered(np.array([1, 3])) == 0.75
    assert covered(np.arange(1, 11)) == pytest.approx(19 / 55)


def test_lookahead_recall_is_that_of_each_rows_best_scores(sample: Sample) -> None:
    table = lookahead_recall(sample)
    scores = sample.trace.lookahead["raw"]
    tokens = brute.tokens_of(sample)
    assert len(table) == 3 * (3 + 2)
    for site in range(SITES):
        for ahead in (1, 2):
            if site + ahead >= SITES:
                continue
            top, hits, quarter, total, rows = 0, 0, 0, 0, 0
            for row, token in enumerate(tokens):
                ranked = sorted(range(EXPERTS), key=lambda e: (-scores[row, site, ahead - 1, e], e))
                used = brute.experts(token, site + ahead)
                top += ranked[0] in used
                hits += len(used & set(ranked[:TOP_K]))
                # A quarter of seven experts is two: at least the top-k.
                quarter += len(used & set(ranked[: max(TOP_K, round(EXPERTS / 4))]))
                total += len(used)
                rows += bool(used)
            found = {
                m: at(table, site=site, ahead=ahead, measure=m)["value"]
                for m in ("top1", "topk", "quarter")
            }
            assert found == pytest.approx(
                {"top1": top / rows, "topk": hits / total, "quarter": quarter / total}
            )
    assert set(table["position"]) == {"gate_in"}
    assert set(table["norm"]) == {"raw"}


def test_forecasts_follow_the_targets_own_rule() -> None:
    """With a bias towards expert 0 at every site, every forecast names expert 0."""
    trace = small(2)
    biased = RoutingRule(score="sigmoid", bias=(100.0,) + (0.0,) * (EXPERTS - 1))
    sites = tuple(replace(site, rule=biased) for site in trace.header.sites)
    ids = np.array(trace.ids)
    ids[:] = (0, 5, 6)
    sample = take(replace(trace, ids=ids, header=replace(trace.header, sites=sites)), "all")
    shares = lookahead_recall(sample).filter(measure="topk")["value"]
    assert min(shares) >= 1 / 3
    unbiased = take(replace(trace, ids=ids), "all")
    assert min(lookahead_recall(unbiased).filter(measure="topk")["value"]) < 1 / 2


def test_entropy_is_that_of_the_softmax_of_all_logits(sample: Sample) -> None:
    logits = sample.trace.logits
    assert logits is not None
    for row in router_entropy(sample).iter_rows(named=True):
        bits = [brute.entropy_bits(values) for values in logits[:, row["site"]].tolist()]
        assert row["bits"] == pytest.approx(sum(bits) / len(bits))
        assert row["value"] == pytest.approx(row["bits"] / math.log2(EXPERTS))


@pytest.mark.parametrize(
    ("score", "top"), [("sigmoid", 0.5 / (0.5 * 3 + 1 / (1 + math.exp(9)))), ("sqrtsoftplus", None)]
)
def test_entropy_follows_the_sites_kind_of_score(score: str, top: float | None) -> None:
    trace = synthesize(ModelShape("x", "none", 1, 4, 1, 8, 8), tokens=2, sequences=1, lookahead=0)
    sites = (replace(trace.header.sites[0], rule=RoutingRule(score=score)),)
    logits = np.zeros((2, 1, 4), np.float32)
    logits[..., 3] = -9
    (row,) = router_entropy(
        take(replace(trace, logits=logits, header=replace(trace.header, sites=sites)))
    ).to_dicts()
    if top is None:
        low, high = math.sqrt(math.log1p(math.exp(-9))), math.sqrt(math.log(2))
        top = high / (3 * high + low)
    assert row["top"] == pytest.approx(top)


def test_correlations_of_weights_and_norms_are_pearsons(sample: Sample) -> None:
    norms = sample.trace.expert_norms
    assert norms is not None
    table = weight_norms(sample)
    for site in range(SITES):
        pairs: dict[str, list[tuple[float, float]]] = {"weighted": [], "output": [], "shares": []}
        for row in range(len(sample.ids)):
            norm = [float(value) for value in norms[row, site]]
            if (sample.ids[row, site] < 0).any() or any(map(math.isnan, norm)):
                continue
            weight = [float(value) for value in sample.trace.weights[row, site]]
            output = [one * other for one, other in zip(weight, norm, strict=True)]
            pairs["weighted"] += zip(weight, output, strict=True)
            pairs["output"] += zip(weight, norm, strict=True)
            pairs["shares"] += [
                (w / sum(weight), o / sum(output)) for w, o in zip(weight, output, strict=True)
            ]
        for kind, values in pairs.items():
            assert at(table, site=site, kind=kind)["value"] == pytest.approx(
                brute.correlation(values)
            )


def test_scores_are_the_weight_ranked_above(sample: Sample) -> None:
    tokens, table = brute.tokens_of(sample), score_shares(sample)
    for site in range(SITES):
        values = [
            value for token in tokens if token[2][site] for value in brute.scores(token[2][site])
        ]
        # At a threshold, sums of eighths divided by their total may round either way.
        near = sum(abs(value - limit) < 1e-9 for value in values for limit in (0.6, 0.9))
        for name, low, high in (("high", -1, 0.6), ("low", 0.6, 0.9), ("skip", 0.9, 2)):
            expected = sum(low < value <= high for value in values)
            row = table.filter(pl.col("class") == name, pl.col("site") == site).row(0, named=True)
            assert row["selections"] == len(values)
            assert abs(row["value"] * len(values) - expected) <= near + 1e-6
    assert table.group_by("site").agg(pl.col("value").sum())["value"].to_list() == pytest.approx(
        [1.0] * SITES
    )
