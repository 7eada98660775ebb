"""Helpers to question cache policies: geometries, gates by their needs, and victim orders."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from sim.values.types import Cause, Geometry, Outcome

ONE_SITE = Geometry(1, 6, 2, ("fp16",), (16.0,), (1,), 6)
FOUR_SITES = Geometry(4, 2, 1, ("fp16", "int4"), (16.0, 4.0), (4, 1), 99)
"""Three units a site, so 12 keys for each precision.

The experts of site 1 are keys 3 and 4, those of site 3 are 9 and 10; at low precision they are 15
and 16, 21 and 22.
"""


def gate(site: int = 0, token: int = 1, tick: int = 0, step: int = 0, **tokens: int) -> Any:
    """A gate whose needs are given as ``e3=2``: two rows chose expert 3. Later sites than the first
    are those of FOUR_SITES.
    """
    needs = [int(name[1:]) for name in tokens]
    return SimpleNamespace(
        site=site,
        token=token,
        tick=tick,
        step=step,
        needs=needs,
        keys=[FOUR_SITES.key(0, site, need) for need in needs],
        tokens=list(tokens.values()),
    )


def begin(policy: Any, *keys: int, geometry: Geometry = ONE_SITE) -> Any:
    policy.pools(geometry)
    for key in keys:
        policy.on_insert(key, Cause.INITIAL)
    return policy


def ask(
    policy: Any, *keys: int, missed: Sequence[int] = (), at: Any = None, wanted: Sequence[int] = ()
) -> None:
    outcomes = [int(Outcome.MISS if key in missed else Outcome.HIT) for key in keys]
    policy.on_requests(
        keys,
        list(wanted) or [0] * len(keys),
        outcomes,
        at or gate(**{f"e{key}": 1 for key in keys}),
    )


def order(policy: Any, *blocked: int, pool: int = 0, geometry: Geometry = ONE_SITE) -> list[int]:
    flags = bytearray(geometry.num_keys)
    for key in blocked:
        flags[key] = 1
    return list(policy.victims(pool, 0, flags))
