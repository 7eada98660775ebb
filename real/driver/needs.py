"""The needs of a gate on the compute stream: which to compute next, and since when it is ready."""

from __future__ import annotations

from collections import deque

from sim.values.record import CPU_RESULT


class Batch:
    """Needs that are computed one after another, once all of them have arrived."""

    __slots__ = ("cause", "needs", "pending", "ready_ns")

    def __init__(self, now_ns: int) -> None:
        self.needs: list[tuple[int, int]] = []
        """Of each need its key and how many tokens it has."""
        self.pending = 0
        self.ready_ns, self.cause = now_ns, CPU_RESULT
        """When, and by which transfer, the last of them arrived.

        Needs that were there already count from their admission. Of the calls that admit needs,
        only a CPU result's can end an idle interval, so CPU_RESULT is the cause.
        """


class Needs:
    """The line of needs for the compute stream, in the order of the loader's switch ``wait``.

    With ``wait_all`` a batch is all that one call admitted, else a single need. A batch joins the
    line at its admission; with ``as_ready`` it joins when it is ready (contract C68).
    Needs that the CPU computes are not in the line.
    """

    def __init__(self, wait: str) -> None:
        self._together, self._joins_when_ready = wait == "wait_all", wait == "as_ready"
        self._line: deque[Batch] = deque()
        self._now_ns = 0
        self._admitted = Batch(0)
        self.awaited: dict[int, tuple[int, Batch]] = {}
        """By key that has not arrived: the row of its lookup, and the batch that waits for it."""
        self._wave_results_ns: list[int] = []
        self.last_result_ns = 0
        """When the last CPU result came."""

    # ---- what happens

    def open_batch(self, now_ns: int) -> None:
        """Begin a call that admits needs; with ``wait_all`` these form one batch."""
        self._now_ns = now_ns
        if self._together:
            self._admitted = Batch(now_ns)
            self._line.append(self._admitted)

    def add(self, key: int, tokens: int, row: int, is_awaited: bool) -> None:
        """Line up an admitted need; ``row`` is that of its lookup."""
        batch = self._admitted if self._together else Batch(self._now_ns)
        batch.needs.append((key, tokens))
        if is_awaited:
            batch.pending += 1
            self.awaited[key] = (row, batch)
        if not (self._together or (is_awaited and self._joins_when_ready)):
            self._line.append(batch)

    def arrive(self, key: int, now_ns: int, number: int) -> int:
        """Note that transfer ``number`` has brought an awaited key; return its lookup's row."""
        row, batch = self.awaited.pop(key)
        batch.pending -= 1
        batch.ready_ns, batch.cause = now_ns, number
        if self._joins_when_ready:
            self._line.append(batch)
        return row

    def bring_result(self, now_ns: int, ends_wave_need: bool) -> None:
        """Note a CPU result; ``ends_wave_need``: it has let further needs in."""
        self.last_result_ns = now_ns
        if ends_wave_need:
            self._wave_results_ns.append(now_ns)

    # ---- what the stream asks

    @property
    def is_empty(self) -> bool:
        return not self._line and not self.awaited

    def may_go_on(self, free_ns: int) -> bool:
        """Whether a stream that has been free since ``free_ns`` has something to do."""
        is_ready = bool(self._line) and not self._line[0].pending
        return is_ready or any(result_ns > free_ns for result_ns in self._wave_results_ns)

    def take(self, free_ns: int) -> tuple[int, int, Batch | None]:
        """What the stream does next: (since when it is ready, what made it ready, the needs).

        The needs are None where a CPU result counts instead: it has let other needs in, or no needs
        are left and the stream waits for the last result only.
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

    def take_along(self) -> Batch | None:
        """The next needs if all of them are there, to be computed with those just taken."""
        if self._line and not self._line[0].pending:
            return self._line.popleft()
        return None
