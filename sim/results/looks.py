"""How every figure of the project looks, and how it is saved: one style, as PNG and as SVG.

Colours are those of Okabe and Ito, which people with any colour vision tell apart, then a brown and
six of Paul Tol's. What belongs to no system is grey.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#8C6D31",
    "#882255",
    "#999933",
    "#44AA99",
    "#AA4499",
    "#661100",
    "#332288",
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
NEUTRAL = "0.55"
STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "svg.fonttype": "none",
    "savefig.dpi": 150,
}
"""What `matplotlib.rc_context` takes, colours apart."""


@contextmanager
def looks(salt: str) -> Iterator[Any]:
    """Draw in the project's style; yield ``matplotlib.pyplot``.

    ``salt`` makes the names inside an SVG, so that equal figures are equal files. Letters that the
    font lacks are no reason to warn: an SVG has them, and a PNG their numbers.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from cycler import cycler

    cycle = cycler(color=COLOURS)
    with (
        plt.rc_context({**STYLE, "axes.prop_cycle": cycle, "svg.hashsalt": salt}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .*missing from")
        yield plt


def save(figure: Any, stem: Path) -> tuple[Path, Path]:
    """Write a figure as ``stem.png`` and ``stem.svg``, without dates, and close it."""
    import matplotlib.pyplot as plt

    png, svg = (stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg"))
    figure.savefig(svg, metadata={"Date": None})
    use_letters_of_font(figure)
    figure.savefig(png)
    plt.close(figure)
    return png, svg


def use_letters_of_font(figure: Any) -> bool:
    """Put numbers such as ``\\u4e2d`` in the place of letters that the font lacks, in a figure that
    was drawn already; say whether there were any. In a PNG they would all be the same box.
    """
    from matplotlib.text import Text

    found = False
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            labels = [label.get_text() for label in axis.get_ticklabels()]
            if (plain := [in_font(label) for label in labels]) != labels:
                axis.set_ticks(axis.get_ticklocs(), labels=plain)
                found = True
    for text in figure.findobj(Text):
        if (told := in_font(text.get_text())) != text.get_text():
            text.set_text(told)
            found = True
    return found


def in_font(text: str) -> str:
    """``text`` with the numbers of those letters that the font of figures lacks."""
    if text.isascii():
        return text
    from matplotlib.font_manager import FontProperties, findfont, get_font

    known = get_font(findfont(FontProperties())).get_charmap()
    return "".join(
        letter
        if ord(letter) in known or letter.isspace()
        else letter.encode("unicode_escape").decode()
        for letter in text
    )
