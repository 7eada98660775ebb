"""The devices by name, each imported only where it is asked for. ``host`` is ``cuda``'s code
without its calls.

A maker is ``make(run, weights, engine) -> Device``. ``weights`` is None for a device that computes
nothing. A device that can run *live* has more methods than `Device`, called by the main thread
around a gate's needs: ``begin_site(inputs)`` and ``end_site() -> [T, H]`` (`LiveDevice`); for
experts that move neuron by neuron also ``arrivals``, which is told what ranks them, and
``up_of(site, expert)``. Between them ``compute`` and ``compute_on_cpu`` get the keys of experts, in
the controller's order; each expert's output must stay in a buffer of its own, for
``real.store.experts.add_up``. The model's dense work has been done when ``compute`` is called for a
dense block or the tail: its nominal time is then what is left of it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Protocol

import torch

from real.driver.device import Device, NullDevice
from real.driver.settings import Engine
from real.store.neurons import Arrivals
from real.store.work import SiteInputs, Weights
from sim.results.run import Run

Maker = Callable[[Run, Weights | None, Engine], Device]
MAKERS = {
    "null": "real.setup.devices:make_null",
    "cpu": "real.host.cpu:make",
    "cuda": "real.cuda.device:make",
    "host": "real.cuda.device:make_on_host",
}


class LiveDevice(Device, Protocol):
    def begin_site(self, inputs: SiteInputs) -> None: ...
    def end_site(self) -> torch.Tensor: ...
    def up_of(self, site: int, expert: int) -> torch.Tensor: ...
    @property
    def arrivals(self) -> Arrivals: ...


def maker_of(name: str) -> Maker:
    """Raise ValueError for a device that does not exist, or whose code cannot be imported here."""
    if name not in MAKERS:
        raise ValueError(f"unknown device={name}; known: {', '.join(MAKERS)}")
    module, _, function = MAKERS[name].partition(":")
    try:
        found: Maker = getattr(import_module(module), function)
    except ImportError as error:
        raise ValueError(
            f"device={name} is not to be had here ({error}); choose device=cpu or device=null"
        ) from None
    return found


def make_null(run: Run, weights: Weights | None, engine: Engine) -> Device:
    """The virtual clock; with weights, experts are computed on it."""
    if weights is None:
        return NullDevice()
    from real.host.computing_null import ComputingNullDevice

    return ComputingNullDevice(run.controller.geometry, weights)
