"""A model's cache, under the name of transformers up to 5.23 and that of later ones."""

from __future__ import annotations

from inspect import Parameter, Signature
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import MixtralForCausalLM, MixtralModel
from transformers.cache_utils import DynamicCache

from capture.models.discover import discover
from capture.models.model_cache import OF_OUTPUTS, cache_of, cache_word, given_cache
from capture.recording.prompts import Passage, Prompt
from capture.recording.run import run_passages
from helpers.tiny_models import build
from real.lossy.texts import Reading

NAMES = ("past_key_values", "cache")
HERE = DynamicCache()


def renamed(name: str) -> Any:
    """A Mixtral whose model and stack have no other name for their cache than this one."""

    class Stack(MixtralModel):
        def forward(self, input_ids: Any, **given: Any) -> Any:
            return super().forward(input_ids, **{OF_OUTPUTS: given.pop(name, None)}, **given)

    class Whole(MixtralForCausalLM):
        def forward(self, input_ids: Any, **given: Any) -> Any:
            assert set(given) & set(NAMES) <= {name}
            output = self.model(input_ids, **given)
            logits = self.lm_head(output.last_hidden_state)
            return SimpleNamespace(logits=logits, **{name: cache_of(output)})

    words = ("self", "input_ids", name, "use_cache")
    Whole.forward.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(word, Parameter.POSITIONAL_OR_KEYWORD) for word in words]
    )
    model = build("mixtral")
    model.__class__, model.model.__class__ = Whole, Stack
    return model


@pytest.mark.parametrize("name", NAMES)
def test_a_cache_is_found_under_both_names(name: str) -> None:
    assert cache_of(SimpleNamespace(logits=None, **{name: HERE})) is HERE
    assert given_cache({"input_ids": None, name: HERE}) is HERE
    assert cache_word(["input_ids", name, "use_cache"]) == name
    assert cache_word(["input_ids", "kwargs"]) == OF_OUTPUTS


def test_no_cache_is_none_under_both_names() -> None:
    assert cache_of(None) is None
    assert cache_of(SimpleNamespace(logits=1)) is None
    assert given_cache({"past_key_values": None, "cache": None}) is None
    assert given_cache({"cache": "no cache of keys and values"}) is None


@pytest.mark.parametrize("name", NAMES)
def test_a_model_with_either_name_is_recorded_token_by_token(name: str) -> None:
    passage = Passage(Prompt("prose", "a", "fit", "", "CC0-1.0"), (5, 9, 11), (7, 8, 13))
    usual, other = build("mixtral"), renamed(name)
    expected, rows = (run_passages(one, discover(one), [passage], 3) for one in (usual, other))
    assert rows.position.tolist() == [0, 1, 2, 3, 4, 5]
    for column in ("phase", "step", "ids", "logits"):
        np.testing.assert_array_equal(getattr(rows, column), getattr(expected, column))


@pytest.mark.parametrize("name", NAMES)
def test_a_model_with_either_name_reads_a_text_token_by_token(name: str) -> None:
    usual, other = Reading(build("mixtral")), Reading(renamed(name))
    for reading in (usual, other):
        reading.prompt([5, 9, 11])
    for token in (7, 8):
        assert torch.equal(usual.step(token), other.step(token))
