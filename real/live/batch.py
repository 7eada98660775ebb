"""Sequences that run together through a transformers model: newcomers join, finished ones leave.

A group of prompts is one forward call. Where the prompts differ in length they are padded on the
left, or on the right behind an encoder. Each decoding step is one forward call over the caches of
all sequences that run. Caches of different lengths are put side by side behind padding, which
attention leaves out. Columns that are padding in every row are cut away.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional
from transformers.cache_utils import DynamicCache, DynamicLayer

from capture.models.model_cache import cache_of
from capture.recording.prompts import Passage
from capture.recording.run import Decoder, decoder_of
from real.live.asked import Tokens
from real.store.experts import SwapError
from sim.workload.steps import Workload


class RunningBatch:
    """The sequences that run. ``numbers`` are those that decode, in the order of their rows.

    ``passages`` are the prompts of all sequences that will ever run, by number.
    """

    def __init__(self, model: Any, passages: Sequence[Passage]) -> None:
        self._model, self._passages = model, passages
        self._running: Decoder | None = None
        self._newcomers: Decoder | None = None
        self.numbers: tuple[int, ...] = ()
        self._new_numbers: tuple[int, ...] = ()
        self.fed: dict[int, list[int]] = {}
        """By sequence, the tokens that it was fed after its prompt."""
        self.tokens: Tokens | None = None
        """Which rows of the last forward call are tokens; None: all."""
        self.logits: torch.Tensor | None = None
        """The last call's logits for each sequence's next token [n, V]; None of an encoder."""

    def read(self, numbers: Sequence[int]) -> None:
        """Read the prompts of newcomers in one forward call."""
        # Others may have arrived while the newcomers before them were read.
        self._admit()
        newcomers = decoder_of(self._model, [self._passages[number] for number in numbers])
        self.fed |= {number: [] for number in numbers}
        self.tokens = _tokens_of(newcomers)
        self._newcomers, self._new_numbers = newcomers, tuple(numbers)
        newcomers.prefill(0)
        self._note(newcomers)

    def bring_together(self, numbers: Sequence[int]) -> list[int]:
        """Let newcomers join and all that are not in ``numbers`` leave; return the next tokens.

        Raise SwapError where rows of the model's cache cannot be taken apart.
        """
        staying = [row for row, number in enumerate(self.numbers) if number in numbers]
        if not staying:
            self._running = None
        elif self._running is not None and len(staying) < len(self.numbers):
            _keep(self._running, staying)
        self.numbers = tuple(self.numbers[row] for row in staying)
        self._admit()
        if self.numbers != tuple(numbers) or self._running is None:
            raise RuntimeError(f"sequences {self.numbers} run, but the step is of {tuple(numbers)}")
        places = [len(self.fed[number]) for number in self.numbers]
        found: list[int] = self._running.next_tokens(places).tolist()
        return found

    def _admit(self) -> None:
        if self._running is None:
            self._running = self._newcomers
        elif self._newcomers is not None:
            _join(self._running, self._newcomers)
        self.numbers += self._new_numbers
        self._newcomers, self._new_numbers = None, ()

    def feed(self, tokens: Sequence[int]) -> None:
        """Feed one token to each sequence, in one forward call."""
        assert self._running is not None
        for number, token in zip(self.numbers, tokens, strict=True):
            self.fed[number].append(token)
        self.tokens = None
        self._running.step(torch.tensor(list(tokens)))
        self._note(self._running)

    def _note(self, decoder: Decoder) -> None:
        logits = None if decoder.output is None else decoder.output.logits
        self.logits = None if logits is None else logits[:, -1]


def _tokens_of(decoder: Decoder) -> Tokens | None:
    if not decoder.padded:
        return None
    mask = decoder.mask.flatten()
    return Tokens(mask.nonzero().flatten().to(decoder.device), len(mask))


# Rows of a decoder


def _keep(decoder: Decoder, rows: Sequence[int]) -> None:
    """Keep only some of a decoder's rows."""
    at = torch.tensor(list(rows), device=decoder.device)
    decoder.passages = [decoder.passages[row] for row in rows]
    decoder.mask = decoder.mask[at.to(decoder.mask.device)]
    cache, encoded = cache_of(decoder.output), getattr(decoder, "encoded", None)
    cut = 0
    if encoded is not None:
        encoded.last_hidden_state = encoded.last_hidden_state[at]
    else:
        cut = int((decoder.mask.cumsum(-1).amax(0) == 0).sum())
        decoder.mask = decoder.mask[:, cut:]
        decoder.padded = bool((decoder.mask == 0).any())
    for layer in _layers(cache):
        layer.keys, layer.values = layer.keys[at][:, :, cut:], layer.values[at][:, :, cut:]
    decoder.output = SimpleNamespace(logits=decoder.output.logits[at, -1:], cache=cache)


def _join(decoder: Decoder, newcomers: Decoder) -> None:
    """Append the newcomers' rows to the decoder's."""
    width = max(decoder.mask.shape[1], newcomers.mask.shape[1])
    ours, theirs = decoder.output, newcomers.output
    cache = cache_of(ours)
    for mine, other in zip(_layers(cache), _layers(cache_of(theirs)), strict=True):
        mine.keys = torch.cat(
            [_behind_padding(mine.keys, width), _behind_padding(other.keys, width)]
        )
        mine.values = torch.cat(
            [_behind_padding(mine.values, width), _behind_padding(other.values, width)]
        )
    masks = [
        functional.pad(each.mask, (width - each.mask.shape[1], 0)) for each in (decoder, newcomers)
    ]
    decoder.mask = torch.cat(masks)
    decoder.padded = bool((decoder.mask == 0).any())
    decoder.passages = [*decoder.passages, *newcomers.passages]
    logits = torch.cat([ours.logits[:, -1:], theirs.logits[:, -1:]])
    decoder.output = SimpleNamespace(logits=logits, cache=cache)


def _behind_padding(states: torch.Tensor, width: int) -> torch.Tensor:
    """Keys or values [B, heads, T, D], with zeros put before them up to ``width`` tokens."""
    return functional.pad(states, (0, 0, width - states.shape[2], 0))


def _layers(cache: Any) -> list[Any]:
    """A cache's layers, which must keep whole keys and values. Raise SwapError for others."""
    caches = (
        [cache.self_attention_cache, cache.cross_attention_cache]
        if hasattr(cache, "is_updated")
        else [cache]
    )
    layers = [layer for part in caches for layer in part.layers]
    if wrong := sorted(
        {type(layer).__name__ for layer in layers if type(layer) is not DynamicLayer}
    ):
        raise SwapError(
            f"a cache of {', '.join(wrong)} cannot be put together with others row by row"
        )
    return layers


# Before a run


def check_batches(model: Any, workload: Workload) -> None:
    """Raise ValueError where ``model`` cannot run the steps of a workload together."""
    joins, changes = _changes(workload)
    has_encoder, name = bool(model.config.is_encoder_decoder), type(model).__name__
    if joins and has_encoder:
        raise ValueError(
            f"{name} has an encoder, whose output is read once for a whole batch: no sequence can"
            " join one that decodes; choose workload.batching=static or sequential"
        )
    if changes and not has_encoder:
        kinds = {type(layer).__name__ for layer in DynamicCache(config=model.config).layers} - {
            DynamicLayer.__name__
        }
        if kinds:
            raise ValueError(
                f"{name} caches {', '.join(sorted(kinds))}, which cannot be put together row by"
                " row; choose workload=sequential, or static batches of one live.prompt_tokens and"
                " live.new_tokens"
            )
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    if (joins or _has_padding(workload)) and not (has_encoder or takes_positions):
        raise ValueError(
            f"{name} takes no position_ids, so padding would move its tokens; choose"
            " workload=sequential"
        )


def _changes(workload: Workload) -> tuple[bool, bool]:
    """Whether sequences join others that decode, and whether a batch changes while it decodes."""
    if workload.is_timed:
        return workload.batching == "continuous", workload.together > 1
    decode = [set(step.sequences) for step in workload.steps if step.decode]
    pairs = [(one, other) for one, other in pairwise(decode) if one & other]
    return any(other - one for one, other in pairs), any(one != other for one, other in pairs)


def _has_padding(workload: Workload) -> bool:
    lengths = {item.sequence: item.prompt_tokens for item in workload.sequences}
    if workload.is_timed:
        return workload.together > 1 and len(set(lengths.values())) > 1
    return any(
        len({lengths[number] for number in step.sequences}) > 1
        for step in workload.steps
        if not step.decode
    )
