"""``sim.screen`` says of every machine what ``sim`` says of it, to the last digit.

It refuses what it cannot screen.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from helpers.printed import Heard
from sim import screen as command
from sim.results.labels import Labels
from sim.screen import _require_constant_links, main, read_words, screen
from sim.screening.moves import ScreenError
from sim.setup.build import build
from sim.setup.execute import execute

SMALL = ("trace.max_sequences=2",)


def test_screening_shows_how_many_machines_are_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sim.process.progress.LINE_EVERY_S", 0.0)
    screen(read_words((*SMALL, "system=lru", "hardware.links.pcie.peak_gb_per_s=8,31.5")))
    told = capsys.readouterr().err.splitlines()
    for what in ("making machines", "machines"):
        assert [line for line in told if line.startswith(f"{what}: 2 of 2 after ")], told


@pytest.mark.alike
@pytest.mark.parametrize(
    "words",
    [
        ("system=lru", "hardware.links.pcie.peak_gb_per_s=8,31.5"),
        (
            "system=hobbit",
            "predictor=none",
            "loader.wait=as_ready",
            "hardware.compute.memory_gb_per_s=300,1008",
        ),
        ("system=lru", "workload=static_4", "loader.write_back=true", "hardware.host.sync_us=0,7"),
    ],
    ids=["lru", "mixed precision", "batches and host time"],
)
def test_a_screened_machine_has_the_times_of_its_run(words: tuple[str, ...]) -> None:
    cells = read_words((*SMALL, *words))
    for row, cell in zip(screen(cells).to_dicts(), cells, strict=True):
        summary = execute(build(cell.config, cell.system)).summary
        for name in ("makespan_s", "prefill_tokens_per_s", "decode_tokens_per_s", "hit_ratio"):
            assert row[name] == summary[name], name
        for name in ("ttft_s", "tpot_s", "itl_s", "latency_s"):
            assert {part: row[f"{name}.{part}"] for part in summary[name]} == summary[name], name


@pytest.mark.alike
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("system=hobbit",),
            r"predictor: .* set predictor=none or loader\.prefetch_budget=0; moelab run runs it",
        ),
        (
            ("system=lru", "hardware=rtx4090_nvme"),
            r"hardware\.links: a route of several links is not screened",
        ),
        (
            ("system=lru", "hardware.links.pcie.engines=2"),
            r"engines that share a link are not screened; set engines=1",
        ),
        (
            ("system=lru", "loader.wait=by_projection"),
            r"loader\.wait=by_projection is not screened",
        ),
        (
            ("system=lru", "+hardware.links.pcie.wake_us=2.0", "+hardware.host.load_us=1.0"),
            r"wake_us=2\.0, hardware\.host\.load_us=1 is not screened",
        ),
        (
            ("system=lru", "placement=absent_on_cpu"),
            r"placement: the CPU's results .* set placement=load",
        ),
        (("system=lru", "loader.chunk_bytes=1048576"), r"loader\.chunk_bytes: .*set it to null"),
        (("system=lru", "loader.replay_unit=access"), r"set replay_unit=union"),
        (
            ("system=lru", "budget.resident_share=0.03"),
            r"served in waves; raise budget\.resident_share",
        ),
        (
            ("system=lru", "workload=continuous_4", "workload.arrivals_s=[0,0]"),
            r"set .* and workload\.arrivals_s=null",
        ),
        (
            ("system=lru", "workload=continuous_4", "workload.arrivals_per_s=1"),
            r"arrivals: .*; set workload",
        ),
        (
            ("system=lru", "budget=fit", "hardware.memory_gib=12,16"),
            r"hardware\.memory_gib=16: not the same slots on every machine; screen them apart$",
        ),
    ],
)
def test_what_depends_on_time_is_refused_by_its_switch(
    words: tuple[str, ...], message: str
) -> None:
    cells = read_words((*SMALL, *words))
    with pytest.raises(ScreenError, match=message):
        screen(cells)


def test_only_the_machine_may_vary() -> None:
    with pytest.raises(
        ValueError, match=r"cache=lru,lfu: only the machine may vary .* moelab study"
    ):
        read_words(("cache=lru,lfu",))


@pytest.mark.parametrize("word", ["hardware=glob(rtx*)", "hardware.memory_gib=interval(8,12)"])
def test_machines_that_are_not_listed_are_refused_in_one_line(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main((*SMALL, word)) == 2
    assert capsys.readouterr().err == f"error: {word}: give each machine's value, with commas\n"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, ""),
        (
            {"devices": "layers"},
            "words: hardware.devices is not screened; moelab run runs it, or set"
            " hardware.devices=null",
        ),
        (
            {"page_cache": "os"},
            "words: hardware.links.nvme.page_cache is not screened; moelab run runs it",
        ),
        (
            {"lanes": ("host.load_us=1",), "wait": "by_projection"},
            "words: hardware.host.load_us=1, loader.wait=by_projection is not screened; moelab run"
            " runs it",
        ),
        (
            {"swap": "pages"},
            "words: hardware.swap is not screened; moelab run runs it",
        ),
        (
            {"contention": "drawn"},
            "words: parties that others at work slow (hardware.beside,"
            " hardware.shared_memory.slows=as_drawn) are not screened; moelab run runs them",
        ),
    ],
)
def test_a_link_whose_time_depends_on_more_than_bytes_is_refused(
    more: dict[str, Any], told: str
) -> None:
    links = [
        SimpleNamespace(name="pcie", page_cache=None),
        SimpleNamespace(name="nvme", page_cache=more.get("page_cache")),
    ]
    hardware = SimpleNamespace(
        devices=more.get("devices"),
        links=links,
        lanes=more.get("lanes", ()),
        swap=more.get("swap"),
    )
    run: Any = SimpleNamespace(
        hardware=hardware,
        controller=SimpleNamespace(loader=SimpleNamespace(wait=more.get("wait", "all"))),
        durations=SimpleNamespace(contention=more.get("contention")),
    )
    if not told:
        _require_constant_links(run, "words")
        return
    with pytest.raises(ScreenError) as refused:
        _require_constant_links(run, "words")
    assert str(refused.value) == told


def test_a_word_that_hydra_cannot_read_is_refused_with_its_first_line() -> None:
    with pytest.raises(ValueError, match=r"^'system=\[a' is no override: .+") as refused:
        read_words(("system=[a",))
    assert "\n" not in str(refused.value)


def test_the_table_goes_to_a_file_and_bad_words_to_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "[machines]"
    words = (*SMALL, "system=lru", "hardware.links.pcie.peak_gb_per_s=8,16", f"output_dir={place}")
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "…" not in told
    assert f"files: {place}\n" in told
    assert "pcie.peak_gb_per_s" in told
    key = "hardware.links.pcie.peak_gb_per_s"
    assert pl.read_parquet(place / "table.parquet", glob=False)[key].to_list() == [8, 16]
    assert pl.read_csv(place / "table.csv", glob=False)[key].to_list() == [8, 16]
    for row in json.loads((place / "table.json").read_text(encoding="utf-8")):
        labels = [label for label in row["labels"] if not label.startswith("with ")]
        assert labels
        assert all(label in told for label in labels)
    assert main(words) == 2, "what is there is not written over"
    assert main((*words, "overwrite=yes")) == 0
    capsys.readouterr()
    assert main(("sytem=lru",)) == 2
    assert capsys.readouterr().err.count("\n") == 1


FOUND = pl.DataFrame(
    {
        "hardware.links.pcie.peak_gb_per_s": [8, 16],
        "decode_tokens_per_s": [12.34567, None],
        "ttft_s.mean": [0.5, 0.25],
        "tpot_s.mean": [0.0123456, 2.0],
        "makespan_s": [3.0, 4.0],
        "hit_ratio": [None, 0.876543],
        "labels": [Labels(lossy="lossy [x]").row()] * 2,
    }
)


@pytest.mark.parametrize("machines", [1, 2])
def test_what_is_printed_is_a_row_for_each_machine_and_what_one_must_know(
    machines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    cells = [
        SimpleNamespace(
            axes={"hardware.links.pcie.peak_gb_per_s": gb}, system="lru [a]", words=("x",)
        )
        for gb in (8, 16)
    ][:machines]
    asked: list[Any] = []
    monkeypatch.setattr(command, "Console", lambda: heard)
    monkeypatch.setattr(command, "read_words", lambda words: asked.append(words) or cells)
    monkeypatch.setattr(command, "screen", lambda cells: FOUND[: len(cells)])
    assert main(["system=lru", "overwrite=no"]) == 0
    assert asked == [["system=lru"]]
    (table,) = heard.tables
    assert table.title == rf"lru \[a], {machines} machine{'s' if machines == 2 else ''}"
    assert [[str(column.header), *column.cells] for column in table.columns] == [
        column[: machines + 1]
        for column in (
            ["pcie.peak_gb_per_s", "8", "16"],
            ["tokens/s", "12.35", "-"],
            ["TTFT (s)", "0.5", "0.25"],
            ["TPOT (s)", "0.01235", "2"],
            ["makespan (s)", "3", "4"],
            ["hits", "-", "0.8765"],
        )
    ]
    assert not table.pad_edge
    assert heard.lines == ["lossy [x]"]


def test_the_last_output_dir_counts_and_no_word_of_the_commands_own_is_an_override() -> None:
    words = ("output_dir=a", "x.output_dir=b", "output_dir=c=d")
    assert command._value(words, "output_dir") == "c=d"
    assert command._value(words, "overwrite") is None
