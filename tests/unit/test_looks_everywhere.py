"""Sizes are printed in one kind of unit, and figures drawn in one style."""

from __future__ import annotations

import re

from sim.values.places import ROOT

SOURCES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for package in ("sim", "capture", "real")
    for path in (ROOT / package).rglob("*.py")
}


def test_sizes_are_printed_in_mib_and_gib_and_only_rates_in_gb() -> None:
    """What compares with a paper has the paper's unit."""
    wrong = [
        f"{name}: {line.strip()}"
        for name, text in SOURCES.items()
        if not name.startswith("sim/reproduce/")
        for line in text.splitlines()
        if re.search(r"\}\s?[GM]B\b(?!/s)", line)
    ]
    assert wrong == []


def test_every_figure_is_drawn_in_the_style_of_looks() -> None:
    """Figures for a notebook are drawn in the notebook's."""
    wrong = [
        name
        for name, text in SOURCES.items()
        if re.search(r"import matplotlib|pyplot", text)
        and name not in ("sim/results/looks.py", "sim/answers/python_figures.py")
        and not re.search(r"with looks\(", text)
    ]
    assert wrong == []
    own = [
        name
        for name, text in SOURCES.items()
        if re.search(r"rc_context|savefig\((?!buffer)", text)
        and name not in ("sim/results/looks.py", "sim/report.py")
    ]
    assert own == []
