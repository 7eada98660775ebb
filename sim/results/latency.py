"""Times and rates of a run's requests and tokens, and how steps' time is shared among sequences.

The metrics are defined in contract C108.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.results.frames import Frames
from sim.values.units import seconds

Floats = NDArray[np.float64]
T = TypeVar("T")


class Tables(Protocol):
    """The tables ``tokens`` and ``sequences`` of a run, from the run itself or from its files."""

    @property
    def tokens(self) -> pl.DataFrame: ...
    @property
    def sequences(self) -> pl.DataFrame: ...


def _once_a_run(compute: Callable[[Tables], T]) -> Callable[[Tables], T]:
    """The same function. Of a run's own tables it keeps what it found, for several parts of a
    summary ask for that, and so do comparisons.
    """
    kept: WeakKeyDictionary[Frames, T] = WeakKeyDictionary()

    @wraps(compute)
    def found(frames: Tables) -> T:
        if not isinstance(frames, Frames):
            return compute(frames)
        if frames not in kept:
            kept[frames] = compute(frames)
        return kept[frames]

    return found


def request_times(frames: Frames) -> dict[str, Any]:
    """Makespan, times to first and per output token, latencies and token rates, in seconds.

    Rates are of prompt tokens and of output tokens. A rate counts the time of the steps that have
    such tokens. A step of several sequences gives each of them a token, but its time counts once.
    """
    sequences = frames.sequences
    after, prompts = (
        tokens_after_the_first(frames),
        frames.tokens.filter(pl.col("phase") == "prefill"),
    )
    count = tokens_by_sequence(frames, after)
    ttft = (sequences["first_token_ns"] - sequences["arrival_ns"]).to_numpy()
    per_token = (sequences["end_ns"] - sequences["first_token_ns"]).to_numpy().astype(np.float64)
    return {
        "makespan_s": seconds(frames.makespan_ns),
        "ttft_s": _spread(ttft, (50, 95)),
        "tpot_s": _spread(per_token[count > 0] / count[count > 0], (50, 95, 99)),
        "itl_s": _spread(after["since_last_ns"].to_numpy(), (50, 95, 99)),
        "latency_s": _spread((sequences["end_ns"] - sequences["arrival_ns"]).to_numpy(), (50, 95)),
        "prefill_tokens_per_s": _rate(
            int(sequences["prompt_tokens"].sum()), _time_of_steps(prompts)
        ),
        "decode_tokens_per_s": _rate(int(after["new_tokens"].sum()), _time_of_steps(after)),
    }


@_once_a_run
def tokens_after_the_first(frames: Tables) -> pl.DataFrame:
    """The rows of ``frames.tokens`` that are a sequence's second token or a later one.

    Its added column ``since_last_ns`` is the time since the sequence's previous row. A row is one
    token, or ``new_tokens`` where tokens are drafted. Steps that draft count as a part of the step
    that checks their drafts.
    """
    table = with_drafting(frames.tokens)
    rows = table.with_columns(
        **({} if "new_tokens" in table.columns else {"new_tokens": pl.lit(1, pl.Int64)}),
        since_last_ns=pl.col("end_ns") - pl.col("end_ns").shift(1).over("sequence"),
        is_first=pl.col("step") == pl.col("step").min().over("sequence"),
    )
    # Without a prompt a sequence has its first token at the end of its first step.
    return rows.filter((pl.col("phase") == "decode") & ~pl.col("is_first")).drop("is_first")


def with_drafting(tokens: pl.DataFrame) -> pl.DataFrame:
    """The rows of steps that read or check tokens; each begins when its first draft did."""
    drafts = tokens["phase"] == "draft"
    if not drafts.any():
        return tokens
    checks = tokens.filter(~drafts)
    # Steps that draft stand right before the one that checks what they drafted.
    begun = (
        tokens.with_columns(
            checked_by=pl.when(pl.col("phase") != "draft")
            .then("step")
            .fill_null(strategy="backward")
        )
        .group_by("checked_by")
        .agg(start_ns=pl.col("start_ns").min())
    )
    return checks.with_columns(
        start_ns=checks.join(
            begun, left_on="step", right_on="checked_by", how="left", maintain_order="left"
        )["start_ns_right"]
    )


@_once_a_run
def decode_time_and_tokens(frames: Tables) -> tuple[Floats, Floats]:
    """The decode time of each sequence, in ns, and the number of its tokens after the first; those
    of a batch stand at its first sequence (`by_batch`).

    Decode time is the time of the steps that gave such tokens.
    """
    after = tokens_after_the_first(frames)
    return _shared_time(frames, after), by_batch(frames, tokens_by_sequence(frames, after))


def prefill_time(frames: Tables) -> Floats:
    """The time of the steps that read each sequence's prompt, in ns; that of a batch stands at its
    first sequence.
    """
    return _shared_time(frames, frames.tokens.filter(pl.col("phase") == "prefill"))


def whole_time(frames: Tables) -> Floats:
    """The time of all steps of each sequence, in ns; that of a batch stands at its first one."""
    return _shared_time(frames, frames.tokens)


def _shared_time(frames: Tables, rows: pl.DataFrame) -> Floats:
    share = rows.select(ns=(pl.col("end_ns") - pl.col("start_ns")) / pl.len().over("step"))["ns"]
    return by_batch(frames, sum_by_sequence(frames, rows["sequence"], share))


def by_batch(frames: Tables, values: Floats) -> Floats:
    """Values by sequence; those of sequences that shared a step, if only through others, are summed
    at the first of them, and the others have 0.

    What shares steps takes its time together, and is one observation. With a part of it for each
    sequence, intervals would be of what does not vary. They leave out what adds nothing.
    """
    batches = _batches(frames)
    if batches is None:
        return values
    firsts, batch_of = batches
    found = np.zeros(len(values))
    found[firsts] = np.bincount(batch_of, weights=values)
    return found


@_once_a_run
def _batches(frames: Tables) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """The first sequence of each batch, and the batch of each sequence; None where no two shared a
    step.
    """
    tokens = frames.tokens.select("step", "sequence")
    # The rows of a step stand together.
    is_shared = (np.diff(tokens["step"]) == 0) & (np.diff(tokens["sequence"]) != 0)
    if not is_shared.any():
        return None
    # Late: most runs have no batch.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pairs = tokens.unique().with_columns(pl.col("step").rank("dense"))
    steps = pairs["step"].to_numpy().astype(np.int64) - 1
    rows, count = _places(frames, pairs["sequence"]), len(frames.sequences)
    # A graph of sequences and steps, each joined with those that it took part in.
    size = count + int(steps.max()) + 1
    joined = coo_array((np.ones(len(rows)), (rows, count + steps)), shape=(size, size))
    found = connected_components(joined, directed=False)[1][:count]
    _, firsts, batch_of = np.unique(found, return_index=True, return_inverse=True)
    return firsts, batch_of


def tokens_by_sequence(frames: Tables, rows: pl.DataFrame) -> Floats:
    """How many tokens ``rows`` have of each sequence."""
    return sum_by_sequence(frames, rows["sequence"], rows["new_tokens"])


def sum_by_sequence(frames: Tables, sequence: pl.Series, values: pl.Series) -> Floats:
    """The sum of the ``values`` that belong to each sequence, in the order of ``frames.sequences``."""
    places, count = _places(frames, sequence), len(frames.sequences)
    return np.bincount(places, values.to_numpy(), count).astype(np.float64)


def _places(frames: Tables, sequence: pl.Series) -> NDArray[np.int64]:
    """Where each of these sequences, by number, stands in ``frames.sequences``."""
    numbers = frames.sequences["sequence"].to_numpy()
    order = np.argsort(numbers)
    return order[np.searchsorted(numbers, sequence.to_numpy(), sorter=order)]


def _time_of_steps(rows: pl.DataFrame) -> int:
    steps = rows.unique("step")
    return int((steps["end_ns"] - steps["start_ns"]).sum())


def _spread(values_ns: NDArray[Any], percentiles: Sequence[int]) -> dict[str, float | None]:
    if not len(values_ns):
        return {"mean": None, **{f"p{p}": None for p in percentiles}}
    return {
        "mean": float(values_ns.mean()) / 1e9,
        **{f"p{p}": float(np.percentile(values_ns, p)) / 1e9 for p in percentiles},
    }


def _rate(count: int, time_ns: int) -> float | None:
    return count / seconds(time_ns) if count and time_ns else None
