"""Every figure of a report, read back: what is drawn is what summaries and tables say.

The tables are small and made by hand; what they mean is worked out in the tests.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure

from helpers.drawn import curves, is_all_inside, legend, named_bars, notes
from sim.reporting import figures
from sim.reporting.runs import ReportedRun

GIB = 2**30
MS = 1_000_000


@pytest.fixture
def axis() -> Any:
    return Figure().subplots()


def summary(speed: float | None, **others: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "decode_tokens_per_s": speed,
        "ci95": {"decode_tokens_per_s": None if speed is None else [0.8 * speed, 1.3 * speed]},
        "compute_busy_s": 2.1,
        "stall_s": {"demand": 1.7, "host": 0.0, "no_slot": 0.4},
        "prefetch": dict.fromkeys(figures.PREFETCH_ENDS, 0) | {"used": 31, "cancelled": 7},
        "makespan_s": 6.0,
        "budget": {
            "device_bytes": 3 * GIB,
            "initial_bytes": GIB,
            "slots": {"fp16": 2, "int4": 4},
            "slot_bytes": {"fp16": GIB // 2, "int4": GIB // 8},
        },
        "link_utilisation": {"pcie": 0.5, "nvme": 0.2},
        "contracts": {"staging_slots": 0},
        "quality_proxy": {"low_mass": 0.11, "skip_mass": 0.02},
        "labels": {},
        "overrides": [],
    }
    return found | others


def made(label: str, of: Mapping[str, Any], place: Path = Path("nowhere")) -> ReportedRun:
    return ReportedRun(label, place, of)


FAST = summary(5.3)
SLOW = summary(
    2.7,
    ci95={"decode_tokens_per_s": None},
    compute_busy_s=3.3,
    stall_s={"demand": 0.6, "host": 0.9, "no_slot": 0.0},
    prefetch=dict.fromkeys(figures.PREFETCH_ENDS, 0)
    | {"cancelled": 3, "late": 11, "unused_at_end": 2},
)
TWO = [made("fast", FAST), made("slow", SLOW)]


def test_a_bar_of_speed_is_a_runs_rate_with_its_interval(axis: Any) -> None:
    runs = [*TWO, made("still", summary(None))]
    figures.systems(axis, runs)
    (bars,) = named_bars(axis).values()
    assert bars == {"fast": (0, 5.3), "slow": (0, 2.7), "still": (0, 0)}
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in axis.lines]
    assert drawn == [([0.8 * 5.3, 1.3 * 5.3], [0, 0])]
    assert notes(axis) == [("5.3", (1.3 * 5.3, 0)), ("2.7", (2.7, 1)), ("0", (0, 2))]
    assert axis.yaxis_inverted()
    assert axis.get_xlim()[0] == 0
    assert is_all_inside(axis)
    assert axis.get_xlabel() == "decode (tokens/s), 95 % interval over the trace's sequences"


def test_a_bar_of_time_is_computing_and_then_each_part_of_waiting(axis: Any) -> None:
    figures.stalls(axis, TWO)
    near = pytest.approx
    assert named_bars(axis) == {
        "compute": {"fast": (0, 2.1), "slow": (0, 3.3)},
        "demand": {"fast": (2.1, near(3.8)), "slow": (3.3, near(3.9))},
        "host": {"fast": (near(3.8), near(3.8)), "slow": (near(3.9), near(4.8))},
        "no slot": {"fast": (near(3.8), near(4.2)), "slow": (near(4.8), near(4.8))},
    }
    assert legend(axis) == list(named_bars(axis))
    assert axis.get_xlabel() == "time of the whole run (s)"
    assert axis.get_xlim() == (0, near(1.03 * 4.8))
    assert axis.yaxis_inverted()


def test_a_part_that_no_run_waited_for_is_not_drawn_and_an_older_runs_missing_one_is_0(
    axis: Any,
) -> None:
    older = made("older", summary(1.0, stall_s={"demand": 0.5}))
    figures.stalls(axis, [TWO[0], older])
    bars = named_bars(axis)
    assert list(bars) == ["compute", "demand", "no slot"]
    assert bars["no slot"]["older"] == (pytest.approx(2.6), pytest.approx(2.6))


def test_a_bar_of_prefetches_is_their_number_by_what_became_of_them(axis: Any) -> None:
    figures.prefetches(axis, TWO)
    assert named_bars(axis) == {
        "cancelled (never started)": {"fast": (0, 7), "slow": (0, 3)},
        "used (started)": {"fast": (7, 38), "slow": (3, 3)},
        "late (started)": {"fast": (38, 38), "slow": (3, 14)},
        "unused at end (started)": {"fast": (38, 38), "slow": (14, 16)},
    }
    assert legend(axis) == list(named_bars(axis))
    assert axis.get_xlim() == (0, pytest.approx(1.03 * 38))
    assert axis.get_xlabel() == "prefetches queued, by what became of them"
    assert axis.yaxis_inverted()


@pytest.mark.parametrize(
    ("end", "started"),
    [
        *((end, "never started") for end in ("promoted", "cancelled", "dropped_no_slot")),
        *(
            (end, "started")
            for end in ("used", "late", "dropped", "evicted_unused", "unused_at_end")
        ),
    ],
)
def test_a_prefetch_that_was_never_started_is_told_from_one_that_was(
    end: str, started: str, axis: Any
) -> None:
    counts = dict.fromkeys(figures.PREFETCH_ENDS, 0) | {end: 5}
    figures.prefetches(axis, [made("a", summary(1.0, prefetch=counts))])
    assert legend(axis) == [f"{end.replace('_', ' ')} ({started})"]


def test_where_nothing_was_queued_the_axis_still_has_a_length(axis: Any) -> None:
    none = made("a", summary(1.0, prefetch=dict.fromkeys(figures.PREFETCH_ENDS, 0)))
    figures.prefetches(axis, [none])
    assert axis.get_xlim() == (0, pytest.approx(1.03))
    assert legend(axis) == []


# ---- from tables


STEPS = (
    # sequence, phase, step, start and end in ms
    (0, "prefill", 0, 0, 40),
    (0, "decode", 1, 40, 47),
    (0, "decode", 2, 47, 58),
    (1, "prefill", 3, 58, 90),
    (1, "decode", 4, 90, 93),
    (1, "decode", 5, 93, 106),
    (1, "decode", 6, 106, 111),
)
LOOKUPS = (
    # step, site, outcome, skips
    (0, 0, "hit", "never"),
    (1, 0, "hit", "never"),
    (1, 0, "miss", "never"),
    (1, 1, "high_for_low", "if_absent"),
    (2, 0, "late", "never"),
    (2, 1, "miss", "never"),
    (4, 0, "hit", "never"),
    (4, 0, "skip", "always"),
    (4, 1, "hit", "never"),
    (5, 0, "miss", "never"),
    (6, 1, "hit", "never"),
)
TRANSFERS = (
    # number, class, link, start and end in s (None: cut by the end), key, victim, outcome
    (0, "demand", "pcie", 0.5, 1.5, 0, 1, None),
    (1, "prefetch", "pcie", 2.0, 2.5, 4, 2, "used"),
    (2, "prefetch", "nvme", 2.0, 4.0, 5, None, "used"),
    (3, "dense", "pcie", 3.0, 3.25, 3, None, None),
    (4, "prefetch", "pcie", 3.5, 4.0, 6, None, "dropped"),
    (5, "demand", "pcie", 5.0, None, 1, 0, None),
)
"""One site of three experts: keys 0 to 2 at FP16 of 0.5 GiB, its dense block 3, and keys 4 to 6 at
INT4 of 0.125 GiB.
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("by_hand")
    names = ("sequence", "phase", "step", "start_ns", "end_ns")
    tokens = pl.DataFrame([dict(zip(names, row, strict=True)) for row in STEPS])
    tokens.with_columns(pl.col("start_ns", "end_ns") * MS).write_parquet(place / "tokens.parquet")
    phase = {step: of for _, of, step, _, _ in STEPS}
    pl.DataFrame(
        [
            {
                "step": step,
                "site": site,
                "outcome": outcome,
                "skips": skips,
                "phase": phase[step],
                "tick": 2 * step + site,
                "gate_ns": step * 10**9 + 1,
            }
            for step, site, outcome, skips in LOOKUPS
        ]
    ).write_parquet(place / "lookups.parquet")
    heads = ("number", "class", "link", "start_ns", "end_ns", "key", "victim", "outcome")
    rows = [dict(zip(heads, row, strict=True)) for row in TRANSFERS]
    for row in rows:
        row["start_ns"] = int(row["start_ns"] * 1e9)
        row["end_ns"] = None if row["end_ns"] is None else int(row["end_ns"] * 1e9)
    pl.DataFrame(rows).with_columns(hop=0).write_parquet(place / "transfers.parquet")
    pl.DataFrame(
        {"kind": ["issue", "evict", "lookup"], "tick": [2, 5, 5], "key": [0, 5, 1]}
    ).write_parquet(place / "decisions.parquet")
    (place / "config.yaml").write_text("model: {sites: 1, experts: 3}\n", encoding="utf-8")
    return place


def test_a_share_of_tokens_is_of_those_that_were_done_by_then(axis: Any, folder: Path) -> None:
    figures.latency_cdf(axis, [TWO[1], made("a", FAST, folder)])
    assert curves(axis) == {"a": ([3, 5, 7, 11, 13], [0.2, 0.4, 0.6, 0.8, 1.0])}
    assert axis.get_xlabel() == "time per decoded token (ms)"
    assert axis.get_ylabel() == "share of tokens"
    assert axis.get_ylim() == (0, 1)
    assert legend(axis) == ["a"]


def test_a_histogram_has_every_decoded_token_once(axis: Any, folder: Path) -> None:
    figures.latency(axis, [made("a", FAST, folder)])
    (outline,) = axis.patches
    corners = outline.get_xy()
    edges = sorted({x for x, _ in corners})
    tops = [_height(corners, left, right) for left, right in pairwise(edges)]
    times = [3, 5, 7, 11, 13]
    assert tops == np.histogram(times, edges)[0].tolist()
    assert sum(tops) == 5
    assert (edges[0], edges[-1]) == (3, 13)
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("time per decoded token (ms)", "tokens")
    assert legend(axis) == ["a"]


def _height(corners: Any, left: float, right: float) -> float:
    """The height of the outline between two edges."""
    return float(
        next(a[1] for a, b in pairwise(corners) if a[1] == b[1] and {a[0], b[0]} == {left, right})
    )


def test_a_hit_ratio_counts_decoded_needs_that_were_asked_for(axis: Any, folder: Path) -> None:
    figures.hits_by_site(axis, [TWO[1], made("a", FAST, folder)])
    assert curves(axis) == {"a": ([0, 1], [2 / 5, 3 / 4])}
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("layer (MoE site)", "hit ratio, decode")
    assert axis.get_ylim() == (0, 1)
    assert legend(axis) == ["a"]


def test_a_hit_ratio_by_token_counts_the_tokens_of_each_sequence(axis: Any, folder: Path) -> None:
    """The first decoded tokens have 4 hits of 5 needs, the second none of 3, the third its one."""
    figures.hits_by_token(axis, [made("a", FAST, folder)])
    assert curves(axis) == {"a": ([1, 2, 3], [4 / 5, 0, 1])}
    assert axis.get_xlabel() == "decoded token of its sequence"
    assert axis.get_ylabel() == "hit ratio, decode"
    assert axis.get_ylim() == (0, 1)
    assert legend(axis) == ["a"]


def test_a_step_of_several_tokens_stands_at_the_first_of_them(
    axis: Any, folder: Path, tmp_path: Path
) -> None:
    """Steps 1 and 5 give three tokens, so that steps 2 and 6 give the fourth ones or later."""
    tokens = pl.read_parquet(folder / "tokens.parquet")
    given = pl.when(pl.col("step").is_in([1, 5])).then(3).otherwise(1).cast(pl.Int64)
    tokens.with_columns(new_tokens=given).reverse().write_parquet(tmp_path / "tokens.parquet")
    shutil.copy(folder / "lookups.parquet", tmp_path)
    figures.hits_by_token(axis, [made("a", FAST, tmp_path)])
    assert curves(axis) == {"a": ([1, 2, 4, 5], [4 / 5, 0, 0, 1])}


def test_time_counts_from_the_first_request(
    axis: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes at 1 s: parts of 2 s begin at 1, 3 and 5 s of the tables."""
    monkeypatch.setattr(figures, "BINS", 3)
    shutil.copytree(folder, tmp_path / "late")
    pl.DataFrame({"sequence": [0, 1], "arrival_ns": [3 * 10**9, 10**9]}).write_parquet(
        tmp_path / "late" / "sequences.parquet"
    )
    told = {"staging_slots": 0, "arrivals": {"given_s": [3, 1]}}
    late = made("a", summary(1.0, contracts=told), tmp_path / "late")
    figures.link_use(axis, [late])
    x, pcie = curves(axis)["a: pcie"]
    assert list(x) == pytest.approx([1, 3, 5])
    assert list(pcie) == pytest.approx([1.0 / 2, 0.75 / 2, 0])
    axis.clear()
    figures.memory(axis, [late])
    x, held = curves(axis)["a"]
    assert list(x) == pytest.approx([1, 3, 5])
    first = (0.5 * 0.5 + 0.5 * 1.0 + 0.5 * 0.375 + 0.5 * 0.5) / 2
    assert list(held) == pytest.approx([first, 0.5, 0])
    closed = made("b", summary(1.0), tmp_path / "late")
    assert (late.begun_s, closed.begun_s) == (1.0, 0.0)


def test_a_link_is_busy_for_the_share_of_each_interval_that_it_serves(
    axis: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "BINS", 3)
    figures.link_use(axis, [TWO[1], made("a", FAST, folder)])
    found = curves(axis)
    assert list(found) == ["a: pcie", "a: nvme"] == legend(axis)
    for x, _ in found.values():
        assert list(x) == pytest.approx([1, 3, 5])
    assert list(found["a: pcie"][1]) == pytest.approx([0.5, 0.625, 0.0])
    assert list(found["a: nvme"][1]) == pytest.approx([0, 1, 0])
    assert axis.get_xlabel() == "time (s)"
    assert axis.get_ylabel() == "share of the time that the link serves"
    assert axis.get_ylim() == (0, 1.02)


def test_what_two_engines_serve_at_once_counts_once(
    axis: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "BINS", 3)
    transfers = pl.read_parquet(folder / "transfers.parquet")
    pl.concat([transfers, transfers]).write_parquet(tmp_path / "transfers.parquet")
    figures.link_use(axis, [made("a", FAST, tmp_path)])
    assert list(curves(axis)["a: nvme"][1]) == pytest.approx([0, 1, 0])
    assert list(curves(axis)["a: pcie"][1]) == pytest.approx([0.5, 0.625, 0])


def test_what_is_on_the_device_grows_by_arrivals_and_shrinks_by_victims(
    axis: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 1 GiB: key 1 leaves at 0.5 s and 0 comes at 1.5 s.

    Key 2 leaves at 2 s, 5 at the gate of tick 5, 0 at 5 s; 4 comes at 2.5 s. What was dropped, dense
    or on another link changes nothing.
    """
    run = made("a", FAST, folder)
    found = run.resident_gib()
    assert found is not None
    at, held = found
    assert list(at) == pytest.approx([0, 0.5, 1.5, 2.0, 2.000000001, 2.5, 5.0])
    assert list(held) == pytest.approx([1, 0.5, 1.0, 0.5, 0.375, 0.5, 0.0])
    monkeypatch.setattr(figures, "BINS", 2)
    staged = made("s", summary(1.0, contracts={"staging_slots": 2}), folder)
    small = summary(1.0, budget=FAST["budget"] | {"device_bytes": GIB})
    figures.memory(axis, [run, staged, made("none", small)])
    drawn = curves(axis)
    assert list(drawn) == ["a", "s: not told (staging)"] == legend(axis)
    first = (0.5 * 1 + 1.0 * 0.5 + 0.5 * 1 + 0.5 * 0.375 + 0.5 * 0.5) / 3
    assert list(drawn["a"][0]) == pytest.approx([1.5, 4.5])
    assert list(drawn["a"][1]) == pytest.approx([first, (2 * 0.5 + 0) / 3])
    assert axis.get_ylim() == (0, pytest.approx(1.08 * 3))
    assert axis.get_xlabel() == "time (s)"
    assert axis.get_ylabel() == "experts in the device's slots (GiB), mean"
    axis.clear()
    narrow = summary(1.0, budget=FAST["budget"] | {"device_bytes": GIB // 4})
    figures.memory(axis, [made("a", narrow, folder)])
    assert axis.get_ylim() == (0, pytest.approx(1.08 * first)), "more than its slots' plan"
    assert is_all_inside(axis)


def test_a_point_of_speed_and_loss_is_a_run_and_has_its_name(axis: Any) -> None:
    lost = {"low_mass": None, "skip_mass": 0.1, "reroute_mass": 0.2}
    other = made("other", summary(4.4, quality_proxy=lost))
    bound = made("seer", summary(9.1, labels={"knows_future": "knows the future (x)"}))
    low = made("int4", summary(7.0, budget={"slots": {"int4": 8}}))
    runs = [TWO[0], other, bound, low, made("still", summary(None))]
    figures.pareto(axis, runs)
    full, four = (
        [tuple(map(float, one)) for one in marks.get_offsets()] for marks in axis.collections
    )
    near = pytest.approx
    assert full == [near(one) for one in ((0.13, 5.3), (0.3, 4.4), (0.13, 9.1), (0.13, 0))]
    assert four == [near((0.13, 7.0))]
    assert legend(axis) == ["fp16 at best", "int4 at best"]
    names = {text: near(point) for text, point in notes(axis)}
    assert names == {
        "fast": (0.13, 5.3),
        "other": (0.3, 4.4),
        "seer (a bound, no system)": (0.13, 9.1),
        "int4": (0.13, 7.0),
        "still": (0.13, 0),
    }
    assert axis.get_ylabel() == "decode (tokens/s)"
    assert axis.get_ylim() == (0, near(1.12 * 9.1))
    assert axis.get_xlabel().startswith("share of gate weight served below")
    assert is_all_inside(axis)


def test_lookups_of_an_earlier_version_are_refused(axis: Any, folder: Path, tmp_path: Path) -> None:
    lookups = pl.read_parquet(folder / "lookups.parquet")
    lookups.drop("skips").write_parquet(tmp_path / "lookups.parquet")
    with pytest.raises(
        ValueError,
        match=f"^{tmp_path}/lookups.parquet has no column skips: an earlier version wrote it; run again",
    ):
        figures.hits_by_site(axis, [made("old", FAST, tmp_path)])


@pytest.mark.parametrize(
    ("times", "edges"),
    [
        # Twice the middle half's 3.5 over the cube root of eight.
        ([range(8)], [0, 3.5, 7]),
        # The second run's bins of 35 are wide enough for both.
        ([range(8), [0, 70]], [0, 35, 70]),
        # 260 bins of 3.8 would be more than there may be.
        ([[*range(8), 1000]], np.linspace(0, 1000, figures.BINS + 1)),
        # All the same: one bin, which has a width.
        ([[5, 5]], [5, 5 + 1 / figures.BINS]),
    ],
)
def test_bins_are_as_wide_as_the_widest_run_needs_and_no_more_than_there_may_be(
    times: list[Any], edges: list[float]
) -> None:
    found = figures.token_bins([np.array(one, float) for one in times])
    assert found.tolist() == pytest.approx(list(edges))


def test_every_question_has_its_figure_and_the_table_that_it_reads() -> None:
    assert {name: (draw.__name__, table) for name, (_, draw, table) in figures.FIGURES.items()} == {
        **{name: (name, None) for name in ("systems", "stalls", "prefetches", "pareto")},
        **{name: (name, "tokens") for name in ("latency", "latency_cdf")},
        **{name: (name, "lookups") for name in ("hits_by_site", "hits_by_token")},
        "link_use": ("link_use", "transfers"),
        "memory": ("memory", "decisions"),
    }
