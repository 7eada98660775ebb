"""What each 95 % interval is of: a numerator and a denominator by sequence, whose sums make the value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import fsum

import polars as pl

from sim.audit.files import RunFiles
from sim.audit.lookups import HITS, asked
from sim.audit.rules import NS_PER_S, Holds, Left, Rule, ratio
from sim.audit.times import after_the_first, counts_after_the_first, shared_step_time_ns

Parts = tuple[list[float], list[float]]
"""Numerators and denominators, in order of ``sequences``."""


def parts(run: RunFiles) -> dict[str, Parts]:
    """By key of ``ci95``. A step's time and lookups are shared equally by the sequences that it is of."""
    of, tokens = run.sequences, list(counts_after_the_first(run).values())
    ttft = (of["first_token_ns"] - of["arrival_ns"]).to_list()
    latency = (of["end_ns"] - of["arrival_ns"]).to_list()
    rest = (of["end_ns"] - of["first_token_ns"]).to_list()
    decode_ns = list(shared_step_time_ns(run, after_the_first(run)).values())
    prefill_ns = list(shared_step_time_ns(run, run.tokens.filter(pl.col("phase") == "prefill")).values())
    one = [1.0] * len(of)
    return {
        "decode_tokens_per_s": ([float(count * NS_PER_S) for count in tokens], decode_ns),
        "tpot_s": (
            [ns / count / NS_PER_S if count else 0.0 for ns, count in zip(rest, tokens, strict=True)],
            [float(count > 0) for count in tokens],
        ),
        "ttft_s": ([ns / NS_PER_S for ns in ttft], one),
        "latency_s": ([ns / NS_PER_S for ns in latency], one),
        "prefill_tokens_per_s": ([float(count * NS_PER_S) for count in of["prompt_tokens"].to_list()], prefill_ns),
        "hit_ratio": _hits(run),
    }


def _hits(run: RunFiles) -> Parts:
    """Decode lookups found, and asked for."""
    members: dict[int, list[int]] = {}
    for step, sequence in run.tokens.select("step", "sequence").iter_rows():
        members.setdefault(step, []).append(sequence)
    found, counted = (dict.fromkeys(run.sequences["sequence"].to_list(), 0.0) for _ in range(2))
    for step, outcome in asked(run.decode).select("step", "outcome").iter_rows():
        for sequence in members[step]:
            counted[sequence] += 1 / len(members[step])
            found[sequence] += (outcome in HITS) / len(members[step])
    return list(found.values()), list(counted.values())


def interval(above: Sequence[float], below: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of ``sum(above) / sum(below)``, recomputed. None: this version does not recompute intervals.

    This is the one place where a second implementation of the method belongs: `rules` then compares both ends.
    """
    return None


def rules(run: RunFiles) -> Iterator[Rule | Left]:
    """Each interval holds its value. A ratio that is null because nothing happened has no interval."""
    for name, (above, below) in parts(run).items():
        value = _told(run.summary, name)
        expected = None if value is None else ratio(fsum(above), fsum(below))
        yield Rule(f"ci95.{name}", Holds(expected), f"it holds {name}, summed over sequences")
        ends = interval(above, below)
        if ends is not None:
            yield from (
                Rule(f"ci95.{name}[{place}]", end, "the method of the interval") for place, end in enumerate(ends)
            )


def _told(summary: Mapping[str, object], name: str) -> object:
    value = summary[name]
    return value["mean"] if isinstance(value, Mapping) else value
