"""What a calibration measured, as facts: they are written as JSON, and read again without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

from real.calibration.in_run import InParts, InRun
from sim.machine.precision import PRECISIONS
from sim.values.fields import read_json

Points = list[tuple[int, float]]
"""Arguments, each with the median of what it took, in ns."""
HOST = ("sync", "issue", "wake", "post")
"""The host's gaps that a run tells."""
TEXTS = {"left_out", "precision", "form"}
"""The keys of what is text; all else is numbers."""


@dataclass
class Facts:
    """What was measured. Times are in ns.

    - ``copy``, ``overlapped``: copies by bytes, alone and beside computation.
    - ``experts``: by precision and rows; ``expert_bytes``: how large one is at each precision.
    - ``together``: so many experts of one row that are given at once; nothing where the engine
      gives each by itself.
    - ``beside_copy``: an expert of one row while a copy runs.
    - ``on_cpu``: an expert on the host's CPU, alone. ``cpu_beside_copy``: while a copy runs;
      ``beside_cpu``: copies by bytes while such experts are computed. ``cpu_in_run``: the mean of
      experts of one row that a run's gates waited for, whose cores had rested before.
    - ``dequantise``: reading an expert's stored weights, by precision.
    - ``dense``, ``tail``: the stand-ins of a layer and of the head. ``operation``: the smallest
      one.
    - ``host``: sync, issue, wake, post, as medians of a run's gaps.
    - ``runs``, ``parts``: what runs showed beyond that (`real.calibration.in_run`), one for each.
    - ``device``: an expert of one row by the device's own clock, by precision.
    - ``gates``: those of p layers at once.
    - ``reads``: bytes per second of the drive, by block and depth.
    """

    copy: Points = field(default_factory=list)
    overlapped: Points = field(default_factory=list)
    experts: dict[str, Points] = field(default_factory=dict)
    expert_bytes: dict[str, int] = field(default_factory=dict)
    together: Points = field(default_factory=list)
    beside_copy: float | None = None
    on_cpu: Points = field(default_factory=list)
    cpu_beside_copy: float | None = None
    beside_cpu: Points = field(default_factory=list)
    cpu_in_run: float | None = None
    dequantise: dict[str, float] = field(default_factory=dict)
    dense: float = 0.0
    tail: float = 0.0
    operation: float = 0.0
    host: dict[str, int] = field(default_factory=dict)
    runs: list[InRun] = field(default_factory=list)
    parts: list[InParts] = field(default_factory=list)
    device: dict[str, float] = field(default_factory=dict)
    gates: Points = field(default_factory=list)
    reads: list[tuple[int, int, float]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def as_json(facts: Facts) -> dict[str, Any]:
    """Plain values; ``read_facts`` takes them."""
    return asdict(facts)


def read_facts(path: Path) -> Facts:
    """The facts in a file that a calibration wrote. Raise ValueError for any other file.

    What an earlier version did not measure has its default; what else the file holds is left out.
    """
    try:
        told = read_json(path.read_bytes())
        if not isinstance(told, dict):
            raise ValueError("it is no JSON object")
        known = {one.name: told[one.name] for one in fields(Facts) if one.name in told}
        _check_leaves(known)
        known["runs"] = [InRun(**one) for one in told.get("runs", ())]
        known["parts"] = [InParts(**one) for one in told.get("parts", ())]
        found = Facts(**known)
        _check(found)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{path} holds no facts of a calibration ({error}); python -m real.calibrate"
            " facts=FILE writes them"
        ) from None
    return found


def of_known_precisions(facts: Facts, place: Path) -> Facts:
    """The facts without experts at precisions that nobody here knows, which ``left_out`` tells.

    No run could be built on a machine that has times of them. Raise ValueError where none is known.
    """
    unknown = [name for name in facts.experts if name not in PRECISIONS]
    if not unknown:
        return facts
    told = f"experts at {', '.join(unknown)}: no precision here; known: {', '.join(PRECISIONS)}"
    if len(unknown) == len(facts.experts):
        raise ValueError(f"{place} has {told}")

    def known(by_precision: Mapping[str, Any]) -> dict[str, Any]:
        return {name: one for name, one in by_precision.items() if name not in unknown}

    return replace(
        facts,
        experts=known(facts.experts),
        expert_bytes=known(facts.expert_bytes),
        dequantise=known(facts.dequantise),
        left_out=[*facts.left_out, told],
    )


def _check_leaves(node: Any, place: str = "") -> None:
    """Raise ValueError for a number that is not finite, and for a text where a number is meant."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        dotted = f"{place}.{key}" if place else str(key)
        if isinstance(value, dict | list):
            _check_leaves(value, dotted)
        elif isinstance(value, str) and TEXTS.isdisjoint(dotted.split(".")):
            raise ValueError(f"{dotted}={value!r} must be a number")
        elif isinstance(value, float) and not isfinite(value):
            raise ValueError(f"{dotted}={value!r} must be finite")


def _check(found: Facts) -> None:
    """Raise ValueError, or TypeError, for facts that no calibration measures."""
    if not found.copy or not found.experts or not found.expert_bytes:
        raise ValueError("it has no copies or no experts")
    for points in (
        found.copy,
        found.overlapped,
        found.on_cpu,
        found.together,
        *found.experts.values(),
    ):
        if any(len(point) != 2 or not 0 < float(point[1]) < inf for point in points):
            raise ValueError(f"{points!r} are no points (argument, ns)")
    for name, of in found.experts.items():
        if 1 not in dict(of) or not found.expert_bytes.get(name, 0) > 0:
            raise ValueError(f"experts in {name} need a time of one row, and their bytes")
    if not all(size > 0 for size, _ in found.copy):
        raise ValueError("a copy of no bytes tells no rate")
    lone = {name: getattr(found, name) for name in ("dense", "tail", "operation")}
    for name, value in (lone | found.host).items():
        if (name not in lone and name not in HOST) or not 0 <= float(value) < inf:
            raise ValueError(f"{name}={value!r} is no time in ns")
