"""Payloads: how many of a variant's bytes an access moves."""

from __future__ import annotations

from sim.policies.base import Choice, Gate


class Whole:
    """Every access moves the whole variant."""

    whole = True

    def moved_bytes(self, key: int, choice: Choice, index: int) -> int:
        raise NotImplementedError("a whole payload is never asked")

    def missing_bytes(self, key: int, gate: Gate, index: int, moved_bytes: int) -> int:
        raise NotImplementedError("a whole payload is never asked")
