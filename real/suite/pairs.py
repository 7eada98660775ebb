"""Predicted beside measured times: what a pair is, the file that keeps them, and their errors.

``real/results/pairs.csv`` keeps every pair that there is, so that errors, table and figure can be
made again where a machine's own files are not at hand.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean, median

from sim.machine.validated import Validated, validated
from sim.values.places import ROOT

FILE = ROOT / "real" / "results" / "pairs.csv"
PREDICTED, CALIBRATING, FITTED = "predicted", "calibrating", "fitted"
ROLES = (PREDICTED, CALIBRATING, FITTED)
"""What a measured run had to do with its prediction.

- ``predicted``: nothing. Only these are scored.
- ``calibrating``: other runs of its system were used.
- ``fitted``: the run itself was used.
"""
TOKEN, STEP, ONE, STALL, IO = "token", "step", "one token", "stall of one token", "I/O of one token"
READ = "token of a prompt"
QUANTITIES = (TOKEN, STEP, ONE, STALL, IO, READ)
"""What took the time: in the mean of a run, a token after the first, a step or a token of the prompt; or
one token.
"""
MEANS = (TOKEN, STEP, READ)
"""Those that are the mean of a run."""
SHEETS, SHEETS_AND_LINK = "data sheets", "data sheets, and the link's rate as told"
"""What predictions of machines that nobody measured are made of."""
CONTROLS = ("rates_1.1", "rates_0.9", "contention_off")
"""Machines that are wrong on purpose: all rates, or who slows whom."""
DIGITS = 7


class PairsError(ValueError):
    """A file of pairs, or a control, is not what it should be; the message says where."""


@dataclass(frozen=True)
class Pair:
    """A predicted and a measured time, in seconds.

    - ``machine``: as people call it; ``file``: the machine of ``conf/hardware`` that predicted it,
      empty where none of these did.
    - ``basis``: what the prediction is made of.
    - ``source``: the kind of run; ``run``: its system or name; ``share``: of the experts' bytes
      resident, None where that is not told.
    - ``noise``: how much repeats of a run differ there, as a share; 0 where nobody knows.
    - ``gates``: what must be said of the run's gates.
    - ``controls``: the times that wrong machines predict, by name.
    """

    machine: str
    file: str
    basis: str
    source: str
    run: str
    share: float | None
    quantity: str
    role: str
    measured_s: float
    predicted_s: float
    noise: float = 0.0
    gates: str = ""
    controls: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, known in (("role", ROLES), ("quantity", QUANTITIES)):
            if getattr(self, name) not in known:
                raise PairsError(f"{name}={getattr(self, name)!r}; allowed: {', '.join(known)}")
        if not (0 < self.measured_s < 1e6 and 0 < self.predicted_s < 1e6):
            raise PairsError(
                f"{self.machine}, {self.run}: {self.measured_s} s measured and {self.predicted_s}"
                " s predicted must be above 0 and below 1e6"
            )

    @property
    def error(self) -> float:
        """By how much the prediction is too long, as a share of what was measured."""
        return self.predicted_s / self.measured_s - 1

    @property
    def is_scored(self) -> bool:
        return self.role == PREDICTED


OWN = tuple(one.name for one in fields(Pair) if one.name != "controls")
COLUMNS = (*OWN, *CONTROLS)


def write_pairs(place: Path, pairs: Iterable[Pair]) -> None:
    """Write the file, a pair a line, in their order."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        for pair in pairs:
            own = [_text(getattr(pair, name)) for name in OWN]
            rows.writerow(own + [_text(pair.controls.get(name)) for name in CONTROLS])


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value)


def read_pairs(place: Path = FILE) -> list[Pair]:
    """The pairs of the file. Raise `PairsError`, naming file and line, for one that is none."""
    if not place.is_file():
        raise PairsError(f"{place} is not there: moelab fidelity output_dir=DIR writes one")
    found = []
    with place.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        if tuple(rows.fieldnames or ()) != COLUMNS:
            raise PairsError(f"{place}: the columns must be {', '.join(COLUMNS)}")
        for number, row in enumerate(rows, 2):
            try:
                found.append(_pair(row))
            except (ValueError, TypeError) as error:
                raise PairsError(f"{place}:{number}: {error}") from None
    return found


def _pair(row: Mapping[str, str]) -> Pair:
    return Pair(
        row["machine"],
        row["file"],
        row["basis"],
        row["source"],
        row["run"],
        float(row["share"]) if row["share"] else None,
        row["quantity"],
        row["role"],
        float(row["measured_s"]),
        float(row["predicted_s"]),
        float(row["noise"]),
        row["gates"],
        {name: float(row[name]) for name in CONTROLS if row[name]},
    )


def controlled(pairs: Sequence[Pair], control: str) -> list[Pair]:
    """The pairs as the wrong machine ``control`` predicts them; those without are left out.

    Raise `PairsError` for an unknown control.
    """
    if control not in CONTROLS:
        raise PairsError(f"control={control} is unknown; known: {', '.join(CONTROLS)}")
    return [
        replace(pair, predicted_s=pair.controls[control])
        for pair in pairs
        if control in pair.controls
    ]


@dataclass(frozen=True)
class Group:
    """The errors of the scored pairs of one machine, quantity and basis, as signed shares.

    ``others``: how many pairs are shown and not scored.
    """

    machine: str
    basis: str
    quantity: str
    file: str
    errors: tuple[float, ...]
    others: int

    @property
    def median(self) -> float:
        return median(map(abs, self.errors))

    @property
    def worst(self) -> float:
        """The error that is the largest factor, with its sign."""
        return max(self.errors, key=lambda error: max(1 + error, 1 / (1 + error)))

    @property
    def mean(self) -> float:
        return fmean(self.errors)


def groups(pairs: Sequence[Pair]) -> list[Group]:
    """The errors by machine, basis and quantity, in the order of the pairs."""
    by: dict[tuple[str, str, str, str], list[Pair]] = {}
    for pair in pairs:
        by.setdefault((pair.machine, pair.basis, pair.quantity, pair.file), []).append(pair)
    return [
        Group(
            *key, tuple(one.error for one in of if one.is_scored), sum(not p.is_scored for p in of)
        )
        for key, of in by.items()
    ]


def validated_of(pairs: Iterable[Pair]) -> dict[str, Validated]:
    """By machine of ``conf/hardware``: the errors of time per token over the scored runs."""
    by: dict[str, list[tuple[str, float, float]]] = {}
    for pair in pairs:
        if pair.file and pair.is_scored and pair.quantity == TOKEN:
            times = (pair.run.split()[0], pair.predicted_s, pair.measured_s)
            by.setdefault(pair.file, []).append(times)
    return {name: validated(times) for name, times in by.items()}
