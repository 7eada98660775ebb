"""Which gates a run has where its words name no trace: those of its model (contract C173).

They are recorded ones of the model's shape where a bundled trace has them, else synthetic ones of
the model's preset. Synthetic gates are made once and kept in `KEPT`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sim.machine.model import Model
from sim.setup.parts import make_model
from sim.synthetic.preset import Preset, load_fit, load_preset, preset_names
from sim.synthetic.synthesis import Request, synthesize_like
from sim.traces.trace import TraceError, write_trace
from sim.values.fields import HEADER_FILE
from sim.values.places import PRESETS, ROOT, quoted
from sim.values.version import VERSION
from sim.verbs.names import names, of_file

KEPT = Path("outputs/gates")
"""The folder of synthetic gates, one folder for each preset and request."""
DIGITS = 8
USUAL = Request("", 24, sequences=8, prompt_tokens=48)
"""What is synthesised where nothing else is asked for."""


@dataclass(frozen=True)
class OwnGates:
    """The gates of a model: the ``path`` of their trace, and what ``told`` says of them.

    ``is_made``: they are synthetic, and may be made again. ``gates_of``: the model that they are
    of, where its experts have another size.
    """

    path: str
    told: str
    is_made: bool = False
    gates_of: str | None = None

    def words(self, model: Model) -> list[str]:
        """The overrides that choose these gates for ``model``."""
        sizes = [f"model.{key}={value}" for key, value in self.of_model(model).items()]
        return [f"trace.path={quoted(self.path)}", *sizes]

    def of_model(self, model: Model) -> dict[str, str]:
        """The values of a model that has these gates, where they differ from those of ``model``."""
        return {"gates_of": self.gates_of, "sizes_of": model.name} if self.gates_of else {}


def with_gates(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of plain values in which a trace is chosen: that of its words, else the
    gates of its model.

    Raise ValueError for a model that cannot be, and for one that has no gates.
    """
    if config["trace"].get("path") is not None:
        return dict(config)
    if not isinstance(config.get("model"), Mapping):
        raise ValueError(f"model={config.get('model')} must be a section of values, as in conf/")
    model = make_model(config)
    gates = own_gates(model)
    return {
        **config,
        "trace": {**config["trace"], "path": gates.path},
        "model": {**config["model"], **gates.of_model(model)},
    }


def own_gates(model: Model, request: Request = USUAL) -> OwnGates:
    """The gates of ``model``. ``request``: how many of them, where they are synthetic.

    Raise ValueError where there are none, with the ways to some.
    """
    if (name := recorded(model)) is not None:
        return OwnGates(_bundled()[name][0], f"gates recorded from {name}")
    preset = preset_of(model)
    if preset is None:
        raise ValueError(
            f"{lacking(model)}: capture or import a trace and name it by trace.path=DIR (moelab"
            " capture --help, moelab import --help), or lend it the statistics of the nearest model"
            " (docs/ask.md, A model of another shape)"
        )
    shape = preset.shape
    is_alike = (shape.hidden, shape.expert_intermediate) == (
        model.hidden,
        model.expert_intermediate,
    )
    near = f", borrowed from {preset.nearest}" if preset.nearest else ""
    return OwnGates(
        str(_made(preset, request)),
        f"SYNTHETIC gates, from published statistics of {preset.name}{near}",
        is_made=True,
        gates_of=None if is_alike else shape.name,
    )


def has_gates(model: Model) -> bool:
    """Whether a run of ``model`` finds gates where its words name none."""
    return recorded(model) is not None or preset_of(model) is not None


def lacking(model: Model) -> str:
    """Says that a model has no gates."""
    shape = f"{model.sites} x {model.experts} top-{model.top_k}"
    return f"there are no gates of {shape} for model {model.name}, recorded or synthetic"


def recorded(model: Model) -> str | None:
    """The bundled trace whose gates are this model's, or whose gates it declares; None if there is
    none.
    """
    for name, (_, shape) in _bundled().items():
        same = all(
            shape[key] == getattr(model, key)
            for key in ("sites", "experts", "top_k", "hidden", "expert_intermediate")
        )
        if same or model.gates_of == shape["name"]:
            return name
    return None


@lru_cache(maxsize=64)
def preset_of(model: Model) -> Preset | None:
    """The preset of the model's name, or else the first of its shape; None if there is none."""
    known = preset_names()
    for name in sorted(known, key=lambda one: one != model.name):
        shape = load_preset(name).shape
        if (shape.sites, shape.experts, shape.top_k) == (model.sites, model.experts, model.top_k):
            return load_preset(name)
    return None


@cache
def _bundled() -> dict[str, tuple[str, dict[str, Any]]]:
    """The path of every bundled trace, and the model that it was recorded from, by name."""
    paths = {name: of_file("trace", name)["path"] for name in names("trace")}
    return {
        name: (path, json.loads((ROOT / path / HEADER_FILE).read_text(encoding="utf-8"))["model"])
        for name, path in paths.items()
        if path is not None
    }


def _made(preset: Preset, request: Request) -> Path:
    """The folder of the synthetic gates that ``request`` asks for; they are made where they are
    not there.
    """
    depth = min(request.lookahead, min(map(len, preset.layers)) - 1)
    asked = {**asdict(request), "like": preset.name, "lookahead": depth}
    place = KEPT / f"{preset.name}-{_digest(json.dumps(asked))}"
    if not (place / HEADER_FILE).is_file():
        made = synthesize_like(preset, load_fit(preset, preset.reading(None)), Request(**asked))
        try:
            write_trace(place, made.trace, {})
        except (TraceError, OSError):
            # Another process may have made the same gates meanwhile.
            if not (place / HEADER_FILE).is_file():
                raise
    return place


def _digest(asked: str) -> str:
    """The digest of all that synthetic gates depend on: the request and what makes them."""
    return hashlib.sha256(f"{asked}{_makers()}".encode()).hexdigest()[:DIGITS]


@cache
def _makers() -> str:
    """The digest of the code that makes and writes synthetic gates, and of its presets."""
    found = hashlib.sha256(f"{VERSION} {np.__version__}".encode())
    sources = (*(ROOT / "sim" / name for name in ("synthetic", "traces")), PRESETS)
    for path in sorted(path for folder in sources for path in folder.rglob("*.*")):
        if path.suffix in (".py", ".yaml", ".json"):
            found.update(path.read_bytes())
    return found.hexdigest()
