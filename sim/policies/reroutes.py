"""Selectors that send needs to other experts than the router chose."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

import numpy as np

from sim.policies.base import Choice, PrecisionSelector, Resident
from sim.policies.requires import Requires
from sim.values.types import REROUTE, SKIP, rerouted


class ForecastRoutes(PrecisionSelector):
    """What was forecast for a gate serves it, whatever its router chose: predicting is routing.

    Of the forecast as many experts count as the gate has needs, best first. A need among them is
    served as it is; the others are sent, in need order, to those of them that are no need, best
    first, and if there are fewer of these than needs left, to all that count, best first, again and
    again. Where nothing was forecast (at the first site) the router's choice stands. Of several
    rows the union is sent as one, not row by row.

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
    """Only what is in memory may serve: a gate masked to the resident ("virtual") experts. No need
    waits for a load.

    A need whose expert is resident is served as it is. The others are sent, in need order, to the
    resident expert that their rows' routers prefer most (by what the site's rule chooses by) and
    that serves none of these rows yet; where there is none the need is skipped. For one row this is
    the router's top-k among the resident. Of several rows a need is sent as one: to the expert with
    the largest sum of preferences, less each row's least, over the rows that chose it. Groups of
    experts that a rule chooses first are not heeded. What is on its way is not there yet.

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
        if preferences is None:
            raise RuntimeError(
                f"site {site} does not tell what its router prefers; check_preferences before a run"
            )
        rows, experts = np.asarray(choice.experts), preferences.shape[1]
        # What may still serve a row: resident, and not chosen by its router.
        free = np.tile([resident.has(0, site, expert) for expert in range(experts)], (len(rows), 1))
        # So that rows which an expert is not open to count for nothing.
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
