"""What a configuration may choose of a trace and of a workload, and what each choice becomes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sim.setup.choices import TraceChoice, WorkloadChoice
from sim.workload.lengths import Lengths
from sim.workload.prefixes import Tiers
from sim.workload.requests import Told
from sim.workload.speculation import Speculation

GIB = 2**30
REQUEST = {"input_length": 5, "output_length": 3, "hash_ids": [7, 8]}
"""Of blocks of four tokens: the second is not whole."""


def choice(**changes: Any) -> WorkloadChoice:
    values: dict[str, Any] = {"batching": "sequential", "lookahead_norm": "raw"}
    return WorkloadChoice(**(values | changes))


def of_requests(*times: float, **changes: Any) -> WorkloadChoice:
    lines = [REQUEST | {"timestamp": time} for time in times] or [REQUEST]
    return choice(requests=lines, block_tokens=4, **changes)


def test_what_is_not_given_has_its_usual_value() -> None:
    one = choice()
    assert (one.told, one.arrivals_ns, one.tiers(1)) == ((), None, None)
    assert one.lengths == Lengths(None, None, "refuse", None, ())
    assert one.speculation == Speculation(0, 1.0, 0, 0, "on_device")
    assert (one.together, one.block_tokens, one.arrival_seed) == (1, 512, 0)


@pytest.mark.parametrize(
    ("word", "value"), [("lookahead_norm", "raww"), ("arrival_seed", 0.5), ("arrival_seed", -1)]
)
def test_a_misfit_value_is_refused_where_the_run_has_no_use_for_it_too(
    word: str, value: object
) -> None:
    with pytest.raises(ValueError, match=f"workload.{word}={value}"):
        choice(**{word: value})


@pytest.mark.parametrize(
    ("word", "value", "of"),
    [("arrival_seed", 3, "arrivals_per_s"), ("block_tokens", 16, "requests")],
)
def test_a_word_that_another_one_gives_its_use_is_refused_without_that_one(
    word: str, value: int, of: str
) -> None:
    refusal = f"workload.{word}={value} changes nothing, as no .*: set workload.{of}, or leave it"
    with pytest.raises(ValueError, match=refusal):
        choice(**{word: value})


def test_lengths_drafts_and_arrivals_are_those_that_were_given(tmp_path: Path) -> None:
    one = choice(
        prompt_tokens=5,
        decode_tokens=6,
        context_tokens=70,
        short_sequences="drop",
        arrivals_s=[0.0, 1.5],
        draft_tokens=2,
        draft_accepted=[0.8, 0.4],
        draft_seed=3,
        draft_layers=1,
        draft_experts="offloaded",
    )
    assert one.lengths == Lengths(5, 6, "drop", 70, ())
    assert one.arrivals_ns == (0, 1_500_000_000)
    assert one.speculation == Speculation(2, (0.8, 0.4), 3, 1, "offloaded")
    (tmp_path / "times.txt").write_text("0\n2 # a comment\n", encoding="utf-8")
    assert choice(arrivals_s=str(tmp_path / "times.txt")).arrivals_ns == (0, 2_000_000_000)


@pytest.mark.parametrize(
    ("word", "value"),
    [("accepted", 0.6), ("accepted", [0.6]), ("seed", 1), ("layers", 1), ("experts", "offloaded")],
)
def test_what_is_said_of_drafts_that_nobody_asked_for_is_refused(word: str, value: object) -> None:
    words: dict[str, object] = {f"draft_{word}": value}
    with pytest.raises(
        ValueError, match=rf"workload\.draft_{word}=.* changes nothing.*draft_tokens"
    ):
        choice(**words)
    # A grid of draft_tokens may begin with 0.
    assert choice(**words, draft_tokens=0).speculation.tokens == 0
    assert choice(**{"draft_layers": 1, **words}, draft_tokens=1).speculation.tokens == 1


def test_requests_give_lengths_arrivals_and_tiers() -> None:
    one = of_requests(0, 250, kv_device_gib=1, kv_ram_gib=0.5, kv_disk_gib=2)
    assert one.told == (Told(5, 2, (7,), 0), Told(5, 2, (7,), 250_000_000))
    assert one.arrivals_ns == (0, 250_000_000)
    assert one.lengths == Lengths(None, None, "refuse", None, ((5, 2), (5, 2)))
    # A block of 4 tokens of 1 MiB each: 256, 128 and 512 of them; of 3 MiB each: rounded down.
    assert one.tiers(2**20) == Tiers(4, 256, 128, 512)
    assert one.tiers(3 * 2**20) == Tiers(4, 85, 42, 170)
    # Requests without a time come when they can begin, and are no arrivals.
    assert of_requests().arrivals_ns is None
    assert of_requests().tiers(GIB) == Tiers(4, 0, 0, 0)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"kv_allocation": "twice"},
            "unknown workload.kv_allocation=twice; allowed: once, growing",
        ),
        ({"block_tokens": 0}, "workload.block_tokens=0 must be a whole number >= 1"),
        ({"kv_device_gib": -1}, "workload.kv_device_gib=-1 must be a number >= 0"),
        ({"kv_ram_gib": -1}, "workload.kv_ram_gib=-1 must be a number >= 0"),
        ({"kv_disk_gib": -1}, "workload.kv_disk_gib=-1 must be a number >= 0"),
        ({"requests": 3}, "workload.requests=3 must be a file, or a list"),
        ({"draft_tokens": -1}, "workload.draft_tokens=-1 must be a whole number >= 0"),
        ({"arrivals_s": 3}, "workload.arrivals_s=3 must be a list of seconds, or a text file"),
        (
            {"kv_ram_gib": 2, "kv_disk_gib": 0.5},
            "workload.kv_ram_gib=2, workload.kv_disk_gib=0.5: which prompts begin alike is told by"
            " workload.requests; name a file, or set workload.kv_ram_gib=0",
        ),
        (
            {"requests": [REQUEST], "kv_allocation": "growing"},
            "workload.kv_allocation=growing does not go with workload.requests: how kept blocks",
        ),
        *(
            (
                {"requests": [REQUEST], "block_tokens": 4, name: value},
                f"workload.{name} does not go with workload.requests, whose lines have every"
                " request's lengths and arrival; leave out one of them",
            )
            for name, value in (
                ("prompt_tokens", 1),
                ("decode_tokens", 0),
                ("context_tokens", 1),
                ("arrivals_per_s", 1.0),
                ("arrivals_s", [0.0]),
                ("short_sequences", "drop"),
            )
        ),
        (
            {
                "requests": [REQUEST],
                "block_tokens": 4,
                "short_sequences": "drop",
                "prompt_tokens": 1,
            },
            "workload.prompt_tokens does not go with workload.requests",
        ),
    ],
)
def test_choices_that_cannot_be_are_refused_before_a_trace_is_read(
    changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        choice(**changes)


def test_the_requests_themselves_are_read_at_once() -> None:
    with pytest.raises(ValueError, match="2 hash_ids for input_length=5, which has 1 blocks"):
        choice(requests=[REQUEST], block_tokens=5)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"path": ""}, "trace.path='' must be the directory of a trace"),
        ({"path": 3}, "trace.path=3 must be the directory of a trace"),
        (
            {"exclude": "odd"},
            "trace.exclude='odd' must be a list of flags, such as [has_repetition]",
        ),
        ({"exclude": ["odd", 1]}, "trace.exclude=['odd', 1] must be a list of flags"),
        ({"max_sequences": 0}, "trace.max_sequences=0 must be a whole number >= 1"),
        ({"max_sequences": 1.5}, "trace.max_sequences=1.5 must be a whole number in"),
    ],
)
def test_a_choice_of_a_trace_that_cannot_be_is_refused(changes: dict[str, Any], told: str) -> None:
    values: dict[str, Any] = {"path": "p", "split": "all", "exclude": ["odd"], "max_sequences": 1}
    TraceChoice(**values)
    TraceChoice(**(values | {"exclude": [], "max_sequences": None}))
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        TraceChoice(**(values | changes))
