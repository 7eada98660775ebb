"""The needs of a gate on the compute stream: which to compute next, and since when it is ready."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from sim.values.record import CPU_RESULT


class Batch:
    """Needs that became ready together, or will: all of them are there once none is pending."""

    __slots__ = ("cause", "keys", "pending", "ready_ns", "rows")

    def __init__(self, now_ns: int, keys: list[int], rows: list[int], pending: int) -> None:
        self.keys, self.rows = keys, rows
        """Of each need its key, and how many tokens it has."""
        self.pending = pending
        """How many of them are to arrive."""
        self.ready_ns, self.cause = now_ns, CPU_RESULT
        """When, and by which transfer, the last of them arrived.

        Needs that were there already count from their admission. Of the calls that admit needs,
        only a CPU result's can end an idle interval, so CPU_RESULT is the cause.
        """


class Needs:
    """The line of needs for the compute stream, in the order of the loader's switch ``wait``.

    With ``wait_all`` all that one call admitted is computed together, else one need at a time. Needs
    join the line at their admission; with ``as_ready`` those that have to arrive join then (contract
    C68). Neighbours in the line that were ready at once share a batch. Needs that the CPU computes
    are not in the line.
    """

    def __init__(self, wait: str) -> None:
        self._together, self._joins_when_ready = wait == "wait_all", wait == "as_ready"
        self.line: deque[Batch] = deque()
        """What has been lined up, also where it has not arrived."""
        self.awaited: dict[int, tuple[int, Batch]] = {}
        """By key that has not arrived: the row of its lookup, and the batch that waits for it."""
        self._wave_results_ns: list[int] = []
        self.last_result_ns = 0
        """When the last CPU result came."""

    # ---- what happens

    def admit(self, keys: list[int], rows: list[int], late: Mapping[int, int], now_ns: int) -> None:
        """Line up the needs that one call has admitted; ``rows``: how many tokens each has.

        ``late``: by key the row of its lookup, of those that are to arrive.
        """
        if self._together or (keys and not late):
            batch = Batch(now_ns, keys, rows, len(late))
            self.line.append(batch)
            for key, row in late.items():
                self.awaited[key] = row, batch
            return
        there: Batch | None = None
        for key, count in zip(keys, rows, strict=True):
            if key in late:
                batch = Batch(now_ns, [key], [count], 1)
                self.awaited[key] = late[key], batch
                if not self._joins_when_ready:
                    self.line.append(batch)
                    there = None
            elif there is None:
                there = Batch(now_ns, [key], [count], 0)
                self.line.append(there)
            else:
                there.keys.append(key)
                there.rows.append(count)

    def arrive(self, key: int, now_ns: int, number: int) -> int:
        """Note that transfer ``number`` has brought an awaited key; return its lookup's row."""
        row, batch = self.awaited.pop(key)
        batch.pending -= 1
        batch.ready_ns, batch.cause = now_ns, number
        if self._joins_when_ready:
            self.line.append(batch)
        return row

    def bring_result(self, now_ns: int, ends_wave_need: bool) -> None:
        """Note a CPU result; ``ends_wave_need``: it has let further needs in."""
        self.last_result_ns = now_ns
        if ends_wave_need:
            self._wave_results_ns.append(now_ns)

    # ---- what the stream asks

    def may_go_on(self, free_ns: int) -> bool:
        """Whether a stream that has been free since ``free_ns`` has something to do."""
        line, results_ns = self.line, self._wave_results_ns
        if line and not line[0].pending:
            return True
        return bool(results_ns) and max(results_ns) > free_ns

    def take(self, free_ns: int, *, whole: bool) -> Batch:
        """What the stream does next; nothing in it is pending.

        It is one need, or with ``whole`` all that were ready at once.

        There are no needs where a CPU result counts instead: it has let other needs in, or no needs
        are left and the stream waits for the last result only.
        """
        first = self.line[0] if self.line and not self.line[0].pending else None
        if self._wave_results_ns:
            results_ns = [result_ns for result_ns in self._wave_results_ns if result_ns > free_ns]
            self._wave_results_ns.clear()
            if results_ns and (first is None or results_ns[0] <= first.ready_ns):
                return Batch(results_ns[0], [], [], 0)
        if first is None:
            return Batch(self.last_result_ns, [], [], 0)
        if whole or self._together or len(first.keys) == 1:
            return self.line.popleft()
        one = Batch(first.ready_ns, [first.keys.pop(0)], [first.rows.pop(0)], 0)
        one.cause = first.cause
        return one

    def take_along(self) -> Batch | None:
        """The next batch if all of it is there, to be computed with what was just taken."""
        if self.line and not self.line[0].pending:
            return self.line.popleft()
        return None
