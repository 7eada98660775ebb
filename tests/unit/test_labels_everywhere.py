"""No printer forgets: every command that tells numbers of runs, asked about a SYNTHETIC and
TRANSPLANTED run, says so, in what it prints and on each figure that it draws. A new command has to
be put in one of the two lists here.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from sim.values.places import ROOT

LABELS = (
    "SYNTHETIC gates: tiny_mixtral",
    "TRANSPLANTED: gates of tiny_mixtral, sizes of mixtral_8x7b, 16 of its 32 layers",
)
FEW = ("trace.max_sequences=2", "workload.decode_tokens=6")
ONE = ("trace.max_sequences=1", "workload.decode_tokens=4")

NO_RUNS = {
    "sim.moelab": "what other commands tell",
    "sim.list": "the files of conf",
    "sim.audit.__main__": "keys that differ from a run's own summary, which has the labels",
    "sim.check": "an engine's own log, which nobody here made",
    "sim.calibrate": "a machine's constants, from a log",
    "sim.models": "sizes of a model",
    "real.calibrate": "a machine's constants, measured",
    "real.predict": "how far times are from recorded ones; its own test asks for their labels",
    "real.fidelity": "how far times are from measured ones; its own test asks for their labels",
    "real.kernels.ahead": "what kernels compile to",
    "real.suite.__main__": "runs real.suite.piece",
    "real.suite.piece": "writes the report, which is asked below as real.suite.report",
    "real.quality_figures": (
        "losses of a model on texts; nothing is simulated, and no trace has both"
    ),
    "real.quality_fit": "losses of a model on texts; nothing is simulated",
    "sim.study.__main__": (
        "its table is asked below as sim.results.overview_words, a search's answer as"
        " sim.study.search"
    ),
    "sim.reproduce.__main__": "its tables and figures are asked below as sim.reproduce.report",
}
"""Commands that tell no numbers of runs, or whose printer is asked by its module."""


@dataclass
class Said:
    """What a command printed, and the texts of each figure that it saved."""

    printed: str = ""
    figures: dict[str, str] = field(default_factory=dict)


def flat(text: str) -> str:
    """Without line breaks, indents and the frames of tables, as a reader reads it."""
    return " ".join(re.sub(r"[│┃╭╰╮╯─━┏┓┗┛┡┩└┘┬┴┼╇╋]", " ", text).split())


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled trace as if nobody had recorded it."""
    place = tmp_path_factory.mktemp("traces") / "made_up"
    shutil.copytree(ROOT / "capture/assets/traces/tiny_mixtral", place)
    header = json.loads((place / "header.json").read_text(encoding="utf-8"))
    (place / "header.json").write_text(
        json.dumps({**header, "source": "synthetic"}), encoding="utf-8"
    )
    return place


@pytest.fixture(scope="module")
def study(trace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cells of a study with all their files."""
    from sim.study.cells import plan_cells
    from sim.study.dataset import Dataset
    from sim.study.plan import make_plan
    from sim.study.worker import run_cell

    place = tmp_path_factory.mktemp("study")
    base = [f"trace.path={trace}", *FEW, "outputs=all"]
    cells = plan_cells(
        make_plan("x", {"base": base, "grid": {"system": ["lru", "hobbit"]}}, "x.yaml")
    )
    with Dataset(place, {}, lambda _: None) as kept:
        for cell in cells:
            kept.add(run_cell("x", cell, str(place)))
    return place


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The texts on every figure that is saved, by its file's name."""
    texts: dict[str, str] = {}
    save = Figure.savefig

    def watched(figure: Figure, place: Any, *args: Any, **options: Any) -> None:
        name = getattr(place, "name", "drawn")
        texts[name] = flat(" ".join(item.get_text() for item in figure.findobj(Text)))
        save(figure, place, *args, **options)

    monkeypatch.setattr(Figure, "savefig", watched)
    return texts


Asking = Callable[[Path, Path, Path, pytest.MonkeyPatch], int | None]


def runs_of(study: Path) -> list[str]:
    return sorted(map(str, (study / "runs").iterdir()))


def spoken(module: str, *words: str) -> int:
    """A command that hydra must have to itself."""
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=None,
    )
    print(done.stdout, done.stderr)
    return done.returncode


def ask_sim(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> int:
    return spoken(
        "sim", "system=hobbit", f"trace.path={trace}", *ONE, f"output_dir={out}", "outputs=summary"
    )


def ask_real(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> int:
    return spoken(
        "real",
        "system=lru",
        "device=null",
        "model=tiny_gates_half_mixtral",
        "hardware=rtx4090_pcie4",
        f"trace.path={trace}",
        *ONE,
        f"output_dir={out}",
        "outputs=summary",
    )


def ask_demo(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> None:
    from sim import demo

    configure, load_trace = demo.configure, demo.load_trace
    patch.setattr(demo, "configure", lambda *words: configure(*words, *FEW))
    patch.setattr(demo, "load_trace", lambda _, **options: load_trace(str(trace), **options))
    assert demo.main([f"output_dir={out}", "overwrite=yes"]) == 0


class Here(ThreadPoolExecutor):
    """A pool of processes that is this one."""

    def __init__(self, workers: int, context: object, initializer: object) -> None:
        super().__init__(1)


def ask_whatif(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> int:
    from sim import whatif

    patch.setattr(whatif, "ProcessPoolExecutor", Here)
    return whatif.main(
        ["bits", "system=lru", f"trace.path={trace}", *FEW, "values=16,4", f"output_dir={out}"]
    )


def ask_compare(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> int:
    from sim.compare import main

    return main(["hobbit", "lru", f"trace.path={trace}", *FEW])


def ask_screen(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> int:
    from sim.screen import main

    return main(
        ["system=lru", f"trace.path={trace}", *FEW, "hardware.links.pcie.peak_gb_per_s=8,16"]
    )


def ask_frontier(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> int:
    from sim.frontier import main

    return main(
        [
            "system=lru",
            "policies=lru,fifo",
            "points=2",
            f"trace.path={trace}",
            *FEW,
            f"output_dir={out}",
            "overwrite=yes",
        ]
    )


def ask_leaderboard(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> int:
    """What is printed, the page, and a certificate as it is checked."""
    from rich.console import Console

    from sim import leaderboard
    from sim.board.entries import boards_of
    from sim.study.dataset import read_cells

    boards, left = boards_of(read_cells(study).to_dicts())
    leaderboard.write(boards, left, "lru", "moelab leaderboard", out)
    leaderboard.show(boards, left, "lru", 5, Console(width=200))
    (certificate,) = (out / leaderboard.CERTIFICATES).iterdir()
    text = certificate.read_text(encoding="utf-8") + (out / leaderboard.TABLE).read_text("utf-8")
    page = flat((out / leaderboard.PAGE).read_text(encoding="utf-8"))
    assert all(label in text and label in page for label in LABELS)
    return 0


def ask_certify(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> int:
    from sim.board.certificates import certificate
    from sim.board.entries import boards_of
    from sim.certify import main
    from sim.study.dataset import read_cells

    ((board,), _) = boards_of(read_cells(study).to_dicts())
    out.mkdir()
    place = out / "certificate.json"
    place.write_text(json.dumps(certificate(board, *board.entries)), encoding="utf-8")
    # These rows were recorded under another key than a leaderboard's: only that differs.
    assert main([str(place)]) == 1
    return 0


def ask_overview(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> None:
    """What a sweep and a study end with, printed and in each file."""
    from rich.console import Console

    from sim.results.overview_words import show, write
    from sim.study.dataset import read_cells
    from sim.study.rows import overview_of

    found = overview_of(read_cells(study).to_dicts())
    show(found, Console())
    out.mkdir()
    for place in write(found, out):
        if place.suffix != ".png":
            text = flat(place.read_text(encoding="utf-8"))
            assert all(label in text for label in LABELS), place.name


def ask_versus(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> int:
    from sim.versus import main

    return main([str(study), "lru"])


def ask_pareto(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> int:
    from sim.pareto import main

    return main([str(study), f"output_dir={out}", "overwrite=yes"])


def ask_report(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> int:
    from sim.report import main

    status = main([*runs_of(study), f"output_dir={out}", "overwrite=yes"])
    print(
        re.sub(
            r"<svg.*?</svg>", "", (out / "report.html").read_text(encoding="utf-8"), flags=re.DOTALL
        )
    )
    return status


def ask_explain(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> int:
    import polars as pl

    from sim.explain import main

    run = runs_of(study)[0]
    row = pl.read_parquet(f"{run}/lookups.parquet").row(0, named=True)
    return main([run, f"site={row['site']}", f"expert={row['expert']}", f"step={row['step']}"])


def ask_audit_time(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> int:
    from sim.audit_time import main

    return main([runs_of(study)[0], f"output_dir={out}"])


def ask_fit(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> int:
    from sim.fit import main

    return main(["cache=weighted_score", "system=hobbit", f"trace.path={trace}", "step=0.5", *ONE])


def ask_search(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    from sim.study.plan import make_plan
    from sim.study.search import run_search, told
    from sim.study.worker import run_cell

    class Launcher:
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            """Nothing was started."""

        def run(self, name: str, cells: Sequence[Any], place: Path) -> list[Any]:
            return [run_cell(name, cell, str(place)) for cell in cells]

    asked = {"parameters": {"cache": ["lru", "fifo"]}, "trials": 1, "sampler": "random"}
    plan = make_plan(
        "x", {"base": ["system=lru", f"trace.path={trace}", *ONE], "search": asked}, "x.yaml"
    )
    print(told("x", run_search(plan, Launcher(), out, lambda _: None)))


def ask_reproduce(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> None:
    """Two experiments of a paper, one of runs and one of a trace alone, on gates that nobody
    recorded.
    """
    from dataclasses import replace

    from rich.console import Console

    from sim.reproduce import report
    from sim.reproduce.__main__ import outcomes_of
    from sim.reproduce.experiments import Runner
    from sim.reproduce.roles import Experiment, load_paper
    from sim.reproduce.verdicts import verdict_of

    paper = load_paper("hobbit")
    claim = next(c for c in paper.claims if c.experiment and c.rule == "speedup" and c.scored)
    arms = {
        name: [f"system={name}", "model=tiny_gates_half_mixtral", "trace=made_up", *ONE]
        for name in ("hobbit", "lru")
    }
    given = {
        "arms": arms,
        "measure": ("decode_speedup", ("hobbit", "lru")),
        "common": [],
        "over": [[]],
        "grid": {},
    }
    experiment: Experiment = replace(paper.experiments[claim.experiment], **given)  # type: ignore[index, arg-type]
    paper = replace(
        paper,
        traces={"made_up": {"path": str(trace)}},
        experiments={claim.experiment: experiment},
        calibrated={},
        words={},
    )
    verdicts = [verdict_of(paper, claim, outcomes_of(paper, Runner(out / "kept", 1)))]
    report.write(out, paper, verdicts)
    report.show(Console(width=200), paper, verdicts, [])
    assert all(label in flat((out / "hobbit.md").read_text(encoding="utf-8")) for label in LABELS)
    assert all(label in (out / "hobbit.json").read_text(encoding="utf-8") for label in LABELS)


def ask_validate(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> int:
    from real.validate import main

    return main(
        [
            "systems=lru,hobbit",
            "budgets=0.5",
            "repeats=1",
            "device=null",
            "model=tiny_gates_half_mixtral",
            "hardware=rtx4090_pcie4",
            f"trace.path={trace}",
            *ONE,
            f"output_dir={out}",
        ]
    )


def ask_suite(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> None:
    from real.suite.context import Context
    from real.suite.report import lines_of
    from real.suite.runs import TOLD
    from sim.study.trials import trial

    summary = trial(("system=hobbit", f"trace.path={trace}", *ONE)).summary | {"real": {}}
    result = {**{name: summary[name] for name in TOLD}, "link": {"bytes_per_s": 1e9}}
    context = Context("host", "tiny", out)
    out.mkdir()
    context.save(
        "replay",
        {"rows": [{"cell": "hobbit 0.5", "status": "done", "result": result}], "left_out": []},
    )
    print("\n".join(lines_of(context, {})))
    # What a machine showed once, and cannot show again, is read as it was kept.
    del result["labels"]
    context.save(
        "replay",
        {"rows": [{"cell": "hobbit 0.5", "status": "done", "result": result}], "left_out": []},
    )
    assert "their files have no labels" in "\n".join(lines_of(context, {}))


QUALITY = ("trace.max_sequences=1", "threads=1", "budget.resident_share=0.4")


def ask_quality(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> int:
    pytest.importorskip("transformers")
    from real.quality import main

    return main(
        ["system=hobbit", "loop=open", f"trace.path={trace}", *QUALITY, f"output_dir={out}"]
    )


def ask_closed_loop(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> int:
    pytest.importorskip("transformers")
    from real.closed_loop import main

    return main(
        [
            "systems=hobbit",
            "mode=teacher-forced",
            f"trace.path={trace}",
            *QUALITY,
            f"output_dir={out}",
        ]
    )


def ask_ask(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> int:
    from sim import ask
    from sim.answers import ask as answers

    patch.setattr(ask, "ProcessPoolExecutor", Here)
    patch.setattr(answers, "systems_at", lambda *_: [("system=lru",)])
    words = ["model=tiny_gates_half_mixtral", "machine=rtx4090_pcie4", f"trace.path={trace}", *FEW]
    return ask.main([*words, f"output_dir={out}", "overwrite=yes"])


def ask_export(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> int:
    from sim import export
    from sim.answers.export import Search

    patch.setattr(export, "ProcessPoolExecutor", Here)
    patch.setattr(
        Search, "climb", lambda self, *, cached: self.simulate([self.line(15, cached=False)])
    )
    words = ["model=tiny_gates_half_mixtral", "machine=rtx4090_pcie4", f"trace.path={trace}", *FEW]
    return export.main([*words, f"output_dir={out}", "overwrite=yes"])


def ask_quality_front(trace: Path, study: Path, out: Path, patch: pytest.MonkeyPatch) -> int:
    pytest.importorskip("transformers")
    from real.quality_front import main

    words = ["loop=open", "threads=1", "trace.max_sequences=1", "workload.decode_tokens=null"]
    return main([str(study), *words, f"output_dir={out}"])


PRINTERS: dict[str, Asking] = {
    "sim.__main__": ask_sim,
    "sim.ask": ask_ask,
    "sim.export": ask_export,
    "sim.demo": ask_demo,
    "sim.whatif": ask_whatif,
    "sim.compare": ask_compare,
    "sim.screen": ask_screen,
    "sim.frontier": ask_frontier,
    "sim.leaderboard": ask_leaderboard,
    "sim.certify": ask_certify,
    "sim.versus": ask_versus,
    "sim.results.overview_words": ask_overview,
    "sim.pareto": ask_pareto,
    "sim.report": ask_report,
    "sim.explain": ask_explain,
    "sim.audit_time": ask_audit_time,
    "sim.fit": ask_fit,
    "sim.study.search": ask_search,
    "sim.reproduce.report": ask_reproduce,
    "real.__main__": ask_real,
    "real.validate": ask_validate,
    "real.suite.report": ask_suite,
    "real.quality": ask_quality,
    "real.closed_loop": ask_closed_loop,
    "real.quality_front": ask_quality_front,
}
DRAW = {
    "sim.ask",
    "sim.demo",
    "sim.frontier",
    "sim.audit_time",
    "sim.whatif",
    "sim.pareto",
    "sim.report",
    "sim.reproduce.report",
    "sim.results.overview_words",
    "real.validate",
    "real.closed_loop",
    "real.quality_front",
}


LONG = {
    "sim.study.search",
    "real.validate",
    "real.quality",
    "real.closed_loop",
    "real.quality_front",
}
"""Many seconds each; the tests of these commands ask for one label in passing."""


EMPTY = {"sim.ask", "sim.demo", "sim.export", "sim.frontier", "sim.pareto", "sim.report"}
"""Asked to empty a folder that has something in it (overwrite=yes)."""


@pytest.mark.alike
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.thorough if name in LONG else ()) for name in PRINTERS],
)
def test_a_printer_says_what_a_reader_must_know(
    name: str,
    trace: Path,
    study: Path,
    saved: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("COLUMNS", "160")
    before = tmp_path / "out" / "before.txt"
    if name in EMPTY:
        before.parent.mkdir()
        before.touch()
    status = PRINTERS[name](trace, study, tmp_path / "out", monkeypatch)
    told = capsys.readouterr()
    assert not status, told.err
    assert not before.exists()
    printed = flat(told.out)
    for label in LABELS:
        assert label in printed, f"{name} prints numbers without {label!r}:\n{told.out}"
        for figure, texts in saved.items():
            assert label in texts, f"{figure} of {name} lacks {label!r}: {texts}"
    assert bool(saved) == (name in DRAW)


def commands() -> Iterator[str]:
    for package in ("sim", "real"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if '__name__ == "__main__"' in path.read_text(encoding="utf-8"):
                yield ".".join(path.relative_to(ROOT).with_suffix("").parts)


def drawers() -> Iterator[str]:
    """Modules that save a figure."""
    for package in ("sim", "real"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if re.search(r"savefig\(|\bsave\(figure", path.read_text(encoding="utf-8")):
                yield ".".join(path.relative_to(ROOT).with_suffix("").parts)


# Contracts: C114
def test_every_command_is_asked_or_tells_no_numbers_of_runs() -> None:
    known = {*PRINTERS, *NO_RUNS}
    assert set(commands()) <= known, (
        f"say of {set(commands()) - known} whether it tells numbers of runs"
    )
    assert set(NO_RUNS) <= set(commands()), "what is no command needs no place here"


# Contracts: C114
def test_every_module_that_draws_puts_labels_on_its_figures() -> None:
    """Those of a model's own losses have no runs; `looks` saves what others have drawn."""
    bare = {
        name
        for name in drawers()
        if "write_on(" not in (ROOT / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")
    }
    assert bare == {"real.lossy.drawing", "sim.results.looks"}


def test_timelines_carry_the_labels_of_their_run(study: Path) -> None:
    for run in runs_of(study):
        told = json.loads((Path(run) / "timeline.json").read_text(encoding="utf-8"))["otherData"][
            "labels"
        ]
        assert [told["synthetic"], told["transplanted"]] == list(LABELS)


def test_a_studys_table_has_a_column_of_labels(study: Path) -> None:
    from sim.study.dataset import read_cells

    for text in read_cells(study)["labels"]:
        assert all(label in text for label in LABELS)


OF_PAPERS = ("kernels = papers",)
"""Cells of notebooks that draw numbers that papers print."""


@pytest.mark.parametrize(
    "place", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda place: place.stem
)
def test_a_notebook_that_draws_runs_puts_their_labels_on_the_figure_and_prints_them(
    place: Path,
) -> None:
    cells = [
        "".join(cell["source"])
        for cell in json.loads(place.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    for source in cells:
        if "plt.subplots(" in source and not source.startswith(OF_PAPERS):
            called = {
                node.func.id
                for node in ast.walk(ast.parse(source))
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            }
            assert "write_on" in called, f"{place.stem} draws without labels:\n{source}"
    assert any("told(" in source for source in cells), f"{place.stem} prints no labels"
