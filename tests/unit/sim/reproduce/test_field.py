"""Published runs: what the file holds, what is refused, and one that is simulated."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest
import yaml
from rich.console import Console

from sim.answers.engine_flags import read_flags, words_of
from sim.reproduce import field
from sim.reproduce.__main__ import main
from sim.reproduce.field import (
    FITTED,
    GATES,
    GAVE_ATTENTION,
    GAVE_HEADS,
    GAVE_LAUNCH,
    LIKE,
    NEXT,
    Published,
    Row,
    check_gates,
    like_of,
    on_gates,
    published,
    rows,
    table,
)
from sim.reproduce.field_figures import slots_table, splits
from sim.reproduce.field_gains import gains
from sim.study.trials import prepared
from sim.traces.header import ModelShape
from sim.traces.synthesis import PRESETS, synthesize
from sim.traces.trace import write_trace
from sim.values.places import ROOT

HEAD = "id,source,machine,tokens_per_s,hit_ratio,baseline,fitted_on,drawn,words\n"


SHAPES = {
    LIKE: PRESETS[LIKE],
    NEXT: ModelShape(f"synthetic_{NEXT}", "none", 48, 512, 10, 2560, 640),
    "gpt_oss_120b": ModelShape("synthetic_gpt_oss_120b", "none", 36, 128, 4, 2880, 2880),
    "gpt_oss_20b": ModelShape("synthetic_gpt_oss_20b", "none", 24, 32, 4, 2880, 2880),
    "qwen3_235b_a22b": ModelShape("synthetic_qwen3_235b_a22b", "none", 94, 128, 8, 4096, 1536),
    "deepseek_v3": ModelShape("synthetic_deepseek_v3", "none", 58, 256, 8, 7168, 2048),
    "deepseek_v2_lite": ModelShape("synthetic_deepseek_v2_lite", "none", 26, 64, 6, 2048, 1408),
}


DECODED = {LIKE, "gpt_oss_20b", "gpt_oss_120b", "deepseek_v2_lite"}
"""Models whose runs say how many tokens they read and decode."""


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few tokens of each model's shape, and as many to fit on."""
    folder = tmp_path_factory.mktemp("gates")
    for name, shape in SHAPES.items():
        tokens, prompt = (16, 32) if name in DECODED else (3, 1)
        write_trace(
            folder / name, synthesize(shape, tokens=tokens, prompt_tokens=prompt, sequences=2)
        )
    return folder


def test_every_published_run_names_its_source_and_its_machine() -> None:
    found = published()
    assert len(found) == len({(one.name, one.fitted_on) for one in found}) >= 14
    assert all(any(word.startswith("hardware=") for word in one.words) for one in found)
    assert all(one.hit_ratio is None or 0 < one.hit_ratio < 1 for one in found)
    # Of several cards a figure may be drawn from a run of one.
    card = {one: one.machine.removeprefix("2 x ") for one in found}
    fitted = {(one.fitted_on, card[one]) for one in found if one.fitted_on}
    assert fitted <= {(one.name, card[one]) for one in found if not one.fitted_on}
    bases = {(one.baseline, card[one]) for one in found if one.baseline}
    assert bases <= {(one.name, card[one]) for one in found}
    assert len({one.name for one in found if one.baseline}) >= 15


@pytest.mark.thorough
def test_the_figure_drawn_from_a_row_gives_that_row(gates: Path) -> None:
    """Runs of one source have the same figures from it. With them the source is as fast as measured.

    What a run with a cache keeps depends on the gates, and these are not those it was drawn with.
    """
    found = {one.name: one for one in published() if not one.fitted_on}
    drawn: dict[str, set[tuple[str, ...]]] = {}
    for one in published():
        if one.fitted_on and not one.is_prompt:  # a prompt's experts depend on its gates, too
            drawn.setdefault(one.fitted_on, set()).add(one.drawn)
    exact = set()
    for name, (figures,) in drawn.items():
        source = found[name]
        (row,) = rows(gates, [replace(source, words=(*source.words, *figures))])
        if row.hit_ratio in (0, 1):
            assert row.ratio == pytest.approx(1, abs=0.01), name
            exact.add(name)
    assert {"imp30-resident", "bm-c0", "ds4-gb10-inert", "ik-r1-a6000-0k", "pp122-cpu"} <= exact


def where_one(ratio: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising ratio is one, between these."""
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if ratio(middle) > 1 else (middle, high)
    return low


@pytest.mark.thorough
def test_the_share_at_which_attention_reads_is_the_middle_of_nine_groups(gates: Path) -> None:
    """Of each group the share that makes its first context lose what it lost is searched for. The
    engine's file has the middle of the nine, to a digit.
    """
    found = {one.name: one for one in published()}

    def ratio(name: str, share: float) -> float:
        one = found[name]
        base = found[one.baseline]
        word = f"kernels.attention_share={share}"
        pair = (replace(each, words=(*each.words, *one.drawn, word)) for each in (one, base))
        (own,), (of_base,) = (list(rows(gates, [each])) for each in pair)
        return own.ratio / of_base.ratio

    shares = [where_one(partial(ratio, name), 0.1, 1.0) for name in GAVE_ATTENTION]
    assert min(shares) == pytest.approx(0.47, abs=0.01)
    assert max(shares) == pytest.approx(0.83, abs=0.01)
    engine = yaml.safe_load((ROOT / "conf/kernels/llama_cpp.yaml").read_text(encoding="utf-8"))
    assert engine["attention_share"] == round(median(shares), 1)


@pytest.mark.thorough
def test_a_launch_on_strix_halo_is_the_middle_of_three_runs(gates: Path) -> None:
    found = {one.name: one for one in published()}

    def slower(name: str, launch_us: float) -> float:
        words = (*found[name].words, f"hardware.compute.launch_us={launch_us}")
        (row,) = rows(gates, [replace(found[name], words=words)])
        return 1 / row.ratio

    launches = sorted(where_one(partial(slower, name), 0.1, 12) for name in GAVE_LAUNCH)
    assert launches == pytest.approx([2.5, 4.2, 6.4], abs=0.1)
    machine = yaml.safe_load((ROOT / "conf/hardware/strix_halo.yaml").read_text(encoding="utf-8"))
    assert machine["compute"]["launch_us"] == round(launches[1])


def test_runs_that_gave_a_figure_have_no_gain() -> None:
    found = {one.name: one for one in published()}
    assert FITTED == {*GAVE_ATTENTION, *GAVE_LAUNCH, *GAVE_HEADS} < {*found}
    of_group = [found[f"lc-oss20-gb10-{context}"] for context in ("0k", "8k", "32k")]
    judged = gains([Row(one, 1.0, 1.0, "no gates") for one in of_group], lambda row: row)
    assert [gain.run.name for gain in judged] == ["lc-oss20-gb10-32k"]


def test_all_runs_of_strata_have_its_kernels_and_none_a_figure_of_its_card_drawn() -> None:
    """Its file has how many kernels there are. What is drawn of a run is the CPU's rate alone."""
    runs = [one for one in published() if "/Niko1221/Strata/" in one.source]
    assert len({one.machine for one in runs}) >= 8
    for one in runs:
        assert "kernels=strata" in one.words, one.name
        assert not any(word.startswith("hardware.compute.launch_us=") for word in one.words)
        assert all(word.startswith("hardware.cpu.memory_gb_per_s=") for word in one.drawn)


KERNELS = {
    "early August 2025": {"qwen": 38, "gpt": 38, "deepseek": 47},
    "late August 2025": {"qwen": 32, "gpt": 35, "deepseek": 42},
    "October 2025": {"qwen": 28, "gpt": 33, "deepseek": 40},
    "November 2025": {"qwen": 24, "gpt": 23, "deepseek": 33},
    "2026": {"qwen": 23, "gpt": 23, "deepseek": 31},
}
"""How many kernels a layer has beside three of experts, by model and by when it was built: counted in
the code (docs/field.md).
"""


def test_how_many_kernels_a_run_has_and_what_is_replayed_follow_from_the_date_of_its_page() -> None:
    """Where a run says neither, it is of 2026, or of no CUDA.

    ik_llama.cpp's runs are counted as llama.cpp's of the time: its graphs are of August 2025 (689).
    A T4 and a P40 had none before 2026.
    """
    counts = {count for by_model in KERNELS.values() for count in by_model.values()}
    runs = [
        one
        for one in published()
        if {"kernels=llama_cpp", "system=llama_cpp_n_cpu_moe"} & {*one.words}
    ]
    said = {"graph_rows": 0, "launches": 0}
    for one in runs:
        words = dict(word.split("=", 1) for word in one.words if word.startswith("kernels."))
        rows = words.get("kernels.graph_rows")
        assert rows in (None, "0", "1", "4"), one.name
        assert int(words.get("kernels.launches", 23)) in counts, one.name
        if rows == "0":
            assert int(words["kernels.launches"]) in {33, 35, 38, 47}, f"{one.name}: before 2026"
        said["graph_rows"] += rows is not None
        said["launches"] += "kernels.launches" in words
    assert said["graph_rows"] > 100
    assert said["launches"] > 80


def test_every_model_whose_gates_a_run_has_has_its_own_words_and_a_run() -> None:
    """A model of the catalogue is named by its words, and another one by those of its sizes."""
    used = {like_of(one.words) for one in published()}
    assert used == set(GATES) == set(SHAPES)
    for name, words in GATES.items():
        named = {
            word.partition("=")[2] for word in words if word.startswith(("model=", "model.si"))
        }
        assert name in named


def test_words_of_all_runs_of_a_model_compose_and_fit_its_gates(gates: Path) -> None:
    """A run with every layer on the CPU, of each model: the gates are of its layers and experts."""
    for name in GATES:
        words = (f"like={name}", "system=llama_cpp_n_cpu_moe", "cache.quotas.n_cpu_moe=all")
        run = prepared(on_gates(gates, [*words, "budget.resident_share=0.0001"]))
        shape = SHAPES[name]
        assert (run.model.sites, run.model.experts) == (shape.sites, shape.experts)


def test_a_runs_own_words_take_the_place_of_those_of_all_on_its_models_gates(
    tmp_path: Path,
) -> None:
    words = (f"like={NEXT}", "precision=nvfp4", "+model.dense_bits=16", "model.top_k=4")
    found = on_gates(tmp_path, words)
    assert f"trace.path={tmp_path / NEXT}" in found
    assert [word for word in found if "precision" in word] == ["precision=nvfp4"]
    assert [word for word in found if "dense_bits" in word] == ["+model.dense_bits=16"]
    assert {"model.experts=512", "model.top_k=4"} < set(found)
    assert not any(word.startswith("like=") for word in found)
    # A folder that is a trace itself serves the first model's runs, unless it has one of its name.
    assert f"trace.path={tmp_path}" in on_gates(tmp_path, ("system=lru",))
    (tmp_path / LIKE).mkdir()
    assert f"trace.path={tmp_path / LIKE}" in on_gates(tmp_path, ("system=lru",))


def test_gates_that_are_not_there_are_told_before_anything_runs(
    gates: Path, tmp_path: Path
) -> None:
    one = Published("a", "https://b", "c", 10.0, None, (f"like={NEXT}", "system=lru"))
    check_gates(gates, [one, replace(one, words=("system=lru",))])
    told = rf"{tmp_path / NEXT} has no trace.*synthesize like={NEXT} .*output_dir={tmp_path / NEXT}"
    with pytest.raises(ValueError, match=told):
        check_gates(tmp_path, [one])
    long = replace(one, words=("system=lru", "prompt=4096"))
    told = f"{LIKE} tokens=1 sequences=1 prompt_tokens=8192 lookahead=0 output_dir={gates / 'prompts' / LIKE}$"
    with pytest.raises(ValueError, match=told):
        check_gates(gates, [one, long, replace(one, words=("system=lru", "prompt=8192"))])
    with pytest.raises(ValueError, match=f"like=gpt: .* {LIKE}, {NEXT}"):
        check_gates(gates, [replace(one, words=("like=gpt", "system=lru"))])


# Contracts: C154
@pytest.mark.parametrize(
    ("micro_batch", "context", "used"),
    [(256, 4096, 25), (512, 4096, 26), (2048, 4096, 25), (4096, 4096, 26), (8192, 8192, 28)],
)
def test_as_few_layers_are_on_the_cpu_as_somebody_could_do_with(
    micro_batch: int, context: int, used: int, gates: Path
) -> None:
    """gpt-oss-120b on a card of 24 GB, its dense weights of 16 bits (`lc-oss-3090-ub`): what was used
    there fits here, and it is the fewest or one more.
    """
    words = ["model=gpt_oss_120b", "precision=mxfp4", "++model.dense_bits=16"]
    words += ["hardware=rtx3090_pcie4", f"trace.path={gates / 'gpt_oss_120b'}"]

    def fits(layers: int) -> bool:
        line = f"--n-cpu-moe {layers} -c {context + 128} -ub {micro_batch} -b {micro_batch}"
        try:
            return prepared(words_of(read_flags(line), words)).ledger.slot_bytes > 0
        except ValueError:
            return False

    fewest = next(layers for layers in range(37) if fits(layers))
    assert used - 1 <= fewest <= used


def test_a_run_of_loads_alone_takes_its_bytes_over_the_link(gates: Path) -> None:
    """48 layers load 8 experts of 2.65 MB at 6.5 GB/s: 156.8 ms a token, and computing beside it."""
    one = next(run for run in published() if run.name == "imp30-staging")
    (row,) = rows(gates, [one])
    bytes_ms = 48 * 8 * 3 * 2048 * 768 * 4.5 / 8 / 6.5e9 * 1e3
    host_ms = 0.0084 * 632  # small copies
    assert bytes_ms + host_ms < 1e3 / row.tokens_per_s < bytes_ms + host_ms + 12
    assert row.hit_ratio == 0
    assert "synthetic" in row.gates
    assert row.ratio == row.tokens_per_s / 6.63


def test_the_table_has_both_sides_and_a_dash_for_what_is_not_told() -> None:
    one = Published("a", "https://b", "c", 10.0, None, ("system=lru",))
    made = table([Row(one, 25.0, 0.5, "SYNTHETIC")])
    assert made.caption == "gates: SYNTHETIC"
    told = [list(column.cells) for column in made.columns]
    assert told == [["a"], ["c"], ["10.00"], ["25.00"], ["2.50"], ["-"], ["0.500"], [""]]


def test_in_80_columns_nothing_of_a_run_is_cut() -> None:
    runs = [Row(one, 25.0, 0.5, "SYNTHETIC") for one in published()]
    for made in (table(runs), slots_table(splits())):
        heard = io.StringIO()
        Console(file=heard, width=80).print(made)
        assert "\u2026" not in heard.getvalue()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("a,https://b,c,fast,,,,,system=lru", r":2: .* is no published run"),
        ("a,https://b,c,0,,,,,system=lru", r":2: .* needs a rate, a source and words"),
        ("a,hearsay,c,1,,,,,system=lru", r":2: .* needs a rate, a source and words"),
        ("a,https://b,c,1,,,,,", r":2: .* needs a rate, a source and words"),
        ("a,https://b,c,1,,,,,system=lru prompt=all", r":2: .* is no published run"),
        ("a,https://b,c,1,,,,,system=lru prompt=-1", r":2: .* needs a rate, a source and words"),
        ("a,https://b,c,1,,,b,,system=lru", r":2: .* \(drawn=none\) and .* \(fitted_on=b\)"),
        ("a,https://b,c,1,,,,x=2,system=lru", r":2: .* \(drawn=x=2\) and .* \(fitted_on=none\)"),
    ],
)
def test_what_is_no_published_run_is_refused(line: str, told: str, tmp_path: Path) -> None:
    place = tmp_path / "field.csv"
    place.write_text(HEAD + line + "\n")
    with pytest.raises(ValueError, match=told):
        published(place)


def test_a_folder_without_gates_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["field=nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_run_may_be_slower_than_a_token_a_second(tmp_path: Path) -> None:
    place = tmp_path / "field.csv"
    place.write_text(HEAD + "a,https://b,c,0.25,,,,,system=lru\n")
    (one,) = published(place)
    assert one.tokens_per_s == 0.25


def test_a_run_is_simulated_with_its_words_on_the_gates_and_has_tokens_for_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    summary = {"tpot_s": {"mean": 0.04}, "hit_ratio": 0.5, "trace": {"gates": "g"}}
    asked: list[list[str]] = []
    monkeypatch.setattr(
        field, "trial", lambda words: asked.append(words) or SimpleNamespace(summary=summary)
    )
    one = Published("a", "https://b", "c", 10.0, 0.25, ("system=lru", "x=1"), "y")
    found = list(rows(Path("there"), [one]))
    assert found == [Row(one, 25.0, 0.5, "g")]
    assert asked == [
        [
            *("model=qwen3_30b_a3b", "precision=int4", "trace.max_sequences=1"),
            *("trace.path=there", "system=lru", "x=1"),
        ]
    ]
    made = table([*found, Row(one, 5.0, 0.125, "f"), Row(one, 5.0, 0.125, "g")])
    assert made.caption == "gates: f; g"
    cells = [list(column.cells)[:2] for column in made.columns]
    assert cells[2:] == [
        ["10.00", "10.00"],
        ["25.00", "5.00"],
        ["2.50", "0.50"],
        ["0.250", "0.250"],
        ["0.500", "0.125"],
        ["y", "y"],
    ]


def test_the_speed_of_a_prompt_is_that_of_reading_so_many_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    summary = {"tpot_s": {"mean": 0.04}, "prefill_tokens_per_s": 512.0, "hit_ratio": 0.5}
    asked: list[list[str]] = []
    told = SimpleNamespace(summary=summary | {"trace": {"gates": "g"}})
    monkeypatch.setattr(field, "trial", lambda words: asked.append(words) or told)
    one = Published("a", "https://b", "c", 256.0, None, ("system=lru", "prompt=4096"))
    (row,) = rows(Path("there"), [one])
    assert one.is_prompt
    assert (row.tokens_per_s, row.ratio) == (512.0, 2.0)
    assert asked[0][3:] == [
        f"trace.path={Path('there') / 'prompts' / LIKE}",
        *("workload.prompt_tokens=4096", "workload.decode_tokens=1", "system=lru"),
    ]


def test_a_file_of_runs_is_read_whole_and_names_the_line_that_is_none(tmp_path: Path) -> None:
    place = tmp_path / "field.csv"
    lines = "a,https://b,c,1.5,0.25,d,y,v=3 w=4,system=lru x=1\nd,https://e,f,2,,,,,y=2\n"
    place.write_text(HEAD + lines)
    assert published(place) == [
        Published(
            *(
                "a",
                "https://b",
                "c",
                1.5,
                0.25,
                ("system=lru", "x=1", "v=3", "w=4"),
                "y",
                "d",
            ),
            drawn=("v=3", "w=4"),
        ),
        Published("d", "https://e", "f", 2.0, None, ("y=2",)),
    ]
    place.write_text(HEAD + lines + "g,https://h,i,-1,,,,,y=2\n")
    with pytest.raises(ValueError, match=r"field\.csv:4: .* needs a rate"):
        published(place)
