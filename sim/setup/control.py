"""Policies are given what they require, and become the controller of a run."""

from __future__ import annotations

from collections.abc import Sequence

from sim.core.controller import Controller
from sim.fitting.artefact import ArtefactError
from sim.fitting.prepare import prepare
from sim.machine.devices import route_of
from sim.setup.own_policies import check_answers
from sim.setup.parts import Parts
from sim.setup.refusals import (
    moves_kv,
)
from sim.setup.traces import trace_directory
from sim.values.types import Geometry
from sim.workload.kv_room import KvRoom
from sim.workload.steps import Workload


def prepare_parts(
    parts: Parts,
    sections: Sequence[str],
    workload: Workload,
    geometry: Geometry | None = None,
    predictor: str | None = None,
) -> dict[str, int]:
    """Give the policies of these sections what they require.

    ``predictor``: the file that the run's predictor is chosen by; a refusal names it in the command
    that fits one. Return, by section, on how many of the run's sequences that rests which the policy
    knows.
    """
    directory, precision = trace_directory(parts.trace.path), parts.precision.constant
    policies = parts.policies()
    try:
        return {
            name: prepare(
                policies[name], name, workload, directory, geometry=geometry, precision=precision
            )
            for name in sections
        }
    except ArtefactError as error:
        if predictor is None:
            raise
        told = str(error).replace("predictor=...", f"predictor={predictor}")
        raise ArtefactError(told) from None


def make_controller(geometry: Geometry, parts: Parts, kv_room: KvRoom | None = None) -> Controller:
    """The controller of these parts; it keeps the policies. ``kv_room``: where slots shrink. Raise
    ValueError for parts that do not go together.
    """
    check_answers(parts.policies(), geometry)
    hardware, model, predictor, loader = (
        parts.hardware,
        parts.model,
        parts.predictor,
        parts.loader,
    )
    route = route_of(hardware, model)
    ram_cache = parts.ram_cache if route.ram_link is not None else None
    if hardware.ram is not None and 0 < route.ram_bytes < max(geometry.variant_bytes):
        raise ValueError(
            f"hardware.ram.capacity_gib={hardware.ram.capacity_gib:g} holds no expert of"
            f" {max(geometry.variant_bytes)} B; raise it, or set hardware.ram=null"
        )
    return Controller(
        geometry,
        predictor,
        parts.cache,
        parts.precision,
        parts.placement,
        loader,
        route=route,
        ram_cache=ram_cache,
        payload=parts.payload,
        predicts_later=hardware.predicts_later(predictor.requires.lookahead_sites)
        and not predictor.silent,
        dense_bytes=tuple(map(model.block_bytes, range(model.sites))) if loader.dense_slots else (),
        spare_bytes=kv_room.spare_bytes if kv_room else None,
        kv_bytes=tuple(map(model.site_kv_bytes, range(model.sites))) if moves_kv(parts) else (),
    )
