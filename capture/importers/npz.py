"""Format npz: decode routing in four arrays.

``experts`` uint8 [N, L, K] in rank order, ``weights`` float16 [N, L, K], ``pos`` int32 [N], the token's position in the
full text, and ``seq`` int32 [N]. Beside it lies ``sequences.json``, a list of objects with ``seq``, ``T`` (tokens),
``dataset``, ``has_repetition`` and, if known, ``finished``. The published file is the gpt-oss-20b decode routing of
github.com/AmanPriyanshu/GPT-OSS-MoE-ExpertFingerprinting, converted. What a file cannot tell (experts, widths,
licence) defaults to that model's values, and to nothing for any other model.
"""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capture.importers.source import ImportFailure, Refuse, Track, count, in_rank_order, sha256
from sim.trace import DECODE, Header, ModelShape, Site, Trace, TraceError, TraceSequence


@dataclass(frozen=True)
class Source:
    """What to import. The shape and licence are those of the model that made the file, where the file cannot tell."""

    path: Path
    sequences: Path
    name: str
    model: str
    architecture: str
    experts: int
    hidden: int
    expert_intermediate: int
    licence: str


GPT_OSS_20B = "gpt-oss-20b"
GPT_OSS_20B_SITES, GPT_OSS_20B_TOP_K = 24, 4
GPT_OSS_20B_FACTS: Mapping[str, str] = {
    "architecture": "GptOssForCausalLM",
    "experts": "32",
    "hidden": "2880",
    "expert_intermediate": "2880",
    "licence": "Apache-2.0 (routing); the texts behind it are not part of the trace",
}
NPZ_KEYS = ("sequences", "name", "model", *GPT_OSS_20B_FACTS)
SEQUENCES_FILE = "sequences.json"

NPZ_ARRAYS: Mapping[str, tuple[Any, int]] = {
    "experts": (np.uint8, 3), "weights": (np.float16, 3), "pos": (np.int32, 1), "seq": (np.int32, 1),
}  # fmt: skip
LARGEST_ARRAY_BYTES = 1 << 30
LARGEST_TABLE_BYTES = 1 << 28
WEIGHT_SUM_TOLERANCE = 0.01
"""The published shares, rounded more than once, sum to 1 within 0.0035."""


def make_source(given: Mapping[str, str]) -> Source:
    """The source that ``given`` describes; the published file's facts stand in only for the model they belong to."""
    model = given.get("model", GPT_OSS_20B)
    facts = {**(GPT_OSS_20B_FACTS if model == GPT_OSS_20B else {}), **given}
    if missing := [key for key in GPT_OSS_20B_FACTS if key not in facts]:
        raise ImportFailure(
            f"model={model} also needs {', '.join(f'{key}=...' for key in missing)}: no file tells them"
        )
    path = Path(given["path"])
    return Source(
        path=path,
        sequences=Path(given.get("sequences", path.with_name(SEQUENCES_FILE))),
        name=given.get("name", f"{model}_decode"),
        model=model,
        architecture=facts["architecture"],
        experts=count("experts", facts["experts"]),
        hidden=count("hidden", facts["hidden"]),
        expert_intermediate=count("expert_intermediate", facts["expert_intermediate"]),
        licence=facts["licence"],
    )


def read_npz(source: Source, track: Track[Any]) -> Trace:
    """Decode routing from arrays; see the module's text."""
    arrays = {name: _npz_array(source.path, name) for name in track(tuple(NPZ_ARRAYS), "reading arrays")}
    experts, weights, pos, seq = (arrays[name] for name in NPZ_ARRAYS)
    refuse = Refuse(source.path.name)
    num_rows, num_sites, top_k = experts.shape
    refuse("weights", weights.shape != experts.shape, list(weights.shape), f"must be {list(experts.shape)}, as experts")
    for name, values in (("pos", pos), ("seq", seq)):
        refuse(name, len(values) != num_rows, len(values), f"must have {num_rows} values, as experts")
    refuse("experts", min(experts.shape) == 0, list(experts.shape), "must not be empty")
    if source.model == GPT_OSS_20B:
        published = (GPT_OSS_20B_SITES, GPT_OSS_20B_TOP_K)
        rule = f"must have {published} for {GPT_OSS_20B}; of another model, give model="
        refuse("experts sites and top_k", (num_sites, top_k) != published, (num_sites, top_k), rule)
    _check_order(refuse, pos, seq)
    sequences = _sequences(source.sequences, *np.unique(seq, return_counts=True))
    ids = np.empty(experts.shape, np.int16)
    shares = np.empty(experts.shape, np.float32)
    for site in track(range(num_sites), "checking sites"):
        _check_site(refuse, site, experts[:, site], weights[:, site], source.experts)
        ids[:, site] = experts[:, site]
        shares[:, site] = in_rank_order(weights[:, site])
    return Trace(
        header=_npz_header(source, num_sites, top_k, sequences),
        step=np.arange(num_rows, dtype=np.int32),
        phase=np.full(num_rows, DECODE, np.uint8),
        sequence=seq,
        position=pos,
        token=np.full(num_rows, -1, np.int32),
        valid=np.ones(num_rows, np.bool_),
        ids=ids,
        weights=shares,
    )


def _npz_array(path: Path, name: str) -> NDArray[Any]:
    """One array of the file, read only if its stated dtype, dimensions and size are what the format allows."""
    refuse = Refuse(path.name)
    dtype, dimensions = NPZ_ARRAYS[name]
    try:
        with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(path) as archive:
            present = archive.namelist()
            rule = f"must hold the arrays {', '.join(NPZ_ARRAYS)} (found {sorted(present)})"
            refuse(name, f"{name}.npy" not in present, "absent", rule)
            with archive.open(f"{name}.npy") as stream:
                shape, found = _npy_header(stream)
        rule = f"must be {np.dtype(dtype)} with {dimensions} dimension(s)"
        refuse(name, found != dtype or len(shape) != dimensions, f"{found} {list(shape)}", rule)
        num_bytes = int(np.prod([int(length) for length in shape], dtype=object)) * found.itemsize
        refuse(name, num_bytes > LARGEST_ARRAY_BYTES, f"{num_bytes} bytes", f"must be at most {LARGEST_ARRAY_BYTES}")
        with warnings.catch_warnings(action="ignore"), np.load(path, allow_pickle=False) as arrays:
            return np.ascontiguousarray(arrays[name])
    except TraceError:
        raise
    except OSError as error:
        raise ImportFailure(f"path={path} cannot be read ({error.strerror or error}); name an .npz file") from None
    except Exception as error:
        # numpy tokenizes a header as Python, zipfile unpacks by several methods: what they raise has no common base.
        rule = f"must be an array of an .npz file that numpy reads without pickle ({error})"
        raise TraceError(path.name, name, "unreadable", rule, "restore the file") from None


def _npy_header(stream: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype that an .npy stream states."""
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"format version {version} holds no plain numbers")
    shape, _, dtype = read(stream)
    return shape, dtype


def _check_order(refuse: Refuse, pos: NDArray[np.int32], seq: NDArray[np.int32]) -> None:
    """One sequence after another, each from its first position onwards."""
    refuse.where("seq", seq < 0, seq, "must be >= 0")
    refuse.where("pos", pos < 0, pos, "must be >= 0")
    same = np.diff(seq, prepend=seq[:1] - 1) == 0
    firsts = np.flatnonzero(~same)
    again = np.ones(len(seq), np.bool_)
    again[firsts[np.unique(seq[firsts], return_index=True)[1]]] = False
    refuse.where("seq", again & ~same, seq, "must not return after another sequence has begun")
    back = same & (np.diff(pos, prepend=pos[:1]) <= 0)
    refuse.where("pos", back, pos, "must increase inside a sequence")


def _check_site(
    refuse: Refuse, site: int, experts: NDArray[np.uint8], weights: NDArray[np.float16], num_experts: int
) -> None:
    where = f" at site {site}"
    refuse.where(f"experts{where}", experts >= num_experts, experts, f"must lie in 0..{num_experts - 1}")
    ordered = np.sort(experts, axis=-1)
    repeated = ordered[:, 1:] == ordered[:, :-1]
    refuse.where(f"experts{where}", repeated, ordered[:, 1:], "must not repeat in a row (columns in ascending order)")
    wide = weights.astype(np.float32)
    refuse.where(f"weights{where}", ~((wide >= 0) & (wide <= 1)), wide, "must lie in 0..1")
    rising = wide[:, 1:] > wide[:, :-1]
    refuse.where(f"weights{where}", rising, wide[:, 1:], "must not rise from rank to rank (columns from rank 1)")
    total = wide.sum(-1)
    rule = f"must be 1 within {WEIGHT_SUM_TOLERANCE}: shares of the selected experts"
    refuse.where(f"sum of weights{where}", abs(total - 1) > WEIGHT_SUM_TOLERANCE, total, rule)


def _sequences(path: Path, numbers: NDArray[np.int32], counts: NDArray[np.intp]) -> tuple[TraceSequence, ...]:
    """The header's sequences from the table at ``path``, which must describe exactly the rows."""
    refuse = Refuse(path.name)
    table: dict[int, TraceSequence] = {}
    for index, entry in enumerate(_table(path)):
        refuse(f"[{index}]", not isinstance(entry, dict), entry, "must be an object")
        item = _sequence(refuse, f"[{index}]", entry if isinstance(entry, dict) else {})
        refuse(f"[{index}].seq", item.sequence in table, item.sequence, "must not come twice")
        table[item.sequence] = item
    stated = {number: item.decode_tokens for number, item in table.items()}
    found = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    for number in sorted(stated.keys() | found.keys()):
        tokens, rows = stated.get(number), found.get(number, 0)
        refuse(f"T of seq {number}", tokens != rows, tokens, f"must be {rows}, as there are rows")
    return tuple(table[number] for number in sorted(table))


def _table(path: Path) -> list[object]:
    try:
        if path.stat().st_size > LARGEST_TABLE_BYTES:
            rule = f"must be at most {LARGEST_TABLE_BYTES} bytes"
            raise TraceError(path.name, "size", path.stat().st_size, rule, "restore the file")
        entries = json.loads(path.read_bytes())
    except OSError as error:
        raise ImportFailure(f"sequences={path} cannot be read ({error.strerror}); give sequences=FILE.json") from None
    except TraceError:
        raise
    except (ValueError, RecursionError) as error:
        raise TraceError(path.name, "text", str(error), "must be JSON", "restore the file") from None
    if not isinstance(entries, list):
        raise TraceError(path.name, "text", entries, "must be a list of objects", "restore the file")
    return entries


_KINDS: Mapping[type, str] = {int: "a whole number", str: "text", bool: "true or false"}


def _sequence(refuse: Refuse, where: str, entry: Mapping[str, Any]) -> TraceSequence:
    kinds: dict[str, type] = {"seq": int, "T": int, "dataset": str, "has_repetition": bool}
    kinds |= {"finished": bool} if "finished" in entry else {}
    for key, kind in kinds.items():
        value = entry.get(key)
        wrong = not isinstance(value, kind) or (kind is int and isinstance(value, bool))
        refuse(f"{where}.{key}", wrong, value, f"must be {_KINDS[kind]}")
    return TraceSequence(
        sequence=entry["seq"],
        split="eval" if entry["seq"] % 2 else "fit",
        domain=entry["dataset"],
        prompt_tokens=0,
        decode_tokens=entry["T"],
        flags={key: entry[key] for key in kinds if kinds[key] is bool},
    )


def _npz_header(source: Source, num_sites: int, top_k: int, sequences: tuple[TraceSequence, ...]) -> Header:
    return Header(
        name=source.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source="imported",
        model=ModelShape(
            source.model, source.architecture, num_sites, source.experts, top_k, source.hidden,
            source.expert_intermediate,
        ),
        dtype="float16",
        experts_implementation="unknown",
        sites=tuple(Site(site, f"model.layers.{site}.mlp", site) for site in range(num_sites)),
        sequences=sequences,
        licence=source.licence,
        versions={"numpy": np.__version__},
        provenance={
            "format": "npz",
            "file": source.path.name,
            "file_sha256": sha256(source.path),
            "sequences_file": source.sequences.name,
            "sequences_sha256": sha256(source.sequences),
            "missing": "prompt routing, logits, lookahead, token ids (token is -1), routing rules",
            "prompts": "not recorded; the first position of a sequence is the length of its prompt",
            "steps": "one step for each sequence and position; how tokens were batched is not recorded",
            "split": "even sequences fit, odd sequences eval",
            "weights": "float16 as published; equal neighbours set apart by a float32 ulp, to keep their rank",
        },
    )  # fmt: skip
