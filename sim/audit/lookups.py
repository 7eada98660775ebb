"""Rules for ratios over needs, from the tables ``lookups`` and ``transfers``."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from sim.audit.files import RunFiles
from sim.audit.rules import Left, Rule, mean, quantile, ratio
from sim.audit.sizes import UNKNOWN, mean_bits, slot_bytes

HITS = ("hit", "high_for_low")
DEMANDED = ("miss", "promoted")
LOST = ("miss", "late", "promoted")


def rules(run: RunFiles) -> Iterator[Rule | Left]:
    yield from _outcomes(run)
    yield from _hits(run)
    yield from _penalty(run)
    yield from _quality(run)
    yield from _unions(run)
    yield from _prediction(run)


def count(lookups: pl.DataFrame, outcomes: tuple[str, ...]) -> int:
    return sum(outcome in outcomes for outcome in lookups["outcome"].to_list())


def asked(lookups: pl.DataFrame) -> pl.DataFrame:
    """``lookups`` without the needs that a selector leaves out whatever the device holds."""
    return lookups.filter(pl.col("skips").is_in(["never", "if_absent"]))


def _outcomes(run: RunFiles) -> Iterator[Rule]:
    known = dict.fromkeys(
        [*run.summary["lookups"], *run.lookups["outcome"].unique(maintain_order=True)]
    )
    for name in known:
        yield Rule(
            f"lookups.{name}", count(run.lookups, (name,)), "rows of lookups with this outcome"
        )


def _hits(run: RunFiles) -> Iterator[Rule]:
    prefill = run.lookups.filter(pl.col("phase") == "prefill")
    text = "(hit + high_for_low) / needs asked for"
    for key, lookups in (("hit_ratio", run.decode), ("hit_ratio_prefill", prefill)):
        yield Rule(key, _hit_ratio(lookups), text)
    if run.draft_sites:
        drafts = run.lookups.filter(pl.col("phase") == "draft")
        yield Rule("drafts.hit_ratio", _hit_ratio(drafts), f"{text}, of steps that draft")
    names = run.precisions
    for name in names:
        # With one precision every need can be wanted at that one only.
        is_one = (
            (pl.col("skips") == "never") & (pl.col("wanted") == name)
            if len(names) > 1
            else pl.lit(True)
        )
        yield Rule(
            f"hit_ratio_by_precision.{name}",
            _hit_ratio(run.decode.filter(is_one)),
            f"{text}, wanted at {name} and never left out for being absent",
        )


def _hit_ratio(lookups: pl.DataFrame) -> float | None:
    counted = asked(lookups)
    return ratio(count(counted, HITS), len(counted))


def _penalty(run: RunFiles) -> Iterator[Rule | Left]:
    bits = {name: mean_bits(name) for name in run.precisions}
    highest = bits[run.precisions[0]]
    if highest is None or None in bits.values():
        yield Left("miss_penalty", "the bits of a precision are not known by its name")
        return
    counted = asked(run.decode)
    missed = counted.filter(pl.col("outcome").is_in(DEMANDED))["wanted"].to_list()
    cost = sum((bits[name] or 0.0) / highest for name in missed)
    yield Rule(
        "miss_penalty",
        ratio(cost, len(counted)),
        "bits over the highest's of misses and promotions / asked for",
    )


def _quality(run: RunFiles) -> Iterator[Rule]:
    decode, skipped = run.decode, pl.col("outcome") == "skip"
    elsewhere = pl.col("key") % run.units != pl.col("expert")
    kinds = {
        "low": (pl.col("served").is_in(run.precisions[1:]), "served below the highest precision"),
        "skip": (skipped, "not served"),
        "reroute": (~skipped & elsewhere, "served by another expert"),
    }
    mass = float(decode["weight"].sum())
    for name, (which, text) in kinds.items():
        rows, known = decode.filter(which), bool(len(decode) and mass)
        yield Rule(
            f"quality_proxy.{name}_share",
            len(rows) / len(decode) if known else None,
            f"needs {text} / needs",
        )
        weight = float(rows["weight"].sum())
        yield Rule(
            f"quality_proxy.{name}_mass",
            weight / mass if known else None,
            f"gate weight {text} / all of it",
        )


def _gates(run: RunFiles) -> int:
    """The number of gates. In encoder-decoder models a step visits one of the two stacks. Steps that
    draft visit the sites of draft layers, and no other step does.
    """
    encoder = int(run.config["model"].get("encoder_sites") or 0)
    if not encoder:
        drafting = run.tokens.filter(pl.col("phase") == "draft")["step"].n_unique()
        own = run.sites - run.draft_sites
        return drafting * run.draft_sites + (len(run.steps) - drafting) * own
    reading = run.tokens.filter(pl.col("phase") == "prefill")["step"].n_unique()
    return reading * encoder + (len(run.steps) - reading) * (run.sites - encoder)


def _unions(run: RunFiles) -> Iterator[Rule | Left]:
    sizes = [slot_bytes(run, run.precisions[0], site) for site in range(run.sites)]
    if None in sizes:
        yield Left("union_over_capacity", UNKNOWN)
        return
    capacity = run.summary["budget"]["device_bytes"]
    if not capacity:
        yield Rule("union_over_capacity", None, "the device has no slots")
        return
    of_gate = run.lookups.group_by("tick").agg(needs=pl.len(), site=pl.col("site").first())
    shares = [
        needs * (sizes[site] or 0) / capacity
        for needs, site in of_gate.select("needs", "site").iter_rows()
    ]
    shares += [0.0] * (_gates(run) - len(shares))
    text = "of each gate: needs x bytes of a slot at the highest precision / budget.device_bytes"
    yield Rule("union_over_capacity.mean", mean(shares), f"mean {text}")
    yield Rule("union_over_capacity.p95", quantile(shares, 0.95), f"p95 {text}")


def _prediction(run: RunFiles) -> Iterator[Rule | Left]:
    for name in ("top1", "recall_at_issued", "precision", "exact_set", "prefill"):
        yield Left(
            f"prediction.{name}", "what was forecast of experts that were there is in no file"
        )
    yield Left("prediction.prompts", "whether the trace has forecasts of its prompts is in no file")
    yield Left("prediction.fitted_on", "what a predictor was fitted on is in no file")
    started = run.transfers.filter((pl.col("class") == "prefetch") & (pl.col("outcome") == "used"))
    used = started["number"].n_unique()
    absent = used + count(run.lookups, LOST)
    known = run.summary["prediction"]["top1"] is not None
    yield Rule(
        "prediction.timely_recall",
        ratio(used, absent) if known else None,
        "prefetch.used / (prefetch.used + miss + late + promoted)",
    )
