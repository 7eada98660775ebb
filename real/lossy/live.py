"""The simulator's gates, shown by a running model: what is served changes what comes next.

Theory of operation. A driver (the simulator's engine) walks the steps of a workload and visits its
gates. A visit here lets the model run on to that gate:

1. The model is told how the controller served the gate before, and computes that.
2. It stops at the next router. That router's choice, and what later routers would choose, then
   stand in the gate (`real.live.workload`).

So the controller decides on what the lossy model shows, and the model computes what the controller
decided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from real.live.asked import Asked
from real.live.foresight import Eyes
from real.live.workload import LiveGate, LiveWorkload
from real.lossy.mixture import Served
from real.lossy.paused import PausedModel, served_by
from real.lossy.texts import Reading
from sim.core.controller import Controller
from sim.values.types import Outcome, Step
from sim.workload.steps import Workload

OnStep = Callable[[Step, torch.Tensor], None]


class PulledGate(LiveGate):
    """A gate whose visit lets the model run on to it."""

    def __init__(self, run: LiveRun) -> None:
        super().__init__(run)
        self._run = run

    def open(self, step: Step) -> None:
        self._run.end_step()
        super().open(step)
        self._run.begin_step(step)

    def visit(self, site: int) -> None:
        self._run.see(self._run.reach(site))
        super().visit(site)
        self._run.shown(list(self.needs))


class LiveRun(LiveWorkload):
    """One walk of a driver through ``workload``, whose gates a model shows.

    ``tokens_of(step)`` answers the tokens that a step is fed, when it begins. ``on_step`` is called
    with each step and its logits [R, V]. Pass this object as the driver's workload, and ``close``
    it when the driver has ended.

    ``workload`` must have steps of one sequence at a time, with whole prompts.
    """

    def __init__(
        self,
        workload: Workload,
        controller: Controller,
        paused: PausedModel,
        model: Any,
        eyes: Eyes,
        tokens_of: Callable[[Step], Sequence[int]],
        on_step: OnStep,
    ) -> None:
        super().__init__(workload, eyes, keeps_inputs=workload.gate_inputs is not None)
        self._controller, self._paused, self._model = controller, paused, model
        self._tokens_of, self._on_step = tokens_of, on_step
        self._reading: Reading | None = None
        self._step: Step | None = None
        self._reached: Asked | None = None
        self._needs: list[int] = []
        self._is_shown = False
        """Whether the controller has been shown the gate at which the model stands."""
        self._first = 0
        """The controller's first lookup of the open gate."""

    def gate(self) -> PulledGate:
        return PulledGate(self)

    def close(self) -> Workload:
        """Compute the last site, when the driver has ended.

        Return the workload with the gates that the model has shown.
        """
        self.end_step()
        return self.as_it_was()

    # ---- called by the gate

    def begin_step(self, step: Step) -> None:
        self._step = step
        tokens = list(self._tokens_of(step))
        self.tell_tokens(tokens)
        if step.begins:
            self._reading = Reading(self._model)
        reading = self._reading
        assert reading is not None
        if step.decode:
            self._take(self._paused.begin(lambda: reading.step(tokens[0])))
        else:
            self._take(self._paused.begin(lambda: reading.prompt(tokens)))

    def reach(self, site: int) -> Asked:
        """Let the model run on to a site, and return what it asks for there."""
        if self._is_shown:
            self._serve()
        if self._reached is None or self._reached.site != site:
            found = (
                "the pass has ended"
                if self._reached is None
                else f"the model is at site {self._reached.site}"
            )
            raise RuntimeError(f"the driver visits site {site}, but {found}")
        return self._reached

    def shown(self, needs: list[int]) -> None:
        """Note that the controller is shown this gate.

        Its lookups from now on are those of ``needs``, in their order.
        """
        self._needs, self._first, self._is_shown = needs, len(self._controller.lookup_keys), True

    def end_step(self) -> None:
        if self._is_shown:
            self._serve()

    # ---- what the controller decided

    def _serve(self) -> None:
        assert self._reached is not None
        served = self._decided(self._reached)
        self._is_shown = False
        self._take(self._paused.go_on(served))

    def _decided(self, asked: Asked) -> Served:
        keys = self._controller.lookup_keys[self._first :]
        outcomes = self._controller.lookup_outcomes[self._first :]
        if len(keys) != len(self._needs):
            raise RuntimeError(
                f"site {asked.site}: {len(self._needs)} needs, but {len(keys)} lookups since its"
                " gate"
            )
        geometry = self._controller.geometry
        codes, serving = [], []
        for need, key, outcome in zip(self._needs, keys, outcomes, strict=True):
            is_left_out = outcome == Outcome.SKIP
            codes.append(-1 if is_left_out else geometry.precision_of(key))
            serving.append(need if is_left_out else geometry.expert_of(key))
        return served_by(asked, self._needs, serving, codes, geometry.experts)

    def _take(self, answer: Asked | torch.Tensor) -> None:
        if isinstance(answer, Asked):
            self._reached = answer
            return
        assert self._step is not None
        self._reached = None
        self._on_step(self._step, answer)
