"""Runs on several devices: what they hold, refuse and take, from the words of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from real.setup.prepare import read_request
from sim.answers.ask import fits_of
from sim.answers.whatif_questions import tokens_that_fill
from sim.audit.__main__ import main as audit
from sim.machine.ledger import Ledger, make_ledger
from sim.results.outputs import write_outputs
from sim.screen import read_words, screen
from sim.screening.moves import ScreenError
from sim.setup.configure import configure
from sim.setup.execute import execute
from sim.setup.on_devices import ledger_on
from sim.setup.run_memory import rooms_for_kv
from sim.study.trials import prepared, trial
from sim.values.types import Step
from sim.values.units import us

COMMON = ("system=lru", "trace.max_sequences=1", "budget.resident_share=0.5")
LAYERS, SLICES, COPIES, OWNERS = (
    f"devices={split}_2" for split in ("layers", "slices", "copies", "owners")
)
STEP = Step(0, 0, 1, (0,), 9, True, (0,), (0,), tuple(range(16)))


# Contracts: C163
@pytest.mark.alike
@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((LAYERS, "bounds=max"), "bounds=none"),
        ((OWNERS, "bounds=max"), "bounds=none"),
        ((OWNERS, "system=mixtral_offloading"), "set cache.scope to global$"),
        ((OWNERS, "system=fiddler"), None),
        ((OWNERS, "loader.wait=by_projection"), "does not go with hardware.devices"),
        ((OWNERS, "loader.prefetch_budget=within_layer"), "prefetch_budget to a number"),
        (
            (OWNERS, "predictor=expected_needs", "loader.prefetch_budget=in_time"),
            "prefetch_budget to a number, or set hardware.devices",
        ),
        ((LAYERS, "system=hobbit", "cache=lru"), None),
        ((LAYERS, "system=hobbit"), "cache.scope to global or site"),
        ((LAYERS, "loader.staging_slots=2"), None),
        ((LAYERS, "loader.staging_slots=2", "payload=active_share"), "choose payload=whole"),
        ((LAYERS, "loader.dense_slots=2"), "loader.dense_slots=0"),
        ((LAYERS, "loader.write_back=true"), "loader.write_back=false"),
        ((LAYERS, "loader.prefetch_budget=within_layer"), "prefetch_budget to a number"),
        ((SLICES, "system=fiddler"), "placement=load"),
        ((COPIES, "system=floe"), "another precision"),
    ],
)
def test_what_several_devices_refuse_is_told_with_the_way_out(
    words: tuple[str, ...], told: str | None
) -> None:
    given = [word for word in COMMON if not (word.startswith("system=") and len(words) > 1)]
    chosen = [*given, *words]
    if not any(word.startswith("system=") for word in chosen):
        chosen.insert(0, "system=lru")
    if told is None:
        assert prepared(chosen).hardware.devices is not None
        return
    with pytest.raises(ValueError, match=told):
        prepared(chosen)


# Contracts: C160
def test_layers_divide_dense_weights_keys_and_slots_and_nothing_is_lost() -> None:
    one, two = prepared([*COMMON]), prepared([*COMMON, LAYERS])
    mine, both = one.ledger, two.ledger
    assert both.slot_bytes == sum(two.controller.slots.bytes_by_device().values())
    assert mine.slot_bytes - 2 * max(two.controller.geometry.slot_sizes) < both.slot_bytes
    assert both.slot_bytes <= mine.slot_bytes
    assert 0 <= both.dense_bytes - mine.dense_bytes <= one.model.sites
    assert both.kv_bytes == mine.kv_bytes
    assert both.reserved_bytes == 2 * mine.reserved_bytes
    assert both.activation_bytes == 2 * mine.activation_bytes


# Contracts: C158 C160
def test_every_device_has_room_for_all_staging_slots() -> None:
    without, staged = (
        prepared([*COMMON, LAYERS, f"loader.staging_slots={slots}"]) for slots in (0, 3)
    )
    largest = max(staged.controller.geometry.slot_sizes)
    assert without.ledger.staging_bytes == 0
    assert staged.ledger.staging_bytes == 2 * 3 * largest


def test_what_a_device_cannot_hold_is_told_with_its_number() -> None:
    words = [*COMMON, LAYERS, "hardware.devices.shares=[15,2]", "hardware.memory_gib=14"]
    with pytest.raises(ValueError, match="device 0 of 2: the device holds 14 GiB"):
        prepared(words)
    prepared([*COMMON, LAYERS, "hardware.memory_gib=14"])


def test_the_largest_budget_that_fits_is_larger_on_two_devices() -> None:
    shares = {
        words: prepared(
            ["system=lru", "trace.max_sequences=1", "budget=fit", *words]
        ).resident_share
        for words in ((), (LAYERS,), (SLICES,), (COPIES,))
    }
    alone = shares[()]
    assert shares[(LAYERS,)] > 1.8 * alone
    assert shares[(SLICES,)] > 1.8 * alone
    assert alone < shares[(COPIES,)] < 1.2 * alone


# Contracts: C161
def test_a_device_in_step_takes_its_part_of_the_work_and_all_of_the_launches() -> None:
    one, slices, copies = (prepared([*COMMON, *words]) for words in ((), (SLICES,), (COPIES,)))
    launch_ns = us(one.hardware.compute.launch_us)
    fixed_ns = one.hardware.compute.expert_launches * launch_ns
    whole_ns = one.durations.expert_ns(0, 3, 1)
    assert abs(slices.durations.expert_ns(0, 3, 1) - fixed_ns - (whole_ns - fixed_ns) / 2) <= 1
    assert copies.durations.expert_ns(0, 3, 1) == whole_ns
    devices = slices.hardware.devices
    assert devices is not None
    sum_ns = devices.sum_ns(slices.model, 1)
    fixed_ns = one.hardware.compute.dense_launches * launch_ns
    for run in (slices, copies):
        times, alone = run.durations.dense_ns(STEP), one.durations.dense_ns(STEP)
        part_ns = fixed_ns + (alone[3] - fixed_ns) / 2
        assert abs(times[3] - 2 * sum_ns - part_ns) <= 1
        assert times[0] == times[3] - sum_ns
    size = one.controller.geometry.variant_bytes[0]
    assert slices.durations.hop_ns(0, size) == one.durations.hop_ns(0, size // 2)
    assert copies.durations.hop_ns(0, size) == one.durations.hop_ns(0, size)
    behind_one = prepared([*COMMON, SLICES, "hardware.devices.links=shared"]).durations
    assert behind_one.hop_ns(0, size) == 2 * one.durations.hop_ns(0, size // 2)


def test_slices_hold_a_part_and_copies_all_slots_on_each_device() -> None:
    one, slices, copies = (
        prepared([*COMMON, *words]).ledger for words in ((), (SLICES,), (COPIES,))
    )
    assert (slices.slot_bytes, copies.slot_bytes) == (one.slot_bytes, 2 * one.slot_bytes)
    assert slices.dense_bytes == copies.dense_bytes == one.dense_bytes
    assert isinstance(slices, Ledger)


# Contracts: C158
def test_decisions_of_one_pool_a_device_and_loads_over_their_links() -> None:
    """With one pool a site and nothing foreseen, decisions do not depend on devices: over their
    links come the loads of their sites.
    """
    words = [*COMMON, "cache=lru_per_site"]
    one, two = (execute(prepared([*words, *more])) for more in ((), (LAYERS,)))
    assert one.summary["lookups"] == two.summary["lookups"]
    moved = two.summary["bytes"]
    assert one.summary["bytes"]["pcie"]["demand"] == sum(moved[n]["demand"] for n in moved)
    assert moved["pcie"]["demand"] > 0 < moved["pcie_1"]["demand"]
    assert two.summary["hardware"] == "2 x rtx4090_pcie4 (layers)"
    assert "2 x rtx4090_pcie4" in two.summary["labels"]["machine"]


def test_a_third_slower_card_makes_it_slower_where_two_hold_everything() -> None:
    """As Strata's page tells of two cards that hold the model and a slower one beside them."""
    words = ["system=lru", "trace.max_sequences=1", "budget.resident_share=1", LAYERS]
    slow = (
        "hardware.devices.count=3",
        "+hardware.devices.others.slow={_target_:sim.machine.Device,memory_gib:24,"
        "reserved_gib:0.5,compute:${hardware.compute},link:${hardware.links.pcie}}",
    )
    words += ["hardware.memory_gib=48"]
    two = trial(words).summary["decode_tokens_per_s"]
    three = trial([*words, *slow]).summary["decode_tokens_per_s"]
    assert three < two


# Contracts: C172
def test_home_holds_all_but_the_other_owners_experts() -> None:
    """Of 22 GiB of slots each owner has half; dense weights, keys and values are home's alone."""
    one, two = prepared([*COMMON]), prepared([*COMMON, OWNERS])
    mine, both = one.ledger, two.ledger
    by_device = two.controller.slots.bytes_by_device()
    assert by_device[0] == by_device[1]
    assert (both.slot_bytes, both.dense_bytes) == (sum(by_device.values()), mine.dense_bytes)
    assert (both.kv_bytes, both.reserved_bytes) == (mine.kv_bytes, 2 * mine.reserved_bytes)
    with pytest.raises(ValueError, match=r"device 0 of 2: the device holds 12\.5 GiB"):
        prepared([*COMMON, OWNERS, "hardware.memory_gib=12.5"])


# Contracts: C170 C172
def test_owners_load_and_compute_beside_each_other() -> None:
    """With half of the loads on each link two are faster than one."""
    one, two = (execute(prepared([*COMMON, *more])).summary for more in ((), (OWNERS,)))
    assert two["hardware"] == "2 x rtx4090_pcie4 (owners)"
    assert two["makespan_s"] < one["makespan_s"]
    assert two["stall_s"]["cpu_join"] > 0 == one["stall_s"]["cpu_join"]
    assert set(two["bytes"]) == {"pcie", "pcie_1"}
    assert two["compute_busy_s"] < one["compute_busy_s"]


# Contracts: C169
@pytest.mark.parametrize("budget", [(), ("budget=fit",)])
def test_home_computes_more_where_it_owns_the_experts_used_most(budget: tuple[str, ...]) -> None:
    by_use = f"{OWNERS} hardware.devices.order=use".split()
    found = {}
    for words in ([OWNERS], by_use):
        run = prepared([*COMMON, *budget, *words])
        lookups = execute(run).frames.lookups
        of = run.controller.geometry.device_of
        home = [of[key % run.controller.geometry.plane] == 0 for key in lookups["key"]]
        found[len(words)] = sum(home) / len(home)
        assert of.count(0) - run.model.sites == of.count(1)
    assert abs(found[1] - 0.5) < 0.1
    assert found[2] > found[1] + 0.03


# Contracts: C159
def test_chunks_of_a_prompt_follow_each_other_through_all_devices() -> None:
    """Everything is resident: two devices take what one takes, and a message each chunk more."""
    words = ["system=lru", "trace.max_sequences=1", "budget.resident_share=1"]
    words += ["hardware.memory_gib=80", "workload=continuous_4_chunked", "workload.prefill_chunk=8"]
    one, two = (prepared([*words, *more]) for more in ((), (LAYERS,)))
    assert sum(not step.decode for step in two.workload.steps) > 2
    devices = two.hardware.devices
    assert devices is not None
    messages = sum(devices.crossing_ns(two.model, step.rows) for step in two.workload.steps)
    assert messages > 0
    times = [execute(run).frames.makespan_ns for run in (one, two)]
    assert times[1] - times[0] == messages


# Contracts: C162
@pytest.mark.parametrize("split", [SLICES, COPIES])
@pytest.mark.parametrize("links", ["own", "shared"])
def test_devices_in_step_begin_with_their_parts_of_dense_weights(split: str, links: str) -> None:
    """Over a shared link both parts come, one after the other; experts as in any service."""
    run = prepared([*COMMON, split, f"hardware.devices.links={links}"])
    one, services = prepared([*COMMON]), 2 if links == "shared" else 1
    dense_ns = services * one.durations.hop_ns(0, -(-run.ledger.dense_bytes // 2))
    slots = run.controller.slots
    experts_ns = sum(run.durations.hop_ns(0, slots.key_bytes[key]) for key in slots.initial)
    assert execute(run).summary["load_s"] == (dense_ns + experts_ns) / 1e9


# Contracts: C162
@pytest.mark.alike
@pytest.mark.parametrize("devices", [LAYERS, SLICES, COPIES, OWNERS])
def test_the_audit_agrees_with_a_run_on_several_devices(devices: str, tmp_path: Path) -> None:
    run = prepared([*COMMON, "system=moe_infinity" if devices == SLICES else "system=lru", devices])
    result = execute(run)
    summary = {**result.summary, "wall_s": 1.0}
    write_outputs(tmp_path, summary, run.config, result.frames, "wait_all", None)
    assert json.loads((tmp_path / "summary.json").read_text())["hardware"].startswith("2 x ")
    assert audit([str(tmp_path)]) == 0


def test_all_experts_fit_only_if_they_fit_each_device() -> None:
    """45 GiB on two devices of 24: the first has nine of sixteen sites, which are too many."""
    uneven = prepared([*COMMON, LAYERS])
    even = prepared([*COMMON, LAYERS, "hardware.devices.shares=[8,9]"])
    assert [fits_of(run)[0].fits for run in (uneven, even)] == [False, True]
    sliced, copied = (
        prepared([*COMMON, words, "budget.resident_share=0.4"]) for words in (SLICES, COPIES)
    )
    assert [fits_of(run)[0].fits for run in (sliced, copied)] == [True, False]


# Contracts: C163
def test_screening_and_runs_on_a_device_refuse_several_with_the_way_out() -> None:
    with pytest.raises(ScreenError, match=r"hardware\.devices is not screened; moelab run runs it"):
        screen(read_words((*COMMON, SLICES)))
    cfg, system = configure(LAYERS, "hardware=rtx4090_pcie4", config="real")
    with pytest.raises(ValueError, match="a run is on one device; moelab run simulates several"):
        read_request(cfg, system)


# Contracts: C161 C162
@pytest.mark.parametrize(
    ("words", "parts", "services"),
    [
        ([SLICES], 2, 1),
        ([SLICES, "hardware.devices.links=shared"], 2, 2),
        ([COPIES], 1, 1),
        ([COPIES, "hardware.devices.links=shared"], 1, 2),
        ([COPIES, "hardware.devices.links=shared", "hardware.devices.count=3"], 1, 3),
    ],
)
def test_the_bytes_of_a_link_are_those_that_it_moved_and_give_its_rate(
    words: list[str], parts: int, services: int, tmp_path: Path
) -> None:
    """Busy time is bytes over the link's rate and an overhead for each service."""
    run = prepared([*COMMON, *words, "hardware.links.pcie.overhead_us=0"])
    result = execute(run)
    size = run.controller.geometry.slot_sizes[0]
    moved = sum(result.summary["bytes"]["pcie"].values())
    transfers = len(result.frames.traffic.table)
    assert moved == transfers * services * -(-size // parts)
    link = run.hardware.links[0]
    busy_s = result.summary["link_utilisation"]["pcie"] * result.summary["makespan_s"]
    rate = link.peak_gb_per_s * link.efficiency
    assert moved / busy_s / 1e9 == pytest.approx(rate, rel=1e-6)
    write_outputs(tmp_path, result.summary, run.config, result.frames, "as_ready", None)
    assert audit([str(tmp_path)]) == 0


# Contracts: C153
@pytest.mark.parametrize(
    ("words", "tokens"),
    [(LAYERS, 656_700), (SLICES, 740_000), (COPIES, 740_000), (OWNERS, 356_000)],
)
def test_keys_and_values_fill_the_device_that_has_the_least_room_for_them(
    words: str, tokens: int
) -> None:
    """A what-if told 741,395 tokens of devices that own experts, where the ledger refuses 400,000: home
    has all keys and values. Of layers the first device has nine of sixteen.
    """
    run = prepared([*COMMON, words])
    limits, hardware = run.workload.limits, run.hardware
    fills = min(
        tokens_that_fill(room.bytes * room.parts, run.model.kv_bytes_by_window(room.sites))
        for room in rooms_for_kv(run)
    )
    assert fills == pytest.approx(tokens, rel=0.01)

    def take(more: int) -> None:
        longer = replace(limits, tokens=int(fills) + more)
        ledger = make_ledger(run.model, hardware, longer, slot_bytes=0)
        ledger_on(hardware, run.model, longer, ledger, {0: 0, 1: 0})

    take(-1)
    with pytest.raises(ValueError, match="the key-value cache of"):
        take(2)
