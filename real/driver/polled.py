"""A device on the real clock that one thread drives: the caller's.

It gives work to the machine, and asks whether work is over while it waits, computes or has nothing
else to do. Other threads do only what blocks: they read files, gather rows and compute on the CPU
(`Crew`). They hand what they have done over through one queue, which the caller's thread empties.
So nothing is shared, no lock is taken, and hand-overs come in the order in which they are found.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from queue import Empty, SimpleQueue
from threading import RLock, Thread
from typing import Any, TypeVar

from real.driver.device import Listener, Turn
from real.driver.timers import WAKE_NS, sharpen_timers

T = TypeVar("T")
Then = Callable[[], object]
REST_S = 50e-6
"""How long the caller's thread rests where only other threads and clocks can bring something."""
LONGEST_S = 1e-3
BRIEF_S = 5e-6
"""How long it rests between two questions to the machine while other threads work.

They need Python's lock, which a thread that only asks would keep.
"""


class Crew:
    """Threads that do one kind of job in the order of submission; they start at the first job."""

    def __init__(self, name: str, results: SimpleQueue[partial[object]], count: int = 1) -> None:
        self.name, self._results = name, results
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Callable[[Any], object]] | None]
        self._jobs = SimpleQueue()
        self._count = count
        self.threads: list[Thread] = []

    def submit(self, work: Callable[[], T], then: Callable[[T], object]) -> None:
        """Let a thread do ``work``; ``then`` is called with its result on the caller's thread."""
        if not self.threads:
            self.threads = [
                Thread(target=self._loop, name=self.name, daemon=True) for _ in range(self._count)
            ]
            for thread in self.threads:
                thread.start()
        self._jobs.put((work, then))

    def dismiss(self) -> None:
        """Let each thread end behind the job that it is doing; what else was submitted is left."""
        while True:
            try:
                self._jobs.get_nowait()
            except Empty:
                break
        for _ in self.threads:
            self._jobs.put(None)

    def _loop(self) -> None:
        sharpen_timers()
        while (job := self._jobs.get()) is not None:
            work, then = job
            told: partial[object]
            try:
                told = partial(then, work())
            except BaseException as failure:
                told = partial(fail, self.name, failure)
            self._results.put(told)


def fail(name: str, failure: BaseException) -> object:
    """Raise what has gone wrong in a thread."""
    raise RuntimeError(f"the thread of the {name} failed: {failure!r}") from failure


class PolledDevice:
    """What every polled device has: a clock, crews, work that ends at set times, and waits.

    ``patience_s`` is how long a wait may last without any news; it must be longer than any single
    piece of work. RuntimeError is raised, with its cause, where a crew has failed, and where a wait
    runs out of patience.
    """

    def __init__(self, patience_s: float, *, is_padded: bool) -> None:
        # Nobody else takes it. To enter it costs less than to enter ``nullcontext``.
        self.lock: AbstractContextManager[object] = RLock()
        self._patience_ns = round(patience_s * 1e9)
        self.is_padded = is_padded
        self._opened_ns = time.perf_counter_ns()
        self._is_cut = True

    @property
    def is_deferred(self) -> bool:
        return not self.is_padded

    # ---- what a subclass does

    def _ask(self) -> bool:
        """Ask what is under way, and hand over what has ended; return whether anything has."""
        raise NotImplementedError

    def _is_asking(self) -> bool:
        """Whether the machine has been given something that has not ended yet."""
        raise NotImplementedError

    def _is_serving(self) -> bool:
        """Whether a service is under way."""
        raise NotImplementedError

    def _idle_turn(self) -> None:
        """Called where nothing has ended: for work that can be done at any time."""

    # ---- a run

    def prepare(self) -> None:
        """Be ready for crews. Called first when a device is opened."""
        self._is_cut = False
        self._results: SimpleQueue[partial[object]] = SimpleQueue()
        self._crews: list[Crew] = []
        self._num_jobs = 0
        self._due: list[tuple[int, int, Then]] = []
        """A heap: what happens at set times, which is when, in order of setting, and what."""
        self._num_due = 0
        self._cpu = self.crew("CPU worker")
        self._cpu_free_ns = 0

    def crew(self, name: str, count: int = 1) -> Crew:
        """Threads of this run, which are ended with it."""
        self._crews.append(Crew(name, self._results, count))
        return self._crews[-1]

    def open(self, listener: Listener, engines: tuple[int, ...]) -> None:
        """Begin a run that has been prepared. A closed device may be opened again."""
        self._listener = listener
        sharpen_timers()
        self._opened_ns = time.perf_counter_ns()

    def now_ns(self) -> int:
        return time.perf_counter_ns() - self._opened_ns

    def cut_off(self) -> None:
        self._is_cut = True

    def close(self) -> None:
        """End the run and its threads.

        Raise RuntimeError if one does not end, or if one had failed and nobody has heard of it.
        """
        self._is_cut = True
        sharpen_timers(False)
        if stuck := self.dismiss():
            raise RuntimeError(
                f"{', '.join(stuck)} did not end within {self._patience_ns / 1e9:g} s of the run's"
                " end"
            )
        while not self._results.empty():
            told = self._results.get()
            if told.func is fail:
                told()

    def dismiss(self) -> list[str]:
        """Wait for the threads to end; return the names of those that do not."""
        for crew in self._crews:
            crew.dismiss()
        until_ns = time.monotonic_ns() + self._patience_ns
        threads = [thread for crew in self._crews for thread in crew.threads]
        for thread in threads:
            thread.join(max(0.0, (until_ns - time.monotonic_ns()) / 1e9))
        return [thread.name for thread in threads if thread.is_alive()]

    # ---- what is begun

    def submit(self, crew: Crew, work: Callable[[], T], then: Callable[[T], object]) -> None:
        """Give a crew a job; its result counts as news."""
        self._num_jobs += 1
        crew.submit(work, then)

    def at(self, time_ns: int, then: Then) -> None:
        """Call ``then`` at a time, or at the next turn if that is past."""
        heapq.heappush(self._due, (time_ns, self._num_due, then))
        self._num_due += 1

    def predict(self, tick: int, nominal_ns: int) -> None:
        due_ns = self.now_ns() + (nominal_ns if self.is_padded else 0)
        self.at(due_ns, partial(self._listener.on_prediction, tick))

    def on_cpu(self, key: int, work: Callable[[], None], nominal_ns: int) -> None:
        """Let the CPU worker compute a need; padded, its result comes when it is due."""
        begin_ns = self.now_ns()

        def end(_: None) -> None:
            now = self.now_ns()
            due_ns = max(self._cpu_free_ns, begin_ns) + nominal_ns if self.is_padded else now
            self._cpu_free_ns = due_ns if now - due_ns <= WAKE_NS else now
            self.at(due_ns, partial(self._listener.on_cpu_result, key))

        self.submit(self._cpu, work, end)

    # ---- the caller's thread

    def poll(self) -> bool:
        """Hand over what has ended; return whether anything has."""
        if self._is_cut:
            return False
        found = self._num_jobs > 0 and self.take_results()
        while self._due and self._due[0][0] <= self.now_ns() and not self._is_cut:
            heapq.heappop(self._due)[2]()
            found = True
        return self._ask() or found

    def take_results(self) -> bool:
        """Take over what threads have done; return whether there was anything."""
        found = False
        while self._num_jobs and not self._results.empty():
            self._num_jobs -= 1
            self._results.get()()
            found = True
        return found

    def _rest(self, until_ns: int | None = None) -> None:
        """Nothing has ended: rest as long as nothing is to be asked, at most until a time."""
        self._idle_turn()
        if self._is_asking():
            if self._num_jobs:
                time.sleep(BRIEF_S)
            return
        times = [] if until_ns is None else [until_ns]
        times += [self._due[0][0]] if self._due else []
        left_s = (min(times) - self.now_ns()) / 1e9 if times else REST_S
        if self._num_jobs or self._is_serving():
            left_s = min(left_s, REST_S)
        time.sleep(max(0.0, min(left_s, LONGEST_S)))

    def wait(self, is_over: Callable[[], bool], what: Callable[[], str]) -> None:
        if is_over():
            self.poll()
            return
        idle_ns = 0
        while True:
            found = self.poll()
            if is_over():
                return
            if not (found or self._is_serving() or self._num_jobs or self._due):
                raise RuntimeError(f"{what()}, but nothing is under way")
            idle_ns = 0 if found else self._idle(idle_ns, what)

    def _idle(self, since_ns: int, what: Callable[[], str]) -> int:
        """Rest where nothing has ended; return since when that is so (0: since now).

        Raise RuntimeError where that has lasted too long.
        """
        now_ns = time.monotonic_ns()
        if since_ns and now_ns - since_ns > self._patience_ns:
            raise RuntimeError(
                f"{what()}, and nothing has happened for {self._patience_ns / 1e9:g} s"
            )
        self._rest()
        return since_ns or now_ns

    def sleep_until(self, time_ns: int, turn: Turn) -> None:
        # Nominal host time passes on padded machines only; a free one has its own host's time.
        if self.is_padded or turn == Turn.ARRIVALS:
            self._pass_to(time_ns)

    def _pass_to(self, time_ns: int) -> None:
        while self.now_ns() < time_ns:
            if not self.poll():
                self._rest(time_ns)
