"""How many calls a decode gate costs: a launch for what is there, and four calls for each miss.

To ask an event is not counted, for it is done only while there is nothing else to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir

import real.cuda.device
from helpers.fake_runtime import FakeEvent, FakeRuntime, FakeStream
from real.driver.loop import Driver
from real.setup.execute import replay_driver
from real.setup.prepare import prepare_replay, read_request
from sim.core.controller import Controller
from sim.values.places import ROOT
from sim.values.types import Outcome


class Counting(FakeRuntime):
    """Counts calls that give work or order to streams, and those that allocate."""

    made: Counting

    def __init__(self, late: int = 0) -> None:
        super().__init__(strict=True, late=late)
        self.calls: Counter[str] = Counter()
        Counting.made = self

    def record(self, event: FakeEvent, stream: FakeStream) -> None:
        self.calls["record"] += 1
        super().record(event, stream)

    def wait(self, stream: FakeStream, event: FakeEvent) -> None:
        self.calls["wait"] += 1
        super().wait(stream, event)

    def event(self, *, timed: bool = False) -> FakeEvent:
        self.calls["event"] += 1
        return super().event(timed=timed)

    def allocate(self, num_bytes: int) -> torch.Tensor:
        self.calls["allocate"] += 1
        return super().allocate(num_bytes)

    def run(self, stream: FakeStream, work: Callable[[], Any], **uses: Any) -> Any:
        self.calls["run"] += 1  # copies and launches of graphs come here, too
        return super().run(stream, work, **uses)


class Gates:
    """The calls between each gate and the next one of its step, and the needs that were there."""

    def __init__(self, driver: Driver, controller: Controller) -> None:
        self.rows: list[tuple[Counter[str], int, int]] = []
        self._controller, self._driver = controller, driver
        self._run_site = driver._run_site

    def run_site(self, step: Any, site: int, dense_ns: int) -> None:
        first, before = len(self._controller.lookup_outcomes), Counter(Counting.made.calls)
        self._run_site(step, site, dense_ns)
        if step.decode and step.rows == 1:
            outcomes = self._controller.lookup_outcomes[first:]
            misses = sum(outcome != Outcome.HIT for outcome in outcomes)
            self.rows.append((Counting.made.calls - before, len(outcomes) - misses, misses))


# Contracts: C123
@pytest.mark.parametrize("late", [0, 3], ids=["events end at once", "events end late"])
def test_a_decode_gate_takes_at_most_six_calls_and_four_for_each_miss_and_no_memory(
    late: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site has its dense work, the read-out of its gate, its hits and its misses."""
    monkeypatch.setattr(real.cuda.device, "CudaRuntime", lambda: Counting(late))
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        words = [
            "device=cuda",
            "model=tiny_qwen2moe",
            "trace=tiny_qwen2moe",
            "trace.max_sequences=1",
            "workload=hobbit_16_128",
            "workload.prompt_tokens=2",
            "workload.decode_tokens=12",
            "engine.weights=stand_in",
            "engine.stand_in_gib=0.004",
            f"engine.store_dir={tmp_path}",
            "output_dir=unused",
            "engine.links=free",
            "engine.compute=free",
            "budget.resident_share=0.4",
            "system=lru",
        ]
        prepared = prepare_replay(read_request(compose("real", words), "system"))
    driver = replay_driver(prepared)
    gates = Gates(driver, prepared.run.controller)
    monkeypatch.setattr(driver, "_run_site", gates.run_site)
    driver.drive()
    assert {misses for _, _, misses in gates.rows} >= {0, 1, 2}
    assert any(hits > 1 for _, hits, _ in gates.rows)
    for calls, _, misses in gates.rows:
        assert calls.total() <= 6 + 4 * misses, (calls, misses)
        assert not calls["allocate"]
        assert not calls["event"]
