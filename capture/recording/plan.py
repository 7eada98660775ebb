"""The plan of a capture: what of a model can be recorded, found by trying it on a few tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from capture.models.discover import CaptureError, MoELayer
from capture.models.expert_forms import UP, form_of
from capture.models.norms import attention_input, attention_norms, gate_norms
from capture.recording.lookahead import (
    Scorer,
    is_linear,
    lookahead_scores,
    router_linear,
    router_scorer,
)
from capture.recording.prompts import Passage
from capture.recording.rows import Rows
from capture.recording.run import run_batch
from capture.recording.settings import DEFAULT_LOOKAHEAD, DEFAULT_SPARSITIES, Settings
from sim.traces.header import NORMS

PROBE_TOKENS = 8
# Rounding makes a prompt in chunks differ by 1 % from the prompt read whole, a lost state by more than 10 %.
CHUNK_TOLERANCE = 0.05
T = TypeVar("T")
Scales = tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]


@dataclass(frozen=True)
class Plan:
    """What is recorded.

    - ``depth``, ``position``, ``norms``: lookahead, as in `Settings`; a depth of 0 is none.
    - ``sparsities``: those of the measurement inside experts; none for no measurement.
    - ``expert_intermediate``: channels of an expert.
    - ``scorers``, ``scales``: each site's router as a function, and the norms' scales.
    - ``routers``: tensors of the routers that the trace keeps.
    - ``left_out``: what this model does not allow and nobody asked for: the reason, by setting.
    - ``quantity``: what the sparsities are measured of.
    - ``unmeasured``: sites whose experts cannot be measured, with the reason.
    """

    depth: int
    position: str
    norms: tuple[str, ...]
    sparsities: tuple[float, ...]
    expert_intermediate: int
    scorers: Sequence[Scorer] = ()
    scales: Scales | None = None
    routers: dict[str, torch.Tensor] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    quantity: str = UP
    unmeasured: dict[int, str] = field(default_factory=dict)

    def keep(self, settings: Settings) -> set[str]:
        """What the hooks must record beside ids and weights."""
        kept = {"logits"} if settings.logits else set()
        if self.depth or self.sparsities or settings.hidden_sequences:
            kept.add("gate_in")
        if self.sparsities:
            kept.add("expert_in")
        if self.depth and self.position != "gate_in":
            kept.add("attn_in")
        return kept

    def lookahead(
        self, layers: Sequence[MoELayer], rows: Rows, chosen: Any
    ) -> dict[str, torch.Tensor]:
        """Lookahead scores [D, S, J, E] of the D rows ``chosen`` (a mask or indices), by norm."""
        inputs = rows.gate_in if self.position == "gate_in" else rows.attn_in
        if not self.depth or inputs is None:
            return {}
        fed = inputs[torch.from_numpy(chosen)]
        ahead = self.position == "next_attn_in"
        return {
            norm: lookahead_scores(
                layers,
                self.scorers,
                fed,
                self.depth,
                self.scales if norm == "renormed" else None,
                next_site=ahead,
            )
            for norm in self.norms
        }


def make_plan(model: Any, layers: Sequence[MoELayer], passage: Passage, settings: Settings) -> Plan:
    """The plan for ``settings``.

    Raise `CaptureError` for a value that they state and this model does not allow. What they leave
    open is recorded as far as the model allows.
    """
    left_out: dict[str, str] = {}

    def allowed(stated: object, key: str, try_it: Callable[[], T], otherwise: T) -> T:
        try:
            return try_it()
        except CaptureError as error:
            if stated is not None:
                raise
            left_out[key] = str(error)
            return otherwise

    if settings.lookahead and settings.lookahead >= len(layers):
        raise CaptureError(
            f"lookahead={settings.lookahead} must be below {len(layers)}, the sites of the model: no"
            " site lies further ahead"
        )
    if settings.prefill_chunk:
        _check_chunks(model, layers, passage, settings.prefill_chunk)
    inside = allowed(settings.sparsities or None, "sparsities", lambda: _inside(layers), Inside())
    width = inside.width
    sparsities = DEFAULT_SPARSITIES if settings.sparsities is None else settings.sparsities
    sparsities = sparsities if width else ()
    depth = (
        (DEFAULT_LOOKAHEAD if settings.logits else 0)
        if settings.lookahead is None
        else settings.lookahead
    )
    scorers: Sequence[Scorer] = ()
    routers: dict[str, torch.Tensor] = {}
    scales, norms = None, settings.norms or NORMS
    if depth:
        rows = _probe(model, layers, passage)
        none: Sequence[Scorer] = ()
        found = allowed(settings.lookahead, "lookahead", lambda: _scorers(layers, rows), none)
        scorers, depth = found, depth if found else 0
    if depth:
        position = settings.lookahead_position
        if position != "gate_in":
            for layer in layers:
                attention_input(layer)
        routers = _router_tensors(layers, rows)
        if "renormed" in norms:
            scales = allowed(
                settings.norms, "norms", lambda: _scales(model, layers, position), None
            )
            norms = norms if scales else ("raw",)
        if scales is not None:
            routers["norm_scale"] = torch.stack([scale.float().cpu() for scale in scales[1]])
            if position != "gate_in":
                routers["attention_norm_scale"] = torch.stack(
                    [scale.float().cpu() for scale in scales[0]]
                )
    return Plan(
        depth=depth,
        position=settings.lookahead_position,
        norms=tuple(norms) if depth else (),
        sparsities=sparsities,
        expert_intermediate=width or _stated_width(layers[0]),
        scorers=scorers,
        scales=scales,
        routers=routers,
        left_out=left_out,
        quantity=inside.quantity,
        unmeasured=inside.unmeasured,
    )


@dataclass(frozen=True)
class Inside:
    """What can be measured inside experts.

    ``width``: channels of an expert, 0 if nothing can be measured. ``quantity``: what is measured
    of a channel. ``unmeasured``: sites that cannot be measured, with the reason.
    """

    width: int = 0
    quantity: str = UP
    unmeasured: dict[int, str] = field(default_factory=dict)


def _inside(layers: Sequence[MoELayer]) -> Inside:
    """What can be measured inside the experts of these layers.

    Raise `CaptureError` where no site can be measured, where a feed-forward block's cannot, or
    where sites differ in what would be measured.
    """
    forms, unmeasured = [], {}
    for layer in layers:
        try:
            forms.append(form_of(layer))
        except CaptureError as error:
            # Experts inside attention are left out; those of feed-forward blocks are still worth
            # measuring.
            if layer.kind != "attn":
                raise
            unmeasured[layer.site] = str(error)
    if not forms:
        raise CaptureError(f"{next(iter(unmeasured.values()))}; record with sparsities=")
    found = sorted({(form.width, form.told, form.width_in) for form in forms})
    if len(found) > 1:
        told = "; ".join(
            f"{width} channels of {quantity}, {fed} inputs" for width, quantity, fed in found
        )
        raise CaptureError(f"sites differ in their experts ({told}); record with sparsities=")
    return Inside(found[0][0], found[0][1], unmeasured)


def _stated_width(layer: MoELayer) -> int:
    config = getattr(layer.stack, "config", None)
    ffn = getattr(config, "ffn_config", None)
    for holder, key in (
        (config, "moe_intermediate_size"),
        (config, "expert_ffn_hidden_size"),
        (ffn, "ffn_hidden_size"),
        (config, "intermediate_size"),
        (config, "d_ff"),
        (config, "decoder_ffn_dim"),
    ):
        value = getattr(holder, key, None)
        if isinstance(value, int) and value > 0:
            return value
    raise CaptureError(f"{layer.name}: cannot tell the width of its experts")


def _probe(model: Any, layers: Sequence[MoELayer], passage: Passage) -> Rows:
    few = Passage(passage.prompt, passage.prefill[:PROBE_TOKENS], passage.prefill[:PROBE_TOKENS])
    # Two tokens are decoded since an encoder-decoder model visits its decoder's sites in decode
    # only.
    return run_batch(model, layers, [few], 2, keep=("logits", "gate_in"))


def _check_chunks(model: Any, layers: Sequence[MoELayer], passage: Passage, chunk: int) -> None:
    """Raise `CaptureError` if routers are fed something else where a prompt is read in chunks.

    Jamba in transformers 5.23 begins every chunk with an empty state.
    """
    tokens = (passage.prefill * PROBE_TOKENS)[:PROBE_TOKENS]
    few, chunk = Passage(passage.prompt, tokens, tokens), min(chunk, PROBE_TOKENS // 2)
    fed = [
        run_batch(model, layers, [few], 1, keep=("gate_in",), prefill_chunk=size).gate_in
        for size in (0, chunk)
    ]
    whole, cut = (values[chunk:].float() for values in fed if values is not None)
    error = ((whole - cut).norm(dim=-1) / whole.norm(dim=-1)).median().item()
    if error > CHUNK_TOLERANCE:
        raise CaptureError(
            f"{type(model).__name__} computes something else of a prompt in chunks: what routers"
            f" are fed differs by {error:.0%} from the prompt read whole, since the model does not"
            " carry its state from chunk to chunk; record with prefill_chunk=0"
        )


def _seen(rows: Rows, site: int) -> tuple[torch.Tensor, torch.Tensor]:
    assert rows.logits is not None
    assert rows.gate_in is not None
    logits = rows.logits[:, site]
    visited = torch.from_numpy(~np.isnan(logits).any(-1))
    return rows.gate_in[visited, site], torch.from_numpy(logits)[visited]


def _scorers(layers: Sequence[MoELayer], rows: Rows) -> Sequence[Scorer]:
    return [router_scorer(layer, *_seen(rows, layer.site)) for layer in layers]


def _router_tensors(layers: Sequence[MoELayer], rows: Rows) -> dict[str, torch.Tensor]:
    """Weights and biases of the routers, stacked by site; empty unless all routers are linear."""
    if not all(is_linear(layer, *_seen(rows, layer.site)) for layer in layers):
        return {}
    linears = [router_linear(layer) for layer in layers]
    tensors = {"router_weight": torch.stack([weight for weight, _ in linears])}
    biases = [bias for _, bias in linears if bias is not None]
    if biases:
        tensors["router_bias"] = torch.stack(biases)
    return tensors


def _scales(model: Any, layers: Sequence[MoELayer], position: str) -> Scales:
    gate = gate_norms(model, layers)
    return (gate if position == "gate_in" else attention_norms(model, layers), gate)
