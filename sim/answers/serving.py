"""What simulators of many nodes read of one node: its step times as a table, and its requests.

The files are those of ai-dynamo's replay (``python -m dynamo.replay``): a planner profile (.npz),
engine arguments (JSON), and a trace in Mooncake's format. Contract C180 defines what they hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.process.files import write_json
from sim.results.labels import Labels, labels_in
from sim.results.run import Run
from sim.study.trials import Trial, prepared
from sim.traces.trace import Trace, TraceSequence
from sim.workload.requests import objects_of

NS_PER_MS = 1e6
KV_BLOCK = 64
"""The tokens of a block of the simulated engine's keys and values, its default for vLLM."""
PROFILE, REQUESTS, ENGINE = "profile.npz", "requests.jsonl", "engine.json"
WITHOUT = {
    "requests": "null",
    "kv_device_gib": "0",
    "kv_ram_gib": "0",
    "kv_disk_gib": "0",
    "arrivals_per_s": "null",
    "arrivals_s": "null",
    "prefill_chunk": "null",
}
"""What step times are taken without: the other simulator composes steps and reuses prefixes."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Point:
    """The mean times of a run's steps, in ms: of ``batch`` sequences that all decode at ``context``
    tokens, and of their prompts, of ``rows`` tokens together.
    """

    batch: int
    context: int
    decode_ms: float
    rows: int
    prefill_ms: float
    hit_ratio: float | None


@dataclass(frozen=True)
class Profile:
    """The step times of one node; ``share`` is that of the experts that its device holds."""

    points: tuple[Point, ...]
    share: float
    labels: Labels

    @property
    def batches(self) -> list[int]:
        return sorted({point.batch for point in self.points})

    @property
    def contexts(self) -> list[int]:
        return sorted({point.context for point in self.points})

    def arrays(self) -> dict[str, Floats]:
        """The arrays of the planner profile.

        A decode time stands by the tokens of all sequences and by the tokens of one: their ratio is
        the batch. Where that lies between simulated batches, a straight line holds; beyond them the
        nearest one's time.
        """
        at = {(point.batch, point.context): point for point in self.points}
        batches, contexts = self.batches, self.contexts
        first = [at[batch, contexts[0]] for batch in batches]
        active = sorted({batch * context for batch in batches for context in contexts})
        times = [[at[batch, context].decode_ms for batch in batches] for context in contexts]
        itl = [
            [
                np.interp(tokens / context, batches, of_context)
                for context, of_context in zip(contexts, times, strict=True)
            ]
            for tokens in active
        ]
        columns: dict[str, Any] = {
            "prefill_isl": [point.rows for point in first],
            "prefill_ttft_ms": [point.prefill_ms for point in first],
            "decode_active_kv_tokens": active,
            "decode_context_length": contexts,
            "decode_itl": itl,
        }
        return {name: np.array(values, np.float64) for name, values in columns.items()}

    def engine(self) -> dict[str, Any]:
        """The engine's arguments: room for as many tokens as the slots leave, and no more rows."""
        return {
            "engine_type": "vllm",
            "block_size": KV_BLOCK,
            "num_gpu_blocks": max(self.batches) * -(-max(self.contexts) // KV_BLOCK),
            "max_num_seqs": max(self.batches),
            "planner_profile_data": PROFILE,
        }


def profiled(
    given: Sequence[str],
    batches: Sequence[int],
    context: int,
    simulate: Callable[[Sequence[str]], Future[Trial]],
) -> Profile:
    """The step times of the run of ``given`` overrides, with so many sequences at once, at contexts
    of up to ``context`` tokens.

    The experts' slots are those that the most sequences at the longest context leave. Raise
    ValueError for fewer than two batches, too few sequences, drafts, and a context that is too
    short.
    """
    batches = sorted(set(batches))
    if len(batches) < 2 or batches[0] < 1:
        raise ValueError(f"batches={batches} must be two different numbers or more, from 1 on")
    told = prepared([*given, "budget=fit"]).config["workload"]
    if tokens := told.get("draft_tokens"):
        raise ValueError(
            f"workload.draft_tokens={tokens}: a step that checks drafts gives several tokens, and"
            " the table has steps of one; set workload.draft_tokens=0"
        )
    given = [*given, *(f"workload.{key}={to}" for key, to in WITHOUT.items() if told.get(key))]
    sequences = prepared([*given, "budget=fit"]).workload.sequences
    if len(sequences) < batches[-1]:
        raise ValueError(
            f"the gates have {len(sequences)} sequences, and batches goes up to {batches[-1]}; lower"
            " it, or choose gates of more (sequences=, of synthetic ones half count)"
        )
    prompt = min(item.prompt_tokens for item in sequences)
    decode = min(item.decode_tokens for item in sequences)
    if prompt < 1 or decode < 1 or context <= prompt + decode:
        raise ValueError(
            f"the gates' sequences have {prompt} prompt and {decode} decoded tokens; both must be at"
            f" least 1, and context={context} more than their sum"
        )
    lengths = [f"workload.prompt_tokens={prompt}", f"workload.decode_tokens={decode}"]
    contexts = sorted({prompt + decode, isqrt((prompt + decode) * context), context})

    def words(batch: int, tokens: int) -> list[str]:
        count = len(sequences) // batch * batch
        group = ["workload.batching=static", f"workload.together={batch}"]
        at = [f"workload.context_tokens={tokens}", f"trace.max_sequences={count}"]
        return [*given, *lengths, *group, *at]

    share = prepared([*words(batches[-1], context), "budget=fit"]).resident_share
    held = f"budget.resident_share={share!r}"
    asked = {
        (batch, tokens): simulate([*words(batch, tokens), held])
        for batch in batches
        for tokens in contexts
    }
    found = {at: future.result() for at, future in asked.items()}
    points = tuple(_point(*at, prompt, one) for at, one in found.items())
    return Profile(points, share, labels_in(found[batches[-1], context].summary))


def _point(batch: int, context: int, prompt: int, found: Trial) -> Point:
    """The means over a run's steps, all of whose groups are full."""
    steps = found.tokens.group_by("step").agg(
        pl.col("phase").first(),
        ns=(pl.col("end_ns") - pl.col("start_ns")).first(),
        sequences=pl.len(),
    )
    assert set(steps["sequences"]) == {batch}
    mean_ms = {
        phase: float(of["ns"].sum()) / len(of) / NS_PER_MS
        for (phase,), of in steps.group_by("phase")
    }
    hits = found.summary["hit_ratio"]
    return Point(batch, context, mean_ms["decode"], batch * prompt, mean_ms["prefill"], hits)


# ---- requests


def requests_of(run: Run, block_tokens: int) -> list[dict[str, Any]]:
    """The run's requests in Mooncake's format, by arrival; where loops are closed all come at 0.

    Blocks are those that the requests were given with, or have the ids of their tokens, if the trace
    tells them. A block of unknown tokens has an id of its own.
    """
    workload = run.workload
    given = run.config["workload"].get("requests")
    ordered = sorted(workload.sequences, key=lambda item: item.sequence)
    if given is None:
        ids = _blocks(run.trace, ordered, block_tokens)
    else:
        ids = [list(fields["hash_ids"]) for _, fields in objects_of(given)]
    rows = [
        {
            "timestamp": _ms(workload.arrivals_ns[one.sequence]),
            "input_length": one.prompt_tokens,
            "output_length": one.decode_tokens + 1,  # the first token is the prompt's
            "hash_ids": blocks,
        }
        for one, blocks in zip(ordered, ids, strict=False)
    ]
    return sorted(rows, key=lambda row: row["timestamp"])


def _ms(time_ns: int) -> int | float:
    whole, rest = divmod(time_ns, int(NS_PER_MS))
    return time_ns / NS_PER_MS if rest else whole


def _blocks(trace: Trace, sequences: Sequence[TraceSequence], block_tokens: int) -> list[list[int]]:
    """An id for each block of each prompt: equal ones for equal tokens from the first on."""
    known: dict[tuple[int, object], int] = {}
    found = []
    for one in sequences:
        rows = np.flatnonzero(trace.valid & (trace.sequence == one.sequence))
        rows = rows[np.argsort(trace.position[rows], kind="stable")][: one.prompt_tokens]
        tokens, before, ids = trace.token[rows].tolist(), -1, []
        for at in range(0, len(tokens), block_tokens):
            block = tuple(tokens[at : at + block_tokens])
            what: object = block if min(block) >= 0 else (one.sequence, at)
            before = known.setdefault((before, what), len(known))
            ids.append(before)
        found.append(ids)
    return found


def written(place: Path, profile: Profile, requests: Sequence[dict[str, Any]]) -> None:
    """Write the files of a handover into a folder."""
    np.savez(place / PROFILE, **profile.arrays())  # type: ignore[arg-type]
    lines = "".join(json.dumps(row) + "\n" for row in requests)
    (place / REQUESTS).write_text(lines, encoding="utf-8")
    write_json(place / ENGINE, profile.engine())
