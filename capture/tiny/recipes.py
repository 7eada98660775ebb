"""The recipes of the project's own models: all that their trained weights depend on but the text.

A recipe names a family (`capture.tiny.families`), which knows how an architecture is built and
read. Everything else in a recipe is a number. The numbers were chosen by their gating statistics,
on one seed for each recipe; the model cards show the results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from capture.tiny.corpus import DOMAINS
from sim.values.units import part_of


@dataclass(frozen=True)
class Recipe:
    """Everything that the trained weights depend on besides the text.

    The defaults are those of ``tiny_mixtral``. ``layers`` counts the layers of each stack.
    ``prefix`` is the range, both ends included, from which a step draws how many tokens of its
    windows are read but not predicted. The prefix is what an encoder reads; (1, 1) makes a plain
    language model. ``config`` has further settings of the architecture, by their names in
    transformers. Raises ValueError if the values do not fit together.
    """

    family: str = "mixtral"
    layers: int = 16
    hidden: int = 128
    inter: int = 120
    experts: int = 8
    top_k: int = 2
    heads: int = 4
    kv_heads: int = 2
    vocab: int = 2048
    seq: int = 512
    batch: int = 4
    tokens: int = 3_717_120
    prefix: tuple[int, int] = (1, 1)
    learning_rate: float = 2e-3
    weight_decay: float = 0.1
    warmup_steps: int = 100
    # Share of the steps, at the end, over which the learning rate falls to 0 (warmup, stable,
    # decay).
    decay_share: float = 0.2
    # A stronger balancing loss makes gates hard to predict; without one popularity collapses.
    balance_loss: float = 0.01
    # Keeps the router's logits small, and so the spread of the gate weights.
    z_loss: float = 1e-4
    init_std: float = 0.02
    # Large compared with the residual updates, so that gate inputs of neighbouring layers are as
    # similar as in large models.
    embedding_std: float = 0.15
    mix: tuple[float, ...] = (0.4, 0.4, 0.2)
    seed: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (
            "layers",
            "hidden",
            "inter",
            "experts",
            "top_k",
            "heads",
            "kv_heads",
            "seq",
            "batch",
            "tokens",
        ):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"cannot build a model: {name}={getattr(self, name)}; give at least 1"
                )
        if not 1 <= self.top_k <= self.experts:
            raise ValueError(
                f"cannot build a router: top_k={self.top_k} of experts={self.experts}; give"
                " 1..experts"
            )
        if self.hidden % self.heads or (self.hidden // self.heads) % 2:
            raise ValueError(
                f"cannot split hidden={self.hidden} over heads={self.heads}: rotary embeddings need"
                " an even whole number of dimensions per head; change --hidden or --heads"
            )
        if self.heads % self.kv_heads:
            raise ValueError(
                f"cannot share kv_heads={self.kv_heads} among heads={self.heads}; give a divisor of"
                " heads"
            )
        if not 1 <= self.prefix[0] <= self.prefix[1] <= self.seq:
            raise ValueError(
                f"cannot draw a prefix from {self.prefix}: give 1 <= least <= most <="
                f" seq={self.seq}"
            )
        if self.num_steps < 1:
            raise ValueError(
                f"cannot train on tokens={self.tokens}: one step takes batch*seq ="
                f" {self.batch * self.seq} tokens; raise --tokens or lower --batch or --seq"
            )
        if not 0 <= self.decay_share <= 1:
            raise ValueError(
                f"cannot schedule decay_share={self.decay_share}; give a share between 0 and 1"
            )
        if len(self.mix) != len(DOMAINS) or min(self.mix) < 0 or sum(self.mix) <= 0:
            raise ValueError(
                f"cannot mix domains {DOMAINS} as {self.mix}; give {len(DOMAINS)} shares >= 0, not"
                " all 0"
            )

    @property
    def num_steps(self) -> int:
        return self.tokens // (self.batch * self.seq)

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of ``step`` (from 0).

        It rises linearly, stays constant, and falls linearly to 0 over the last ``decay_share``.
        """
        decay_start = self.num_steps - part_of(self.num_steps, self.decay_share, up=True)
        warmup = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        if step < decay_start:
            return self.learning_rate * warmup
        return (
            self.learning_rate * warmup * (self.num_steps - step) / (self.num_steps - decay_start)
        )

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "tiny_mixtral": Recipe(),
        # Fine-grained: many narrow experts, and a shared one as wide as the chosen four, as in
        # Qwen1.5-MoE.
        "tiny_qwen2moe": Recipe(
            family="qwen2_moe",
            layers=12,
            hidden=96,
            inter=16,
            experts=32,
            top_k=4,
            heads=2,
            kv_heads=2,
            seq=256,
            batch=8,
            tokens=1_433_600,
            config={
                "shared_expert_intermediate_size": 64,
                "norm_topk_prob": False,
                "tie_word_embeddings": True,
                # Faster for many narrow experts.
                "experts_implementation": "grouped_mm",
            },
        ),
        # As many layers as Switch-base, every other one sparse: six sites in the encoder, six in
        # the decoder.
        "tiny_switch": Recipe(
            family="switch_transformers",
            layers=12,
            hidden=96,
            inter=48,
            experts=8,
            top_k=1,
            heads=4,
            kv_heads=4,
            seq=256,
            batch=8,
            tokens=1_536_000,
            prefix=(32, 128),
            balance_loss=0.02,
            # A capacity larger than any window, so that no token is dropped, neither in one pass
            # nor step by step.
            config={"d_kv": 12, "expert_capacity": 4096},
        ),
    }
)
