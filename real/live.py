"""A live run: the model's own gates decide, and its experts are computed by the device as the controller says.

The model's forward call is the driver's step. Where it comes to a site's experts the driver tells the controller the
gate, computes the needs, and hands back what they add up to. What the model does between two sites is the dense work of
the next one; what it does after the last is the step's tail.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from capture.discover import first_argument
from capture.lookahead import router_linear
from capture.prompts import Passage
from capture.run import Decoder, decoder_of
from real.device import TAIL
from real.driver import Driver
from real.expert_work import SiteInputs
from real.experts_swap import SwapError, swapped_experts
from real.live_workload import LiveWorkload
from real.weightless import Weightless
from sim.controller import Controller
from sim.costs import Durations
from sim.record import Record
from sim.types import Step
from sim.workload import Workload

LEAST_AGREEMENT = 0.9
"""The share of a prompt's rows that a router, asked again from its input, must choose alike for lookahead to mean
anything; less than all, because scores nearly tie."""


class LiveModel:
    """The model at work on passages, one sequence after another."""

    def __init__(self, weightless: Weightless, passages: Sequence[Passage], new_tokens: int) -> None:
        self.weightless, self.passages, self.new_tokens = weightless, list(passages), new_tokens
        self._decoder: Decoder | None = None
        self.fed: list[list[int]] = []
        """By sequence, the tokens that were fed after the prompt."""

    @torch.no_grad()
    def run(self, step: Step, place: int, tell: Any) -> None:
        """One forward call: the prompt of the step's sequence, or its ``place``-th token; ``tell(tokens)`` first."""
        number = step.sequences[0]
        if not step.decode:
            self._decoder = decoder_of(self.weightless.model, [self.passages[number]])
            self.fed.append([])
            tell(self.passages[number].prefill)
            self._decoder.prefill(0)
            return
        assert self._decoder is not None
        tokens = self._decoder.next_tokens(place)
        self.fed[-1].append(int(tokens[0]))
        tell([int(tokens[0])])
        self._decoder.step(tokens)

    @property
    def logits(self) -> torch.Tensor | None:
        """What the last forward call said of the next token [V]; None of an encoder."""
        output = None if self._decoder is None else self._decoder.output
        found = None if output is None else output.logits
        return None if found is None else found[0, -1]


class LiveDriver(Driver):
    """The driver of a live run. ``generated``: a file that gets a line for each sequence as soon as it has ended."""

    def __init__(
        self, controller: Controller, workload: LiveWorkload, durations: Durations, device: Any, model: LiveModel,
        generated: Path | None = None, tokenizer: Any = None, advance: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(controller, cast(Workload, workload), durations, device)
        self._live, self._model, self._generated, self._tokenizer = workload, model, generated, tokenizer
        self._advance = advance or (lambda done: None)
        self._site_inputs: list[torch.Tensor | None] = [None] * workload.sites
        self.logits: list[torch.Tensor] | None = None
        """The last row's logits of every step that has some, where a list is put here."""
        if workload.depth:
            workload.scores = self._scores

    def drive(self) -> Record:
        forms = self._model.weightless.forms
        with ExitStack() as stack:
            for form in forms:
                hook = self._input_hook(form.layer.site, first_argument(form.layer.router))
                handle = form.layer.router.register_forward_pre_hook(hook, with_kwargs=True)
                stack.callback(handle.remove)
            stack.enter_context(swapped_experts(self._model.weightless.model, self._run_experts, forms))
            return super().drive()

    def _input_hook(self, site: int, read: Any) -> Any:
        def hook(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._site_inputs[site] = read(args, kwargs)

        return hook

    # ---- a step

    def _run_step(self, step: Step) -> None:
        self._gate.open(step)
        self._step, self._dense_ns = step, self.durations.dense_ns(step)
        number = step.sequences[0]
        place = step.token - self._live.prompts[number].prompt_tokens - 1
        self._model.run(step, place, self._tell_tokens)
        if self.logits is not None and self._model.logits is not None:
            self.logits.append(self._model.logits.clone())
        self._compute(TAIL, step.rows, self.durations.tail_ns(step))
        if step.ends:
            self._write_generated(number)
        self._advance(step.index + 1)

    def _tell_tokens(self, tokens: Sequence[int]) -> None:
        self._live.seen[-1].tokens = np.array(tokens, np.int32)

    def _run_experts(self, site: int, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """In place of a site's experts. [T, H]"""
        layer = self._model.weightless.forms[site].layer
        null = (ids < 0) | (ids >= layer.num_experts)
        if layer.num_classes > layer.num_experts:
            null |= weights == 0
        chosen = ids.masked_fill(null, -1)
        self._live.see(
            site, chosen.to("cpu", torch.int16).numpy(),
            weights.detach().masked_fill(null, 0).to("cpu", torch.float32).numpy(), self._inputs_of(site, len(hidden)),
        )  # fmt: skip
        self._check_rule(site)
        device: Any = self.device
        device.begin_site(SiteInputs(site, hidden.detach(), chosen, weights.detach()))
        self._run_site(self._step, site, self._dense_ns[site])
        return cast(torch.Tensor, device.end_site())

    def _inputs_of(self, site: int, rows: int) -> Any:
        """What the site's router was fed [R, H]; None where nobody asks."""
        if not self._live.depth and not self._live.keeps_inputs:
            return None
        inputs = self._site_inputs[site]
        assert inputs is not None
        return inputs.detach().reshape(rows, -1).to("cpu", torch.float32).numpy()

    def _is_under_way(self, key: int) -> bool:
        """The model has done its dense work when it comes to a site's experts, or to the step's end."""
        g = self.controller.geometry
        return key == TAIL or g.expert_of(key) == g.experts

    # ---- lookahead

    def _scores(self, site: int, inputs: Any) -> Any:
        """What a site's router makes of inputs [R, H] that are its own or another site's."""
        weight, bias = router_linear(self._model.weightless.forms[site].layer)
        return torch.nn.functional.linear(torch.from_numpy(inputs), weight, bias).numpy()

    def _check_rule(self, site: int) -> None:
        """Raise SwapError if rule and router weight do not give a prompt's own choices again: then they cannot tell
        what another site would choose.
        """
        seen, header = self._live.seen[-1], self._live.header
        if not self._live.depth or seen.step.decode:
            return
        inputs, rule = self._inputs_of(site, seen.step.rows), header.sites[site].rule
        if rule is None:
            return
        again = rule.route(self._scores(site, inputs), self._live.top_k)[0]
        alike = float((np.sort(again, -1) == np.sort(seen.ids[:, site], -1)).all(-1).mean())
        if alike < LEAST_AGREEMENT:
            raise SwapError(
                f"site {site}: the rule of trace {header.name} gives only {alike:.0%} of this model's own choices, so "
                f"lookahead has no meaning; capture a trace of this model, or choose predictor=none"
            )

    # ---- what comes out

    def _write_generated(self, number: int) -> None:
        if self._generated is None:
            return
        passage, fed = self._model.passages[number], self._model.fed[number]
        text = {"prompt": list(passage.prefill), "generated": fed}
        if self._tokenizer is not None:
            text = {name: self._tokenizer.decode(tokens) for name, tokens in text.items()}
        line = {"sequence": number, "domain": passage.prompt.domain, **text, "tokens": fed}
        with self._generated.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
