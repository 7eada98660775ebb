"""A live run: the model's own gates decide, and a device computes its experts for the controller.

A forward call of the model is a step of the driver. Where the call comes to a site's experts, the
driver tells the controller the gate, computes the needs, and hands back their sum. What the model
computes between two sites is the dense work of the later one. What it computes after the last site
is the step's tail.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from capture.recording.prompts import Passage
from real.driver.device import TAIL
from real.driver.loop import Driver
from real.live.asked import Asked, asking
from real.live.batch import RunningBatch
from real.live.channels import LiveChannels
from real.live.workload import LiveWorkload
from real.store.weightless import Weightless
from real.store.work import SiteInputs
from sim.core.controller import Controller
from sim.machine.durations import Durations
from sim.values.record import Record
from sim.values.types import Step
from sim.workload.steps import Workload


class LiveModel:
    """The model and its sequences. Each step is one forward call.

    It reads either the prompts of newcomers, or one token of each sequence that decodes.
    """

    def __init__(self, weightless: Weightless, passages: Sequence[Passage]) -> None:
        self.weightless, self.passages = weightless, list(passages)
        self.batch = RunningBatch(weightless.model, self.passages)

    @torch.no_grad()
    def run(self, step: Step, tell: Callable[[Sequence[int]], None]) -> None:
        """Make a step's forward call; ``tell(tokens)`` is called first, row by row."""
        if step.decode:
            tokens = self.batch.bring_together(step.sequences)
            tell(tokens)
            self.batch.feed(tokens)
        else:
            tell([token for number in step.sequences for token in self.passages[number].prefill])
            self.batch.read(step.sequences)


class LiveDriver(Driver):
    """The driver of a live run.

    ``generated``: a file that gets a line for each sequence as soon as it has ended.
    """

    def __init__(
        self,
        controller: Controller,
        workload: LiveWorkload,
        durations: Durations,
        device: Any,
        model: LiveModel,
        generated: Path | None = None,
        tokenizer: Any = None,
        advance: Any = None,
    ) -> None:
        super().__init__(controller, cast(Workload, workload), durations, device)
        self._live, self._model, self._generated, self._tokenizer = (
            workload,
            model,
            generated,
            tokenizer,
        )
        self._advance = advance or (lambda done: None)
        self.channels: LiveChannels | None = None
        """Chooses which channels move; None where no parts of experts move."""
        self.logits: list[torch.Tensor] | None = None
        """If set to a list, every step appends its logits of each sequence's next token [n, V]."""

    def drive(self) -> Record:
        weightless = self._model.weightless
        with asking(
            weightless.model, weightless.forms, self._serve, lambda: self._model.batch.tokens
        ):
            return super().drive()

    # ---- a step

    def _run_step(self, step: Step) -> None:
        self._gate.open(step)
        self._step, self._dense_ns = step, self.durations.dense_ns(step)
        self._model.run(step, self._tell_tokens)
        if self.logits is not None and self._model.batch.logits is not None:
            self.logits.append(self._model.batch.logits.clone())
        self._compute(TAIL, step.rows, self.durations.tail_ns(step))
        for number in step.ends:
            self._write_generated(number)
        self._advance(step.index + 1)

    def _tell_tokens(self, tokens: Sequence[int]) -> None:
        self._live.tell_tokens(tokens)

    def _serve(self, asked: Asked) -> torch.Tensor:
        """The sum [T, H] of a site's experts, computed in their place."""
        self._live.see(asked)
        if self.channels is not None:
            self.channels.see(asked)
        device: Any = self.device
        device.begin_site(SiteInputs(asked.site, asked.hidden, asked.ids, asked.weights))
        self._run_site(self._step, asked.site, self._dense_ns[asked.site])
        return cast(torch.Tensor, device.end_site())

    def _is_under_way(self, key: int) -> bool:
        """True of dense work: the model has done it when the driver comes to compute it.

        That is when it reaches a site's experts, or the step's end.
        """
        g = self.controller.geometry
        return key == TAIL or g.expert_of(key) == g.experts

    # ---- what comes out

    def _write_generated(self, number: int) -> None:
        if self._generated is None:
            return
        passage, fed = self._model.passages[number], self._model.batch.fed[number]
        text = {"prompt": list(passage.prefill), "generated": fed}
        if self._tokenizer is not None:
            text = {name: self._tokenizer.decode(tokens) for name, tokens in text.items()}
        line = {"sequence": number, "domain": passage.prompt.domain, **text, "tokens": fed}
        with self._generated.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
