"""Prompts in a pipeline: beside devices that are simulated at the same time, and by hand (C159)."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import numpy as np
import pytest
import simpy

from sim.results.frames import Frames
from sim.results.pipelined import Parts, overlapped_ns, parts_of, pipelined_section
from sim.results.run import Run
from sim.setup.execute import execute
from sim.study.trials import prepared
from sim.traces.trace import DECODE
from sim.values.types import Outcome

CHUNKED = ("workload.batching=sequential", "workload.prefill_chunk=8", "trace.max_sequences=2")
LAYERS = "devices=layers_2"
THREE = (LAYERS, "hardware.devices.count=3")


def simulated(*words: str) -> tuple[Run, Frames, Mapping[str, Any]]:
    run = prepared(words)
    result = execute(run)
    return run, result.frames, result.summary


class AtOnce:
    """Devices that work at the same time, each a process that reads chunk after chunk.

    A gate's needs are computed once all are there, or hits first and loads as they come
    (``as_ready``). What is a hit is as in the run whose steps followed each other.
    """

    def __init__(self, run: Run, frames: Frames, steps: range) -> None:
        devices = run.hardware.devices
        assert devices is not None
        self.run, self.steps, self.count = run, steps, devices.count
        self.device_of = devices.device_of(run.model)
        self.crossing_ns = lambda rows: devices.crossing_ns(run.model, rows)
        needs = frames.needs
        self.rows = list(
            zip(
                needs["key"].to_list(),
                needs["outcome"].to_physical().to_list(),
                frames.computed_tokens.tolist(),
                strict=True,
            )
        )
        tick = run.workload.needs.tick
        self.bounds = np.searchsorted(tick, np.arange(run.workload.num_gates + 1)).tolist()
        self.first_tick = np.searchsorted(run.workload.gate_step, np.arange(steps.stop)).tolist()

    def ends_ns(self) -> int:
        env = simpy.Environment()
        come = [[env.event() for _ in self.steps] for _ in range(self.count)]
        for event in come[0]:
            event.succeed()
        last = [env.process(self._device(env, device, come)) for device in range(self.count)][-1]
        env.run(last)
        return int(env.now)

    def _device(
        self, env: simpy.Environment, device: int, come: list[list[simpy.Event]]
    ) -> Generator[simpy.Event]:
        durations, geometry = self.run.durations, self.run.controller.geometry
        for place, index in enumerate(self.steps):
            yield come[device][place]
            step = self.run.workload.steps[index]
            dense_ns = durations.dense_ns(step)
            sites = [site for site in step.sites if self.device_of[site] == device]
            for site in sites:
                first = device > 0 and site == sites[0]
                yield env.timeout(dense_ns[site] - (self.crossing_ns(step.rows) if first else 0))
                tick = self.first_tick[index] + step.sites.index(site)
                found = self.rows[self.bounds[tick] : self.bounds[tick + 1]]
                loads = [row for row in found if row[1] != Outcome.HIT]
                hits = [row for row in found if row[1] == Outcome.HIT]
                # Loads follow each other over the link, in need order, while hits are computed.
                hops = [durations.hop_ns(device, geometry.bytes_of(key)) for key, _, _ in loads]
                come_ns = [env.now + sum(hops[: nth + 1]) for nth in range(len(hops))]
                order = [*((row, env.now) for row in hits), *zip(loads, come_ns, strict=True)]
                if self.run.controller.loader.wait == "wait_all":
                    order = [(row, max([env.now, *come_ns])) for row in found]
                for (_, _, tokens), there_ns in order:
                    yield env.timeout(max(0, there_ns - env.now))
                    yield env.timeout(durations.expert_ns(0, site, tokens))
            if device == self.count - 1:
                yield env.timeout(durations.tail_ns(step))
            else:
                crossed = env.timeout(self.crossing_ns(step.rows))
                crossed.callbacks.append(lambda _, to=come[device + 1][place]: to.succeed())


# Contracts: C159
@pytest.mark.parametrize(
    "words",
    [
        (LAYERS, "budget.resident_share=0.25"),
        (LAYERS, "cache.scope=site", "workload.prefill_chunk=2"),
        (LAYERS, "hardware.devices.shares=[1,3]", "loader.wait=as_ready"),
        (LAYERS, "system=load_on_demand", "workload.prefill_chunk=1"),
        (LAYERS, "hardware.devices.peer.gb_per_s=0.001", "workload.prefill_chunk=20"),
        (*THREE, "loader.wait=as_ready", "workload.prefill_chunk=4"),
        (*THREE, "hardware.devices.shares=[5,1,2]", "workload.prefill_chunk=1"),
    ],
)
def test_a_pipeline_takes_what_devices_take_that_work_at_the_same_time(
    words: tuple[str, ...],
) -> None:
    own = dict(word.split("=", 1) for word in ("system=lru", *CHUNKED, *words))
    run, frames, summary = simulated(*map("=".join, own.items()))
    parts = parts_of(run, frames)
    groups = list(parts.groups())
    assert len(groups) == len(run.workload.sequences)
    found = [parts.overlapped_ns(group) for group in groups]
    assert found == [AtOnce(run, frames, group).ends_ns() for group in groups]
    told = summary["pipelined"]
    assert told["exact"]
    assert told["time_s"] == sum(found) / 1e9
    assert 1 < told["times_as_fast"] < parts.ends.shape[1]
    rows = sum(run.workload.steps[step].rows for group in groups for step in group)
    assert told["prefill_tokens_per_s"] == pytest.approx(rows / told["time_s"])
    assert told["times_as_fast"] == pytest.approx(
        told["prefill_tokens_per_s"] / summary["prefill_tokens_per_s"]
    )


def test_one_chunk_and_one_token_after_another_gain_nothing() -> None:
    _, _, summary = simulated("system=lru", LAYERS, "trace.max_sequences=2")
    assert summary["pipelined"]["times_as_fast"] == 1
    assert "pipelined" not in simulated("system=lru", "trace.max_sequences=1")[2]
    assert "pipelined" not in simulated("system=lru", "devices=slices_2", *CHUNKED)[2]


@pytest.mark.parametrize(
    ("words", "is_exact"),
    [
        (("system=lru",), True),
        (("system=lru", "hardware.devices.links=shared"), False),
        # All that prompts need is there: nothing moves over the shared link.
        (
            (
                "system=lru",
                "hardware.devices.links=shared",
                "hardware.memory_gib=100",
                "budget.resident_share=1",
            ),
            True,
        ),
        (("system=fiddler",), False),
        # A prefetch for the other device's layers goes on while this one computes.
        (("system=lru", "predictor=foreseen"), False),
    ],
)
def test_it_says_whether_what_devices_share_could_change_its_times(
    words: tuple[str, ...], is_exact: bool
) -> None:
    assert simulated(*words, LAYERS, *CHUNKED)[2]["pipelined"]["exact"] is is_exact


def parts(
    starts: list[list[int]], ends: list[list[int]], prompt: list[bool], message: int = 0
) -> Parts:
    return Parts(np.array(starts), np.array(ends), np.full(len(starts), message), np.array(prompt))


def test_chunks_overlap_by_hand() -> None:
    """Chunks of 220, a message of 7 and 270: the second device is never idle after its first."""
    steps = [[497 * nth, 497 * nth + 220] for nth in range(3)]
    ends = [[start + 220, start + 497] for start, _ in steps]
    found = parts(steps, ends, [True] * 3, message=7)
    assert list(found.groups()) == [range(3)]
    assert found.overlapped_ns(range(3)) == 220 + 7 + 3 * 270
    assert overlapped_ns([]) == 0
    # The first device is the slower one: what is left is the last chunk's second part.
    assert overlapped_ns([([270, 220], 7)] * 3) == 3 * 270 + 7 + 220
    assert overlapped_ns([([10, 1], 0), ([1, 10], 0)]) == 21


def test_only_prompts_that_follow_each_other_overlap() -> None:
    """Steps 0 and 1 are of one prompt, 2 decodes, 3 and 4 are prompts with a pause between."""
    starts = [[0, 5], [10, 15], [20, 25], [30, 35], [50, 55]]
    ends = [[5, 10], [15, 20], [25, 30], [35, 40], [55, 60]]
    found = parts(starts, ends, [True, True, False, True, True])
    assert list(found.groups()) == [range(2), range(3, 4), range(4, 5)]
    assert [found.overlapped_ns(group) for group in found.groups()] == [15, 10, 10]
    assert list(parts(starts, ends, [False] * 5).groups()) == []


def test_a_transfer_belongs_to_its_own_devices_part_of_a_step() -> None:
    starts, ends = [[0, 5], [10, 15], [20, 25]], [[5, 10], [15, 20], [25, 30]]
    found = parts(starts, ends, [True, False, True])
    device = np.array([0, 1, 0, 1, 0, 0, 1])
    start = np.array([0, 5, 4, 4, 10, 14, 31])
    end = np.array([5, 10, 6, 6, 20, 21, 40])
    assert found.hold(device, start, end)[:4].tolist() == [True, True, False, False]
    assert found.touched(start, end).tolist() == [True, True, True, True, False, True, False]


def test_a_run_without_prompts_has_no_pipeline() -> None:
    run, frames, _ = simulated("system=lru", LAYERS, *CHUNKED)
    frames.workload.phase = np.full_like(frames.workload.phase, DECODE)
    assert pipelined_section(run, frames) == {}
