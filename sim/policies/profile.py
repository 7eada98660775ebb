"""The profile of a trace: what its ``fit`` sequences chose, known before a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Profile:
    """The choices of a trace's fit sequences, one sequence after another.

    ``uses`` [sites, experts]: how many tokens chose each expert, prompts included. ``decoded``
    [tokens, sites, K]: the experts of every decoded token in need order, -1 where a choice was
    dropped or a site was not visited. ``encoder_sites``: how many of the first sites belong to the
    encoder. ``scores``: HOBBIT's eq. 2 score (arXiv:2411.01433) of every decoded selection, flat.
    """

    uses: NDArray[np.integer]
    decoded: NDArray[np.integer]
    encoder_sites: int = 0
    scores: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    @cached_property
    def ranking(self) -> list[tuple[int, int]]:
        """Every (site, expert), most uses first, ties by site, then expert."""
        sites, experts = np.divmod(
            np.argsort(-self.uses.ravel(), kind="stable"), self.uses.shape[1]
        )
        return list(zip(sites.tolist(), experts.tolist(), strict=True))

    def lru_misses(self, site: int) -> list[int]:
        """How often an LRU misses at a site on the decoded tokens: a list by slots, from 0 to all
        experts. The LRU starts empty.

        A token asks for all its experts before they are loaded. An expert is still resident if
        there are more slots than distinct other experts asked for since (stack distance: Mattson et
        al., IBM Systems Journal 9(2), 1970).
        """
        experts = self.uses.shape[1]
        order: list[int] = []  # most recent first
        found = [0] * (experts + 1)
        for token in self.decoded[:, site].tolist():
            asked = [expert for expert in token if expert >= 0]
            for expert in asked:
                found[order.index(expert) if expert in order else experts] += 1
            for expert in asked:
                if expert in order:
                    order.remove(expert)
                order.insert(0, expert)
        misses = [sum(found)]
        for distance in range(experts):
            misses.append(misses[-1] - found[distance])
        return misses
