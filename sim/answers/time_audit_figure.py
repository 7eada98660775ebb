"""Draws where a simulated time differs from a recorded one: a bar for each cause."""

from __future__ import annotations

from pathlib import Path

from sim.answers.time_audit import TimeAudit
from sim.results.labels import Labels, write_on
from sim.results.looks import COLOURS, looks, save


def draw(directory: Path, found: TimeAudit, title: str, labels: Labels) -> None:
    """Write ``audit_time.png`` and ``audit_time.svg`` into ``directory``."""
    per_ms = 1e6 * found.tokens
    bars = [*found.causes[::-1]]
    with looks("audit_time") as plt:
        figure, axis = plt.subplots(figsize=(7, 4.4), layout="constrained")
        values = [cause.ns / per_ms for cause in bars]
        axis.barh(
            [cause.name for cause in bars],
            values,
            color=[COLOURS[1] if value < 0 else COLOURS[0] for value in values],
        )
        axis.axvline(0, color="0.3", linewidth=0.8)
        axis.set_xlabel("simulated less recorded (ms a token)")
        figure.suptitle(title, fontsize=9)
        write_on(figure, [("", labels)])
        save(figure, directory / "audit_time")
