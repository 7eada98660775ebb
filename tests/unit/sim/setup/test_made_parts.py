"""The parts of a run are made of their sections; models and machines once for equal values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib import import_module
from inspect import signature
from math import inf, nan
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import DictConfig

from sim.policies.requires import Requires
from sim.setup import parts as module
from sim.setup.parts import (
    PARTS,
    Parts,
    make_hardware,
    make_model,
    make_part,
    make_parts,
    with_layer_staged,
)
from sim.setup.refusals import checked_settings
from sim.verbs.names import of_file

Configure = Callable[..., DictConfig]


def test_models_and_machines_are_made_once_for_equal_values() -> None:
    model, hardware = of_file("model", "tiny_mixtral"), of_file("hardware", "rtx4090_pcie4")
    config = {"model": model, "hardware": hardware}
    assert make_model(config) is make_model({"model": {**model}})
    assert make_model({"model": {**model, "name": "other"}}) is not make_model(config)
    assert make_hardware(config) is make_hardware({"hardware": {**hardware}})
    assert make_hardware({"hardware": {**hardware, "memory_gib": 9}}).memory_gib == 9


@pytest.mark.parametrize(
    ("precision", "said", "bits"),
    [
        ({"_target_": "x", "precision": "q4_k_m"}, {}, 4.84),
        ({"_target_": "x", "precision": "q4_k_m"}, {"dense_bits": 16}, 16),
        ({"_target_": "x", "high": ["q8_0"], "rest": {"low": "q2_k"}}, {}, 8.5),
        ({"_target_": "x", "high": "fp16", "low": "q2_k"}, {}, 16),
        ({"_target_": "x"}, {}, 16),
    ],
)
def test_dense_weights_have_the_bits_of_the_experts_file_unless_somebody_says_theirs(
    precision: dict[str, Any], said: dict[str, float], bits: float
) -> None:
    model = {**of_file("model", "tiny_mixtral"), **said}
    assert make_model({"model": model, "precision": precision}).dense_bits == bits
    assert make_model({"model": {**model}}).dense_bits == said.get("dense_bits", 16)


@pytest.mark.parametrize(
    ("name", "place"),
    [("lru", "cache (conf/cache/lru.yaml)"), ("mine", "cache"), (None, "cache")],
)
def test_a_section_that_its_class_refuses_is_named_with_its_file(
    name: str | None, place: str
) -> None:
    section = {"name": name, "_target_": "sim.values.units.gib"}
    with pytest.raises(ValueError, match=f"^{re.escape(place)}: cache.name="):
        make_part({"cache": section}, "cache")


def _keys(node: Any, place: str = "") -> Iterator[str]:
    """Every key with a number, and every one of a target that may have one."""
    if not isinstance(node, dict):
        if isinstance(node, int | float) and not isinstance(node, bool):
            yield place
        return
    for name, value in node.items():
        yield from _keys(value, f"{place}.{name}" if place else name)
    if "_target_" in node:
        module_of, _, name = node["_target_"].rpartition(".")
        for one in signature(getattr(import_module(module_of), name)).parameters.values():
            if one.name not in node and re.match(r"(int|float)\b", str(one.annotation)):
                yield f"{place}.{one.name}"


@pytest.mark.parametrize("value", [1e308, inf, nan, -1e308])
def test_no_number_of_a_run_is_so_large_that_nothing_can_be_computed_of_it(
    configure: Configure, value: float
) -> None:
    words = ("system=hobbit", "hardware=rtx4090_nvme", "workload=continuous_4", "trace.path=x")
    whole = checked_settings(configure(*words))
    # Together with the trace's sequences this one is refused.
    keys = {*_keys({name: whole[name] for name in PARTS})} - {"workload.together"}
    assert {"model.dense_bits", "hardware.host.wake_us", "cache.weights.lru"} <= keys
    for key in sorted(keys):
        config: Any = deepcopy(whole)
        *names, last = key.split(".")
        section = config
        for name in names:
            section = section[name]
        section[last] = value
        with pytest.raises(ValueError, match=last):
            make_parts(config)


@pytest.mark.parametrize("drafts", [0, 2])
def test_every_section_is_a_part_and_drafts_are_layers_of_the_model(
    drafts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = SimpleNamespace(with_drafts=lambda sites: f"with {sites}")
    workload = SimpleNamespace(speculation=SimpleNamespace(sites=drafts))
    monkeypatch.setattr(module, "make_model", lambda config: model)
    monkeypatch.setattr(module, "make_hardware", lambda config: "machine")
    monkeypatch.setattr(
        module, "make_part", lambda config, name: workload if name == "workload" else name
    )
    made = vars(make_parts({}))
    policies = ("predictor", "cache", "ram_cache", "precision", "placement", "payload")
    others = {name: name for name in ("trace", "loader", "kernels", *policies)}
    first = "with 2" if drafts else model
    assert made == {"model": first, "hardware": "machine", "workload": workload, **others}
    assert set(made) == set(PARTS)


def test_staging_for_a_layer_is_as_many_slots_as_it_has_experts() -> None:
    model = of_file("model", "tiny_mixtral")
    config = {"model": model, "loader": {"staging_slots": "layer", "wait": "wait_all"}}
    made = with_layer_staged(config)
    assert made["loader"] == {"staging_slots": 8, "wait": "wait_all"}
    assert config["loader"]["staging_slots"] == "layer", "what was given is left as it is"
    assert with_layer_staged(made) == made


def test_policies_together_require_the_most_of_a_trace() -> None:
    def of(**required: Any) -> Any:
        return SimpleNamespace(requires=Requires(**required))

    def required(*some: Any) -> Requires:
        policies = dict(zip("abc", some, strict=False))
        made: Any = SimpleNamespace(policies=lambda: policies)
        return Parts.of_trace(made)

    assert required(of(), of()) == Requires()
    most = required(of(lookahead_sites=1), of(lookahead_sites=3, preferences=True), of())
    assert most == Requires(lookahead_sites=3, preferences=True)
    assert required(of(), of(active_shares=True)) == Requires(active_shares=True)
