"""A handover whose runs and times are made by hand, with every word that is asked for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from sim.answers import serving
from sim.answers.serving import Point, Profile, profiled, requests_of, written
from sim.results.labels import Labels
from sim.study.trials import Trial

MS = 1_000_000


class Node:
    """Sequences of given prompt and decode tokens, on a device that holds a quarter of the bytes.

    A prompt step of ``b`` sequences takes 10 ``b`` ms, the two decode steps ``b`` times the context
    in us, and 2 ms more.
    """

    def __init__(self, *lengths: tuple[int, int], **workload: Any) -> None:
        self.sequences = [SimpleNamespace(prompt_tokens=p, decode_tokens=d) for p, d in lengths]
        self.workload, self.prepared_words, self.asked = workload, [], []  # type: ignore[var-annotated]

    def prepared(self, words: Sequence[str]) -> Any:
        self.prepared_words.append(list(words))
        workload = SimpleNamespace(sequences=self.sequences)
        return SimpleNamespace(
            config={"workload": self.workload}, workload=workload, resident_share=0.25
        )

    def simulate(self, words: Sequence[str]) -> Future[Trial]:
        self.asked.append(list(words))
        given = dict(word.split("=") for word in words)
        batch = int(given["workload.together"])
        tokens = int(given["workload.context_tokens"])
        lasts = [10 * batch * MS, batch * tokens * 1000, batch * tokens * 1000 + 2 * MS]
        table = pl.DataFrame(
            [
                {
                    "step": step,
                    "phase": "decode" if step else "prefill",
                    "start_ns": 7,
                    "end_ns": 7 + ns,
                }
                for step, ns in enumerate(lasts)
                for _ in range(batch)
            ]
        )
        summary = {"hit_ratio": 0.5, "labels": {"lossy": f"lossy ({batch})"}, "overrides": []}
        future: Future[Trial] = Future()
        future.set_result(Trial(summary, {}, table, pl.DataFrame()))
        return future


def profile_of(node: Node, batches: Sequence[int], context: int) -> Profile:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "prepared", node.prepared)
        return profiled(["model=m"], batches, context, node.simulate)


def test_every_batch_runs_at_three_contexts_on_the_slots_of_the_largest() -> None:
    """Prompts of 2 and answers of 3 tokens: contexts of 5, 20 and their geometric mean, 10. Of five
    sequences two groups of 2 and one of 4 are full.
    """
    node = Node(
        (2, 4), (3, 3), (2, 3), (9, 9), (9, 9), requests="file", kv_ram_gib=0, arrivals_s=[1]
    )
    found = profile_of(node, [4, 2, 4], 20)
    assert found == Profile(
        (
            Point(2, 5, 1.01, 4, 20.0, 0.5),
            Point(2, 10, 1.02, 4, 20.0, 0.5),
            Point(2, 20, 1.04, 4, 20.0, 0.5),
            Point(4, 5, 1.02, 8, 40.0, 0.5),
            Point(4, 10, 1.04, 8, 40.0, 0.5),
            Point(4, 20, 1.08, 8, 40.0, 0.5),
        ),
        0.25,
        Labels(lossy="lossy (4)"),
    )
    given = ["model=m", "workload.requests=null", "workload.arrivals_s=null"]
    lengths = ["workload.prompt_tokens=2", "workload.decode_tokens=3"]

    def words(batch: int, tokens: int) -> list[str]:
        group = ["workload.batching=static", f"workload.together={batch}"]
        at = [f"workload.context_tokens={tokens}", "trace.max_sequences=4"]
        return [*given, *lengths, *group, *at]

    assert node.prepared_words == [
        ["model=m", "budget=fit"],
        [*given, "budget=fit"],
        [*words(4, 20), "budget=fit"],
    ]
    assert node.asked == [
        [*words(batch, tokens), "budget.resident_share=0.25"]
        for batch in (2, 4)
        for tokens in (5, 10, 20)
    ]


@pytest.mark.parametrize(
    ("lengths", "batches", "context", "says"),
    [
        ([], [2, 2], 9, "batches=[2] must be two different numbers or more, from 1 on"),
        ([], [0, 2], 9, "batches=[0, 2] must be two different numbers or more, from 1 on"),
        (
            [(1, 1)] * 2,
            [1, 3],
            9,
            "the gates have 2 sequences, and batches goes up to 3; lower it, or choose gates of more"
            " (sequences=, of synthetic ones half count)",
        ),
        (
            [(1, 9), (0, 9)],
            [1, 2],
            99,
            "the gates' sequences have 0 prompt and 9 decoded tokens; both must be at least 1, and"
            " context=99 more than their sum",
        ),
        (
            [(1, 0), (1, 9)],
            [1, 2],
            99,
            "the gates' sequences have 1 prompt and 0 decoded tokens; both must be at least 1, and"
            " context=99 more than their sum",
        ),
        (
            [(1, 2), (2, 1)],
            [1, 2],
            2,
            "the gates' sequences have 1 prompt and 1 decoded tokens; both must be at least 1, and"
            " context=2 more than their sum",
        ),
    ],
)
def test_what_cannot_be_profiled_is_refused_in_whole(
    lengths: list[tuple[int, int]], batches: list[int], context: int, says: str
) -> None:
    node = Node(*lengths)
    with pytest.raises(ValueError, match=r"batches|sequences") as refused:
        profile_of(node, batches, context)
    assert str(refused.value) == says
    assert node.asked == []


def test_the_shortest_context_and_the_smallest_sequences_are_enough() -> None:
    found = profile_of(Node((1, 1), (1, 1)), [1, 2], 3)
    assert (found.batches, found.contexts) == ([1, 2], [2, 3])


def test_the_arrays_have_prompts_of_the_first_context_and_every_decode_time() -> None:
    points = [
        Point(batch, context, float(batch * context), 3 * batch, 100.0 * batch + context, None)
        for batch in (1, 2)
        for context in (10, 20)
    ]
    arrays = Profile(tuple(points), 0.5, Labels()).arrays()
    assert {name: values.tolist() for name, values in arrays.items()} == {
        "prefill_isl": [3, 6],
        "prefill_ttft_ms": [110, 210],
        "decode_active_kv_tokens": [10, 20, 40],
        "decode_context_length": [10, 20],
        # 20 tokens of contexts of 20 are one sequence, and 40 of contexts of 10 more than two.
        "decode_itl": [[10, 20], [20, 20], [20, 40]],
    }


@pytest.mark.parametrize(("context", "blocks"), [(64, 4), (65, 8), (128, 8), (129, 12)])
def test_the_engine_has_whole_blocks_for_the_most_sequences(
    context: int, blocks: int, tmp_path: Path
) -> None:
    points = Point(1, 1, 1.0, 1, 1.0, None), Point(4, context, 1.0, 1, 1.0, None)
    found = Profile(
        (*points, Point(1, context, 1.0, 1, 1.0, None), Point(4, 1, 1.0, 1, 1.0, None)),
        1.0,
        Labels(),
    )
    written(tmp_path, found, [{"a": 1}, {"b": [2]}])
    assert json.loads((tmp_path / "engine.json").read_text(encoding="utf-8")) == {
        "engine_type": "vllm",
        "block_size": 64,
        "num_gpu_blocks": blocks,
        "max_num_seqs": 4,
        "planner_profile_data": "profile.npz",
    }
    assert (tmp_path / "requests.jsonl").read_text(encoding="utf-8") == '{"a": 1}\n{"b": [2]}\n'
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "engine.json",
        "profile.npz",
        "requests.jsonl",
    ]


def test_requests_come_by_arrival_in_ms_with_the_blocks_of_their_prompts() -> None:
    """All begin with the same two tokens. 5 and 6 go on with an unknown one, so nobody knows that
    the next block is the same. Rows come in any order; those after the prompt and those that are
    not valid are no part of it.
    """
    rows = [  # sequence, position, token, valid
        (7, 1, 12, True),
        (7, 0, 11, True),
        (7, 2, 13, True),
        (7, 3, 99, True),
        (5, 0, 11, True),
        (5, 1, 12, True),
        (5, 2, -1, True),
        (5, 3, 14, True),
        (5, 4, 15, True),
        (5, 5, 77, False),
        *((6, at, token, True) for at, token in enumerate((11, 12, -1, 14))),
    ]
    sequence, position, token, valid = map(np.array, zip(*rows, strict=True))
    lengths = {7: (3, 1), 5: (5, 2), 6: (4, 0)}
    run: Any = SimpleNamespace(
        config={"workload": {}},
        trace=SimpleNamespace(sequence=sequence, position=position, token=token, valid=valid),
        workload=SimpleNamespace(
            sequences=[
                SimpleNamespace(sequence=number, prompt_tokens=prompt, decode_tokens=decode)
                for number, (prompt, decode) in lengths.items()
            ],
            arrivals_ns={5: 2_000_000, 6: 1_500_000, 7: 0},
        ),
    )
    found = requests_of(run, 2)
    assert found == [
        {"timestamp": 0, "input_length": 3, "output_length": 2, "hash_ids": [0, 4]},
        {"timestamp": 1.5, "input_length": 4, "output_length": 1, "hash_ids": [0, 3]},
        {"timestamp": 2, "input_length": 5, "output_length": 3, "hash_ids": [0, 1, 2]},
    ]
    assert [type(row["timestamp"]) for row in found] == [int, float, int]


def test_given_requests_keep_their_blocks_though_only_the_first_ones_run() -> None:
    given = [{"hash_ids": [7, 8]}, {"hash_ids": [9]}, {"hash_ids": [10]}]
    lengths = {1: (2, 1), 0: (3, 4)}
    sequences = [
        SimpleNamespace(sequence=number, prompt_tokens=prompt, decode_tokens=decode)
        for number, (prompt, decode) in lengths.items()
    ]
    workload = SimpleNamespace(sequences=sequences, arrivals_ns={0: 0, 1: 0})
    run: Any = SimpleNamespace(config={"workload": {"requests": given}}, workload=workload)
    assert requests_of(run, 2) == [
        {"timestamp": 0, "input_length": 3, "output_length": 5, "hash_ids": [7, 8]},
        {"timestamp": 0, "input_length": 2, "output_length": 2, "hash_ids": [9]},
    ]
