"""Ways of serving choices by the gate alone, as the papers' motivating figures vary them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from real.lossy.mixture import Decide, Served
from real.lossy.whole import row_scores
from sim.values.units import part_of


def above_score(threshold: float, code: int, experts: int) -> Decide:
    """Serve choices whose HOBBIT score is above the threshold at ``code``, others at code 0.

    `LEFT_OUT` as the code skips them.
    """

    def decide(site: int, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Served:
        scores = np.nan_to_num(row_scores(ids, weights, experts), nan=0.0)
        low = torch.from_numpy(scores > threshold).to(ids.device)
        return Served(ids, weights, torch.where(low, code, 0))

    return decide


def by_popularity(share: float, *, popular_first: bool, experts: int) -> Decide:
    """Serve a share (rounded down) of a gate's experts at code 1, the others at code 0.

    Experts are ranked by the number of rows that chose them, the fewest or the most first; ties by
    id.

    Source: Fang et al., Fate, arXiv:2502.12224, section 4.5 and Figure 10.
    """

    def decide(site: int, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Served:
        known = (ids >= 0) & (ids < experts)
        rows = torch.bincount(ids[known].long(), minlength=experts)
        active = rows.nonzero()[:, 0]
        order = active[torch.sort(rows[active], descending=popular_first, stable=True).indices]
        codes = torch.zeros(experts + 1, dtype=torch.long, device=ids.device)
        codes[order[: part_of(len(order), share)]] = 1
        return Served(ids, weights, codes[torch.where(known, ids, experts).long()])

    return decide


def by_table(table: Sequence[Sequence[int]] | np.ndarray) -> Decide:
    """Serve each expert at a code of its own, [S][E]."""
    codes = torch.as_tensor(np.asarray(table), dtype=torch.long)
    padded = torch.cat([codes, torch.zeros(len(codes), 1, dtype=torch.long)], 1)

    def decide(site: int, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Served:
        known = (ids >= 0) & (ids < codes.shape[1])
        place = torch.where(known, ids, codes.shape[1]).long()
        return Served(ids, weights, padded[site].to(ids.device)[place])

    return decide
