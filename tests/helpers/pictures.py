"""What a figure shows, as text: a line for each thing that is drawn, with its place and its looks.

Places are in the units of the axes, and never in those of the page: how the layout divides the page
depends on the widths of letters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.collections import Collection, LineCollection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.text import Annotation, Text


def content(figure: Any) -> str:
    """The lines of a figure, which must not have been closed."""
    figure.draw_without_rendering()
    return "\n".join(_figure(figure)) + "\n"


def _figure(figure: Any) -> Iterator[str]:
    yield f"figure {_told(figure.get_size_inches())} {type(figure.get_layout_engine()).__name__}"
    yield from (f"  {line}" for text in figure.texts for line in _text(text, None))
    for axis in figure.axes:
        yield "axes"
        yield from (f"  {line}" for line in _axes(axis))


def _axes(axis: Any) -> Iterator[str]:
    for name in ("x", "y"):
        yield from _scale(axis, name)
    yield f"sides {' '.join(side for side, spine in axis.spines.items() if spine.get_visible())}"
    if axis.get_title():
        yield from _text(axis.title, None)
    own = {axis.patch, axis.title, axis._left_title, axis._right_title, *axis.spines.values()}
    for artist in axis.get_children():
        if artist not in own and artist.get_visible():
            yield from _artist(artist, axis)
    if axis.get_legend():
        yield from _legend(axis.get_legend(), axis)


def _scale(axis: Any, name: str) -> Iterator[str]:
    """Limits, scale, label and ticks of one direction."""
    of, limits = getattr(axis, f"{name}axis"), getattr(axis, f"get_{name}lim")()
    yield f"{name} {getattr(axis, f'get_{name}scale')()} {_told(limits)}"
    yield from (f"  {line}" for line in _text(of.label, None))
    for kind, ticks in (("ticks", of.get_major_ticks()), ("small ticks", of.get_minor_ticks())):
        low, high = sorted(limits)
        shown = [tick for tick in ticks if low <= tick.get_loc() <= high]
        if shown:
            marks = [f"{_told([tick.get_loc()])}{tick.label1.get_text()!r}" for tick in shown]
            size = _told([shown[0].label1.get_fontsize()])
            grid = " with a grid" if shown[0].gridline.get_visible() else ""
            yield f"  {kind} size {size}{grid}: {' '.join(marks)}"


def _artist(artist: Any, axis: Any) -> Iterator[str]:
    if isinstance(artist, Line2D):
        yield f"line {_label(artist)} {_frame(artist, axis)} {_looks_of_line(artist)}"
        yield f"  x {_told(artist.get_xdata())}"
        yield f"  y {_told(artist.get_ydata())}"
    elif isinstance(artist, Text):
        yield from _text(artist, axis)
    elif isinstance(artist, Patch):
        corners: Any = artist.get_xy() if hasattr(artist, "get_xy") else ()
        if isinstance(artist, Rectangle):
            corners = [*corners, artist.get_width(), artist.get_height()]
        yield f"{type(artist).__name__} {_label(artist)} {_looks_of_area(artist)} {_told(corners)}"
    elif isinstance(artist, Collection):
        yield from _collection(artist)


def _collection(found: Collection) -> Iterator[str]:
    colours = " ".join(to_hex(one, keep_alpha=True) for one in found.get_facecolor())
    edges = " ".join(to_hex(one, keep_alpha=True) for one in found.get_edgecolor())
    yield (
        f"{type(found).__name__} {_label(found)} faces [{colours}] edges [{edges}]"
        f" widths {_told(found.get_linewidth())} above {found.get_zorder():g}"
    )
    if isinstance(found, LineCollection):
        yield from (f"  {_told(one)}" for one in found.get_segments())
    elif isinstance(found, PathCollection):
        yield f"  sizes {_told(found.get_sizes())}"
        yield from (f"  marker {_told(path.vertices)}" for path in found.get_paths())
        yield f"  at {_told(np.asarray(found.get_offsets()))}"


def _legend(legend: Any, axis: Any) -> Iterator[str]:
    place = legend.get_bbox_to_anchor().transformed(axis.transAxes.inverted()).get_points()
    title = legend.get_title().get_text()
    yield (
        f"legend {title!r} loc {legend._loc} frame {legend.get_frame_on()}"
        f" columns {legend._ncols} in {_told(np.round(place, 6))}"
    )
    for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
        looks = ""
        if isinstance(handle, Line2D):
            looks = _looks_of_line(handle)
        elif isinstance(handle, Patch):
            looks = _looks_of_area(handle)
        yield from (f"  {line}, {type(handle).__name__} {looks}" for line in _text(text, None))


def _text(text: Text, axis: Any) -> Iterator[str]:
    """A text, and with ``axis`` its place."""
    if not text.get_text():
        return
    place = ""
    if axis is not None:
        place = f" at {_told(text.get_position())} {_frame(text, axis)}"
    if isinstance(text, Annotation):
        place = f" beside {_told(text.xy)} by {_told(text.xyann)} {text.anncoords}"
    angle = f" turned {text.get_rotation():g}" if text.get_rotation() else ""
    angle += " wrapped" if text.get_wrap() else ""
    yield (
        f"text {text.get_text()!r} size {text.get_fontsize():g} {to_hex(text.get_color())}"
        f" {text.get_horizontalalignment()} {text.get_verticalalignment()}{angle}{place}"
    )


def _label(artist: Any) -> str:
    label = str(artist.get_label())
    return "" if label.startswith("_") else repr(label)


def _frame(artist: Any, axis: Any) -> str:
    """Of what the numbers of a place are."""
    frames = {
        "data": axis.transData,
        "axes": axis.transAxes,
        "x in data": axis.get_xaxis_transform(),
        "y in data": axis.get_yaxis_transform(),
    }
    return next((name for name, of in frames.items() if artist.get_transform() == of), "elsewhere")


def _looks_of_line(line: Line2D) -> str:
    alpha = "" if line.get_alpha() is None else f" alpha {line.get_alpha():g}"
    return (
        f"{to_hex(line.get_color())} width {line.get_linewidth():g} {line.get_linestyle()}"
        f" {line.get_drawstyle()} marker {line.get_marker()} size {line.get_markersize():g}"
        f" above {line.get_zorder():g}{alpha}"
    )


def _looks_of_area(patch: Patch) -> str:
    face, edge = (
        to_hex(colour, keep_alpha=True) for colour in (patch.get_facecolor(), patch.get_edgecolor())
    )
    hatch = f" hatch {patch.get_hatch()}" if patch.get_hatch() else ""
    return f"face {face} edge {edge} width {patch.get_linewidth():g}{hatch}"


def _told(values: Any) -> str:
    """Numbers to six digits; names as they are."""
    return "[" + ", ".join(_one(value) for value in np.ravel(_plain(values))) + "]"


def _plain(values: Any) -> Any:
    return np.ma.filled(values, np.nan) if np.ma.isMaskedArray(values) else np.asarray(values)


def _one(value: Any) -> str:
    return f"{float(value):.6g}" if isinstance(value, (int, float, np.number)) else str(value)
