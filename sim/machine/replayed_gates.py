"""Whose gates a model replays: its own, or those of another model (a transplant)."""

from __future__ import annotations

from dataclasses import replace

from sim.machine.model import Model
from sim.traces.header import ModelShape
from sim.verbs.names import models_for

SYNTHETIC = "synthetic_"
"""The name of a model that a preset imitates begins so in the header of synthetic gates."""


def replaying(model: Model, captured: str) -> Model:
    """``model`` where gates of the model ``captured`` are replayed: a transplant where that one has
    another name.
    """
    if model.gates_of is not None or _alnum(captured).startswith(_alnum(model.name)):
        return model
    return replace(model, gates_of=captured, sizes_of=model.name)


def check_gates(
    model: Model, shape: ModelShape, trace_name: str, null_experts: int = 0, draft_sites: int = 0
) -> None:
    """Raise ValueError unless a trace's gates are the model's, or a declared transplant.

    ``null_experts`` is how many of the trace's experts compute nothing, ``draft_sites`` how
    many of its sites draft tokens.
    """
    ours, theirs = (
        (model.own_sites, model.experts, model.top_k),
        (shape.sites - draft_sites, shape.experts, shape.top_k),
    )
    if ours != theirs:
        raise ValueError(
            f"trace {trace_name} has {_shape(theirs)} (sites x experts top-k), model"
            f" {model.name} {_shape(ours)}; to run this trace choose"
            f" {models_for(*theirs, shape.hidden, shape.expert_intermediate)}; for"
            f" gates of {model.name} moelab ask model={model.name} finds some, and moelab"
            f" synthesize like={model.name} makes some for trace.path=DIR"
        )
    if null_experts != model.null_experts:
        raise ValueError(
            f"of the {model.experts} experts of trace {trace_name} {null_experts} compute"
            f" nothing (no weights), of those of model {model.name} {model.null_experts}; set"
            f" ++model.null_experts={null_experts}"
        )
    if model.gates_of is not None:
        if model.gates_of != shape.name:
            raise ValueError(
                f"model {model.name} takes its gates from {model.gates_of}, but trace"
                f" {trace_name} was captured from {shape.name}; choose a trace of"
                f" {model.gates_of}, or override model.gates_of={shape.name}"
            )
    elif (model.hidden, model.expert_intermediate) != (shape.hidden, shape.expert_intermediate):
        raise ValueError(
            f"trace {trace_name} comes from {shape.name}, whose experts are {shape.hidden} x"
            f" {shape.expert_intermediate}; those of model {model.name} are {model.hidden} x"
            f" {model.expert_intermediate}; to replay the gates of one model with the sizes of"
            f" another say so: model.gates_of={shape.name} model.sizes_of={model.name}"
        )


def _alnum(name: str) -> str:
    """A model's name without its owner, case, signs, and the mark of synthetic gates."""
    own = name.rpartition("/")[2].lower().removeprefix(SYNTHETIC)
    return "".join(filter(str.isalnum, own))


def _shape(shape: tuple[int, int, int]) -> str:
    return f"{shape[0]} x {shape[1]} top-{shape[2]}"
