"""What a recording lacks is not invented.

The simulator refuses, by name, runs that would need it, and does the others.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import DictConfig

from capture.importers.formats import parse
from capture.importers.source import ImportFailure
from helpers.import_fixtures import FACTS, given, imported, make_ids, make_weights
from helpers.recorder_dumps import DECODE, EXTEND, dump
from helpers.recorder_dumps import write as write_dump
from sim.setup.build import build
from sim.setup.execute import execute
from sim.setup.fit_requests import request_of
from sim.traces.trace import Trace, read_trace
from sim.workload.steps import Workload
from unit.capture.importers.test_import_moe_cache_eval import BATCHED
from unit.capture.importers.test_import_moe_cache_eval import write as write_events
from unit.capture.importers.test_import_vllm import whole
from unit.capture.importers.test_import_vllm import write as write_response

Configure = Callable[..., DictConfig]
SITES, TOP_K, ROWS = 3, 2, 6
NEEDS_WEIGHTS = ["precision=score_threshold", "precision.low_above=0.4", "precision.skip_above=0.9"]


def write_jsonl(folder: Path, weighted: bool) -> Path:
    ids, weights = make_ids(ROWS, SITES, TOP_K), make_weights(ROWS, SITES, TOP_K)
    lines = []
    for row in range(ROWS):
        for site in range(SITES):
            line: dict[str, Any] = {
                "sequence": 0,
                "position": row,
                "phase": "decode" if row > 2 else "prefill",
                "site": site,
                "experts": ids[row, site].tolist(),
            }
            lines.append(line | ({"weights": weights[row, site].tolist()} if weighted else {}))
    (folder / "routes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "routes.jsonl"


@pytest.fixture
def run(configure: Configure, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """The summary of a run over an imported trace in ``trace``, on a model of its shape."""

    def go(top_k: int, *overrides: str) -> dict[str, Any]:
        cfg = configure(
            "system=lru",
            "model=tiny_mixtral",
            f"model.name={FACTS['model']}",
            f"model.sites={SITES}",
            f"model.top_k={top_k}",
            "model.hidden=16",
            "model.expert_intermediate=32",
            f"trace.path={tmp_path / 'trace'}",
            "trace.split=all",
            "budget.resident_share=1.0",
            *overrides,
        )
        return execute(build(cfg, "test")).summary

    return go


def test_without_weights_no_expert_is_less_important_than_another(
    tmp_path: Path, run: Callable[..., dict[str, Any]]
) -> None:
    imported("jsonl", write_jsonl(tmp_path, weighted=False), tmp_path / "trace")
    summary = run(TOP_K)
    assert summary["trace"]["decode_tokens"] == 3
    assert set(summary["quality_proxy"].values()) == {None}
    with pytest.raises(
        ValueError, match=r"\(jsonl\) does not tell gate weights, .*; choose precision=fp16"
    ):
        run(TOP_K, *NEEDS_WEIGHTS)


def needs_of(folder: Path) -> tuple[list[list[int]], Trace]:
    """The needs of every gate of the trace, and the trace."""
    trace = read_trace(folder)
    return Workload(trace, split="all").experts_by_gate(), trace


# Contracts: C93
def test_where_only_the_rank_of_experts_is_told_one_token_needs_them_in_that_order(
    tmp_path: Path,
) -> None:
    imported("jsonl", write_jsonl(tmp_path, weighted=False), tmp_path / "trace")
    needs, trace = needs_of(tmp_path / "trace")
    assert trace.header.provenance["order"] == "rank"
    assert "order" not in trace.header.lacks
    ids = make_ids(ROWS, SITES, TOP_K)
    assert needs[SITES:] == ids[3:].reshape(-1, TOP_K).tolist()
    assert needs[SITES:] != np.sort(ids[3:], -1).reshape(-1, TOP_K).tolist()
    for site, found in enumerate(needs[:SITES]):
        counts = Counter(ids[:3, site].ravel().tolist())
        assert found == sorted(counts, key=lambda expert: (-counts[expert], expert))


# Contracts: C92
def test_without_weights_and_ranks_needs_stand_by_id_and_recency_by_rows_is_refused(
    tmp_path: Path, run: Callable[..., dict[str, Any]]
) -> None:
    imported("jsonl", write_jsonl(tmp_path, weighted=False), tmp_path / "trace", order="unknown")
    needs, trace = needs_of(tmp_path / "trace")
    assert "order" in trace.header.lacks
    assert "order" not in trace.header.provenance
    assert (
        needs[SITES:] == np.sort(make_ids(ROWS, SITES, TOP_K)[3:], -1).reshape(-1, TOP_K).tolist()
    )
    with pytest.raises(
        ValueError, match=r"does not tell the rank of a token's experts, .*; choose cache\.recency"
    ):
        run(TOP_K, "cache.recency=rows")


def test_recency_by_rows_goes_by_the_ranks_where_they_are_told(
    tmp_path: Path, run: Callable[..., dict[str, Any]]
) -> None:
    imported("jsonl", write_jsonl(tmp_path, weighted=False), tmp_path / "trace")
    assert run(TOP_K, "cache.recency=rows")["trace"]["decode_tokens"] == 3


# Contracts: C93
@pytest.mark.parametrize("name", ["vllm", "sglang", "ktransformers"])
def test_whether_a_server_recorded_ranks_is_said_at_the_import(tmp_path: Path, name: str) -> None:
    path = (
        write_response(tmp_path, whole())
        if name == "vllm"
        else write_dump(tmp_path, dump([(DECODE, [(0, 3, 1)])]))
    )
    for order, known in ((None, False), ("unknown", False), ("rank", True)):
        folder = tmp_path / f"trace_{order}"
        trace = imported(name, path, folder, **({} if order is None else {"order": order}))
        assert ("order" in trace.header.lacks) != known
        assert trace.header.stands_in_order == known
        needs, _ = needs_of(folder)
        ids = trace.ids[trace.step == trace.step[-1]][0]
        assert needs[-len(ids) :] == (ids if known else np.sort(ids, -1)).tolist()
    words = given(name, path, format=name, output_dir="o", order="sorted")
    with pytest.raises(ImportFailure, match=r"order=sorted must be rank or unknown"):
        parse([f"{key}={text}" for key, text in words.items()])


def test_what_was_imported_before_orders_were_told_keeps_its_needs_by_id(tmp_path: Path) -> None:
    trace = imported("jsonl", write_jsonl(tmp_path, weighted=False), tmp_path / "trace")
    told = {key: value for key, value in trace.header.provenance.items() if key != "order"}
    old = replace(trace, header=replace(trace.header, provenance=told))
    assert Workload(old, split="all").experts_by_gate()[SITES:] == (
        np.sort(make_ids(ROWS, SITES, TOP_K)[3:], -1).reshape(-1, TOP_K).tolist()
    )


def test_with_weights_the_same_run_is_possible(
    tmp_path: Path, run: Callable[..., dict[str, Any]]
) -> None:
    imported("jsonl", write_jsonl(tmp_path, weighted=True), tmp_path / "trace")
    assert run(TOP_K, *NEEDS_WEIGHTS)["quality_proxy"]["low_share"] is not None


# Contracts: C92
def test_a_batch_of_unknown_rows_runs_as_it_was_and_not_otherwise(
    tmp_path: Path, run: Callable[..., dict[str, Any]]
) -> None:
    imported("moe_cache_eval", write_events(tmp_path / "events", BATCHED), tmp_path / "trace")
    assert run(TOP_K, "workload=recorded")["trace"]["decode_tokens"] == 7
    with pytest.raises(
        ValueError,
        match=r"does not tell which token chose which expert, so workload.batching=sequen",
    ):
        run(TOP_K)
    with pytest.raises(ValueError, match=r"choose cache.recency=needs"):
        run(TOP_K, "workload=recorded", "cache.recency=rows")
    with pytest.raises(
        ValueError,
        match=r"does not tell which token of a batch chose which expert, which precision",
    ):
        run(TOP_K, "workload=recorded", *NEEDS_WEIGHTS)


# Contracts: C92
def test_rows_of_unknown_sequences_are_not_put_into_other_batches(
    tmp_path: Path, run: Callable[..., dict[str, Any]]
) -> None:
    schedule = [(EXTEND, [(0, 0, 3), (1, 0, 3)]), (DECODE, [(0, 3, 1), (1, 3, 1)])]
    imported("sglang", write_dump(tmp_path, dump(schedule)), tmp_path / "trace")
    assert run(3, "workload=recorded")["trace"]["decode_tokens"] == 2
    with pytest.raises(
        ValueError,
        match=r"not tell which sequence a token belongs to, .*; choose workload=recorded",
    ):
        run(3, "workload=static_4")


# Contracts: C92
def test_what_goes_by_tokens_ranks_or_sequences_is_not_fitted_where_none_was_recorded(
    tmp_path: Path, run: Callable[..., dict[str, Any]]
) -> None:
    imported("moe_cache_eval", write_events(tmp_path / "events", BATCHED), tmp_path / "rows")
    imported("jsonl", write_jsonl(tmp_path, weighted=False), tmp_path / "order", order="unknown")
    passes = [(EXTEND, [(0, 0, 3), (1, 0, 3)]), (DECODE, [(0, 3, 1), (1, 3, 1)])]
    imported("sglang", write_dump(tmp_path, dump(passes)), tmp_path / "sequences")
    for lacking, told, words in (
        ("rows", "which token chose which expert", ["predictor=next_site"]),
        ("rows", "which token chose which expert", ["predictor=expert_paths"]),
        ("rows", "which token chose which expert", ["predictor=learned", "predictor.inputs=ids"]),
        ("order", "the rank of a token's exp", ["predictor=expert_paths", "predictor.key=first"]),
        ("sequences", "which sequence a token be", ["predictor=activation_matrix"]),
    ):
        given_words = [*words, f"trace.path={tmp_path / lacking}"]
        with pytest.raises(ValueError, match=rf"does not tell {told}.* is fitted on; choose anoth"):
            request_of(given_words)
        (tmp_path / "trace").unlink(missing_ok=True)
        (tmp_path / "trace").symlink_to(tmp_path / lacking)
        with pytest.raises(ValueError, match=rf"does not tell {told}.* is fitted on; choose anoth"):
            run(3 if lacking == "sequences" else TOP_K, "workload=recorded", *words)


# Contracts: C92
def test_slots_are_divided_by_misses_of_tokens_only_where_these_were_recorded(
    tmp_path: Path, run: Callable[..., dict[str, Any]]
) -> None:
    imported("moe_cache_eval", write_events(tmp_path / "events", BATCHED), tmp_path / "trace")
    words = ("workload=recorded", "cache.scope=site")
    assert run(TOP_K, *words, "cache.initial=popular")["trace"]["decode_tokens"] == 7
    quotas = "cache=lru_measured_loads"
    with pytest.raises(ValueError, match="which token chose which expert, which LRU is fitted on"):
        run(TOP_K, quotas, *words)
