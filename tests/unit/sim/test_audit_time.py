"""``python -m sim.audit_time``: a run's folder beside a machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from sim.__main__ import main as simulate
from sim.answers.recorded_run import read_recorded, stored_bytes, words_of
from sim.audit_time import main

WORDS = ("hardware=rtx4090_pcie4", "trace.max_sequences=1", "workload=hobbit_16_128")
LENGTHS = ("workload.prompt_tokens=2", "workload.decode_tokens=3")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit") / "run"
    with pytest.MonkeyPatch.context() as patch:
        words = ["sim", "system=lru", "cache=lfu", *WORDS, *LENGTHS, f"output_dir={folder}"]
        patch.setattr("sys.argv", [*words, "hydra.run.dir=" + str(folder.parent / "hydra")])
        simulate()
    return folder


def test_the_audit_of_a_run_on_another_machine_names_the_link_and_draws_it(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(run), "hardware.links.pcie.efficiency=0.4", "hardware=rtx4090_pcie4"]
    assert main([*words, f"output_dir={tmp_path}"]) == 0
    told = json.loads((tmp_path / "audit_time.json").read_text())
    by_cause = {one["name"]: one["ns"] for one in told["causes"]}
    assert sum(by_cause.values()) == pytest.approx(told["difference_ns"])
    assert by_cause["link rate"] > 0.5 * told["difference_ns"] > 0, "every override counts"
    assert told["title"].startswith("lru cache=lfu at 50%")
    assert "most of it is link rate" in capsys.readouterr().out
    assert (tmp_path / "audit_time.svg").read_text().count("link rate") == 1


def test_as_many_gates_that_chose_other_experts_are_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a live run, whose gates are in no trace."""
    folder = tmp_path / "live"
    shutil.copytree(run, folder)
    lookups = pl.read_parquet(folder / "lookups.parquet")
    lookups.with_columns(expert=(pl.col("expert") + 1) % 8).write_parquet(
        folder / "lookups.parquet"
    )
    assert main([str(folder), "hardware=rtx4090_pcie4"]) == 2
    assert "chose other experts than those of its simulation" in capsys.readouterr().err


def test_a_machine_of_ones_own_that_no_word_finds_is_refused_with_the_words_that_do(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What a run was asked for beside its words is in none of its files."""
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "mine" / "hardware" / "ours.yaml"
    place.parent.mkdir(parents=True)
    place.write_text("defaults: [rtx4090_pcie4, _self_]\nname: ours\n", encoding="utf-8")
    assert main([str(run), "hardware=ours"]) == 2
    way = "mine/hardware/ours.yaml is found by hardware=ours 'hydra.searchpath=[mine]'"
    assert capsys.readouterr().err.strip().endswith(way)
    assert main([str(run), "hardware=ours", "hydra.searchpath=[mine]"]) == 0


def test_words_given_take_the_place_of_the_runs_own() -> None:
    summary = {
        "system": "floe payload=active_share_nominal",
        "budget": {"resident_share": 0.6},
        "overrides": ["hardware=a", "model=m"],
        "real": {"store": {"precisions": {"fp16": {"bytes": 8}, "int4": {"bytes": 3}}}},
    }
    assert words_of(summary, ["hardware=b"]) == [
        "system=floe",
        "payload=active_share_nominal",
        "budget.resident_share=0.6",
        "model=m",
        "hardware=b",
    ]
    assert (stored_bytes(summary), stored_bytes({})) == ((8, 3), ())


def test_what_is_no_run_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), "hardware=rtx4090_pcie4"]) == 2
    assert f"{tmp_path} holds no run" in capsys.readouterr().err
    assert main([]) == 2


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        (
            "summary.json",
            '{"schema": 1, "system": "lru", "hardware": "x", "budget": {}}',
            "{folder}/summary.json lacks budget.resident_share: it was changed",
        ),
        (
            "summary.json",
            '{"schema": 1, "system": "lru", "budget": {"resident_share": 1}}',
            "{folder}/summary.json lacks hardware: it was changed",
        ),
        (
            "config.yaml",
            "loader: {wait: 1}",
            "{folder}/config.yaml has no loader.wait or model ('model'); run again",
        ),
        (
            "config.yaml",
            "model: {sites: 1}",
            "{folder}/config.yaml has no loader.wait or model ('loader'); run again",
        ),
        ("lookups.parquet", "PAR1", "{folder}/lookups.parquet cannot be read ("),
    ],
)
def test_a_folder_that_lacks_a_part_of_a_run_is_refused_with_the_part(
    file: str, text: str, told: str, tmp_path: Path
) -> None:
    texts = {
        "summary.json": '{"schema": 1, "system": "lru", "hardware": "x", "budget": {"resident_share": 1}}',
        "config.yaml": "{loader: {wait: 1}, model: {sites: 1}}",
    }
    for name, content in {**texts, file: text}.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"lacks|no loader|cannot be read") as refused:
        read_recorded(tmp_path)
    assert str(refused.value).startswith(told.format(folder=tmp_path))
    assert str(refused.value).endswith(("run it again", "run again", "run again with outputs=all"))
