"""Where simple arithmetic gives the turning point of a what-if, too, and where it does not."""

from __future__ import annotations

from collections.abc import Mapping

from sim.machine.hardware import Hardware
from sim.results.run import Run
from sim.study.trials import Trial
from sim.values.units import gb_per_s, tflops

OWN_TIMES = ("reads", "gather", "page_cache", "scattered", "lanes")
"""Parts of a link with which a service takes not just a constant and its bytes at the link's rate."""


def of_link(run: Run, at: Mapping[str, Trial], value: float) -> float | None:
    """The peak, in GB/s, at which waiting equals computing.

    ``at`` are the trials at a peak of ``value`` GB/s. Where nothing overlaps, waiting is the
    overheads of all services, which do not change, and bytes / bandwidth. None where anything
    overlaps, where a service is more than that, or where requests arrive over time: a faster link
    then waits for them.
    """
    (one,) = at.values()
    name, summary = run.hardware.link_names[0], one.summary
    waiting_s, busy_s = (
        sum(summary["stall_s"].values()),
        summary["link_utilisation"][name] * summary["makespan_s"],
    )
    overlaps = abs(waiting_s - busy_s) > 1e-6 * summary["makespan_s"]
    if overlaps or run.workload.is_timed or not _is_plain(run):
        return None
    used = gb_per_s(1.0) * _reached(run).links[0].efficiency
    moved = sum(summary["bytes"][name].values())
    overheads_s = busy_s - moved / (value * used)
    left_s = summary["compute_busy_s"] - overheads_s
    if left_s <= 0 or not moved:
        return None
    return _that_memory_gives(run.hardware, name, moved / left_s, used)


def _is_plain(run: Run) -> bool:
    """Whether there is one link, and a service takes a constant and its bytes at the link's rate."""
    link = run.hardware.links[0]
    return (
        len(run.hardware.link_names) == 1
        and run.controller.loader.copies != "free"
        and link.engines == 1
        and all(getattr(link, part) is None for part in OWN_TIMES)
    )


def _reached(run: Run) -> Hardware:
    """The machine with the rates that the run's copies reach."""
    is_pageable = run.controller.loader.copies == "pageable"
    return run.hardware.unpinned() if is_pageable else run.hardware


def of_cpu(run: Run, at: Mapping[str, Trial], value: float) -> float | None:
    """The host's memory bandwidth, in GB/s, at which the CPU is as fast as loading.

    The CPU then takes as long for an expert as copying it and computing it on the device. None
    unless every need is absent, so that each is loaded; and where the CPU's way and its arithmetic
    alone take longer.
    """
    load = at["loaded"].summary
    cpu = run.hardware.cpu
    if cpu is None or load["hit_ratio"] != 0 or len(run.hardware.link_names) > 1:
        return None
    size = run.controller.geometry.variant_bytes[0]
    spent_s = (
        run.durations.hop_ns(0, size) + run.durations.expert_ns(0, 0, 1)
    ) / 1e9 - cpu.round_trip_us / 1e6
    arithmetic_s = 2 * run.model.expert_params / (tflops(cpu.peak_tflops) * cpu.flops_efficiency)
    if spent_s <= arithmetic_s:
        return None
    used = gb_per_s(1.0) * cpu.memory_efficiency
    return _that_memory_gives(run.hardware, "cpu", size / spent_s, used)


def _that_memory_gives(
    hardware: Hardware, party: str, bytes_per_s: float, used: float
) -> float | None:
    """A rate as a peak of which ``used`` bytes a second are reached of each GB/s. None where a memory
    that the party shares does not give so much, or slows it whatever the others do.
    """
    shared = hardware.shared_memory
    if shared is not None and party in shared.parties:
        is_slowed = shared.slows == "always"
        if is_slowed or bytes_per_s > gb_per_s(shared.gb_per_s):
            return None
    return bytes_per_s / used
