"""A policy of one's own that is not found: the message has the words that find it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.setup.sections import make_object
from sim.verbs.table import verb_of
from sim.verbs.words import read


def test_a_file_in_a_folder_here_is_named_with_the_words_that_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "cache").mkdir(parents=True)
    (tmp_path / "mine" / "cache" / "mru.yaml").write_text("_target_: mru.MRU\n", encoding="utf-8")
    told = r"mine/cache/mru.yaml is found by cache=mru 'hydra.searchpath=\[mine\]'"
    with pytest.raises(ValueError, match=told):
        read(verb_of("run"), ["system=lru", "cache=mru"])
    with pytest.raises(ValueError, match=r"no cache 'mru'; conf/cache has no copy of mine/cache/m"):
        read(verb_of("check"), ["log", "budget=20B", "policy=mru"])
    (tmp_path / "mine" / "hardware").mkdir()
    (tmp_path / "mine" / "hardware" / "card.yaml").write_text("name: card\n", encoding="utf-8")
    told = r"mine/hardware/card.yaml is found by machine=card 'hydra.searchpath=\[mine\]'"
    with pytest.raises(ValueError, match=told):
        read(verb_of("ask"), ["model=mixtral_8x7b", "machine=card"])
    with pytest.raises(ValueError, match="there is no predictor 'mru'"):
        read(verb_of("run"), ["predictor=mru"])


def test_a_module_that_cannot_be_imported_is_told_with_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_policy.py").write_text("raise RuntimeError('oh')\n", encoding="utf-8")
    (tmp_path / "own_policy.py").write_text("class A:\n    class B:\n        pass\n")
    for target, told in (
        ("absent_policy.MRU", r"No module named 'absent_policy'\); the folder .* in PYTHONPATH"),
        ("broken_policy.MRU", r"can be imported \(oh\)$"),
        ("own_policy.A.C", r"No module named 'own_policy\.A.*\)$"),
        ("", "Empty module name"),
    ):
        with pytest.raises(ValueError, match=told):
            make_object({"_target_": target}, "cache")
    assert type(make_object({"_target_": "own_policy.A.B"}, "cache")).__qualname__ == "A.B"
    assert capfd.readouterr() == ("", "")
