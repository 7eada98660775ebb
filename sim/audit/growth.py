"""Rules for slots that shrink as keys and values grow, from the tables ``tokens`` and ``ledger``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import polars as pl

from sim.audit.files import RunFiles
from sim.audit.rules import Between, Left, Rule

KEY = "budget.growing"


def rules(run: RunFiles) -> Iterator[Rule | Left]:
    if run.ledger is None:
        return
    told, layers = run.ledger, _layers(run)
    held = {window: held_by_step(run, window) for window in {0, *layers}}
    units = [
        sum(n * held[window][step] for window, n in layers.items()) for step in range(len(told))
    ]
    if (why := _why_not(told, held[0], units)) is not None:
        yield Rule(f"{KEY}.least_bytes", why, "ledger.parquet agrees with itself and tokens")
        return
    first = told.row(0, named=True)
    # All of it: what the plan has, and keys and values of the fullest step.
    whole = first["slot_bytes"] + first["kv_bytes"]
    # Each pool rounds its share down, and how many pools there are is in no file.
    lost = run.sites * len(run.precisions)
    for name, most in (("least_bytes", max(units)), ("most_bytes", min(units))):
        left = whole - most * first["kv_bytes"] // units[0]
        yield Rule(f"{KEY}.{name}", Between(left - lost, left + lost), "what the tokens leave")
    if not _arrive(run):
        plan = run.summary["budget"]["device_bytes"]
        # Layers with a window may be fullest in other steps than those without.
        spare = sum(n * max(held[window]) for window, n in layers.items()) - max(units)
        most = plan + spare * first["kv_bytes"] // units[0]
        yield Rule(
            f"{KEY}.least_bytes", Between(plan, most), "the plan's bytes, in the fullest step"
        )
    gone = int((run.decisions["kind"] == "evict").sum())
    yield Rule(f"{KEY}.trimmed", Between(0, gone), "decisions of kind evict, and fewer")


def _layers(run: RunFiles) -> Mapping[int, int]:
    """How many layers have each window, 0 for none, in the proportion of the model's."""
    model = run.config["model"]
    windows = model.get("windows") or [0]
    leading, each = (model.get(key, 0) for key in ("leading_dense_layers", "dense_layers_per_site"))
    own = [windows[n % len(windows)] for n in range(leading + model["sites"] * (1 + each))]
    # Layers that draft are like the last site's; they cache where their experts are offloaded.
    asked, drafts = run.config["workload"], 0
    if asked.get("draft_tokens") and asked.get("draft_experts") == "offloaded":
        drafts = asked["draft_layers"]
    return Counter([*own, *own[-1 - each :] * drafts])


def held_by_step(run: RunFiles, window: int = 0) -> list[int]:
    """How many tokens the running sequences hold at the end of each step, from ``tokens`` alone.

    Only those in a window of each sequence's last ones are counted; 0: all.
    """
    rows = run.tokens.sort("step", "sequence")
    most: dict[int, int] = {}
    for row in rows.iter_rows(named=True):
        most[row["sequence"]] = max(most.get(row["sequence"], 0), _reached(row))
    context = run.config["workload"].get("context_tokens")
    before = {sequence: context - last if context else 0 for sequence, last in most.items()}
    last_step = dict(rows.group_by("sequence").agg(pl.col("step").max()).iter_rows())
    now: dict[int, int] = {}
    found: list[int] = []
    for (step,), of_step in rows.group_by("step", maintain_order=True):
        for row in of_step.iter_rows(named=True):
            sequence = row["sequence"]
            now[sequence] = max(now.get(sequence, 0), before[sequence] + _reached(row))
        found.append(sum(min(tokens, window or tokens) for tokens in now.values()))
        now = {sequence: tokens for sequence, tokens in now.items() if last_step[sequence] != step}
    return found


def _reached(row: Mapping[str, int]) -> int:
    """How many tokens a sequence has at the end of a step, drafts that were wrong included."""
    wrong = row.get("drafts", 0) - max(0, row.get("new_tokens", 0) - 1)
    return row["position"] + 1 + wrong


def _why_not(told: pl.DataFrame, held: list[int], units: list[int]) -> str | None:
    """What is wrong with the ledger of the steps; None where it can be.

    ``units`` has for each step the tokens that all layers hold.
    """
    if told["tokens"].to_list() != held:
        return "tokens of ledger.parquet that tokens.parquet does not have"
    first = told["kv_bytes"][0]
    sizes = zip(told["kv_bytes"].to_list(), units, strict=True)
    if any(size * units[0] != count * first for size, count in sizes):
        return "kv_bytes that are not in the proportion of tokens"
    # Signs, because a product of such numbers of bytes does not fit 64 bits.
    changes = (told[name].diff().sign() for name in ("slot_bytes", "kv_bytes"))
    if not (next(changes) * next(changes) <= 0).drop_nulls().all():
        return "slot_bytes that grow with kv_bytes"
    return None


def _arrive(run: RunFiles) -> bool:
    """Whether requests arrive over time. The plan then goes by steps that may never come."""
    workload = run.config["workload"]
    return any(workload.get(name) is not None for name in ("arrivals_per_s", "arrivals_s"))
