"""A cache that gates of many rows read and do not change."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sim.policies.base import CachePolicy, Gate
from sim.policies.requires import Given, Requires
from sim.values.types import Cause, Geometry, PoolPlan
from sim.values.units import require_number


class LargeGatesOnlyRead(CachePolicy):
    """``cache``, which gates of more than ``up_to_rows`` rows only read (contract C144).

    Such a gate finds what is resident. What it lacks is served from staging and does not enter a
    pool; ``cache`` hears nothing of its requests. So a prompt does not displace what decoding uses.

    Source: llama.cpp's GPU expert cache (ggml-org/llama.cpp, pull request 29887): batches of more
    than 32 tokens only read it.
    """

    admits_all = False

    def __init__(self, cache: CachePolicy, up_to_rows: int = 32) -> None:
        require_number("cache.up_to_rows", up_to_rows, whole=True)
        if cache.requires.future:
            raise ValueError(
                "cache.cache knows the run's future, in which requests of large gates stand, too;"
                " choose one that does not"
            )
        self.cache, self.up_to_rows = cache, up_to_rows
        self._resident: set[int] = set()
        self._unheard: set[int] = set()
        """Absent keys that a large gate asked for: ``cache`` does not know them."""

    @property
    def initial(self) -> str:  # type: ignore[override]
        return self.cache.initial

    @property
    def requires(self) -> Requires:
        return self.cache.requires

    def prepare(self, given: Given) -> None:
        self.cache.prepare(given)

    def told(self, sequences: Collection[int]) -> Mapping[str, Any]:
        return self.cache.told(sequences)

    def pools(self, geometry: Geometry) -> PoolPlan:
        return self.cache.pools(geometry)

    def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        return self.cache.victims(pool, incoming, blocked)

    def admit(self, key: int, victims: Sequence[int]) -> bool:
        return key not in self._unheard and self.cache.admit(key, victims)

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        if len(gate.experts) > self.up_to_rows:
            self._unheard.update(key for key in keys if key not in self._resident)
        else:
            self._unheard.difference_update(keys)
            self.cache.on_requests(keys, wanted, outcomes, gate)

    def on_insert(self, key: int, cause: Cause) -> None:
        self._resident.add(key)
        if key in self._unheard:
            # It comes without a request that the cache would have heard.
            self._unheard.remove(key)
            cause = Cause.PREFETCH
        self.cache.on_insert(key, cause)

    def on_evict(self, key: int) -> None:
        if key in self._unheard:
            self._unheard.remove(key)
        else:
            self._resident.discard(key)
            self.cache.on_evict(key)

    def on_sequence(self, sequence: int, begins: bool) -> None:
        self.cache.on_sequence(sequence, begins)
