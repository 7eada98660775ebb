"""A device on the real clock: a thread for each engine of each link, the CPU and the predictor.

The caller's thread is the compute stream. This class says which thread works when; its subclasses
say what is moved and what is computed. A loader moves a service piece by piece. On paced links it
sleeps after each piece until that piece is due, counted from the service's beginning, so lateness
inside a service is caught up.

One lock guards everything that the threads share. It is held for hand-overs, and never while a
thread copies, computes, sleeps or waits. Every wait ends: when what it waits for comes, at the end
of the run, or when patience runs out.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Condition, Event, Lock, Thread

from real.driver.device import Listener, Prompt, Service, Turn
from real.driver.sharing import Sharing
from real.driver.timers import WAKE_NS, sharpen_timers, sleep_until

SWITCH_INTERVAL_S = 2e-4
"""How long Python lets one thread run while others wait (its default is 5 ms).

With that default a busy thread would hold a loader up for longer than many transfers take.
"""


class Seat:
    """An engine: what it serves, and the condition that wakes its thread."""

    def __init__(self, link: int, engine: int, lock: Lock) -> None:
        self.link, self.engine = link, engine
        self.called = Condition(lock)
        self.service: Service | None = None
        self.is_asked = False
        """Whether the driver wants to cut the service at the end of its current chunk."""
        self.was_due_ns: int | None = None
        """While the end of a service is handed over: when it was due. Else None."""
        self.begin_ns = 0
        """When the pacing of the service begins.

        A service that follows another at once is paced from when that other was due.
        """


@dataclass
class Job:
    """A need for the CPU worker, or a gate for the predictor: ``number`` is its key or tick."""

    number: int
    begin_ns: int
    nominal_ns: int


class Worker:
    """Jobs that one thread does one after another, and the condition that wakes it."""

    def __init__(self, lock: Lock, hand_over: Callable[[int], None]) -> None:
        self.called = Condition(lock)
        self.hand_over = hand_over
        self.jobs: deque[Job] = deque()


class ThreadedDevice(Prompt):
    """A device on the real clock; ``is_paced`` links keep to the run's nominal times.

    ``piece_bytes`` is what a loader moves at once. ``patience_s`` is how long a wait may last
    without any hand-over; it must be longer than any single piece of work.

    RuntimeError is raised in the main thread, with its cause, where another thread has failed, and
    where a wait runs out of patience.
    """

    def __init__(
        self, piece_bytes: int = 1 << 20, patience_s: float = 30.0, *, is_paced: bool = True
    ) -> None:
        self.lock = Lock()
        self._piece_bytes, self._patience_s, self._is_paced = piece_bytes, patience_s, is_paced
        self._is_padded = True
        self._opened_ns = time.perf_counter_ns()

    @property
    def is_padded(self) -> bool:
        return self._is_padded

    # ---- what a subclass does, without the lock

    def _copy(self, service: Service, done: int, count: int) -> None:
        """Move bytes ``done`` to ``done + count`` of a service."""
        raise NotImplementedError

    def _own_works(self) -> dict[str, Callable[[], None]]:
        """Loops of further threads, by name.

        They must end when the device is closed, of which ``_news`` notifies them.
        """
        return {}

    def _perform(self, worker: Worker, job: Job) -> None:
        """Do a job; the caller sees to its time."""

    # ---- a run

    def open(self, listener: Listener, engines: tuple[int, ...]) -> None:
        """Start the threads. A closed device may be opened again."""
        self._listener = listener
        self._news = Condition(self.lock)
        self._stop = Event()
        """Set when the run is over or a thread has failed; it ends every sleep."""
        self._is_closed = False
        self._failure: tuple[str, BaseException] | None = None
        self._seats = [
            [Seat(link, e, self.lock) for e in range(count)] for link, count in enumerate(engines)
        ]
        self._sharing = [Sharing(count) for count in engines]
        self._cpu = Worker(self.lock, listener.on_cpu_result)
        self._predictor = Worker(self.lock, listener.on_prediction)
        works = {
            f"engine {s.engine} of link {s.link}": partial(self._load, s)
            for seats in self._seats
            for s in seats
        }
        works |= {name: partial(work) for name, work in self._own_works().items()}
        works["CPU worker"] = partial(self._work, self._cpu)
        works["predictor"] = partial(self._work, self._predictor)
        self._threads = [
            Thread(target=self._guard, args=work, name=work[0], daemon=True)
            for work in works.items()
        ]
        self._switch_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        sharpen_timers()
        for thread in self._threads:
            thread.start()
        self._opened_ns = time.perf_counter_ns()

    def cut_off(self) -> None:
        self._stop.set()

    def close(self) -> None:
        """End the threads.

        Raise RuntimeError if a thread had failed and the main thread has not heard of it, or if a
        thread does not end.
        """
        with self.lock:
            self._is_closed = True
            self._stop.set()
            for called in (
                *(seat.called for seats in self._seats for seat in seats),
                self._cpu.called,
                self._predictor.called,
                self._news,
            ):
                called.notify_all()
        stuck = self._join()
        sys.setswitchinterval(self._switch_interval_s)
        sharpen_timers(False)
        self._raise_failure()
        if stuck:
            raise RuntimeError(
                f"{', '.join(stuck)} did not end within {self._patience_s:g} s of the run's end"
            )

    def _join(self) -> list[str]:
        """Wait for the threads; return the names of those that do not end."""
        until_s = time.monotonic() + self._patience_s
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        return [thread.name for thread in self._threads if thread.is_alive()]

    def now_ns(self) -> int:
        return time.perf_counter_ns() - self._opened_ns

    # ---- what is begun, with the lock held

    def serve(self, service: Service) -> None:
        seat = self._seats[service.link][service.engine]
        seat.service, seat.is_asked = service, False
        behind_ns = 0 if seat.was_due_ns is None else service.start_ns - seat.was_due_ns
        seat.begin_ns = service.start_ns - (behind_ns if 0 <= behind_ns <= WAKE_NS else 0)
        work_ns = service.due_ns(service.moved_bytes) - service.latency_ns
        self._sharing[service.link].begin(
            service.engine, service.start_ns, service.latency_ns, work_ns
        )
        self._call(service.link)

    def announce(
        self, link: int, number: int, key: int, moved_bytes: int, victims: Sequence[int]
    ) -> None: ...

    def ask_cut(self, service: Service, is_wanted: bool) -> None:
        self._seats[service.link][service.engine].is_asked = is_wanted

    def stop(self, service: Service) -> None:
        self._seats[service.link][service.engine].service = None
        self._sharing[service.link].end(service.engine, self.now_ns())
        self._call(service.link)

    def _call(self, link: int) -> None:
        """Wake the engines of a link: from now on they share it in another way."""
        for seat in self._seats[link]:
            seat.called.notify()

    def compute_on_cpu(self, key: int, tokens: int, nominal_ns: int) -> None:
        self._submit(self._cpu, Job(key, self.now_ns(), nominal_ns))

    def predict(self, tick: int, nominal_ns: int) -> None:
        self._submit(self._predictor, Job(tick, self.now_ns(), nominal_ns))

    def _submit(self, worker: Worker, job: Job) -> None:
        worker.jobs.append(job)
        worker.called.notify()

    # ---- the main thread

    def sleep_until(self, time_ns: int, turn: Turn) -> None:
        self._sleep(time_ns)

    def _sleep(self, until_ns: int) -> None:
        sleep_until(self._opened_ns + until_ns, self._stop)
        self._raise_failure()

    def wait(self, is_over: Callable[[], bool], what: Callable[[], str]) -> None:
        with self.lock:
            while not is_over():
                self._raise_failure()
                if not self._is_busy():
                    raise RuntimeError(f"{what()}, but nothing is under way")
                if not self._news.wait(self._patience_s):
                    raise RuntimeError(
                        f"{what()}, and nothing has happened for {self._patience_s:g} s"
                    )
        self._raise_failure()

    def _is_busy(self) -> bool:
        serves = any(seat.service is not None for seats in self._seats for seat in seats)
        return serves or bool(self._cpu.jobs or self._predictor.jobs)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            (name, failure), self._failure = self._failure, None
            raise RuntimeError(f"the thread of the {name} failed: {failure!r}") from failure

    # ---- the other threads

    def _guard(self, name: str, work: Callable[[], None]) -> None:
        """Run a thread's loop; an exception in it is raised again in the main thread."""
        sharpen_timers()
        try:
            work()
        except BaseException as failure:
            with self.lock:
                self._failure = self._failure or (name, failure)
                self._stop.set()
                self._news.notify_all()

    def _hand_over(self, call: Callable[[], None]) -> None:
        """Tell the driver, and wake the main thread if it waits. The lock is held."""
        if not self._stop.is_set():
            call()
            self._news.notify_all()

    def _load(self, seat: Seat) -> None:
        """Serve what the seat is given: the loop of an engine's thread."""
        while True:
            with self.lock:
                while seat.service is None and not self._is_closed:
                    seat.called.wait()
                service = seat.service
            if service is None or self._is_closed:
                return
            if len(self._seats[seat.link]) > 1 and self._is_paced:
                self._copy(service, 0, service.moved_bytes)
                self._await_share(seat, service)
            else:
                self._copy_paced(seat, service)
            with self.lock:
                while self._is_fed(service) and not self._is_closed:
                    self._news.wait()
                if seat.service is service and not self._is_closed:
                    self.stop(service)
                    seat.was_due_ns = seat.begin_ns + service.due_ns(service.moved_bytes)
                    self._hand_over(partial(self._listener.on_service_end, service))
                    seat.was_due_ns = None

    def _is_fed(self, service: Service) -> bool:
        """Whether an outer link is still bringing what this service moves on (cut-through).

        The service cannot end before.
        """
        outer = (seat.service for seats in self._seats[service.link + 1 :] for seat in seats)
        return any(other is not None and other.number == service.number for other in outer)

    def _copy_paced(self, seat: Seat, service: Service) -> None:
        """Move a service, up to its end or cut, on an engine that need not share its link."""
        step = min(self._piece_bytes, service.chunk_bytes or self._piece_bytes)
        head_ns, done = service.head_ns, 0
        while done < service.moved_bytes and not self._stop.is_set():
            to_chunk = (
                service.chunk_bytes - done % service.chunk_bytes if service.chunk_bytes else step
            )
            count = min(step, to_chunk, service.moved_bytes - done)
            self._copy(service, done, count)
            done += count
            due_ns = service.due_ns(done)
            if 0 <= head_ns <= due_ns:
                self._pace(seat, head_ns)
                head_ns = -1
                with self.lock:
                    self._hand_over(partial(self._listener.on_head, service))
            self._pace(seat, due_ns)
            if (
                service.chunk_bytes
                and done < service.moved_bytes
                and done % service.chunk_bytes == 0
            ):
                with self.lock:
                    if seat.is_asked:
                        self._hand_over(partial(self._listener.on_chunk, service, done))
                        return

    def _pace(self, seat: Seat, due_ns: int) -> None:
        if self._is_paced:
            sleep_until(self._opened_ns + seat.begin_ns + due_ns, self._stop)

    def _await_share(self, seat: Seat, service: Service) -> None:
        """Wait for the end of a service on a link that several engines share.

        The end moves as other services begin and end.
        """
        with self.lock:
            while not self._is_closed:
                now = self.now_ns()
                self._sharing[seat.link].settle(now)
                left_ns = self._sharing[seat.link].end_ns(seat.engine) - now
                if left_ns <= 0:
                    return
                seat.called.wait(left_ns / 1e9)

    def _work(self, worker: Worker) -> None:
        """Do the jobs of the CPU worker or of the predictor: the loop of either thread."""
        free_ns = 0
        while True:
            with self.lock:
                while not worker.jobs and not self._is_closed:
                    worker.called.wait()
                if self._is_closed:
                    return
                job = worker.jobs[0]
            begin_ns = max(free_ns, job.begin_ns) if worker is self._cpu else job.begin_ns
            self._perform(worker, job)
            due_ns = begin_ns + job.nominal_ns
            self._pace_job(due_ns)
            with self.lock:
                now = self.now_ns()
                free_ns = due_ns if self._is_padded and 0 <= now - due_ns <= WAKE_NS else now
                worker.jobs.popleft()
                self._hand_over(partial(worker.hand_over, job.number))

    def _pace_job(self, until_ns: int) -> None:
        """Wait until a job's nominal end."""
        sleep_until(self._opened_ns + until_ns, self._stop)
