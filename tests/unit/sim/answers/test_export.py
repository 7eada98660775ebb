"""The fastest flags of llama.cpp, against trying all of them (contract C155)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from helpers.trying import Inline
from sim import export
from sim.answers.engine_flags import Flags, on_host, read_flags, words_of
from sim.answers.export import Search, Tried, even, exported
from sim.results.labels import Labels
from sim.setup.configure import configure
from sim.setup.execute import execute
from sim.setup.own_gates import own_gates
from sim.setup.parts import make_model
from sim.setup.refusals import checked_settings
from sim.setup.run_memory import left_bytes
from sim.study.trials import Trial, prepared, trial
from sim.synthetic.synthesis import Request
from sim.traces.synthesis import synthesize
from sim.traces.trace import ModelShape
from sim.traces.writing import write_trace

FEW = (
    "trace=tiny_mixtral",
    "trace.max_sequences=1",
    "workload.prompt_tokens=4",
    "workload.decode_tokens=4",
)
GIVEN = ("model=tiny_gates_half_mixtral", "hardware=rtx4090_pcie4", "precision=fp16", *FEW)
"""16 layers of 2.6 GiB of experts each, on 24 GiB."""


UNEQUAL = (
    "devices=layers_2",
    "hardware.devices.state_bits=32",
    "+hardware.devices.others.slow._target_=sim.machine.Device",
    "+hardware.devices.others.slow.memory_gib=12",
    "+hardware.devices.others.slow.reserved_gib=0.5",
    "+hardware.devices.others.slow.compute=${hardware.compute}",
    "+hardware.devices.others.slow.link=${hardware.links.pcie}",
)
"""A second GPU with half of the memory."""


def simulate(words: Sequence[str]) -> Future[Trial]:
    return Inline().submit(trial, tuple(words))


# Contracts: C155
def test_the_fewest_layers_fit_and_one_fewer_does_not_and_the_cache_takes_what_is_left() -> None:
    search = Search(Flags(4096), GIVEN, simulate)
    assert search.layers == 16
    assert 0 < search.fewest < 16
    with pytest.raises(ValueError, match="the device holds 24 GiB"):
        prepared(words_of(search.line(search.fewest - 1, cached=False), GIVEN))
    run = prepared(words_of(search.line(search.fewest, cached=True), GIVEN))
    left = run.hardware.memory_bytes - run.ledger.total_bytes
    assert 0 <= left < 1 << 20


class Curve(Search):
    """Lines whose speeds are given by the number of layers on the CPU."""

    def __init__(self, low: int, layers: int, speed: Callable[[int], float]) -> None:
        self._base, self._speed_of, self.layers = Flags(4096), speed, layers
        self.split, self.order, self._on_cpu = (), (), {}
        self._room = {Flags(4096, n_cpu_moe=n): 0 if n >= low else None for n in range(layers + 1)}
        self.tried, self.refused = {}, {}

    def simulate(self, lines: Iterable[Flags]) -> None:
        for line in lines:
            speed = self._speed_of(line.n_cpu_moe)
            self.tried.setdefault(
                line, Tried(line, line.n_cpu_moe, speed, None, None, 0.0, Labels())
            )


# Contracts: C155
@pytest.mark.parametrize(("low", "layers"), [(5, 48), (0, 48), (46, 48), (48, 48), (1, 12)])
def test_a_speed_with_one_top_is_climbed_to_it_in_few_tries(low: int, layers: int) -> None:
    for top in range(low, layers + 1):
        search = Curve(low, layers, lambda on_cpu, at=top: 1 / (1 + (on_cpu - at) ** 2))
        search.climb(cached=False)
        assert search.fewest == low
        assert search.best()[0].flags.n_cpu_moe == top
        assert len(search.tried) <= 26


# Contracts: C155
@pytest.mark.thorough
@pytest.mark.parametrize("link_gb_per_s", [31.5, 126])
def test_the_search_is_within_five_percent_of_trying_every_line(
    link_gb_per_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """48 layers of which a few do not fit: more numbers than are tried."""
    monkeypatch.chdir(tmp_path)
    model = make_model(checked_settings(configure("model=qwen3_30b_a3b")[0]))
    request = Request("", 6, sequences=4, prompt_tokens=8, lookahead=1)
    given = (
        "model=qwen3_30b_a3b",
        "hardware=rtx4090_pcie4",
        "hardware.memory_gib=28",
        "precision=int8",
        *own_gates(model, request).words(model),
        f"hardware.links.pcie.peak_gb_per_s={link_gb_per_s}",
    )
    search = exported(Flags(4096), given, simulate)
    tried = len(search.tried)
    found = search.best()[0]
    search.simulate(
        search.line(on_cpu, cached=cached)
        for on_cpu in range(search.fewest, search.layers + 1)
        for cached in (False, True)
    )
    assert len(search.tried) > tried, "trying all is more than was tried"
    assert found.tokens_per_s >= 0.95 * search.best()[0].tokens_per_s


class Splits(Curve):
    """Lines whose speeds are given by how many layers each GPU has."""

    def simulate(self, lines: Iterable[Flags]) -> None:
        for line in lines:
            speed = self._speed_of(line.split)  # type: ignore[arg-type]
            self.tried.setdefault(
                line, Tried(line, line.n_cpu_moe, speed, None, None, 0.0, Labels())
            )

    def room_mib(self, on_cpu: int) -> int | None:
        return 0


# Contracts: C155
@pytest.mark.parametrize("top", [(1, 48), (30, 19), (48, 1), (3, 40, 6), (1, 1, 47), (20, 20, 9)])
def test_a_split_with_one_top_is_climbed_to_it_in_few_tries(top: tuple[int, ...]) -> None:
    def speed(split: Any) -> float:
        return 1 / (1 + sum((mine - best) ** 2 for mine, best in zip(split, top, strict=True)))

    search = Splits(0, 48, speed)
    search.split = even(48, len(top))
    search.climb_split()
    assert search.split == top
    assert len(search.tried) <= 60, "of two GPUs there are 48 splits, of three 1128"


# Contracts: C155 C157
@pytest.mark.thorough
def test_the_split_found_is_within_five_percent_of_trying_every_split() -> None:
    """Two GPUs, of which the second one has half of the memory, and 16 layers."""
    given = (*GIVEN, *UNEQUAL)
    search = exported(Flags(4096), given, simulate, gpus=2)
    found, tried = search.best()[0], len(search.tried)
    assert sum(found.flags.split) == 17
    assert found.flags.split[0] > found.flags.split[1]
    for first in range(1, 17):
        search.split = (float(first), float(17 - first))
        if search.room_mib(search.layers) is not None:
            fewest = search.fewest
            near = range(fewest, min(fewest + 3, search.layers + 1))
            search.simulate(search.line(on_cpu, cached=False) for on_cpu in near)
    assert len(search.tried) > tried, "trying all is more than was tried"
    assert found.tokens_per_s >= 0.95 * search.best()[0].tokens_per_s
    assert read_flags(found.flags.line()) == found.flags


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The words of three layers of eight experts, 2.6 GiB a layer. Two choose much the same experts
    again, the one between them does not.
    """
    place = tmp_path_factory.mktemp("gates") / "three"
    shape = ModelShape("three", "none", 3, 8, 2, 64, 64)
    trace, other = (
        synthesize(shape, tokens=24, sequences=2, lookahead=0, persistence=persistence)
        for persistence in (0.98, 0.0)
    )
    trace.ids[:, 1], trace.weights[:, 1] = other.ids[:, 1], other.weights[:, 1]
    assert trace.logits is not None
    assert other.logits is not None
    trace.logits[:, 1] = other.logits[:, 1]
    write_trace(place, trace)
    words = ("model.sites=3", "model.gates_of=three", f"trace.path={place}")
    return ("model=tiny_gates_half_mixtral", "hardware=rtx4090_pcie4", "precision=fp16", *words)


# Contracts: C155
@pytest.mark.parametrize(
    "words",
    [
        pytest.param((), id="the CPU is faster", marks=pytest.mark.thorough),
        pytest.param(
            ("hardware.cpu.memory_gb_per_s=2",), id="a cache is faster", marks=pytest.mark.thorough
        ),
    ],
)
def test_what_is_found_for_two_gpus_is_within_five_percent_of_every_set_of_layers(
    three: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """GPUs of 4.5 and 3.8 GiB: all splits, all sets of layers on the CPU, with a cache and without."""
    sizes = ("hardware.memory_gib=4.5", "hardware.devices.others.slow.memory_gib=3.8")
    given = (*three, *UNEQUAL, *sizes, *words)
    search = exported(Flags(64), given, simulate, gpus=2)
    tried, found = len(search.tried), search.best()[0]
    for first in range(1, 4):
        search.split = (float(first), float(4 - first))
        for count in range(1, 4):
            for on_cpu in combinations(range(3), count):
                others = [layer for layer in range(3) if layer not in on_cpu]
                search.order = (*on_cpu, *others)
                if search.room_mib(count) is not None:
                    lines = (search.line(count, cached=cached) for cached in (False, True))
                    search.simulate(lines)
    assert len(search.tried) > tried, "trying all is more than was tried"
    assert found.tokens_per_s >= 0.95 * search.best()[0].tokens_per_s
    assert all(read_flags(line.line()) == line for line in search.tried)


# Contracts: C155
@pytest.mark.thorough
def test_the_layer_that_a_cache_serves_worst_stays_whole(three: tuple[str, ...]) -> None:
    """6.1 GiB hold a layer and a cache. --n-cpu-moe 2 keeps the last layer, pins keep the middle one."""
    given = (*three, "hardware.memory_gib=6.1", "hardware.cpu.memory_gb_per_s=2")
    search = exported(Flags(64), given, simulate)
    first, second = search.best()[:2]
    assert first.flags.patterns == (on_host((0, 2)),)
    assert first.flags.cache_mib > 1000
    assert first.tokens_per_s > 1.2 * second.tokens_per_s
    search.order = ()
    plain = search.tried[search.line(2, cached=True)]
    assert plain.flags.cache_mib == first.flags.cache_mib
    assert first.tokens_per_s > 2 * plain.tokens_per_s


# Contracts: C145 C155
@pytest.mark.thorough
def test_a_cache_takes_all_that_the_fuller_gpu_leaves_and_a_mib_more_does_not_fit() -> None:
    given = (*GIVEN, *UNEQUAL)
    search = Search(Flags(4096), given, simulate)
    search.split = (12.0, 5.0)
    line = search.line(16, cached=True)
    run = prepared(words_of(line, given))
    slots = run.controller.slots.bytes_by_device()
    assert slots[0] == pytest.approx(3 * slots[1], rel=1e-6), "of 12 layers and of 4"
    assert 0 <= min(left_bytes(run)) < 2 << 20
    with pytest.raises(ValueError, match=r"device \d of 2: the device holds"):
        prepared(words_of(replace(line, cache_mib=line.cache_mib + 2), given))


# Contracts: C155
@pytest.mark.thorough
def test_layers_go_to_the_cpu_by_turns_of_gpus_or_by_fewest_misses() -> None:
    search = Search(Flags(4096), GIVEN, simulate)
    search.split = (12.0, 5.0)
    assert search.by_turns() == (0, 12, 1, 13, 2, 14, 3, 15, *range(4, 12))
    search.split = ()
    run = prepared(words_of(search.line(16, cached=True), GIVEN))
    lookups = execute(run).frames.lookups
    missed = lookups.filter(pl.col("outcome") == "miss")["site"].value_counts()
    counts = dict(missed.iter_rows())
    assert len({*counts.values()}) > 3
    search.order = search.by_misses()
    assert [counts.get(layer, 0) for layer in search.order] == sorted(
        counts.get(layer, 0) for layer in range(16)
    )
    few = search.line(3, cached=True)
    assert few.patterns == (on_host(search.order[:3]),)
    assert "-ot" in few.line()


# Contracts: C155
def test_the_command_writes_the_line_and_what_it_prints_repeats_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(export, "ProcessPoolExecutor", lambda *args, **kwargs: Inline())
    monkeypatch.setattr(
        Search, "climb", lambda self, *, cached: self.simulate([self.line(14, cached=cached)])
    )
    for order in ("by_misses", "by_turns"):
        monkeypatch.setattr(Search, order, lambda self: ())
    words = ["model=tiny_gates_half_mixtral", "machine=rtx4090_pcie4", *FEW, "context=8192"]
    assert export.main([*words, "kv=q8_0"]) == 0
    told = capsys.readouterr().out
    place = tmp_path / "outputs" / "export_tiny_gates_half_mixtral_rtx4090_pcie4"
    line = (place / "flags.txt").read_text(encoding="utf-8").strip()
    answer = json.loads((place / "answer.json").read_text(encoding="utf-8"))
    assert line.startswith("-ngl all -c 8192 -ctk q8_0 -ctv q8_0 --n-cpu-moe 14")
    assert line in answer["answer"]
    assert answer["answer"] in told
    assert "TRANSPLANTED" in answer["answer"]
    verb, flags, *rest = shlex.split(answer["run"].removeprefix("moelab "))
    assert verb == "run"
    again = trial(words_of(read_flags(flags.partition("=")[2]), rest))
    assert again.summary["decode_tokens_per_s"] == answer["lines"][0]["tokens_per_s"]
    assert "precision=q4_k_m" in rest


# Contracts: C155
@pytest.mark.thorough
def test_with_several_gpus_the_command_writes_a_split_and_its_run_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(export, "ProcessPoolExecutor", lambda *args, **kwargs: Inline())
    monkeypatch.setattr(Search, "climb_split", lambda self: None)
    monkeypatch.setattr(
        Search, "climb", lambda self, *, cached: self.simulate([self.line(14, cached=cached)])
    )
    for order in ("by_misses", "by_turns"):
        monkeypatch.setattr(Search, order, lambda self: ())
    words = ["model=tiny_gates_half_mixtral", "machine=rtx4090_pcie4", *FEW, "gpus=2"]
    assert export.main(words) == 0
    place = tmp_path / "outputs" / "export_tiny_gates_half_mixtral_rtx4090_pcie4"
    answer = json.loads((place / "answer.json").read_text(encoding="utf-8"))
    _, flags, *rest = shlex.split(answer["run"].removeprefix("moelab "))
    assert flags.startswith("flags=-ngl all -c 4096 -ts 9,8 --n-cpu-moe 14 --moe-cache-mib ")
    mib = int(flags.split()[-1])
    run = prepared(words_of(read_flags(flags.partition("=")[2]), rest))
    each = run.controller.geometry.slot_sizes[0]
    assert (mib - 1) << 20 < 14 * 8 * each <= mib << 20, "all experts of 14 layers, and no more"
    again = trial(words_of(read_flags(flags.partition("=")[2]), rest))
    assert again.summary["decode_tokens_per_s"] == answer["lines"][0]["tokens_per_s"]
    assert again.summary["hardware"].startswith("2 x rtx4090_pcie4 (layers)")


def test_where_the_cpu_would_read_a_drive_a_model_that_fits_is_held_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a unified machine, where what is not on the device lies on the drive (contract C142)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(export, "ProcessPoolExecutor", lambda *args, **kwargs: Inline())
    asked = ["model=tiny_gates_half_mixtral", "machine=m4", *FEW]
    assert export.main(asked) == 0
    answer = json.loads(next(tmp_path.rglob("answer.json")).read_text(encoding="utf-8"))
    assert [line["on_cpu"] for line in answer["lines"]] == [0]
    capsys.readouterr()
    assert export.main([*asked, "precision=fp16"]) == 2
    told = capsys.readouterr().err
    assert "neither the device's slots nor RAM hold all" in told
    assert "the model does not fit whole; choose fewer bits (precision=) or" in told
    assert "placement=load" not in told, "the flags choose the placement"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["kv=q3"], "kv=q3: q3 is none of f32, f16"),
        (["context=1"], "workload.context_tokens=1 is shorter than sequence"),
        (["cache=lru"], "cache is not given so here"),
        (["system=lru"], "system= is of to=dynamo"),
        (["hardware.memory_gib=1"], "the device holds 1 GiB"),
    ],
)
def test_what_cannot_be_exported_is_one_line_and_leaves_nothing(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(export, "ProcessPoolExecutor", lambda *args, **kwargs: Inline())
    asked = ["model=tiny_gates_half_mixtral", "machine=rtx4090_pcie4", *FEW]
    assert export.main([*asked, *words]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert message in told
    assert list(tmp_path.iterdir()) == []
