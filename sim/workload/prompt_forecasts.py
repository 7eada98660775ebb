"""What prompts are forecast to need, from the cells that a trace keeps of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.policies.base import IntArray
from sim.traces.forecasts import FORECAST_DTYPES, DealtForecasts, deal, prompt_rows
from sim.traces.trace import DECODE, Trace
from sim.workload.unions import Needs

Places = NDArray[np.int64]
COUNTS = ("step", "sequence", "site", "ahead", "expert", "tokens")
"""The columns of cells that are whole numbers."""


class PromptForecasts:
    """The cells of the prompts that a run reads whole, up to ``depth`` sites ahead.

    ``row`` has the rows of the run's choices in the trace, and ``sequences`` whose prompts are read
    whole. A whole prompt needs no rows: its cells are its union. Where rows are asked for, its
    cells are dealt to them (`sim.traces.forecasts.deal`).
    """

    def __init__(
        self, trace: Trace, row: IntArray, norm: str, depth: int, sequences: Collection[int]
    ) -> None:
        self._trace, self._row, self._depth = trace, row, depth
        frame = trace.prompt_forecasts.get(norm, pl.DataFrame(schema=FORECAST_DTYPES))
        self._cells = frame.filter(
            pl.col("sequence").is_in(sorted(sequences)), pl.col("ahead") <= depth
        )

    def dealt(self) -> Iterator[tuple[Places, DealtForecasts]]:
        """The rows of each prompt, as indices of the run's choices, and what is dealt to them."""
        shape = self._trace.ids.shape
        dealt = deal(self._cells, shape[1], self._depth, shape[2])
        for prompt, forecasts in dealt.items():
            places = self._places.get(prompt)
            if places is not None and len(places) == len(forecasts.experts):
                yield places, forecasts

    def needs(self, rows: slice | Places, j: int) -> Needs | None:
        """What ``rows`` together are forecast to need ``j`` sites on, by the site that forecasts;
        None unless they are a whole prompt of several rows, of which there are cells.
        """
        if isinstance(rows, slice):
            rows = np.arange(rows.start, rows.stop)
        places, needs = self._unions.get((int(rows[0]), j), (rows[:0], None))
        return needs if np.array_equal(rows, places) else None

    @cached_property
    def _places(self) -> dict[tuple[int, int], Places]:
        """By step and sequence of the trace, where the rows of a prompt stand."""
        trace, row = self._trace, self._row
        prompt = trace.valid[row] & (trace.phase[row] != DECODE)
        return prompt_rows(trace.step[row], trace.sequence[row], np.flatnonzero(prompt))

    @cached_property
    def _unions(self) -> dict[tuple[int, int], tuple[Places, Needs]]:
        """By the first place of a prompt and a distance: its places, and what they need together."""
        depth, (_, sites, top_k) = self._depth, self._trace.ids.shape
        cells = {name: self._cells[name].to_numpy().astype(np.int64) for name in COUNTS}
        step, sequence, site, ahead, expert, tokens = cells.values()
        is_new = (np.diff(step, prepend=-1) != 0) | (np.diff(sequence, prepend=-1) != 0)
        prompt = np.cumsum(is_new) - 1
        union = prompt * depth + ahead - 1
        gate = union * sites + site
        # At each of its gates a prompt has top_k tokens for each of its rows.
        gates = np.bincount(prompt[np.diff(gate, prepend=-1) != 0])
        num_rows = np.bincount(prompt, tokens) / np.maximum(gates * top_k, 1)
        # Experts with as many tokens stand in order already.
        order = np.lexsort((-tokens, gate))
        order = order[expert[order] >= 0]
        cuts = np.searchsorted(union[order], np.arange(len(num_rows) * depth + 1)).tolist()
        found: dict[tuple[int, int], tuple[Places, Needs]] = {}
        pairs = zip(step[is_new].tolist(), sequence[is_new].tolist(), strict=True)
        for nth, pair in enumerate(pairs):
            places = self._places.get(pair)
            if places is None or len(places) < 2 or len(places) != num_rows[nth]:
                continue
            for j in range(1, depth + 1):
                first, last = cuts[nth * depth + j - 1 : nth * depth + j + 1]
                found[int(places[0]), j] = places, self._needs_of(order[first:last])
        return found

    def _needs_of(self, cells: Places) -> Needs:
        site, expert, tokens, weight = (
            self._cells[name].to_numpy()[cells] for name in ("site", "expert", "tokens", "weight")
        )
        return Needs(
            site.astype(np.int64),
            expert.astype(np.int64),
            tokens.astype(np.int64),
            weight.astype(np.float64),
            lambda: self._cells["score"].to_numpy()[cells].astype(np.float64),
        )
