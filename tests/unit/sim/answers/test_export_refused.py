"""Lines of flags that cannot run are left out of a search, and told."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sim import export as command
from sim.answers import export
from sim.answers.engine_flags import Flags
from sim.answers.export import Search, Tried, exported
from sim.answers.serving import Point, Profile
from sim.results.labels import Labels


def made(simulate: Callable[..., Any] = lambda words: None) -> Search:
    """A search of 4 layers, of which 2 fit on the device."""
    search = Search.__new__(Search)
    search._base, search._given, search._simulate = Flags(4096), ["given"], simulate
    search.layers, search.split, search.order = 4, (), ()
    search._room = {Flags(4096, n_cpu_moe=n): 0 if n >= 2 else None for n in range(5)}
    search._on_cpu, search.tried, search.refused = {}, {}, {}
    return search


def test_a_line_that_is_refused_is_kept_with_its_reason_and_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[list[str]] = []

    def simulate(words: list[str]) -> Future[Any]:
        future: Future[Any] = Future()
        asked.append(words)
        if words[0] == "2":
            future.set_exception(ValueError("it is\n  too   long"))
        else:
            future.set_result(f"trial of {words}")
        return future

    monkeypatch.setattr(export, "words_of", lambda line, given: [f"{line.n_cpu_moe}", *given])
    monkeypatch.setattr(export, "_tried", lambda line, on_cpu, trial: (on_cpu, trial))
    search = made(simulate)
    two, three = (search.line(number, cached=False) for number in (2, 3))
    for _ in range(2):
        search.simulate([two, three, two])
    assert asked == [["2", "given"], ["3", "given"]]
    assert search.tried == {three: (3, "trial of ['3', 'given']")}
    assert search.refused == {two: "it is too long"}


def test_a_split_where_nothing_fits_has_no_speed_and_is_not_tried() -> None:
    search = made()
    search._room = dict.fromkeys(
        (Flags(4096, n_cpu_moe=n, split=(3.0, 2.0)) for n in range(5)), None
    )
    assert search._try_split((3.0, 2.0)) == 0.0
    assert (search.split, search.tried) == ((3.0, 2.0), {})


def test_without_a_cache_that_can_run_there_is_no_order_of_misses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("too little memory")

    monkeypatch.setattr(export, "words_of", lambda line, given: given)
    monkeypatch.setattr(export, "prepared", refuse)
    assert made().by_misses() == ()


def test_a_search_of_which_no_line_can_run_tells_the_first_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = made()
    search.refused = {Flags(1): "too little memory", Flags(2): "another reason"}
    monkeypatch.setattr(export, "Search", lambda *words: search)
    monkeypatch.setattr(export, "_climb_all", lambda *words, **named: None)
    with pytest.raises(ValueError, match=r"^no line of flags can run: too little memory$"):
        exported(Flags(), [], cast(Any, None))
    search.tried = cast(Any, {Flags(3): "a line"})
    assert exported(Flags(), [], cast(Any, None)) is search


WORDS = ("model=tiny_mixtral", "machine=rtx4090_pcie4")


def test_the_command_tells_which_lines_it_left_out_and_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = made()
    line = Flags(4096, n_cpu_moe=3)
    search.tried = {line: Tried(line, 3, 5.0, None, None, 0.5, Labels())}
    search.refused = {Flags(4096, n_cpu_moe=2): "it takes too long [s]"}
    monkeypatch.setattr(command, "_given", lambda words: (["given=1"], "gates"))
    monkeypatch.setattr(command, "_search", lambda words, given: search)
    assert command.main([*WORDS, f"output_dir={tmp_path / 'a'}"]) == 0
    *_, left_out, sentence, run, files = capsys.readouterr().out.splitlines()
    assert left_out == "left out -ngl all -c 4096 --n-cpu-moe 2: it takes too long [s]"
    answer = json.loads((tmp_path / "a" / "answer.json").read_text(encoding="utf-8"))
    assert sentence == answer["answer"]
    assert run == "run with: moelab run flags='-ngl all -c 4096 --n-cpu-moe 3' given=1"
    assert files == f"files: {tmp_path / 'a'}"


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ([], (["given=1", "system=lru"], [1, 2, 4], 4096)),
        (
            ["system=hobbit", "batches=8,2", "context=500"],
            (["given=1", "system=hobbit"], [8, 2], 500),
        ),
    ],
)
def test_what_is_handed_over_is_of_the_asked_system_batches_and_context(
    words: list[str],
    asked: tuple[object, ...],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = Profile((Point(1, 100, 12.0, 8, 99.5, None),), 0.5, Labels())
    calls: list[tuple[object, ...]] = []
    written: list[tuple[object, ...]] = []

    def profiled(*given: Any) -> Profile:
        calls.append(given[:3])
        return found

    monkeypatch.setattr(command, "_given", lambda words: (["given=1"], "gates"))
    monkeypatch.setattr(
        command,
        "prepared",
        lambda words: SimpleNamespace(config={"workload": {"block_tokens": 16}}, words=words),
    )
    monkeypatch.setattr(command, "profiled", profiled)
    monkeypatch.setattr(command, "requests_of", lambda run, size: [(run.words, size)])
    monkeypatch.setattr(command, "written", lambda *given: written.append(given))
    place = tmp_path / "a"
    assert command.main([*WORDS, "to=dynamo", *words, f"output_dir={place}"]) == 0
    assert calls == [asked]
    assert written == [(place, found, [([*cast(Any, asked[0]), "budget=fit"], 16)])]
    answer = json.loads((place / "answer.json").read_text(encoding="utf-8"))
    assert answer["points"][0]["decode_ms"] == 12.0
    *_, sentence, run, files = capsys.readouterr().out.splitlines()
    assert sentence == answer["answer"]
    assert run.startswith("run there: python -m dynamo.replay ")
    assert " --trace-block-size 16 " in run
    assert files == f"files: {place}"
