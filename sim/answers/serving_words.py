"""How a handover to a simulator of many nodes is told: a table, a sentence, and a command."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from sim.answers.serving import ENGINE, REQUESTS, Profile
from sim.results.labels import caption, told


def points_of(found: Profile) -> Table:
    """The simulated step times, by batch and context."""
    table = Table(
        "batch",
        "context",
        "decode step (ms)",
        "prompt rows",
        "their step (ms)",
        "hits",
        title="step times of one node",
        title_justify="left",
        caption=escape("; ".join(told([("the node", found.labels)]))),
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for one in found.points:
        table.add_row(
            f"{one.batch}",
            f"{one.context:,}",
            f"{one.decode_ms:.4g}",
            f"{one.rows}",
            f"{one.prefill_ms:.4g}",
            "-" if one.hit_ratio is None else f"{one.hit_ratio:.1%}",
        )
    return table


def told_of(found: Profile, model: str, machine: str, gates: str) -> str:
    """What the table is of, and where it holds."""
    label = caption([("the node", found.labels)])
    most = max(found.batches)
    text = (
        f"{model} on {machine}, with {found.share:.2%} of the expert bytes on the device beside the"
        f" keys and values of {most} sequences of {max(found.contexts):,} tokens: {len(found.points)}"
        f" mean step times, from {gates}. They hold for this mix of requests: hits depend on what ran"
        " before, which a table of times cannot carry"
    )
    return f"{text}." + (f" [{label}]" if label else "")


def replay_command(block_tokens: int) -> str:
    """How ai-dynamo's replay reads the files, from their folder."""
    return (
        f"python -m dynamo.replay {REQUESTS} --trace-format mooncake --trace-block-size"
        f' {block_tokens} --num-workers 4 --extra-engine-args "$(cat {ENGINE})"'
    )
