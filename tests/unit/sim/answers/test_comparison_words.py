"""A comparison in words and as a table, from hand-made times."""

from __future__ import annotations

from typing import Any

import pytest

from sim.answers.comparison import Comparison
from sim.answers.comparison_words import WAITS, answer, table_of
from sim.results.labels import Labels
from sim.results.paired import Paired
from sim.results.stalls import STALL_PARTS

S = 1_000_000_000
SURE = Paired(1.5, (1.25, 1.75), 0.5, 8)
HEAD = "A (x) is faster than B (y). B's time over A's, paired 95 % over 8 sequences of this trace: "


def found(
    ratio: Paired = SURE, parts: dict[str, tuple[int, int]] | None = None, **given: Any
) -> Comparison:
    ratios = {"all steps": ratio, **given.pop("ratios", {})}
    labels = given.pop("labels", (Labels(), Labels()))
    return Comparison(("x", "y"), parts or {}, ratios, labels, **given)


@pytest.mark.parametrize(
    ("p_faster", "told"),
    [
        (None, ""),
        (0.0009, ", P(A faster) < 0.001"),
        (0.001, ", P(A faster) 0.001"),
        (0.5, ", P(A faster) 0.500"),
        (0.999, ", P(A faster) 0.999"),
        (0.9991, ", P(A faster) > 0.999"),
    ],
)
def test_a_probability_is_told_between_its_ends(p_faster: float | None, told: str) -> None:
    ratio = Paired(1.5, (1.25, 1.75), p_faster, 8)
    assert answer(found(ratio)) == f"{HEAD}all steps 1.50x [1.25, 1.75]{told}."


@pytest.mark.parametrize(
    ("interval", "sequences", "who"),
    [
        ((1.25, 1.75), 4, "A (x) is faster than B (y)"),
        ((0.25, 0.75), 4, "A (x) is slower than B (y)"),
        ((1.0, 1.75), 4, "Cannot tell whether A (x) or B (y) is faster"),
        (
            (1.25, 1.75),
            3,
            "Cannot tell whether A (x) or B (y) is faster (fewer than 4 independent sequences)",
        ),
    ],
)
def test_who_is_faster_is_told_where_the_interval_and_the_sequences_say_so(
    interval: tuple[float, float], sequences: int, who: str
) -> None:
    told = answer(found(Paired(1.5, interval, None, sequences)))
    over = f"paired 95 % over {sequences} sequences of this trace"
    ends = f"{interval[0]:.2f}, {interval[1]:.2f}"
    assert told == f"{who}. B's time over A's, {over}: all steps 1.50x [{ends}]."


def test_sequences_that_share_steps_are_told_as_batches() -> None:
    """Sixteen sequences in four batches are no four sequences of the trace."""
    four, one = Paired(1.5, (1.25, 1.75), None, 4), Paired(1.5, None, None, 1)
    assert "over 4 batches of 16 sequences of this trace: " in answer(found(four, sequences=16))
    assert "over 1 batch of 4 sequences of this trace: " in answer(found(one, sequences=4))
    assert "over 4 sequences of this trace: " in answer(found(four, sequences=4))


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"compute": (S, S)}, ""),
        (
            {"compute": (5 * S, 3 * S), "no_slot": (0, S), "host": (2 * S, 2 * S)},
            " A's run is +1.000 s against B's, of which computing +2.000 s.",
        ),
        (
            {"compute": (5 * S, 3 * S), "no_slot": (0, 4 * S), "host": (0, S)},
            " A's run is -3.000 s against B's, of which waiting for a slot -4.000 s.",
        ),
        (
            {"compute": (5 * S, 6 * S), "no_slot": (4 * S, 3 * S)},
            " A's run is +0.000 s against B's, of which waiting for a slot +1.000 s.",
        ),
        (
            {"compute": (5 * S, 5 * S), "demand": (S, 3 * S), "no_request": (9 * S, 4 * S)},
            " A's steps are -2.000 s against B's, of which waiting for demand -2.000 s.",
        ),
        ({"compute": (5 * S, 5 * S), "no_request": (9 * S, 4 * S)}, ""),
    ],
    ids=["no part differs", "longer", "shorter", "the same", "sooner done", "later requests"],
)
def test_the_part_that_differs_most_in_the_direction_of_the_whole_is_the_cause(
    parts: dict[str, tuple[int, int]], told: str
) -> None:
    """Where the whole is the same, it is what A has more of."""
    assert answer(found(parts=parts)) == (
        f"{HEAD}all steps 1.50x [1.25, 1.75], P(A faster) 0.500.{told}"
    )


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ((0, 0), ""),
        ((7, 7), ""),
        (
            (3 * 2**29, 2**28),
            " Beside their equal budgets A held up to 1.500 GiB in staging slots, B up to 0.250 GiB"
            " in staging slots.",
        ),
        (
            (0, 2**30),
            " Beside their equal budgets A held none, B up to 1.000 GiB in staging slots.",
        ),
    ],
)
def test_staging_slots_are_told_where_they_differ(held: tuple[int, int], told: str) -> None:
    assert answer(found(staging_bytes=held, served=("at fp16", "at fp16"))) == (
        f"{HEAD}all steps 1.50x [1.25, 1.75], P(A faster) 0.500.{told}"
    )


def test_every_ratio_is_told_and_then_how_both_serve_where_that_differs() -> None:
    more = {"decode": Paired(0.5, None, None, 1)}
    assert answer(found(ratios=more, served=("at fp16", "at int4"))) == (
        f"{HEAD}all steps 1.50x [1.25, 1.75], P(A faster) 0.500; decode 0.50x [no interval]. They"
        " are not of one quality: A serves at fp16; B at int4."
    )


def test_the_table_has_both_times_of_each_part_that_either_spent_and_their_sum() -> None:
    parts = {
        "compute": (2_500_000_000, 2_000_000_000),
        "demand": (0, 0),
        "no_slot": (0, 1_234_000_000),
        "host": (1_000_000, 0),
    }
    table = table_of(found(parts=parts, labels=(Labels(lossy="[lossy]"), Labels())))
    columns = [[str(column.header), *map(str, column.cells)] for column in table.columns]
    assert columns == [
        ["time of", "compute", "waiting: no slot", "waiting: host", "all"],
        ["A: x (s)", "2.500", "0.000", "0.001", "2.501"],
        ["B: y (s)", "2.000", "1.234", "0.000", "3.234"],
        ["A - B (s)", "+0.500", "-1.234", "+0.001", "-0.733"],
    ]
    assert [column.justify for column in table.columns] == ["left", "right", "right", "right"]
    assert [row.end_section for row in table.rows] == [False, False, True, False]
    assert (table.title, table.caption) == ("makespan", r"A: \[lossy]")


def test_every_part_of_a_stall_has_words() -> None:
    assert set(WAITS) == set(STALL_PARTS)
    told = answer(found(parts={"behind_demand": (3 * S, 1 * S)}))
    assert "of which waiting behind other demands +2.000 s" in told
