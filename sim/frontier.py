"""``python -m sim.frontier``: hits and loads of cache policies at every number of slots.

    python -m sim.frontier [policies=lru,sieve,..] [points=8] [OVERRIDES...] [output_dir=DIR]

LRU is exact at every capacity from one pass over the gates. Other policies are walked without a
clock, once for each of the ``points`` between the largest union of a gate and all experts. Both are
the hits of ``python -m sim`` where nothing is prefetched; what makes decisions depend on time is
refused, naming the switch (docs/frontier.md). Beside each policy stands how many times the fewest
loads of any cache it makes. Hits do not depend on the machine, so its memory is no limit here.
``output_dir`` gets ``table.csv`` and ``table.json``, with every capacity that is known, and
``figure.png`` and ``figure.svg``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from sim.process.files import write_json
from sim.process.interrupts import telling
from sim.process.printing import print_text
from sim.process.progress import Shown
from sim.process.shared import Shared
from sim.results.folders import folder_for, own_folder
from sim.results.labels import Labels, labels_of, told, write_on
from sim.results.looks import MARKERS, NEUTRAL, looks, save
from sim.results.run import Run
from sim.screening.frontier import (
    Point,
    Requests,
    curve_of,
    least_loads,
    requests_of,
    require_slots,
    walked,
    why_not_at_once,
)
from sim.screening.moves import ScreenError, require_screenable
from sim.setup.build import build
from sim.setup.configure import changes
from sim.study.cells import plan_cells
from sim.study.plan import DEFAULTS, Plan
from sim.values.types import CapacityError
from sim.values.units import GIB
from sim.verbs.names import chosen_part
from sim.verbs.table import verb_of
from sim.verbs.words import read

NO_LIMIT = "hardware.memory_gib=1000000"
"""All experts have room: hits do not depend on the machine."""
WIDTH = 118
PARTS = 10**9
"""Shares of the experts are given in so many parts: finer than one slot."""


@dataclass(frozen=True, eq=False)
class Policy:
    """What is known of one policy: its points by slots, and the fewest loads of any cache by slots,
    with its initial contents.

    ``is_exact`` everywhere: from one pass. Else the points are those that were walked.
    """

    name: str
    is_exact: bool
    points: dict[int, Point]
    fewest: dict[int, int | None]
    labels: Labels

    def times_fewest(self, slots: int) -> float | None:
        """Its loads over the fewest of any cache; None where that is not known, or there are none."""
        fewest, point = self.fewest.get(slots), self.points.get(slots)
        return None if not fewest or point is None else point.loads / fewest


@dataclass(frozen=True, eq=False)
class Frontier:
    """All policies; ``shown`` are the numbers of slots that the table has, up to ``most``."""

    title: str
    policies: tuple[Policy, ...]
    shown: tuple[int, ...]
    most: int
    slot_bytes: int

    def named(self) -> list[tuple[str, Labels]]:
        return [(one.name, one.labels) for one in self.policies]


class Runs:
    """Fresh runs of one configuration with any cache policy and number of slots."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words, self._shared = tuple(words), Shared()

    def make(self, policy: str | None, slots: int = 1, of: int = 1) -> Run:
        """A run with ``slots`` of the slots ``of`` all experts; None: the system's own policy."""
        values = {"budget.resident_share": ceil(slots * PARTS / of) / PARTS}
        grid: dict[str, Sequence[Any]] = {key: [value] for key, value in values.items()}
        if policy is not None:
            grid = {"cache": [policy], **grid}
        plan = Plan("frontier", base=(*DEFAULTS, *self._words, NO_LIMIT), grids=(grid,))
        (cell,) = plan_cells(plan)
        return build(cell.config, cell.system, shared=self._shared, changed=changes(self._words))


def frontier(words: Sequence[str], names: Sequence[str | None], points: int) -> Frontier:
    """The frontier of these policies. Raise ValueError for what cannot run or be screened."""
    runs = Runs(words)
    first = [runs.make(name) for name in names]
    for run in first:
        require_screenable(run.controller, run.workload.is_timed)
        require_slots(run.controller)
        _require_whole(run)
    run = first[0]
    requests, most = requests_of(run.controller, run.workload), run.controller.slots.count
    least = min(requests.largest_union, most)
    shown = tuple(dict.fromkeys(least + (most - least) * n // points for n in range(points + 1)))
    with Shown() as bar:
        found = [
            _policy(runs, name, one, requests, shown, bar)
            for name, one in zip(names, first, strict=True)
        ]
    count = len(run.workload.sequences)
    title = (
        f"{run.system.split()[0]}, {run.model.name}; trace {run.trace.header.name}"
        f" ({run.config['trace']['split']}), {count} sequence{'s' * (count != 1)},"
        f" {run.workload.num_gates} gates"
    )
    return Frontier(title, tuple(found), shown, most, run.controller.geometry.slot_sizes[0])


def _require_whole(full: Run) -> None:
    """Raise ScreenError for a policy that leaves slots unused where all experts have room."""
    slots, geometry = full.controller.slots, full.controller.geometry
    if slots.count < geometry.capacity_bytes // geometry.slot_sizes[0]:
        raise ScreenError(
            f"cache: {type(full.controller.cache).__name__} has room for {slots.count} experts"
            " whatever the budget, so it has no curve; choose another cache"
        )


def _file_of(run: Run) -> str:
    """The cache of a run by its file, as ``policies=`` names it; one of no file by its class."""
    is_replaced = any(word.startswith("cache._target_=") for word in run.system.split())
    named = None if is_replaced else chosen_part(run.system, "cache")
    return named or type(run.controller.cache).__name__


def _policy(
    runs: Runs,
    name: str | None,
    full: Run,
    requests: Requests,
    shown: Sequence[int],
    bar: Shown,
) -> Policy:
    most = full.controller.slots.count
    called = name or _file_of(full)
    labels = replace(labels_of(full, None), machine=None)  # no time is told
    is_exact = why_not_at_once(full.controller) is None
    fewest: dict[int, int | None] = {}
    points: dict[int, Point] = {}
    for slots in bar.track(shown, description=called):
        try:
            # Where each layer has a pool, what is there at first depends on the number of slots.
            run = runs.make(name, slots, most)
            fewest[slots] = least_loads(run.controller, run.workload, requests)
            if not is_exact:
                points[slots] = walked(run.controller, run.workload)
        except (ScreenError, CapacityError):
            # A pool of it is smaller than what a token or a union needs at once. Where all experts
            # have room that is not the reason, and it has no point at any number of slots.
            if slots == most:
                raise
    if is_exact:
        curve = curve_of(full.controller, full.workload)
        points = {slots: curve.at(slots) for slots in range(curve.least, most + 1)}
    return Policy(called, is_exact, points, fewest, labels)


def show(found: Frontier, console: Console) -> None:
    """Print a line for each number of slots shown, what stands out, and the labels."""
    heads = [one.name if one.is_exact else f"{one.name} *" for one in found.policies]
    table = Table(
        "slots",
        "resident",
        "GiB",
        *heads,
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for slots in found.shown:
        cells = [_cell(one, slots) for one in found.policies]
        gib = slots * found.slot_bytes / GIB
        table.add_row(str(slots), f"{slots / found.most:.1%}", f"{gib:.3g}", *cells)
    said = f"{found.title}: hit ratio of decode (loads of the whole run, x the fewest of any cache)"
    print_text(console, said)
    console.print(table)
    for line in _lines(found):
        print_text(console, line)


def _cell(one: Policy, slots: int) -> str:
    point, times = one.points.get(slots), one.times_fewest(slots)
    if point is None:
        return "-"
    ratio = "-" if point.hit_ratio is None else f"{point.hit_ratio:.3f}"
    return ratio if times is None else f"{ratio} ({times:.2f}x)"


def _lines(found: Frontier) -> Iterable[str]:
    exact = [one.name for one in found.policies if one.is_exact]
    if exact:
        yield f"{', '.join(exact)}: exact at every number of slots, from one pass."
    if len(exact) < len(found.policies):
        yield "*: walked at these numbers of slots; - where a union does not fit a pool."
    middle = found.shown[len(found.shown) // 2]
    known = [one for one in found.policies if middle in one.points and one.labels.is_system]
    if known:
        best = min(known, key=lambda one: one.points[middle].loads)
        times = best.times_fewest(middle)
        than = "" if times is None else f", {times:.2f}x the fewest of any cache"
        yield (
            f"With {middle} slots ({middle / found.most:.0%} resident) {best.name} makes the fewest"
            f" loads of these: {best.points[middle].loads:,}{than}."
        )
    yield from told(found.named())


def rows_of(found: Frontier) -> list[dict[str, Any]]:
    """A row for each policy and number of slots that is known."""
    return [
        {
            "policy": one.name,
            "exact_everywhere": one.is_exact,
            "slots": slots,
            "resident_share": slots / found.most,
            "gib": slots * found.slot_bytes / GIB,
            "hit_ratio": point.hit_ratio,
            "hits": point.hits,
            "asked": point.asked,
            "loads": point.loads,
            "fewest_loads": one.fewest.get(slots),
        }
        for one in found.policies
        for slots, point in sorted(one.points.items())
    ]


def write(found: Frontier, directory: Path) -> None:
    """Write the rows and the figure into ``directory``."""
    labels = told(found.named())
    rows = rows_of(found)
    pl.DataFrame([{**row, "labels": "; ".join(labels)} for row in rows]).write_csv(
        directory / "table.csv"
    )
    content = {"title": found.title, "labels": labels, "rows": rows}
    write_json(directory / "table.json", content)
    draw(found, directory)


def draw(found: Frontier, directory: Path) -> None:
    """Draw hits, and loads, by the share of experts that is resident."""
    with looks("frontier") as plt:
        figure, (hits, loads) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
        for one, marker in zip(found.policies, MARKERS * len(found.policies), strict=False):
            slots = sorted(one.points)
            share = [100 * number / found.most for number in slots]
            style = {"marker": None if one.is_exact else marker, "label": one.name}
            hits.plot(share, [one.points[number].hit_ratio for number in slots], **style)
            loads.plot(share, [one.points[number].loads for number in slots], **style)
        bound = found.policies[0].fewest
        at = [slots for slots, least in bound.items() if least is not None]
        loads.plot(
            [100 * slots / found.most for slots in at],
            [bound[slots] for slots in at],
            color=NEUTRAL,
            linestyle="--",
            label="the fewest of any cache",
        )
        hits.set(xlabel="experts resident (%)", ylabel="hit ratio, decode", ylim=(0, 1.02))
        loads.set(xlabel="experts resident (%)", ylabel="loads of the whole run", ylim=(0, None))
        loads.legend()
        figure.suptitle(found.title)
        write_on(figure, found.named())
        save(figure, directory / "figure")


@telling("nothing was written")
def main(words: Sequence[str]) -> int:
    """Run the command; return exit status 0, or 2 with one message."""
    try:
        given = read(verb_of("frontier"), words)
        own = given.own
        if "policies" in own and any(word.startswith("cache=") for word in given.overrides):
            raise ValueError("policies= and cache= both name the caches; give one of them")
        names: list[str | None] = [*own["policies"].split(",")] if "policies" in own else [None]
        directory = folder_for(own, Path("outputs/frontier"))
        with own_folder(directory, overwrite=own.get("overwrite") == "yes"):
            found = frontier(given.overrides, names, int(own.get("points", 8)))
            write(found, directory)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    show(found, Console(width=WIDTH))
    print(f"files: {directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
