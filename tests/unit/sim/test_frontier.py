"""``sim.frontier`` says of every capacity what ``sim`` says of it, and no cache loads less than its
bound.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from helpers.drawn import curves, kept
from sim.bounds.loads import fewest_loads
from sim.frontier import draw, frontier, main
from sim.policies.precisions import SkipLight
from sim.screening.moves import ScreenError
from sim.setup.execute import execute
from sim.study.trials import prepared
from sim.values.types import SKIP

SMALL = ("system=lru", "trace.max_sequences=1", "workload.decode_tokens=24")


@pytest.mark.parametrize("cache", ["lru", "lru_warm", "sieve"])
def test_hits_and_loads_are_those_of_runs(cache: str) -> None:
    found = frontier(SMALL, [cache], 2)
    (policy,) = found.policies
    assert policy.is_exact == (cache != "sieve")
    for slots in found.shown[1:-1]:
        words = (*SMALL, f"cache={cache}", f"budget.resident_share={slots / found.most:.6f}9")
        run = prepared((*words, "hardware.memory_gib=100", "bounds=max"))
        result = execute(run)
        assert result.summary["budget"]["slots"] == {"fp16": slots}
        assert policy.points[slots].hit_ratio == result.summary["hit_ratio"]
        assert policy.points[slots].loads == len(result.frames.transfers)
        assert policy.fewest[slots] == result.summary["bounds"]["belady_loads"]


@pytest.mark.parametrize("cache", ["lru_per_site", "arc"])
def test_the_fewest_loads_begin_with_what_each_layers_pool_holds_at_first(cache: str) -> None:
    words = (*SMALL, "workload.prefill_chunk=1")
    found = frontier(words, [cache], 4)
    (policy,) = found.policies
    for slots in found.shown[1:]:
        share = f"budget.resident_share={min(1, slots / found.most + 1e-7):.7f}"
        run = prepared((*words, f"cache={cache}", share, "hardware.memory_gib=100"))
        assert run.controller.slots.count == slots
        needs, sites = run.workload.needs, run.workload.gate_site
        key = sites[needs.tick].astype(int) * run.controller.geometry.units + needs.expert
        initial = run.controller.slots.initial
        stays = np.ones(len(key), np.bool_)
        fewest = fewest_loads(needs.tick.astype(int), key, slots, initial, stays)
        assert policy.fewest[slots] == fewest


# Contracts: C107, C118
@pytest.mark.parametrize("cache", ["lru", "sieve"])
def test_what_a_selector_leaves_out_anyway_is_asked_for_and_loaded_by_nobody(cache: str) -> None:
    words = (*SMALL, "precision=skip_light", "precision.skip_above=0.55")
    (policy,) = frontier(words, [cache], 2).policies
    slots = sorted(policy.points)[len(policy.points) // 2]
    share = f"budget.resident_share={slots / 128:.6f}9"
    run = prepared((*words, f"cache={cache}", share, "hardware.memory_gib=100", "bounds=max"))
    result = execute(run)
    assert result.summary["budget"]["slots"] == {"fp16": slots}
    assert policy.points[slots].hit_ratio == result.summary["hit_ratio"]
    assert policy.points[slots].loads == len(result.frames.transfers)
    fewest = result.summary["bounds"]["belady_loads"]
    assert policy.fewest.get(slots, fewest) == fewest


def test_a_selector_that_leaves_out_what_is_absent_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SkipLight, "permitted", lambda self, score: (0, SKIP))
    with pytest.raises(ScreenError, match="leaves out what is absent"):
        frontier((*SMALL, "precision=skip_light"), ["lru"], 1)


def test_what_has_no_point_even_where_all_experts_have_room_is_refused() -> None:
    """A prompt of more than 32 tokens only reads this cache, and goes through its staging slots."""
    words = ("system=llama_cpp_cache", "loader.staging_slots=2", "trace.max_sequences=1")
    words += ("workload.decode_tokens=2",)
    with pytest.raises(ScreenError, match="is served in waves"):
        frontier(words, [None], 1)


def test_every_policy_shows_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sim.process.progress.LINE_EVERY_S", 0.0)
    frontier(SMALL, ["lru", "sieve"], 1)
    told = capsys.readouterr().err.splitlines()
    for what in ("lru", "sieve"):
        assert [line for line in told if line.startswith(f"{what}: 2 of 2 after ")], told


def test_no_cache_loads_less_than_the_fewest_and_belady_loads_just_these() -> None:
    # Rows of a prompt come one by one: larger unions might be served in waves, by fewer loads.
    found = frontier((*SMALL, "workload.prefill_chunk=1"), ["belady", "lfu", "lru"], 5)
    for one in found.policies:
        for slots, fewest in one.fewest.items():
            assert fewest is not None
            assert one.points[slots].loads >= fewest
    belady = found.policies[0]
    assert all(belady.points[slots].loads == belady.fewest[slots] for slots in found.shown)


def test_pools_that_a_prompt_does_not_fit_are_left_out() -> None:
    found = frontier((*SMALL, "workload.prefill_chunk=1"), ["lru_per_site", "arc"], 4)
    at_once, walked = found.policies
    assert (at_once.is_exact, walked.is_exact) == (True, False)
    assert min(at_once.points) == 32, "each of 16 layers holds the two needs of a row"
    assert found.shown[0] not in walked.points
    assert found.shown[1] in walked.points


def test_the_figure_has_a_curve_for_each_policy_and_the_bound(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figures = kept(monkeypatch)
    draw(frontier(SMALL, ["lru", "fifo"], 3), tmp_path)
    hits, loads = figures[0].axes
    assert {name: len(x) for name, (x, _) in curves(hits).items()} == {"lru": 121, "fifo": 4}
    assert set(curves(loads)) == {"lru", "fifo", "the fewest of any cache"}


def test_the_command_writes_every_capacity_and_says_what_it_walked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "frontier"
    words = (*SMALL, "policies=lru,fifo", "points=2", f"output_dir={place}")
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "lru: exact at every number of slots" in told
    assert "fifo *" in told
    rows = pl.read_csv(place / "table.csv")
    assert rows.filter(policy="lru")["slots"].to_list() == [*range(8, 129)]
    assert rows.filter(policy="fifo")["slots"].to_list() == [8, 68, 128]
    kept_rows = json.loads((place / "table.json").read_text(encoding="utf-8"))
    assert len(kept_rows["rows"]) == len(rows)
    assert any(label.startswith("TRANSPLANTED") for label in kept_rows["labels"])
    assert main(words) == 2, "what is there is not written over"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("system=hobbit",), "set predictor=none"),
        (("system=hobbit", "predictor=none"), "choose one precision"),
        (("system=lru", "budget.resident_share=0.5"), "budget.resident_share is not given so"),
        (("system=lru", "policies=lur"), "did you mean lru"),
        (("system=lru", "policies=lru", "cache=lfu"), "give one of them"),
        (
            ("system=lru", "policies=lru,transient", "loader.staging_slots=2"),
            "Transient has room for 2 experts whatever the budget",
        ),
    ],
)
def test_what_it_cannot_tell_is_refused_in_one_line(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main((*words, "trace.max_sequences=1", f"output_dir={tmp_path / 'out'}")) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ((), "lru"),
        (("cache=lfu_decayed",), "lfu_decayed"),
        (("cache=fifo", "cache._target_=sim.policies.FIFO"), "FIFO"),
    ],
)
def test_a_systems_own_cache_has_the_name_of_its_file_as_others_have(
    words: tuple[str, ...], name: str
) -> None:
    (policy,) = frontier((*SMALL, *words), [None], 1).policies
    assert policy.name == name
