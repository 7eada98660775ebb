"""``python -m real.calibrate name=NAME [device=cpu|cuda|host] [tables=none|model] [KEY=VALUE ...]``

Measures this machine from inside the engine, in under three minutes, and writes ``conf/hardware/NAME.yaml``:
``python -m sim system=lru hardware=NAME`` then simulates it. Copies by size, alone and beside computation, experts by
precision and rows, dequantisation, gates of several layers at once, the driver's own gaps, the drive by block and
depth. ``tables=model`` keeps the times of experts and layers as they are, which ties the file to that model.

``output=FILE`` writes elsewhere; ``facts=FILE`` keeps all that was measured as JSON; ``seconds=150`` is how long it may
take; ``size=small`` or ``tiny`` measures less. All other words go into the configuration of ``python -m real``
(``engine.source=buffered``, ``model=..``).
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from real.calibration.fit import figures, fit_line
from real.calibration.measure import Facts, Plan, as_json, measure
from real.calibration.write import Machine, hardware_text
from real.cuda.runtime import runtime_of
from real.driver.machine import available_bytes, memory_bytes, processor
from real.setup.prepare import Prepared
from real.suite.context import Deadline, write_json
from real.suite.sizes import LITTLE
from sim.values.places import CONF

OWN = ("name", "device", "size", "tables", "output", "facts", "seconds")
LEAST_S, MOST_S = 5.0, 3600.0
MOST_RESIDUAL = 0.25
SHORT = ("trace=tiny_mixtral", "workload=hobbit_16_128", "trace.max_sequences=1", "workload.prompt_tokens=8",
         "engine.links=free", "engine.compute=free")  # fmt: skip
ON_GPU = ("model=tiny_gates_half_mixtral", "hardware=h200_sxm_pcie5", "workload.decode_tokens=8",
          "engine.dtype=float16", "engine.patience_s=30", "engine.stand_in_gib=0.4")  # fmt: skip
"""Mixtral's experts."""
ON_CPU = ("model=tiny_gates_half_mixtral", "model.hidden=1024", "model.expert_intermediate=3584", "model.heads=8",
          "model.kv_heads=2", "model.vocab=8192", "workload.decode_tokens=8", "engine.stand_in_gib=0.25",
          "engine.source=direct")  # fmt: skip
"""Experts of 22 MB: a fourth of Mixtral's hidden size and of its neurons."""
TINY = ("model=tiny_gates_half_mixtral", *LITTLE, "workload.decode_tokens=2", "engine.stand_in_gib=0.004")


@dataclass(frozen=True)
class Asked:
    name: str
    device: str
    size: str
    tables: bool
    output: Path
    facts: Path | None
    seconds: float
    words: tuple[str, ...]


def parse(arguments: Sequence[str]) -> Asked:
    """Raise ValueError for the first word that is wrong."""
    given, words = {"device": "cpu", "size": "full", "tables": "none", "seconds": "150"}, []
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals or not text:
            raise ValueError(f"{argument!r} is no KEY=VALUE")
        if key in OWN:
            given[key] = text
        else:
            words.append(argument)
    if not re.fullmatch(r"[a-z0-9_]+", given.get("name", "")):
        raise ValueError(f"name={given.get('name', '')!r} must be lower-case letters, digits and _: it names the file")
    for key, allowed in (("device", ("cpu", "cuda", "host")), ("size", ("full", "small", "tiny")),
                         ("tables", ("none", "model"))):  # fmt: skip
        if given[key] not in allowed:
            raise ValueError(f"{key}={given[key]}; allowed: {', '.join(allowed)}")
    output = Path(given.get("output") or CONF / "hardware" / f"{given['name']}.yaml")
    if output.exists() or not output.parent.is_dir():
        raise ValueError(f"output={output} must be a new file in a folder that exists; remove it, or choose another")
    try:
        seconds = float(given["seconds"])
    except ValueError:
        seconds = 0.0
    if not LEAST_S <= seconds <= MOST_S:
        raise ValueError(f"seconds={given['seconds']} must be a number from {LEAST_S:g} to {MOST_S:g}")
    facts = Path(given["facts"]) if "facts" in given else None
    return Asked(given["name"], given["device"], given["size"], given["tables"] == "model", output, facts, seconds,
                 tuple(words))  # fmt: skip


def plan_of(asked: Asked) -> Plan:
    """What is measured at each size."""
    deadline = Deadline(asked.seconds)
    fixed = (*SHORT, f"device={asked.device}")
    if asked.size == "tiny":
        words = (*fixed, *TINY, *asked.words)
        return Plan(words, ("fp16", "int4"), rows=(1, 4), repeats=2, blocks=(4096,), depths=(1,), has_time=deadline.has)
    sizes: tuple[str, ...] = ON_GPU if asked.device == "cuda" else ON_CPU
    sizes = tuple(word for word in sizes if asked.device == "cpu" or word != "engine.source=direct")
    # Of other precisions one distinct expert is enough: rounding them takes longer than all else.
    plan = Plan((*fixed, *sizes, *asked.words), other_words=("engine.stand_in_gib=0.001",), has_time=deadline.has)
    return plan if asked.size == "full" else replace(plan, precisions=("fp16", "int4"), rows=(1, 16), repeats=3)


def memory_of(device: str) -> tuple[int, int]:
    """Bytes of the device's memory, and how many are taken. To be asked before anything of a run is allocated."""
    if device != "cpu":
        return runtime_of(device).memory()
    total, left = memory_bytes() or 8 << 30, available_bytes() or 8 << 30
    return total, total - left


def machine_of(asked: Asked, prepared: Prepared, memory: tuple[int, int]) -> Machine:
    """Where it was measured."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, {platform.platform()}, {processor()}"
    engine, model = prepared.request.engine, prepared.run.model
    told = (asked.name, asked.device)
    date = datetime.now(UTC).date().isoformat()
    tables = (model.sizes_of or model.name) if asked.tables else None
    if asked.device == "cpu":
        source = f"the store, read by source={engine.source}"
        return Machine(*told, processor(), versions, date, "storage", source, *memory, tables)
    source = "pinned memory" if asked.device == "cuda" else "host memory"
    name = runtime_of(asked.device).name
    return Machine(*told, name, f"{versions}, CUDA {torch.version.cuda}", date, "pcie", source, *memory, tables)


def calibrate(asked: Asked, say: Callable[[str], None]) -> tuple[str, Facts]:
    """The file's text, and what it was fitted from. Raise ValueError for what cannot run here."""
    plan = plan_of(asked)
    memory = memory_of(asked.device)
    facts, prepared = measure(plan, say)
    model = prepared.run.model
    launches = 3 if model.expert_matrices == 3 else 2
    found = figures(facts, model.expert_params, plan.precisions, launches)
    text = hardware_text(machine_of(asked, prepared, memory), found, facts, facts.left_out)
    if asked.facts is not None:
        write_json(asked.facts, {**as_json(facts), "figures": vars(found) | {"link": vars(found.link)}})
    return text, facts


def warning(facts: Facts) -> str | None:
    """Where no line fits what was measured."""
    line = fit_line(facts.copy)
    if line.residual <= MOST_RESIDUAL:
        return None
    return (
        f"WARNING: the line through the copies is off by {line.residual:.0%} in the median, {line.worst:.0%} at worst: "
        f"this machine was too busy; measure again, or trust the table (measured.copy_us) no more than that"
    )


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message on stderr and no file written."""
    try:
        asked = parse(arguments)
        text, facts = calibrate(asked, lambda told: print(told, file=sys.stderr, flush=True))
        asked.output.write_text(text, encoding="utf-8")
    except (ValueError, OSError, HydraException, OmegaConfBaseException) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    size, ns = facts.copy[-1]
    print(f"{asked.output}: {size / ns:.4g} GB/s for {size} B; python -m sim system=lru hardware={asked.name} uses it")
    if told := warning(facts):
        print(told, file=sys.stderr)
    if facts.left_out:
        print(f"left out: {'; '.join(facts.left_out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
