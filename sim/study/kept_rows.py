"""Rows of a study as commands read them back: whole before anything is computed of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from sim.machine.budget import Budget
from sim.results.kept import check_summary, is_number
from sim.study.rows import DONE, LISTS, SCHEMA, Row
from sim.values.fields import read_json

TEXTS = ("key", "status", "overrides")
COMPARED = ("model", "hardware", "trace", "workload", "budget")
"""Sections of a row's configuration that comparisons read."""


def last_cells(recorded: pl.DataFrame) -> list[Row]:
    """The rows of what was recorded, of cells of the same words the last: the others are of a file,
    such as one with a policy, that was edited since. A column that is not there is null.
    """
    none = dict.fromkeys(SCHEMA)
    return [*{row.get("overrides"): none | row for row in recorded.to_dicts()}.values()]


def whole_rows(rows: Iterable[Row], place: Path, compared: bool = False) -> Iterator[Row]:
    """The rows, once each has been found whole: texts, and where it is done a summary and lists by
    sequence; with ``compared`` its system and its configuration, too.

    Raise ValueError, with the study's ``place``, cell, finding and way out, for one that is not.
    """
    for row in rows:
        try:
            _check(row, compared)
        except (ValueError, TypeError, RecursionError) as error:
            told = " ".join(str(error).split())
            raise ValueError(
                f"{place}: the row of {row.get('overrides') or row.get('key')} was changed: {told};"
                " move its part of cells/ away, and the study's words run its cells again"
            ) from None
        yield row


def _check(row: Row, compared: bool) -> None:
    for name in (*TEXTS, *(["system"] if compared else [])):
        if not isinstance(row[name], str) or not row[name].strip():
            raise ValueError(f"{name} is {row[name]!r}, must be text")
    if row["status"] != DONE:
        return
    check_summary(read_json(_text(row, "summary")), "its summary")
    lists = {name: row[name] for name in LISTS if row.get(name)}
    for name, values in lists.items():
        if not all(map(is_number, values)):
            raise ValueError(f"{name} has other values than numbers")
    if compared and any(row["decode_ns"] or ()):
        _check_compared(row, lists)


def _check_compared(row: Row, lists: Mapping[str, Any]) -> None:
    lengths = {name: len(lists.get(name, ())) for name in LISTS}
    if len({*lengths.values()}) > 1:
        raise ValueError(f"its lists by sequence have different lengths ({lengths})")
    if not is_number(row["decode_tokens_per_s"]) or row["decode_tokens_per_s"] <= 0:
        raise ValueError(
            f"decode_tokens_per_s is {row['decode_tokens_per_s']}, must be a number above 0"
        )
    config = json.loads(_text(row, "config"))
    sections = config if isinstance(config, dict) else {}
    if lacking := [name for name in COMPARED if not isinstance(sections.get(name), dict)]:
        raise ValueError(f"its configuration lacks {', '.join(lacking)}")
    Budget(**sections["budget"])


def _text(row: Row, name: str) -> bytes:
    if not isinstance(row[name], str):
        raise ValueError(f"{name} is {row[name]!r}, must be text")
    return bytes(row[name], "utf-8")
