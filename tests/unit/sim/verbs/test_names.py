"""What files of a small conf/ say without being composed, every answer worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.values.places import CONF
from sim.verbs import complete, names
from sim.verbs.complete import ends_of
from sim.verbs.verb import Kind, Option, Verb

FILES = {
    "config": """
defaults:
  - _self_
  - model: small
  - cache: lru
  - loader: plain
  - system: first
  - override hydra/help: mine
budget: {share: 0.5, gib: null}
seed: 0
hydra: {run: 1}
""",
    "real": "defaults: [config, _self_, {override model: large}]\ndevice: cpu\nseed: 1\n",
    "model/small": "_target_: x\nsites: 2\nexperts: 8\ntop_k: 2\nhidden: 16\nexpert_intermediate: 32\n",
    "model/large": "defaults: [small, _self_]\nsites: 4\nhidden: 64\nlatent: {rank: 3}\n",
    "cache/lru": "shares: null\n",
    "cache/lfu": "shares: {a: 1}\nage: 3\n",
    "loader/plain": "slots: 1\n",
    "system/first": "defaults: [_self_, {override /cache: lfu}]\nbudget: {share: 0.25}\n",
    "system/second": "defaults: [{override /predictor: none}]\nloader: {slots: 2, queue: 5}\n",
    "experiment/more": "model: {sites: 3, layers: 9}\n",
    "broken/list": "[1]",
    "broken/text": "a: [",
}
MODEL = {"_target_": "x", "experts": 8, "top_k": 2, "expert_intermediate": 32}


@pytest.fixture(autouse=True)
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(names, "CONF", tmp_path)
    return tmp_path


def test_the_names_of_a_group_are_its_files_in_order() -> None:
    assert names.names("cache") == ("lfu", "lru")
    assert names.names("nothing") == ()


def test_a_file_that_cannot_be_read_says_nothing(conf: Path) -> None:
    (conf / "broken/bytes.yaml").write_bytes(b"a: \xff")
    assert [
        names.read(conf / f"broken/{name}.yaml") for name in ("list", "text", "bytes", "no")
    ] == [{}] * 4


def test_only_the_nearest_of_the_near_names_is_told() -> None:
    assert names.nearest("hobit", ("hobbit", "hobbit_cpu")) == "; did you mean hobbit?"
    assert names.nearest("zzz", ("hobbit",)) == ""


def test_sections_are_groups_and_own_values_of_a_file_and_of_what_it_begins_from() -> None:
    groups = dict.fromkeys(("model", "cache", "loader", "system"))
    own: dict[str, Any] = {"budget": {"share": 0.5, "gib": None}, "seed": 0}
    assert names.sections("config") == groups | own
    assert names.sections("real") == groups | own | {"device": "cpu", "seed": 1}


@pytest.mark.parametrize(
    ("group", "chosen", "found"),
    [
        # Both systems and the experiment add theirs to whatever file is chosen.
        ("model", "small", MODEL | {"sites": 3, "hidden": 16, "layers": 9}),
        ("model", "large", MODEL | {"sites": 3, "hidden": 64, "latent": {"rank": 3}, "layers": 9}),
        # A name that is no file: all of them together, in order, so that small is the last.
        ("model", "other", MODEL | {"sites": 3, "hidden": 16, "latent": {"rank": 3}, "layers": 9}),
        ("cache", "lru", {"shares": None}),
        ("cache", None, {"shares": {"a": 1}, "age": 3}),
        ("loader", "plain", {"slots": 2, "queue": 5}),
        # No group: the configuration's own, without what systems say.
        ("budget", None, {"share": 0.5, "gib": None}),
        ("seed", None, {}),
        ("nothing", None, {}),
    ],
)
def test_a_section_is_a_file_and_what_systems_and_experiments_put_into_it(
    group: str, chosen: str | None, found: dict[str, Any]
) -> None:
    assert names.section("config", group, chosen) == found


def test_the_values_of_the_configuration_itself_are_a_part_of_a_groups_section(conf: Path) -> None:
    (conf / "own.yaml").write_text("cache: {mine: 1, age: 2}\n", encoding="utf-8")
    assert names.section("own", "cache", "lfu") == {"mine": 1, "shares": {"a": 1}, "age": 3}


@pytest.mark.parametrize(
    ("config", "group", "words", "chosen"),
    [
        ("config", "model", {"model": "mine"}, "mine"),
        ("config", "model", {"cache": "lfu"}, "small"),
        ("real", "model", {}, "large"),
        ("real", "loader", {}, "plain"),
        ("config", "cache", {}, None),  # the system first chooses it
        ("config", "cache", {"cache": "lru"}, "lru"),
        ("config", "predictor", {}, None),  # in nobody's list
    ],
)
def test_a_group_is_chosen_by_a_word_then_by_the_file_then_by_what_that_begins_from(
    config: str, group: str, words: dict[str, str], chosen: str | None
) -> None:
    assert names.chosen(config, group, words) == chosen


def test_a_system_chooses_what_it_overrides() -> None:
    assert names.chosen_by("first", "cache") == "lfu"
    assert names.chosen_by("second", "predictor") == "none"
    assert names.chosen_by("second", "cache") is None
    assert names.chosen_by("nobody", "cache") is None


def test_a_section_stays_one_where_the_other_has_none() -> None:
    base = {"a": {"b": 1, "c": {"d": 2}}, "e": 3, "f": {"g": 4}}
    over = {"a": {"c": {"h": 5}}, "e": None, "f": None, "i": None}
    merged = {"a": {"b": 1, "c": {"d": 2, "h": 5}}, "e": None, "f": {"g": 4}, "i": None}
    assert names.merged(base, over) == merged
    assert base == {"a": {"b": 1, "c": {"d": 2}}, "e": 3, "f": {"g": 4}}, "it is copied"
    assert names.merged({"f": {"g": 4}}, {"f": 7}) == {"f": 7}


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("a", None),
        ("a.b", None),
        ("a.b.c", None),  # below a value anything may stand
        ("a.x.y", ("x", ["b", "d"])),
        ("a.d.x", ("x", ["e"])),
        ("x.a", ("x", ["a"])),
    ],
)
def test_the_part_of_a_key_that_is_not_there_is_told_with_what_is(key: str, found: object) -> None:
    assert names.lost(key, {"a": {"_target_": 0, "b": 1, "d": {"e": 2}}}) == found


# Models


def models(conf: Path, **rows: tuple[int, int, int, int, int]) -> None:
    """Files of models with these sizes, in the order of `names.SIZES`, instead of the two."""
    for path in (conf / "model").glob("*.yaml"):
        path.unlink()
    for name, sizes in rows.items():
        text = "".join(f"{k}: {v}\n" for k, v in zip(names.SIZES, sizes, strict=True))
        (conf / f"model/{name}.yaml").write_text(text, encoding="utf-8")


def test_a_model_for_gates_is_one_of_the_shape_else_a_part_of_one_else_a_stand_in(
    conf: Path,
) -> None:
    models(
        conf,
        a=(4, 8, 2, 16, 32),
        b=(4, 8, 2, 64, 32),
        c=(9, 8, 2, 16, 40),
        d=(4, 8, 3, 16, 32),
    )
    # Hidden sizes do not count here: the gates have none.
    assert names.models_for(4, 8, 2, 1, 1) == "model=a or model=b"
    part = "model=a model.sites=3 (3 of its 4 layers with experts)"
    assert names.models_for(3, 8, 2, 1, 1) == part
    part = "model=c model.sites=5 (5 of its 9 layers with experts)"
    assert names.models_for(5, 8, 2, 1, 1) == part
    made = (
        ", or the model that it is of (moelab models from=config.json output=FILE makes its file)"
    )
    # Ten layers are more than any has. Of a and d, whose experts are as wide, a is as top_k is.
    found = "model=a model.sites=10 (all but the experts as of a)"
    assert names.models_for(10, 8, 2, 16, 32) == found + made
    found = "model=b model.experts=9 (all but the experts as of b)"
    assert names.models_for(4, 9, 2, 64, 32) == found + made


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((4, 8, 2, 16, 32), "model=a"),
        ((4, 8, 2, 16, 39), "model=c model.sites=4 model.expert_intermediate=39"),
        ((4, 8, 2, 60, 32), "model=b model.hidden=60"),
        ((4, 8, 4, 16, 32), "model=d model.top_k=4"),
        ((4, 7, 2, 16, 32), "model=a model.experts=7"),
        ((6, 8, 2, 16, 32), "model=e model.sites=6"),
    ],
)
def test_the_stand_in_is_near_in_width_then_hidden_then_top_k_then_experts_then_sites(
    conf: Path, sizes: tuple[int, ...], words: str
) -> None:
    models(
        conf,
        a=(4, 8, 2, 16, 32),
        b=(4, 8, 2, 64, 32),
        c=(9, 8, 2, 16, 40),
        d=(4, 8, 3, 16, 32),
        e=(7, 8, 2, 16, 32),
    )
    # Neither a model of two sides nor one without all sizes stands in.
    wide = "sites: 4\nexperts: 8\ntop_k: 2\nhidden: 16\nexpert_intermediate: 38\nencoder_sites: 2\n"
    (conf / "model/sides.yaml").write_text(wide, encoding="utf-8")
    (conf / "model/begun.yaml").write_text("experts: 8\nhidden: 60\n", encoding="utf-8")
    shape = dict(zip(names.SIZES, sizes, strict=True))
    run, _, comment = names.run_of(shape, Path("mine")).partition("  # ")
    assert run == f"moelab run system=lru {words} trace.path=mine"
    name = words.split()[0].partition("=")[2]
    why = f"no listed model has these sizes: all but the experts as of {name}"
    assert comment == ("" if words == "model=a" else why)


def test_a_model_whose_half_may_not_fit_is_run_with_the_experts_that_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(names, "CONF", CONF)
    (machine,) = (
        one["hardware"]
        for one in names.read(CONF / "config.yaml")["defaults"]
        if isinstance(one, dict) and "hardware" in one
    )
    assert names.of_file("hardware", machine)["memory_gib"] == names.MEMORY_GIB
    shape = dict(zip(names.SIZES, (32, 8, 2, 4096, 14336), strict=True))
    run = names.run_of(shape, Path("a b"))
    assert run == "moelab run system=lru model=mixtral_8x7b 'trace.path=a b' budget=fit"
    half = names.run_of(shape | {"sites": 8}, Path("mine"))
    assert "budget" not in half


# Completion

VERB = Verb(
    "try",
    "ask",
    "sim.try",
    "Try.",
    (
        Option("model", "which", Kind.NAME, values=("model",)),
        Option("caches", "which", Kind.NAMES, values=("cache",)),
        Option("kinds", "some", Kind.SOME, values=("one", "other")),
        Option("kind", "one", Kind.ONE, values=("one", "other")),
        Option("again", "whether", Kind.YES),
        Option("PART", "stands for several"),
    ),
    places="link|memory",
    place_group="system",
    config="config",
    refused=("budget",),
)


@pytest.mark.parametrize(
    ("begun", "ends"),
    [
        (
            "",
            "again= cache= caches= first kind= kinds= link loader= memory model= second seed= system=",
        ),
        ("l", "link loader="),
        ("model=", "model=large model=small"),
        ("model=la", "model=large"),
        ("model=small,la", ""),
        ("caches=lru,l", "caches=lru,lfu caches=lru,lru"),
        ("kinds=one,o", "kinds=one,one kinds=one,other"),
        ("kind=o", "kind=one kind=other"),
        ("kind=one,o", ""),
        ("again=", "again=yes again=no"),
        ("loader=p", "loader=plain"),  # of no option, but a group
        ("loader.", "loader.queue= loader.slots="),
        ("model.l", "model.layers="),  # of small, and no _target_
        ("model._", ""),
        ("cache.", "cache.age= cache.shares."),
        ("cache.shares.", "cache.shares.a="),
        ("cache.age.x.", ""),
        ("nothing.x", ""),
    ],
)
def test_a_shell_is_offered_each_word_that_may_stand_there(begun: str, ends: str) -> None:
    assert ends_of(VERB, begun) == ends.split()


def test_a_verb_that_sweeps_takes_several_values_of_any_key() -> None:
    verb = Verb("try", "ask", "sim.try", "Try.", VERB.options, config="config", sweeps=True)
    assert complete.values_of(verb, "model", "small,la") == ["small,large"]
    assert complete.values_of(verb, "kind", "one,ot") == ["one,other"]
    assert ends_of(Verb("no", "ask", "sim.no", "No.", VERB.options[:1]), "") == ["model="]
