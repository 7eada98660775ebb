"""A predictor by the token's id, which is known before the first site."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import Choice, Gate
from sim.policies.fitted import FittedPredictor, Memo, require_array, smallest_counts
from sim.policies.requires import Arrays, Sample, Shape, Track
from sim.policies.row_forecast import RowForecast, forecasts_of, likeliest

CELLS = 1 << 18
"""How many likelinesses are computed at once, at most."""


class TokenRoutes(FittedPredictor):
    """A table from the token's id to the experts of every site. It is exact where routing is static
    (hash layers).

    An expert's likeliness is the share of the token's fitted rows that chose it; for a token that
    was never seen, the share of all rows. ``sites``: how many later sites are forecast at a gate
    (None: all of the stack). The first site of a stack is never forecast, because no gate comes
    before it.

    Source: Roller et al., hash layers, arXiv:2106.04426 (static routing); EdgeMoE,
    arXiv:2308.14352, section 3.1 (preloading by the token); Du et al., SiDA, arXiv:2310.18859,
    predicts all sites beforehand, too, by a network on the embeddings, and then routes by its
    prediction. Here the model's own routing stands.
    """

    kind = "token_routes"
    learns = False

    def __init__(
        self, sites: int | None = None, experts: str | int = "top_k", artefact: str | None = None
    ) -> None:
        super().__init__(experts, artefact)
        if sites is not None and (
            not isinstance(sites, int) or isinstance(sites, bool) or sites < 1
        ):
            raise ValueError(
                f"predictor.sites={sites!r} must be a whole number >= 1, or null for all later"
                " sites"
            )
        self.sites = sites

    def fit(self, sample: Sample, track: Track = iter) -> dict[str, NDArray[Any]]:
        """Count choices by token. ``tokens`` [V] are the ids, ascending; ``rows`` [V, S] counts
        each token's rows that visit a site, ``counts`` [V, S, E] those that chose an expert;
        ``all_rows`` [S] and ``all_counts`` [S, E] are the same over all rows.
        """
        shape = sample.shape
        if (sample.token < 0).all():
            raise ValueError(
                "the trace does not tell which tokens its rows are; choose another predictor"
            )
        tokens, place = np.unique(np.maximum(sample.token, -1), return_inverse=True)
        counts = np.zeros((len(tokens), shape.sites, shape.experts), np.int64)
        rows = np.zeros((len(tokens), shape.sites), np.int64)
        for site in track(range(shape.sites)):
            row, expert = np.nonzero(sample.members(site))
            np.add.at(counts[:, site], (place[row], expert), 1)
            np.add.at(rows[:, site], place[sample.visits(site)], 1)
        known = tokens >= 0
        found = {
            "tokens": tokens[known],
            "rows": rows[known],
            "counts": counts[known],
            "all_rows": rows.sum(axis=0),
            "all_counts": counts.sum(axis=0),
        }
        return {name: smallest_counts(values) for name, values in found.items()}

    def _take(self, shape: Shape, arrays: Arrays) -> None:
        tokens = require_array(arrays, "tokens", (None,), "u")
        rows = require_array(arrays, "rows", (len(tokens), shape.sites), "u")
        counts = require_array(arrays, "counts", (len(tokens), shape.sites, shape.experts), "u")
        all_rows = require_array(arrays, "all_rows", (shape.sites,), "u")
        all_counts = require_array(arrays, "all_counts", (shape.sites, shape.experts), "u")
        self._place = {token: place for place, token in enumerate(tokens.tolist())}
        # A last entry, the counts of all rows, serves every token that was never seen.
        self._rows = np.concatenate([rows.astype(np.int64), all_rows[None].astype(np.int64)])
        self._counts = np.concatenate([counts.astype(np.int64), all_counts[None].astype(np.int64)])

    def forget(self) -> None:
        # What the tokens that were asked for last are forecast to choose, by site.
        self._known = Memo()

    def _predict(self, gate: Gate, shape: Shape) -> Iterable[Choice]:
        last = shape.last(gate.site)
        if self.sites is not None:
            last = min(last, gate.site + self.sites)
        tokens = tuple(gate.row_token.tolist())
        known: dict[int, RowForecast] | None = self._known.get(tokens)
        if known is None:
            self._known.clear()
            known = self._known[tokens] = {}
        for site in range(gate.site + 1, last + 1):
            if site not in known:
                known |= self._of_sites(tokens, site, shape)
            if known[site].needs:
                yield known[site]

    def _of_sites(self, tokens: Sequence[int], first: int, shape: Shape) -> dict[int, RowForecast]:
        """The forecasts of the sites from ``first`` on, as many at once as take little memory."""
        rows = np.array([self._place.get(token, len(self._place)) for token in tokens])
        most = max(1, CELLS // (len(rows) * shape.experts))
        sites = range(first, min(first + most, shape.last(first) + 1))
        within = np.array(sites)[:, None]
        # A token that was seen only in the other stack counts as never seen in this one.
        seen = np.where(self._rows[rows, within] > 0, rows, len(self._place))
        likeliness = self._counts[seen, within] / np.maximum(self._rows[seen, within], 1)[..., None]
        ranked = likeliest(likeliness, self.count)
        found = forecasts_of(sites, shape.experts + 1, *ranked)
        return {forecast.site: forecast for forecast in found}
