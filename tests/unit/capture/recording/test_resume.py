"""A killed capture continues where it was, and ends in the same trace as an undisturbed one."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import capture.recording.record
from capture.__main__ import main
from capture.models.discover import CaptureError
from capture.recording.shards import Shards
from helpers.checkpoints import save_checkpoint, write_prompts
from helpers.tiny_models import build
from sim.traces.trace import read_trace
from sim.values.places import ROOT

SEQUENCES = 8


class Died(Exception):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    directory = save_checkpoint(build("mixtral"), tmp_path_factory.mktemp("checkpoint"))
    prompts = write_prompts(directory / "prompts.jsonl", count=SEQUENCES)
    return [
        f"model={directory}",
        f"prompts={prompts}",
        f"sequences={SEQUENCES}",
        "prompt_tokens=6-9",
        "decode_tokens=20",
        "hidden_sequences=1",
        "threads=1",
    ]


@pytest.fixture(scope="module")
def whole(arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole") / "trace"
    assert main([*arguments, f"output_dir={directory}"]) == 0
    return directory


def assert_same_but_for_the_date(one: Path, other: Path) -> None:
    texts = [json.loads((place / "header.json").read_text()) for place in (one, other)]
    for text in texts:
        text.pop("created")
    assert texts[0] == texts[1]
    read_trace(other, "all")
    assert sorted(path.name for path in other.parent.iterdir()) == ["trace"]


@pytest.fixture
def units_run(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the units that are run from here on."""
    run: list[int] = []
    record_unit = capture.recording.record.record_unit

    def counting(model, layers, unit, *rest):  # type: ignore[no-untyped-def]
        run.append(unit.number)
        record_unit(model, layers, unit, *rest)

    monkeypatch.setattr(capture.recording.record, "record_unit", counting)
    return run


@pytest.mark.thorough
def test_killed_in_the_middle_it_loses_the_open_sequence_at_most(
    arguments: list[str], whole: Path, tmp_path: Path, units_run: list[int]
) -> None:
    work = tmp_path / ".trace.capture"
    process = subprocess.Popen(
        [sys.executable, "-m", "capture", *arguments, f"output_dir={tmp_path / 'trace'}"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        deadline = time.monotonic() + 300
        while not (work / "unit_000002.safetensors").exists():
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.001)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = sorted(int(path.name[5:11]) for path in work.glob("unit_*.safetensors"))
    assert 3 <= len(done) < SEQUENCES
    assert not (tmp_path / "trace").exists()
    assert main([*arguments, f"output_dir={tmp_path / 'trace'}"]) == 0
    assert units_run == [number for number in range(SEQUENCES) if number not in done]
    assert_same_but_for_the_date(whole, tmp_path / "trace")


def test_stopped_among_the_sites_it_runs_no_sequence_again(
    arguments: list[str],
    whole: Path,
    tmp_path: Path,
    units_run: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measure_site, measured = capture.recording.record.measure_site, []

    def failing(layer, *rest):  # type: ignore[no-untyped-def]
        if len(measured) == 2:
            raise Died
        measured.append(layer.site)
        measure_site(layer, *rest)

    monkeypatch.setattr(capture.recording.record, "measure_site", failing)
    with pytest.raises(Died):
        main([*arguments, f"output_dir={tmp_path / 'trace'}"])
    monkeypatch.setattr(
        capture.recording.record,
        "measure_site",
        lambda layer, *rest: (measured.append(layer.site), measure_site(layer, *rest)),
    )
    # A shard that was being written when the process died does not count.
    (tmp_path / ".trace.capture" / "site_00002.safetensors.draft").write_bytes(b"half")
    assert main([*arguments, f"output_dir={tmp_path / 'trace'}"]) == 0
    assert units_run == list(range(SEQUENCES))
    assert measured == [0, 1, 2, 3]
    assert_same_but_for_the_date(whole, tmp_path / "trace")


def test_another_capture_is_not_continued(
    arguments: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(*_: object) -> None:
        raise Died

    monkeypatch.setattr(capture.recording.record, "measure_site", stop)
    with pytest.raises(Died):
        main([*arguments, f"output_dir={tmp_path / 'trace'}"])
    assert main([*arguments, "lookahead=1", "seed=3", f"output_dir={tmp_path / 'trace'}"]) == 2
    message = capsys.readouterr().err
    assert "holds an unfinished capture that differs in lookahead, seed" in message
    assert "choose another output_dir, or remove it" in message


def test_shards_are_whole_or_not_there(tmp_path: Path) -> None:
    shards = Shards(tmp_path / "out", {"seed": 1})
    assert not shards.has("a")
    shards.save("a", {"values": torch.arange(6).reshape(3, 2)}, {"rows": 3})
    again = Shards(tmp_path / "out", {"seed": 1})
    assert again.has("a")
    assert again.facts("a") == {"rows": 3}
    assert again.site("a", "values", 1).tolist() == [1, 3, 5]  # type: ignore[union-attr]
    assert again.site("a", "others", 1) is None
    assert again.rows("a", "values", 1, 3).tolist() == [[2, 3], [4, 5]]
    (shards.directory / "a.safetensors").write_bytes(b"{")
    with pytest.raises(CaptureError, match="remove it, and it is recorded again"):
        again.facts("a")
    (shards.directory / "run.json").write_text("{")
    with pytest.raises(CaptureError, match="cannot be read"):
        Shards(tmp_path / "out", {"seed": 1})


def test_a_shard_that_was_altered_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """Its numbers were taken for the model's: the trace had other scores, or was refused for their
    size at the end, with no word of the shard."""
    shards = Shards(tmp_path / "trace", {"model": "one"})
    shards.save("a", {"x": torch.zeros(64)}, {})
    place = shards.directory / "a.safetensors"
    whole = place.read_bytes()
    place.write_bytes(whole[:-4] + b"ZZZZ")
    again = Shards(tmp_path / "trace", {"model": "one"})
    with pytest.raises(
        CaptureError, match=r"a\.safetensors: was altered .*; remove it, and it is rec"
    ):
        again.has("a")
    place.unlink()
    assert not again.has("a")
    again.save("a", {"x": torch.zeros(64)}, {})
    assert place.read_bytes() == whole
    assert Shards(tmp_path / "trace", {"model": "one"}).has("a")


HOLDING = """
import sys
from pathlib import Path
from capture.recording.shards import Shards

shards = Shards(Path(sys.argv[1]), {"seed": 1})
print("held", flush=True)
sys.stdin.read()
"""


def test_a_folder_that_another_capture_records_into_is_refused(tmp_path: Path) -> None:
    """Of two at once one removed the shards that the other still read, which failed at its end."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(tmp_path / "out")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(CaptureError, match=r"out is being captured into by another process"):
            Shards(tmp_path / "out", {"seed": 1})
        other.communicate()
    assert not Shards(tmp_path / "out", {"seed": 1}).has("a")


def test_a_full_disk_is_named_and_takes_no_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a traceback, and the half of a shard stayed."""
    shards = Shards(tmp_path / "out", {"seed": 1})

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CaptureError, match=r"cannot be written \(No space .* goes on from there"):
        shards.save("a", {"x": torch.zeros(2)}, {})
    assert not shards.has("a")
    assert [*shards.directory.glob("*.draft")] == []
