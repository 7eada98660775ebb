"""Numbers of a workload: the ends of their ranges are taken, and what is beyond them is told."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sim.workload.batching import Batcher, Request, arrival_times, check_latest, given_arrivals
from sim.workload.lengths import Lengths
from sim.workload.requests import Told, read_requests
from sim.workload.speculation import Speculation

LATEST = "a request would arrive after 4e+06 s, the latest is 4,000,000 s; "
FIRST = "count seconds from the first request (subtract the first time of a log)"
FORMAT = (
    'one line a request: {"timestamp": MS, "input_length": N, "output_length": N, "hash_ids":'
    " [ID, ...]}; timestamp may be missing from all lines"
)
LINE: dict[str, Any] = {"input_length": 5, "output_length": 1, "hash_ids": [7, 8]}
Call = Callable[..., object]


def read(*lines: object) -> tuple[Told, ...]:
    return read_requests(lines, 4)


TAKEN: list[tuple[Call, tuple[Any, ...]]] = [
    (Lengths, (1, 0, "refuse", 1)),
    (Lengths, (None, None, "drop", None)),
    (Speculation, (0, 0.0, 0, 0)),
    (Speculation, (0, 0.5, 0, 0, "offloaded")),
    (Speculation, (2, 1.0, 3, 1, "offloaded")),
    (Speculation, (2, (1.0, 1.0, 0.0))),
    (Speculation, (0, ())),
    (Batcher, ((), "static", 1, 1)),
    (Batcher, ((Request(0, 0, 1), Request(1, 1, 0)), "continuous", 1, None, True)),
    (arrival_times, (2, None, 0, [0, 4_000_000_000_000_000])),
    (arrival_times, (1, 1e-6)),
    (check_latest, ("x", 4e6, "y")),
    (given_arrivals, ([0, 4e6],)),
    (read, (LINE, LINE | {"input_length": 4, "hash_ids": [7]}, LINE | {"output_length": 3})),
]


@pytest.mark.parametrize(("call", "values"), TAKEN)
def test_what_can_be_is_taken(call: Call, values: tuple[Any, ...]) -> None:
    call(*values)


REFUSED: list[tuple[Call, tuple[Any, ...], str]] = [
    (Lengths, (0,), "workload.prompt_tokens=0 must be a whole number >= 1"),
    (
        Lengths,
        (1.5,),
        "workload.prompt_tokens=1.5 must be a whole number in the unit of its name, without a suffix",
    ),
    (Lengths, (1, -1), "workload.decode_tokens=-1 must be a whole number >= 0"),
    (Lengths, (1, 1, "refuse", 0), "workload.context_tokens=0 must be a whole number >= 1"),
    (Lengths, (1, 1, "cut"), "unknown workload.short_sequences=cut; allowed: refuse, drop"),
    (Speculation, (-1,), "workload.draft_tokens=-1 must be a whole number >= 0"),
    (Speculation, (1, 1.0, -1), "workload.draft_seed=-1 must be a whole number >= 0"),
    (Speculation, (1, 1.0, 0, -1), "workload.draft_layers=-1 must be a whole number >= 0"),
    (Speculation, (1, 1.1), "workload.draft_accepted=1.1 must be from 0 to 1; give a share"),
    (Speculation, (1, -0.1), "workload.draft_accepted=-0.1 must be from 0 to 1; give a share"),
    (
        Speculation,
        (1, (0.5, 1.1)),
        "workload.draft_accepted[1]=1.1 must be from 0 to 1; give a share",
    ),
    (
        Speculation,
        (1, 1.0, 0, 1, "ram"),
        "unknown workload.draft_experts=ram; allowed: on_device, offloaded",
    ),
    (
        Speculation,
        (1, 1.0, 0, 0, "offloaded"),
        "workload.draft_experts=offloaded with workload.draft_layers=0: such drafts have no experts;"
        " set workload.draft_layers=1, or workload.draft_experts=on_device",
    ),
    (
        Speculation,
        (3, (0.5, 0.5)),
        "workload.draft_accepted has 2 shares for workload.draft_tokens=3; give the share of each"
        " place, or one number for all",
    ),
    (
        Speculation,
        (1, (0.75, 0.25, 0.5, 0.625)),
        "workload.draft_accepted=[0.75, 0.25, 0.5, 0.625] rises from 0.25 to 0.5: a draft is kept"
        " only with those before it; give the share of all steps that keep each place",
    ),
    (Batcher, ((), "recorded"), "unknown batching=recorded; allowed: static, continuous"),
    (Batcher, ((), "static", 0), "workload.together=0 must be a whole number >= 1"),
    (Batcher, ((), "static", 1, 0), "workload.prefill_chunk=0 must be a whole number >= 1"),
    (
        Batcher,
        ((), "static", 1, 3, True),
        "workload.prefill_chunk=3 would cut a prompt, but an encoder reads a prompt whole; set"
        " workload.prefill_chunk=null",
    ),
    (
        Batcher,
        ([Request(2, 1, 0), Request(1, 1, 0, 5), Request(2, 1, 0, 3)],),
        "sequence 2 is requested twice; give every request a number of its own",
    ),
    (
        arrival_times,
        (2, 0.5, 0, [1, 2]),
        "workload.arrivals_per_s=0.5 and given arrivals exclude each other; leave one out",
    ),
    (
        arrival_times,
        (3, None, 0, [1, 2]),
        "2 arrivals are given for 3 sequences; give one for each",
    ),
    (arrival_times, (1, None, 0, [-1]), "arrivals_ns=-1 must be a whole number >= 0"),
    (
        arrival_times,
        (1, None, 0, [4_000_000_000_000_001 + 10**9]),
        f"arrivals_ns=4000001000000001: {LATEST}{FIRST}",
    ),
    (arrival_times, (1, -1.0), "workload.arrivals_per_s=-1.0 must be a number >= 0"),
    (arrival_times, (1, 1.0, -1), "workload.arrival_seed=-1 must be a whole number >= 0"),
    (
        arrival_times,
        (1, 9.9e-7),
        "workload.arrivals_per_s=9.9e-07 must be 1e-06 or more; null: every sequence is there at 0",
    ),
    (given_arrivals, ([0, -1],), "workload.arrivals_s[1]=-1 must be a number >= 0"),
    (given_arrivals, ([4e6 + 1],), f"workload.arrivals_s[0]=4000001.0: {LATEST}{FIRST}"),
    (
        given_arrivals,
        (3,),
        "workload.arrivals_s=3 must be a list of seconds, or a text file with one a line",
    ),
    (read, (), f"workload.requests has no requests; {FORMAT}"),
    (read, (3,), f"workload.requests[0]: 3 is no request; {FORMAT}"),
    (
        read,
        (LINE, {"input_length": 5, "hash_ids": []}),
        f"workload.requests[1]: {{'input_length': 5, 'hash_ids': []}} is no request; {FORMAT}",
    ),
    (
        read,
        (LINE | {"timestamp": 0}, LINE),
        f"workload.requests: some requests have a timestamp and others none; {FORMAT}",
    ),
    (
        read,
        (LINE | {"input_length": 0},),
        "workload.requests[0]: input_length=0 must be a whole number >= 1",
    ),
    (
        read,
        (LINE | {"output_length": 0},),
        "workload.requests[0]: output_length=0 must be a whole number >= 1",
    ),
    (
        read,
        (LINE | {"timestamp": -1},),
        "workload.requests[0]: timestamp=-1 must be a number >= 0",
    ),
    (
        read,
        (LINE | {"timestamp": 4_000_001_000},),
        f"workload.requests[0]: timestamp=4000001000 ms: {LATEST}{FIRST}",
    ),
    (
        read,
        (LINE | {"hash_ids": [7, True]},),
        "workload.requests[0]: hash_ids=[7, True] must be a list of whole numbers",
    ),
    (
        read,
        (LINE | {"hash_ids": [7]},),
        "workload.requests[0]: 1 hash_ids for input_length=5, which has 2 blocks of"
        " workload.block_tokens=4; set workload.block_tokens to the size of the file's blocks",
    ),
    (
        read,
        (LINE, {"input_length": 8, "output_length": 1, "hash_ids": [9, 7]}),
        "workload.requests: hash id 7 of request 1 follows id 9, and elsewhere nothing; an id stands"
        " for a block and all tokens before it",
    ),
]


@pytest.mark.parametrize(
    ("call", "values", "told"), REFUSED, ids=[re.sub(r"\W+", " ", one[2])[:50] for one in REFUSED]
)
def test_what_cannot_be_is_told_whole(call: Call, values: tuple[Any, ...], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        call(*values)


def test_requests_are_read_from_lines_of_which_some_may_be_empty(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    line = '{"timestamp": 1.5, "input_length": 8, "output_length": 2, "hash_ids": [1, 2]}'
    path.write_text(f"{line}\n\n  \n{line.replace('1.5', '0')}\n", encoding="utf-8")
    one = Told(8, 1, (1, 2), 1_500_000)
    assert read_requests(str(path), 4) == (one, Told(8, 1, (1, 2), 0))
    path.write_text(f"{line}\n\n{'x' * 70}\n", encoding="utf-8")
    with pytest.raises(
        ValueError, match=f"^{re.escape(str(path))}, line 3: '{'x' * 60}' is no JSON; "
    ):
        read_requests(str(path), 4)
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} has no requests; "):
        read_requests(str(path), 4)


def test_arrivals_in_a_file_are_told_by_their_line(tmp_path: Path) -> None:
    path = tmp_path / "times.txt"
    path.write_text("# seconds\n0\n1e-9 # one\n\n2.5\n", encoding="utf-8")
    assert given_arrivals(str(path)) == (0, 1, 2_500_000_000)
    path.write_text("# seconds\n-2\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 2.*=-2\.0 must be a number >= 0$"):
        given_arrivals(str(path))


def test_drafts_give_as_many_tokens_as_their_chances_say() -> None:
    half = partial(Speculation, 2, 0.5)
    assert half().expected_tokens == 1.75  # 1 + 1/2 + 1/4
    assert Speculation(2, (0.5, 0.25, 0.1)).expected_tokens == 1.75
    assert Speculation(2, (0.5, 0.0)).expected_tokens == 1.5
    assert Speculation(2, (0.0, 0.0)).expected_tokens == 1
    assert Speculation().expected_tokens == 1
    assert [half().kept(draws) for draws in ((0.5, 0.0), (0.49, 0.5), (0.0, 0.0), (0.0,), ())] == [
        0,
        1,
        2,
        1,
        0,
    ]
    layers = {"on_device": (3, 0), "offloaded": (0, 3)}
    for experts, found in layers.items():
        one = half(layers=3, experts=experts)
        assert (one.layers_in_use, one.sites) == found
        none = Speculation(0, layers=3, experts=experts)
        assert (none.layers_in_use, none.sites) == (0, 0)
