"""The checks for text that repeats: loops of generated text, and templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from capture.linting.rows import (
    MOST_SELECTED,
    SERIOUS_SHARE,
    SHORTEST_LOOPING,
    Ints,
    decoded_rows,
    most_common,
    selection_bits,
    telling_sites,
)
from capture.statistics.codes import selection_codes
from sim.traces.trace import Finding, Trace

Floats = NDArray[np.float64]
LONGEST_PERIOD = 256
"""Longest period of a loop that is looked for, in tokens."""
SAME_CHOICES = 0.75
"""Two tokens' routing counts as the same where this share of the selections agree, over sites."""
LOOPING_SHARE = 0.3
"""A sequence loops where at least this share of its decoded tokens repeat earlier ones.

Running text stays below 0.2.
"""
FEWEST_ALIKE = 8
"""Fewest sequences from which one may conclude that all begin alike."""
ALIKE_SHARE = 0.5
"""An offset is shared where this share of the sequences (or of their selections) agree."""


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
        telling = telling_sites(trace)
        bits = selection_bits(trace.ids[:, telling], trace.header.model.experts)
        needed = SAME_CHOICES * (trace.ids[:, telling] >= 0).sum((1, 2))
    found = {}
    for sequence, rows in decoded_rows(trace).items():
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


def template_echo(trace: Trace) -> Iterator[Finding]:
    """Tokens that most sequences share at the same offset after their prompts.

    They are a chat template or a set phrase of answers, not text. Looked for in tokens or, without
    tokens, in routing.
    """
    of_sequence = list(decoded_rows(trace).values())
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
    telling = telling_sites(trace)
    for offset in range(max(map(len, of_sequence))):
        rows = np.array([rows[offset] for rows in of_sequence if len(rows) > offset])
        if len(rows) < max(FEWEST_ALIKE, len(of_sequence) / 2):
            break
        if (trace.token[rows] >= 0).any():
            alike = most_common(trace.token[rows])
        else:
            codes = selection_codes(trace.ids[rows][:, telling])
            alike = (
                float(np.mean([most_common(of_site) for of_site in codes.T]))
                if len(telling)
                else 0.0
            )
        if alike >= ALIKE_SHARE:
            shared.append(offset)
    return shared


def _is_serious(sequences: Sequence[int], tokens_of: Mapping[int, int]) -> bool:
    return sum(tokens_of[number] for number in sequences) >= SERIOUS_SHARE * max(
        sum(tokens_of.values()), 1
    )


def _counted(sequences: Sequence[int], tokens_of: Mapping[int, int]) -> str:
    share = sum(tokens_of[number] for number in sequences) / max(sum(tokens_of.values()), 1)
    return f"{len(sequences)} of {len(tokens_of)} sequences ({share:.0%} of the decoded tokens) are"
