"""The rules that compose steps (contracts C76 to C79), applied row by row at every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sim.workload.batching import Request

Rows = list[tuple[int, int]]
"""A step: its rows as (sequence, row of the sequence), in order."""


def compose_by_rows(
    requests: Sequence[Request],
    batching: str,
    together: int,
    chunk: int | None,
    step_ns: Callable[[Rows], int],
) -> list[Rows | int]:
    """The steps of a run whose steps take ``step_ns``.

    Where nothing can run, the time in ns to wait for stands between the steps.
    """
    arrival = {r.sequence: r.arrival_ns for r in requests}
    prompt = {r.sequence: r.prompt_rows for r in requests}
    left = {r.sequence: [(r.sequence, row) for row in range(r.rows)] for r in requests}
    turns = sorted(left, key=lambda s: (arrival[s], s))
    inside: list[int] = []
    told: list[Rows | int] = []
    now = 0
    while any(left.values()):
        inside = [s for s in inside if left[s]]
        if batching == "continuous" or not inside:
            here = [s for s in turns if left[s] and s not in inside and arrival[s] <= now]
            inside += here[: together - len(inside)]
        if not inside:
            told.append(now := min(arrival[s] for s in turns if left[s]))
            continue
        unread = [(s, row) for s in inside for s, row in left[s] if row < prompt[s]]
        tokens = [left[s][0] for s in inside if left[s][0][1] >= prompt[s]]
        if chunk is None:
            step = unread or tokens
        elif batching == "static" and unread:
            step = unread[:chunk]
        else:
            step = sorted(unread[:chunk] + tokens, key=lambda of: (turns.index(of[0]), of[1]))
        for s, row in step:
            assert left[s].pop(0) == (s, row)
        told.append(step)
        now += step_ns(step)
    return told
