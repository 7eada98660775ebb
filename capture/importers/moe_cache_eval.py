"""Importer of format moe_cache_eval: event directories of github.com/shijiuzhang/moe-cache-eval.

``path`` is a directory of event schema 1. Its ``manifest.json`` names the model and the sha256 of
``events.safetensors``. That file has an *event* for each layer of each forward cycle, M in all:

- ``request_indices``, ``scheduler_steps``, ``forward_cycles``, ``token_counts`` int32 [M]
- ``phases`` uint8 [M]: 0 prefill, 1 decode
- ``layer_ids`` int16 [M]
- ``offsets`` int64 [M + 1]: where each event's accesses begin

For each *access*, an expert that an event asked for, it has:

- ``expert_ids`` int16 [A]
- ``assignment_counts`` int32 [A]: how many tokens chose the expert
- ``gate_mass`` float32 [A]: the sum of their weights

Events of batched decoding have request -1. ``schedule.jsonl`` then says which requests were in the
batch::

    {"scheduler_step": 0, "active_request_indices": [3, 1], "decode_positions": [0, 7], ..}

An event is a union. The choices of an event of one token are exact. Of an event of several tokens
the file does not say which token chose what. The header then says that rows are lacking, and the
counts are divided among the event's tokens, so that every union, count and gate mass is as
recorded. Texts in ``requests.jsonl`` are not copied.

`capture.importers.moe_cache_events` reads ``events.csv``, and directories with that file in place
of the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capture.importers import moe_cache_events
from capture.importers.parts import (
    FACTS,
    Recording,
    Request,
    Rows,
    assemble,
    check_numbers,
    check_size,
    complete,
)
from capture.importers.source import (
    INT16_MAX,
    INT32_MAX,
    Imported,
    ImportFailure,
    Refuse,
    Track,
    lines_of,
    parsed_json,
    require_file,
    sha256,
)
from sim.traces.trace import CHUNK, DECODE, PREFILL, TraceError

KEYS = tuple(key for key in FACTS if key != "experts")
SCHEMA = 1
MANIFEST, SCHEDULE = "manifest.json", "schedule.jsonl"
EVENTS: Mapping[str, Any] = {
    "request_indices": np.int32,
    "scheduler_steps": np.int32,
    "forward_cycles": np.int32,
    "phases": np.uint8,
    "layer_ids": np.int16,
    "token_counts": np.int32,
}
ACCESSES: Mapping[str, Any] = {
    "expert_ids": np.int16,
    "assignment_counts": np.int32,
    "gate_mass": np.float32,
}
LARGEST_FILE_BYTES = 1 << 32
LARGEST_TEXT_BYTES = 1 << 28
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class _Cycle:
    """One forward cycle: its first event, its phase, and sequence and position of each row."""

    event: int
    phase: int
    sequence: Ints
    position: Ints


def read(request: Request, track: Track[Any]) -> Imported:
    """The trace of a directory. Raise `TraceError` or `ImportFailure`."""
    if moe_cache_events.is_events(request.path):
        return moe_cache_events.read(request, track)
    manifest, events_path = _manifest(request.path)
    model = manifest["model"]
    num_layers, experts = model["num_layers"], model["num_experts"]
    refuse = Refuse(events_path.name)
    columns = _columns(refuse, events_path)
    _check_events(refuse, columns, num_layers, experts)
    top_k = _top_k(refuse, columns, model.get("top_k"))
    schedule = _schedule(request.path)
    cycles = _cycles(refuse, columns, num_layers, schedule)
    check_size(
        refuse,
        "token_counts",
        sum(len(item.sequence) for item in cycles),
        num_layers,
        top_k,
        "convert less",
    )
    ids, weights = _choices(columns, cycles, num_layers, top_k)
    phase = np.concatenate([np.full(len(item.sequence), item.phase) for item in cycles])
    rows = Rows(
        np.repeat(np.arange(len(cycles)), [len(item.sequence) for item in cycles]),
        phase,
        np.concatenate([item.sequence for item in cycles]),
        np.concatenate([item.position for item in cycles]),
        ids,
        weights,
        ranked=False,
    )
    told = {"model": str(model.get("id", request.facts.get("model", ""))), "experts": str(experts)}
    facts = complete(
        request.facts, {key: text for key, text in told.items() if text}, "moe_cache_eval"
    )
    return Imported(
        assemble(
            facts, rows, _recording(request, events_path, cycles, num_layers, schedule is not None)
        )
    )


def _manifest(root: Path) -> tuple[dict[str, Any], Path]:
    """The manifest with its model checked, and the path of the events' file.

    The file's digest must be the manifest's.
    """
    if not root.is_dir():
        raise ImportFailure(
            f"path={root} is no directory; name one with {MANIFEST} and events.safetensors"
        )
    path = require_file("path", root / MANIFEST, f"a directory with {MANIFEST}", LARGEST_TEXT_BYTES)
    refuse = Refuse(MANIFEST)
    whole = refuse.has(
        "", parsed_json(path.read_bytes(), refuse, "text"), "schema_version", "model", "artifacts"
    )
    version = whole["schema_version"]
    known = version == SCHEMA and not isinstance(version, bool)
    refuse(
        "schema_version",
        not known,
        version,
        f"must be {SCHEMA}",
        f"convert the events to schema {SCHEMA}",
    )
    model = refuse.has("model", whole["model"], "num_layers", "num_experts")
    for key in ("num_layers", "num_experts", *(["top_k"] if "top_k" in model else [])):
        model[key] = refuse.whole(f"model.{key}", model[key], 1, INT16_MAX)
    events = refuse.has("artifacts", whole["artifacts"], "events")["events"]
    events = refuse.has("artifacts.events", events, "path", "sha256")
    name = refuse.text("artifacts.events.path", events["path"])
    plain = PurePosixPath(name).name == name and "\\" not in name and name != ".."
    refuse("artifacts.events.path", not plain, name, "must be the name of a file in the directory")
    place = require_file(
        "path", root / name, f"a directory with {name}", LARGEST_FILE_BYTES, "convert less"
    )
    found = sha256(place)
    rule = f"must be {found}, the digest of {name}"
    refuse("artifacts.events.sha256", events["sha256"] != found, events["sha256"], rule)
    return whole, place


def _columns(refuse: Refuse, path: Path) -> dict[str, NDArray[Any]]:
    """The tensors, after a check that each has the right dtype, one dimension and its length."""
    try:
        from safetensors import safe_open
    except ImportError:
        raise ImportFailure(
            "format=moe_cache_eval is read by safetensors: pip install -e '.[model]'"
        ) from None
    dtypes = {**EVENTS, "offsets": np.int64, **ACCESSES}
    found: dict[str, NDArray[Any]] = {}
    try:
        with safe_open(path, framework="numpy") as tensors:
            names = set(tensors.keys())
            for name in dtypes:
                refuse(name, name not in names, "absent", f"must be there (found {sorted(names)})")
                found[name] = tensors.get_tensor(name)
    except TraceError:
        raise
    except Exception as error:
        # The reader is written in Rust: its exceptions for damaged files have no common base.
        refuse("content", True, str(error), "must be a whole safetensors file")
    for name, dtype in dtypes.items():
        values = found[name]
        rule = f"must be {np.dtype(dtype)} with 1 dimension"
        refuse(
            name,
            values.dtype != dtype or values.ndim != 1,
            f"{values.dtype} {list(values.shape)}",
            rule,
        )
    events, accesses = len(found["layer_ids"]), len(found["expert_ids"])
    refuse("layer_ids", events == 0, 0, "must have an event")
    lengths = {
        **dict.fromkeys(EVENTS, events),
        "offsets": events + 1,
        **dict.fromkeys(ACCESSES, accesses),
    }
    for name, length in lengths.items():
        refuse(name, len(found[name]) != length, len(found[name]), f"must have {length} values")
    return found


def _check_events(
    refuse: Refuse, columns: Mapping[str, NDArray[Any]], num_layers: int, experts: int
) -> None:
    offsets, counts, tokens = (
        columns["offsets"],
        columns["assignment_counts"],
        columns["token_counts"],
    )
    wrong = np.diff(offsets, prepend=offsets[:1]) < 0
    refuse.where("offsets", wrong, offsets, "must not fall")
    ends = (int(offsets[0]), int(offsets[-1]))
    refuse(
        "offsets",
        ends != (0, len(counts)),
        ends,
        f"must begin at 0 and end at {len(counts)}, the accesses",
    )
    refuse.where(
        "phases", columns["phases"] > 1, columns["phases"], "must be 0 (prefill) or 1 (decode)"
    )
    refuse.where("token_counts", tokens < 1, tokens, "must be 1 or more")
    check_numbers(refuse, "scheduler_steps", columns["scheduler_steps"])
    refuse.where(
        "request_indices",
        columns["request_indices"] < -1,
        columns["request_indices"],
        "must be -1 or more",
    )
    layers, expected = columns["layer_ids"], np.arange(len(tokens)) % num_layers
    rule = f"must count 0..{num_layers - 1} again and again: every cycle visits every layer"
    refuse.where("layer_ids", layers != expected, layers, rule)
    whole = len(layers) % num_layers == 0
    refuse("layer_ids", not whole, int(layers[-1]), f"must end at {num_layers - 1}, the last layer")
    for name in ("request_indices", "scheduler_steps", "forward_cycles", "phases", "token_counts"):
        first = np.repeat(columns[name][::num_layers], num_layers)
        refuse.where(
            name, columns[name] != first, columns[name], "must be the same at all layers of a cycle"
        )
    for name in ("scheduler_steps", "forward_cycles"):
        back = np.diff(columns[name], prepend=columns[name][:1]) < 0
        refuse.where(name, back, columns[name], "must not fall")
    event = np.repeat(np.arange(len(tokens)), np.diff(offsets))
    wrong = (counts < 1) | (counts > tokens[event])
    refuse.where("assignment_counts", wrong, counts, "must lie in 1..token_counts of the event")
    ids, mass = columns["expert_ids"], columns["gate_mass"]
    refuse.where("expert_ids", (ids < 0) | (ids >= experts), ids, f"must lie in 0..{experts - 1}")
    cells = np.sort(event * experts + ids)
    again = np.diff(cells, prepend=-1) == 0
    refuse.where("expert_ids, ascending", again, cells % experts, "must not repeat in an event")
    refuse.where("gate_mass", ~np.isfinite(mass) | (mass < 0), mass, "must be finite and 0 or more")


def _top_k(refuse: Refuse, columns: Mapping[str, NDArray[Any]], told: int | None) -> int:
    """Choices a token: as the manifest says, else the fewest that the busiest event needs."""
    offsets, tokens = columns["offsets"], columns["token_counts"].astype(np.int64)
    sums = np.diff(np.append(0, np.cumsum(columns["assignment_counts"], dtype=np.int64))[offsets])
    needed = -(-sums // tokens)
    top_k = told or max(int(needed.max()), 1)
    rule = f"must sum to at most top_k={top_k} for each token of the event"
    refuse.where("assignment_counts of event ", needed > top_k, sums, rule)
    return top_k


def _schedule(root: Path) -> dict[int, tuple[Ints, Ints]] | None:
    """By scheduler step: the batch's requests, and how many tokens each has decoded.

    None if the file does not exist.
    """
    path = root / SCHEDULE
    if not path.exists():
        return None
    refuse = Refuse(SCHEDULE)
    found: dict[int, tuple[Ints, Ints]] = {}
    for number, line in lines_of(require_file("path", path, SCHEDULE, LARGEST_TEXT_BYTES), refuse):
        name = f"line {number}"
        keys = ("active_request_indices", "decode_positions")
        value = refuse.has(name, parsed_json(line, refuse, name), "scheduler_step", *keys)
        step = refuse.whole(f"{name}.scheduler_step", value["scheduler_step"], 0, INT32_MAX)
        refuse(f"{name}.scheduler_step", step in found, step, "must not come twice")
        active, positions = (refuse.numbers(f"{name}.{key}", value[key], "iu", 1) for key in keys)
        for key, values in zip(keys, (active, positions), strict=True):
            check_numbers(refuse, f"{name}.{key}", values)
        rule = f"must have {len(active)} values, as there are active requests"
        refuse(f"{name}.decode_positions", len(positions) != len(active), len(positions), rule)
        refuse(
            f"{name}.{keys[0]}",
            len(set(active.tolist())) != len(active),
            active.tolist(),
            "must not repeat",
        )
        found[step] = (active.astype(np.int64), positions.astype(np.int64))
    return found


def _cycles(
    refuse: Refuse,
    columns: Mapping[str, NDArray[Any]],
    num_layers: int,
    schedule: Mapping[int, tuple[Ints, Ints]] | None,
) -> list[_Cycle]:
    found: list[_Cycle] = []
    tokens_so_far: dict[int, int] = {}
    for event in range(0, len(columns["layer_ids"]), num_layers):
        request, step, tokens, decodes = (
            int(columns[name][event])
            for name in ("request_indices", "scheduler_steps", "token_counts", "phases")
        )
        if request >= 0:
            begin = tokens_so_far.get(request, 0)
            sequence, position = np.full(tokens, request), begin + np.arange(tokens)
            tokens_so_far[request] = begin + tokens
        else:
            remedy = f"copy {SCHEDULE}, which the converter wrote beside the events"
            rule = f"must be told by a line of {SCHEDULE}: the event is of a batch"
            known = schedule or {}
            refuse(f"scheduler_steps[{event}]", step not in known, step, rule, remedy)
            sequence, position = known[step]
            rule = f"must be {len(sequence)}, the active requests of {SCHEDULE}"
            refuse(f"token_counts[{event}]", tokens != len(sequence), tokens, rule)
        phase = DECODE if decodes else (CHUNK if position[0] else PREFILL)
        found.append(_Cycle(event, phase, sequence, position))
    return found


def _choices(
    columns: Mapping[str, NDArray[Any]], cycles: list[_Cycle], num_layers: int, top_k: int
) -> tuple[Ints, NDArray[np.float32]]:
    """Experts and weights [N, S, K].

    An event's assignments are counted expert by expert. In an event of T tokens assignment p goes
    to row p modulo T. No row gets an expert twice, since none was chosen more than T times.
    """
    counts = columns["assignment_counts"].astype(np.int64)
    event = np.repeat(np.arange(len(columns["layer_ids"])), np.diff(columns["offsets"]))
    tokens = columns["token_counts"].astype(np.int64)
    access = np.repeat(np.arange(len(counts)), counts)
    of_event = event[access]
    before = np.append(0, np.cumsum(counts))[columns["offsets"][:-1]]
    place = np.arange(len(access)) - before[of_event]
    rows = np.array([len(cycle.sequence) for cycle in cycles])
    begin = np.repeat(np.cumsum(rows) - rows, num_layers)
    target = (
        begin[of_event] + place % tokens[of_event],
        of_event % num_layers,
        place // tokens[of_event],
    )
    ids = np.full((int(rows.sum()), num_layers, top_k), -1, np.int64)
    weights = np.zeros(ids.shape, np.float32)
    ids[target] = columns["expert_ids"][access]
    weights[target] = (columns["gate_mass"] / counts)[access]
    return ids, weights


def _recording(
    request: Request, events: Path, cycles: list[_Cycle], num_layers: int, scheduled: bool
) -> Recording:
    several = any(len(cycle.sequence) > 1 for cycle in cycles)
    lacks = ["tokens", "scores", *(["rows"] if several else [])]
    files = {"manifest": request.path / MANIFEST, "file": events}
    return Recording(
        format="moe_cache_eval",
        files={**files, **({"schedule": request.path / SCHEDULE} if scheduled else {})},
        layers=range(num_layers),
        lacks=lacks,
        site_name="layer {}",
        told={
            "origin": "event trace of github.com/shijiuzhang/moe-cache-eval",
            "steps": "a step for each forward cycle",
            "positions": "counted from the first recorded token of a request",
            "weights": "gate mass of the event over the tokens that chose the expert",
        },
    )
