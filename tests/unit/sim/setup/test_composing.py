"""Compositions without hydra are hydra's own, for every file of conf/, to the order of keys."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from sim.setup import composing
from sim.setup import configure as configuring
from sim.setup.composing import compose_plainly, plain_word
from sim.setup.configure import composed_by_hydra, configure
from sim.values.places import CONF

ONLY_HYDRAS = ("study", "experiment", "devices")
"""Groups of which nothing is chosen by default, or whose files belong inside another section."""
FILES = sorted(
    f"{path.parent.name}={path.stem}"
    for path in CONF.glob("*/*.yaml")
    if path.parent.name not in ONLY_HYDRAS
)


def by_hydra(*words: str, config: str = "config") -> str:
    found = OmegaConf.to_container(composed_by_hydra(words, config), resolve=False)
    assert isinstance(found, dict)
    del found["hydra"]
    return json.dumps(found)


def plainly(*words: str, config: str = "config") -> str:
    found = compose_plainly(words, config)
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
    assert plainly(config="real") == by_hydra(config="real")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("config", ["budget.slots_gib=2", "budget.resident_share=0.50", "seed=-0", "cache=lfu"]),
        ("config", ["trace.path=/data/of mine-1.5/x".replace(" ", "_"), "system=hobbit"]),
        ("config", ["system=edgemoe", "budget.resident_share=1.0", "loader.chunk_bytes=65536"]),
        ("config", ["system=expected_needs", "loader=on_demand", "loader.prefetch_budget=all"]),
        ("config", ["timeline_steps=NULL", "trace.split=all", "cache.initial=True"]),
        (
            "config",
            ["hardware.links.pcie.peak_gb_per_s=12.5", "outputs=summary", "output_dir=a/b.c"],
        ),
        ("real", ["model=tiny_qwen2moe", "engine.cold=true", "live.prompt_tokens=8", "seed=3"]),
        ("config", ["budget=fit", "++model.kv_bits=8.5", "++seed=1.5e-05", "++more=2E3"]),
        ("config", ["budget=1", "hardware.links=none", "++budget_2=x", "trace.split=e5"]),
        ("config", ["+workload.decode_tokens=4", "+none_such=x", "workload.prompt_tokens=3"]),
        ("real", ["system=edgemoe", "hardware=rtx4090_pcie4", "device=null"]),
    ],
)
def test_values_are_set_as_by_hydra(config: str, words: list[str]) -> None:
    # What hydra's caller wants of an output folder is not asked here.
    asked = [word for word in words if not word.startswith("output_dir")]
    assert plainly(*asked, config=config) == by_hydra(*asked, config=config)
    if asked != words:
        assert json.loads(plainly(*words))["output_dir"] == "a/b.c"


def test_a_configuration_is_equal_to_hydras_and_of_the_same_kind() -> None:
    words = ("system=lru", "cache=lfu", "budget.resident_share=0.25")
    cfg, name = configure(*words)
    # An empty list of hydra's own makes the same words its business.
    same, its = configure(*words, "hydra.job.env_copy=[]")
    assert cfg == same
    assert list(cfg) == list(same)
    assert type(cfg) is type(same)
    assert name == its == "lru cache=lfu"
    assert OmegaConf.is_struct(cfg) == OmegaConf.is_struct(same)
    assert OmegaConf.is_readonly(cfg) == OmegaConf.is_readonly(same)
    cfg.cache.kind = "x"
    assert "kind" not in configure(*words)[0].cache, "a copy"


VALUES = st.one_of(
    st.text("aenfitrul01/._-+~:=,[]'$ {}E", max_size=6),
    st.sampled_from(("null", "True", "NaN", "inf", "-1", "1.50", "1e3", "0.1.2", "007", "1_000")),
    st.integers(-(10**20), 10**20).map(str),
    st.floats().map(str),
)


@given(
    st.sampled_from(("seed", "a.b", "a.0", "+seed", "~seed", "a@b", "a/b", "A_1", "++a")), VALUES
)
@settings(max_examples=300, deadline=None)
def test_what_is_read_plainly_is_what_hydra_reads(key: str, text: str) -> None:
    word = f"{key}={text}"
    if (found := plain_word(word)) is None:
        return
    override = OverridesParser.create().parse_override(word)
    assert override.type is OverrideType.CHANGE
    assert override.package is None
    assert not override.is_sweep_override()
    assert found == (override.key_or_group, override.value())
    assert type(found[1]) is type(override.value())


def test_a_file_that_was_changed_is_read_again(conf: Path) -> None:
    assert compose_plainly(["cache=lru"]) is not None
    (conf / "cache/lru.yaml").write_text("a: 23\n", encoding="utf-8")
    found = compose_plainly(["cache=lru"])
    assert found is not None
    assert found[0]["cache"] == {"a": 23}


@pytest.mark.parametrize(
    "word",
    [
        "+experiment=more_memory",
        "experiment=more_memory",
        "system=none_such",
        "cache=[lru]",
        "cache=null",
        "cache=5",
        "cache@x=lru",
        "seed=",
        "+seed=1",
        "+timeline_steps=1",
        "+budget.resident_share=1",
        "+none_such.more=1",
        "+devices=layers_2",
        "~seed",
        "none_such=1",
        "seed.none_such=1",
        "budget.none_such=1",
        "budget.none_such.more=1",
        "++cache=lru",
        "++none_such.more=1",
        "++hydra=1",
        "hydra.run.dir=x",
    ],
)
def test_what_is_no_plain_choice_is_left_to_hydra(word: str) -> None:
    assert compose_plainly([word]) is None


def test_two_words_for_one_key_are_left_to_hydra() -> None:
    assert compose_plainly(["seed=1", "seed=2"]) is None
    assert compose_plainly(["+more=1", "+more=2"]) is None
    assert compose_plainly(["+more=1", "more=2"]) is None
    assert compose_plainly(["seed=2", "+seed=1"]) is None
    assert compose_plainly(["cache=lru", "cache=lru"]) is None


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
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in SMALL.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(composing, "CONF", tmp_path)
    return tmp_path


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
    (conf / "system/one.yaml").write_text(
        "# @package _global_\ndefaults: [override /cache: lfu]\nseed: 4\ncache: {a: 2, g: 1}\n",
        encoding="utf-8",
    )
    found = compose_plainly(["system=one", "cache=lru"])
    assert found == ({**own, "seed": 4, "cache": {**lru, "a": 2, "g": 1}, "loader": {}}, "one")
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
        ("system/one.yaml", "# @package _global_\ndefaults: [{override /cache: lru, loader: x}]\n"),
        ("system/one.yaml", "# @package _global_\ndefaults: [two]\n"),
        ("system/one.yaml", "# @package _global_\ndefaults: [{override /system: two}]\n"),
        ("system/one.yaml", "defaults:\n  - override /cache: lru\n"),
        ("system/one.yaml", "# @package _global_\ndefaults: [{override /other: own}]\n"),
        ("system/one.yaml", "# @package _global_\ndefaults: [{override /cache: 1}]\n"),
        ("system/one.yaml", "# @package _global_\nhydra: {job: {chdir: true}}\n"),
        ("system/one.yaml", "# @package _global_\ncache: {b: [1]}\n"),
        ("cache/same.yaml", "defaults: [other/own]\n"),
        ("cache/same.yaml", "defaults: [same]\n"),
        ("cache/same.yaml", "defaults:\na: 1\n"),
        ("cache/same.yaml", "defaults: [_self_, lru, _self_]\na: 1\n"),
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
    for folder in ("other", "cache/other"):
        (conf / folder).mkdir()
        (conf / folder / "own.yaml").write_text("x: 1\n", encoding="utf-8")
    (conf / place).write_text(text, encoding="utf-8")
    assert compose_plainly(words) is None


def test_names_that_are_no_text_are_left_to_hydra(conf: Path) -> None:
    """Hydra reads a number, a truth value or nothing there, and refuses it."""
    for name, word in (("1", "1"), ("True", "true"), ("None", "null"), ("1.5", "1.5")):
        (conf / f"cache/{name}.yaml").write_text("a: 1\n", encoding="utf-8")
        assert compose_plainly([f"cache={word}"]) is None, word
    assert compose_plainly(["cache=None"]) is not None


def test_what_is_still_to_be_given_replaces_nothing_and_the_first_of_two_choices_holds(
    conf: Path,
) -> None:
    """As by hydra: ``test_a_system_of_ones_own_composes_as_by_hydra``."""
    (conf / "system/one.yaml").write_text(
        "# @package _global_\ndefaults: [{override /cache: lfu}, {override /cache: base}]\n"
        'cache: {f: "???", a: "???"}\n',
        encoding="utf-8",
    )
    found = compose_plainly(["system=one"])
    assert found is not None
    assert found[0]["cache"] == {"a": 1, "b": {"c": 3, "d": [1], "e": 4}, "f": None}


@pytest.mark.parametrize("config", ["config", "real"])
def test_a_system_of_ones_own_composes_as_by_hydra(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sets something in a section that ``real.yaml`` has, chooses twice, and leaves open."""
    shutil.copytree(CONF, tmp_path / "conf")
    for module in (composing, configuring):
        monkeypatch.setattr(module, "CONF", tmp_path / "conf")
    (tmp_path / "conf/system/own.yaml").write_text(
        "# @package _global_\ndefaults: [{override /cache: lru}, {override /cache: lfu}]\n"
        "engine: {extra: 1, cold: true}\ncache:\n  initial: ???\n",
        encoding="utf-8",
    )
    assert plainly("system=own", config=config) == by_hydra("system=own", config=config)
