"""The help of a verb as it is printed, and the numbers that its options take."""

from __future__ import annotations

import pytest

from sim.verbs import page
from sim.verbs.begin import answered
from sim.verbs.page import lines_below, print_index, print_page, row_of
from sim.verbs.table import GROUPS, VERBS, of_module, verb_of
from sim.verbs.verb import Kind, Option, Verb
from sim.verbs.words import check_value

VERB = Verb(
    "try out",
    "ask",
    "sim.try",
    "Try a thing.",
    (
        Option("hardware", "on what", Kind.NAME, "here", ("hardware",)),
        Option("n", "how many", Kind.WHOLE, is_needed=True),
        Option("KEY", "any key"),
    ),
    ("try out hardware=a", "try out n=3"),
    "docs/try.md",
    aliases=("attempt",),
    lead=("out",),
    places="[link|memory]",
    config="config",
)


def test_a_page_says_usage_options_examples_and_other_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_page(VERB)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "usage: moelab try out [link|memory] [KEY=VALUE ...]",
        "       python -m sim.try out is the same",
        "",
        "Try a thing.",
        "",
        "option     default  meaning",
        "hardware=  here     on what (a file of conf/hardware)",
        "n=         needed   how many",
        "KEY                 any key",
        "",
        "Every other value of conf/config.yaml can be set as well, by its dotted key.",
        "",
        "examples:",
        "  moelab try out hardware=a",
        "  moelab try out n=3",
        "",
        "also: machine= for hardware=, bandwidth for link, budget for memory",
        "",
        "also: moelab attempt",
        "",
        "more: docs/try.md",
    ]


def test_a_verb_without_options_or_documents_has_a_page_of_what_there_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bare = Verb("no", "ask", "sim.no", "Do nothing.", examples=("no",))
    print_page(bare)
    printed = "usage: moelab no\n       python -m sim.no is the same\n\nDo nothing.\n"
    assert capsys.readouterr().out == f"{printed}\nexamples:\n  moelab no\n"
    assert [*lines_below(bare)] == ["\nexamples:", "  moelab no"]


@pytest.mark.parametrize(
    ("option", "row"),
    [
        (Option("a", "m", Kind.ONE, "x", ("x", "y")), ("a=", "x", "m: x | y")),
        (Option("a", "m", Kind.SOME, "", ("x", "y")), ("a=", "", "m: x | y")),
        (Option("a", "m", Kind.ONE), ("a=", "", "m")),
        (Option("a", "m", Kind.PLACE, "", ("x",)), ("a=", "", "m")),
        (Option("a", "m", Kind.NAMES, "", ("cache",)), ("a=", "", "m (a file of conf/cache)")),
        (Option("a", "m", Kind.WHOLE, is_needed=True), ("a=", "needed", "m")),
        (Option("a.KEY", "m", default="3"), ("a.KEY", "3", "m")),
    ],
)
def test_a_row_says_what_an_option_takes(option: Option, row: tuple[str, str, str]) -> None:
    assert row_of(option) == row


def test_a_page_is_as_wide_as_its_terminal_and_no_wider_than_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert page.console().width == 110
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    for columns, width in ((80, 80), (300, 110)):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert page.console().width == width


def test_the_index_has_every_verb_below_the_heading_of_its_group(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_index("\nlast")
    lines = capsys.readouterr().out.splitlines()
    starts = [lines.index(heading) for heading in GROUPS.values()]
    ends = [*starts[1:], lines.index("moelab VERB --help tells the options of one, with examples.")]
    for group, start, end in zip(GROUPS, starts, ends, strict=True):
        assert lines[start - 1] == ""
        # What a long sentence has on its next line stands behind blanks.
        rows = [line for line in lines[start + 1 : end] if line[:1].strip()]
        assert [row[:24].strip() for row in rows] == [
            verb.name for verb in VERBS if verb.group == group
        ]
    assert lines[:2] == [
        "usage: moelab VERB [WORDS] [KEY=VALUE ...]",
        "What do expert offloading systems do on which machine, and why?",
    ]
    assert lines[-2:] == ["", "last"]
    assert max(map(len, lines)) <= 110


def test_help_is_asked_for_by_either_word_and_by_any_other_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words in (["-h"], ["wrong", "--help"]):
        assert answered(verb_of("list"), words) == 0
        assert capsys.readouterr().out.startswith("usage: moelab list systems|machines|")
    assert answered(verb_of("list"), ["systems"]) is None
    assert answered(verb_of("run"), ["system=lru,hobbit"]) == 2
    for sweep in ("-m", "--multirun"):
        assert answered(verb_of("run"), ["system=lru,hobbit", sweep]) is None


def test_a_verb_is_known_by_its_module_unless_words_lead_to_it() -> None:
    found = of_module("sim.compare")
    assert found is not None
    assert (found.name, of_module("sim.nothing")) == ("compare", None)
    assert all(of_module(verb.module) == verb for verb in VERBS if not verb.lead)
    assert all(of_module(verb.module) != verb for verb in VERBS if verb.lead)


LEAST = """
ask: target 0.001 gpus 1 patience 1 sequences 4 prompt_tokens 1 tokens 1
export: context 1 gpus 1 sequences 4 prompt_tokens 1 tokens 1
whatif: target 0.001
demo: sequences 2
study: workers 1
leaderboard: top 1 workers 1
frontier: points 1
reproduce: processes 1
capture: sequences 1 decode_tokens 1 batch 1
synthesize: tokens 1 sequences 1
capture fit: epochs 1 batch 1
capture check_synthesis: sequences 2 tokens 48
calibrate: context 1 rows 1 lanes 1
validate: repeats 1
quality: group 1
real calibrate: seconds 5
real quality_front: group 1
real quality_fit: texts 1
real quality_figures: fit 1 eval 1
real closed_loop: group 1
"""
"""The least numbers of options, where it is not 0."""
LEASTS = dict(line.split(": ") for line in LEAST.strip().splitlines())
PLACES = {
    (1, 1): "whatif explain check audit audit_time list certify lint load",
    (2, 2): "compare versus",
    (1, 1000): "report pareto stats",
    (0, 1): "get suite",
}
"""How many words without ``=`` there must be, and may be; two verbs have a space in their name."""
SPACED = {"real quality_front": (1, 1)}


def test_words_without_a_key_are_as_many_as_a_verb_takes() -> None:
    places = {name: number for number, names in PLACES.items() for name in names.split()} | SPACED
    for verb in VERBS:
        number = (verb.least_places, verb.most_places)
        assert number == places.get(verb.name, (0, 0)), verb.name
        assert bool(verb.places) == (number != (0, 0)), verb.name


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_the_least_number_of_an_option_is_taken_and_none_below_it(verb: Verb) -> None:
    pairs = LEASTS.get(verb.name, "").split()
    least = dict(zip(pairs[::2], pairs[1::2], strict=True))
    numbers = [one for one in verb.options if one.kind in (Kind.WHOLE, Kind.NUMBER)]
    assert {one.key: f"{one.least:g}" for one in numbers if one.least} == least
    for one in numbers:
        check_value(one, f"{one.least:g}")
        below = one.least - 1 if one.kind is Kind.WHOLE else one.least * 0.99 - 1e-9
        with pytest.raises(ValueError, match=f"^{one.key}=.* number from {one.least:g} on$"):
            check_value(one, f"{below:.9g}")


FLAGS = """\
ask: model! machine!
export: model! machine!
run: is_hydra
screen: sweeps
explain: expert! step!
check: is_open budget!
sweep: is_hydra sweeps
study: name!
capture: model! prompts! output_dir! sparsities?
import: is_open format! path!
synthesize: like! tokens!
capture fit: predictor!
capture channels: model!
calibrate: log! columns! base! name!
models: from!
real: is_hydra
validate: systems! budgets! closed_loop?
real calibrate: name!
real quality_fit: fit!
real quality_figures: figure!
real predict: is_open data!
fidelity: is_open
"""
"""Options that are needed (!), those that may be empty (?), and what verbs are besides."""


def test_what_is_needed_and_what_may_be_empty_is_as_told_here() -> None:
    told = ""
    for verb in VERBS:
        flags = [name for name in ("is_open", "is_hydra", "sweeps") if getattr(verb, name)]
        for one in verb.options:
            marks = f"{'!' * one.is_needed}{'?' * one.can_be_empty}"
            flags += [f"{one.key}{marks}"] if marks else []
        told += f"{verb.name}: {' '.join(flags)}\n" if flags else ""
    assert told == FLAGS
