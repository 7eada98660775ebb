"""Computes one expert of a site alone: its channels and its output.

A *channel* is one of the I values between an expert's two projections. Which quantity says how much
a channel matters depends on the expert:

- With a gate, the up projection ``x W_up`` (FloE).
- Without a gate, the activation ``act(x W_in)``: a channel that it turns to 0 adds nothing, however
  large the projection was.

The form of a site's experts is found by the shapes of their weights and by how they are called; no
architecture is named.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from capture.models.adapters import Dense, Sorted, forward_arguments
from capture.models.discover import CaptureError, MoELayer

UP, ACTIVATED = "|x W_up|", "|act(x W_in)|"
_ACTIVATIONS = ("act_fn", "activation", "activation_fn", "act")


class ExpertForm:
    """A site's experts, computed one by one.

    ``quantity`` names what `channels` returns. An expert has ``width`` channels (I) and
    ``width_in`` inputs (H). ``weighted_input``: an expert is fed its input times its gate weight,
    and its output is not weighted again.
    """

    quantity = UP
    weighted_input = False

    def __init__(self, layer: MoELayer) -> None:
        self.layer, self.experts = layer, layer.experts
        self.width_in, self.width = 0, 0

    @property
    def told(self) -> str:
        """``quantity``, followed by what x is where it is not the gate's input."""
        return f"{self.quantity}, x times its gate weight" if self.weighted_input else self.quantity

    def channels(self, expert: int, inputs: torch.Tensor) -> torch.Tensor:
        """The channels of one expert, [T, I]; ``inputs`` [T, H] are what the expert is fed."""
        raise NotImplementedError

    def output(self, expert: int, inputs: torch.Tensor) -> torch.Tensor:
        """The output of one expert for what it is fed, before any weighting, [T, H]."""
        raise NotImplementedError

    def norms(self, inputs: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Euclidean norm of each chosen expert's output, [T, K], for gate inputs [T, H].

        0 where ``ids`` [T, K] is -1.
        """
        norms = torch.zeros(ids.shape)
        for expert in range(self.layer.num_experts):
            rows, slots = torch.where(ids == expert)
            if len(rows):
                fed = self.fed(inputs, weights, rows, slots)
                norms[rows.cpu(), slots.cpu()] = self.output(expert, fed).float().norm(dim=-1).cpu()
        return norms

    def fed(
        self, inputs: torch.Tensor, weights: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor
    ) -> torch.Tensor:
        """What the experts chosen in ``slots`` of ``rows`` (columns and rows of [T, K]) are fed."""
        chosen = inputs[rows]
        return (
            chosen * weights[rows, slots, None].to(chosen.dtype) if self.weighted_input else chosen
        )


class Called(ExpertForm):
    """Experts that can be called with any rows, ids and weights."""

    _takes_one: bool | None = None

    def norms(self, inputs: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        norms = torch.zeros(ids.shape)
        for slot in range(ids.shape[1] if len(ids) else 0):
            chosen = ids[:, slot : slot + 1].long()
            # With weight 1 for a single expert the module's weighted sum is that expert's output.
            only = (chosen >= 0).to(inputs.dtype)
            output = self._run(inputs, chosen.clamp(min=0), only)
            norms[:, slot] = output.reshape(len(ids), -1).float().norm(dim=-1).cpu()
        return norms

    def output(self, expert: int, inputs: torch.Tensor) -> torch.Tensor:
        ids = torch.full((len(inputs), 1), expert, device=inputs.device)
        return self._run(inputs, ids, torch.ones_like(ids, dtype=inputs.dtype)).reshape(
            len(inputs), -1
        )

    def _run(self, inputs: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        forward = type(self.experts).forward
        with torch.no_grad():
            if not self._takes_one_choice(inputs[:1], ids[:1], weights[:1]):
                ids, weights = (
                    ids.expand(-1, 2),
                    torch.cat([weights, torch.zeros_like(weights)], dim=-1),
                )
            return forward(self.experts, inputs, ids, weights)  # type: ignore[no-any-return]

    def _takes_one_choice(
        self, inputs: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> bool:
        """Whether the module runs with one choice a row: some squeeze that dimension and fail."""
        if self._takes_one is None:
            try:
                type(self.experts).forward(self.experts, inputs, ids, weights)
                self._takes_one = True
            except ValueError:
                self._takes_one = False
        return self._takes_one


class Fused(Called):
    """Experts with all weights in one tensor [E, ..].

    The tensor is ``gate_up_proj``, or ``up_proj`` with or without a ``gate_proj`` beside it.
    """

    def __init__(self, layer: MoELayer) -> None:
        super().__init__(layer)
        self.name = (
            "gate_up_proj" if _fused(self.experts, "gate_up_proj") is not None else "up_proj"
        )
        weight = _fused(self.experts, self.name)
        assert weight is not None
        self.weight = weight
        self.halves = 2 if self.name == "gate_up_proj" else 1
        self.transposed = self._is_transposed()
        inner, outer = (2, 1) if self.transposed else (1, 2)
        self.width, self.width_in = weight.shape[inner] // self.halves, weight.shape[outer]
        self.activation: Callable[[torch.Tensor], torch.Tensor] | None = None
        if self.name == "up_proj" and _fused(self.experts, "gate_proj") is None:
            self.quantity, self.activation = ACTIVATED, _activation(layer, self.experts)

    def _is_transposed(self) -> bool:
        """Whether the tensor is [E, H, I] and not [E, I, H].

        The module states it, or the shape of the down projection shows it.
        """
        stated = getattr(self.experts, "is_transposed", None)
        if stated is not None:
            return bool(stated)
        one, two = self.weight.shape[1:]
        others = [
            values.shape[1:]
            for values in self.experts.parameters()
            if values.dim() == 3 and values is not self.weight
        ]
        straight = (two, one / self.halves) in [tuple(shape) for shape in others]
        turned = (two / self.halves, one) in [tuple(shape) for shape in others]
        if straight == turned:
            raise CaptureError(
                f"{self.layer.name}: cannot tell which axis of {self.name}"
                f" {list(self.weight.shape)} is the input (beside it:"
                f" {[list(shape) for shape in others]}); record with sparsities="
            )
        return turned

    def channels(self, expert: int, inputs: torch.Tensor) -> torch.Tensor:
        values = self.projected(expert, inputs)
        if self.activation is not None:
            return self.activation(values)
        if self.halves == 1:
            return values
        return (
            values.chunk(2, -1)[1]
            if getattr(self.experts, "is_concatenated", True)
            else values[..., 1::2]
        )

    def projected(self, expert: int, inputs: torch.Tensor) -> torch.Tensor:
        """The projection by the whole tensor: gate and up [T, 2 I], or up alone [T, I]."""
        weight = self.weight.detach()[expert]
        values = inputs @ weight if self.transposed else nn.functional.linear(inputs, weight)
        bias = getattr(self.experts, f"{self.name}_bias", None)
        return values + bias.detach()[expert] if isinstance(bias, torch.Tensor) else values


class FedWeighted(Fused):
    """Fused experts that all see every row, times its gate weight.

    They cannot be called for some rows only, so `output` computes from their weights.
    """

    weighted_input = True

    def __init__(self, layer: MoELayer) -> None:
        super().__init__(layer)
        down = [
            values
            for values in self.experts.parameters()
            if values.dim() == 3 and values.shape[1:] == (self.width, self.width_in)
        ]
        if self.halves != 2 or not self.transposed or len(down) != 1:
            raise CaptureError(
                f"{layer.name}: {type(self.experts).__name__} runs every expert on every row, and"
                " its weights are not [E, H, 2 I] and [E, I, H]; record with sparsities="
            )
        self.down, self.gating = down[0], _activation(layer, self.experts)

    def output(self, expert: int, inputs: torch.Tensor) -> torch.Tensor:
        gate, up = self.projected(expert, inputs).chunk(2, -1)
        return (up * self.gating(gate)) @ self.down.detach()[expert]

    norms = ExpertForm.norms


class Flat(Called):
    """Experts whose weights are stacked in three matrices [E I, H].

    ``w1`` is the gate, ``v1`` the up projection, ``w2`` the down projection.
    """

    def __init__(self, layer: MoELayer) -> None:
        super().__init__(layer)
        (up,) = (
            values
            for name, values in self.experts.named_parameters()
            if name.rsplit(".", 1)[-1] == "v1"
        )
        self.up = up.detach().view(layer.num_experts, -1, up.shape[-1])
        self.width, self.width_in = self.up.shape[1:]

    def channels(self, expert: int, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(inputs, self.up[expert])


class SortedPair(ExpertForm):
    """Experts in two tensors, [E, A, H] and [E, H, I], that take inputs sorted by expert.

    A is 2 I with a gate, else I.
    """

    def __init__(self, layer: MoELayer) -> None:
        super().__init__(layer)
        pair = [
            child for child in layer.block.children() if "expert_size" in forward_arguments(child)
        ]
        weights = [next(child.parameters()).detach() for child in pair]
        if layer.kind == "attn":
            raise CaptureError(
                f"{layer.name}: between the two projections of attention experts lies the"
                " attention: they have no channels that a token's own input decides on"
            )
        self.activation = _activation(layer, layer.block)
        self.inner, self.down = weights
        self.width, self.width_in = self.down.shape[2], self.down.shape[1]
        self.gated = self.inner.shape[1] == 2 * self.width
        if not self.gated:
            self.quantity = ACTIVATED

    def _halves(
        self, expert: int, inputs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        values = nn.functional.linear(inputs, self.inner[expert])
        if not self.gated:
            return self.activation(values), None
        gate, up = values.chunk(2, -1)
        return up, self.activation(gate)

    def channels(self, expert: int, inputs: torch.Tensor) -> torch.Tensor:
        return self._halves(expert, inputs)[0]

    def output(self, expert: int, inputs: torch.Tensor) -> torch.Tensor:
        values, gate = self._halves(expert, inputs)
        return nn.functional.linear(values if gate is None else gate * values, self.down[expert])


class Modules(ExpertForm):
    """Experts that are modules of their own, with two linear layers each.

    The channels are what the second layer is given.
    """

    quantity = ACTIVATED

    def __init__(self, layer: MoELayer) -> None:
        super().__init__(layer)
        self.modules = [
            child for child in self.experts.children() if any(True for _ in child.parameters())
        ]
        linears = [module for module in self.modules[0].modules() if isinstance(module, nn.Linear)]
        if len(linears) != 2 or linears[0].in_features != linears[1].out_features:
            raise CaptureError(
                f"{layer.name}: {type(self.modules[0]).__name__} has {len(linears)} linear layers,"
                " not one into its channels and one out of them; record with sparsities="
            )
        self.width_in, self.width = linears[0].in_features, linears[0].out_features

    def channels(self, expert: int, inputs: torch.Tensor) -> torch.Tensor:
        return self._run(expert, inputs)[0]

    def output(self, expert: int, inputs: torch.Tensor) -> torch.Tensor:
        return self._run(expert, inputs)[1]

    def _run(self, expert: int, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        module = self.modules[expert]
        _, last = (inner for inner in module.modules() if isinstance(inner, nn.Linear))
        seen: list[torch.Tensor] = []
        handle = last.register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
        try:
            with torch.no_grad():
                output = type(module).forward(module, inputs)
        finally:
            handle.remove()
        return seen[0], output


def form_of(layer: MoELayer) -> ExpertForm:
    """The form of the site's experts.

    Raise `CaptureError`, with the reason, where an expert cannot be computed alone.
    """
    experts, adapter = layer.experts, layer.adapter
    if isinstance(adapter, Sorted):
        return SortedPair(layer)
    if isinstance(experts, (nn.ModuleDict, nn.ModuleList)):
        return Modules(layer)
    if any(_fused(experts, name) is not None for name in ("gate_up_proj", "up_proj")):
        if isinstance(adapter, Dense):
            return FedWeighted(layer)
        if adapter.standalone:
            return Fused(layer)
    rows = [
        name.rsplit(".", 1)[-1] for name, values in experts.named_parameters() if values.dim() == 2
    ]
    if adapter.standalone and sorted(rows) == ["v1", "w1", "w2"]:
        return Flat(layer)
    raise CaptureError(
        f"{layer.name}: {type(experts).__name__} has no weights of which the up projection can be"
        " told; record with sparsities="
    )


def _fused(experts: nn.Module, name: str) -> torch.Tensor | None:
    values = getattr(experts, name, None)
    return values if isinstance(values, torch.Tensor) and values.dim() == 3 else None


def _activation(layer: MoELayer, holder: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    for name in _ACTIVATIONS:
        found = getattr(holder, name, None)
        if callable(found):
            return found  # type: ignore[no-any-return]
    raise CaptureError(
        f"{layer.name}: {type(holder).__name__} names no activation ({', '.join(_ACTIVATIONS)}); "
        "record with sparsities="
    )
