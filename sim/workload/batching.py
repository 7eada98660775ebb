"""Composes steps from requests: which of their rows run together, first come first served.

This is pure bookkeeping, without trace, tensor or clock: the driver says what time it is when it
asks for the next step.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from sim.values.types import Found
from sim.values.units import NS_PER_S, require_number
from sim.workload.prefixes import Prefixes, Tiers
from sim.workload.speculation import NO_DRAFTS, Speculation

COMPOSED = ("static", "continuous")
SLOWEST_PER_S = 1e-6
LATEST_S = 4e6
"""The latest arrival, in seconds: 46 days.

A summary gives times in seconds, as floats, which tell whole ns apart up to 2^52 ns, or 52 days.
"""
NO_ARRIVALS = (
    "set workload.arrivals_per_s=null and workload.arrivals_s=null (requests: leave out timestamps)"
)
"""What messages advise where something does not go with arrivals."""
FROM_FIRST = "count seconds from the first request (subtract the first time of a log)"


@dataclass(frozen=True)
class Request:
    """One sequence to run: ``prompt_rows`` token-rows, then ``decode_rows``, each of which is a
    token that the sequence gets.

    One of the two may be 0, but not both. ``arrival_ns`` counts from the start of the run.
    ``blocks``: the ids of the prompt's whole blocks (`sim.workload.prefixes`).
    """

    sequence: int
    prompt_rows: int
    decode_rows: int
    arrival_ns: int = 0
    blocks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if min(self.prompt_rows, self.decode_rows, self.arrival_ns) < 0 or not self.rows:
            raise ValueError(
                f"{self} must have rows, and nothing below 0; leave out a sequence without rows"
            )

    @property
    def rows(self) -> int:
        return self.prompt_rows + self.decode_rows


NOTHING_FOUND = Found()


@dataclass(frozen=True)
class Part:
    """A request's part in a step: its rows ``first .. first + count``.

    Rows are counted from the request's first prompt row. With ``decode`` the part is one decoded
    row and the drafts after it, else it is rows of the prompt. The request goes on after the first
    ``kept`` rows: a draft that was wrong is read again. ``found`` is what the request need not read.

    A part that drafts is one row, of which nothing is kept: ``ahead`` is how many rows follow it in
    the part that checks what is drafted. That one is ``drafted``, for its request has had a part.
    """

    request: Request
    first: int
    count: int
    decode: bool
    kept: int
    found: Found = NOTHING_FOUND
    ahead: int = 0
    drafted: bool = False

    @property
    def drafting(self) -> bool:
        return self.ahead > 0

    @property
    def begins(self) -> bool:
        return self.first == self.found.tokens and not self.drafted

    @property
    def ends(self) -> bool:
        return self.first + self.kept == self.request.rows


def drafting_steps(parts: Sequence[Part]) -> Iterable[tuple[Part, ...]]:
    """The steps in which the drafts of ``parts`` are made, and then ``parts`` themselves (contract
    C184): the n-th has a row of each request that checks n drafts or more.
    """
    left = [part.count - 1 if part.decode else 0 for part in parts]
    for nth in range(max(left)):
        yield tuple(
            Part(part.request, part.first + nth, 1, True, 0, part.found, ahead - nth)
            for part, ahead in zip(parts, left, strict=True)
            if ahead > nth
        )
    yield tuple(replace(part, drafted=ahead > 0) for part, ahead in zip(parts, left, strict=True))


class _Turn:
    """A running request and how many of its rows are done."""

    __slots__ = ("_draws", "_found", "_speculation", "done", "is_kept", "request")

    def __init__(self, request: Request, speculation: Speculation, found: Found) -> None:
        self.request, self._speculation, self._found = request, speculation, found
        self._draws = (
            speculation.outcomes(request.sequence, request.decode_rows)
            if speculation.tokens
            else ()
        )
        self.done = found.tokens
        self.is_kept = False

    @property
    def prompt_left(self) -> int:
        return self.request.prompt_rows - self.done

    def read(self, count: int) -> Part:
        """So many rows of the prompt."""
        return self._take(count, False, count)

    def decode(self) -> Part:
        """The next token, and the drafts after it."""
        first = self.done - self.request.prompt_rows + 1
        draws = self._draws[first : first + self._speculation.tokens]
        return self._take(1 + len(draws), True, 1 + self._speculation.kept(draws))

    def _take(self, count: int, decode: bool, kept: int) -> Part:
        part = Part(self.request, self.done, count, decode, kept, self._found)
        self.done += kept
        return part


class Batcher:
    """Composes the steps of ``requests``, at most ``together`` of which run at once.

    - ``static``: when nothing runs, a group is formed of requests that have arrived. Their prompts
      are one step. Then each step has one row of every request of the group that is not finished.
    - ``continuous``: requests join as soon as there is room. The prompts of newcomers are a step of
      their own.

    ``prefill_chunk`` cuts prompts: a step then takes up to so many prompt rows in all. With
    ``continuous`` it also takes one row of each request that decodes. Requests take their turns by
    arrival, then by number, and the parts of a step stand in that order. ``separate_prompts`` says
    that prompts and decoded rows visit different sites (encoder-decoder models), so that a prompt
    must be read whole. With ``speculation`` a decoded row has drafts after it; where drafts offload
    their experts, the steps that make them come before the one that checks them. With ``tiers`` a
    prompt begins behind the tokens whose keys and values are held.

    Raise ValueError for an unknown ``batching``, a number out of range, a request given twice, or
    ``prefill_chunk`` with ``separate_prompts``.
    """

    def __init__(
        self,
        requests: Iterable[Request],
        batching: str = "continuous",
        together: int = 1,
        prefill_chunk: int | None = None,
        separate_prompts: bool = False,
        speculation: Speculation = NO_DRAFTS,
        tiers: Tiers | None = None,
    ) -> None:
        if batching not in COMPOSED:
            raise ValueError(f"unknown batching={batching}; allowed: {', '.join(COMPOSED)}")
        require_number("workload.together", together, minimum=1, whole=True)
        if prefill_chunk is not None:
            require_number("workload.prefill_chunk", prefill_chunk, minimum=1, whole=True)
            if separate_prompts:
                raise ValueError(
                    f"workload.prefill_chunk={prefill_chunk} would cut a prompt, but an encoder"
                    " reads a prompt whole; set workload.prefill_chunk=null"
                )
        self.requests = tuple(
            sorted(requests, key=lambda request: (request.arrival_ns, request.sequence))
        )
        numbers = sorted(request.sequence for request in self.requests)
        if twice := [one for one, other in pairwise(numbers) if one == other]:
            raise ValueError(
                f"sequence {twice[0]} is requested twice; give every request a number of its own"
            )
        self.batching, self.together, self.prefill_chunk = batching, together, prefill_chunk
        self.speculation = speculation
        self._prefixes = None if tiers is None else Prefixes(tiers)
        self._waiting = deque(self.requests)
        self._running: list[_Turn] = []
        self._to_come: deque[tuple[Part, ...]] = deque()  # what drafting steps lead to

    @property
    def most_rows(self) -> int:
        """An upper bound on the rows of a step, whenever the requests arrive."""
        prompts = sorted((request.prompt_rows for request in self.requests), reverse=True)
        decoding = min(self.together, sum(request.decode_rows > 0 for request in self.requests))
        prefill, rows = sum(prompts[: self.together]), 1 + self.speculation.tokens
        if self.prefill_chunk is None:
            return max(prefill, decoding * rows)
        beside = min(decoding, self.together - 1) if self.batching == "continuous" else 0
        return max(min(prefill, self.prefill_chunk) + beside * rows, decoding * rows)

    def next(self, now_ns: int) -> tuple[Part, ...] | int | None:
        """The parts of the step that begins at ``now_ns``, in the order of their rows.

        All of the step must have run by the next call. If nothing can run yet, return the time of
        the next arrival, in ns; return None when everything has run.
        """
        if self._to_come:
            return self._to_come.popleft()
        if self._prefixes is not None:
            self._keep(self._prefixes)
        running = self._running = [turn for turn in self._running if turn.done < turn.request.rows]
        if not running or self.batching == "continuous":
            waiting = self._waiting
            while waiting and len(running) < self.together and waiting[0].arrival_ns <= now_ns:
                running.append(self._turn(waiting.popleft()))
        if not running:
            return self._waiting[0].arrival_ns if self._waiting else None
        if any(turn.prompt_left > 0 for turn in running):
            parts = tuple(self._prefill(running))
        else:
            parts = tuple([turn.decode() for turn in running])
        if not self.speculation.sites:
            return parts
        self._to_come += drafting_steps(parts)
        return self._to_come.popleft()

    def _turn(self, request: Request) -> _Turn:
        found = NOTHING_FOUND
        if self._prefixes is not None:
            found = self._prefixes.find(request.blocks, request.prompt_rows)
        return _Turn(request, self.speculation, found)

    def _keep(self, prefixes: Prefixes) -> None:
        """The prompts that the last step has read to their end are held from now on."""
        for turn in self._running:
            if turn.prompt_left <= 0 and not turn.is_kept:
                turn.is_kept = True
                prefixes.keep(turn.request.blocks)

    def _prefill(self, running: Sequence[_Turn]) -> Iterable[Part]:
        """The parts of a step that has prompt rows."""
        # Without chunks the prompt rows are not limited, and nothing decodes beside a prompt.
        room = math.inf if self.prefill_chunk is None else self.prefill_chunk
        decodes = self.prefill_chunk is not None and self.batching == "continuous"
        for turn in running:
            if turn.prompt_left > 0:
                if count := int(min(room, turn.prompt_left)):
                    yield turn.read(count)
                    room -= count
            elif decodes:
                yield turn.decode()


def is_timed(per_s: float | None, given: object) -> bool:
    """Whether requests arrive at times that the user asked for (open loop), even if all are 0.

    Otherwise the loop is closed: a request arrives when its first step can begin.
    """
    return per_s is not None or given is not None


def arrival_times(
    count: int, per_s: float | None = None, seed: int = 0, given_ns: Sequence[int] | None = None
) -> tuple[int, ...]:
    """The times at which ``count`` requests arrive, in ns.

    - By default all are 0 (closed loop).
    - With ``per_s`` they are a Poisson process of so many requests a second, beginning at 0 and
      drawn from ``seed``; ascending.
    - With ``given_ns`` they are its first ``count`` times, in the order given.

    Raise ValueError where both are given, for too few times, and for values out of range.
    """
    if per_s is not None and given_ns is not None:
        raise ValueError(
            f"workload.arrivals_per_s={per_s} and given arrivals exclude each other; leave one out"
        )
    if given_ns is not None:
        if len(given_ns) < count:
            raise ValueError(
                f"{len(given_ns)} arrivals are given for {count} sequences; give one for each"
            )
        for time_ns in given_ns:
            require_number("arrivals_ns", time_ns, maximum=math.inf, whole=True)
            check_latest(f"arrivals_ns={time_ns}", time_ns / NS_PER_S, FROM_FIRST)
        return tuple(given_ns[:count])
    if per_s is None:
        return (0,) * count
    require_number("workload.arrivals_per_s", per_s)
    require_number("workload.arrival_seed", seed, maximum=math.inf, whole=True)
    if per_s < SLOWEST_PER_S:
        raise ValueError(
            f"workload.arrivals_per_s={per_s} must be {SLOWEST_PER_S:g} or more; null: every"
            " sequence is there at 0"
        )
    # Only random() is promised to be the same in every version of Python.
    draw, time_s, times = random.Random(seed), 0.0, []
    for _ in range(count):
        time_s -= math.log(1.0 - draw.random()) / per_s
        times.append(round(time_s * NS_PER_S))
    check_latest(
        f"workload.arrivals_per_s={per_s} for {count} sequences",
        time_s,
        "raise it, or run fewer with trace.max_sequences",
    )
    return tuple(times)


def check_latest(what: str, time_s: float, way: str) -> None:
    """Raise ValueError, naming the ``way`` out, for a time past ``LATEST_S``."""
    if time_s > LATEST_S:
        raise ValueError(
            f"{what}: a request would arrive after {time_s:g} s, the latest is {LATEST_S:,.0f} s;"
            f" {way}"
        )


def given_arrivals(given: Sequence[float] | str) -> tuple[int, ...]:
    """Arrivals in ns, from a list of seconds or the path of a text file of them.

    The file has one time a line; ``#`` begins a comment. Raise ValueError for a value that is no
    time or is too late, and for a file that cannot be read.
    """
    return tuple([round(time_s * NS_PER_S) for time_s in _times_of(given)])


def _times_of(given: Sequence[float] | str) -> Iterable[float]:
    named: Iterable[tuple[str, float]]
    if isinstance(given, str):
        named = _lines_of(Path(given))
    elif hasattr(given, "__iter__"):
        named = ((f"workload.arrivals_s[{index}]", time_s) for index, time_s in enumerate(given))
    else:
        raise ValueError(
            f"workload.arrivals_s={given!r} must be a list of seconds, or a text file with one a"
            " line"
        )
    for name, time_s in named:
        require_number(name, time_s)
        check_latest(f"{name}={time_s!r}", time_s, FROM_FIRST)
        yield time_s


def lines_in(key: str, file: Path, way: str) -> list[str]:
    """The lines of the text file that a key names. Raise ValueError, with the way out, where it
    cannot be read.
    """
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"{key}={file}: {error.strerror}; name {way}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{key}={file} is no text in UTF-8 ({error}); name {way}") from error


def _lines_of(file: Path) -> Iterable[tuple[str, float]]:
    """The times in ``file``, each with a name that gives its line."""
    way = "a text file with one time a line, in seconds"
    for number, line in enumerate(lines_in("workload.arrivals_s", file, way), start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            yield f"{file}, line {number}: time", float(text)
        except ValueError:
            raise ValueError(
                f"{file}, line {number}: {text[:40]!r} is no time in seconds"
            ) from None
