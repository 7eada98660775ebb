"""Runs passages through a model under hooks: the prompt whole or in chunks, then token by token."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from capture.models.discover import CaptureError, MoELayer
from capture.models.model_cache import cache_of, cache_word
from capture.recording.hooks import ROUTING_AND_INPUTS, RouterHooks
from capture.recording.prompts import Passage
from capture.recording.rows import Rows, join_rows


def run_passages(
    model: Any, layers: Sequence[MoELayer], passages: Iterable[Passage], decode_tokens: int
) -> Rows:
    """Run each passage alone (batch 1), and return the rows of all.

    The prompt is one step; ``decode_tokens`` steps of one token with a cache follow. The tokens fed
    in decode are the passage's own, and the model's most likely ones where it has none left.
    Sequences are numbered from 0 in order.
    """
    parts: list[Rows] = []
    for number, passage in enumerate(passages):
        rows = run_batch(model, layers, [passage], decode_tokens)
        first = int(parts[-1].step[-1]) + 1 if parts else 0
        parts.append(replace(rows, step=rows.step + first, sequence=rows.sequence + number))
    return join_rows(parts)


def run_batch(
    model: Any,
    layers: Sequence[MoELayer],
    passages: Sequence[Passage],
    decode_tokens: int,
    *,
    keep: Collection[str] = ROUTING_AND_INPUTS,
    prefill_chunk: int = 0,
    eos_token_ids: Collection[int] = (),
) -> Rows:
    """Run passages together as one batch; steps and sequences count from 0.

    Prompts of different lengths are padded on the left, those of an encoder on the right.
    ``prefill_chunk`` cuts prompts into steps of so many tokens; 0 means one step. The run ends when
    every sequence has been fed one of ``eos_token_ids``, even before ``decode_tokens`` steps; rows
    of these tokens are not valid. An encoder-decoder model is fed its start token, then the tokens
    of the passage. ``keep`` is explained at `RouterHooks`.
    """
    run = decoder_of(model, passages)
    columns = run.prompt.shape[1]
    with (
        RouterHooks(layers, eos_token_ids, keep=keep, prompt_columns=columns) as hooks,
        torch.no_grad(),
    ):
        run.prefill(prefill_chunk)
        for index in range(decode_tokens):
            tokens = run.next_tokens(index)
            # NLLB's decoder begins with the very token that ends its text.
            if eos_token_ids and index >= run.behind_start and run.ends(tokens, eos_token_ids):
                break
            run.step(tokens)
        return hooks.take()


def decoder_of(model: Any, passages: Sequence[Passage]) -> Decoder:
    """A batch that is ready to run: call ``prefill``, then ``step`` with ``next_tokens``."""
    return (
        EncoderDecoder(model, passages)
        if model.config.is_encoder_decoder
        else Decoder(model, passages)
    )


class Decoder:
    """A batch of passages that a decoder-only model runs step by step."""

    behind_start = 0

    def __init__(self, model: Any, passages: Sequence[Passage]) -> None:
        self.model = model
        self.passages = passages
        self.device = next(model.parameters()).device
        self.output: Any = None
        self.ended = torch.zeros(len(passages), dtype=torch.bool)
        longest = max(len(passage.prefill) for passage in passages)
        pad = getattr(model.config, "pad_token_id", None) or 0
        self.prompt = torch.full((len(passages), longest), pad)
        self.mask = torch.zeros(len(passages), longest, dtype=torch.long)
        for row, passage in enumerate(passages):
            place = self.place(longest, len(passage.prefill))
            self.prompt[row, place] = torch.tensor(passage.prefill)
            self.mask[row, place] = 1
        self.padded = bool((self.mask == 0).any())
        taken = inspect.signature(model.forward).parameters
        self.takes_positions, self.cache_word = "position_ids" in taken, cache_word(taken)
        any_word = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values())
        self.takes_cache = any_word or "use_cache" in taken

    def place(self, longest: int, length: int) -> slice:
        return slice(longest - length, longest)

    def prefill(self, chunk: int) -> None:
        length = self.prompt.shape[1]
        whole = self.mask
        for start in range(0, length, chunk or length):
            end = min(start + (chunk or length), length)
            self.mask = whole[:, :end]
            self.forward(self.prompt[:, start:end])

    def step(self, tokens: torch.Tensor) -> None:
        self.mask = torch.cat([self.mask, torch.ones(len(tokens), 1, dtype=torch.long)], dim=1)
        self.forward(tokens[:, None])

    def forward(self, tokens: torch.Tensor) -> None:
        given: dict[str, Any] = {}
        if self.padded:
            given["attention_mask"] = self.mask.to(self.device)
            if self.takes_positions:
                places = (self.mask.cumsum(-1) - 1).clamp(min=0)
                given["position_ids"] = places[:, -tokens.shape[1] :].to(self.device)
        cache = cache_of(self.output)
        if cache is not None:
            given[self.cache_word] = cache
        if self.takes_cache:
            self.output = self.model(input_ids=tokens.to(self.device), use_cache=True, **given)
        if cache_of(self.output) is None:
            raise CaptureError(
                f"{type(self.model).__name__} returns no cache, so it cannot decode token by token;"
                " write its routes as a csv yourself (moelab import format=csv)"
            )

    def next_tokens(self, index: int | Sequence[int]) -> torch.Tensor:
        """The tokens to feed next, [B]: the passages' own, or the model's most likely ones.

        ``index``: how many tokens were fed after the prompt: one number for all rows, or one each.
        """
        fed = [index] * len(self.passages) if isinstance(index, int) else index
        places = [count - self.behind_start for count in fed]
        given = [
            passage.following[place] if place < len(passage.following) else None
            for passage, place in zip(self.passages, places, strict=True)
        ]
        if all(token is not None for token in given):
            return torch.tensor(given)
        logits = getattr(self.output, "logits", None)
        if logits is None:
            raise CaptureError(
                f"{type(self.model).__name__} has no language-model head to continue with; record"
                " with continuation=document"
            )
        likely = logits[:, -1].argmax(-1).cpu()
        return torch.tensor(
            [int(likely[row]) if token is None else token for row, token in enumerate(given)]
        )

    def ends(self, tokens: torch.Tensor, eos_token_ids: Collection[int]) -> bool:
        self.ended |= torch.isin(tokens, torch.tensor(sorted(eos_token_ids)))
        return bool(self.ended.all())


class EncoderDecoder(Decoder):
    """A batch whose prompts an encoder reads; its decoder begins with the model's start token."""

    behind_start = 1

    def place(self, longest: int, length: int) -> slice:
        return slice(0, length)

    def prefill(self, chunk: int) -> None:
        if chunk:
            raise CaptureError("an encoder reads a prompt whole; run with prefill_chunk=0")
        encoder = self.model.get_encoder()
        self.mask = self.mask.to(self.device)
        self.encoded = encoder(input_ids=self.prompt.to(self.device), attention_mask=self.mask)

    def next_tokens(self, index: int | Sequence[int]) -> torch.Tensor:
        if index if isinstance(index, int) else min(index):
            return super().next_tokens(index)
        start = getattr(self.model.generation_config, "decoder_start_token_id", None)
        start = self.model.config.decoder_start_token_id if start is None else start
        if not isinstance(start, int):
            raise CaptureError(
                f"{type(self.model).__name__} states no decoder_start_token_id to decode from"
            )
        return torch.full((len(self.passages),), start)

    def step(self, tokens: torch.Tensor) -> None:
        self.output = self.model(
            encoder_outputs=self.encoded,
            attention_mask=self.mask,
            decoder_input_ids=tokens[:, None].to(self.device),
            use_cache=True,
            **{self.cache_word: cache_of(self.output)},
        )


def end_tokens(model: Any) -> tuple[int, ...]:
    """The token ids that end a text, from the model's generation settings or configuration."""
    stated = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if stated is None:
        stated = getattr(model.config, "eos_token_id", None)
    if stated is None:
        return ()
    return tuple(stated) if isinstance(stated, (list, tuple)) else (int(stated),)
