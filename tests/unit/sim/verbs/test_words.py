"""Words are checked against their verb's declaration, by names that files of conf/ have."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.wrong_words import WRONG
from sim.values.fields import HEADER_FILE
from sim.values.places import ASSETS, CONF, ROOT
from sim.verbs import words as words_module
from sim.verbs.begin import answered
from sim.verbs.complete import ends_of, values_of
from sim.verbs.names import SIZES, lost, names, run_of, section, sections
from sim.verbs.options import BUNDLED_MODELS, PROMPT_SETS
from sim.verbs.table import VERBS, by_words, verb_of
from sim.verbs.verb import Kind, Option, Verb
from sim.verbs.words import check_value, is_place, read


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_the_examples_of_a_verb_are_three_and_every_word_of_them_is_known(
    verb: Verb, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(words_module, "has_cuda", lambda: True)
    assert len(verb.examples) == 3
    for example in verb.examples:
        words = shlex.split(example)
        length = 2 if " ".join(words[:2]) in by_words() else 1
        called = verb_of(" ".join(words[:length]))
        # Files of a user's own, and what an earlier example makes.
        own = {"qwen.route.csv", "routes.parquet", "routes.csv", "tokens.csv", "DIR"}
        rest = [
            f"{k}=." if v in own else w for w in words[length:] for k, _, v in [w.partition("=")]
        ]
        read(called, rest)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_the_options_of_a_verb_have_a_meaning_and_defaults_that_are_allowed(
    verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words_module, "has_cuda", lambda: True)
    keys = [option.key for option in verb.options]
    assert len(keys) == len(set(keys))
    assert verb.about.endswith(".")
    for option in verb.options:
        assert option.meaning
        assert not (option.is_needed and option.default)
        if option.kind in (Kind.NAME, Kind.NAMES):
            assert names(option.values[0])
        if option.kind is Kind.ONE and option.default:
            check_value(option, option.default)


@pytest.mark.parametrize(("line", "told"), WRONG.items(), ids=list(WRONG))
def test_a_wrong_word_is_one_line_with_the_way_out(
    line: str,
    told: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)
    length = 2 if " ".join(words[:2]) in by_words() else 1
    assert answered(verb_of(" ".join(words[:length])), words[length:]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (error,) = printed.err.splitlines()
    assert error.startswith("error: ")
    assert told in error
    assert list(tmp_path.iterdir()) == []


def test_there_are_a_hundred_wrong_lines_and_one_of_every_verb() -> None:
    assert len(WRONG) >= 100
    missing = {verb.name for verb in VERBS} - {
        next(n for n in (" ".join(line.split()[:2]), line.split()[0]) if n in by_words())
        for line in WRONG
    }
    assert not missing


def test_what_hydra_takes_is_not_refused() -> None:
    for line in (
        "system=hobbit cache.shares=[0.5,0.5]",
        "+model.kv_bits=8",
        "~cache.shares",
        "hardware=rtx4090_nvme hardware.links.nvme.peak_gb_per_s=7",
        "hydra.run.dir=out",
        "--config-dir=. hardware=mine",
        "hydra.searchpath=[file:///x] system=mine",
        "experiment=more_memory",
        "-m system=lru,hobbit",
        "'system=glob(*)' -m",
        "trace.exclude=[1,2]",
        "budget.slots_gib=12 budget={slots_gib:3}",
        "hardware.ram=null",
        "devices=layers_2 hardware.devices.shares=[8,9] hardware.devices.links=shared",
    ):
        assert answered(verb_of("run"), shlex.split(line)) is None, line


@pytest.mark.parametrize(
    "words", [("mine", "lru"), ("lru", "mine precision=fp16")], ids=["alone", "with its words"]
)
def test_a_system_in_a_folder_that_hydra_searches_is_compared(words: tuple[str, str]) -> None:
    """It was refused with the very words that had been given."""
    assert read(verb_of("compare"), (*words, "hydra.searchpath=[mine]")).places == words
    with pytest.raises(ValueError, match="there is no system 'mine'"):
        read(verb_of("compare"), words)


def test_every_key_of_every_machine_and_model_is_known_to_be_there() -> None:
    def leaves(node: object, place: str) -> list[str]:
        if not isinstance(node, dict) or not node:
            return [place]
        return [leaf for key, value in node.items() for leaf in leaves(value, f"{place}.{key}")]

    for group in ("hardware", "model", "workload"):
        for name in names(group):
            values = section("config", group, name)
            for key in leaves(values, group):
                if "_target_" not in key:
                    assert answered(verb_of("run"), [f"{group}={name}", f"{key}=1"]) is None, key


def test_sections_are_those_of_the_configuration_and_of_what_it_begins_from() -> None:
    assert {"model", "hardware", "budget", "seed"} <= set(sections("config"))
    assert {"engine", "live", "hardware", "budget"} <= set(sections("real"))
    assert "hydra" not in sections("config")
    assert lost("a.b.c", {"a": {"b": None}}) is None
    assert lost("a.x", {"a": {"b": 1, "_target_": 2}}) == ("x", ["b"])


def test_the_folder_of_results_must_be_free_unless_it_may_be_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    word = f"output_dir={tmp_path}"
    with pytest.raises(ValueError, match="is not empty; choose another one"):
        read(verb_of("run"), [word])
    read(verb_of("run"), [word, "overwrite=yes"])


def test_runs_of_a_sweep_share_no_folder() -> None:
    for verb in (verb_of("sweep"), replace(verb_of("run"), sweeps=True)):
        with pytest.raises(ValueError, match=r"^output_dir=new is one .* say hydra.sweep.dir=new,"):
            read(verb, ["system=lru,hobbit", "output_dir=new"])
        for own in ("a,b", "new/${hydra:job.num}"):
            read(verb, ["system=lru", f"output_dir={own}"])
    read(verb_of("screen"), ["system=lru", "output_dir=new"])


def test_a_sweep_does_not_write_over_the_tables_of_another(tmp_path: Path) -> None:
    """All its runs were refused, and an empty table took the place of the one that was there."""
    words = ["system=lru,hobbit", f"hydra.sweep.dir={tmp_path}"]
    read(verb_of("sweep"), words)
    (tmp_path / "table.csv").write_text("x")
    for verb in (verb_of("sweep"), replace(verb_of("run"), sweeps=True)):
        with pytest.raises(ValueError, match=r"^hydra.sweep.dir=.* is not empty; choose another"):
            read(verb, words)


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("report", ["other", "full"]),
        ("report", ["full/below"]),
        ("pareto", ["./full"]),
        ("stats", ["full"]),
        ("run", ["trace.path=full"]),
        ("import", ["format=csv", "path=full/routes.csv"]),
    ],
)
def test_nothing_is_emptied_that_is_to_be_read(
    verb: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "full" / "below").mkdir(parents=True)
    (tmp_path / "full" / "header.json").write_text("{}", encoding="utf-8")
    (tmp_path / "full" / "routes.csv").write_text("", encoding="utf-8")
    given = [*words, "overwrite=yes"]
    with pytest.raises(ValueError, match=r"^overwrite=yes would empty output_dir=full of .*full"):
        read(verb_of(verb), [*given, "output_dir=full"])
    read(verb_of(verb), [*given, "output_dir=other/new"])


@pytest.mark.parametrize("line", ["run", "study name=budgets", "leaderboard", "fit", "sweep"])
def test_a_folder_of_results_that_is_a_file_is_refused_by_every_verb(
    line: str, tmp_path: Path
) -> None:
    (tmp_path / "page.md").write_text("x")
    name, *words = line.split()
    with pytest.raises(ValueError, match=r"page\.md is a file; name a folder"):
        read(verb_of(name), [*words, f"output_dir={tmp_path / 'page.md'}"])


def test_a_name_that_is_near_to_none_is_answered_with_the_list_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    for word, way in (
        ("machine=x", "moelab list machines has them"),
        ("cache=zzz", "moelab list policies has them"),
        ("trace=nowhere", "moelab list traces has them"),
        ("trace=mine", "a folder is given as trace.path=mine"),
    ):
        with pytest.raises(ValueError, match=f"{way}$"):
            read(verb_of("run"), [word])


def test_a_model_that_only_a_trace_names_is_answered_with_the_command_that_runs_it(
    tmp_path: Path,
) -> None:
    shape = dict(zip(SIZES, (4, 64, 2, 2048, 1408), strict=True))
    header = tmp_path / HEADER_FILE
    header.write_text(json.dumps({"model": {"name": "mine", **shape}}), encoding="utf-8")
    words = ["system=lru", "model=mine", f"trace.path={tmp_path}"]
    with pytest.raises(ValueError, match=f"{re.escape(run_of(shape, tmp_path))}$"):
        read(verb_of("run"), words)
    mine, theirs = '{"model": {"name": "mine"}}', '{"model": {"name": "theirs"}}'
    for other in ("{", "[]", "[" * 100_000, mine, theirs):
        header.write_text(other, encoding="utf-8")
        with pytest.raises(ValueError, match="there is no model 'mine'"):
            read(verb_of("run"), words)


def test_a_shell_is_offered_keys_names_and_machine_keys() -> None:
    run, sweep, whatif = verb_of("run"), verb_of("sweep"), verb_of("whatif")
    assert "system=" in ends_of(run, "sys")
    assert ends_of(run, "system=hob") == ["system=hobbit", "system=hobbit_cpu"]
    assert "hardware.memory_gib=" in ends_of(run, "hardware.mem")
    assert "link" in ends_of(whatif, "li")
    assert {"lru", "hobbit"} <= set(ends_of(verb_of("compare"), ""))
    assert "hardware.links.pcie.efficiency=" in ends_of(run, "hardware.links.pcie.e")
    assert ends_of(run, "hardware.name.x.y") == [], "below a value there is nothing"
    assert values_of(sweep, "system", "lru,hob") == ["lru,hobbit", "lru,hobbit_cpu"]
    assert values_of(run, "system", "lru,hob") == []
    assert values_of(verb_of("report"), "overwrite", "") == ["yes", "no"]


def test_a_number_is_checked_by_its_least() -> None:
    option = Option("n", "n", Kind.WHOLE, least=2)
    check_value(option, "2")
    for text in ("1", "2.5", "nan", "x", "-1"):
        with pytest.raises(ValueError, match=f"n={text} must be a whole number from 2 on"):
            check_value(option, text)


@pytest.mark.parametrize("name", ["real", "real calibrate", "capture"])
def test_a_gpu_is_refused_where_there_is_no_driver_before_anything_is_loaded(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    option = by_words()[name].option("device")
    assert option is not None
    monkeypatch.setattr(words_module, "has_cuda", lambda: False)
    with pytest.raises(ValueError, match="device=cuda: there is no CUDA device here"):
        check_value(option, "cuda")
    with pytest.raises(ValueError, match=r"device=gpu"):
        check_value(option, "gpu")
    monkeypatch.setattr(words_module, "has_cuda", lambda: True)
    check_value(option, "cuda")


def test_python_m_prints_the_same_help_and_refuses_before_it_imports(tmp_path: Path) -> None:
    """A module that cannot be imported stands in for the slow imports of the command."""
    (tmp_path / "polars.py").write_text("raise RuntimeError('imported')\n", encoding="utf-8")
    for module, name in (("sim.compare", "compare"), ("real.validate", "validate")):
        helps = [
            subprocess.run(
                [sys.executable, "-m", *words],
                cwd=tmp_path,
                env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": ""},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            for words in (
                [module, "--help"],
                ["sim.moelab", name, "--help"],
                [module, "sistem=lru", "x"],
            )
        ]
        assert helps[0].returncode == helps[1].returncode == 0
        assert helps[0].stdout == helps[1].stdout
        assert f"usage: moelab {name}" in helps[0].stdout
        assert helps[2].returncode == 2
        assert len(helps[2].stderr.splitlines()) == 1


def test_a_setting_of_a_capture_is_refused_before_torch_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('imported')\n", encoding="utf-8")
    words = ["model=a/b", "prompts=heldout", "output_dir=out", "prompt_tokens=few"]
    done = subprocess.run(
        [sys.executable, "-m", "capture", *words],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("capture: prompt_tokens is 'few', must be")
    assert not (tmp_path / "out").exists()


def test_bundled_models_and_texts_that_options_name_are_those_that_there_are() -> None:
    assert set(BUNDLED_MODELS) == {path.parent.name for path in ASSETS.glob("*/config.json")}
    assert set(PROMPT_SETS) == {path.stem for path in (ASSETS / "prompts").glob("*.jsonl")}


def test_groups_of_conf_that_a_verb_names_are_there() -> None:
    for verb in VERBS:
        if verb.config:
            assert (CONF / f"{verb.config}.yaml").is_file()


def test_python_m_sim_list_is_the_list_and_loads_no_hydra(tmp_path: Path) -> None:
    (tmp_path / "hydra.py").write_text("raise RuntimeError('imported')\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "sim", "list", "systems"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "hobbit_cpu" in done.stdout


def test_what_a_verb_of_its_own_takes_and_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    verb = Verb(
        "x",
        "g",
        "m",
        "About.",
        (
            Option("number", "n", Kind.WHOLE, least=1, can_be_empty=True),
            Option("one", "o", Kind.NAME, "", ("cache",)),
            Option("weights", "w", Kind.WEIGHTS, "", ("known",)),
            Option("shares", "s", Kind.NUMBERS),
            Option("some", "s", Kind.SOME, "", ("a", "b")),
            Option("mine", "m", Kind.NEW_NAME),
            Option("output_dir", "o", Kind.FOLDER),
        ),
        config="config",
        is_hydra=True,
        places="[A]",
        most_places=1,
    )
    words = ["number=3", "number=", "weights=a/b", "shares=0.5,2", "some=b,a", "mine=a_1", "~seed"]
    found = read(verb, [*words, "P", "--flag"])
    own = {"number": "", "weights": "a/b", "shares": "0.5,2", "some": "b,a", "mine": "a_1"}
    assert found == words_module.Words(own, ("~seed",), ("P",), ("--flag",))
    assert read(verb, ["P", "-cd"]).places == (), "it is the flag's value"
    assert read(verb, ["one=nowhere", "-cd", "."]).own == {"one": "nowhere"}
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for word, told in (
        ("one=", "one= is empty; give a value, or leave it out"),
        ("one=lfuu", "one=lfuu: there is no cache 'lfuu'; did you mean lfu?"),
        ("one=lru,", "one=lru, has a comma without a name beside it"),
        ("one=lru,lfu", "one=lru,lfu must be one name; moelab sweep takes several"),
        (
            "weights=a/b/c",
            "weights=a/b/c: there is no such file or folder, and no OWNER/NAME of the hub",
        ),
        ("shares=inf", "shares=inf must be numbers above 0, separated by commas"),
        ("shares=1,", "shares=1, must be numbers above 0, separated by commas"),
        ("some=a,", "some=a,: nothing is none of a, b"),
        ("mine=a-b", "mine=a-b must be lower-case letters, digits and _: it names the file"),
        ("number=0", "number=0 must be a whole number from 1 on"),
        ("output_dir=full", "output_dir=full is not empty; choose another one"),
        ("P Q", "'P Q' is no KEY=VALUE; moelab x --help tells the options"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
            read(verb, ["P", word] if " " in word else [word])
    options = (Option("output_dir", "o", Kind.FOLDER, "a new one"), Option("overwrite", "w"))
    with pytest.raises(
        ValueError,
        match=r"^output_dir=full is not empty; choose another one, leave the word out for a new"
        r" one, or add overwrite=yes$",
    ):
        read(replace(verb, options=options), ["output_dir=full"])


def test_a_path_may_have_an_equals_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("run=2", "seed=3", "system=lru"):
        Path(name).mkdir()
    assert all(is_place(word, ["seed"]) for word in ("run=2", "./seed=3", "a", "b/c=d"))
    assert not any(is_place(word, ["seed"]) for word in ("seed=3", "none=2", "n=" + "x" * 5000))
    assert read(verb_of("stats"), ["run=2", "./seed=3", "seed=3"]).places == ("run=2", "./seed=3")
    # A sweep makes folders of such names, and a run there means its words.
    assert not read(verb_of("run"), ["system=lru"]).places


def test_steps_of_a_capture_are_fractions_as_its_help_prints_them() -> None:
    needed = ["model=tiny/one", "prompts=heldout", "output_dir=new"]
    steps = ["logits_step=1/32", "lookahead_step=1/28", "weights_step=1/8192"]
    own = read(verb_of("capture"), [*needed, *steps]).own
    assert [own[word.partition("=")[0]] for word in steps] == ["1/32", "1/28", "1/8192"]


@pytest.mark.parametrize(
    ("verb", "needed"),
    [
        ("ask", ("model=mixtral_8x7b", "machine=rtx4090_pcie4")),
        ("export", ("model=mixtral_8x7b", "machine=rtx4090_pcie4")),
        ("compare", ("lru", "hobbit")),
        ("whatif", ("memory",)),
        ("screen", ()),
        ("frontier", ()),
        ("fit", ("cache=weighted_score",)),
        ("audit_time", ("RUN",)),
    ],
)
@pytest.mark.parametrize("word", ["outputs=all", "timeline_steps=8", "bounds=max"])
def test_an_answer_without_files_of_a_run_refuses_words_about_them(
    verb: str, needed: tuple[str, ...], word: str
) -> None:
    read(verb_of(verb), needed)
    with pytest.raises(ValueError, match=rf"^{word}: \w+ is not given so here; moelab {verb} --h"):
        read(verb_of(verb), (*needed, word))


def test_a_frontier_takes_no_memory_of_the_machine_for_all_experts_have_room() -> None:
    with pytest.raises(ValueError, match=r"^hardware\.memory_gib=12: .* is not given so here"):
        read(verb_of("frontier"), ("hardware.memory_gib=12",))


@pytest.mark.parametrize(
    ("verb", "word", "way"),
    [
        ("run", "devices=null", "devices=none is without"),
        ("run", "experiment=null", "leave the word out"),
        ("run", "predictor=null", "predictor=none is without"),
        ("sweep", "devices=null,layers_2", "devices=none is without"),
    ],
)
def test_a_group_is_never_null_which_hydra_takes_for_an_error_of_its_own(
    verb: str, word: str, way: str
) -> None:
    """A refusal of devices names devices=null, and a file of conf/ has it."""
    with pytest.raises(ValueError, match=rf"^{word}: \w+ is chosen by the name of a file; {way}$"):
        read(verb_of(verb), (word,))


def test_a_name_besides_the_files_of_conf_is_taken_and_completed() -> None:
    """Gates may be like those of a model that has no file in conf/model."""
    verb = verb_of("synthesize")
    words = ["tokens=8", "output_dir=x"]
    assert answered(verb, ["like=qwen3_8_flash_next", *words]) is None
    assert answered(verb, ["like=qwen3_8_flash", *words]) == 2
    found = ends_of(verb, "like=qwen3_")
    assert found == ["like=qwen3_235b_a22b", "like=qwen3_30b_a3b", "like=qwen3_8_flash_next"]
