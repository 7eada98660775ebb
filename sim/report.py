"""``python -m sim.report RUN... [output_dir=DIR]``: write runs as one page with figures.

A RUN is a folder that a run, a multirun or a study wrote. Runs of different work are chapters of
their own: no chart has both. The page, ``report.html``, is self-contained: it needs no network and
no script. It begins with who is fastest, in sentences. Every figure is also written beside it as SVG
and PNG.
"""

from __future__ import annotations

import html
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sim.reporting.figures import FIGURES
from sim.reporting.runs import ReportedRun, by_work, read_runs
from sim.results.folders import folder_for, own_folder
from sim.results.intervals import OVER
from sim.results.labels import Labels, fitted, told, write_on
from sim.results.looks import looks, use_letters_of_font
from sim.results.overview import Done, Line, Overview, Set, overview
from sim.results.overview_words import NONE, verdict
from sim.verbs.table import verb_of
from sim.verbs.words import read

MOST_LETTERS = 48
"""The most letters of a run's name in a figure."""
TITLE_SHARE = 0.6
"""The part of a figure's width that its axes have at least, beside a legend."""
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .3rem; }
table { border-collapse: collapse; font-size: .9rem; } td, th { padding: .25rem .7rem; text-align: right; }
th:first-child, td:first-child { text-align: left; min-width: 11rem; } tr + tr { border-top: 1px solid #ddd; }
figure { margin: 0; } svg { max-width: 100%; height: auto; } .note { color: #555; font-size: .85rem; }
.answer { font-size: 1.1rem; } .work { border-top: 2px solid #222; padding-top: 1rem; }
.warning { color: #8a3b12; font-weight: 600; }
"""


def make_report(runs: Sequence[ReportedRun], output_dir: Path) -> Path:
    """Write ``report.html``, and ``NAME.svg`` and ``NAME.png`` of every figure; return the page.

    Figures whose table no run has are left out.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    chapters = by_work(runs)
    body = "".join(
        _chapter(chapter, output_dir, "" if number == 1 else f"_{number}", len(chapters) > 1)
        for number, chapter in enumerate(chapters, 1)
    )
    page = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>MoE offload lab:"
        " report</title><link rel='icon'"
        f" href='data:,'><style>{STYLE}</style></head><body><h1>{_count(len(runs), 'run')}</h1>"
        f"{body}</body></html>\n"
    )
    place = output_dir / "report.html"
    place.write_text(page, encoding="utf-8")
    return place


def _chapter(runs: Sequence[ReportedRun], output_dir: Path, suffix: str, has_others: bool) -> str:
    """The part of the page about runs of the same work; ``suffix`` ends its figures' names."""
    found = overview(
        [Done(run.summary, tuple(run.summary.get("overrides", ())), run.decode_ns) for run in runs]
    )
    configuration = _configuration(runs)
    sections = []
    for name, (question, draw, table) in FIGURES.items():
        able = [
            run for run in runs if table is None or (run.directory / f"{table}.parquet").is_file()
        ]
        if not able:
            note = f"No run here wrote its {table}: run with outputs=all."
            sections.append(f"<h2>{html.escape(question)}</h2><p class='note'>{note}</p>")
            continue
        svg = _draw(draw, able, configuration, output_dir / f"{name}{suffix}")
        figure = f"<figure id='{name}{suffix}'>{svg}</figure>"
        sections.append(f"<h2>{html.escape(question)}</h2>{figure}")
    head = f"<h2 class='work'>{html.escape(configuration)}</h2>" if has_others else ""
    said = [
        f"{one.title}: {verdict(one)}" if len(found.titles) > 1 else verdict(one)
        for one in found.sets
    ]
    answers = "".join(f"<p class='answer'>{html.escape(one)}</p>" for one in said)
    return (
        f"{head}{answers}{_labels(runs)}<p class='note'>{OVER}</p>{_table(runs, found)}"
        f"{''.join(sections)}"
    )


def _draw(draw: Any, runs: Sequence[ReportedRun], configuration: str, place: Path) -> str:
    with looks(place.name) as plt:
        figure, axis = plt.subplots(figsize=(9, 3.6 + 0.12 * len(runs)), layout="constrained")
        draw(axis, _with_short_names(runs))
        title = fitted([configuration], figure.get_figwidth() * 72 * TITLE_SHARE, 7)
        axis.set_title("\n".join(title), fontsize=7, color="0.35")
        write_on(figure, _named(runs))
        text = io.StringIO()
        # Leave out dates and addresses, so that equal runs make equal files and nothing in them
        # looks like a request to a network.
        none = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(text, format="svg", metadata=none)
        use_letters_of_font(figure)
        figure.savefig(place.with_suffix(".png"))
        plt.close(figure)
    svg = text.getvalue()
    place.with_suffix(".svg").write_text(svg, encoding="utf-8")
    return (
        svg[svg.index("<svg") :]
        .replace('id="', f'id="{place.name}_')
        .replace('"#', f'"#{place.name}_')
        .replace("url(#", f"url(#{place.name}_")
    )


def _with_short_names(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    """The runs under names that leave room for the figure: the two ends of a long one, and its
    number, which tells it from others with the same ends. A ``$`` begins no formula.
    """
    names = [run.label for run in runs]
    if max(map(len, names)) > MOST_LETTERS:
        half = MOST_LETTERS // 2
        names = [
            name if len(name) <= MOST_LETTERS else f"{at}: {name[:half]}..{name[-half:]}"
            for at, name in enumerate(names, 1)
        ]
    return [
        replace(run, label=name.replace("$", r"\$")) for run, name in zip(runs, names, strict=True)
    ]


def _configuration(runs: Sequence[ReportedRun]) -> str:
    """One line of what all figures are about: machines, models, traces, shares, workloads."""

    def all_of(values: set[str]) -> str:
        return ", ".join(sorted(values))

    return " · ".join(
        [
            all_of({run.summary["hardware"] for run in runs}),
            all_of({run.summary["model"] for run in runs}),
            all_of(
                {
                    f"trace {run.summary['trace']['name']} ({run.summary['trace']['split']})"
                    for run in runs
                }
            ),
            (
                "resident"
                f" {all_of({format(run.summary['budget']['resident_share'], '.4g') for run in runs})}"
            ),
            all_of(
                {
                    f"{run.summary['workload']}, {_count(run.summary['trace']['sequences'], 'sequence')}"
                    for run in runs
                }
            ),
        ]
    ).strip(" ·")


def _labels(runs: Sequence[ReportedRun]) -> str:
    """Warnings, as HTML: the runs' labels, what the traces' lint found, and notes on sizes."""
    findings = [
        f"{run.label}: {finding}"
        for run in runs
        for finding in run.summary["trace"].get("findings") or ()
    ]
    sizes = [(run.label, run.summary["trace"].get("expert_bytes")) for run in runs]
    notes = [f"{label}: {size['note']}" for label, size in sizes if size and size["note"]]
    texts = [*told(_named(runs)), *sorted(findings), *sorted(notes)]
    return "".join(f"<p class='warning'>{html.escape(text)}</p>" for text in texts)


def _named(runs: Sequence[ReportedRun]) -> list[tuple[str, Labels]]:
    return [(run.label, run.labels) for run in runs]


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"


def _table(runs: Sequence[ReportedRun], found: Overview) -> str:
    place = {
        id(line.summary): at
        for at, line in enumerate(line for one in found.sets for line in one.lines)
    }
    ahead = {id(line.summary): _times(line, one) for one in found.sets for line in one.lines}
    columns: tuple[tuple[str, Callable[[Mapping[str, Any]], float | str | None]], ...] = (
        ("precision at best", lambda s: str(next(iter(s["budget"]["slots"])))),
        ("decode (tokens/s)", lambda s: s["decode_tokens_per_s"]),
        ("TTFT (s)", lambda s: s["ttft_s"]["mean"]),
        ("TPOT (s)", lambda s: s["tpot_s"]["mean"]),
        ("hit ratio", lambda s: s["hit_ratio"]),
        ("low precision (share)", lambda s: s["quality_proxy"]["low_share"]),
        ("skipped (share)", lambda s: s["quality_proxy"]["skip_share"]),
        ("makespan (s)", lambda s: s["makespan_s"]),
        ("makespan / bound", lambda s: None if s["gap"] is None else 1 + s["gap"]),
    )
    columns = tuple(
        (name, of) for name, of in columns if any(of(run.summary) is not None for run in runs)
    )
    head = "".join(f"<th>{html.escape(name)}</th>" for name, _ in columns)
    rows = "".join(
        f"<tr><td>{html.escape(run.label)}</td><td>{ahead[id(run.summary)]}</td>"
        + "".join(f"<td>{_told(of(run.summary))}</td>" for _, of in columns)
        + "</tr>"
        for run in sorted(runs, key=lambda run: place[id(run.summary)])
    )
    best = "x the best of its budget [95 %]"
    return f"<table><tr><th>run</th><th>{best}</th>{head}</tr>{rows}</table>"


def _times(line: Line, found: Set) -> str:
    """How many times as fast a run is as the best of its set, paired where that can be told."""
    if not found.best.tokens_per_s:
        return NONE
    if line is found.best:
        return "best"
    ratio = f"{line.tokens_per_s / found.best.tokens_per_s:.2f}x (unpaired)"
    return ratio if line.ahead is None else str(line.ahead)


def _told(value: float | str | None) -> str:
    return (
        html.escape(value)
        if isinstance(value, str)
        else "-"
        if value is None
        else format(value, ".4g")
    )


def main(words: Sequence[str]) -> int:
    """Run the command; return exit status 0, or 2 with one message."""
    try:
        given = read(verb_of("report"), words)
        output_dir = folder_for(given.own, Path("outputs/report"))
        runs = read_runs([Path(word) for word in given.places])
        with own_folder(output_dir, overwrite=given.own.get("overwrite") == "yes"):
            place = make_report(runs, output_dir)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{place}: {_count(len(runs), 'run')}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
