"""Which channels of its experts a running model makes active: what FloE moves in a live run.

At each gate of one row a payload of active channels asks how many bytes to move. When a transfer
begins, a device asks which neurons to bring. Both are answered from what the row's experts are
given:

- A need's channels are those that the row itself makes active.
- A forecast's channels are those that the row makes active in the up projections of a later site,
  one layer early.
- A transfer brings the neurons that respond most, as many as it has bytes for. If it has bytes for
  exactly the active channels, it brings exactly these.

Source: Zhou et al., FloE, arXiv:2505.05950, sections 3.2.1 and 3.3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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

ASKED = {"moved_bytes": (False, True), "forecast_bytes": (False,), "missing_bytes": (True,)}
"""What a payload is asked at a gate, and of which transfers: of those that complete a prefetch?

A need's own bytes begin a slot, or follow an overtaken prefetch (contract C44). The first argument
of each method is a key.
"""
UpOf = Callable[[int, int], torch.Tensor]


class LiveChannels:
    """The channels of one run's experts, ``width`` of them each.

    - ``up_of(site, expert)`` gives up projections [I, H].
    - ``thresholds`` [S, E, P] of |x W_up|, for the sparsities that the trace's header names. None:
      the payload moves a nominal share, and needs none.
    - ``payload`` must be prepared. If it reuses channels it is told, row by row, what its
      predictor names and finds. ``arrays`` hold all of that in the end, as ``python -m
      capture.channels`` would write it.
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
        """The experts' inputs by which a transfer's channels are chosen.

        They are kept by key, and by whether the transfer completes a prefetch, and come from the
        gate that last asked. The two are kept apart because a prefetch may begin after its rest has
        been asked for.
        """
        self._named: dict[int, NDArray[np.bool_]] = {}
        """By expert of the next site: the channels [I] that this site's row names."""
        self.arrays: dict[str, NDArray[Any]] = {}
        for name, completes in ASKED.items():
            setattr(payload, name, self._noting(getattr(payload, name), completes))
        if isinstance(payload, ReusedChannels) and thresholds is not None:
            self._column = list(live.trace.header.sparsities).index(payload.sparsity)
            self._know(payload, width, thresholds)

    def _noting(self, asked: Callable[..., int], completes: Iterable[bool]) -> Callable[..., int]:
        def answer(key: int, *rest: Any) -> int:
            if self._fed is not None:
                self._fed_of |= {(key, of): self._fed for of in completes}
            return asked(key, *rest)

        return answer

    def _know(self, payload: ReusedChannels, width: int, thresholds: torch.Tensor) -> None:
        """Give the payload the tables that it looks into; they are filled while the run goes on."""
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
        """Note what a site asks for; its gate comes next.

        Raise SwapError where the experts are not fed what the router is: then one layer's input
        tells nothing of the next layer's.
        """
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
        """|x W_up| of an expert for one row, [I]."""
        return functional.linear(fed, self._up_of(site, expert))[0].abs().float().cpu().numpy()

    def ranked(self, key: int, completes: bool) -> NDArray[np.int64]:
        """A key's neurons, those first that respond most to the row that asked for the key.

        ``completes``: to the row that asked for its rest (`real.store.neurons.Arrivals`).
        """
        g = self._geometry
        response = self._response(g.site_of(key), g.expert_of(key), self._fed_of[key, completes])
        return np.argsort(-response, kind="stable")
