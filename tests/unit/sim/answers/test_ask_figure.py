"""The answer to one question as a figure, a table and sentences: each number is a row's own."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from omegaconf import OmegaConf

from helpers.drawn import is_all_inside, kept, legend, notes, points, ticks, upright
from helpers.printed import rows_of, shows
from sim.answers.ask import behind_the_fastest
from sim.answers.ask_figure import MOST, TONES, draw
from sim.answers.ask_parts import BOUND, LOSSLESS, LOSSY, Change, Fit, Found, Need, Row
from sim.answers.ask_quality import FILE, Quality, quality_of
from sim.answers.ask_words import QUALITY, common, names_of, paragraph, tables_of, told_of
from sim.ask import _write
from sim.results.labels import Labels
from sim.results.paired import Paired
from sim.values.places import ROOT
from sim.verbs.names import names

INT4 = "every expert at int4 or below"
SEES = Labels(knows_future="knows the future (x)", reference="a reference: copies take no time")


def row(system: str, kind: str, speed: float, share: float, **others: object) -> Row:
    labels = SEES if kind == BOUND else Labels(lossy="lossy (x)") if kind == LOSSY else Labels()
    made = Row(
        system,
        "fp16",
        (f"system={system}", "seed=1"),
        kind,
        share,
        speed,
        (0.83 * speed, 1.27 * speed),
        11.7 / speed,
        (10.1 / speed, 13.9 / speed),
        0.34,
        "nothing" if kind == LOSSLESS else "4 % of needs",
        labels,
        stored_gib=37.2,
    )
    return replace(made, **others)


ROWS = (
    row("slow", LOSSLESS, 2.46, 0.21, interval=None, first_interval=None, waiting=0.87),
    row("fast", LOSSLESS, 7.13, 0.43),
    row("low", LOSSY, 11.9, 1.0, waiting=0.0, precision="int4", lost=INT4),
    row("seer", BOUND, 31.7, 0.43),
)
FITS = (Fit("fp16", 43.7, False), Fit("int8", 25.3, False), Fit("int4", 13.1, True))
FOUND = Found(
    "m",
    "h",
    23.6,
    "gates of t",
    87.4,
    ROWS,
    (("odd", "no room"),),
    FITS,
    (Change("more memory", "fast at fp16", 9.87, Paired(1.384, (1.2, 1.6), 0.99, 8)),),
    (Need("link", 41.3, "a link of 41.3 GB/s"),),
    6.5,
    "calibrated",
    "",
)
ORDER = ("fast", "slow", "low", "seer")


def test_a_dot_is_a_system_with_its_interval_the_fastest_of_its_kind_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures = kept(monkeypatch)
    draw(Path("nowhere"), FOUND)
    (axis,) = figures[0].axes
    by_name = {row.system: row for row in ROWS}
    dots = points(axis)
    names = ticks(axis, "y")
    assert list(names.items()) == [
        (at, f"{name} ({by_name[name].precision})") for at, name in enumerate(ORDER)
    ]
    for at, (name, dot) in enumerate(zip(ORDER, dots, strict=True)):
        speed = by_name[name].tokens_per_s
        ends = by_name[name].interval or (speed, speed)
        assert (dot.x, dot.y) == ([speed], [at])
        assert dot.across == [pytest.approx(ends)]
        assert dot.colour == to_hex(TONES[by_name[name].kind])
        text, place = notes(axis)[at]
        shows(text, speed, by_name[name].share)
        assert place == (pytest.approx(ends[1]), at)
    assert notes(axis)[-1] == ("target 6.5", (6.5, -0.9))
    assert upright(axis) == [6.5]
    assert legend(axis) == [LOSSLESS, LOSSY, BOUND]
    assert (axis.get_xscale(), axis.yaxis_inverted()) == ("log", True)
    assert axis.get_xlabel().startswith("decode (tokens/s), 95 %")
    assert is_all_inside(axis)
    assert axis.get_xlim()[1] > 1.5 * 31.7 * 1.27, "room for what is written beside the last dot"
    assert figures[0].get_suptitle() == "m on h, 23.6 GiB", "the table says what is lost"
    for target in (0.125, 640.0):
        draw(Path("nowhere"), replace(FOUND, target=target))
        (axis,) = figures[-1].axes
        least, most = axis.get_xlim()
        assert least < target < most, "a target that is far from all speeds is shown, too"


def test_labels_leave_out_what_the_title_says_and_where_gates_were_made() -> None:
    words = ("model=m", "hardware=h", "trace.path=/x/gates", "workload.context_tokens=7")
    own = Labels(changed=words)
    made = replace(own, synthetic="SYNTHETIC gates: s")
    assert common(row("a", LOSSLESS, 1, 1, labels=own)).changed == words[2:]
    assert common(row("a", LOSSLESS, 1, 1, labels=made)).changed == words[3:]


def test_what_is_written_across_the_target_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = kept(monkeypatch)
    draw(Path("nowhere"), FOUND)
    (axis,) = figures[0].axes
    (line,) = [one for one in axis.lines if one.get_linestyle() == "--"]
    for text in axis.texts:
        assert text.get_bbox_patch().get_facecolor() == (1, 1, 1, 1)
        assert text.get_zorder() > line.get_zorder()


def test_systems_a_thousand_times_as_fast_make_the_same_picture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures = kept(monkeypatch)
    for speed in (1.0, 1000.0):
        rows = tuple(row(f"s{at}", LOSSLESS, speed * at, 0.5) for at in (2.0, 7.0))
        draw(Path("nowhere"), replace(FOUND, rows=rows, target=None))
    slow, fast = (figure.axes[0].get_xlim() for figure in figures)
    assert fast == pytest.approx([1000 * end for end in slow])


def test_of_many_systems_the_fastest_of_each_kind_are_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures = kept(monkeypatch)
    rows = tuple(
        row(f"{kind}{at}", kind, 1.5 + at, 0.5)
        for kind in (LOSSLESS, LOSSY, BOUND)
        for at in range(20)
    )
    draw(Path("nowhere"), replace(FOUND, rows=rows, target=None))
    (axis,) = figures[0].axes
    shown = [name.split(" ")[0] for name in ticks(axis, "y").values()]
    assert shown == [
        f"{kind}{19 - at}" for kind in (LOSSLESS, LOSSY, BOUND) for at in range(MOST[kind])
    ]
    assert upright(axis) == []


def test_a_line_of_the_table_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the answer's own files, JSON for the numbers."""
    kept(monkeypatch)
    _write(tmp_path, FOUND, paragraph(FOUND))
    content = json.loads((tmp_path / "answer.json").read_text(encoding="utf-8"))
    with (tmp_path / "table.csv").open(encoding="utf-8") as file:
        flat = {one["system"]: one for one in csv.DictReader(file)}
    assert (tmp_path / "answer.txt").read_text(encoding="utf-8") == content["answer"] + "\n"
    assert content["labels"] == told_of(FOUND)
    by_name = {one["system"]: one for one in content["rows"]}
    tables = tables_of(FOUND)
    assert [str(table.title).split(":")[0] for table in tables] == ["LOSSLESS", "LOSSY", "BOUNDS"]
    lines = [line for table in tables for line in rows_of(table)]
    assert [line["system"] for line in lines] == list(ORDER)
    for line in lines:
        one = by_name[line["system"]]
        assert line["experts at"] == one["precision"]
        shows(line["resident"], one["share"])
        shows(line["tokens/s [95 %]"], one["tokens_per_s"], *(one["interval"] or ()))
        shows(line["first token (s)"], one["first_s"], *(one["first_interval"] or ()))
        shows(line["waits"], one["waiting"])
        assert flat[one["system"]]["words"] == f"system={one['system']} seed=1"
        for key in ("precision", "kind", "lost", "share", "tokens_per_s", "first_s", "waiting"):
            assert flat[one["system"]][key] == str(one[key])
    assert [line.get("lost") for line in lines[:3]] == ["nothing", "nothing", INT4]
    assert [line.get(QUALITY) for line in lines] == [None, None, "not measured", None]
    assert [flat[name]["quality"] for name in ORDER] == [""] * 4
    assert lines[3]["why it is a bound"] == f"{SEES.knows_future}; {SEES.reference}"


def test_quality_is_told_where_it_is_known_with_the_model_and_the_texts() -> None:
    known = Quality(7.31, (2.94, 18.7), "t", 5, 0.37)
    rows = (*ROWS, row("known", LOSSY, 12.8, 0.9, quality=known))
    found = replace(FOUND, rows=rows)
    (lossy,) = [table for table in tables_of(found) if str(table.title).startswith("LOSSY")]
    told = {line["system"]: line[QUALITY] for line in rows_of(lossy)}
    assert told.pop("low") == "not measured"
    shows(told["known"], 7.31, 2.94, 18.7)
    of = "measured on 5 texts of t with 37% of the expert bytes resident"
    assert f"KL of known: to full precision, {of}" in told_of(found)
    assert any(line.startswith("KL not measured: moelab quality") for line in told_of(found))
    (sentence,) = [one for one in paragraph(found).split(". ") if "fastest lossy" in one]
    assert f"quality: {known.text()}, {of}" in sentence
    assert found.plain()["rows"][-1]["quality"]["millinats"] == 7.31


def test_quality_is_known_of_a_system_as_it_stands_on_the_gates_that_it_was_measured_on() -> None:
    known = quality_of("tiny_mixtral", "hobbit")
    assert known is not None
    assert known.interval[0] < known.millinats < known.interval[1]
    for other in ("hobbit precision=fp16", "hobbit cache=lfu", "hobbit_cpu"):
        assert quality_of("tiny_mixtral", other) is None, other
    assert quality_of("synthetic_mixtral_8x7b", "hobbit") is None


def test_every_measured_quality_stands_in_the_page_that_names_its_command() -> None:
    page = (ROOT / "docs/quality.md").read_text(encoding="utf-8")
    parts = OmegaConf.load(FILE)
    numbers = {name: values for part in parts for name, values in part["systems"].items()}
    assert set(numbers) <= set(names("system"))
    for name, values in numbers.items():
        # A row of its own, or of the table below the command that printed it.
        of_command = page.partition(f"quality system={name} ")[2].partition("\n```sh\n")[0]
        lines = [
            line
            for text, starts in (
                (page, (f"| {name} |", f"| `{name}`")),
                (of_command, ("| decode: KL,",)),
            )
            for line in text.splitlines()
            if line.startswith(starts)
        ]
        nats = [float(f"{value / 1000:.6g}") for value in values]
        assert any(
            all({value, nat} & found for value, nat in zip(values, nats, strict=True))
            for line in lines
            for found in [{float(one) for one in re.findall(r"\d[\d.]*(?:e-\d+)?", line)}]
        ), name


def test_every_sentence_has_its_numbers() -> None:
    told = paragraph(FOUND)
    sentences = [line.removesuffix(".") for line in told.splitlines()]
    fits, lossless, lossy, resident, target, other, needs, change, sure = (
        next(one for one in sentences if start in one)
        for start in (
            "does not fit",
            "fastest lossless",
            "fastest lossy",
            "nothing is offloaded",
            "tokens/s lossless:",
            "tokens/s lossy:",
            "would need",
            "What would change fast at fp16",
            "How sure",
        )
    )
    assert fits == (
        "m on h (23.6 GiB) does not fit without offloading at fp16 (43.7 GiB); the best precision"
        " at which it does is int4 (13.1 GiB)"
    )
    ends = (0.83 * 7.13, 1.27 * 7.13)
    shows(lossless.partition(": ")[2], 7.13, *ends, 0.43, 37.2, 11.7 / 7.13)
    shows(lossy.partition(": ")[2], 11.9, 0.83 * 11.9, 1.27 * 11.9, 1, 11.7 / 11.9)
    assert resident == "Where nothing is offloaded: 11.9 tokens/s at int4"
    assert target == "6.5 tokens/s lossless: fast at fp16 here"
    assert other == "6.5 tokens/s lossy: low at int4 here"
    assert needs == (
        "What 6.5 tokens/s lossless would need, one thing at a time: a link of 41.3 GB/s"
    )
    shows(change.partition(": ")[2], 1.384, 9.87)
    shows(sure, 87.4)
    assert "the machine is measured" in sure
    assert "was ever compared" in sure
    stated = paragraph(replace(FOUND, preset="stated", validated="tokens/s are within 3 %"))
    assert "from data sheets" in stated
    assert "and tokens/s are within 3 %; prompts" in stated


def test_where_nothing_is_offloaded_the_fastest_that_moves_nothing_counts() -> None:
    others = {"precision": "int4", "waiting": 0.0, "lost": INT4}
    rows = (
        row("a", LOSSY, 3.1, 1.0, **others),
        row("b", LOSSY, 5.2, 1.0, **others),
        row("waits", LOSSY, 6.3, 1.0, precision="int4"),
        row("part", LOSSY, 7.4, 0.9, **others),
        row("seer", BOUND, 8.5, 1.0, **others),
        row("skips", LOSSY, 8.5, 1.0, **(others | {"lost": "12.5% skipped"})),
        row("large", LOSSY, 9.6, 1.0, precision="int8", waiting=0.0),
    )
    told = paragraph(replace(FOUND, rows=rows))
    assert "Where nothing is offloaded: 5.2 tokens/s at int4." in told


@pytest.mark.parametrize(
    ("fits", "told"),
    [
        (
            FITS[:2],
            "does not fit without offloading, not even at int8 (25.3 GiB); at fp16 it needs 43.7",
        ),
        (FITS[2:], "m on h (23.6 GiB) fits without offloading at int4 (13.1 GiB)."),
    ],
)
def test_what_fits_nowhere_or_at_once_is_said(fits: tuple[Fit, ...], told: str) -> None:
    assert told in paragraph(replace(FOUND, fits=fits))


def test_systems_that_the_same_sequences_do_not_tell_apart_tie_and_slower_ones_do_not() -> None:
    """By hand: four sequences of 1 to 4 s. Intervals of single systems overlap for all of them."""
    seconds = np.array([1.0, 2.0, 3.0, 4.0])
    rows = [row(name, LOSSLESS, speed, 0.5) for name, speed in (("a", 10), ("b", 10), ("c", 9.9))]
    rows += [row("surely", LOSSLESS, 9.8, 0.5), row("one", LOSSY, 5.0, 0.5)]
    times = {
        rows[0].words: seconds,
        rows[1].words: seconds,
        rows[2].words: seconds + np.array([0.3, -0.2, -0.1, 0.1]),
        rows[3].words: seconds * 1.02,
        rows[4].words: seconds * 2,
    }
    told = paragraph(replace(FOUND, rows=behind_the_fastest(rows, times)))
    assert (
        "3 lossless systems tie as the fastest (95 % over the same sequences): a at fp16, b at"
        " fp16, c at fp16; a at fp16: 10 tokens/s"
    ) in told
    assert "surely at fp16: " not in told
    assert "The fastest lossy system is one at fp16: 5 tokens/s" in told
    alone = behind_the_fastest(rows[:4], {words: each[:1] for words, each in times.items()})
    assert [one.ties for one in alone] == [False, True, False, False], "one sequence: no interval"
    few = behind_the_fastest(rows[2:4], {words: each[:3] for words, each in times.items()})
    for told_apart_by_few in (few, alone[2:]):
        assert (
            "c at fp16 has the highest speed of lossless systems (not sure: fewer than 4 independent"
            " sequences): 9.9 tokens/s"
        ) in paragraph(replace(FOUND, rows=told_apart_by_few))


def test_of_many_systems_three_are_named_and_the_others_counted() -> None:
    tied = Paired(1.0, (0.9, 1.1), 0.5, 4)
    rows = tuple(row(f"s{at}", LOSSLESS, 9 - at / 100, 0.5, behind=tied) for at in range(5))
    assert names_of(rows[:3]) == "s0, s1, s2"
    assert names_of(rows) == "s0, s1, s2 and 2 more"
    told = paragraph(replace(FOUND, rows=rows))
    assert "sequences): s0 at fp16, s1 at fp16, s2 at fp16 and 2 more; s0 at fp16: 9" in told
    assert "lossless: s0 at fp16, s1 at fp16, s2 at fp16 and 2 more here." in told
    four = paragraph(replace(FOUND, rows=rows[:4]))
    assert "sequences): s0 at fp16, s1 at fp16, s2 at fp16 and 1 more; s0 at fp16: 9" in four
    assert "s2 at fp16 and 1 more here." in four
    assert "s2 at fp16 here." in paragraph(replace(FOUND, rows=rows[:3]))
