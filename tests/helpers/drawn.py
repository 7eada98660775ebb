"""Figures read back: what matplotlib holds of bars, curves and intervals, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure

Ends = list[tuple[float, float]]


def kept(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved from now on; they are kept, and no file is written."""
    figures: list[Figure] = []
    monkeypatch.setattr(
        Figure,
        "savefig",
        lambda figure, *_, **__: None if figure in figures else figures.append(figure),
    )
    return figures


def ticks(axis: Any, of: str) -> dict[float, str]:
    """By place the names on an axis (``x`` or ``y``), as they are drawn."""
    figure_axis = getattr(axis, f"{of}axis")
    names = [label.get_text() for label in getattr(axis, f"get_{of}ticklabels")()]
    return dict(zip(map(float, figure_axis.get_ticklocs()), names, strict=True))


def named_bars(axis: Any) -> dict[str, dict[str, tuple[float, float]]]:
    """By series and by name on the vertical axis: where a bar begins and ends."""
    names = ticks(axis, "y")
    return {
        str(series.get_label()): {
            names[round(bar.get_y() + bar.get_height() / 2, 6)]: (
                bar.get_x(),
                bar.get_x() + bar.get_width(),
            )
            for bar in series.patches
        }
        for series in axis.containers
        if isinstance(series, BarContainer)
    }


@dataclass(frozen=True)
class Points:
    """A series with its intervals: the ends along the axis that has them, None without any."""

    label: str
    x: list[float]
    y: list[float]
    across: Ends | None
    up: Ends | None
    colour: str


def points(axis: Any) -> list[Points]:
    """The series that were drawn with intervals, in order."""
    found = []
    for series in axis.containers:
        if isinstance(series, BarContainer) and series.errorbar is not None:
            x = [bar.get_x() + bar.get_width() for bar in series.patches]
            y = [bar.get_y() + bar.get_height() / 2 for bar in series.patches]
            colour, errors = series.patches[0].get_facecolor(), series.errorbar
        elif isinstance(series, ErrorbarContainer) and series.lines[0] is not None:
            line, errors = series.lines[0], series
            x, y = _data(line)
            colour = line.get_color()
        else:
            continue
        ends: list[Ends | None] = [None, None]
        segments = [collection.get_segments() for collection in errors.lines[2]]
        for at, has in enumerate((errors.has_xerr, errors.has_yerr)):
            if has:
                ends[at] = [(one[0][at], one[1][at]) for one in segments.pop(0)]
        found.append(Points(series.get_label(), x, y, ends[0], ends[1], to_hex(colour)))
    return found


def curves(axis: Any) -> dict[str, tuple[list[float], list[float]]]:
    """By label the places of each line that has one."""
    return {
        str(line.get_label()): _data(line)
        for line in axis.lines
        if not line.get_label().startswith("_")
    }


def _data(line: Any) -> tuple[list[float], list[float]]:
    return list(line.get_xdata()), list(line.get_ydata())


def upright(axis: Any) -> list[float]:
    """Where lines stand from the bottom of the axis to its top."""
    found = []
    for line in axis.lines:
        x, y = _data(line)
        if y == [0, 1] and len(set(x)) == 1 and line.get_transform() != axis.transData:
            found.append(float(x[0]))
    return found


def legend(axis: Any) -> list[str]:
    """The entries of the legend, [] without one."""
    found = axis.get_legend()
    return [] if found is None else [text.get_text() for text in found.get_texts()]


def notes(axis: Any) -> list[tuple[str, tuple[float, float]]]:
    """What is written beside points, each with its point; other texts with their own place."""
    places = [getattr(note, "xy", note.get_position()) for note in axis.texts]
    return [
        (note.get_text(), (float(x), float(y)))
        for note, (x, y) in zip(axis.texts, places, strict=True)
    ]


def is_all_inside(axis: Any) -> bool:
    """Whether the limits of the axes contain everything that is drawn by its data."""
    (left, right), (low, high) = sorted(axis.get_xlim()), sorted(axis.get_ylim())
    box = axis.dataLim
    return bool(left <= box.x0 and box.x1 <= right and low <= box.y0 and box.y1 <= high)
