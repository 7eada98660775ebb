"""The console script: what it lists is there, and runs as ``python -m`` runs it."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import click
import pytest

from sim import moelab as console_script
from sim.moelab import GROUP, main, way_to
from sim.values.places import ROOT
from sim.verbs.table import VERBS, by_words
from sim.verbs.verb import Verb

OF_DEVELOPERS = {
    "capture.calibrate",
    "capture.passages",
    "capture.train_tiny",
    "sim.moelab",
}
"""Commands that remake the project's own files, and the console script itself."""


def commands() -> set[str]:
    """What ``python -m`` runs: the modules at the root of a package, and packages themselves."""
    roots = [ROOT / name for name in ("sim", "capture", "real")]
    files = {path for root in roots for path in (*root.glob("*.py"), *root.rglob("__main__.py"))}
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files}
    return {name.removesuffix(".__main__") for name in names if not name.endswith("__init__")}


def test_every_command_for_users_is_a_verb_and_every_verb_is_a_command() -> None:
    assert {verb.module for verb in VERBS} == commands() - OF_DEVELOPERS
    assert len(by_words()) == sum(1 + len(verb.aliases) for verb in VERBS)


def resolved(*words: str) -> tuple[str | None, list[str]]:
    name, _, rest = GROUP.resolve_command(click.Context(GROUP), list(words))
    return name, rest


def test_the_longest_name_is_the_verb_and_the_rest_are_its_words() -> None:
    assert resolved("capture", "lint", "TRACE") == ("capture lint", ["TRACE"])
    assert resolved("capture", "model=x") == ("capture", ["model=x"])
    assert resolved("lint", "TRACE") == ("lint", ["TRACE"])


def test_a_word_that_is_no_verb_is_refused_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words, told in (
        (["rum", "system=lru"], "'rum' is no verb; did you mean run? moelab --help lists them"),
        (["capture", "lnt", "x"], "capture 'lnt' is no verb; did you mean capture lint?"),
        (["zzz"], "'zzz' is no verb; moelab --help lists them"),
    ):
        assert main(words) == 2
        assert capsys.readouterr().err == f"error: {told}\n"


def test_without_a_word_and_with_help_all_verbs_are_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 2
    without = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == without
    for verb in VERBS:
        assert re.search(rf"^ *{verb.name}  ", without, re.M), verb.name


def test_the_list_says_how_to_get_torch_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr(console_script, "print_index", told.append)
    monkeypatch.setattr(console_script, "way_to", lambda package: f": get {package}")
    for found in (None, "a spec"):
        monkeypatch.setattr(console_script, "find_spec", lambda name, found=found: found)
        assert main(["--help"]) == 0
    missing = "Most of capture and real needs torch, which is not installed: get torch."
    assert told == [missing, ""]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_the_help_of_a_verb_has_every_option_and_example(
    verb: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*verb.name.split(), "--help"]) == 0
    told = capsys.readouterr().out
    assert verb.about in " ".join(told.split())
    for option in verb.options:
        assert option.key in told
    for example in verb.examples:
        assert f"  moelab {example}\n" in told
    assert verb.docs in told


@pytest.mark.parametrize(
    ("words", "cursor", "offered"),
    [
        ("moelab re", 1, ["report", "reproduce", "real"]),
        ("moelab run system = hob", 4, ["hobbit", "hobbit_cpu"]),
        ("moelab ask overwrite", 3, ["yes", "no"]),
        ("moelab run system=hob", 2, ["system=hobbit", "system=hobbit_cpu"]),
        ("moelab list m", 2, ["machines", "models"]),
        ("moelab capture li", 2, ["lint"]),
    ],
)
def test_the_shell_completes_verbs_keys_and_names_however_it_cuts_words(
    words: str,
    cursor: int,
    offered: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(cursor))
    monkeypatch.setenv("_MOELAB_COMPLETE", "bash_complete")
    with pytest.raises(SystemExit):
        main([])
    lines = capsys.readouterr().out.splitlines()
    assert [line.removeprefix("plain,") for line in lines] == offered


def test_a_name_that_is_no_verb_has_no_command_and_a_checkout_no_extras(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = click.Context(GROUP)
    assert GROUP.get_command(context, "nosuch") is None
    assert GROUP.get_command(context, "capture lint") is not None

    def nowhere(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(console_script, "requires", nowhere)
    assert way_to("torch") == ""


@pytest.fixture
def study_that_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a command in the place of ``study`` that imports what is not there."""

    def put(name: str) -> None:
        (tmp_path / f"wants_{name.replace('.', '_')}.py").write_text(f"import {name}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        wants = replace(by_words()["study"], module=f"wants_{name.replace('.', '_')}")
        monkeypatch.setattr(console_script, "by_words", lambda: {"study": wants})
        monkeypatch.setitem(sys.modules, name, None)

    return put


def test_a_command_whose_package_is_missing_is_refused_in_one_line(
    study_that_imports: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    study_that_imports("optuna")
    assert main(["study", "name=budgets"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: moelab study needs optuna, which is not installed")
    assert len(told.splitlines()) == 1


def test_a_module_of_the_project_that_is_missing_is_no_missing_package(
    study_that_imports: Callable[[str], None],
) -> None:
    study_that_imports("sim.lost")
    with pytest.raises(ModuleNotFoundError, match=r"sim\.lost"):
        main(["study", "name=budgets"])


def test_ctrl_c_ends_a_command_with_one_line_and_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pressed(module: str, **_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runpy, "run_module", pressed)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_missing_package_is_named_with_the_smallest_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = [
        "numpy>=1.26",
        "optuna>=4; extra == 'test'",
        "pytest>=8; extra == 'test'",
        'optuna>=4; extra == "study"',
        'lm-eval[hf]>=0.4.9; extra == "harness"',
    ]
    monkeypatch.setattr("sim.moelab.requires", lambda name: lines)
    assert way_to("optuna") == ": pip install 'moe-offload-lab[study]'"
    assert way_to("lm_eval") == ": pip install 'moe-offload-lab[harness]'"
    assert way_to("numpy") == ""


class Asked(Exception):
    """Somebody asked for words of the command line."""


class Line(list[str]):
    """A command line that tells which of its words are asked for."""

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            raise Asked(at)
        return super().__getitem__(at)


@pytest.mark.filterwarnings("ignore::RuntimeWarning:runpy")
def test_every_module_that_is_run_reads_all_words_behind_its_name_and_an_imported_one_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    modules = {verb.module for verb in VERBS if verb.module.split(".")[0] == "sim"}
    assert len(modules) > 20
    for module in sorted({*modules, "sim.moelab"}):
        monkeypatch.setattr(sys, "argv", Line([module]))
        with pytest.raises(Asked) as asked:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        assert asked.value.args == (slice(1, None),), module
        runpy.run_module(module, run_name="imported", alter_sys=True)


def moelab(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sim.moelab", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_run_writes_what_python_m_sim_writes_and_compare_its_exit_status(tmp_path: Path) -> None:
    words = ["system=lru", "trace.max_sequences=1", "outputs=summary", "output_dir=out"]
    done = moelab("run", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "summary.json").is_file()
    assert "decodes at" in done.stdout
    refused = moelab("compare", "out", "lru", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: out is the directory of a run")
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.thorough
def test_the_workers_of_a_study_start_under_the_console_script(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(
        "question: do workers start?\n"
        "base: [trace.max_sequences=1]\n"
        "grid: {system: [lru, load_on_demand]}\n",
        encoding="utf-8",
    )
    done = moelab("study", "name=two.yaml", "workers=2", "launcher=pool", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 cells, 2 done" in done.stdout
