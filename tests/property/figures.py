"""Every figure of a machine and of a model: the runs in which it is at work, and what more of it does.

A new figure of `sim.machine` needs a row here (`test_physical_sense.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from property.small_runs import Config, config_of, got


class Effect(Enum):
    """What a run does with twice as much of a figure, and with half of it."""

    FASTER = "more is never slower; from half to twice as much it is faster"
    SLOWER = "more is never faster; from half to twice as much it is slower"
    HITS = "more is never fewer hits; from half to twice as much there are more"
    FEWER_HITS = "more is never more hits; from half to twice as much there are fewer"
    ROOM = "with half of it the run is refused; with twice as much it is the same run"
    REFUSED = "with another value the run is refused"
    OTHER = "another value takes another time, which may be longer or shorter"
    TOLD = "another value takes the same time, and the summary tells it"
    NOTHING = "a run answers the same whatever it is"


FASTER, SLOWER, HITS, FEWER_HITS = Effect.FASTER, Effect.SLOWER, Effect.HITS, Effect.FEWER_HITS
ROOM, REFUSED, OTHER = Effect.ROOM, Effect.REFUSED, Effect.OTHER
TOLD, NOTHING = Effect.TOLD, Effect.NOTHING
WITHOUT_TIME = (ROOM, REFUSED, TOLD, NOTHING)


@dataclass(frozen=True)
class Figure:
    """A figure at work in a run, by its dotted key.

    ``values``: what it is changed to; () for half of it and twice as much. ``why``: why no time
    depends on it.
    """

    key: str
    run: str
    effect: Effect
    values: tuple[Any, ...] = ()
    why: str = ""

    @property
    def owner(self) -> str:
        """The class and the field, such as ``Link.overhead_us``."""
        return owner_of(config_of(self.run), self.key)


def owner_of(config: Config, key: str) -> str:
    """The class and the field of a key: of the last section with a ``_target_`` on its way."""
    names = key.split(".")
    for end in range(len(names) - 1, 0, -1):
        section = got(config, ".".join(names[:end]))
        if "_target_" in section:
            return f"{section['_target_'].rpartition('.')[2]}.{names[end]}"
    raise AssertionError(f"{key} is in no section of a class")


def rows(
    place: str, names: str, runs: str, effect: Effect, *values: Any, why: str = ""
) -> Iterator[Figure]:
    """Figures of one section, each in each of these runs."""
    for name in names.split():
        for run in runs.split():
            yield Figure(f"{place}.{name}", run, effect, values, why)


# Runs in which decisions do not depend on time, or hardly.
ONE_LINK = "plain on_demand by_site batch engines layers slices copies owners"
LINKED = f"{ONE_LINK} drive shared beside swap"
COMPUTED = "plain on_demand batch slices copies owners shared beside cpu drive"
HOSTED = "plain on_demand batch layers slices owners cpu drive"
SPLITS = "layers slices copies owners"

H, M, K = "hardware", "model", "kernels"
PCIE, NVME = "hardware.links.pcie", "hardware.links.nvme"
READS, GATHER, PAGES = f"{PCIE}.reads", f"{PCIE}.gather", f"{PCIE}.page_cache"
UNPACK, SCATTERED = f"{PCIE}.unpack", f"{PCIE}.scattered"
COMPUTE, CPU, HOST, MEASURED = f"{H}.compute", f"{H}.cpu", f"{H}.host", f"{H}.measured"
SWAP, RAM, SHARED, AHEAD = f"{H}.swap", f"{H}.ram", f"{H}.shared_memory", f"{H}.forecasting"
DEVICES, PEER, ELSE = f"{H}.devices", f"{H}.devices.peer", f"{H}.devices.others.other"
LATENT = f"{M}.latent"

FIGURES: tuple[Figure, ...] = (
    # Memory.
    *rows(H, "memory_gib", "fit fit_by_site fit_swapped", HITS),
    *rows(H, "reserved_gib", "fit fit_by_site", FEWER_HITS),
    *rows(RAM, "capacity_gib", "drive", FASTER),
    *rows(RAM, "filled_by", "two_drives", OTHER, "nvme"),
    # Links.
    *rows(PCIE, "peak_gb_per_s efficiency", LINKED, FASTER),
    *rows(PCIE, "overhead_us", LINKED, SLOWER),
    *rows(NVME, "peak_gb_per_s efficiency", "drive two_drives", FASTER),
    *rows(NVME, "overhead_us", "drive two_drives", SLOWER),
    *rows(NVME, "head_bytes", "drive", SLOWER),
    *rows(PCIE, "engines", "engines", FASTER),
    *rows(PCIE, "pageable", "pageable", FASTER),
    *rows(PCIE, "per_call_us", "calls cut_calls", SLOWER),
    *rows(PCIE, "calls", "calls", SLOWER),
    *rows(PCIE, "call_bytes", "cut_calls", FASTER),
    *rows(PCIE, "slot_us", "slots", SLOWER),
    *rows(PCIE, "engine_gb_per_s copy_gb_per_s", "lanes", FASTER),
    *rows(PCIE, "wake_us", "lanes", SLOWER),
    *rows(PCIE, "unit", "lanes", OTHER, "variant"),
    *rows(PCIE, "name", "plain", NOTHING, "another", why="the key of its section"),
    *rows(READS, "block_bytes queue_depth", "reads", FASTER),
    *rows(READS, "latency_us fault_us", "reads", SLOWER),
    *rows(READS, "scattered_gb_per_s", "scattered_reads", FASTER),
    *rows(READS, "scattered", "scattered_reads", OTHER, False),
    *rows(GATHER, "threads gb_per_s_per_thread", "gather", FASTER),
    *rows(GATHER, "dram_gb_per_s", "gather_from_slow_memory", FASTER),
    *rows(GATHER, "piece_bytes", "gather gather_from_slow_memory", SLOWER),
    *rows(PAGES, "capacity_gib gb_per_s", "page_cache", FASTER),
    *rows(PAGES, "overhead_us", "page_cache", SLOWER),
    *rows(UNPACK, "gb_per_s", "unpack", FASTER),
    *rows(UNPACK, "bits", "unpack", OTHER, 32.0, 8.0),
    *rows(UNPACK, "overhead_us", "unpack", SLOWER),
    *rows(SCATTERED, "rates piece_bytes", "parts", FASTER),
    *rows(SCATTERED, "choose_us", "parts", SLOWER),
    *rows(SCATTERED, "threads", "parts", OTHER, 2),
    *rows(SCATTERED, "form", "parts", OTHER, "zero_copy"),
    # The device.
    *rows(COMPUTE, "peak_tflops flops_efficiency", COMPUTED, FASTER),
    *rows(
        COMPUTE, "memory_gb_per_s memory_efficiency", "plain on_demand batch slices owners", FASTER
    ),
    *rows(COMPUTE, "launch_us dense_launches tail_launches", COMPUTED, SLOWER),
    *rows(COMPUTE, "expert_launches", f"{COMPUTED} by_layer", SLOWER),
    *rows(COMPUTE, "dequantise_launches", "written_out", SLOWER),
    *rows(COMPUTE, "replay_us", "engine", SLOWER),
    # An engine's kernels.
    *rows(K, "weight_share attention_share", "engine", FASTER),
    *rows(K, "launches more_launches row_share", "engine", SLOWER),
    *rows(K, "inner_values outer_values layer_values head_values", "engine", SLOWER),
    *rows(K, "head_dim causal_rows", "engine", SLOWER),
    *rows(K, "tile_rows", "engine", OTHER, 64),
    *rows(K, "graph_rows", "engine", OTHER, 0),
    *rows(K, "together", "engine", OTHER, False),
    *rows(MEASURED, "expert_params dense_params fixed_us", "measured", FASTER),
    *rows(MEASURED, "expert_us.fp16 dense_us copy_us.pcie", "measured", SLOWER),
    *rows(SWAP, "gib", "swap", ROOM, why="where weights may go: room, and no rate"),
    *rows(SWAP, "page_kib", "swap", FASTER),
    *rows(SWAP, "in_us out_us", "swap", SLOWER),
    # The CPU and the host.
    *rows(CPU, "peak_tflops flops_efficiency memory_gb_per_s memory_efficiency", "cpu", FASTER),
    *rows(CPU, "round_trip_us", "cpu", SLOWER),
    *rows(HOST, "sync_us wake_us post_us", HOSTED, SLOWER),
    *rows(HOST, "issue_us", "plain batch layers cpu", SLOWER),
    *rows(HOST, "wake_us", "waking", SLOWER),
    *rows(HOST, "load_us", "book_keeping", SLOWER),
    *rows(HOST, "load_gb_per_s", "book_keeping", FASTER),
    *rows(H, "prediction_us", "later", SLOWER),
    *rows(AHEAD, "launches", "ahead", SLOWER),
    *rows(AHEAD, "on", "ahead_on_cpu", OTHER, "compute"),
    # Who slows whom.
    *rows(SHARED, "gb_per_s", "shared always_shared", FASTER),
    *rows(SHARED, "slows", "shared", OTHER, "always"),
    *rows(SHARED, "parties", "cpu_shares", OTHER, ["cpu", "compute"]),
    *rows(f"{H}.beside", "compute.pcie pcie.compute", "beside", SLOWER),
    # Several devices.
    *rows(PEER, "gb_per_s", SPLITS, FASTER),
    *rows(PEER, "overhead_us", SPLITS, SLOWER),
    *rows(DEVICES, "state_bits", SPLITS, SLOWER),
    *rows(DEVICES, "count", "slices", OTHER, 4),
    *rows(DEVICES, "split", "slices", OTHER, "copies"),
    *rows(DEVICES, "links", "slices owners", OTHER, "shared"),
    *rows(DEVICES, "shares", "layers owners", OTHER, [1.0, 3.0]),
    *rows(DEVICES, "order", "owners", OTHER, "number"),
    *rows(DEVICES, "ranked", "owners", NOTHING, [], why="a run fills it in"),
    *rows(ELSE, "memory_gib", "fit_layers", HITS),
    *rows(ELSE, "reserved_gib", "fit_layers", FEWER_HITS),
    *rows(f"{ELSE}.link", "peak_gb_per_s efficiency", "layers owners", FASTER),
    *rows(f"{ELSE}.link", "overhead_us", "layers owners", SLOWER),
    *rows(f"{ELSE}.compute", "memory_gb_per_s", "layers owners", FASTER),
    *rows(f"{ELSE}.compute", "launch_us", "layers owners", SLOWER),
    *rows(f"{ELSE}.compute", "tail_launches", "layers", SLOWER),
    # What a summary tells beside times.
    *rows(H, "name preset", "plain", TOLD, "another", why="a name"),
    *rows(H, "source", "plain", NOTHING, "another", why="lists of machines tell it"),
    *rows(
        f"{H}.validated", "runs systems", "compared", TOLD, 7, why="of errors that were measured"
    ),
    *rows(f"{H}.validated", "median_factor worst_factor", "compared", TOLD, 1.2, why="an error"),
    *rows(f"{H}.validated", "log_error", "compared", TOLD, 0.4, why="an error"),
    *rows(f"{H}.validated", "only", "compared", TOLD, "all experts on it", why="words"),
    # A model: what it computes.
    *rows(M, "sites", "plain slices owners drive cpu", SLOWER),
    *rows(M, "hidden expert_intermediate", f"plain {SPLITS} drive cpu", SLOWER),
    *rows(M, "heads kv_heads head_dim vocab", f"plain {SPLITS}", SLOWER),
    *rows(M, "experts", "slots_given", SLOWER),
    *rows(M, "top_k expert_matrices dense_bits", f"plain {SPLITS}", SLOWER),
    *rows(M, "kv_bits windows", "context", SLOWER),
    *rows(
        M, "leading_dense_layers dense_layers_per_site dense_intermediate", "layers_beside", SLOWER
    ),
    *rows(M, "shared_intermediate expert_biases", "layers_beside", SLOWER),
    *rows(M, "other_layer_params other_site_params", "layers_beside", SLOWER),
    *rows(LATENT, "query_rank kv_rank rope_dim nope_dim value_dim", "latent", SLOWER),
    *rows(LATENT, "unfolds", "latent_prompt", OTHER, False),
    *rows(M, "fused_gate", "lanes", OTHER, True),
    *rows(M, "null_experts", "null_experts", FASTER),
    *rows(M, "encoder_sites", "encoder", OTHER, 1),
    # A model: what it keeps in memory.
    *rows(M, "other_params", "fit_other", FEWER_HITS),
    *rows(M, "tied_embeddings", "fit_tied", OTHER, True),
    *rows(M, "kv_bits", "fit_context", FEWER_HITS),
    *rows(M, "draft_sites", "plain", REFUSED, 1, why="workload.draft_layers sets it"),
    # A model: words.
    *rows(M, "name", "plain", TOLD, "another", why="a name"),
    *rows(M, "source", "plain", NOTHING, "another", why="lists of models tell it"),
    *rows(M, "stored", "plain", TOLD, "mxfp4", why="a label"),
    *rows(M, "whole", "plain", TOLD, [8, 8, 2], why="a label"),
    *rows(M, "sizes_of", "transplant", TOLD, "another", why="a label"),
    *rows(M, "gates_of", "transplant", REFUSED, "another", why="it names the model of the trace"),
)
