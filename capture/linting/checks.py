"""The checks of `capture.lint`: each looks for one thing that may be wrong with a valid trace.

A check takes a `Trace`, of which the columns that every trace has suffice. It yields a `Finding`
for each thing that a user of the trace's numbers should know. The finding's text has the values
found and the way out. Limits are constants of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from capture.linting.repeats import repetition, template_echo
from capture.linting.rows import (
    MOST_SELECTED,
    SERIOUS_SHARE,
    SHORTEST_LOOPING,
    decoded_rows,
    selection_bits,
    stuck_sites,
)
from capture.statistics.codes import selection_codes
from sim.traces.trace import DECODE, Finding, Trace

DUPLICATE_SHARE = 0.95
"""Two sites are duplicates where they select the same experts in this share of the rows."""
CHANCE_RATIO = 1.1
"""Routing is random where tokens repeat the experts of the token before less than so many times as
often as chance. Recorded traces and fitted synthetic ones lie between 1.35 and 8.1.
"""
CHANCE_DEVIATION = 0.05
"""Of fewer choices, whose deviation is a larger share of chance, nothing is said."""
PADDING_SHARE = 0.25
"""Padding is serious where it is at least this share of the rows."""


def duplicated_layers(trace: Trace) -> Iterator[Finding]:
    """Two sites that select the same experts for nearly every row: one was recorded twice."""
    if trace.header.model.top_k >= trace.header.model.experts:
        return
    codes = selection_codes(trace.ids)
    stuck = set(stuck_sites(codes))
    sample = codes[np.linspace(0, len(codes) - 1, min(len(codes), 256), dtype=np.int64)]
    for one, other in combinations(sorted(set(range(codes.shape[1])) - stuck), 2):
        if _same_share(sample, one, other) < DUPLICATE_SHARE / 2:
            continue
        share = _same_share(codes, one, other)
        if share >= DUPLICATE_SHARE:
            yield Finding(
                "duplicated_layers",
                True,
                f"sites {one} and {other} select the same experts in {share:.2%} of the rows: one"
                " layer was recorded twice; capture again with one hook a layer",
                sites=(one, other),
            )


def _same_share(codes: NDArray[np.uint64], one: int, other: int) -> float:
    """The share of rows with equal selections, among the rows that visit both sites."""
    both = (codes[:, one] > 0) & (codes[:, other] > 0)
    return float((codes[both, one] == codes[both, other]).mean()) if both.any() else 0.0


def constant_routing(trace: Trace) -> Iterator[Finding]:
    """Sites at which nearly every row selects the same experts.

    Their routers' weights are 0, or what was recorded is not a choice.
    """
    if trace.header.model.top_k >= trace.header.model.experts or len(trace.ids) < SHORTEST_LOOPING:
        return
    if stuck := stuck_sites(selection_codes(trace.ids)):
        yield Finding(
            "constant_routing",
            True,
            f"{len(stuck)} of {trace.ids.shape[1]} sites select the same experts in"
            f" {min(stuck.values()):.1%} or more of their rows: the router chooses nothing (weights"
            " all zero?), or something else was recorded",
            sites=tuple(stuck),
        )


def random_routing(trace: Trace) -> Iterator[Finding]:
    """Tokens that choose as if every expert were equally likely, whatever the token before chose.

    Popular experts and reuse both raise the share of a token's experts that the token before chose,
    too, at the same site. For even, independent choices that share is how many experts the token
    before chose, of all: ``top_k / experts``, less where choices were dropped or null.
    """
    model = trace.header.model
    if model.top_k > MOST_SELECTED * model.experts or trace.header.lacks & {"rows", "sequences"}:
        return
    again = choices = even = 0
    for rows in decoded_rows(trace).values():
        bits = selection_bits(trace.ids[rows], model.experts)
        again += int(np.bitwise_count(bits[1:] & bits[:-1]).sum())
        chosen = (trace.ids[rows] >= 0).sum(-1)
        choices += int(chosen[1:].sum())
        even += int((chosen[1:] * chosen[:-1]).sum())
    stored = model.experts - trace.header.null_experts
    chance = even / max(choices, 1) / stored
    if not even or ((1 - chance) / chance / choices) ** 0.5 > CHANCE_DEVIATION:
        return
    share = again / choices
    if share < CHANCE_RATIO * chance:
        yield Finding(
            "random_routing",
            False,
            f"{share:.1%} of a token's experts were those of the token before, as many as by chance"
            f" ({chance:.1%}: {chance * stored:.3g} of {stored}); trained routers have 1.3 to 8 times"
            " as many: no cache or forecast can gain here by knowing the past; random ids, or an"
            " untrained router?",
        )


def order(trace: Trace) -> Iterator[Finding]:
    """Tokens out of order.

    These are gaps in positions, prompt rows after decoded ones, and several decoded rows of one
    sequence in a step. That positions increase is a rule of the format, so the reader checks it.
    """
    rows = np.flatnonzero(trace.valid)
    rows = rows[np.argsort(trace.sequence[rows], kind="stable")]
    same = np.diff(trace.sequence[rows]) == 0
    gaps = same & (np.diff(trace.position[rows]) != 1)
    decoding = trace.phase[rows] == DECODE
    back = same & decoding[:-1] & ~decoding[1:]
    twice = same & decoding[1:] & decoding[:-1] & (np.diff(trace.step[rows]) == 0)
    for wrong, what, why in (
        (
            gaps,
            "gap(s) in the positions",
            "tokens are missing, so reuse and caches see a text that never ran",
        ),
        (
            back,
            "prompt row(s) after decoded ones",
            "the sequence is not one request; number its turns apart",
        ),
        (
            twice,
            "decoded row(s) that share a step with the row before",
            "drafts of speculative decoding, or beams; capture without",
        ),
    ):
        if wrong.any():
            concerned = np.unique(trace.sequence[rows[1:][wrong]]).tolist()
            where = f"in {len(concerned)} sequence(s), the first at row {rows[1:][wrong][0]}"
            yield Finding(
                "order", True, f"{int(wrong.sum())} {what} {where}: {why}", tuple(concerned)
            )


def counts(trace: Trace) -> Iterator[Finding]:
    """Impossible counts: rows that select no expert, and a last range of experts never selected.

    Null experts, the last ones, are never selected: choosing one is -1. So where there are some, a
    row may select none.
    """
    null = trace.header.null_experts
    model, decoder = (
        trace.header.model,
        np.array([site.stack == "decoder" for site in trace.header.sites]),
    )
    visited = np.ones(trace.ids.shape[:2], np.bool_)
    if trace.header.encoder_sites:
        visited = np.equal.outer(trace.phase == DECODE, decoder)
    empty = ((trace.ids < 0).all(-1) & visited & trace.valid[:, None]).sum(0)
    rows = np.maximum((visited & trace.valid[:, None]).sum(0), 1)
    if empty.any() and not null:
        sites = tuple(np.flatnonzero(empty).tolist())
        share = float(empty.sum() / rows.sum())
        yield Finding(
            "counts",
            share >= SERIOUS_SHARE,
            f"{int(empty.sum())} token(s) x sites select no expert at all, at {len(sites)} site(s),"
            f" up to {float((empty / rows).max()):.1%} of one's: dropped by the model, or never"
            " recorded",
            sites=sites,
        )
    selections = int((trace.ids >= 0).sum())
    top = int(trace.ids.max(initial=-1)) + 1
    # With even choices an id is missed at all sites with a probability of exp(-selections /
    # experts).
    if 0 < top < model.experts - null and selections > 50 * model.experts:
        yield Finding(
            "counts",
            True,
            f"no site ever selects an expert from {top} on, of {model.experts - null}: the header has too"
            " many experts, or the ids are those of a part of them",
        )


def top_k(trace: Trace, native: int | None) -> Iterator[Finding]:
    """Fewer experts a token than the model was trained with.

    ``native`` is the number of its training, None where unknown.
    """
    model = trace.header.model
    if native is not None and model.top_k < native:
        yield Finding(
            "top_k",
            True,
            f"{model.top_k} experts a token were recorded, the model's own number is {native}: an"
            " override, or ranks are missing; loads, reuse and weights differ from the model's, so"
            " name it with every result",
        )


def padding(trace: Trace) -> Iterator[Finding]:
    """Padding rows: they are routed and load experts, but statistics leave them out."""
    share = float(1 - trace.valid.mean()) if len(trace.valid) else 0.0
    if share:
        yield Finding(
            "padding",
            share >= PADDING_SHARE,
            f"{share:.1%} of the rows are padding: they load experts in recorded batches and count"
            " in no statistic; capture prompts of like lengths together, or with batch 1",
        )


CHECKS: Mapping[str, Callable[[Trace], Iterator[Finding]]] = {
    "repetition": repetition,
    "template_echo": template_echo,
    "duplicated_layers": duplicated_layers,
    "constant_routing": constant_routing,
    "random_routing": random_routing,
    "order": order,
    "counts": counts,
    "padding": padding,
}
