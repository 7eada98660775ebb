"""The simulator from Python says what the command line says, labels included."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as st
from matplotlib.text import Text

from sim.answers import python
from sim.answers.comparison import COMPUTE, compared
from sim.answers.comparison_words import answer
from sim.answers.python import SimulatedRun, _word, compare, run
from sim.answers.python_figures import step_parts_ns
from sim.results.paired import TOO_FEW
from sim.study.trials import trial
from sim.values.places import ASSETS, ROOT

FEW = ("trace.max_sequences=4", "workload.decode_tokens=8", "budget.resident_share=0.4")
TRANSPLANT = "TRANSPLANTED: gates of tiny_mixtral"


@pytest.fixture(scope="module")
def runs() -> dict[str, SimulatedRun]:
    return {name: run(name, *FEW, outputs="summary") for name in ("lru", "hobbit")}


def texts_of(figure: Any) -> str:
    """What a reader sees of it: ticks get their names when they are drawn."""
    figure.savefig(BytesIO())
    found: list[Text] = figure.findobj(Text)
    return " ".join(" ".join(item.get_text().split()) for item in found)


# ---- a run


def test_a_bar_is_shown_on_stderr_where_it_is_asked_for_and_the_time_is_without_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes 5 s, of which the bounds 1.25 s."""
    times, asked = iter([2.0, 7.0] * 2), []

    def execute(one: Any, console: Any) -> Any:
        asked.append((one.words, console and console.stderr))
        return SimpleNamespace(summary={"a": 1}, frames="frames", bounds_wall_s=1.25)

    monkeypatch.setattr(python, "execute", execute)
    monkeypatch.setattr(python, "prepared", lambda words: SimpleNamespace(words=words, config={}))
    clock = SimpleNamespace(perf_counter=lambda: next(times))
    monkeypatch.setattr(python, "time", clock)
    found = run("lru", "seed=2", progress=True, cache="lfu")
    assert (found.summary, found.config) == ({"a": 1, "wall_s": 3.75}, {})
    run("lru")
    words = ["system=lru", "outputs=all"]
    assert asked == [([*words, "seed=2", "cache=lfu"], True), (words, None)]


@pytest.mark.thorough
def test_a_run_writes_byte_for_byte_what_the_command_writes(tmp_path: Path) -> None:
    words = ["trace.max_sequences=1", "workload.decode_tokens=4"]
    subprocess.run(
        [sys.executable, "-m", "sim", "system=hobbit", *words, f"output_dir={tmp_path / 'there'}"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=120,
    )
    run("hobbit", *words).write(tmp_path / "here")
    names = sorted(path.name for path in (tmp_path / "there").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "here").iterdir())
    assert "lookups.parquet" in names
    for name in names:
        ours, theirs = ((tmp_path / place / name).read_bytes() for place in ("here", "there"))
        if name == "summary.json":
            a, b = json.loads(ours), json.loads(theirs)
            assert a.pop("wall_s") > 0
            assert b.pop("wall_s") > 0
            assert list(a.items()) == list(b.items())
        elif name == "config.yaml":
            assert ours.replace(b"unused", str(tmp_path / "there").encode()) == theirs
        else:
            assert ours == theirs, name


@pytest.mark.thorough
def test_a_run_shows_itself_as_the_sentence_that_carries_its_labels(
    runs: dict[str, SimulatedRun],
) -> None:
    told = repr(runs["hobbit"])
    assert told.startswith("With 40% of the expert bytes resident, hobbit decodes at")
    assert TRANSPLANT in told
    assert "lossy (experts at low precision" in told
    assert runs["hobbit"].labels.lossy is not None
    assert runs["lru"].labels.lossy is None


@pytest.mark.thorough
def test_a_synthetic_trace_is_told_of_wherever_the_run_is_shown(tmp_path: Path) -> None:
    place = shutil.copytree(ASSETS / "traces" / "tiny_mixtral", tmp_path / "made_up")
    header = json.loads((place / "header.json").read_text(encoding="utf-8"))
    (place / "header.json").write_text(
        json.dumps({**header, "source": "synthetic"}), encoding="utf-8"
    )
    made = run("lru", *FEW, outputs="summary", trace__path=place)
    pair = compare(made, run("lru", *FEW, cache="lfu", outputs="summary", trace__path=place))
    for told in (repr(made), repr(pair), texts_of(made.plot()), texts_of(pair.plot())):
        assert "SYNTHETIC" in told


def test_tables_are_named_as_the_parquet_files_are(runs: dict[str, SimulatedRun]) -> None:
    one = runs["lru"]
    for name, table in one._frames.tables().items():
        assert getattr(one, name).equals(table)
    assert one.tokens["sequence"].n_unique() == 4


def test_the_time_of_each_step_is_split_without_rest(runs: dict[str, SimulatedRun]) -> None:
    one = runs["hobbit"]
    parts = step_parts_ns(one._frames)
    by_step = one.tokens.group_by("step").first().sort("step")
    waiting = np.sum([spent for part, spent in parts.items() if part != COMPUTE], axis=0)
    assert parts[COMPUTE].tolist() == by_step["compute_ns"].to_list()
    assert waiting.tolist() == by_step["stall_ns"].to_list()


def test_the_figure_of_a_run_shows_the_time_of_its_decoding_steps(
    runs: dict[str, SimulatedRun],
) -> None:
    one = runs["hobbit"]
    figure = one.plot()
    (axis,) = figure.axes
    area_ms = sum(bar.get_height() * bar.get_width() for bar in axis.patches)
    decoded = one.tokens.filter(pl.col("phase") == "decode").unique("step")
    assert area_ms == pytest.approx((decoded["end_ns"] - decoded["start_ns"]).sum() / 1e6)
    assert TRANSPLANT in texts_of(figure)


# ---- words


def test_options_are_the_words_of_the_command_line() -> None:
    words = run("lru", *FEW, "cache=lfu", outputs="summary")
    options = run(
        system="lru",
        trace__max_sequences=4,
        workload__decode_tokens=8,
        budget__resident_share=0.4,
        cache="lfu",
        outputs="summary",
    )
    assert {**words.summary, "wall_s": 0} == {**options.summary, "wall_s": 0}
    assert words.summary["system"] == "lru cache=lfu"


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cc", "Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.from_regex("[a-z]+", fullmatch=True), inner, max_size=2)
    ),
    max_leaves=4,
)


@example("it's")
@example("a\\'b")
@example("a b\\")
@example("null")
@example("1")
@given(VALUES)
def test_a_value_of_python_is_read_by_hydra_as_that_value(value: object) -> None:
    (override,) = OverridesParser.create().parse_overrides([_word("a__b", value)])
    assert override.key_or_group == "a.b"
    found = override.value()
    assert found == value
    assert type(found) is type(value) or isinstance(value, str)


@pytest.mark.parametrize(
    ("words", "options", "says"),
    [
        (("system=lru",), {}, "the first word is the system's name"),
        (("lru", "output_dir=x"), {}, "call .write"),
        (("lru",), {"output_dir": "x"}, "call .write"),
        (("lru",), {"trace__max_sequences": object()}, "trace__max_sequences=<object"),
        # As on the command line: hydra's own message told to append what nobody knows.
        (("lru",), {"trace__max_sequencs": 1}, "did you mean max_sequences"),
        (("lruu",), {}, "there is no system 'lruu'; did you mean lru"),
        (("lru",), {"cache": "mru"}, "there is no cache 'mru'; did you mean lru"),
        (("lru", "machine=rtx3060"), {}, "there is no hardware 'rtx3060'"),
        (("lru",), {"trace__path": "nowhere"}, "there is no such file or folder"),
        (("lru",), {"flags": "-c 8192"}, "moelab run has them"),
        ((3,), {}, "the first word is the system's name, got 3"),
        (("lru",), {"budget__resident_share": 2.0}, "resident_share"),
    ],
)
def test_what_cannot_run_is_refused_by_name(
    words: tuple[Any, ...], options: dict[str, object], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        run(*words, **options)


# ---- a comparison


def test_a_comparison_is_that_of_the_command_with_the_labels_of_both(
    runs: dict[str, SimulatedRun],
) -> None:
    found = compare(runs["hobbit"], runs["lru"])
    names = ("hobbit", "lru")
    theirs = compared(names, *(trial([f"system={name}", *FEW]) for name in names))
    assert repr(found).startswith(answer(theirs))
    assert TRANSPLANT in repr(found)
    assert found.parts_ns == theirs.parts
    assert found.ratios == theirs.ratios
    assert len(found.ratios) > 1
    assert found.verdict == theirs.verdict.verdict
    told = texts_of(found.plot())
    assert TRANSPLANT in told
    assert "A: hobbit" in told


def test_too_few_sequences_give_no_verdict() -> None:
    one = ("trace.max_sequences=1", *FEW[1:])
    found = compare(run("lru", *one, outputs="summary"), run("hobbit", *one, outputs="summary"))
    assert found.verdict == TOO_FEW
    assert not found.is_decided
    assert repr(found).startswith("Cannot tell whether A (lru) or B (hobbit) is faster")
    assert "who is faster: cannot tell" in texts_of(found.plot())


def test_names_are_no_runs_to_compare() -> None:
    with pytest.raises(ValueError, match=r"compare\(\) is of two runs, got 'hobbit'"):
        compare("hobbit", "lru")  # type: ignore[arg-type]


def test_runs_of_other_conditions_are_refused_with_both_values(
    runs: dict[str, SimulatedRun],
) -> None:
    other = run("lru", *FEW[:2], "budget.resident_share=0.5", outputs="summary")
    with pytest.raises(ValueError, match=r"bytes for experts=\d+, lru has bytes for experts=\d+"):
        compare(runs["hobbit"], other)


# ---- names


@pytest.mark.alike
@pytest.mark.parametrize("first", ["pass", "import sim.compare"])
def test_sim_itself_has_run_and_compare_whatever_was_imported_before(first: str) -> None:
    code = (
        f"{first}\nfrom sim import compare, run\n"
        f"words = {FEW!r}\n"
        "made = [run(name, *words, outputs='summary') for name in ('lru', 'load_on_demand')]\n"
        "print(compare(*made).verdict, type(made[0]).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "faster SimulatedRun\n", done.stderr


def test_a_name_that_sim_does_not_have_is_told_as_python_tells_it() -> None:
    import sim

    with pytest.raises(AttributeError, match="module 'sim' has no attribute 'runn'"):
        sim.runn  # noqa: B018


def test_threads_compose_by_hydra_at_the_same_time_as_one_after_another_does() -> None:
    """Hydra has one state in a process; a folder of the words' own makes hydra compose."""
    words = [("trace.max_sequences=1", f"seed={seed}", "+model.kv_bits=8") for seed in range(6)]

    def made(own: tuple[str, ...]) -> float:
        return float(run("lru", *own).summary["makespan_s"])

    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(made, words))
    assert together == [made(own) for own in words]


def test_a_word_that_is_no_text_is_refused_with_the_way_to_give_a_value() -> None:
    path: Any = Path("elsewhere")
    with pytest.raises(
        ValueError, match=r"got PosixPath\('elsewhere'\); other values go by keyword"
    ):
        run("lru", path)


@pytest.mark.parametrize("word", ["output_dir=x", "overwrite=yes"])
def test_words_about_folders_are_refused_because_nothing_is_written(word: str) -> None:
    with pytest.raises(ValueError, match=rf"so {word.split('=')[0]}= has no use; call \.write"):
        run("lru", word)


def test_a_run_is_not_pickled_and_what_is_wanted_of_it_is() -> None:
    found = run("lru", "trace.max_sequences=1")
    with pytest.raises(TypeError, match=r"cannot be sent to another process.*\.write\(DIR\) there"):
        pickle.dumps(found)
    assert pickle.loads(pickle.dumps(found.summary)) == found.summary
    assert pickle.loads(pickle.dumps(found.tokens)).equals(found.tokens)
