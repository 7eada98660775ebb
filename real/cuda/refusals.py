"""What the GPU's engine does not do: refused by name before any work starts."""

from __future__ import annotations

from real.driver.settings import Engine
from sim.core.controller import Controller


def check(controller: Controller, engine: Engine, *, by_neuron: bool) -> None:
    """Raise ValueError for what this device does not do; `real.setup.devices` calls it by name."""
    loader, name = controller.loader, type(controller.payload).__name__
    is_partial = controller.payload.active_share < 1
    refused = {
        f"{controller.route.links} links": controller.route.links > 2,
        f"loader.dense_slots={loader.dense_slots} (streamed dense blocks)": loader.dense_slots > 0,
        f"payload {name} (more than one expert)": not controller.payload.whole and not is_partial,
        f"payload {name} of {', '.join(controller.geometry.precisions)} (parts of experts move with precision=floe)": (
            is_partial and not by_neuron
        ),
        f"payload {name} on {controller.route.links} links": (
            is_partial and controller.route.links > 1
        ),
        f"engine.gather=zero_copy with engine.source={engine.source} (the whole store must rest in pinned memory)": (
            is_partial and engine.gather == "zero_copy" and engine.source != "ram"
        ),
        "loader.copies=free (no copy takes no time)": loader.copies == "free",
        "loader.write_back (weights are never copied back)": loader.write_back,
        "engine.source=mmap (page faults)": engine.source == "mmap",
    }
    if wrong := [what for what, is_asked in refused.items() if is_asked]:
        raise ValueError(
            f"device=cuda does not run {' nor '.join(wrong)}; choose device=null, or another system"
        )
