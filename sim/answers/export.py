"""The flags of llama.cpp that serve a model fastest on a machine, found by simulation (contract
C155).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from sim.answers.engine_flags import MIB, Flags, words_of
from sim.results.labels import Labels, labels_in
from sim.study.trials import Trial, prepared

FIRST = 16
"""Into how many parts a search first divides its range. Hits in a cache of what other layers leave
rise and fall by chance, so few points would miss the top.
"""


@dataclass(frozen=True)
class Tried:
    """One line of flags that was simulated. ``interval`` is of 95 %, None where too few sequences
    stand behind one.
    """

    flags: Flags
    tokens_per_s: float
    interval: tuple[float, float] | None
    hit_ratio: float | None
    waiting: float
    labels: Labels


class Search:
    """Lines of flags: ``base`` with any number of layers of experts on the CPU, without a cache of
    their experts on the GPU, or with all memory that is left as one.

    ``given`` are the run's other words. ``simulate`` begins a trial of overrides.
    """

    def __init__(
        self,
        base: Flags,
        given: Sequence[str],
        simulate: Callable[[Sequence[str]], Future[Trial]],
    ) -> None:
        self._base, self._given, self._simulate = base, list(given), simulate
        all_on_cpu = replace(base, patterns=("exps=CPU",))
        geometry = prepared(words_of(all_on_cpu, given)).controller.geometry
        self.layers = geometry.layer_of(geometry.sites - 1) + 1
        self._room: dict[int, int | None] = {}
        self.tried: dict[Flags, Tried] = {}
        self.refused: dict[Flags, str] = {}

    def line(self, on_cpu: int, *, cached: bool) -> Flags:
        """The first ``on_cpu`` layers' experts on the CPU, and maybe a cache of them."""
        room = (self.room_mib(on_cpu) or 0) if cached and on_cpu else 0
        return replace(self._base, n_cpu_moe=on_cpu, cache_mib=room)

    def room_mib(self, on_cpu: int) -> int | None:
        """The whole MiB that the other layers' experts leave; None where they do not fit."""
        if on_cpu not in self._room:
            line = replace(self._base, n_cpu_moe=on_cpu)
            try:
                run = prepared(words_of(line, self._given))
            except ValueError:
                self._room[on_cpu] = None
            else:
                self._room[on_cpu] = (run.hardware.memory_bytes - run.ledger.total_bytes) // MIB
        return self._room[on_cpu]

    @property
    def fewest(self) -> int:
        """The fewest layers on the CPU with which the others fit."""
        low, high = -1, self.layers
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.room_mib(middle) is not None else (middle, high)
        return high

    def simulate(self, lines: Iterable[Flags]) -> None:
        """Try lines that were not tried before."""
        new = [line for line in dict.fromkeys(lines) if line not in {**self.tried, **self.refused}]
        asked = [(line, self._simulate(words_of(line, self._given))) for line in new]
        for line, future in asked:
            try:
                self.tried[line] = _tried(line, future.result())
            except ValueError as error:
                self.refused[line] = " ".join(str(error).split())

    def climb(self, *, cached: bool) -> None:
        """Try points of the range, then closer and closer ones around the fastest."""
        low, high = self.fewest, self.layers
        step = max(1, (high - low) // FIRST)
        points = {*range(low, high + 1, step), high}
        self.simulate(self.line(point, cached=cached) for point in sorted(points))
        while step > 1:
            best = max(sorted(points), key=lambda point: self._speed(point, cached))
            step = (step + 1) // 2
            near = {point for point in (best - step, best + step) if low <= point <= high}
            self.simulate(self.line(point, cached=cached) for point in sorted(near))
            points |= near

    def _speed(self, on_cpu: int, cached: bool) -> float:
        found = self.tried.get(self.line(on_cpu, cached=cached))
        return 0.0 if found is None else found.tokens_per_s

    def best(self) -> list[Tried]:
        """All lines that ran, fastest first; of equal ones that with the shorter line."""
        return sorted(
            self.tried.values(),
            key=lambda one: (-one.tokens_per_s, len(one.flags.line()), one.flags.line()),
        )


def exported(
    base: Flags, given: Sequence[str], simulate: Callable[[Sequence[str]], Future[Trial]]
) -> Search:
    """Search for the fastest line. Raise ValueError where not even a GPU without experts holds the
    rest, or nothing can run.
    """
    search = Search(base, given, simulate)
    for cached in (False, True):
        search.climb(cached=cached)
    if not search.tried:
        raise ValueError(f"no line of flags can run: {next(iter(search.refused.values()))}")
    return search


def _tried(flags: Flags, trial: Trial) -> Tried:
    summary = trial.summary
    low_high = summary["ci95"]["decode_tokens_per_s"]
    return Tried(
        flags,
        float(summary["decode_tokens_per_s"]),
        None if low_high is None else (low_high[0], low_high[1]),
        summary["hit_ratio"],
        sum(summary["stall_s"].values()) / summary["makespan_s"],
        labels_in(summary),
    )
