"""A Mixture-of-Experts model as sizes: parameters, bytes and the key-value cache. No weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from sim.trace_header import ModelShape
from sim.units import require_flag, require_number


@dataclass(frozen=True)
class Precision:
    """Stored bits a weight of each projection of an expert.

    ``resident`` names the projections that every expert keeps on the device, outside the slots: they never move.
    """

    gate: float
    up: float
    down: float
    resident: tuple[str, ...] = ()

    def bits(self, matrices: int, *, resident: bool = False) -> float:
        """Bits of the projections that move (or of those that stay), added up over an expert's ``matrices``.

        Experts of two matrices have no gate.
        """
        names = PROJECTIONS[-matrices:]
        return sum(float(getattr(self, name)) for name in names if (name in self.resident) == resident)

    @property
    def is_uniform(self) -> bool:
        return self.gate == self.up == self.down and not self.resident


def _same(bits: float) -> Precision:
    return Precision(bits, bits, bits)


PROJECTIONS = ("gate", "up", "down")
PRECISIONS = {
    "fp32": _same(32.0),
    "fp16": _same(16.0),
    "bf16": _same(16.0),
    "int8": _same(8.0),  # int8, int4 and int2 as the papers count them: without scales
    "int4": _same(4.0),
    "int2": _same(2.0),
    "fp8": _same(8 + 32 / 128**2),  # an fp32 scale for each block of 128 x 128 (DeepSeek-V3, README_WEIGHTS.md)
    "mxfp4": _same(4 + 8 / 32),  # an 8-bit scale for each 32 weights (OCP Microscaling Formats, section 5.1)
    "hqq4_g64": _same(4 + 32 / 64),  # HQQ: fp16 scale and zero for each 64 weights
    "hqq2_g64": _same(2 + 32 / 64),
    "hqq2_g16": _same(2 + 16 / 16),  # 8-bit scale and zero for each 16 weights (demo of mixtral-offloading@ce54518)
    # llama.cpp's Q4_K_M: super-blocks of 256 weights in 144 bytes (Q4_K) and, in the down projections of half of the
    # layers, in 210 bytes (Q6_K); the mean over layers stands for each.
    "q4_k_m": Precision(144 * 8 / 256, 144 * 8 / 256, (144 + 210) / 2 * 8 / 256),
    # FloE section 3.2: the up projection resident in HQQ INT2, gate and down in fp16 and moved by need.
    "floe": Precision(16.0, 2 + 32 / 64, 16.0, resident=("up",)),
}
"""By name. Group metadata is counted where stated."""
PRECISION_BITS = {name: precision.bits(3) / 3 for name, precision in PRECISIONS.items()}
"""Bits a weight that a slot holds and a load moves, over all three projections of an expert."""


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
        """What a slot holds of one expert and a load moves, at most."""
        return ceil(self._expert_bits(precision, resident=False) / 8)

    def resident_bytes(self, precision: str) -> int:
        """What of one expert is on the device in any case, outside the slots."""
        return ceil(self._expert_bits(precision, resident=True) / 8)

    def _expert_bits(self, name: str, *, resident: bool) -> float:
        if name not in PRECISIONS:
            raise ValueError(f"unknown precision {name!r}; known: {', '.join(PRECISIONS)}")
        precision, matrices = PRECISIONS[name], self.expert_matrices
        if precision.is_uniform:
            return 0.0 if resident else self.expert_params * precision.gate
        if matrices not in (2, 3) or (precision.resident and matrices != 3):
            raise ValueError(
                f"precision {name} has bits for {', '.join(PROJECTIONS)}, but an expert of model {self.name} has "
                f"{matrices} matrices; choose precision=fp16 or another one that is the same for all"
            )
        return self.expert_params / matrices * precision.bits(matrices, resident=resident)

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
