"""The policy contracts.

A method answers or learns, never both: questions (``predict``, ``victims``, ``admit``, ``select``,
``place``) leave the object unchanged and may be asked twice; notifications (``observe``, ``on_*``)
return nothing. Every order is total. Arguments are read-only and valid during the call.

A policy may inherit its protocol. What it does not say itself is then the protocol's default: it
needs nothing, learns nothing and does nothing special.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sim.policies.requires import NOTHING, Given, Requires
from sim.values.types import Cause, Geometry, PoolPlan

IntArray = NDArray[np.integer]
FloatArray = NDArray[np.floating]


class Choice(Protocol):
    """What a router selected at a site, or is forecast to select.

    ``needs`` are the experts of the union in need order (one row: descending weight, then id;
    several rows: descending token count, then id), ``keys`` the same as keys of precision 0 (a
    list, but read-only), ``tokens`` how many rows chose each, ``scores`` HOBBIT's eq. 2 score of
    each (share of gate weight ranked above it, 0 to 1; over several rows the smallest). ``experts``
    and ``weights`` are the rows themselves, [R, K], -1 where a slot is dropped, null or padding.
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
    """One (step, site). ``tick`` counts gates in the run, ``token`` the sequence's tokens so
    far, prompt included.
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
        """Ids of the rows' tokens, -1 where unknown."""

    @property
    def gate_input(self) -> FloatArray | None:
        """What the site's router reads, [R, H]; None where it is not at hand."""

    @property
    def preferences(self) -> FloatArray | None:
        """What the site's rule chooses by, higher first [R, E]; None where its scores are not at
        hand.
        """

    @property
    def share(self) -> FloatArray | None: ...
    def forecasts(self, sites: int) -> Sequence[Choice]:
        """``routed(1)``, ``routed(2)``, ... up to so many sites, as far as there are any;
        read-only.
        """

    def routed(self, j: int) -> Choice | None:
        """What site + j's own rule selects from the lookahead scores; None where there are none."""

    def lookahead(self, j: int) -> FloatArray | None:
        """The raw lookahead scores of site + j, [R, E]; None where there are none."""


class Resident(Protocol):
    """Read access to what the device holds now."""

    def has(self, precision: int, site: int, expert: int) -> bool: ...
    def expert_of(self, key: int) -> int: ...
    @property
    def foreseen(self) -> Sequence[int]:
        """The experts last forecast for the site of the gate, best first; () where there were
        none.
        """


class Queued(Protocol):
    """Read access to what waits for a link now."""

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
    """``observe`` does something: else it is never called."""
    silent: bool = False
    """It never forecasts anything, so that nothing waits for it and no number tells of it."""
    prompts: bool = True
    """It forecasts gates that have rows of prompts, too."""
    as_routed: bool = False
    """Of gates with decoded rows its nearest forecast is ``gate.routed(1)``, which the metrics know
    for the whole run at once.
    """

    def predict(self, gate: Gate) -> Iterable[Choice]:
        """Forecasts, lazily where they cost something: nearest site first (that may be the gate's
        own, for its next step), best expert first inside a site.
        """

    def observe(self, gate: Gate) -> None:
        return

    def afresh(self) -> Predictor:
        """The same predictor before its first gate, for a second walk through the same gates."""


class CachePolicy(Policy, Protocol):
    """Says which keys are worth least; the controller says which may go and how many bytes must.

    A tier's policy hears the requests that reach the tier. A requested key need not become resident
    (it may be computed on the CPU or served from staging): ``on_evict`` is told of it when its gate
    is over.
    """

    admits_all: bool = True
    """``admit`` is always true: the controller then never asks, and what is loaded goes into its
    pool at once.
    """
    initial: str = "own"
    """What fills its pools at the start, for the summary."""

    def pools(self, geometry: Geometry) -> PoolPlan:
        """Called once, before the run."""

    def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        """Resident keys of the pool that are not blocked, each once, least valuable first, lazily.

        A question: asking, or taking only some, changes nothing. What is evicted is told by
        ``on_evict``.

        ``blocked`` is one of two bytearrays over all keys that live for the whole run.
        """

    def admit(self, key: int, victims: Sequence[int]) -> bool:
        """Whether a key that was served from staging, and whose need is over, may enter its pool in
        place of these victims, which are all that would have to go for it."""
        return True

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        """The serving keys looked up by one gate or wave, in need order; the precisions wanted;
        what was found.
        """
        return

    def on_insert(self, key: int, cause: Cause) -> None: ...
    def on_evict(self, key: int) -> None: ...
    def on_sequence(self, sequence: int, begins: bool) -> None:
        return


class PrecisionSelector(Policy, Protocol):
    """Names the precision (0 = highest) at which each expert of a choice is wanted, or SKIP; of a
    gate's needs also another expert that serves instead (`sim.values.types.rerouted`).
    """

    precisions: tuple[str, ...]
    """Names of the precisions it may answer, highest first."""
    constant: int | None = None
    """The precision it always answers, if it does: the controller then never asks."""
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
        """Every answer ``select`` may give for an expert of this score: SKIP too, and REROUTE for
        any other expert.

        Proven bounds go by it, and hit ratios: a need that can only be skipped does not count.
        """

    def select(self, choice: Choice, resident: Resident) -> Sequence[int]: ...


class Placement(Policy, Protocol):
    """Names where each need is computed: ``Place.LOAD``, ``CPU`` or ``SKIP``; it counts for
    needs that are absent.
    """

    uses_cpu: bool = False
    """It may answer ``CPU``: a machine without one is refused."""
    constant: int | None = None

    def decision_us(self, experts: int) -> float:
        """Host time after every gate for deciding among so many experts, in microseconds."""
        return 0.0

    def place(
        self, gate: Gate, keys: Sequence[int], resident: Resident, queued: Queued
    ) -> Sequence[int]: ...


class Payload(Policy, Protocol):
    """Says how many of a variant's bytes an access moves. Fewer than all is a partial move; more
    bring other bytes along (a whole layer's), which are gone when they have arrived.
    """

    whole: bool = False
    """Every access moves the whole variant: the controller then never asks."""
    partial: bool = False
    """An access may move less than the variant."""
    active_share: float = 1.0
    """Of what moves, the share of weights that one token reads."""

    def moved_bytes(self, key: int, gate: Gate, index: int) -> int:
        """Bytes that the ``index``-th need of a gate must have there, or brings along; 1 or
        more.
        """

    def forecast_bytes(self, key: int, choice: Choice, index: int, gate: Gate) -> int:
        """The same of the ``index``-th expert of a forecast that was made at ``gate``."""

    def missing_bytes(self, key: int, gate: Gate, index: int, moved_bytes: int) -> int:
        """Of what the ``index``-th need must have, the bytes that a partial prefetch of
        ``moved_bytes`` lacks.
        """
