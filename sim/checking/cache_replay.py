"""Replays a foreign engine's lookups through a cache of this project, under a contract.

A replay is a whole simulated run over one link, without prefetches. Every load arrives before the
next gate, so durations play no part. docs/contracts/controller.md and slots.md say what each
option of a contract means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import OmegaConf

from sim.core.controller import Controller
from sim.core.loader import Loader
from sim.engine.simulate import simulate
from sim.machine.durations import FixedDurations
from sim.policies.base import CachePolicy
from sim.policies.placements import Load
from sim.policies.precisions import Fixed
from sim.policies.predictors import NoPrediction
from sim.setup.configure import configure
from sim.setup.sections import make_object
from sim.traces.residency_log import ResidencyLog
from sim.values.places import CONF
from sim.values.types import Event, Geometry, Outcome
from sim.workload.steps import Workload

LOADER_OPTIONS = ("retention", "replay_unit")
"""Options of a contract that belong to the loader; all others belong to the cache policy."""
AS_LOGGED = "as_logged"
"""The name of a replay's only precision; its bytes are those in the log."""
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Contract:
    """A claim about how a cache works: a policy and its options.

    ``policy`` names a file of ``conf/cache``. ``options`` are pairs of a name and a value, of the
    policy or from `LOADER_OPTIONS`.
    """

    policy: str
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return " ".join(
            [f"policy={self.policy}", *(f"{name}={value}" for name, value in self.options)]
        )


def policies() -> list[str]:
    """The cache policies that ``conf/`` has, by name."""
    return sorted(path.stem for path in (CONF / "cache").glob("*.yaml"))


@cache
def policy_options(policy: str) -> Mapping[str, Any]:
    """The values that the policy's file in ``conf/cache`` sets, by name.

    Raise ValueError for an unknown policy.
    """
    if policy not in policies():
        raise ValueError(f"unknown policy={policy}; known: {', '.join(policies())}")
    found = OmegaConf.to_container(configure(f"cache={policy}")[0].cache)
    assert isinstance(found, dict)
    return {str(name): value for name, value in found.items()}


def make_cache(contract: Contract) -> CachePolicy:
    """A fresh policy for ``contract``.

    Raise ValueError for options that the policy does not have, and for a policy that needs what no
    log tells: the future, or a profile.
    """
    has = policy_options(contract.policy)
    given = [f"{name}={value}" for name, value in contract.options if name not in LOADER_OPTIONS]
    try:
        options = OmegaConf.merge(dict(has), OmegaConf.from_dotlist(given))
        made: CachePolicy = make_object(options, "cache")
    # A class may refuse its options by any exception, and the user chose the options.
    except Exception as error:
        raise ValueError(f"{contract}: {error}") from error
    if made.requires.profile or made.requires.future:
        what = "the future" if made.requires.future else "a profile of other sequences"
        raise ValueError(
            f"policy={contract.policy} needs {what}, which no engine's log tells; choose another"
            " policy"
        )
    return made


@dataclass(frozen=True)
class Lapse:
    """The past of one expert before a gate, as ticks of the replay (None: never).

    These are its last load, the last gate that asked for it, and its last eviction. ``evicted_for``
    is the key that it made room for, None where it was trimmed when a batch was over.
    """

    loaded: int | None
    asked: int | None
    evicted: int | None
    evicted_for: int | None


@dataclass(frozen=True, eq=False)
class Replay:
    """The result of a replay.

    ``resident`` [N] says of each lookup of the log whether the contract's cache held its expert.
    ``controller`` and ``workload`` hold the history that led there.
    """

    resident: NDArray[np.bool_]
    controller: Controller
    workload: Workload

    @cached_property
    def _events(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """The columns call, kind, key, value and tick of the controller's events."""
        call, kind, key, value = (
            np.asarray(column, np.int64) for column in self.controller.event_columns.values()
        )
        gate_calls = np.array(self.controller.gate_calls, np.int64)
        return call, kind, key, value, np.searchsorted(gate_calls, call, side="right") - 1

    def lapse(self, key: int, tick: int, found: bool) -> Lapse:
        """The past of ``key`` at a gate, where it was ``found`` or had to be loaded."""
        call, kind, of, value, at = self._events
        issues = (kind == Event.ISSUE) & (of == key)
        now = call[issues & (at == tick)]
        # A gate evicts after its lookups, unless it looks its needs up one by one. So evictions
        # count up to the load of this key, if there is one.
        until = int(now[0]) if len(now) and not found else self.controller.gate_calls[tick] + 1
        gone = ((kind == Event.ISSUE) & (value == key)) | ((kind == Event.EVICT) & (of == key))
        loads, ends = np.flatnonzero(issues & (at < tick)), np.flatnonzero(gone & (call < until))
        asked = self.workload.needs.tick[np.array(self.controller.lookup_keys, np.int64) == key]
        asked = asked[asked < tick]
        evicted_for = None
        if len(ends):
            last = int(ends[-1])
            incoming = int(of[last] if kind[last] == Event.ISSUE else value[last])
            evicted_for = incoming if incoming >= 0 else None
        return Lapse(
            int(at[loads[-1]]) if len(loads) else None,
            int(asked[-1]) if len(asked) else None,
            int(at[ends[-1]]) if len(ends) else None,
            evicted_for,
        )

    def victims(self, key: int, tick: int) -> list[int]:
        """The keys that the replay evicted to load ``key`` at a gate."""
        _, kind, of, value, at = self._events
        mine = (at == tick) & (
            ((kind == Event.ISSUE) & (of == key)) | ((kind == Event.EVICT) & (value == key))
        )
        return [
            int(value[i] if kind[i] == Event.ISSUE else of[i])
            for i in np.flatnonzero(mine)
            if kind[i] == Event.EVICT or value[i] >= 0
        ]


class Replayer:
    """Replays one log under any number of contracts."""

    def __init__(self, log: ResidencyLog) -> None:
        self.log = log
        self.workload = Workload(log.trace, split="all")
        self.units = log.trace.header.model.experts + 1
        steps = self.workload.steps
        # The trace numbers its steps as recorded; the workload has them in the same order.
        recorded = log.trace.step[self.workload.row[[step.start for step in steps]]]
        step = np.searchsorted(recorded, log.step)
        first_tick = np.cumsum([0, *(len(step.sites) for step in steps)])
        place = {
            sites: np.searchsorted(sites, np.arange(self.workload.sites))
            for sites in {s.sites for s in steps}
        }
        visited = np.stack([place[step.sites] for step in steps])[step, log.site]
        self.tick: Ints = first_tick[step] + visited
        """The gate of each lookup of the log."""
        needs = self.workload.needs
        cells = needs.tick * self.units + needs.expert
        order = np.argsort(cells)
        self._need: Ints = order[np.searchsorted(cells[order], self.tick * self.units + log.expert)]

    @property
    def keys(self) -> Ints:
        """The key that each lookup of the log asks for."""
        return self.log.site * self.units + self.log.expert

    def replay(self, contract: Contract, budget_bytes: int) -> Replay:
        """Replay the log under ``contract`` with a cache of ``budget_bytes``.

        Raise ValueError for an impossible contract, and CapacityError (a ValueError) where the
        budget is too small.
        """
        geometry, sizes, model = (
            as_geometry(self.log, budget_bytes),
            self.log.expert_bytes,
            self.log.trace.header.model,
        )
        options: dict[str, Any] = {
            name: value for name, value in contract.options if name in LOADER_OPTIONS
        }
        loader = Loader(**options)
        controller = Controller(
            geometry, NoPrediction(), make_cache(contract), Fixed(AS_LOGGED), Load(), loader
        )
        durations = FixedDurations([0] * model.sites, 0, [0], dict.fromkeys(sizes, 1))
        simulate(controller, self.workload, durations)
        outcomes = np.array(controller.lookup_outcomes, np.int64)
        return Replay((outcomes == Outcome.HIT)[self._need], controller, self.workload)


def as_geometry(log: ResidencyLog, budget_bytes: int) -> Geometry:
    """The log's experts, at one precision, with the sizes in the log."""
    sizes, model = log.expert_bytes, log.trace.header.model
    return Geometry(
        model.sites,
        model.experts,
        model.top_k,
        (AS_LOGGED,),
        (8.0,),
        (max(sizes),),
        budget_bytes,
        (sizes,),
    )


def deviations(log: ResidencyLog, replay: Replay) -> Ints:
    """The lookups whose logged flag differs from what the replay found, in the log's order."""
    return np.flatnonzero(log.resident != replay.resident)
