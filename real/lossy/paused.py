"""A forward pass that stops wherever experts are asked for, until it is told what serves them.

The model runs on a thread of its own. Only one of the two threads runs at any time, since the
caller's waits meanwhile. So what a pass computes does not depend on timing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any

import torch

from real.live.asked import Asked, asking
from real.lossy.mixture import Forward, Served, mix, plain_forward
from real.lossy.variants import Variants


class _AbandonedError(Exception):
    """Raised in the model's thread when the caller leaves in the middle of a pass."""


class PausedModel:
    """A model whose passes stop at every site.

    Use ``with PausedModel(model, variants) as paused``; ``begin`` a pass, then ``go_on`` from stop
    to stop. Errors of the model are raised in the caller's thread.
    """

    def __init__(self, model: Any, variants: Variants, forward: Forward = plain_forward) -> None:
        self._model, self._variants, self._forward = model, variants, forward
        self._to_model: SimpleQueue[Any] = SimpleQueue()
        self._to_caller: SimpleQueue[Any] = SimpleQueue()
        self._thread = Thread(target=self._run, name="model", daemon=True)
        self._swap = ExitStack()

    def __enter__(self) -> PausedModel:
        self._swap.enter_context(asking(self._model, self._variants.forms, self._compute))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._to_model.put(None)
        self._thread.join()
        self._swap.close()

    def begin(self, work: Callable[[], torch.Tensor]) -> Asked | torch.Tensor:
        """Start a pass that ends with logits. Return its first stop; if it has none, the logits."""
        self._to_model.put(work)
        return self._answer()

    def go_on(self, served: Served) -> Asked | torch.Tensor:
        """Serve what was asked for; return the next stop, or the logits."""
        self._to_model.put(served)
        return self._answer()

    def _answer(self) -> Asked | torch.Tensor:
        answer = self._to_caller.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[no-any-return]

    # ---- on the model's thread

    def _run(self) -> None:
        while (work := self._to_model.get()) is not None:
            try:
                # Gradients are switched off thread by thread.
                with torch.no_grad():
                    logits = work()
            except _AbandonedError:
                return
            except BaseException as error:
                self._to_caller.put(error)
            else:
                self._to_caller.put(logits)

    def _compute(self, asked: Asked) -> torch.Tensor:
        self._to_caller.put(asked)
        served = self._to_model.get()
        if served is None:
            raise _AbandonedError
        return mix(self._variants, asked.site, asked.hidden, served, self._forward)


def served_by(
    asked: Asked,
    experts: Sequence[int],
    serving: Sequence[int],
    codes: Sequence[int],
    num_experts: int,
) -> Served:
    """How each choice is served, from a decision on each expert of the gate's union.

    ``experts[i]`` is served by ``serving[i]``, at ``codes[i]``.
    """
    by_expert = torch.arange(num_experts + 1)
    code_of = torch.full((num_experts + 1,), -1)
    chosen = torch.tensor(list(experts), dtype=torch.long)
    by_expert[chosen] = torch.tensor(list(serving), dtype=torch.long)
    code_of[chosen] = torch.tensor(list(codes), dtype=torch.long)
    # A choice that the model dropped has an id outside its experts, and keeps it.
    known = (asked.ids >= 0) & (asked.ids < num_experts)
    place = torch.where(known, asked.ids, num_experts).long()
    device = asked.ids.device
    ids = torch.where(known, by_expert.to(device)[place], asked.ids.long())
    return Served(ids, asked.weights, code_of.to(device)[place])
