"""The sentence and the table of a what-if, whole, for answers made by hand."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from sim.answers.whatif import Answer, BreakEven, Growth, Row
from sim.answers.whatif_words import sentence, table_of
from sim.results.intervals import OVER
from sim.results.labels import Labels

EVEN = BreakEven("even", 3.0, 1.0, 4.0, None, "it turns at 3")
FOUND = Answer("link", "GB/s", (), EVEN, None, (), (("lru", Labels()),), False, top_k=6)


def row(value: float, series: str, speed: float, hits: float | None = 0.5, **of: object) -> Row:
    one = Row(value, series, speed, None, 0.25, hits, None, None, 8.0)
    return replace(one, **of)  # type: ignore[arg-type]


def lines(table: Table) -> list[tuple[str, ...]]:
    """The heads, then the rows."""
    columns = [[str(column.header), *map(str, column.cells)] for column in table.columns]
    return list(zip(*columns, strict=True))


def test_a_sentence_has_what_turns_what_is_needed_and_the_knee() -> None:
    needed = replace(EVEN, told="5 tokens/s need 2")
    assert sentence(FOUND, "lru") == "lru: it turns at 3."
    assert sentence(replace(FOUND, target=needed, knee=0.5), "lru") == (
        "lru: it turns at 3; lru: 5 tokens/s need 2; the knee is at 0.5: up to there memory pays more"
        " than on average, after it less."
    )


def test_memory_without_a_knee_says_so_and_labels_follow() -> None:
    labelled = (("lru", Labels(synthetic="made gates")),)
    found = replace(FOUND, question="memory", break_even=None, labels=labelled)

    def told(*speeds: float) -> str:
        rows = tuple(row(at, "decode", speed) for at, speed in enumerate(speeds))
        return sentence(replace(found, rows=rows), "lru")

    none = "there is no knee: "
    assert told(1, 2, 4) == f"{none}what comes later pays more than what comes first. [made gates]"
    assert told(3, 4, 3) == f"{none}the most memory is no faster than the least. [made gates]"
    assert told(1, 2) == "fewer than three points have no knee. [made gates]"


def test_bits_name_the_fastest_precision() -> None:
    rows = (row(4, "int4", 7), row(8, "int8", 9.126), row(16, "fp16", 2))
    assert sentence(replace(FOUND, question="bits", rows=rows), "lru") == (
        "lru: it turns at 3; lru: int8 decodes fastest in these bytes, 9.13 tokens/s."
    )


KV = replace(
    FOUND,
    question="kv",
    break_even=None,
    rows=(
        row(4096, "4.5 bits", 9, slots_a_layer=7),
        row(4096, "16 bits", 8, slots_a_layer=6),
        row(1024, "16 bits", 10, slots_a_layer=7.5),
        row(65536, "4.5 bits", 5, slots_a_layer=4),
        row(65536, "8.5 bits", 6, slots_a_layer=3),
        row(65536, "16 bits", 3, slots_a_layer=2),
    ),
)


def test_contexts_tell_the_shortest_the_longest_and_the_fastest_way_to_hold_it() -> None:
    grown = Growth("16 bits", 1024, 65536, 7.5, 2, 6, 3)
    assert sentence(replace(KV, growth=(grown,)), "lru") == (
        "1,024 tokens, at 16 bits a number, leave 7.5 slots a layer and 10 tokens/s;"
        " 65,536 tokens, at 16 bits a number, leave 2 slots a layer and 3 tokens/s;"
        " lru: 65,536 tokens decode fastest at 8.5 bits, 3 slots a layer and 6 tokens/s; what fewer"
        " bits of keys and values cost in quality is not measured here;"
        " lru: a conversation that grows from 1,024 to 65,536 tokens decodes 6 tokens/s where slots"
        " shrink (16 bits a number), and 3 where they are allocated once (16 bits): 2 times as fast."
    )


def test_one_context_is_told_once() -> None:
    told = sentence(replace(KV, rows=KV.rows[2:3]), "lru")
    assert told.count("1,024 tokens, at 16 bits a number") == 1


def test_drafts_tell_the_fastest_number_and_those_that_are_slower_than_none() -> None:
    """As fast as none is not slower. Where none did not run, nothing is compared with it."""
    speeds = {
        "offloaded": {0: 10, 1: 12, 2: 15.46, 3: 10, 4: 9.9, 5: 8},
        "on device": {0: 10, 1: 9},
        "on disk": {1: 4, 2: 3},
        "in RAM": {0: 2, 1: 3},
    }
    rows = [row(n, name, speed) for name, of in speeds.items() for n, speed in of.items()]
    found = replace(FOUND, question="drafts", break_even=None, rows=tuple(rows))
    assert sentence(found, "lru") == (
        "lru, drafts' experts offloaded: 2 a step are fastest, 15.5 tokens/s, 1.55x as fast as none;"
        " 4, 5 are slower than none;"
        " lru, drafts' experts on device: no number of drafts is faster than none;"
        " lru, drafts' experts on disk: 1 a step are fastest, 4 tokens/s;"
        " lru, drafts' experts in RAM: 1 a step are fastest, 3 tokens/s, 1.50x as fast as none."
    )


def test_a_table_shows_the_columns_that_differ_and_says_below_what_is_the_same() -> None:
    rows = (
        row(1, "on", 2.5, interval=(2.0, 3.0), speedup=1.254, speedup_interval=(1.1, 1.4)),
        row(2, "off", 4.0, interval=(3.5, 4.25)),
        row(2, "[on]", 5.0, speedup=1.5),
    )
    table = table_of(replace(FOUND, rows=rows, about="m [on] h"), "lru")
    assert lines(table) == [
        ("GB/s", "system", "tokens/s (95%)", "times as fast"),
        ("1", "on", "2.5 2..3", "1.25 1.1..1.4"),
        ("2", "off", "4 3.5..4.25", ""),
        ("2", "\\[on]", "5", "1.50"),
    ]
    assert table.title == "lru: m \\[on] h"
    assert table.caption == f"waits 25% at each point; hits 50.0% at each point; {OVER}"
    assert not table.pad_edge
    assert table.box is SIMPLE_HEAD


@pytest.mark.parametrize("width", [30, 80])
def test_no_number_is_cut_or_in_two_lines_where_the_table_is_wide(width: int) -> None:
    """Of ``1.351..4.512`` as ``1.351..4`` and ``.512`` somebody would read another interval. In 80
    columns all of a table fits that has every column.
    """
    rows = [
        row(
            at,
            name,
            speed,
            hits,
            interval=(1.351, 4.512),
            speedup=speed,
            speedup_interval=(0.9521, 0.9664),
            waiting=speed / 10,
            slots_a_layer=3.881,
        )
        for at, name, speed, hits in (
            (131072, "offloaded", 2.5, 0.336),
            (131072, "on device", 4.0, 0.096),
            (262144, "offloaded", 3.5, None),
        )
    ]
    rows.append(replace(rows[0], value=0, slots_a_layer=4.124))
    heard = io.StringIO()
    found = replace(FOUND, axis="drafted tokens a step", rows=tuple(rows))
    Console(file=heard, width=width).print(table_of(found, "lru"), crop=False)
    words = heard.getvalue().split()
    assert words.count("1.35..4.51") == words.count("0.952..0.966") == 4
    assert words.count("3.88") == 3
    assert width < 80 or max(map(len, heard.getvalue().splitlines())) <= 80


def test_waits_hits_and_slots_that_differ_are_columns() -> None:
    rows = (row(1, "lru", 2), row(2, "lru", 2, None, waiting=0.5, slots_a_layer=9.5))
    table = table_of(replace(FOUND, rows=rows), "lru")
    assert lines(table) == [
        ("GB/s", "waits", "hits", "slots a layer"),
        ("1", "25%", "50.0%", "8"),
        ("2", "50%", "-", "9.5"),
    ]
    assert (table.title, table.caption) == ("lru", "")


def test_a_series_that_is_the_same_at_each_value_is_one_row() -> None:
    """The second decodes as fast at each, the third does too but hits otherwise."""
    rows = tuple(
        row(value, name, speed, hits)
        for value, first, last in ((0.1, 2.0, 0.5), (0.25, 3.0, 0.75))
        for name, speed, hits in (("a", first, 0.5), ("b", 4.0, 0.5), ("c", 5.0, last))
    )
    assert lines(table_of(replace(FOUND, rows=rows), "lru"))[1:] == [
        ("0.1", "a", "2", "50.0%"),
        ("0.1", "c", "5", "50.0%"),
        ("0.25", "a", "3", "50.0%"),
        ("0.25", "c", "5", "75.0%"),
        ("any", "b", "4", "50.0%"),
    ]


def test_one_point_is_a_row_of_what_is_known_and_intervals_are_told_where_there_are_any() -> None:
    table = table_of(replace(FOUND, rows=(row(1, "lru", 2),)), "lru")
    assert lines(table) == [("GB/s", "tokens/s", "waits", "hits"), ("1", "2", "25%", "50.0%")]
    assert table.caption == ""
    table = table_of(replace(FOUND, rows=(row(1, "lru", 2, interval=(1.5, 2.5)),)), "lru")
    assert lines(table) == [
        ("GB/s", "tokens/s (95%)", "waits", "hits"),
        ("1", "2 1.5..2.5", "25%", "50.0%"),
    ]
    assert table.caption == OVER


@pytest.mark.parametrize(("slots", "is_told"), [(5.5, True), (6.0, False)])
def test_slots_for_less_than_a_token_needs_tell_why_nothing_hits(
    slots: float, is_told: bool
) -> None:
    """A row that hits counts for nothing here."""
    rows = (
        row(1, "a", 2, 0, slots_a_layer=3.0),
        row(2, "a", 3, 0, slots_a_layer=slots),
        row(3, "a", 4, 0.5, slots_a_layer=9.0),
    )
    told = (
        f"waits 25% at each point; no expert hits where the slots hold {slots:.3g} a layer: one"
        f" token needs 6, so each is gone before it is needed again"
    )
    caption = table_of(replace(FOUND, rows=rows), "lru").caption
    assert caption == (told if is_told else "waits 25% at each point")
    assert table_of(replace(FOUND, rows=rows[2:]), "lru").caption == ""


def test_as_few_slots_that_hit_elsewhere_are_no_reason_that_nothing_hits() -> None:
    rows = (
        row(1, "a", 2, 0, slots_a_layer=3.0),
        row(2, "a", 3, 0.125, slots_a_layer=3.0),
    )
    assert "no expert hits" not in table_of(replace(FOUND, rows=rows), "lru").caption
