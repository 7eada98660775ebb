"""A model's cache of keys and values, under either of its names.

transformers calls the argument, and the field of an output, ``past_key_values`` up to 5.23 and
``cache`` from 5.24 on. A model whose code comes with its weights may keep the old name.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import fields
from typing import Any

from transformers.modeling_outputs import CausalLMOutputWithPast

OLD_NAME, NEW_NAME = "past_key_values", "cache"
OF_OUTPUTS = (
    NEW_NAME if NEW_NAME in [one.name for one in fields(CausalLMOutputWithPast)] else OLD_NAME
)
"""The name in the installed transformers."""


def cache_word(arguments: Container[str]) -> str:
    """The name by which a ``forward`` of these arguments is handed its cache."""
    return next((name for name in (OLD_NAME, NEW_NAME) if name in arguments), OF_OUTPUTS)


def given_cache(arguments: Mapping[str, Any]) -> Any:
    """The cache that a call was handed, or None."""
    found = (arguments.get(name) for name in (OLD_NAME, NEW_NAME))
    return next((cache for cache in found if hasattr(cache, "get_seq_length")), None)


def cache_of(output: Any) -> Any:
    """The cache that a model has returned, or None."""
    # Newer outputs have the old name as well, and warn where it is read.
    return getattr(output, NEW_NAME if hasattr(output, NEW_NAME) else OLD_NAME, None)
