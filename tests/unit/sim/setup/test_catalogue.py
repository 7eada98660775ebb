"""The lists of choices: every option has its line, and unknown lists are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.list import main
from sim.setup import catalogue
from sim.setup.catalogue import KINDS, MECHANISMS, first_sentence, table
from sim.values.places import ROOT


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_of_a_kind_has_one_line_with_every_cell_filled(kind: str) -> None:
    lines = table(kind)
    names = [str(cell) for cell in lines.columns[0].cells]
    assert names == sorted(path.stem for path in (ROOT / "conf" / KINDS[kind][0]).glob("*.yaml"))
    assert len(names) == len(set(names)) > 2
    optional = {"source", "predictor", "loader"} if kind in ("workloads", "systems") else set()
    for column in lines.columns:
        assert all(str(cell) for cell in column.cells) or column.header in optional, column.header


@pytest.mark.thorough
def test_figures_of_a_line_are_those_of_the_model_and_the_machine() -> None:
    """24 GiB, 1008 x 0.9 GB/s, 31.5 x 0.816 GB/s; 32 x 8 experts of 336 MiB are 84 GiB."""

    def line(kind: str, name: str) -> list[str]:
        columns = [[str(cell) for cell in column.cells] for column in table(kind).columns]
        return [column[columns[0].index(name)] for column in columns]

    assert line("machines", "rtx4090_pcie4")[1:4] == ["24", "907.2", "pcie 25.7"]
    assert line("models", "mixtral_8x7b")[1:5] == ["32 x 8, top-2", "46.7 B", "336 MiB", "84 GiB"]
    assert line("workloads", "hobbit_16_128")[1:3] == ["sequential", "16 / 128"]


def test_the_list_of_policies_has_every_file_of_every_mechanism() -> None:
    parts, told, *_ = ([str(cell) for cell in column.cells] for column in table("policies").columns)
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
