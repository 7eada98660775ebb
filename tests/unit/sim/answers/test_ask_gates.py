"""Which gates answer for a model, and what cannot be asked of it."""

from __future__ import annotations

import pytest

from sim.answers import ask_gates
from sim.machine.model import Model
from sim.setup.own_gates import USUAL, OwnGates
from sim.synthetic.synthesis import Request
from sim.verbs.words import Words

OWN = {"model": "tiny_gates_half_mixtral", "machine": "rtx4090_pcie4"}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """What gates were asked for; none are made."""
    asked_for: list[Request] = []

    def own_gates(model: Model, request: Request) -> OwnGates:
        asked_for.append(request)
        return OwnGates("somewhere", "made", True)

    monkeypatch.setattr(ask_gates, "own_gates", own_gates)
    return asked_for


def words(*overrides: str, **own: str) -> Words:
    return Words({**OWN, **own}, overrides)


@pytest.mark.parametrize("gates", [(), ("trace=tiny_mixtral",)])
def test_a_context_that_fills_the_device_is_refused_before_gates_are_made(
    gates: tuple[str, ...], made: list[Request]
) -> None:
    with pytest.raises(ValueError, match="key-value cache of 1000000000 tokens"):
        ask_gates.asked(words(*gates), context=10**9)
    assert not made


def test_gates_as_given_come_last_and_none_are_made(made: list[Request]) -> None:
    common, gates, model = ask_gates.asked(words("trace=tiny_mixtral", "seed=3"), context=64)
    assert common[2:] == ["seed=3", "trace=tiny_mixtral"]
    assert common[:2] == ["model=tiny_gates_half_mixtral", "hardware=rtx4090_pcie4"]
    assert (gates, model.name) == (OwnGates("", "gates as given"), "tiny_gates_half_mixtral")
    assert not made


def test_gates_of_the_usual_size_need_no_words(made: list[Request]) -> None:
    common, _, _ = ask_gates.asked(words())
    assert made == [USUAL]
    assert common[2:] == []


def test_gates_of_another_size_are_named_by_words(made: list[Request]) -> None:
    common, gates, model = ask_gates.asked(words(tokens="9", sequences="2", prompt_tokens="5"))
    (request,) = made
    assert (request.tokens, request.sequences, request.prompt_tokens) == (9, 2, 5)
    assert common[2:] == gates.words(model) != []


def test_several_gpus_are_words_of_the_run(made: list[Request]) -> None:
    common, _, _ = ask_gates.asked(words("trace=tiny_mixtral", gpus="3", split="owners"))
    assert common[2:4] == ["devices=owners_2", "hardware.devices.count=3"]
    common, _, _ = ask_gates.asked(words("trace=tiny_mixtral", gpus="1"))
    assert not any(word.startswith("devices=") for word in common)


def test_words_that_would_change_nothing_are_refused(
    made: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    for gpus in ({}, {"gpus": "1"}):
        with pytest.raises(ValueError, match="split=slices is of several GPUs"):
            ask_gates.asked(words(split="slices", **gpus))
    with pytest.raises(ValueError, match="tokens=9 is of synthetic gates, and these are trace=t"):
        ask_gates.asked(words("trace=tiny_mixtral", tokens="9"))
    assert not made
    recorded = OwnGates("somewhere", "gates recorded")
    monkeypatch.setattr(ask_gates, "own_gates", lambda model, request: recorded)
    with pytest.raises(ValueError, match="sequences=2 is of synthetic gates, and these are gates"):
        ask_gates.asked(words(sequences="2"))


def test_an_answer_says_how_many_bits_dense_weights_have_as_precision_is_of_experts(
    made: list[Request],
) -> None:
    cases: list[tuple[tuple[str, ...], tuple[str, ...], str]] = [
        ((), ("fp16",), "16"),
        ((), ("q4_k_m",), "4.84"),
        (
            (),
            ("fp16", "q4_k_m", "int4"),
            "16 with experts at fp16 and int4, 4.84 with experts at q4_k_m",
        ),
        (("++model.dense_bits=5",), ("fp16", "q4_k_m"), "5"),
    ]
    for more, precisions, bits in cases:
        common, _, _ = ask_gates.asked(words(*more))
        told = ask_gates.dense_told(common, precisions)
        assert told == f"dense weights at {bits} bits (++model.dense_bits=N)"
