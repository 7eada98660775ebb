"""Every cell of a printed table is the number in the file that the command wrote beside it.

Tables without a file are compared with the summaries or objects that they were made from. All of
them are made by hand, of numbers that differ from each other in their first digits.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from helpers.drawn import kept
from helpers.printed import Heard, plain, rows_of, shows, told_of
from sim import calibrate, fit, models, screen, versus, whatif
from sim.answers.comparison import Comparison
from sim.answers.comparison_words import answer as compared_answer
from sim.answers.comparison_words import table_of as compared_table
from sim.answers.whatif import Answer, BreakEven, Row
from sim.bounds.bounds import METHODS
from sim.fitting.cache_weights import Fit
from sim.machine.model_config import model_from_config
from sim.results.labels import Labels
from sim.results.outputs import answer as run_answer
from sim.results.outputs import print_summary
from sim.results.paired import Paired
from sim.study.conduct import Conducted
from sim.study.conduct import answer as study_answer
from sim.study.search import Found, Search, SearchResult
from sim.study.search import told as search_told
from sim.values.units import GIB
from sim.versus import Alone, Group, Side, Versus

LOSSY = Labels(lossy="lossy (x)")
SEES = Labels(knows_future="knows the future (y)")
Column = Callable[[Mapping[str, Any]], str | Sequence[float | None]]


@dataclass(frozen=True)
class Told:
    """The rows that were printed, those they stand for, and by head what a cell must show."""

    printed: list[dict[str, str]]
    rows: Sequence[Mapping[str, Any]]
    columns: Mapping[str, Column]


# ---- what-if


POINTS = tuple(
    Row(value, name, speed, ends, waits, hits, faster, times, 0.0)
    for value, name, speed, ends, waits, hits, faster in (
        (0.2, "fetch", 2.86, (2.61, 3.14), 0.96, 0.512, 0.523),
        (0.2, "compute", 5.47, (5.02, 5.93), 0.71, None, None),
        (0.9, "fetch", 7.31, None, 0.83, 0.647, 1.24),
        (0.9, "compute", 5.89, (5.52, 6.23), 0.68, 0.331, None),
    )
    for times in [(0.91 * faster, 1.07 * faster) if faster else None]
)
EVEN = BreakEven("break-even", 0.47, 0.2, 0.9, 0.46, "fetching pays from 0.47 on")
WHAT_IF = Answer("link", "GB/s", POINTS, EVEN, 0.61, ("0.1: no room",), (("lru", LOSSY),), False)


def of_whatif(place: Path, patch: pytest.MonkeyPatch) -> Told:
    heard = Heard()
    kept(patch)
    patch.setattr(whatif, "Console", lambda: heard)
    text = whatif.sentence(WHAT_IF, "lru")
    whatif._write(place, WHAT_IF, text, "lru")
    whatif._print(WHAT_IF, "lru", text, place)
    content = json.loads((place / "answer.json").read_text(encoding="utf-8"))
    with (place / "table.csv").open(encoding="utf-8") as file:
        flat = list(csv.DictReader(file))
    assert [
        {
            key: str(tuple(of) if isinstance(of, list) else "" if of is None else of)
            for key, of in row.items()
        }
        for row in content["rows"]
    ] == flat
    assert heard.lines == [f"left out {WHAT_IF.refused[0]}", content["answer"], f"files: {place}"]
    assert content["labels"] == ["lossy (x)"]
    return Told(
        rows_of(heard.tables[0]),
        content["rows"],
        {
            "GB/s": lambda row: [row["value"]],
            "system": lambda row: row["series"],
            "tokens/s (95%)": lambda row: [row["tokens_per_s"], *(row["interval"] or ())],
            "waits": lambda row: [row["waiting"]],
            "hits": lambda row: "-" if row["hit_ratio"] is None else [row["hit_ratio"]],
            "times as fast": lambda row: [row["speedup"], *(row["speedup_interval"] or ())],
        },
    )


# ---- screen


AXIS = "hardware.links.pcie.peak_gb_per_s"


def of_screen(place: Path, patch: pytest.MonkeyPatch) -> Told:
    heard = Heard()
    frame = pl.DataFrame(
        [
            {
                AXIS: gb,
                **{name: 1.618 * at + 0.17 * gb for at, name in enumerate(screen.SHOWN)},
                "latency_s.mean": 77.7,
                "labels": LOSSY.row(),
            }
            for gb in (8, 31)
        ]
    ).with_columns(pl.lit(None, pl.Float64).alias("hit_ratio"))
    patch.setattr(screen, "screen", lambda cells: frame)
    patch.setattr(screen, "Console", lambda: heard)
    words = ["system=lru", f"{AXIS}=8,31", f"output_dir={place / 'out'}"]
    assert screen.main(words) == 0
    rows = json.loads((place / "out" / "table.json").read_text(encoding="utf-8"))
    assert pl.read_parquet(place / "out" / "table.parquet").equals(frame)
    flat = pl.read_csv(place / "out" / "table.csv").drop("labels").to_dicts()
    assert flat == [{key: of for key, of in row.items() if key != "labels"} for row in rows]
    assert heard.tables[0].title == "lru, 2 machines"
    assert heard.lines == ["lossy (x)", f"files: {place / 'out'}"]
    return Told(
        rows_of(heard.tables[0]),
        rows,
        {
            "pcie.peak_gb_per_s": lambda row: str(row[AXIS]),
            "tokens/s": lambda row: [row["decode_tokens_per_s"]],
            "TTFT (s)": lambda row: [row["ttft_s.mean"]],
            "TPOT (s)": lambda row: [row["tpot_s.mean"]],
            "makespan (s)": lambda row: [row["makespan_s"]],
            "hits": lambda row: "-",
        },
    )


# ---- versus


SIDES = (
    Side("oracle", 15.31, (13.7, 16.9), 0.871, Paired(1.53, (1.41, 1.67), 0.99, 8), SEES),
    Side("hobbit", 12.74, None, 0.633, Paired(1.27, (0.88, 1.36), 0.9, 8), LOSSY),
    Side("lru", 10.02, (9.13, 11.4), None, None, Labels()),
    Side("fifo", 7.18, (6.06, 8.29), 0.411, Paired(0.72, None, None, 1), Labels()),
)
MARKS = {"oracle": " (a bound)", "hobbit": " (lossy)"}
SHORT = {"oracle": "faster", "hobbit": "?", "lru": "", "fifo": "?"}


GROUP = Group("t [a]", SIDES)


def of_versus(place: Path, patch: pytest.MonkeyPatch) -> Told:
    heard = Heard()
    alone = Alone("fate", "seed=2", "it decodes nothing")
    versus.print_versus(Versus((GROUP,), (alone,)), "lru", heard)
    assert plain(heard.tables[0].title) == "t [a]"
    assert heard.lines[0] == versus.told_of(GROUP)
    assert heard.lines[1:3] == ["hobbit: lossy (x)", "oracle: knows the future (y)"]
    assert heard.lines[-1] == "Beside no lru: fate (seed=2): it decodes nothing."
    return Told(
        rows_of(heard.tables[0]),
        [{"side": side} for side in SIDES],
        {
            "system": lambda row: row["side"].system + MARKS.get(row["side"].system, ""),
            "tokens/s [95 %]": lambda row: [
                row["side"].tokens_per_s,
                *(row["side"].interval or ()),
            ],
            "hits": lambda row: [row["side"].hit_ratio],
            "as fast as lru": lambda row: str(row["side"].ahead or ""),
            "": lambda row: SHORT[row["side"].system],
        },
    )


# ---- compare


COMPARED = Comparison(
    ("x", "y"),
    {
        "compute": (1_234_000_000, 1_871_000_000),
        "host": (0, 0),
        "no_slot": (5_617_000_000, 4_902_000_000),
        "demand": (0, 313_000_000),
    },
    {
        "latency": Paired(1.07, (0.93, 1.16), 0.83, 8),
        "decode": Paired(1.21, (1.11, 1.32), 0.9994, 8),
    },
    (LOSSY, Labels()),
)


def of_compare(place: Path, patch: pytest.MonkeyPatch) -> Told:
    parts = {"compute": "compute", "no_slot": "waiting: no slot", "demand": "waiting: demand"}
    rows = [{"name": name, "times": COMPARED.parts[part]} for part, name in parts.items()] + [
        {"name": "all", "times": (6_851_000_000, 7_086_000_000)}
    ]
    table = compared_table(COMPARED)
    assert table.caption == "A: lossy (x)"
    return Told(
        rows_of(table),
        rows,
        {
            "time of": lambda row: row["name"],
            "A: x (s)": lambda row: [row["times"][0] / 1e9],
            "B: y (s)": lambda row: [row["times"][1] / 1e9],
            "A - B (s)": lambda row: [(row["times"][0] - row["times"][1]) / 1e9],
        },
    )


# ---- models


def of_models(place: Path, patch: pytest.MonkeyPatch) -> Told:
    """Three layers of four experts of 3 x 8192 x 16384 parameters."""
    config = {
        "model_type": "mixtral",
        "num_hidden_layers": 3,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "hidden_size": 8192,
        "intermediate_size": 16384,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 1000,
    }
    model = model_from_config(config, "big", "a test")
    expert = 3 * 8192 * 16384
    rest = model.total_params - 12 * expert
    table = models.sizes(model)
    assert table.title == "big: 3 sites x 4 experts, top-2"
    assert table.caption == (
        f"keys and values: {3 * 2 * 8 * 128 * 2} B a token; a token's use has the whole embedding,"
        " of which it reads a row"
    )

    def at(bits: float) -> Column:
        def column(row: Mapping[str, Any]) -> str:
            size = row["parameters"] * bits / 8
            whole = size >= GIB
            return f"{size / (GIB if whole else 2**20):.4g} {'GiB' if whole else 'MiB'}"

        return column

    return Told(
        rows_of(table),
        [
            {"of": "one expert", "parameters": expert},
            {"of": "all experts", "parameters": 12 * expert},
            {"of": "everything else", "parameters": rest},
            {"of": "in all", "parameters": 12 * expert + rest},
            {"of": "used by a token", "parameters": model.active_params},
        ],
        {
            "of the model": lambda row: row["of"],
            "parameters": lambda row: [row["parameters"]],
            "at fp16": at(16),
            "at int8": at(8),
            "at int4": at(4),
        },
    )


# ---- one run


SUMMARY: dict[str, Any] = {
    "system": "s",
    "hardware": "h",
    "model": "m",
    "trace": {"sequences": 7, "findings": ["odd"], "expert_bytes": {"note": "of a file"}},
    "labels": LOSSY.kinds(),
    "overrides": [],
    "budget": {
        "resident_share": 0.37,
        "device_bytes": 3,
        "allowed_bytes": 3,
        "slots": {"int4": 3},
    },
    "decode_tokens_per_s": 4.216,
    "ttft_s": {"mean": 1.317, "p95": 2.408},
    "tpot_s": {"mean": 0.2372, "p95": 0.3187},
    "hit_ratio": 0.6134,
    "calibration": {"ci95": {"decode_tokens_per_s": [2.817, 6.134]}},
    "ci95": {
        "decode_tokens_per_s": [3.871, 4.633],
        "ttft_s": [1.118, 1.527],
        "tpot_s": [0.2158, 0.2583],
        "hit_ratio": None,
    },
    "makespan_s": 31.42,
    "compute_busy_s": 8.315,
    "stall_s": {"demand": 9.247, "no_slot": 13.86, "host": 0.0},
    "slowed_s": {"cpu": 0.7193, "compute": 0.0},
    "link_utilisation": {"pcie": 0.5273, "nvme": 0.1719},
    "ram": {"hit_ratio": 0.7712},
    "bounds": {"lower_s": 19.13, "method": METHODS[0]},
    "gap": 0.6424,
    "load_s": 5.628,
    "storage_bytes": 41.37 * GIB,
    "quality_proxy": {"low_share": 0.27, "skip_share": 0.0134, "reroute_share": 0.0561},
    "prediction": {"prompts": None},
}


def of_run(place: Path, patch: pytest.MonkeyPatch) -> Told:
    heard = Heard()
    print_summary(SUMMARY, heard)
    assert heard.lines == ["WARNING: the trace: odd", "NOTE: of a file", run_answer(SUMMARY)]
    ci = SUMMARY["ci95"]
    rows: list[tuple[str, float, str, Any]] = [
        ("decode", SUMMARY["decode_tokens_per_s"], "tok/s", ci["decode_tokens_per_s"]),
        ("time to first token", SUMMARY["ttft_s"]["mean"], "s", ci["ttft_s"]),
        ("  p95 of requests", SUMMARY["ttft_s"]["p95"], "s", None),
        ("time per output token", SUMMARY["tpot_s"]["mean"], "s", ci["tpot_s"]),
        ("  p95 of requests", SUMMARY["tpot_s"]["p95"], "s", None),
        ("hit ratio (decode)", SUMMARY["hit_ratio"], "", None),
        ("makespan", SUMMARY["makespan_s"], "s", None),
        ("compute busy", SUMMARY["compute_busy_s"], "s", None),
        ("stall: demand", 9.247, "s", None),
        ("stall: no slot", 13.86, "s", None),
        ("slowed: cpu", 0.7193, "s", None),
        ("link pcie busy", 52.73, "%", None),
        ("link nvme busy", 17.19, "%", None),
        ("hit ratio (RAM)", 0.7712, "", None),
        ("proven lower bound", 19.13, "s", None),
        ("cold start", 5.628, "s", None),
        ("all experts", 41.37, "GiB", None),
    ]
    return Told(
        rows_of(heard.tables[0]),
        [dict(zip(("name", "value", "unit", "ends"), row, strict=True)) for row in rows],
        {
            "metric": lambda row: row["name"],
            "value": lambda row: f"{row['value']:.4g} {row['unit']}".rstrip(),
            "95 % interval": lambda row: row["ends"] or [],
        },
    )


TABLES: dict[str, Callable[[Path, pytest.MonkeyPatch], Told]] = {
    "whatif": of_whatif,
    "screen": of_screen,
    "versus": of_versus,
    "compare": of_compare,
    "models": of_models,
    "run": of_run,
}
"""The tables of ask, overviews, fronts, the demonstration and the time audit are read back where
their figures are."""


@pytest.mark.parametrize("name", TABLES)
def test_every_cell_is_the_number_in_the_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = TABLES[name](tmp_path, monkeypatch)
    assert len(told.printed) == len(told.rows)
    for printed, row in zip(told.printed, told.rows, strict=True):
        assert list(printed) == list(told.columns)
        for head, expected in told.columns.items():
            told_of(printed[head], expected(row))


# ---- sentences


def test_a_run_in_a_sentence() -> None:
    told = run_answer(SUMMARY)
    shows(
        told.replace("x as", " as").replace("int4", ""),
        0.37,
        4.216,
        0.95,
        7,
        3.871,
        4.633,
        2.817,
        6.134,
        (9.247 + 13.86) / 31.42,
        1.6424,
        0.27,
        0.0134,
        0.0561,
    )
    assert "bytes at int4 resident, s decodes" in told
    assert "of the time, mostly no slot; no cache" in told
    assert "; lossy (x): 27% of needs at low precision, 1.3% skipped, 5.6% served by" in told
    still = SUMMARY | {"decode_tokens_per_s": None, "stall_s": {"demand": 0.0}, "gap": None}
    still["ci95"] = dict.fromkeys(SUMMARY["ci95"])
    assert "s decodes nothing on h; it waits 0% of the time; lossy" in run_answer(still)


def test_a_comparison_in_a_sentence() -> None:
    told = compared_answer(replace(COMPARED, staging_bytes=(0, round(1.27 * GIB))))
    assert told == (
        "Cannot tell whether A (x) or B (y) is faster. B's time over A's, paired 95 % over 8"
        " sequences of this trace: latency 1.07x [0.93, 1.16], P(A faster) 0.830; decode 1.21x"
        " [1.11, 1.32], P(A faster) > 0.999. A's run is -0.235 s against B's, of which computing"
        " -0.637 s. Beside their equal budgets A held none, B up to 1.270 GiB in staging slots."
    )


def test_a_what_if_in_a_sentence() -> None:
    told = whatif.sentence(
        replace(WHAT_IF, target=replace(EVEN, told="8 tokens/s need 1.2")), "lru"
    )
    assert told == (
        "lru: fetching pays from 0.47 on; lru: 8 tokens/s need 1.2; the knee is at 0.61: up to"
        " there memory pays more than on average, after it less. [lossy (x)]"
    )
    bits = replace(WHAT_IF, question="bits", break_even=None, knee=None, labels=())
    assert whatif.sentence(bits, "lru") == (
        "lru: fetch decodes fastest in these bytes, 7.31 tokens/s."
    )


def test_a_search_tells_both_splits_of_everything_it_found() -> None:
    search = Search({"seed": [1]}, {"decode_tokens_per_s": "maximize", "hit_ratio": "maximize"}, 9)
    best = Found({"cache.k": 0.31416, "cache.n": 12}, (4.31, 0.521), (3.97, 0.487), SIDES[0].ahead)
    result = SearchResult(
        search, (best,), ((2.13, 0.377), (1.89, 0.341)), 9, 2, labels=(("a", LOSSY),)
    )
    assert search_told("x", result).splitlines()[:4] == [
        "x: 9 trials (2 refused), 2 objectives: decode_tokens_per_s, hit_ratio",
        "as it stands (fit / eval): decode_tokens_per_s 2.13 / 1.89  hit_ratio 0.377 / 0.341",
        "cache.k=0.3142 cache.n=12",
        "  decode_tokens_per_s 4.31 / 3.97  hit_ratio 0.521 / 0.487; on eval it decodes"
        " 1.53x [1.41, 1.67] as fast (faster)",
    ]
    assert "lossy (x)" in search_told("x", result)


def test_a_study_ends_with_its_counts() -> None:
    counts = Counter(done=11, refused=2, failed=3)
    assert study_answer("x", Conducted(counts, 16), Path("there")) == (
        "x: 16 cells, 11 done (2 refused, 3 failed: column error says why)."
        ' polars.read_parquet("there/cells/*.parquet") reads them.'
    )
    resumed = study_answer("x", Conducted(Counter(done=4), 1), Path("there"))
    assert resumed.startswith("x: 4 cells, 4 done; 1 ran now, 3 were recorded before. ")


def test_a_calibrated_cache_tells_its_best_points_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = tuple({"recency": at / 10, "use": 1 - at / 10} for at in range(7))
    costs = (0.4137, 0.4151, 0.4179, 0.4302, 0.4466, 0.4718, 0.5093)
    run: Any = _Named()
    monkeypatch.setattr(fit, "calibrate", lambda words, progress: (run, Fit(points, costs)))
    monkeypatch.setattr(fit, "labels_of", lambda *_: LOSSY)
    first, *table, label, best = fit.fit_cache([], nullcontext())
    assert first == (
        "3 fit sequences of t, 7 points; 2 cost at most 1 % more than the best, the worst costs"
        " 0.5093"
    )
    assert len(table) == fit.ROWS
    for line, point, cost in zip(table, points, costs, strict=False):
        assert (
            line
            == f"  {cost:.4f}  'cache.weights={{recency:{point['recency']:g},use:{point['use']:g}}}'"
        )
    assert (label, best) == ("lossy (x)", "'cache.weights={recency:0,use:1}'")


class _Named:
    """What the command asks of a run: its sequences and its trace's name."""

    class workload:
        sequences = (0, 1, 2)

        class trace:
            class header:
                name = "t"


@pytest.mark.parametrize("memory", [None, 0.6182])
def test_a_calibrated_link_tells_its_rate_its_overhead_and_its_errors(
    memory: float | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = calibrate.LinkFit(0.4327, 21_730_000.0, True, 0.0124, 0.0187)
    request = _Output(tmp_path / "new" / "mine.yaml")
    monkeypatch.setattr(calibrate, "parse", lambda _: request)
    monkeypatch.setattr(calibrate, "calibrate", lambda _: ("text", found, memory))
    assert calibrate.main([]) == 0
    assert request.output.read_text(encoding="utf-8") == "text"
    assert capsys.readouterr().out == (
        f"{request.output}: 21.73 GB/s after 432.7 us a load, median error 1.2%, held out 1.9%"
        f"{'; memory efficiency 0.618' if memory else ''}\n"
    )


@dataclass(frozen=True)
class _Output:
    output: Path
    trace: Path | None = None
    columns: tuple[str, ...] = ("io_ms",)
