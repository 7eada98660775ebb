"""The sum of a site's experts when each choice of each row is served as a caller decided.

A choice is served by an expert, its own or the one that it is rerouted to, at a precision. The
precision is given as a code: its place in `Variants.precisions`. A choice that is not served at all
(``LEFT_OUT``) adds nothing, and the other weights are not raised to make up for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from real.lossy.variants import Variants
from real.store.experts import ModelForm, Tensors
from real.store.swapping import Compute, add_up, rows_of

LEFT_OUT = -1
Forward = Callable[[ModelForm, int, Tensors, torch.Tensor, int], torch.Tensor]
"""``forward(form, expert, tensors, hidden [n, H], rows) -> [n, H]``.

The output of an expert with these tensors for n rows of a gate that has ``rows`` of them.
"""


@dataclass(frozen=True)
class Served:
    """How each choice [T, K] is served: by which expert, with what weight, and at which code."""

    ids: torch.Tensor
    weights: torch.Tensor
    codes: torch.Tensor


class Decide(Protocol):
    """Decides how the choices of a site's rows are served, which are the next rows of the pass."""

    def __call__(
        self, site: int, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> Served: ...


def plain_forward(
    form: ModelForm, expert: int, tensors: Tensors, hidden: torch.Tensor, rows: int
) -> torch.Tensor:
    """The output of the model's own expert."""
    return form.forward(tensors, hidden)


def mix(
    variants: Variants,
    site: int,
    hidden: torch.Tensor,
    served: Served,
    forward: Forward = plain_forward,
) -> torch.Tensor:
    """The site's sum [T, H].

    Where every choice has code 0, and that code loses nothing, the sum has the model's bits.
    """
    form, rows = variants.forms[site], len(hidden)
    outputs: dict[int, torch.Tensor] = {}
    ids = served.ids
    # A choice that is left out becomes a choice of no expert.
    computed = torch.where(served.codes == LEFT_OUT, LEFT_OUT, ids)
    for expert in torch.unique(computed).tolist():
        if not 0 <= expert < form.layer.num_experts:
            continue
        row, rank = rows_of(computed, expert)
        codes = served.codes[row, rank]
        found = torch.unique(codes).tolist()
        if len(found) == 1:
            outputs[expert] = forward(
                form, expert, variants.tensors(found[0], site, expert), hidden[row], rows
            )
            continue
        output = hidden.new_empty(len(row), hidden.shape[-1])
        for code in found:
            mine = codes == code
            output[mine] = forward(
                form, expert, variants.tensors(code, site, expert), hidden[row[mine]], rows
            )
        outputs[expert] = output
    return add_up(form, hidden, computed, served.weights, outputs)


def mixing(variants: Variants, decide: Decide, forward: Forward = plain_forward) -> Compute:
    """A function for ``real.store.swapping.swapped_experts`` that serves as ``decide`` says."""

    def compute(
        site: int, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        return mix(variants, site, hidden, decide(site, hidden, ids, weights), forward)

    return compute


def all_at(code: int) -> Decide:
    """Serve every choice at one precision."""

    def decide(site: int, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Served:
        return Served(ids, weights, torch.full_like(ids, code))

    return decide
