"""What-ifs: break-even points against closed forms, refusals, and the files of an answer."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from helpers.trying import Inline
from sim import whatif
from sim.answers.breakeven import crossing, in_three_digits
from sim.answers.whatif import Row
from sim.answers.whatif_words import table_of
from sim.machine.ledger import check_ledger, make_ledger
from sim.study import trials
from sim.whatif import QUESTIONS, _default_folder, answer, main, sentence
from sim.workload.steps import Limits

SHORT = ["trace.max_sequences=1", "hardware.memory_gib=96"]
SHORTER = [*SHORT, "workload.prompt_tokens=4", "workload.decode_tokens=4"]


@pytest.fixture(autouse=True)
def _few_halvings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find a crossing only to a 32nd of its interval's logarithm."""
    monkeypatch.setattr(whatif, "crossing", partial(crossing, steps=5))


def asked(name: str, *words: str, values: tuple[float, ...]) -> whatif.Answer:
    return answer(name, [*words, *SHORT], values, Inline())


@pytest.mark.thorough
def test_where_nothing_overlaps_the_bandwidth_that_equals_waiting_and_computing_is_the_closed_form() -> (
    None
):
    """Loads are on demand.

    At any bandwidth the waiting is n overheads + bytes / bandwidth.
    """
    found = asked("link", "system=lru", values=(8, 31.5))
    even = found.break_even
    assert even is not None
    assert even.closed_form is not None
    assert even.low < even.closed_form < even.high < 1.5 * even.low
    slow, fast = found.rows
    assert slow.tokens_per_s < fast.tokens_per_s
    assert slow.hit_ratio == fast.hit_ratio


@pytest.mark.thorough
def test_where_nothing_is_kept_the_cpu_wins_from_the_closed_form_on() -> None:
    """At break-even an expert takes as long on the CPU as its copy and computation elsewhere."""
    found = asked("cpu", "system=load_on_demand", values=(25, 400))
    even = found.break_even
    assert even is not None
    assert even.closed_form is not None
    assert even.low < even.closed_form < even.high < 1.5 * even.low
    slower, faster = (row for row in found.rows if row.speedup is not None)
    assert slower.speedup is not None
    assert faster.speedup is not None
    assert slower.speedup < 1 < faster.speedup


@pytest.mark.thorough
def test_values_that_cannot_run_are_left_out_and_told() -> None:
    found = asked("memory", "system=mixtral_offloading", values=(0.1, 0.5, 1.0))
    assert {row.value for row in found.rows} == {0.5, 1.0}
    assert len(found.refused) == 1
    assert "0.1: " in found.refused[0]
    assert "budget.resident_share that works is 0.25" in found.refused[0]


def test_in_the_same_bytes_fewer_bits_hold_more() -> None:
    values = tuple(QUESTIONS["bits"].values)
    found = asked("bits", "system=lru", "budget.resident_share=0.25", values=values)
    hits = [row.hit_ratio for row in found.rows]
    assert [row.series for row in found.rows] == ["int2", "int4", "int8", "fp16"]
    assert hits == sorted(hits, key=lambda hit: -(hit or 0))
    assert hits[0] == 1.0, "an eighth of the bits in a quarter of the bytes: all is resident"
    assert found.break_even is not None
    assert found.break_even.value == 4.0
    assert [hit == 1.0 for hit in hits] == [row.value <= 4.0 for row in found.rows]
    assert "all experts are resident at up to 4 bits" in sentence(found, "lru")
    assert "int2 decodes fastest" in sentence(found, "lru")


@pytest.mark.parametrize(("name", "values"), [("memory", (0.25, 1.0)), ("bits", (8.0, 16.0))])
def test_what_varies_the_budget_goes_on_from_one_that_fits(
    name: str, values: tuple[float, ...]
) -> None:
    found = answer(name, ["system=lru", "budget=fit", *SHORTER], values, Inline())
    assert found.refused == ()
    assert {row.value for row in found.rows} == {*values}
    assert "(100 % of the expert bytes)" in found.about


def test_a_share_that_does_not_fit_leaves_the_shares_that_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The share is half where no word says another, and half takes 21 GiB."""
    monkeypatch.setattr(whatif, "ProcessPoolExecutor", lambda *args, **kwargs: Inline())
    small = [word for word in SHORTER if not word.startswith("hardware.memory_gib")]
    found = answer(
        "memory", ["system=lru", "hardware.memory_gib=16", *small], (0.25, 0.5), Inline()
    )
    assert {row.value for row in found.rows} == {0.25}
    assert found.refused[0].startswith("0.5: the device holds 16 GiB")
    assert "10.5 GiB of slots (25 % of the expert bytes)" in found.about
    words = ["system=lru", "hardware.memory_gib=16", *small, f"output_dir={tmp_path / 'a'}"]
    assert main(["memory", "values=0.25,0.5", *words]) == 0
    with pytest.raises(ValueError, match=r"^the device holds 16 GiB, but the run needs 23\."):
        answer("memory", ["system=lru", "hardware.memory_gib=16", *small], (0.5, 1.0), Inline())
    with pytest.raises(ValueError, match=r"^the device holds 16 GiB"):
        answer("link", ["system=lru", "hardware.memory_gib=16", *small], (8.0,), Inline())


# Contracts: C184
def test_how_many_drafts_pay_is_told_for_experts_that_stay_and_for_offloaded_ones() -> None:
    found = answer("drafts", ["system=lru", *SHORTER[:1], *SHORTER[2:]], (0, 1, 2), Inline())
    rows = {(row.value, row.series): row for row in found.rows}
    assert rows[0, "offloaded"].tokens_per_s == rows[0, "on device"].tokens_per_s
    assert rows[2, "offloaded"].tokens_per_s != rows[2, "on device"].tokens_per_s
    # Of 66 slots the draft layer's eight experts take eight; or 17 layers share the 66.
    slots = {key: row.slots_a_layer for key, row in rows.items()}
    assert slots[0, "on device"] * 16 == 66
    assert slots[2, "on device"] * 16 == 58
    assert slots[2, "offloaded"] * 17 == pytest.approx(66)
    told = sentence(found, "lru")
    # 1 + 0.696 + 0.445 tokens, as one engine logged.
    assert "a step with 2 drafts gives 2.14 tokens in the mean" in told
    for series in ("offloaded", "on device"):
        speeds = {row.value: row.tokens_per_s for row in found.rows if row.series == series}
        best = max(speeds, key=lambda value: speeds[value])
        says = f"{best:g} a step are fastest" if best else "no number of drafts is faster than none"
        assert f"lru, drafts' experts {series}: {says}" in told


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], ["budget=fit", "workload=mtp_4"]),
        (["workload.draft_accepted=0.9"], ["budget=fit", "workload=mtp_4"]),
        (["workload=continuous_4"], ["budget=fit", "workload.draft_tokens=0"]),
        (["workload=continuous_4", "workload.draft_tokens=1"], ["budget=fit"]),
        (["budget.resident_share=0.3"], ["workload=mtp_4"]),
    ],
)
def test_a_question_s_own_words_give_way_to_those_that_replace_them(
    words: list[str], wanted: list[str]
) -> None:
    assert whatif._on_base(QUESTIONS["drafts"], words) == [*wanted, *words]


def test_no_drafts_are_asked_for_beside_any_number() -> None:
    assert whatif._values("drafts", "2,4") == (0, 2, 4)


def kv(*words: str, values: tuple[float, ...]) -> whatif.Answer:
    return answer("kv", ["system=lru", *SHORTER[:1], *SHORTER[2:], *words], values, Inline())


# Contracts: C152, C153
@pytest.mark.thorough
def test_what_a_context_takes_is_taken_from_slots_and_fewer_bits_give_some_back() -> None:
    found = kv(values=(4096, 131072))
    rows = {(row.value, row.series): row for row in found.rows}
    own, eight, four = "16 bits", "8.5 bits", "4.5 bits"
    assert [row.series for row in found.rows] == [four, eight, own] * 2
    slots = {key: row.slots_a_layer for key, row in rows.items()}
    assert slots[4096, own] > slots[131072, own]
    assert slots[131072, own] < slots[131072, eight] < slots[131072, four]
    assert rows[4096, own].tokens_per_s > rows[131072, own].tokens_per_s
    assert rows[131072, own].speedup is None
    # 16 layers x 65,536 B a token at 16 bits, and slots of 352,321,536 B: by hand.
    taken = (131072 - 4096) * 16 * 4096 / 352_321_536 / 16
    assert slots[4096, own] - slots[131072, own] == pytest.approx(taken, abs=0.1)
    told = sentence(found, "lru")
    assert "1,024 more tokens of context take as many bytes as 0.0119 slots a layer" in told
    assert f"leave {slots[131072, own]:.3g} slots a layer" in told
    best = max((row for row in found.rows if row.value == 131072), key=lambda r: r.tokens_per_s)
    assert f"fastest at {best.series}" in told


# Contracts: C153
@pytest.mark.thorough
def test_a_context_that_fits_at_fewer_bits_only_is_told_and_the_fill_is_where_memory_ends() -> None:
    found = kv(values=(4096, 400_000))
    assert [row.series for row in found.rows if row.value == 400_000] == [
        "4.5 bits",
        "8.5 bits",
    ]
    assert all(row.speedup is None for row in found.rows if row.value == 400_000)
    (why,) = found.refused
    assert why.startswith("400000, 16 bits: ")
    even = found.break_even
    assert even is not None
    assert even.closed_form is not None
    fills = int(even.closed_form)
    run = trials.prepared(["system=lru", *SHORTER[:1], *SHORTER[2:]])
    rows = run.workload.limits.rows
    full, over = (
        make_ledger(run.model, run.hardware, Limits(tokens, rows, 0), slot_bytes=0)
        for tokens in (fills, fills + 1)
    )
    check_ledger(full, run.hardware, Limits(fills, rows, 0))
    assert run.hardware.memory_bytes - full.total_bytes < run.model.kv_bytes_per_token
    with pytest.raises(ValueError, match="the key-value cache of"):
        check_ledger(over, run.hardware, Limits(fills + 1, rows, 0))


# Contracts: C153
@pytest.mark.thorough
def test_a_budget_that_is_given_stays_and_context_costs_time_alone() -> None:
    found = kv("budget.resident_share=0.25", values=(4096, 65536))
    assert len({row.slots_a_layer for row in found.rows}) == 1
    assert len({row.hit_ratio for row in found.rows}) == 1
    speeds = {(row.value, row.series): row.tokens_per_s for row in found.rows}
    assert speeds[65536, "16 bits"] < speeds[65536, "4.5 bits"]


# Contracts: C153
@pytest.mark.thorough
def test_a_number_of_tokens_a_second_allows_a_context() -> None:
    slow, fast = (row.tokens_per_s for row in kv(values=(4096, 131072)).rows if "16" in row.series)
    words = ["system=lru", *SHORTER[:1], *SHORTER[2:]]
    found = answer("kv", words, (4096, 131072), Inline(), target=(slow + fast) / 2)
    assert found.target is not None
    assert found.target.value is not None
    assert 4096 < found.target.value < 131072
    assert "tokens/s allow at most " in found.target.told


def test_an_answer_is_a_table_a_figure_and_the_same_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(whatif, "ProcessPoolExecutor", lambda *args, **kwargs: Inline())
    words = ["predictor", "system=lru", "values=0.3,1", *SHORT, f"output_dir={tmp_path / 'a'}"]
    assert main(words) == 0
    told = capsys.readouterr().out
    content = json.loads((tmp_path / "a" / "answer.json").read_text())
    assert content["answer"] in told
    assert "TRANSPLANTED" in content["answer"]
    about = content["about"]
    assert about.endswith(
        " experts at fp16, 21 GiB of slots (50 % of the expert bytes), unless varied"
    )
    assert about in " ".join(told.split())
    rows = list(csv.DictReader((tmp_path / "a" / "table.csv").read_text().splitlines()))
    assert [row["series"] for row in rows] == ["prefetching", "on demand"] * 2
    assert (tmp_path / "a" / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "TRANSPLANTED" in (tmp_path / "a" / "figure.svg").read_text()


@pytest.mark.thorough
def test_an_interrupted_asking_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No run that was done is repeated, unless its file was cut short."""
    monkeypatch.setattr(whatif, "ProcessPoolExecutor", lambda *args, **kwargs: Inline())
    words = ["bits", "system=lru", "values=2,4", *SHORTER, f"output_dir={tmp_path / 'a'}"]
    made: list[Sequence[str]] = []
    simulated = trials.trial

    def second_fails(words: Sequence[str]) -> trials.Trial:
        if len(made) == 1:
            raise KeyboardInterrupt
        made.append(words)
        return simulated(words)

    monkeypatch.setattr(trials, "trial", second_fails)
    assert main(words) == 130
    assert "the same words go on" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["trials"]
    assert not (tmp_path / "a" / "answer.json").exists()
    (tmp_path / "a" / "trials" / "other.part").write_text("{")
    made.clear()
    monkeypatch.setattr(trials, "trial", lambda words: made.append(words) or simulated(words))
    assert main(words) == 0
    assert len(made) == 1, "the one that was not done"
    assert len(json.loads((tmp_path / "a" / "answer.json").read_text())["rows"]) == 2
    assert not (tmp_path / "a" / "trials").exists()
    assert main(words) == 2, "an answer is not written over"


@pytest.mark.thorough
def test_an_older_answer_stays_until_there_is_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(whatif, "ProcessPoolExecutor", lambda *args, **kwargs: Inline())
    words = ["bits", "system=lru", *SHORTER, f"output_dir={tmp_path / 'a'}"]
    assert main([*words, "values=2"]) == 0
    old = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    simulated = trials.trial

    def fails(words: Sequence[str]) -> trials.Trial:
        raise ValueError("no room")

    monkeypatch.setattr(trials, "trial", fails)
    assert main([*words, "values=2", "overwrite=yes"]) == 2
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == old
    monkeypatch.setattr(trials, "trial", simulated)
    assert main([*words, "values=4", "overwrite=yes"]) == 0
    assert set(old) == {path.name for path in (tmp_path / "a").iterdir()}
    assert (tmp_path / "a" / "table.csv").read_bytes() != old["table.csv"]


@pytest.mark.thorough
def test_what_a_number_of_tokens_needs_is_found_and_told() -> None:
    def needed(target: float) -> tuple[float | None, str]:
        words = ["system=lru", *SHORTER]
        found = answer("link", words, (8, 63), Inline(), target=target)
        assert found.target is not None
        assert found.target.told in sentence(found, "lru")
        return found.target.value, found.target.told

    slow, fast = (row.tokens_per_s for row in asked_shortly("link", 8, 63).rows)
    value, told = needed((slow + fast) / 2)
    assert value is not None
    assert 8 < value < 63
    enough = in_three_digits(value, is_up=True)
    assert told.endswith(f"tokens/s need a link of {enough:g} GB/s (peak)")
    assert all(
        row.tokens_per_s >= (slow + fast) / 2 for row in asked_shortly("link", value, enough).rows
    )
    never, why = needed(2 * fast)
    assert never is None
    assert why.startswith("nothing up to a link of 63 GB/s (peak) gives")
    assert "are reached from a link of 8 GB/s (peak) on" in needed(slow / 2)[1]
    bits = answer("bits", ["system=lru", *SHORTER], (2, 16), Inline(), target=1e-3)
    assert bits.target is not None
    assert bits.target.told == "0.001 tokens/s are reached at 2, 16"


def asked_shortly(name: str, *values: float) -> whatif.Answer:
    return answer(name, ["system=lru", *SHORTER], values, Inline())


def test_a_table_fits_80_columns_and_says_what_does_not_change_once() -> None:
    rows = tuple(
        Row(
            value,
            name,
            speed,
            (2.75, 2.98),
            0.96,
            0.5,
            times,
            (0.391, 0.695) if times else None,
            0.0,
        )
        for value, speed in ((0.1, 2.86), (0.3, 3.01), (1.0, 5.77))
        for name, speed, times in (("prefetching", speed, 0.52), ("on demand", 5.49, None))
    )
    found = whatif.Answer(
        "predictor", "precision of the forecasts", rows, None, None, (), (), False
    )
    text = io.StringIO()
    Console(file=text, width=80).print(table_of(found, "mixtral_offloading loader=as_ready"))
    told = text.getvalue()
    assert "…" not in told
    assert max(map(len, told.splitlines())) <= 80
    assert told.count("on demand") == 1
    assert re.search(r"^ any +on demand +5.49", told, re.MULTILINE)
    assert told.count("prefetching") == 3
    assert told.count("0.52 0.391..0.695") == 3
    assert "hits 50.0% at each point" in told
    assert "waits 96% at each point" in told


@pytest.mark.parametrize(
    ("hits", "slots", "told"),
    [(0.0, 1.94, True), (0.1, 1.94, False), (0.0, 2.0, False), (None, 1.94, False)],
)
def test_hits_of_none_are_explained_where_the_slots_hold_less_than_a_token_needs(
    hits: float | None, slots: float, told: bool
) -> None:
    rows = tuple(whatif.Row(x, "lru", x, None, 0.9, hits, None, None, slots) for x in (1.0, 2.0))
    found = whatif.Answer("link", "GB/s", rows, None, None, (), (), True, top_k=2)
    caption = str(table_of(found, "lru").caption)
    words = "no expert hits where the slots hold 1.94 a layer: one token needs 2, so each is gone"
    assert (words in caption) is told


def test_the_table_of_contexts_fits_80_columns() -> None:
    rows = tuple(
        Row(
            value,
            name,
            speed,
            (2.74, 9.21),
            0.94,
            0.576,
            times,
            times and (0.647, 1.52),
            4.06 + value,
        )
        for value, speed in ((4096.0, 4.96), (131072.0, 3.19))
        for name, times in (("4.5 bits", 1.09), ("8.5 bits", 1.06), ("16 bits", None))
    )
    found = whatif.Answer("kv", "tokens of context", rows, None, None, (), (), True)
    text = io.StringIO()
    Console(file=text, width=80).print(table_of(found, "lru"))
    told = text.getvalue()
    assert "…" not in told
    assert max(map(len, told.splitlines())) <= 80
    assert re.search(r"^ 131072 +8\.5 bits +3\.19", told, re.MULTILINE)


def test_a_kept_run_is_the_run(tmp_path: Path) -> None:
    words = ("system=lru", *SHORTER)
    first, again = trials.kept_trial(words, tmp_path), trials.kept_trial(words, tmp_path)
    assert again.summary == first.summary
    assert again.tokens.equals(first.tokens)
    assert again.sequences.equals(first.sequences)
    assert again.config == first.config
    (file,) = tmp_path.glob("*.json")
    file.write_text(file.read_text()[:100])
    assert trials.kept_trial(words, tmp_path).summary == first.summary


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["weather"], "'weather' is none of memory, link, predictor, cpu, bits, kv"),
        (["memory", "lru"], "'lru' is no KEY=VALUE"),
        (["memory", "values=a"], "values=a must be numbers"),
        (["memory", "values=0,1"], "values=0,1 must be numbers above 0"),
        (["memory", "values=nan"], "values=nan must be numbers above 0"),
        (["bandwidth", "values=8,inf"], "values=8,inf must be numbers above 0"),
        (["bandwidth", "machine=rtx409"], "there is no hardware 'rtx409'"),
        (["memory", "system=nosuch"], "there is no system 'nosuch'"),
        (["memory", "hardware.memory_gib=1"], "the device holds 1 GiB"),
    ],
)
def test_what_cannot_be_asked_is_refused_and_nothing_written(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, f"output_dir={tmp_path / 'a'}"]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_without_a_folder_an_answer_goes_to_a_free_one_or_to_that_of_an_interrupted_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = Path("outputs/whatif_link")
    assert _default_folder("link", False) == first
    first.mkdir(parents=True)
    (first / "answer.json").write_text("{}")
    assert _default_folder("link", False) == first.with_name("whatif_link-2")
    assert _default_folder("link", True) == first
    (first / "trials").mkdir()
    assert _default_folder("link", False) == first
