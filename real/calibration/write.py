"""Writes a measured machine as a file of ``conf/hardware``: each figure beside its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from real.calibration.fit import Figures, tables_us
from real.calibration.measure import Facts


@dataclass(frozen=True)
class Machine:
    """What the file says of where it was measured.

    ``link`` is the link's name. ``versions`` is a line of them. ``model`` is the model whose tables
    of experts and layers go in; None: no such tables.
    """

    name: str
    device: str
    gpu: str
    versions: str
    date: str
    link: str
    source: str
    memory_bytes: int
    reserved_bytes: int
    model: str | None


def hardware_text(machine: Machine, found: Figures, facts: Facts, left_out: Sequence[str]) -> str:
    """The text of the whole file."""
    link, real = found.link, machine.device != "host"
    gb, slower = 1e9, "take longer" if found.dequantises else "take no longer"
    over = facts.overlapped[0] if facts.overlapped else None
    lines = [
        (
            f"# {machine.gpu}, measured on {machine.date} by python -m real.calibrate"
            f" device={machine.device}."
        ),
        f"# {machine.versions}",
        (
            f"# Errors where it was fitted, median and worst: link {link.residual:.1%} and"
            f" {link.worst:.1%}; experts of plain weights {found.expert_residual:.1%} and"
            f" {found.expert_worst:.1%}."
        ),
        *([f"# Left out: {'; '.join(left_out)}"] if left_out else []),
        *([] if real else ["# A rehearsal on the host: these are no GPU's figures."]),
        "_target_: sim.machine.Hardware",
        f"name: {machine.name}",
        "preset: calibrated",
        f"validated: {'measured' if real else 'none'}",
        f"memory_gib: {machine.memory_bytes / 2**30:.6g}  # as the device tells",
        (
            f"reserved_gib: {machine.reserved_bytes / 2**30:.6g}  # taken before anything of a run"
            " is allocated"
        ),
        "links:",
        f"  {machine.link}:",
        "    _target_: sim.machine.Link",
        (
            f"    peak_gb_per_s: {link.per_s / gb:.6g}  # {machine.source}; line through"
            f" {len(facts.copy)} sizes"
        ),
        "    efficiency: 1.0  # as measured",
        (
            f"    overhead_us: {link.overhead_ns / 1e3:.6g}  # the same line; hand-overs between"
            " threads included"
        ),
        "    engines: 1  # as run",
        "    head_bytes: 0",
    ]
    if over is not None:
        alone = dict(facts.copy)[over[0]]
        told = (
            f"    # beside computation a copy of {over[0]} B takes {over[1] / alone:.3f} times as"
            " long"
        )
        if facts.beside_copy is not None:
            told += f", an expert meanwhile {facts.beside_copy / _plain_ns(facts):.3f} times"
        lines.append(told)
    lines += [
        "ram: null",
        "compute:",
        "  _target_: sim.machine.Compute",
        f"  peak_tflops: {found.flops_per_s / 1e12:.6g}  # an expert of the most rows",
        "  flops_efficiency: 1.0  # as measured",
        (
            f"  memory_gb_per_s: {found.memory_bytes_per_s / gb:.6g}  # an expert of plain weights,"
            " one row"
        ),
        "  memory_efficiency: 1.0  # as measured",
        f"  launch_us: {found.launch_ns / 1e3:.6g}  # the least operation of a queue of them",
        "  dense_launches: 1  # a layer's stand-in is one product",
        f"  expert_launches: {found.expert_launches}  # as the code has them",
        "  tail_launches: 1  # as the code has them",
        (
            f"  dequantise_launches: {3 if found.dequantises else 0}  # experts of fewer bits"
            f" {slower} than plain ones"
        ),
    ]
    if found.cpu_bytes_per_s is not None:
        lines += [
            "cpu:",
            "  _target_: sim.machine.Cpu",
            (
                "  peak_tflops:"
                f" {max(found.flops_per_s / 1e12 if machine.device != 'cuda' else 1.0, 1e-6):.6g}"
                f"  # {'as the compute' if machine.device != 'cuda' else 'not measured: one row is bound by memory'}"
            ),
            "  flops_efficiency: 1.0  # as measured",
            f"  memory_gb_per_s: {found.cpu_bytes_per_s / gb:.6g}  # an expert of one row",
            "  memory_efficiency: 1.0  # as measured",
            (
                f"  round_trip_us: {found.cpu_round_trip_ns / 1e3:.6g}  # two hand-overs between"
                " threads"
            ),
        ]
    if facts.host:
        lines += ["host:", "  _target_: sim.machine.Host"]
        lines += [
            f"  {part}_us: {ns / 1e3:.6g}  # median gap of a run" for part, ns in facts.host.items()
        ]
    lines += ["prediction_us: 0.0", *_tables(machine, facts)]
    return "\n".join([*lines, f'source: "real.calibrate on {machine.gpu}, {machine.date}"', ""])


def _plain_ns(facts: Facts) -> float:
    return dict(next(iter(facts.experts.values())))[1]


def _tables(machine: Machine, facts: Facts) -> list[str]:
    """Tables: ``copy_us`` for every model; experts and layers for the model measured."""
    lines = ["measured:", "  _target_: sim.machine.Measured"]
    if machine.model is not None:
        lines += [f"  model: {machine.model}"]
        lines += _mapping("expert_us", tables_us(facts.experts), "by rows, for each precision")
        lines += [
            f"  dense_us: [[1, {round(facts.dense / 1e3, 3)}]]  # a layer's stand-in, whatever its"
            " context"
        ]
    return lines + _mapping("copy_us", tables_us({machine.link: facts.copy}), "by bytes")


def _mapping(name: str, tables: Mapping[str, Any], what: str) -> list[str]:
    return [f"  {name}:  # {what}", *(f"    {key}: {points}" for key, points in tables.items())]
