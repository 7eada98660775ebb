"""The checks of `capture.lint`: each looks for one thing that may be wrong with a valid trace.

A check takes a `Trace`, of which the columns that every trace has suffice. It yields a `Finding`
for each thing that a user of the trace's numbers should know. The finding's text has the values
found and the way out. Limits are constants of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from capture.statistics.codes import selection_codes
from sim.traces.trace import DECODE, Finding, Trace

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
LONGEST_PERIOD = 256
"""Longest period of a loop that is looked for, in tokens."""
SHORTEST_LOOPING = 32
"""Fewest decoded tokens of a sequence that is searched for loops.

In a shorter one half a dozen common words would decide.
"""
SAME_CHOICES = 0.75
"""Two tokens' routing counts as the same where this share of the selections agree, over sites."""
MOST_SELECTED = 0.5
"""Where a token selects more than this share of the experts, routing is not searched for loops.

Chance alone would make it alike.
"""
LOOPING_SHARE = 0.3
"""A sequence loops where at least this share of its decoded tokens repeat earlier ones.

Running text stays below 0.2.
"""
FEWEST_ALIKE = 8
"""Fewest sequences from which one may conclude that all begin alike."""
ALIKE_SHARE = 0.5
"""An offset is shared where this share of the sequences (or of their selections) agree."""
SERIOUS_SHARE = 0.05
"""A finding is serious where it concerns at least this share of the decoded tokens (or rows)."""
DUPLICATE_SHARE = 0.95
"""Two sites are duplicates where they select the same experts in this share of the rows."""
STUCK_SHARE = 0.99
"""A site is stuck where this share of its rows select the same experts."""
PADDING_SHARE = 0.25
"""Padding is serious where it is at least this share of the rows."""


def repetition(trace: Trace) -> Iterator[Finding]:
    """Generated text that loops: as the trace's source flags it, and as found here.

    Loops are looked for in tokens or, without tokens, in routing. A sequence loops where, for some
    period, at least LOOPING_SHARE of its decoded tokens repeat the token (or the routing) one
    period before.
    """
    tokens_of = {item.sequence: item.decode_tokens for item in trace.header.sequences}
    flagged = tuple(
        item.sequence for item in trace.header.sequences if item.flags.get("has_repetition")
    )
    if flagged:
        yield Finding(
            "repetition",
            _is_serious(flagged, tokens_of),
            f"{_counted(flagged, tokens_of)} flagged has_repetition by the trace's source: text in"
            " loops reuses experts far more than text; leave them out"
            " (trace.exclude=[has_repetition])",
            flagged,
        )
    loops = find_loops(trace)
    if loops:
        found = tuple(loops)
        share, period = max(loops.values())
        unflagged = len(set(found) - set(flagged))
        how = (
            "token ids"
            if (trace.token >= 0).any()
            else f"routing ({SAME_CHOICES:.0%} of selections alike)"
        )
        also = f"; {unflagged} of them without the flag has_repetition" if flagged else ""
        yield Finding(
            "repetition",
            _is_serious(found, tokens_of),
            f"{_counted(found, tokens_of)} in loops by their {how}; the worst repeats {share:.0%}"
            f" of its tokens every {period}{also}; leave them out of statistics and results",
            found,
        )


def find_loops(trace: Trace) -> dict[int, tuple[float, int]]:
    """The sequences that loop: by number, the share of decoded tokens that repeat, and the period.

    The period is in tokens.
    """
    bits, needed = None, np.zeros(0)
    if not (trace.token >= 0).any():
        if trace.header.model.top_k > MOST_SELECTED * trace.header.model.experts:
            return {}
        telling = _telling(trace)
        bits = _bits(trace.ids[:, telling], trace.header.model.experts)
        needed = SAME_CHOICES * (trace.ids[:, telling] >= 0).sum((1, 2))
    found = {}
    for sequence, rows in _decoded(trace).items():
        if len(rows) < SHORTEST_LOOPING:
            continue
        shares = (
            _token_repeats(trace.token[rows])
            if bits is None
            else _routing_repeats(bits[rows], needed[rows])
        )
        period = int(shares.argmax())
        if shares[period] >= LOOPING_SHARE:
            found[sequence] = (float(shares[period]), period + 1)
    return found


def _token_repeats(tokens: NDArray[np.int32]) -> Floats:
    """By period, from 1 on: the share of the tokens that repeat the token a period before."""
    same = [((tokens[p:] == tokens[:-p]) & (tokens[p:] >= 0)).sum() for p in _periods(len(tokens))]
    return np.array(same) / len(tokens)


def _routing_repeats(bits: NDArray[np.uint64], needed: Floats) -> Floats:
    """By period, from 1 on: the share of the rows that repeat the routing a period before.

    A row repeats it where at least ``needed`` of its selections, and at least one, are the same.
    """
    alike = [
        np.bitwise_count(bits[p:] & bits[:-p]).sum(-1) >= needed[p:] for p in _periods(len(bits))
    ]
    telling = needed > 0
    return np.array([(same & telling[len(telling) - len(same) :]).sum() for same in alike]) / len(
        bits
    )


def _periods(num_tokens: int) -> range:
    return range(1, min(num_tokens // 2, LONGEST_PERIOD) + 1)


def _bits(ids: NDArray[np.int16], experts: int) -> NDArray[np.uint64]:
    """The experts that each row of ``ids`` [N, S, K] selects, as bits [N, S * words].

    A site takes as many 64-bit words as its ``experts`` need.
    """
    bits = np.zeros((*ids.shape[:2], -(-experts // 64)), np.uint64)
    chosen = np.where(ids >= 0, ids, 0).astype(np.int64)
    one = np.where(ids >= 0, np.uint64(1) << (chosen % 64).astype(np.uint64), np.uint64(0))
    for slot in range(ids.shape[2]):
        place = (chosen[..., slot] // 64)[..., None]
        word = np.take_along_axis(bits, place, -1) | one[..., slot, None]
        np.put_along_axis(bits, place, word, -1)
    return bits.reshape(len(ids), -1)


def template_echo(trace: Trace) -> Iterator[Finding]:
    """Tokens that most sequences share at the same offset after their prompts.

    They are a chat template or a set phrase of answers, not text. Looked for in tokens or, without
    tokens, in routing.
    """
    of_sequence = list(_decoded(trace).values())
    if len(of_sequence) < FEWEST_ALIKE:
        return
    shared = shared_offsets(trace, of_sequence)
    if not shared:
        return
    tokens = sum(len(rows) for rows in of_sequence)
    covered = sum(len(rows) > offset for rows in of_sequence for offset in shared) / tokens
    how = "token" if (trace.token >= 0).any() else "routing"
    shown = ", ".join(map(str, shared[:8])) + (", .." if len(shared) > 8 else "")
    yield Finding(
        "template_echo",
        covered >= SERIOUS_SHARE,
        f"most sequences have the same {how} at {len(shared)} offset(s) after their prompt"
        f" ({shown}), {covered:.1%} of the decoded tokens: a template, not text; its reuse between"
        " sequences is no property of the model",
    )


def shared_offsets(trace: Trace, of_sequence: Sequence[Ints]) -> list[int]:
    """Offsets into the sequences' decoded rows at which at least ALIKE_SHARE agree.

    They agree with the most common token or, without tokens, with the most common selection, as a
    mean over sites.
    """
    shared = []
    telling = _telling(trace)
    for offset in range(max(map(len, of_sequence))):
        rows = np.array([rows[offset] for rows in of_sequence if len(rows) > offset])
        if len(rows) < max(FEWEST_ALIKE, len(of_sequence) / 2):
            break
        if (trace.token[rows] >= 0).any():
            alike = _most_common(trace.token[rows])
        else:
            codes = selection_codes(trace.ids[rows][:, telling])
            alike = (
                float(np.mean([_most_common(of_site) for of_site in codes.T]))
                if len(telling)
                else 0.0
            )
        if alike >= ALIKE_SHARE:
            shared.append(offset)
    return shared


def _most_common(values: NDArray[np.integer]) -> float:
    """Share of the values that equal the most common one."""
    return float(np.unique(values, return_counts=True)[1].max() / len(values))


def duplicated_layers(trace: Trace) -> Iterator[Finding]:
    """Two sites that select the same experts for nearly every row: one was recorded twice."""
    if trace.header.model.top_k >= trace.header.model.experts:
        return
    codes = selection_codes(trace.ids)
    stuck = set(_stuck(codes))
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
    if stuck := _stuck(selection_codes(trace.ids)):
        yield Finding(
            "constant_routing",
            True,
            f"{len(stuck)} of {trace.ids.shape[1]} sites select the same experts in"
            f" {min(stuck.values()):.1%} or more of their rows: the router chooses nothing (weights"
            " all zero?), or something else was recorded",
            sites=tuple(stuck),
        )


def _telling(trace: Trace) -> Ints:
    """The sites that are not stuck; a stuck site says nothing about repetition."""
    return np.setdiff1d(np.arange(trace.ids.shape[1]), list(_stuck(selection_codes(trace.ids))))


def _stuck(codes: NDArray[np.uint64]) -> dict[int, float]:
    """The stuck sites, each with the share of its most common selection."""
    shares = {
        site: _most_common(of_site[of_site > 0])
        for site, of_site in enumerate(codes.T)
        if of_site.any()
    }
    return {site: share for site, share in shares.items() if share >= STUCK_SHARE}


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
    """Impossible counts: rows that select no expert, and a last range of experts never selected."""
    model, decoder = (
        trace.header.model,
        np.array([site.stack == "decoder" for site in trace.header.sites]),
    )
    visited = np.ones(trace.ids.shape[:2], np.bool_)
    if trace.header.encoder_sites:
        visited = np.equal.outer(trace.phase == DECODE, decoder)
    empty = ((trace.ids < 0).all(-1) & visited & trace.valid[:, None]).sum(0)
    rows = np.maximum((visited & trace.valid[:, None]).sum(0), 1)
    if empty.any():
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
    if 0 < top < model.experts and selections > 50 * model.experts:
        yield Finding(
            "counts",
            True,
            f"no site ever selects an expert from {top} on, of {model.experts}: the header has too"
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
    "order": order,
    "counts": counts,
    "padding": padding,
}


def _decoded(trace: Trace) -> dict[int, Ints]:
    """The valid decoded rows of each sequence, in order; sequences without any are left out."""
    rows = np.flatnonzero(trace.valid & (trace.phase == DECODE))
    rows = rows[np.argsort(trace.sequence[rows], kind="stable")]
    numbers, starts = np.unique(trace.sequence[rows], return_index=True)
    return dict(zip(numbers.tolist(), np.split(rows, starts[1:]), strict=True)) if len(rows) else {}


def _is_serious(sequences: Sequence[int], tokens_of: Mapping[int, int]) -> bool:
    return sum(tokens_of[number] for number in sequences) >= SERIOUS_SHARE * max(
        sum(tokens_of.values()), 1
    )


def _counted(sequences: Sequence[int], tokens_of: Mapping[int, int]) -> str:
    share = sum(tokens_of[number] for number in sequences) / max(sum(tokens_of.values()), 1)
    return f"{len(sequences)} of {len(tokens_of)} sequences ({share:.0%} of the decoded tokens) are"
