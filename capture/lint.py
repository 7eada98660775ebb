"""``python -m capture.lint TRACE [write=false]``: what a user of a trace should know before
believing its numbers.

Prints a table and writes the findings into the trace's header, in place of older ones; nothing else
changes. Serious ones are repeated in the summary of every simulation of the sequences they concern.
`lint` itself takes a trace in memory, so a capture or an importer can call it before writing. Needs
no torch.
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
from sim.traces.prefill import decoded_part
from sim.traces.trace import Finding, ModelShape, Trace, TraceError, read_trace, write_findings
from sim.values.places import CONF

MODELS = CONF / "model"
NATIVE_TOP_K = "native_top_k"
"""Key of a header's provenance: the experts a token that the model was trained with."""
GEOMETRY = ("sites", "experts", "hidden", "expert_intermediate")


def lint(trace: Trace) -> tuple[Finding, ...]:
    """Every finding, the serious ones first; () where nothing was found. Bare columns of a trace
    suffice.
    """
    if trace.header.prefill == "counts":
        # How a prompt's rows were dealt is no property of the recording.
        trace = decoded_part(trace)
    found = [finding for check in CHECKS.values() for finding in check(trace)]
    found += top_k(trace, native_top_k(trace))
    return tuple(sorted(found, key=lambda finding: not finding.serious))


def native_top_k(trace: Trace) -> int | None:
    """The experts a token of the recorded model: as its provenance says, or as a model of the same
    geometry in ``conf/model`` has them; None where neither tells.
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
    """``top_k`` of a model's file, if its geometry is that of ``shape``."""
    facts = OmegaConf.to_container(OmegaConf.load(path))
    if not isinstance(facts, dict) or any(
        facts.get(name) != getattr(shape, name) for name in GEOMETRY
    ):
        return None
    return facts["top_k"] if isinstance(facts.get("top_k"), int) else None


def show(findings: Sequence[Finding], title: str, console: Console) -> None:
    """A row per finding."""
    if not findings:
        console.print(
            f"{title}: nothing found by {', '.join([*CHECKS, top_k.__name__])}", markup=False
        )
        return
    table = Table("check", "", "finding", title=title, title_justify="left", show_lines=True)
    for finding in findings:
        table.add_row(finding.check, "serious" if finding.serious else "note", escape(finding.text))
    console.print(table)


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, 1 when there is a serious finding, or 2 with one message on stderr when
    the input is wrong.
    """
    paths = [argument for argument in arguments if "=" not in argument]
    options = [argument for argument in arguments if "=" in argument]
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
        if options != ["write=false"]:
            write_findings(paths[0], findings)
    except (TraceError, OSError) as error:
        print(f"lint: {error}", file=sys.stderr)
        return 2
    show(findings, f"{trace.header.name}, {len(trace.step)} rows", Console())
    return 1 if any(finding.serious for finding in findings) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
