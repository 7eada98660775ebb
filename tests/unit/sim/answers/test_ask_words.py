"""The table and the paragraph of an answer to one question, whole, for rows made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sim.answers.ask_parts import BOUND, LOSSLESS, LOSSY, Change, Fit, Found, Need, Row
from sim.answers.ask_quality import Quality
from sim.answers.ask_words import cells, common, names_of, paragraph, tables_of, told_of
from sim.results.intervals import OVER
from sim.results.labels import Labels
from sim.results.paired import Paired

QUALITY = Quality(1.25, (1.0, 1.5), "tiny", 3, 0.25)
MEASURED = "measured on 3 texts of tiny with 25% of the expert bytes resident"
SURE = (
    "How sure: made gates; the machine is from data sheets and stated efficiencies, and no time of"
    " this machine was ever compared with a real one's; prompts have 12.3 tokens."
)
FITS = (Fit("fp16", 90.0, False), Fit("int8", 45.25, False), Fit("int4", 22.5, True))


def row(system: str, speed: float = 4.0, kind: str = LOSSLESS, **parts: Any) -> Row:
    return Row(
        system,
        "fp16",
        (),
        kind,
        0.5,
        speed,
        None,
        1.25,
        None,
        0.75,
        "nothing",
        Labels(),
        stored_gib=84.04,
        **parts,
    )


def found(*rows: Row, **parts: Any) -> Found:
    one = Found("m", "h", 24.0, "made gates", 12.34, rows, (), FITS, (), (), None, "", "")
    return replace(one, **parts)


def told(one: Found) -> list[str]:
    """The sentences between the first, about the fit, and the last."""
    *lines, last = paragraph(one).split("\n")
    assert last == SURE
    return lines[1:]


def behind(speedup: float, interval: tuple[float, float] | None = None) -> Paired:
    return Paired(speedup, interval, None, 6)


def test_up_to_three_names_are_told_of_systems_that_show_the_same() -> None:
    some = [row(name) for name in "abcde"]
    assert names_of(some[:3]) == "a, b, c"
    assert names_of(some) == "a, b, c and 2 more"


def test_a_line_has_the_numbers_of_a_row_with_their_intervals() -> None:
    one = replace(row("a[b]", 4.126), interval=(3.5, 5.0), first_interval=(1.0, 1.5))
    line = ("a\\[b]", "fp16", "50%", "4.13 [3.5, 5]", "1.25 [1, 1.5]", "75%", "nothing")
    assert cells([one]) == line
    lossy = replace(one, kind=LOSSY, interval=None)
    numbers = ("a\\[b]", "fp16", "50%", "4.13", "1.25 [1, 1.5]", "75%", "nothing")
    assert cells([lossy]) == (*numbers, "not measured")
    assert cells([replace(lossy, quality=QUALITY)])[-1] == "1.25 [1, 1.5]"
    bound = replace(one, kind=BOUND, labels=Labels(knows_future="it knows", reference="no machine"))
    assert cells([bound])[-1] == "it knows; no machine"


def test_each_kind_that_has_rows_has_a_table_with_its_last_columns() -> None:
    tables = tables_of(found(row("a"), row("b", kind=LOSSY), row("c", 9), row("d", kind=BOUND)))
    assert [str(table.title).partition(":")[0] for table in tables] == [
        "LOSSLESS",
        "LOSSY",
        "BOUNDS",
    ]
    assert [[str(one.header) for one in table.columns[6:]] for table in tables] == [
        ["lost"],
        ["lost", "KL (millinats a token)"],
        ["why it is a bound"],
    ]
    assert {table.title_justify for table in tables} == {"left"}
    assert [*tables[0].columns[0].cells] == ["c", "a"]
    assert [*tables_of(found(row("a"), row("b")))[0].columns[0].cells] == ["a, b"]


def test_what_must_be_said_of_a_row_is_what_no_line_or_title_says() -> None:
    words = ("model=m", "hardware=h", "trace.path=t", "hardware.memory_gib=8")
    labels = Labels("t", "p", None, "mach", "lossy", "future", "ref", words)
    kept = Labels("t", "p", None, "mach", changed=words[2:])
    assert common(replace(row("a"), labels=labels)) == kept
    made = replace(labels, synthetic="made")
    expected = replace(kept, synthetic="made", changed=words[3:])
    assert common(replace(row("a"), labels=made)) == expected


def test_measured_quality_is_told_by_its_label_and_what_is_not_measured_too() -> None:
    known = [row(name, kind=LOSSY, quality=QUALITY) for name in "ab"]
    text = f"KL of a, b: to full precision, {MEASURED}"
    assert told_of(found(*known)) == [text]
    hint = "KL not measured: moelab quality measures it with the model's weights"
    assert told_of(found(*known, row("c", 1, LOSSY))) == [text, hint]


def test_intervals_are_spoken_of_where_there_are_any() -> None:
    alone, several = row("a"), replace(row("b"), interval=(1.0, 2.0))
    for rows, head, said in (
        ((alone,), "tokens/s", []),
        ((alone, several), "tokens/s [95 %]", [OVER]),
    ):
        (table,) = tables_of(found(*rows))
        assert str(table.columns[3].header) == head
        assert told_of(found(*rows)) == said


@pytest.mark.parametrize(
    ("fits", "text"),
    [
        (
            FITS,
            "does not fit without offloading at fp16 (90 GiB); the best precision at which it does is"
            " int4 (22.5 GiB).",
        ),
        (FITS[2:], "fits without offloading at int4 (22.5 GiB)."),
        (
            FITS[:2],
            "does not fit without offloading, not even at int8 (45.2 GiB); at fp16 it needs 90 GiB.",
        ),
    ],
)
def test_the_first_sentence_says_whether_it_fits(fits: tuple[Fit, ...], text: str) -> None:
    assert paragraph(found(fits=fits)).split("\n")[0] == f"m on h (24 GiB) {text}"


NONE = ["No lossless system can run here.", "No lossy system can run here."]
REST = (
    "with 50% of the expert bytes resident and 84 GiB of experts in host memory, which is taken to have"
    " room, the first token after 1.25 s"
)


def test_where_nothing_runs_that_is_said_and_how_sure_the_rest_is() -> None:
    assert told(found()) == NONE
    last = paragraph(found(preset="calibrated", validated="within 3 %")).split("\n")[-1]
    assert "the machine is measured, and within 3 %; prompts" in last
    last = paragraph(found(preset="roofline", data_sheets="others were off")).split("\n")[-1]
    assert "compared with a real one's; others were off; prompts" in last


def test_the_fastest_system_is_named_with_what_it_loses() -> None:
    best = replace(row("a", 5), interval=(4.0, 6.0), with_machine=(3.0, 7.0))
    lossy = replace(row("c", 6, LOSSY), lost="some")
    assert told(found(best, row("b", 4, behind=behind(1.25, (1.01, 1.5))), lossy)) == [
        "The fastest lossless system is a at fp16: 5 tokens/s [4, 6] (with the machine's error"
        f" [3, 7]) {REST}.",
        f"The fastest lossy system is c at fp16: 6 tokens/s {REST}; lost: some; quality: not measured.",
    ]
    known = told(found(replace(lossy, quality=QUALITY)))[1]
    assert known.endswith(f"quality: 1.25 [1, 1.5] millinats of KL a token, {MEASURED}.")


def test_where_the_experts_lie_behind_a_drive_its_link_is_named() -> None:
    assert "and 84 GiB of experts behind nvme, the first" in told(found(row("a"), home="nvme"))[0]


@pytest.mark.parametrize(("count", "names"), [(2, "a at fp16, b at fp16"), (3, None), (5, None)])
def test_those_that_tie_with_the_fastest_are_named_up_to_three(
    count: int, names: str | None
) -> None:
    three = "a at fp16, b at fp16, c at fp16"
    names = names or three + (" and 2 more" if count == 5 else "")
    tied = [row(name, 3.5, behind=behind(1.1, (1.0, 1.2))) for name in "bcde"[: count - 1]]
    assert told(found(row("a"), *tied))[0] == (
        f"{count} lossless systems tie as the fastest (95 % over the same sequences): {names};"
        f" a at fp16: 4 tokens/s {REST}."
    )


def test_what_is_all_resident_is_told_at_each_precision_at_which_it_fits() -> None:
    resident = [
        replace(row("a", speed), precision=precision, share=1.0, waiting=0.0)
        for precision, speed in (("int4", 9.0), ("int4", 8.0), ("int8", 7.0))
    ]
    line = "Where nothing is offloaded: 9 tokens/s at int4."
    assert line in told(found(*resident))
    assert "GiB of experts" not in told(found(*resident))[0]
    assert line not in told(found(*resident[2:]))


def test_the_fastest_at_an_asked_precision_is_named_where_another_one_is_faster() -> None:
    """Of q4_k_m, which the question was about, the answer said nothing: it named int2 alone."""
    low = replace(row("low", 9, LOSSY), precision="int2", words=("system=low",))
    asked = [
        replace(row(name, speed, LOSSY), precision="q4_k_m", words=(name,), behind=how)
        for name, speed, how in (("a", 5, None), ("b", 4, behind(1.2, (1.1, 1.4))))
    ]
    one = found(row("own"), low, *asked, at_asked=tuple(asked), left_out="fp16", target=3.0)
    first, second, third, *targets = told(one)
    assert first == (
        "No system was asked for the model as it is published: precisions= leaves fp16 out."
    )
    assert second.startswith("The fastest lossy system is low at int2: 9 tokens/s")
    assert third.startswith("The fastest lossy system of those asked at q4_k_m is a at q4_k_m: 5")
    assert targets == ["3 tokens/s lossy: low at int2, a at q4_k_m, b at q4_k_m here."]
    alone = found(*asked, at_asked=tuple(asked))
    assert [line for line in told(alone) if "asked" in line] == []


def test_a_target_names_who_reaches_it_and_what_the_fastest_would_need() -> None:
    rows = [row(name, 5) for name in "abcd"]
    needs = (Need("link", 3, "a link"), Need("memory", 4, "a memory"))
    *_, lossless, lossy, needed = told(found(*rows, row("e", 4.9), target=5.0, needs=needs))
    assert lossless == "5 tokens/s lossless: a at fp16, b at fp16, c at fp16 and 1 more here."
    assert lossy == "5 tokens/s lossy: no lossy system here."
    assert needed == "What 5 tokens/s lossless would need, one thing at a time: a link; a memory."
    three = told(found(*rows[:3], target=5.0))
    assert three[-2:] == [lossless.replace(" and 1 more", ""), lossy]


def test_changes_are_told_of_each_system_with_the_slots_they_cost() -> None:
    changes = (
        Change("x", "a", 8.0, behind(2.0, (1.9, 2.1)), 0.05),
        Change("y", "b", 3.0, behind(0.5, (0.4, 0.6)), 0.049),
        Change("z", "a", 4.0, behind(1.0)),
    )
    assert told(found(changes=changes))[2:] == [
        "What would change a: x makes it 2.00x as fast (8 tokens/s, 0.05 fewer slots a layer);"
        " z makes it 1.00x as fast (4 tokens/s).",
        "What would change b: y makes it 0.50x as fast (3 tokens/s): it loses.",
    ]
