"""Compositions without hydra are hydra's own, for every file of conf/, to the order of keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
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


CONFIG = """
defaults:
  - _self_
  - cache: lru
    devices: null
  - loader: plain
  - system: two
  - override hydra/job_logging: stdout
seed: 3
output_dir: ${hydra:runtime.output_dir}
hydra: {run: {dir: "${now:x}"}}
"""
SMALL = {
    "config.yaml": CONFIG,
    "cache/lru.yaml": "a: 1\nb: {c: 2, d: [1]}\n",
    "cache/lfu.yaml": "defaults: [lru, _self_]\nb: {c: 3, e: 4}\nf: null\n",
    "cache/base.yaml": "defaults: [_self_, lru]\na: 7\n",
    "cache/same.yaml": "defaults: [lru]\n",
    "devices/one.yaml": "n: 1\n",
    "loader/plain.yaml": "{}\n",
    "loader/fast.yaml": "x: 1\n",
    "system/two.yaml": (
        "# @package _global_\ndefaults: [{override /cache: lfu}, {override /loader: fast}]\n"
    ),
    "system/one.yaml": "# @package _global_\n{}\n",
}
"""A whole ``conf`` of few files."""


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in SMALL.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(composing, "CONF", tmp_path)
    forget()
    yield tmp_path
    forget()


def test_what_a_word_a_system_and_the_defaults_choose_is_merged_over_what_it_starts_from(
    conf: Path,
) -> None:
    own = {"seed": 3, "output_dir": "unused"}
    lru, lfu = {"a": 1, "b": {"c": 2, "d": [1]}}, {"a": 1, "b": {"c": 3, "d": [1], "e": 4}}
    lfu["f"] = None
    fast = {"x": 1}
    assert compose_plainly([]) == ({**own, "cache": lfu, "loader": fast}, "two")
    assert compose_plainly(["cache=lru"]) == ({**own, "cache": lru, "loader": fast}, "two")
    assert compose_plainly(["system=one"]) == ({**own, "cache": lru, "loader": {}}, "one")
    for name, cache in (("base", {**lru}), ("same", lru)):
        found = compose_plainly(["system=one", f"cache={name}", "loader=fast"])
        assert found == ({**own, "cache": cache, "loader": fast}, "one"), name
    kept = compose_plainly([])
    assert kept is not None
    kept[0]["cache"]["b"]["d"].append(2)
    assert compose_plainly([]) == ({**own, "cache": lfu, "loader": fast}, "two"), "a copy"
    assert compose_plainly(["devices=one"]) is None, "nothing is chosen there by default"


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("cache/lru.yaml", "defaults: [same]\nscope: site\n"),
        ("cache/lru.yaml", "scope: ${seed}\n"),
        ("cache/lru.yaml", "# @package _global_\nseed: 3\n"),
        ("cache/lru.yaml", "defaults:\n  - /loader: fast\n  - _self_\nscope: site\n"),
        ("cache/lru.yaml", "scope: [site\n"),
        ("cache/lru.yaml", "- 1\n"),
        ("cache/same.yaml", "defaults: [none_such]\n"),
        ("system/one.yaml", "# @package _global_\ndefaults: [override /cache: lru]\nseed: 3\n"),
        ("system/one.yaml", "# @package _global_\nseed: 3\n"),
        ("system/one.yaml", "# @package _global_\ndefaults: [{override /cache: lru, loader: x}]\n"),
        ("system/one.yaml", "# @package _global_\ndefaults: [two]\n"),
        ("system/one.yaml", "# @package _global_\ndefaults: [{override /system: two}]\n"),
        ("system/one.yaml", "defaults:\n  - override /cache: lru\n"),
        ("config.yaml", CONFIG.replace("  - loader: plain", "  - loader")),
        ("config.yaml", CONFIG.replace("seed: 3", "cache: 3")),
        ("config.yaml", CONFIG.replace("system: two", "system: null")),
        ("config.yaml", CONFIG.replace("  - _self_\n", "").replace("two\n", "two\n  - _self_\n")),
        (
            "config.yaml",
            CONFIG.replace("- _self_", "- cache: lfu").replace("two\n", "two\n  - _self_\n"),
        ),
    ],
)
def test_a_file_that_is_not_plain_is_left_to_hydra(place: str, text: str, conf: Path) -> None:
    words = ["system=one", f"cache={'same' if 'same' in place else 'lru'}"]
    assert compose_plainly(words) is not None
    forget()
    (conf / place).write_text(text, encoding="utf-8")
    assert compose_plainly(words) is None


def forget() -> None:
    for each in (composing._whole, composing._mechanisms, composing._option):
        each.cache_clear()
