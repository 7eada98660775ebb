"""For every system: a run does one thing that its source says, and with another choice it does not.

Oracle: the source named in the system's file. The other choice is the planted defect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest

from sim.results.outputs import answer
from sim.results.run import Run
from sim.setup.execute import execute
from sim.study.trials import prepared
from sim.values.places import ROOT
from sim.values.types import Event

SHORT = ("trace.max_sequences=1", "hardware.memory_gib=96", "outputs=summary")
USUAL = ("edgemoe", "fate", "hobbit", "moe_infinity_code", "swapmoe")
"""The systems with the most mechanisms; the others run by ``make thorough``."""
SYSTEMS = sorted(path.stem for path in (ROOT / "conf" / "system").glob("*.yaml"))


@dataclass(frozen=True)
class Ran:
    run: Run
    summary: dict[str, Any]
    lookups: pl.DataFrame

    @property
    def decode(self) -> set[str]:
        """The outcomes of decoded rows' lookups."""
        return set(self.lookups.filter(pl.col("phase") == "decode")["outcome"])

    @property
    def later(self) -> set[str]:
        """The outcomes of decoded rows' lookups after the first site."""
        return set(
            self.lookups.filter((pl.col("phase") == "decode") & (pl.col("site") > 0))["outcome"]
        )

    @property
    def first_decoded(self) -> set[str]:
        """The outcomes of the first decoded step."""
        decoded = self.lookups.filter(pl.col("phase") == "decode")
        return set(decoded.filter(pl.col("step") == decoded["step"].min())["outcome"])

    @property
    def moved(self) -> set[int]:
        return {
            transfer.moved_bytes for transfer in self.run.controller.issued if not transfer.dense
        }

    @property
    def queued(self) -> dict[int, list[int]]:
        """The keys of the prefetches that each gate queued, in order, by tick."""
        tick_of = {call: tick for tick, call in enumerate(self.run.controller.gate_calls)}
        events, found = self.run.controller.event_columns, dict[int, list[int]]()
        for call, kind, key in zip(
            *(events[name] for name in ("call", "kind", "key")), strict=True
        ):
            if kind == Event.QUEUE_PREFETCH:
                found.setdefault(tick_of[call], []).append(key)
        return found

    def ahead(self) -> dict[int, list[int]]:
        """How many sites ahead each of these prefetches is, by tick."""
        site_of, gate_site = (
            self.run.controller.geometry.site_of,
            self.run.workload.gate_site.tolist(),
        )
        return {
            tick: [site_of(key) - gate_site[tick] for key in keys]
            for tick, keys in self.queued.items()
        }

    def queued_in_prompts(self) -> int:
        """How many prefetches gates of prompts queued."""
        workload = self.run.workload
        is_prompt = [not step.decode for step in workload.steps]
        return sum(
            len(keys) for tick, keys in self.queued.items() if is_prompt[workload.gate_step[tick]]
        )

    def most_queued(self) -> int:
        return max(map(len, self.queued.values()), default=0)

    @property
    def size(self) -> int:
        return self.run.controller.geometry.variant_bytes[0]

    @property
    def pools(self) -> tuple[int, ...]:
        return tuple(capacity // self.size for capacity in self.run.controller.slots.capacity_bytes)


@dataclass(frozen=True)
class Claim:
    """A claim that ``holds`` for the system's run, but not for one with the choice ``other``."""

    says: str
    holds: Callable[[Ran], bool]
    other: str


def never_waits(ran: Ran) -> bool:
    return bool(ran.summary["makespan_s"] == ran.summary["compute_busy_s"])


def moves_layers(ran: Ran) -> bool:
    """The needs of each gate bring all eight experts."""
    moved = sum(
        transfer.moved_bytes for transfer in ran.run.controller.issued if not transfer.dense
    )
    return moved == ran.run.workload.num_gates * 8 * ran.size


def goes_by_statistics(ran: Ran) -> bool:
    return ran.summary["prediction"][
        "recall_at_issued"
    ] < 0.8 and ran.run.controller.geometry.precisions == ("int4",)


def stays(ran: Ran) -> bool:
    controller = ran.run.controller
    held = {
        key
        for key, state in enumerate(controller.state)
        if state <= 1 and not controller.staging.holds[key]
    }
    return held == set(controller.slots.initial) and "cpu" in ran.decode


def goes_on_from_here(ran: Ran) -> bool:
    """Prefetches go layer by layer, beginning with the gate's own."""
    ahead = ran.ahead().values()
    return any(0 in of_gate for of_gate in ahead) and all(
        of_gate == sorted(of_gate) for of_gate in ahead
    )


def loads_less_than_lru(ran: Ran) -> bool:
    return len(ran.run.controller.issued) < len(run_of("system=lru").run.controller.issued)


def one_buffer(precision: str) -> Callable[[Ran], bool]:
    return lambda ran: ran.pools == (2,) and ran.run.controller.geometry.precisions == (precision,)


CLAIMS = {
    "hobbit": Claim(
        "prefetches down to the first layer with a missing expert, and no further",
        lambda ran: {len(set(ahead)) for ahead in ran.ahead().values()} == {1},
        "loader.depth=all",
    ),
    "hobbit_cpu": Claim(
        "a decoded token's missing experts are computed on the CPU",
        lambda ran: "cpu" in ran.decode and "miss" not in ran.decode,
        "placement=load",
    ),
    "edgemoe": Claim(
        "moves two widths and holds FP32",
        lambda ran: len(ran.moved) == 2 and ran.run.ledger.slot_bytes >= 31 * 8 * ran.size,
        "precision=per_expert",
    ),
    "fate": Claim(
        "holds its first layers whole and shares the rest, and prefetches no more than fits beside"
        " a block",
        lambda ran: (
            ran.pools[:3] == (8, 8, 8) and max(ran.pools[3:]) < 8 and 1 <= ran.most_queued() <= 2
        ),
        "cache=arc",
    ),
    "floe": Claim(
        "moves a tenth of gate and down for a token",
        lambda ran: min(ran.moved) < ran.size // 4,
        "payload=whole",
    ),
    "load_on_demand": Claim("keeps nothing", one_buffer("fp16"), "cache=lru"),
    "io_exp": Claim("keeps nothing, in FP32", one_buffer("fp32"), "precision=fp16"),
    "io_qexp": Claim("keeps nothing, in INT4", one_buffer("int4"), "precision=fp16"),
    "io_free": Claim("has all in memory", never_waits, "loader=on_demand"),
    "infinite_link": Claim("waits for no copy", never_waits, "loader=on_demand"),
    "resident_int2": Claim("loads nothing", lambda ran: not ran.moved, "budget.resident_share=0.5"),
    "lru": Claim(
        "one pool, on demand",
        lambda ran: ran.pools == (64,) and not ran.queued,
        "predictor=gate_lookahead_1",
    ),
    "scored_per_site": Claim(
        "a pool a layer, on demand",
        lambda ran: ran.pools == (4,) * 16 and not ran.queued,
        "cache=weighted_score",
    ),
    "expected_needs": Claim(
        "prefetches nothing where no expert can arrive in the time of five layers",
        lambda ran: ran.run.controller.loader.prefetch_budget == 0 and not ran.queued,
        "hardware.links.pcie.peak_gb_per_s=400",
    ),
    "transformers": Claim("calls every expert of a layer", moves_layers, "payload=whole"),
    "deepspeed_inference": Claim(
        "gathers whole layers, one ahead",
        lambda ran: moves_layers(ran) and "miss" not in ran.later,
        "predictor=none",
    ),
    "deepspeed_mii": Claim("gathers whole layers", moves_layers, "payload=whole"),
    "sti": Claim(
        "streams whole layers at the least width",
        lambda ran: moves_layers(ran) and ran.run.controller.geometry.bits == (2.0,),
        "precision=int4",
    ),
    "llama_cpp": Claim(
        "first layers stay on the device, others are the CPU's",
        lambda ran: stays(ran) and not ran.moved,
        "placement=load",
    ),
    "llama_cpp_cache": Claim(
        "a prompt of more than 32 tokens only reads the cache, which is cold at first",
        lambda ran: ran.first_decoded == {"miss"} and "hit" in ran.decode,
        "cache.up_to_rows=4096",
    ),
    "llama_cpp_cache_cpu": Claim(
        "the CPU computes what decoding misses, and it is uploaded behind that",
        lambda ran: (
            "cpu" in ran.decode
            and "miss" not in ran.decode
            and {n for ahead in ran.ahead().values() for n in ahead} == {0}
        ),
        "predictor=none",
    ),
    "llama_cpp_n_cpu_moe": Claim(
        "all experts of the last layers are on the device, of the first layers none",
        lambda ran: (
            ran.pools == (0,) * 8 + (8,) * 8 and "cpu" in ran.decode and len(ran.moved) == 1
        ),
        "placement=ik_llama_cpp_offload",
    ),
    "fiddler": Claim(
        "popular experts stay, a token's others are the CPU's", stays, "placement=load"
    ),
    "mixtral_offloading": Claim(
        "a cache a layer, one or two experts of the next layer",
        lambda ran: ran.pools == (4,) * 16 and 1 <= ran.most_queued() <= 2,
        "predictor=activation_matrix loader.prefetch_budget=all",
    ),
    "mixtral_offloading_code": Claim(
        "what is evicted goes back, nothing is prefetched",
        lambda ran: ran.summary["bytes"]["pcie"]["write_back"] > 0 and not ran.queued,
        "loader.write_back=false",
    ),
    "moe_infinity": Claim(
        "one queue ranks the experts of all layers to come",
        lambda ran: any(ahead != sorted(ahead) for ahead in ran.ahead().values()),
        "loader.prefetch_order=nearest",
    ),
    "moe_infinity_code": Claim(
        "without a stored request it goes on with the layer that has just routed",
        goes_on_from_here,
        "predictor.own_site=false",
    ),
    "eap": Claim(
        "forecasts by what often follows, in INT4", goes_by_statistics, "predictor=foreseen_1"
    ),
    "pregated_moe": Claim(
        "no need is missed after the first layer",
        lambda ran: "miss" not in ran.later,
        "predictor=none",
    ),
    "sida": Claim(
        "what was predicted serves",
        lambda ran: ran.summary["quality_proxy"]["reroute_share"] > 0,
        "precision=fp16",
    ),
    "swapmoe": Claim(
        "no token waits for an expert",
        lambda ran: ran.decode == {"hit", "reroute"},
        "precision=fp16",
    ),
    "adapmoe": Claim(
        "one expert is prefetched, layers have shares of their own, light experts are left out",
        lambda ran: ran.most_queued() == 1 and len(set(ran.pools)) > 1 and "skip" in ran.decode,
        "loader.prefetch_budget=2",
    ),
    "promoe": Claim(
        "forecasts two layers ahead",
        lambda ran: {n for ahead in ran.ahead().values() for n in ahead} == {2},
        "predictor=learned",
    ),
    "oracle": Claim(
        "loads less than a cache that does not know the future", loads_less_than_lru, "cache=lru"
    ),
}


def run_of(*words: str) -> Ran:
    run = prepared([*words, *SHORT])
    result = execute(run)
    return Ran(run, result.summary, result.frames.lookups)


def test_of_every_system_something_is_said() -> None:
    assert sorted(CLAIMS) == SYSTEMS


@pytest.mark.alike
@pytest.mark.parametrize(
    "system",
    [pytest.param(name, marks=() if name in USUAL else pytest.mark.thorough) for name in SYSTEMS],
)
def test_a_system_does_what_its_source_says(system: str) -> None:
    assert CLAIMS[system].holds(run_of(f"system={system}")), CLAIMS[system].says


SCORES_LACK = (
    "not forecast: the predictor reads each token's scores, which trace tiny_mixtral keeps of"
    " decoded tokens"
)
PROMPTS = {
    "fate": "forecast",
    "hobbit": "forecast",
    "eap": "forecast",
    "edgemoe": "forecast",
    "moe_infinity": "forecast",
    "mixtral_offloading": "not forecast by the system",
    "adapmoe": "not forecast by the system",
    "floe": SCORES_LACK,
    "promoe": SCORES_LACK,
}
"""What each system does with prompts, as its file says with its source."""


@pytest.mark.alike
@pytest.mark.parametrize("system", PROMPTS)
def test_a_system_prefetches_in_prompts_or_the_run_says_why_not(system: str) -> None:
    ran = run_of(f"system={system}")
    told = ran.summary["prediction"]["prompts"]
    assert told.startswith(PROMPTS[system])
    assert (ran.queued_in_prompts() > 0) == (told == "forecast")
    assert (ran.summary["prediction"]["prefill"] is not None) == (told == "forecast")
    assert ("Prompts were not forecast: " in answer(ran.summary)) == told.startswith(
        "not forecast: "
    )


def test_what_a_system_leaves_out_by_design_another_predictor_does() -> None:
    for system in ("mixtral_offloading", "adapmoe"):
        ran = run_of(f"system={system}", "predictor=gate_lookahead_1")
        assert ran.queued_in_prompts() > 0
        assert ran.summary["prediction"]["prompts"] == "forecast"


def test_nearly_all_that_a_prompt_needs_is_forecast() -> None:
    """HOBBIT, section 5.5.2: a prompt uses nearly all experts, so forecasts are mostly right."""
    prefill = run_of("system=hobbit").summary["prediction"]["prefill"]
    assert prefill["recall_at_issued"] > 0.95
    assert prefill["precision"] > 0.95


@pytest.mark.thorough
@pytest.mark.parametrize("system", SYSTEMS)
def test_with_another_choice_it_does_not(system: str) -> None:
    claim = CLAIMS[system]
    assert not claim.holds(run_of(f"system={system}", *claim.other.split())), (
        f"{claim.other} goes unnoticed"
    )


def test_what_fate_prefetches_displaces_nothing_before_its_layer_asks_for_it() -> None:
    """Section 4.1: the cache list is updated by what the gate chose.

    In the pool a wrong prefetch would take a slot.
    """

    def displaced(ran: Ran) -> int:
        return sum(
            len(transfer.victims) for transfer in ran.run.controller.issued if transfer.prefetch
        )

    staged, pooled = run_of("system=fate"), run_of("system=fate", "loader.destination=pool")
    assert staged.summary["prefetch"]["late"] > 0
    assert displaced(staged) == 0 < displaced(pooled)
    assert staged.summary["makespan_s"] < pooled.summary["makespan_s"]
