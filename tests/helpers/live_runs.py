"""What tests of live runs share: one skeleton, and live runs with their calls recorded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from capture.recording.settings import Settings
from real.live.live import LiveDriver
from real.live.run import live_driver, run_as_it_was
from real.setup.prepare import Prepared
from real.store.weightless import skeleton
from sim.core.controller import Controller
from sim.results.calls import RecordedController, RecordedWorkload
from sim.results.replay import replay
from sim.setup.build import build
from sim.traces.trace import Trace
from sim.workload.steps import Workload


@cache
def cached_skeleton(settings: Settings) -> Any:
    """The model's skeleton; made once for all tests, since nothing changes it."""
    return skeleton(settings)


@dataclass(frozen=True)
class Recorded:
    """A live run that has ended; ``seen`` is the workload of what its gates saw."""

    prepared: Prepared
    driver: LiveDriver
    controller: RecordedController
    plain: Controller
    steps: RecordedWorkload
    seen: Workload

    @property
    def gates(self) -> int:
        return sum(call.kind == "gate" for call in self.controller.log)

    def fresh(self, trace: Trace) -> Controller:
        """A controller of the same configuration and sizes that knows only ``trace``."""
        assert self.prepared.weights is not None
        sizes = [variant.num_bytes for variant in self.prepared.weights.store.header.variants]
        return build(
            self.prepared.request.simulated, "system", trace, stored_bytes=sizes
        ).controller

    def difference(self, fresh: Controller) -> Any:
        """The first call that a fresh controller answers differently; None if there is none."""
        return replay(self.controller.log, fresh, self.seen, self.steps.asked_ns)


def recorded(prepared: Prepared) -> Recorded:
    plain = prepared.run.controller
    driver = live_driver(prepared)
    controller = RecordedController(plain)
    driver.controller = driver._links._controller = cast(Controller, controller)
    steps = RecordedWorkload(cast(Workload, driver.workload))
    driver.workload = cast(Workload, steps)
    driver.drive()
    return Recorded(
        prepared, driver, controller, plain, steps, run_as_it_was(prepared, driver).workload
    )
