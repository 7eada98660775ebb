"""The sites of layers that draft tokens: recorded, or stand-ins (contract C185)."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sim.traces.header import Header
from sim.traces.rows import Trace

Scalar = TypeVar("Scalar", bound=np.generic)
STANDS_IN = "draft_gates"
"""The entry of a header's provenance that says whose gates stand in for those of draft layers."""


def with_draft_sites(trace: Trace, layers: int) -> Trace:
    """``trace`` with exactly so many draft sites, the last ones.

    Recorded draft sites beyond ``layers`` are left out. Where fewer are recorded, the others have
    the choices of the model's last MoE layer, and the header says so under ``STANDS_IN``. Nothing is
    forecast for them. The trace itself where it has so many.
    """
    header, recorded = trace.header, trace.header.draft_sites
    if layers == recorded:
        return trace
    own = header.model.sites - recorded
    sites = [*range(own + min(layers, recorded)), *[own - 1] * (layers - recorded)]

    def taken(column: NDArray[Scalar]) -> NDArray[Scalar]:
        return column[:, sites]

    def forecast(column: NDArray[np.float32]) -> NDArray[np.float32]:
        found = taken(column)
        found[:, own + recorded :] = np.nan
        return found

    return replace(
        trace,
        header=_header(header, sites, own, layers > recorded),
        ids=taken(trace.ids),
        weights=taken(trace.weights),
        logits=None if trace.logits is None else taken(trace.logits),
        lookahead={norm: forecast(scores) for norm, scores in trace.lookahead.items()},
        expert_norms=None if trace.expert_norms is None else taken(trace.expert_norms),
        active_shares=None if trace.active_shares is None else taken(trace.active_shares),
    )


def _header(header: Header, sites: list[int], own: int, stands_in: bool) -> Header:
    last = header.sites[own - 1]
    told = f"gates of draft layers stand in: those of {last.name}, the model's last MoE layer"
    provenance = {**header.provenance, STANDS_IN: told} if stands_in else header.provenance
    return replace(
        header,
        model=replace(header.model, sites=len(sites)),
        sites=tuple(
            replace(header.sites[old], site=site, stack=header.sites[old].stack)
            if site < own
            else replace(header.sites[old], site=site, stack="draft")
            for site, old in enumerate(sites)
        ),
        provenance=provenance,
    )
