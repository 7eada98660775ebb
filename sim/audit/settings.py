"""Rules for keys that repeat the configuration, and reasons for keys that no file tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from sim.audit.files import RunFiles
from sim.audit.rules import Between, Left, Rule, ratio

LEFT = {
    "schema": "it names the version of the files",
    "version": "it names the version of the program",
    "system": "it names the run",
    "overrides": "what was typed is in no file",
    "wall_s": "how long the simulation itself took is in no file",
    "labels": "they say what models, gates and policies are, which is in no file",
    "slowed_s": "what work would have taken alone is in no file",
    **dict.fromkeys(
        (f"paging.{key}" for key in ("in_pages", "out_pages", "seconds", "room_bytes")),
        "which pages the system swapped is in no file",
    ),
    **dict.fromkeys(
        (
            f"pipelined.{key}"
            for key in ("steps", "time_s", "prefill_tokens_per_s", "times_as_fast", "exact")
        ),
        "when a device was done with its layers of a step is in no file",
    ),
    "load_s": "what was on the device at the start is in no file",
    "real": "a device told it",
    "trace.name": "the trace is no part of the run's files",
    "trace.sha256": "the trace is no part of the run's files",
    "trace.source": "the trace is no part of the run's files",
    "trace.expert_bytes": "the trace is no part of the run's files",
    "trace.findings": "the trace is no part of the run's files",
    "trace.gates": "the trace is no part of the run's files",
    "bounds": "a proof about all other runs is in no file",
    "contracts": "config.yaml does not name it",
    "contracts.loop": "it is the same in every run",
    "contracts.carry_over": "it is the same in every run",
    "contracts.warmup_tokens": "it is the same in every run",
    "contracts.score_thresholds": (
        "thresholds are fitted to the trace, which is no part of the run's files"
    ),
}
OF_A_DEVICE = "a device has a name, sizes and links of its own"


def rules(run: RunFiles) -> Iterator[Rule | Left]:
    yield from (Left(key, reason) for key, reason in LEFT.items())
    yield from _identity(run)
    yield from _trace(run)
    yield from _bounds(run)
    yield from _loader(run)
    yield from _steps(run)


def _identity(run: RunFiles) -> Iterator[Rule | Left]:
    config, hardware = run.config, run.config["hardware"]
    yield Rule("model", config["model"].get("name"), "model.name")
    yield Rule("workload", config["workload"].get("batching"), "workload.batching")
    yield Rule("seed", config.get("seed"), "seed")
    if run.is_real:
        yield from (
            Rule(f"calibration.{key}", None, "what a device took has no error of a machine's file")
            for key in ("error", "data_sheets", "ci95")
        )
        yield from (
            Left(key, OF_A_DEVICE)
            for key in ("hardware", "preset", "calibration.id", "calibration.validated")
        )
        return
    name, preset = hardware.get("name"), hardware.get("preset")
    yield Rule("hardware", _title(hardware), "hardware.name, and how many devices there are")
    yield Rule("preset", preset, "hardware.preset")
    yield Rule("calibration.id", f"{name}/{preset}", "hardware.name/hardware.preset")
    error = run.machine_error
    compared = "none" if error is None else "compared"
    yield Rule("calibration.validated", compared, "hardware.validated, if no word changed times")
    shared = run.shared_error
    if error is None:
        yield Rule("calibration.error", None, "nobody compared this machine")
    for key, value in (error or {}).items():
        yield Rule(f"calibration.error.{key}", value, f"hardware.validated.{key}")
    if shared is None:
        yield Rule("calibration.data_sheets", None, "its figures are not of data sheets")
    else:
        yield Left("calibration.data_sheets", "it is of other machines' runs: moelab fidelity")
    if error is None and shared is None:
        yield Rule("calibration.ci95", None, "nobody knows an error of this machine")


def _title(hardware: Mapping[str, Any]) -> Any:
    """What a machine is called: its name, with how many devices it has if these are several."""
    name, devices = hardware.get("name"), hardware.get("devices")
    return f"{devices['count']} x {name} ({devices['split']})" if devices else name


def _trace(run: RunFiles) -> Iterator[Rule | Left]:
    yield Rule("trace.sequences", len(run.sequences), "rows of sequences")
    yield Rule("trace.numbers", sorted(run.sequences["sequence"]), "rows of sequences, ascending")
    for key in ("prompt_tokens", "decode_tokens"):
        total = int(run.sequences[key].sum())
        yield Rule(f"trace.{key.replace('prompt', 'prefill')}", total, f"{key} of all sequences")
    if run.is_real:
        yield Left("trace.split", "a live run has no split")
    else:
        yield Rule("trace.split", run.config["trace"].get("split"), "trace.split")


def _bounds(run: RunFiles) -> Iterator[Rule]:
    bounds = run.summary["bounds"]
    lower = bounds["lower_s"]
    parts = [
        bounds[name] for name in ("compute_s", "link_s", "relaxed_s") if bounds[name] is not None
    ]
    yield Rule(
        "bounds.lower_s",
        max(parts) if lower is not None else None,
        "the largest of the other bounds",
    )
    makespan_s = run.makespan_ns / 1e9
    yield Rule(
        "gap",
        ratio(makespan_s, lower or 0.0) and makespan_s / lower - 1,
        "makespan / bounds.lower_s - 1",
    )


def _loader(run: RunFiles) -> Iterator[Rule | Left]:
    told = run.config["loader"]
    for name in run.summary["contracts"]:
        if name not in told:
            continue
        if told[name] in ("within_layer", "in_time"):
            yield Left(
                f"contracts.{name}",
                f"loader.prefetch_budget={told[name]} becomes a number of the machine's times",
            )
        else:
            yield Rule(f"contracts.{name}", told[name], f"loader.{name}")


def _steps(run: RunFiles) -> Iterator[Rule | Left]:
    workload = run.config["workload"]
    for name in ("batching", "together", "prefill_chunk", "context_tokens"):
        yield Rule(f"contracts.{name}", workload.get(name), f"workload.{name}")
    for name, unset in (("tokens", 0), ("accepted", 1.0), ("seed", 0), ("layers", 0)):
        told = workload.get(f"draft_{name}")
        told = unset if told is None else told  # null: nobody asked for drafts
        yield Rule(f"contracts.draft_{name}", told, f"workload.draft_{name}")
    if run.draft_sites:
        told = workload["draft_experts"]
        yield Rule("contracts.draft_experts", told, "workload.draft_experts")
    yield from _arrivals(run, workload)
    if "prefixes" in run.summary:
        told = workload.get("block_tokens")
        yield Rule("contracts.prefixes.block_tokens", told, "workload.block_tokens")
        why = "how many blocks a GiB holds follows from the model's keys and values"
        yield from (Left(f"contracts.prefixes.{tier}", why) for tier in ("device", "ram", "disk"))
    cache = run.config["cache"]
    if "initial" in cache:
        yield Rule("contracts.initial_cache", cache["initial"], "cache.initial")
    else:
        yield Left(
            "contracts.initial_cache", "config.yaml does not name it: it is the cache policy's own"
        )
    looked_up = (
        run.decisions.filter(pl.col("kind") == "lookup")
        .group_by("tick")
        .agg(pl.col("call").n_unique())
    )
    waves = int((looked_up["call"] - 1).sum())
    yield Rule("contracts.waves", waves, "calls that looked up needs of a gate after its first")
    yield from _thresholds(run)
    yield from _channels(run)


def _thresholds(run: RunFiles) -> Iterator[Rule]:
    told = run.config["precision"]
    if not str(told.get("_target_", "")).endswith(".ScoreThreshold"):
        return
    yield Rule(
        "contracts.score_thresholds.from",
        "fit split" if told.get("quantiles") else "given",
        "precision.quantiles",
    )
    for name in ("low_above", "skip_above"):
        if not told.get("quantiles"):
            yield Rule(f"contracts.score_thresholds.{name}", told.get(name), f"precision.{name}")


def _channels(run: RunFiles) -> Iterator[Rule | Left]:
    """A run with a payload of reused channels must say how good its forecasts of channels were.

    Their values cannot be checked: the forecasts are in no file.
    """
    told = run.config["payload"]
    if not str(told.get("_target_", "")).endswith(".ReusedChannels"):
        return
    yield Rule("contracts.channels.missed", told.get("missed"), "payload.missed")
    yield Left("contracts.channels.rows", "rows of the trace, which is no part of the run's files")
    known = (run.summary["contracts"].get("channels") or {}).get("rows") != 0
    for name in ("recall", "precision"):
        yield Rule(
            f"contracts.channels.{name}",
            Between(0.0, 1.0) if known else None,
            "a share of channels",
        )


def _arrivals(run: RunFiles, workload: Mapping[str, Any]) -> Iterator[Rule | Left]:
    drawn, given = workload.get("arrivals_per_s"), workload.get("arrivals_s")
    if given is not None or workload.get("requests") is not None:
        yield Left("contracts.arrivals", "workload.arrivals_s and requests may name a file")
    elif drawn is None or run.sequences["arrival_ns"].max() == 0:
        yield Rule("contracts.arrivals", None, "every request is there from the start")
    else:
        yield Rule("contracts.arrivals.per_s", drawn, "workload.arrivals_per_s")
        yield Rule("contracts.arrivals.seed", workload.get("arrival_seed"), "workload.arrival_seed")
