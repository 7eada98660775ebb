"""What a policy must know before its first question: how it asks, and what it is given.

A policy declares ``requires``, and its ``prepare`` receives exactly that. So whoever builds a run
needs to know no policy by its class, and a policy cannot use what it did not declare: that it is
told the future, or was fitted, stands in the labels of its run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sim.policies.profile import Profile
from sim.values.types import Geometry
from sim.values.units import require_number

Arrays = Mapping[str, NDArray[Any]]
Track = Callable[[Iterable[int]], Iterable[int]]
"""Shows how far a fit is; it gives back what it is given."""
Value = TypeVar("Value")
RECORDED: Mapping[str, str] = {
    "rows": "which token chose which expert",
    "order": "the rank of a token's experts",
    "sequences": "which sequence a token belongs to",
}
"""What a recording can leave out that a policy reads, by its word in `Header.lacks`."""


def end_of_stack(site: int, *ends: int) -> int:
    """Where the stack of ``site`` ends, of stacks with these ``ends``, ascending."""
    return next(end for end in ends if site < end)


class FitError(ValueError):
    """The content of a fit does not suit the policy. Whoever read the file adds its name."""


class PolicyError(ValueError):
    """What a policy did that cannot be. It says which policy, which of its methods, and where."""

    def add_gate(self, step: int, site: int) -> None:
        """Tell the gate of the run, too."""
        self.args = (f"{self} (at step {step}, site {site})",)


def name_of(policy: object) -> str:
    """The class of a policy, as errors name it: of a module of one's own with that."""
    kind = type(policy)
    is_own = kind.__module__.partition(".")[0] not in ("sim", "real", "capture")
    return f"{kind.__module__}.{kind.__qualname__}" if is_own else kind.__qualname__


@dataclass(frozen=True)
class Shape:
    """Sites and experts of a model. The first ``encoder_sites`` sites are an encoder's, visited
    by prompts alone. The last ``draft_sites`` draft tokens, in steps of their own.
    """

    sites: int
    experts: int
    top_k: int
    encoder_sites: int = 0
    draft_sites: int = 0

    def last(self, site: int) -> int:
        """The last site of the stack that ``site`` is in: no forecast goes beyond it."""
        return end_of_stack(site, self.encoder_sites, self.sites - self.draft_sites, self.sites) - 1


@dataclass(frozen=True)
class Sample:
    """N rows of tokens to fit on.

    ``ids`` [N, S, K] are the chosen experts in need order; -1 where a choice was dropped or the row
    does not visit the site. ``sequence`` [N] is the sequence's number, ``token`` [N] the token's
    id, -1 where unknown.
    """

    shape: Shape
    ids: NDArray[np.integer]
    sequence: NDArray[np.integer]
    token: NDArray[np.integer]

    def members(self, site: int) -> NDArray[np.bool_]:
        """[N, E]: which row chose which expert at a site."""
        member = np.zeros((len(self.ids), self.shape.experts + 1), np.bool_)
        member[np.arange(len(self.ids))[:, None], self.ids[:, site]] = (
            True  # -1 falls into the column behind
        )
        return member[:, :-1]

    def visits(self, site: int) -> NDArray[np.bool_]:
        """[N]: which rows chose any expert at a site."""
        return np.asarray((self.ids[:, site] >= 0).any(axis=1))


@dataclass(frozen=True)
class FitFile:
    """The file that a policy wants its knowledge from.

    ``kind`` names what was fitted. ``parameters`` are the policy's choices that a fit depends on: a
    file of other choices is refused (None: the policy looks at them itself). ``artefact`` is the
    .json file, None the one in the folder ``fits`` of the run's trace, or that comes with the
    project for it; where there is none the run is refused, or the policy does without it if it is
    ``optional``.

    ``learn`` makes the arrays from rows of a trace (``moelab fit``); raise ValueError where
    the rows do not tell them. Where it is None, ``command`` says what makes the file; ``TRACE``
    in it stands for the trace's folder.

    ``learnt``: the file generalises from the sequences that it lists, so a run of these sequences
    is refused. False: it records facts of rows, which a run may replay.
    """

    kind: str
    parameters: Mapping[str, str | int] | None = None
    artefact: str | None = None
    learn: Callable[[Sample, Track], dict[str, NDArray[Any]]] | None = None
    command: str = "fit predictor=... trace.path=TRACE output_dir=TRACE/fits"
    optional: bool = False
    learnt: bool = True

    @property
    def name(self) -> str:
        """The file's name without its suffix: the kind, and the parameters' values."""
        return "-".join([self.kind, *map(str, (self.parameters or {}).values())])


@dataclass(frozen=True)
class Fitted:
    """What a fit's file holds: its ``parameters``, and its ``arrays`` by name."""

    parameters: Mapping[str, str | int]
    arrays: Arrays


@dataclass(frozen=True)
class FutureNeeds:
    """The needs of every gate of a run, by tick: its step and site, and the needs in need order
    with their gate weights (sums over the rows that chose them).

    ``precision`` is the one at which every need is wanted, None where the selector decides it at
    the gate.
    """

    units: int
    step: Sequence[int]
    site: Sequence[int]
    needs: Sequence[Sequence[int]]
    weights: Sequence[Sequence[float]]
    precision: int | None = None

    def keys(self, geometry: Geometry) -> list[list[int]]:
        """The keys that each gate needs, by tick, in need order. Raise ValueError where they depend
        on what the selector decides.
        """
        if self.precision is None:
            raise ValueError(
                "a cache that knows the future (cache=belady) needs one precision for all experts;"
                " choose precision=fp16 or another fixed one"
            )
        return [
            [geometry.key(self.precision, site, expert) for expert in needs]
            for site, needs in zip(self.site, self.needs, strict=True)
        ]


@dataclass(frozen=True)
class Requires:
    """What a policy must be given, or find in its gates. Every default means: nothing.

    The first six are looked for in the trace; a trace without them is refused by name. The others
    are given to ``prepare``.
    """

    lookahead_sites: int = 0
    """Gates offer the lookahead scores of so many sites after theirs."""
    row_scores: str | None = None
    """It reads each row's own lookahead scores, of this norm (``raw``, ``renormed``) alone. A
    prompt of which only the rows' choices together were kept has none.
    """
    gate_inputs: bool = False
    """Gates offer ``gate_input``."""
    recorded: tuple[str, ...] = ()
    """What the recording must tell (contract C92): ``rows``, which token chose which expert; their
    ``order``, or ranks; ``sequences``, whose the tokens are.
    """
    preferences: bool = False
    """Gates offer ``preferences``: the trace keeps logits and routing rules."""
    active_shares: bool = False
    """Gates offer ``share``; ``prepare`` is given the sparsities that the trace recorded."""
    fit: FitFile | None = None
    profile: bool = False
    """What the trace's ``fit`` sequences chose."""
    future: bool = False
    """The run's own needs, which no system can know: the run is labelled so."""

    def __post_init__(self) -> None:
        require_number("Requires: lookahead_sites", self.lookahead_sites, whole=True)
        words: object = self.recorded
        if not isinstance(words, tuple) or not {*words} <= {*RECORDED}:
            raise ValueError(
                f"Requires: recorded={words!r} must be a tuple of {', '.join(RECORDED)}"
            )


NOTHING = Requires()


class Given:
    """What a policy is given before its first question: ``shape`` always, of the rest what it
    ``requires``. To read anything else raises RuntimeError, which names the missing declaration.
    """

    def __init__(
        self,
        shape: Shape,
        geometry: Geometry | None = None,
        *,
        fit: Fitted | None = None,
        profile: Profile | None = None,
        future: FutureNeeds | None = None,
        sparsities: Sequence[float] | None = None,
    ) -> None:
        self.shape = shape
        self.has_fit = fit is not None
        """False where a fit is optional and there is none."""
        self._geometry, self._fit, self._profile = geometry, fit, profile
        self._future, self._sparsities = future, sparsities

    @property
    def geometry(self) -> Geometry:
        """Every variant and its bytes. A selector decides the variants, so it is prepared before
        there is a geometry, and cannot read it.
        """
        if self._geometry is None:
            raise RuntimeError("a selector is prepared before there is a geometry: it decides it")
        return self._geometry

    @property
    def fit(self) -> Fitted:
        return _declared(self._fit, "fit=FitFile(...)")

    @property
    def profile(self) -> Profile:
        return _declared(self._profile, "profile=True")

    @property
    def future(self) -> FutureNeeds:
        return _declared(self._future, "future=True")

    @property
    def sparsities(self) -> Sequence[float]:
        """The sparsities at which the trace recorded active shares, in the order of its columns."""
        return _declared(self._sparsities, "active_shares=True")


def _declared(value: Value | None, declaration: str) -> Value:
    if value is None:
        raise RuntimeError(
            f"this policy did not ask for it; declare requires = Requires({declaration})"
        )
    return value
