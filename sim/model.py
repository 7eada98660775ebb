"""A Mixture-of-Experts model as sizes: parameters, bytes and the key-value cache. No weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from sim.trace_header import ModelShape
from sim.units import require_flag, require_number

PRECISION_BITS = {"fp16": 16.0, "bf16": 16.0, "int8": 8.0, "int4": 4.0, "int2": 2.0}
"""Stored bits a weight, without group metadata."""


@dataclass(frozen=True)
class Model:
    """A decoder of ``sites`` identical layers, each attention followed by a router and ``experts`` gated experts.

    ``expert_matrices`` matrices of hidden x expert_intermediate make an expert. ``gates_of`` names the model whose
    gates are replayed where that is another one than the model whose sizes these are (``sizes_of``): a transplant.
    """

    name: str
    sites: int
    experts: int
    top_k: int
    hidden: int
    expert_intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    source: str
    expert_matrices: int = 3
    dense_bits: float = 16.0
    tied_embeddings: bool = False
    gates_of: str | None = None
    sizes_of: str | None = None

    def __post_init__(self) -> None:
        for name in ("sites", "experts", "top_k", "hidden", "expert_intermediate", "heads", "kv_heads", "head_dim",
                     "vocab", "expert_matrices"):  # fmt: skip
            require_number(f"model.{name}", getattr(self, name), minimum=1, whole=True)
        require_number("model.dense_bits", self.dense_bits, minimum=1)
        require_flag("model.tied_embeddings", self.tied_embeddings)
        if self.top_k > self.experts:
            raise ValueError(f"model.top_k={self.top_k} exceeds model.experts={self.experts}")
        if (self.gates_of is None) != (self.sizes_of is None):
            raise ValueError(f"model {self.name}: give both gates_of and sizes_of (a transplant), or neither")

    @property
    def transplant(self) -> str | None:
        """The label that every table and figure of a transplant carries."""
        return f"TRANSPLANTED: gates of {self.gates_of}, sizes of {self.sizes_of}" if self.gates_of else None

    @property
    def expert_params(self) -> int:
        return self.expert_matrices * self.hidden * self.expert_intermediate

    def expert_bytes(self, precision: str) -> int:
        if precision not in PRECISION_BITS:
            raise ValueError(f"unknown precision {precision!r}; known: {', '.join(PRECISION_BITS)}")
        return ceil(self.expert_params * PRECISION_BITS[precision] / 8)

    @property
    def site_params(self) -> int:
        """Dense parameters of a layer: attention, two norms, the router."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + 2 * self.hidden + self.experts * self.hidden

    @property
    def head_params(self) -> int:
        return self.vocab * self.hidden

    @property
    def dense_block_bytes(self) -> int:
        """What is streamed of a layer where its dense weights are not resident."""
        return ceil(self.site_params * self.dense_bits / 8)

    @property
    def dense_bytes(self) -> int:
        """Everything that is no expert: layers, final norm, embedding and LM head (one matrix where they are tied)."""
        matrices = 1 if self.tied_embeddings else 2
        params = self.sites * self.site_params + matrices * self.head_params + self.hidden
        return ceil(params * self.dense_bits / 8)

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token over all layers, at 16 bits."""
        return self.sites * 2 * self.kv_heads * self.head_dim * 2

    def check_trace(self, shape: ModelShape, trace_name: str) -> None:
        """Raise ValueError unless the trace's gates are this model's, or are declared as a transplant."""
        ours, theirs = (self.sites, self.experts, self.top_k), (shape.sites, shape.experts, shape.top_k)
        if ours != theirs:
            raise ValueError(
                f"trace {trace_name} has {_shape(theirs)} (sites x experts top-k), model {self.name} {_shape(ours)}; "
                f"choose a model of that shape, or override model.sites, model.experts and model.top_k"
            )
        if self.gates_of is not None:
            if self.gates_of != shape.name:
                raise ValueError(
                    f"model {self.name} takes its gates from {self.gates_of}, but trace {trace_name} was captured from "
                    f"{shape.name}; choose a trace of {self.gates_of}, or override model.gates_of={shape.name}"
                )
        elif (self.hidden, self.expert_intermediate) != (shape.hidden, shape.expert_intermediate):
            raise ValueError(
                f"trace {trace_name} comes from {shape.name}, whose experts are {shape.hidden} x "
                f"{shape.expert_intermediate}; those of model {self.name} are {self.hidden} x "
                f"{self.expert_intermediate}; to replay the gates of one model with the sizes of another say so: "
                f"model.gates_of={shape.name} model.sizes_of={self.name}"
            )


def _shape(shape: tuple[int, int, int]) -> str:
    return f"{shape[0]} x {shape[1]} top-{shape[2]}"
