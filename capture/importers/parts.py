"""What importers share in making a trace: the model's facts, checks of choices, rows, header.

The header's ``provenance["lacks"]`` names what a format does not record, in the words of `LACKS`.
The simulator refuses, by name, runs that would need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capture.importers.source import (
    IDS,
    INT16_MAX,
    INT32_MAX,
    ImportFailure,
    Refuse,
    count,
    sha256,
    untied,
)
from sim.traces.gate_inputs import hidden_path
from sim.traces.header import RANK
from sim.traces.trace import DECODE, Header, ModelShape, Site, Trace, TraceSequence
from sim.verbs.names import names, of_file

FACTS = ("name", "model", "architecture", "experts", "hidden", "expert_intermediate", "licence")
WHOLE_FACTS = ("experts", "hidden", "expert_intermediate")
MOST = {"experts": INT16_MAX}
"""The largest value of a fact that a trace holds as a short number."""
NEEDED = ("model", "experts", "hidden", "expert_intermediate", "licence")
EXAMPLE = (
    "name a model of moelab list models, which has its sizes (model=deepseek_moe_16b licence=own),"
    " or give those of your own, which its config.json has (model=mine experts=64 hidden=2048"
    " expert_intermediate=1408 licence=own)"
)
"""How the facts are given."""
LACKS: Mapping[str, str] = {
    "weights": "gate weights (0 in the trace)",
    "order": "the rank of a token's experts (its needs stand in ascending id)",
    "rows": "which token of a batch chose which expert (rows divide the batch's counts)",
    "sequences": "which sequence a token belongs to",
    "steps": "how tokens were batched",
    "prefill": "prompt routing",
    "decode": "decoded tokens",
    "tokens": "token ids (token is -1)",
    "scores": "logits, lookahead, routing rules",
}
"""What a recording can lack, with what the trace has in its place in brackets."""
ORDERS = (RANK, "unknown")
"""Values of ``order=``, for formats without weights: whether experts stand in order of rank."""
LARGEST_CELLS = 1 << 29
"""Most choices that a trace may have: they take 3 GiB of ids (int16) and weights (float32)."""
LARGEST_VALUES = 1 << 30
"""Most logits, or gate inputs, that a trace is given: as single precision they take 4 GiB."""

Ids = NDArray[np.int16]


@dataclass(frozen=True)
class Request:
    """What to import: a file or directory, facts about its model, and the format's own options."""

    path: Path
    facts: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)


def make_request(given: Mapping[str, str]) -> Request:
    """The request that the arguments describe.

    Raise `ImportFailure` if one of ``WHOLE_FACTS`` is no whole number, or too large.
    """
    for key in WHOLE_FACTS:
        if key in given and count(key, given[key]) > (most := MOST.get(key, INT32_MAX)):
            raise ImportFailure(f"{key}={given[key]} must be at most {most}, which a trace holds")
    facts = {key: text for key, text in given.items() if key in FACTS}
    options = {
        key: text
        for key, text in given.items()
        if key not in (*FACTS, "path", "format", "output_dir")
    }
    return Request(Path(given["path"]), facts, options)


def is_ranked(request: Request, unless_told: bool) -> bool:
    """Whether each token's experts stand in the order of their rank.

    ``order=`` of the request says so; ``unless_told`` is the format's default. Raise
    `ImportFailure` for an unknown value.
    """
    text = request.options.get("order")
    if text not in (None, *ORDERS):
        raise ImportFailure(f"order={text} must be {' or '.join(ORDERS)}")
    return unless_told if text is None else text == RANK


def complete(facts: Mapping[str, str], told: Mapping[str, str], suffix: str) -> dict[str, str]:
    """The model's facts: as given, else as the file or its publisher ``told``.

    A model of ``conf/model`` has its sizes. The name defaults to the model's with ``suffix``.
    Raise `ImportFailure` for needed facts that are in none of these.
    """
    whole = {"architecture": "unknown", **told, **facts}
    sizes = of_file("model", whole["model"]) if whole.get("model") in names("model") else {}
    whole = {**{key: str(sizes[key]) for key in WHOLE_FACTS if key in sizes}, **whole}
    if missing := [key for key in NEEDED if key not in whole]:
        model = f"model={whole['model']} also needs " if "model" in whole else "the import needs "
        raise ImportFailure(
            f"{model}{', '.join(f'{key}=...' for key in missing)}: the file does not tell them;"
            f" {EXAMPLE}"
        )
    whole.setdefault("name", f"{whole['model']}_{suffix}")
    return whole


def no_order(request: Request, source: str) -> None:
    """Refuse ``order=``, which would change nothing where ``source`` tells the ranks."""
    if text := request.options.get("order"):
        raise ImportFailure(f"order={text} changes nothing: {source} tell the order; leave it out")


# Checks


def check_ids(
    refuse: Refuse, name: str, ids: NDArray[Any], num_experts: int, least: int = 0
) -> None:
    """Refuse ids [..., K] outside ``least..num_experts - 1``, or twice in a row; -1 is no choice.

    ``least`` is -1 where rows may have fewer than K choices.
    """
    rule = f"must lie in {least}..{num_experts - 1}"
    refuse.where(name, ids < least, ids, rule)
    refuse.where(name, ids >= num_experts, ids, rule, IDS)
    ordered = np.sort(ids, axis=-1)
    repeated = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)
    refuse.where(
        name, repeated, ordered[..., 1:], "must not repeat in a row (columns in ascending order)"
    )


def check_shares(refuse: Refuse, name: str, weights: NDArray[Any], tolerance: float) -> None:
    """Refuse weights [N, K] that are no shares in rank order.

    Each must lie in 0..1, none may be above the one before, and a row's sum must be 1.
    """
    wide = weights.astype(np.float32)
    refuse.where(f"weights{name}", ~((wide >= 0) & (wide <= 1)), wide, "must lie in 0..1")
    rising = wide[:, 1:] > wide[:, :-1]
    refuse.where(
        f"weights{name}",
        rising,
        wide[:, 1:],
        "must not rise from rank to rank (columns from rank 1)",
    )
    total = wide.sum(-1)
    rule = f"must be 1 within {tolerance}: shares of the selected experts"
    refuse.where(f"sum of weights{name}", abs(total - 1) > tolerance, total, rule)


def check_size(refuse: Refuse, name: str, rows: int, sites: int, top_k: int, remedy: str) -> None:
    """Refuse a trace of more choices than `LARGEST_CELLS`, which is held in memory as a whole."""
    cells = rows * sites * top_k
    rule = f"must be at most {LARGEST_CELLS} choices ({rows} rows x {sites} sites x top-{top_k})"
    refuse(name, cells > LARGEST_CELLS, cells, rule, remedy)


# The trace


@dataclass(frozen=True)
class Rows:
    """Token-rows [N] in the order of the run, with columns as in `Trace`.

    ``ids`` [N, S, K] are -1 where nothing was chosen. ``weights`` have the same shape, None where
    the format has none. ``token`` [N] is None where the format has no token ids. ``ranked``: equal
    weights stand in order of rank.
    """

    step: NDArray[Any]
    phase: NDArray[Any]
    sequence: NDArray[Any]
    position: NDArray[Any]
    ids: NDArray[Any]
    weights: NDArray[Any] | None = None
    token: NDArray[Any] | None = None
    ranked: bool = True


@dataclass(frozen=True)
class Recording:
    """What the header says about the rows.

    - ``format``, ``files``: name of the format, and its files by the provenance's key.
    - ``layers``: the layer of each site.
    - ``lacks``: words of `LACKS`. Lacking prefill or decode shows in the rows and is left out here.
    - ``also_missing``: text on what else is missing.
    - ``site_name``: pattern that names a site by its layer.
    - ``told``: further provenance.
    - ``domains``, ``flags``: by sequence.
    """

    format: str
    files: Mapping[str, Path]
    layers: Sequence[int]
    lacks: Sequence[str]
    also_missing: str = ""
    site_name: str = "model.layers.{}.mlp"
    dtype: str = "unknown"
    implementation: str = "unknown"
    told: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    domains: Mapping[int, str] = field(default_factory=dict)
    flags: Mapping[int, Mapping[str, bool]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


def assemble(facts: Mapping[str, str], rows: Rows, recording: Recording) -> Trace:
    """The trace.

    Where ranked weights are equal, which rounding causes, each is lowered by a float32 ulp below
    the one before it. Needs then stand in order of rank.
    """
    ids = rows.ids.astype(np.int16)
    weights = np.zeros(ids.shape) if rows.weights is None else rows.weights
    weights = untied(weights) if rows.ranked else weights.astype(np.float32)
    weights[ids < 0] = 0
    num_rows = len(ids)
    return Trace(
        header=make_header(facts, rows, recording),
        step=rows.step.astype(np.int32),
        phase=rows.phase.astype(np.uint8),
        sequence=rows.sequence.astype(np.int32),
        position=rows.position.astype(np.int32),
        token=np.full(num_rows, -1, np.int32)
        if rows.token is None
        else rows.token.astype(np.int32),
        valid=np.ones(num_rows, np.bool_),
        ids=ids,
        weights=weights,
    )


def make_header(facts: Mapping[str, str], rows: Rows, recording: Recording) -> Header:
    _, num_sites, top_k = rows.ids.shape
    if top_k > int(facts["experts"]):
        raise ImportFailure(f"top_k={top_k} must be at most experts={facts['experts']}")
    sequences = _sequences(rows, recording)
    decodes = rows.phase == DECODE
    unweighted = (
        {"order": RANK} if "weights" in recording.lacks and "order" not in recording.lacks else {}
    )
    absent = {
        *recording.lacks,
        *(["prefill"] if decodes.all() else []),
        *([] if decodes.any() else ["decode"]),
    }
    lacks = [word for word in LACKS if word in absent]
    return Header(
        name=facts["name"],
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source="imported",
        model=ModelShape(
            facts["model"],
            facts["architecture"],
            num_sites,
            int(facts["experts"]),
            top_k,
            int(facts["hidden"]),
            int(facts["expert_intermediate"]),
        ),
        dtype=recording.dtype,
        experts_implementation=recording.implementation,
        sites=tuple(
            Site(i, recording.site_name.format(layer), layer)
            for i, layer in enumerate(recording.layers)
        ),
        sequences=sequences,
        licence=facts["licence"],
        versions={"numpy": np.__version__, **recording.versions},
        provenance={
            "format": recording.format,
            **{key: path.name for key, path in recording.files.items()},
            **{f"{key}_sha256": sha256(path) for key, path in recording.files.items()},
            "lacks": ", ".join(lacks),
            "missing": ", ".join(
                filter(None, [*(LACKS[word] for word in lacks), recording.also_missing])
            ),
            **unweighted,
            "split": _split_told([item.sequence for item in sequences]),
            **recording.told,
        },
    )


def _sequences(rows: Rows, recording: Recording) -> tuple[TraceSequence, ...]:
    numbers, first = np.unique(rows.sequence.astype(np.int64), return_inverse=True)
    decoded = np.bincount(first, rows.phase == DECODE).astype(int).tolist()
    found = np.bincount(first).tolist()
    fits = _of_fit(numbers.tolist())
    return tuple(
        TraceSequence(
            number,
            "fit" if fits[index] else "eval",
            recording.domains.get(number, "unknown"),
            found[index] - decoded[index],
            decoded[index],
            recording.flags.get(number, {}),
        )
        for index, number in enumerate(numbers.tolist())
    )


def _of_fit(numbers: Sequence[int]) -> list[bool]:
    """Which of several sequences are of the fit split: the even ones, or every other one where the
    numbers are all even or all odd. Neither split may be empty.
    """
    if len(numbers) == 1:
        return [False]
    if len({number % 2 for number in numbers}) == 1:
        return [index % 2 == 0 for index in range(len(numbers))]
    return [number % 2 == 0 for number in numbers]


def _split_told(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return "one sequence: eval"
    if len({number % 2 for number in numbers}) == 1:
        return "the first of every two sequences fit, the second eval"
    return "even sequences fit, odd sequences eval"


def steps_of(phase: NDArray[Any], sequence: NDArray[Any]) -> NDArray[np.int32]:
    """Step numbers where none were recorded.

    Consecutive rows of a prompt are one step; every decoded row is a step of its own.
    """
    begins = np.ones(len(phase), np.bool_)
    begins[1:] = (phase[1:] == DECODE) | (phase[:-1] == DECODE) | (np.diff(sequence) != 0)
    return (np.cumsum(begins) - 1).astype(np.int32)


def check_numbers(refuse: Refuse, name: str, values: NDArray[Any], most: int = INT32_MAX) -> None:
    refuse.where(name, (values < 0) | (values > most), values, f"must lie in 0..{most}")


def hidden_files(inputs: NDArray[np.float32], rows: Rows) -> dict[str, bytes]:
    """What gates read, [N, S, H], as files of a trace, one for each sequence."""
    try:
        from safetensors.numpy import save
    except ImportError as error:
        raise ImportFailure(
            "gate inputs are written by safetensors: pip install -e '.[model]', or say gate_inputs=no"
        ) from error
    return {
        hidden_path(number): save(
            {
                "gate_in": np.ascontiguousarray(inputs[rows.sequence == number]),
                "position": rows.position[rows.sequence == number].astype(np.int32),
            }
        )
        for number in np.unique(rows.sequence).tolist()
    }
