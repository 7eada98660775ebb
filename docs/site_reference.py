"""The generated pages of the reference: what the program itself says of its commands, choices,
files and numbers. ``make docs`` puts them into the site; nobody writes them.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from sim import run
from sim.answers.python import SimulatedRun
from sim.audit.__main__ import audit
from sim.audit.files import read_run
from sim.audit.intervals import rules as rules_of_intervals
from sim.audit.lookups import rules as rules_of_lookups
from sim.audit.rules import Rule
from sim.audit.settings import rules as rules_of_settings
from sim.audit.sizes import rules as rules_of_sizes
from sim.audit.times import rules as rules_of_times
from sim.audit.traffic import rules as rules_of_traffic
from sim.results.frames import Frames
from sim.setup.catalogue import KINDS, POLICIES, table
from sim.study.rows import SCHEMA
from sim.traces.header import Header
from sim.traces.prefill import COUNT_DTYPES
from sim.traces.residency_log import COLUMNS
from sim.traces.rows import ROW_DTYPES
from sim.verbs.page import row_of
from sim.verbs.table import GROUPS, VERBS

TABLES = ("sequences", "tokens", "lookups", "transfers", "decisions")
SMALL = ("trace.max_sequences=2", "workload.decode_tokens=2")
RULES = (
    rules_of_times,
    rules_of_lookups,
    rules_of_traffic,
    rules_of_sizes,
    rules_of_settings,
    rules_of_intervals,
)


def rows(head: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table of Markdown."""
    for line in (head, ["---"] * len(head), *lines):
        cells = (" ".join(str(cell).split()).replace("|", "\\|") for cell in line)
        yield f"| {' | '.join(cells)} |"
    yield ""


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def commands() -> str:
    """Every verb with its options, defaults and examples: what ``moelab VERB --help`` prints."""
    out = ["# Commands", "", "What `moelab VERB --help` prints.", ""]
    for group, heading in GROUPS.items():
        out += [f"## {heading}", ""]
        for verb in VERBS:
            if verb.group != group:
                continue
            module = " ".join([f"python -m {verb.module}", *verb.lead])
            out += [f"### moelab {verb.name}", "", verb.about, ""]
            out += [f"`{verb.usage}`, the same as `{module}`.", ""]
            if verb.options:
                lines = [
                    (code(key), code(default), meaning)
                    for key, default, meaning in map(row_of, verb.options)
                ]
                out += rows(("option", "default", "meaning"), lines)
            if verb.config:
                out += [f"Every other value of `conf/{verb.config}.yaml` can be set as well.", ""]
            out += ["```text", *(f"moelab {example}" for example in verb.examples), "```", ""]
    return "\n".join(out)


def choices() -> str:
    """The files of ``conf/``: systems, machines, models, traces, workloads, policies."""
    out = ["# Choices", "", "What `moelab list` prints: the files of `conf/`, with sources.", ""]
    for kind in (*KINDS, POLICIES):
        found = table(kind)
        head = [str(column.header) for column in found.columns]
        lines = zip(
            *([str(cell) for cell in column.cells] for column in found.columns), strict=True
        )
        out += [f"## {kind.capitalize()}", "", *rows(head, lines)]
    return "\n".join(out)


@cache
def small_run() -> SimulatedRun:
    """A run whose files and keys are shown."""
    return run("hobbit", *SMALL)


def files() -> str:
    """The columns of every table that is read or written."""
    made = small_run()
    out = ["# Files", "", "Columns and types, as a run wrote them. Times are ns, sizes bytes.", ""]
    for name in TABLES:
        about = inspect.getdoc(getattr(Frames, name)) or ""
        out += [f"## {name}.parquet", "", about, "", *columns(getattr(made, name).schema)]
    for name, about, schema in (
        (
            "cells/*.parquet",
            "A study's dataset, a row a cell; `axis.KEY` are what it varies.",
            SCHEMA,
        ),
        ("routes.parquet", "A trace's rows, before its sites' columns.", ROW_DTYPES),
        ("prefill_counts.parquet", "A trace's prompts as counts.", COUNT_DTYPES),
        ("residency.parquet", "What an engine's cache held, as its log says.", COLUMNS),
    ):
        out += [f"## {name}", "", about, "", *columns(schema)]
    out += ["## header.json", "", inspect.getdoc(Header) or "", ""]
    out += rows(
        ("field", "type"), ((code(n), code(str(t))) for n, t in Header.__annotations__.items())
    )
    return "\n".join(out)


def columns(schema: Mapping[str, Any]) -> Iterator[str]:
    return rows(("column", "type"), ((code(name), str(kind)) for name, kind in schema.items()))


def keys() -> str:
    """Every key of ``summary.json``, with the rule by which the audit computes it again."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        small_run().write(place)
        found = read_run(place)
        told = [one for rules in RULES for one in rules(found)]
        result = audit(found)
    texts = {one.key: one.text for one in told if isinstance(one, Rule)}
    lines = [(code(key), texts.get(key, "")) for key in sorted(result.agreed)]
    left = [
        (code(key), f"not computed again: {reason}")
        for reason, names in result.not_recomputed.items()
        for key in names
    ]
    return "\n".join(
        [
            "# Keys of summary.json",
            "",
            "As a run of HOBBIT has them, each with the rule of `moelab audit`. Formulas, units and two",
            "runs worked by hand are in [metrics](../metrics.md).",
            "",
            *rows(("key", "rule"), sorted(lines + left)),
        ]
    )


PAGES: dict[str, Callable[[], str]] = {
    "reference/commands.md": commands,
    "reference/choices.md": choices,
    "reference/keys.md": keys,
    "reference/files.md": files,
}
"""The pages by name, and what makes them."""
