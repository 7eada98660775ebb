"""Which channels of its experts a running model makes active: what FloE moves in a live run.

A payload of active channels asks at each gate of one row how many bytes to move, and a device, when
a transfer begins, which neurons these are. Both are answered from what the row's experts are given.
A need's channels are those of the row itself; a forecast's are those that the row makes active in
the up projections of a later site, one layer early. Of these a transfer brings the ones that
respond most, as many as its bytes are: of as many bytes as there are active channels, these.

Source: Zhou et al., FloE, arXiv:2505.05950, sections 3.2.1 and 3.3.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from real.live.asked import Asked
from real.live.workload import LiveWorkload
from real.store.experts import SwapError
from sim.policies.payloads import ActiveShare, ReusedChannels
from sim.traces.trace import DECODE
from sim.values.types import Geometry

ASKED = ("moved_bytes", "forecast_bytes", "missing_bytes")
"""What a payload is asked at a gate of a key, in the order of its arguments the first."""
UpOf = Callable[[int, int], torch.Tensor]


class LiveChannels:
    """The channels of one run, ``width`` an expert. ``up_of(site, expert)`` gives up projections
    [I, H].

    ``thresholds`` [S, E, P] of |x W_up|, of the sparsities that the trace's header names; None: a
    payload that moves a nominal share needs none. ``payload`` is told, row by row, what a reused
    predictor names and finds; it must be prepared. ``arrays`` are then what it knows, as ``python
    -m capture.channels`` would write it.
    """

    def __init__(
        self,
        live: LiveWorkload,
        payload: ActiveShare,
        geometry: Geometry,
        width: int,
        up_of: UpOf,
        thresholds: torch.Tensor | None,
    ) -> None:
        self._live, self._geometry, self._up_of, self._thresholds = (
            live,
            geometry,
            up_of,
            thresholds,
        )
        self._fed: torch.Tensor | None = None
        self._fed_of: dict[tuple[int, bool], torch.Tensor] = {}
        """By key, and whether it completes a prefetch, what its channels are chosen by: the
        experts' input of the gate that asked for it last. A prefetch may begin when its rest has
        been asked for."""
        self._named: dict[int, NDArray[np.bool_]] = {}
        """By expert of the next site: what the row of this one names [I]."""
        self.arrays: dict[str, NDArray[Any]] = {}
        for name in ASKED:
            setattr(payload, name, self._noting(getattr(payload, name), name == "missing_bytes"))
        if isinstance(payload, ReusedChannels) and thresholds is not None:
            self._column = list(live.trace.header.sparsities).index(payload.sparsity)
            self._know(payload, width, thresholds)

    def _noting(self, asked: Callable[..., int], completes: bool) -> Callable[..., int]:
        def answer(key: int, *rest: Any) -> int:
            if self._fed is not None:
                self._fed_of[key, completes] = self._fed
            return asked(key, *rest)

        return answer

    def _know(self, payload: ReusedChannels, width: int, thresholds: torch.Tensor) -> None:
        """The payload looks into tables that are filled while the run goes on."""
        trace = self._live.trace
        rows = np.flatnonzero(trace.phase == DECODE)
        self._row = {row: number for number, row in enumerate(rows.tolist())}
        shape = (len(rows), *thresholds.shape)
        self.arrays = {name: np.zeros(shape, np.uint32) for name in ("named", "found", "active")}
        self.arrays |= {
            "sequence": trace.sequence[rows].astype(np.uint32),
            "position": trace.position[rows].astype(np.uint32),
            "width": np.array([width], np.uint32),
        }
        payload.know(self.arrays)

    def see(self, asked: Asked) -> None:
        """A site's experts are asked for, and its gate comes next. Raise SwapError where they are
        not fed what the router is: one layer's input then names nothing of the next."""
        if not torch.equal(asked.hidden, asked.gate_input):
            raise SwapError(
                f"site {asked.site}: its experts are not fed the gate's input; choose payload=whole"
            )
        self._fed = asked.hidden if len(asked.hidden) == 1 else None
        row = (
            self._row.get(int(self._live.rows[0]))
            if self.arrays and self._fed is not None
            else None
        )
        if row is None:
            self._named = {}
            return
        site = asked.site
        for expert in asked.ids[0].tolist():
            if expert >= 0:
                active = self._is_active(site, expert)
                self.arrays["active"][row, site, expert, self._column] = active.sum()
                if expert in self._named:
                    self.arrays["found"][row, site, expert, self._column] = (
                        active & self._named[expert]
                    ).sum()
        self._named = {}
        if site + 1 < self._geometry.sites:
            self._named = {
                expert: self._is_active(site + 1, expert)
                for expert in range(self._geometry.experts)
            }
            for expert, named in self._named.items():
                self.arrays["named"][row, site + 1, expert, self._column] = named.sum()

    def _is_active(self, site: int, expert: int) -> NDArray[np.bool_]:
        """The channels [I] of an expert that the row makes active."""
        assert self._fed is not None
        assert self._thresholds is not None
        threshold = float(self._thresholds[site, expert, self._column])
        return np.asarray(self._response(site, expert, self._fed) >= threshold)

    def _response(self, site: int, expert: int, fed: torch.Tensor) -> NDArray[np.float32]:
        """|x W_up|, [I]."""
        return functional.linear(fed, self._up_of(site, expert))[0].abs().float().cpu().numpy()

    def ranked(self, key: int, completes: bool) -> NDArray[np.int64]:
        """A key's neurons, the ones first that respond most to what asked for it, or for its rest
        (`real.store.neurons.Arrivals`)."""
        g = self._geometry
        response = self._response(g.site_of(key), g.expert_of(key), self._fed_of[key, completes])
        return np.argsort(-response, kind="stable")
