"""The texts that a model is judged on, and how they are fed to it.

Models are teacher-forced: whatever a model finds likely, the next token fed is the text's.
`read_whole` feeds a text in one pass. `Reading` feeds it as it would be served: the prompt in one
step, then a token a step, with the model's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from capture.models.adapters import forward_arguments
from capture.models.discover import CaptureError
from capture.models.model_cache import cache_of, cache_word
from sim.traces.trace import DECODE, Trace


@dataclass(frozen=True)
class Text:
    """One sequence: the tokens of its prompt, and those fed after it, one a step.

    For a model with an encoder the prompt is the encoder's, and the first token fed is the
    decoder's start.
    """

    sequence: int
    prompt: tuple[int, ...]
    fed: tuple[int, ...]


def texts_of_trace(trace: Trace, sequences: Sequence[int]) -> tuple[list[Text], list[np.ndarray]]:
    """The texts of these sequences, and the rows of each in the trace, prompt first.

    Raise ValueError for a trace without token ids, or whose prompts were fed in several steps.
    """
    texts, places = [], []
    for number in sequences:
        rows = np.flatnonzero((trace.sequence == number) & trace.valid)
        rows = rows[np.argsort(trace.step[rows], kind="stable")]
        decode = trace.phase[rows] == DECODE
        if (trace.token[rows] < 0).any():
            raise ValueError(
                f"trace {trace.header.name} has no token ids for sequence {number}: its text cannot"
                " be read again; capture the model (moelab capture), or name a trace that has"
                " them"
            )
        if len(np.unique(trace.step[rows[~decode]])) > 1 or (~decode[1:] & decode[:-1]).any():
            raise ValueError(
                f"trace {trace.header.name} fed the prompt of sequence {number} in several steps;"
                " capture it with prefill_chunk=0"
            )
        tokens = trace.token[rows]
        texts.append(Text(number, tuple(tokens[~decode].tolist()), tuple(tokens[decode].tolist())))
        places.append(rows)
    return texts, places


class Reading:
    """A text on its way through a model.

    Logits are float32 on the CPU, one row for each token that was fed.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._device = next(model.parameters()).device
        self._encoded: Any = None
        self._cache: Any = None
        self._cache_word = cache_word(forward_arguments(model))

    @torch.no_grad()
    def prompt(self, tokens: Sequence[int]) -> torch.Tensor:
        """Feed a prompt. Return its logits [P, V].

        They are [0, 0] where an encoder reads it, which predicts nothing.
        """
        ids = torch.tensor([list(tokens)], device=self._device)
        if self._model.config.is_encoder_decoder:
            self._encoded = self._model.get_encoder()(
                input_ids=ids, attention_mask=torch.ones_like(ids)
            )
            return torch.zeros(0, 0)
        return self._logits(self._model(input_ids=ids, use_cache=True))

    @torch.no_grad()
    def step(self, token: int) -> torch.Tensor:
        """Feed one token; return its logits [1, V]."""
        ids = torch.tensor([[token]], device=self._device)
        given: dict[str, Any] = {"use_cache": True, self._cache_word: self._cache}
        if self._encoded is not None:
            return self._logits(
                self._model(encoder_outputs=self._encoded, decoder_input_ids=ids, **given)
            )
        return self._logits(self._model(input_ids=ids, **given))

    def _logits(self, output: Any) -> torch.Tensor:
        self._cache = cache_of(output)
        logits = getattr(output, "logits", None)
        if logits is None or self._cache is None:
            raise CaptureError(
                f"{type(self._model).__name__} gives no {'logits' if logits is None else 'cache'}:"
                " quality needs a model with a language-model head that decodes token by token"
            )
        return logits[0].float().cpu()  # type: ignore[no-any-return]


@torch.no_grad()
def read_whole(model: Any, text: Text) -> torch.Tensor:
    """The logits of a text fed in one pass, float32 on the CPU, [P + F, V].

    Behind an encoder they are those of the F tokens only.
    """
    device = next(model.parameters()).device
    fed = torch.tensor([list(text.fed)], dtype=torch.long, device=device)
    prompt = torch.tensor([list(text.prompt)], device=device)
    if model.config.is_encoder_decoder:
        output = model(input_ids=prompt, decoder_input_ids=fed, use_cache=False)
    else:
        output = model(input_ids=torch.cat([prompt, fed], 1), use_cache=False)
    return output.logits[0].float().cpu()  # type: ignore[no-any-return]


def following(text: Text, *, behind_encoder: bool) -> tuple[int, ...]:
    """The token that follows each row of logits; the last row has none."""
    return text.fed[1:] if behind_encoder else (*text.prompt, *text.fed)[1:]
