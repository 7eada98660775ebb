"""A word that means what a verb declares is taken for it, by every way into the verb."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from sim import moelab
from sim.verbs.synonyms import KEYS, meanings, spoken
from sim.verbs.table import VERBS, verb_of
from sim.verbs.words import read


def test_a_machine_is_named_by_either_key_wherever_one_of_them_is() -> None:
    for verb in VERBS:
        known = {option.key for option in verb.options} & {"machine", "hardware"}
        for own in known:
            words = ["machine=rtx4090_pcie4", "hardware.memory_gib=12"]
            other = [f"hardware={words[0].partition('=')[2]}", words[1]]
            expected = [f"{own}=rtx4090_pcie4", words[1]]
            assert spoken(verb, words) == spoken(verb, other) == expected, verb.name


def test_a_word_that_the_verb_knows_itself_stays() -> None:
    export = verb_of("export")
    words = ["kv=q8_0", "context=8192", "precision=q4_k_m"]
    assert spoken(export, words) == words
    assert spoken(verb_of("whatif"), ["bits", "precision=int4"]) == ["bits", "precision=int4"]


def test_what_stands_for_a_word_is_no_word_of_the_verb() -> None:
    for verb in VERBS:
        for said, own in meanings(verb):
            assert said != own
            assert said not in verb.choices
            assert not said.endswith("=") or verb.option(said.rstrip("=")) is None
    assert KEYS


def test_the_questions_take_the_words_that_other_verbs_have_for_them() -> None:
    whatif = verb_of("whatif")
    for said, own in (("bandwidth", "link"), ("context", "kv"), ("precision", "bits")):
        assert read(whatif, [said, "system=lru"]).places == (own,)


def test_paths_get_the_quotes_without_which_hydra_does_not_read_them() -> None:
    run, ask = verb_of("run"), verb_of("ask")
    for text in (
        "mine",
        "a b",
        "'größe'",
        "glob(*)",
        "../x",
        "",
        "null",
        "${model.name}/x",
        '"a=b"',
    ):
        assert spoken(run, [f"trace.path={text}"]) == [f"trace.path={text}"]
    for text in ("größe", "mine (1)", "a b/ü (2)/c", "€", "a=b", "[a]", "a{b", "~/x", "a#b", " a"):
        assert spoken(run, [f"trace.path={text}"]) == [f"trace.path='{text}'"]
        assert spoken(run, [f"output_dir={text}"]) == [f"output_dir='{text}'"]
        assert spoken(ask, [f"output_dir={text}"]) == [f"output_dir={text}"], "Hydra never sees it"
    assert spoken(run, ["output_dir=it's"]) == [r"output_dir='it\'s'"]


def test_a_folder_whose_name_is_a_number_or_no_text_keeps_its_name() -> None:
    """Hydra read 2026_11_28 as 20261128, 1e3 as 1000.0, and null as None."""
    run, sweep = verb_of("run"), verb_of("sweep")
    for text in ("2026_11_28", "1e3", "1.50", "nan", "-1", "null", "True"):
        assert spoken(run, [f"output_dir={text}"]) == [f"output_dir='{text}'"]
        assert spoken(sweep, [f"hydra.sweep.dir={text}"]) == [f"hydra.sweep.dir='{text}'"]


def test_a_comma_parts_paths_where_there_may_be_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, sweep = verb_of("run"), verb_of("sweep")
    assert spoken(run, ["output_dir=a,b"]) == ["output_dir='a,b'"]
    assert spoken(sweep, ["trace.path=a,ü,'b,c'"]) == ["trace.path=a,'ü','b,c'"]
    assert spoken(run, ["-m", "trace.path=a,ü"]) == ["-m", "trace.path=a,'ü'"]
    monkeypatch.chdir(tmp_path)
    Path("a,ü").mkdir()
    assert spoken(sweep, ["trace.path=a,ü"]) == ["trace.path='a,ü'"]


def test_words_stay_what_they_are_when_they_are_spoken_again() -> None:
    sweep = verb_of("sweep")
    for text in ("it's", "a,b=c", r"a\'", "'", "(", "1,2"):
        once = spoken(sweep, [f"trace.path={text}"])
        assert spoken(sweep, once) == once


def test_a_command_gets_the_words_as_it_declares_them(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[list[str]] = []
    monkeypatch.setattr(runpy, "run_module", lambda *_, **__: got.append(sys.argv[1:]))
    monkeypatch.setattr(sys, "argv", ["moelab"])
    assert moelab.main(["run", "system=lru", "machine=rtx3090_pcie4"]) == 0
    assert got == [["system=lru", "hardware=rtx3090_pcie4"]]


def test_a_machine_is_one_word_also_where_a_verb_has_no_option_for_it() -> None:
    """It was "no setting", and a cache was said to be meant."""
    found = spoken(verb_of("frontier"), ["system=lru", "machine=rtx3060_pcie4"])
    assert found == ["system=lru", "hardware=rtx3060_pcie4"]
    assert spoken(verb_of("ask"), ["machine=generic"]) == ["machine=generic"]
    assert spoken(verb_of("models"), ["machine=generic"]) == ["machine=generic"]
