"""Small runs in which figures of a machine and of a model are at work, and what they answer.

Each run is the plain one with some of its values changed. All of them are so small that a hundred take a
second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from helpers.worked import CONFIG as WORKED
from sim.engine.simulate import simulate
from sim.results.run import Run
from sim.setup.build import build
from sim.setup.execute import execute
from sim.traces.synthesis import RULE, synthesize
from sim.traces.trace import DECODE, ModelShape, Trace
from sim.values.types import Outcome
from sim.values.units import GIB

Config = dict[str, Any]
LINKS, PCIE, HOST, COMPUTE = (
    f"hardware.{name}" for name in ("links", "links.pcie", "host", "compute")
)
EXPERT_BYTES = 3 * 64 * 128 * 2
"""Of an expert of the plain run's model, in 16 bits."""


def part(kind: str, /, **values: Any) -> Config:
    """A section of a machine or a model, as its file has it."""
    return {"_target_": f"sim.machine.{kind}", **values}


def policy(name: str, **values: Any) -> Config:
    return {"_target_": f"sim.policies.{name}", **values}


def link(**values: Any) -> Config:
    """A link that reaches 1 GB/s: an expert takes 49 us and the overhead."""
    return part("Link", peak_gb_per_s=2.0, efficiency=0.5, overhead_us=4.0, **values)


def compute(**values: Any) -> Config:
    """A device that is bound by its memory for one row, and by its arithmetic for three and more."""
    figures = {
        "peak_tflops": 0.03,
        "flops_efficiency": 0.5,
        "memory_gb_per_s": 10.0,
        "memory_efficiency": 0.5,
        "launch_us": 1.0,
        "dense_launches": 4,
        "expert_launches": 2,
        "tail_launches": 2,
    }
    return part("Compute", **figures | values)


def gib_of(experts: int) -> float:
    """The GiB that so many experts take."""
    return experts * EXPERT_BYTES / GIB


CPU = part(
    "Cpu",
    peak_tflops=0.004,
    flops_efficiency=0.5,
    memory_gb_per_s=2.0,
    memory_efficiency=0.5,
    round_trip_us=10.0,
)
PEER = part("Peer", gb_per_s=0.01, overhead_us=2.0)
OTHER = part(
    "Device",
    memory_gib=1.0,
    reserved_gib=0.125,
    compute=compute(),
    link=link(),
)
PLAIN: Config = {
    **{name: WORKED[name] for name in ("seed", "timeline_steps", "output_dir", "workload")},
    "outputs": "summary",
    "bounds": "none",
    "budget": {"resident_share": 0.5, "slots_gib": None},
    "trace": {**WORKED["trace"], "path": "small"},
    "model": part(
        "Model",
        name="small",
        sites=4,
        experts=8,
        top_k=2,
        hidden=64,
        expert_intermediate=128,
        heads=4,
        kv_heads=2,
        head_dim=16,
        vocab=256,
        source="a test",
    ),
    "hardware": part(
        "Hardware",
        name="plain",
        preset="roofline",
        validated="none",
        memory_gib=1.0,
        reserved_gib=0.125,
        source="a test",
        links={"pcie": link()},
        compute=compute(),
        host=part("Host", sync_us=2.0, issue_us=1.0, wake_us=3.0, post_us=1.0),
    ),
    "predictor": policy("NoPrediction"),
    "cache": policy("LRU", scope="global", initial="ascending", recency="needs"),
    "ram_cache": policy("LRU"),
    "precision": policy("Fixed", precision="fp16"),
    "placement": policy("Load"),
    "payload": policy("Whole"),
    "loader": {"_target_": "sim.core.Loader"},
    "kernels": {"_target_": "sim.machine.Kernels"},
}
FORECAST = {"predictor": policy("GateLookahead", sites=1, experts=None)}
MEASURED = part(
    "Measured",
    expert_params=10_000,
    dense_params=20_000,
    fixed_us=4.0,
    expert_us={"fp16": [[1, 12.0], [4, 20.0]]},
    dense_us=[[1, 10.0], [64, 14.0]],
    copy_us={"pcie": [[1024, 6.0], [65536, 80.0]]},
)
SCATTERED = part(
    "Scattered",
    form="staged",
    threads=1,
    piece_bytes=4096,
    choose_us=3.0,
    rates=[
        ["staged", 1, 1024, 0.2],
        ["staged", 1, 16384, 0.6],
        ["staged", 2, 4096, 0.7],
        ["zero_copy", 1, 4096, 0.8],
    ],
)
READS = part("Reads", block_bytes=4096, queue_depth=2, latency_us=20.0, fault_us=2.0)
NEAR = READS | {"queue_depth": 8, "latency_us": 1.0, "scattered": True, "scattered_gb_per_s": 0.5}
GATHER = part("Gather", threads=2, gb_per_s_per_thread=0.4, dram_gb_per_s=8.0, piece_bytes=8192)
PAGES = part("Pages", capacity_gib=gib_of(16), gb_per_s=4.0, overhead_us=2.0)
SWAP = part("Swap", gib=gib_of(16), page_kib=8.0, in_us=1.0, out_us=2.0)
LATENT = part("LatentAttention", query_rank=16, kv_rank=16, rope_dim=8, nope_dim=16, value_dim=16)
VALIDATED = part("Validated", runs=8, systems=4, median_factor=1.1, worst_factor=1.5, log_error=0.2)
AS_DRAWN = part("SharedMemory", gb_per_s=4.0, parties=["compute", "pcie"], slows="as_drawn")
FORECAST = {"predictor": policy("GateLookahead", sites=1, experts=None)}
AT_ONCE = {"loader.wait": "as_ready"}
"""A gate's first need is computed while its second one comes."""
BY_SITE = {"cache": policy("LRU", scope="site", initial="ascending", recency="needs")}
FIT = {
    "budget": "fit",
    "hardware.memory_gib": gib_of(32),
    "hardware.reserved_gib": gib_of(8),
}
"""A device with room for about half of the experts."""


def devices(split: str, **values: Any) -> Config:
    return {"hardware.devices": part("Devices", count=2, split=split, peer=PEER, **values)}


def other(**values: Any) -> Config:
    return {"others": {"other": OTHER | values}}


RUNS: Mapping[str, Config] = {
    "plain": {},
    "on_demand": {"cache": policy("Transient")},
    "by_site": BY_SITE,
    "by_layer": {"kernels": part("Kernels", together=True)},
    "engine": {
        "workload.batching": "static",
        "workload.together": 3,
        "trace.split": "all",
        "hardware.compute": compute(launch_us=8.0, replay_us=2.0),
        "kernels": part(
            "Kernels",
            together=True,
            launches=4,
            more_launches=4,
            weight_share=0.5,
            attention_share=0.4,
            row_share=0.25,
            tile_rows=16,
            inner_values=6,
            outer_values=4,
            layer_values=16,
            head_values=8,
            head_dim=64,
            causal_rows=6,
            graph_rows=4,
        ),
    },
    "batch": {
        "workload.batching": "continuous",
        "workload.together": 2,
        "workload.prefill_chunk": 4,
        "trace.split": "all",
    },
    # Memory.
    "slots_given": {"budget": {"resident_share": 0.5, "slots_gib": gib_of(16)}},
    "fit": FIT,
    "fit_by_site": FIT | BY_SITE | {"hardware.memory_gib": gib_of(44)},
    "fit_swapped": FIT | {"hardware.swap": SWAP},
    "fit_layers": FIT
    | devices("layers", shares=[1.0, 2.0], **other(memory_gib=gib_of(16), reserved_gib=gib_of(3)))
    | {"hardware.memory_gib": gib_of(96)},
    "fit_other": FIT | {"model.other_params": 20 * EXPERT_BYTES // 8},
    "fit_tied": FIT | {"model.vocab": 1024, "model.tied_embeddings": False},
    "fit_context": FIT | {"workload.context_tokens": 512},
    # Links.
    "pageable": {"loader.copies": "pageable"},
    "calls": {f"{PCIE}.calls": 4, f"{PCIE}.per_call_us": 2.0},
    "cut_calls": {f"{PCIE}.call_bytes": 4096, f"{PCIE}.per_call_us": 2.0},
    "slots": {f"{PCIE}.slot_us": 0.5},
    "engines": {f"{PCIE}.engines": 2, f"{PCIE}.overhead_us": 40.0},
    "lanes": {
        f"{PCIE}.engines": 4,
        f"{PCIE}.engine_gb_per_s": 0.5,
        f"{PCIE}.wake_us": 5.0,
        f"{PCIE}.copy_gb_per_s": 2.0,
        f"{PCIE}.unit": "projection",
        "loader.wait": "by_projection",
        "loader.in_flight": 2,
    },
    "book_keeping": {f"{HOST}.load_us": 30.0, f"{HOST}.load_gb_per_s": 1.0},
    "drive": {
        f"{LINKS}.nvme": link(head_bytes=4096),
        "hardware.ram": part("Ram", capacity_gib=gib_of(16), filled_by="nvme"),
        "budget.resident_share": 0.25,
    },
    "two_drives": {
        f"{LINKS}.sata": link(),
        f"{LINKS}.nvme": link(),
        "hardware.ram": part("Ram", capacity_gib=gib_of(16), filled_by="sata"),
        "budget.resident_share": 0.25,
    },
    "reads": {f"{PCIE}.reads": READS},
    "scattered_reads": {f"{PCIE}.reads": NEAR},
    "gather": {f"{PCIE}.gather": GATHER},
    "gather_from_slow_memory": {
        f"{PCIE}.gather": GATHER | {"gb_per_s_per_thread": 1.0, "dram_gb_per_s": 1.0}
    },
    "page_cache": {f"{PCIE}.page_cache": PAGES, "budget.resident_share": 0.25},
    "unpack": {
        f"{PCIE}.unpack": part("Unpack", gb_per_s=2.0, bits=16.0, overhead_us=3.0),
        "precision": policy("Fixed", precision="int4"),
    },
    "parts": {
        f"{PCIE}.scattered": SCATTERED,
        "payload": policy("ActiveShare", sparsity=0.5, shares="nominal"),
        "loader.staging_slots": 4,
    },
    # The device, the CPU and the host.
    "written_out": {
        f"{COMPUTE}.dequantise_launches": 4,
        "precision": policy("Fixed", precision="int4"),
    },
    "cpu": {"hardware.cpu": CPU, "placement": policy("AbsentOnCpu")},
    "waking": {f"{HOST}.wake_us": [[10.0, 2.0], [200.0, 8.0]]},
    "ahead": FORECAST | {"hardware.forecasting": part("Forecasting", on="compute", launches=2)},
    "ahead_on_cpu": FORECAST
    | {"hardware.cpu": CPU, "hardware.forecasting": part("Forecasting", on="cpu", launches=2)},
    "later": FORECAST | {"hardware.prediction_us": 20.0},
    "measured": {"hardware.measured": MEASURED},
    "swap": {
        "hardware.swap": SWAP | {"gib": gib_of(8)},
        "hardware.memory_gib": gib_of(20),
        "hardware.reserved_gib": gib_of(6),
    },
    # Who slows whom.
    "shared": AT_ONCE | {"hardware.shared_memory": AS_DRAWN},
    "always_shared": {"hardware.shared_memory": AS_DRAWN | {"slows": "always"}},
    "cpu_shares": {
        "hardware.cpu": CPU,
        "placement": policy("AbsentOnCpu", up_to_tokens=1),
        "hardware.shared_memory": AS_DRAWN
        | {"parties": ["cpu", "pcie"], "slows": "always", "gb_per_s": 1.0},
    },
    "beside": AT_ONCE | {"hardware.beside": {"compute": {"pcie": 2.0}, "pcie": {"compute": 2.0}}},
    # Several devices.
    "layers": devices("layers", shares=[1.0, 1.0], **other()),
    "slices": devices("slices"),
    "copies": devices("copies"),
    "owners": devices("owners", order="use", shares=[1.0, 1.0], **other()),
    # What is told beside times.
    "compared": {"hardware.validated": VALIDATED},
    # Models.
    "layers_beside": {
        "model.leading_dense_layers": 2,
        "model.dense_layers_per_site": 2,
        "model.dense_intermediate": 64,
        "model.shared_intermediate": 64,
        "model.expert_biases": 1024,
        "model.other_layer_params": 4096,
        "model.other_site_params": 4096,
    },
    "context": {"workload.context_tokens": 512, "model.windows": [256, 0]},
    "latent": {"workload.context_tokens": 512, "model.latent": LATENT},
    "latent_prompt": {
        "workload.context_tokens": 4096,
        "model.latent": LATENT | {"kv_rank": 256, "nope_dim": 4, "value_dim": 4},
    },
    "encoder": {"model.encoder_sites": 2},
    "null_experts": {"model.null_experts": 2},
    "transplant": {"model.gates_of": "small", "model.sizes_of": "larger"},
}
"""By name, what differs from `PLAIN`: dotted keys and their values."""


def put(config: Config, key: str, value: Any) -> None:
    """Set a dotted key."""
    *sections, last = key.split(".")
    for name in sections:
        config = config.setdefault(name, {})
    config[last] = value


def got(config: Config, key: str) -> Any:
    """The value of a dotted key; KeyError where there is none."""
    for name in key.split("."):
        config = config[name]
    return config


def config_of(run: str, changes: Mapping[str, Any] | None = None) -> Config:
    """The configuration of a run, with these dotted keys changed."""
    config = deepcopy(PLAIN)
    for key, value in [*RUNS[run].items(), *(changes or {}).items()]:
        put(config, key, deepcopy(value))
    return config


@dataclass(frozen=True)
class Answer:
    """What a run answers: how long it takes, and how many lookups had each outcome."""

    makespan_ns: int
    outcomes: Mapping[int, int]

    @property
    def hits(self) -> int:
        return self.outcomes.get(Outcome.HIT, 0)


def answer_of(config: Config) -> Answer:
    """What the run answers. Raise ValueError where it is refused."""
    run = _built(config)
    record = simulate(run.controller, run.workload, run.durations)
    return Answer(record.makespan_ns, Counter(run.controller.lookup_outcomes))


def summary_of(config: Config) -> dict[str, Any]:
    """The summary of the run, which takes longer."""
    return execute(_built(config)).summary


def _built(config: Config) -> Run:
    return build(config, "small", trace_for(config["model"]))


def trace_for(model: Mapping[str, Any]) -> Trace:
    """Gates for a model of these figures: three sequences with prompts of six tokens."""
    names = ("sites", "experts", "top_k", "hidden", "expert_intermediate")
    made = (*(model[name] for name in names), model.get("null_experts", 0))
    return _trace(*made, model.get("encoder_sites", 0))


@cache
def _trace(
    sites: int, experts: int, top_k: int, hidden: int, inner: int, null: int, encoder: int
) -> Trace:
    shape = ModelShape("small", "none", sites, experts, top_k, hidden, inner)
    trace = synthesize(shape, tokens=6, sequences=3, prompt_tokens=6, seed=1)
    header, ids = trace.header, trace.ids.copy()
    if null:
        ids[ids >= experts - null] = -1
    decodes = trace.phase == DECODE
    if encoder:
        ids[decodes, :encoder] = -1
        ids[~decodes, encoder:] = -1
    stacks = ["encoder"] * encoder + ["decoder"] * (sites - encoder)
    told = tuple(
        replace(site, rule=replace(RULE, null_experts=null), stack=stack)
        for site, stack in zip(header.sites, stacks, strict=True)
    )
    weights = np.where(ids < 0, 0, trace.weights).astype(np.float32)
    return replace(
        trace, header=replace(header, sites=told), ids=ids, weights=weights, logits=trace.logits
    )
