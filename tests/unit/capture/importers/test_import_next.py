"""From a csv of one's own to a run: every command prints the next one, which works as printed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from capture import synthesize
from capture.import_trace import main
from capture.importers.parts import NEEDED
from sim import models
from sim.study.trials import prepared
from sim.traces.trace import read_trace
from sim.values.places import ASSETS
from sim.verbs.names import read as read_yaml
from sim.verbs.table import verb_of
from sim.verbs.words import read

SITES, TOP_K = 26, 6
"""Of deepseek_v2_lite, which has 64 experts a layer."""


@pytest.fixture(autouse=True)
def routes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [
        f"{sequence},{position},{phase},{site},{' '.join(map(str, range(site, site + TOP_K)))}"
        for sequence in range(2)
        for position, phase in enumerate(("prefill", "decode"))
        for site in range(SITES)
    ]
    text = "\n".join(["sequence,position,phase,site,experts", *lines])
    Path("routes.csv").write_text(f"{text}\n", encoding="utf-8")


def printed(told: str) -> list[str]:
    """The words of the command that a text calls the next one."""
    words = shlex.split(told.partition("next: ")[2].splitlines()[0], comments=True)
    assert words[0] == "moelab"
    read(verb_of(words[1]), words[2:])
    return words[2:]


def test_what_is_missing_is_told_at_once_with_the_ways_to_give_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["format=csv", "path=routes.csv"]) == 2
    told = capsys.readouterr().err
    assert all(f"{key}=..." in told for key in NEEDED)
    assert "name a model of moelab list models, which has its sizes (model=" in told
    assert not Path("outputs").exists()


@pytest.mark.parametrize(
    ("given", "model"),
    [
        (["model=deepseek_v2_lite"], ["model=deepseek_v2_lite"]),
        (
            ["model=mine", "experts=64", "hidden=1024", "expert_intermediate=512"],
            ["model.sites=26", "model.hidden=1024", "model.expert_intermediate=512"],
        ),
    ],
)
def test_an_imported_csv_is_run_by_the_words_that_the_import_prints(
    given: list[str], model: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["format=csv", "path=routes.csv", "licence=own", *given]) == 0
    told = capsys.readouterr().out
    words = printed(told)
    assert set(model) <= set(words)
    assert ("# no listed model has these sizes: all but the experts as of" in told) == bool(
        "model=mine" in given
    )
    assert "trace.path=outputs/traces/routes" in words
    run = prepared(words)
    assert (run.model.sites, run.model.experts, run.model.top_k) == (SITES, 64, TOP_K)
    assert main(["format=csv", "path=routes.csv", "licence=own", *given]) == 0
    assert "trace.path=outputs/traces/routes-2" in printed(capsys.readouterr().out)


@pytest.mark.parametrize("folder", ["größe", "with spaces", "trace (1)"])
def test_the_printed_words_find_a_folder_of_any_name(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["format=csv", "path=routes.csv", "licence=own", "model=deepseek_v2_lite"]
    assert main([*given, f"output_dir={folder}"]) == 0
    words = read(verb_of("run"), printed(capsys.readouterr().out)).overrides
    assert prepared(words).trace.header.name == "deepseek_v2_lite_imported"


def test_synthetic_gates_are_run_by_the_words_that_the_synthesis_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        synthesize.main(["like=switch_base_8", "tokens=2", "sequences=2", "output_dir=made"]) == 0
    )
    words = printed(capsys.readouterr().out)
    assert "model=switch_base_8" in words
    assert prepared(words).trace.header.name == "synthetic_switch_base_8"


def test_a_model_of_ones_own_is_found_by_the_words_that_its_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from_config = f"from={ASSETS / 'tiny_qwen2moe'}"
    # Hydra takes every folder of the place that it searches for a group: outputs is one of them.
    for place in ("own.yaml", "model/own.yaml", "mine/own.yaml", "mine/model/own.txt"):
        assert models.main([from_config, "name=own", f"output={place}"]) == 2
        assert "say output=mine/model/own.yaml" in capsys.readouterr().err
    assert models.main([from_config, "name=own", "output=mine/model/own.yaml"]) == 0
    words = printed(capsys.readouterr().out)
    assert read_yaml(Path("mine/model/own.yaml"))["name"] == "own"
    Path("outputs").mkdir()
    own = [word for word in words if not word.startswith("machine=")]
    run = prepared([*own, "system=lru"])
    assert (run.model.name, run.trace.header.name) == ("own", "tiny_qwen2moe")


@pytest.mark.parametrize(
    ("numbers", "splits"),
    [
        ((0, 1, 2), ("fit", "eval", "fit")),
        ((10, 20, 30), ("fit", "eval", "fit")),
        ((1, 3), ("fit", "eval")),
        ((7,), ("eval",)),
    ],
)
def test_neither_split_is_empty_however_the_sequences_are_numbered(
    numbers: tuple[int, ...], splits: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{number},0,decode,0,3 5" for number in numbers]
    Path("routes.csv").write_text("\n".join(["sequence,position,phase,site,experts", *lines]))
    assert main(["format=csv", "path=routes.csv", "licence=own", "model=deepseek_v2_lite"]) == 0
    header = read_trace(Path("outputs/traces/routes")).header
    assert tuple(one.split for one in header.sequences) == splits
    every = numbers[1:] and len({number % 2 for number in numbers}) == 1
    assert ("every two sequences" in str(header.provenance["split"])) == bool(every)


def test_more_experts_than_a_trace_can_name_are_refused_by_the_word_that_said_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = ["model=mine", "experts=40000", "hidden=1024", "expert_intermediate=512"]
    assert main(["format=csv", "path=routes.csv", "licence=own", *sizes]) == 2
    assert "experts=40000 must be at most 32767" in capsys.readouterr().err
