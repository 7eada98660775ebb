"""Compositions without hydra are hydra's own, for every file of conf/, to the order of keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from sim.setup.configure import configure
from sim.study import composing
from sim.study.composing import compose_plainly
from sim.values.places import CONF

ONLY_HYDRAS = ("study", "experiment", "devices")
"""Groups of which nothing is chosen by default, or whose files belong inside another section."""
MORE_THAN_CHOICES = ("edgemoe", "expected_needs", "resident_int2")
"""The systems whose files are more than choices, so that hydra composes them."""
FILES = sorted(
    f"{path.parent.name}={path.stem}"
    for path in CONF.glob("*/*.yaml")
    if path.parent.name not in ONLY_HYDRAS and path.stem not in MORE_THAN_CHOICES
)


def by_hydra(*words: str) -> str:
    return json.dumps(OmegaConf.to_container(configure(*words)[0], resolve=True))


def plainly(*words: str) -> str:
    found = compose_plainly(words)
    assert found is not None, f"{words} were left to hydra"
    return json.dumps(found[0])


def check_files(files: list[str]) -> None:
    """Check every file once, beside some file of another group.

    Its values must not be taken for the other file's.
    """
    for word, other in zip(files, [*files[37:], *files[:37]], strict=True):
        words = (word, other) if word.split("=")[0] != other.split("=")[0] else (word,)
        assert plainly(*words) == by_hydra(*words), words


@pytest.mark.thorough
def test_one_of_25_files_composes_as_by_hydra() -> None:
    check_files(FILES[::25])


# Contracts: C135
@pytest.mark.thorough
def test_every_file_composes_as_by_hydra() -> None:
    check_files(FILES)


def test_no_choice_is_the_default_and_of_two_the_word_holds_against_the_system() -> None:
    assert plainly() == by_hydra()
    assert plainly("cache=lfu", "system=fate") == by_hydra("cache=lfu", "system=fate")


@pytest.mark.parametrize(
    "word",
    [
        "+experiment=more_memory",
        "experiment=more_memory",
        *(f"system={name}" for name in MORE_THAN_CHOICES),
        "system=none_such",
        "cache=[lru]",
        "seed=1",
        "cache@x=lru",
    ],
)
def test_what_is_no_plain_choice_is_left_to_hydra(word: str) -> None:
    assert compose_plainly([word]) is None


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("cache/mine.yaml", "defaults: [lru]\nscope: site\n"),
        ("cache/mine.yaml", "scope: ${seed}\n"),
        ("cache/mine.yaml", "# @package _global_\nseed: 3\n"),
        ("cache/mine.yaml", "defaults:\n  - /workload: sequential\n  - _self_\nscope: site\n"),
        ("cache/mine.yaml", "scope: [site\n"),
        ("system/mine.yaml", "# @package _global_\ndefaults:\n  - override /cache: lru\nseed: 3\n"),
        ("system/mine.yaml", "defaults:\n  - override /cache: lru\n"),
    ],
)
def test_a_file_that_is_not_plain_is_left_to_hydra(
    place: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in CONF.glob("**/*.yaml"):
        copy = tmp_path / path.relative_to(CONF)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(composing, "CONF", tmp_path)
    forget()
    try:
        word = place.removesuffix(".yaml").replace("/", "=")
        (tmp_path / place).write_text(
            "{}\n" if word.startswith("cache") else "# @package _global_\n{}\n"
        )
        assert compose_plainly([word]) is not None
        forget()
        (tmp_path / place).write_text(text, encoding="utf-8")
        assert compose_plainly([word]) is None
    finally:
        forget()


def forget() -> None:
    for each in (composing._whole, composing._mechanisms, composing._option):
        each.cache_clear()
