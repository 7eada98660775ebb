"""The command that looks for what a user should know before believing a trace's numbers.

``python -m capture.lint TRACE [write=false]``

Prints a table of findings and writes them into the trace's header in place of older findings;
nothing else of the trace changes. The summary of every simulation repeats the serious findings that
concern its sequences. `lint` itself takes a trace in memory, so captures and importers can call it
before they write. Needs no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from capture.linting.checks import CHECKS, top_k
from sim.process.printing import print_text
from sim.traces.prefill import decoded_part
from sim.traces.trace import Finding, ModelShape, Trace, TraceError, read_trace, write_findings
from sim.values.places import CONF
from sim.verbs.words import is_place

MODELS = CONF / "model"
NATIVE_TOP_K = "native_top_k"
"""Key of a header's provenance: how many experts a token chose when the model was trained."""
GEOMETRY = ("sites", "experts", "hidden", "expert_intermediate")


def lint(trace: Trace) -> tuple[Finding, ...]:
    """Every finding, the serious ones first; () where nothing was found.

    Needs the columns that every trace has; other columns are not looked at.
    """
    if trace.header.prefill == "counts":
        # Prompt rows are dealt from counts here; their order is no property of the recording.
        trace = decoded_part(trace)
    found = [finding for check in CHECKS.values() for finding in check(trace)]
    found += top_k(trace, native_top_k(trace))
    return tuple(sorted(found, key=lambda finding: not finding.serious))


def native_top_k(trace: Trace) -> int | None:
    """How many experts a token of the recorded model chooses by nature.

    Taken from the header's provenance, else from the models in ``conf/model`` of the same geometry;
    None where neither tells, or where these models differ.
    """
    stated = trace.header.provenance.get(NATIVE_TOP_K)
    if isinstance(stated, int) and not isinstance(stated, bool):
        return stated
    known = {
        found
        for path in sorted(MODELS.glob("*.yaml"))
        if (found := _top_k_of(path, trace.header.model))
    }
    return known.pop() if len(known) == 1 else None


def _top_k_of(path: Path, shape: ModelShape) -> int | None:
    """``top_k`` in a model's file; None if its geometry is not that of ``shape``."""
    facts = OmegaConf.to_container(OmegaConf.load(path))
    if not isinstance(facts, dict) or any(
        facts.get(name) != getattr(shape, name) for name in GEOMETRY
    ):
        return None
    return facts["top_k"] if isinstance(facts.get("top_k"), int) else None


def show(findings: Sequence[Finding], title: str, console: Console) -> None:
    """Print a table with a row per finding."""
    if not findings:
        print_text(console, f"{title}: nothing found by {', '.join([*CHECKS, top_k.__name__])}")
        return
    table = Table("check", "", "finding", title=title, title_justify="left", show_lines=True)
    for finding in findings:
        table.add_row(finding.check, "serious" if finding.serious else "note", escape(finding.text))
    console.print(table)


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, 1 when there is a serious finding, or 2 with one message on stderr when
    the input is wrong.
    """
    paths = [argument for argument in arguments if is_place(argument, ("write",))]
    options = [argument for argument in arguments if argument not in paths]
    if (
        len(paths) != 1
        or any(option not in ("write=true", "write=false") for option in options)
        or len(options) > 1
    ):
        print(
            "lint: give one directory of a trace, and write=false to only look; got"
            f" {list(arguments)}",
            file=sys.stderr,
        )
        return 2
    try:
        trace = read_trace(paths[0])
        findings = lint(trace)
    except (TraceError, OSError) as error:
        print(f"lint: {error}", file=sys.stderr)
        return 2
    show(findings, f"{trace.header.name}, {len(trace.step)} rows", Console())
    try:
        if options != ["write=false"]:
            write_findings(paths[0], findings)
    except (TraceError, OSError) as error:
        print(
            f"lint: the findings above could not be kept in the trace ({error}); write=false only looks",
            file=sys.stderr,
        )
        return 2
    return 1 if any(finding.serious for finding in findings) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
