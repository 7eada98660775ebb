"""The experts of any transformers MoE model as matrices.

An `ExpertForm` describes one site: how an expert's stored tensors are laid out, what one expert
computes from them, and how the model adds experts up. `real.store.swapping` proves forms before it
gives them out. Experts whose layout is not known are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from capture.models.adapters import Adapter, OneHot
from capture.models.discover import MoELayer

Tensors = Mapping[str, torch.Tensor]

FUSED = (
    "gate_up_proj",
    "up_proj",
    "gate_up_proj_bias",
    "up_proj_bias",
    "down_proj",
    "down_proj_bias",
)


class SwapError(ValueError):
    """Experts that nothing but their own module can compute; the message says why."""


class Site(Protocol):
    """What is known of a site both with a model and without one."""

    @property
    def name(self) -> str: ...
    @property
    def site(self) -> int: ...
    @property
    def num_experts(self) -> int: ...


class ExpertForm(Protocol):
    """One site's experts, of a model or of a stand-in, which has no module.

    - ``like``: an expert's stored tensors in a fixed order. On the meta device: shapes and dtypes
      without values.
    - ``flipped``: the names of those stored matrices that are [in, out].
    - ``sums_in_weights_dtype``: experts are added up in the dtype of the gate weights, else in that
      of the hidden states.
    """

    like: Tensors
    flipped: frozenset[str]
    sums_in_weights_dtype: bool

    @property
    def layer(self) -> Site: ...

    @property
    def kind(self) -> object:
        """What identifies the computation: forms of one kind compute alike."""

    def tensors(self, expert: int) -> dict[str, torch.Tensor]:
        """An expert's stored tensors, as far as the model has them, as views of its own."""

    def matrices(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """The projections among stored tensors, each [out, in], as views.

        Their names are gate, up and down, or in and out where there is no gate; a bias has the
        name of its projection with ``_bias``.
        """

    def stored(self, matrices: Tensors) -> dict[str, torch.Tensor]:
        """The stored tensors made of these projections: the inverse of ``matrices``."""

    def forward(self, tensors: Tensors, hidden: torch.Tensor) -> torch.Tensor:
        """An expert's output for rows [T, H], from these stored tensors, without gate weight."""


class ModelForm(ExpertForm, Protocol):
    """One site's experts in a model."""

    @property
    def layer(self) -> MoELayer: ...

    def bind(self, layer: MoELayer) -> None:
        """Use another module of the same class and layout, such as one without weights."""

    def few(self, chosen: Sequence[Tensors]) -> nn.Module:
        """A copy of the experts module that holds these experts, numbered from 0."""


class StackedForm:
    """Experts stacked along the first dimension of shared tensors.

    The first projections of a gated expert are fused: one after another, or row by row in turn.
    """

    def __init__(self, layer: MoELayer) -> None:
        experts = layer.experts
        self.sums_in_weights_dtype = False
        self.names = tuple(
            name for name in FUSED if isinstance(experts._parameters.get(name), torch.Tensor)
        )
        first = [name for name in self.names if name in ("gate_up_proj", "up_proj")]
        others = [
            name
            for name, values in experts.named_parameters()
            if name not in FUSED and not name.startswith("post_expert_norm.")
        ]
        if len(first) != 1 or "down_proj" not in self.names or others:
            names = [name for name, _ in experts.named_parameters()]
            raise SwapError(f"{said_of(layer)}: the layout of {names[:6]} is not known")
        self._first = first[0]
        self._is_gated = self._first == "gate_up_proj"
        self._is_transposed = bool(getattr(experts, "is_transposed", False))
        self._is_concatenated = bool(getattr(experts, "is_concatenated", True))
        matrices = [name for name in self.names if not name.endswith("_bias")]
        self.flipped = frozenset(matrices if self._is_transposed else ())
        self.bind(layer)
        self.like: Tensors = _shapes(self.tensors(0))

    def bind(self, layer: MoELayer) -> None:
        self.layer, experts = layer, layer.experts
        self._apply_gate: Any = getattr(experts, "_apply_gate", None) if self._is_gated else None
        self._norm: Any = (
            experts.post_expert_norm if getattr(experts, "has_post_expert_norm", False) else None
        )

    @property
    def kind(self) -> object:
        return type(self.layer.experts)

    def tensors(self, expert: int) -> dict[str, torch.Tensor]:
        return {
            name: self.layer.experts.get_parameter(name).detach()[expert] for name in self.names
        }

    def matrices(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for suffix in ("", "_bias"):
            if self._first + suffix not in tensors:
                continue
            first, down = tensors[self._first + suffix], tensors["down_proj" + suffix]
            if self._is_transposed and not suffix:
                first, down = first.T, down.T
            if not self._is_gated:
                found |= {"in" + suffix: first, "out" + suffix: down}
            elif self._is_concatenated:
                gate, up = first.chunk(2, dim=0)
                found |= {"gate" + suffix: gate, "up" + suffix: up, "down" + suffix: down}
            else:
                found |= {
                    "gate" + suffix: first[::2],
                    "up" + suffix: first[1::2],
                    "down" + suffix: down,
                }
        return found

    def stored(self, matrices: Tensors) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for name in self.names:
            suffix = "_bias" if name.endswith("_bias") else ""
            if name.startswith("down"):
                values = matrices[("down" if self._is_gated else "out") + suffix]
            elif not self._is_gated:
                values = matrices["in" + suffix]
            else:
                pair = matrices["gate" + suffix], matrices["up" + suffix]
                values = (
                    torch.cat(pair)
                    if self._is_concatenated
                    else torch.stack(pair, dim=1).flatten(0, 1)
                )
            found[name] = values.T if name in self.flipped else values
        return found

    def forward(self, tensors: Tensors, hidden: torch.Tensor) -> torch.Tensor:
        inner = self._project(hidden, tensors, self._first)
        if self._apply_gate is not None:
            inner = self._apply_gate(inner)
        elif self._is_gated:
            gate, up = inner.chunk(2, dim=-1)
            inner = self._activate(gate) * up
        else:
            inner = self._activate(inner)
        output = self._project(inner, tensors, "down_proj")
        return output if self._norm is None else self._norm(output)

    def few(self, chosen: Sequence[Tensors]) -> nn.Module:
        experts: Any = copy(self.layer.experts)
        experts._parameters = dict(experts._parameters)
        for name in self.names:
            experts._parameters[name] = nn.Parameter(
                torch.stack([tensors[name] for tensors in chosen])
            )
        experts.num_experts = len(chosen)
        return experts  # type: ignore[no-any-return]

    def _activate(self, values: torch.Tensor) -> torch.Tensor:
        return self.layer.experts.act_fn(values)  # type: ignore[operator, no-any-return]

    def _project(self, inputs: torch.Tensor, tensors: Tensors, name: str) -> torch.Tensor:
        bias = tensors.get(name + "_bias")
        if not self._is_transposed:
            return F.linear(inputs, tensors[name], bias)
        outputs = inputs @ tensors[name]
        return outputs if bias is None else outputs + bias


class ListedForm:
    """Experts that are modules of their own, all alike, of two linear layers."""

    def __init__(self, layer: MoELayer) -> None:
        self.layer, self.sums_in_weights_dtype, self.flipped = layer, False, frozenset[str]()
        modules = self._modules()
        self.like: Tensors = _shapes(
            {name: values.detach() for name, values in modules[0].named_parameters()}
        )
        self.names = tuple(self.like)
        linears = [
            name for name, module in modules[0].named_modules() if isinstance(module, nn.Linear)
        ]
        if len(linears) != 2 or {name.rpartition(".")[0] for name in self.names} != set(linears):
            raise SwapError(
                f"{said_of(layer)}: experts of {list(self.names)}; only two linear layers are known"
            )
        self._words = dict(zip(linears, ("in", "out"), strict=True))
        # This module computes every expert; its own weights are never used.
        self._template = deepcopy(modules[0]).to("meta")

    def bind(self, layer: MoELayer) -> None:
        self.layer = layer

    def _modules(self) -> list[nn.Module]:
        return [
            child
            for child in self.layer.experts.children()
            if any(True for _ in child.parameters())
        ]

    @property
    def kind(self) -> object:
        return type(self.layer.experts)

    def tensors(self, expert: int) -> dict[str, torch.Tensor]:
        return {
            name: values.detach() for name, values in self._modules()[expert].named_parameters()
        }

    def matrices(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        found = {}
        for name, values in tensors.items():
            linear, _, kind = name.rpartition(".")
            found[self._words[linear] + ("_bias" if kind == "bias" else "")] = values
        return found

    def stored(self, matrices: Tensors) -> dict[str, torch.Tensor]:
        kinds = {"weight": "", "bias": "_bias"}
        parts = {name: name.rpartition(".") for name in self.names}
        return {
            name: matrices[self._words[linear] + kinds[kind]]
            for name, (linear, _, kind) in parts.items()
        }

    def forward(self, tensors: Tensors, hidden: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(self._template, dict(tensors), (hidden,))  # type: ignore[no-any-return]

    def few(self, chosen: Sequence[Tensors]) -> nn.Module:
        experts: Any = copy(self.layer.experts)
        names = [
            name
            for name, child in experts.named_children()
            if any(True for _ in child.parameters())
        ]
        experts._modules = {}
        for name, tensors in zip(names, chosen, strict=False):
            module = deepcopy(self._template).to_empty(device="cpu").eval()
            module.load_state_dict(dict(tensors), assign=True)
            experts._modules[name] = module
        return experts  # type: ignore[no-any-return]


def _shapes(tensors: Tensors) -> dict[str, torch.Tensor]:
    return {name: torch.empty_like(values, device="meta") for name, values in tensors.items()}


def form_of(layer: MoELayer) -> ModelForm:
    """The form of a layer, not proved. Raise SwapError for experts that are called otherwise."""
    if type(layer.adapter) is Adapter:
        if layer.num_classes != layer.num_experts and not hasattr(layer.experts, "has_gate"):
            raise SwapError(
                f"{said_of(layer)}: its null experts are computed, too ({layer.num_classes} classes)"
            )
        return StackedForm(layer)
    if type(layer.adapter) is OneHot:
        return ListedForm(layer)
    raise SwapError(
        f"{said_of(layer)}: its experts are not called with (hidden states, ids, weights), but as "
        f"{type(layer.adapter).__name__}"
    )


def said_of(layer: MoELayer) -> str:
    """How a refusal begins."""
    return f"{layer.name}: {type(layer.experts).__name__} cannot be swapped"
