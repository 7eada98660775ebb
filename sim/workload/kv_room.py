"""The memory that keys and values take step by step, and what they leave to experts until then.

A run allocates keys and values once, for its fullest step, or as they come. Where they grow, slots
have the rest of that memory meanwhile (contract C174).
"""

from __future__ import annotations

from sim.workload.steps import Workload

ONCE, GROWING = "once", "growing"
ALLOCATIONS = (ONCE, GROWING)


class KvRoom:
    """The keys and values of ``workload`` at each step, of so many bytes a token.

    Steps are read in order, as far as they are asked for, so that a timed run may still compose
    the others.
    """

    def __init__(self, workload: Workload, kv_bytes_per_token: int) -> None:
        self._workload, self._token_bytes = workload, kv_bytes_per_token
        self._tokens: list[int] = []
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
            for sequence in later.ends:
                del self._of[sequence]
        return self._tokens[step]

    def kv_bytes(self, step: int) -> int:
        """The bytes of all keys and values at the end of a step."""
        return self.tokens(step) * self._token_bytes

    def spare_bytes(self, step: int) -> int:
        """What they leave of the bytes that they take in the run's fullest step."""
        return (self._workload.limits.tokens - self.tokens(step)) * self._token_bytes
