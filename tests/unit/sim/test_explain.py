"""What a run's files tell of a key, against a witness of the run and a story worked by hand."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from omegaconf import OmegaConf

from helpers.bundled import Configure
from helpers.summaries import summary_of
from sim.answers.explain_names import Names
from sim.answers.explain_prefetches import prefetch_story
from sim.answers.lookahead_ranks import Forecast, forecasts, rows_of_step
from sim.engine import engine
from sim.explain import Explained, Question, main
from sim.policies.precisions import SkipLight
from sim.policies.reroutes import ForecastRoutes
from sim.results.outputs import write_outputs
from sim.results.run import Run
from sim.results.run_log import RunLog
from sim.setup.build import build
from sim.setup.execute import execute
from sim.traces.trace import Trace
from sim.workload.steps import Workload

MS = 1_000_000


@dataclass
class Witnessed:
    """A run and its files, with each eviction as it happened.

    An eviction is (key, tick, key that claimed the slot).
    """

    log: RunLog
    run: Run
    evictions: list[tuple[int, int, int | None]]


def witnessed(folder: Path, configure: Configure, *overrides: str) -> Witnessed:
    """Simulate with a witness of every claim and trim, and write the files."""
    run = build(configure("trace.max_sequences=1", *overrides), "any")
    controller, slots, seen = run.controller, run.controller.slots, []
    claim, excess = slots.claim, slots.excess

    def tick() -> int:
        return len(controller.gate_calls) - 1

    def watched_claim(key: int, must: bool) -> Sequence[int] | None:
        victims = claim(key, must)
        seen.extend((victim, tick(), key) for victim in victims or ())
        return victims

    def watched_excess(pools: Iterable[int]) -> Sequence[int]:
        victims = excess(pools)
        seen.extend((victim, tick(), None) for victim in victims)
        return victims

    slots.claim, slots.excess = watched_claim, watched_excess  # type: ignore[method-assign,assignment]
    with pytest.MonkeyPatch.context() as patch:
        # The witness reads a column while the run goes on.
        patch.setattr(engine, "PACKED_LOOKUPS", sys.maxsize)
        result = execute(run)
    write_outputs(folder, result.summary, run.config, result.frames, controller.loader.wait, 1)
    return Witnessed(RunLog(folder), run, seen)


RUNS = {
    "two_precisions": ("system=hobbit",),
    "prefetch_on_one": ("system=mixtral_offloading",),
    "ram": ("system=lru", "hardware=rtx4090_nvme", "predictor=gate_lookahead_1"),
    "overflow": (
        "system=lru",
        "loader.retention=after_batch",
        "predictor=gate_lookahead_1",
        "budget.resident_share=0.25",
    ),
    "shrinking": (
        "system=lru",
        "workload.kv_allocation=growing",
        "++model.kv_bits=80000",
        "hardware.memory_gib=128",
        "predictor=gate_lookahead_1",
        "budget.resident_share=0.4",
    ),
    "batches": (
        "system=lru",
        "workload=continuous_4_chunked",
        "trace.max_sequences=3",
        "cache=lru_per_site",
    ),
}


@pytest.fixture(scope="module", params=RUNS)
def seen(
    request: pytest.FixtureRequest, configure: Configure, tmp_path_factory: pytest.TempPathFactory
) -> Witnessed:
    words = ("workload.decode_tokens=30", *RUNS[request.param])
    return witnessed(tmp_path_factory.mktemp("run"), configure, *words)


@pytest.mark.alike
def test_every_eviction_is_told_with_its_gate_and_for_whom(seen: Witnessed) -> None:
    assert seen.evictions
    told = [
        (key, event.tick, event.other)
        for key in sorted({key for key, _, _ in seen.evictions})
        for event in seen.log.events_of(key)
        if event.kind == "evicted"
    ]
    assert told == sorted(seen.evictions, key=lambda each: each[0])


@pytest.mark.alike
def test_a_key_is_told_to_be_there_where_a_lookup_found_it_and_only_there(seen: Witnessed) -> None:
    """Only each 7th lookup is checked, to save time."""
    rows = seen.log.lookups.filter(pl.col("key") >= 0)
    for key, tick, outcome in rows.gather_every(7).select("key", "tick", "outcome").iter_rows():
        assert seen.log.is_there(key, tick) == (
            outcome in ("hit", "high_for_low", "low_for_high")
        ), (key, tick)


def test_a_steps_rows_are_those_of_the_run(seen: Witnessed) -> None:
    workload = seen.run.workload
    for step in workload.steps[::9]:
        mine = sorted(workload.row[step.start : step.stop].tolist())
        assert rows_of_step(seen.log, seen.run.trace, step.index) == mine


def test_a_rank_in_the_lookahead_counts_the_scores_above(
    seen: Witnessed, bundled_trace: Trace
) -> None:
    step, site = seen.run.workload.steps[20], 5
    rows = seen.run.workload.row[step.start : step.stop].tolist()
    for expert in range(8):
        found = forecasts(seen.log, bundled_trace, step.index, site, expert)
        assert [each.ahead for each in found] == [1, 2, 3]
        for each in found:
            scores = [
                bundled_trace.lookahead["raw"][row, site - each.ahead, each.ahead - 1].tolist()
                for row in rows
            ]
            known = [row for row in scores if np.isfinite(row).all()]
            ranks = [1 + sum(score > row[expert] for score in row) for row in known]
            assert (each.rank, each.rows) == (min(ranks), len(known))
            # Softmax chooses the two experts with the highest scores.
            assert each.experts == tuple(
                sorted({int(one) for row in known for one in np.argsort(row)[-2:]})
            )
            assert each.chosen_by == sum(rank <= 2 for rank in ranks)


def test_what_a_prompt_was_forecast_to_need_is_told_together(
    seen: Witnessed, bundled_trace: Trace
) -> None:
    """It is told as gates offer it; nothing is told where the run read prompts in part."""
    workload, site = Workload(bundled_trace, batching="sequential", lookahead=3, max_sequences=1), 5
    step, gate = workload.steps[0], workload.gate()
    gate.open(step)
    parts = seen.run.workload.prefill_chunk is not None
    for ahead in (1, 2, 3):
        gate.visit(site - ahead)
        choice = gate.forecasts(3)[ahead - 1]
        for expert, tokens in zip(choice.needs, choice.tokens, strict=True):
            found = forecasts(seen.log, bundled_trace, 0, site, expert)
            assert [each.ahead for each in found] == ([] if parts else [1, 2, 3])
            if not parts:
                one = found[ahead - 1]
                assert (one.rank, one.rows, one.chosen_by) == (None, step.rows, tokens)
                assert one.experts == tuple(sorted(choice.needs))


def test_why_a_prompt_was_not_prefetched_for_is_told(seen: Witnessed, bundled_trace: Trace) -> None:
    explained = Explained(seen.log)
    explained.trace = bundled_trace
    is_miss = (pl.col("phase") == "prefill") & (pl.col("outcome") == "miss")
    missed = seen.log.lookups.filter(is_miss & (pl.col("site") > 1))
    told = [
        " ".join(explained.explain(Question(row["step"], row["site"], row["expert"])))
        for row in missed.head(20).iter_rows(named=True)
    ]
    if seen.log.choice("predictor", "prompts") is False:
        assert told
        assert all(
            "No prefetch was queued: the system forecasts decoded tokens only." in text
            for text in told
        )
    else:
        assert not any("forecasts decoded tokens only" in text for text in told)


def test_every_outcome_of_a_run_has_a_story(seen: Witnessed, bundled_trace: Trace) -> None:
    explained = Explained(seen.log)
    explained.trace = bundled_trace
    for outcome in seen.log.lookups["outcome"].unique().sort():
        row = seen.log.lookups.filter(pl.col("outcome") == outcome).row(-1, named=True)
        told = explained.explain(Question(row["step"], row["site"], row["expert"]))
        assert f", expert {row['expert']}: {outcome.upper()} at " in told[0]
        assert len(told) > 1, outcome
        if outcome == "miss":
            assert told[-1].startswith(("No prefetch was queued", "A prefetch was queued"))


@pytest.mark.alike
@pytest.mark.parametrize(
    ("outcome", "words"),
    [("skip", ("system=adapmoe", "precision.quantile=0.7")), ("reroute", ("system=sida",))],
)
def test_what_is_left_out_or_sent_elsewhere_is_told_as_there_where_a_copy_was(
    outcome: str, words: Sequence[str], configure: Configure, tmp_path: Path
) -> None:
    """Oracle: what the selector could ask for at the gate.

    What was not kept would have been a miss.
    """
    there: dict[tuple[int, int], bool] = {}
    select = {"skip": SkipLight, "reroute": ForecastRoutes}[outcome].select

    def asked(self: Any, choice: Any, resident: Any) -> Any:
        if hasattr(choice, "tick"):
            there.update(
                {(choice.tick, expert): resident.has(0, choice.site, expert) for expert in range(8)}
            )
        return select(self, choice, resident)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr({"skip": SkipLight, "reroute": ForecastRoutes}[outcome], "select", asked)
        log = witnessed(tmp_path, configure, *words, "+workload.decode_tokens=8").log
    explained, counts = Explained(log), {True: 0, False: 0}
    for row in log.lookups.filter(pl.col("outcome") == outcome).iter_rows(named=True):
        told = " ".join(explained.explain(Question(row["step"], row["site"], row["expert"]))[1:])
        serves = row["key"] % log.units if outcome == "reroute" else row["expert"]
        was_there = there[row["tick"], serves]
        assert "served from staging" not in told
        assert not ("It had come as" in told and not was_there), told
        assert not ("never been there" in told and was_there), told
        assert not ("was last there" in told and was_there), told
        counts[was_there] += 1
    assert counts[True] > 5


def test_a_forecast_by_statistics_is_not_told_by_the_ranks_of_the_lookahead(
    configure: Configure, tmp_path: Path
) -> None:
    words = ("system=lru", "predictor=expert_paths", "+workload.decode_tokens=8")
    log = witnessed(tmp_path, configure, *words).log
    explained = Explained(log)
    told = [
        " ".join(explained.explain(Question(row["step"], row["site"], row["expert"])))
        for row in log.lookups.filter(pl.col("outcome") == "miss").tail(12).iter_rows(named=True)
    ]
    assert not any("the lookahead ranked it" in text for text in told)
    assert any("what ExpertPaths forecast no row tells" in text for text in told)


# By hand


def by_hand(folder: Path) -> Path:
    """Two sites of three experts, with two slots; gate t is at t + 1 ms.

    Step 0 loads expert 0 of site 1. Step 1 prefetches expert 1 in its place. Step 2 needs expert 0
    again, while a prefetch of expert 2 is on the link.
    """
    sites, needs = [0, 1, 0, 1, 0, 1], [0, 4, 0, 5, 0, 4]
    outcomes = ["hit", "miss", "hit", "hit", "hit", "miss"]
    ready = [1.0, 2.5, 3.0, 4.0, 5.0, 7.0]
    pl.DataFrame(
        {
            "tick": range(6),
            "step": [0, 0, 1, 1, 2, 2],
            "phase": ["decode"] * 6,
            "site": sites,
            "key": needs,
            "expert": [key % 4 for key in needs],
            "wanted": ["fp16"] * 6,
            "served": ["fp16"] * 6,
            "outcome": outcomes,
            "tokens": [1] * 6,
            "gate_ns": [(t + 1) * MS for t in range(6)],
            "ready_ns": [int(t * MS) for t in ready],
        }
    ).write_parquet(folder / "lookups.parquet")
    moves = [  # number, key, class, times queued, started and ended in ms, victim, outcome
        (0, 4, "demand", 2.0, 2.0, 2.5, None, "loaded"),
        (1, 5, "prefetch", 3.0, 3.0, 3.8, 4, "used"),
        (2, 6, "prefetch", 5.0, 5.0, 6.4, 5, "unused_at_end"),
        (3, 4, "demand", 6.0, 6.4, 7.0, None, "loaded"),
    ]
    pl.DataFrame(
        [
            (n, "pcie", 0, key, kind, 8, *(int(t * MS) for t in times), victim, outcome)
            for n, key, kind, *times, victim, outcome in moves
        ],
        schema=[
            "number",
            "link",
            "hop",
            "key",
            "class",
            "moved_bytes",
            "queued_ns",
            "start_ns",
            "end_ns",
            "victim",
            "outcome",
        ],
        orient="row",
    ).write_parquet(folder / "transfers.parquet")
    calls: list[tuple[int, str, int, int, int | None, str | None]] = [
        (1, "lookup", 0, 0, None, "hit"),
        (2, "lookup", 1, 4, None, "miss"),
        (3, "issue", 1, 4, None, None),
        (5, "lookup", 2, 0, None, "hit"),
        (5, "queue_prefetch", 2, 5, None, None),
        (6, "issue", 2, 5, 4, None),
        (8, "lookup", 3, 5, None, "hit"),
        (9, "lookup", 4, 0, None, "hit"),
        (9, "queue_prefetch", 4, 6, None, None),
        (10, "issue", 4, 6, 5, None),
        (11, "lookup", 5, 4, None, "miss"),
        (12, "issue", 5, 4, None, None),
    ]
    pl.DataFrame(
        calls,
        schema={
            "call": pl.Int64,
            "kind": pl.String,
            "tick": pl.Int64,
            "key": pl.Int64,
            "victim": pl.Int64,
            "outcome": pl.String,
        },
        orient="row",
    ).write_parquet(folder / "decisions.parquet")
    tokens = {"step": [0, 1, 2], "sequence": [0, 0, 0], "position": [3, 4, 5]}
    pl.DataFrame(tokens).write_parquet(folder / "tokens.parquet")
    config: dict[str, Any] = {
        "model": {"sites": 2, "experts": 3, "top_k": 1},
        "cache": {"_target_": "a.LRU", "scope": "global"},
        "predictor": {"_target_": "a.GateLookahead", "sites": 1},
        "trace": {"path": str(folder / "no_trace")},
        "loader": {"depth": "all"},
    }
    told = summary_of(labels={"synthetic": "SYNTHETIC gates: by hand"})
    (folder / "summary.json").write_text(json.dumps(told), encoding="utf-8")
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    return folder


def test_a_miss_is_told_with_what_took_its_place_and_what_held_the_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(by_hand(tmp_path)), "site=1", "expert=0", "step=2"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        (
            "Step 2 (decode; sequence 0 position 5), site 1, expert 0: MISS at 6.000 ms, tick 5,"
            " for 1 token; fp16 was wanted, fp16 served. It was there 1.000 ms later."
        ),
        (
            "Site 1 expert 0 was last there since 2.500 ms, by a demand issued after tick 1 (step"
            " 0, site 1), last used at tick 1 (step 0, site 1), until tick 2 (step 1, site 0). It"
            " was evicted for a prefetch of site 1 expert 1: LRU ranked it lowest of what was"
            " neither pinned nor forecast. Pinned then, as that gate's needs: site 0 expert 0."
        ),
        (
            "The demand waited 0.400 ms for pcie and took 0.600 ms; meanwhile pcie served 1"
            " prefetch (0.400 ms): site 1 expert 2."
        ),
        (
            "No prefetch was queued; the trace cannot be read, so what GateLookahead forecast is"
            " not told."
        ),
        "SYNTHETIC gates: by hand",
    ]


def test_a_hit_is_told_with_the_prefetch_that_brought_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(by_hand(tmp_path)), "site=1", "expert=1", "step=1"]) == 0
    assert capsys.readouterr().out.splitlines()[1:-1] == [
        (
            "It had come as a prefetch over pcie, issued after tick 2 (step 1, site 0), arrived at"
            " 3.800 ms, 0.200 ms before this gate."
        ),
        (
            "A prefetch was queued at tick 2 (step 1, site 0), 1 site ahead. The prefetch waited"
            " 0.000 ms for pcie and moved from 3.000 ms to 3.800 ms. It came 0.200 ms before"
            " the gate asked."
        ),
    ]


@pytest.mark.parametrize(
    ("chosen_by", "loader", "why"),
    [
        (0, {}, "1 site before (site 0) the lookahead ranked it 2 of 3, outside the 1 forecast."),
        (
            1,
            {"prefetch_budget": 1},
            "among those forecast, but the budget of 1 was used up (site 1 expert 2).",
        ),
        (
            1,
            {"depth": "all"},
            "among those forecast, but no row tells why (the selector may have left it out).",
        ),
    ],
)
def test_why_nothing_was_queued_is_told_by_rank_and_by_budget(
    tmp_path: Path, chosen_by: int, loader: dict[str, Any], why: str
) -> None:
    run = RunLog(by_hand(tmp_path))
    run.config["loader"] = loader
    row = run.lookups.row(5, named=True)
    told = prefetch_story(run, Names(run, None), 4, row, [Forecast(1, 2, 1, chosen_by, (2,))])
    assert told[-1].startswith("No prefetch was queued for it in this step. 1 site before")
    assert told[-1].endswith(why)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["site=1", "expert=2", "step=2"], "its needs were experts 0"),
        (["site=2", "expert=0", "step=2"], "site=2 is not one of this run's 2; give site=0 to 1"),
        (["site=1", "expert=9", "step=2"], "expert=9 is not one of this run's 3"),
        (["site=1", "expert=0", "step=3"], "step=3 is none of this run's; it has steps 0 to 2"),
        (["layer=1", "expert=0", "step=2"], "give site= instead"),
        (["expert=0", "step=2"], "give either layer= or site="),
        (["site=1", "layer=1", "expert=0", "step=2"], "give either layer= or site="),
        (["site=1", "step=2"], "missing expert="),
        (["site=1", "expert=0", f"step={10**40}"], "must be at most 1000000000"),
        (
            ["site=1", "expert=3", "step=2"],
            "expert=3 is not one of this run's 3; give expert=0 to 2",
        ),
    ],
)
def test_a_lookup_that_is_not_there_is_refused_with_what_is(
    tmp_path: Path, arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(by_hand(tmp_path)), *arguments]) == 2
    told = capsys.readouterr()
    assert why in told.err
    assert not told.out


@pytest.mark.parametrize(
    "missing", ["config.yaml", "decisions.parquet", "lookups.parquet", "transfers.parquet"]
)
def test_a_folder_that_is_no_whole_run_is_refused(
    tmp_path: Path, missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (by_hand(tmp_path) / missing).unlink()
    assert main([str(tmp_path), "site=1", "expert=0", "step=2"]) == 2
    told = capsys.readouterr().err
    assert missing in told
    assert "outputs=all" in told


def test_a_log_without_decisions_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = by_hand(tmp_path) / "decisions.parquet"
    pl.read_parquet(place).clear().write_parquet(place)
    assert main([str(tmp_path), "site=1", "expert=0", "step=2"]) == 2
    assert "decisions.parquet has no rows" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("[1]", "config.yaml must be a section of values; name"),
        ("model: 3", r"config.yaml: model.sites and model.experts are [None, None], must be whole"),
        ("model: {sites: 0, experts: 3}", "are [0, 3], must be whole numbers; "),
        ("model: {sites: 2, experts: 65537}", "are [2, 65537], must be whole numbers; "),
        ("model: {sites: true, experts: 3}", "are [True, 3], must be whole numbers; "),
    ],
)
def test_a_configuration_without_the_models_sizes_is_refused(
    tmp_path: Path, config: str, told: str
) -> None:
    (by_hand(tmp_path) / "config.yaml").write_text(config, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(told)):
        RunLog(tmp_path)


def test_tables_that_lack_columns_or_are_none_are_refused(tmp_path: Path) -> None:
    place = by_hand(tmp_path) / "lookups.parquet"
    whole = pl.read_parquet(place)
    whole.drop("ready_ns", "key").write_parquet(place)
    with pytest.raises(
        ValueError, match=r"lookups\.parquet lacks the columns .*key, ready_ns; name"
    ):
        RunLog(tmp_path)
    place.write_bytes(b"no table")
    with pytest.raises(ValueError, match=r"lookups\.parquet cannot be read \(.*; name"):
        RunLog(tmp_path)
    whole.write_parquet(place)
    (tmp_path / "summary.json").write_text("[", encoding="utf-8")
    with pytest.raises(ValueError, match=r"summary\.json cannot be read \(.*; run it again"):
        _ = RunLog(tmp_path).labels


def test_a_transfer_that_is_not_in_its_table_is_refused(tmp_path: Path) -> None:
    place = by_hand(tmp_path) / "transfers.parquet"
    pl.read_parquet(place).filter(pl.col("number") > 0).write_parquet(place)
    with pytest.raises(
        ValueError,
        match=f"^{tmp_path}: 4 transfers are issued in decisions.parquet, but transfers.parquet has 3;",
    ):
        _ = RunLog(tmp_path).moves


def test_a_configuration_that_is_no_yaml_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (by_hand(tmp_path) / "config.yaml").write_text("model: [")
    assert main([str(tmp_path), "site=1", "expert=0", "step=2"]) == 2
    assert "config.yaml cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("limit", "most", "told"),
    [
        (
            "run_log.LARGEST_CONFIG_BYTES",
            lambda folder: (folder / "config.yaml").stat().st_size,
            " B, ",
        ),
        (
            "kept_tables.LARGEST_ROWS",
            lambda folder: max(len(pl.read_parquet(path)) for path in folder.glob("*.parquet")),
            " rows, ",
        ),
    ],
)
def test_what_is_larger_than_a_file_may_be_is_refused_and_what_is_just_as_large_is_read(
    limit: str,
    most: Callable[[Path], int],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    size = most(by_hand(tmp_path))
    words = [str(tmp_path), "site=1", "expert=0", "step=2"]
    monkeypatch.setattr(f"sim.results.{limit}", size)
    assert main(words) == 0
    monkeypatch.setattr(f"sim.results.{limit}", size - 1)
    assert main(words) == 2
    assert f"{size}{told}must have at most {size - 1}" in capsys.readouterr().err


@pytest.mark.parametrize("seen", ["shrinking"], indirect=True)
def test_where_slots_shrink_pools_are_trimmed_at_gates_alone(seen: Witnessed) -> None:
    """What a forecast's issue evicts is for the expert that it fetches."""
    calls = seen.log.decisions.group_by("call").agg(pl.col("kind").unique())
    of_gates = [row["call"] for row in calls.iter_rows(named=True) if "lookup" in row["kind"]]
    others = sorted(set(calls["call"]) - set(of_gates))
    assert of_gates
    assert others
    assert all(seen.log.trims_at(call) for call in of_gates[:20])
    assert not any(seen.log.trims_at(call) for call in others[:20])
