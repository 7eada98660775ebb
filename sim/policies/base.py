"""The contracts of policies: a protocol for each kind, and for what policies see.

A method answers or learns, never both: questions (``predict``, ``victims``, ``admit``, ``select``,
``place``) leave the object unchanged and may be asked twice; notifications (``observe``, ``on_*``)
return nothing. Every order is total. Arguments are read-only and valid during the call.

A policy may inherit its protocol. What it does not say itself is then the protocol's default: it
needs nothing, learns nothing and does nothing special.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from sim.policies.requires import NOTHING, Given, Requires
from sim.values.types import REROUTE, SKIP, Cause, Geometry, PoolPlan

IntArray = NDArray[np.integer]
FloatArray = NDArray[np.floating]


RowRule = Callable[[FloatArray, int], tuple[IntArray, FloatArray]]
"""Names experts by scores, row by row: from [N, E] and the router's top-k to experts [N, n], -1
where a row names fewer, and their likelinesses. Rows do not depend on each other.
"""

ScoreRule = Callable[[FloatArray], IntArray]
"""What scores alone decide: from an array of them to small numbers of the same shape, each a precision
or ASK.
"""
ASK: Final = -2
"""Scores do not decide it: the selector must be asked."""

Graded = tuple[list[int], list[int]]
"""What a rule says of a gate's needs, and the keys of these variants, ASK where it says so. A gate of a
trace has ``graded(rule)``, and a forecast ``variants(rule)``, which are the keys alone. They ask a rule
once for all gates of a run.
"""


class Choice(Protocol):
    """What a router selected at a site, or is forecast to select.

    ``needs`` are the experts of the union in need order. That is, for one row: descending weight,
    then id; for several rows: descending token count, then id. The next three go with ``needs``:

    - ``keys``: the needs as keys of precision 0 (a list, but read-only).
    - ``tokens``: how many rows chose each.
    - ``scores``: HOBBIT's eq. 2 score of each, 0 to 1. It is the share of gate weight ranked above
      the expert; over several rows the smallest.

    ``experts`` and ``weights`` are the rows themselves, [R, K]; -1 where a slot is dropped, null or
    padding.
    """

    @property
    def site(self) -> int: ...
    @property
    def needs(self) -> Sequence[int]: ...
    @property
    def keys(self) -> list[int]: ...
    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def scores(self) -> Sequence[float]: ...
    @property
    def experts(self) -> IntArray: ...
    @property
    def weights(self) -> FloatArray: ...


class Gate(Choice, Protocol):
    """One visit of a site in a step. ``tick`` numbers the gates of the run; ``token`` counts the
    sequence's tokens so far, prompt included.
    """

    @property
    def tick(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def token(self) -> int: ...
    @property
    def row_sequence(self) -> IntArray: ...
    @property
    def row_phase(self) -> IntArray: ...
    @property
    def row_position(self) -> IntArray: ...
    @property
    def row_token(self) -> IntArray:
        """The ids of the rows' tokens [R], -1 where unknown."""

    @property
    def gate_input(self) -> FloatArray | None:
        """What the site's router reads, [R, H]; None where the trace did not keep it."""

    @property
    def preferences(self) -> FloatArray | None:
        """The scores that the site's rule chooses by, [R, E], the highest first to be chosen; None
        where the trace did not keep them.
        """

    @property
    def share(self) -> FloatArray | None: ...
    def forecasts(self, sites: int) -> Sequence[Choice]:
        """``routed(1)``, ``routed(2)``, ... for so many sites, as far as there are any. The list is
        read-only.
        """

    def routed(self, j: int) -> Choice | None:
        """What site + j's own rule selects from the lookahead scores; None where there are none."""

    def lookahead(self, j: int) -> FloatArray | None:
        """The raw lookahead scores of site + j, [R, E]; None where there are none."""

    def ranked(self, rule: RowRule, j: int) -> Choice | None:
        """What ``rule`` names by ``lookahead(j)``; None where there are none.

        A gate of a trace asks the rule once for all sites of a step.
        """


class Resident(Protocol):
    """Read access to what is resident on the device now."""

    def has(self, precision: int, site: int, expert: int) -> bool: ...
    def expert_of(self, key: int) -> int: ...
    @property
    def foreseen(self) -> Sequence[int]:
        """The experts last forecast for the gate's site, best first; () if there were none."""


class Queued(Protocol):
    """Read access to the transfers that wait for a link now."""

    def bytes_ahead(self, link: int) -> int: ...


class Policy(Protocol):
    """What every policy has beside its questions."""

    @property
    def requires(self) -> Requires:
        """What it must know or find in its gates: known from its arguments alone, and the same at
        any time.
        """
        return NOTHING

    def prepare(self, given: Given) -> None:
        """Called once, before the first question, with what it ``requires``.

        Raise ValueError for what cannot be, `FitError` for what is wrong with the fit.
        """
        return

    def told(self, sequences: Collection[int]) -> Mapping[str, Any]:
        """What a summary tells under ``contracts``, by name, that is not in the configuration.

        ``sequences``: the numbers of those that the run is of.
        """
        return {}


class Predictor(Policy, Protocol):
    """Forecasts the needs of later sites."""

    learns: bool = False
    """``observe`` does something; otherwise it is never called."""
    silent: bool = False
    """It never forecasts: ``predict`` is never called, and no number measures a forecast."""
    prompts: bool = True
    """It forecasts gates that have rows of prompts, too."""
    as_routed: bool = False
    """At gates of decoded rows its nearest forecast is ``gate.routed(1)``, which the metrics can
    count for the whole run at once.
    """
    reach: int | None = None
    """How many gates before its own a site is forecast, if that is always the same number."""

    def predict(self, gate: Gate) -> Iterable[Choice]:
        """Forecasts, nearest site first, best expert first inside a site. The gate's own site, for
        its next step, comes first, or last after a whole round through the stack. Yield them lazily
        where they cost something.
        """

    def observe(self, gate: Gate) -> None:
        return

    def afresh(self) -> Predictor:
        """The same predictor as before its first gate, for a second walk through the same
        gates. One that learns must say it itself.
        """
        return self


class CachePolicy(Policy, Protocol):
    """Says which keys are worth least. The controller decides which may go and how many bytes must.

    The policy of a tier hears the requests that reach the tier. A requested key need not become
    resident: it may be computed on the CPU or served from staging. ``on_evict`` is then told of it
    when its gate is over.
    """

    admits_all: bool = True
    """``admit`` is always true. The controller then never asks, and a loaded key enters its pool at
    once.
    """
    initial: str = "own"
    """What fills its pools at the start, for the summary."""
    keeps_the_most_recent: bool = False
    """Each pool holds the keys that were asked for last, in need order, and pools are of equal
    size. So more slots hold the same and more, and one pass tells every capacity's hits.
    """

    def pools(self, geometry: Geometry) -> PoolPlan:
        """Divide the bytes into pools and fill them. Called once, before the run."""

    def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        """The resident keys of the pool that are not blocked, each once, least valuable first.

        The keys come lazily. This is a question: asking, or taking only some keys, changes nothing;
        ``on_evict`` tells which were evicted. ``incoming`` is the key that needs the room.
        ``blocked`` has a byte for every key; it is one of two arrays that live for the whole run.
        """

    def first_victim(self, pool: int, incoming: int, blocked: bytearray) -> int:
        """The first of ``victims``, -1 if there is none. A policy may say it faster than by beginning
        that order; what a class below it says of ``victims`` alone goes before.
        """
        return next(self.victims(pool, incoming, blocked), -1)

    def admit(self, key: int, victims: Sequence[int]) -> bool:
        """Whether a key that was served from staging may enter its pool when its need is over.

        ``victims`` are all keys that would have to go for it.
        """
        return True

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        """One gate or wave has looked up these serving keys, in need order. ``wanted``: the
        precisions that the selector wanted; ``outcomes``: what was found.
        """
        return

    def on_insert(self, key: int, cause: Cause) -> None: ...
    def on_evict(self, key: int) -> None: ...
    def on_sequence(self, sequence: int, begins: bool) -> None:
        return


class PrecisionSelector(Policy, Protocol):
    """Names the precision (0 = highest) at which each expert of a choice is wanted, or SKIP.

    For a need of a gate it may also name another expert that serves instead
    (`sim.values.types.rerouted`).
    """

    precisions: tuple[str, ...]
    """Names of the precisions it may answer, highest first."""
    constant: int | None = None
    """The precision that it always answers, if there is one. The controller then never asks."""
    rule: ScoreRule | None = None
    """What it decides by scores alone, if anything. Where the rule says ASK of an expert, ``decide`` is
    asked."""
    reroutes: bool = False
    """It may answer with another expert."""
    held: str | None = None
    """The precision that the device's slots hold every expert at, where that is a higher one. None:
    slots hold experts as they are stored.
    """

    def missing(self) -> frozenset[tuple[int, int, int]]:
        """(precision, site, expert) of variants that are stored nowhere; asked after
        ``prepare``.
        """
        return frozenset()

    def permitted(self, score: float) -> tuple[int, ...]:
        """Every answer that ``select`` may give for an expert of this score: precisions, SKIP, and
        REROUTE for any other expert.

        Proven bounds depend on it, and so do hit ratios: a need that can only be skipped does not
        count. Who does not say it may answer anything.
        """
        if self.constant is not None:
            return (self.constant,)
        return (*range(len(self.precisions)), SKIP, *([REROUTE] if self.reroutes else []))

    def select(self, choice: Choice, resident: Resident) -> Sequence[int]: ...

    def decide(self, site: int, expert: int, resident: Resident) -> int:
        """What ``select`` answers for an expert of which ``rule`` says ASK."""
        name = type(self).__name__
        raise NotImplementedError(f"{name}.rule says ASK, and {name} has no method decide")


class Placement(Policy, Protocol):
    """Names where each need is computed: ``Place.LOAD``, ``CPU`` or ``SKIP``. Only the answers for
    absent needs count.
    """

    uses_cpu: bool = False
    """It may answer ``CPU``; a machine without a CPU is refused."""
    constant: int | None = None

    def decision_us(self, experts: int) -> float:
        """Host time after every gate for deciding among so many experts, in microseconds."""
        return 0.0

    def place(
        self, gate: Gate, keys: Sequence[int], resident: Resident, queued: Queued
    ) -> Sequence[int]: ...


class Payload(Policy, Protocol):
    """Says how many of a variant's bytes an access moves.

    Fewer than all is a partial move. More bring other bytes along (those of a whole layer), which
    are dropped on arrival.
    """

    whole: bool = False
    """Every access moves the whole variant. The controller then never asks."""
    partial: bool = False
    """An access may move less than the variant."""
    active_share: float = 1.0
    """The share of an expert's weights that one token reads."""

    def moved_bytes(self, key: int, gate: Gate, index: int) -> int:
        """The bytes that the ``index``-th need of a gate moves, 1 or more."""

    def forecast_bytes(self, key: int, choice: Choice, index: int, gate: Gate) -> int:
        """The bytes that a prefetch of the ``index``-th expert of a forecast moves, which was made
        at ``gate``.
        """

    def missing_bytes(self, key: int, gate: Gate, index: int, moved_bytes: int) -> int:
        """The bytes that the ``index``-th need must still move after a partial prefetch of
        ``moved_bytes``; 0 for none.
        """
