"""The memory that keys and values take step by step, and what they leave to experts until then.

A run allocates keys and values once, for its fullest step, or as they come. Where they grow, slots
have the rest of that memory meanwhile (contract C174).
"""

from __future__ import annotations

from collections.abc import Mapping

from sim.workload.steps import Workload

ONCE, GROWING = "once", "growing"
ALLOCATIONS = (ONCE, GROWING)


class KvRoom:
    """The keys and values of ``workload`` at each step.

    ``by_window`` has the bytes that a token takes in the layers with each window (0: no window).
    Steps are read in order, as far as they are asked for, so that a timed run may still compose
    the others.
    """

    def __init__(self, workload: Workload, by_window: Mapping[int, int]) -> None:
        self._workload, self._by_window = workload, by_window
        self._tokens: list[int] = []
        self._bytes: list[int] = []
        self._of: dict[int, int] = {}

    def tokens(self, step: int) -> int:
        """How many tokens the running sequences hold at the end of a step.

        From its first step to its last a sequence holds the most tokens that it has had, also in
        steps that it sits out.
        """
        for later in self._workload.steps[len(self._tokens) : step + 1]:
            for sequence, tokens in self._workload.tokens_at(later):
                self._of[sequence] = max(tokens, self._of.get(sequence, 0))
            self._tokens.append(sum(self._of.values()))
            self._bytes.append(
                sum(
                    size * sum(min(tokens, window or tokens) for tokens in self._of.values())
                    for window, size in self._by_window.items()
                )
            )
            for sequence in later.ends:
                del self._of[sequence]
        return self._tokens[step]

    def kv_bytes(self, step: int) -> int:
        """The bytes of all keys and values at the end of a step."""
        self.tokens(step)
        return self._bytes[step]

    def spare_bytes(self, step: int) -> int:
        """What they leave of the bytes that each layer takes in its fullest step."""
        return self._workload.limits.kv_bytes(self._by_window) - self.kv_bytes(step)
