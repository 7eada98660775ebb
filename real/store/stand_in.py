"""Experts of any geometry without a model: known patterns, so that computed results can be checked.

An expert is gated by SiLU (three matrices), or plain with ReLU (two). Its values depend on its
number and on nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from real.store.experts import Tensors
from sim.machine.model import Model


@dataclass(frozen=True)
class _Layer:
    name: str
    site: int
    num_experts: int


class StandInForm:
    """One site's stand-in experts. Implements `ExpertForm`."""

    flipped: frozenset[str] = frozenset()
    sums_in_weights_dtype = False

    def __init__(self, model: Model, site: int) -> None:
        self._hidden, self._inner, self._is_gated = (
            model.hidden,
            model.expert_intermediate,
            model.expert_matrices == 3,
        )
        self.layer = _Layer(f"{model.name} site {site}", site, model.experts)
        self._first = "gate_up_proj" if self._is_gated else "up_proj"
        shape = (2 if self._is_gated else 1) * self._inner, self._hidden
        self.like: Tensors = {
            self._first: torch.empty(shape, device="meta"),
            "down_proj": torch.empty(self._hidden, self._inner, device="meta"),
        }

    @property
    def kind(self) -> object:
        return self._first

    def tensors(self, expert: int) -> dict[str, torch.Tensor]:
        """An expert's stored tensors, in fp32.

        Values are multiples of 1/1024 between -1/2 and 1/2, which 16 bits hold exactly. Every row
        begins elsewhere in one period, so that no two rows, matrices or experts agree.
        """
        number = self.layer.site * self.layer.num_experts + expert
        found = {}
        for place, (name, values) in enumerate(self.like.items()):
            rows, columns = values.shape
            count = (
                torch.arange(columns)[None] * 7
                + torch.arange(rows)[:, None] * 131
                + number * 389
                + place * 53
            )
            found[name] = (count % 1021 - 510).float() / 1024
        return found

    def matrices(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        first, down = tensors[self._first], tensors["down_proj"]
        if not self._is_gated:
            return {"in": first, "out": down}
        gate, up = first.chunk(2)
        return {"gate": gate, "up": up, "down": down}

    def stored(self, matrices: Tensors) -> dict[str, torch.Tensor]:
        if not self._is_gated:
            return {"up_proj": matrices["in"], "down_proj": matrices["out"]}
        return {
            "gate_up_proj": torch.cat([matrices["gate"], matrices["up"]]),
            "down_proj": matrices["down"],
        }

    def forward(self, tensors: Tensors, hidden: torch.Tensor) -> torch.Tensor:
        inner = F.linear(hidden, tensors[self._first])
        if self._is_gated:
            gate, up = inner.chunk(2, dim=-1)
            inner = F.silu(gate) * up
        else:
            inner = F.relu(inner)
        return F.linear(inner, tensors["down_proj"])
