"""What ``moelab export`` asks for, prints and writes, where nothing is simulated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.trying import SPAWNED, noted
from sim import export
from sim.answers.engine_flags import Flags
from sim.answers.export import Tried
from sim.answers.serving import Point, Profile
from sim.results.labels import Labels

NAMES = ["model=tiny_gates_half_mixtral", "machine=rtx4090_pcie4"]
WHO = "tiny_gates_half_mixtral on rtx4090_pcie4"
MODEL = SimpleNamespace(stored="bf16", dense_bits=16.0)
DENSE = "dense weights at 5 bits"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the search and the handover are asked for."""
    seen: list[Any] = []

    @contextmanager
    def trying(what: str) -> Iterator[str]:
        seen.append(what)
        yield "simulate"

    best = [
        Tried(Flags(64, n_cpu_moe=2), 2, 12.5, (12, 13), None, 0.5, Labels(lossy="lossy (x)")),
        Tried(Flags(64, n_cpu_moe=3), 3, 9.0, None, 0.25, 0.5, Labels()),
    ]
    found = SimpleNamespace(
        layers=4, best=lambda: best, refused={Flags(64): "no [room]", Flags(32): "none"}
    )
    points = (Point(1, 10, 2.5, 4, 7.5, 0.5), Point(2, 10, 3.5, 8, 9.5, None))

    def profiled(*of: Any) -> Profile:
        seen.append(of)
        return Profile(points, 0.25, Labels(lossy="lossy (x)"))

    def exported(*of: Any) -> Any:
        seen.append(of)
        return found

    def prepared(words: list[str]) -> Any:
        seen.append(list(words))
        blocks = {"block_tokens": 8} if "b=8" in words else {}
        return SimpleNamespace(config={"workload": blocks})

    def of_words(words: Any) -> Any:
        return ["common", *words.overrides], SimpleNamespace(told="its [own] gates"), MODEL

    monkeypatch.setattr(export, "_trying", trying)
    monkeypatch.setattr(export, "exported", exported)
    monkeypatch.setattr(export, "profiled", profiled)
    monkeypatch.setattr(export, "prepared", prepared)
    monkeypatch.setattr(export, "asked", of_words)
    monkeypatch.setattr(export, "dense_told", lambda words, precisions: DENSE)
    monkeypatch.setattr(export, "requests_of", lambda run, size: [{"size": size}])
    return seen


@pytest.mark.parametrize(
    ("words", "base", "given", "gpus"),
    [
        ([], Flags(4096), ["common", "precision=q4_k_m"], 1),
        (
            ["context=64", "kv=q8_0", "gpus=2", "trace.max_sequences=3"],
            Flags(64, keys="q8_0", values="q8_0"),
            [
                "common",
                "trace.max_sequences=3",
                "hardware.devices.state_bits=32",
                "precision=q4_k_m",
            ],
            2,
        ),
        (["gpus=1", "precision=int8"], Flags(4096), ["common", "precision=int8"], 1),
    ],
)
def test_the_search_gets_the_line_and_the_words_of_the_question(
    words: list[str], base: Flags, given: list[str], gpus: int, asked: list[Any], tmp_path: Path
) -> None:
    assert export.main([*NAMES, *words, f"output_dir={tmp_path / 'out'}"]) == 0
    assert asked == ["trying flags", (base, given, "simulate", gpus)]


def test_the_fastest_line_is_written_and_told_with_all_that_was_tried(
    asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "out"
    assert export.main([*NAMES, f"output_dir={place}"]) == 0
    line = "-ngl all -c 64 --n-cpu-moe 2"
    table, told = capsys.readouterr().out.split("left out ", 1)
    assert "the fastest 2 of 2 lines" in table
    first, second, answer, run, files = told.splitlines()
    assert (first, second) == (
        "-ngl all -c 64: no [room]",
        "left out -ngl all -c 32: none",
    )
    assert answer == (
        f"{WHO}: 12.5 tokens/s [12, 13] with {line}; from its [own] gates; {DENSE}."
        " [llama.cpp (some runs): lossy (x)]"
    )
    repeated = f"moelab run flags='{line}' common precision=q4_k_m"
    assert (run, files) == (f"run with: {repeated}", f"files: {place}")
    assert (place / "flags.txt").read_text(encoding="utf-8") == f"{line}\n"
    content = json.loads((place / "answer.json").read_text(encoding="utf-8"))
    assert (content["answer"], content["run"]) == (answer, repeated)
    assert [(row["line"], row["tokens_per_s"], row["on_cpu"]) for row in content["lines"]] == [
        (line, 12.5, 2),
        ("-ngl all -c 64 --n-cpu-moe 3", 9.0, 3),
    ]
    assert content["lines"][0]["labels"]["lossy"] == "lossy (x)"
    assert export.main([*NAMES, f"output_dir={place}"]) == 2, "it is not empty"
    assert export.main([*NAMES, f"output_dir={place}", "overwrite=yes"]) == 0


@pytest.mark.parametrize(
    ("words", "given", "batches", "context", "size"),
    [
        ([], ["common", "precision=q4_k_m", "system=lru"], [1, 2, 4], 4096, 512),
        (
            ["system=fate", "batches=2,8", "context=64", "precision=int8"],
            ["common", "precision=int8", "system=fate"],
            [2, 8],
            64,
            512,
        ),
    ],
)
def test_a_handover_is_written_and_told_with_its_command(
    words: list[str],
    given: list[str],
    batches: list[int],
    context: int,
    size: int,
    asked: list[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = tmp_path / "out"
    assert export.main([*NAMES, "to=dynamo", *words, f"output_dir={place}"]) == 0
    assert asked == [
        [*given, "budget=fit"],
        "simulating steps",
        (given, batches, context, "simulate"),
    ]
    text, run, files = capsys.readouterr().out.splitlines()[-3:]
    assert text.startswith(f"{WHO}, with 25.00% of the expert bytes")
    assert f"from its [own] gates; {DENSE}." in text
    assert run.startswith("run there: python -m dynamo.replay ")
    assert f"--trace-block-size {size} " in run
    assert files == f"files: {place}"
    content = json.loads((place / "answer.json").read_text(encoding="utf-8"))
    assert content["answer"] == text
    assert content["labels"]["lossy"] == "lossy (x)"
    assert [(one["batch"], one["decode_ms"]) for one in content["points"]] == [(1, 2.5), (2, 3.5)]
    assert (place / "requests.jsonl").read_text(encoding="utf-8") == f'{{"size": {size}}}\n'


def test_blocks_are_of_as_many_tokens_as_the_workload_says(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = SimpleNamespace(told="gates")
    monkeypatch.setattr(export, "asked", lambda words: (["b=8"], gates, MODEL))
    assert export.main([*NAMES, "to=dynamo", f"output_dir={tmp_path / 'out'}"]) == 0
    assert (tmp_path / "out" / "requests.jsonl").read_text(encoding="utf-8") == '{"size": 8}\n'


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("to=dynamo kv=q8_0", "kv= is of llama.cpp's flags; leave it out with to=dynamo"),
        ("to=dynamo gpus=2", "gpus= is of llama.cpp's flags; leave it out with to=dynamo"),
        ("batches=1,2", "batches= is of to=dynamo; leave it out, or add to=dynamo"),
        ("system=lru", "system= is of to=dynamo; leave it out, or add to=dynamo"),
    ],
)
def test_a_word_of_the_other_kind_is_one_line_and_leaves_nothing(
    words: str,
    told: str,
    asked: list[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert export.main([*NAMES, *words.split(), f"output_dir={tmp_path / 'out'}"]) == 2
    assert capsys.readouterr().err == f"error: {told}\n"
    assert not (tmp_path / "out").exists()
    assert asked == []


def test_trials_run_in_two_processes_and_each_that_ends_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = noted(export, monkeypatch)
    made = (2, SPAWNED, export.leave_with_parent)
    with export._trying("trying flags") as simulate:
        assert simulate(["a", "b"]).result() == (export.trial, ("a", "b"))
    assert seen == [made, "trying flags: one more", "ended"]
    seen.clear()
    with pytest.raises(KeyboardInterrupt), export._trying("trying flags"):
        raise KeyboardInterrupt
    assert seen == [made, {"wait": False, "cancel_futures": True}, "ended"]
