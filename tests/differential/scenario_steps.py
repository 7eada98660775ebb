"""The routing of a scenario as plain frozen data: needs and forecasts of steps or of requests.

Requests are composed into steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True)
class Need:
    """An expert that a gate asks for, the number of rows that ask for it, and its score (HOBBIT eq.
    2).

    `moved_bytes`: what a load for it moves; None is the whole variant.
    """

    expert: int
    tokens: int = 1
    score: float = 0.0
    moved_bytes: int | None = None


@dataclass(frozen=True)
class Forecast:
    """An expert that a site is expected to ask for, its expected score, what a prefetch of it
    moves, its likeliness.
    """

    expert: int
    score: float = 0.0
    moved_bytes: int | None = None
    likeliness: float = 0.0


Prediction: TypeAlias = tuple[Forecast, ...] | None
"""The forecast for one site, best first; None where there is none, and nothing is asked for the
sites beyond.
"""


@dataclass(frozen=True)
class Step:
    """One forward call. `token` counts the sequence's tokens, prompt and this step's rows included.

    Of one sequence (`sequence`, `begins`, `ends`), or, where `sequences` is given, of all of these:
    each then begins at the first step and ends at the last one that names it. `visits`: the sites
    visited, ascending; empty: all of them. `needs`, `forecasts` and `dense_ns` have an entry for
    every site, visited or not; `forecasts[s][j - 1]` is for site s + j. `ranks[site][row]`: the
    row's experts, best first (for `recency: rows` only). `own[s]`, where given, is a forecast for
    site s itself, for its next gate, which comes before the others.
    """

    sequence: int
    begins: bool
    ends: bool
    rows: int
    token: int
    dense_ns: tuple[int, ...]
    tail_ns: int
    needs: tuple[tuple[Need, ...], ...]
    forecasts: tuple[tuple[Prediction, ...], ...]
    sequences: tuple[int, ...] = ()
    visits: tuple[int, ...] = ()
    ranks: tuple[tuple[tuple[int, ...], ...], ...] = ()
    own: tuple[Prediction, ...] = ()

    @property
    def members(self) -> tuple[int, ...]:
        return self.sequences or (self.sequence,)

    @property
    def sites(self) -> tuple[int, ...]:
        return self.visits or tuple(range(len(self.needs)))


Routed: TypeAlias = tuple[tuple[int, float], ...]
"""A row's experts at a site with their gate weights, best first; empty where the row does not
come by.
"""


@dataclass(frozen=True)
class Row:
    """A token of a request: its routing and its forecasts (as in `Step`), by site."""

    routed: tuple[Routed, ...]
    forecasts: tuple[tuple[Prediction, ...], ...]


@dataclass(frozen=True)
class Request:
    """A sequence of which steps are composed; its number is its place in `Scenario.requests`."""

    prompt: tuple[Row, ...]
    decode: tuple[Row, ...]
    arrival_ns: int = 0
    blocks: tuple[int, ...] = ()
    """The ids of the prompt's whole blocks (contract C177)."""


@dataclass(frozen=True)
class Batching:
    """How steps are composed, and what their dense work takes. `encoder_sites` > 0: an
    encoder-decoder model.

    A gate's `token` is the largest token count (prompt rows and this step's rows included) of the
    step's sequences.

    At most `drafts` tokens are drafted in a step, and `accepted[i]` is the share of steps that keep
    the draft of place i (contract C151). The last `draft_sites` sites are visited by drafts alone, in
    steps of their own (contract C184).

    `block_tokens` > 0: prompts have blocks, and `tiers` (device, RAM, disk) hold so many.
    """

    kind: Literal["static", "continuous"]
    size: int
    prefill_chunk: int = 0
    encoder_sites: int = 0
    dense_ns: tuple[int, ...] = ()
    dense_row_ns: int = 0
    tail_ns: int = 0
    drafts: int = 0
    accepted: tuple[float, ...] = ()
    draft_seed: int = 0
    draft_sites: int = 0
    block_tokens: int = 0
    tiers: tuple[int, int, int] = (0, 0, 0)

    def dense_work_ns(self, site: int, rows: int) -> int:
        return self.dense_ns[site] + self.dense_row_ns * rows


def scored(routed: Routed) -> list[tuple[int, float]]:
    """The experts of one row by descending weight, then id, each with the sum of the weights
    before it.
    """
    ranked = sorted(routed, key=lambda pair: (-pair[1], pair[0]))
    total = sum(weight for _, weight in ranked)
    before, found = 0.0, []
    for expert, weight in ranked:
        found.append((expert, before))
        before += weight / total
    return found


def union(routing: Sequence[Sequence[tuple[int, float]]]) -> tuple[Need, ...]:
    """The needs of all scored rows of a gate, in need order."""
    if len(routing) == 1:
        return tuple(Need(expert, 1, score) for expert, score in routing[0])
    scores: dict[int, list[float]] = {}
    for row in routing:
        for expert, score in row:
            scores.setdefault(expert, []).append(score)
    needs = [Need(expert, len(found), min(found)) for expert, found in scores.items()]
    return tuple(sorted(needs, key=lambda need: (-need.tokens, need.expert)))


def union_forecast(rows: Sequence[Prediction]) -> Prediction:
    """The forecast of a composed step, from those of all its rows: their experts in need order, as
    a union has them.

    One row: its own. Several: by the number of rows that name an expert, then id, with the smallest
    score. None only where no row has a forecast.
    """
    if len(rows) == 1:
        return rows[0]
    there = [row for row in rows if row is not None]
    if not there:
        return None
    needs = union([*([(one.expert, one.score) for one in row] for row in there), []])
    likely = {
        need.expert: sum(
            one.likeliness for row in there for one in row if one.expert == need.expert
        )
        for need in needs
    }
    return tuple(
        Forecast(need.expert, need.score, likeliness=likely[need.expert]) for need in needs
    )
