"""A small generative model of gate inputs: what routers see, layer by layer and token by token.

    T tokens   L layers of a stack   E experts   M memory channels   F = M fresh channels
    H = 1 + M + F + blind channels

The input of a gate is ``(constant, memory, fresh, blind)``:

- Memory and fresh channels are standard Gaussian and walk over the layers like a residual stream:
  neighbouring layers correlate by ``carry``. So the router of layer l + j, fed with the input of
  layer l, forecasts its own choice as well as the correlation allows.
- Over a sequence's tokens, a memory channel receives the sum of a topic that stays, a slow and a
  fast AR(1) process. A fresh channel receives something new with every token, which in the first
  layer partly depends on the token id. The more of a router's weight is on memory channels, the
  longer its choices persist.
- The constant carries the popularity of experts. No router sees blind channels. Both change only
  the cosine of inputs.

The same seed gives the same arrays. A sequence does not depend on how many others there are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from sim.values.units import require_number

Float32s = NDArray[np.float32]

BLIND_CHANNELS = 8
ROUTER_STREAM = 0
"""Second word of the seed of the routers' random stream; sequences have 1 + their number."""


@dataclass(frozen=True)
class Walk:
    """The knobs of the model. Each mainly moves the statistic named after "moves".

    - ``channels``: number of memory channels, and of fresh ones. With few of them experts are
      alike, so that they are chosen together.
    - ``spread``: standard deviation of a router's logits. Moves how far the best weight exceeds the
      others.
    - ``popularity``: deviation of experts' lasting advantages, in units of ``spread``. Moves the
      Gini coefficient of popularity.
    - ``carry_first``, ``carry_deep``: correlation of the walk from the first layer to the second,
      and between deep neighbours; ``carry_depth`` is the number of layers over which one becomes
      the other. Moves the accuracy of lookahead.
    - ``drift``: correlation of what neighbouring layers write. Moves how fast lookahead fades with
      distance.
    - ``memory_first``, ``memory_middle``, ``memory_last``: share of a router's weight on memory
      channels in the first, middle and last layers. It is constant between the depths
      ``memory_from`` and ``memory_to`` (0 is the first layer, 1 the last), linear outside. Moves
      the reuse of experts from token to token.
    - ``topic``: share of memory that stays for a sequence. ``slow``: share of the rest that decays
      by ``slow_decay`` a token; the remainder decays by ``fast_decay``. Moves how long reuse lasts.
    - ``lexical``: share of the first layer's fresh channels that the token id decides. Ids follow a
      Zipf law with exponent ``zipf`` over ``vocabulary`` ids.
    - ``affinity``: correlation of a router's weights with a permutation of those of the layer
      before. Moves how few paths the first choices take.
    - ``constant``, ``blind``: squared length of these channels over that of the walking ones. Moves
      the cosine of inputs.
    - ``norm_spread``: deviation of the logarithm of an expert's output norm. Moves the correlation
      of weight and output.

    Raise ValueError for a value out of its range; shares and correlations lie in 0..1.
    """

    channels: int = 16
    spread: float = 1.5
    popularity: float = 0.1
    carry_first: float = 0.9
    carry_deep: float = 0.98
    carry_depth: float = 2.0
    drift: float = 0.0
    memory_first: float = 0.1
    memory_middle: float = 0.6
    memory_last: float = 0.3
    memory_from: float = 0.1
    memory_to: float = 0.8
    topic: float = 0.15
    slow: float = 0.3
    slow_decay: float = 0.95
    fast_decay: float = 0.5
    lexical: float = 0.6
    vocabulary: int = 3000
    zipf: float = 1.05
    affinity: float = 0.75
    constant: float = 0.3
    blind: float = 0.0
    norm_spread: float = 0.05

    def __post_init__(self) -> None:
        for name in ("channels", "vocabulary"):
            require_number(name, getattr(self, name), minimum=1, whole=True)
        for item in fields(self):
            value = getattr(self, item.name)
            require_number(item.name, value)
            if item.name in SHARES and value > 1:
                raise ValueError(
                    f"{item.name}={value} must be at most 1: it is a share or a correlation"
                )
        if self.drift >= 1:
            raise ValueError(
                f"drift={self.drift} must be below 1: at 1 every layer would add the same"
            )
        if not self.memory_from <= self.memory_to:
            raise ValueError(
                f"memory_from={self.memory_from} must not exceed memory_to={self.memory_to}"
            )
        for name in ("carry_depth", "constant", "spread"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)} must be above 0")


SHARES = (
    "carry_first",
    "carry_deep",
    "drift",
    "memory_first",
    "memory_middle",
    "memory_last",
    "memory_from",
    "memory_to",
    "topic",
    "slow",
    "slow_decay",
    "fast_decay",
    "lexical",
    "affinity",
)


def carries(walk: Walk, layers: int) -> list[float]:
    """Correlation of each layer's walk with that of the layer before; entry 0 is 0."""
    gap = walk.carry_deep - walk.carry_first
    return [0.0] + [
        walk.carry_deep - gap * math.exp(-step / walk.carry_depth) for step in range(layers - 1)
    ]


def memory_shares(walk: Walk, layers: int) -> NDArray[np.float64]:
    """Share of each router's weight on memory channels, [L]."""
    depth = np.arange(layers) / max(1, layers - 1)
    # Where a knot coincides with an end, it is moved a little inwards, so that the end keeps its
    # own value.
    places = [0.0, max(walk.memory_from, 1e-9), min(max(walk.memory_to, 2e-9), 1 - 1e-9), 1.0]
    return np.interp(
        depth, places, [walk.memory_first, walk.memory_middle, walk.memory_middle, walk.memory_last]
    )


@dataclass(frozen=True, eq=False)
class Routers:
    """The routers of one stack.

    ``weight`` [L, E, H] is applied to gate inputs [.., H]; ``lexicon`` [V, F] has a vector for each
    token id.
    """

    weight: Float32s
    lexicon: Float32s


def make_routers(walk: Walk, layers: int, experts: int, seed: int, stack: int = 0) -> Routers:
    """The routers of a stack of ``layers`` with ``experts`` each."""
    rng = np.random.default_rng([seed, ROUTER_STREAM, stack])
    width = walk.channels
    # Every layer has the same advantages, dealt to other experts, so that the skew of popularity
    # does not depend on luck.
    scores = np.array([NormalDist().inv_cdf((rank + 0.5) / experts) for rank in range(experts)])
    deviation = scores.std()
    advantage = walk.popularity * (scores / deviation if deviation else scores)
    memory = memory_shares(walk, layers)
    weight = np.zeros((layers, experts, 1 + 2 * width + BLIND_CHANNELS), np.float32)
    rows = np.zeros((experts, 2 * width))
    for layer in range(layers):
        fresh = rng.standard_normal((experts, 2 * width))
        shuffled = rows[rng.permutation(experts)]
        rows = (
            walk.affinity * shuffled + math.sqrt(1 - walk.affinity**2) * fresh if layer else fresh
        )
        for part, share in (
            (slice(0, width), memory[layer]),
            (slice(width, None), 1 - memory[layer]),
        ):
            unit = rows[:, part] / np.linalg.norm(rows[:, part], axis=1, keepdims=True)
            weight[layer, :, 1:][:, : 2 * width][:, part] = math.sqrt(share) * unit
        weight[layer, :, 0] = rng.permutation(advantage) / _constant(walk)
    lexicon = rng.standard_normal((walk.vocabulary, width), dtype=np.float32)
    return Routers(np.float32(walk.spread) * weight, lexicon)


def _constant(walk: Walk) -> float:
    return math.sqrt(walk.constant * 2 * walk.channels)


def gate_inputs(
    walk: Walk, routers: Routers, tokens: int, seed: int, sequence: int, stack: int = 0
) -> tuple[Float32s, NDArray[np.int32]]:
    """Inputs [L, T, H] of the gates of one sequence, and its token ids [T]."""
    rng = np.random.default_rng([seed, 1 + sequence, stack])
    layers, _, hidden = routers.weight.shape
    width = walk.channels
    law = np.arange(1, walk.vocabulary + 1) ** -walk.zipf
    ids = rng.choice(walk.vocabulary, size=tokens, p=law / law.sum()).astype(np.int32)
    added = np.empty((layers, tokens, 2 * width), np.float32)
    added[..., :width] = _remembered(walk, rng, layers, tokens)
    added[..., width:] = rng.standard_normal((layers, tokens, width), dtype=np.float32)
    added[0, :, width:] *= np.float32(math.sqrt(1 - walk.lexical))
    added[0, :, width:] += np.float32(math.sqrt(walk.lexical)) * routers.lexicon[ids]
    inputs = np.empty((layers, tokens, hidden), np.float32)
    inputs[..., 0] = _constant(walk)
    inputs[..., 1 : 1 + 2 * width] = _walked(walk, added)
    blind = np.float32(math.sqrt(walk.blind * 2 * width / BLIND_CHANNELS))
    inputs[..., 1 + 2 * width :] = blind * rng.standard_normal(
        (layers, tokens, BLIND_CHANNELS), dtype=np.float32
    )
    return inputs, ids


def _remembered(walk: Walk, rng: np.random.Generator, layers: int, tokens: int) -> Float32s:
    """What each layer writes to the memory channels, [L, T, M]; unit variance at every token."""
    topic = rng.standard_normal((layers, 1, walk.channels), dtype=np.float32)
    slow, fast = (
        _persistent(rng.standard_normal((layers, tokens, walk.channels), dtype=np.float32), decay)
        for decay in (walk.slow_decay, walk.fast_decay)
    )
    rest = 1 - walk.topic
    parts = ((walk.topic, topic), (rest * walk.slow, slow), (rest * (1 - walk.slow), fast))
    return sum((np.float32(math.sqrt(share)) * part for share, part in parts), np.zeros_like(slow))


def _persistent(noise: Float32s, decay: float) -> Float32s:
    """Turn white noise [L, T, M] into a stationary AR(1) process over tokens, in place."""
    fresh = np.float32(math.sqrt(1 - decay**2))
    for token in range(1, noise.shape[1]):
        noise[:, token] *= fresh
        noise[:, token] += np.float32(decay) * noise[:, token - 1]
    return noise


def _walked(walk: Walk, added: Float32s) -> Float32s:
    """The walk over layers, [L, T, M + F], from what each layer adds.

    It has unit variance, and neighbouring layers correlate by exactly ``carry``. What a layer
    writes is partly what the layer before wrote, as far as ``drift`` says, and partly new. The walk
    is ``x = kept x + gain written``. Its two factors follow from ``carry`` and ``common``, the
    covariance of what is written with the walk so far.
    """
    walked = added.copy()
    written, common = added[0], 0.0
    for layer, carry in enumerate(carries(walk, len(added))):
        if not layer:
            continue
        # No layer wrote the first layer's input, so nothing of it drifts on.
        drift = walk.drift if layer > 1 else 0.0
        written = np.float32(drift) * written + np.float32(math.sqrt(1 - drift**2)) * added[layer]
        common *= drift
        gain = math.sqrt((1 - carry**2) / (1 - common**2))
        kept = carry - gain * common
        walked[layer] = np.float32(kept) * walked[layer - 1] + np.float32(gain) * written
        common = kept * common + gain
    return walked


def logits_of(inputs: Float32s, routers: Routers, ahead: int = 0) -> Float32s:
    """Logits [L - ahead, T, E] of the routers ``ahead`` layers later, on these inputs [L, T, H].

    They are summed in float64. In float32 each processor's BLAS rounds in its own way, and then a
    near tie is another expert, from which a calibration goes another way.
    """
    products = inputs[: len(inputs) - ahead].astype(np.float64) @ routers.weight[ahead:].swapaxes(
        1, 2
    ).astype(np.float64)
    return products.astype(np.float32)


def output_norms(walk: Walk, seed: int, sequence: int, shape: tuple[int, ...]) -> Float32s:
    """Norms of experts' outputs before weighting, around 1, from a random stream of their own."""
    rng = np.random.default_rng([seed, 1 + sequence, 1 << 20])
    return np.asarray(
        np.exp(np.float32(walk.norm_spread) * rng.standard_normal(shape, dtype=np.float32))
    )
