"""The devices by name; each is imported only when it is asked for.

``host`` is the code of ``cuda`` with a runtime that makes no GPU calls.

A maker is ``make(run, weights, engine) -> Device``. ``weights`` is None for a device that computes
nothing. A device that can run *live* is a `LiveDevice`, which has more methods than `Device`:

- ``begin_site(inputs)`` and ``end_site() -> [T, H]``, which the main thread calls around a gate's
  needs. Between them ``compute`` and ``compute_on_cpu`` get the keys of experts, in the
  controller's order. Each expert's output must stay in a buffer of its own, for
  ``real.store.swapping.add_up``.
- for experts that move neuron by neuron ``up_of(site, expert)``, and ``arrivals``, which is told
  what ranks neurons.

In a live run the model's dense work is over when ``compute`` is called for a dense block or for the
tail. The nominal time that it is given is then what is left of that work's.
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
from sim.core.controller import Controller
from sim.results.run import Run

Maker = Callable[[Run, Weights | None, Engine], Device]
MAKERS = {
    "null": "real.setup.devices:make_null",
    "cpu": "real.host.cpu:make",
    "cuda": "real.cuda.device:make",
    "host": "real.cuda.device:make_on_host",
}
CHECKS = {
    "cpu": "real.host.cpu:check",
    "cuda": "real.cuda.refusals:check",
    "host": "real.cuda.refusals:check",
}
"""By device that does not run everything: ``check(controller, engine, *, by_neuron)``."""


class LiveDevice(Device, Protocol):
    def begin_site(self, inputs: SiteInputs) -> None: ...
    def end_site(self) -> torch.Tensor: ...
    def up_of(self, site: int, expert: int) -> torch.Tensor: ...
    @property
    def arrivals(self) -> Arrivals: ...


def maker_of(name: str) -> Maker:
    """The maker of a device.

    Raise ValueError for a device that does not exist, or whose code cannot be imported here.
    """
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


def check_device(name: str, controller: Controller, engine: Engine, *, by_neuron: bool) -> None:
    """Raise ValueError for what a device does not do.

    ``by_neuron``: whether experts are stored neuron by neuron.
    """
    if name in CHECKS:
        module, _, function = CHECKS[name].partition(":")
        getattr(import_module(module), function)(controller, engine, by_neuron=by_neuron)


def make_null(run: Run, weights: Weights | None, engine: Engine) -> Device:
    """The virtual clock; with weights, experts are computed on it."""
    if weights is None:
        return NullDevice()
    from real.host.computing_null import ComputingNullDevice

    return ComputingNullDevice(run.controller.geometry, weights)
