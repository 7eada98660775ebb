"""Defects that can be planted in the steps that draft tokens (contract C184)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from sim.workload import batching
from sim.workload.batching import Part

Patch = pytest.MonkeyPatch
Steps = list[tuple[Part, ...]]
STEPS: Callable[[Sequence[Part]], Iterable[tuple[Part, ...]]] = batching.drafting_steps


def _changed(patch: Patch, change: Callable[[Steps], Iterable[tuple[Part, ...]]]) -> None:
    patch.setattr(batching, "drafting_steps", lambda parts: change(list(STEPS(parts))))


def drafts_read_what_they_draft(patch: Patch) -> None:
    """A draft reads the token that it makes, not the one before it."""

    def later(steps: Steps) -> Iterable[tuple[Part, ...]]:
        *drafts, checks = steps
        for parts in drafts:
            yield tuple(replace(part, first=part.first + 1) for part in parts)
        yield checks

    _changed(patch, later)


def all_drafts_at_once(patch: Patch) -> None:
    """One step has the drafts of all places."""

    def joined(steps: Steps) -> Iterable[tuple[Part, ...]]:
        *drafts, checks = steps
        together = [part for parts in drafts for part in parts]
        if together:
            by_turn = {part.request.sequence: place for place, part in enumerate(checks)}
            yield tuple(sorted(together, key=lambda part: by_turn[part.request.sequence]))
        yield checks

    _changed(patch, joined)


def drafts_follow(patch: Patch) -> None:
    """A step's drafts come after it."""
    _changed(patch, lambda steps: [steps[-1], *steps[:-1]])


def short_context(patch: Patch) -> None:
    """The context of a draft ends with the token after the one that it reads."""
    _changed(
        patch,
        lambda steps: [
            *(tuple(replace(part, ahead=1) for part in parts) for parts in steps[:-1]),
            steps[-1],
        ],
    )
