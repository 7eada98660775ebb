"""Defects that can be planted in what is kept of prompts, and in how it comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from sim.core.controller import Controller
from sim.engine.engine import Engine
from sim.values.types import Found
from sim.workload import prefixes
from sim.workload.prefixes import Blocks, Prefixes

Patch = pytest.MonkeyPatch


def nothing_found(patch: Patch) -> None:
    """Every prompt is read from its first token on."""
    patch.setattr(Prefixes, "find", lambda *_: Found())


def kept_when_they_join(patch: Patch) -> None:
    """A prompt is held as soon as somebody begins to read it."""
    find: Callable[[Prefixes, Blocks, int], Found] = Prefixes.find

    def mutant(self: Prefixes, blocks: Blocks, prompt_rows: int) -> Found:
        found = find(self, blocks, prompt_rows)
        self.keep(blocks)
        return found

    patch.setattr(Prefixes, "find", mutant)


def first_blocks_go_first(patch: Patch) -> None:
    """Of a prompt the last block counts as the one used last."""
    touch: Callable[[dict[int, None], Sequence[int], int], None] = prefixes._touch

    def mutant(held: dict[int, None], blocks: Sequence[int], capacity: int) -> None:
        touch(held, blocks[::-1], capacity)

    patch.setattr(prefixes, "_touch", mutant)


def disk_is_as_near_as_ram(patch: Patch) -> None:
    """Keys and values on disk begin where those in RAM do."""
    prepare: Callable[[Engine], None] = Engine._prepare_steps

    def mutant(self: Engine) -> None:
        prepare(self)
        self._kv_links = self._kv_links[0], self._kv_links[0]

    patch.setattr(Engine, "_prepare_steps", mutant)


def dense_work_does_not_wait(patch: Patch) -> None:
    """A site begins before its keys and values are there."""
    patch.setattr(Engine, "_has_blocks", lambda _: True)


def experts_first(patch: Patch) -> None:
    """Keys and values wait among prefetches."""
    bring: Callable[[Controller, int, int], None] = Controller.bring

    def mutant(self: Controller, link: int, tokens: int) -> None:
        before = len(self._demands[link])
        bring(self, link, tokens)
        if self._prefetches is not self._demands:
            while len(self._demands[link]) > before:
                self._prefetches[link].append(self._demands[link].pop())

    patch.setattr(Controller, "bring", mutant)
