"""The answer to one question: which gates, who is lossless, what fits, and what would change it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.trying import SPAWNED, noted
from sim import ask
from sim.answers import ask as answers
from sim.answers import ask_bench
from sim.answers.ask import _first, _least, fits_of, systems_at
from sim.answers.ask_bench import trial_within
from sim.answers.ask_parts import BOUND, LOSSLESS, LOSSY, Change, Fit, Found, Row, alike
from sim.answers.ask_words import paragraph
from sim.results.labels import Labels
from sim.results.paired import Paired
from sim.study.trials import Trial, prepared, trial
from sim.values.units import GIB
from sim.verbs.asking import PATIENCE_S
from sim.verbs.names import names
from sim.verbs.table import verb_of
from sim.verbs.words import read

SYSTEMS = ("hobbit", "infinite_link", "lru")
FEW = ("trace.max_sequences=2", "workload.decode_tokens=4")


class Here(ThreadPoolExecutor):
    """A pool of processes that is this one."""

    def __init__(self, workers: int, context: object, initializer: object) -> None:
        super().__init__(1)


@pytest.fixture
def few_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(
        answers, "names", lambda group: SYSTEMS if group == "system" else names(group)
    )


WORDS = ("model=tiny_gates_half_mixtral", "machine=rtx4090_pcie4", *FEW)
PLACE = Path("outputs/ask_tiny_gates_half_mixtral_rtx4090_pcie4")


@pytest.mark.usefixtures("few_systems")
def test_the_answer_tells_kinds_fits_and_changes_and_a_second_call_has_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ask.main(WORDS) == 0
    told = capsys.readouterr().out
    files = {"answer.json", "answer.txt", "table.csv", "figure.png", "figure.svg"}
    assert {path.name for path in PLACE.iterdir()} == files
    found = json.loads((PLACE / "answer.json").read_text(encoding="utf-8"))
    rows = {(row["system"], row["precision"]): row for row in found["rows"]}
    kinds = {name: row["kind"] for name, row in rows.items()}
    assert kinds["lru", "fp16"] == LOSSLESS
    assert kinds["lru", "q4_k_m"] == kinds["hobbit", "fp16"] == LOSSY
    assert kinds["infinite_link", "fp16"] == BOUND
    assert 0.4 < rows["lru", "fp16"]["share"] < 0.6
    assert rows["lru", "fp16"]["lost"] == "nothing"
    changes = {(one["of"], one["what"]): one for one in found["changes"]}
    longer = changes["lru at fp16", "a context of 8,192 tokens"]
    # 4,096 tokens of 16 layers, in slots of 336 MiB: by hand.
    assert longer["fewer_slots"] == pytest.approx(4096 * 65536 / 352_321_536 / 16, abs=0.07)
    shrunk = changes["lru at fp16", "letting slots shrink with the context, at 2,048 tokens of it,"]
    assert shrunk["fewer_slots"] == pytest.approx(-2048 * 65536 / 352_321_536 / 16, abs=0.07)
    assert ("lru at fp16", "holding keys and values at 8.5 bits") in changes
    assert "at low precision" in rows["hobbit", "fp16"]["lost"]
    assert rows["lru", "q4_k_m"]["waiting"] == 0
    for text in (
        "does not fit without offloading at fp16",
        "The fastest lossless system is lru at fp16",
        "Where nothing is offloaded: ",
        "twice the link's bandwidth makes it",
        "a context of 8,192 tokens makes it",
        "drafting 2 tokens a step, as often right as one engine logged, makes it",
        "drafting 2 tokens a step with a layer whose experts are offloaded, too, makes it",
        "gates recorded from tiny_mixtral",
        "of 3 measured runs on this machine",
    ):
        assert text in found["answer"], text
    assert found["answer"] in told
    monkeypatch.setattr(answers, "systems_at", lambda *_: [("system=lru", "precision=fp16")])
    assert ask.main(WORDS) == 0
    assert Path(f"{PLACE}-2").is_dir()
    capsys.readouterr()
    assert ask.main([*WORDS, f"output_dir={PLACE}"]) == 2
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.usefixtures("few_systems")
def test_what_a_target_needs_is_enough_and_not_much_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(answers, "systems_at", lambda *_: [("system=lru", "precision=fp16")])
    assert ask.main([*WORDS, "target=9", "context=1"]) == 0
    found = json.loads((PLACE / "answer.json").read_text(encoding="utf-8"))
    needs = {need["what"]: need["value"] for need in found["needs"]}
    assert "What 9 tokens/s lossless would need, one thing at a time: a link of " in found["answer"]
    common = ["model=tiny_gates_half_mixtral", "budget=fit", "system=lru", *FEW]
    for key, what in (("links.pcie.peak_gb_per_s", "link"), ("memory_gib", "memory")):
        for share, reaches in ((1.0, True), (0.95, False)):
            words = [*common, f"hardware.{key}={needs[what] * share:.6g}"]
            speed = trial(words).summary["decode_tokens_per_s"]
            assert (speed >= 9) == reaches, (key, share)


def test_what_a_change_takes_from_slots_is_told_and_that_it_loses_where_that_is_sure() -> None:
    found = Found(
        *("model", "machine", 24.0, "gates", 48.0),
        (row("lru", 5.0),),
        (),
        (Fit("fp16", 42.0, False),),
        (
            Change("a longer context", "lru at fp16", 4.0, Paired(0.8, (0.7, 0.9), 0.0, 4), 3.04),
            Change("drafting", "lru at fp16", 4.9, Paired(0.98, (0.9, 1.1), 0.4, 4), 0.04),
        ),
        (),
        None,
        "roofline",
        "none",
    )
    told = paragraph(found)
    assert "0.80x as fast (4 tokens/s, 3.04 fewer slots a layer): it loses; drafting" in told
    assert "0.98x as fast (4.9 tokens/s)." in told


def test_all_experts_fit_where_their_bytes_and_the_rest_do() -> None:
    """16 x 8 experts of 176.16 M parameters: 42 GiB at 16 bits, 21 at 8, 10.5 at 4."""
    run = prepared(["system=load_on_demand", "budget=fit", *FEW])
    rest = run.ledger.total_bytes - run.ledger.slot_bytes
    found = {one.precision: one for one in fits_of(run)}
    for precision, size in (("fp16", 42.0), ("int8", 21.0), ("int4", 10.5)):
        assert found[precision].needs_gib == pytest.approx(size + rest / GIB, abs=1e-6)
        assert found[precision].fits == (size + rest / GIB <= 24)
    assert not found["fp16"].fits
    assert found["int8"].fits


def test_what_must_fit_in_a_file_of_llama_cpp_are_its_dense_weights_at_the_files_bits() -> None:
    run = prepared(["system=load_on_demand", "budget=fit", *FEW])
    found = {one.precision: one.needs_gib for one in fits_of(run)}
    said = prepared(["system=load_on_demand", "budget=fit", "++model.dense_bits=16", *FEW])
    as_said = {one.precision: one.needs_gib for one in fits_of(said)}
    less = run.model.dense_params * (16 - 4.84) / 8 / GIB
    assert as_said["q4_k_m"] - found["q4_k_m"] == pytest.approx(less, abs=1e-6)
    assert as_said["int4"] == found["int4"]
    # From a run in that file the others follow, too.
    of_file = prepared(["system=load_on_demand", "precision=q4_k_m", "budget=fit", *FEW])
    again = {one.precision: one.needs_gib for one in fits_of(of_file)}
    assert again == pytest.approx(found, abs=1e-6)


def test_systems_that_change_no_precision_are_asked_at_each_and_others_once() -> None:
    words = systems_at(["fp16", "int4"])
    assert ("system=lru", "precision=fp16") in words
    assert ("system=lru", "precision=int4") in words
    assert ("system=hobbit",) in words
    assert {one[0].partition("=")[2] for one in words} == set(names("system"))
    # Where everything fits nobody offloads.
    fitting = [one for one in systems_at(["fp16", "int4"], ["int4"]) if "precision=int4" in one]
    assert fitting == [("system=lru", "precision=int4")]
    # llama.cpp reads its files, and what is published in 16 bits or as mxfp4.
    for name in ("q4_k_m", "mxfp4", "fp16", "bf16"):
        word = f"precision={name}"
        fitting = [one for one in systems_at([name], [name]) if word in one]
        assert fitting == [("system=lru", word), ("system=llama_cpp_n_cpu_moe", word)]


def test_a_run_that_computes_for_too_long_is_given_up_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def endless(words: Sequence[str]) -> Trial:
        while True:
            pass

    monkeypatch.setattr(ask_bench, "trial", endless)
    with pytest.raises(ValueError, match=r"more than 0\.05 s of computing; patience=N gives it"):
        trial_within(["system=lru"], 0.05)


def test_the_least_value_is_found_to_three_percent() -> None:
    for least in (1.0, 3.3, 60.0):
        found = _least(lambda value, at=least: value / at, 1.0, 1.0, 64.0)
        assert found is not None
        assert least <= found <= least * 1.04
    assert _least(lambda value: value, 100.0, 1.0, 64.0) is None


@dataclass
class Stated:
    """A bench where a system reaches ``speeds[system]`` times the last word's number, no more than
    its ``tops``.
    """

    speeds: dict[str, float]
    tops: dict[str, float]

    def ask(self, words: Sequence[str]) -> Future[SimpleNamespace]:
        system, number = words[0].partition("=")[2], float(words[-1].partition("=")[2])
        speed = min(self.speeds[system] * number, self.tops[system])
        found: Future[SimpleNamespace] = Future()
        found.set_result(SimpleNamespace(summary={"decode_tokens_per_s": speed}))
        return found


def test_where_the_fastest_system_gains_nothing_by_more_lru_may() -> None:
    """A system that computes on the CPU stays as slow as the CPU is."""

    def at(value: float) -> tuple[str, ...]:
        return (f"x={value:g}",)

    words = ("system=on_cpu", "precision=fp16")
    fastest = replace(row("on_cpu", 44.0), words=words)
    for target, least, whose in (
        (40, 4.0, " with on_cpu at fp16"),
        (60, 30.0, " with lru at fp16"),
    ):
        stated = Stated({"on_cpu": 10.0, "lru": 2.0}, {"on_cpu": 44.0, "lru": 70.0})
        found, told = _first(fastest, at, stated, target, 1.0, 64.0)
        assert found is not None
        assert least <= found <= least * 1.04
        assert told == whose
    assert _first(fastest, at, stated, 90, 1.0, 64.0) == (
        None,
        " with on_cpu at fp16 or lru",
    )


@pytest.mark.parametrize(("devices", "share"), [((), 1.05), (("devices=layers_2",), 0.75)])
def test_memory_is_looked_for_until_all_experts_fit_on_every_device(
    devices: tuple[str, ...], share: float
) -> None:
    """Of two devices one may need half as much again as its half."""
    run = prepared(["system=lru", "budget=fit", "hardware.memory_gib=12", *devices, *FEW])
    (needs,) = [one.needs_gib for one in fits_of(run) if one.precision == "fp16"]
    never = Stated({"lru": 0.0}, {"lru": 0.0})
    asked = replace(row("lru", 1.0), words=("system=lru", "precision=fp16"))
    found = answers._memory(asked, run, never, 9.0)
    assert found.value is None
    assert f"no memory of up to {needs * share:.3g} GiB" in found.told


def row(system: str, speed: float, precision: str = "fp16") -> Row:
    return Row(
        system, precision, (), LOSSLESS, 0.5, speed, None, 1.0, None, 0.5, "nothing", Labels()
    )


def test_systems_that_show_the_same_share_a_line() -> None:
    groups = list(
        alike([row("a", 5.0), row("b", 5.00001), row("c", 4.0), row("d", 5.0, "int4")]).values()
    )
    assert [[one.system for one in group] for group in groups] == [["a", "b"], ["c"], ["d"]]


@pytest.mark.usefixtures("few_systems")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["model=tiny_mixtral", "machine=rtx4090_pcie"], "did you mean rtx4090_pcie4?"),
        (["model=tiny_mixtral", "machine=paced_cpu", "system=lru"], "system is not given so here"),
        (["model=tiny_mixtral", "machine=paced_cpu", "budget.slots_gib=1"], "not given so here"),
        (
            ["model=tiny_mixtral", "machine=paced_cpu", "target=fast"],
            "target=fast must be a number",
        ),
        (["model=mixtral_8x7b", "machine=rtx4090_pcie4", "model.experts=9"], "there are no gates"),
        (
            ["model=tiny_mixtral", "machine=rtx4090_pcie4", "hardware.memory_gib=0.4"],
            "hardware.reserved_gib=0.5 exceeds hardware.memory_gib=0.4",
        ),
    ],
)
def test_what_cannot_be_asked_is_one_line_and_leaves_nothing(
    words: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ask.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("encoder", "lengths", "words"),
    [
        (0, [(3, 4), (5, 6)], ["workload.context_tokens=11"]),
        (0, [(3, 4)], ["workload.context_tokens=9"]),
        (2, [(3, 4)], []),
    ],
)
def test_every_sequence_ends_a_context_but_an_encoders(
    encoder: int, lengths: list[tuple[int, int]], words: list[str]
) -> None:
    sequences = [SimpleNamespace(prompt_tokens=p, decode_tokens=d) for p, d in lengths]
    run: Any = SimpleNamespace(
        model=SimpleNamespace(encoder_sites=encoder),
        workload=SimpleNamespace(sequences=sequences),
    )
    assert ask._at_the_end_of(9, run) == words


@pytest.mark.parametrize(
    ("is_made", "fitted", "told"),
    [
        (
            True,
            ("a", "b"),
            "gates; a, b are fitted on those of them that nobody is judged on",
        ),
        (True, (), "gates"),
        (False, ("a", "b"), "gates"),
    ],
)
def test_made_gates_are_fitted_on_and_the_answer_says_for_whom(
    is_made: bool, fitted: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences = [SimpleNamespace(prompt_tokens=tokens) for tokens in (2, 5)]
    # The trace has others, which are not asked.
    header = SimpleNamespace(sequences=[*sequences, SimpleNamespace(prompt_tokens=900)])
    workload = SimpleNamespace(sequences=sequences)
    run = SimpleNamespace(trace=SimpleNamespace(header=header), workload=workload)
    gates = SimpleNamespace(told="gates", is_made=is_made, path="made")
    model = SimpleNamespace(stored="bf16")
    asked: list[list[str]] = []

    def prepared(words: list[str]) -> object:
        asked.append(list(words))
        return run

    def fit(trace: object, folder: Path) -> tuple[str, ...]:
        assert (trace, folder) == (run.trace, Path("made"))
        return fitted

    monkeypatch.setattr(ask, "asked", lambda words, context: ([f"context={context}"], gates, model))
    monkeypatch.setattr(ask, "dense_told", lambda words, of: f"dense at {', '.join(of)}")
    monkeypatch.setattr(ask, "prepared", prepared)
    monkeypatch.setattr(ask, "_at_the_end_of", lambda tokens, run: [f"end={tokens}"])
    monkeypatch.setattr(ask, "fit_beside", fit)
    seen = noted(ask, monkeypatch)

    def answers_at_once(*given: Any) -> Any:
        common, _, tell, patience = given[4]
        given[4].begun = 7
        tell()
        return (*given[:4], given[5], common, patience)

    class Bench(tuple[Any, ...]):
        begun = 0

    monkeypatch.setattr(ask, "Bench", lambda *given: Bench(given))
    monkeypatch.setattr(ask, "answer", answers_at_once)
    words = ["model=tiny_mixtral", "machine=rtx4090_pcie4"]
    found: Any = ask._ask(read(verb_of("ask"), words))
    common = ["context=4096", "budget=fit", "end=4096"]
    told += "; dense at bf16, q4_k_m"
    assert found == (run, told, ["bf16", "q4_k_m"], None, 3.5, common, float(PATIENCE_S))
    assert seen == [
        (2, SPAWNED, ask.leave_with_parent),
        "asking every system: 1 more of 7",
        "ended",
    ]
    asked[2:] = []
    more = ["patience=3", "target=2.5", "precisions=fp16", "context=8"]
    found = ask._ask(read(verb_of("ask"), [*words, *more]))
    assert (found[2:4], found[-1]) == ((["fp16"], 2.5), 3.0)
    assert found[-2] == ["context=8", "budget=fit", "end=8"]
    asked[2:] = []
    first = ["context=4096", "budget=fit", "system=load_on_demand", "precision=bf16"]
    assert asked == [first, [*first[:2], "end=4096", *first[2:]]]


def test_a_question_that_is_interrupted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ask, "answer", pressed)
    assert ask.main(["model=tiny_mixtral", "machine=rtx4090_pcie4"]) == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("more", "overwrite"), [([], False), (["overwrite=yes"], True)])
def test_all_that_was_found_is_printed_behind_its_tables_and_written_once(
    more: list[str],
    overwrite: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[Any] = []
    refused = [("a [x]", "no room"), ("b", "no gates"), ("c", "no room")]
    found = SimpleNamespace(model="m", machine="h", memory_gib=24.5, refused=refused)

    @contextmanager
    def own(place: Path, overwrite: bool) -> Iterator[None]:
        seen.append((place, overwrite))
        yield

    for name, answer in (
        ("own_folder", own),
        ("_ask", lambda words: found),
        ("paragraph", lambda _: "the [answer]"),
        ("tables_of", lambda _: ["one table", "another"]),
        ("told_of", lambda _: ["a label [x]"]),
        ("_write", lambda *given: seen.append(given)),
    ):
        monkeypatch.setattr(ask, name, answer)
    monkeypatch.chdir(tmp_path)
    assert ask.main([*WORDS, *more]) == 0
    assert seen == [(PLACE, overwrite), (PLACE, found, "the [answer]")]
    assert capsys.readouterr().out.splitlines() == [
        "m on h, 24.5 GiB",
        "one table",
        "another",
        "a label [x]",
        "left out a [x], c: no room",
        "left out b: no gates",
        "the [answer]",
        f"files: {PLACE}",
    ]
