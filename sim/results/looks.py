"""How every figure of the project looks, and how it is saved: one style, as PNG and as SVG.

Colours are those of Okabe and Ito, which people with any colour vision tell apart; what belongs to
no system is grey.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
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

    ``salt`` makes the names inside an SVG, so that equal figures are equal files.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from cycler import cycler

    cycle = cycler(color=COLOURS)
    with plt.rc_context({**STYLE, "axes.prop_cycle": cycle, "svg.hashsalt": salt}):
        yield plt


def save(figure: Any, stem: Path) -> tuple[Path, Path]:
    """Write a figure as ``stem.png`` and ``stem.svg``, without dates, and close it."""
    import matplotlib.pyplot as plt

    png, svg = (stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg"))
    figure.savefig(png)
    figure.savefig(svg, metadata={"Date": None})
    plt.close(figure)
    return png, svg
