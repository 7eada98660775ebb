"""Importing Megatron-core's router trace and its sidecars, in files made to its source."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capture.importers import megatron_router_trace
from capture.importers.parts import make_request
from capture.importers.source import ImportFailure, untracked
from helpers.import_fixtures import EXPERTS, FACTS, failure, imported, lacks, make_ids, refusal
from sim.traces.gate_inputs import read_gate_inputs
from sim.traces.trace import CHUNK, DECODE, PREFILL, TraceError, read_trace

FORMAT = "megatron_router_trace"
LAYERS, TOP_K, HIDDEN = (1, 2), 2, int(FACTS["hidden"])
STEPS = (3, 1, 1, 2, 1)
"""Rows of each step."""
Json = dict[str, Any]


def bf16(values: np.ndarray) -> bytes:
    """The values, which bfloat16 holds exactly."""
    halves = (values.astype(np.float32).view(np.uint32) >> 16).astype("<u2")
    assert np.array_equal((halves.astype(np.uint32) << 16).view(np.float32), values)
    return halves.tobytes()


def arrays(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Experts, ascending as a map gives them; gate inputs; logits: all [rows, sites, ..]."""
    rng = np.random.default_rng(3)
    ids = np.sort(make_ids(rows, len(LAYERS), TOP_K), -1)
    hidden = rng.integers(-200, 200, (rows, len(LAYERS), HIDDEN)) / np.float32(64)
    logits = rng.integers(-100, 100, (rows, len(LAYERS), EXPERTS)) / np.float32(8)
    return ids, hidden.astype(np.float32), logits.astype(np.float32)


def write(
    folder: Path,
    change: Callable[[list[Json]], Any] = lambda records: None,
    steps: tuple[int, ...] = STEPS,
    sidecars: bool = True,
) -> Path:
    folder.mkdir(exist_ok=True)
    ids, hidden, logits = arrays(sum(steps))
    records: list[Json] = []
    files = {"hs": b"", "logit": b""}
    begin = 0
    for step, rows in enumerate(steps):
        for site, layer in enumerate(LAYERS):
            mine = slice(begin, begin + rows)
            record: Json = {
                "step": step,
                "stage": "pre_dispatch",
                "block": "decoder",
                "layer": layer,
                "rank": 0,
                "num_tokens": rows,
                "topk": TOP_K,
            }
            for key, values in (("hs", hidden[mine, site]), ("logit", logits[mine, site])):
                if sidecars:
                    content = bf16(values)
                    record |= {
                        f"{key}_offset": len(files[key]),
                        f"{key}_bytes": len(content),
                        f"{key}_shape": list(values.shape),
                    }
                    files[key] += content
            records.append(record | {"top_indices": ids[mine, site].tolist()})
        draft = {"step": step, "block": "mtp", "mtp_idx": 0, "layer": 0, "rank": 0}
        records.append(
            draft | {"stage": "pre_dispatch", "num_tokens": 0, "topk": 0, "top_indices": []}
        )
        begin += rows
    change(records)
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "router_trace_rank0.jsonl").write_text(lines)
    if sidecars:
        (folder / "hidden_states_rank0.bin").write_bytes(files["hs"])
        (folder / "logits_rank0.bin").write_bytes(files["logit"])
    return folder


def test_routes_gate_inputs_and_logits_are_taken_exactly(tmp_path: Path) -> None:
    path = write(tmp_path / "megatron")
    trace = imported(FORMAT, path, tmp_path / "trace", sequences="prompts")
    ids, hidden, logits = arrays(sum(STEPS))
    assert np.array_equal(trace.ids, ids)
    assert trace.step.tolist() == [0, 0, 0, 1, 2, 3, 3, 4]
    assert trace.phase.tolist() == [PREFILL] * 3 + [DECODE] * 2 + [PREFILL] * 2 + [DECODE]
    assert trace.sequence.tolist() == [0] * 5 + [1] * 3
    assert trace.position.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    whole = read_trace(tmp_path / "trace", ["logits"])
    assert np.array_equal(whole.logits, logits)
    inputs = read_gate_inputs(tmp_path / "trace", trace, (0, 1))
    assert np.array_equal(inputs.values[inputs.place], hidden)
    assert [site.layer for site in trace.header.sites] == list(LAYERS)
    assert lacks(trace) == {"weights", "order", "tokens", "scores"}
    assert trace.header.provenance["draft_records"] == len(STEPS)


def test_a_conversation_that_goes_on_and_steps_of_training(tmp_path: Path) -> None:
    path = write(tmp_path / "megatron")
    one = imported(FORMAT, path, tmp_path / "one", sequences="one", order="rank", gate_inputs="no")
    assert set(one.sequence.tolist()) == {0}
    assert one.phase.tolist()[5:7] == [CHUNK] * 2
    assert "order" not in one.header.lacks
    assert not any("hidden" in name for name in one.header.files)
    training = imported(FORMAT, path, tmp_path / "training", recorded="training")
    assert training.sequence.tolist() == training.step.tolist()
    assert set(training.phase.tolist()) == {PREFILL}
    assert {"sequences", "decode"} <= lacks(training)


def test_without_sidecars_there_are_routes_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "megatron", sidecars=False, steps=(2, 1))
    trace = imported(FORMAT, path, tmp_path / "trace")
    assert "logits" not in trace.header.columns
    assert trace.header.provenance["gate_inputs"] is False
    assert "sequences=one changes nothing: no prompt" in failure(FORMAT, path, sequences="one")


def test_whether_a_prompt_begins_another_sequence_must_be_said(tmp_path: Path) -> None:
    message = failure(FORMAT, write(tmp_path / "megatron"))
    assert "line 10 begins a prompt after decoded tokens" in message
    assert "sequences=prompts" in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("recorded", "both"),
        ("sequences", "two"),
        ("gate_inputs", "yes"),
        ("rank", "-1"),
        ("rank", "x"),
    ],
)
def test_options_that_are_none_are_refused(tmp_path: Path, key: str, value: str) -> None:
    assert f"{key}={value} must be" in failure(FORMAT, tmp_path, **{key: value})


def test_a_directory_without_the_ranks_file_is_refused_by_name(tmp_path: Path) -> None:
    assert "name a directory with router_trace_rank3.jsonl" in failure(
        FORMAT, write(tmp_path / "megatron"), rank="3"
    )


def changed(number: int, **values: Any) -> Callable[[list[Json]], None]:
    return lambda records: records[number].update(values)


@pytest.mark.parametrize(
    ("change", "field", "rule"),
    [
        (changed(0, stage="post"), "line 1, stage", "must be pre_dispatch"),
        (changed(0, block="vision"), "line 1, block", "must be decoder or mtp"),
        (changed(0, rank=1), "line 1, rank", "in 0..0"),
        (changed(0, num_tokens=4), "line 1, num_tokens and topk", "must be (3, 2)"),
        (changed(0, top_indices=[[1, 2], [3]]), "line 1, top_indices", "equally long lists"),
        (changed(0, top_indices=[[1, 2.5]] * 3), "line 1, top_indices", "must be numbers"),
        (changed(0, step=-1), "line 1, step", "must be a whole number"),
        (changed(0, hs_shape=[3, 15]), "line 1, hs_shape", "num_tokens and hidden="),
        (changed(0, logit_bytes=1), "line 1, logit_bytes", "must be a whole number"),
        (changed(0, hs_offset=1 << 40), "line 1, hs_offset", "must be a whole number"),
        (changed(4, hs_offset=10_000), "bytes of line 5", "must be in the file"),
        (changed(1, layer=1), "line 1, layers of the step", "each once, ascending"),
        (changed(4, layer=7), "line 4, layers of the step", "must be [1, 2]"),
        (lambda records: records.pop(4), "line 4, layers of the step", "must be [1, 2]"),
        (lambda records: [r.update(step=9) for r in records[:2]], "line 4, step", "must rise"),
        (lambda records: records[3].pop("hs_offset"), "values of line 4", "must be there"),
        (lambda records: records.clear(), "lines", "must have records of the decoder"),
    ],
)
def test_a_wrong_record_is_refused_by_line(
    tmp_path: Path, change: Callable[[list[Json]], Any], field: str, rule: str
) -> None:
    error = refusal(FORMAT, write(tmp_path / "megatron", change), sequences="one")
    assert error.field == field
    assert rule in str(error)


def test_experts_out_of_range_and_values_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    wrong = changed(0, top_indices=[[1, 8], [1, 2], [1, 2]])
    error = refusal(FORMAT, write(tmp_path / "a", wrong), sequences="one")
    assert error.field == "top_indices at layer 1[0, 1]"
    path = write(tmp_path / "b")
    content = bytearray((path / "logits_rank0.bin").read_bytes())
    content[0:2] = b"\x80\x7f"  # infinity
    (path / "logits_rank0.bin").write_bytes(content)
    assert "must be finite" in str(refusal(FORMAT, path, sequences="one"))


def test_every_damaged_byte_is_refused_or_leaves_whole_choices(tmp_path: Path) -> None:
    path = write(tmp_path / "megatron", steps=(2, 1))
    file = path / "router_trace_rank0.jsonl"
    content = file.read_text()
    for place in range(0, len(content), 3):
        damaged = content[:place] + chr(ord(content[place]) ^ 0x01) + content[place + 1 :]
        file.write_text(damaged)
        request = make_request({"path": str(path), **FACTS, "sequences": "one"})
        try:
            trace = megatron_router_trace.read(request, untracked).trace
        except (TraceError, ImportFailure):
            continue
        assert trace.ids.shape[1:] == (len(LAYERS), TOP_K)
        assert 0 <= trace.ids.min() <= trace.ids.max() < EXPERTS


def test_sequences_of_a_training_run_change_nothing_and_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "megatron")
    message = failure(FORMAT, path, recorded="training", sequences="prompts")
    assert "sequences=prompts changes nothing with recorded=training" in message
