"""Prefix reuse: which tokens of a prompt need not be read, because their keys and values are held.

Prompts are told as blocks of tokens. A block's id stands for the block and all tokens before it, so
that equal ids mean equal prefixes. Each tier holds the blocks that were used last. The definitions
are contracts C177 and C178.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sim.values.types import Found

Blocks = tuple[int, ...]


@dataclass(frozen=True)
class Tiers:
    """Where keys and values wait: how many blocks of ``block_tokens`` tokens each tier holds."""

    block_tokens: int
    device: int = 0
    ram: int = 0
    disk: int = 0

    @property
    def device_tokens(self) -> int:
        return self.device * self.block_tokens

    @property
    def moves(self) -> bool:
        """Whether keys and values may come from another tier than the device."""
        return self.ram > 0 or self.disk > 0


class Prefixes:
    """The blocks that the tiers of one run hold, and those that were ever read."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        # By tier: ids, the longest unused first.
        self._held: list[dict[int, None]] = [{}, {}, {}]
        self._seen: set[int] = set()

    def find(self, blocks: Blocks, prompt_rows: int) -> Found:
        """The tokens of a prompt that are held, by tier, and those that it reads again.

        ``blocks`` are the prompt's whole blocks. Found is the longest run of held ones from the
        first on that leaves a row to read: the first token follows from the last row.
        """
        size, counts = self._tiers.block_tokens, [0, 0, 0]
        for block in blocks[: (prompt_rows - 1) // size]:
            tier = next((n for n, held in enumerate(self._held) if block in held), None)
            if tier is None:
                break
            counts[tier] += 1
        again = sum(block in self._seen for block in blocks[sum(counts) :])
        self._seen.update(blocks)
        return Found(*(size * count for count in (*counts, again)))

    def keep(self, blocks: Blocks) -> None:
        """A prompt has been read: its blocks are those used last, the first one last of all."""
        capacities = self._tiers.device, self._tiers.ram, self._tiers.disk
        for held, capacity in zip(self._held, capacities, strict=True):
            _touch(held, blocks, capacity)


def _touch(held: dict[int, None], blocks: Sequence[int], capacity: int) -> None:
    for block in reversed(blocks):
        held.pop(block, None)
        held[block] = None
    while len(held) > capacity:
        del held[next(iter(held))]
