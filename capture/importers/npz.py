"""Importer of format npz: decode routing in four arrays.

- ``experts`` uint8 [N, L, K]: in rank order.
- ``weights`` float16 [N, L, K].
- ``pos`` int32 [N]: the token's position in the full text.
- ``seq`` int32 [N]: the token's sequence.

``sequences.json`` beside it (or ``sequences=FILE``) is a list of objects with ``seq``, ``T``
(tokens), ``dataset``, ``has_repetition`` and, if known, ``finished``.

The published routing of gpt-oss-20b (`capture.importers.gpt_oss_fingerprint`) is also kept in this
form. So facts that a file cannot hold (experts, widths, licence) default to those of gpt-oss-20b;
for any other model they must be given.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capture.importers.gpt_oss_fingerprint import (
    WEIGHT_SUM_TOLERANCE,
    check_published_shape,
    published_facts,
)
from capture.importers.parts import (
    FACTS,
    Recording,
    Request,
    Rows,
    assemble,
    check_ids,
    check_shares,
)
from capture.importers.source import (
    INT32_MAX,
    Imported,
    ImportFailure,
    Refuse,
    Track,
    npy_header,
    parsed_json,
    require_file,
    stated_bytes,
)
from sim.traces.trace import DECODE, TraceError

KEYS = (*FACTS, "sequences")
SEQUENCES_FILE = "sequences.json"
ARRAYS: Mapping[str, tuple[Any, int]] = {
    "experts": (np.uint8, 3),
    "weights": (np.float16, 3),
    "pos": (np.int32, 1),
    "seq": (np.int32, 1),
}
LARGEST_FILE_BYTES = 1 << 32
LARGEST_ARRAY_BYTES = 1 << 30
LARGEST_TABLE_BYTES = 1 << 28


def read(request: Request, track: Track[Any]) -> Imported:
    """The trace of the arrays. Raise `TraceError` or `ImportFailure`."""
    facts = published_facts(request.facts)
    require_file("path", request.path, "an .npz file", LARGEST_FILE_BYTES)
    arrays = {
        name: _npz_array(request.path, name) for name in track(tuple(ARRAYS), "reading arrays")
    }
    experts, weights, pos, seq = (arrays[name] for name in ARRAYS)
    refuse = Refuse(request.path.name)
    num_rows, num_sites, top_k = experts.shape
    refuse(
        "weights",
        weights.shape != experts.shape,
        list(weights.shape),
        f"must be {list(experts.shape)}, as experts",
    )
    for name, values in (("pos", pos), ("seq", seq)):
        refuse(
            name, len(values) != num_rows, len(values), f"must have {num_rows} values, as experts"
        )
    refuse("experts", min(experts.shape) == 0, list(experts.shape), "must not be empty")
    check_published_shape(refuse, "experts sites and top_k", facts["model"], (num_sites, top_k))
    _check_order(refuse, pos, seq)
    table_path = Path(request.options.get("sequences", request.path.with_name(SEQUENCES_FILE)))
    table = _sequences(table_path, *np.unique(seq, return_counts=True))
    for site in track(range(num_sites), "checking sites"):
        check_ids(refuse, f"experts at site {site}", experts[:, site], int(facts["experts"]))
        check_shares(refuse, f" at site {site}", weights[:, site], WEIGHT_SUM_TOLERANCE)
    steps = np.arange(num_rows)
    rows = Rows(steps, np.full(num_rows, DECODE), seq, pos, experts, weights.astype(np.float32))
    recording = Recording(
        format="npz",
        files={"file": request.path, "sequences_file": table_path},
        layers=range(num_sites),
        lacks=("steps", "tokens", "scores"),
        dtype="float16",
        domains={number: item.domain for number, item in table.items()},
        flags={number: item.flags for number, item in table.items()},
        told={
            "prompts": "not recorded; the first position of a sequence is the length of its prompt",
            "steps": (
                "one step for each sequence and position; how tokens were batched is not recorded"
            ),
            "weights": (
                "float16 as published; equal neighbours set apart by a float32 ulp, to keep their"
                " rank"
            ),
        },
    )
    return Imported(assemble(facts, rows, recording))


def check(request: Request) -> None:
    published_facts(request.facts)


def _npz_array(path: Path, name: str) -> NDArray[Any]:
    """One array of the file.

    It is read only if its stated dtype, dimensions and size are what the format allows.
    """
    refuse = Refuse(path.name)
    dtype, dimensions = ARRAYS[name]
    try:
        with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(path) as archive:
            present = archive.namelist()
            rule = f"must hold the arrays {', '.join(ARRAYS)} (found {sorted(present)})"
            refuse(name, f"{name}.npy" not in present, "absent", rule)
            with archive.open(f"{name}.npy") as stream:
                shape, found = npy_header(stream)
        rule = f"must be {np.dtype(dtype)} with {dimensions} dimension(s)"
        refuse(name, found != dtype or len(shape) != dimensions, f"{found} {list(shape)}", rule)
        num_bytes = stated_bytes(shape, found)
        refuse(
            name,
            num_bytes > LARGEST_ARRAY_BYTES,
            f"{num_bytes} bytes",
            f"must be at most {LARGEST_ARRAY_BYTES}",
        )
        with warnings.catch_warnings(action="ignore"), np.load(path, allow_pickle=False) as arrays:
            return np.ascontiguousarray(arrays[name])
    except TraceError:
        raise
    except OSError as error:
        raise ImportFailure(
            f"path={path} cannot be read ({error.strerror or error}); name an .npz file"
        ) from None
    except Exception as error:
        # numpy parses a header as Python, and zipfile unpacks by several methods: the exceptions
        # have no common base.
        rule = f"must be an array of an .npz file that numpy reads without pickle ({error})"
        raise TraceError(path.name, name, "unreadable", rule, "restore the file") from None


def _check_order(refuse: Refuse, pos: NDArray[np.int32], seq: NDArray[np.int32]) -> None:
    """Check that sequences stand one after another, and that positions rise in each."""
    refuse.where("seq", seq < 0, seq, "must be >= 0")
    refuse.where("pos", pos < 0, pos, "must be >= 0")
    same = np.diff(seq, prepend=seq[:1] - 1) == 0
    firsts = np.flatnonzero(~same)
    again = np.ones(len(seq), np.bool_)
    again[firsts[np.unique(seq[firsts], return_index=True)[1]]] = False
    refuse.where("seq", again & ~same, seq, "must not return after another sequence has begun")
    back = same & (np.diff(pos, prepend=pos[:1]) <= 0)
    refuse.where("pos", back, pos, "must increase inside a sequence")


@dataclass(frozen=True)
class _Sequence:
    tokens: int
    domain: str
    flags: Mapping[str, bool]


def _sequences(
    path: Path, numbers: NDArray[np.int32], counts: NDArray[np.intp]
) -> dict[int, _Sequence]:
    """The sequences that the table at ``path`` describes, by number.

    They must be exactly those of the rows: ``numbers``, with ``counts`` rows each.
    """
    refuse = Refuse(path.name)
    table: dict[int, _Sequence] = {}
    for index, entry in enumerate(_table(path, refuse)):
        value = refuse.has(f"[{index}]", entry)
        number = refuse.whole(f"[{index}].seq", value.get("seq"), 0, INT32_MAX)
        refuse(f"[{index}].seq", number in table, number, "must not come twice")
        names = ("has_repetition", "finished") if "finished" in value else ("has_repetition",)
        table[number] = _Sequence(
            refuse.whole(f"[{index}].T", value.get("T"), 0, INT32_MAX),
            refuse.text(f"[{index}].dataset", value.get("dataset")),
            {name: refuse.flag(f"[{index}].{name}", value.get(name)) for name in names},
        )
    found = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    for number in sorted(table.keys() | found.keys()):
        tokens = table[number].tokens if number in table else None
        rows = found.get(number, 0)
        refuse(f"T of seq {number}", tokens != rows, tokens, f"must be {rows}, as there are rows")
    return table


def _table(path: Path, refuse: Refuse) -> list[object]:
    try:
        content = require_file("sequences", path, "FILE.json", LARGEST_TABLE_BYTES).read_bytes()
    except (OSError, ImportFailure) as error:
        raise ImportFailure(
            f"sequences={path} cannot be read ({error}); give sequences=FILE.json"
        ) from None
    entries = parsed_json(content, refuse, "text")
    refuse("text", not isinstance(entries, list), entries, "must be a list of objects")
    return list(entries)
