"""Selectors that reroute: they send needs to other experts than the router chose."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

import numpy as np

from sim.policies.base import Choice, PrecisionSelector, Resident
from sim.policies.requires import Requires
from sim.values.types import REROUTE, SKIP, rerouted


class ForecastRoutes(PrecisionSelector):
    """The experts forecast for a gate serve it, whatever its router chose: the prediction routes.

    1. As many forecast experts count as the gate has needs, best first.
    2. A need that is among them is served as it is.
    3. The other needs are sent, in need order, to the counting experts that are no needs, best
       first.
    4. If these are too few, the needs left are sent to all counting experts, best first, again and
       again.

    Where nothing was forecast (at the first site) the router's choice stands. The union of several
    rows is sent as one, not row by row.

    Source: Hwang et al., Pre-gated MoE, arXiv:2308.12066 (a gate chooses for the next block); Du et
    al., SiDA-MoE, arXiv:2310.18859 (a hash table of predictions takes the router's place).
    """

    reroutes = True

    def __init__(self, precision: str) -> None:
        self.precisions: tuple[str, ...] = (precision,)

    def permitted(self, score: float) -> tuple[int, ...]:
        return (0, REROUTE)

    def select(self, choice: Choice, resident: Resident) -> Sequence[int]:
        needs = choice.needs
        # A gate has a tick, a forecast has none.
        if not hasattr(choice, "tick") or not resident.foreseen:
            return [0] * len(needs)
        serving = resident.foreseen[: len(needs)]
        chosen, named = set(needs), set(serving)
        others = [expert for expert in serving if expert not in chosen]
        astray = sum(expert not in named for expert in needs)
        instead = iter([*others, *islice(cycle(serving), max(0, astray - len(others)))])
        return [0 if expert in named else rerouted(next(instead), 0, 1) for expert in needs]


class MaskedGate(PrecisionSelector):
    """Only resident ("virtual") experts serve, as by a gate that is masked to them. No need waits
    for a load.

    A need whose expert is resident is served as it is. Each other need is sent, in need order, to
    the resident expert that its rows' routers prefer most and that serves none of these rows yet.
    If there is none, the need is skipped. Preferences are what the site's rule chooses by.

    - For one row this gives the router's top-k among the resident experts.
    - Of several rows a need is sent as one: to the expert with the largest sum of preferences over
      the rows that chose the need. From each row's preferences its least is subtracted.
    - Groups of experts that a rule chooses first are not respected.
    - An expert in flight is not resident yet.

    Source: Kong et al., SwapMoE, arXiv:2308.15030: a mask on the gate keeps tokens to the experts
    in memory.
    """

    reroutes = True

    def __init__(self, precision: str) -> None:
        self.precisions: tuple[str, ...] = (precision,)

    @property
    def requires(self) -> Requires:
        return Requires(preferences=True)

    def permitted(self, score: float) -> tuple[int, ...]:
        return (0, SKIP, REROUTE)

    def select(self, choice: Choice, resident: Resident) -> Sequence[int]:
        needs, site = choice.needs, choice.site
        # A gate has a tick, a forecast has none.
        if not hasattr(choice, "tick"):
            return [0] * len(needs)
        answers = [0 if resident.has(0, site, expert) else SKIP for expert in needs]
        if SKIP not in answers:
            return answers
        preferences = getattr(choice, "preferences", None)
        assert preferences is not None, "requires says so"
        rows, experts = np.asarray(choice.experts), preferences.shape[1]
        # By row, the experts that may still serve it: resident, and not chosen by its router.
        free = np.tile([resident.has(0, site, expert) for expert in range(experts)], (len(rows), 1))
        # At least 0, so that a row that an expert may not serve counts for nothing in the sums.
        above_least = preferences - preferences.min(axis=1, keepdims=True)
        row, rank = np.nonzero(rows >= 0)
        free[row, rows[row, rank]] = False
        for index, expert in enumerate(needs):
            asking = (rows == expert).any(axis=1)
            open_to_it = free[asking]
            if answers[index] == SKIP and open_to_it.any():
                liked = np.where(open_to_it, above_least[asking], 0.0).sum(axis=0)
                liked[~open_to_it.any(axis=0)] = -np.inf
                best = int(liked.argmax())
                answers[index] = rerouted(best, 0, 1)
                free[asking, best] = False
        return answers
