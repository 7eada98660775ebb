"""The flags of llama.cpp that serve a model fastest on a machine, found by simulation (contract
C155).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import permutations, zip_longest

from sim.answers.engine_flags import Flags, on_host, words_of
from sim.results.labels import Labels, labels_in
from sim.results.run import Run
from sim.setup.execute import execute
from sim.setup.refusals import CpuError
from sim.setup.run_memory import left_bytes
from sim.study.trials import Trial, prepared, tokens_per_s
from sim.values.types import Geometry, Outcome
from sim.values.units import MIB

FIRST = 16
"""Into how many parts a search first divides its range. Hits in a cache of what other layers leave
rise and fall by chance, so few points would miss the top.
"""
ALL_ON_CPU = ("exps=CPU",)


@dataclass(frozen=True)
class Tried:
    """One line of flags that was simulated, with ``on_cpu`` layers of experts on the CPU.
    ``interval`` is of 95 %, None where too few sequences stand behind one.
    """

    flags: Flags
    on_cpu: int
    tokens_per_s: float
    interval: tuple[float, float] | None
    hit_ratio: float | None
    waiting: float
    labels: Labels


class Search:
    """Lines of flags: ``base`` with any number of layers of experts on the CPU, without a cache of
    their experts on the GPU, or with all memory that is left as one.

    ``given`` are the run's other words. ``simulate`` begins a trial of overrides. ``split`` is that
    of the next lines between GPUs, and ``order`` that in which layers go to the CPU; () by number.
    """

    _has_cpu = True

    def __init__(
        self,
        base: Flags,
        given: Sequence[str],
        simulate: Callable[[Sequence[str]], Future[Trial]],
    ) -> None:
        self._base, self._given, self._simulate = base, list(given), simulate
        try:
            geometry = self._geometry(ALL_ON_CPU)
        except ValueError as error:
            # Where no CPU may compute experts (contract C142), a model that fits is held whole.
            try:
                geometry, self._has_cpu = self._geometry(()), False
            except ValueError:
                if not isinstance(error, CpuError):
                    raise error from None
                # Its own ways out are another placement and budget, which are the flags' here.
                raise ValueError(
                    f"{str(error).partition('; ')[0]}, and the model does not fit whole; choose fewer"
                    " bits (precision=) or a shorter context=, or moelab ask, whose systems load"
                    " experts"
                ) from None
        self.layers = geometry.layer_of(geometry.sites - 1) + 1
        self.split, self.order = base.split, tuple[int, ...]()
        self._room: dict[Flags, int | None] = {}
        self._on_cpu: dict[Flags, int] = {}
        self.tried: dict[Flags, Tried] = {}
        self.refused: dict[Flags, str] = {}

    def line(self, on_cpu: int, *, cached: bool) -> Flags:
        """The experts of the first ``on_cpu`` layers of the order on the CPU, and maybe a cache of
        them.
        """
        room = (self.room_mib(on_cpu) or 0) if cached and on_cpu else 0
        found = replace(self._without_cache(on_cpu), cache_mib=room)
        self._on_cpu[found] = on_cpu
        return found

    def _without_cache(self, on_cpu: int) -> Flags:
        line = replace(self._base, split=self.split)
        if not self.order or not on_cpu:
            return replace(line, n_cpu_moe=on_cpu)
        return replace(line, patterns=(on_host(self.order[:on_cpu]),))

    def room_mib(self, on_cpu: int) -> int | None:
        """The whole MiB that the other layers' experts leave for a cache; None where they do not
        fit.
        """
        line = self._without_cache(on_cpu)
        if line not in self._room:
            try:
                self._room[line] = _room_mib(prepared(words_of(line, self._given)))
            except ValueError:
                self._room[line] = None
        return self._room[line]

    # ---- orders in which layers go to the CPU

    def by_turns(self) -> tuple[int, ...]:
        """The first layer of each GPU, then the second of each, and so on."""
        geometry = self._geometry(ALL_ON_CPU, self.split)
        mine: dict[int, list[int]] = defaultdict(list)
        for site in range(geometry.sites):
            mine[geometry.on_device(geometry.key(0, site, 0))].append(geometry.layer_of(site))
        turns = zip_longest(*mine.values())
        return tuple(layer for turn in turns for layer in turn if layer is not None)

    def by_misses(self) -> tuple[int, ...]:
        """From the layer of the fewest misses to that of the most, where all layers share a cache
        of all the memory; () where that cannot run.
        """
        try:
            run = prepared(words_of(self.line(self.layers, cached=True), self._given))
            execute(run)
        except ValueError:
            return ()
        geometry, misses = run.controller.geometry, Counter[int]()
        columns = run.controller.lookup_keys, run.controller.lookup_outcomes
        for key, outcome in zip(*columns, strict=True):
            misses[geometry.site_of(key)] += outcome == Outcome.MISS
        sites = sorted(range(geometry.sites), key=lambda site: (misses[site], site))
        return tuple(map(geometry.layer_of, sites))

    def _geometry(self, patterns: tuple[str, ...], split: tuple[float, ...] = ()) -> Geometry:
        """The keys of a line with these patterns. Raise ValueError where it cannot run."""
        line = replace(
            self._base,
            patterns=patterns or self._base.patterns,
            split=split or self._base.split,
        )
        return prepared(words_of(line, self._given)).controller.geometry

    # ---- trying

    @property
    def most(self) -> int:
        """All layers; of an order only those with experts; none where no CPU may compute them."""
        return (len(self.order) or self.layers) if self._has_cpu else 0

    @property
    def fewest(self) -> int:
        """The fewest layers on the CPU with which the others fit."""
        low, high = -1, self.most
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
                self.tried[line] = _tried(line, self._on_cpu[line], future.result())
            except ValueError as error:
                self.refused[line] = " ".join(str(error).split())

    def climb(self, *, cached: bool) -> None:
        """Try points of the range, then closer and closer ones around the fastest."""
        low, high = self.fewest, self.most
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
    splits = [search.split]
    if gpus > 1:
        search.split = even(search.layers, gpus)
        splits = [search.split]
        search.climb_split()
        splits.append(search.split)
    for split in dict.fromkeys(splits):
        search.split = split
        _climb_all(search, has_turns=gpus > 1)
    if not search.tried:
        raise ValueError(f"no line of flags can run: {next(iter(search.refused.values()))}")
    return search


def _climb_all(search: Search, has_turns: bool) -> None:
    """Climb with and without a cache, in each order that can matter there."""
    search.order = ()
    for cached in (False, True):
        search.climb(cached=cached)
    orders = [(search.by_misses(), True), (search.by_turns() if has_turns else (), False)]
    for order, cached in orders:
        search.order = order
        if order:
            search.climb(cached=cached)
    search.order = ()


def _room_mib(run: Run) -> int:
    """The most whole MiB of a cache with which no GPU of a run without one is too full, and no
    more than hold all; 0 where they hold no expert.

    The pools of the GPUs share them as their layers on the CPU take bytes (contract C145).
    """
    geometry, held = run.controller.geometry, set(run.controller.slots.initial)
    needs, slot = Counter[int](), dict[int, int]()
    for site in range(geometry.sites):
        key = geometry.key(0, site, 0)
        if key not in held:
            at, slot_bytes = geometry.on_device(key), geometry.slot_bytes[key]
            needs[at] += (geometry.experts - geometry.null_experts) * slot_bytes
            slot[at] = min(slot_bytes, slot.get(at, slot_bytes))
    if not needs:
        return 0
    left, all_bytes = left_bytes(run), needs.total()
    rooms = (left[at] * all_bytes // part // MIB for at, part in needs.items())
    room = min(*rooms, -(-all_bytes // MIB))
    holds = any(room * MIB * part // all_bytes >= slot[at] for at, part in needs.items())
    return room if holds else 0


def _tried(flags: Flags, on_cpu: int, trial: Trial) -> Tried:
    summary = trial.summary
    low_high = summary["ci95"]["decode_tokens_per_s"]
    return Tried(
        flags,
        on_cpu,
        tokens_per_s(trial),
        None if low_high is None else (low_high[0], low_high[1]),
        summary["hit_ratio"],
        sum(summary["stall_s"].values()) / summary["makespan_s"],
        labels_in(summary),
    )
