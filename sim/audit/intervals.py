"""Rules for the 95 % intervals, each from a numerator and a denominator by sequence.

The ratio of their sums is the value that the interval must hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import fsum

import numpy as np
import polars as pl
from scipy.special import stdtrit

from sim.audit.files import RunFiles
from sim.audit.lookups import HITS, asked
from sim.audit.rules import NS_PER_S, Holds, Left, Rule, ratio
from sim.audit.times import after_the_first, counts_after_the_first, shared_step_time_ns

WITH_MACHINE = ("decode_tokens_per_s", "tpot_s")
"""The numbers whose intervals there are with the machine's error, too."""
Parts = tuple[list[float], list[float]]
"""Numerators and denominators, in the order of the table ``sequences``."""


def parts(run: RunFiles) -> dict[str, Parts]:
    """Numerators and denominators by key of ``ci95``.

    A step's time and lookups are shared equally by its sequences. Sequences that share steps are
    one observation: their parts are summed at the first of them, and the others have none.
    """
    first = first_of_batch(run)
    return {
        name: (_summed(first, above), _summed(first, below))
        for name, (above, below) in _by_sequence(run).items()
    }


def first_of_batch(run: RunFiles) -> list[int]:
    """By place in ``sequences``, the first place of those with which it shares steps, if only
    through others.
    """
    places = {sequence: place for place, sequence in enumerate(run.sequences["sequence"].to_list())}
    first, of_step = list(range(len(places))), dict[int, int]()
    for step, sequence in run.tokens.select("step", "sequence").iter_rows():
        ours = first[places[sequence]]
        theirs = first[of_step.setdefault(step, places[sequence])]
        if ours != theirs:
            low, high = sorted((ours, theirs))
            first = [low if place == high else place for place in first]
    return first


def _summed(first: Sequence[int], values: Sequence[float]) -> list[float]:
    found = [0.0] * len(values)
    for place, value in zip(first, values, strict=True):
        found[place] += value
    return found


def _by_sequence(run: RunFiles) -> dict[str, Parts]:
    of, tokens = run.sequences, list(counts_after_the_first(run).values())
    ttft = (of["first_token_ns"] - of["arrival_ns"]).to_list()
    latency = (of["end_ns"] - of["arrival_ns"]).to_list()
    rest = (of["end_ns"] - of["first_token_ns"]).to_list()
    decode_ns = list(shared_step_time_ns(run, after_the_first(run)).values())
    prefill_ns = list(
        shared_step_time_ns(run, run.tokens.filter(pl.col("phase") == "prefill")).values()
    )
    one = [1.0] * len(of)
    return {
        "decode_tokens_per_s": ([float(count * NS_PER_S) for count in tokens], decode_ns),
        "tpot_s": (
            [
                ns / count / NS_PER_S if count else 0.0
                for ns, count in zip(rest, tokens, strict=True)
            ],
            [float(count > 0) for count in tokens],
        ),
        "ttft_s": ([ns / NS_PER_S for ns in ttft], one),
        "latency_s": ([ns / NS_PER_S for ns in latency], one),
        "prefill_tokens_per_s": (
            [float(count * NS_PER_S) for count in of["prompt_tokens"].to_list()],
            prefill_ns,
        ),
        "hit_ratio": _hits(run),
    }


def _hits(run: RunFiles) -> Parts:
    """The decode lookups that were found, and those that were asked for."""
    members: dict[int, list[int]] = {}
    for step, sequence in run.tokens.select("step", "sequence").iter_rows():
        members.setdefault(step, []).append(sequence)
    found, counted = (dict.fromkeys(run.sequences["sequence"].to_list(), 0.0) for _ in range(2))
    for step, outcome in asked(run.decode).select("step", "outcome").iter_rows():
        for sequence in members[step]:
            counted[sequence] += 1 / len(members[step])
            found[sequence] += (outcome in HITS) / len(members[step])
    return list(found.values()), list(counted.values())


def interval(
    above: Sequence[float], below: Sequence[float], machines: Sequence[tuple[float, float]] = ()
) -> tuple[float, float] | None:
    """The 95 % interval of ``sum(above) / sum(below)``, or None where there is none.

    No value may be below 0. It is Student's t on the logarithm (docs/metrics.md, "How sure"),
    computed with matrices straight from the definition of Bell and McCaffrey:

    1. Assume independent errors whose variances are the sequences' shares.
    2. The error seen of a sequence is its own, less its share of the sum of all errors.
    3. Each squared error is scaled so that its expectation becomes the sequence's share.
    4. The degrees of freedom are those of the sum of these squares.

    ``machines`` are logarithmic errors, each after the number of systems or machines that it is of.
    The mean of their squares is one square more, of as many degrees as there are systems and
    machines.
    """
    counted = [(a, b) for a, b in zip(above, below, strict=True) if a or b]
    if len(counted) < 2 or not fsum(b for _, b in counted):
        return None
    if not any(a for a, _ in counted):
        return (0.0, 0.0)
    a, b = np.array(counted).T
    seen, share = a / a.sum() - b / b.sum(), (a / a.sum() + b / b.sum()) / 2
    left = np.eye(len(share)) - np.outer(share, np.ones(len(share)))
    scale = share / np.diag(left @ np.diag(share) @ left.T)
    form = np.sqrt(share)[:, None] * (left.T @ np.diag(scale) @ left) * np.sqrt(share)
    freedom = np.trace(form) ** 2 / (form**2).sum()
    square = float((scale * seen**2).sum())
    if machines:
        # Welch and Satterthwaite: of a sum of estimated variances.
        of = sum(count for count, _ in machines)
        more = sum(count * error**2 for count, error in machines) / of
        freedom = (square + more) ** 2 / (square**2 / freedom + more**2 / of) if more else freedom
        square += more
    reach = stdtrit(freedom, 0.975) * np.sqrt(square)
    value = a.sum() / b.sum()
    return float(value * np.exp(-reach)), float(value * np.exp(reach))


def of_share(part: Sequence[float], whole: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the share ``part / whole``, from that of its odds, ``part / rest``."""
    rest = [all_of_it - some for some, all_of_it in zip(part, whole, strict=True)]
    if not any(rest):
        return (1.0, 1.0) if sum(some > 0 for some in part) > 1 else None
    odds = interval(part, rest)
    return None if odds is None else (odds[0] / (1 + odds[0]), odds[1] / (1 + odds[1]))


def rules(run: RunFiles) -> Iterator[Rule | Left]:
    """Each interval holds its value, and has these ends.

    A ratio that is null because nothing happened has no interval. Those with the machine's error
    are of the numbers that it was measured for.
    """
    for name, (above, below) in parts(run).items():
        ends = of_share(above, below) if name == "hit_ratio" else interval(above, below)
        yield from _rules_of(run, f"ci95.{name}", ratio(fsum(above), fsum(below)), ends)
    machines = [] if run.is_real else _of_machines(run)
    if not machines:
        return
    for name in WITH_MACHINE:
        above, below = parts(run)[name]
        value, ends = ratio(fsum(above), fsum(below)), interval(above, below, machines)
        yield from _rules_of(run, f"calibration.ci95.{name}", value, ends)


def _of_machines(run: RunFiles) -> list[tuple[float, float]]:
    """The errors of the run's machine and of machines of data sheets, as `interval` takes them."""
    own, shared = run.machine_error, run.shared_error
    found = [] if own is None else [(own["systems"], own["log_error"])]
    return found if shared is None else [*found, (shared["machines"], shared["log_error"])]


def _rules_of(
    run: RunFiles, key: str, value: float | None, ends: tuple[float, float] | None
) -> Iterator[Rule]:
    name = key.rpartition(".")[2]
    if ends is None or value is None or _told(run.summary, name) is None:
        yield Rule(key, None, "fewer than two sequences have a part in it")
        return
    yield Rule(key, Holds(value), f"it holds {name}, summed over sequences")
    for place, end in enumerate(ends):
        yield Rule(f"{key}[{place}]", end, "Student's t on the logarithm, over sequences")


def _told(summary: Mapping[str, object], name: str) -> object:
    value = summary[name]
    return value["mean"] if isinstance(value, Mapping) else value
