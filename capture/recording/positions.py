"""Works out which token each row of a step is.

That is its phase, sequence, position and token id, and whether it is a real token or padding. All
of it stays on the model's device and nothing waits for the device. So the bookkeeping of a step
costs a few small kernels and no synchronisation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch

from capture.models.discover import CaptureError
from sim.traces.trace import CHUNK, DECODE, PREFILL

GREEDY_REMEDY = (
    "use plain greedy decoding (num_beams=1, num_return_sequences=1, no assistant or prompt lookup)"
)


@dataclass(frozen=True, eq=False)
class StepRows:
    """The rows of one forward call of one stack.

    There are ``count`` = batch x tokens rows, one sequence of the batch after the other. ``valid``
    rows are real tokens; ``position`` is -1 in the others.
    """

    number: int
    phase: int
    side: str
    count: int
    sequence: torch.Tensor
    position: torch.Tensor
    token: torch.Tensor
    valid: torch.Tensor


class PositionTracker:
    """Follows the sequences of a run through its steps.

    Each prefill (a call without a cache, or of an encoder) starts as many new sequences as its
    batch has. They are numbered from 0 in order of appearance. Positions count the real tokens of a
    sequence, so padding is skipped; in a decoder behind an encoder they count on from the prompt. A
    row is not valid where the mask is 0, nor in decode once one of ``eos_token_ids`` was fed to its
    sequence. A call of one token on a cache is decode, unless the cache still holds fewer than
    ``prompt_columns`` positions: then it is the rest of a prompt that is read in chunks.
    """

    def __init__(
        self, eos_token_ids: Collection[int], behind_encoder: bool, prompt_columns: int = 0
    ) -> None:
        self._eos = sorted(eos_token_ids)
        self._prompt_columns = prompt_columns
        self._behind_encoder = behind_encoder
        self._num_steps = 0
        self._num_sequences = 0
        self._first_sequence = 0
        self._cached = 0
        self._seen = torch.zeros(0, dtype=torch.long)
        self._ended = torch.zeros(0, dtype=torch.bool)
        self._last_valid = torch.zeros(0, 0, dtype=torch.bool)
        self._read_whole: torch.Tensor | None = None

    @property
    def num_steps(self) -> int:
        """How many steps have begun."""
        return self._num_steps

    def step(
        self, side: str, tokens: torch.Tensor, mask: object, past: int, *, encoder: bool
    ) -> StepRows:
        """The rows of a call with ``tokens`` [B, S] on a cache of ``past`` positions.

        Tokens are ids, -1 if unknown. Raise `CaptureError` if the call does not continue the
        sequences as plain greedy decoding does.
        """
        batch, count = tokens.shape
        starts = encoder or (past == 0 and not self._behind_encoder)
        decodes = self._behind_encoder or (count == 1 and past >= self._prompt_columns)
        phase = PREFILL if starts else DECODE if decodes else CHUNK
        valid = _valid(mask, past, tokens)
        if starts:
            self._check_is_new(tokens)
            self._start(batch, tokens.device)
        else:
            self._check_goes_on(batch, past)
        # Nothing is cached when a decoder behind an encoder is fed its start token, which ends none.
        if phase == DECODE and self._eos and past:
            for eos in self._eos:
                self._ended = self._ended | (tokens[:, -1] == eos)
            valid = valid & ~self._ended[:, None]
        position = self._seen[:, None] + valid.long().cumsum(-1) - 1
        self._seen = self._seen + valid.sum(-1)
        self._cached = 0 if encoder else past + count
        self._last_valid = valid
        self._read_whole = tokens if starts and not encoder else None
        sequence = self._first_sequence + torch.arange(batch, device=tokens.device)
        rows = StepRows(
            number=self._num_steps,
            phase=phase,
            side=side,
            count=batch * count,
            sequence=sequence[:, None].expand(batch, count).reshape(-1),
            position=torch.where(valid, position, -1).reshape(-1),
            token=tokens.reshape(-1),
            valid=valid.reshape(-1),
        )
        self._num_steps += 1
        return rows

    def _start(self, batch: int, device: torch.device) -> None:
        self._first_sequence, self._num_sequences = self._num_sequences, self._num_sequences + batch
        self._seen = torch.zeros(batch, dtype=torch.long, device=device)
        self._ended = torch.zeros(batch, dtype=torch.bool, device=device)

    def _check_is_new(self, tokens: torch.Tensor) -> None:
        """Refuse the text of the call before with one token more: without a cache a model that
        continues a text reads all of it for each token.
        """
        before = self._read_whole
        if before is None or tokens.shape != (before.shape[0], before.shape[1] + 1):
            return
        # Only such a call waits for the device.
        if torch.equal(tokens[:, :-1], before) and bool((before >= 0).all()):
            raise CaptureError(
                "a step reads the text of the step before again, with one token more: without a"
                " cache (use_cache=False) every token would be recorded again at each step; run with"
                " a cache"
            )

    def _check_goes_on(self, batch: int, past: int) -> None:
        if len(self._seen) != batch:
            what = "the encoder read" if self._behind_encoder else "a cache of"
            raise CaptureError(
                f"a step of {batch} rows, but {what} {len(self._seen)} sequences: beams and"
                f" reordered batches cannot be recorded; {GREEDY_REMEDY}"
            )
        if past != self._cached:
            raise CaptureError(
                f"a step on a cache of {past} positions after one that left {self._cached}:"
                " speculative decoding, rolled-back and interleaved runs cannot be recorded;"
                f" {GREEDY_REMEDY}"
            )

    def rolled_back(self, removed: int) -> None:
        """Hear that the last ``removed`` positions were taken out of the cache.

        Raise `CaptureError` if a real token was among them.
        """
        columns = self._last_valid[:, -removed:] if removed else self._last_valid[:, :0]
        if removed > self._last_valid.shape[1] or bool(columns.any()):
            raise CaptureError(
                f"{removed} positions with recorded tokens were cropped from the cache: speculative"
                f" decoding cannot be recorded; {GREEDY_REMEDY}"
            )
        self._cached -= removed


class CacheGuard:
    """Watches a key-value cache for operations that a recording cannot follow.

    It wraps the cache's ``reorder_cache`` and ``crop``; `release` restores them.
    """

    def __init__(self, cache: Any, tracker: PositionTracker) -> None:
        self.cache = cache
        self._tracker = tracker
        self._wrapped = [name for name in ("reorder_cache", "crop") if hasattr(cache, name)]
        for name, wrapper in (
            ("reorder_cache", self._reorder),
            ("crop", self._crop(getattr(cache, "crop", None))),
        ):
            if name in self._wrapped:
                setattr(cache, name, wrapper)

    def release(self) -> None:
        for name in self._wrapped:
            self.cache.__dict__.pop(name, None)

    def _reorder(self, *_args: object, **_kwargs: object) -> None:
        raise CaptureError(f"the cache is reordered: beams cannot be recorded; {GREEDY_REMEDY}")

    def _crop(self, crop: Callable[..., None] | None) -> Callable[..., None]:
        def wrapper(*args: object, **kwargs: object) -> None:
            # generate() itself crops the step that it ran before it checked whether to stop.
            before = int(self.cache.get_seq_length())
            assert crop is not None
            crop(*args, **kwargs)
            self._tracker.rolled_back(before - int(self.cache.get_seq_length()))

        return wrapper


def _valid(mask: object, past: int, tokens: torch.Tensor) -> torch.Tensor:
    """Which of this step's tokens [B, S] are real, from a mask of two or four dimensions."""
    batch, count = tokens.shape
    if isinstance(mask, dict):
        # There is one mask for each kind of layer. Any will do: all hide the same padding.
        mask = next(
            (item for item in mask.values() if isinstance(item, torch.Tensor) and item.dim() == 4),
            None,
        )
    if mask is None:
        return torch.ones((batch, count), dtype=torch.bool, device=tokens.device)
    if (
        isinstance(mask, torch.Tensor)
        and mask.dim() == 2
        and mask.shape[1] in (past + count, count)
    ):
        return mask[:, -count:].to(tokens.device) != 0
    if isinstance(mask, torch.Tensor) and mask.dim() == 4 and mask.shape[-1] >= past + count:
        # Only a padding row does not attend to itself.
        own = mask[:, 0].diagonal(offset=past, dim1=-2, dim2=-1)[:, :count]
        return (own if own.dtype == torch.bool else own == 0).expand(batch, count).to(tokens.device)
    found = (
        f"a tensor {list(mask.shape)}" if isinstance(mask, torch.Tensor) else type(mask).__name__
    )
    raise CaptureError(
        f"the attention mask is {found}: padding cannot be told from [batch, tokens] ="
        f" {[batch, count]} on {past} cached; use a mask of 2 or 4 dimensions, or none"
    )
