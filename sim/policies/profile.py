"""What is known of a model's gates before a run: the requests of its trace's ``fit`` sequences."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Profile:
    """The fit sequences' choices, one sequence after another.

    ``uses`` [sites, experts]: how many tokens chose each expert, prompts included. ``decoded``
    [tokens, sites, K]: the experts of every decoded token in need order, -1 where a choice was
    dropped or a site not visited. ``encoder_sites``: how many of the first sites are the encoder's.
    ``scores``: HOBBIT's eq. 2 score (arXiv:2411.01433) of every decoded selection, flat.
    """

    uses: NDArray[np.integer]
    decoded: NDArray[np.integer]
    encoder_sites: int = 0
    scores: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    @cached_property
    def ranking(self) -> list[tuple[int, int]]:
        """Every (site, expert), most uses first, then by site and expert."""
        sites, experts = np.divmod(
            np.argsort(-self.uses.ravel(), kind="stable"), self.uses.shape[1]
        )
        return list(zip(sites.tolist(), experts.tolist(), strict=True))

    def lru_misses(self, site: int) -> list[int]:
        """Misses of the decoded tokens at a site, by slots from 0 to all experts, of an LRU that
        starts empty.

        A token asks for all its experts, then they are loaded: with more slots than distinct others
        have been asked for since, an expert is still there (stack distance: Mattson et al., IBM
        Systems Journal 9(2), 1970).
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
