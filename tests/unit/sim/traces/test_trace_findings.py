"""A trace's findings are repeated by every run of the sequences that they concern."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from omegaconf import DictConfig
from rich.console import Console

from sim.results.outputs import print_summary
from sim.setup.build import build
from sim.setup.execute import execute
from sim.traces.trace import Finding, Trace

WHOLE = Finding("top_k", True, "6 of 8 [sic]")
NOTE = Finding("padding", False, "a little")


@pytest.fixture
def summary_with(configure: Callable[..., DictConfig], bundled_trace: Trace) -> Callable[..., dict]:
    """The summary of a run of the first two `eval` sequences of a trace with these findings."""

    def run(findings: Sequence[Finding] | None) -> dict:
        header = replace(
            bundled_trace.header, findings=None if findings is None else tuple(findings)
        )
        cfg = configure("system=lru", "trace.max_sequences=2", "outputs=summary")
        result = execute(build(cfg, "lru", replace(bundled_trace, header=header)))
        return result.summary

    return run


# Contracts: C94
def test_serious_findings_of_the_whole_trace_or_of_sequences_that_ran_are_repeated(
    summary_with: Callable[..., dict], bundled_trace: Trace
) -> None:
    evaluated = [item.sequence for item in bundled_trace.header.sequences if item.split == "eval"]
    fitted = [item.sequence for item in bundled_trace.header.sequences if item.split == "fit"]
    mine = Finding("repetition", True, "loops", (evaluated[1], evaluated[5], fitted[0]))
    others = Finding("repetition", True, "loops elsewhere", (evaluated[5], fitted[0]))
    found = summary_with([WHOLE, mine, others, NOTE])["trace"]["findings"]
    assert found == ["top_k: 6 of 8 [sic]", "repetition: loops (here: 1 of 2 sequences)"]


# Contracts: C94
def test_a_trace_that_nobody_checked_is_told_from_a_clean_one(
    summary_with: Callable[..., dict],
) -> None:
    assert summary_with(None)["trace"]["findings"] is None
    assert summary_with([NOTE])["trace"]["findings"] == []


def test_findings_are_printed_above_the_answer(summary_with: Callable[..., dict]) -> None:
    text = io.StringIO()
    print_summary(summary_with([WHOLE]), Console(file=text, width=200))
    lines = text.getvalue().splitlines()
    warning = lines.index("WARNING: the trace: top_k: 6 of 8 [sic]")
    assert any(line.startswith("With 50% of the expert bytes") for line in lines[warning:])


def test_overrides_in_brackets_are_printed_as_they_were_given(
    summary_with: Callable[..., dict],
) -> None:
    text = io.StringIO()
    summary = summary_with(None) | {"overrides": ["trace.exclude=[has_repetition]"]}
    print_summary(summary, Console(file=text, width=200))
    told = " ".join(text.getvalue().split())
    assert told.count("with trace.exclude=[has_repetition]") == 2
