"""Two runs side by side: what may be compared, exact sums, and files against simulations."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from omegaconf import OmegaConf

from sim.answers.comparison import Comparison, compared, short
from sim.compare import answer, main, read_run, table_of
from sim.results.kept import SHAPE
from sim.results.labels import Labels
from sim.results.outputs import write_outputs
from sim.results.paired import FASTER, TOO_FEW, paired
from sim.setup.execute import execute
from sim.study.trials import Trial, prepared, trial

COMMON = ("trace.max_sequences=4", "workload.decode_tokens=24", "budget.resident_share=0.4")
NAMES = ("lru", "lfu")


@pytest.fixture(scope="module")
def trials() -> dict[str, Trial]:
    return {name: trial(["system=lru", f"cache={name}", *COMMON]) for name in NAMES}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same runs, written as ``python -m sim`` writes them."""
    found = {}
    for name in NAMES:
        run = prepared(["system=lru", f"cache={name}", *COMMON])
        result = execute(run)
        found[name] = tmp_path_factory.mktemp("runs") / f"{name} [a]"
        write_outputs(found[name], result.summary, run.config, result.frames, "wait_all", 1)
    return found


def test_runs_of_other_quality_are_told_as_such() -> None:
    """Fate serves INT4, HOBBIT serves some needs at low precision, LRU serves all as they are."""
    words = ["trace.max_sequences=1", "budget.slots_gib=12", "workload.decode_tokens=4"]
    found = {name: trial([f"system={name}", *words]) for name in ("lru", "hobbit", "fate")}
    told = answer(compared(("lru", "fate"), found["lru"], found["fate"]))
    assert told.endswith(" They are not of one quality: A serves at fp16; B at int4 (lossy).")
    told = answer(compared(("hobbit", "lru"), found["hobbit"], found["lru"]))
    assert re.search(
        r"quality: A serves at \w+, \d+% of needs at low precision, .*% skipped \(lossy\); B at"
        r" fp16\.$",
        told,
    )
    same = answer(compared(("lru", "again"), found["lru"], found["lru"]))
    assert "quality" not in same


def test_what_one_run_held_in_staging_slots_beside_equal_budgets_is_told() -> None:
    """Of two slots it used one at a time here, for an INT4 expert of 88,080,384 B."""
    words = [
        "system=fate",
        "trace.max_sequences=1",
        "budget.resident_share=0.5",
        "workload.decode_tokens=4",
    ]
    staged, pooled = (
        trial(words),
        trial([*words, "loader.destination=pool", "loader.staging_slots=0"]),
    )
    told = answer(compared(("staged", "pooled"), staged, pooled))
    assert told.endswith(
        " Beside their equal budgets A held up to 0.082 GiB in staging slots, B none."
    )
    assert "staging" not in answer(compared(("staged", "again"), staged, staged))


def test_the_differences_of_the_parts_sum_to_the_difference_of_the_makespans(
    trials: dict[str, Trial],
) -> None:
    found = compared(NAMES, *trials.values())
    for column, one in enumerate(trials.values()):
        assert sum(times[column] for times in found.parts.values()) == round(
            one.summary["makespan_s"] * 1e9
        )
    assert found.parts["compute"][0] == found.parts["compute"][1], (
        "the same trace computes the same"
    )
    assert sum(a != b for a, b in found.parts.values()) > 1


def test_the_ratio_of_all_steps_is_that_of_the_makespans_and_decode_that_of_the_rates(
    trials: dict[str, Trial],
) -> None:
    a, b = trials.values()
    found = compared(NAMES, a, b)
    assert found.verdict is found.ratios["all steps"]
    assert found.verdict.speedup == pytest.approx(
        b.summary["makespan_s"] / a.summary["makespan_s"], rel=1e-12
    )
    rates = [one.summary["decode_tokens_per_s"] for one in (a, b)]
    assert found.ratios["decode"].speedup == pytest.approx(rates[0] / rates[1], rel=1e-12)


def test_a_run_against_itself_cannot_be_told_apart(trials: dict[str, Trial]) -> None:
    found = compared(("a", "b"), trials["lru"], trials["lru"])
    assert answer(found).startswith("Cannot tell whether A (a) or B (b) is faster.")
    assert all(ours == theirs for ours, theirs in found.parts.values())


def test_files_say_what_the_simulation_said(
    trials: dict[str, Trial], folders: dict[str, Path]
) -> None:
    from_files = compared(NAMES, *(read_run(folders[name]) for name in NAMES))
    assert from_files == compared(NAMES, *trials.values())


@pytest.mark.parametrize(
    ("arrivals", "verdict"),
    [("arrivals_per_s=0.005", FASTER), ("arrivals_s=[0,0,0,0]", TOO_FEW)],
    ids=["one after another", "together"],
)
def test_with_arrivals_the_latency_decides(arrivals: str, verdict: str) -> None:
    """Requests that share steps are one observation: of it there is no verdict."""
    short = ("trace.max_sequences=4", "workload.decode_tokens=24")
    words = (*short, "workload=continuous_4", f"workload.{arrivals}")
    one, other = (trial([f"system={system}", *words]) for system in ("hobbit", "load_on_demand"))
    found = compared(("hobbit", "none"), one, other)
    assert list(found.ratios)[:2] == ["latency", "all steps"]
    spent = [float((o.sequences["end_ns"] - o.sequences["arrival_ns"]).sum()) for o in (one, other)]
    assert found.verdict.speedup == pytest.approx(spent[1] / spent[0])
    assert found.verdict.verdict == verdict
    assert (found.verdict.interval is None) == (verdict == TOO_FEW)


# What is refused


def changed(one: Trial, what: str, value: Any) -> Trial:
    """The run with one value of its configuration or summary changed."""
    summary, config = deepcopy(one.summary), deepcopy(one.config)
    place: Any = summary if what.startswith("summary.") else config
    *path, last = what.removeprefix("summary.").split(".")
    for key in path:
        place = place[key]
    place[last] = value
    return Trial(summary, config, one.tokens, one.sequences)


@pytest.mark.parametrize(
    ("what", "value", "told"),
    [
        ("summary.trace.sha256", "beef", "trace sha256=beef"),
        ("hardware.links.pcie.peak_gb_per_s", 63.0, "hardware.links.pcie.peak_gb_per_s=31.5"),
        ("hardware.links.pcie.peak_gb_per_s", 63.0, "hardware.links.pcie.peak_gb_per_s=63.0"),
        ("hardware.cpu", None, "(not set)"),
        ("model.sites", 4, "model.sites=4"),
        ("workload.together", 2, "workload.together=2"),
        ("trace.split", "all", "trace.split=all"),
        ("summary.budget.allowed_bytes", 9_019_431_321, "bytes for experts=9019431321"),
        (
            "summary.budget.allowed_bytes",
            9_019_431_321,
            "B budget.resident_share=0.8, or A budget.resident_share=0.2",
        ),
    ],
)
def test_runs_of_other_conditions_are_refused_with_both_values(
    trials: dict[str, Trial], what: str, value: Any, told: str
) -> None:
    with pytest.raises(ValueError, match=r"A has .*, B has .*can be compared: ") as refusal:
        compared(("A", "B"), trials["lru"], changed(trials["lfu"], what, value))
    assert told in str(refusal.value)


def test_runs_of_other_sequences_are_refused(trials: dict[str, Trial]) -> None:
    one = trials["lfu"]
    fewer = Trial(one.summary, one.config, one.tokens, one.sequences.head(1))
    with pytest.raises(ValueError, match=r"A has sequences=\[.*\], B has sequences=\["):
        compared(("A", "B"), trials["lru"], fewer)


@pytest.mark.parametrize("letters", [1, 79, 80, 81, 200])
def test_a_long_value_is_cut_to_80_letters(letters: int) -> None:
    text = "0123456789" * 20
    told = short(text[:letters])
    assert told == (text[:letters] if letters <= 80 else f"{text[:77]}...")
    assert len(told) <= 80


@pytest.mark.parametrize("key", SHAPE)
def test_a_summary_without_a_key_that_is_compared_is_refused(
    folders: dict[str, Path], tmp_path: Path, key: str
) -> None:
    shutil.copytree(folders["lfu"], tmp_path / "lacks")
    place = tmp_path / "lacks" / "summary.json"
    summary = json.loads(place.read_text(encoding="utf-8"))
    del summary[key]
    place.write_text(json.dumps(summary), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"lacks/summary\.json lacks {key}.*; run it again$"):
        read_run(tmp_path / "lacks")


@pytest.mark.parametrize(
    "name", ["summary.json", "config.yaml", "tokens.parquet", "sequences.parquet"]
)
def test_a_run_without_one_of_its_files_is_refused(
    folders: dict[str, Path], tmp_path: Path, name: str
) -> None:
    shutil.copytree(folders["lfu"], tmp_path / "lacks")
    (tmp_path / "lacks" / name).unlink()
    with pytest.raises(
        ValueError, match=rf"lacks .*no {re.escape(name)}(; a run is compared by| is in it)"
    ):
        read_run(tmp_path / "lacks")


def test_another_path_to_the_same_trace_is_no_difference(trials: dict[str, Trial]) -> None:
    moved = changed(trials["lfu"], "trace.path", "elsewhere")
    assert compared(NAMES, trials["lru"], moved) == compared(NAMES, *trials.values())


def test_a_summary_whose_parts_do_not_sum_is_refused(trials: dict[str, Trial]) -> None:
    spoilt = {name: changed(trials[name], "summary.stall_s.demand", 1e-9) for name in NAMES}
    for pair, wrong in (
        ((trials["lru"], spoilt["lfu"]), "lfu"),
        ((spoilt["lru"], trials["lfu"]), "lru"),
    ):
        with pytest.raises(ValueError, match=rf"^{wrong}: .* sum to .* ns, not to makespan_s"):
            compared(NAMES, *pair)


def spoil(folder: Path, how: str) -> None:
    if how == "summary only":
        (folder / "tokens.parquet").unlink()
    elif how == "cut":
        (folder / "summary.json").write_text((folder / "summary.json").read_text()[:100])
    elif how == "other schema":
        (folder / "summary.json").write_text(json.dumps({"schema": 99}))
    elif how == "no yaml":
        (folder / "config.yaml").write_text("a: [")
    elif how == "no allowed bytes":
        summary = json.loads((folder / "summary.json").read_text())
        del summary["budget"]["allowed_bytes"]
        (folder / "summary.json").write_text(json.dumps(summary))
    elif how == "no workload":
        config = OmegaConf.load(folder / "config.yaml")
        del config["workload"]
        OmegaConf.save(config, folder / "config.yaml")
    elif how == "no budget":
        config = OmegaConf.load(folder / "config.yaml")
        config["budget"]["slots_gib"] = {}
        OmegaConf.save(config, folder / "config.yaml")
    elif how == "other sequences":
        path = folder / "sequences.parquet"
        pl.read_parquet(path).head(1).write_parquet(path)
    elif how == "no parquet":
        (folder / "tokens.parquet").write_bytes(b"no parquet")
    elif how == "a column as text":
        path = folder / "sequences.parquet"
        pl.read_parquet(path).with_columns(pl.col("end_ns").cast(pl.String)).write_parquet(path)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (
            "summary only",
            "has no tokens.parquet; a run is compared by all its files: set outputs=all",
        ),
        ("cut", "summary.json cannot be read ("),
        ("other schema", "has schema=99, and this version reads 1"),
        ("no yaml", "config.yaml cannot be read ("),
        (
            "no allowed bytes",
            "lacks budget.allowed_bytes: it was changed, or another version wrote",
        ),
        ("no workload", "config.yaml is no configuration of a run: it lacks workload; run it"),
        ("no budget", "config.yaml was changed: budget={"),
        ("other sequences", "sequences.parquet lacks sequence "),
        ("no parquet", "tokens.parquet cannot be read ("),
        ("a column as text", "sequences.parquet: column end_ns is String, must be numbers"),
    ],
)
def test_files_that_are_no_run_are_refused(
    folders: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    how: str,
    told: str,
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folders["lfu"], broken)
    spoil(broken, how)
    assert main([str(folders["lru"]), str(broken)]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["RUN", "fate"], "fate is none; give two directories, or two systems"),
        (["fate", "RUN"], "fate is none; give two directories, or two systems"),
        (["RUN", "RUN", "seed=1"], "'seed=1' cannot change runs that have been made"),
        (["lru", "nosuch"], "Could not find 'system/nosuch'"),
        (["lru", "cache=lfu"], "neither the directory of a run nor a system"),
        (["lru", "lru lfu"], "'lfu' is no key=value"),
        (
            ["lru", "lru hardware=jetson_agx_orin", "trace.max_sequences=1"],
            "lru has hardware.name=rtx4090_pcie4, ",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused(
    folders: dict[str, Path], capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main([str(folders["lru"]) if word == "RUN" else word for word in words]) == 2
    assert told in capsys.readouterr().err


# What is printed


@pytest.fixture
def hand_made() -> Callable[[float], Comparison]:
    """Four sequences on which B takes ``factor`` times as long as A.

    1 s of it is computing, the rest is waiting.
    """

    def made(factor: float) -> Comparison:
        ours = np.array([1e9, 2e9, 2e9, 1e9])
        ratio = paired(ours, factor * ours)
        waiting = 5_000_000_000, round(6e9 * factor) - 1_000_000_000
        return Comparison(
            ("x", "y"),
            {"compute": (10**9, 10**9), "no_slot": waiting},
            {"all steps": ratio},
            (Labels(), Labels()),
        )

    return made


@pytest.mark.parametrize(
    ("factor", "told"),
    [
        (
            1.5,
            (
                "A (x) is faster than B (y). B's time over A's, paired 95 % over 4 sequences of"
                " this trace: all steps 1.50x [1.50, 1.50], P(A faster) > 0.999. A's run is -3.000"
                " s against B's, of which waiting for a slot -3.000 s."
            ),
        ),
        (
            0.5,
            (
                "A (x) is slower than B (y). B's time over A's, paired 95 % over 4 sequences of"
                " this trace: all steps 0.50x [0.50, 0.50], P(A faster) < 0.001. A's run is +3.000"
                " s against B's, of which waiting for a slot +3.000 s."
            ),
        ),
    ],
    ids=["faster", "slower"],
)
def test_the_answer_says_who_by_how_much_and_why(
    hand_made: Callable[[float], Comparison], factor: float, told: str
) -> None:
    assert answer(hand_made(factor)) == told


def test_the_cause_has_the_sign_of_the_whole_difference_when_nobody_is_faster(
    hand_made: Callable[[float], Comparison],
) -> None:
    a, b = np.array([1.0, 5.0, 1.0, 5.0]), np.array([2.0, 4.0, 2.0, 5.0])
    found = replace(
        hand_made(1.0), ratios={"all steps": paired(a, b)}, parts={"demand": (5, 9), "host": (3, 2)}
    )
    assert not found.verdict.is_decided
    assert " s against B's, of which waiting for demand -" in answer(found)


def test_too_few_sequences_have_figures_and_no_verdict(
    hand_made: Callable[[float], Comparison],
) -> None:
    found = hand_made(1.5)
    few = replace(
        found,
        ratios={"all steps": paired(np.array([1e9, 2e9, 3e9]), 1.5 * np.array([1e9, 2e9, 3e9]))},
    )
    told = answer(few)
    assert told.startswith(
        "Cannot tell whether A (x) or B (y) is faster (fewer than 4 independent sequences). B's time over A's, "
    )
    assert "all steps 1.50x [1.50, 1.50]" in told


def test_the_table_leaves_out_what_neither_waited_for(
    hand_made: Callable[[float], Comparison],
) -> None:
    table = table_of(hand_made(1.5))
    assert list(table.columns[0].cells) == ["compute", "waiting: no slot", "all"]
    assert list(table.columns[3].cells) == ["+0.000", "-3.000", "-3.000"]


def test_without_two_runs_the_usage_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    for words, status in (([], 2), (["lru"], 2), (["--help"], 0), (["lru", "hobbit", "-h"], 0)):
        assert main(words) == status
        told = capsys.readouterr()
        assert told.out.startswith("usage: moelab compare A B [key=value ...]\n")
        assert "same trace, model, machine, workload and budget.\n" in told.out
        assert told.err == ""
