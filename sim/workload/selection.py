"""Picks the sequences that a workload runs, and refuses options that the trace cannot serve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.traces.flags import check_flags
from sim.traces.trace import Trace, TraceSequence
from sim.values.units import require_number, seconds
from sim.workload.lengths import Lengths

BATCHINGS = ("recorded", "sequential", "static", "continuous")
SPLITS = ("fit", "eval", "all")


def check_batching(
    batching: str,
    together: int,
    prefill_chunk: int | None,
    arrivals_per_s: float | None,
    arrivals: Sequence[int] | None,
    lengths: Lengths,
    draft_tokens: int = 0,
) -> None:
    """Raise ValueError for an unknown ``batching``, or for options that do not go with it."""
    if batching not in BATCHINGS:
        raise ValueError(f"unknown workload.batching={batching}; allowed: {', '.join(BATCHINGS)}")
    require_number("workload.together", together, minimum=1, whole=True)
    if prefill_chunk is not None:
        require_number("workload.prefill_chunk", prefill_chunk, minimum=1, whole=True)
    if batching == "sequential" and together != 1:
        raise ValueError(
            f"workload.together={together} does not go with workload.batching=sequential, which"
            " runs one sequence at a time; choose workload.batching=static or continuous"
        )
    if batching != "recorded":
        return
    arrivals_s = None if arrivals is None else [seconds(time_ns) for time_ns in arrivals]
    # Lines of requests have arrivals, too, which no word has said.
    given = {
        "requests": "(given)" if lengths.each else None,
        "together": together if together != 1 else None,
        "prefill_chunk": prefill_chunk,
        "arrivals_per_s": arrivals_per_s,
        "arrivals_s": arrivals_s,
        "prompt_tokens": lengths.prompt_tokens,
        "decode_tokens": lengths.decode_tokens,
        "draft_tokens": draft_tokens or None,
    }
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"workload.{name}={value} does not go with workload.batching=recorded, which keeps"
                " the trace's steps; choose workload.batching=sequential, static or continuous"
            )


def check_lookahead(trace: Trace, depth: int, norm: str) -> None:
    """Raise ValueError unless the trace has lookahead of this ``norm``, ``depth`` sites deep."""
    have, name = trace.header.lookahead, trace.header.name
    if depth == 0:
        return
    if have is None or have.depth < depth:
        raise ValueError(
            f"trace {name} records lookahead for {have.depth if have else 0} sites, but the"
            f" predictor needs {depth}; capture with lookahead={depth}, or choose predictor=none or"
            " fewer predictor.sites"
        )
    if norm not in have.norms:
        raise ValueError(
            f"trace {name} has lookahead norms {', '.join(have.norms)}, not {norm!r}; set"
            " workload.lookahead_norm to one of these, or capture the trace anew"
        )
    if not trace.lookahead:
        raise ValueError(
            f"trace {name} was read without its lookahead columns; read_trace(...,"
            " columns=['lookahead'])"
        )


def chosen_sequences(
    trace: Trace, split: str, exclude: Sequence[str], rows: NDArray[np.int32]
) -> tuple[TraceSequence, ...]:
    """The sequences to run, in the header's order.

    They are those of ``split`` (all: every one) that have none of the flags in ``exclude`` and that
    appear in ``rows``: the sequence numbers of the rows that can take part. Raise ValueError where
    there are none, for an unknown split, and for a flag that no sequence has.
    """
    name = trace.header.name
    if split not in SPLITS:
        raise ValueError(f"unknown trace.split={split}; allowed: {', '.join(SPLITS)}")
    check_flags(exclude, trace.header)
    present = set(np.unique(rows).tolist())
    there = [s for s in trace.header.sequences if s.sequence in present]
    there = [s for s in there if not any(s.flags.get(flag) for flag in exclude)]
    chosen = [s for s in there if split in ("all", s.split)]
    if not chosen:
        without = f" without flags {list(exclude)}" if exclude else ""
        others = " or ".join(sorted({s.split for s in there}))
        ways = [f"choose trace.split={others}"] if there else []
        ways += ["exclude fewer (trace.exclude)"] if exclude else []
        told = f"; {', or '.join(ways)}" if ways else ""
        raise ValueError(f"trace {name} has no sequences for split={split}{without}{told}")
    return tuple(chosen)
