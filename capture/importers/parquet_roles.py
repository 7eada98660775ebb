"""Which column of a parquet file plays which role, and what its type must be.

No name is guessed. Where a needed role has no column, the refusal names the nearest mapping, and
whoever imports says it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import polars as pl

from capture.importers.frames import FLOATS, WHOLE, inner_of
from capture.importers.parts import Request
from capture.importers.source import ImportFailure, Refuse
from sim.verbs.names import nearest


@dataclass(frozen=True)
class Role:
    """What a column tells: its types, the levels of lists in one row a token and layer, and names
    that publishers give it.

    ``by_site``: in one row a token it has a list of them, layer by layer.
    """

    types: Sequence[Any]
    depth: int
    by_site: bool
    also: Sequence[str]


ROLES: Mapping[str, Role] = {
    "sequence": Role(
        (*WHOLE, pl.String), 0, False, ("prompt_idx", "request_id", "sample_id", "seq", "prompt")
    ),
    "position": Role(WHOLE, 0, False, ("tok", "pos", "token_idx", "token_index", "token_position")),
    "phase": Role((pl.String, pl.Boolean, *WHOLE), 0, False, ("stage", "is_prefill", "is_decode")),
    "layer": Role(WHOLE, 0, True, ("layer_idx", "layer_id", "site", "layers")),
    "experts": Role(
        WHOLE, 1, True, ("top_indices", "expert_ids", "topk_ids", "selected_experts", "indices")
    ),
    "weights": Role(FLOATS, 1, True, ("top_weights", "topk_weights", "routing_weights")),
    "logits": Role(FLOATS, 1, True, ("router_logits", "gate_logits", "top_logits")),
    "logit_experts": Role(WHOLE, 1, True, ("top_logit_experts", "logit_ids", "logit_indices")),
    "input": Role(FLOATS, 1, True, ("router_input", "gate_in", "hidden", "hidden_states")),
    "step": Role(WHOLE, 0, False, ("step_idx", "batch")),
    "token": Role(WHOLE, 0, False, ("token_id", "input_id")),
}


@dataclass(frozen=True)
class Schema:
    """The column of each role that is read. ``is_nested``: a row is a token, with lists of lists."""

    columns: Mapping[str, str]
    is_nested: bool

    def depth(self, role: str) -> int:
        """The levels of lists in the column of a role."""
        return ROLES[role].depth + (self.is_nested and ROLES[role].by_site)


def pairs(key: str, text: str) -> dict[str, str]:
    """``a:b,c:d`` as a dictionary. Raise `ImportFailure` for any other text."""
    found: dict[str, str] = {}
    for word in text.split(","):
        name, colon, value = word.partition(":")
        if not name or not colon or not value or name in found:
            raise ImportFailure(f"{key}={text}: {word!r} must be NAME:VALUE, each NAME once")
        found[name] = value
    return found


def told_columns(request: Request) -> dict[str, str]:
    """The columns that ``columns=`` names, by role."""
    text = request.options.get("columns")
    found = {} if text is None else pairs("columns", text)
    for role in found:
        if role not in ROLES:
            near = nearest(role, ROLES)
            raise ImportFailure(
                f"columns={text}: {role} is none of the roles {', '.join(ROLES)}{near}"
            )
    return found


def schema_of(refuse: Refuse, request: Request, found: Mapping[str, Any]) -> Schema:
    """What the columns ``found`` (types by name) are, as the request says or as they are named."""
    told = told_columns(request)
    for role, name in told.items():
        rule = f"must be a column (found {_shown(found)})"
        refuse(f"columns, {role}", name not in found, name, rule, "name another one in columns=")
    columns = {role: role for role in ROLES if role in found} | told
    for key, role in (("gate_inputs", "input"), ("logits", "logits")):
        if key in request.options and role not in columns:
            raise ImportFailure(
                f"{key}={request.options[key]} changes nothing: no column is {role}; leave it out, or"
                f" name the column in columns={role}:NAME"
            )
    if request.options.get("gate_inputs") == "no":
        columns.pop("input", None)
    if request.options.get("logits") == "no":
        columns.pop("logits", None)
        columns.pop("logit_experts", None)
    is_nested = "experts" in columns and inner_of(found[columns["experts"]])[1] == 2
    needed = ["sequence", "position", "layer", "experts"]
    needed += [] if "phase" in request.options else ["phase"]
    missing = [
        role for role in needed if role not in columns and (role != "layer" or not is_nested)
    ]
    if missing:
        remedy = _remedy(missing, {name: t for name, t in found.items() if name not in told})
        rule = f"must have a column for each (found {_shown(found)})"
        refuse("roles", True, f"none for {', '.join(missing)}", rule, remedy)
    if "logit_experts" in columns and "logits" not in columns:
        refuse("roles", True, "none for logits", "must be there beside logit_experts")
    schema = Schema(columns, is_nested)
    for role, name in columns.items():
        inner, depth = inner_of(found[name])
        wrong = inner not in ROLES[role].types or depth != schema.depth(role)
        what = " or ".join(dict.fromkeys(map(_kind, ROLES[role].types)))
        rule = f"must be {'lists of ' * schema.depth(role)}{what}"
        refuse(f"{name}, as {role}", wrong, str(found[name]), rule, "name another one in columns=")
    return schema


def _kind(dtype: Any) -> str:
    whole = "whole numbers" if dtype in WHOLE else ""
    return whole or {pl.String: "text", pl.Boolean: "true or false"}.get(dtype, "floats")


def _shown(found: Mapping[str, Any]) -> str:
    """Names and types of at most the first 40 columns."""
    shown = [f"{name} {dtype}" for name, dtype in sorted(found.items())]
    return ", ".join(shown[:40]) + (f" and {len(shown) - 40} more" if shown[40:] else "")


def _remedy(missing: Sequence[str], free: Mapping[str, Any]) -> str:
    """The nearest mapping of the columns that no role has yet."""
    near: dict[str, str] = {}
    for role in missing:
        fits = [
            name
            for name, dtype in free.items()
            if name not in near.values()
            and inner_of(dtype)[0] in ROLES[role].types
            and inner_of(dtype)[1] >= ROLES[role].depth
        ]
        known = next((name for name in ROLES[role].also if name in fits), None)
        close = [known] if known else get_close_matches(role, fits, 1, 0.5)
        if close:
            near[role] = close[0]
    words = ",".join(f"{role}:{near.get(role, 'NAME')}" for role in missing)
    phase = "; or say phase=decode where all rows are of one phase" if "phase" in missing else ""
    return f"say columns={words} (the nearest names; check that they are meant){phase}"
