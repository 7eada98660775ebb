"""A log read into bytes and ms, and the constants fitted to a few rows, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sim.answers.engine_log import LinkFit, fit_link, read_log

KINDS = {
    "bytes": ("bytes", 7),
    "mb": ("bytes", 7_000_000),
    "mib": ("bytes", 7 * 1_048_576),
    "loads": ("loads", 7),
    "io_us": ("io", 0.007),
    "io_ms": ("io", 7),
    "io_s": ("io", 7_000),
    "compute_us": ("compute", 0.007),
    "compute_ms": ("compute", 7),
    "compute_s": ("compute", 7_000),
    "load_ms": ("load", 7),
    "stall_ms": ("stall", 7),
    "wall_ms": ("wall", 7),
}


def log_of(folder: Path, *lines: str) -> Path:
    file = folder / "log.csv"
    file.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return file


@pytest.mark.parametrize("kind", KINDS)
def test_seven_of_each_kind_are_so_many_bytes_loads_or_ms(kind: str, tmp_path: Path) -> None:
    quantity, seven = KINDS[kind]
    log = log_of(tmp_path, "# a note", "a,t", *["7,1"] * 8, "# another", *["0,2"] * 8)
    columns = {kind: "a"} | ({} if quantity == "io" else {"io_ms": "t"})
    expected = {quantity: [seven] * 8 + [0] * 8}
    expected = {"io": [1] * 8 + [2] * 8, "loads": [0] * 16} | expected
    found = {name: values.tolist() for name, values in read_log(log, columns).items()}
    assert found == {name: pytest.approx(values) for name, values in expected.items()}


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "log.csv has no column t, n; it has "),
        (["t,other", "1,2"], "log.csv has no column n; it has t, other"),
        (["t,n", "1,2", "3,-1"], "log.csv row 2, column n: '-1' must be a number from 0"),
        (["t,n", "1,2", "3"], "log.csv row 2, column n: None must be a number from 0"),
        (["t,n", *["1,2"] * 15], "log.csv has 15 rows; at least 16 tell a fit from chance"),
        (
            ["# note", "t,n", "1,2", f"1,{'9' * 200_000}"],
            "log.csv line 4 is no csv: field larger than field limit (131072)",
        ),
    ],
)
def test_what_is_no_log_is_refused_with_its_place(
    lines: list[str], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"log\.csv") as refused:
        read_log(log_of(tmp_path, *lines), {"io_ms": "t", "loads": "n"})
    assert str(refused.value) == says


def test_a_log_may_have_256_mib(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"at most 256 MiB$"):
        read_log(tmp_path, {"io_ms": "t"})


def rows_of(*kinds: tuple[int, float, float, float]) -> dict[str, np.ndarray]:
    """Rows (how many, loads, bytes, ms)."""
    rows = [row for count, *row in kinds for _ in range(count)]
    loads, moved, io = np.array(rows, np.float64).T
    return {"loads": loads, "bytes": moved, "io": io}


def test_both_constants_are_found_where_sizes_differ_and_errors_on_the_other_rows() -> None:
    """0.5 ms a load and 1 ms a MB, fitted on 8 rows; the others took 2 ms for what would be 1.5,
    3 for 4.5 and 6 for 4.5: off by 1/4, 1/2 and 1/4. Rows that moved nothing, or took no time, do
    not count in either.
    """
    exact = rows_of((4, 1, 1e6, 1.5), (4, 1, 2e6, 2.5), (1, 0, 0, 9), (1, 3, 5e6, 0))
    others = rows_of((1, 1, 1e6, 2), (1, 3, 3e6, 3), (1, 3, 3e6, 6), (2, 1, 0, 9), (2, 1, 9e6, 0))
    values = {name: np.concatenate([exact[name], others[name]]) for name in exact}
    fit = fit_link(values, 10, 7.0)
    assert (fit.overhead_ms, fit.bytes_per_ms) == pytest.approx((0.5, 1e6))
    assert fit.told_apart
    assert fit.error == pytest.approx(0, abs=1e-12)
    assert fit.held_out_error == pytest.approx(1 / 4)


def test_an_overhead_below_zero_is_the_base_machines_and_bytes_take_the_rest() -> None:
    """1 MB in 0.5 ms and 2 MB in 1.5 ms would be 1 ms a MB after -0.5 ms. Without any overhead the
    least squares of relative errors are (2 + 4/3) / (2² + (4/3)²) = 15/26 ms a MB: 2/13 too long
    for the former and 3/13 too short for the latter, 5/26 in the median.
    """
    values = rows_of((4, 1, 1e6, 0.5), (4, 1, 2e6, 1.5), (1, 1, 1e6, 0.5))
    fit = fit_link(values, 8, 0.0)
    assert (fit.told_apart, fit.overhead_ms) == (False, 0.0)
    assert fit.bytes_per_ms == pytest.approx(26 / 15 * 1e6)
    assert fit.error == pytest.approx(5 / 26)
    assert fit.held_out_error == pytest.approx(2 / 13)


@pytest.mark.parametrize(
    ("sizes", "loads", "told_apart"),
    [
        ((1e6, 1.0009e6), 1, False),
        ((1e6, 1.0011e6), 1, True),
        ((1e6, 2e6), 0, False),
    ],
)
def test_sizes_that_differ_by_a_thousandth_tell_loads_from_bytes(
    sizes: tuple[float, float], loads: int, told_apart: bool
) -> None:
    """The base machine's overhead is that of loads; without any the rate has it."""
    values = rows_of(*((4, loads, moved, 0.5 + moved / 1e6) for moved in sizes))
    fit = fit_link(values, 8, 0.25)
    base = 0.25 if loads else 0.0
    assert (fit.told_apart, fit.overhead_ms) == (
        told_apart,
        pytest.approx(0.5 if told_apart else base),
    )


def test_loads_of_one_size_are_so_however_many_a_row_has() -> None:
    """1 ms a load and 1 ms a MB, in rows of one load and of three."""
    fit = fit_link(rows_of((4, 1, 1e6, 2.0), (4, 3, 3e6, 6.0)), 8, 0.5)
    assert (fit.told_apart, fit.overhead_ms) == (False, 0.5)
    assert fit.bytes_per_ms == pytest.approx(1e6 / 1.5)


def test_loads_may_be_averages_below_one() -> None:
    """A quarter, a half and one load of 1 MB: of one size, as whole loads of it are."""
    fit = fit_link(
        rows_of((4, 0.25, 250_000, 0.5), (4, 0.5, 500_000, 1.0), (4, 1, 1e6, 2.0)), 12, 0.5
    )
    assert (fit.told_apart, fit.overhead_ms) == (False, 0.5)
    assert fit.bytes_per_ms == pytest.approx(1e6 / 1.5)


def test_a_row_without_loads_tells_bytes_alone_and_spoils_no_fit() -> None:
    """0.5 ms a load and 1 ms a MB."""
    fit = fit_link(rows_of((4, 1, 1e6, 1.5), (4, 1, 2e6, 2.5), (1, 0, 1e6, 1.0)), 9, 7.0)
    assert (fit.told_apart, fit.overhead_ms) == (True, pytest.approx(0.5))
    assert fit.bytes_per_ms == pytest.approx(1e6)


@pytest.mark.parametrize(("spread", "told"), [(0.05, 0), (1.0, 200)])
def test_times_too_noisy_for_how_sizes_differ_tell_no_cost_of_a_load(
    spread: float, told: int
) -> None:
    """0.1 ms a load and 25 GB/s with 3 % of noise. Loads of 8.0 to 8.4 MB gave anything from 20 to
    280 GB/s, those of 8 to 16 MB give 25 within 10 %.
    """
    found = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        loads = rng.integers(1, 9, 32).astype(float)
        moved = loads * 8e6 * (1 + spread * rng.random(32))
        io = (loads * 0.1 + moved / 25e6) * (1 + 0.03 * rng.standard_normal(32))
        fit = fit_link({"loads": loads, "bytes": moved, "io": io}, 32, 0.006)
        found += fit.told_apart
        if fit.told_apart:
            assert fit.bytes_per_ms == pytest.approx(25e6, rel=0.1)
    assert found == told


def test_without_other_rows_nothing_is_held_out() -> None:
    fit = fit_link(rows_of((8, 2, 1e6, 3.0)), 8, 1.0)
    assert (fit.overhead_ms, fit.bytes_per_ms) == (1.0, pytest.approx(1e6))
    assert np.isnan(fit.held_out_error)


def test_fewer_than_eight_rows_that_moved_something_are_too_few() -> None:
    values = rows_of((7, 1, 1e6, 1.5), (1, 1, 0, 9), (1, 1, 1e6, 0), (9, 1, 1e6, 1.5))
    with pytest.raises(ValueError, match="only 7") as refused:
        fit_link(values, 9, 0.0)
    assert str(refused.value) == (
        "of the 9 rows to fit only 7 moved something in some time; give more rows"
    )
    assert fit_link(values, 10, 0.5).bytes_per_ms == pytest.approx(1e6)


@pytest.mark.parametrize("took_ms", [1.5 / 50, 1e-3, 1e-9])
def test_a_row_of_next_to_no_time_spoils_no_fit(took_ms: float) -> None:
    """A row of 1 us that moved a MB drew the fit of 16 others to itself, or had the log refused."""
    exact = rows_of((8, 1, 1e6, 1.5), (8, 1, 2e6, 2.5))
    for at, of in ((16, 17), (0, 16)):
        values = {name: np.insert(exact[name], at, exact[name][0]) for name in exact}
        values["io"][at] = took_ms
        fit = fit_link(values, of, 0.0)
        assert (fit.overhead_ms, fit.bytes_per_ms) == pytest.approx((0.5, 1e6))
        assert fit.error == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("overhead", "told"), [(2.0, "0 ms a byte at 2"), (3.0, "-1e-06 ms a byte at 3")]
)
def test_a_link_whose_loads_take_all_the_time_is_none(overhead: float, told: str) -> None:
    with pytest.raises(ValueError, match="more bytes") as refused:
        fit_link(rows_of((8, 1, 1e6, 2.0)), 8, overhead)
    assert str(refused.value) == (
        f"more bytes do not take longer in this log ({told} ms a load): its io column is no time of"
        " the link; give the time in which the link was busy"
    )


def test_a_fit_tells_its_errors() -> None:
    fit = LinkFit(0.5, 1e6, told_apart=True, error=0.0125, held_out_error=0.2)
    assert fit.errors == "median error 1.2%, held out 20.0%"
