"""Compares two runs: whether they may be compared, which is faster, and where the time goes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.results.labels import Labels, labels_in
from sim.results.latency import Floats, by_batch, decode_time_and_tokens, prefill_time, whole_time
from sim.results.outputs import served
from sim.results.paired import Paired, paired
from sim.results.run import Run
from sim.results.stalls import STALL_PARTS
from sim.study.rows import Row
from sim.study.trials import Trial
from sim.traces.trace import trace_sha256
from sim.values.units import gib

SAME = ("model", "hardware", "trace", "workload")
"""Sections of a configuration that must be equal, so that only the systems differ."""
PLACES = frozenset({"trace.path", "workload.kv_allocation"})
"""Keys that may differ because they say where something lies, or how the same memory is divided."""
COMPUTE = "compute"
ABSENT = "(not set)"


@dataclass(frozen=True)
class Comparison:
    """The comparison of run A with run B; pairs are (A, B).

    ``parts`` has the times in ns by part of the makespan: compute, then the stall parts. Each run's
    parts sum to its makespan, so their differences sum to the difference of the makespans.
    ``ratios`` says how many times as fast A is, by what is timed.
    """

    names: tuple[str, str]
    parts: Mapping[str, tuple[int, int]]
    ratios: Mapping[str, Paired]
    labels: tuple[Labels, Labels]
    served: tuple[str, str] = ("", "")
    """In words, the precision at which each run serves, and what it leaves out."""
    staging_bytes: tuple[int, int] = (0, 0)
    """The most bytes that each run held in staging slots, which come on top of the budget."""
    sequences: int = 0
    """How many sequences were run; ratios are over fewer where some share steps."""

    @property
    def makespans_ns(self) -> tuple[int, int]:
        return sum(a for a, _ in self.parts.values()), sum(b for _, b in self.parts.values())

    @property
    def verdict(self) -> Paired:
        """The ratio that decides: of all steps, or of latency where requests arrive over time."""
        return next(iter(self.ratios.values()))


def compared(names: tuple[str, str], a: Trial, b: Trial) -> Comparison:
    """Compare two runs.

    Raise ValueError, naming both values, if they differ in trace, machine, model, workload,
    sequences or budget.
    """
    check_comparable(names, conditions_of(a), conditions_of(b))
    parts = _parts(names[0], a.summary), _parts(names[1], b.summary)
    ratios = {}
    if a.summary["contracts"]["arrivals"] is not None:
        ratios["latency"] = paired(_latency(a), _latency(b))
    ratios["all steps"] = paired(whole_time(a), whole_time(b))
    for name, of in (
        ("prefill", prefill_time),
        ("decode", lambda one: decode_time_and_tokens(one)[0]),
    ):
        ours, theirs = of(a), of(b)
        if ours.any() and theirs.any():
            ratios[name] = paired(ours, theirs)
    return Comparison(
        names,
        {part: (parts[0][part], parts[1][part]) for part in parts[0]},
        ratios,
        (labels_in(a.summary), labels_in(b.summary)),
        (served(a.summary), served(b.summary)),
        (_staging_bytes(a.summary), _staging_bytes(b.summary)),
        len(a.sequences),
    )


def _staging_bytes(summary: Mapping[str, Any]) -> int:
    return int(summary["peak_bytes"]["staging"])


@dataclass(frozen=True)
class Conditions:
    """What two runs must share: the sections in ``SAME``, trace, sequences, bytes for experts."""

    config: Mapping[str, Any]
    sha256: str
    sequences: Sequence[int]
    allowed_bytes: int
    share: float


def conditions_of(one: Trial | Run) -> Conditions:
    """The conditions of a run that was made (a `Trial`), or is yet to be made (a `Run`)."""
    if isinstance(one, Run):
        numbers = sorted(item.sequence for item in one.workload.sequences)
        allowed = _offered_bytes(one.config, one.controller.geometry.capacity_bytes)
        return Conditions(
            one.config, trace_sha256(one.trace.header), numbers, allowed, one.resident_share
        )
    budget, numbers = one.summary["budget"], sorted(one.sequences["sequence"].to_list())
    allowed = _offered_bytes(one.config, budget["allowed_bytes"])
    return Conditions(
        one.config, one.summary["trace"]["sha256"], numbers, allowed, budget["resident_share"]
    )


def row_conditions(row: Row) -> dict[str, Any]:
    """What rows of studies must share to be compared, by name, as plain values."""
    config: Mapping[str, Any] = json.loads(row["config"])
    shared = {
        key: value
        for section in SAME
        for key, value in leaves(section, config[section]).items()
        if key not in PLACES
    }
    allowed = json.loads(row["summary"])["budget"]["allowed_bytes"]
    return {
        **shared,
        "trace sha256": row["trace_sha256"],
        "sequences": list(row["sequence"]),
        "bytes for experts": _offered_bytes(config, allowed),
    }


def _offered_bytes(config: Mapping[str, Any], allowed_bytes: int) -> int:
    """The bytes that a run was given for experts, even if all of its experts take fewer."""
    given_gib = config["budget"].get("slots_gib")
    return allowed_bytes if given_gib is None else gib(given_gib)


def check_comparable(names: tuple[str, str], a: Conditions, b: Conditions) -> None:
    """Raise ValueError, naming the first thing that differs and both values."""
    told: list[tuple[str, object, object]] = [("trace sha256", a.sha256, b.sha256)]
    for section in SAME:
        ours, theirs = (leaves(section, one.config.get(section)) for one in (a, b))
        keys = sorted({*ours, *theirs} - PLACES, key=lambda key: (key != f"{section}.name", key))
        told += [(key, ours.get(key, ABSENT), theirs.get(key, ABSENT)) for key in keys]
    told.append(("sequences", a.sequences, b.sequences))
    told.append(("bytes for experts", a.allowed_bytes, b.allowed_bytes))
    for what, mine, other in told:
        if mine != other:
            way = f"run both with the same {what}"
            if what == "bytes for experts":
                lower, higher = (
                    b.share * a.allowed_bytes / b.allowed_bytes,
                    a.share * b.allowed_bytes / a.allowed_bytes,
                )
                ways = [
                    f"{name} budget.resident_share={share:g}"
                    for name, share in ((names[1], lower), (names[0], higher))
                    if share <= 1
                ]
                way = (
                    f"a share is of the highest precision's bytes (here {a.share:g} and"
                    f" {b.share:g}); give {', or '.join([*ways, 'both the same budget.slots_gib'])}"
                )
            raise ValueError(
                f"{names[0]} has {what}={short(mine)}, {names[1]} has {what}={short(other)}; only"
                f" runs that differ in their mechanisms alone can be compared: {way}"
            )


def leaves(prefix: str, value: object) -> dict[str, object]:
    """The values of a section of a configuration by their dotted keys."""
    if not isinstance(value, dict):
        return {prefix: value}
    found: dict[str, object] = {}
    for key, below in value.items():
        found |= leaves(f"{prefix}.{key}", below)
    return found


def short(value: object) -> str:
    """``value`` as text of at most 80 characters, for messages."""
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _parts(name: str, summary: Mapping[str, Any]) -> dict[str, int]:
    """The makespan of a run in ns, by what it was spent on.

    Raise ValueError if the parts do not sum to the makespan.
    """
    parts = {
        COMPUTE: _ns(summary["compute_busy_s"]),
        **{part: _ns(summary["stall_s"][part]) for part in STALL_PARTS},
    }
    if sum(parts.values()) != _ns(summary["makespan_s"]):
        raise ValueError(
            f"{name}: compute_busy_s and stall_s sum to {sum(parts.values())} ns, not to"
            f" makespan_s={summary['makespan_s']}; summary.json has been changed, run it again"
        )
    return parts


def _ns(seconds: float) -> int:
    """The exact ns of seconds in a summary, which are whole ns / 1e9.

    Floats tell them apart up to 2^52 ns (52 days).
    """
    return round(seconds * 1e9)


def _latency(one: Trial) -> Floats:
    found = (one.sequences["end_ns"] - one.sequences["arrival_ns"]).to_numpy()
    return by_batch(one, found.astype(np.float64))
