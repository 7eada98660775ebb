"""Parts that do not go together, each tried beside the same parts that do."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from sim.policies.requires import Requires
from sim.setup.refusals import (
    check_drafts,
    check_parts,
    moves_kv,
)
from sim.study.trials import prepared


class Policy(SimpleNamespace):
    """A policy by its requirements alone."""


def of(base: dict[str, Any], **changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**(base | changes))


LINK: dict[str, Any] = {"name": "pcie", "unpack": None, "page_cache": None}
HARDWARE: dict[str, Any] = {
    "name": "m",
    "links": (of(LINK), of(LINK)),
    "lanes": (),
    "cpu": None,
    "devices": None,
    "swap": None,
    "contention": None,
    "is_unified": False,
}
LOADER: dict[str, Any] = {"chunk_bytes": None, "dense_slots": 0, "write_back": False, "wait": "all"}
TIERS = SimpleNamespace(moves=True)
ASKED: dict[str, Any] = {
    "requests": None,
    "kv_ram_gib": 0.0,
    "kv_disk_gib": 0.0,
    "tiers": lambda token_bytes: None,
}
MOVED = of(ASKED, requests="file", tiers=lambda token_bytes: TIERS if token_bytes == 7 else None)
MODEL: dict[str, Any] = {
    "name": "small",
    "encoder_sites": 0,
    "draft_sites": 0,
    "kv_bytes_per_token": 7,
}
CUT = Policy(whole=False, requires=Requires())
UNPACKS = of(HARDWARE, links=(of(LINK), of(LINK, unpack=1)))
KEEPS = of(HARDWARE, links=(of(LINK), of(LINK, name="nvme", page_cache=1)))
UNIT = of(HARDWARE, lanes=("links.pcie.unit=projection", "compute.x=1"))
WAKES = of(HARDWARE, lanes=("links.pcie.wake_us=2", "compute.x=1"))


def parts(**changes: Any) -> Any:
    policy = Policy(whole=True, uses_cpu=False, requires=Requires())
    values = {
        "model": of(MODEL),
        "hardware": of(HARDWARE),
        "loader": of(LOADER),
        "kernels": SimpleNamespace(together=False),
        "workload": of(ASKED),
        "placement": policy,
        "payload": policy,
        "policies": lambda: {"predictor": policy},
    }
    return SimpleNamespace(**(values | changes))


def workload(**changes: Any) -> Any:
    header = of(
        {
            "name": "t",
            "encoder_sites": 0,
            "lacks": frozenset(),
            "prefill": "rows",
            "stands_in_order": False,
            "provenance": {"format": "csv"},
            "sites": [SimpleNamespace(site=0, rule=1), SimpleNamespace(site=1, rule=1)],
        },
        **changes.pop("header", {}),
    )
    trace = of({"header": header, "active_shares": 1, "logits": 1}, **changes.pop("trace", {}))
    values = {
        "trace": trace,
        "norm": "raw",
        "is_timed": False,
        "batching": "sequential",
        "prefill_chunk": None,
    }
    return SimpleNamespace(**(values | changes))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"placement": Policy(uses_cpu=True)},
            "this placement may compute experts on the CPU, but hardware m has no cpu section; choose"
            " placement=load, or a machine whose file has one",
        ),
        (
            {"hardware": KEEPS, "loader": of(LOADER, chunk_bytes=5)},
            "loader.chunk_bytes=5 does not go with hardware.links.nvme.page_cache: what is kept of a"
            " read that was cut is not modelled; set one of them to null",
        ),
        *(
            (
                {"hardware": UNPACKS, "loader": of(LOADER, **cut)},
                f"loader.chunk_bytes={cut.get('chunk_bytes')}, dense_slots={cut.get('dense_slots', 0)}"
                " do not go with hardware.links.*.unpack, which is of whole experts; set"
                " chunk_bytes=null, dense_slots=0 or unpack=null",
            )
            for cut in ({"chunk_bytes": 5}, {"dense_slots": 1})
        ),
        (
            {
                "kernels": SimpleNamespace(together=True),
                "loader": of(LOADER, wait="as_ready"),
            },
            "kernels.together takes a layer's experts together, and loader.wait=as_ready computes each"
            " by itself; choose loader.wait=wait_all, or kernels=of_machine",
        ),
        (
            {"hardware": of(HARDWARE, swap=1), "loader": of(LOADER, dense_slots=1)},
            "loader.dense_slots=1 does not go with hardware.swap, which holds dense weights; set it"
            " to 0, or hardware.swap=null",
        ),
        *(
            (
                {"hardware": lanes, "loader": of(LOADER, chunk_bytes=5)},
                f"hardware.links.pcie.{word} does not go with loader.chunk_bytes=5; leave out one or"
                " the other",
            )
            for lanes, word in ((UNIT, "unit=projection"), (WAKES, "wake_us=2"))
        ),
        (
            {
                "hardware": of(HARDWARE, is_unified=True),
                "loader": of(LOADER, write_back=True),
            },
            "loader.write_back=true: pcie of m begins at a drive, which has every expert already, so"
            " that nobody writes one back; set loader.write_back=false",
        ),
        (
            {"hardware": UNIT, "loader": of(LOADER, write_back=True)},
            "hardware.links.pcie.unit=projection does not go with loader.write_back=True; leave out"
            " one or the other",
        ),
        (
            {"hardware": UNIT, "payload": CUT, "loader": of(LOADER, wait="by_projection")},
            "hardware.links.pcie.unit=projection, loader.wait=by_projection does not go with"
            " payload=Policy; leave out one or the other",
        ),
        (
            {
                "hardware": of(HARDWARE, devices=1),
                "loader": of(LOADER, wait="by_projection"),
            },
            "loader.wait=by_projection does not go with hardware.devices; leave out one or the other",
        ),
        (
            {
                "hardware": of(HARDWARE, contention=1),
                "loader": of(LOADER, wait="by_projection"),
            },
            "loader.wait=by_projection does not go with hardware.beside or"
            " shared_memory.slows=as_drawn; leave out one or the other",
        ),
        (
            {"workload": of(ASKED, requests="file"), "hardware": of(HARDWARE, devices=1)},
            "workload.requests does not go with hardware.devices: on which device a prefix is held"
            " is not modelled; set hardware.devices=null",
        ),
        (
            {
                "workload": of(ASKED, kv_disk_gib=0.5),
                "hardware": of(HARDWARE, links=(of(LINK),)),
            },
            "workload.kv_disk_gib=0.5: machine m has no link from a drive to RAM; choose one that"
            " has, such as machine=rtx4090_nvme, or set workload.kv_disk_gib=0",
        ),
        *(
            (
                {"workload": MOVED, name: part},
                f"workload.kv_ram_gib and workload.kv_disk_gib do not go with {what}: what they move"
                " is told from experts by its bytes; set both to 0",
            )
            for name, part, what in (
                ("loader", of(LOADER, dense_slots=1), "loader.dense_slots=1"),
                ("payload", CUT, "payload=Policy"),
                ("hardware", UNPACKS, "hardware.links.*.unpack"),
                ("hardware", KEEPS, "hardware.links.*.page_cache"),
            )
        ),
        (
            {"model": of(MODEL, encoder_sites=1)},
            "model small has its first 1 sites in an encoder, but trace t 0; choose a model that goes"
            " with it, or set model.encoder_sites",
        ),
    ],
)
def test_parts_that_do_not_go_together_are_told_with_the_way_out(
    changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        check_parts(parts(**changes), workload())


def test_parts_that_go_together_are_taken() -> None:
    for changes in (
        {},
        {"placement": Policy(uses_cpu=True), "hardware": of(HARDWARE, cpu=1)},
        {"hardware": UNPACKS},
        {"hardware": KEEPS, "loader": of(LOADER, dense_slots=1)},
        {"loader": of(LOADER, chunk_bytes=5, dense_slots=2, write_back=True), "payload": CUT},
        {"hardware": of(HARDWARE, swap=1)},
        {"hardware": UNIT},
        # A pace of its own goes with all but chunks.
        {"hardware": of(vars(WAKES), contention=1, devices=1), "payload": CUT},
        {"hardware": WAKES, "loader": of(LOADER, write_back=True)},
        {"workload": of(ASKED, kv_disk_gib=0.5)},
        {"workload": MOVED},
        {"workload": of(vars(MOVED), tiers=lambda _: SimpleNamespace(moves=False)), "payload": CUT},
    ):
        check_parts(parts(**changes), workload())
    assert moves_kv(parts(workload=MOVED))
    assert not moves_kv(parts())
    assert not moves_kv(parts(workload=MOVED, model=of(MODEL, kv_bytes_per_token=8)))


def test_a_word_about_a_link_that_was_measured_would_change_nothing() -> None:
    measured = ["system=lru", "hardware=h100_sxm_pcie5_measured", "trace.max_sequences=1"]
    faster = "hardware.links.pcie.peak_gb_per_s=99"
    with pytest.raises(ValueError, match=rf"^{faster} would change nothing: on h100_sxm_pcie5_me"):
        prepared([*measured, faster])
    with pytest.raises(ValueError, match="overhead_us=1 would change nothing"):
        prepared([*measured, "hardware.links.pcie.overhead_us=1"])
    prepared([*measured, "+hardware.links.pcie.slot_us=1", "hardware.memory_gib=60"])
    prepared(["system=lru", faster, "trace.max_sequences=1"])
    assert (
        prepared([*measured, faster, "~hardware.measured.copy_us"]).durations.hop_ns(0, 10**9) < 2e7
    )


def test_dense_blocks_of_two_sides_are_not_streamed() -> None:
    two = {"model": of(MODEL, encoder_sites=1)}, workload(header={"encoder_sites": 1})
    check_parts(parts(**two[0]), two[1])
    with pytest.raises(ValueError, match=r"^loader\.dense_slots=2: dense blocks of an encoder-dec"):
        check_parts(parts(**two[0], loader=of(LOADER, dense_slots=2)), two[1])


RULES = {"sites": [SimpleNamespace(site=0, rule=1), SimpleNamespace(site=1, rule=None)]}


@pytest.mark.parametrize(
    ("section", "requires", "run", "told"),
    [
        (
            "payload",
            Requires(active_shares=True),
            workload(trace={"active_shares": None}),
            "trace t records no active shares of experts' channels, which payload Policy goes by;"
            " capture it with them, or choose payload=active_share_nominal",
        ),
        (
            "precision",
            Requires(preferences=True),
            workload(trace={"logits": None}),
            "trace t has no logits, by which this gate chooses",
        ),
        (
            "precision",
            Requires(preferences=True),
            workload(header=RULES),
            "trace t has no routing rule of sites [1], by which this gate chooses",
        ),
        (
            "cache",
            Requires(row_scores="renormed"),
            workload(),
            "workload.lookahead_norm=raw: cache Policy was made for renormed scores; set"
            " workload.lookahead_norm=renormed",
        ),
        (
            "ram_cache",
            Requires(future=True),
            workload(),
            "ram_cache Policy cannot know what will be missing on the device; choose ram_cache=lru",
        ),
        (
            "cache",
            Requires(future=True),
            workload(is_timed=True),
            "cache Policy knows the future only where steps do not depend on time; ",
        ),
    ],
)
def test_what_a_policy_requires_the_run_must_have(
    section: str, requires: Requires, run: Any, told: str
) -> None:
    one = Policy(requires=requires)
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        check_parts(parts(policies=lambda: {section: one}), run)
    # The same run takes a policy that requires nothing, and a run that has all takes this one.
    check_parts(parts(), run)
    other = workload(norm=requires.row_scores or "raw")
    check_parts(parts(policies=lambda: {section.removeprefix("ram_"): one}), other)


@pytest.mark.parametrize(
    ("changes", "flags", "what"),
    [
        ({"model": of(MODEL, draft_sites=1, encoder_sites=1)}, {}, "an encoder-decoder model"),
        ({"loader": of(LOADER, dense_slots=1)}, {}, "loader.dense_slots=1"),
        ({"hardware": of(HARDWARE, devices=1)}, {}, "hardware.devices"),
        (
            {
                "policies": lambda: {
                    "cache": Policy(requires=Requires(gate_inputs=True)),
                    "predictor": Policy(requires=Requires()),
                }
            },
            {},
            "cache Policy (nothing is fitted on a draft layer)",
        ),
        (
            {},
            {"tells_bytes": True},
            "a trace that tells the bytes of its experts (and of no draft layer's)",
        ),
        ({}, {"is_real": True}, "a run on a device"),
    ],
)
def test_drafts_that_offload_go_with_none_of_these(
    changes: dict[str, Any], flags: dict[str, bool], what: str
) -> None:
    given = {"tells_bytes": False, "is_real": False} | flags
    told = (
        f"workload.draft_experts=offloaded does not go with {what}; leave that out, or set"
        " workload.draft_experts=on_device"
    )
    drafts = {"model": of(MODEL, draft_sites=1)} | changes
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        check_drafts(parts(**drafts), **given)
    check_drafts(parts(**(drafts | {"model": of(MODEL)})), **given)
    check_drafts(parts(model=of(MODEL, draft_sites=1)), tells_bytes=False, is_real=False)


@pytest.mark.parametrize(
    ("words", "is_told"),
    [
        (["hardware.ram.capacity_gib=8"], True),
        (["hardware.ram=null"], True),
        (["hardware.ram.capacity_gib=42"], False),
        (["hardware.ram.capacity_gib=8", "precision=q4_k_m", "budget=fit"], False),
        (["hardware.ram.capacity_gib=8", "placement=load"], False),
        (["hardware=strix_halo"], True),
        (["hardware=strix_halo", "precision=int8", "budget=fit"], False),
        (["hardware=rtx4090_pcie4"], False),
    ],
)
def test_the_cpu_computes_no_experts_that_lie_on_a_drive(words: list[str], is_told: bool) -> None:
    """Experts of 42 GiB: with 8 GiB of RAM a run was as fast as with 200, for nothing read them; on
    unified memory it was 17 times as fast as loads. Those that all lie on the device are never
    computed on the CPU.
    """
    fiddler = ["system=fiddler", "hardware=rtx4090_nvme", "trace.max_sequences=1", *words]
    if not is_told:
        prepared(fiddler)
        return
    with pytest.raises(ValueError, match=r"hold all 42 GiB of them, and the rest lies .* nvme:"):
        prepared(fiddler)


# Contracts: C142
@pytest.mark.parametrize(
    "word", ["ram_cache=lfu", "ram_cache.scope=site", "++ram_cache.recency=rows"]
)
def test_a_policy_of_ram_is_refused_where_a_machine_has_none_to_manage(word: str) -> None:
    words = ("system=lru", "trace.max_sequences=1", word)
    with pytest.raises(
        ValueError, match=r"^\+*ram_cache\S+ would change nothing: machine rtx4090_pcie4"
    ):
        prepared(words)
    assert prepared((*words, "hardware=rtx4090_nvme")).controller.ram
