"""Commands in the README and in docs run, and print what the pages say that they print.

Quick ones run here, those of a block marked ``<!-- slow -->`` with the thorough tests
(`helpers.pages`). What a page marks as not run is counted by its reason.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from helpers.pages import (
    REASONS,
    Command,
    Shell,
    check_words,
    commands_of,
    difference,
    files_of,
    unmarked,
)
from sim.values.places import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PAGES}
COMMANDS = {name: commands_of(text) for name, text in TEXTS.items()}
NOT_RUN = {"gpu": 14, "installs": 6, "network": 5, "own files": 37, "hours": 39}
MOST_LINES = 120
LEAVES = re.compile(r"\A(?:error|stats:)|^no contract explains every flag$", re.MULTILINE)
"""What a command prints that leaves with another status than 0."""
# A module that a test has imported is run once more, as from the shell.
pytestmark = pytest.mark.filterwarnings("default", "ignore:.*found in sys.modules")


def with_commands(slow: bool) -> list[str]:
    """The pages that have commands of this kind."""
    return [
        name
        for name, found in COMMANDS.items()
        if any(one.slow is slow and not one.not_run for one in found)
    ]


def faults(name: str, shell: Shell, chosen: list[Command]) -> list[str]:
    """What is wrong with the commands of a page, run one after the other."""
    found = []
    for command in chosen:
        told = shell.run(command.words)
        where = f"{name}:{command.line}: {command.words}"
        refusal = LEAVES.search(command.printed or "") is not None
        if bool(told.status) is not refusal:
            found.append(f"{where} left with {told.status}: {told.err or told.out}")
        elif command.printed and (wrong := difference(command.printed, told)):
            found.append(f"{where}: {wrong}")
    return found


@pytest.mark.filterwarnings("default", "ignore:.*found in sys.modules")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "README.md" else [pytest.mark.alike])
        for name in with_commands(slow=False)
    ],
)
def test_the_quick_commands_of_a_page_print_what_it_says(name: str, tmp_path: Path) -> None:
    quick = [one for one in COMMANDS[name] if not one.slow and not one.not_run]
    assert faults(name, Shell(tmp_path / "here", files_of(TEXTS[name])), quick) == []


@pytest.mark.thorough
@pytest.mark.filterwarnings("default", "ignore:.*found in sys.modules")
@pytest.mark.parametrize("name", with_commands(slow=True))
def test_all_commands_of_a_page_print_what_it_says(name: str, tmp_path: Path) -> None:
    chosen = [one for one in COMMANDS[name] if not one.not_run]
    assert faults(name, Shell(tmp_path / "here", files_of(TEXTS[name])), chosen) == []


@pytest.mark.parametrize("name", [name for name, found in COMMANDS.items() if found])
def test_every_word_of_a_command_is_known_whether_it_is_run_or_not(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Some are for a computer with a GPU.
    monkeypatch.setattr("sim.verbs.words.has_cuda", lambda: True)
    for command in COMMANDS[name]:
        if not (command.printed or "").startswith("error"):
            check_words(command.words)


@pytest.mark.parametrize("name", TEXTS)
def test_every_block_with_commands_says_that_it_has_some(name: str) -> None:
    assert unmarked(TEXTS[name]) == []


def test_what_is_not_run_is_counted_by_its_reason() -> None:
    found = Counter(one.not_run for page in COMMANDS.values() for one in page if one.not_run)
    assert found == NOT_RUN
    assert set(found) <= set(REASONS)


def test_the_readme_is_short() -> None:
    assert len(TEXTS["README.md"].splitlines()) <= MOST_LINES


PLANTED = """
```console
$ moelab lint capture/assets/traces/tiny_mixtral write=false   # a comment
tiny_mixtral, 7190 rows: nothing found by ...
$ moelab list system
error: ...
```

<!-- slow -->
```sh
moelab lint a \\
    write=false
```

<!-- not run: gpu -->
```sh
moelab suite
```
"""


def test_a_wrong_number_on_a_page_is_found(tmp_path: Path) -> None:
    assert faults("page", Shell(tmp_path / "right", {}), commands_of(PLANTED)[:2]) == []
    wrong = commands_of(PLANTED.replace("7190", "7191"))
    (found,) = faults("page", Shell(tmp_path / "wrong", {}), wrong[:2])
    assert "7190 rows" in found
    assert "7191 rows" in found


BELOW = """
<!-- printed below -->
```sh
moelab lint capture/assets/traces/tiny_mixtral write=false
```

It printed:

| tiny_mixtral, | 7190 |
|---|---|
| rows: | nothing |

> repetition, template_echo,

## Another
| none | of it |
"""


def test_a_wrong_cell_below_a_command_is_found(tmp_path: Path) -> None:
    assert faults("page", Shell(tmp_path / "right", {}), commands_of(BELOW)) == []
    for row in ("| rows: | none |", "| nothing | rows: |"):
        wrong = commands_of(BELOW.replace("| rows: | nothing |", row))
        (found,) = faults("page", Shell(tmp_path / row[2], {}), wrong)
        assert "7190 rows: nothing" in found
    assert "none" not in (commands_of(BELOW)[0].printed or "")


def test_a_command_that_fails_is_found(tmp_path: Path) -> None:
    (command,) = commands_of("```sh\nmoelab lint nowhere\n```\n")
    assert faults("page", Shell(tmp_path / "here", {}), [command]) != []
    with pytest.raises(ValueError, match="only moelab"):
        Shell(tmp_path / "other", {}).run("ls")


def test_commands_know_their_line_their_output_and_how_they_are_run() -> None:
    first, second, slow, left = commands_of(PLANTED)
    assert first.words == "moelab lint capture/assets/traces/tiny_mixtral write=false"
    assert (first.line, second.line) == (3, 5)
    assert second.printed == "error: ..."
    assert (slow.words, slow.slow, slow.printed) == ("moelab lint a write=false", True, None)
    assert (left.not_run, left.slow) == ("gpu", False)
    with pytest.raises(ValueError, match="'moon' is none of gpu"):
        commands_of("<!-- not run: moon -->\n```sh\nmoelab suite\n```\n")
    with pytest.raises(ValueError, match="did you mean system"):
        check_words("moelab run sistem=lru")


def test_blocks_without_a_mark_are_found_by_their_line() -> None:
    assert unmarked("a\n\n```\nmoelab run\n```\n\n    python -m sim\n") == [3, 7]
    assert unmarked("```sh\nmoelab run\n```\n\n```yaml\nmoelab: 1\n```\n") == []
