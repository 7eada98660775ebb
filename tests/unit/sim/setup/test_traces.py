"""The folder of a trace that a configuration names, and the columns that are read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sim.setup import traces
from sim.setup.traces import load_trace, trace_directory
from sim.values.places import ROOT


def test_a_trace_is_looked_for_where_one_stands_and_then_in_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert trace_directory("mine") == ROOT / "mine"
    assert trace_directory("/mine") == Path("/mine")
    (tmp_path / "mine").mkdir()
    assert trace_directory("mine") == Path("mine")


@pytest.mark.parametrize(
    ("asked", "columns"),
    [
        ((0,), []),
        ((2,), ["lookahead"]),
        ((1, False, "raw"), ["lookahead_raw"]),
        ((1, False, "renormed"), ["lookahead"]),
        ((0, True, "raw", True), ["active_shares", "logits"]),
        ((1, True, "raw", True), ["lookahead_raw", "active_shares", "logits"]),
    ],
)
def test_a_trace_is_read_with_the_columns_that_are_asked_for_and_that_it_has(
    asked: tuple[Any, ...], columns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    header = SimpleNamespace(
        lookahead=SimpleNamespace(norms=("raw",)), sparsities=(0.5,), columns=("ids", "logits")
    )
    monkeypatch.setattr(traces, "read_header", lambda directory: header)
    monkeypatch.setattr(traces, "read_trace", lambda *given: given)
    assert load_trace("/t", *asked) == (Path("/t"), columns)
    header.lookahead, header.sparsities, header.columns = None, (), ("ids",)
    assert load_trace("/t", *asked) == (Path("/t"), [])
