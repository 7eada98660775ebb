"""Reads requests in the format of Mooncake's traces: a JSON object a line (contract C177)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from sim.values.units import NS_PER_S, require_number
from sim.workload.batching import FROM_FIRST, check_latest, lines_in

FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
NS_PER_MS = NS_PER_S // 1000
FORMAT = (
    'one line a request: {"timestamp": MS, "input_length": N, "output_length": N, "hash_ids":'
    " [ID, ...]}; timestamp may be missing from all lines"
)


@dataclass(frozen=True)
class Told:
    """One request: the tokens that are read and those that are decoded (one less than its output
    has), and the ids of its prompt's whole blocks. ``arrival_ns`` None: it is there when its first
    step can begin.
    """

    prompt_tokens: int
    decode_tokens: int
    blocks: tuple[int, ...]
    arrival_ns: int | None


def read_requests(given: str | Sequence[object], block_tokens: int) -> tuple[Told, ...]:
    """The requests of a file, or of a list of such objects, in its order.

    Raise ValueError, with the line, for what is not of the format, and for no file that can be read.
    """
    name = given if isinstance(given, str) else "workload.requests"
    found = [_told(place, fields, block_tokens) for place, fields in objects_of(given)]
    if not found:
        raise ValueError(f"{name} has no requests; {FORMAT}")
    if len({one.arrival_ns is None for one in found}) > 1:
        raise ValueError(f"{name}: some requests have a timestamp and others none; {FORMAT}")
    _check_ids(name, found)
    return tuple(found)


def objects_of(given: str | Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """What stands for each request, and its place in the file or list."""
    if not isinstance(given, str):
        yield from ((f"workload.requests[{n}]", fields) for n, fields in enumerate(given))
        return
    lines = lines_in("workload.requests", Path(given), f"a file with {FORMAT}")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield f"{given}, line {number}", json.loads(line)
        except ValueError:
            raise ValueError(
                f"{given}, line {number}: {line[:60]!r} is no JSON; {FORMAT}"
            ) from None


def _told(place: str, fields: object, block_tokens: int) -> Told:
    if not isinstance(fields, dict) or not set(FIELDS[1:]) <= set(fields):
        raise ValueError(f"{place}: {str(fields)[:60]} is no request; {FORMAT}")
    prompt, output, ids = (fields[name] for name in FIELDS[1:])
    require_number(f"{place}: input_length", prompt, minimum=1, whole=True)
    require_number(f"{place}: output_length", output, minimum=1, whole=True)
    if not isinstance(ids, list) or not all(type(one) is int for one in ids):
        raise ValueError(f"{place}: hash_ids={str(ids)[:60]} must be a list of whole numbers")
    if len(ids) != -(-prompt // block_tokens):
        raise ValueError(
            f"{place}: {len(ids)} hash_ids for input_length={prompt}, which has"
            f" {-(-prompt // block_tokens)} blocks of workload.block_tokens={block_tokens}; set"
            " workload.block_tokens to the size of the file's blocks"
        )
    # The prompt's last row gives the first token of the output.
    return Told(
        prompt, output - 1, tuple(ids[: prompt // block_tokens]), _arrival_ns(place, fields)
    )


def _arrival_ns(place: str, fields: dict[str, Any]) -> int | None:
    if "timestamp" not in fields:
        return None
    time_ms: float = fields["timestamp"]
    require_number(f"{place}: timestamp", time_ms)
    check_latest(f"{place}: timestamp={time_ms!r} ms", time_ms / 1000, FROM_FIRST)
    return round(time_ms * NS_PER_MS)


def _check_ids(name: str, found: list[Told]) -> None:
    """Raise ValueError for an id that stands behind two others: it stands for no prefix then."""
    before: dict[int, int | None] = {}
    for one, (earlier, block) in _pairs(found):
        if before.setdefault(block, earlier) != earlier:
            raise ValueError(
                f"{name}: hash id {block} of request {one} follows {_name(earlier)}, and elsewhere"
                f" {_name(before[block])}; an id stands for a block and all tokens before it"
            )


def _pairs(found: list[Told]) -> Iterator[tuple[int, tuple[int | None, int]]]:
    """Every whole block with the one before it, by the number of the request."""
    for number, one in enumerate(found):
        first: tuple[int | None, ...] = (None, *one.blocks)
        for earlier, block in pairwise(first):
            assert block is not None
            yield number, (earlier, block)


def _name(block: int | None) -> str:
    return "nothing" if block is None else f"id {block}"
