"""The flags of llama.cpp that serve a model fastest on a machine, found by simulation (contract
C155).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import permutations

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
        self.split = base.split
        self._room: dict[tuple[tuple[float, ...], int], int | None] = {}
        self.tried: dict[Flags, Tried] = {}
        self.refused: dict[Flags, str] = {}

    def line(self, on_cpu: int, *, cached: bool) -> Flags:
        """The first ``on_cpu`` layers' experts on the CPU, and maybe a cache of them."""
        room = (self.room_mib(on_cpu) or 0) if cached and on_cpu else 0
        return replace(self._base, split=self.split, n_cpu_moe=on_cpu, cache_mib=room)

    def room_mib(self, on_cpu: int) -> int | None:
        """The whole MiB that the other layers' experts leave; None where they do not fit."""
        asked = (self.split, on_cpu)
        if asked not in self._room:
            line = replace(self._base, split=self.split, n_cpu_moe=on_cpu)
            try:
                run = prepared(words_of(line, self._given))
            except ValueError:
                self._room[asked] = None
            else:
                self._room[asked] = (run.hardware.memory_bytes - run.ledger.total_bytes) // MIB
        return self._room[asked]

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

    def climb_split(self) -> None:
        """Move layers between GPUs, fewer and fewer at once, while a split is faster. Each split is
        tried with the fewest layers on the CPU that it allows. The best one stays.
        """
        step, begun = max(1, (self.layers + 1) // (2 * len(self.split))), self.split
        best, fastest = begun, self._try_split(begun)
        while True:
            speeds = {split: self._try_split(split) for split in _moved(best, step)}
            near = max(speeds, key=lambda split: speeds[split], default=best)
            if speeds.get(near, 0.0) > fastest:
                best, fastest = near, speeds[near]
            elif step == 1:
                break
            else:
                step = (step + 1) // 2
        self.split = best

    def _try_split(self, split: tuple[float, ...]) -> float:
        """The speed of a split; 0 where nothing fits."""
        self.split = split
        fewest = self.fewest
        if self.room_mib(fewest) is None:
            return 0.0
        self.simulate([self.line(fewest, cached=False)])
        return self._speed(fewest, False)

    def _speed(self, on_cpu: int, cached: bool) -> float:
        found = self.tried.get(self.line(on_cpu, cached=cached))
        return 0.0 if found is None else found.tokens_per_s

    def best(self) -> list[Tried]:
        """All lines that ran, fastest first; of equal ones that with the shorter line."""
        return sorted(
            self.tried.values(),
            key=lambda one: (-one.tokens_per_s, len(one.flags.line()), one.flags.line()),
        )


def even(layers: int, gpus: int) -> tuple[float, ...]:
    """Whole layers for each GPU, the head as one more: as many for each, the first ones one more.

    >>> even(48, 2)
    (25.0, 24.0)
    """
    each, extra = divmod(layers + 1, gpus)
    return tuple(float(each + (gpu < extra)) for gpu in range(gpus))


def _moved(split: tuple[float, ...], step: int) -> Iterator[tuple[float, ...]]:
    """All splits with ``step`` layers of one GPU on another one; each GPU keeps one at least."""
    for giver, taker in permutations(range(len(split)), 2):
        if split[giver] > step:
            moved = list(split)
            moved[giver], moved[taker] = moved[giver] - step, moved[taker] + step
            yield tuple(moved)


def exported(
    base: Flags,
    given: Sequence[str],
    simulate: Callable[[Sequence[str]], Future[Trial]],
    gpus: int = 1,
) -> Search:
    """Search for the fastest line; with several ``gpus`` also for how they split layers.

    Raise ValueError where not even a GPU without experts holds the rest, or nothing can run.
    """
    search = Search(base, given, simulate)
    if gpus > 1:
        search.split = even(search.layers, gpus)
        search.climb_split()
        search.climb(cached=False)
    else:
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
