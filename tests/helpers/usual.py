"""Cases of a table of which some are enough for every change; the rest are thorough."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import product
from typing import Any

import pytest


def usual(cases: Sequence[Any], often: Collection[Any]) -> list[Any]:
    """``cases`` for ``parametrize``; what is not among ``often`` has the mark ``thorough``.

    Raise ValueError if one of ``often`` is no case: then it would never run.
    """
    if strange := [case for case in often if case not in cases]:
        raise ValueError(f"{strange} are no cases")
    return [
        case
        if case in often
        else pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.thorough
        )
        for case in cases
    ]


def each_once(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """All combinations, of which every value of every axis is usual with some of the others."""
    longest = max(map(len, axes))
    often = {tuple(axis[at % len(axis)] for axis in axes) for at in range(longest)}
    return usual(list(product(*axes)), often)
