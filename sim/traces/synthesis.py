"""Makes synthetic traces: plausible router load from a few numbers, for benchmarks and tests.

The logit of an expert is a popularity that never changes plus a state that persists from token to
token. The state is an AR(1) process with Gumbel innovations, so that without persistence the first
choice is drawn in proportion to ``exp(popularity)``. Sequences are independent of each other, and
so are sites.

The load is plausible, but its statistics are not calibrated: none of its numbers was fitted to a
real model. Its layers do not depend on each other, its prompts have no topic, and no loss balanced
its routers. So results on it say how a program behaves under such load, not how a policy fares on a
model. For that capture a trace, or synthesise one that is fitted to what is published of a model
(`capture.synthesize`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.traces.header import Header, Lookahead, ModelShape, Site, TraceSequence
from sim.traces.routing import RoutingRule
from sim.traces.trace import DECODE, PREFILL, Trace

Float32s = NDArray[np.float32]

RULE = RoutingRule(score="softmax", weight="norm")
SCORE_STEP = 1 / 64
"""Logits and lookahead scores are multiples of this, in memory too: writing changes none."""
UNDATED = "1970-01-01T00:00:00+00:00"

PRESETS: Mapping[str, ModelShape] = {
    "mixtral_8x7b": ModelShape("synthetic_mixtral_8x7b", "none", 32, 8, 2, 4096, 14336),
    "qwen1_5_moe_a2_7b": ModelShape("synthetic_qwen1_5_moe_a2_7b", "none", 24, 60, 4, 2048, 1408),
    "qwen3_30b_a3b": ModelShape("synthetic_qwen3_30b_a3b", "none", 48, 128, 8, 2048, 768),
}
"""Shapes of known models. Only the shape is theirs; the load is synthetic, as the names say."""


def synthesize(
    shape: ModelShape,
    *,
    tokens: int,
    sequences: int = 1,
    prompt_tokens: int = 0,
    seed: int = 0,
    persistence: float = 0.6,
    skew: float = 0.6,
    lookahead: int = 1,
    lookahead_accuracy: float = 0.9,
) -> Trace:
    """A trace of ``sequences`` requests, one after another.

    Each request has ``prompt_tokens`` in one prefill step, then ``tokens`` decode tokens, a step
    each. Even sequences are for evaluation, odd ones for fitting. The same arguments give the same
    arrays.

    - ``persistence`` (0 to below 1): the correlation of a state with that of the token before.
    - ``skew`` (0 or more): the Zipf exponent of popularity; the ranks are shuffled at each
      site.
    - ``lookahead`` (0 to below the number of sites): how many sites ahead are forecast.
    - ``lookahead_accuracy`` (0 to 1): a forecast score is the popularity plus a state whose
      correlation with the true one is ``lookahead_accuracy ** distance``. So forecasts are spread
      like the truth, exact at 1, and no better than popularity at 0.
    """
    given = {
        "tokens": tokens,
        "sequences": sequences,
        "prompt_tokens": prompt_tokens,
        "seed": seed,
        "persistence": persistence,
        "skew": skew,
        "lookahead": lookahead,
        "lookahead_accuracy": lookahead_accuracy,
    }
    rng = np.random.default_rng(seed)
    popularity = _popularity(rng, shape, skew)
    state = _state(rng, shape, sequences, prompt_tokens + tokens, persistence)
    logits = rounded(popularity + state)
    ids, weights = _route(logits, shape.top_k)
    return Trace(
        header=_header(shape, given),
        **sequence_rows(sequences, prompt_tokens, tokens),
        ids=ids,
        weights=weights,
        logits=logits,
        lookahead=(
            {"raw": _lookahead(rng, popularity, state, lookahead, lookahead_accuracy)}
            if lookahead
            else {}
        ),
    )


def _popularity(rng: np.random.Generator, shape: ModelShape, skew: float) -> Float32s:
    """The log of a Zipf law over the experts [S, E], with the ranks shuffled site by site."""
    ranks = np.tile(np.arange(1, shape.experts + 1, dtype=np.float64), (shape.sites, 1))
    return np.asarray(-skew * np.log(rng.permuted(ranks, axis=1)), dtype=np.float32)


def _state(
    rng: np.random.Generator, shape: ModelShape, sequences: int, length: int, persistence: float
) -> Float32s:
    """The persistent part of the logits [N, S, E], sequence by sequence.

    Its variance is the same at every token.
    """
    state = _gumbel(rng, (length, sequences, shape.sites, shape.experts))
    fresh = np.float32(math.sqrt(1 - persistence**2))
    for token in range(1, length):
        state[token] *= fresh
        state[token] += np.float32(persistence) * state[token - 1]
    return np.ascontiguousarray(state.swapaxes(0, 1)).reshape(-1, shape.sites, shape.experts)


def _gumbel(rng: np.random.Generator, shape: tuple[int, ...]) -> Float32s:
    """Standard Gumbel noise moved to mean 0, so that weighted sums of it have mean 0, too."""
    return np.asarray(rng.gumbel(-np.euler_gamma, 1.0, shape), dtype=np.float32)


def rounded(scores: Float32s) -> Float32s:
    """``scores`` rounded to multiples of `SCORE_STEP`."""
    return np.asarray(
        np.rint(scores / np.float32(SCORE_STEP)) * np.float32(SCORE_STEP), dtype=np.float32
    )


def _route(logits: Float32s, top_k: int) -> tuple[NDArray[np.int16], Float32s]:
    """The choices and weights of all rows, [N, S, K] each.

    Routed site by site, because the float64 logits of a whole trace would be its largest array.
    """
    num_rows, num_sites, _ = logits.shape
    ids = np.empty((num_rows, num_sites, top_k), np.int16)
    weights = np.empty(ids.shape, np.float32)
    for site in range(num_sites):
        ids[:, site], weights[:, site] = RULE.route(logits[:, site], top_k)
    return ids, weights


def _lookahead(
    rng: np.random.Generator, popularity: Float32s, state: Float32s, depth: int, accuracy: float
) -> Float32s:
    """Scores [N, S, J, E] of the sites 1..J ahead; NaN past the last site."""
    num_rows, num_sites, num_experts = state.shape
    scores = np.full((num_rows, num_sites, depth, num_experts), np.nan, np.float32)
    for distance in range(1, depth + 1):
        true, correlation = state[:, distance:], accuracy**distance
        noise = _gumbel(rng, true.shape) * np.float32(math.sqrt(1 - correlation**2))
        scores[:, :-distance, distance - 1] = rounded(
            popularity[distance:] + (np.float32(correlation) * true + noise)
        )
    return scores


def sequence_rows(sequences: int, prompt_tokens: int, tokens: int) -> dict[str, Any]:
    """The columns of the token-rows, in the shapes of `sim.traces.rows.Trace`.

    Each sequence has a prefill step, if it has a prompt, and then a step for each token.
    """
    length = prompt_tokens + tokens
    steps_each = tokens + (prompt_tokens > 0)
    position = np.arange(length, dtype=np.int32)
    step = np.maximum(position - max(prompt_tokens - 1, 0), 0)
    first_steps = np.arange(sequences, dtype=np.int32) * steps_each
    return {
        "step": (first_steps[:, None] + step).reshape(-1).astype(np.int32),
        "phase": np.tile(
            np.where(position < prompt_tokens, PREFILL, DECODE).astype(np.uint8), sequences
        ),
        "sequence": np.repeat(np.arange(sequences, dtype=np.int32), length),
        "position": np.tile(position, sequences),
        "token": np.full(sequences * length, -1, np.int32),
        "valid": np.ones(sequences * length, np.bool_),
    }


def _header(shape: ModelShape, given: Mapping[str, float]) -> Header:
    tokens, prompt_tokens, lookahead = (
        int(given["tokens"]),
        int(given["prompt_tokens"]),
        int(given["lookahead"]),
    )
    return Header(
        name=shape.name,
        created=UNDATED,
        source="synthetic",
        model=shape,
        dtype="float32",
        experts_implementation="none",
        sites=tuple(Site(site, f"site.{site}", site, "ffn", RULE) for site in range(shape.sites)),
        sequences=tuple(
            TraceSequence(
                number, "fit" if number % 2 else "eval", "synthetic", prompt_tokens, tokens
            )
            for number in range(int(given["sequences"]))
        ),
        licence="CC0-1.0",
        lookahead=Lookahead("gate_in", ("raw",), lookahead, SCORE_STEP) if lookahead else None,
        steps={"logits": SCORE_STEP},
        versions={"numpy": np.__version__},
        provenance={
            "generator": (
                "sim.traces.synthesis: fixed Zipf popularity + AR(1) state with Gumbel innovations,"
                " per expert"
            ),
            "calibrated": False,
            "split": "even sequences eval, odd sequences fit",
            **given,
        },
    )
