"""Writes a measured machine as a file of ``conf/hardware``: each figure beside its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from real.calibration.facts import Facts, Points
from real.calibration.fit import (
    LEAST_NS,
    Figures,
    choose_ns,
    experts_of,
    fixed_ns,
    surplus_of,
    tables_us,
)
from real.calibration.in_run import NOTHING, Surplus
from sim.machine.link_parts import RATES


@dataclass(frozen=True)
class Machine:
    """What the file says of where it was measured.

    ``link`` is the link's name. ``versions`` is a line of them. ``params`` are those of what was
    measured: ``expert``, ``dense`` (a layer without its experts) and ``tail`` (the head).
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
    params: Mapping[str, float]


@dataclass(frozen=True)
class Gathers:
    """Measured rates of scattered rows (``rates``: form, threads, bytes of a piece, GB/s).

    ``form``, ``threads`` and ``piece_bytes`` are what runs take if nothing else is asked for.
    """

    form: str
    threads: int
    piece_bytes: int
    rates: Sequence[tuple[str, int, int, float]]


def gathers_of(rows: Sequence[Mapping[str, Any]], row_bytes: int) -> Gathers | None:
    """The rates that a probe measured with rows of so many bytes; None where it measured none.

    The default is the engine's: staged, by 4 threads with 50 rows in a piece, or else the first. A
    rate below all that a machine may have, as a busy computer measures with a few bytes, counts as
    the least.
    """
    rates = [
        (
            str(row["gather"]),
            int(row["threads"]),
            int(row["columns"]) * row_bytes,
            max(RATES[0], round(float(row["bytes_per_s"]) / 1e9, 4)),
        )
        for row in rows
    ]
    if not rates:
        return None
    asked = next((rate for rate in rates if rate[:3] == ("staged", 4, 50 * row_bytes)), rates[0])
    return Gathers(*asked[:3], rates)


def hardware_text(
    machine: Machine,
    found: Figures,
    facts: Facts,
    left_out: Sequence[str],
    gathers: Gathers | None = None,
) -> str:
    """The text of the whole file."""
    plain = next(iter(facts.experts))
    more = surplus_of(facts, plain, machine.params)
    added = NOTHING if more is None else more
    link, real = found.link, machine.device != "host"
    gb, slower = 1e9, "take longer" if found.dequantises else "take no longer"
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
        "validated: none",
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
    if added.slot_ns:
        lines.append(f"    slot_us: {added.slot_ns / 1e3:.6g}  # of a load for each slot, in runs")
    if gathers is not None:
        lines += _scattered(gathers, choose_ns(facts, gathers.rates, added))
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
        f"  replay_us: {'2.0' if machine.device == 'cuda' else 'null'}  # not measured: as rtx4090_pcie4",
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
        lines += _host(facts, added)
    lines += ["prediction_us: 0.0", *_beside(machine, facts, added)]
    lines += _tables(machine, facts, more)
    return "\n".join([*lines, f'source: "real.calibrate on {machine.gpu}, {machine.date}"', ""])


def _host(facts: Facts, added: Surplus) -> list[str]:
    """Host time: a run's gaps, and what follows a wait, by how long it was."""
    told = {part: (f"{ns / 1e3:.6g}", "median gap of a run") for part, ns in facts.host.items()}
    if added.gaps_ns is not None:
        # The device computes while the host goes on: gaps between its calls are no time of a gate.
        told |= dict.fromkeys(("sync", "post"), ("0", "hidden behind the device's work"))
        told["issue"] = (f"{added.gaps_ns / 1e3:.6g}", "what a gate of a run takes beside its work")
    if added.wakes:
        points = [[round(at / 1e3, 3), round(ns / 1e3, 3)] for at, ns in added.wakes]
        told["wake"] = (f"{points}", "what a gate takes longer after a wait in a run, by the wait")
    lines = ["host:", "  _target_: sim.machine.Host"]
    return lines + [f"  {part}_us: {ns}  # {why}" for part, (ns, why) in told.items()]


def _beside(machine: Machine, facts: Facts, added: Surplus) -> list[str]:
    """Who slows whom: work beside other work, in times of work alone. Only what is above 1.

    What a run adds to an operation or a service it adds to both.
    """
    whole = facts.overlapped[0][0] if facts.overlapped else 0
    pairs = {
        ("compute", machine.link): (facts.beside_copy, _at(next(iter(facts.experts.values())), 1)),
        (machine.link, "compute"): (_at(facts.overlapped, whole), _at(facts.copy, whole)),
        ("cpu", machine.link): (facts.cpu_beside_copy, _at(facts.on_cpu, 1)),
        (machine.link, "cpu"): (_at(facts.beside_cpu, whole), _at(facts.copy, whole)),
    }
    extra = {"compute": added.operation_ns, machine.link: added.longer_ns(whole)}
    times = {
        pair: (beside + extra.get(pair[0], 0.0)) / (alone + extra.get(pair[0], 0.0))
        for pair, (beside, alone) in pairs.items()
        if beside and alone and beside > 1.0005 * alone
    }
    parties = dict.fromkeys(party for party, _ in times)
    lines = ["beside:  # how many times as long, while the other works"] if times else []
    for party in parties:
        others = ", ".join(
            f"{other}: {value:.4g}" for (one, other), value in times.items() if one == party
        )
        lines.append(f"  {party}: {{{others}}}")
    return lines


def _at(points: Points, argument: int) -> float | None:
    return next((ns for at, ns in points if at == argument), None)


def _scattered(gathers: Gathers, choosing_ns: float) -> list[str]:
    return [
        "    scattered:  # rows of experts that move in part, as the probe gathered them",
        "      _target_: sim.machine.Scattered",
        f"      form: {gathers.form}",
        f"      threads: {gathers.threads}  # as the engine has them",
        f"      piece_bytes: {gathers.piece_bytes}  # as the engine has them",
        f"      choose_us: {choosing_ns / 1e3:.6g}  # what services of parts had beside, in runs",
        "      rates:  # form, threads, bytes of a piece, GB/s",
        *(
            f"        - [{form}, {threads}, {size}, {gb}]"
            for form, threads, size, gb in gathers.rates
        ),
    ]


def _tables(machine: Machine, facts: Facts, more: Surplus | None) -> list[str]:
    """Tables of times as they were measured; they serve every model, each by its sizes."""
    plain = next(iter(facts.experts))
    added = NOTHING if more is None else more
    experts = experts_of(facts, plain, machine.params, added)
    fixed = max(0.0, fixed_ns(facts, plain, machine.params) + added.operation_ns)
    dense_ns = facts.dense + added.operation_ns + added.read_ns * 2 * machine.params["dense"]
    dense = round(dense_ns / 1e3, 3)
    times = added.operation_ns, added.service_ns, added.byte_ns * 1e9
    more_us, service_us, gigabyte_us = (ns / 1e3 for ns in times)
    told = (
        f"# Runs add {more_us:.4g} us to an operation, {service_us:.4g} us to a service and"
        f" {gigabyte_us:.4g} us to each of its 10**9 bytes."
    )
    if added.gaps_ns is not None:
        told = (
            f"# Operations that are given together take {-more_us:.4g} us less each, and"
            f" {added.read_ns * 1e6:.4g} us more for each 10**9 bytes of weights. Runs add"
            f" {service_us:.4g} us to a service and {gigabyte_us:.4g} us to each of its 10**9 bytes."
        )
    return [
        *([told] * bool(more)),
        "measured:",
        "  _target_: sim.machine.Measured",
        f"  expert_params: {machine.params['expert']:.0f}  # of the experts that were measured",
        f"  dense_params: {machine.params['dense']:.0f}  # of the layer that was measured",
        f"  fixed_us: {fixed / 1e3:.6g}  # of an operation, whatever its size",
        *_mapping(
            "expert_us",
            tables_us(
                {
                    name: [
                        (rows, _in_run(added, rows, ns, facts.expert_bytes.get(name, 0)))
                        for rows, ns in of
                    ]
                    for name, of in experts.items()
                }
            ),
            "by rows, for each precision",
        ),
        f"  dense_us: [[1, {dense}]]  # a layer's stand-in, whatever its context",
        *_mapping(
            "copy_us",
            tables_us({machine.link: [(at, ns + added.longer_ns(at)) for at, ns in facts.copy]}),
            "by bytes",
        ),
    ]


def _in_run(added: Surplus, rows: int, ns: float, num_bytes: int) -> float:
    """How long an expert takes in runs; only those of one row are given together with others."""
    if rows > 1:
        return ns + max(0.0, added.operation_ns)
    return max(LEAST_NS, ns + added.operation_ns + added.read_ns * num_bytes)


def _mapping(name: str, tables: Mapping[str, Any], what: str) -> list[str]:
    return [f"  {name}:  # {what}", *(f"    {key}: {points}" for key, points in tables.items())]
