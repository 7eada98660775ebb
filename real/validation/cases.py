"""Systems and budgets that are run on a device and by the simulator, and compared.

Compared are every decision and all times.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from real.driver.recording import Recording, record_run
from real.setup.execute import as_it_ran, rounding_in
from real.setup.prepare import Prepared, Request, prepare_replay, read_request
from real.validation.conformance import NonconformanceError, conform
from real.validation.constants import Constants, MeasuredDurations, Pair, pairs_of
from real.validation.judge import Case
from sim.engine.simulate import simulate
from sim.machine.durations import Durations
from sim.results.frames import Frames
from sim.results.labels import Labels
from sim.results.replay import replay
from sim.results.run import Run
from sim.setup.configure import changes, configure
from sim.values.record import Record

SCHEDSTAT = Path("/proc/self/schedstat")
BUSY_SHARE = 0.005
"""The largest share of a run that its main thread may spend in the run queue.

With a larger share, other work has disturbed the run.
"""
MAX_TOTAL_ERROR, MAX_STEP_ERROR = 0.01, 0.02
"""The largest errors of a controlled prediction: of the makespan, and of 95 % of the steps."""


@dataclass(frozen=True)
class Plan:
    """What is run: systems and budgets (``shares``), and how often each.

    ``words`` configure all runs.
    """

    systems: tuple[str, ...]
    shares: tuple[float, ...]
    repeats: int
    seed: int
    words: tuple[str, ...]


@dataclass(frozen=True)
class Measured:
    """One run on the device.

    - ``delay``: the share of its time that the main thread spent in the run queue; None where the
      system does not tell.
    - ``load_average``: the machine's, over the minute in which the run ended.
    - ``labels``: what a reader must know of the run, and of its simulation.
    """

    system: str
    share: float
    recording: Recording
    frames: Frames
    pairs: Sequence[Pair]
    delay: float | None
    load_average: float
    labels: Labels


@dataclass(frozen=True)
class Checked:
    """A recorded run against the simulator.

    - ``first_difference``: in the recorded calls replayed into a fresh controller; None where all
      answers are equal.
    - ``nonconformance``: why the replay in time is refused; None where it holds. ``makespan_error``
      and ``token_error`` are its errors, ``forced`` the share of calls whose order was forced.
    - ``total_error``, ``step_error`` (95th percentile): of the prediction from nominal times.
    - ``controlled``: what that prediction comes to: ``holds``, ``misses``, or ``busy`` (the machine
      was); None with free times.
    """

    system: str
    share: float
    calls: int
    first_difference: str | None
    nonconformance: str | None
    makespan_error: float | None
    token_error: float | None
    forced: float | None
    total_error: float
    step_error: float
    delay: float | None
    controlled: str | None


def request_of(words: Sequence[str], system: str, share: float) -> Request:
    """The request of a system at a budget. Raise ValueError for what cannot run."""
    cfg, name = configure(
        f"system={system}", f"budget.resident_share={share}", *words, config="real"
    )
    return read_request(cfg, name, changes(words))


def order_of(plan: Plan) -> list[tuple[str, float, int]]:
    """Every run, by system, budget and repeat.

    Repeats are interleaved in a seeded random order, so that drift is not put down to one system.
    """
    runs: list[tuple[str, float, int]] = []
    for repeat in range(plan.repeats):
        cells = list(product(plan.systems, plan.shares))
        random.Random(plan.seed + repeat).shuffle(cells)
        runs += [(system, share, repeat) for system, share in cells]
    return runs


def measure_run(request: Request, share: float, system: str) -> Measured:
    """Run on the device, and record the run."""
    prepared = prepare_replay(request)
    run = prepared.run
    before = _queued_ns()
    recording = record_run(run.controller, run.workload, run.durations, prepared.device)
    after = _queued_ns()
    delay = (
        None
        if before is None or after is None
        else (after - before) / max(1, recording.record.makespan_ns)
    )
    frames = _frames(run, recording.record, recording)
    return Measured(
        system,
        share,
        recording,
        frames,
        pairs_of(recording, frames, run.durations),
        delay,
        os.getloadavg()[0],
        as_it_ran(run, frames, request, rounding_in(prepared.weights)),
    )


def _queued_ns() -> int | None:
    """How many ns this thread has been runnable without running."""
    try:
        return int(SCHEDSTAT.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None


def _frames(run: Run, record: Record, recording: Recording | None = None) -> Frames:
    computed = None if recording is None else recording.computed
    return Frames(
        run.controller, run.workload, run.durations, record, run.hardware.link_names, computed
    )


def simulated(prepared: Prepared, durations: Durations | None = None) -> Frames:
    """The tables of the same run by the simulator, from nominal durations or from others."""
    run = prepared.run
    return _frames(run, simulate(run.controller, run.workload, durations or run.durations))


def check(request: Request, measured: Measured) -> Checked:
    """Steps 1 and 2: equal decisions, the time of a replay, a prediction from nominal times."""
    recording = measured.recording
    fresh = prepare_replay(request).run
    difference = replay(recording.calls, fresh.controller, fresh.workload, recording.asked_ns)
    fresh = prepare_replay(request).run
    found, refusal = None, None
    try:
        found = conform(recording, fresh.controller, fresh.workload, fresh.durations)
        found.check()
    except NonconformanceError as error:
        refusal = str(error)
    predicted = simulated(prepare_replay(request)).record
    total, step = errors(predicted, recording.record)
    return Checked(
        measured.system,
        measured.share,
        len(recording.calls),
        None if difference is None else str(difference),
        refusal,
        None if found is None else found.makespan_error,
        None if found is None else found.token_error,
        None if found is None else found.forced / found.calls,
        total,
        step,
        measured.delay,
        _verdict(request, total, step, measured),
    )


def errors(predicted: Record, recorded: Record) -> tuple[float, float]:
    """The error of a predicted makespan (signed), and the 95th percentile of its steps' errors."""
    spans = [spans_ns(record) for record in (predicted, recorded)]
    step = np.percentile(np.abs(spans[0] - spans[1]) / np.maximum(spans[1], 1), 95)
    return predicted.makespan_ns / recorded.makespan_ns - 1, float(step)


def spans_ns(record: Record) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """How long each step took, in ns."""
    return np.array(record.step_end_ns, np.int64) - np.array(record.step_start_ns, np.int64)


def _verdict(request: Request, total: float, step: float, measured: Measured) -> str | None:
    if request.device != "null" and "free" in (request.engine.links, request.engine.compute):
        return None
    if abs(total) <= MAX_TOTAL_ERROR and step <= MAX_STEP_ERROR:
        return "holds"
    is_busy = measured.delay is not None and measured.delay > BUSY_SHARE
    return "busy" if is_busy or measured.load_average > (os.cpu_count() or 1) else "misses"


def predict(
    plan: Plan, runs: Sequence[Measured], make: Callable[[str, float], Request]
) -> list[Case]:
    """Step 3: predict each system at each budget from the times of the *other* systems' runs."""
    cases = []
    for system, share in product(plan.systems, plan.shares):
        mine = [run for run in runs if (run.system, run.share) == (system, share)]
        others = [run for run in runs if run.system != system]
        if not mine or not others:
            continue
        constants = Constants.learn(pair for run in others for pair in run.pairs)
        prepared = prepare_replay(make(system, share))
        run = prepared.run
        precisions = run.controller.geometry.precisions
        durations = MeasuredDurations(run.durations, constants, precisions)
        record = simulated(prepared, durations).record
        cases.append(
            Case(
                system,
                share,
                record.makespan_ns,
                tuple(run.recording.record.makespan_ns for run in mine),
                tuple(spans_ns(record).tolist()),
                tuple(tuple(spans_ns(run.recording.record).tolist()) for run in mine),
            )
        )
    return cases
