"""Records what routers see and choose while a model runs, without changing what it computes.

Three kinds of hooks. Before the *stack* (the model around the layers): a step begins; from ids, mask and cache follow
the phase and each row's sequence, position, token and validity. After each *router*: gate input and logits. Before each
*experts* module: the ids and weights that are really executed. After the stack: every site must have reported once.
The hooks read and copy; results are computed from the copies later, outside the model's run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import nn

from capture.discover import CaptureError, MoELayer, forward_arguments
from sim.trace import CHUNK, DECODE, PREFILL


@dataclass(frozen=True, eq=False)
class SiteRows:
    """What one site saw in one step; T rows. ``expert_in`` is ``gate_in`` itself unless the model feeds them apart."""

    gate_in: torch.Tensor
    expert_in: torch.Tensor
    logits: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True, eq=False)
class Step:
    """One forward call of the stack; T = batch x tokens rows, row-major. ``position`` is -1 in rows not ``valid``.

    ``sites`` has an entry for each site, in order, once the step has ended.
    """

    number: int
    phase: int
    sequence: torch.Tensor
    position: torch.Tensor
    token: torch.Tensor
    valid: torch.Tensor
    sites: list[SiteRows] = field(default_factory=list)


class RouterHooks:
    """``with RouterHooks(layers) as hooks: model(...)`` fills ``hooks.steps``, in order.

    Each prefill (a call without cache) starts as many new sequences as it has rows in the batch, numbered from 0 in
    order of appearance. A row is not valid where the 2-D attention mask is 0 and, in decode, from the time that one of
    ``eos_token_ids`` was fed to its sequence. Use `disable_compile=True` or an uncompiled model: hooks added after
    ``torch.compile`` are not called, which leaving the context reports as `CaptureError`.
    """

    def __init__(self, layers: Collection[MoELayer], eos_token_ids: Collection[int] = ()) -> None:
        self.layers = list(layers)
        self.steps: list[Step] = []
        self._stack = self.layers[0].stack
        self._eos = torch.tensor(sorted(eos_token_ids), dtype=torch.long)
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self._seen: dict[int, dict[str, torch.Tensor]] = {}
        self._num_steps = 0
        self._num_sequences = 0
        self._first_sequence = 0
        self._padding = torch.zeros(0, dtype=torch.long)
        self._ended = torch.zeros(0, dtype=torch.bool)

    def __enter__(self) -> RouterHooks:
        add = self._handles.append
        add(self._stack.register_forward_pre_hook(self._on_step, with_kwargs=True))
        add(self._stack.register_forward_hook(self._on_step_end))
        for layer in self.layers:
            add(layer.router.register_forward_hook(self._router_hook(layer), with_kwargs=True))
            linear = _logit_linear(layer)
            if linear is not None:
                add(linear.register_forward_hook(self._linear_hook(layer)))
            add(layer.experts.register_forward_pre_hook(self._experts_hook(layer), with_kwargs=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if kind is None and not self._num_steps:
            raise CaptureError(
                "no step was recorded: the model did not run, or it was compiled before the hooks were added; "
                "run it uncompiled"
            )

    def take(self) -> list[Step]:
        """Hand over the steps recorded so far; numbers go on counting."""
        steps, self.steps = self.steps, []
        return steps

    # The stack: rows become tokens

    def _on_step(self, stack: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = dict(zip(forward_arguments(stack), args, strict=False)) | kwargs
        ids = given.get("input_ids")
        shape = (given["inputs_embeds"] if ids is None else ids).shape[:2]
        tokens = torch.full(shape, -1) if ids is None else ids.detach().cpu()
        cache = given.get("past_key_values")
        past = 0 if cache is None else int(cache.get_seq_length())
        phase = PREFILL if past == 0 else DECODE if shape[1] == 1 else CHUNK
        mask = _mask(given.get("attention_mask"), past, shape)
        if phase == PREFILL:
            self._first_sequence, self._num_sequences = self._num_sequences, self._num_sequences + shape[0]
            self._ended = torch.zeros(shape[0], dtype=torch.bool)
            # Left padding: positions count from the first real token.
            self._padding = (mask.long().cumsum(-1) == 0).sum(-1)
        elif len(self._padding) != shape[0]:
            raise CaptureError(
                f"a step of {shape[0]} rows on a cache of {len(self._padding)} sequences: beams and reordered batches "
                "cannot be recorded; use greedy decoding"
            )
        valid = mask
        if phase == DECODE:
            self._ended |= torch.isin(tokens[:, -1], self._eos)
            valid = mask & ~self._ended[:, None]
        position = past + torch.arange(shape[1]) - self._padding[:, None]
        sequence = self._first_sequence + torch.arange(shape[0])[:, None].expand(shape)
        self.steps.append(
            Step(
                number=self._num_steps,
                phase=phase,
                sequence=sequence.reshape(-1),
                position=torch.where(valid, position, -1).reshape(-1),
                token=tokens.reshape(-1),
                valid=valid.reshape(-1),
            )
        )
        self._num_steps += 1
        self._seen.clear()

    def _on_step_end(self, stack: nn.Module, args: object, output: object) -> None:
        found, wanted = len(self.steps[-1].sites), len(self.layers)
        if found != wanted:
            raise CaptureError(
                f"step {self.steps[-1].number}: {found} of {wanted} sites were recorded; steps that skip sites, and "
                "layers that were compiled before the hooks were added, are not supported"
            )

    # The routers and the experts

    def _router_hook(self, layer: MoELayer) -> Callable[..., None]:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> None:
            seen = self._seen.setdefault(layer.site, {})
            seen["gate_in"] = args[0] if args else kwargs["hidden_states"]
            logits = seen.get("logits")
            seen["logits"] = _output_logits(layer, output) if logits is None else logits

        return hook

    def _linear_hook(self, layer: MoELayer) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: object, output: torch.Tensor) -> None:
            self._seen.setdefault(layer.site, {})["logits"] = output

        return hook

    def _experts_hook(self, layer: MoELayer) -> Callable[..., None]:
        names = forward_arguments(layer.experts)[:3]

        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = dict(zip(names, args, strict=False)) | kwargs
            hidden, ids, weights = (given[name] for name in names)
            seen = self._seen.get(layer.site)
            if seen is None or not self.steps or len(self.steps[-1].sites) != layer.site:
                raise CaptureError(f"{layer.name}: experts ran out of turn; sites must run once a step, in order")
            gate_in = _rows(seen["gate_in"])
            apart = hidden.shape[-1] != gate_in.shape[-1] or hidden.data_ptr() != seen["gate_in"].data_ptr()
            rows = SiteRows(
                gate_in=gate_in,
                expert_in=_rows(hidden) if apart else gate_in,
                logits=_rows(seen["logits"]),
                ids=_rows(ids),
                weights=_rows(weights),
            )
            if len(rows.ids) != len(self.steps[-1].valid) or len(rows.logits) != len(rows.ids):
                raise CaptureError(
                    f"{layer.name}: {len(rows.ids)} rows, but the step has {len(self.steps[-1].valid)}; layers that "
                    "see only part of the tokens cannot be recorded"
                )
            self.steps[-1].sites.append(rows)

        return hook


def _rows(values: torch.Tensor) -> torch.Tensor:
    """A copy [T, width] on the CPU: the model may reuse or change the original in place."""
    return values.detach().reshape(-1, values.shape[-1]).to("cpu", copy=True)


def _mask(mask: object, past: int, shape: torch.Size) -> torch.Tensor:
    """Which of this step's tokens [B, S] are real."""
    if mask is None:
        return torch.ones(shape, dtype=torch.bool)
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2 or mask.shape[1] not in (past + shape[1], shape[1]):
        raise CaptureError("the attention mask is not [batch, tokens]; use the dynamic cache, or no mask")
    return mask[:, -shape[1] :].bool().cpu()


def _logit_linear(layer: MoELayer) -> nn.Module | None:
    """The linear layer inside the router whose output is the logits, where there is one."""
    inner = [module for module in layer.router.modules() if isinstance(module, nn.Linear)]
    fitting = [module for module in inner if module is not layer.router and module.out_features == layer.num_experts]
    return fitting[-1] if fitting else None


def _output_logits(layer: MoELayer, output: object) -> torch.Tensor:
    """The logits among what the router returns: the first float tensor with a value for each expert."""
    members = output if isinstance(output, (tuple, list)) else (output,)
    for member in members:
        if isinstance(member, torch.Tensor) and member.is_floating_point() and member.shape[-1] == layer.num_experts:
            return member
    raise CaptureError(f"{layer.name}: the router {type(layer.router).__name__} returns no logits that can be recorded")
