"""Experts of a model computed elsewhere: forms that are proved, and modules that give way to them.

A form is proved before it is given out. A copy of the experts module with a few random experts
computes a few rows, and the form must compute the same bits. Experts that differ are refused.

Only the ``forward`` of the experts module is replaced, on the instance. Router, shared experts and
hooks stay.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from capture.models.adapters import OneHot
from capture.models.discover import MoELayer, discover
from real.store.experts import ExpertForm, ModelForm, SwapError, Tensors, form_of, said_of

Compute = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""``compute(site, hidden [T, H], ids [T, K], weights [T, K]) -> [T, H]``.

An id below 0, or past the last expert, is a null expert's.
"""

PROBE_EXPERTS, PROBE_ROWS = 3, 5


def expert_forms(model: nn.Module) -> list[ModelForm]:
    """The proved forms of a model's sites, in order. Raise SwapError as `forms_of_layers` does."""
    return forms_of_layers(discover(model))


def forms_of_layers(layers: Sequence[MoELayer]) -> list[ModelForm]:
    """The proved forms of layers that have been found; their weights may be on the meta device.

    Raise SwapError for experts that nothing but their own module can compute.
    """
    forms: list[ModelForm] = []
    proved: dict[tuple[object, ...], bool] = {}
    for layer in layers:
        form = form_of(layer)
        kind = form.kind, *((tuple(values.shape), values.dtype) for values in form.like.values())
        if kind not in proved:
            proved[kind] = _prove(form)
        form.sums_in_weights_dtype = proved[kind]
        forms.append(form)
    return forms


def expert_weights(model: nn.Module, site: int, expert: int) -> dict[str, torch.Tensor]:
    """The projections of one expert, each [out, in], by name (`ExpertForm.matrices`)."""
    form = form_of(discover(model)[site])
    return form.matrices(form.tensors(expert))


@contextmanager
def swapped_experts(
    model: nn.Module, compute: Compute, forms: Sequence[ModelForm] | None = None
) -> Iterator[Sequence[ModelForm]]:
    """Within the block ``compute`` answers the sum of each site's experts.

    Afterwards the model is as it was. ``forms`` saves finding and proving them again. Compare bits
    with a model of ``experts_implementation=eager``.
    """
    forms = expert_forms(model) if forms is None else forms
    taken = [(form.layer.experts, form.layer.experts.__dict__.get("forward")) for form in forms]
    try:
        for form in forms:
            form.layer.experts.forward = _forward_of(form.layer, compute)
        yield forms
    finally:
        for experts, own in taken:
            experts.__dict__.pop("forward", None)
            if own is not None:
                experts.__dict__["forward"] = own


def _forward_of(layer: MoELayer, compute: Compute) -> Callable[..., torch.Tensor]:
    def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
        arguments = layer.adapter.arguments(args, kwargs)
        hidden = arguments[0]
        rows = hidden.reshape(-1, hidden.shape[-1])
        ids, weights = layer.adapter.choice(layer.experts, arguments, None)
        return compute(
            layer.site, rows, ids.reshape(len(rows), -1), weights.reshape(len(rows), -1)
        ).view(hidden.shape)

    return forward


# How the model adds experts up


def rows_of(ids: torch.Tensor, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows [n] that chose an expert, and its rank [n] in each, as the model orders them."""
    rank, row = torch.where(ids.T.eq(expert))
    return row, rank


def add_up(
    form: ExpertForm,
    hidden: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    outputs: Mapping[int, torch.Tensor],
) -> torch.Tensor:
    """The weighted sum [T, H] of experts' outputs [n, H] (rows as in `rows_of`).

    Experts are added in ascending order, so the sum has the bits of the model's own in whatever
    order the outputs were computed. An expert without an output adds nothing.
    """
    dtype = weights.dtype if form.sums_in_weights_dtype else hidden.dtype
    total = torch.zeros_like(hidden, dtype=dtype)
    for expert in sorted(outputs):
        row, rank = rows_of(ids, expert)
        total.index_add_(0, row, (outputs[expert] * weights[row, rank, None]).to(dtype))
    return total.to(hidden.dtype)


def compute_all(
    form: ExpertForm,
    tensors_of: Callable[[int], Tensors],
    hidden: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """The sum [T, H] of a site's experts, computed one after another."""
    chosen = [
        expert
        for expert in sorted({*ids.flatten().tolist()})
        if 0 <= expert < form.layer.num_experts
    ]
    outputs = {
        expert: form.forward(tensors_of(expert), hidden[rows_of(ids, expert)[0]])
        for expert in chosen
    }
    return add_up(form, hidden, ids, weights, outputs)


@torch.no_grad()
def _prove(form: ModelForm) -> bool:
    """Whether sums are in the weights' dtype.

    Raise SwapError unless form and model compute the same bits.
    """
    draw = torch.Generator().manual_seed(0)
    count = min(PROBE_EXPERTS, form.layer.num_experts)
    like = form.like
    experts = [
        {
            name: torch.randn(v.shape, generator=draw).div_(v.shape[-1] ** 0.5).to(v.dtype)
            for name, v in like.items()
        }
        for _ in range(count)
    ]
    module = form.few(experts)
    first = next(iter(form.matrices(experts[0]).values()))
    hidden = torch.randn(PROBE_ROWS, first.shape[1], generator=draw).to(first.dtype)
    top_k = min(form.layer.top_k, 2, count)
    ids = torch.stack([torch.randperm(count, generator=draw)[:top_k] for _ in range(PROBE_ROWS)])
    weights = torch.rand(PROBE_ROWS, top_k, generator=draw)
    choice = ids
    if isinstance(form.layer.adapter, OneHot):
        choice = F.one_hot(ids, len(form.layer.experts._modules))
    try:
        own = inspect.unwrap(type(module).forward)(module, hidden, choice, weights)
    except (RuntimeError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise SwapError(
            f"{said_of(form.layer)}: a copy with {count} experts does not run ({error})"
        ) from None
    for sums_in_weights_dtype in (False, True):
        form.sums_in_weights_dtype = sums_in_weights_dtype
        if torch.equal(own, compute_all(form, experts.__getitem__, hidden, ids, weights)):
            return sums_in_weights_dtype
    raise SwapError(
        f"{said_of(form.layer)}: it computes something else than gate, up and down projections do"
    )
