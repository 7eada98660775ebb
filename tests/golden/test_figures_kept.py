"""Every figure of ``sim`` shows what it did: texts, places, limits, ticks, colours and sizes.

The figures are drawn of runs that are made by hand, those of each figure's own tests, which say
what is right. Here nothing changes without a word: ``figures/`` keeps their content, and
``python -m pytest tests/golden/test_figures_kept.py --anew`` writes it anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import pytest
from matplotlib.figure import Figure

from helpers.golden import check
from helpers.overviews import run
from helpers.pictures import content
from sim import demo, frontier, pareto, report
from sim.answers import ask_figure, python_figures, time_audit_figure, whatif_figure
from sim.reporting.figures import FIGURES
from sim.reporting.runs import ReportedRun
from sim.reproduce import report as papers
from sim.results import overview_figure
from sim.results.labels import Labels
from sim.results.overview import overview
from sim.screening.frontier import Point
from sim.values.places import ROOT
from unit.sim import test_demo, test_pareto
from unit.sim.answers import (
    test_ask_figure,
    test_python_figures,
    test_time_audit_figure,
    test_whatif_figure,
)
from unit.sim.reporting import test_figures as of_reports
from unit.sim.reporting.test_figures import folder as folder
from unit.sim.reproduce import test_reproduce_report as of_papers
from unit.sim.results import test_overview_figure

NOWHERE = Path("nowhere/figure")
LOSSY = Labels(lossy="lossy (x)")


def _ask(tables: Path) -> None:
    ask_figure.draw(NOWHERE, test_ask_figure.FOUND)


def _whatif(tables: Path) -> None:
    found = replace(test_whatif_figure.FOUND, target=test_whatif_figure.NEEDED)
    for is_log in (False, True):
        whatif_figure.draw(NOWHERE, replace(found, is_log=is_log), "lru")


def _time_audit(tables: Path) -> None:
    time_audit_figure.draw(NOWHERE, test_time_audit_figure.FOUND, "lru on h", LOSSY)


def _python(tables: Path) -> None:
    of = test_python_figures
    for figure in (
        python_figures.time_by_cause(of.RUN, of.SUMMARY),
        python_figures.compared(of.FOUND),
    ):
        figure.savefig(NOWHERE)


def _overview(tables: Path) -> None:
    runs = test_overview_figure.RUNS
    others = [run(name, speed, 0.125) for name, speed in (("a", 1.7), ("b", 1.1))]
    elsewhere = [run("a", 1.0 + at, name=f"t{at}") for at in range(overview_figure.MOST_PANELS)]
    for shown in (runs, [*runs, *others], [*runs, *elsewhere]):
        overview_figure.draw(overview(shown), NOWHERE)


def _pareto(tables: Path) -> None:
    pareto.draw(test_pareto.points_by_hand(), "increase", NOWHERE)


def _frontier(tables: Path) -> None:
    curves = [
        frontier.Policy(
            name,
            name == "lru",
            {slots: Point(slots, slots * 3 + at, 40, 97 - 7 * slots) for slots in (2, 5, 9)},
            {2: 71, 5: None, 9: 13},
            LOSSY if name == "x" else Labels(),
        )
        for at, name in enumerate(("lru", "fifo", "x"))
    ]
    frontier.draw(frontier.Frontier("title", tuple(curves), (2, 5, 9), 12, 2**20), NOWHERE)


def _demo(tables: Path) -> None:
    cells = {
        (system, share): demo.Cell(
            test_demo.summary(system, share), test_demo.TIMES, test_demo.WOBBLE
        )
        for share in demo.SHARES
        for system in demo.SYSTEMS
    }
    demo._draw(NOWHERE, cells)


def _papers(tables: Path) -> None:
    papers.draw(NOWHERE, of_papers.PAPER, of_papers.ALL)


def _report(tables: Path) -> None:
    """All figures of a report; the page that holds them is not asked for."""
    runs = [
        ReportedRun(one.label, place, one.summary)
        for one, place in zip(of_reports.TWO, (tables, Path("nowhere")), strict=True)
    ]
    for name, (_, draw, table) in FIGURES.items():
        report._draw(draw, runs[:1] if table else runs, "h · m", Path(f"nowhere/{name}"))


DRAWN: dict[str, Callable[[Path], None]] = {
    "sim.answers.ask_figure": _ask,
    "sim.answers.whatif_figure": _whatif,
    "sim.answers.time_audit_figure": _time_audit,
    "sim.answers.python_figures": _python,
    "sim.results.overview_figure": _overview,
    "sim.pareto": _pareto,
    "sim.frontier": _frontier,
    "sim.demo": _demo,
    "sim.reproduce.report": _papers,
    "sim.report": _report,
}


@pytest.mark.alike
@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_shows_what_it_did(
    name: str,
    folder: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[str] = []
    told: set[Any] = set()

    def watched(figure: Figure, place: Any, *_: Any, **options: Any) -> None:
        if figure not in told:
            shown.append(f"{matplotlib.rcParams['savefig.dpi']} dots\n{content(figure)}")
            told.add(figure)
        if hasattr(place, "write"):
            place.write("<svg>")

    def unwritten(path: Path, *_: Any, **__: Any) -> None:
        assert path.parent == Path("nowhere"), path

    monkeypatch.setattr(Figure, "savefig", watched)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", unwritten)
        DRAWN[name](folder)
    assert shown
    check(f"figures/{name}.txt", "\n".join(shown), request.config.getoption("--anew"))


def test_every_module_that_makes_a_figure_is_asked() -> None:
    makers = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "sim").rglob("*.py")
        if re.search(r"\bplt\.subplots\(", path.read_text(encoding="utf-8"))
    }
    assert makers == set(DRAWN)
