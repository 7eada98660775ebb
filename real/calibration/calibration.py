"""Calibrates a machine: measures it, fits its parameters, and writes its file."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from real.calibration.deadline import Deadline, write_json
from real.calibration.facts import Facts, as_json
from real.calibration.fit import figures
from real.calibration.measure import Plan, measure
from real.calibration.sizes import LITTLE
from real.calibration.write import Gathers, Machine, hardware_text
from real.cuda.runtime import runtime_of
from real.driver.machine import available_bytes, memory_bytes, processor
from real.setup.prepare import Prepared

SHORT = (
    "trace=tiny_mixtral",
    "workload=hobbit_16_128",
    "trace.max_sequences=1",
    "workload.prompt_tokens=8",
    "engine.links=free",
    "engine.compute=free",
)
ON_GPU = (
    "model=tiny_gates_half_mixtral",
    "hardware=h200_sxm_pcie5",
    "workload.decode_tokens=8",
    "engine.dtype=float16",
    "engine.patience_s=30",
    "engine.stand_in_gib=0.4",
)
"""Experts of Mixtral's size."""
ON_CPU = (
    "model=tiny_gates_half_mixtral",
    "model.hidden=1024",
    "model.expert_intermediate=3584",
    "model.heads=8",
    "model.kv_heads=2",
    "model.vocab=8192",
    "workload.decode_tokens=8",
    "engine.stand_in_gib=0.25",
    "engine.source=direct",
)
"""Experts of 22 MB: a fourth of Mixtral's hidden size and of its neurons."""
TINY = (
    "model=tiny_gates_half_mixtral",
    *LITTLE,
    "workload.decode_tokens=2",
    "engine.stand_in_gib=0.004",
)


@dataclass(frozen=True)
class Asked:
    name: str
    device: str
    size: str
    output: Path
    facts: Path | None
    seconds: float
    words: tuple[str, ...]
    gathers: Gathers | None = None


def plan_of(asked: Asked) -> Plan:
    """The plan of what is measured, for the size that was asked for."""
    deadline = Deadline(asked.seconds)
    fixed, has_cpu = (*SHORT, f"device={asked.device}"), asked.device != "cpu"
    if asked.size == "tiny":
        words = (*fixed, *TINY, *asked.words)
        return Plan(
            words,
            ("fp16", "int4"),
            rows=(1, 4),
            repeats=2,
            blocks=(4096,),
            depths=(1,),
            has_cpu=has_cpu,
            has_time=deadline.has,
        )
    sizes: tuple[str, ...] = ON_GPU if asked.device == "cuda" else ON_CPU
    sizes = tuple(word for word in sizes if asked.device == "cpu" or word != "engine.source=direct")
    # At other precisions one distinct expert is enough: rounding them takes longer than all else.
    plan = Plan(
        (*fixed, *sizes, *asked.words),
        other_words=("engine.stand_in_gib=0.001",),
        has_cpu=has_cpu,
        has_time=deadline.has,
    )
    return (
        plan
        if asked.size == "full"
        else replace(plan, precisions=("fp16", "int4"), rows=(1, 16), repeats=3)
    )


def memory_of(device: str) -> tuple[int, int]:
    """The bytes of the device's memory, and how many of them are taken.

    Ask before anything of a run is allocated.
    """
    if device != "cpu":
        return runtime_of(device).memory()
    total, left = memory_bytes() or 8 << 30, available_bytes() or 8 << 30
    return total, total - left


def machine_of(asked: Asked, prepared: Prepared, memory: tuple[int, int]) -> Machine:
    """The facts about the machine that was measured."""
    versions = (
        f"Python {platform.python_version()}, torch {torch.__version__}, {platform.platform()},"
        f" {processor()}"
    )
    engine, model = prepared.request.engine, prepared.run.model
    told = (asked.name, asked.device)
    date = datetime.now(UTC).date().isoformat()
    params = {
        "expert": model.expert_params,
        "dense": model.block_params(0),
        "tail": model.head_params,
    }
    if asked.device == "cpu":
        source = f"the store, read by source={engine.source}"
        return Machine(*told, processor(), versions, date, "storage", source, *memory, params)
    source = "pinned memory" if asked.device == "cuda" else "host memory"
    name = runtime_of(asked.device).name
    return Machine(
        *told, name, f"{versions}, CUDA {torch.version.cuda}", date, "pcie", source, *memory, params
    )


def calibrate(asked: Asked, say: Callable[[str], None]) -> tuple[str, Facts]:
    """The file's text, and the facts it was fitted to. Raise ValueError for what cannot run."""
    plan = plan_of(asked)
    memory = memory_of(asked.device)
    facts, prepared = measure(plan, say)
    model = prepared.run.model
    launches = 3 if model.expert_matrices == 3 else 2
    found = figures(facts, model.expert_params, plan.precisions, launches)
    text = hardware_text(
        machine_of(asked, prepared, memory), found, facts, facts.left_out, asked.gathers
    )
    if asked.facts is not None:
        write_json(
            asked.facts, {**as_json(facts), "figures": vars(found) | {"link": vars(found.link)}}
        )
    return text, facts
