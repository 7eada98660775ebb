"""A small trace of an encoder-decoder model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sim.traces.synthesis import synthesize
from sim.traces.trace import DECODE, PREFILL, ModelShape, Trace

ENCODER, SITES, EXPERTS, TOP_K, DEPTH = 2, 4, 5, 2, 2
SHAPE = ModelShape("two stacks", "none", SITES, EXPERTS, TOP_K, 8, 8)


def both_stacks(lengths: Sequence[tuple[int, int]] = ((2, 1), (1, 1)), seed: int = 0) -> Trace:
    """A trace with every column, of sequences with so many (prompt, decoded) rows.

    One step has all prompts; then each step has one decoded row of every sequence that goes on.
    """
    rng = np.random.default_rng(seed)
    rows = [(s, p, PREFILL, 0) for s, (prompt, _) in enumerate(lengths) for p in range(prompt)]
    for token in range(max(decode for _, decode in lengths)):
        rows += [
            (s, prompt + token, DECODE, 1 + token)
            for s, (prompt, decode) in enumerate(lengths)
            if token < decode
        ]
    sequence, position, phase, step = (np.array(column) for column in zip(*rows, strict=True))
    count = len(rows)
    visited = (phase == PREFILL)[:, None] == (np.arange(SITES) < ENCODER)
    logits = rng.integers(-64, 64, (count, SITES, EXPERTS)).astype(np.float32) / np.float32(16)
    base = synthesize(SHAPE, tokens=1, sequences=len(lengths), lookahead=DEPTH)
    rule = base.header.sites[0].rule
    assert rule is not None
    assert base.header.lookahead is not None
    ids, weights = rule.route(logits, TOP_K)
    lookahead = rng.integers(-64, 64, (count, SITES, DEPTH, EXPERTS)).astype(
        np.float32
    ) / np.float32(16)
    for ahead in range(1, DEPTH + 1):
        for end in (ENCODER, SITES):
            lookahead[:, end - ahead : end, ahead - 1] = np.nan
    lookahead[~visited] = np.nan
    floats: dict[str, Any] = {
        "weights": np.where(visited[..., None], weights, np.float32(0)),
        "logits": np.where(visited[..., None], logits, np.float32(np.nan)),
        "expert_norms": np.where(
            visited[..., None], rng.random((count, SITES, TOP_K), np.float32), np.float32(np.nan)
        ),
        "active_shares": np.where(
            visited[..., None, None], np.float32(0.5), np.full((TOP_K, 1), np.nan, np.float32)
        ),
    }
    stacks = ["encoder"] * ENCODER + ["decoder"] * (SITES - ENCODER)
    header = replace(
        base.header,
        steps={},
        sparsities=(0.5,),
        lookahead=replace(base.header.lookahead, step=None),
        sites=tuple(
            replace(site, stack=stack)
            for site, stack in zip(base.header.sites, stacks, strict=True)
        ),
        sequences=tuple(
            replace(s, prompt_tokens=prompt, decode_tokens=decode)
            for s, (prompt, decode) in zip(base.header.sequences, lengths, strict=True)
        ),
    )
    return Trace(
        header,
        step.astype(np.int32),
        phase.astype(np.uint8),
        sequence.astype(np.int32),
        position.astype(np.int32),
        np.full(count, -1, np.int32),
        np.ones(count, np.bool_),
        np.where(visited[..., None], ids, np.int16(-1)),
        lookahead={"raw": lookahead},
        **floats,
    )
