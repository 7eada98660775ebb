"""Gains of published runs: which rows are compared, with which hits, and what is asked of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sim.reproduce import __main__ as command
from sim.reproduce import field_gains
from sim.reproduce.field import Published, Row, published
from sim.reproduce.field_gains import Gain, Line, as_told, asked_of, asked_table, gains, table


def row(
    name: str,
    measured: float,
    simulated: float,
    *,
    baseline: str = "",
    fitted_on: str = "",
    told: float | None = None,
    hits: float = 0.5,
    budget: str = "budget.resident_share=0.5",
) -> Row:
    words = ("system=lru", budget)
    one = Published(name, "https://x", "m", measured, told, words, fitted_on, baseline)
    return Row(one, simulated, hits, "g")


def same(of: Row) -> Row:
    return of


def test_a_gain_is_a_speed_over_that_of_the_baseline_on_both_sides() -> None:
    found = gains([row("a", 10, 40), row("b", 15, 50, baseline="a", told=0.4)], same)
    assert [(gain.run.name, gain.measured, gain.simulated) for gain in found] == [("b", 1.5, 1.25)]
    assert found[0].error == pytest.approx(1.25 / 1.5 - 1)
    assert found[0].hit_ratio == 0.5


def test_of_a_run_that_is_there_twice_the_fitted_one_is_compared_with_what_was_fitted() -> None:
    rows = [row("a", 10, 40), row("b", 15, 50, baseline="a")]
    own = row("b", 15, 18, baseline="a", fitted_on="a")
    (gain,) = gains([*rows, own], same)
    assert gain.simulated == 1.8, "the baseline is as measured where it is what was fitted on"
    alike = row("a", 10, 12, fitted_on="z")
    other = row("b", 15, 18, baseline="a", fitted_on="z")
    (gain,) = gains([*rows, alike, other], same)
    assert gain.simulated == 1.5, "else it has the same fitted figures"
    (gain,) = gains([*rows, row("b", 15, 18, baseline="a", fitted_on="z")], same)
    assert gain.simulated == 18 / 40, "else none"


def test_both_sides_are_compared_as_they_are_once_more() -> None:
    base, one = row("a", 10, 40, told=0.5), row("b", 15, 50, baseline="a", told=0.4)
    again = {base: row("a", 10, 20), one: row("b", 15, 60, hits=0.4)}
    (gain,) = gains([base, one], again.__getitem__)
    assert (gain.simulated, gain.hit_ratio) == (3, 0.4)


def test_a_baseline_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="run b has the baseline a, which is no run here"):
        gains([row("b", 15, 50, baseline="a")], same)


def test_a_run_whose_hits_are_told_and_its_slots_are_not_is_refused_before_any_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.csv"
    head = "id,source,machine,tokens_per_s,hit_ratio,baseline,fitted_on,drawn,words\n"
    file.write_text(head + "a,https://x,m,10,0.5,,,,system=lru\n")
    assert command.main([f"field={tmp_path}", f"runs={file}"]) == 2
    assert "run a tells hits of 0.5, so its words need one budget.resident_share=N" in (
        capsys.readouterr().err
    )


def gain(measured: float, simulated: float, told: float | None = None) -> Gain:
    return Gain(row("r", 1, 1, baseline="b", told=told).published, measured, simulated, 0.5)


def test_the_sign_of_every_difference_above_5_per_cent_is_asked_for() -> None:
    right = [gain(1.06, 1.01), gain(0.94, 0.5)]
    small = [gain(1.04, 0.9), gain(0.96, 1.2)]
    (line, *_) = asked_of([*right, *small])
    assert line == Line("2 differences above 5%: signs that are right", 1.0, 1.0, True)
    (line, *_) = asked_of([*right, *small, gain(1.06, 0.99), gain(0.5, 1.5)])
    assert line == Line("4 differences above 5%: signs that are right", 0.5, 1.0, False)


def test_the_median_error_of_gains_is_asked_for_with_and_without_hits() -> None:
    with_hits = [gain(1.0, 1.09, 0.5), gain(1.0, 0.95, 0.5), gain(1.0, 3.0, 0.5)]
    without = [gain(1.0, 1.1), gain(1.0, 0.75), gain(2.0, 1.0)]
    *_, first, second = asked_of([*with_hits, *without])
    assert first == Line("3 gains with hits told: median error", first.found, 0.1, True)
    assert first.found == pytest.approx(0.09)
    assert second == Line("3 gains without: median error", second.found, 0.2, False)
    assert second.found == pytest.approx(0.25)
    (alone,) = asked_of([gain(1.0, 1.1)])
    assert alone == Line("1 gains without: median error", alone.found, 0.2, True)


def simulator(monkeypatch: pytest.MonkeyPatch, least: float = 0.0) -> list[float]:
    """Hits are 0.8 times the budget, and a budget below ``least`` is refused; what was asked."""
    asked = list[float]()

    def rows(gates: Path, of: Sequence[Published]) -> Iterator[Row]:
        (one,) = of
        (share,) = (float(w.partition("=")[2]) for w in one.words if w.startswith("budget."))
        asked.append(share)
        if share < least:
            raise ValueError("one token needs more")
        if share > 1 and "budget.resident_share" in " ".join(one.words):
            raise ValueError("a share is 1 at most")
        yield Row(one, 100 * share, 0.8 * share, "g")

    monkeypatch.setattr(field_gains, "rows", rows)
    return asked


def test_a_run_has_so_many_slots_that_its_hits_are_those_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulator(monkeypatch)
    for told in (0.1, 0.64, 0.75):
        found = as_told(Path("g"), row("a", 10, 50, told=told, hits=0.4))
        assert found.hit_ratio == pytest.approx(told, abs=0.002)
        assert found.tokens_per_s == pytest.approx(100 * told / 0.8, rel=0.03)
        assert found.published.words[0] == "system=lru"
    half = row("a", 10, 50, told=0.75, hits=0.48, budget="budget.resident_share=0.6")
    assert as_told(Path("g"), half).hit_ratio == pytest.approx(0.75, abs=0.002)
    gib = row("a", 10, 50, told=0.64, hits=1.6, budget="budget.slots_gib=2")
    assert as_told(Path("g"), gib).hit_ratio == pytest.approx(0.64, abs=0.002)


def test_a_run_without_hits_or_with_those_told_is_not_simulated_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = simulator(monkeypatch)
    for one in (row("a", 10, 50), row("a", 10, 50, told=0.5), row("a", 10, 50, told=0.5015)):
        assert as_told(Path("g"), one) is one
    assert asked == []


def test_where_no_budget_has_the_hits_told_the_nearest_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = simulator(monkeypatch, least=0.5)
    one = row("a", 10, 50, told=0.3, hits=0.4)
    assert as_told(Path("g"), one) is one, "fewer slots are refused"
    assert len(asked) == field_gains.MOST_TRIES
    found = as_told(Path("g"), row("a", 10, 50, told=0.9, hits=0.4))
    assert found.hit_ratio == pytest.approx(0.8, abs=0.001), "all that a budget can hold"


def test_the_tables_have_both_sides_the_sign_and_the_verdict() -> None:
    made = table([gain(0.5, 0.75, 0.25), gain(1.01, 2.02)])
    cells = [list(column.cells) for column in made.columns]
    assert cells == [
        *(["r", "r"], ["b", "b"], ["0.50", "1.01"], ["0.75", "2.02"]),
        *(["+50.0 %", "+100.0 %"], ["right", ""], ["0.250", "-"], ["0.500", "0.500"]),
    ]
    assert list(table([gain(0.5, 1.5)]).columns[5].cells) == ["WRONG"]
    lines = asked_table([Line("a", 0.846, 1.0, False), Line("b", 0.066, 0.1, True)])
    assert [list(column.cells) for column in lines.columns] == [
        *(["a", "b"], ["84.6 %", "6.6 %"], ["100 %", "10 %"], ["MISSED", "holds"]),
    ]


def test_runs_of_a_file_are_judged_by_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.csv"
    head = "id,source,machine,tokens_per_s,hit_ratio,baseline,fitted_on,drawn,words\n"
    file.write_text(head + "a,https://x,m,10,,,,,s=1\nb,https://x,m,20,,a,,,s=2\n")
    speeds = {"a": 30.0, "b": 66.0}
    monkeypatch.setattr(
        command, "rows", lambda gates, of: [Row(one, speeds[one.name], 0.5, "g") for one in of]
    )
    monkeypatch.setattr(command, "check_gates", lambda gates, of: None)
    assert command.main([f"field={file.parent}", f"runs={file}"]) == 0
    told = capsys.readouterr().out
    assert "+10.0 %" in told
    assert "holds" in told
    assert "omlx" not in told, "figures of the project's own file are left out"
    speeds["b"] = 29.0
    assert command.main([f"field={file.parent}", f"runs={file}"]) == 1
    assert "MISSED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([f"runs={__file__}"], "say field=DIR, too"),
        (["field=docs", "runs=nowhere.csv"], "nowhere.csv"),
        (["field=docs", f"runs={__file__}", "paper=fate"], "paper= says nothing"),
    ],
)
def test_runs_without_gates_and_a_file_that_is_not_there_are_refused(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(words) == 2
    assert told in capsys.readouterr().err


def test_every_run_with_hits_told_has_one_budget() -> None:
    for one in published():
        if one.hit_ratio is not None:
            assert sum(word.startswith("budget.") for word in one.words) == 1
