"""Records what routers see and choose while a model runs, without changing what it computes.

Hooks run at these places:

- Before the *stack* (the model around the layers): a step begins, and
  `capture.recording.positions` works out what its rows are.
- After each *router*: its gate input and logits are read.
- Before each *experts* module: the ids and weights that are really executed are read.
- After the stack: every site must have been recorded once.

The hooks copy on the model's device and never wait for the device. The copies go to the CPU
together, when enough have gathered or when they are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import nn

from capture.models.adapters import forward_arguments
from capture.models.discover import (
    DECODER,
    ENCODER,
    CaptureError,
    MoELayer,
    first_argument,
    logit_linear,
)
from capture.models.model_cache import given_cache
from capture.models.norms import attention_input
from capture.recording.positions import CacheGuard, PositionTracker, StepRows
from capture.recording.rows import Rows, join_rows

ROUTING_AND_INPUTS = ("logits", "gate_in", "expert_in")
RECORDABLE = (*ROUTING_AND_INPUTS, "attn_in")
FLUSH_BYTES = 64 << 20
_STORED = {"ids": torch.int16, "weights": torch.float32, "logits": torch.float32}
_WHOLE, _RECOMPUTED = -1, -2
"""In place of a member's index: the router returns the logits alone, or none at all."""


@dataclass(eq=False)
class _Site:
    """What one site has shown so far in the step in progress.

    ``member`` is the index of the logits in what the router returns, `_WHOLE` or `_RECOMPUTED`.
    """

    layer: MoELayer
    member: int | None = None
    gate_in: torch.Tensor | None = None
    output: Any = None
    logits: torch.Tensor | None = None
    attn_in: torch.Tensor | None = None


@dataclass(eq=False)
class _Step:
    """The copies of one step: by name, a tensor of T rows for each site of its stack, in order.

    Tensors keep the shapes that the model gave them. ``apart``: some experts were fed something
    other than the gate's input.
    """

    rows: StepRows
    copies: dict[str, list[torch.Tensor]]
    apart: bool = False


class RouterHooks:
    """Hooks on a model's MoE layers that record every step while the context is open.

    ``with RouterHooks(layers) as hooks: model(...)``; then ``hooks.take()`` returns the `Rows`
    recorded so far.

    - ``keep`` names what to record beside ids and weights, some of `RECORDABLE`.
    - ``eos_token_ids`` end a sequence: its rows are not valid from the step on that is fed one.
    - ``prompt_columns`` is how long the prompts are, padding included. Only where they are read in
      chunks it must be told: a chunk of one token looks like decode.
    - ``flush_bytes`` is how much may gather on the device before it is moved.

    Raise `CaptureError` for beams, cropped caches, texts that are continued without a cache, steps
    that skip sites, and a model that was compiled before the hooks were added. Such a model does
    not call the hooks: use `disable_compile=True` or an uncompiled model. Drafts that are all kept
    crop nothing: they cannot be told from the rest of a prompt, and are recorded as such.
    """

    def __init__(
        self,
        layers: Collection[MoELayer],
        eos_token_ids: Collection[int] = (),
        *,
        keep: Collection[str] = ROUTING_AND_INPUTS,
        prompt_columns: int = 0,
        flush_bytes: int = FLUSH_BYTES,
    ) -> None:
        unknown = sorted(set(keep) - set(RECORDABLE))
        if unknown:
            raise ValueError(f"keep names {unknown}, must be some of {RECORDABLE}")
        self.layers = list(layers)
        self._keep = frozenset(keep)
        self._columns = ("ids", "weights", *(name for name in RECORDABLE if name in self._keep))
        self._flush_bytes = flush_bytes
        self._sides = {
            side: [layer for layer in self.layers if layer.side == side]
            for side in (ENCODER, DECODER)
        }
        self.tracker = PositionTracker(
            eos_token_ids, bool(self._sides[ENCODER]), prompt_columns=prompt_columns
        )
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self._guard: CacheGuard | None = None
        self._open: _Step | None = None
        self._next_site = -1
        self._waiting: list[_Step] = []
        self._waiting_bytes = 0
        self._parts: list[Rows] = []

    def __enter__(self) -> RouterHooks:
        add = self._handles.append
        for side, layers in self._sides.items():
            if layers:
                add(
                    layers[0].stack.register_forward_pre_hook(
                        self._on_step(side, layers[0]), with_kwargs=True
                    )
                )
                add(layers[0].stack.register_forward_hook(self._on_step_end(layers[-1].site + 1)))
        for layer in self.layers:
            site = _Site(layer)
            add(layer.router.register_forward_hook(self._router_hook(site), with_kwargs=True))
            linear = logit_linear(layer.router, layer.num_experts)
            if linear is not None and "logits" in self._keep:
                add(linear.register_forward_hook(self._linear_hook(site)))
            if not layer.adapter.reads_router:
                add(
                    layer.experts.register_forward_pre_hook(
                        self._experts_hook(site), with_kwargs=True
                    )
                )
            if "attn_in" in self._keep:
                mixer, read = attention_input(layer)
                add(mixer.register_forward_pre_hook(self._mixer_hook(site, read), with_kwargs=True))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._guard is not None:
            self._guard.release()
        if kind is None and not self.tracker.num_steps:
            raise CaptureError(
                "no step was recorded: the model did not run, or it was compiled before the hooks"
                " were added; run it uncompiled"
            )

    def take(self) -> Rows:
        """Hand over the rows recorded since the last take; steps and sequences count on.

        Raise `CaptureError` if there are none.
        """
        self._flush()
        parts, self._parts = self._parts, []
        if not parts:
            raise CaptureError("nothing was recorded since the last take; run the model first")
        return join_rows(parts)

    # The stacks: rows become tokens

    def _on_step(self, side: str, layer: MoELayer) -> Callable[..., None]:
        names, first = forward_arguments(layer.stack), layer.site

        def hook(_stack: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = dict(zip(names, args, strict=False)) | kwargs
            ids = given.get("input_ids")
            shape = (given["inputs_embeds"] if ids is None else ids).shape[:2]
            device = (given["inputs_embeds"] if ids is None else ids).device
            tokens = torch.full(shape, -1, device=device) if ids is None else ids.detach().clone()
            cache = given_cache(given)
            past = 0 if cache is None else int(cache.get_seq_length())
            encoder = side == ENCODER
            rows = self.tracker.step(
                side, tokens, given.get("attention_mask"), past, encoder=encoder
            )
            self._watch(cache)
            self._open = _Step(rows, {name: [] for name in self._columns})
            self._next_site = first

        return hook

    def _watch(self, cache: Any) -> None:
        if cache is not None and (self._guard is None or self._guard.cache is not cache):
            if self._guard is not None:
                self._guard.release()
            self._guard = CacheGuard(cache, self.tracker)

    def _on_step_end(self, end: int) -> Callable[..., None]:
        def hook(_stack: nn.Module, _args: object, _output: object) -> None:
            step, self._open = self._open, None
            if step is None or self._next_site != end:
                raise CaptureError(
                    f"step {self.tracker.num_steps - 1}: sites {self._next_site} to {end - 1} were"
                    " not recorded; steps that skip sites, and layers compiled before the hooks"
                    " were added, are not supported"
                )
            self._waiting.append(step)
            self._waiting_bytes += sum(
                values.nbytes for copies in step.copies.values() for values in copies
            )
            if self._waiting_bytes >= self._flush_bytes:
                self._flush()

        return hook

    # The routers and the experts

    def _router_hook(self, site: _Site) -> Callable[..., None]:
        read, adapter = first_argument(site.layer.router), site.layer.adapter

        def hook(
            _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object
        ) -> None:
            site.gate_in = args[0] if args else read(args, kwargs)  # type: ignore[assignment]
            site.output = output
            if adapter.reads_router:
                self._record(site, site.gate_in, *adapter.choice(site.layer.experts, (), output))

        return hook

    def _linear_hook(self, site: _Site) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: object, output: torch.Tensor) -> None:
            site.logits = output

        return hook

    def _mixer_hook(self, site: _Site, read: Callable[..., object]) -> Callable[..., None]:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            values = read(args, kwargs)
            assert isinstance(values, torch.Tensor)
            site.attn_in = _copy(values)

        return hook

    def _experts_hook(self, site: _Site) -> Callable[..., None]:
        adapter = site.layer.adapter

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            arguments = args if len(args) >= 3 else adapter.arguments(args, kwargs)
            self._record(site, arguments[0], *adapter.choice(module, arguments, site.output))

        return hook

    def _record(
        self, site: _Site, hidden: torch.Tensor | None, ids: torch.Tensor, weights: torch.Tensor
    ) -> None:
        """Copy what the site saw, since the model may change the originals in place."""
        layer, step, gate_in = site.layer, self._open, site.gate_in
        if step is None or gate_in is None or hidden is None or self._next_site != layer.site:
            raise CaptureError(
                f"{layer.name}: experts ran out of turn; sites must run once a step, in order"
            )
        self._next_site += 1
        copies, keep = step.copies, self._keep
        if ids.numel() != step.rows.count * layer.top_k:
            raise CaptureError(
                f"{layer.name}: choices {list(ids.shape)}, but the step has {step.rows.count} rows"
                f" that choose {layer.top_k}; layers that see only part of the tokens cannot be"
                " recorded"
            )
        copies["ids"].append(ids.clone())
        copies["weights"].append(_copy(weights))
        if "logits" in keep:
            logits = site.logits
            copies["logits"].append(
                _copy(_output_logits(site, weights) if logits is None else logits)
            )
        if "gate_in" in keep:
            copies["gate_in"].append(_copy(gate_in))
        if "expert_in" in keep:
            together = (
                hidden.shape[-1] == gate_in.shape[-1] and hidden.data_ptr() == gate_in.data_ptr()
            )
            together = together or layer.adapter.reads_router
            step.apart |= not together
            copies["expert_in"].append(
                copies["gate_in"][-1] if together and "gate_in" in keep else _copy(hidden)
            )
        if site.attn_in is not None:
            copies["attn_in"].append(site.attn_in)
        site.gate_in = site.output = site.logits = site.attn_in = None

    # From the device

    def _flush(self) -> None:
        """Move the waiting steps to the CPU, one transfer for each kind of values."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        runs: list[list[_Step]] = []
        for step in waiting:
            if not runs or runs[-1][0].rows.side != step.rows.side:
                runs.append([])
            runs[-1].append(step)
        self._parts += [self._rows_of(steps) for steps in runs]

    def _rows_of(self, steps: Sequence[_Step]) -> Rows:
        """One `Rows` of consecutive steps of one stack."""

        def column(name: str) -> Any:
            return torch.cat([getattr(step.rows, name) for step in steps]).cpu().numpy()

        def by_site(name: str) -> torch.Tensor | None:
            if name not in steps[0].copies:
                return None
            stacked = [
                torch.stack(
                    [values.detach().reshape(step.rows.count, -1) for values in step.copies[name]],
                    dim=1,
                )
                for step in steps
            ]
            own = torch.cat(stacked) if len(stacked) > 1 else stacked[0]
            # float32 holds any router's arithmetic; inputs keep the model's dtype.
            own = own.to(_STORED.get(name, own.dtype))
            return self._at_all_sites(name, own.cpu(), steps[0].rows.side)

        counts = [step.rows.count for step in steps]
        ids, weights = by_site("ids"), by_site("weights")
        assert ids is not None
        assert weights is not None
        null = _null_choices(self.layers[0], ids, weights)
        logits = by_site("logits")
        return Rows(
            step=np.repeat([step.rows.number for step in steps], counts).astype(np.int32),
            phase=np.repeat([step.rows.phase for step in steps], counts).astype(np.uint8),
            sequence=column("sequence").astype(np.int32),
            position=column("position").astype(np.int32),
            token=column("token").astype(np.int32),
            valid=column("valid").astype(np.bool_),
            ids=ids.masked_fill(null, -1).numpy(),
            weights=weights.masked_fill(null, 0).numpy(),
            logits=None if logits is None else logits.numpy(),
            gate_in=by_site("gate_in"),
            expert_in=by_site("expert_in") if any(step.apart for step in steps) else None,
            attn_in=by_site("attn_in"),
        )

    def _at_all_sites(self, name: str, own: torch.Tensor, side: str) -> torch.Tensor:
        """Values of one stack's sites, widened to all sites: -1, 0 or NaN at the others."""
        layers = self._sides[side]
        if len(layers) == len(self.layers):
            return own
        absent = {"ids": -1, "weights": 0}.get(name, torch.nan)
        whole = torch.full((len(own), len(self.layers), *own.shape[2:]), absent, dtype=own.dtype)
        whole[:, layers[0].site : layers[-1].site + 1] = own
        return whole


def _copy(values: torch.Tensor) -> torch.Tensor:
    """A copy on the same device, detached from autograd."""
    return values.detach().clone() if values.requires_grad else values.clone()


def _null_choices(layer: MoELayer, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Which choices are of experts that compute nothing, bool [N, S, K]."""
    null = (ids < 0) | (ids >= layer.num_experts)
    if layer.num_classes > layer.num_experts:
        # Some models turn the choice of a null expert into expert 0 with weight 0.
        null |= weights == 0
    return null


def _output_logits(site: _Site, weights: torch.Tensor) -> torch.Tensor:
    """The logits that the router returned, or, if it returns none, its linear layer in float32."""
    member = site.member
    if member is None:
        # The place is the same at every call, so it is looked for once.
        member = site.member = _logits_member(site.layer, site.output, weights)
    if member >= 0:
        return site.output[member]  # type: ignore[no-any-return]
    if member == _WHOLE:
        return site.output  # type: ignore[no-any-return]
    linear = logit_linear(site.layer.router, site.layer.num_experts)
    assert linear is not None
    assert site.gate_in is not None
    bias = None if linear.bias is None else linear.bias.detach().float()
    return nn.functional.linear(site.gate_in.detach().float(), linear.weight.detach().float(), bias)


def _logits_member(layer: MoELayer, output: object, weights: torch.Tensor) -> int:
    """Which member of a router's output is the logits: the first with a value for each class.

    The router of dense experts returns scores and logits of one shape; there the logits come last.
    Raise `CaptureError` if there are no logits and no linear layer to compute them with.
    """
    members = output if isinstance(output, (tuple, list)) else (output,)
    fitting = [
        place
        for place, member in enumerate(members)
        if isinstance(member, torch.Tensor)
        and member.is_floating_point()
        and member.shape[-1] == layer.num_classes
        and member is not weights
    ]
    if fitting:
        return _WHOLE if members is not output else fitting[-1 if layer.adapter.reads_router else 0]
    if logit_linear(layer.router, layer.num_experts) is not None:
        return _RECOMPUTED
    raise CaptureError(
        f"{layer.name}: the router {type(layer.router).__name__} returns no logits that can be"
        " recorded; record with logits=no"
    )
