"""Files of requests in Mooncake's format (contract C177): what is read, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.workload.batching import given_arrivals
from sim.workload.requests import Told, read_requests


def line(**changed: Any) -> dict[str, Any]:
    fields = {"timestamp": 0, "input_length": 5, "output_length": 3, "hash_ids": [1, 2, 3]}
    return {name: value for name, value in (fields | changed).items() if value is not None}


def written(folder: Path, *lines: object) -> str:
    file = folder / "requests.jsonl"
    file.write_text("\n".join(json.dumps(one) for one in lines) + "\n", encoding="utf-8")
    return str(file)


# Contracts: C177
def test_a_line_gives_lengths_whole_blocks_and_an_arrival_in_ms(tmp_path: Path) -> None:
    file = written(tmp_path, line(), line(timestamp=1.5, input_length=4, hash_ids=[1, 2]))
    expected = (Told(5, 2, (1, 2), 0), Told(4, 2, (1, 2), 1_500_000))
    assert read_requests(file, 2) == expected
    assert read_requests([line(), line(timestamp=1.5, input_length=4, hash_ids=[1, 2])], 2) == (
        expected
    )


def test_without_timestamps_there_are_no_arrivals(tmp_path: Path) -> None:
    (told,) = read_requests(written(tmp_path, line(timestamp=None)), 2)
    assert told.arrival_ns is None


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "has no requests"),
        ([[1, 2]], "is no request"),
        ([line(hash_ids=None)], "is no request"),
        ([line(input_length=0)], "input_length=0 must be a whole number >= 1"),
        ([line(output_length=0)], "output_length=0 must be a whole number >= 1"),
        ([line(hash_ids=[1, "2", 3])], "must be a list of whole numbers"),
        ([line(hash_ids=[1, 2])], "2 hash_ids for input_length=5, which has 3 blocks"),
        ([line(timestamp=-1)], "timestamp=-1"),
        ([line(timestamp=5e9)], "the latest is 4,000,000 s"),
        ([line(), line(timestamp=None)], "some requests have a timestamp and others none"),
        ([line(), line(hash_ids=[4, 2, 3])], "hash id 2 of request 1 follows id 4, and elsewhere"),
    ],
)
def test_what_is_not_of_the_format_is_refused_with_its_place(
    tmp_path: Path, lines: list[object], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        read_requests(written(tmp_path, *lines), 2)


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text("\n{not json\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"requests\.jsonl, line 2: '\{not json' is no JSON"):
        read_requests(str(file), 2)


def test_a_file_that_cannot_be_read_is_told_with_its_key(tmp_path: Path) -> None:
    absent, binary = tmp_path / "absent.jsonl", tmp_path / "binary.jsonl"
    binary.write_bytes(b"\xff\xfe")
    for file, says in (
        (
            absent,
            r"workload\.requests=.*absent\.jsonl: No such file or directory; name a file with one",
        ),
        (tmp_path, r"workload\.requests=.*: Is a directory; name a file with one line a request"),
        (
            binary,
            r"workload\.requests=.*binary\.jsonl is no text in UTF-8 .*; name a file with one",
        ),
    ):
        with pytest.raises(ValueError, match=says):
            read_requests(str(file), 2)
    with pytest.raises(ValueError, match=r"workload\.arrivals_s=.*absent\.jsonl: No such file"):
        given_arrivals(str(absent))
