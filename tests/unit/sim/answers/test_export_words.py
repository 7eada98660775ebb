"""The sentence of an export: the fastest line, and what the plain ways reach beside it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from sim.answers.engine_flags import Flags
from sim.answers.export import Tried
from sim.answers.export_words import sentence
from sim.results.labels import Labels


def line(on_cpu: int, speed: float, cache_mib: int = 0, **given: Any) -> Tried:
    flags = Flags(4096, n_cpu_moe=on_cpu, cache_mib=cache_mib)
    return Tried(flags, on_cpu, speed, given.get("interval"), None, 0.5, Labels())


def told(*lines: Tried) -> str:
    best = sorted(lines, key=lambda one: -one.tokens_per_s)
    return sentence(cast(Any, SimpleNamespace(layers=16, best=lambda: best)), "m", "gpu", "gates")


def test_the_fastest_line_stands_first_and_each_plain_way_with_its_best() -> None:
    best = line(12, 30, cache_mib=2048, interval=(28, 32))
    others = line(12, 21), line(16, 9), line(13, 24, cache_mib=64), line(11, 20)
    assert told(best, *others) == (
        "m on gpu: 30 tokens/s [28, 32] with -ngl all -c 4096 --n-cpu-moe 12 --moe-cache-mib 2048;"
        " whole layers alone at best 21; all experts on the CPU at best 9; from gates."
    )


def test_a_way_that_is_the_fastest_line_itself_or_was_not_tried_is_not_told_again() -> None:
    assert told(line(12, 21), line(13, 20, cache_mib=64)) == (
        "m on gpu: 21 tokens/s with -ngl all -c 4096 --n-cpu-moe 12; a cache of experts at best 20;"
        " from gates."
    )
    assert (
        told(line(16, 9))
        == "m on gpu: 9 tokens/s with -ngl all -c 4096 --n-cpu-moe 16; from gates."
    )
