"""The needs of a gate on the compute stream: what to compute next, and since when it could be."""

from __future__ import annotations

from collections import deque

from sim.values.record import CPU_RESULT


class Batch:
    """Needs that are computed one after another, once none of them is on its way any more."""

    __slots__ = ("cause", "needs", "pending", "ready_ns")

    def __init__(self, now_ns: int) -> None:
        self.needs: list[tuple[int, int]] = []
        """(key, tokens)"""
        self.pending = 0
        self.ready_ns, self.cause = now_ns, CPU_RESULT
        """When the last of them came and by which transfer. What was there, came with its
        admission: only that by a CPU result can end an idle interval."""


class Needs:
    """Lines up the needs that are loaded or there, by the loader's switch ``wait``
    (contract C68).

    A batch is a single need, but for ``wait_all``, where it is all that one call admitted. It
    stands in the line from its admission on, but for ``as_ready``, where it joins when it is ready.
    Needs computed on the CPU are not lined up.
    """

    def __init__(self, wait: str) -> None:
        self._together, self._joins_when_ready = wait == "wait_all", wait == "as_ready"
        self._line: deque[Batch] = deque()
        self._now_ns = 0
        self._admitted = Batch(0)
        self.awaited: dict[int, tuple[int, Batch]] = {}
        """key -> row of its lookup, and the batch that waits for it"""
        self._wave_results_ns: list[int] = []
        self.last_result_ns = 0
        """When the last CPU result came."""

    # ---- what happens

    def open_batch(self, now_ns: int) -> None:
        """A call admits needs: those of ``wait_all`` go together."""
        self._now_ns = now_ns
        if self._together:
            self._admitted = Batch(now_ns)
            self._line.append(self._admitted)

    def add(self, key: int, tokens: int, row: int, is_awaited: bool) -> None:
        """A need has been admitted; ``row`` is its lookup's."""
        batch = self._admitted if self._together else Batch(self._now_ns)
        batch.needs.append((key, tokens))
        if is_awaited:
            batch.pending += 1
            self.awaited[key] = (row, batch)
        if not (self._together or (is_awaited and self._joins_when_ready)):
            self._line.append(batch)

    def arrive(self, key: int, now_ns: int, number: int) -> int:
        """Transfer ``number`` has brought a key that is awaited; the row of its lookup."""
        row, batch = self.awaited.pop(key)
        batch.pending -= 1
        batch.ready_ns, batch.cause = now_ns, number
        if self._joins_when_ready:
            self._line.append(batch)
        return row

    def bring_result(self, now_ns: int, ends_wave_need: bool) -> None:
        """A CPU result has come."""
        self.last_result_ns = now_ns
        if ends_wave_need:
            self._wave_results_ns.append(now_ns)

    # ---- what the stream asks

    @property
    def is_empty(self) -> bool:
        return not self._line and not self.awaited

    def may_go_on(self, free_ns: int) -> bool:
        """Whether a stream that has been free since ``free_ns`` has got something."""
        is_ready = bool(self._line) and not self._line[0].pending
        return is_ready or any(result_ns > free_ns for result_ns in self._wave_results_ns)

    def take(self, free_ns: int) -> tuple[int, int, Batch | None]:
        """When and by what the stream, free since ``free_ns``, got something, and the needs to
        compute then.

        None instead of needs: a CPU result has let others in, or there are no more and the last CPU
        result counts.
        """
        results_ns = [result_ns for result_ns in self._wave_results_ns if result_ns > free_ns]
        self._wave_results_ns.clear()
        batch = self._line[0] if self._line and not self._line[0].pending else None
        if results_ns and (batch is None or results_ns[0] <= batch.ready_ns):
            return results_ns[0], CPU_RESULT, None
        if batch is None:
            return self.last_result_ns, CPU_RESULT, None
        self._line.popleft()
        return batch.ready_ns, batch.cause, batch
