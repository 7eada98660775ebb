"""Every printed table, and what stands around it, looks as it did: columns, frames, styles, order.

The numbers are those of each table's own tests, made by hand, which say what is right. Here nothing
changes without a word: ``tables/`` keeps what a terminal of 110 letters is sent, styles as
``<1;36>``, and ``python -m pytest tests/golden/test_tables_kept.py --anew`` writes it anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from helpers.drawn import kept
from helpers.golden import KEPT, check
from helpers.overviews import run
from sim import (
    ask,
    audit_time,
    demo,
    frontier,
    leaderboard,
    models,
    pareto,
    screen,
    versus,
    whatif,
)
from sim.answers import serving
from sim.answers.export import Search
from sim.answers.export_words import table_of as lines_of
from sim.answers.serving_words import points_of
from sim.answers.whatif import Growth
from sim.answers.whatif_growth import growth_table
from sim.board.entries import Board, Entry, Left
from sim.reproduce import field, field_figures, field_gains, field_prompts
from sim.reproduce import report as papers
from sim.results.coverage import coverage_at
from sim.results.labels import Labels
from sim.results.outputs import print_summary
from sim.results.overview import overview
from sim.results.overview_words import MOST_LINES, show
from sim.screening.frontier import Point
from sim.values.places import ROOT
from sim.verbs import page
from sim.verbs.verb import Kind, Option, Verb
from unit.sim import test_demo, test_pareto
from unit.sim.answers import test_ask_figure, test_time_audit_figure
from unit.sim.reproduce import test_reproduce_report as of_papers
from unit.sim.results import test_overview_figure
from unit.sim.test_printed_numbers import COMPARED, GROUP, LOSSY, SUMMARY, WHAT_IF

Printer = Callable[[Path, pytest.MonkeyPatch], None]
SEES = Labels(knows_future="knows the future (y)")


def _ask(place: Path, patch: pytest.MonkeyPatch) -> None:
    # Brackets are text, not styles.
    rows = [
        replace(one, labels=replace(one.labels, part="half of [its] layers"))
        for one in test_ask_figure.FOUND.rows
    ]
    found = replace(test_ask_figure.FOUND, rows=tuple(rows), refused=(("odd", "no [room]"),))
    patch.setattr(ask, "_ask", lambda words: found)
    words = ["model=tiny_mixtral", "machine=rtx4090_pcie4", f"output_dir={place / 'out'}"]
    assert ask.main(words) == 0


def _whatif(place: Path, patch: pytest.MonkeyPatch) -> None:
    text = whatif.sentence(WHAT_IF, "lru")
    whatif._write(place, WHAT_IF, text, "lru")
    whatif._print(WHAT_IF, "lru", text, place)


def _compare(place: Path, patch: pytest.MonkeyPatch) -> None:
    compare = import_module("sim.compare")  # its name in `sim` is the function
    patch.setattr(compare, "_trials", lambda names, common: ())
    patch.setattr(compare, "compared", lambda names: COMPARED)
    assert compare.main(["x", "y"]) == 0


def _export(place: Path, patch: pytest.MonkeyPatch) -> None:
    def tried(at: int) -> Any:
        return SimpleNamespace(
            on_cpu=at,
            flags=SimpleNamespace(
                patterns=("named",) if at == 5 else (),
                cache_mib=512 * (at % 3),
                split=(30, 19) if at % 2 else (),
            ),
            tokens_per_s=31.4 - at,
            interval=None if at == 2 else (30.1 - at, 33.3 - at),
            hit_ratio=None if at % 3 == 0 else 0.517 + at / 50,
            waiting=0.31 + at / 40,
            labels=LOSSY,
        )

    found: Any = SimpleNamespace(best=lambda: [tried(at) for at in range(11)], layers=24)
    assert hasattr(Search, "best")
    Console().print(lines_of(found))


def _serving(place: Path, patch: pytest.MonkeyPatch) -> None:
    points = tuple(
        serving.Point(
            batch,
            context,
            3.7 * batch + context / 900,
            32 * batch,
            14.2 + batch,
            None if batch == 1 else 0.6 - batch / 40,
        )
        for batch in (1, 4)
        for context in (96, 4096)
    )
    Console().print(points_of(serving.Profile(points, 0.5, LOSSY)))


def _leaderboard(place: Path, patch: pytest.MonkeyPatch) -> None:
    times = np.array([1.0, 2.0, 1.5, 1.1, 1.7]) * 1e9
    wobble = np.array([1.0, 1.07, 0.94, 1.02, 0.99])

    def entry(name: str, speed: float, hits: float | None, gap: float | None, of: Labels) -> Entry:
        row: dict[str, Any] = {
            "decode_tokens_per_s": speed,
            "decode_ns": (times * (1 if name == "lru" else wobble) / speed).tolist(),
            "hit_ratio": hits,
        }
        return Entry(name, "cache", row, {"gap": gap}, of)

    entries = (
        entry("sieve cache.x=[1]", 7.13, 0.713, 0.31, Labels()),
        entry("arc", 6.02, 0.66, None, Labels()),
        entry("lfu", 5.4, None, 0.52, Labels()),
        entry("lru", 4.91, 0.602, 0.77, Labels()),
        entry("small", 11.3, 0.812, 0.2, LOSSY),
        entry("belady", 9.87, 0.9, 0.04, SEES),
    )
    boards = [
        Board("1_b", "t (eval, 5 sequences), m on h", {}, shown, coverage_at(np.arange(40, 45.0)))
        for shown in (entries, entries[:3])
    ]
    leaderboard.show(boards, [Left("a=b", "why")], "lru", 2, Console())


def _frontier(place: Path, patch: pytest.MonkeyPatch) -> None:
    def policy(name: str, shown: tuple[int, ...], loads: int, labels: Labels) -> Any:
        points = {
            at: Point(at, 3 * at + loads % 5, 40 * (at != 5), loads - 71 * at) for at in shown
        }
        return frontier.Policy(name, name == "lru", points, {2: 871, 5: None, 9: 513}, labels)

    policies = (
        policy("lru", (2, 5, 9), 1931, Labels()),
        policy("fifo", (5, 9), 1870, LOSSY),
        policy("belady", (2, 5, 9), 1123, SEES),
    )
    patch.setattr(
        frontier,
        "frontier",
        lambda *_: frontier.Frontier("a [b]", policies, (2, 5, 9), 12, 3 * 2**28),
    )
    assert frontier.main(["system=lru", "policies=lru,fifo", f"output_dir={place / 'out'}"]) == 0


def _screen(place: Path, patch: pytest.MonkeyPatch) -> None:
    axis = "hardware.links.pcie.peak_gb_per_s"
    frame = pl.DataFrame(
        [
            {
                axis: gb,
                **{name: 1.618 * at + 0.17 * gb for at, name in enumerate(screen.SHOWN)},
                "labels": LOSSY.row(),
            }
            for gb in (8, 31)
        ]
    ).with_columns(pl.lit(None, pl.Float64).alias("hit_ratio"))
    patch.setattr(screen, "screen", lambda cells: frame)
    assert screen.main(["system=lru", f"{axis}=8,31", f"output_dir={place / 'out'}"]) == 0


def _versus(place: Path, patch: pytest.MonkeyPatch) -> None:
    alone = versus.Alone("fate", "seed=2", "it decodes nothing")
    patch.setattr(versus, "read_rows", lambda *_: [])
    patch.setattr(versus, "versus", lambda *_: versus.Versus((GROUP,), (alone,)))
    assert versus.main(["there", "lru"]) == 0


def _audit_time(place: Path, patch: pytest.MonkeyPatch) -> None:
    found = test_time_audit_figure.FOUND
    patch.setattr(audit_time, "audit", lambda *_: (found, "lru [x] on h", LOSSY))
    assert audit_time.main(["there"]) == 0


def _papers(place: Path, patch: pytest.MonkeyPatch) -> None:
    papers.show(Console(), of_papers.PAPER, of_papers.ALL, ["a check [x]"])


def _field(place: Path, patch: pytest.MonkeyPatch) -> None:
    one = field.Published("a", "https://x", "h", 12.3, None, ("system=lru",), "b")
    known = replace(one, name="b", tokens_per_s=7.31, hit_ratio=0.5132, fitted_on="")
    Console().print(
        field.table([field.Row(one, 10.4, 0.617, "g"), field.Row(known, 8.21, 0.4999, "f")])
    )


def _field_gains(place: Path, patch: pytest.MonkeyPatch) -> None:
    one = field.Published("a", "https://x", "h", 12.3, None, ("system=lru",), baseline="b")
    gain = field_gains.Gain(one, 1.25, 0.875, 0.617)
    told = field_gains.Gain(replace(one, name="c", hit_ratio=0.5132), 0.97, 1.5, 0.5130)
    Console().print(field_gains.table([gain, told]))
    Console().print(field_gains.asked_table(list(field_gains.asked_of([gain, told]))))


def _field_figures(place: Path, patch: pytest.MonkeyPatch) -> None:
    one = field_figures.Figure("a", "https://x", "h", "union", 0.6, ("system=lru",), ())
    split = field_figures.Split("b", "https://x", "h", 25, 10, 8192, 16, 8192, 8.5, 30, 10240)
    patch.setattr(field_figures, "simulated", lambda trace, one: 0.4567)
    patch.setattr(field_figures, "_gates", lambda trace, one: "g")
    Console().print(field_figures.steps_table(place, [one]))
    Console().print(field_figures.slots_table([split]))


def _field_prompts(place: Path, patch: pytest.MonkeyPatch) -> None:
    one = field_prompts.Prompt("a", "https://x", "h", 9000, 4096, (2, 1), 512.5, 618)
    Console().print(field_prompts.prompts_table([one]))


def _growth(place: Path, patch: pytest.MonkeyPatch) -> None:
    few = Growth("4.5 bits", 4096, 131072, 4.12, 3.69, 5.32, 5.04)
    Console().print(growth_table([few, replace(few, series="16 bits", last_slots=2.56)]))


def _demo(place: Path, patch: pytest.MonkeyPatch) -> None:
    cells = {
        (system, share): demo.Cell(
            test_demo.summary(system, share),
            test_demo.TIMES
            * (1 if system == "lru" else test_demo.WOBBLE)
            / test_demo.SPEED[system]
            / (1 + share),
            test_demo.WOBBLE,
        )
        for share in demo.SHARES
        for system in demo.SYSTEMS
    }
    Console().print(demo._table(cells))
    Console().print(demo._answer(cells))


def _pareto(place: Path, patch: pytest.MonkeyPatch) -> None:
    points = test_pareto.points_by_hand()
    patch.setattr(pareto, "read", lambda paths: ([], []))
    patch.setattr(pareto, "join", lambda *_: points)
    kept(patch)
    assert pareto.main([str(ROOT), "measure=increase", f"output_dir={place / 'out'}"]) == 0


def _models(place: Path, patch: pytest.MonkeyPatch) -> None:
    config = {
        "model_type": "mixtral",
        "num_hidden_layers": 3,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "hidden_size": 8192,
        "intermediate_size": 16384,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 1000,
    }
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert models.main([f"from={place}", "name=big"]) == 0


def _run(place: Path, patch: pytest.MonkeyPatch) -> None:
    print_summary(SUMMARY, Console())


def _overview(place: Path, patch: pytest.MonkeyPatch) -> None:
    runs = test_overview_figure.RUNS
    many = [run(f"s{at:02}", 1.3 + at, name="other [x]") for at in range(MOST_LINES)]
    slower = [run(name, speed, 0.125) for name, speed in (("a", 1.7), ("b", 1.1))]
    show(overview([*runs, *many, *slower]), Console())


def _page(place: Path, patch: pytest.MonkeyPatch) -> None:
    options = (
        Option("seed", "what is drawn", Kind.WHOLE, "0"),
        Option("how", "which way", Kind.ONE, values=("a", "b"), is_needed=True),
        Option("cache", "which cache", Kind.NAME, values=("cache",)),
        Option("KEY", "any other [x]"),
    )
    page.print_page(
        Verb(
            "do",
            "g",
            "sim.do",
            "It does.",
            options,
            ("do seed=1",),
            "docs/do.md",
            ("make",),
            ("first",),
            "RUN",
            config="config",
        )
    )
    verbs = [Verb(name, at, "m", f"about {name}") for name, at in (("a", "g"), ("b", "h"))]
    patch.setattr(page, "GROUPS", {"g": "One", "h": "Two"})
    patch.setattr(page, "VERBS", verbs)
    page.print_index("below [x]")


PRINTED: dict[str, Printer] = {
    "sim.answers.ask_words": _ask,
    "sim.answers.whatif_words": _whatif,
    "sim.answers.comparison_words": _compare,
    "sim.answers.export_words": _export,
    "sim.answers.serving_words": _serving,
    "sim.leaderboard": _leaderboard,
    "sim.frontier": _frontier,
    "sim.screen": _screen,
    "sim.versus": _versus,
    "sim.audit_time": _audit_time,
    "sim.reproduce.report": _papers,
    "sim.reproduce.field": _field,
    "sim.reproduce.field_figures": _field_figures,
    "sim.reproduce.field_prompts": _field_prompts,
    "sim.reproduce.field_gains": _field_gains,
    "sim.answers.whatif_growth": _growth,
    "sim.demo": _demo,
    "sim.pareto": _pareto,
    "sim.models": _models,
    "sim.results.outputs": _run,
    "sim.results.overview_words": _overview,
    "sim.verbs.page": _page,
}
OF_FILES = {"sim.setup.catalogue"}
"""Its tables are the files of ``conf/``, which change every day."""


@pytest.mark.parametrize("name", PRINTED)
def test_a_table_looks_as_it_did(
    name: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for key, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "110"}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("COLORTERM", raising=False)
    kept(monkeypatch)
    PRINTED[name](tmp_path, monkeypatch)
    told = capsys.readouterr()
    assert told.err == ""
    # Blanks at a line's end are seen nowhere.
    text = re.sub(r"\x1b\[([\d;]*)m", r"<\1>", told.out).replace(str(tmp_path), "FOLDER")
    text = re.sub(r"[ \t]+\n", "\n", text)
    check(f"tables/{name}.txt", text, request.config.getoption("--anew"))


def test_every_module_that_makes_a_table_is_asked() -> None:
    makers = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "sim").rglob("*.py")
        if re.search(r"\bTable\(", path.read_text(encoding="utf-8"))
    }
    assert makers - OF_FILES == set(PRINTED)
    assert {path.stem for path in (KEPT / "tables").iterdir()} == set(PRINTED)


def test_beside_every_interval_stands_what_it_is_over() -> None:
    """Of a figure, too: what it draws with error bars it says of."""
    over = re.compile(r"over (\d+|the) sequences of this trace|over the trace's sequences")
    texts = {
        path.stem: re.sub(r"<[\d;]*>", "", path.read_text(encoding="utf-8"))
        for path in (KEPT / "tables").iterdir()
    }
    told = {name for name, text in texts.items() if "95 %" in text}
    assert told >= {f"sim.{name}" for name in ("demo", "versus", "pareto", "results.outputs")}
    assert {name for name in told if not over.search(" ".join(texts[name].split()))} == set()
    drawn = [
        figure
        for path in (KEPT / "figures").iterdir()
        for figure in path.read_text(encoding="utf-8").split(" dots\n")
        if "LineCollection" in figure
    ]
    assert len(drawn) >= 6
    assert [figure for figure in drawn if not over.search(figure)] == []
