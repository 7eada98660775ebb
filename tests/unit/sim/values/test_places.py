"""Where the project's files lie: in a checkout here, and as an installed package would have them.

What a wheel carries and writes is tried by .ci/wheel, with a wheel.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from sim.values import places
from sim.values.code import files_digest


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an installation: configuration inside ``sim``, nothing beside the packages."""
    (tmp_path / "sim" / "conf" / "cache").mkdir(parents=True)
    monkeypatch.setattr(places, "ROOT", tmp_path)
    monkeypatch.setattr(places, "CONF", tmp_path / "sim" / "conf")
    monkeypatch.setattr(places, "IS_CHECKOUT", False)
    return tmp_path


def test_here_is_a_checkout_whose_files_are_called_by_their_place_in_it() -> None:
    assert places.IS_CHECKOUT
    assert places.name_of(places.CONF / "cache" / "lru.yaml") == Path("conf/cache/lru.yaml")
    assert places.name_of(places.ASSETS / "x.json") == Path("capture/assets/x.json")
    assert places.machine_file("mine") == places.CONF / "hardware" / "mine.yaml"


def test_an_option_has_one_name_and_one_digest_wherever_the_package_lies(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (installed / "conf" / "cache").mkdir(parents=True)
    here = places.ROOT / "sim" / "conf" / "cache" / "lru.yaml"
    here.write_text("size: 1\n", encoding="utf-8")
    assert places.name_of(here) == Path("conf/cache/lru.yaml")
    assert places.name_of(installed / "sim" / "study" / "a.yaml") == Path("sim/study/a.yaml")
    assert places.name_of(Path("/elsewhere/a.yaml")) == Path("a.yaml")
    carried = files_digest([here])
    monkeypatch.setattr(places, "CONF", installed / "conf")
    beside = here.rename(installed / "conf" / "cache" / "lru.yaml")
    assert files_digest([beside]) == carried


def test_no_command_writes_a_machine_into_an_installed_package(installed: Path) -> None:
    assert places.machine_file("mine") == Path("mine/hardware/mine.yaml")


def test_results_may_go_where_nothing_is(tmp_path: Path) -> None:
    assert places.is_free(tmp_path)
    assert places.is_free(tmp_path / "absent")
    (tmp_path / "file").touch()
    assert not places.is_free(tmp_path)
    assert not places.is_free(tmp_path / "file")


@pytest.mark.parametrize("file", ["own.yaml", "other/own.yaml", "hardware/own.yaml"])
def test_a_file_that_no_run_finds_is_told_with_the_place_where_one_would(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The printed command had the name of the file's folder as a key, and the working directory as
    a place to search, where the folder ``outputs`` of its runs is taken for the key of that name.
    """
    monkeypatch.chdir(tmp_path)
    there = "hardware=own 'hydra.searchpath=[mine]'"
    for path in (Path(file), tmp_path / file):
        assert places.words_for(path, "hardware") == f"{there}  # once it lies in mine/hardware"
    assert places.words_for(Path("mine/hardware/own.yaml"), "hardware") == there
    assert places.words_for(places.CONF / "hardware" / "own.yaml", "hardware") == "hardware=own"


@pytest.mark.parametrize(
    "text",
    [
        "2026_11_28",
        "a=b",
        "a,b",
        "it's",
        "'",
        "''",
        "a\\",
        r"a\'b",
        "[x]",
        "{a: 1}",
        "€ ü",
        " a ",
        "",
    ],
)
def test_hydra_reads_a_quoted_text_as_it_was(text: str) -> None:
    word = OverridesParser.create().parse_override(f"key={places.quoted(text)}")
    assert str(word.value()) == text
    assert places.unquoted(places.quoted(text)) == text
