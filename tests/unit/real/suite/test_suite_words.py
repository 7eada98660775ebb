"""The words of the suite's command, what a machine lacks, and what is carried to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import real.suite.needs as needs
from real.suite.__main__ import main, parse
from real.suite.bundle import bundle, is_read, tracked
from real.suite.needs import Missing, advice, missing, pack
from sim.values.places import ROOT
from sim.verbs.table import verb_of


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("device=tpu", "device=tpu: tpu is none of cuda, host"),
        ("size=huge", "size=huge: huge is none of full, small, tiny"),
        ("pieces=probe,nothing", "nothing is no piece; known: probe, verify"),
        ("minutes=0", "minutes=0 must be a number above 0"),
        ("archive=nowhere/all.tar.gz", "nowhere is no folder"),
        ("budget=1", "budget is no option"),
    ],
)
def test_a_wrong_word_is_refused_with_what_is_allowed(
    word: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word]) == 2
    assert told in capsys.readouterr().err


def test_pieces_come_in_the_order_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.verbs.words.has_cuda", lambda: True)
    asked = parse(["device=host", "pieces=replay,probe", "again=probe", "minutes=2.5"])
    assert [piece.name for piece in asked.pieces] == ["replay", "probe"]
    assert (asked.size, asked.again, asked.minutes) == ("small", ("probe",), 2.5)
    assert parse(["device=host"]).minutes > parse(["device=cuda"]).minutes == 8


def test_what_is_missing_is_told_with_both_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(needs.NEEDED, "no_such_module", "no-such-package")
    (found,) = missing("host", ["simpy", "no_such_module", "triton"])
    assert found == Missing(
        "no_such_module", "no-such-package", "ModuleNotFoundError: No module named 'no_such_module'"
    )
    text = advice([found])
    assert "python -m pip install no-such-package" in text
    assert "python -m real.suite pack modules=no_such_module output=carried.tar.xz" in text


def test_packed_modules_can_be_imported_elsewhere(tmp_path: Path) -> None:
    packed = tmp_path / "carried.tar.xz"
    assert pack(["simpy"], packed) == packed.stat().st_size
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path / "there", filter="data")
    code = """import simpy; print(simpy.__file__); simpy.Environment().run(until=1)
import importlib.metadata; assert importlib.metadata.version("simpy") == simpy.__version__ != "UNKNOWN" """
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(tmp_path / "there")},
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith(str(tmp_path / "there")), done.stderr
    assert not done.returncode, done.stderr
    with pytest.raises(ValueError, match="must be a new file"):
        pack(["simpy"], packed)


def test_code_for_one_version_of_python_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"numpy holds .* which only Python 3\.\d+ can load"):
        pack(["numpy"], tmp_path / "carried.tar.xz")
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_a_bundle_holds_the_project_without_other_models_and_runs_where_it_is_unpacked(
    tmp_path: Path,
) -> None:
    packed = tmp_path / "bundle.tar.xz"
    told = bundle([], packed, 64 << 20)
    assert told.packed_bytes == packed.stat().st_size
    names = tracked()
    assert told.tree_bytes + told.left_out_bytes == sum(
        (ROOT / name).stat().st_size for name in names
    )
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path / "there", filter="data")
    there = {
        str(path.relative_to(tmp_path / "there"))
        for path in (tmp_path / "there").rglob("*")
        if path.is_file()
    }
    left = set(names) - there
    assert there <= set(names)
    assert {name.split("/")[-2] for name in left} >= {"tiny_qwen2moe", "tiny_switch"}
    models, results = "capture/assets/", "real/results/"
    assert all(name.startswith((models, results)) for name in left)
    assert not any("tiny_mixtral" in name for name in left if name.startswith(models))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "real.suite",
            "device=host",
            "size=tiny",
            "pieces=stores,engine,replay",
            "output=results",
        ],
        cwd=tmp_path / "there",
        env={**os.environ, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "there" / "results" / "report.md").read_text()
    assert "| replay | done |" in page
    # It once needed a trace that no bundle holds.
    assert "| engine | done |" in page
    for row in json.loads((tmp_path / "there" / "results" / "engine.json").read_text())["rows"]:
        told = row["result"]
        assert told["ratio"] == pytest.approx(told["engine_ms"] / told["bare_ms"], rel=0.01)
        assert told["engine_misses"] > 0 < told["bare_misses"]


@pytest.mark.thorough
def test_a_bundle_that_is_too_large_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bundle", f"output={tmp_path / 'all.tar.xz'}", "most_mib=1"]) == 2
    assert "more than 1048576: bring fewer packages" in capsys.readouterr().err
    assert main(["bundle", f"output={tmp_path / 'all.tar.xz'}", "most_mib=some"]) == 2
    assert "most_mib=some must be a whole number" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "what"), [(["bundle"], "bundle.bundle"), (["pack", "modules=simpy"], "__main__.pack")]
)
def test_a_file_to_carry_that_is_interrupted_is_said_not_to_be_there(
    words: list[str],
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*told: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"real.suite.{what}", interrupted)
    assert main([*words, f"output={tmp_path / 'all.tar.xz'}"]) == 130
    assert capsys.readouterr().err == "interrupted; no file was written\n"


def test_a_bundle_may_take_what_the_help_says_where_no_size_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refused(modules: list[str], output: Path, most_bytes: int) -> None:
        asked.append(most_bytes)
        raise ValueError("too large")

    monkeypatch.setattr("real.suite.bundle.bundle", refused)
    assert main(["bundle", f"output={tmp_path / 'all.tar.xz'}"]) == 2
    option = next(one for one in verb_of("suite").options if one.key == "most_mib")
    assert asked == [int(option.default) << 20]


def test_only_results_and_the_files_of_other_models_are_left_out() -> None:
    assert is_read("capture/assets/traces/tiny_mixtral/a.npy")
    assert is_read("capture/assets/prompts/heldout.jsonl")
    assert is_read("conf/model/tiny_switch.yaml")
    assert not is_read("capture/assets/tiny_switch/model.safetensors")
    assert is_read("real/results/pairs.csv")
    assert not is_read("real/results/nvidia_h100_80gb_hbm3/2026-11-27/suite/replay.json")
    assert not is_read("capture/assets/predictors/tiny_qwen2moe/next_site.npz")
