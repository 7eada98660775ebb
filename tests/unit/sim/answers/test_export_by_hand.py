"""The search for flags on a machine made by hand: layers, rooms, orders and points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from sim.answers import export
from sim.answers.engine_flags import Flags, on_host
from sim.answers.export import Search, Tried, exported
from sim.results.labels import Labels
from sim.study.trials import Trial
from sim.values.types import Outcome

MIB = 1 << 20
GPU_OF = (0, 0, 1, 1, 0)
"""By site. The first layer has no experts, so a site's layer is one more."""


class Machine:
    """Five layers of seven stored experts of 2 MiB, and a null expert, on two GPUs."""

    def __init__(self, patch: pytest.MonkeyPatch, held: Sequence[int] = (), odd: int = 0) -> None:
        self.geometry = SimpleNamespace(
            sites=5,
            experts=8,
            null_experts=1,
            key=lambda plane, site, unit: 1000 * plane + 10 * site + unit,
            site_of=lambda key: key // 10,
            layer_of=lambda site: site + 1,
            on_device=lambda key: GPU_OF[key // 10],
            slot_bytes={10 * site: 2 * MIB + odd for site in range(5)},
        )
        self.controller = SimpleNamespace(
            geometry=self.geometry,
            slots=SimpleNamespace(initial=[10 * site for site in held]),
            lookup_keys=[1, 12, 13, 24, 31, 32, 40, 41, 42],
            lookup_outcomes=[Outcome.HIT, *[Outcome.MISS] * 8],
        )
        self.left = (1 << 40, 1 << 40)
        self.refused: Callable[[Flags], bool] = lambda flags: False
        self.asked: list[Flags] = []
        patch.setattr(export, "words_of", lambda line, given: line)
        patch.setattr(export, "prepared", self.prepared)
        patch.setattr(export, "execute", lambda run: None)
        patch.setattr(export, "left_bytes", lambda run: self.left)

    def prepared(self, flags: Flags) -> Any:
        assert flags.n_cpu_moe >= 0
        if self.refused(flags):
            raise ValueError("too  full\n  by far")
        return SimpleNamespace(controller=self.controller)

    def simulate(self, flags: Any) -> Future[Trial]:
        self.asked.append(flags)
        future: Future[Trial] = Future()
        try:
            self.prepared(flags)
        except ValueError as error:
            future.set_exception(error)
        else:
            future.set_result(trial_of(10.0 + flags.n_cpu_moe))
        return future

    def search(self, base: Flags | None = None) -> Search:
        return Search(base or Flags(64), [], self.simulate)


def trial_of(speed: float, interval: list[float] | None = None) -> Trial:
    summary = {
        "ci95": {"decode_tokens_per_s": interval},
        "decode_tokens_per_s": speed,
        "hit_ratio": 0.5,
        "stall_s": {"demand": 1.0, "host": 0.5},
        "makespan_s": 6.0,
        "labels": {"lossy": "lossy (x)"},
        "overrides": ["a=b"],
    }
    return Trial(summary, {}, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("held", "odd", "left_mib", "room"),
    [
        # Sites 1 and 4 of GPU 0 take 28 of 56 MiB, sites 2 and 3 of GPU 1 the others.
        ((0,), 0, (10.5, 100), 21),
        ((0,), 0, (100, 10.5), 21),
        ((0,), 0, (10.2, 100), 20),
        # All hold 14 MiB a layer: 42 of 70 and 28 of 70.
        ((), 0, (21, 1000), 35),
        ((), 0, (1000, 1000), 70),
        # A part of a MiB more needs a whole one more.
        ((), 1, (1000, 1000), 71),
        ((0, 1, 2, 3, 4), 0, (9, 9), 0),
        # Of 4 MiB each GPU has 2, which hold one expert; of 3 MiB neither has.
        ((0,), 0, (2, 100), 4),
        ((0,), 0, (1.9, 100), 0),
        # GPU 1 has two thirds: of 2 MiB not an expert's, of 3 MiB just that.
        ((0, 1), 0, (0.9, 100), 0),
        ((0, 1), 0, (1.0, 100), 3),
        # GPU 1 alone: what the other leaves is of no use.
        ((0, 1, 4), 0, (1, 20), 20),
    ],
)
def test_the_room_is_what_the_fuller_gpu_leaves_by_its_share_of_the_layers(
    held: tuple[int, ...],
    odd: int,
    left_mib: tuple[float, float],
    room: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch, held, odd)
    machine.left = (int(left_mib[0] * MIB), int(left_mib[1] * MIB))
    assert machine.search().room_mib(3) == room


def test_a_line_has_the_first_layers_of_the_order_and_maybe_a_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch)
    machine.left = (21 * MIB, 1 << 40)
    search = machine.search()
    assert (search.layers, search.most) == (6, 6)
    assert search.line(2, cached=False) == Flags(64, n_cpu_moe=2)
    assert search.line(2, cached=True) == Flags(64, n_cpu_moe=2, cache_mib=35)
    assert search.line(0, cached=True) == Flags(64, n_cpu_moe=0)
    search.order, search.split = (3, 1, 2), (4.0, 3.0)
    assert search.most == 3
    assert search.line(2, cached=True) == Flags(
        64, patterns=(on_host((3, 1)),), split=(4.0, 3.0), cache_mib=35
    )
    assert search.line(0, cached=True) == Flags(64, n_cpu_moe=0, split=(4.0, 3.0))
    machine.refused = lambda flags: flags.n_cpu_moe is not None
    search.order = ()
    assert search.line(5, cached=True) == Flags(64, n_cpu_moe=5, split=(4.0, 3.0))


@pytest.mark.parametrize("fewest", range(7))
def test_the_fewest_layers_are_found_where_all_fit_or_none(
    fewest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch)
    search = machine.search()
    machine.refused = lambda flags: (flags.n_cpu_moe or 0) < fewest
    assert search.fewest == fewest


def test_layers_go_by_turns_of_gpus_or_from_the_fewest_misses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the sites 0 to 4 there are 0, 2, 1, 2 and 3 misses."""
    machine = Machine(monkeypatch)
    search = machine.search()
    assert search.by_turns() == (1, 3, 2, 4, 5)
    assert search.by_misses() == (1, 3, 2, 4, 5)
    machine.controller.lookup_outcomes = [Outcome.MISS, *[Outcome.HIT] * 8]
    assert search.by_misses() == (2, 3, 4, 5, 1)
    machine.refused = lambda flags: flags.cache_mib > 0
    assert search.by_misses() == ()


def test_a_line_is_tried_once_and_a_refusal_is_kept_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch)
    search = machine.search()
    machine.refused = lambda flags: flags.n_cpu_moe == 1
    lines = [search.line(n, cached=False) for n in (2, 1, 2, 5)]
    search.simulate(lines)
    search.simulate(lines)
    assert machine.asked == [Flags(64, n_cpu_moe=n) for n in (2, 1, 5)]
    assert search.refused == {Flags(64, n_cpu_moe=1): "too full by far"}
    labels = Labels(lossy="lossy (x)", changed=("a=b",))
    assert search.tried == {
        flags: Tried(flags, n, 10.0 + n, None, 0.5, 0.25, labels)
        for n in (2, 5)
        for flags in (Flags(64, n_cpu_moe=n),)
    }


def test_an_interval_comes_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Machine(monkeypatch).search()
    future: Future[Trial] = Future()
    future.set_result(trial_of(3.0, [2.0, 4.0]))
    monkeypatch.setattr(search, "_simulate", lambda words: future)
    search.simulate([search.line(1, cached=False)])
    assert [one.interval for one in search.tried.values()] == [(2.0, 4.0)]


def curve(
    monkeypatch: pytest.MonkeyPatch, low: int, layers: int, speed: Callable[[int], float]
) -> Search:
    search = Machine(monkeypatch).search()
    search.layers = layers
    monkeypatch.setattr(
        Search, "room_mib", lambda self, on_cpu: 0 if on_cpu >= low else None, raising=True
    )

    def simulate(flags: Any) -> Future[Trial]:
        future: Future[Trial] = Future()
        future.set_result(trial_of(speed(flags.n_cpu_moe)))
        return future

    monkeypatch.setattr(search, "_simulate", simulate)
    return search


@pytest.mark.parametrize(
    ("low", "top", "tried"),
    [
        # Every third first. 12 and then 14 are as near to 13; the first one counts.
        (0, 13, {*range(0, 49, 3), 10, 14, 11, 13}),
        (0, 48, {*range(0, 49, 3), 46, 47}),
        # Every second, and the last.
        (5, 5, {*range(5, 48, 2), 48, 6}),
        # Ranges of less than 32 are tried in whole.
        (18, 30, {*range(18, 49)}),
        (17, 17, {*range(17, 49)}),
        (16, 16, {*range(16, 49, 2), 17}),
        (48, 48, {48}),
    ],
)
def test_a_range_is_tried_in_sixteen_parts_and_then_around_the_fastest(
    low: int, top: int, tried: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    search = curve(monkeypatch, low, 48, lambda on_cpu: 1 / (1 + abs(on_cpu - top)))
    search.climb(cached=False)
    assert {one.on_cpu for one in search.tried.values()} == tried


def test_of_lines_as_fast_the_shorter_one_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    search = curve(monkeypatch, 0, 48, lambda on_cpu: 3.0 + (on_cpu == 7))
    search.simulate(search.line(n, cached=False) for n in (12, 9, 7, 8, 10))
    assert [one.on_cpu for one in search.best()] == [7, 8, 9, 10, 12]


class Climbs(Search):
    """Keeps how it was climbed. A layer order by misses is (2, 1), one by turns (1, 2)."""

    last: Climbs

    def __init__(self, base: Flags, given: Sequence[str], simulate: Any) -> None:
        self.layers, self.split, self.order = 5, base.split, ()
        self.tried, self.refused, self.climbs = {}, {}, []  # type: ignore[var-annotated]
        self.misses, self.runs = (2, 1), bool(given)
        Climbs.last = self

    def climb(self, *, cached: bool) -> None:
        self.climbs.append((self.split, self.order, cached))
        if self.runs:
            self.tried[Flags(64)] = None  # type: ignore[assignment]
        else:
            self.refused[Flags(64)] = "too full"

    def climb_split(self) -> None:
        assert self.split == (3.0, 3.0)
        self.split = (4.0, 2.0)

    def by_misses(self) -> tuple[int, ...]:
        return self.misses

    def by_turns(self) -> tuple[int, ...]:
        return 1, 2


def test_one_gpu_is_climbed_by_number_and_by_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "Search", Climbs)
    found: Any = exported(Flags(64), ["x"], lambda words: Future())
    assert found.climbs == [((), (), False), ((), (), True), ((), (2, 1), True)]
    assert found.order == ()


def test_two_gpus_are_climbed_at_the_even_split_and_the_best_also_by_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(export, "Search", Climbs)
    found: Any = exported(Flags(64), ["x"], lambda words: Future(), gpus=2)
    assert found.climbs == [
        (split, *way)
        for split in ((3.0, 3.0), (4.0, 2.0))
        for way in (((), False), ((), True), ((2, 1), True), ((1, 2), False))
    ]


def test_where_no_line_runs_the_first_refusal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "Search", Climbs)
    with pytest.raises(ValueError, match=r"^no line of flags can run: too full$"):
        exported(Flags(64), [], lambda words: Future())


def test_a_split_with_which_nothing_fits_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    search = curve(monkeypatch, 100, 6, lambda on_cpu: 1.0)
    search.split = (4.0, 3.0)
    search.climb_split()
    assert search.split == (4.0, 3.0)
    assert (search.tried, search.refused) == ({}, {})


def test_a_slow_split_is_kept_where_nothing_fits_with_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = curve(monkeypatch, 0, 9, lambda on_cpu: 0.5)
    begun = search.split = export.even(9, 2)
    monkeypatch.setattr(search, "room_mib", lambda on_cpu: 1 if search.split == begun else None)
    search.climb_split()
    assert search.split == begun
    assert [flags.split for flags in search.tried] == [begun]


def test_layers_move_by_a_quarter_first_and_then_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten layers with the head; 3 and 7 are as near to 2 and 8 as 1 and 9."""
    search = curve(monkeypatch, 0, 9, lambda on_cpu: 1.0)

    def simulate(flags: Any) -> Future[Trial]:
        future: Future[Trial] = Future()
        future.set_result(trial_of(1 / (1 + abs(flags.split[0] - 2))))
        return future

    monkeypatch.setattr(search, "_simulate", simulate)
    search.split = export.even(9, 2)
    search.climb_split()
    assert search.split == (2.0, 8.0)
    assert [flags.split for flags in search.tried] == [
        (5.0, 5.0),
        (3.0, 7.0),
        (7.0, 3.0),
        (1.0, 9.0),
        (2.0, 8.0),
        (4.0, 6.0),
    ]
