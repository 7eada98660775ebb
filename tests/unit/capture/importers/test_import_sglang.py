"""Importing SGLang's dumps: passes become steps, and rows are linked to sequences.

No code in a dump ever runs.
"""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.import_fixtures import EXPERTS, failure, imported, lacks, refusal
from helpers.recorder_dumps import (
    DECODE,
    EXTEND,
    IDLE,
    LAYERS,
    MIXED,
    SCHEDULE,
    Schedule,
    dump,
    ids_of,
    rows_of,
    write,
)
from sim.traces.trace import CHUNK, Trace
from sim.traces.trace import DECODE as DECODED

Dump = dict[str, Any]


def read(folder: Path, schedule: Schedule = SCHEDULE) -> Trace:
    return imported("sglang", write(folder, dump(schedule)), folder / "trace")


def test_a_dump_becomes_the_choices_of_every_row_pass_by_pass(tmp_path: Path) -> None:
    trace = read(tmp_path)
    rows = rows_of(SCHEDULE)
    assert np.array_equal(trace.ids, ids_of(SCHEDULE))
    assert trace.step.tolist() == [number for number, *_ in rows]
    assert trace.position.tolist() == [position for *_, position in rows]
    assert trace.token.tolist() == [100 + position for *_, position in rows]
    assert [site.layer for site in trace.header.sites] == [1, 2, 3]
    assert (trace.header.model.experts, trace.header.model.top_k) == (EXPERTS, 3)


def test_rows_are_linked_to_the_sequences_they_came_from(tmp_path: Path) -> None:
    trace = read(tmp_path)
    assert trace.sequence.tolist() == [sequence for _, _, sequence, _ in rows_of(SCHEDULE)]
    chunks = [mode == MIXED and sequence == 2 for _, mode, sequence, _ in rows_of(SCHEDULE)]
    assert (trace.phase == CHUNK).tolist() == chunks
    decoded = [
        mode == DECODE or (mode == MIXED and sequence < 2)
        for _, mode, sequence, _ in rows_of(SCHEDULE)
    ]
    assert (trace.phase == DECODED).tolist() == decoded
    assert lacks(trace) == {"weights", "order", "scores"}
    assert not trace.weights.any()


def test_links_that_could_be_others_are_counted_and_named_as_lacking(tmp_path: Path) -> None:
    schedule = [
        (EXTEND, [(0, 0, 3), (1, 0, 3)]),
        (DECODE, [(0, 3, 1), (1, 3, 1)]),
        (DECODE, [(1, 4, 1)]),
    ]
    trace = read(tmp_path, schedule)
    assert lacks(trace) == {"weights", "order", "scores", "sequences"}
    # Ambiguous are the first of two rows in the pass before the last, and the only row of the last
    # pass, in which either sequence may have ended.
    assert trace.header.provenance["ambiguous_rows"] == 2
    assert trace.sequence.tolist() == [0, 0, 0, 1, 1, 1, 0, 1, 0]
    assert trace.position.tolist() == [0, 1, 2, 0, 1, 2, 3, 3, 4]


def test_a_request_with_a_cached_prefix_is_a_sequence_that_begins_behind_it(tmp_path: Path) -> None:
    trace = read(
        tmp_path, [(EXTEND, [(0, 0, 3)]), (EXTEND, [(1, 2, 3)]), (DECODE, [(0, 3, 1), (1, 5, 1)])]
    )
    assert trace.sequence.tolist() == [0, 0, 0, 1, 1, 1, 0, 1]
    assert trace.phase.tolist()[3:6] == [CHUNK] * 3


def test_requests_of_one_pass_do_not_go_on_with_each_other(tmp_path: Path) -> None:
    trace = read(tmp_path, [(EXTEND, [(0, 0, 3), (1, 3, 2)]), (DECODE, [(0, 3, 1), (1, 5, 1)])])
    assert trace.sequence.tolist() == [0, 0, 0, 1, 1, 0, 1]


def test_a_sequence_that_began_before_the_recording_begins_where_it_is_seen(tmp_path: Path) -> None:
    trace = read(tmp_path, [(DECODE, [(0, 7, 1)]), (DECODE, [(0, 8, 1)])])
    assert (trace.sequence.tolist(), trace.position.tolist()) == ([0, 0], [7, 8])
    assert trace.header.provenance["begun_before"] == 1
    assert "prefill" in lacks(trace)


def test_a_sequence_that_left_the_batch_has_ended(tmp_path: Path) -> None:
    schedule = [
        (EXTEND, [(0, 0, 3), (1, 0, 4)]),
        (DECODE, [(0, 3, 1), (1, 4, 1)]),
        (DECODE, [(1, 5, 1)]),
        (EXTEND, [(2, 0, 4)]),
        (DECODE, [(1, 6, 1), (2, 4, 1)]),
    ]
    trace = read(tmp_path, schedule)
    assert trace.sequence.tolist() == [sequence for _, _, sequence, _ in rows_of(schedule)]
    assert trace.header.provenance["ambiguous_rows"] == 0


def test_physical_experts_become_logical_by_the_map(tmp_path: Path) -> None:
    rolled = torch.stack([torch.arange(EXPERTS).roll(layer) for layer in range(LAYERS)])
    trace = imported("sglang", write(tmp_path, dump(to_logical=rolled)), tmp_path / "trace")
    assert np.array_equal(trace.ids, ids_of(SCHEDULE))
    assert "moved by the last map" in str(trace.header.provenance["experts"])


# Hostile files


class Bomb:
    """An object whose unpickling would make a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_dump_with_code_is_refused_and_does_not_run(tmp_path: Path) -> None:
    path = write(tmp_path, {**dump(), "extra": Bomb(tmp_path / "ran")})
    error = refusal("sglang", path)
    assert error.field == "content"
    assert "weights_only=True" in str(error)
    (tmp_path / "plain.pt").write_bytes(pickle.dumps({"records": Bomb(tmp_path / "ran")}))
    assert "must be a whole zip archive" in str(refusal("sglang", tmp_path / "plain.pt"))
    assert not (tmp_path / "ran").exists()


def test_a_truncated_or_damaged_dump_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, dump())
    content = path.read_bytes()
    for length in (0, 4, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        assert refusal("sglang", path).field == "content"


def test_a_dump_that_would_unpack_to_more_than_it_is_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, dump())
    with (
        zipfile.ZipFile(path) as whole,
        zipfile.ZipFile(tmp_path / "packed.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for member in whole.infolist():
            packed.writestr(member.filename, whole.read(member))
    assert "must be stored without compression" in str(refusal("sglang", tmp_path / "packed.pt"))


def first(value: Dump) -> Dump:
    found: Dump = value["records"][0]
    return found


def physical(value: Dump) -> torch.Tensor:
    found: torch.Tensor = first(value)["topk_ids_of_layer"]
    return found


def topk(value: Dump, place: tuple[int, int, int], expert: int) -> None:
    """Change one id, and the counts that go with it."""
    before = int(physical(value)[place])
    physical(value)[place] = expert
    first(value)["global_physical_count"][place[0], before] -= 1
    if 0 <= expert < EXPERTS:
        first(value)["global_physical_count"][place[0], expert] += 1


@pytest.mark.parametrize(
    ("change", "place", "rule"),
    [
        (
            lambda v: v.update(logical_count=torch.zeros(1)),
            "content",
            "record with --expert-distribution-",
        ),
        (lambda v: v.pop("records"), "records", "must be there"),
        (lambda v: v.update(records=[]), "records", "must be a list of records"),
        (
            lambda v: v.update(last_physical_to_logical_map=None),
            "last_physical_to_logical_map",
            "must be a tensor",
        ),
        (
            lambda v: v["last_physical_to_logical_map"].sub_(1),
            "last_physical_to_logical_map[0, 0]",
            "must lie in 0..",
        ),
        (lambda v: first(v).pop("positions"), "records[0].positions", "must be there"),
        (
            lambda v: first(v).pop("topk_ids_of_layer"),
            "records[0].topk_ids_of_layer",
            "must be there",
        ),
        (
            lambda v: first(v).update(forward_mode=5),
            "records[0].forward_mode",
            "record without speculative decoding",
        ),
        (
            lambda v: first(v).update(forward_mode="1"),
            "records[0].forward_mode",
            "must be a whole number",
        ),
        (
            lambda v: first(v).update(input_ids=[1]),
            "records[0].positions",
            "must be 1, as there are input_ids",
        ),
        (
            lambda v: first(v).update(input_ids=[-1] * 6),
            "records[0].input_ids[0]",
            "must lie in 0..",
        ),
        (lambda v: first(v).update(positions=[0.5] * 6), "records[0].positions", "must be numbers"),
        (
            lambda v: first(v).update(positions=[0, 1, 2, 4, 0, 1]),
            "records[0].positions",
            "must count on by one",
        ),
        (
            lambda v: first(v).update(extend_seq_lens=[4, 3]),
            "records[0].extend_seq_lens",
            "must be lengths that sum",
        ),
        (
            lambda v: first(v).update(extend_seq_lens=None),
            "records[0].extend_seq_lens",
            "must be lengths that sum",
        ),
        (
            lambda v: first(v).update(extend_seq_lens=[6, 0]),
            "records[0].extend_seq_lens",
            "must be lengths that sum",
        ),
        (
            lambda v: first(v).update(topk_ids_of_layer=physical(v)[:2]),
            "records[0].topk_ids_of_layer",
            "must be [4, 6, 8] layers, tokens and ranks",
        ),
        (
            lambda v: first(v).update(topk_ids_of_layer=physical(v)[..., :3]),
            "records[0].topk_ids_of_layer",
            "must be [4, 6, 8] layers, tokens and ranks",
        ),
        (
            lambda v: first(v).update(topk_ids_of_layer=physical(v).float()),
            "records[0].topk_ids_of_layer",
            "must be 3 dimension(s) of whole numbers",
        ),
        (
            lambda v: first(v).update(
                topk_ids_of_layer=torch.zeros(1, dtype=torch.int32).expand(1 << 20, 1 << 20, 8)
            ),
            "records[0].topk_ids_of_layer",
            "must be a dense tensor that stores each of its values",
        ),
        (
            lambda v: first(v).update(topk_ids_of_layer=physical(v).to_sparse()),
            "records[0].topk_ids_of_layer",
            "must be a dense tensor",
        ),
        (
            lambda v: topk(v, (2, 1, 0), EXPERTS),
            "records[0].topk_ids_of_layer[2, 1, 0]",
            "must lie in -1..7",
        ),
        (
            lambda v: topk(v, (2, 1, 0), int(physical(v)[2, 1, 1])),
            "records[0].topk_ids_of_layer[2, 1, ",
            "not repeat",
        ),
        (
            lambda v: physical(v)[2, 1, 0].fill_(-1),
            "records[0].global_physical_count",
            "the times that each expert",
        ),
        (
            lambda v: first(v)["global_physical_count"][1, 0].add_(1),
            "records[0].global_physical_count",
            "the times that each expert",
        ),
        (
            lambda v: v["records"][1].update(rank=1),
            "records[1].rank",
            "must be 0, as in records[0]",
        ),
        (
            lambda v: v["records"][1].update(gatherer_key="child_a"),
            "records[1].gatherer_key",
            "must be 'primary'",
        ),
        (lambda v: v["records"].insert(0, 3), "records[0]", "must be an object"),
    ],
)
def test_a_wrong_dump_is_refused_by_field_and_rule(
    tmp_path: Path, change: Callable[[Dump], Any], place: str, rule: str
) -> None:
    value = dump()
    change(value)
    error = refusal("sglang", write(tmp_path, value))
    assert error.field.startswith(place)
    assert rule in str(error)


def test_a_dump_of_idle_passes_alone_is_refused(tmp_path: Path) -> None:
    assert "must have a pass with tokens" in str(
        refusal("sglang", write(tmp_path, dump([(IDLE, [])])))
    )


def test_the_map_must_leave_a_token_distinct_experts(tmp_path: Path) -> None:
    value = dump()
    value["last_physical_to_logical_map"] = torch.zeros((LAYERS, EXPERTS), dtype=torch.int64)
    error = refusal("sglang", write(tmp_path, value))
    assert "as logical experts" in error.field
    assert "must not repeat in a row" in str(error)


def test_what_a_dump_does_not_tell_has_to_be_given(tmp_path: Path) -> None:
    path = write(tmp_path, dump())
    assert "is no file; name a file of torch.save" in failure("sglang", tmp_path / "absent.pt")
    from capture.importers.formats import FORMATS
    from capture.importers.parts import make_request
    from capture.importers.source import ImportFailure, untracked

    with pytest.raises(ImportFailure, match=r"needs model=\.\.\., hidden=\.\.\."):
        FORMATS["sglang"].read(make_request({"path": str(path)}), untracked)


@pytest.mark.parametrize("key", ["rank", "gatherer_key"])
def test_a_tensor_where_a_plain_value_belongs_is_refused(tmp_path: Path, key: str) -> None:
    content = dump()
    content["records"][1][key] = torch.tensor([0, 1])
    error = refusal("sglang", write(tmp_path, content))
    assert error.field == f"records[1].{key}"


def test_lengths_as_a_tensor_are_taken_as_a_list_of_them_is(tmp_path: Path) -> None:
    listed = imported("sglang", write(tmp_path, dump()), tmp_path / "listed")
    content = dump()
    for record in content["records"]:
        if record["extend_seq_lens"] is not None:
            record["extend_seq_lens"] = torch.tensor(record["extend_seq_lens"])
    taken = imported("sglang", write(tmp_path, content), tmp_path / "taken")
    assert taken.sequence.tolist() == listed.sequence.tolist()
