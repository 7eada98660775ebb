"""A trace's own bytes of an expert, layer by layer.

A run takes them at the precision at which they were recorded; at others it says so.
"""

from __future__ import annotations

import random
import re
from collections import OrderedDict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from capture.import_trace import main
from helpers.round_machine import small
from sim.audit.__main__ import audit
from sim.audit.files import read_run
from sim.core.slots import UNUSED
from sim.machine import recorded_bytes as recorded
from sim.machine.budget import Budget, all_slot_bytes, make_geometry
from sim.machine.precision import PRECISIONS
from sim.reporting.runs import read_runs
from sim.results.outputs import write_outputs
from sim.results.run import Run
from sim.setup.build import build
from sim.setup.configure import configure
from sim.setup.execute import execute

SITES, EXPERTS, TOP_K, TOKENS = 4, 12, 2, 60
SIZES = (864, 1240, 864, 1240)
"""Bytes of an expert by layer. At q4_k_m an expert of 16 x 32 has 930 bytes on average."""
BUDGET = 12_000
SHAPE = (
    "model=tiny_mixtral",
    f"model.sites={SITES}",
    f"model.experts={EXPERTS}",
    f"model.top_k={TOP_K}",
    "model.hidden=16",
    "model.expert_intermediate=32",
)
CACHE = (
    "system=lru",
    "cache.initial=empty",
    "workload=recorded",
    f"budget.slots_gib={BUDGET / 2**30}",
)


def log_of_an_engine(gguf: str) -> tuple[str, int, int]:
    """A route log of an engine with one LRU cache in bytes, in plain Python.

    Returns the log, the lookups that hit, and the bytes read.
    """
    draw = random.Random(5)
    lines = [
        "# route_trace v1",
        (
            f"# model=/m/{gguf}.gguf arch=tiny n_layer={SITES} n_expert={EXPERTS}"
            f" n_expert_used={TOP_K}"
        ),
        *(f"# layer={site} expert_bytes={size} dense_bytes=7" for site, size in enumerate(SIZES)),
        "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes",
    ]
    cache: OrderedDict[tuple[int, int], int] = OrderedDict()
    hits = read = 0
    for token in range(TOKENS):
        for site, size in enumerate(SIZES):
            needs = [
                (site, expert) for expert in draw.sample(range(EXPERTS // 2 + token % 6), TOP_K)
            ]
            there = [need in cache for need in needs]
            for need in needs:
                cache[need] = size
                cache.move_to_end(need)
            while sum(cache.values()) > BUDGET:
                del cache[next(key for key in cache if key not in needs)]
            for slot, (need, found) in enumerate(zip(needs, there, strict=True)):
                lines.append(
                    f"0,1,{token},{site},{slot},{need[1]},{0.75 - slot / 2},{int(found)},{0 if found else size}"
                )
                hits, read = hits + found, read + size * (not found)
    return "\n".join(lines) + "\n", hits, read


def run_of(
    folder: Path, gguf: str, *words: str, facts: tuple[str, ...] = ()
) -> tuple[Run, int, int]:
    """A run of the trace imported from an engine's log, and what the engine itself did."""
    text, hits, read = log_of_an_engine(gguf)
    (folder / "route.csv").write_text(text, encoding="utf-8")
    given = ("hidden=16", "expert_intermediate=32", "licence=CC0-1.0", *facts)
    assert (
        main(
            [
                "format=bigmoe",
                f"path={folder / 'route.csv'}",
                f"output_dir={folder / 'trace'}",
                *given,
            ]
        )
        == 0
    )
    return build(*configure(*CACHE, *SHAPE, f"trace.path={folder / 'trace'}", *words)), hits, read


def summary_of(run: Run) -> dict[str, Any]:
    return execute(run).summary


# Contracts: C91
def test_a_run_at_the_recorded_precision_does_to_the_byte_what_the_engine_did(
    tmp_path: Path,
) -> None:
    run, hits, read = run_of(tmp_path, "Tiny-Q4_K_M", "precision=q4_k_m")
    summary = summary_of(run)
    assert summary["lookups"]["hit"] == hits
    assert summary["bytes"]["pcie"]["demand"] == read
    assert summary["storage_bytes"] == EXPERTS * sum(SIZES)
    assert summary["budget"]["resident_share"] == BUDGET / (EXPERTS * sum(SIZES))
    assert summary["trace"]["expert_bytes"] == {
        "stored_as": "Q4_K_M",
        "least": min(SIZES),
        "most": max(SIZES),
        "taken": True,
        "note": None,
    }


def test_a_share_is_of_all_experts_in_their_own_sizes(tmp_path: Path) -> None:
    run, *_ = run_of(
        tmp_path,
        "Tiny-Q4_K_M",
        "precision=q4_k_m",
        "budget.slots_gib=null",
        "budget.resident_share=0.5",
    )
    assert run.controller.geometry.capacity_bytes == EXPERTS * sum(SIZES) // 2


def test_another_model_s_sizes_and_other_precisions_are_nominal_and_the_second_is_said(
    tmp_path: Path,
) -> None:
    words = ("precision=q4_k_m", "model.gates_of=Tiny-Q4_K_M", "model.sizes_of=x")
    transplanted, hits, _ = run_of(tmp_path, "Tiny-Q4_K_M", *words)
    summary = summary_of(transplanted)
    assert transplanted.controller.geometry.site_bytes is None
    assert summary["lookups"]["hit"] != hits
    assert summary["trace"]["expert_bytes"] is None
    other = build(*configure(*CACHE, *SHAPE, f"trace.path={tmp_path / 'trace'}", "precision=int8"))
    assert other.controller.geometry.variant_bytes == (1536,)
    told = summary_of(other)["trace"]["expert_bytes"]
    assert not told["taken"]
    assert (
        told["note"]
        == "the trace's engine stored an expert as Q4_K_M in 864 to 1,240 bytes; this run takes the"
        " model's nominal ones of int8; precision=q4_k_m takes these"
    )


@pytest.mark.parametrize(
    ("gguf", "facts"), [("Tiny-Q5_K_S", ()), ("tiny", ()), ("Tiny-Q4_K_M", ("dtype=own",))]
)
def test_where_the_storage_has_no_precision_s_name_the_way_to_give_one_is_said(
    tmp_path: Path, gguf: str, facts: tuple[str, ...]
) -> None:
    run, *_ = run_of(tmp_path, gguf, "precision=q4_k_m", facts=facts)
    assert run.recorded_bytes is not None
    assert "import it again with dtype=NAME" in str(
        run.recorded_bytes.told(run.controller.geometry.precisions)
    )


def test_a_name_that_is_given_for_the_storage_is_taken(tmp_path: Path) -> None:
    run, *_ = run_of(tmp_path, "tiny", "precision=int8", facts=("dtype=int8",))
    assert run.controller.geometry.site_bytes == (SIZES,)


# Contracts: C91
def test_sizes_that_are_none_of_this_model_s_experts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"records experts of 864 to 1,240 bytes as fp16, those of model .* take 3072",
    ):
        run_of(tmp_path, "tiny", facts=("dtype=fp16",))


def test_written_out_variants_take_slots_of_what_they_are_written_out_as(tmp_path: Path) -> None:
    model = run_of(tmp_path, "Tiny-Q4_K_M", "precision=q4_k_m")[0].model
    geometry = make_geometry(
        model, ("q4_k_m",), Budget(0.5), held_bits=16.0, recorded={"q4_k_m": SIZES}
    )
    assert geometry.held_bytes == (3072,)
    assert (
        geometry.capacity_bytes
        == SITES * EXPERTS * geometry.held_bytes[0] // 2
        == all_slot_bytes(geometry) // 2
    )
    assert geometry.site_bytes == (SIZES,)


@pytest.mark.parametrize(
    ("by_site", "span", "taken"),
    [
        ((1_536,) * 3, "", True),
        ((384, 384, 384), "", True),
        ((100, 284, 1_152), "", True),
        ((1_536, 1_536, 1_539), "1,536 to 1,539", False),
        ((383,) * 3, "383", False),
    ],
)
def test_recorded_sizes_are_in_the_mean_at_most_twice_the_models_and_at_least_half(
    by_site: tuple[int, ...], span: str, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An expert has 768 B in fp16; of a format without a name any size is taken."""
    monkeypatch.setattr(recorded, "read_expert_bytes", lambda path, sites: (None, by_site))
    header: Any = SimpleNamespace(
        name="t",
        dtype="FP16",
        files={recorded.EXPERT_BYTES_FILE: ""},
        model=SimpleNamespace(name="theirs", sites=3),
        draft_sites=0,
    )
    read = partial(recorded.recorded_bytes, Path("t"), header)
    if taken:
        assert read(small()) == recorded.RecordedBytes(by_site, "FP16")
    else:
        text = (
            f"trace t records experts of {span} bytes as FP16, those of model small take 768;"
            " choose the trace's own model, or say that it is another: model.gates_of=theirs"
            " model.sizes_of=small"
        )
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
            read(small())
    assert read(small(gates_of="a", sizes_of="b")) is None
    header.dtype = "q5"
    assert read(small()) == recorded.RecordedBytes(by_site, "q5")
    header.files = {}
    assert read(small()) is None


def test_recorded_sizes_are_taken_under_the_name_of_their_precision() -> None:
    own, other = (recorded.RecordedBytes((3, 4), name) for name in ("INT4", "own"))
    assert (own.sizes(), other.sizes()) == ({"int4": (3, 4)}, {})
    assert own.told(("fp16", "int4")) is None
    assert other.told(("fp16", "int4")) == (
        "the trace's engine stored an expert as own in 3 to 4 bytes; this run takes the model's"
        " nominal ones of fp16, int4; import it again with dtype=NAME for runs at that precision to"
        f" take these ({', '.join(PRECISIONS)})"
    )


def test_the_bytes_of_draft_layers_are_left_out_where_these_have_no_sites(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorded, "read_expert_bytes", lambda path, sites: (None, (700, 800, 900)))
    header: Any = SimpleNamespace(
        name="t",
        dtype="FP16",
        files={recorded.EXPERT_BYTES_FILE: ""},
        model=SimpleNamespace(name="theirs", sites=3),
        draft_sites=1,
    )
    found = recorded.recorded_bytes(Path("t"), header, small())
    assert found == recorded.RecordedBytes((700, 800), "FP16")


@pytest.mark.parametrize("scope", ["global", "site"])
def test_the_audit_agrees_with_a_run_that_takes_an_engine_s_bytes(
    scope: str, tmp_path: Path
) -> None:
    words = (
        "precision=q4_k_m",
        "budget.slots_gib=null",
        "budget.resident_share=0.5",
        f"cache.scope={scope}",
    )
    run, *_ = run_of(tmp_path, "Tiny-Q4_K_M", *words)
    result = execute(run)
    (tmp_path / "run").mkdir()
    write_outputs(tmp_path / "run", result.summary, run.config, result.frames, "wait_all", 1)
    found = audit(read_run(tmp_path / "run"))
    assert not found.differences
    assert {"storage_bytes", "budget.allowed_bytes", "union_over_capacity.mean"} <= {*found.agreed}
    told = read_runs([tmp_path / "run"])[0].resident_gib()
    assert told is not None
    assert told[1][-1] * 2**30 == sum(
        size
        for size, state in zip(
            run.controller.slots.slot_bytes, run.controller.slots.state, strict=True
        )
        if state <= UNUSED
    )
