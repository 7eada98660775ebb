"""Importer of format vllm: responses of a vLLM server that returns routed experts.

The server is started with ``--enable-return-routed-experts``. ``path`` is a response of
``/v1/completions`` or ``/v1/chat/completions`` as JSON, a list of them, or a ``.jsonl`` file with
one a line. Each response has a single choice. There are two layouts:

- ``choices[0].routed_experts`` is the base64 of an .npy file with whole numbers
  [P + G - 1 - start, L, K], for P prompt tokens and G generated ones. The last generated token is
  never fed to the model. ``start`` is how many rows the request left out at the beginning
  (``routed_experts_prompt_start``).
- ``prompt_routed_experts`` [P, L, K] and ``choices[0].routed_experts`` [G or G - 1, L, K] are
  nested lists; the first may be null.

``usage`` has P and G. ``prompt_token_ids`` and ``token_ids`` have token ids, if the request asked
for them. Rows of -1 are tokens that the prefix cache held, so they were not routed. They are left
out, and the rest of that prompt is a chunk. Some versions write zeros for layers without experts:
name these layers with ``dense_layers=0,1``. Responses hold neither weights nor how tokens were
batched.

Whether a token's experts stand in the order of their rank depends on the model's router. A plain
top-k of softmax (Mixtral, Qwen3) leaves them in that order; say so with ``order=rank``. Routers
with groups or a bias (DeepSeek-V3) leave them unsorted (``fused_topk`` and ``grouped_topk`` of
vLLM's fused_moe).
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capture.importers.parts import (
    FACTS,
    Recording,
    Request,
    Rows,
    assemble,
    check_ids,
    check_size,
    complete,
    is_ranked,
    steps_of,
)
from capture.importers.source import (
    INT32_MAX,
    Imported,
    ImportFailure,
    Refuse,
    Track,
    lines_of,
    npy_header,
    parsed_json,
    require_file,
    stated_bytes,
)
from sim.traces.trace import CHUNK, DECODE, PREFILL

KEYS = (*FACTS, "dense_layers", "order")
FEWEST_ROWS = 16
"""In fewer rows a layer with experts may have chosen the first one only."""
LARGEST_FILE_BYTES = 1 << 30
LARGEST_ARRAY_BYTES = 1 << 30
RECORD = "start the server with --enable-return-routed-experts, and ask without streaming"
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class _Response:
    """The routing of one request: ``ids`` [N, L, K], -1 in rows that were not routed.

    The first row is the token at position ``start``; ``prompt`` counts prompt tokens.
    """

    start: int
    prompt: int
    ids: Ints
    token: Ints | None
    model: str


def check(request: Request) -> None:
    _dense_layers(request)
    is_ranked(request, False)


def read(request: Request, track: Track[Any]) -> Imported:
    """The trace of one or more responses. Raise `TraceError` or `ImportFailure`."""
    refuse = Refuse(request.path.name)
    found: list[_Response] = []
    for place, value in track(list(_responses(request, refuse)), "reading responses"):
        response = _response(refuse, place, value)
        first = found[0] if found else response
        rule = f"must have {list(first.ids.shape[1:])} layers and ranks, as the first response"
        wrong = response.ids.shape[1:] != first.ids.shape[1:]
        refuse(f"{place}.choices[0].routed_experts", wrong, list(response.ids.shape), rule)
        refuse(
            f"{place}.model",
            response.model != first.model,
            response.model,
            f"must be {first.model!r}",
        )
        found.append(response)
    facts = complete(request.facts, {"model": found[0].model}, "vllm")
    layers = _layers(refuse, request, found[0].ids.shape[1])
    for number, item in enumerate(found):
        _check_dense(refuse, f"response {number}", item.ids, layers)
    kept = [
        _forwarded(refuse, f"response {number}", item.ids[:, layers], int(facts["experts"]))
        for number, item in enumerate(found)
    ]
    refuse(
        "routed_experts",
        not any(keep.any() for keep in kept),
        -1,
        "must be recorded for one token or more",
    )
    _check_unnamed(refuse, found, kept, layers)
    check_size(
        refuse,
        "routed_experts",
        sum(map(len, kept)),
        len(layers),
        found[0].ids.shape[2],
        "split the file",
    )
    return Imported(
        assemble(facts, _rows(found, kept, layers), _recording(request, found, kept, layers))
    )


def _dense_layers(request: Request) -> set[int]:
    text = request.options.get("dense_layers", "")
    words = text.split(",") if text else []
    if not all(word.isascii() and word.isdigit() and len(word) < 6 for word in words):
        raise ImportFailure(f"dense_layers={text} must be numbers of layers, as 0 or 0,1,2")
    return {int(word) for word in words}


def _layers(refuse: Refuse, request: Request, num_layers: int) -> list[int]:
    dense = _dense_layers(request)
    if not dense < set(range(num_layers)) and dense:
        raise ImportFailure(
            f"dense_layers={request.options['dense_layers']} must be some of the layers"
            f" 0..{num_layers - 1} that {refuse.file} has, and leave one or more"
        )
    return [layer for layer in range(num_layers) if layer not in dense]


def _check_dense(refuse: Refuse, name: str, ids: Ints, layers: Sequence[int]) -> None:
    """A layer without experts has no choices: -1, or the zeros of some versions."""
    for layer in sorted({*range(ids.shape[1])} - {*layers}):
        rule = f"must be 0 or -1: dense_layers={layer} says that layer {layer} has no experts"
        refuse.where(
            f"{name}, routed_experts at layer {layer}", ids[:, layer] > 0, ids[:, layer], rule
        )


def _check_unnamed(
    refuse: Refuse, found: Sequence[_Response], kept: Sequence[NDArray[np.bool_]], layers: list[int]
) -> None:
    """Where a token has one expert, the zeros of a layer without experts look like choices."""
    ids = np.concatenate([item.ids[keep] for item, keep in zip(found, kept, strict=True)])
    if ids.shape[2] > 1 or len(ids) < FEWEST_ROWS:
        return
    named = ",".join(str(layer) for layer in layers if not ids[:, layer].any())
    refuse(
        f"routed_experts at layers {named}",
        bool(named),
        f"expert 0 in all {len(ids)} rows",
        "must have choices: layers without experts are written so",
        f"name the layers that have none: dense_layers={named}",
    )


def _responses(request: Request, refuse: Refuse) -> Iterator[tuple[str, object]]:
    """The place in the file of each response, and its JSON value."""
    path = require_file(
        "path", request.path, "a response of vLLM as .json or .jsonl", LARGEST_FILE_BYTES
    )
    if path.suffix == ".jsonl":
        empty = True
        for number, line in lines_of(path, refuse):
            empty = False
            yield f"line {number}", parsed_json(line, refuse, f"line {number}")
        refuse("line 1", empty, "absent", "must be a response")
        return
    value = parsed_json(path.read_bytes(), refuse, "text")
    refuse("text", value == [], value, "must be a response, or a list of them")
    if isinstance(value, list):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    else:
        yield "response", value


def _response(refuse: Refuse, place: str, value: object) -> _Response:
    response = refuse.has(place, value, "model", "choices", "usage")
    choices = response["choices"]
    rule = "must be a list of one choice; ask with n=1"
    refuse(f"{place}.choices", not isinstance(choices, list) or len(choices) != 1, choices, rule)
    choice = refuse.has(f"{place}.choices[0]", choices[0])
    usage = refuse.has(f"{place}.usage", response["usage"])
    prompt, generated = (
        refuse.whole(f"{place}.usage.{key}", usage.get(key), least, INT32_MAX // 2)
        for key, least in (("prompt_tokens", 1), ("completion_tokens", 0))
    )
    ids, start = _ids(refuse, place, response, choice, prompt, generated)
    return _Response(
        start,
        prompt,
        ids,
        _tokens(refuse, place, response, choice, (prompt, generated)),
        refuse.text(f"{place}.model", response["model"]),
    )


def _ids(
    refuse: Refuse,
    place: str,
    response: Mapping[str, Any],
    choice: Mapping[str, Any],
    prompt: int,
    generated: int,
) -> tuple[Ints, int]:
    """The choices [N, L, K] of the tokens fed to the model, and the position of the first."""
    name, prompt_name = f"{place}.choices[0].routed_experts", f"{place}.prompt_routed_experts"
    routed, of_prompt = choice.get("routed_experts"), response.get("prompt_routed_experts")
    refuse(name, routed is None and of_prompt is None, None, "must be recorded", RECORD)
    fed = prompt + max(generated - 1, 0)
    if isinstance(routed, str):
        ids = _npy(refuse, name, routed)
        rule = (
            f"must be at most {fed} rows: {prompt} prompt and {generated} generated tokens, the"
            " last never fed"
        )
        refuse(name, len(ids) > fed, f"{len(ids)} rows", rule)
        rule = f"must have all {fed} rows, or prompt_routed_experts must be null"
        cut = of_prompt is not None and len(ids) < fed
        refuse(name, cut, f"{len(ids)} rows", rule, "take the rows of one of both layouts")
        return ids, fed - len(ids)
    parts = []
    if of_prompt is not None:
        parts.append(refuse.numbers(prompt_name, of_prompt, "iu", 3).astype(np.int64))
        refuse(
            prompt_name,
            len(parts[0]) != prompt,
            f"{len(parts[0])} rows",
            f"must be {prompt}, the prompt's tokens",
        )
    if routed:
        ids = refuse.numbers(name, routed, "iu", 3).astype(np.int64)
        rule = f"must be {generated} or {generated - 1}, the generated tokens"
        refuse(name, len(ids) not in (generated, generated - 1), f"{len(ids)} rows", rule)
        parts.append(ids[: fed - prompt])
    refuse(name, routed is None and generated > 1, None, "must be recorded", RECORD)
    shapes = {part.shape[1:] for part in parts}
    refuse(
        name,
        len(shapes) != 1,
        sorted(shapes),
        "must have the layers and ranks of prompt_routed_experts",
    )
    return np.concatenate(parts), 0 if of_prompt is not None else prompt


def _npy(refuse: Refuse, name: str, text: str) -> Ints:
    try:
        content = base64.b64decode(text, validate=True)
        shape, dtype = npy_header(io.BytesIO(content))
    except (binascii.Error, ValueError, SyntaxError, TypeError, KeyError, RecursionError) as error:
        refuse(name, True, text[:40], f"must be base64 of an .npy file of numbers ({error})")
        raise
    rule = "must be whole numbers [tokens, layers, ranks], not empty"
    wrong = dtype.kind not in "iu" or len(shape) != 3 or min(shape, default=0) < 1
    refuse(name, wrong, f"{dtype} {list(shape)}", rule)
    stated = stated_bytes(shape, dtype)
    refuse(
        name,
        stated > LARGEST_ARRAY_BYTES,
        f"{stated} bytes",
        f"must be at most {LARGEST_ARRAY_BYTES}",
    )
    try:
        found = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        refuse(name, True, f"{len(content)} bytes", f"must be a whole .npy file ({error})")
        raise
    wide = np.asarray(found)
    refuse.where(name, wide > INT32_MAX, wide, f"must be at most {INT32_MAX}")
    return wide.astype(np.int64)


def _tokens(
    refuse: Refuse,
    place: str,
    response: Mapping[str, Any],
    choice: Mapping[str, Any],
    tokens: tuple[int, int],
) -> Ints | None:
    """Ids of the prompt's and the generated tokens; None unless the response has both."""
    prompt = response.get("prompt_token_ids") or choice.get("prompt_token_ids")
    generated = choice.get("token_ids")
    if prompt is None or generated is None:
        return None
    parts = []
    for name, values, number in zip(
        ("prompt_token_ids", "token_ids"), (prompt, generated), tokens, strict=True
    ):
        found = (
            refuse.numbers(f"{place}.{name}", values, "iu", 1) if values else np.empty(0, np.int64)
        )
        refuse(
            f"{place}.{name}",
            len(found) != number,
            len(found),
            f"must have {number} ids, as usage says",
        )
        refuse.where(
            f"{place}.{name}",
            (found < 0) | (found > INT32_MAX),
            found,
            f"must lie in 0..{INT32_MAX}",
        )
        parts.append(found.astype(np.int64))
    return np.concatenate(parts)


def _forwarded(refuse: Refuse, name: str, ids: Ints, num_experts: int) -> NDArray[np.bool_]:
    """Which tokens this request routed; those with -1 at all layers were in the prefix cache."""
    cached: NDArray[np.bool_] = (ids == -1).all((1, 2))
    for site in range(ids.shape[1]):
        here = ids[~cached, site]
        refuse_at = Refuse(
            refuse.file,
            "restore the file; layers without experts are to be named, dense_layers=0,1",
        )
        check_ids(refuse_at, f"{name}, routed_experts at site {site}, rows", here, num_experts)
    return ~cached


def _rows(found: list[_Response], kept: list[NDArray[np.bool_]], layers: list[int]) -> Rows:
    position = [item.start + np.flatnonzero(keep) for item, keep in zip(found, kept, strict=True)]
    sequence = np.repeat(np.arange(len(found)), [len(part) for part in position])
    phase = np.concatenate(
        [
            np.where(part < item.prompt, CHUNK if part[:1].any() else PREFILL, DECODE)
            for item, part in zip(found, position, strict=True)
        ]
    )
    tokens = [
        np.full(len(part), -1) if item.token is None else item.token[part]
        for item, part in zip(found, position, strict=True)
    ]
    ids = np.concatenate(
        [item.ids[keep][:, layers] for item, keep in zip(found, kept, strict=True)]
    )
    return Rows(
        steps_of(phase, sequence),
        phase,
        sequence,
        np.concatenate(position),
        ids,
        None,
        np.concatenate(tokens),
    )


def _recording(
    request: Request, found: list[_Response], kept: list[NDArray[np.bool_]], layers: list[int]
) -> Recording:
    tokens = all(item.token is not None for item in found)
    return Recording(
        format="vllm",
        files={"file": request.path},
        layers=layers,
        lacks=(
            "weights",
            *(() if is_ranked(request, False) else ("order",)),
            "steps",
            "scores",
            *(() if tokens else ("tokens",)),
        ),
        site_name="layer {}",
        implementation="vLLM",
        told={
            "origin": "routed experts returned by vLLM",
            "steps": (
                "one step for each prompt and each decoded token; how vLLM batched and cut them is"
                " not recorded"
            ),
            "last_token": "the last generated token of a request is never routed",
            "left_out_rows": sum(int((~keep).sum()) for keep in kept),
        },
    )
