"""One step of training a tiny model, and all that a step changes: saved, killed and resumed."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from capture.tiny.corpus import DOMAINS
from capture.tiny.model import (
    balance_loss,
    build_model,
    language_loss,
    make_optimizer,
    z_loss,
)
from capture.tiny.recipes import Recipe
from capture.tiny.tokenizer import (
    TokenStream,
)


class BatchSampler:
    """Draws windows of training text: the domain with the recipe's mix, the position uniformly.

    Windows may cross a document's end. Domains without text give their share to the others.
    """

    def __init__(self, stream: TokenStream, recipe: Recipe) -> None:
        last_start = len(stream) - recipe.seq - 1
        self._starts = [
            np.flatnonzero(stream.domain[: max(0, last_start)] == index)
            for index in range(len(DOMAINS))
        ]
        shares = np.array(
            [
                share * (len(starts) > 0)
                for share, starts in zip(recipe.mix, self._starts, strict=True)
            ]
        )
        if shares.sum() == 0:
            raise ValueError(
                f"cannot draw windows of seq={recipe.seq} tokens from a training text of"
                f" {len(stream)} tokens with mix={recipe.mix}; lower --seq or give more text"
            )
        self._shares = shares / shares.sum()
        self._ids = stream.ids
        self._recipe = recipe
        self.generator = np.random.default_rng(recipe.seed)

    def draw(self) -> tuple[torch.Tensor, int]:
        """Token ids [batch, seq + 1], and the length of the prefix that is not predicted.

        Every call moves the generator on.
        """
        recipe = self._recipe
        shortest, longest = recipe.prefix
        # A prefix of fixed length draws no random number.
        prefix = (
            shortest if shortest == longest else int(self.generator.integers(shortest, longest + 1))
        )
        domains = self.generator.choice(len(DOMAINS), size=recipe.batch, p=self._shares)
        starts = [
            self._starts[domain][self.generator.integers(len(self._starts[domain]))]
            for domain in domains
        ]
        windows = np.stack([self._ids[start : start + recipe.seq + 1] for start in starts])
        return torch.from_numpy(windows.astype(np.int64)), prefix


@dataclass
class RunState:
    """Everything that a training step changes.

    ``losses`` has the language loss of every step so far, in nats per token.
    """

    recipe: Recipe
    text_sha256: str
    model: PreTrainedModel
    optimizer: torch.optim.AdamW
    sampler: BatchSampler
    losses: list[float] = field(default_factory=list)

    @classmethod
    def start(cls, recipe: Recipe, stream: TokenStream) -> RunState:
        if stream.ids.max(initial=0) >= recipe.vocab:
            raise ValueError(
                f"cannot embed token {stream.ids.max()}: vocab={recipe.vocab}; give a tokenizer of"
                " at most that many"
            )
        model = build_model(recipe)
        return cls(
            recipe,
            stream.sha256,
            model,
            make_optimizer(model, recipe),
            BatchSampler(stream, recipe),
        )

    @property
    def step(self) -> int:
        """Number of steps done."""
        return len(self.losses)

    def save(self, path: Path) -> None:
        """Writes a file beside ``path`` and renames it: a kill leaves the old or the new file."""
        content = {
            "recipe": json.dumps(self.recipe.as_dict()),
            "text_sha256": self.text_sha256,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "numpy_generator": json.dumps(self.sampler.generator.bit_generator.state),
            "torch_generator": torch.get_rng_state(),
            "losses": self.losses,
        }
        unfinished = path.with_suffix(".unfinished")
        with unfinished.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)

    def load(self, path: Path) -> None:
        """Takes over the state saved in ``path``.

        Raises ValueError if that run had another recipe or another text.
        """
        content = torch.load(path, weights_only=True)
        self._check_same_run(path, content)
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.sampler.generator.bit_generator.state = json.loads(content["numpy_generator"])
        torch.set_rng_state(content["torch_generator"])
        self.losses = list(content["losses"])

    def _check_same_run(self, path: Path, content: dict[str, Any]) -> None:
        there = json.loads(content["recipe"])
        here = json.loads(json.dumps(self.recipe.as_dict()))
        different = [
            f"{key}={there.get(key)} there, {here[key]} here"
            for key in here
            if here[key] != there.get(key)
        ]
        if different:
            raise ValueError(
                f"cannot resume {path}: {'; '.join(different)}; give the arguments of its start or"
                " another --out"
            )
        if content["text_sha256"] != self.text_sha256:
            raise ValueError(
                f"cannot resume {path}: it was trained on text {content['text_sha256'][:12]}, this"
                f" is text {self.text_sha256[:12]}; use the same Python, packages and tokenizer, or"
                " another --out"
            )


def train_step(state: RunState, router_logits: list[torch.Tensor]) -> float:
    """Does one optimizer step; returns the language loss before it, in nats per token."""
    recipe = state.recipe
    for group in state.optimizer.param_groups:
        group["lr"] = recipe.learning_rate_at(state.step)
    router_logits.clear()
    language = language_loss(state.model, *state.sampler.draw())
    loss = language + recipe.balance_loss * balance_loss(router_logits, recipe.top_k)
    loss = loss + recipe.z_loss * z_loss(router_logits)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(state.model.parameters(), 1.0)
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    return language.item()
