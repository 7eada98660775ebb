"""What an answer says would change it, and what a target needs, with speeds given by hand."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from sim.answers import ask
from sim.answers.ask import _changes, _least, _link, _memory
from sim.answers.ask_parts import LOSSLESS, Change, Fit, Need, Row
from sim.machine.link import Link
from sim.results.labels import Labels
from sim.results.paired import Paired, paired_rates
from sim.study.trials import Trial

WORDS = ("system=hobbit", "precision=int8")


def row(*words: str) -> Row:
    """A row of these words, or of `WORDS`."""
    words = words or WORDS
    name = words[0].partition("=")[2]
    return Row(name, "int8", words, LOSSLESS, 0.5, 4.0, None, 1.0, None, 0.5, "nothing", Labels())


def run_of(**parts: object) -> Any:
    """A machine of 24 GiB whose first link has a peak of 31.5 GB/s, and a context of 4096 tokens."""
    hardware = SimpleNamespace(
        links=(Link(31.5, 0.8, 6.0, name="pcie"),),
        measured=None,
        memory_gib=24.0,
        devices=None,
        ram=None,
        cpu=SimpleNamespace(memory_gb_per_s=83.2),
        is_unified=False,
    )
    workload = SimpleNamespace(
        lengths=SimpleNamespace(context=4096),
        batching="sequential",
        speculation=SimpleNamespace(tokens=0),
    )
    run = {"hardware": hardware, "workload": workload, "model": SimpleNamespace(kv_bits=16)}
    return SimpleNamespace(**(run | parts))


class Bench:
    """Trials whose speed is what ``speed`` makes of the system and the last word's number."""

    def __init__(self, speed: Any = None, refused: tuple[str, ...] = ()) -> None:
        self.speed, self.refused = speed, refused
        self.asked: list[tuple[str, ...]] = []

    def ask(self, words: tuple[str, ...]) -> Future[Trial]:
        self.asked.append(words)
        future: Future[Trial] = Future()
        found = self.speed(words[0], float(words[-1].partition("=")[2]))
        future.set_result(trial_of(found))
        return future

    def all(self, wanted: list[tuple[str, ...]]) -> Any:
        kept = [words for words in wanted if not any(w in words for w in self.refused)]
        self.asked += wanted
        return {words: trial_of(10.0 + at, at) for at, words in enumerate(kept)}, []


def trial_of(speed: float, at: int = 0) -> Trial:
    return Trial({"decode_tokens_per_s": speed, "at": at}, {}, pl.DataFrame(), pl.DataFrame())


@pytest.fixture(autouse=True)
def numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial's time is 100 less its number, its slots a layer 20 less half of it."""
    monkeypatch.setattr(ask, "decode_time_and_tokens", lambda one: (100 - one.summary["at"], 0))
    monkeypatch.setattr(ask, "slots_a_layer", lambda one: 20 - one.summary["at"] / 2)
    monkeypatch.setattr(
        ask, "paired_rates", lambda one, before: Paired(before[0] / one[0], None, None, 1)
    )


def changed(one: Row, run: Any, refused: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """Each change with the words that were asked for it."""
    bench = Bench(refused=refused)
    found = [change.what for change in _changes(one, run, bench)]  # type: ignore[arg-type]
    assert bench.asked[0] == one.words
    return dict(zip(found, bench.asked[1:], strict=True))


def test_a_change_by_drafts_is_told_by_tokens_over_time_where_runs_count_other_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of sequences without a prompt the tokens of the first step do not count: drafts leave out more."""
    time, tokens = np.array([40.0, 40.0]), np.array([9.0, 9.0])
    fewer = np.array([30.0, 30.0]), np.array([7.0, 7.0])
    monkeypatch.setattr(
        ask, "decode_time_and_tokens", lambda one: fewer if one.summary["at"] else (time, tokens)
    )
    monkeypatch.setattr(ask, "paired_rates", paired_rates)
    (change, *_) = _changes(row(), run_of(), Bench())  # type: ignore[arg-type]
    assert change.faster.speedup == pytest.approx((7 / 30) / (9 / 40))


def test_each_change_is_asked_alone() -> None:
    assert changed(row(), run_of()) == {
        "twice the link's bandwidth": (*WORDS, "hardware.links.pcie.peak_gb_per_s=63"),
        "8 GiB more memory": (*WORDS, "hardware.memory_gib=32"),
        "twice the host memory's bandwidth": (*WORDS, "hardware.cpu.memory_gb_per_s=166.4"),
        "experts at int4": ("system=hobbit", "precision=int4"),
        "a context of 8,192 tokens": (*WORDS, "workload.context_tokens=8192"),
        "letting slots shrink with the context, at 2,048 tokens of it,": (
            *WORDS,
            "workload.context_tokens=2048",
            "workload.kv_allocation=growing",
        ),
        "holding keys and values at 8.5 bits": (*WORDS, "++model.kv_bits=8.5"),
        "drafting 2 tokens a step, as often right as one engine logged,": (
            *WORDS,
            "workload=mtp_4",
            "workload.draft_tokens=2",
        ),
        "drafting 2 tokens a step with a layer whose experts are offloaded, too,": (
            *WORDS,
            "workload=mtp_4",
            "workload.draft_tokens=2",
            "workload.draft_experts=offloaded",
        ),
    }


def test_unified_memory_has_no_host_memory_of_its_own() -> None:
    """On a Jetson "twice the host memory's bandwidth makes it 1.00x as fast" beside a system that is
    bound by that memory: the figure was that of a CPU that computes nothing there.
    """
    run, host = run_of(), "twice the host memory's bandwidth"
    assert host in changed(row(), run)
    run.hardware.is_unified = True
    assert host not in changed(row(), run)


def test_a_drive_behind_the_link_and_a_ram_that_is_stated_are_changed_alone_too() -> None:
    run = run_of()
    run.hardware.links += (Link(7.0, 0.8, 80.0, name="nvme"),)
    run.hardware.ram = SimpleNamespace(capacity_gib=4.0)
    found = changed(row(), run)
    drive = (*WORDS, "hardware.links.nvme.peak_gb_per_s=14")
    assert found["twice the bandwidth of nvme"] == drive
    assert found["8 GiB more RAM"] == (*WORDS, "hardware.ram.capacity_gib=12")
    assert found["twice the link's bandwidth"][-1] == "hardware.links.pcie.peak_gb_per_s=63"


def test_engines_with_a_pace_of_their_own_are_as_many_times_as_fast_as_their_link() -> None:
    """A machine refuses a link that its engines do not reach together, so that the answer for a phone
    ended, after a search of 40 s, with that refusal.
    """
    run = run_of()
    lanes = replace(run.hardware.links[0], engines=4, engine_gb_per_s=12.6, efficiency=1.0)
    run.hardware.links = (lanes,)
    faster = changed(row(), run)["twice the link's bandwidth"][-2:]
    assert faster == (
        "hardware.links.pcie.peak_gb_per_s=63",
        "hardware.links.pcie.engine_gb_per_s=25.2",
    )


def test_a_change_is_the_speed_and_the_slots_against_the_row_itself() -> None:
    first, second, *_ = _changes(row(), run_of(), Bench())  # type: ignore[arg-type]
    name = "hobbit at int8"
    link, memory = "twice the link's bandwidth", "8 GiB more memory"
    assert first == Change(link, name, 11.0, Paired(100 / 99, None, None, 1), 0.5)
    assert second == Change(memory, name, 12.0, Paired(100 / 98, None, None, 1), 1.0)


def test_what_a_run_does_not_have_is_not_changed() -> None:
    run = run_of(model=SimpleNamespace(kv_bits=8.5))
    run.hardware.cpu, run.hardware.devices = None, SimpleNamespace(count=2)
    run.workload.lengths.context, run.workload.batching = None, "continuous"
    expected = ["twice the link's bandwidth", "8 GiB more memory for each GPU"]
    assert list(changed(row("system=floe"), run)) == expected
    run.workload.batching, run.workload.speculation.tokens = "sequential", 3
    assert list(changed(row("system=floe"), run)) == expected


def test_fewer_bits_than_a_file_of_llama_cpp_has_are_those_of_another_file() -> None:
    def found(precision: str) -> list[str]:
        one = replace(row("system=lru", f"precision={precision}"), precision=precision)
        return [what for what in changed(one, run_of()) if what.startswith("experts at")]

    assert found("q4_k_m") == ["experts at q3_k_m"]
    assert found("q2_k") == []
    assert found("fp16") == ["experts at int4"]
    assert found("int2") == []


def test_what_cannot_run_and_what_is_the_row_itself_are_no_changes() -> None:
    one = row("system=lru", "precision=int4")
    bench = Bench(refused=("hardware.memory_gib=32",))
    found = {change.what for change in _changes(one, run_of(), bench)}  # type: ignore[arg-type]
    assert len(found) == 7
    assert not found & {"experts at int4", "8 GiB more memory"}


def needed(of: Any, one: Row, run: Any, target: float, speed: Any) -> Need:
    found = of(one, run, Bench(speed), target)
    assert isinstance(found, Need)
    return found


def test_the_link_is_found_to_3_percent_between_once_and_64_times_this_one() -> None:
    """63 GB/s are twice this one's."""
    found = needed(_link, row(), run_of(), 63.0, lambda _, peak: peak)
    assert found.value is not None
    assert 63 <= found.value <= 63 * 1.03
    told = "a link of 63.4 GB/s (2x this one) with hobbit at int8"
    assert (found.what, found.told) == ("link", told)


def test_a_link_that_is_fast_enough_already_is_told_as_it_is() -> None:
    found = needed(_link, row(), run_of(), 31.5, lambda _, peak: peak)
    assert found == Need("link", 31.5, "a link of 31.5 GB/s (1x this one) with hobbit at int8")


def test_where_the_row_never_gets_there_lru_is_asked_at_its_precision() -> None:
    found = needed(_link, row(), run_of(), 9, lambda who, _: 9 if who == "system=lru" else 1)
    assert found.told == "a link of 31.5 GB/s (1x this one) with lru at int8"


@pytest.mark.parametrize(
    ("words", "whose"),
    [
        (WORDS, "hobbit at int8 or lru"),
        (("system=lru", "precision=int8"), "lru at int8"),
        (("system=floe",), "floe at int8"),
    ],
)
def test_no_link_is_told_with_those_that_were_asked(words: tuple[str, ...], whose: str) -> None:
    found = needed(_link, row(*words), run_of(), 9, lambda *_: 1)
    assert found == Need("link", None, f"no link of up to 2016 GB/s with {whose}")


def memory_up_to(
    needs: dict[str, float], count: int | None, monkeypatch: pytest.MonkeyPatch
) -> str:
    """What is said where no memory is enough, which has the most that was asked for."""
    fits = tuple(Fit(name, gib, False) for name, gib in needs.items())
    monkeypatch.setattr(ask, "fits_of", lambda run: fits)
    run = run_of()
    run.hardware.devices = None if count is None else SimpleNamespace(count=count)
    found = needed(_memory, row("system=floe"), run, 9, lambda *_: 1)
    assert (found.what, found.value) == ("memory", None)
    return found.told


@pytest.mark.parametrize(
    ("needs", "count", "most"),
    [
        ({"fp16": 80, "int8": 40}, None, "42"),
        ({"int8": 40}, 1, "42"),
        ({"int8": 20}, None, "24"),
        ({"int4": 40}, None, "25.2"),
        ({"int8": 64}, 2, "48"),
        ({"int8": 20}, 2, "24"),
        ({"int4": 64}, 2, "24"),
    ],
)
def test_memory_is_asked_for_up_to_what_holds_all_experts(
    needs: dict[str, float], count: int | None, most: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5 % more than one device needs, half as much again as the part of one of several."""
    told = f"no memory of up to {most} GiB, which holds all experts with floe at int8"
    assert memory_up_to(needs, count, monkeypatch) == told


def test_enough_memory_is_told_in_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "fits_of", lambda run: (Fit("int8", 40, False),))
    found = needed(_memory, row(), run_of(), 30.0, lambda _, gib: gib)
    assert found.value is not None
    assert 30 <= found.value <= 30 * 1.03
    told, _, rest = found.told.partition(" ")
    assert rest == "GiB of memory with hobbit at int8"
    assert found.value <= float(told) <= found.value * 1.01


@pytest.mark.parametrize("target", [32.0, 40.0, 50.0, 63.0, 71.0, 85.0, 99.0, 140.0])
def test_the_link_that_is_told_is_rounded_to_what_was_found_to_be_enough(target: float) -> None:
    found = needed(_link, row(), run_of(), target, lambda _, peak: peak)
    assert found.value is not None
    assert float(found.told.split()[3]) >= found.value


def test_the_least_value_is_bisected_in_the_logarithm() -> None:
    """From 1 to 16: 4, 8, 5.66, 4.76, 5.19, 4.97, 5.08: 5.08 is within 3 % of 4.97."""
    asked: list[float] = []

    def speed(value: float) -> float:
        asked.append(round(value, 2))
        return value

    assert _least(speed, 5, 1, 16) == pytest.approx(2 ** (2 + 11 / 32))
    assert asked == [1, 16, 4, 8, 5.66, 4.76, 5.19, 4.97, 5.08]


def test_the_least_value_is_the_lowest_or_none_where_the_target_is_there_or_out_of_reach() -> None:
    assert _least(lambda value: value, 1, 1, 16) == 1
    assert _least(lambda value: value, 16.5, 1, 16) is None
    assert _least(lambda value: value, 16, 1, 16) == 16
    assert _least(lambda value: value, 4, 1, 16) == 4
