"""Experts at the precisions of a simulated run, as tensors for the model's own expert code.

A variant has the layout of the stored tensors; only its values are lossy. ``fp32``, ``fp16`` and
``bf16`` are the weights as the model holds them: the highest precision is the model itself, and
loses nothing. Integers come from ``real.kernels.quantise``. Names with ``hqq`` have HQQ's groups
and bits. Without the package ``hqq`` their zeros are those of rounding to nearest, which lose more.
"""

from __future__ import annotations

import importlib.util
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from real.kernels.quantise import dequantise, quantise, quantise_channels, quantise_hqq
from real.store.experts import ModelForm
from sim.machine.precision import AS_STORED, PRECISIONS

GROUP = 64
"""How many weights share a scale where a precision's name does not say: HQQ's usual group."""
OF_SCHEME = frozenset(("int8", "int4", "int2"))
"""The precisions that a `Scheme` makes; others say by their names how they are made."""
KEPT_BYTES = 4 << 30
PROJECTIONS = ("gate", "up", "down", "in", "out")

Rounding = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Scheme:
    """How weights become integers.

    Either by ``groups`` of ``group`` weights, or by ``channels``, as in EdgeMoE, which ignore
    ``group``.
    """

    by: str = "groups"
    group: int = GROUP

    def __post_init__(self) -> None:
        if self.by not in ("groups", "channels"):
            raise ValueError(f"unknown quantiser={self.by}; known: groups, channels")
        if not isinstance(self.group, int) or self.group < 1:
            raise ValueError(f"group={self.group!r} must be a whole number of 1 or more")
        if self.by == "channels" and self.group != GROUP:
            raise ValueError(
                f"group={self.group} changes nothing with quantiser=channels, which has one scale for"
                " each channel; leave it out, or choose quantiser=groups"
            )

    def check_used(self, precisions: Collection[str]) -> None:
        """Raise ValueError where a scheme other than the usual makes none of these precisions."""
        if self == Scheme() or not OF_SCHEME.isdisjoint(precisions):
            return
        word = f"quantiser={self.by}" if self.by != Scheme().by else f"group={self.group}"
        raise ValueError(
            f"{word} changes nothing: it is of {', '.join(sorted(OF_SCHEME))}, and experts are"
            f" served at {', '.join(sorted(precisions))}; leave it out, or choose another precision"
        )

    def rounding(self, bits: int) -> Rounding:
        """A function that rounds weights [N, K] to what ``bits`` can hold."""
        if self.by == "channels":
            return lambda weight: dequantise(quantise_channels(weight, bits), weight.dtype)
        return lambda weight: dequantise(quantise(weight, bits, self.group), weight.dtype)


def has_hqq() -> bool:
    """Whether the package ``hqq``, which fits zeros, is installed."""
    return importlib.util.find_spec("hqq") is not None


def _hqq(bits: int, group: int) -> Rounding:
    def rounded(weight: torch.Tensor) -> torch.Tensor:
        rows, columns = weight.shape
        fits = rows % (8 // bits) == 0 and columns % group == 0
        packed = (
            quantise_hqq(weight, bits, group)
            if has_hqq() and fits
            else quantise(weight, bits, group)
        )
        return dequantise(packed, weight.dtype)

    return rounded


def roundings(precision: str, scheme: Scheme) -> Mapping[str, Rounding]:
    """By projection, how a precision rounds its weights; empty where it keeps them.

    Raise ValueError for a precision that nothing here makes.
    """
    if precision in AS_STORED:
        return {}
    if precision in OF_SCHEME:
        return dict.fromkeys(PROJECTIONS, scheme.rounding(int(precision[3:])))
    if precision in ("hqq4_g64", "hqq2_g64", "hqq2_g16"):
        bits, group = precision.removeprefix("hqq").split("_g")
        return dict.fromkeys(PROJECTIONS, _hqq(int(bits), int(group)))
    if precision == "floe":
        return {"up": _hqq(2, 64)}
    raise ValueError(
        f"no quantiser makes precision {precision}; known: {', '.join(AS_STORED)}, int8, int4,"
        f" int2, hqq4_g64, hqq2_g64, hqq2_g16, floe (of {', '.join(PRECISIONS)})"
    )


class Variants:
    """The experts of a model at ``precisions``, made when they are first asked for.

    At most ``kept_bytes`` of variants that lose something are kept; others are made again. Only
    ``projections`` change.
    """

    def __init__(
        self,
        forms: Sequence[ModelForm],
        precisions: Sequence[str],
        scheme: Scheme | None = None,
        kept_bytes: int = KEPT_BYTES,
        projections: Sequence[str] = PROJECTIONS,
    ) -> None:
        self.forms, self.precisions = forms, tuple(precisions)
        scheme = Scheme() if scheme is None else scheme
        self._roundings = [
            {
                part: change
                for part, change in roundings(name, scheme).items()
                if part in projections
            }
            for name in precisions
        ]
        self._kept: OrderedDict[tuple[int, int, int], dict[str, torch.Tensor]] = OrderedDict()
        self._bytes, self._most = 0, kept_bytes

    def tensors(self, code: int, site: int, expert: int) -> Mapping[str, torch.Tensor]:
        """An expert's stored tensors at the ``code``-th precision; do not write to them."""
        changes = self._roundings[code]
        if not changes:
            return self.forms[site].tensors(expert)
        key = (code, site, expert)
        found = self._kept.pop(key, None)
        if found is None:
            found = rounded(self.forms[site], expert, changes)
            self._bytes += _bytes_of(found)
        self._kept[key] = found
        while self._bytes > self._most and len(self._kept) > 1:
            self._bytes -= _bytes_of(self._kept.popitem(last=False)[1])
        return found


def rounded(
    form: ModelForm, expert: int, changes: Mapping[str, Rounding]
) -> dict[str, torch.Tensor]:
    """A copy of an expert's stored tensors with rounded projections; biases stay."""
    copy = {name: values.clone() for name, values in form.tensors(expert).items()}
    for name, matrix in form.matrices(copy).items():
        if name in changes:
            matrix.copy_(changes[name](matrix.contiguous()))
    return copy


def _bytes_of(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(values.numel() * values.element_size() for values in tensors.values())
