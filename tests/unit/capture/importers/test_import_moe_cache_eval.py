"""Importing event directories of moe-cache-eval: unions, counts and gate mass arrive.

Nothing finer is invented.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from capture.importers import moe_cache_eval
from capture.importers.parts import make_request
from capture.importers.source import untracked
from helpers.import_fixtures import (
    EXPERTS,
    FACTS,
    failure,
    imported,
    lacks,
    make_ids,
    make_weights,
    refusal,
)
from sim.core.controller import Controller
from sim.core.loader import Loader
from sim.policies.placements import Load
from sim.policies.precisions import Fixed
from sim.policies.predictors import NoPrediction
from sim.policies.recency import LRU
from sim.traces.trace import CHUNK, DECODE, PREFILL, Trace
from sim.values.types import Geometry, Outcome
from sim.workload.steps import Workload

FORMAT = "moe_cache_eval"
LAYERS, TOP_K = 3, 2
DTYPES = {
    "request_indices": np.int32,
    "scheduler_steps": np.int32,
    "forward_cycles": np.int32,
    "phases": np.uint8,
    "layer_ids": np.int16,
    "token_counts": np.int32,
    "offsets": np.int64,
    "expert_ids": np.int16,
    "assignment_counts": np.int32,
    "gate_mass": np.float32,
}
Cycle = tuple[int, int, list[tuple[int, int]]]
"""Phase (0 prefill, 1 decode), request of the events (-1: a batch), rows as (request, token)."""
LENGTHS = {3: 4, 5: 3}
IDS = {request: make_ids(length, LAYERS, TOP_K, request) for request, length in LENGTHS.items()}
WEIGHTS = {
    request: make_weights(length, LAYERS, TOP_K, request) for request, length in LENGTHS.items()
}
ONE_BY_ONE: list[Cycle] = [
    (1, -1, [(request, token)]) for request in LENGTHS for token in range(LENGTHS[request])
]
BATCHED: list[Cycle] = [(1, -1, [(r, t) for r in LENGTHS if t < LENGTHS[r]]) for t in range(4)]
PREFILLED: list[Cycle] = [
    (0, 3, [(3, 0), (3, 1), (3, 2)]),
    (0, 3, [(3, 3)]),
    (0, 5, [(5, 0), (5, 1), (5, 2)]),
]


def columns_of(cycles: Sequence[Cycle]) -> dict[str, np.ndarray]:
    """The events as `convert_prefill_trace` and `convert_decode_trace` make them."""
    found: dict[str, list[Any]] = {name: [] for name in DTYPES}
    found["offsets"].append(0)
    for number, (phase, request, rows) in enumerate(cycles):
        for layer in range(LAYERS):
            ids = np.concatenate([IDS[r][t, layer] for r, t in rows])
            weights = np.concatenate([WEIGHTS[r][t, layer] for r, t in rows])
            counts = np.bincount(ids, minlength=EXPERTS)
            masses = np.bincount(ids, weights=weights, minlength=EXPERTS)
            union = np.flatnonzero(counts)
            for name, value in (
                ("request_indices", request),
                ("scheduler_steps", number),
                ("forward_cycles", number),
                ("phases", phase),
                ("layer_ids", layer),
                ("token_counts", len(rows)),
            ):
                found[name].append(value)
            found["expert_ids"] += union.tolist()
            found["assignment_counts"] += counts[union].tolist()
            found["gate_mass"] += masses[union].tolist()
            found["offsets"].append(len(found["expert_ids"]))
    return {name: np.array(values, DTYPES[name]) for name, values in found.items()}


def manifest_of(path: Path) -> dict[str, Any]:
    return {
        "kind": "decode_event_trace",
        "schema_version": 1,
        "model": {
            "id": "Qwen/tiny",
            "commit": "0",
            "model_type": "tiny",
            "num_layers": LAYERS,
            "num_experts": EXPERTS,
            "top_k": TOP_K,
        },
        "artifacts": {
            "events": {
                "path": path.name,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                "bytes": path.stat().st_size,
            }
        },
    }


def write(
    root: Path,
    cycles: Sequence[Cycle] = ONE_BY_ONE,
    columns: dict[str, np.ndarray] | None = None,
    change: Callable[[dict[str, Any]], Any] = lambda manifest: None,
) -> Path:
    """An event directory whose manifest ``change`` has altered."""
    root.mkdir(exist_ok=True)
    metadata = {"schema": "moe-controller-events", "schema_version": "1"}
    save_file(
        columns_of(cycles) if columns is None else columns, root / "events.safetensors", metadata
    )
    manifest = manifest_of(root / "events.safetensors")
    change(manifest)
    (root / "manifest.json").write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")
    lines = [
        {
            "scheduler_step": number,
            "active_request_indices": [r for r, _ in rows],
            "decode_positions": [t for _, t in rows],
            "arrival_offsets": [0] * len(rows),
            "categories": [".."] * len(rows),
        }
        for number, (phase, _, rows) in enumerate(cycles)
        if phase
    ]
    (root / "schedule.jsonl").write_text(
        "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines)
    )
    (root / "requests.jsonl").write_text('{"prompt": "secret"}\n')
    return root


def unions(trace: Trace) -> list[dict[int, tuple[int, float]]]:
    """How many rows chose each expert, and the sum of their weights, by step and site."""
    found = []
    for step in range(int(trace.step[-1]) + 1):
        for site in range(LAYERS):
            ids, weights = (
                trace.ids[trace.step == step, site],
                trace.weights[trace.step == step, site],
            )
            chosen = sorted(set(ids[ids >= 0].tolist()))
            found.append(
                {e: (int((ids == e).sum()), float(weights[ids == e].sum())) for e in chosen}
            )
    return found


def expected_unions(cycles: Sequence[Cycle]) -> list[dict[int, tuple[int, float]]]:
    found = []
    for _, _, rows in cycles:
        for layer in range(LAYERS):
            mass: dict[int, tuple[int, float]] = {}
            for request, token in rows:
                for expert, weight in zip(
                    IDS[request][token, layer], WEIGHTS[request][token, layer], strict=True
                ):
                    count, so_far = mass.get(int(expert), (0, 0.0))
                    mass[int(expert)] = (count + 1, so_far + float(weight))
            found.append(dict(sorted(mass.items())))
    return found


def test_events_of_one_token_are_its_choices(tmp_path: Path) -> None:
    trace = imported(FORMAT, write(tmp_path / "events"), tmp_path / "trace")
    ids, weights = np.concatenate(list(IDS.values())), np.concatenate(list(WEIGHTS.values()))
    order = ids.argsort(-1)
    assert np.array_equal(trace.ids, np.take_along_axis(ids, order, -1))
    assert np.array_equal(trace.weights, np.take_along_axis(weights, order, -1).astype(np.float32))
    assert trace.sequence.tolist() == [3] * 4 + [5] * 3
    assert trace.position.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert set(trace.phase.tolist()) == {DECODE}
    assert lacks(trace) == {"tokens", "scores", "prefill"}
    assert "secret" not in trace.header.to_json()
    # Events list experts by id, but by weight the needs stand in the model's order of rank.
    assert np.array_equal(Workload(trace, split="all", batching="recorded").chosen[0], ids)


def test_the_manifest_names_the_model_if_nobody_else_does(tmp_path: Path) -> None:
    facts = {key: text for key, text in FACTS.items() if key not in ("model", "experts")}
    request = make_request({"path": str(write(tmp_path / "events")), **facts})
    assert moe_cache_eval.read(request, untracked).trace.header.model.name == "Qwen/tiny"


@pytest.mark.parametrize("cycles", [BATCHED, PREFILLED], ids=["batched", "prefill"])
def test_events_of_several_tokens_keep_unions_counts_and_gate_mass(
    tmp_path: Path, cycles: list[Cycle]
) -> None:
    trace = imported(FORMAT, write(tmp_path / "events", cycles), tmp_path / "trace")
    found, expected = unions(trace), expected_unions(cycles)
    assert [{e: n for e, (n, _) in union.items()} for union in found] == [
        {e: n for e, (n, _) in union.items()} for union in expected
    ]
    for union, wanted in zip(found, expected, strict=True):
        assert np.allclose(
            [mass for _, mass in union.values()], [mass for _, mass in wanted.values()], atol=1e-6
        )
    assert (trace.ids >= 0).all()
    assert "rows" in lacks(trace)
    assert trace.sequence.tolist() == [r for *_, rows in cycles for r, _ in rows]
    assert trace.position.tolist() == [t for *_, rows in cycles for _, t in rows]


def test_a_prompt_in_parts_is_a_prefill_and_chunks(tmp_path: Path) -> None:
    trace = imported(FORMAT, write(tmp_path / "events", PREFILLED), tmp_path / "trace")
    assert trace.phase.tolist() == [PREFILL] * 3 + [CHUNK] + [PREFILL] * 3
    assert {"rows", "decode"} <= lacks(trace)


def test_the_published_conformance_trace_has_its_hits_and_misses(tmp_path: Path) -> None:
    """3 layers, 4 experts, LRU with 2 slots a layer (arXiv:2608.07911, section 2).

    A layer's experts are asked for at once: 30 accesses, 12 hits, 18 misses, 12 of them compulsory,
    12 evictions.
    """
    asked = [(0, 1), (0, 2), (0, 1), (0, 3), (0, 1)]
    events = [(step, layer) for step in range(len(asked)) for layer in range(LAYERS)]
    steps = [step for step, _ in events]
    columns = {
        "request_indices": np.zeros(15),
        "scheduler_steps": steps,
        "forward_cycles": steps,
        "phases": np.ones(15),
        "layer_ids": [layer for _, layer in events],
        "token_counts": np.ones(15),
        "offsets": np.arange(16) * 2,
        "expert_ids": np.ravel([asked[s] for s, _ in events]),
        "assignment_counts": np.ones(30),
        "gate_mass": np.ones(30),
    }
    typed = {name: np.array(values).astype(DTYPES[name]) for name, values in columns.items()}

    def as_published(manifest: dict[str, Any]) -> None:
        manifest["model"] = {"num_layers": 3, "num_experts": 4}

    root = write(tmp_path / "events", columns=typed, change=as_published)
    trace = imported(FORMAT, root, tmp_path / "trace", model="toy")
    controller = Controller(
        Geometry(3, 4, 2, ("fp16",), (16.0,), (1,), 6),
        NoPrediction(),
        LRU(scope="site", initial="empty"),
        Fixed("fp16"),
        Load(),
        Loader(),
    )
    workload = Workload(trace, split="all", batching="recorded")
    gate = workload.gate()
    for step in workload.steps:
        for sequence in step.begins:
            controller.begin_sequence(sequence)
        gate.open(step)
        for site in range(3):
            gate.visit(site)
            _, waits = controller.gate(gate)
            transfer = controller.poll(0) if waits else None
            while transfer is not None:
                _, transfer = controller.transfer_done(0, transfer)
    outcomes = list(controller.lookup_outcomes)
    assert (len(outcomes), outcomes.count(Outcome.HIT), outcomes.count(Outcome.MISS)) == (
        30,
        12,
        18,
    )
    assert len(set(controller.lookup_keys)) == 12
    assert sum(len(transfer.victims) for transfer in controller.issued) == 12


# What is wrong


def test_a_batch_needs_the_schedule_that_says_who_was_in_it(tmp_path: Path) -> None:
    root = write(tmp_path / "events", BATCHED)
    (root / "schedule.jsonl").unlink()
    error = refusal(FORMAT, root)
    assert error.field == "scheduler_steps[0]"
    assert "copy schedule.jsonl, which the converter wrote beside the events" in str(error)


@pytest.mark.parametrize(
    ("change", "place", "rule"),
    [
        (lambda m: m.update(schema_version=2), "schema_version", "must be 1"),
        (lambda m: m.update(schema_version=True), "schema_version", "must be 1"),
        (lambda m: m.pop("model"), "model", "must be there"),
        (
            lambda m: m["model"].update(num_layers=0),
            "model.num_layers",
            "must be a whole number in 1..32767",
        ),
        (lambda m: m["model"].update(top_k="2"), "model.top_k", "must be a whole number"),
        (lambda m: m["model"].update(num_experts=3), "expert_ids[", "must lie in 0..2"),
        (
            lambda m: m["model"].update(num_layers=2),
            "layer_ids[2]",
            "must count 0..1 again and again",
        ),
        (
            lambda m: m["model"].update(top_k=1),
            "assignment_counts of event [0]",
            "must sum to at most top_k=1",
        ),
        (
            lambda m: m["artifacts"]["events"].update(path="../events.safetensors"),
            "artifacts.events.path",
            "must be the name of a file in the directory",
        ),
        (
            lambda m: m["artifacts"]["events"].update(path="/etc/passwd"),
            "artifacts.events.path",
            "must be the name of",
        ),
        (
            lambda m: m["artifacts"]["events"].update(path=".."),
            "artifacts.events.path",
            "must be the name of",
        ),
        (
            lambda m: m["artifacts"]["events"].update(sha256="0" * 64),
            "artifacts.events.sha256",
            "must be ",
        ),
        (lambda m: m["artifacts"].clear(), "artifacts.events", "must be there"),
    ],
)
def test_a_wrong_manifest_is_refused_by_field_and_rule(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], place: str, rule: str
) -> None:
    error = refusal(FORMAT, write(tmp_path / "events", change=change))
    assert error.field.startswith(place)
    assert rule in str(error)


def put(name: str, place: int, value: float) -> Callable[[dict[str, np.ndarray]], Any]:
    return lambda columns: columns[name].__setitem__(place, value)


def make(
    name: str, change: Callable[[np.ndarray], np.ndarray]
) -> Callable[[dict[str, np.ndarray]], Any]:
    return lambda columns: columns.update({name: change(columns[name])})


@pytest.mark.parametrize(
    ("change", "place", "rule"),
    [
        (lambda c: c.pop("gate_mass"), "gate_mass", "must be there"),
        (
            make("layer_ids", lambda v: v.astype(np.int32)),
            "layer_ids",
            "must be int16 with 1 dimension",
        ),
        (make("layer_ids", lambda v: v[:, None]), "layer_ids", "must be int16 with 1 dimension"),
        (make("phases", lambda v: v[:-1]), "phases", "must have 21 values"),
        (make("offsets", lambda v: v[:-1]), "offsets", "must have 22 values"),
        (make("gate_mass", lambda v: v[:-1]), "gate_mass", "must have 42 values"),
        (put("offsets", 0, 1), "offsets", "must begin at 0 and end at 42"),
        (put("offsets", 1, 9), "offsets[2]", "must not fall"),
        (put("offsets", -1, 41), "offsets", "must begin at 0 and end at 42"),
        (put("phases", 4, 2), "phases[4]", "must be 0 (prefill) or 1 (decode)"),
        (put("phases", 4, 0), "phases[4]", "must be the same at all layers of a cycle"),
        (put("token_counts", 0, 0), "token_counts[0]", "must be 1 or more"),
        (put("layer_ids", 3, 1), "layer_ids[3]", "must count 0..2 again and again"),
        (
            put("scheduler_steps", 20, 7),
            "scheduler_steps[20]",
            "must be the same at all layers of a cycle",
        ),
        (put("request_indices", 1, -2), "request_indices[1]", "must be -1 or more"),
        (put("assignment_counts", 5, 0), "assignment_counts[5]", "must lie in 1..token_counts"),
        (put("assignment_counts", 5, 2), "assignment_counts[5]", "must lie in 1..token_counts"),
        (put("expert_ids", 5, -1), "expert_ids[5]", "must lie in 0..7"),
        (put("gate_mass", 5, np.nan), "gate_mass[5]", "must be finite and 0 or more"),
        (put("gate_mass", 5, -0.1), "gate_mass[5]", "must be finite and 0 or more"),
        (
            lambda c: c["expert_ids"].__setitem__(1, c["expert_ids"][0]),
            "expert_ids, ascending[1]",
            "must not repeat",
        ),
        (
            lambda c: [
                c[n].__setitem__(slice(3, 6), 7) for n in ("scheduler_steps", "forward_cycles")
            ],
            "scheduler_steps[6]",
            "must not fall",
        ),
        (
            lambda c: c["token_counts"].__setitem__(slice(3, 6), 2),
            "token_counts[3]",
            "must be 1, the active requests",
        ),
    ],
)
def test_wrong_events_are_refused_by_field_and_rule(
    tmp_path: Path, change: Callable[[dict[str, np.ndarray]], Any], place: str, rule: str
) -> None:
    columns = columns_of(ONE_BY_ONE)
    change(columns)
    error = refusal(FORMAT, write(tmp_path / "events", columns=columns))
    assert (error.file, error.field) == ("events.safetensors", place)
    assert rule in str(error)


@pytest.mark.parametrize(
    ("line", "place", "rule"),
    [
        ("{", "line 2", "must be JSON"),
        ("[]", "line 2", "must be an object"),
        ({"scheduler_step": 0}, "line 2.scheduler_step", "must not come twice"),
        ({"active_request_indices": []}, "line 2.active_request_indices", "must be numbers"),
        ({"active_request_indices": [-1]}, "line 2.active_request_indices[0]", "must lie in 0.."),
        ({"decode_positions": [0, 1]}, "line 2.decode_positions", "must have 1 values"),
        (
            {"active_request_indices": [3, 3], "decode_positions": [0, 1]},
            "line 2.active_request_indices",
            "not repeat",
        ),
    ],
)
def test_a_wrong_schedule_is_refused_by_line_and_rule(
    tmp_path: Path, line: Any, place: str, rule: str
) -> None:
    root = write(tmp_path / "events")
    lines = (root / "schedule.jsonl").read_text().splitlines()
    lines[1] = line if isinstance(line, str) else json.dumps({**json.loads(lines[1]), **line})
    (root / "schedule.jsonl").write_text("\n".join(lines) + "\n")
    error = refusal(FORMAT, root)
    assert (error.file, error.field) == ("schedule.jsonl", place)
    assert rule in str(error)


def test_a_damaged_safetensors_file_is_refused(tmp_path: Path) -> None:
    root = write(tmp_path / "events")
    content = (root / "events.safetensors").read_bytes()
    for damaged in (b"", content[:-1], b"\xff" * 8 + content[8:], content[:8] + b"x" + content[9:]):
        (root / "events.safetensors").write_bytes(damaged)
        (root / "manifest.json").write_text(json.dumps(manifest_of(root / "events.safetensors")))
        assert "must be a whole safetensors file" in str(refusal(FORMAT, root))


def test_a_path_that_is_no_event_directory_is_refused(tmp_path: Path) -> None:
    assert "is no directory; name one with manifest.json" in failure(FORMAT, tmp_path / "absent")
    assert "manifest.json is no file" in failure(FORMAT, tmp_path)
