"""Prints what recording costs: the hooks by layer call, and writing and reading a trace.

It asserts nothing. ``python -m tests.bench.capture_speed``
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from capture.models.discover import discover
from capture.recording.hooks import RouterHooks
from sim.traces.parts import header_of_part, write_trace_parts
from sim.traces.routing import RoutingRule
from sim.traces.storage import recorded_columns
from sim.traces.trace import (
    DECODE,
    Header,
    ModelShape,
    Site,
    Trace,
    TraceSequence,
    read_trace,
    write_trace,
)

HIDDEN, EXPERTS, TOP_K, LAYERS, TOKENS = 4096, 8, 2, 32, 10_000
REPEATS = 100
KINDS: dict[str, tuple[str, ...]] = {
    "ids and weights": (),
    "and logits": ("logits",),
    "and gate inputs": ("logits", "gate_in"),
}


class Router(nn.Module):
    """Returns what a router would, without computing it: only the hooks are to be measured."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(EXPERTS, 1))
        self.answer = (
            torch.zeros(tokens, EXPERTS),
            torch.full((tokens, TOP_K), 0.5),
            torch.arange(TOP_K).repeat(tokens, 1),
        )

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.answer


class Experts(nn.Module):
    num_experts = EXPERTS

    def forward(
        self, hidden: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        return hidden


class Block(nn.Module):
    top_k = TOP_K

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.gate, self.experts = Router(tokens), Experts()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        _logits, weights, ids = self.gate(hidden)
        return self.experts(hidden, ids, weights)  # type: ignore[no-any-return]


class Tower(nn.Module):
    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(tokens) for _ in range(LAYERS))
        self.hidden = torch.zeros(tokens, HIDDEN)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden = self.hidden
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


def shortest_s(
    work: Callable[[], object], repeats: int, after: Callable[[], object] = lambda: None
) -> float:
    """The shortest of ``repeats`` times in s: what else runs on the machine only adds time.

    ``after`` is called after each repeat, and its time does not count.
    """
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
        after()
    return min(times)


def hook_us(keep: tuple[str, ...], tokens: int) -> float:
    """Microseconds that the hooks add to a layer call of so many tokens."""
    tower, ids = Tower(tokens), torch.zeros(1, tokens, dtype=torch.long)
    with torch.inference_mode():
        plain = shortest_s(lambda: tower(ids), REPEATS)
        with RouterHooks(discover(tower), keep=keep) as hooks:
            slow = shortest_s(lambda: tower(ids), REPEATS, hooks.take)
    return (slow - plain) / LAYERS * 1e6


def trace(sequences: int = 10) -> Trace:
    """Random routing of 10,000 decoded tokens at 32 sites, with logits."""
    rule = RoutingRule(weight="norm")
    logits = np.random.default_rng(0).normal(size=(TOKENS, LAYERS, EXPERTS)).astype(np.float32)
    ids, weights = rule.route(logits, TOP_K)
    each = TOKENS // sequences
    header = Header(
        name="random",
        created="2026-01-01T00:00:00+00:00",
        source="synthetic",
        model=ModelShape("random", "Random", LAYERS, EXPERTS, TOP_K, HIDDEN, 14336),
        dtype="float32",
        experts_implementation="none",
        sites=tuple(Site(site, f"layers.{site}", site, "ffn", rule) for site in range(LAYERS)),
        sequences=tuple(
            TraceSequence(number, "eval", "none", 0, each) for number in range(sequences)
        ),
        licence="CC0-1.0",
    )
    made = Trace(
        header,
        step=np.arange(TOKENS, dtype=np.int32),
        phase=np.full(TOKENS, DECODE, np.uint8),
        sequence=np.repeat(np.arange(sequences, dtype=np.int32), each),
        position=np.tile(np.arange(each, dtype=np.int32), sequences),
        token=np.zeros(TOKENS, np.int32),
        valid=np.ones(TOKENS, bool),
        ids=ids,
        weights=weights,
        logits=logits,
    )
    return replace(made, header=replace(header, columns=recorded_columns(made)))


def parts_of(whole: Trace) -> list[Trace]:
    parts = []
    for item in whole.header.sequences:
        own = whole.sequence == item.sequence
        names = (
            "step",
            "phase",
            "sequence",
            "position",
            "token",
            "valid",
            "ids",
            "weights",
            "logits",
        )
        parts.append(
            Trace(
                header_of_part(whole.header, [item.sequence]),
                **{n: getattr(whole, n)[own] for n in names},
            )
        )
    return parts


def storage_s() -> dict[str, float]:
    """Seconds to write and read 10,000 tokens x 32 sites, and the size of the files."""
    whole = trace()
    parts = parts_of(whole)
    figures: dict[str, float] = {}
    for name, write in (
        ("write", lambda place: write_trace(place, whole, compression_level=3)),
        (
            "write_parts",
            lambda place: write_trace_parts(
                place, whole.header, parts, TOKENS, compression_level=3
            ),
        ),
    ):
        with tempfile.TemporaryDirectory() as scratch:
            begun = time.perf_counter()
            write(Path(scratch) / "trace")
            figures[f"{name}_s"] = time.perf_counter() - begun
            figures["megabytes"] = (
                sum(path.stat().st_size for path in (Path(scratch) / "trace").iterdir()) / 1e6
            )
            figures["read_s"] = shortest_s(lambda: read_trace(Path(scratch) / "trace"), 3)
            figures["read_all_s"] = shortest_s(
                lambda: read_trace(Path(scratch) / "trace", "all"), 3
            )
    return figures


def main() -> None:
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    values = torch.zeros(8)
    figures["clone_us"] = shortest_s(lambda: [values.clone() for _ in range(100)], REPEATS) * 1e4
    print(
        f"a clone of 8 floats takes {figures['clone_us']:.2f} us here: about 1 on an idle machine"
    )
    print(
        "hooks, us added to a layer call (target: at most 20 for ids, weights and logits of one"
        " token)"
    )
    for tokens in (1, 512):
        for kind, keep in KINDS.items():
            us = hook_us(keep, tokens)
            figures[f"hook_us_{tokens}_{kind.replace(' ', '_')}"] = us
            print(f"  {tokens:4d} tokens, {kind:16s} {us:8.1f}")
    print(f"trace of {TOKENS} tokens x {LAYERS} sites with logits (targets: write 2 s, read 0.5 s)")
    for name, value in storage_s().items():
        figures[name] = value
        print(f"  {name:12s} {value:8.3f}")
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
