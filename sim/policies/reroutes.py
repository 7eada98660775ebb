"""Selectors that send needs to other experts than the router chose."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

from sim.policies.base import Choice, Resident
from sim.types import REROUTE, rerouted


class ForecastRoutes:
    """What was forecast for a gate serves it, whatever its router chose: predicting is routing.

    Of the forecast as many experts count as the gate has needs, best first. A need among them is served as it is; the
    others are sent, in need order, to those of them that are no need, best first, and if there are fewer of these than
    needs left, to all that count, best first, again and again. Where nothing was forecast (at the first site) the
    router's choice stands. Of several rows the union is sent as one, not row by row.

    Source: Hwang et al., Pre-gated MoE, arXiv:2308.12066 (a gate chooses for the next block); Du et al., SiDA-MoE,
    arXiv:2310.18859 (a hash table of predictions takes the router's place).
    """

    constant: int | None = None
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
