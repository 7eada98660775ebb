"""Whose errors a machine tells: its own, and not those of the machine from whose file its own
begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.machine.hardware import NEVER
from sim.verbs.names import names, of_file

NO_FIGURES = ("name", "preset", "source", "validated", "memory_gib", "reserved_gib", "devices")
"""Keys of a machine's file that leave the time of its work as it is, or that have a rule of their
own (`Hardware.compared`).
"""


def with_own_errors(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of plain values whose machine tells no errors that it only inherited: those of
    a file of ``conf/hardware`` with other figures.
    """
    hardware = config["hardware"]
    told = hardware.get("validated")
    if not isinstance(told, Mapping):
        return dict(config)
    files = [of_file("hardware", name) for name in names("hardware")]
    compared = [_figures(one) for one in files if one.get("validated") == told]
    if not compared or _figures(hardware) in compared:
        return dict(config)
    return {**config, "hardware": {**hardware, "validated": NEVER}}


def _figures(machine: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in machine.items() if key not in NO_FIGURES and value is not None
    }
