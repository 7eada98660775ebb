"""The parts of a run: the sections of a configuration as typed objects, made in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from sim.core.loader import LAYER, Loader
from sim.machine.hardware import Hardware
from sim.machine.kernels import Kernels
from sim.machine.model import Model
from sim.machine.precision import PRECISIONS, bits_of_file, says_dense_bits
from sim.policies.base import (
    CachePolicy,
    Payload,
    Placement,
    Policy,
    PrecisionSelector,
    Predictor,
)
from sim.policies.requires import Requires
from sim.process.shared import Shared
from sim.setup.choices import TraceChoice, WorkloadChoice
from sim.setup.own_failures import ended, is_from_outside
from sim.setup.sections import make_object
from sim.setup.whole import with_whole
from sim.values.places import CONF, name_of

_NAMES = ("name", "gates_of", "sizes_of")
_KINDS: Mapping[str, type] = {
    "model": Model,
    "hardware": Hardware,
    "trace": TraceChoice,
    "workload": WorkloadChoice,
    "loader": Loader,
    "kernels": Kernels,
}
"""What the sections become that are no policies; those may be of any class
(`sim.setup.own_policies.check_said`).
"""

LATER = "kernels"
"""A section that configurations of older runs do not have."""

_LASTING = Shared(64)
"""Models and machines by the values that they are made of. They never change, and many runs have
the same ones, so one object serves all runs of a process.
"""


@dataclass(frozen=True)
class Parts:
    """What a run is made of: a field for each section of a configuration that has a ``_target_``.

    Policies are fresh and belong to one run, because they remember what they see. Models and
    machines are shared by the runs of a process.
    """

    model: Model
    hardware: Hardware
    trace: TraceChoice
    workload: WorkloadChoice
    predictor: Predictor
    cache: CachePolicy
    ram_cache: CachePolicy
    precision: PrecisionSelector
    placement: Placement
    payload: Payload
    loader: Loader
    kernels: Kernels

    def policies(self) -> dict[str, Policy]:
        """The policies by their section of the configuration."""
        return {
            "predictor": self.predictor,
            "cache": self.cache,
            "ram_cache": self.ram_cache,
            "precision": self.precision,
            "placement": self.placement,
            "payload": self.payload,
        }

    def of_trace(self) -> Requires:
        """What the policies together require of the trace's columns."""
        asked = [policy.requires for policy in self.policies().values()]
        return Requires(
            lookahead_sites=max(one.lookahead_sites for one in asked),
            preferences=any(one.preferences for one in asked),
            active_shares=any(one.active_shares for one in asked),
        )


PARTS = tuple(field.name for field in fields(Parts))


def make_parts(config: Mapping[str, Any]) -> Parts:
    """The parts that the sections of ``config`` (plain values, resolved) describe.

    Raise ValueError, naming the section and its file, for what a section's class refuses.
    """
    given = {LATER: {"_target_": "sim.machine.Kernels"}, **config}
    model, others = make_model(config), {name: make_part(given, name) for name in PARTS[2:]}
    # Layers that draft tokens are sites of the run where their experts are offloaded.
    drafts = others["workload"].speculation.sites
    return Parts(
        model=model.with_drafts(drafts) if drafts else model,
        hardware=make_hardware(config),
        **others,
    )


def with_layer_staged(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of plain values whose ``loader.staging_slots`` is a number: the model's
    experts of a layer, where it was `LAYER`.
    """
    loader = config["loader"]
    if loader.get("staging_slots") != LAYER:
        return dict(config)
    return {**config, "loader": {**loader, "staging_slots": make_model(config).stored_experts}}


def make_model(config: Mapping[str, Any]) -> Model:
    """The model of a configuration, the same object for the same values. Raise ValueError.

    Where nobody says the bits of its dense weights, and its experts are in a file of llama.cpp, these
    are the file's, too (contract C87).
    """
    bits = None if says_dense_bits(config) else bits_of_file(_precisions(config.get("precision")))

    def made() -> Model:
        model: Model = with_whole(make_part(config, "model"))
        return model if bits is None else replace(model, dense_bits=bits)

    model: Model = _LASTING.get(("model", repr(config["model"]), bits), made)
    return model


def _precisions(section: object) -> set[str]:
    """The precisions that a section names, wherever in it."""
    if isinstance(section, Mapping):
        return set().union(*map(_precisions, section.values()))
    if isinstance(section, list | tuple):
        return set().union(*map(_precisions, section))
    return {section} if isinstance(section, str) and section in PRECISIONS else set()


def make_hardware(config: Mapping[str, Any]) -> Hardware:
    """The machine of a configuration, the same object for the same values. Raise ValueError."""
    hardware: Hardware = _LASTING.get(
        ("hardware", repr(config["hardware"])), lambda: make_part(config, "hardware")
    )
    return hardware


def make_part(config: Mapping[str, Any], name: str) -> Any:
    """One part of a configuration, made anew. Raise ValueError, naming the section and its file."""
    try:
        made = make_object(config[name], name)
    # A constructor may refuse its arguments by any exception, and the user chose the arguments.
    except Exception as error:
        told = f"{config[name]['_target_']} {ended(error)}" if is_from_outside(error) else error
        raise ValueError(f"{_source(name, config[name])}: {told}") from error
    if "_target_" not in config[name]:
        raise ValueError(
            f"{name}: the chosen file has no _target_, the class that it makes; add _target_:"
            " MODULE.CLASS to it"
        )
    for key, told in config[name].items():
        # A run's files have names as text: of another kind nobody reads them back.
        is_none = told is None and key != "name"
        if key in _NAMES and not (isinstance(told, str) or is_none):
            raise ValueError(f"{name}.{key}={told!r} must be text; write it between quotes")
    kind = _KINDS.get(name, object)
    if not isinstance(made, kind):
        raise ValueError(
            f"{_source(name, config[name])}: {name}._target_={config[name]['_target_']} makes a"
            f" {type(made).__name__}, and must make a {kind.__name__}, as the files of"
            f" conf/{name} do"
        )
    return made


def _source(name: str, section: Mapping[str, Any]) -> str:
    """The group of a section, with its file in ``conf/`` where the section's ``name`` tells it."""
    file = CONF / name / f"{section.get('name')}.yaml"
    return f"{name} ({name_of(file)})" if file.is_file() else name
