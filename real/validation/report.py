"""Writes what a validation found: tables, a figure, a file of timelines, and the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median
from typing import Any

from real.validation.cases import Checked
from real.validation.judge import (
    COVERAGE,
    LEVEL,
    Case,
    Ranking,
    as_row,
    coverage,
    intervals,
    rankings,
)
from sim.results.frames import Frames
from sim.results.labels import Labels, told, write_on
from sim.results.looks import looks, save
from sim.results.timeline import trace_events


def write_report(
    folder: Path,
    facts: Mapping[str, Any],
    checks: Sequence[Checked],
    cases: Sequence[Case],
    closed_loop: Sequence[str],
    shifts: Sequence[Mapping[str, Any]],
    labels: Sequence[tuple[str, Labels]],
) -> str:
    """Write ``validation.json``, ``validation.md`` and ``predicted_measured.{png,svg}``.

    Return the page's text. ``closed_loop`` and ``shifts`` are step 4, as lines and as numbers.
    ``labels`` are the runs', by system.
    """
    found = rankings(cases)
    text = "\n".join(
        [
            *_head(facts, labels),
            *_conformance(checks),
            *_controlled(checks),
            *_free(cases),
            *_ranking(found, cases),
            *closed_loop,
        ]
    )
    numbers = {
        "facts": dict(facts),
        "checks": [asdict(check) for check in checks],
        "cases": [dict(as_row(c)) for c in cases],
        "intervals_ns": intervals(cases),
        "coverage": coverage(cases),
        "rankings": [asdict(one) for one in found],
        "closed_loop": list(shifts),
        "labels": told(labels),
    }
    (folder / "validation.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    (folder / "validation.md").write_text(text + "\n", encoding="utf-8")
    if cases:
        _draw(folder, facts, cases, labels)
    return text


def write_timelines(
    path: Path, real: Frames, simulated: Frames, wait: str, steps: int, facts: Mapping[str, Any]
) -> None:
    """Write both runs to one file for Perfetto, the device and the simulator as two processes."""
    whole = trace_events(real, wait, steps, facts)
    for number, (name, frames) in enumerate((("real", real), ("simulated", simulated)), start=1):
        events = trace_events(frames, wait, steps, facts)["traceEvents"]
        for event in events:
            event["pid"] = number
            if "id" in event:
                event["id"] = f"{name} {event['id']}"
            if event["name"] == "process_name":
                event["args"] = {"name": name}
        whole["traceEvents"] = events if number == 1 else whole["traceEvents"] + events
    path.write_text(json.dumps(whole) + "\n", encoding="utf-8")


def _head(facts: Mapping[str, Any], labels: Sequence[tuple[str, Labels]]) -> list[str]:
    lines = [*(f"{name}: {value}" for name, value in facts.items()), *told(labels)]
    return ["# Simulator against device", "", *(f"- {line}" for line in lines), ""]


def _conformance(checks: Sequence[Checked]) -> list[str]:
    lines = [
        "## 1. Conformance",
        "",
        (
            "The recorded calls, replayed into a fresh controller, must give equal answers; the"
            " simulator, given what"
        ),
        (
            "every piece of work took, must come out where the run did (makespan 0.5 %, 95 % of"
            " steps 1 %, order forced in"
        ),
        "1 % of calls at most).",
        "",
        "| system | resident | calls | decisions | time | makespan | steps p95 | forced |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for c in checks:
        numbers = [_percent(value, 3) for value in (c.makespan_error, c.token_error, c.forced)]
        lines.append(
            f"| {c.system} | {c.share:.0%} | {c.calls} | {c.first_difference or 'equal'} | "
            f"{c.nonconformance or 'holds'} | {' | '.join(numbers)} |"
        )
    return [*lines, ""]


def _controlled(checks: Sequence[Checked]) -> list[str]:
    if not any(check.controlled for check in checks):
        return ["## 2. Controlled prediction", "", "Not made: links or compute run free.", ""]
    lines = [
        "## 2. Controlled prediction",
        "",
        (
            "From nominal times alone (makespan 1 %, 95 % of steps 2 %). `busy`: other work"
            " disturbed the run, which"
        ),
        "says nothing of the simulator.",
        "",
        "| system | resident | makespan | steps p95 | run-queue delay | verdict |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {c.system} | {c.share:.0%} | {c.total_error:+.2%} | {c.step_error:.2%} |"
        f" {_percent(c.delay, 2)} | {c.controlled} |"
        for c in checks
    ]
    return [*lines, ""]


def _free(cases: Sequence[Case]) -> list[str]:
    lines = [
        "## 3. Prediction from other systems' runs",
        "",
        (
            "Durations are medians over the runs of the *other* systems. Noise: of the repeats of"
            " one run; - where it ran once, and nobody knows its noise."
        ),
        "",
        (
            "| system | resident | predicted s | measured s | error | noise | step error | step"
            " noise |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {c.system} | {c.share:.0%} | {c.predicted_ns / 1e9:.3f} | {c.median_ns / 1e9:.3f} |"
        f" {c.error:+.2%} | {_noise(c, c.noise)} | {c.step_error:.2%} | {_noise(c, c.step_noise)} |"
        for c in cases
    ]
    return [*lines, "", *_bias(cases)]


def _noise(case: Case, noise: float) -> str:
    return f"{noise:.2%}" if len(case.measured_ns) > 1 else "-"


def _bias(cases: Sequence[Case]) -> list[str]:
    """What the errors have in common.

    A bias is expected: medians of skewed durations add up to less than the durations do.
    """
    if not cases:
        return ["Not made: it takes runs of two systems.", ""]
    errors, step_errors = [case.error for case in cases], [case.step_error for case in cases]
    return [
        (
            f"Makespan: mean error {mean(errors):+.2%}, median of its size"
            f" {median(map(abs, errors)):.2%}, largest {max(map(abs, errors)):.2%}; step: median"
            f" {median(step_errors):.2%}, largest {max(step_errors):.2%}."
        ),
        (
            "What other work adds now and then is in a measured makespan and in no median: errors"
            " of one sign, larger"
        ),
        "for makespans than for steps, are of a busy machine.",
        "",
    ]


def _ranking(found: Sequence[Ranking], cases: Sequence[Case]) -> list[str]:
    if not found:
        return []
    lines = [
        "## Order of the systems",
        "",
        (
            "| resident | pairs told apart | in the right order | tau | the simulator's pick | the"
            " fastest | regret |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for one in found:
        tau = "-" if one.tau is None else f"{one.tau:.2f}"
        lines.append(
            f"| {one.share:.0%} | {one.told_apart} | {one.right} | {tau} | {one.picked} |"
            f" {one.fastest} | {one.regret:.2%} |"
        )
    covered, (low, high) = coverage(cases), COVERAGE
    said = (
        "are not made: there are too few errors"
        if covered is None
        else f"hold {covered:.0%} of the runs ({low:.0%} to {high:.0%} expected)"
    )
    return [
        *lines,
        "",
        f"{LEVEL:.0%} intervals from the other cases' errors {said}.",
        "",
    ]


def _percent(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}%}"


def _draw(
    folder: Path,
    facts: Mapping[str, Any],
    cases: Sequence[Case],
    labels: Sequence[tuple[str, Labels]],
) -> None:
    with looks("predicted_measured") as plt:
        figure, axis = plt.subplots(figsize=(5.6, 5), layout="constrained")
        for system in dict.fromkeys(case.system for case in cases):
            mine = [case for case in cases if case.system == system]
            x = [case.median_ns / 1e9 for case in mine]
            spread = [
                [case.median_ns / 1e9 - min(case.measured_ns) / 1e9 for case in mine],
                [max(case.measured_ns) / 1e9 - case.median_ns / 1e9 for case in mine],
            ]
            axis.errorbar(
                x,
                [case.predicted_ns / 1e9 for case in mine],
                xerr=spread,
                fmt="o",
                capsize=3,
                label=system,
            )
        ends = [0, 1.05 * max(max(case.predicted_ns, *case.measured_ns) for case in cases) / 1e9]
        axis.plot(ends, ends, color="0.6", linewidth=1)
        axis.set(
            xlabel="measured (s; bar: all repeats)",
            ylabel="predicted from other systems' runs (s)",
            xlim=ends,
            ylim=ends,
        )
        axis.set_title(f"{facts['device']}: {facts['runs on']}", fontsize=8)
        axis.legend(frameon=False, fontsize=8)
        write_on(figure, labels)
        save(figure, folder / "predicted_measured")
