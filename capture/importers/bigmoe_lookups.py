"""Parser of a BigMoeOnEdge route trace: its preamble, its lookups as columns, and their checks.

`capture.importers.bigmoe` describes the format.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capture.importers.source import INT16_MAX, INT32_MAX, Refuse, Track, decoded, require_file
from sim.traces.trace import PREFILL, TraceError

VERSION_LINE = "# route_trace v1"
MODEL_LINE = re.compile(
    r"# model=(.+) arch=(\S+) n_layer=(\d{1,5}) n_expert=(\d{1,5}) n_expert_used=(\d{1,5})", re.A
)
LAYER_LINE = re.compile(r"# layer=(\d{1,5}) expert_bytes=(\d{1,15}) dense_bytes=(\d{1,15})", re.A)
COLUMNS = (
    "turn",
    "phase",
    "step",
    "layer",
    "slot",
    "expert",
    "weight",
    "residency",
    "expert_bytes",
)
OPTIONAL_COLUMNS = ("dropped",)
NUMBER = re.compile(r"\d{1,20}(\.\d{1,20})?(e[+-]?\d{1,3})?", re.A)
LARGEST_BYTES = 10**15
LARGEST_FILE_BYTES = 1 << 26
LARGEST_WEIGHT = 1e6

Ints = NDArray[np.int64]


# The preamble


@dataclass(frozen=True)
class Preamble:
    """The facts that the file states first. Bytes are by layer, 0 for a layer without experts."""

    model: str
    architecture: str
    experts: int
    top_k: int
    expert_bytes: tuple[int, ...]
    dense_bytes: tuple[int, ...]

    @cached_property
    def layers(self) -> tuple[int, ...]:
        return tuple(layer for layer, num_bytes in enumerate(self.expert_bytes) if num_bytes)

    @property
    def num_lines(self) -> int:
        """How many lines precede the first lookup: version, model, layers, names of columns."""
        return 3 + len(self.expert_bytes)

    def sites(self, layers: Ints) -> Ints:
        """Site of each layer; -1 for a layer without experts."""
        table = np.full(len(self.expert_bytes), -1, np.int64)
        table[list(self.layers)] = range(len(self.layers))
        return table[layers]


def lines_of_trace(path: Path, refuse: Refuse) -> list[str]:
    require_file("path", path, "a route trace", LARGEST_FILE_BYTES, "split the run")
    lines = decoded(path.read_bytes(), refuse, "text").replace("\r\n", "\n").split("\n")
    return lines[:-1] if not lines[-1] else lines


def read_preamble(refuse: Refuse, lines: Sequence[str]) -> Preamble:
    first = lines[0] if lines else "absent"
    refuse(
        "line 1",
        first != VERSION_LINE,
        first,
        f"must be {VERSION_LINE!r}",
        "name a route trace, or convert it",
    )
    second = lines[1] if len(lines) > 1 else "absent"
    found = MODEL_LINE.fullmatch(second)
    if found is None:
        rule = "must be '# model=.. arch=.. n_layer=.. n_expert=.. n_expert_used=..'"
        raise TraceError(refuse.file, "line 2", second, rule, refuse.remedy)
    num_layers, experts, top_k = (int(found[group]) for group in (3, 4, 5))
    for name, value, most in (
        ("n_layer", num_layers, INT16_MAX),
        ("n_expert", experts, INT16_MAX),
        ("n_expert_used", top_k, experts),
    ):
        refuse(
            f"line 2, {name}", not 1 <= value <= most, value, f"must be a whole number in 1..{most}"
        )
    stem = re.split(r"[/\\]", found[1])[-1].removesuffix(".gguf")
    refuse(
        "line 2, model",
        not stem or not stem.isprintable(),
        found[1],
        "must end in a printable file name",
    )
    bytes_of = [_layer_bytes(refuse, lines, layer) for layer in range(num_layers)]
    expert_bytes, dense_bytes = zip(*bytes_of, strict=True)
    rule = "must be above 0 for one layer or more"
    refuse(f"lines 3 to {num_layers + 2}, expert_bytes", not any(expert_bytes), 0, rule)
    return Preamble(stem, found[2], experts, top_k, expert_bytes, dense_bytes)


def _layer_bytes(refuse: Refuse, lines: Sequence[str], layer: int) -> tuple[int, int]:
    line = lines[layer + 2] if len(lines) > layer + 2 else "absent"
    found = LAYER_LINE.fullmatch(line)
    if found is None or int(found[1]) != layer:
        rule = f"must be '# layer={layer} expert_bytes=.. dense_bytes=..'"
        raise TraceError(refuse.file, f"line {layer + 3}", line, rule, refuse.remedy)
    return int(found[2]), int(found[3])


# The lookups


@dataclass(frozen=True)
class Lookups:
    """The lookups, as columns.

    Each ``top_k`` consecutive lookups are a *choice*: of one token in one layer. ``first`` is the
    line number of the first lookup.
    """

    refuse: Refuse
    first: int
    top_k: int
    columns: Mapping[str, NDArray[Any]]

    def __getitem__(self, name: str) -> Ints:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self["expert"])

    def choices(self, name: str) -> NDArray[Any]:
        """A column as [choices, top_k]."""
        return self.columns[name].reshape(-1, self.top_k)

    def check(
        self, name: str, wrong: NDArray[np.bool_], rule: str, expected: Ints | None = None
    ) -> None:
        """Refuse the first lookup that is ``wrong`` in the column ``name``.

        ``expected`` has the right values, if there is just one for each lookup.
        """
        if wrong.any():
            row = int(wrong.argmax())
            said = f"must {rule}" if expected is None else f"must be {expected[row]}: {rule}"
            self.refuse(
                f"line {self.first + row}, column {name}", True, self[name][row].item(), said
            )

    def check_choices(self, name: str, expected: Ints, rule: str) -> None:
        """Refuse the first lookup whose value is not the one ``expected`` of its choice."""
        values = np.repeat(expected, self.top_k)
        self.check(name, self[name] != values, rule, values)


def read_lookups(
    refuse: Refuse, lines: Sequence[str], preamble: Preamble, track: Track[Any]
) -> Lookups:
    names = _names(refuse, lines, preamble.num_lines)
    highest = {
        "turn": 0,
        "phase": 1,
        "step": INT32_MAX,
        "layer": len(preamble.expert_bytes) - 1,
        "slot": preamble.top_k - 1,
        "expert": preamble.experts - 1,
        "residency": 2,
        "expert_bytes": LARGEST_BYTES,
        "dropped": 1,
    }
    columns: dict[str, array[Any]] = {
        name: array("d" if name == "weight" else "q") for name in names
    }
    first = preamble.num_lines + 1
    for number, line in enumerate(track(lines[preamble.num_lines :], "reading lookups"), first):
        cells = line.split(",")
        if len(cells) != len(names):
            refuse(
                f"line {number}",
                True,
                line,
                f"must have {len(names)} values, as line {first - 1} has names",
            )
        for name, cell in zip(names, cells, strict=True):
            value = _weight(cell) if name == "weight" else _whole(cell, highest[name])
            if value is None:
                place = f"line {number}, column {name}"
                raise TraceError(refuse.file, place, cell, _rule(name, highest), refuse.remedy)
            columns[name].append(value)
    arrays: dict[str, NDArray[Any]] = {
        name: np.frombuffer(values, values.typecode) for name, values in columns.items()
    }
    arrays.setdefault("dropped", np.zeros(len(arrays["turn"]), np.int64))
    return Lookups(refuse, first, preamble.top_k, arrays)


def _names(refuse: Refuse, lines: Sequence[str], number: int) -> list[str]:
    """The columns' names, in the file's order."""
    line = lines[number - 1] if len(lines) >= number else "absent"
    names = line.split(",")
    for name in COLUMNS:
        refuse(f"line {number}", name not in names, line, f"must name the column {name}")
    for name in names:
        known = ", ".join((*COLUMNS, *OPTIONAL_COLUMNS))
        wrong = name not in COLUMNS + OPTIONAL_COLUMNS
        refuse(
            f"line {number}",
            wrong,
            name,
            f"must be one of the columns {known}",
            "remove the column",
        )
        refuse(f"line {number}", names.count(name) > 1, name, "must not come twice")
    refuse(f"line {number + 1}", len(lines) == number, "absent", "must be a lookup")
    return names


def _whole(cell: str, highest: int) -> int | None:
    if not cell.isascii() or not cell.isdigit() or len(cell) > 18 or int(cell) > highest:
        return None
    return int(cell)


def _weight(cell: str) -> float | None:
    value = float(cell) if NUMBER.fullmatch(cell) else LARGEST_WEIGHT + 1
    return value if value <= LARGEST_WEIGHT else None


def _rule(name: str, highest: Mapping[str, int]) -> str:
    if name == "turn":
        return "must be 0: a file with several turns is to be split into one file for each"
    if name == "weight":
        return (
            f"must be a number in 0..{LARGEST_WEIGHT:.0f} (nan: the engine saw no weights; record"
            " them)"
        )
    return f"must be a whole number in 0..{highest[name]}"


# Checks


def check_order(rows: Lookups, preamble: Preamble) -> int:
    """Check that lookups stand in the engine's order, with none missing and none twice.

    Returns the number of prompt tokens.
    """
    num_sites = len(preamble.layers)
    slots = np.arange(len(rows)) % rows.top_k
    rows.check(
        "slot", rows["slot"] != slots, f"slots count 0..{rows.top_k - 1} in every choice", slots
    )
    end = f"line {rows.first + len(rows) - 1}"
    rows.refuse(
        f"{end}, column slot",
        bool(len(rows) % rows.top_k),
        rows["slot"][-1],
        "must not be the file's last",
    )
    for name in ("phase", "step", "layer"):
        rows.check_choices(name, rows.choices(name)[:, 0], "as in slot 0")
    rows.check(
        "phase", np.diff(rows["phase"], prepend=0) < 0, "not return to prefill (0) after decode (1)"
    )
    rows.check(
        "layer", preamble.sites(rows["layer"]) < 0, "be a layer with expert_bytes in the preamble"
    )
    prefill = int((rows.choices("phase")[:, 0] == PREFILL).sum())
    decode = len(rows) // rows.top_k - prefill
    tokens = _leading(preamble.sites(rows.choices("layer")[:prefill, 0]) == 0)
    site_of, token_of = _expected_order(num_sites, tokens, prefill, decode)
    order = (
        "prefill goes layer by layer with all its tokens, once; decode token by token through all"
        " layers"
    )
    rows.check_choices("layer", np.array(preamble.layers, np.int64)[site_of], order)
    rows.check_choices("step", rows["step"][0] + token_of, f"{order}; positions have no gaps")
    where = f"line {rows.first + prefill * rows.top_k - 1}, choices of prefill"
    rule = f"must be {num_sites * tokens} for {tokens} tokens at {num_sites} layers"
    whole = (num_sites * tokens, (num_sites - 1) * tokens + 1)
    rows.refuse(where, prefill > 0 and prefill not in whole, prefill, rule)
    rule = f"must be a multiple of the {num_sites} layers"
    rows.refuse(f"{end}, choices of decode", decode % num_sites > 0, decode, rule)
    return tokens


def _expected_order(num_sites: int, tokens: int, prefill: int, decode: int) -> tuple[Ints, Ints]:
    """Site and token that each choice must have.

    ``tokens`` is the length of the prompt; ``prefill`` and ``decode`` count choices.
    """
    # If the first choice is not at the first layer, tokens is 0; the check of layers refuses it.
    width = max(tokens, 1)
    prompt, decoded = np.arange(prefill), np.arange(decode)
    token = prompt % width
    if tokens and prefill == (num_sites - 1) * tokens + 1:
        token[-1] = tokens - 1
    site = np.minimum(prompt // width, num_sites - 1)
    return np.append(site, decoded % num_sites), np.append(token, tokens + decoded // num_sites)


def _leading(flags: NDArray[np.bool_]) -> int:
    """How many flags are true before the first false one."""
    return len(flags) if flags.all() else int(flags.argmin())


def check_choices(rows: Lookups) -> None:
    experts = rows.choices("expert")
    order = np.argsort(experts, axis=-1, kind="stable")
    ordered = np.take_along_axis(experts, order, -1)
    again = np.zeros(experts.shape, np.bool_)
    np.put_along_axis(again, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], -1)
    rows.check("expert", again.ravel(), "not repeat in a choice")
    weights = rows.choices("weight")
    rising = np.diff(weights, axis=-1, prepend=weights[:, :1]) > 0
    rows.check("weight", rising.ravel(), "not rise from slot to slot: slots are in rank order")


def check_residency(rows: Lookups, preamble: Preamble) -> None:
    """Check residency and bytes by batch.

    All lookups of an expert in a batch must find it alike, and only the first may read it.
    """
    residency, dropped = rows["residency"], rows["dropped"] == 1
    rows.check("dropped", dropped & (residency > 0), "be 0 where the expert is resident")
    # Only prefill can ask for an expert twice in a batch, so each decoded lookup stands alone.
    batch = np.where(
        rows["phase"] == PREFILL, rows["layer"], len(preamble.expert_bytes) + np.arange(len(rows))
    )
    keys = batch * preamble.experts + rows["expert"]
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    rows.check(
        "residency",
        residency != residency[first][which],
        "as in the batch's first lookup of the expert",
        residency[first][which],
    )
    read = np.flatnonzero((residency == 0) & ~dropped)
    read = read[np.unique(keys[read], return_index=True)[1]]
    loaded = np.zeros(len(rows), np.int64)
    loaded[read] = np.array(preamble.expert_bytes, np.int64)[rows["layer"][read]]
    rule = (
        "the layer's expert_bytes at a batch's first lookup of an absent expert that is not"
        " dropped, else 0"
    )
    rows.check("expert_bytes", rows["expert_bytes"] != loaded, rule, loaded)
