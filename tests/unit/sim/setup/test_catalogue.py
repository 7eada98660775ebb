"""The lists of choices: every option has its line, and unknown lists are refused."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sim import list as list_command
from sim.list import main
from sim.machine.hardware import NEVER
from sim.setup import catalogue
from sim.setup.catalogue import (
    GIVEN,
    KINDS,
    first_sentence,
    machine_row,
    model_row,
    policy_row,
    system_row,
    table,
    trace_row,
    workload_row,
)
from sim.values.fields import HEADER_FILE
from sim.values.places import MECHANISMS, ROOT
from sim.verbs.names import of_file


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_of_a_kind_has_one_line_with_every_cell_filled(kind: str) -> None:
    lines = table(kind)
    names = [str(cell) for cell in lines.columns[0].cells]
    assert names == sorted(path.stem for path in (ROOT / "conf" / KINDS[kind][0]).glob("*.yaml"))
    assert len(names) == len(set(names)) > 2
    optional = {"source", "predictor", "loader"} if kind in ("workloads", "systems") else set()
    for column in lines.columns:
        assert all(str(cell) for cell in column.cells) or column.header in optional, column.header


def test_figures_of_a_line_are_those_of_the_model_and_the_machine() -> None:
    """24 GiB, 1008 x 0.9 GB/s, 31.5 x 0.816 GB/s; 32 x 8 experts of 336 MiB are 84 GiB. Keys and
    values of a token are 32 x 2 x 8 x 128 values of 2 bytes.
    """
    machine = of_file("hardware", "rtx4090_pcie4")
    row = machine_row("mine", machine, "about")
    assert row[:5] == ("mine", "24", "907.2", "pcie 25.7", machine["preset"])
    assert row[5] == "37 %, 3 runs"
    assert row[6] == machine["source"]
    compared = {**machine, "validated": "none", "links": {**machine["links"]}}
    assert machine_row("mine", compared, "")[5] == NEVER
    given = {"memory_gib": GIVEN, "preset": "calibrated", "validated": "none", "source": "s"}
    assert machine_row("x", given, "") == (
        "x",
        "given",
        "given",
        "given",
        "calibrated",
        "none",
        "s",
    )
    model = of_file("model", "mixtral_8x7b")
    assert model_row("m", model, "about") == (
        "m",
        "32 x 8, top-2",
        "46.7 B",
        "fp16",
        "336 MiB",
        "84 GiB",
        "128 KiB",
        model["source"],
    )
    other = {**model, "gates_of": "tiny", "sizes_of": "mixtral_8x7b"}
    assert model_row("m", other, "")[7].startswith(f"{model['source']} (")


def test_a_models_experts_are_told_as_they_are_published() -> None:
    """Those of gpt-oss-120b had 213.6 GiB of FP16, which nobody has."""
    oss = of_file("model", "gpt_oss_120b")
    assert model_row("m", oss, "")[3:6] == ("mxfp4", "12.62 MiB", "56.8 GiB")


def test_workloads_traces_systems_and_policies_are_told_from_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = {"batching": "static", "together": 2, "decode_tokens": 9, "source": 3}
    assert workload_row("w", workload, "about") == (
        "w",
        "static, 2 at once",
        "as recorded / 9",
        "about",
        "3",
    )
    one = {**workload, "together": 1, "prompt_tokens": 4}
    assert workload_row("w", one, "")[1:3] == ("static", "4 / 9")
    monkeypatch.setattr(catalogue, "ROOT", tmp_path)
    header = {
        "sequences": [
            {"prompt_tokens": 700, "decode_tokens": 80},
            {"prompt_tokens": 1000, "decode_tokens": 1},
        ],
        "model": {"name": "m", "sites": 3, "experts": 5, "top_k": 2},
        "source": "recorded",
        "licence": "L",
    }
    (tmp_path / HEADER_FILE).write_text(json.dumps(header), encoding="utf-8")
    assert trace_row("t", {"path": "."}, "about") == (
        "t",
        "m: 3 x 5, top-2",
        "2",
        "1,781",
        "about",
        "recorded; L",
    )
    assert trace_row("t", {"path": None}, "about") == (
        "t",
        "the run's model",
        "its own",
        "its own",
        "about",
        "recorded or synthetic, as labels say",
    )
    choices = [{"override /cache": "lru"}, "_self_", {"override /loader": "fast", "precision": "q"}]
    assert system_row("s", {"defaults": choices}, "about") == (
        "s",
        "",
        "lru",
        "q",
        "fast",
        "about",
    )
    assert system_row("s", {}, "about") == ("s", "", "", "", "", "about")
    assert policy_row("p", {"_target_": "a.b.C"}, "about") == ("p", "C", "about")
    assert policy_row("p", {}, "about") == ("p", "", "about")


@pytest.mark.parametrize(("is_terminal", "width"), [(True, None), (False, 250)])
def test_a_list_is_as_wide_as_its_terminal_or_its_lines(
    is_terminal: bool, width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(list_command, "table", lambda kind, own: kind)
    monkeypatch.setattr(
        list_command,
        "Console",
        lambda width: SimpleNamespace(print=lambda what: seen.append((width, what))),
    )
    monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: is_terminal))
    assert main(["models"]) == 0
    assert seen == [(width, "models")]


def test_the_list_of_policies_has_every_file_of_every_mechanism() -> None:
    lines = table("policies")
    parts, told, *_ = ([str(cell) for cell in column.cells] for column in lines.columns)
    ends = [one != next_one for one, next_one in pairwise([*parts, ""])]
    assert [row.end_section for row in lines.rows] == ends
    files = [(p, f.stem) for p in MECHANISMS for f in sorted((ROOT / "conf" / p).glob("*.yaml"))]
    assert list(zip(parts, told, strict=True)) == files


def test_what_an_option_is_stands_in_its_first_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "CONF", tmp_path)
    (tmp_path / "box").mkdir()
    place = tmp_path / "box" / "x.yaml"
    place.write_text(
        "# @package _global_\n# A box, Tang et al. 2024 (sec. 3.4): fast\n# and small. It is"
        " red.\nx: 1\n"
    )
    assert first_sentence("box", "x") == "A box, Tang et al. 2024 (sec. 3.4): fast and small"


@pytest.mark.parametrize("words", [(), ("gpus",)])
def test_what_is_no_list_is_refused_with_those_that_are(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert all(kind in error for kind in KINDS)


def test_two_lists_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("models", "machines")) == 2
    assert "'machines' is no KEY=VALUE" in capsys.readouterr().err


def test_a_list_that_is_not_there_is_refused_by_its_name() -> None:
    known = ", ".join((*KINDS, "policies"))
    with pytest.raises(
        ValueError,
        match=f"^there is no list of 'modles'; choose one of {known}; did you mean models",
    ):
        table("modles")


def test_a_file_that_its_class_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise RuntimeError("broken")

    name = catalogue.names("model")[0]
    with pytest.raises(ValueError, match=rf"model/{name}\.yaml: broken$"):
        catalogue._rows("model", breaks)  # type: ignore[arg-type]


def _own(folder: Path) -> Path:
    """A folder with a cache, a machine and a model of one's own, which begin from files of conf/."""
    for name, text in (
        ("cache/mru.yaml", "# Most recent first. By hand.\n_target_: mru.MRU\n"),
        ("cache/lru.yaml", "# Never read: conf/ has this name.\n_target_: other.LRU\n"),
        ("hardware/card.yaml", "defaults: [rtx4090_pcie4, _self_]\nname: card\nmemory_gib: 9\n"),
        ("hardware/cards.yaml", "defaults: [card, _self_]\nname: cards\n"),
        ("model/own.yaml", "defaults: [tiny_mixtral, _self_]\nname: own\nsites: 3\n"),
    ):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    return folder


def test_what_lies_in_folders_of_ones_own_is_listed_last_as_runs_find_it(tmp_path: Path) -> None:
    own = [_own(tmp_path / "mine")]
    cells = [column.cells for column in table("policies", own).columns]
    rows = [tuple(map(str, row)) for row in zip(*cells, strict=True)]
    assert ("cache", "mru", "MRU", "Most recent first") in rows
    assert [row[2] for row in rows if row[:2] == ("cache", "lru")] == ["LRU"]
    columns = table("machines", own).columns
    assert [*columns[0].cells][-2:] == ["card", "cards"]
    assert [*columns[1].cells][-2:] == ["9", "9"]
    columns = table("models", own).columns
    assert ([*columns[0].cells][-1], [*columns[1].cells][-1]) == ("own", "3 x 8, top-2")


def test_the_word_for_such_folders_is_that_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _own(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    for word in ("[mine]", "['file://mine']", f"[{tmp_path / 'mine'}]"):
        assert main(["policies", f"hydra.searchpath={word}"]) == 0
        assert " mru " in capsys.readouterr().out
    assert main(["policies"]) == 0
    assert " mru " not in capsys.readouterr().out
    assert main(["policies", "hydra.searchpath=[others]"]) == 2
    assert capsys.readouterr().err.startswith(
        f"error: hydra.searchpath=[others]: others is no folder that can be seen from {tmp_path}"
    )
