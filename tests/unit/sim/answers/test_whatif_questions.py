"""The questions of a what-if: their words, and what they tell, worked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from sim.answers import whatif_questions
from sim.answers.whatif import BreakEven
from sim.answers.whatif_questions import (
    QUESTIONS,
    held_bits,
    of_run,
    once_allocated,
    tokens_that_fill,
    waiting_share,
)
from sim.machine.ledger import Ledger
from sim.machine.link import Link
from sim.setup.run_memory import Room
from sim.study.trials import Trial
from sim.workload.speculation import OFFLOADED, ON_DEVICE


@dataclass(frozen=True)
class Cached:
    """A model whose tokens cache 10 bytes a bit."""

    kv_bits: float = 16

    def kv_bytes_by_window(self, sites: Sequence[int] = (0, 1)) -> dict[int, int]:
        assert tuple(sites) == (0, 1)
        return {0: int(10 * self.kv_bits)}

    def kv_bytes(self, tokens: int) -> int:
        return tokens * int(10 * self.kv_bits)


def trial_of(**summary: object) -> Trial:
    return Trial(summary, {}, pl.DataFrame(), pl.DataFrame())


def machine(**parts: object) -> Any:
    """A run whose experts of 4 bits take 200 bytes in slots of 300, on a link of half its peak."""
    geometry = SimpleNamespace(
        bits=(4, 2),
        slot_sizes=(300, 100),
        variant_bytes=(200, 50),
        sites=2,
        experts=4,
        capacity_bytes=2400,
    )
    hardware = SimpleNamespace(link_names=("pcie",), links=(Link(4.0, 0.5, 0.0, name="pcie"),))
    run = {
        "hardware": hardware,
        "controller": SimpleNamespace(
            geometry=geometry, slots=SimpleNamespace(capacity_bytes=(600, 600))
        ),
        "resident_share": 0.5,
        "workload": SimpleNamespace(is_timed=False),
        "model": Cached(),
    }
    return SimpleNamespace(**(run | parts))


def test_the_questions_ask_at_these_values() -> None:
    assert {name: one.values for name, one in QUESTIONS.items()} == {
        "memory": (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
        "link": (4, 8, 16, 31.5, 63, 126, 252, 504),
        "predictor": (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
        "cpu": (12.5, 25, 50, 100, 200, 400, 800),
        "bits": (2, 4, 8, 16),
        "kv": (2048, 4096, 8192, 16384, 32768, 65536, 131072),
        "drafts": (0, 1, 2, 3, 4),
    }


def test_of_each_question_it_is_known_how_it_is_searched_and_drawn() -> None:
    known = {
        name: (one.is_log, one.is_discrete, one.is_apart, one.most, one.span, one.base)
        for name, one in QUESTIONS.items()
    }
    assert known == {
        "memory": (False, False, False, 1, None, ()),
        "link": (True, False, False, inf, (1, 20_000), ()),
        "predictor": (False, False, False, 1, None, ()),
        "cpu": (True, False, False, inf, (1, 2000), ()),
        "bits": (False, True, False, inf, None, ()),
        "kv": (True, False, True, inf, None, ("budget=fit",)),
        "drafts": (False, True, True, inf, None, ("budget=fit", "workload=mtp_4")),
    }


def test_amounts_are_said_with_their_units_and_a_target_has_three_texts() -> None:
    said = {name: one.amount.format(2048.0) for name, one in QUESTIONS.items()}
    assert said == {
        "memory": "2.05e+03 of the expert bytes resident",
        "link": "a link of 2.05e+03 GB/s (peak)",
        "predictor": "forecasts of a precision of 2.05e+03",
        "cpu": "host memory of 2.05e+03 GB/s",
        "bits": "2.05e+03",
        "kv": "2,048 tokens of context",
        "drafts": "2.05e+03",
    }
    assert QUESTIONS["kv"].needs != QUESTIONS["memory"].needs


def test_a_value_becomes_the_words_of_each_series() -> None:
    host = "hardware.cpu.memory_gb_per_s=25"
    assert {
        name: dict(QUESTIONS[name].words(value, machine()))
        for name, value in (("memory", 0.5), ("link", 63), ("predictor", 0.2), ("cpu", 25))
    } == {
        "memory": {"decode": ("budget.resident_share=0.5", "budget.slots_gib=null")},
        "link": {"decode": ("hardware.links.pcie.peak_gb_per_s=63",)},
        "predictor": {
            "prefetching": ("predictor=stated_accuracy", "predictor.precision=0.2"),
            "on demand": ("predictor=none",),
        },
        "cpu": {
            "computed by the CPU": ("placement=absent_on_cpu", host),
            "loaded": ("placement=load", host),
        },
    }


@pytest.mark.parametrize("name", ["memory", "link"])
def test_memory_and_link_ask_for_waiting_less_computing(name: str) -> None:
    difference = QUESTIONS[name].difference
    assert difference is not None
    one = trial_of(stall_s={"late": 3.0, "miss": 4.0}, compute_busy_s=2.0)
    assert difference({"decode": one}) == 5


@pytest.mark.parametrize("name", ["memory", "link"])
def test_a_wait_for_requests_is_none_that_memory_or_a_link_could_end(name: str) -> None:
    asked = QUESTIONS[name]
    assert asked.difference is not None
    one = trial_of(stall_s={"demand": 3.0, "no_request": 40.0}, compute_busy_s=5.0)
    assert asked.difference({"decode": one}) == -2
    assert waiting_share({**one.summary, "makespan_s": 48.0}) == 3 / 8
    timed = of_run(asked, machine(workload=SimpleNamespace(is_timed=True)))
    assert timed.told == tuple(f"{text} (waiting for requests aside)" for text in asked.told)
    drafts = QUESTIONS["drafts"]
    assert of_run(drafts, machine(workload=SimpleNamespace(is_timed=True))) is drafts


@pytest.mark.parametrize("name", ["predictor", "cpu"])
def test_predictor_and_cpu_ask_how_much_slower_the_first_series_is(name: str) -> None:
    difference = QUESTIONS[name].difference
    assert difference is not None
    slow, fast = trial_of(decode_tokens_per_s=3), trial_of(decode_tokens_per_s=7)
    assert (difference({"a": slow, "b": fast}), difference({"a": fast, "b": slow})) == (4, -4)


def test_where_there_are_several_links_the_one_that_is_varied_is_named() -> None:
    links = [SimpleNamespace(name=name, efficiency=0.5) for name in ("pcie", "nvme")]
    asked, one = QUESTIONS["link"], machine()
    one.hardware.links = links[:1]
    assert of_run(asked, one) is asked
    one.hardware.links = links
    assert of_run(QUESTIONS["memory"], one) is QUESTIONS["memory"]
    found = of_run(asked, one)
    assert found.axis == "peak bandwidth of pcie, nvme as it is (GB/s)"
    assert found.told[0] == "from {} GB/s of pcie on it computes longer than it waits"
    assert found.amount.format(9.0) == "pcie at 9 GB/s (peak)"


def test_no_other_question_has_a_closed_form() -> None:
    for name in ("memory", "predictor", "bits", "kv"):
        assert QUESTIONS[name].closed_form(machine(), {}, 1.0) is None


def test_slots_of_300_bytes_hold_an_expert_of_200_at_half_as_many_bits_again() -> None:
    assert held_bits(machine()) == 6


def test_bits_ask_for_the_share_that_the_same_bytes_hold() -> None:
    """Half of the experts at 6 bits are 3 bits of each: at 4 bits three quarters, at 2 all."""
    assert QUESTIONS["bits"].words(4, machine()) == {
        "int4": ("precision=int4", "budget.resident_share=0.75", "budget.slots_gib=null")
    }
    assert QUESTIONS["bits"].words(2, machine()) == {
        "int2": ("precision=int2", "budget.resident_share=1.0", "budget.slots_gib=null")
    }


def test_bits_that_no_precision_has_are_refused_and_not_told_of_another() -> None:
    with pytest.raises(ValueError, match=r"^values=3: .* so many bits; there are 2, 4, 8, 16$"):
        QUESTIONS["bits"].words(3, machine())


def test_all_experts_are_resident_at_as_many_bits_as_their_bytes_give() -> None:
    arithmetic = QUESTIONS["bits"].arithmetic
    assert arithmetic is not None
    told = "in these bytes all experts are resident at up to 3 bits a weight"
    found = arithmetic([], machine(), [2.5, 4.5, 8.5])
    assert found == BreakEven("all resident", 3.0, 2.5, 8.5, 3.0, told)


def test_a_cache_that_keeps_few_experts_of_any_budget_never_has_them_all() -> None:
    arithmetic, run = QUESTIONS["bits"].arithmetic, machine()
    assert arithmetic is not None
    run.controller.slots.capacity_bytes = (600, 599)  # a layer's experts and a byte less
    assert arithmetic([], run, [2.5, 4.5, 8.5]) is None


def test_contexts_are_asked_at_fewer_bits_and_at_the_models_own() -> None:
    asked = QUESTIONS["kv"].words(2048.4, machine(model=Cached(8.5)))
    assert asked == {
        "4.5 bits": ("workload.context_tokens=2048", "++model.kv_bits=4.5"),
        "8.5 bits": ("workload.context_tokens=2048", "++model.kv_bits=8.5"),
    }
    assert list(QUESTIONS["kv"].words(2048, machine())) == ["4.5 bits", "8.5 bits", "16 bits"]


def test_slots_allocated_once_have_their_share_at_each_context() -> None:
    once = once_allocated(QUESTIONS["kv"], {"16 bits": 0.25})
    assert once.base == ()
    assert once.words(4096, machine()) == {
        "16 bits": (
            "workload.context_tokens=4096",
            "++model.kv_bits=16",
            "budget.resident_share=0.25",
        )
    }


def kv_fills(
    sequences: int,
    model: Cached,
    monkeypatch: pytest.MonkeyPatch,
    rooms: tuple[Room, ...] = (Room(11_600, (0, 1)),),
) -> BreakEven:
    """11,600 bytes are left for keys and values, unless other rooms are."""
    kv_bytes = sequences * model.kv_bytes(20)
    ledger = Ledger(400, kv_bytes, 0, 800, 0, 0, 0, 0, 0, 0)
    asked: list[list[str]] = []

    def prepared(words: list[str]) -> Any:
        asked.append(words)
        return SimpleNamespace(ledger=ledger)

    monkeypatch.setattr(whatif_questions, "prepared", prepared)
    monkeypatch.setattr(whatif_questions, "rooms_for_kv", lambda run: rooms)
    arithmetic = QUESTIONS["kv"].arithmetic
    assert arithmetic is not None
    found = arithmetic(["budget=fit"], machine(model=model), [20.2, 40.0])
    assert asked == [["budget=fit", "workload.context_tokens=20"]]
    return found


def test_keys_and_values_fill_what_all_but_the_slots_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token has 160 bytes at 16 bits, 85 and 45 at fewer; 1024 of them are 273 slots a layer."""
    assert kv_fills(1, Cached(), monkeypatch) == BreakEven(
        "memory is full",
        72.5,
        20.2,
        40.0,
        72.5,
        "1,024 more tokens of context take as many bytes as 273 slots a layer; keys and values alone"
        " fill the memory at 72 tokens (136 at 8.5 bits, 258 at 4.5 bits)",
    )


def test_a_sequence_fills_memory_more_slowly_once_its_windows_are_full() -> None:
    """160 B a token up to 10 tokens, 110 up to 30, then 100 for ever; and none beyond a window."""
    by_window = {30: 10, 0: 100, 10: 50}
    assert [tokens_that_fill(size, by_window) for size in (0, 800, 1600, 1710, 3800, 3900)] == [
        0,
        5,
        10,
        11,
        30,
        31,
    ]
    assert [tokens_that_fill(size, {30: 10}) for size in (299, 300, 301)] == [29.9, 30, inf]


def test_of_several_devices_the_first_that_is_full_ends_the_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two devices hold half of each token's 160 bytes in 5,000 and in 4,000."""
    rooms = Room(5_000, (0, 1), 2), Room(4_000, (0, 1), 2)
    assert kv_fills(1, Cached(), monkeypatch, rooms).value == 50


def test_several_sequences_share_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kv_fills(2, Cached(4.5), monkeypatch).told == (
        "1,024 more tokens of context of each of 2 sequences take as many bytes as 154 slots a layer;"
        " keys and values alone fill the memory at 129 tokens"
    )


@pytest.mark.parametrize(("layers", "said"), [(None, 1), (3, 3)])
def test_drafts_are_asked_with_a_layer_whose_experts_stay_or_move(
    layers: int | None, said: int
) -> None:
    run = machine(config={"workload": {"draft_layers": layers}})
    words = ("workload.draft_tokens=2", f"workload.draft_layers={said}")
    assert QUESTIONS["drafts"].words(2.0, run) == {
        "offloaded": (*words, f"workload.draft_experts={OFFLOADED}"),
        "on device": (*words, f"workload.draft_experts={ON_DEVICE}"),
    }
    always = {name: one.always for name, one in QUESTIONS.items() if one.always}
    assert always == {"drafts": (0,)}


def test_drafts_pay_as_long_as_a_step_takes_no_longer_than_it_gives_tokens() -> None:
    @dataclass(frozen=True)
    class Drafted:
        tokens: int = 0

        @property
        def expected_tokens(self) -> float:
            return 0.5 * self.tokens + 0.875

    arithmetic = QUESTIONS["drafts"].arithmetic
    assert arithmetic is not None
    found = arithmetic([], machine(workload=SimpleNamespace(speculation=Drafted())), [0, 1, 3.0])
    told = (
        "a step with 3 drafts gives 2.38 tokens in the mean, so they pay while it takes less than"
        " 2.38 times as long as one without"
    )
    assert found == BreakEven("drafts pay", None, 0, 3.0, 2.375, told)
