"""Draws where a simulated time differs from a recorded one: a bar for each cause."""

from __future__ import annotations

from pathlib import Path

from sim.answers.time_audit import TimeAudit
from sim.results.labels import Labels, write_on

FORMATS = ("png", "svg")


def draw(directory: Path, found: TimeAudit, title: str, labels: Labels) -> None:
    """Write ``audit_time.png`` and ``audit_time.svg`` into ``directory``."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    per_ms = 1e6 * found.tokens
    bars = [*found.causes[::-1]]
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "audit_time"}):
        figure, axis = plt.subplots(figsize=(7, 4.4), layout="constrained")
        values = [cause.ns / per_ms for cause in bars]
        axis.barh(
            [cause.name for cause in bars],
            values,
            color=["tab:red" if value < 0 else "tab:blue" for value in values],
        )
        axis.axvline(0, color="0.3", linewidth=0.8)
        axis.set_xlabel("simulated less recorded (ms a token)")
        axis.grid(axis="x", alpha=0.25)
        figure.suptitle(title, fontsize=9)
        write_on(figure, [("", labels)])
        for kind in FORMATS:
            figure.savefig(
                directory / f"audit_time.{kind}",
                dpi=150,
                metadata={"Date": None} if kind == "svg" else None,
            )
        plt.close(figure)
