"""Labels: what a reader must know of a run's numbers before believing them.

They are computed once and carried along with the numbers. A summary holds them under ``labels``;
trials, points, rows of studies and comparisons keep them. Code that prints numbers of runs must
print ``told`` of their labels; code that draws numbers must call ``write_on``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import polars as pl

from sim.machine.precision import AS_STORED, PRECISION_BITS, bits_of_file, says_dense_bits
from sim.machine.replayed_gates import replaying
from sim.machine.validated import Validated
from sim.results.run import Run
from sim.traces.drafts import STANDS_IN
from sim.traces.header import Header

Named = Iterable[tuple[str, "Labels"]]
"""Pairs of a name (of a system, a run, ..) and its labels; a name may come several times."""
POINTS_A_LETTER = 0.5
"""The width of a letter in a figure, as a share of the font size."""
FILLED = 0.95
"""The most of a figure's width that a line fills: letters drawn as pixels are a little wider."""
LEAST_LETTERS = 20
"""No line of a figure is made shorter than this."""
KEEPS_TIMES = ("hardware.memory_gib", "hardware.reserved_gib")
"""Keys of a machine that say how much it holds, and not what work takes."""
OF_RUNS = ("lossy", "knows_future", "reference")
"""Labels that one run of a system may have, and another not; others name what they are about."""
MOST_NAMES = 6
"""Of more runs than these a caption names the others, or says how many they are."""


@dataclass(frozen=True)
class Labels:
    """The labels of one run: each a text that can stand alone, or None.

    | label | what it tells |
    |---|---|
    | transplanted | gates are of one model, sizes of another, and which part of that other model |
    | part | the model has other layers or experts than the published one, or larger ones; or requests were left out |
    | synthetic | nobody recorded these gates |
    | machine | how far times of this machine were from measured ones; or that nobody compared any |
    | lossy | what was served is not the model as it is published |
    | knows_future | decisions used what no system can know |
    | reference | the run does what no machine can |

    ``changed`` has the overrides of machine, model, trace and workload.
    """

    transplanted: str | None = None
    part: str | None = None
    synthetic: str | None = None
    machine: str | None = None
    lossy: str | None = None
    knows_future: str | None = None
    reference: str | None = None
    changed: tuple[str, ...] = ()

    @property
    def is_system(self) -> bool:
        """Whether a real system could have done this; else it is a bound, and on no front."""
        return self.knows_future is None and self.reference is None

    def kinds(self) -> dict[str, str | None]:
        """The texts by name, for a summary, which has ``changed`` under ``overrides``."""
        return {name: getattr(self, name) for name in TEXTS}

    def row(self) -> dict[str, Any]:
        """All labels as plain values, for JSON and for a column; see `from_row`."""
        return {**self.kinds(), "changed": list(self.changed)}


TEXTS = tuple(field.name for field in fields(Labels) if field.name != "changed")


def labels_of(run: Run, lookups: pl.DataFrame | None, rounding: Collection[str] = ()) -> Labels:
    """The labels of a run that has ended with these ``lookups`` (contract C113).

    Before the run there are no lookups (None): then the labels that are certain beforehand.
    ``rounding``: precisions in which a device did not have this model's own weights.
    """
    model = replaying(run.model, run.trace.header.model.name)
    return Labels(
        transplanted=model.transplant,
        part="; ".join(filter(None, (model.part, _larger(run), _first_requests(run)))) or None,
        synthetic=synthetic_label(run.trace.header),
        machine=_machine(run),
        lossy=_lossy(run, lookups, rounding),
        knows_future=_knowledge(run),
        reference=(
            "a reference: copies take no time" if run.controller.loader.copies == "free" else None
        ),
        changed=run.changed,
    )


def error_of(run: Run) -> Validated | None:
    """How far times of the run's machine were from measured ones.

    None where nobody compared them, and where the run's words change what work takes there: with
    other figures it is another machine.
    """
    return None if any(map(_retimes, run.changed)) else run.hardware.compared


def _retimes(word: str) -> bool:
    key = word.lstrip("+~").partition("=")[0]
    return key.startswith("hardware.") and key not in KEEPS_TIMES


def _machine(run: Run) -> str:
    hardware, error = run.hardware, error_of(run)
    told = f"no time of {hardware.title} was ever compared with a real machine's"
    if error is not None:
        told = f"{hardware.name}: {error}"
    lent = hardware.measured and hardware.measured.told(run.controller.geometry.precisions)
    return f"{told}; {lent}" if lent else told


def synthetic_label(header: Header) -> str | None:
    """The label of a trace with gates that nobody recorded, for numbers computed from the trace
    alone; else None.
    """
    told = [f"SYNTHETIC gates: {header.name}"] if header.source == "synthetic" else []
    told += [str(header.provenance[STANDS_IN])] if STANDS_IN in header.provenance else []
    return "; ".join(told) or None


def _larger(run: Run) -> str | None:
    """That experts take more bytes than those that are published, in fewer bits than usual.

    Systems choose 16 bits unless told, which a model that is published in 4 does not have.
    """
    model, best = run.model, run.controller.geometry.precisions[0]
    if model.stored in AS_STORED:
        return None
    times = PRECISION_BITS[best] / PRECISION_BITS[model.stored]
    if times <= 1:
        return None
    return f"experts at {best} take {times:.2g} times the bytes of the published {model.stored}"


def _first_requests(run: Run) -> str | None:
    """How many of the requests found a sequence of the trace to stand for, where not all did."""
    asked, had = len(run.workload.lengths.each), len(run.workload.sequences)
    return (
        f"the first {had} of {asked} requests: the run has no more sequences"
        if asked > had
        else None
    )


def _lossy(run: Run, lookups: pl.DataFrame | None, rounding: Collection[str] = ()) -> str | None:
    """The ways in which something was lost, prompts included; None where nothing was."""
    geometry = run.controller.geometry
    best, *others = geometry.precisions

    def stored(name: str) -> bool:
        return run.model.keeps(name) and name not in rounding

    what = "expert" if says_dense_bits(run.config) or bits_of_file((best,)) is None else "weight"
    ways = [] if stored(best) else [f"every {what} at {best} or below"]
    if lookups is not None:
        low = pl.col("served").is_in([name for name in others if not stored(name)])
        is_skip = pl.col("outcome") == "skip"
        elsewhere = ~is_skip & (pl.col("key") % geometry.units != pl.col("expert"))
        found = {
            "experts at low precision": low,
            "experts skipped": is_skip,
            "experts in the place of others": elsewhere,
        }
        ways += [way for way, rows in found.items() if lookups.select(rows.any()).item()]
    if run.controller.payload.partial:
        ways.append("channels left out")
    return f"lossy ({', '.join(ways)})" if ways else None


def _knowledge(run: Run) -> str | None:
    """Which policies, or drafts, know of the run what is still to come."""
    ways = [type(policy).__name__ for policy in run.policies.values() if policy.requires.future]
    if run.workload.speculation.is_certain:
        ways.append("every draft is right")
    if run.known:
        ways.append(f"fitted on {run.known} of its sequences")
    return f"knows the future ({', '.join(ways)})" if ways else None


def labels_in(summary: Mapping[str, Any]) -> Labels:
    """The labels that a run's summary carries; raise ValueError for a summary without any."""
    if "labels" not in summary:
        raise ValueError(
            f"the summary of {summary.get('system', 'this run')} has no labels: an older version"
            " wrote it; run it again"
        )
    return from_row({**summary["labels"], "changed": summary["overrides"]})


def from_row(row: Mapping[str, Any]) -> Labels:
    """The labels that ``Labels.row`` turned into plain values."""
    return Labels(
        **{name: row.get(name) for name in TEXTS}, changed=tuple(row.get("changed") or ())
    )


def told(named: Named) -> list[str]:
    """What must be said of these runs, each text once.

    Texts that hold for all of them come first, then those of only some, with their names (of many
    runs: with the others' names, or with how many they are). A name
    may come several times, with settings that the reader sees anyway. Where only some of its runs
    are lossy, or know the future, that is said. Of its ``changed`` words only those that all of its
    runs share are said.
    """
    kept = list(named)
    names = list(dict.fromkeys(name for name, _ in kept))
    having: dict[str, dict[str, str]] = {}
    """By text: the names of the runs that have it, and each as it is written."""
    for kind in TEXTS:
        texts: dict[str, set[str | None]] = {}
        for name, labels in kept:
            texts.setdefault(name, set()).add(getattr(labels, kind))
        for name, labels in kept:
            text = getattr(labels, kind)
            if text is not None:
                in_part = kind in OF_RUNS and None in texts[name]
                having.setdefault(text, {})[name] = f"{name} (some runs)" if in_part else name
    common = (
        [word for word in kept[0][1].changed if all(word in labels.changed for _, labels in kept)]
        if kept
        else []
    )
    own: dict[str, dict[str, str]] = {}
    for name in names:
        changed = [set(labels.changed) for of, labels in kept if of == name]
        words = [word for of, labels in kept if of == name for word in labels.changed]
        if left := [
            word
            for word in dict.fromkeys(words)
            if word not in common and all(word in c for c in changed)
        ]:
            own.setdefault(f"with {' '.join(left)}", {})[name] = name
    of_all = [text for text, of in having.items() if {*of.values()} == {*names}]
    of_some = [(text, of) for text, of in (having | own).items() if text not in of_all]
    with_all = [f"with {' '.join(common)}"] if common else []
    return [*of_all, *with_all, *(f"{_who(of, names)}: {text}" for text, of in of_some)]


def _who(some: Mapping[str, str], names: Sequence[str]) -> str:
    """Names in a list that a reader finishes: all of them, or who is left out, or how many."""
    others = [name for name in names if name not in some]
    if len(some) <= MOST_NAMES:
        return ", ".join(some.values())
    in_part = " (some runs)" if [*some] != [*some.values()] else ""
    if others and len(others) <= MOST_NAMES:
        return f"all but {', '.join(others)}{in_part}"
    return f"{len(some)} of {len(names)}{in_part}"


def caption(named: Named) -> str:
    """``told`` in one line, empty where there is nothing to say."""
    return "; ".join(told(named))


def write_on(figure: Any, named: Named, size: float = 7.0) -> None:
    """Write ``told`` above a matplotlib figure, below its title, both in lines that fit its width.

    ``figure`` must have its title already, and a layout that makes room (``constrained``).
    """
    texts = told(named)
    if texts:
        title = figure.get_suptitle().splitlines()
        lines = fitted([*title, *texts], figure.get_figwidth() * 72, size)
        figure.suptitle("\n".join(lines), fontsize=size)


def fitted(texts: Sequence[str], points: float, size: float) -> list[str]:
    """``texts`` in lines of a figure that are at most so many points wide, at a font size.

    A ``$`` begins no formula there.
    """
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size)
    letters = int(points / (size * POINTS_A_LETTER))
    while True:
        lines = [
            line.replace("$", r"\$")
            for text in texts
            for line in textwrap.wrap(text, letters, subsequent_indent="  ")
        ]
        widths = [
            text_to_path.get_text_width_height_descent(line, font, False)[0] for line in lines
        ]
        if letters <= LEAST_LETTERS or max(widths, default=0.0) <= FILLED * points:
            return lines
        letters -= 1
