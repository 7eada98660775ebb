"""Hooks into a model: each site asks a function for the sum of its experts.

Both kinds of live runs (on a device, and in a closed loop) hook into the model here and nowhere
else. A site asks with what its router was fed and chose, and with what its experts are given. Rows
of a padded batch that are no tokens ask for nothing: their experts add nothing, and no other row
sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from capture.models.discover import first_argument
from real.store.experts import ModelForm, SwapError
from real.store.swapping import swapped_experts


@dataclass(frozen=True)
class Asked:
    """What a site asks for: its experts' sum for ``hidden`` [T, H] and the router's choice [T, K].

    An id of -1 chooses nothing. ``inputs`` [T, H] is what the router was fed, where that is known.
    """

    site: int
    hidden: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    inputs: torch.Tensor | None = None

    @property
    def gate_input(self) -> torch.Tensor:
        """The router's input; in most models the experts are given the same."""
        return self.hidden if self.inputs is None else self.inputs


Serve = Callable[[Asked], torch.Tensor]
"""Answers what a site asks for: the sum of its experts [T, H]."""


@dataclass(frozen=True)
class Tokens:
    """Which rows of a forward call are tokens: their indices in its ``rows`` rows, ascending."""

    places: torch.Tensor
    rows: int


@contextmanager
def asking(
    model: Any,
    forms: Sequence[ModelForm],
    serve: Serve,
    tokens: Callable[[], Tokens | None] = lambda: None,
) -> Iterator[None]:
    """Within the block ``serve`` is asked at every site; afterwards the model is as it was.

    ``tokens()`` says at every site which rows are tokens; None: all of them.
    """
    fed: list[torch.Tensor | None] = [None] * len(forms)

    def hook_of(site: int, read: Any) -> Any:
        def hook(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            fed[site] = read(args, kwargs)

        return hook

    def compute(
        site: int, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        seen, fed[site] = fed[site], None
        inputs = None if seen is None else seen.detach().reshape(len(hidden), -1)
        chosen = _without_null(forms[site], ids, weights)
        padded = tokens()
        if padded is None:
            return serve(Asked(site, hidden.detach(), chosen, weights.detach(), inputs))
        if padded.rows != len(hidden):
            raise SwapError(
                f"site {site} has {len(hidden)} rows of a padded batch of {padded.rows}; run one"
                " sequence"
            )
        at = padded.places
        found = serve(
            Asked(
                site,
                hidden.detach()[at],
                chosen[at],
                weights.detach()[at],
                None if inputs is None else inputs[at],
            )
        )
        return torch.zeros_like(hidden).index_copy_(0, at, found)

    with ExitStack() as stack:
        for form in forms:
            hook = hook_of(form.layer.site, first_argument(form.layer.router))
            stack.callback(
                form.layer.router.register_forward_pre_hook(hook, with_kwargs=True).remove
            )
        stack.enter_context(swapped_experts(model, compute, forms))
        yield


def _without_null(form: ModelForm, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The ids, with -1 for choices that compute nothing."""
    null = (ids < 0) | (ids >= form.layer.num_experts)
    if form.layer.num_classes > form.layer.num_experts:
        null |= weights == 0
    return ids.masked_fill(null, -1)
