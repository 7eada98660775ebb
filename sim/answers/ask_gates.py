"""Which gates answer for a model: recorded ones of its shape, or synthetic ones of its preset; and
the overrides that all runs of a question share.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sim.machine.model import Model
from sim.setup.configure import configure
from sim.setup.parts import make_hardware, make_model
from sim.setup.refusals import checked_settings
from sim.synthetic.preset import Preset, load_fit, load_preset, preset_names
from sim.synthetic.synthesis import Request, synthesize_like
from sim.traces.trace import write_trace
from sim.values.fields import HEADER_FILE
from sim.values.places import ROOT
from sim.verbs.asking import SPLITS
from sim.verbs.names import names, of_file
from sim.verbs.words import Words

GATES = "gates"
"""The folder of synthetic gates inside that of the answer."""
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Gates:
    """The gates of an answer: ``words`` choose them for a run, ``told`` says what they are."""

    words: tuple[str, ...]
    told: str


def recorded(model: Model) -> str | None:
    """The bundled trace whose gates are this model's, or whose gates it declares; None if there is
    none.
    """
    for name in names("trace"):
        place = ROOT / str(of_file("trace", name)["path"]) / HEADER_FILE
        shape = json.loads(place.read_text(encoding="utf-8"))["model"]
        same = all(
            shape[key] == getattr(model, key)
            for key in ("sites", "experts", "top_k", "hidden", "expert_intermediate")
        )
        if same or model.gates_of == shape["name"]:
            return name
    return None


def preset_of(model: Model) -> Preset | None:
    """The preset of the model's name, or else the first of its shape; None if there is none."""
    known = preset_names()
    for name in sorted(known, key=lambda one: one != model.name):
        shape = load_preset(name).shape
        if (shape.sites, shape.experts, shape.top_k) == (model.sites, model.experts, model.top_k):
            return load_preset(name)
    return None


def choose(model: Model, given: Sequence[str], request: Request, place: Path) -> Gates:
    """The gates that answer for ``model``: those that ``given`` words name, else recorded ones of
    its shape, else synthetic ones, which are written to ``place``.

    Raise ValueError where there are none, with the ways to some.
    """
    if given:
        return Gates(tuple(given), "gates as given")
    if (name := recorded(model)) is not None:
        return Gates((f"trace={name}",), f"gates recorded from {name}")
    preset = preset_of(model)
    if preset is None:
        raise ValueError(
            f"there are no gates of {model.sites} x {model.experts} top-{model.top_k} for model"
            f" {model.name}, recorded or synthetic: capture or import a trace and name it by"
            " trace.path=DIR (moelab capture --help, moelab import --help)"
        )
    depth = min(request.lookahead, min(map(len, preset.layers)) - 1)
    one = Request(
        preset.name,
        request.tokens,
        sequences=request.sequences,
        prompt_tokens=request.prompt_tokens,
        lookahead=depth,
    )
    made = synthesize_like(preset, load_fit(preset, preset.reading(None)), one)
    write_trace(place, made.trace, {})
    words = [f"trace.path={place.absolute()}"]
    if (made.trace.header.model.hidden, made.trace.header.model.expert_intermediate) != (
        model.hidden,
        model.expert_intermediate,
    ):
        words += [f"model.gates_of={made.trace.header.model.name}", f"model.sizes_of={model.name}"]
    near = f", borrowed from {preset.nearest}" if preset.nearest else ""
    return Gates(tuple(words), f"SYNTHETIC gates, from published statistics of {preset.name}{near}")


def _gpus(own: Mapping[str, str]) -> list[str]:
    """The words for so many GPUs of a machine (contract C156)."""
    count, split = int(own.get("gpus", "1")), own.get("split", SPLITS[0])
    return [f"devices={split}_2", f"hardware.devices.count={count}"] if count > 1 else []


def asked(words: Words, place: Path) -> tuple[list[str], str, Model]:
    """The overrides that all runs of a question share: its model, its machine, its own ones, and
    gates; what is to be told of the gates; and the model. Synthetic gates are written into
    ``place``.

    Raise ValueError for a model or a machine that cannot be, and where there are no gates.
    """
    own = words.own
    trace = [word for word in words.overrides if word.startswith(("trace=", "trace.path="))]
    common = [
        f"model={own['model']}",
        f"hardware={own['machine']}",
        *_gpus(own),
        *(word for word in words.overrides if word not in trace),
    ]
    # With any trace: none is read yet.
    config = checked_settings(configure(*common, "budget=fit", "outputs=summary")[0])
    model = make_model(config)
    make_hardware(config)
    request = Request(
        "",
        int(own.get("tokens", "24")),
        sequences=int(own.get("sequences", "8")),
        prompt_tokens=int(own.get("prompt_tokens", "48")),
    )
    gates = choose(model, trace, request, place / GATES)
    return [*common, *gates.words], gates.told, model
