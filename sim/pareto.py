"""``python -m sim.pareto``: show speed and quality of runs, and which are on the front of both.

    python -m sim.pareto PATH... [measure=divergence] [output_dir=DIR]

A PATH is what ``python -m real.quality`` wrote (quality with its simulated speed), or a run of
``python -m sim`` or a study (speed alone), in any mixture. A run is joined to the quality of the
same system, trace, model, machine and budget. ``measure`` is ``divergence`` (KL, nats a token) or
``increase`` (of perplexity, as a share).

- A run that serves every need as the model is stored is *lossless*: nothing is lost, by
  construction.
- Only runs of the same work, on the same model and machine, are on one front. With other figures
  (``hardware.links.pcie.peak_gb_per_s=63``) it is another machine, or another model.
- A lossy run whose quality nobody measured is shown as such, and is on no front.
- A run that knows the future, or does what no machine can, is shown as a bound and is on no front.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sim.answers.comparison import short
from sim.process.printing import print_text
from sim.results.folders import own_folder
from sim.results.fronts import front
from sim.results.intervals import OVER
from sim.results.kept import check_whole, read_summary
from sim.results.kept_quality import FILE, read_qualities
from sim.results.labels import KEEPS_TIMES, Labels, fitted, from_row, labels_in, told, write_on
from sim.results.looks import COLOURS, NEUTRAL, looks, save
from sim.results.overview import work_of
from sim.setup.configure import group_of
from sim.study.dataset import CELLS, read_cells, read_part
from sim.study.kept_rows import last_cells, whole_rows
from sim.verbs.table import verb_of
from sim.verbs.words import read as read_words

MEASURES = {"divergence": "KL, nats a token", "increase": "increase of perplexity"}
LOSSLESS, LOSSY, UNMEASURED = "lossless", "lossy", "lossy, not measured"
Key = tuple[str, str, str, str, float]
"""System, trace, model, machine and resident share: equal for a run and its quality. Model and
machine have the words that change their figures.
"""
NAMED_ANYWAY = ("model", "hardware", *KEEPS_TIMES)
"""Keys of words that choose a model or a machine, or change no time of it."""
WIDTH = 118


@dataclass(frozen=True)
class Point:
    """The speed and the loss of one configuration.

    ``speed`` is decoded tokens a second (more is better); ``loss`` is what is lost by the measure
    (less is better), None where it is not known. Intervals are of 95 %, None where there is none.
    ``loop`` says in which loop, open or closed, the quality was measured, and ``measured`` with which
    words, where the run has others. ``work`` is what was run (`work_of`); ``own`` is what of it, of
    the model and of the machine not all points share, in words.
    """

    key: Key
    speed: float
    speed_interval: tuple[float, float] | None
    loss: float | None
    loss_interval: tuple[float, float] | None
    quality_class: str
    labels: Labels
    loop: str = ""
    measured: str = ""
    work: Mapping[str, Any] = field(default_factory=dict)
    own: str = ""

    @property
    def system(self) -> str:
        return f"{self.key[0]} ({self.own})" if self.own else self.key[0]

    @property
    def name(self) -> str:
        return f"{self.system}, {self.key[4]:.3g} resident"

    @property
    def front(self) -> tuple[str, ...]:
        """What the points of one front share."""
        return (*self.key[1:4], json.dumps(self.work, sort_keys=True))


def quality_class(summary: Mapping[str, Any]) -> str:
    """`LOSSLESS` if a run served every need as the model is stored, by its expert; else `LOSSY`."""
    return LOSSY if labels_in(summary).lossy else LOSSLESS


def join(
    summaries: Iterable[Mapping[str, Any]],
    qualities: Iterable[Mapping[str, Any]],
    measure: str = "divergence",
) -> list[Point]:
    """The points of runs that decode, each with the quality of the same configuration if there is one.

    ``qualities`` are rows of quality.json. Of several for one configuration the closed loop's
    counts. A quality without a run makes a point with the speed that was simulated with it. Raise
    ValueError for an unknown measure.
    """
    if measure not in MEASURES:
        raise ValueError(f"unknown measure={measure}; known: {', '.join(MEASURES)}")
    by_key: dict[Key, Mapping[str, Any]] = {}
    for quality in qualities:
        key = (
            quality["system"],
            quality["trace"],
            *_surrounding(quality, (quality.get("labels") or {}).get("changed") or ()),
            quality["resident_share"],
        )
        if key not in by_key or quality["loop"] == "closed":
            by_key[key] = quality
    points: list[Point] = []
    joined: set[Key] = set()
    for summary in summaries:
        if summary["decode_tokens_per_s"] is None:
            continue
        key = _key_of(summary)
        row = by_key.get(key)
        joined.add(key)
        speed, interval = summary["decode_tokens_per_s"], summary["ci95"]["decode_tokens_per_s"]
        speed_interval = None if interval is None else (interval[0], interval[1])
        if row is not None:
            point = _point(key, speed, speed_interval, row, measure)
            with_others = _other_words(summary, row)
            point = replace(point, labels=labels_in(summary), measured=with_others)
        elif quality_class(summary) == LOSSLESS:
            point = Point(key, speed, speed_interval, 0.0, (0.0, 0.0), LOSSLESS, labels_in(summary))
        else:
            point = Point(key, speed, speed_interval, None, None, UNMEASURED, labels_in(summary))
        points.append(replace(point, work=work_of(summary)))
    for key, row in by_key.items():
        if key not in joined:
            speed, speed_interval = (
                row["decode_tokens_per_s"],
                _interval(row, "decode_tokens_per_s"),
            )
            points.append(_point(key, speed, speed_interval, row, measure))
    return _told_apart(points)


def _other_words(summary: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """What to say of the words of a quality where its run has others: of other sequences, say."""
    words = from_row(row["labels"]).changed
    same = {*words} == {*summary["overrides"]}
    return "" if same else f"measured with {' '.join(words) or 'no words'}"


def _told_apart(points: Sequence[Point]) -> list[Point]:
    """The points, each with what of its model, machine and work not all share."""
    told = [{"model": point.key[2], "machine": point.key[3], **point.work} for point in points]
    varied = [
        name
        for name in dict.fromkeys(name for one in told for name in one)
        if len({json.dumps(one[name]) for one in told if name in one}) > 1
    ]
    return [
        replace(
            point,
            own=", ".join(f"{name} {short(its[name])}" for name in varied if name in its),
        )
        for point, its in zip(points, told, strict=True)
    ]


def _key_of(summary: Mapping[str, Any]) -> Key:
    return (
        summary["system"],
        summary["trace"]["name"],
        *_surrounding(summary, summary["overrides"]),
        summary["budget"]["resident_share"],
    )


def _surrounding(row: Mapping[str, Any], changed: Iterable[str]) -> tuple[str, str]:
    """Model and machine of a run, each with the words that change its figures."""
    words = [word for word in changed if word.lstrip("+~").partition("=")[0] not in NAMED_ANYWAY]
    model = [word for word in words if group_of(word) == "model"]
    machine = [word for word in words if group_of(word) in ("hardware", "devices")]
    return " ".join([row["model"], *sorted(model)]), " ".join([row["hardware"], *sorted(machine)])


def _point(
    key: Key,
    speed: float,
    speed_interval: tuple[float, float] | None,
    row: Mapping[str, Any],
    measure: str,
) -> Point:
    kind = LOSSLESS if row["divergence"] == 0 else LOSSY
    if absent := [name for name in ("labels", "work") if name not in row]:
        raise ValueError(
            f"the quality of {row['system']} has no {absent[0]}: an older version wrote it; measure"
            " it again"
        )
    return Point(
        key,
        speed,
        speed_interval,
        row[measure],
        _interval(row, measure),
        kind,
        from_row(row["labels"]),
        row["loop"],
        work=row["work"],
    )


def _interval(row: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return None if low is None or high is None else (low, high)


def read(paths: Sequence[Path]) -> tuple[list[dict[str, Any]], list[Mapping[str, Any]]]:
    """The summaries of runs, and the rows of qualities, in these files and folders.

    Raise ValueError for a path that has neither, that cannot be read, or that is named twice.
    """
    summaries: list[dict[str, Any]] = []
    qualities: list[Mapping[str, Any]] = []
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise ValueError(f"{path} is named twice; name it once")
        seen.add(path.resolve())
        is_cell = path.suffix == ".parquet" and path.is_file()
        check_whole(path)
        if (path / FILE).is_file():
            qualities += read_qualities(path)
        elif (path / "summary.json").is_file():
            summaries.append(read_summary(path))
        elif is_cell or (path / CELLS).is_dir():
            table = read_part(path) if is_cell else read_cells(path)
            if not {"summary", "overrides"} <= {*table.columns}:
                raise ValueError(f"{path} has no columns summary and overrides: it is no study's")
            rows = whole_rows(last_cells(table), path)
            summaries += [json.loads(row["summary"]) for row in rows if row["summary"]]
        else:
            raise ValueError(
                f"{path} has no quality.json, summary.json or cells/*.parquet; name a run, a study"
                " or what moelab quality wrote"
            )
    return summaries, qualities


def mark(points: Sequence[Point]) -> list[bool]:
    """Which points are on a front.

    There is a front for each trace, model, machine and work, and only real systems take part.
    """
    marks = [False] * len(points)
    for group in {point.front for point in points}:
        places = [
            place
            for place, point in enumerate(points)
            if point.front == group and point.labels.is_system
        ]
        speed = np.array([points[place].speed for place in places])
        loss = np.array(
            [np.nan if (lost := points[place].loss) is None else lost for place in places]
        )
        for place, is_on in zip(places, front(speed, loss).tolist(), strict=True):
            marks[place] = is_on
    return marks


def _surroundings(points: Sequence[Point]) -> list[str]:
    """The traces, models and machines of the points, in words."""
    return sorted({", ".join(point.key[1:4]) for point in points})


def _named(points: Sequence[Point]) -> list[tuple[str, Labels]]:
    return [(point.key[0], point.labels) for point in points]


def print_points(points: Sequence[Point], measure: str, console: Console) -> None:
    """Print every point with its speed, loss and quality class; mark those on the front."""
    marks = mark(points)
    surroundings = _surroundings(points)
    table = Table(
        "front",
        "system",
        "resident",
        "decode tokens/s",
        MEASURES[measure],
        "quality",
        title=escape("Speed and quality; " + "; ".join(surroundings)),
        title_justify="left",
        caption=f"Each row of a front is the fastest of its loss. In brackets: {OVER}",
    )
    table.columns[1].overflow = "fold"
    order = sorted(
        range(len(points)),
        key=lambda i: (
            not points[i].labels.is_system,
            points[i].front,
            points[i].loss is None,
            points[i].loss or 0,
            -points[i].speed,
        ),
    )
    for at, i in enumerate(order):
        point = points[i]
        if at and points[order[at - 1]].labels.is_system and not point.labels.is_system:
            # What knows the future stands apart, below what can be done.
            table.add_section()
            table.add_row("", "[i]bounds, no systems:[/i]")
        loss = "?" if point.loss is None else _with_interval(point.loss, point.loss_interval)
        of = ", ".join(filter(None, (point.loop and f"{point.loop} loop", point.measured)))
        kind = escape(f"{point.quality_class} ({of})" if of else point.quality_class)
        table.add_row(
            "*" if marks[i] else "",
            escape(point.system),
            f"{point.key[4]:.3g}",
            escape(_with_interval(point.speed, point.speed_interval)),
            escape(loss),
            kind,
        )
    console.print(table)
    on = [points[i].name for i in order if marks[i]]
    for line in (f"On the front: {'; '.join(on)}.", *told(_named(points))):
        print_text(console, line)


def _with_interval(value: float, interval: tuple[float, float] | None) -> str:
    return (
        f"{value:.3g}"
        if interval is None
        else f"{value:.3g} [{interval[0]:.3g}, {interval[1]:.3g}]"
    )


def draw(points: Sequence[Point], measure: str, directory: Path) -> list[Path]:
    """Draw loss against speed, the front joined by a line: ``pareto.png`` and ``pareto.svg``."""
    with looks("pareto") as plt:
        figure, axis = plt.subplots(figsize=(7.5, 4.6), layout="constrained")
        _draw_points(axis, points)
        axis.set_xlabel(f"{MEASURES[measure]} (0: lossless)")
        axis.set_ylabel("decode (tokens/s)")
        # A symlog scale has a place for 0 beside losses of very different sizes.
        axis.set_xscale("symlog", linthresh=1e-4)
        axis.set_xlim(left=-2e-5)
        axis.xaxis.set_major_formatter("{x:g}")
        unknown = list(dict.fromkeys(point.name for point in points if point.loss is None))
        lines = ["Circle: on the front; cross: beaten; plus: a bound, no system"]
        lines += [f"not measured, so not here: {'; '.join(unknown)}"] * bool(unknown)
        axis.set_title("\n".join(fitted(lines, axis.figure.get_figwidth() * 72, 7)), fontsize=7)
        figure.suptitle("Speed and quality: " + "; ".join(_surroundings(points)))
        write_on(figure, _named(points))
        return list(save(figure, directory / "pareto"))


def _draw_points(axis: Any, points: Sequence[Point]) -> None:
    """Every point with its name, and a line through each front."""
    marks = mark(points)
    for group in dict.fromkeys(point.front for point in points):
        known = [
            (p, on)
            for p, on in zip(points, marks, strict=True)
            if p.loss is not None and p.front == group
        ]
        line = sorted((p.loss or 0.0, p.speed) for p, on in known if on)
        axis.plot(
            [x for x, _ in line],
            [y for _, y in line],
            color="0.6",
            drawstyle="steps-post",
            zorder=1,
        )
        for point, on in known:
            marker, colour = (
                ("o", COLOURS[0])
                if on
                else ("x", COLOURS[1])
                if point.labels.is_system
                else ("+", NEUTRAL)
            )
            axis.plot(point.loss, point.speed, marker, color=colour, zorder=2)
            axis.annotate(
                point.name,
                (point.loss or 0.0, point.speed),
                fontsize=6,
                xytext=(4, 3),
                textcoords="offset points",
            )


def main(words: Sequence[str]) -> int:
    """Run the command; return exit status 0, or 2 with one message on stderr."""
    try:
        given = read_words(verb_of("pareto"), words)
        paths, own = [Path(word) for word in given.places], given.own
        measure = own.get("measure", "divergence")
        summaries, qualities = read(paths)
        points = join(summaries, qualities, measure)
        if not points:
            raise ValueError("there is no finished run that decodes among these paths")
    except (ValueError, KeyError, OSError) as error:
        print(f"pareto: {error}", file=sys.stderr)
        return 2
    console = Console(width=WIDTH)
    print_points(points, measure, console)
    if "output_dir" in own:
        directory = Path(own["output_dir"])
        try:
            with own_folder(directory, overwrite=own.get("overwrite") == "yes"):
                files = draw(points, measure, directory)
        except OSError as error:
            print(f"pareto: {error}", file=sys.stderr)
            return 2
        print_text(console, f"files: {' '.join(map(str, files))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
