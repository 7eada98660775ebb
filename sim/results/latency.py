"""Times and rates of a run's requests and tokens, and how steps' time is shared among sequences.

The metrics are defined in contract C108.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.results.frames import Frames
from sim.values.units import seconds

Floats = NDArray[np.float64]
_DECODED: WeakKeyDictionary[object, tuple[Floats, Floats]] = WeakKeyDictionary()
"""Results of `decode_time_and_tokens` by run: both summaries and comparisons ask for them."""


class Tables(Protocol):
    """The tables ``tokens`` and ``sequences`` of a run, from the run itself or from its files."""

    @property
    def tokens(self) -> pl.DataFrame: ...
    @property
    def sequences(self) -> pl.DataFrame: ...


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


def decode_time_and_tokens(frames: Tables) -> tuple[Floats, Floats]:
    """The decode time of each sequence, in ns, and the number of its tokens after the first; those
    of a batch stand at its first sequence (`by_batch`).

    Decode time is the time of the steps that gave such tokens.
    """
    if isinstance(frames, Frames) and frames in _DECODED:
        return _DECODED[frames]
    after = tokens_after_the_first(frames)
    found = _shared_time(frames, after), by_batch(frames, tokens_by_sequence(frames, after))
    if isinstance(frames, Frames):
        _DECODED[frames] = found
    return found


def prefill_time(frames: Tables) -> Floats:
    """The time of the steps that read each sequence's prompt, in ns; that of a batch stands at its
    first sequence.
    """
    return _shared_time(frames, frames.tokens.filter(pl.col("phase") == "prefill"))


def whole_time(frames: Tables) -> Floats:
    """The time of all steps of each sequence, in ns; that of a batch stands at its first one."""
    return _shared_time(frames, frames.tokens)


def _shared_time(frames: Tables, rows: pl.DataFrame) -> Floats:
    share = rows.select("sequence", (pl.col("end_ns") - pl.col("start_ns")) / pl.len().over("step"))
    found = share.group_by("sequence", maintain_order=True).agg(pl.col("end_ns").sum())
    return by_batch(frames, _by_sequence(frames, found, "end_ns"))


def by_batch(frames: Tables, values: Floats) -> Floats:
    """Values by sequence; those of sequences that shared a step, if only through others, are summed
    at the first of them, and the others have 0.

    What shares steps takes its time together, and is one observation. With a part of it for each
    sequence, intervals would be of what does not vary. They leave out what adds nothing.
    """
    tokens = frames.tokens.select("step", "sequence")
    # The rows of a step stand together.
    is_shared = (np.diff(tokens["step"]) == 0) & (np.diff(tokens["sequence"]) != 0)
    if not is_shared.any():
        return values
    # Late: most runs have no batch.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    numbers = frames.sequences.select("sequence").with_row_index("row")
    pairs = tokens.unique().join(numbers, on="sequence").with_columns(pl.col("step").rank("dense"))
    steps, rows = pairs["step"].to_numpy().astype(np.int64) - 1, pairs["row"].to_numpy()
    # A graph of sequences and steps, each joined with those that it took part in.
    size = len(values) + int(steps.max()) + 1
    joined = coo_array((np.ones(len(rows)), (rows, len(values) + steps)), shape=(size, size))
    batches = connected_components(joined, directed=False)[1][: len(values)]
    _, firsts, batch_of = np.unique(batches, return_index=True, return_inverse=True)
    found = np.zeros(len(values))
    found[firsts] = np.bincount(batch_of, weights=values)
    return found


def tokens_by_sequence(frames: Tables, rows: pl.DataFrame) -> Floats:
    """How many tokens ``rows`` have of each sequence."""
    counts = rows.group_by("sequence").agg(pl.col("new_tokens").sum())
    return _by_sequence(frames, counts, "new_tokens")


def _by_sequence(frames: Tables, found: pl.DataFrame, column: str) -> Floats:
    """A ``column`` of ``found`` in the order of ``frames.sequences``; 0 for absent sequences."""
    joined = frames.sequences.select("sequence").join(
        found, on="sequence", how="left", maintain_order="left"
    )
    return joined[column].fill_null(0).to_numpy().astype(np.float64)


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
