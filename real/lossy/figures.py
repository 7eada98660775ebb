"""The papers' motivating figures, a function each: what is varied, the curves, the claimed order.

All of them read held-out texts teacher-forced, each text in one pass. What is fitted (thresholds,
importance) is fitted on the ``fit`` texts, and what is shown is measured on the ``eval`` texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from real.lossy.importance import Importance, least_important, profile, search
from real.lossy.mixture import LEFT_OUT, all_at
from real.lossy.recipes import above_score, by_popularity, by_table
from real.lossy.sparse import WHERE, ActivationSample, require_gated, sparse_forward
from real.lossy.sweep import Order, Point, Sweep
from real.lossy.variants import Scheme, Variants
from real.lossy.whole import Track, Whole, changed_dense
from sim.values.units import part_of

CHANNELS, GROUPS = Scheme("channels"), Scheme("groups", 64)
SKIP_SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
WIDTHS = ("int8", "int4", "int2")
INT2_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
SPARSITIES = (0.5, 0.6, 0.7, 0.8, 0.9)
TOLERATED = (0.05, 0.1, 0.2, 0.4)
ROUNDED = (
    "integers are rounded to nearest in groups of 64, with half-precision scale and zero; the"
    " papers use HQQ"
)


@dataclass
class Bench:
    """A model with its ``fit`` and ``eval`` texts, each read at full precision at its first use.

    ``track`` is called after each text of each pass.
    """

    name: str
    model: Any
    fit_texts: Any
    eval_texts: Any
    track: Track

    @cached_property
    def fit(self) -> Whole:
        return Whole(self.model, self.fit_texts)

    @cached_property
    def eval(self) -> Whole:
        return Whole(self.model, self.eval_texts)

    @cached_property
    def importance(self) -> Importance:
        """EdgeMoE's importance: one expert at INT2, the others at INT4, on the fit texts.

        Nothing here takes longer to measure.
        """
        return profile(self.fit, self.variants("int4", "int2", scheme=CHANNELS), track=self.track)

    @cached_property
    def thresholds(self) -> Mapping[str, Any]:
        """Thresholds [S, E, P] of ``SPARSITIES`` by gate, up and down, from the fit texts alone."""
        sample = ActivationSample()
        self.fit.exact_losses(sample.forward)
        return sample.thresholds(len(self.fit.forms), self.experts, SPARSITIES)

    @property
    def experts(self) -> int:
        return self.eval.forms[0].layer.num_experts

    def variants(self, *precisions: str, scheme: Scheme = GROUPS) -> Variants:
        """The model's experts at these precisions, for fit and eval texts alike."""
        return Variants(self.eval.forms, precisions, scheme)


def hobbit_3b(bench: Bench) -> Sweep:
    """HOBBIT Figure 3 (b): the least important selections skipped, or served at low precision."""
    scores = bench.fit.scores()
    points = []
    for share in SKIP_SHARES:
        threshold = float(np.quantile(scores, 1 - share))
        for curve, code in (("skipped", LEFT_OUT), ("int4", 1), ("int2", 2)):
            decide = above_score(threshold, code, bench.experts)
            losses = bench.eval.losses(
                bench.variants("fp16", "int4", "int2"), decide, track=bench.track
            )
            points.append(Point(curve, share, losses))
    return Sweep(
        "hobbit_3b",
        "Experts skipped, or at low precision instead",
        "Tang et al., HOBBIT, arXiv:2411.01433, Figure 3 (b)",
        "share of selections, those of the highest score first",
        points,
        (
            Order("low precision loses less than skipping", "int4", "skipped", SKIP_SHARES),
            Order("so does the lowest (INT2)", "int2", "skipped", SKIP_SHARES),
        ),
        ("which selections: by thresholds of HOBBIT's score, quantiles of the fit texts'", ROUNDED),
    )


def edgemoe_6(bench: Bench) -> Sweep:
    """EdgeMoE Figure 6: expert weights or all weights at 8, 4 and 2 bits, channel by channel."""
    points = []
    for width in WIDTHS:
        bits = float(width[3:])
        variants = bench.variants(width, scheme=CHANNELS)
        points.append(
            Point("experts", bits, bench.eval.losses(variants, all_at(0), track=bench.track))
        )
        # The texts must be read at full precision before anything is changed.
        assert bench.eval.forms
        with changed_dense(bench.model, bench.eval.forms, CHANNELS.rounding(int(bits))):
            points.append(
                Point(
                    "all weights", bits, bench.eval.losses(variants, all_at(0), track=bench.track)
                )
            )
    return Sweep(
        "edgemoe_6",
        "Expert weights or all weights in few bits",
        "Yi et al., EdgeMoE, arXiv:2308.14352, Figure 6",
        "bits a weight",
        points,
        (
            Order(
                "quantising the experts alone loses less", "experts", "all weights", (8.0, 4.0, 2.0)
            ),
        ),
        (
            "channel-wise linear quantisation, as in the paper",
            "all weights: every matrix, routers and embeddings too; norms and biases stay",
        ),
    )


def edgemoe_7(bench: Bench) -> Sweep:
    """EdgeMoE Figure 7 (a): the loss with a single expert at INT2, the others at INT4."""
    found = bench.importance
    uses = bench.fit.uses()
    rank = np.corrcoef(_ranks(found.loss.ravel()), _ranks(uses.ravel()))[0, 1]
    variants, points = bench.variants("int4", "int2", scheme=CHANNELS), []
    for share in (0.25, 0.5, 0.75):
        for curve, values in (
            ("least important first", found.loss),
            ("least used first", uses),
            ("most important first", -found.loss),
        ):
            table = least_important(values, part_of(values.size, share))
            points.append(
                Point(curve, share, bench.eval.losses(variants, by_table(table), track=bench.track))
            )
    return Sweep(
        "edgemoe_7",
        "Importance of experts",
        "Yi et al., EdgeMoE, arXiv:2308.14352, Figure 7 (a) and section 3.2",
        "share of experts at INT2, the others at INT4",
        points,
        (
            Order(
                "the least important first loses less than the most important first",
                "least important first",
                "most important first",
                (0.25, 0.5, 0.75),
            ),
            Order(
                "a profile of losses beats a count of uses",
                "least important first",
                "least used first",
                (0.25, 0.5, 0.75),
            ),
        ),
        (
            f"rank correlation of an expert's importance with its uses: {rank:.2f}",
            (
                "one expert at INT2 changes the perplexity of the fit texts by"
                f" {found.loss.min():+.2%} to {found.loss.max():+.2%}; texts:"
                f" {len(bench.fit.texts)}"
            ),
            "map: sites downwards, experts to the right",
        ),
        [[float(value) for value in row] for row in found.loss],
        "loss of perplexity, one expert at INT2",
    )


def edgemoe_15(bench: Bench) -> Sweep:
    """EdgeMoE Figure 15: storage against the tolerated loss P, by the search for bit-widths."""
    found = bench.importance
    points, notes = [], []
    for tolerated in TOLERATED:
        chosen = search(bench.fit, found, tolerated, CHANNELS, bench.track)
        variants = bench.variants(chosen.high, chosen.low, scheme=CHANNELS)
        losses = bench.eval.losses(variants, by_table(chosen.table), track=bench.track)
        points.append(Point("eval texts", tolerated, losses))
        notes.append(
            f"P = {tolerated:.0%}: {chosen.low_share:.0%} of experts at {chosen.low}, the others at"
            f" {chosen.high}, {chosen.bits:.2f} bits a weight on average ({chosen.bits / 4:.0%} of"
            f" INT4); loss on the fit texts {chosen.loss:+.2%}"
        )
    return Sweep(
        "edgemoe_15",
        "Bits for a tolerated loss",
        "Yi et al., EdgeMoE, arXiv:2308.14352, Figure 15 and section 3.2",
        "tolerated loss P",
        points,
        (),
        notes,
    )


def fate_10(bench: Bench) -> Sweep:
    """Fate Figure 10: a growing share of a prompt's experts at INT2, the others at INT4.

    Either popular or unpopular experts go first.
    """
    points = []
    for share in INT2_SHARES:
        for curve, popular_first in (("unpopular first", False), ("popular first", True)):
            decide = by_popularity(share, popular_first=popular_first, experts=bench.experts)
            variants = bench.variants("int4", "int2")
            points.append(
                Point(curve, share, bench.eval.losses(variants, decide, track=bench.track))
            )
    return Sweep(
        "fate_10",
        "Experts of a prompt at INT2 by popularity",
        "Fang et al., Fate, arXiv:2502.12224, Figure 10",
        "share of a prompt's active experts at INT2, the others at INT4",
        points,
        (
            Order(
                "unpopular experts at INT2 lose less than popular ones",
                "unpopular first",
                "popular first",
                INT2_SHARES[1:-1],
            ),
        ),
        ("each text is one prompt: popularity is counted in it, site by site", ROUNDED),
    )


def floe_3a(bench: Bench) -> Sweep:
    """FloE Figure 3 (a) and Table 6: channels left out by their activation.

    It is the activation of gate (CATS), up (FloE) or down.
    """
    require_gated(bench.eval.forms[0])
    fitted = bench.thresholds
    points = []
    for index, sparsity in enumerate(SPARSITIES):
        for where in WHERE:
            forward = sparse_forward(where, fitted[where][..., index])
            points.append(Point(where, sparsity, bench.eval.exact_losses(forward)))
    return Sweep(
        "floe_3a",
        "Channels left out by activation",
        "Zhou et al., FloE, arXiv:2505.05950, Figure 3 (a), Table 6",
        "share of channels left out",
        points,
        (
            Order("by down loses less than by up", "down", "up", SPARSITIES),
            Order("by up loses less than by gate (CATS)", "up", "gate", SPARSITIES),
        ),
        (
            "gate: by the activation function's output, which is CATS (arXiv:2404.08763)",
            "thresholds an expert, from the fit texts (eq. 6); every token is sparse, prompts too",
        ),
    )


def floe_3b(bench: Bench) -> Sweep:
    """FloE Figure 3 (b) and Table 8: one projection of every expert in 8, 4 or 2 bits."""
    require_gated(bench.eval.forms[0])
    points = []
    for width in WIDTHS:
        for where in WHERE:
            variants = Variants(bench.eval.forms, (width,), GROUPS, projections=(where,))
            points.append(
                Point(
                    where,
                    float(width[3:]),
                    bench.eval.losses(variants, all_at(0), track=bench.track),
                )
            )
    return Sweep(
        "floe_3b",
        "One projection in few bits",
        "Zhou et al., FloE, arXiv:2505.05950, Figure 3 (b), Table 8",
        "bits a weight",
        points,
        (
            Order("up loses less than gate", "up", "gate", (8.0, 4.0, 2.0)),
            Order("gate loses less than down", "gate", "down", (8.0, 4.0, 2.0)),
        ),
        (ROUNDED, "INT3 and INT1 of the paper are not made here"),
    )


def floe_tables(bench: Bench) -> Sweep:
    """FloE Tables 3 and 5: ways to compress an expert, side by side."""
    require_gated(bench.eval.forms[0])
    fitted = bench.thresholds
    points = [
        Point(
            "all INT2", 0.0, bench.eval.losses(bench.variants("int2"), all_at(0), track=bench.track)
        )
    ]
    for sparsity in (0.8, 0.9):
        index = SPARSITIES.index(sparsity)
        for curve, where, precision in (
            ("CATS", "gate", "fp16"),
            ("W_up", "up", "fp16"),
            ("FloE", "up", "floe"),
        ):
            forward = sparse_forward(where, fitted[where][..., index])
            points.append(
                Point(
                    curve,
                    sparsity,
                    bench.eval.losses(bench.variants(precision), all_at(0), forward),
                )
            )
    points += [Point("all INT2", sparsity, points[0].losses) for sparsity in (0.8, 0.9)]
    return Sweep(
        "floe_tables",
        "Ways to compress an expert",
        "Zhou et al., FloE, arXiv:2505.05950, Tables 3 and 5",
        "share of channels left out",
        points,
        (
            Order("sparse by up loses less than CATS", "W_up", "CATS", (0.8, 0.9)),
            Order("FloE (W_up in INT2, too) loses less than CATS", "FloE", "CATS", (0.8, 0.9)),
            Order("FloE loses less than INT2 throughout", "FloE", "all INT2", (0.8, 0.9)),
        ),
        (
            "the paper's are task scores, here it is perplexity",
            "FloE's thresholds are those of the up projection as it is stored",
            ROUNDED,
        ),
    )


def _ranks(values: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(values, kind="stable"), kind="stable")


FIGURES: Mapping[str, Callable[[Bench], Sweep]] = {
    figure.__name__: figure
    for figure in (
        hobbit_3b,
        edgemoe_6,
        edgemoe_7,
        edgemoe_15,
        fate_10,
        floe_3a,
        floe_3b,
        floe_tables,
    )
}
"""The figures by name."""
