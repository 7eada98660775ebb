"""The check of an engine's residency log, on seven lookups worked out by hand."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from sim.check import candidates, main, parse, parse_budget
from sim.checking.cache_replay import Contract, Lapse, Replayer
from sim.traces.residency_log import COLUMNS, EXPERT_BYTES_FILE, RESIDENCY_FILE, read_log
from sim.traces.synthesis import synthesize
from sim.traces.trace import ModelShape, TraceError, write_trace

A, B, C, D = 0, 1, 2, 3
LOOKUPS = [A, B, C, A, C, B, A]
BY_LRU = [False, False, False, False, True, False, False]
"""The flags of two slots that are empty at first.

Step 2 loads C in place of A, step 3 A in place of B; at step 4 C is there. At step 5 B replaces the
least recent, A, so step 6 does not find A. First in, first out would evict C, and find A.
"""
LAYER = 2
Change = Callable[[dict[str, Any]], None]


def write(
    folder: Path,
    change: Change = lambda columns: None,
    sizes: object = None,
    lookups: Sequence[int] = LOOKUPS,
    prompt: int = 1,
    sites: int = 1,
) -> Path:
    """Five experts of 10 B, one choice a token and site; the first site is layer 2 of its model.
    The first ``prompt`` tokens are one batch of each site. Lookups are by token, then site.
    """
    shape = ModelShape("tiny", "none", sites, 5, 1, 8, 8)
    count = len(lookups)
    base = synthesize(
        shape, tokens=count // sites - prompt, sequences=1, prompt_tokens=prompt, lookahead=0
    )
    ids = np.array(lookups, np.int16).reshape(-1, sites, 1)
    trace = type(base)(**{**vars(base), "ids": ids})
    columns: dict[str, Any] = {
        "site": [*range(sites)] * (count // sites),
        "step": base.step.repeat(sites).tolist(),
        "sequence": base.sequence.repeat(sites).tolist(),
        "position": base.position.repeat(sites).tolist(),
        "slot": [0] * count,
        "expert": list(lookups),
        "resident": list(BY_LRU),
        "prefetched": [False] * count,
        "loaded_bytes": [0 if flag else 10 for flag in BY_LRU],
        "dropped": [False] * count,
    }
    change(columns)
    stream = io.BytesIO()
    pl.DataFrame(
        columns, schema={name: COLUMNS.get(name, pl.Int64) for name in columns}
    ).write_parquet(stream)
    rows = (
        [
            {"site": site, "layer": LAYER + site, "expert_bytes": 10, "dense_bytes": 0}
            for site in range(sites)
        ]
        if sizes is None
        else sizes
    )
    write_trace(
        folder / "log",
        trace,
        {RESIDENCY_FILE: stream.getvalue(), EXPERT_BYTES_FILE: json.dumps(rows).encode()},
    )
    return folder / "log"


def test_the_contract_that_explains_every_flag_is_named_and_the_others_first_deviations_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["initial=empty", "scope=global", "retention=strict"]
    assert main([str(write(tmp_path)), "budget=20B", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    hits = {
        1: ": hits 14.28 %, 16.66 % of decoded tokens'",
        2: ": hits 28.57 %, 33.33 % of decoded tokens'",
    }
    assert lines[0].endswith(f": 7 lookups, 1 of them flagged resident{hits[1]}")
    # With one token a step, the order of rows and the order of needs are the same.
    explained = [line for line in lines if line.startswith("explains all 7 flags: policy=lru")]
    assert len(explained) == 2
    assert all(line.endswith(hits[1]) for line in explained)
    fifo = (
        "explains 6 of 7 flags (85.71 %): policy=fifo initial=empty scope=global retention=strict"
    )
    place = lines.index(f"{fifo}{hits[2]}")
    assert (
        lines[place + 1]
        == "  first deviation: row 6: step 6, layer 2 (site 0), expert 0 (slot 0, position 6): the"
        " log says absent, the replay found it resident. In the replay it was loaded at step 3,"
        " layer 2 (site 0), last asked for at step 3, layer 2 (site 0), and not evicted since."
        " It is the only one: with this one flag the other way round the contract explains the"
        " log."
    )


def test_who_was_evicted_for_it_and_when_is_told_of_an_expert_that_should_be_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(columns: dict[str, Any]) -> None:
        columns["resident"][6] = True

    options = [
        "policy=lru",
        "initial=empty",
        "scope=global",
        "retention=strict",
        "recency=needs",
        "replay_unit=union",
    ]
    assert main([str(write(tmp_path, found)), "budget=20", *options]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "no contract explains every flag"
    assert lines[3].endswith(
        "the log says resident, the replay found it absent. In the replay it was last asked for at"
        " step 3, layer 2 (site 0) and evicted at step 5, layer 2 (site 0) for expert 1 of layer 2"
        " (site 0). If the contract holds, the log may lack a lookup of it in this layer, from step"
        " 3 to step 6. To load it the replay evicted expert 2 of layer 2 (site 0). It is the only"
        " one: with this one flag the other way round the contract explains the log."
    )


def test_the_past_of_an_expert_is_what_came_before_the_gate(tmp_path: Path) -> None:
    contract = Contract("lru", (("initial", "empty"), ("retention", "strict")))
    replay = Replayer(read_log(write(tmp_path))).replay(contract, 20)
    assert replay.lapse(A, 0, False) == Lapse(None, None, None, None)
    assert replay.lapse(A, 3, False) == Lapse(loaded=0, asked=0, evicted=2, evicted_for=C)
    # It is evicted at step 6, which is yet to come.
    assert replay.lapse(C, 4, True) == Lapse(loaded=2, asked=2, evicted=None, evicted_for=None)
    assert replay.lapse(A, 6, False) == Lapse(loaded=3, asked=3, evicted=5, evicted_for=B)
    assert [replay.victims(key, tick) for tick, key in enumerate(LOOKUPS)] == [
        [],
        [],
        [A],
        [B],
        [],
        [A],
        [C],
    ]


def test_an_expert_that_nothing_asked_for_before_is_told_to_have_never_been_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(columns: dict[str, Any]) -> None:
        columns["resident"][0] = True

    assert (
        main(
            [
                str(write(tmp_path, found)),
                "budget=20",
                "policy=lru",
                "initial=empty",
                "scope=global",
            ]
        )
        == 1
    )
    assert (
        "In the replay it had never been there: no lookup before asked for it."
        in capsys.readouterr().out
    )


def test_what_is_not_given_is_tried(tmp_path: Path) -> None:
    assert parse(["./log=1", "budget=20B"])[:2] == ("./log=1", 20)
    _, budget, contracts = parse(["log", "budget=1.5KiB", "policy=lru", "recency=rows"])
    assert budget == 1536
    told = {str(contract) for contract in contracts}
    assert len(told) == 2 * 2 * 2  # initial, scope, retention
    assert all("recency=rows" in one for one in told)
    assert len(candidates(["fifo"], {"replay_unit": "access"})) == 8


@pytest.mark.parametrize(
    ("text", "budget"),
    [("20", 20), ("20B", 20), ("2kB", 2000), ("4000MiB", 4000 << 20), ("0.5GiB", 1 << 29)],
)
def test_a_budget_is_a_number_and_a_unit(text: str, budget: int) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "the first argument must be LOG"),
        (["budget=1"], "the first argument must be LOG"),
        (["log"], "budget is missing"),
        (["log", "budget=20 MiB"], "must be a number and a unit"),
        (["log", "budget=-1"], "must be a number and a unit"),
        (["log", "budget=0"], "is 0 B, must be 1 to"),
        (["log", "budget=1", "budget=2"], "budget is given twice"),
        (["log", "budget=1", "policy=belief"], "unknown policy=belief; known: "),
        (
            ["log", "budget=1", "policy=fifo", "recency=rows"],
            "no policy has all of the options recency",
        ),
        (["log", "budget=20", "strict"], "'strict' is no key=value"),
        (["log", "budget=20", "policy=lru"], "header.json"),
    ],
)
def test_an_argument_that_cannot_be_is_refused(
    tmp_path: Path,
    arguments: list[str],
    why: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert why in told.err
    assert not told.out


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["policy=belady"], "needs the future"),
        (["policy=lru", "initial=warm"], "unknown initial cache 'warm'"),
        (["policy=lru", "budget=9"], "budget=9 B holds no expert: the log's take up to 10 B; give"),
        (["policy=lru", "retention=never"], "loader.retention=never is unknown"),
    ],
)
def test_contracts_that_cannot_be_replayed_are_refused_by_name(
    tmp_path: Path, options: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = options if "budget" in options[-1] else [*options, "budget=20"]
    assert main([str(write(tmp_path)), *given]) == 2
    assert why in capsys.readouterr().err


def test_a_budget_that_is_short_for_its_pools_has_a_way_out_of_this_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def cut(columns: dict[str, Any]) -> None:
        columns["resident"], columns["loaded_bytes"] = [False] * 6, [10] * 6

    log = write(tmp_path, cut, lookups=LOOKUPS[:6], sites=2)
    assert main([str(log), "policy=lru", "scope=site", "budget=19"]) == 2
    told = capsys.readouterr().err
    assert "but one token may need 1 experts of 10 B = 10 B there; raise budget=, or" in told
    assert "loader." not in told.replace("loader.retention", "")


def _set(name: str, place: int, value: object) -> Change:
    def change(columns: dict[str, Any]) -> None:
        columns[name][place] = value

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_set("expert", 3, B), "row 3, expert is 1, must be 0, what routes.parquet has"),
        (_set("site", 3, 1), "row 3, site is 1, must be 0 to 0"),
        (_set("slot", 2, 1), "row 2, slot is 1, must be 0 to 0"),
        (_set("position", 5, 99), "must be a (sequence, position) of the trace"),
        (_set("step", 5, 4), "row 5, step is 4, must be 5"),
        (_set("dropped", 6, True), "must be the 7 choices of the trace, each once"),
        (_set("resident", 6, None), "missing in 1 rows"),
        (lambda columns: columns.pop("slot"), "columns"),
        (
            lambda columns: [column.append(column[-1]) for column in columns.values()],
            "rows is 8, must be 1 to 7",
        ),
    ],
)
def test_a_log_that_is_not_the_traces_is_refused(tmp_path: Path, change: Change, why: str) -> None:
    with pytest.raises(TraceError, match=RESIDENCY_FILE) as refused:
        read_log(write(tmp_path, change))
    assert why in str(refused.value)


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        {},
        [{}],
        [{"site": 1, "layer": 2, "expert_bytes": 10, "dense_bytes": 0}],
        [{"site": 0, "layer": 2, "expert_bytes": 0, "dense_bytes": 0}],
        [{"site": 0, "layer": 2, "expert_bytes": 1.5, "dense_bytes": 0}],
    ],
)
def test_bytes_that_cannot_be_are_refused(tmp_path: Path, sizes: object) -> None:
    with pytest.raises(TraceError, match=EXPERT_BYTES_FILE):
        read_log(write(tmp_path, sizes=sizes))


def test_a_trace_without_a_residency_log_is_refused(tmp_path: Path) -> None:
    base = synthesize(
        ModelShape("tiny", "none", 1, 4, 1, 8, 8),
        tokens=2,
        sequences=1,
        prompt_tokens=1,
        lookahead=0,
    )
    write_trace(tmp_path / "log", base)
    with pytest.raises(
        TraceError, match="name a trace imported from an engine that logs residency"
    ):
        read_log(tmp_path / "log")
