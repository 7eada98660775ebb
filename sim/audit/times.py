"""Rules for times and rates, from the tables ``tokens`` and ``sequences``."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from sim.audit.files import RunFiles
from sim.audit.rules import NS_PER_S, Between, Left, Rule, mean, quantile

WHY_NO_PART = (
    "which part of an idle interval had which cause depends on the services of links, which no file"
    " holds"
)


def rules(run: RunFiles) -> Iterator[Rule | Left]:
    yield Rule("makespan_s", run.makespan_ns / NS_PER_S, "end of the last token - first arrival")
    yield from _requests(run)
    yield from _rates(run)
    yield from _drafts(run)
    yield from _prefixes(run)
    yield from _waiting(run)


def after_the_first(run: RunFiles) -> pl.DataFrame:
    """The rows of ``tokens`` that are a sequence's second token or a later one.

    ``gap_ns`` is the time since the sequence's previous row. A sequence without a prompt has its
    first token at the end of its first step. A step that checks drafts begins when the first of them
    did.
    """
    rows = _as_checked(run.tokens).sort("sequence", "step")
    same = rows["sequence"] == rows["sequence"].shift(1)
    rows = rows.with_columns(
        gap_ns=rows["end_ns"] - rows["end_ns"].shift(1), follows=same.fill_null(False)
    )
    return rows.filter(pl.col("follows") & (pl.col("phase") == "decode"))


def _as_checked(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of ``tokens`` without those of steps that draft, whose time goes to the next step."""
    begun: dict[int, int] = {}
    opened = None
    for step, phase, start_ns in (
        rows.select("step", "phase", "start_ns").unique("step").sort("step").iter_rows()
    ):
        opened = start_ns if opened is None else opened
        if phase != "draft":
            begun[step], opened = opened, None
    rest = rows.filter(pl.col("phase") != "draft")
    return rest.with_columns(start_ns=pl.col("step").replace_strict(begun, return_dtype=pl.Int64))


def counts_after_the_first(run: RunFiles) -> dict[int, int]:
    """The number of each sequence's tokens after the first, in the order of ``sequences``."""
    counted: dict[int, int] = {}
    for row in after_the_first(run).iter_rows(named=True):
        counted[row["sequence"]] = counted.get(row["sequence"], 0) + row.get("new_tokens", 1)
    return {sequence: counted.get(sequence, 0) for sequence in run.sequences["sequence"].to_list()}


def _requests(run: RunFiles) -> Iterator[Rule]:
    of, after = run.sequences, after_the_first(run)
    count = list(counts_after_the_first(run).values())
    ttft = (of["first_token_ns"] - of["arrival_ns"]).to_list()
    rest = (of["end_ns"] - of["first_token_ns"]).to_list()
    tpot = [ns / tokens for ns, tokens in zip(rest, count, strict=True) if tokens]
    latency = (of["end_ns"] - of["arrival_ns"]).to_list()
    yield from _spread(
        "ttft_s", ttft, (50, 95), "of each request: end of its last prefill step - arrival"
    )
    yield from _spread(
        "tpot_s",
        tpot,
        (50, 95, 99),
        "of each request with a second token: (end - first token) / those",
    )
    yield from _spread(
        "itl_s",
        after["gap_ns"].to_list(),
        (50, 95, 99),
        "of each token after the first: time since",
    )
    yield from _spread("latency_s", latency, (50, 95), "of each request: end - arrival")


def _spread(
    key: str, values_ns: Sequence[float], percents: tuple[int, ...], text: str
) -> Iterator[Rule]:
    parts = {"mean": mean(values_ns)} | {f"p{p}": quantile(values_ns, p / 100) for p in percents}
    for part, value in parts.items():
        yield Rule(f"{key}.{part}", None if value is None else value / NS_PER_S, f"{part} {text}")


def step_time_ns(rows: pl.DataFrame) -> int:
    """The time of the steps that ``rows`` of tokens belong to."""
    steps = rows.unique("step")
    return int((steps["end_ns"] - steps["start_ns"]).sum())


def _rates(run: RunFiles) -> Iterator[Rule]:
    after, prompts = after_the_first(run), run.tokens.filter(pl.col("phase") == "prefill")
    given = int(run.sequences["prompt_tokens"].sum())
    for key, count, rows, text in (
        (
            "prefill_tokens_per_s",
            given,
            prompts,
            "prompt tokens / time of the steps with prompt rows",
        ),
        (
            "decode_tokens_per_s",
            sum(counts_after_the_first(run).values()),
            after,
            "tokens after the first / time of the steps that gave them",
        ),
    ):
        time_ns = step_time_ns(rows)
        yield Rule(key, count * NS_PER_S / time_ns if count and time_ns else None, text)


def _drafts(run: RunFiles) -> Iterator[Rule]:
    """What became of drafted tokens, from the columns that only such runs have."""
    if "drafts" not in run.tokens.columns:
        yield Rule("drafts", None, "no token is drafted")
        return
    rows = [row for row in run.tokens.iter_rows(named=True) if row["phase"] == "decode"]
    given = sum(row["new_tokens"] for row in rows)
    yield Rule("drafts.checked", sum(row["drafts"] for row in rows), "drafts of decoded rows")
    yield Rule("drafts.kept", given - len(rows), "new tokens beyond one a row")
    a_step = given / len(rows) if rows else None
    yield Rule("drafts.tokens_per_step", a_step, "new tokens / decoded rows")
    if run.draft_sites:
        drafting = run.tokens.filter(pl.col("phase") == "draft")
        time_s = step_time_ns(drafting) / NS_PER_S
        yield Rule("drafts.time_s", time_s, "time of the steps that draft")


def _prefixes(run: RunFiles) -> Iterator[Rule | Left]:
    """What was reused of prompts: what the tables and other keys tell of it."""
    told = run.summary.get("prefixes")
    if told is None:
        return
    given = int(run.sequences["prompt_tokens"].sum())
    yield Rule("prefixes.prompt_tokens", given, "prompt_tokens of all sequences")
    left = given - sum(told["reused"].values())
    yield Rule("prefixes.read_tokens", left, "prompt tokens that were not reused")
    why = "which blocks each tier held is in no file"
    yield from (Left(f"prefixes.{key}", why) for key in ("reused", "read_again"))
    begun = run.transfers.filter((pl.col("class") == "dense") & (pl.col("hop") == 0))
    last = run.links[-1] if len(run.links) > 1 else None
    disk = int(begun.filter(pl.col("link") == (last or ""))["moved_bytes"].sum())
    ram = int(begun["moved_bytes"].sum()) - disk
    yield Rule("prefixes.moved_bytes.disk", disk, "bytes of class dense that begin at the drive")
    yield Rule("prefixes.moved_bytes.ram", ram, "bytes of class dense that begin at RAM")
    yield Rule("prefixes.waits_s", run.summary["stall_s"]["dense"], "stall_s.dense")


def between_steps_ns(run: RunFiles) -> int:
    """The time between steps, and from the first arrival to the first step.

    The time that the host takes to wake up after a wait is left out.
    """
    starts, ends = run.steps["start_ns"].to_list(), run.steps["end_ns"].to_list()
    wake_us = (run.config["hardware"].get("host") or {}).get("wake_us", 0)
    points = wake_us if isinstance(wake_us, list) else [[0, wake_us]]
    waits, wakes = ([round(1000 * float(point[place])) for point in points] for place in (0, 1))
    gaps = [start - end for start, end in zip(starts, [0, *ends[:-1]], strict=True)]
    # A wait and what waking from it takes fill the gap; the longer the wait, the longer both. The
    # first wait begins before the first arrival: what waking takes depends on all of it.
    waited = sum(
        bisect_left(range(gap), gap, key=lambda wait: wait + int(np.interp(wait, waits, wakes)))
        for gap in gaps
    )
    return waited - run.first_arrival_ns


def _waiting(run: RunFiles) -> Iterator[Rule | Left]:
    busy_ns = int(run.steps["compute_ns"].sum())
    # On a device the time between steps may be work, and an idle interval may begin between steps
    # and end inside one.
    busy = Between(0.0, run.makespan_ns / NS_PER_S) if run.is_real else busy_ns / NS_PER_S
    yield Rule("compute_busy_s", busy, "time of each step without its stalls, summed")
    told_ns = round(run.summary["compute_busy_s"] * NS_PER_S) if run.is_real else busy_ns
    yield Rule(
        "stall_s",
        (run.makespan_ns - told_ns) / NS_PER_S,
        "its parts sum to makespan - compute_busy",
    )
    impossible = _impossible(run)
    for part in run.summary["stall_s"]:
        key = f"stall_s.{part}"
        if part == "no_request" and not run.is_real:
            yield Rule(
                key,
                between_steps_ns(run) / NS_PER_S,
                "time between steps, when there was nothing to do",
            )
        elif part in impossible:
            yield Rule(key, 0.0, impossible[part])
        else:
            yield Left(key, WHY_NO_PART)


def _impossible(run: RunFiles) -> dict[str, str]:
    """The stall parts that must be 0 in this run, and why."""
    config, kinds = run.config, set(run.transfers["class"])
    host: Mapping[str, float] = config["hardware"].get("host") or {}
    devices: Mapping[str, object] = config["hardware"].get("devices") or {}
    swaps = config["hardware"].get("swap")
    later = config["hardware"].get("prediction_us") or config["hardware"].get("forecasting")
    conditions = {
        "demand": (not kinds, "nothing was transferred"),
        "late_prefetch": ("prefetch" not in kinds, "no prefetch was started"),
        "behind_prefetch": ("prefetch" not in kinds, "no prefetch was started"),
        "storage": (len(run.links) == 1, "there is one link"),
        "dense": ("dense" not in kinds, "dense work needs nothing that comes over a link"),
        "cpu_join": (
            "cpu" not in set(run.lookups["outcome"]) and devices.get("split") != "owners",
            "neither the CPU nor another device computed beside home",
        ),
        "predictor": (not later and not run.is_real, "predictions take no time"),
        "host": (
            not (run.is_real or any(_numbers(host)) or swaps or _decides_slowly(run)),
            "host time is 0, and the system swaps no pages",
        ),
    }
    return {part: why for part, (is_impossible, why) in conditions.items() if is_impossible}


def _numbers(section: Mapping[str, object]) -> Iterator[float]:
    """The numbers of a section, and of a table of waits what waking takes."""
    for value in section.values():
        if isinstance(value, list):
            yield from (wake for _, wake in value)
        elif isinstance(value, int | float):
            yield value


def _decides_slowly(run: RunFiles) -> bool:
    placement = run.config.get("placement") or {}
    return bool(placement.get("us_per_assignment"))


def shared_step_time_ns(run: RunFiles, rows: pl.DataFrame) -> dict[int, float]:
    """Each sequence's share of the time of the steps of ``rows``, in the order of ``sequences``.

    A step's time is shared equally among its sequences in ``rows``.
    """
    members = rows.group_by("step").agg(members=pl.col("sequence").n_unique())
    each = rows.join(members, on="step").with_columns(
        ns=(pl.col("end_ns") - pl.col("start_ns")) / pl.col("members")
    )
    sums = dict(each.group_by("sequence").agg(pl.col("ns").sum()).iter_rows())
    return {sequence: sums.get(sequence, 0.0) for sequence in run.sequences["sequence"].to_list()}
