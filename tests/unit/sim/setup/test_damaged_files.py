"""Files of one's own for `conf/` that are damaged, or name what is no part of a run, are refused in
one line before anything is made of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sim.setup.command import in_one_line
from sim.setup.configure import composed_by_hydra, configure
from sim.setup.parts import make_part
from sim.study.trials import prepared

LRU = "_target_: sim.policies.LRU\nscope: global\ninitial: ascending\n"
OF_PYTHON = "is of Python itself, or makes nothing, and is no part of a run"
LOST = "has no _target_, the class that it makes"


def words_for(folder: Path, group: str, content: str | bytes) -> tuple[str, ...]:
    """The words that choose a file of this content."""
    (folder / group).mkdir()
    data = content if isinstance(content, bytes) else content.encode()
    (folder / group / "mine.yaml").write_bytes(data)
    system = () if group == "system" else ("system=lru",)
    return (*system, f"{group}=mine", f"hydra.searchpath=[file://{folder}]")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (LRU + "\tx: 1\n", r"character '\\t' that cannot start any token in .*mine\.yaml.*line 4"),
        (LRU + "scope: site\n", r"found duplicate key scope in .*mine\.yaml.*, line 4"),
        (LRU + "---\na: 1\n", r"but found another document in .*mine\.yaml"),
        (LRU + "x: !!python/name:os.system\n", r"for the tag .*os\.system.* in .*mine\.yaml"),
        (LRU + "x: \0\n", r"#x0000: special characters are not allowed in .*mine\.yaml"),
        (
            LRU.encode() + b"# \xe9\n",
            r"begins with '_target_: sim\.policies\.LRU', is not in UTF-8",
        ),
    ],
)
def test_a_file_that_is_no_yaml_is_told_in_one_line_with_its_place(
    content: str | bytes, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = words_for(tmp_path, "cache", content)
    with pytest.raises(ValueError, match=told) as refused:
        configure(*words)
    assert "\n" not in str(refused.value)

    def composing() -> None:
        # What hydra raises inside of a command, before this project makes a line of it.
        raise refused.value.__context__ or AssertionError

    assert in_one_line(composing) == 2
    assert capsys.readouterr().err == f"error: {refused.value}\n"


@pytest.mark.parametrize(
    ("group", "content", "told"),
    [
        ("cache", "", f"cache: the chosen file {LOST}"),
        ("model", "", f"model: the chosen file {LOST}"),
        ("hardware", "only text", f"hardware: the chosen file {LOST}"),
        ("workload", "batching: sequential\n", f"workload: the chosen file {LOST}"),
        ("loader", "", f"loader: the chosen file {LOST}"),
        ("trace", "", f"trace: the chosen file {LOST}"),
        ("loader", LRU, "loader._target_=sim.policies.LRU makes a LRU, and must make a Loader"),
        ("system", "", r"settings system; .* begins with # @package _global_"),
        ("cache", LRU.replace("global", "${a.b}"), "Interpolation key 'a.b' not found"),
    ],
)
def test_a_file_that_makes_no_part_of_a_run_is_refused_with_what_it_must_make(
    group: str, content: str, told: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=told) as refused:
        prepared(words_for(tmp_path, group, content))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "target", ["os.system", "subprocess.call", "builtins.str", "os.environ.get"]
)
def test_a_target_of_python_itself_is_refused_and_not_called(target: str, tmp_path: Path) -> None:
    made = tmp_path / "made"
    content = f"_target_: {target}\ncommand: touch {made}\n"
    with pytest.raises(ValueError, match=OF_PYTHON):
        prepared((*words_for(tmp_path, "cache", content), "trace.max_sequences=1"))
    assert not made.exists()


def test_what_a_module_of_ones_own_only_borrows_from_python_is_no_part_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    borrowing = (
        "from functools import partial\nfrom os import system\nfrom sim.policies import LRU\n"
    )
    (tmp_path / "borrowing.py").write_text(borrowing + "Mine = partial(LRU, 'site')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=OF_PYTHON):
        make_part({"cache": {"_target_": "borrowing.system", "command": "true"}}, "cache")
    made = make_part({"cache": {"_target_": "borrowing.Mine"}}, "cache")
    assert type(made).__name__ == "LRU"
    sys.modules.pop("borrowing")


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("++hardware.name=4090", "hardware.name=4090 must be text; write it between quotes"),
        ("++model.name=null", "model.name=None must be text"),
        ("++model.sizes_of=-1", "model.sizes_of=-1 must be text"),
        ("++model.dense_layers_per_site=4000000000", "make .* layers, and at most 100000 are"),
        ("workload.context_tokens=4000000000000000000", r"context_tokens=.* from 1 to 1e\+09"),
        ("~budget.resident_share", r"budget\.resident_share is not given; give a share"),
    ],
)
def test_a_value_that_nobody_could_work_with_is_refused_by_name(word: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        prepared(("system=lru", "trace.max_sequences=1", word))


def test_a_configuration_that_hydra_composes_has_the_same_refusal(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"found duplicate key scope"):
        composed_by_hydra(words_for(tmp_path, "cache", LRU + "scope: site\n"), "config")
