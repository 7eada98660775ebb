"""Pages about published runs, papers' claims and searched policies have what their commands say:
the commands run anew, and their numbers are looked for in the page.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from helpers.pages import Shell
from sim.reproduce.field import GATES, LIKE, NEXT
from sim.reproduce.roles import PAPERS
from sim.results.paired import paired
from sim.study.trials import trial
from sim.traces.reading import read_trace
from sim.values.places import ROOT

DOCS = ROOT / "docs"
SHARES = (0.25, 0.375, 0.5)
ROLES = ("identity", "predicted", "transferred", "fitted", "input", "not identifiable")
NAMED = ("class_lru", "lfru", "least_stale", "lru_warm")
VERDICTS = ("holds", "reachable", "misses", "misprint")
NAMES = {"hobbit": "HOBBIT", "edgemoe": "EdgeMoE", "fate": "Fate", "floe": "FloE"}
LONG = {
    "gpt_oss_20b": "tokens=16 sequences=64",
    LIKE: "tokens=256",
    NEXT: "tokens=256 sequences=24",
}
"""By model, gates whose hits count. Those of the others are of runs with whole layers on the CPU."""
PROMPTS = {
    LIKE: 4096,
    NEXT: 4096,
    "gpt_oss_120b": 8192,
    "deepseek_v2_lite": 4096,
    "gpt_oss_20b": 4096,
}
"""By model, the tokens of the longest prompt of its runs."""
Row = dict[str, Any]
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("default", "ignore:.*found in sys.modules"),
]


def rows(page: Path) -> list[list[str]]:
    """The rows of a page's tables, without marks of emphasis and code."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return [
        [cell.strip(" *`") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in lines
        if line.startswith("| ")
    ]


def without_gaps(text: str) -> str:
    return " ".join(word for word in text.casefold().split() if word != "-")


def test_published_runs_come_out_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shell = Shell(tmp_path, {})
    for like in GATES:
        told = LONG.get(like, "tokens=16 sequences=4")
        made = f"moelab synthesize like={like} {told} output_dir=gates/{like}"
        assert shell.run(made).status == 0
    for like, tokens in PROMPTS.items():
        told = f"tokens=1 sequences=1 prompt_tokens={tokens} lookahead=0"
        made = f"moelab synthesize like={like} {told} output_dir=gates/prompts/{like}"
        assert shell.run(made).status == 0
    found = shell.run("moelab reproduce field=gates")
    judged = [row for row in rows(DOCS / "field.md") if row[-1] in ("holds", "missed")]
    assert len(judged) == 3
    missed = [row for row in judged if row[-1] != "holds"]
    assert found.status == (1 if missed else 0), "another line is missed than the page says"
    told = found.out
    runs = {row[0] for row in rows(DOCS / "field.md")}
    printed = [line for line in told.splitlines() if line[1:].partition("  ")[0] in runs]
    page = {without_gaps(" ".join(row)) for row in rows(DOCS / "field.md")}
    assert [line for line in printed if without_gaps(line) not in page] == []
    assert len(printed) > 100


def test_prompts_need_as_many_experts_as_the_page_says(tmp_path: Path) -> None:
    told = f"like={NEXT} tokens=1 sequences=1 prompt_tokens={PROMPTS[NEXT]} lookahead=0"
    assert Shell(tmp_path, {}).run(f"moelab synthesize {told} output_dir=gates").status == 0
    ids = read_trace(tmp_path / "gates").ids
    _, sites, _ = ids.shape
    shares = []
    for tokens in (67, 328, 1022, 4096):
        chunks = range(0, PROMPTS[NEXT] - tokens + 1, tokens)
        unions = [len(np.unique(ids[at : at + tokens, s])) for at in chunks for s in range(sites)]
        shares.append(f"{100 * np.mean(unions) / 512:.0f}")
    page = (DOCS / "field.md").read_text(encoding="utf-8")
    assert "Here they need {}, {} and {} %:".format(*shares) in page
    assert f"tokens need {shares[-1]} % of the experts" in page


@pytest.mark.parametrize("paper", PAPERS)
def test_claims_of_a_paper_come_out_as_the_page_says(paper: str, tmp_path: Path) -> None:
    assert Shell(tmp_path, {}).run(f"python -m sim.reproduce paper={paper}").status == 0
    outputs = tmp_path / "outputs" / "reproduce"
    claims = [row for row in rows(outputs / f"{paper}.md") if len(row) == 8]
    scored = [
        [claim, says, published, simulated, verdict]
        for claim, where, says, published, simulated, role, verdict, _ in claims
        if role in ("predicted", "transferred") and where != "Table 1"
    ]
    page, known = rows(DOCS / "papers.md"), {row[0] for row in claims}
    assert [row for row in page if row[0] in known and row[-1] in VERDICTS] == scored
    verdicts = json.loads((outputs / f"{paper}.json").read_text(encoding="utf-8"))
    assert [NAMES[paper], *map(partial(counted, verdicts), ROLES)] in page


def counted(verdicts: list[Row], role: str) -> str:
    """What the page has of a role: how many claims came out how, or how many there are."""
    of = Counter(one["verdict"] for one in verdicts if one["role"] == role)
    said = [f"{of[verdict]} {verdict}" for verdict in VERDICTS if of[verdict]]
    return ", ".join(said) or str(of.total())


SERVED = {
    "pregated_moe": "1 (exact by construction)",
    "pregated_moe predictor=gate_lookahead_1": None,
    "sida": None,
    "sida precision=fp16": None,
}


@pytest.mark.parametrize(("system", "recall"), SERVED.items())
def test_other_experts_serve_as_often_as_the_page_says(system: str, recall: str | None) -> None:
    summary = trial([*f"system={system}".split(), "trace.max_sequences=4"]).summary
    proxy, found = summary["quality_proxy"], summary["prediction"]["recall_at_issued"]
    shares = [proxy[name] for name in ("reroute_share", "reroute_mass")]
    row = [system, *(f"{one:.1%}".replace("%", " %") if one else "0" for one in shares)]
    speed = f"{summary['decode_tokens_per_s']:.2f}"
    assert [*row, recall or f"{found:.3f}", speed] in rows(DOCS / "other_experts.md")
    assert recall is None or found == 1


def test_low_precision_and_skipping_lose_what_the_page_says(tmp_path: Path) -> None:
    words = "figure=hobbit_3b model=tiny_mixtral eval=16 output_dir=there"
    assert Shell(tmp_path, {}).run(f"moelab real quality_figures {words}").status == 0
    lost: dict[float, list[str]] = {}
    for one in pl.read_parquet(tmp_path / "there" / "hobbit_3b-tiny_mixtral.parquet").to_dicts():
        low, high = (f"{100 * one[f'increase_{end}']:.2g}" for end in ("low", "high"))
        lost.setdefault(one["x"], []).append(f"{100 * one['increase']:.2g} [{low}, {high}]")
    page = [row for row in rows(DOCS / "quality.md") if row[0] in map(str, lost) and len(row) == 4]
    assert page == [[str(x), *lost[x]] for x in (0.1, 0.2, 0.3, 0.5)]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("studies"), {})


def studied(shell: Shell, name: str) -> list[Row]:
    """The cells of a study, run in the shell's folder."""
    assert shell.run(f"python -m sim.study name={name}").status == 0
    folder = shell.folder / "outputs" / "studies" / name
    return pl.read_parquet(folder / "cells" / "*.parquet").to_dicts()


def over(row: Row, other: Row) -> str:
    """How many times as fast one run decodes as another, as pages have it."""
    found = paired(*(np.array(one["decode_ns"], float) for one in (row, other)))
    return str(found).replace("x", "")


def speed(row: Row) -> str:
    name = "decode_tokens_per_s"
    return f"{row[name]:.2f} [{row[f'ci95.{name}.low']:.2f}, {row[f'ci95.{name}.high']:.2f}]"


def test_the_one_test_of_the_found_policy_comes_out_as_its_page_says(shell: Shell) -> None:
    page = rows(DOCS / "new_policy.md")
    of = {
        (one["system"], one["axis.budget.resident_share"]): one
        for one in studied(shell, "new_policy_test")
    }
    for share, resident in zip(SHARES, ("25 %", "37.5 %", "50 %"), strict=True):
        ours, lru = of["scored_per_site", share], of["lru", share]
        rival = of.get(("adapmoe precision=fp16", share), lru)
        told = f"{rival['system']}` {rival['decode_tokens_per_s']:.2f}"
        assert [resident, speed(ours), told, over(ours, rival), over(ours, lru)] in page
        frozen, hobbit = (
            of[f"hobbit{words}", share] for words in (" predictor=none loader=as_ready", "")
        )
        of_hobbit = f"{hobbit['decode_tokens_per_s']:.2f}"
        assert [resident, speed(frozen), of_hobbit, over(frozen, hobbit)] in page
    for rival in ("promoe", "moe_infinity"):
        times = [over(of["scored_per_site", share], of[rival, share]) for share in SHARES]
        assert [rival, *times] in page


def test_systems_on_the_sequences_of_the_search_come_out_as_the_page_says(shell: Shell) -> None:
    page = rows(DOCS / "new_policy.md")
    speeds: dict[str, list[str]] = {}
    for one in sorted(
        studied(shell, "new_policy_rivals"), key=lambda one: one["axis.budget.resident_share"]
    ):
        speeds.setdefault(one["system"], []).append(f"{one['decode_tokens_per_s']:.2f}")
    steps = {
        "lru": "lru",
        "lru loader=as_ready predictor=none": "and experts computed as they arrive",
        "mixtral_offloading loader=as_ready predictor=none": "and an equal pool a layer",
        "scored_per_site": "and the score: ours",
        "mixtral_offloading": "an equal pool a layer with a forecast: `mixtral_offloading",
    }
    for system, step in steps.items():
        assert [step, *speeds[system]] in page
    text = (DOCS / "new_policy.md").read_text(encoding="utf-8")
    fate, adapmoe = (speeds[f"{name} precision=fp16"][1:] for name in ("fate", "adapmoe"))
    assert (
        f"{fate[0]} and {fate[1]} tokens/s for `adapmoe`'s\n{adapmoe[0]} and {adapmoe[1]}" in text
    )


def test_the_searched_cache_and_prefetcher_close_of_bundled_traces_what_the_page_says(
    shell: Shell,
) -> None:
    page = rows(DOCS / "policy_search.md")
    cells = by_cache(studied(shell, "policy_test_bundled"))
    for (trace, share), of in cells.items():
        words = [f"trace={trace}", "trace.split=eval", f"budget.resident_share={share}"]
        words += [f"model={trace}"] * (trace == "tiny_qwen2moe")
        best = min((of[name] for name in NAMED), key=lambda one: float(one["makespan_s"]))
        frozen, both = of["expected_reuse"], trial(["system=expected_needs", *words]).summary
        took, bound = best["makespan_s"], frozen["bounds.lower_s"]
        gained, gained_both = (took - one["makespan_s"] for one in (frozen, both))
        cache, to_belady = (gained / (took - to) for to in (bound, of["belady"]["makespan_s"]))
        hits = f"{frozen['hit_ratio']:.3f} for {best['hit_ratio']:.3f}"
        of_cache = [over(frozen, best), hits, f"{cache:.3f}", f"{to_belady:.3f}"]
        assert of_cache in [row[5:] for row in page]
        shown = ".0f" if took > 10 else ".3f"
        times = [f"{one:{shown}}" for one in (frozen["makespan_s"], both["makespan_s"], bound)]
        times.insert(2, f"{took / both['makespan_s']:.2f}")
        closed = [f"{cache:.3f}", f"{gained_both / (took - bound):.3f}"]
        assert [*times, *closed] in [[*row[3:8], row[9]] for row in page if len(row) == 10]


def by_cache(cells: list[Row]) -> dict[tuple[str, float], dict[str, Row]]:
    """The cells of each trace and budget, by cache."""
    found: dict[tuple[str, float], dict[str, Row]] = {}
    for one in cells:
        place = one["trace.name"], one["axis.budget.resident_share"]
        found.setdefault(place, {})[one["axis.cache"]] = one
    return found
