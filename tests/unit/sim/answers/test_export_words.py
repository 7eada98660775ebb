"""The sentence of an export: the fastest line, and what the plain ways reach beside it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from sim.answers.engine_flags import Flags
from sim.answers.export import Tried
from sim.answers.export_words import sentence, table_of
from sim.results.intervals import OVER
from sim.results.labels import Labels

HEADS = ["layers on the CPU", "-ts", "cache (MiB)", "tokens/s [95 %]", "hits", "waits"]


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


def test_the_table_has_the_eight_fastest_lines_and_what_they_differ_in() -> None:
    rows = [
        Tried(
            Flags(64, patterns=("x=CPU",), split=(4.0, 2.5), cache_mib=2048),
            3,
            30.46,
            (28, 32),
            0.256,
            0.125,
            Labels(lossy="[lossy]"),
        ),
        *(line(n, 20 - n) for n in range(8)),
    ]
    table = table_of(cast(Any, SimpleNamespace(layers=16, best=lambda: rows)))
    assert [str(column.header) for column in table.columns] == HEADS
    cells = list(zip(*(column.cells for column in table.columns), strict=True))
    assert cells == [
        ("3 of 16 (-ot)", "4,2.5", "2048", "30.5 [28, 32]", "25.6%", "12%"),
        *((f"{n} of 16", "-", "-", f"{20 - n}", "-", "50%") for n in range(7)),
    ]
    assert table.title == "the fastest 8 of 9 lines"
    assert (table.title_justify, table.pad_edge) == ("left", False)
    assert table.caption == rf"llama.cpp (some runs): \[lossy]; {OVER}"
    table = table_of(cast(Any, SimpleNamespace(layers=16, best=lambda: rows[1:3])))
    assert (table.title, table.row_count) == ("the fastest 2 of 2 lines", 2)
    assert (str(table.columns[3].header), table.caption) == ("tokens/s", ""), "no interval is shown"


def test_the_label_stands_behind_the_sentence() -> None:
    labelled = Tried(Flags(64, n_cpu_moe=16), 16, 9.0, None, None, 0.0, Labels(lossy="lossy (x)"))
    assert told(labelled).endswith(" with -ngl all -c 64 --n-cpu-moe 16; from gates. [lossy (x)]")
