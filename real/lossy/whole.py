"""Reads whole texts in one pass each, for choices that depend on a gate alone, not on a cache.

That is much faster than serving them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from capture.recording.prompts import Prompt
from real.lossy.loss import TokenLoss, token_losses
from real.lossy.mixture import Decide, Forward, Served, all_at, mixing, plain_forward
from real.lossy.texts import Text, following, read_whole
from real.lossy.variants import Variants
from real.store.experts import ModelForm
from real.store.swapping import expert_forms, swapped_experts
from sim.traces.routing import need_order, shares_above

ENCODER_PROMPT = 64
"""How many tokens of a text an encoder reads; the decoder reads the others."""
LONGEST = 256
"""The most tokens of a text that are read."""

Track = Callable[[], None]


def texts_of(
    prompts: Sequence[Prompt], model: Any, tokenize: Callable[[str], Sequence[int]]
) -> list[Text]:
    """Prompts as texts, cut to the longest length.

    For a model with an encoder, what the decoder reads begins with its start token.
    """
    texts = []
    for number, prompt in enumerate(prompts):
        tokens = tuple(tokenize(prompt.text))[:LONGEST]
        if not model.config.is_encoder_decoder:
            texts.append(Text(number, tokens, ()))
            continue
        start = model.config.decoder_start_token_id
        texts.append(Text(number, tokens[:ENCODER_PROMPT], (start, *tokens[ENCODER_PROMPT:])))
    return texts


@dataclass
class Whole:
    """A model and texts, read at full precision once; then ``losses`` of any lossy choices."""

    model: Any
    texts: Sequence[Text]

    def __post_init__(self) -> None:
        self.forms: Sequence[ModelForm] = expert_forms(self.model)
        self._behind_encoder = bool(self.model.config.is_encoder_decoder)
        self._exact = Variants(self.forms, ("fp32",))
        self._logits = self._read(mixing(self._exact, all_at(0)), _nothing)

    def losses(
        self,
        variants: Variants,
        decide: Decide,
        forward: Forward = plain_forward,
        track: Track | None = None,
    ) -> list[TokenLoss]:
        """The losses of each text with its choices served as ``decide`` says."""
        lossy = self._read(mixing(variants, decide, forward), track or _nothing)
        return [
            token_losses(full, ours, following(text, behind_encoder=self._behind_encoder))
            for full, ours, text in zip(self._logits, lossy, self.texts, strict=True)
        ]

    def exact_losses(self, forward: Forward = plain_forward) -> list[TokenLoss]:
        """The losses with experts as stored, computed by ``forward``."""
        return self.losses(self._exact, all_at(0), forward)

    def scores(self) -> NDArray[np.float64]:
        """HOBBIT's score (eq. 2) of every selection at full precision, as one flat array."""
        found: list[NDArray[np.float64]] = []

        def note(
            site: int, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
        ) -> Served:
            found.append(row_scores(ids, weights, self.forms[0].layer.num_experts).ravel())
            return Served(ids, weights, torch.zeros_like(ids))

        self._read(mixing(self._exact, note), _nothing)
        every = np.concatenate(found)
        return every[~np.isnan(every)]

    def uses(self) -> NDArray[np.int64]:
        """How many rows chose each expert at full precision, [S, E]."""
        counts = np.zeros((len(self.forms), self.forms[0].layer.num_experts), np.int64)

        def note(
            site: int, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
        ) -> Served:
            chosen = ids[(ids >= 0) & (ids < counts.shape[1])].cpu().numpy()
            counts[site] += np.bincount(chosen, minlength=counts.shape[1])
            return Served(ids, weights, torch.zeros_like(ids))

        self._read(mixing(self._exact, note), _nothing)
        return counts

    def _read(self, compute: Any, track: Track) -> list[torch.Tensor]:
        found = []
        with swapped_experts(self.model, compute, self.forms):
            for text in self.texts:
                found.append(read_whole(self.model, text))
                track()
        return found


def _nothing() -> None:
    return None


def row_scores(ids: torch.Tensor, weights: torch.Tensor, experts: int) -> NDArray[np.float64]:
    """HOBBIT's score (eq. 2) of each choice [T, K], in its place; NaN where it was dropped."""
    chosen = ids.cpu().numpy()
    chosen = np.where((chosen >= 0) & (chosen < experts), chosen, -1)
    values = np.where(chosen < 0, np.float32(0), weights.float().cpu().numpy())
    order = need_order(chosen, values)
    scores = np.empty(chosen.shape)
    np.put_along_axis(scores, order, shares_above(np.take_along_axis(values, order, -1)), -1)
    return np.where(chosen < 0, np.nan, scores)


@contextmanager
def changed_dense(
    model: nn.Module, forms: Sequence[ModelForm], change: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[int]:
    """Within the block every matrix that is no expert's is changed, routers and embeddings too.

    Yields how many they are.
    """
    inside = {id(parameter) for form in forms for parameter in form.layer.experts.parameters()}
    taken: Mapping[nn.Parameter, torch.Tensor] = {
        parameter: parameter.data.clone()
        for parameter in model.parameters()
        if parameter.dim() == 2 and id(parameter) not in inside
    }
    try:
        for parameter, values in taken.items():
            parameter.data.copy_(change(values))
        yield len(taken)
    finally:
        for parameter, values in taken.items():
            parameter.data.copy_(values)
