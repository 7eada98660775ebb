"""What an answer to `moelab ask` consists of: rows, what fits, what would change it, what is needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sim.answers.ask_quality import Quality
from sim.results.labels import Labels
from sim.results.paired import Paired

LOSSLESS, LOSSY, BOUND = "lossless", "lossy", "bound"
KINDS = (LOSSLESS, LOSSY, BOUND)


@dataclass(frozen=True)
class Row:
    """One system at one precision. ``interval`` and ``first_interval`` are of 95 %, None where too
    few sequences stand behind one. ``lost``: what was lost, in words. ``quality``: what that costs
    this model, None where nobody measured it.
    """

    system: str
    precision: str
    words: tuple[str, ...]
    kind: str
    share: float
    tokens_per_s: float
    interval: tuple[float, float] | None
    first_s: float
    first_interval: tuple[float, float] | None
    waiting: float
    lost: str
    labels: Labels
    quality: Quality | None = None
    with_machine: tuple[float, float] | None = None
    """``interval`` with the errors of machines too, where these are known."""
    errors: str = "the machine's error"
    """Whose errors these are."""
    stored_gib: float = 0.0
    """What all experts take beyond the link, at every precision that the system uses."""
    behind: Paired | None = None
    """How many times as fast the fastest of its kind is, on the same sequences; None of that one."""

    @property
    def ties(self) -> bool:
        """Whether the same sequences do not tell it apart from the fastest of its kind."""
        if self.behind is None:
            return False
        interval = self.behind.interval or (self.behind.speedup,)
        return interval[0] <= 1

    @property
    def name(self) -> str:
        return f"{self.system} at {self.precision}"

    @property
    def why(self) -> str:
        """Why no system can do this; empty for one that can."""
        return "; ".join(filter(None, (self.labels.knows_future, self.labels.reference)))

    @property
    def is_all_resident(self) -> bool:
        """Whether nothing was offloaded, by a system that moves nothing else either, and serves
        what the router chose.
        """
        ways = {f"every {what} at {self.precision} or below" for what in ("expert", "weight")}
        whole = self.kind == LOSSLESS or (self.kind == LOSSY and self.lost in ways)
        return whole and self.share >= 1 and self.waiting == 0


@dataclass(frozen=True)
class Fit:
    """Whether all experts fit at a precision: the GiB that the model needs, and its verdict."""

    precision: str
    needs_gib: float
    fits: bool


@dataclass(frozen=True)
class Change:
    """What a change of the machine, the precision or the workload makes of the row ``of``.

    ``fewer_slots``: by how many fewer experts a layer the device's slots hold then.
    """

    what: str
    of: str
    tokens_per_s: float
    faster: Paired
    fewer_slots: float = 0.0


@dataclass(frozen=True)
class Need:
    """What the target needs of one thing. ``told`` is a sentence; ``value`` None: no amount does."""

    what: str
    value: float | None
    told: str


PCIE = "pcie"
"""Behind this link of the machines in ``conf/hardware`` there is host memory; behind others a drive."""


@dataclass(frozen=True)
class Found:
    """The whole answer."""

    model: str
    machine: str
    memory_gib: float
    gates: str
    prompt_tokens: float
    rows: tuple[Row, ...]
    refused: tuple[tuple[str, str], ...]
    fits: tuple[Fit, ...]
    changes: tuple[Change, ...]
    needs: tuple[Need, ...]
    target: float | None
    preset: str
    validated: str
    at_asked: tuple[Row, ...] = ()
    """Those that change no precision, at each that was asked for; ``behind`` is there among them."""
    left_out: str = ""
    """The precision of the published model, where nobody was asked at it."""
    home: str = PCIE
    """The machine's outermost link: all experts lie behind it."""
    data_sheets: str = ""
    """How far machines from data sheets were off; empty where this one was measured."""

    def of(self, kind: str) -> list[Row]:
        """The rows of a kind, fastest first."""
        return fastest_first(row for row in self.rows if row.kind == kind)

    def named(self, kind: str) -> list[Row]:
        """Those of a kind of which the answer names the fastest, fastest first.

        Where nobody was asked for the model as it is published, a system that brings a precision of
        its own, more than that, is no answer.
        """
        return [] if kind == LOSSLESS and self.left_out else self.of(kind)

    def best_at_asked(self) -> Mapping[str, list[Row]]:
        """By precision, the rows of `at_asked` whose fastest is not the fastest of its kind."""
        groups: dict[str, list[Row]] = {}
        for row in fastest_first(self.at_asked):
            groups.setdefault(row.precision, []).append(row)
        first = {rows[0].words for kind in KINDS if (rows := self.named(kind))}
        return {name: rows for name, rows in groups.items() if rows[0].words not in first}

    def plain(self) -> dict[str, Any]:
        """The answer as plain values, for JSON."""
        rows = [{**asdict(row), "labels": row.labels.row()} for row in self.rows]
        return {**asdict(self), "rows": rows}


def fastest_first(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (-row.tokens_per_s, row.first_s, row.name))


def alike(rows: Sequence[Row]) -> Mapping[tuple[object, ...], list[Row]]:
    """Rows that show the same numbers, together, in the order of the first of each."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        key = (row.precision, round(row.share, 3), f"{row.tokens_per_s:.4g}", f"{row.first_s:.3g}")
        groups.setdefault((*key, row.lost, row.quality), []).append(row)
    return groups
