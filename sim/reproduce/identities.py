"""The arithmetic behind papers' numbers: sizes of models, definitions, tables that must agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import comb, floor
from typing import Any

from omegaconf import OmegaConf

from sim.machine.model import Model
from sim.machine.precision import PRECISION_BITS
from sim.reproduce.kernels import kernel_ms, kernel_speedup
from sim.reproduce.roles import Claim, Paper
from sim.setup.configure import configure
from sim.setup.sections import make_object

GIB = 2**30
EDGEMOE_EXPERT_BYTES = 768 * 3072 * 2 * 4
"""The bytes of an expert of Switch-base in FP32: 18 MiB."""


@dataclass(frozen=True)
class Asked:
    """What a check is given: the claim's model and arguments, and the paper's other claims."""

    paper: Paper
    model: Model | None
    args: tuple[Any, ...]

    @property
    def sizes(self) -> Model:
        assert self.model is not None, "this arithmetic needs a model (of)"
        return self.model

    def printed(self, name: str) -> float:
        value = self.paper.claim(name).value
        assert isinstance(value, int | float)
        return float(value)


@cache
def model(name: str) -> Model:
    """The sizes of a model of ``conf/model``, by name."""
    made = make_object(OmegaConf.to_container(configure(f"model={name}")[0].model))
    assert isinstance(made, Model)
    return made


def compute(paper: Paper, claim: Claim) -> Any:
    """The number, or the tuple of numbers, that the claim's ``check`` computes."""
    assert claim.check is not None
    return CHECKS[claim.check](Asked(paper, model(claim.of) if claim.of else None, claim.args))


def _expert_share(m: Model) -> float:
    return m.sites * m.experts * m.expert_params / m.total_params


def _experts_params(m: Model) -> int:
    return m.sites * m.experts * m.expert_params


def _reuse_any(k: int, experts: int) -> float:
    """The chance that two tokens share an expert, where each draws ``k`` of ``experts`` evenly."""
    return 1 - comb(experts - k, k) / comb(experts, k)


def _storage(asked: Asked) -> float:
    """The bytes of a Switch model's file: its own experts, and the part that is no expert.

    That part follows from the printed size of Switch-base-8's file.
    """
    width, reference_width, reference = asked.args
    per_bit = EDGEMOE_EXPERT_BYTES / 32
    eight = asked.printed(reference) * GIB - 96 * per_bit * PRECISION_BITS[reference_width]
    return float(eight + asked.sizes.sites * asked.sizes.experts * per_bit * PRECISION_BITS[width])


def _mixed_storage(asked: Asked) -> float:
    """The GiB of a file in INT4 after a share of its experts goes to INT2."""
    share, reference = asked.args
    count = asked.sizes.sites * asked.sizes.experts
    return asked.printed(reference) - float(share) * count * EDGEMOE_EXPERT_BYTES * 2 / 32 / GIB


def _footprint_ratio(asked: Asked) -> float:
    """The memory of a whole model, over that of all but the experts and a buffer of 10 experts."""
    whole = asked.printed("E051") * GIB
    rest = whole - asked.sizes.sites * asked.sizes.experts * EDGEMOE_EXPERT_BYTES
    return whole / (rest + 10 * EDGEMOE_EXPERT_BYTES)


def _floe_compression(asked: Asked) -> float:
    """The bytes of an expert in fp16, over those that FloE moves and keeps of it.

    These are the up projection in INT2 and the active share of gate and down, without metadata.
    """
    sparsity = float(asked.args[0])
    return 1 / (2 / 16 / 3 + 2 / 3 * (1 - sparsity))


def _predictor_bytes(asked: Asked) -> tuple[float, float]:
    """The GiB that two kinds of activation predictors need.

    The first has 160 words for each channel, the second two matrices of rank 1024 in 16 bits.
    """
    m = asked.sizes
    experts = m.sites * m.experts
    words = m.expert_intermediate * 160 * 4 * experts / GIB
    ranks = (m.hidden + m.expert_intermediate) * 1024 * 2 * experts / GIB
    return words, ranks


def _memory_gb_per_s(asked: Asked) -> float:
    return {"rtx3090": 936.2}[asked.args[0]]


def _least_kernel_speedups(asked: Asked) -> tuple[float, ...]:
    return tuple(
        min(kernel_speedup(points, sparsity) for points in asked.paper.kernels.values())
        for sparsity in asked.args
    )


CHECKS: dict[str, Callable[[Asked], Any]] = {
    "total_params": lambda a: a.sizes.total_params,
    "active_params": lambda a: a.sizes.active_params,
    "experts_params": lambda a: _experts_params(a.sizes),
    "model_bytes": lambda a: a.sizes.total_params * 2,
    "experts_bytes": lambda a: _experts_params(a.sizes) * 2,
    "expert_bytes": lambda a: a.sizes.expert_bytes("fp16"),
    "experts_share": lambda a: _expert_share(a.sizes),
    "dense_share": lambda a: 1 - _expert_share(a.sizes),
    "active_share": lambda a: a.sizes.active_params / a.sizes.total_params,
    "active_share_and_bytes": lambda a: (
        100 * a.sizes.active_params / a.sizes.total_params,
        a.sizes.active_params * 2 / 1e9,
    ),
    "inactive_expert_bytes": lambda a: (
        (a.sizes.experts - a.sizes.top_k) * a.sizes.sites * a.sizes.expert_bytes("fp16")
    ),
    "sites": lambda a: a.sizes.sites,
    "experts": lambda a: a.sizes.experts,
    "top_k": lambda a: a.sizes.top_k,
    "routed_and_k": lambda a: (a.sizes.experts, a.sizes.top_k),
    "bits_ratio": lambda a: PRECISION_BITS[a.args[0]] / PRECISION_BITS[a.args[1]],
    "first_of_k_share": lambda a: 1 / a.args[0],
    "reuse_one": lambda a: a.args[0] / a.args[1],
    "reuse_any": lambda a: _reuse_any(*a.args),
    "ratio": lambda a: a.args[0] / a.args[1],
    "constant": lambda a: a.args[0],
    "overlappable": lambda a: floor(a.printed(a.args[0]) / a.printed(a.args[1])),
    "expert_count_bytes": lambda a: a.sizes.total_params * 4,
    "switch_experts_share": lambda a: (
        _experts_params(a.sizes) / (a.sizes.total_params - a.sizes.head_params)
    ),
    "buffer_bytes": lambda a: a.args[0] * a.sizes.expert_bytes("fp32"),
    "storage": _storage,
    "mixed_storage": _mixed_storage,
    "footprint_ratio": _footprint_ratio,
    "floe_compression": _floe_compression,
    "predictor_bytes": _predictor_bytes,
    "memory_gb_per_s": _memory_gb_per_s,
    "kernel_ms": lambda a: kernel_ms(a.paper.kernels[a.args[0]], a.args[1]),
    "kernel_speedup": lambda a: kernel_speedup(a.paper.kernels[a.args[0]], a.args[1]),
    "least_kernel_speedup": _least_kernel_speedups,
}
"""The checks, by the name in a claim's ``check``."""
