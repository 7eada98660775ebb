"""Which gates answer for a model, and the overrides that all runs of a question share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sim.machine.ledger import check_ledger, make_ledger
from sim.machine.model import Model
from sim.setup.configure import configure
from sim.setup.own_gates import USUAL, OwnGates, own_gates
from sim.setup.parts import make_hardware, make_model
from sim.setup.refusals import checked_settings
from sim.verbs.asking import SPLITS
from sim.verbs.words import Words
from sim.workload.steps import Limits


def _gpus(own: Mapping[str, str]) -> list[str]:
    """The words for so many GPUs of a machine (contract C156)."""
    count, split = int(own.get("gpus", "1")), own.get("split", SPLITS[0])
    if count == 1 and "split" in own:
        raise ValueError(f"split={split} is of several GPUs; leave it out, or say gpus=2")
    return [f"devices={split}_2", f"hardware.devices.count={count}"] if count > 1 else []


def asked(words: Words, context: int = 0) -> tuple[list[str], OwnGates, Model]:
    """The overrides that all runs of a question share: its model, its machine, its own ones, and
    gates; the gates; and the model.

    Raise ValueError for a model or a machine that cannot be, for a ``context`` of so many tokens
    whose keys and values alone fill the device, where there are no gates, and for a size of gates
    that are not made.
    """
    own = words.own
    given = [word for word in words.overrides if word.startswith(("trace=", "trace.path="))]
    common = [
        f"model={own['model']}",
        f"hardware={own['machine']}",
        *_gpus(own),
        *(word for word in words.overrides if word not in given),
    ]
    # With any trace: none is read yet.
    config = checked_settings(configure(*common, "budget=fit", "outputs=summary")[0])
    model = make_model(config)
    hardware = make_hardware(config)
    if hardware.devices is None and not model.encoder_sites:
        limits = Limits(context, 1, 0, {n: min(n, context) for n in model.windows})
        check_ledger(make_ledger(model, hardware, limits, slot_bytes=0), hardware, limits)
    sizes = ("tokens", "sequences", "prompt_tokens")
    asked_for: dict[str, Any] = {key: int(own[key]) for key in sizes if key in own}
    if given:
        _check_sizes(asked_for, given[0])
        return [*common, *given], OwnGates("", "gates as given"), model
    request = replace(USUAL, **asked_for)
    gates = own_gates(model, request)
    if not gates.is_made:
        _check_sizes(asked_for, gates.told)
    # Runs find their model's usual gates themselves.
    is_usual = not gates.is_made or request == USUAL
    return [*common, *([] if is_usual else gates.words(model))], gates, model


def dense_told(words: Sequence[str], precisions: Sequence[str]) -> str:
    """How many bits dense weights have in runs with these ``words`` at each of ``precisions``, and what
    sets them (contract C87).
    """
    found: dict[float, list[str]] = {}
    for name in precisions:
        config = checked_settings(configure(*words, f"precision={name}", "outputs=summary")[0])
        found.setdefault(make_model(config).dense_bits, []).append(name)
    told = (f"{bits:g} with experts at {' and '.join(of)}" for bits, of in found.items())
    said = ", ".join(told) if len(found) > 1 else f"{next(iter(found)):g}"
    return f"dense weights at {said} bits (++model.dense_bits=N)"


def _check_sizes(asked_for: Mapping[str, int], gates: str) -> None:
    """Raise ValueError for sizes of gates that are there already."""
    for key, number in asked_for.items():
        raise ValueError(
            f"{key}={number} is of synthetic gates, and these are {gates}; leave it out (workload.*"
            " and trace.max_sequences say what a run takes of a trace)"
        )
