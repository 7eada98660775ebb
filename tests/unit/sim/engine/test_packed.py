"""Columns that are packed into arrays while a run goes on are those of a run that keeps lists."""

from __future__ import annotations

from array import array
from dataclasses import fields

import numpy as np
import pytest

from sim.core.controller import PACKED
from sim.core.issued import is_plain, is_plain_of_simple
from sim.engine import engine
from sim.engine.simulate import simulate
from sim.results.frames import Frames
from sim.setup.build import build
from sim.setup.configure import configure
from sim.values.record import Record
from sim.verbs.names import names


@pytest.mark.alike
@pytest.mark.parametrize("system", ["hobbit", "moe_infinity", "fiddler", "lru devices=owners_2"])
def test_a_packed_run_has_the_rows_of_one_that_is_not(
    monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    monkeypatch.setattr(engine, "PACKED_LOOKUPS", 7)
    config, name = configure(*f"system={system}".split(), "trace.max_sequences=1")
    runs = []
    for packed in (False, True):
        run = build(config, name)
        record = simulate(run.controller, run.workload, run.durations, packed=packed)
        runs.append((run, record))
    (plain, lists), (run, arrays) = runs
    for column in PACKED:
        mine, other = getattr(plain.controller, column), getattr(run.controller, column)
        assert list(mine) == list(other), column
    events = run.controller.event_columns
    assert {column: list(values) for column, values in events.items()} == {
        column: list(values) for column, values in plain.controller.event_columns.items()
    }
    widths = [v.itemsize for v in events.values() if isinstance(v, array | np.ndarray)]
    assert sum(widths) == 13
    assert len(run.controller.gate_calls) == run.workload.num_gates
    for field in fields(Record):
        mine, other = getattr(lists, field.name), getattr(arrays, field.name)
        if isinstance(mine, list):
            mine, other = mine[:], list(other)
        assert mine == other, field.name
    wide = [
        item for item in fields(Record) if getattr(getattr(arrays, item.name), "itemsize", 0) == 8
    ]
    assert not {item.name for item in wide} & {"service_number", "service_link", "service_urgent"}
    assert plain.controller.prefetch_counts == run.controller.prefetch_counts
    tables = [
        Frames(r.controller, r.workload, r.durations, made, r.hardware.link_names).tables()
        for r, made in runs
    ]
    for of, table in tables[0].items():
        assert table.equals(tables[1][of]), of


@pytest.mark.alike
@pytest.mark.parametrize("system", names("system"))
def test_where_moves_are_simple_no_transfer_needs_more_questions(system: str) -> None:
    words = f"system={system}", "trace.max_sequences=1", "hardware.memory_gib=96"
    config, name = configure(*words)
    run = build(config, name)
    simulate(run.controller, run.workload, run.durations)
    if run.controller.simple.moves:
        for transfer in run.controller.issued:
            assert is_plain_of_simple(transfer) == is_plain(transfer), transfer.number


@pytest.mark.parametrize("words", [("system=lru",), ("system=lru", "loader.chunk_bytes=65536")])
def test_demands_that_have_landed_are_packed_whichever_way_they_came(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """The short way through a transfer's end marks it as the long way does."""
    monkeypatch.setattr(engine, "PACKED_LOOKUPS", 1)
    config, name = configure(*words, "trace.max_sequences=1")
    run = build(config, name)
    simulate(run.controller, run.workload, run.durations, packed=True)
    kept = [number for number, _ in run.controller.issued.objects()]
    # Those of the last step came after the last packing.
    assert len(kept) < len(run.controller.issued) / 10
