"""A foreign engine's lookups through a cache of this project, under a contract, and what that cache
did.

The replay is a whole simulated run over one link, without prefetches; what is asked for is there
before the next gate, so durations play no part (docs/design.md sections 4 and 5 say what each
option means).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from hydra import compose, initialize_config_dir
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from numpy.typing import NDArray
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sim.core.controller import Controller
from sim.core.loader import Loader
from sim.engine.simulate import simulate
from sim.machine.costs import FixedDurations
from sim.policies.placements import Load
from sim.policies.precisions import Fixed
from sim.policies.predictors import NoPrediction
from sim.traces.residency_log import ResidencyLog
from sim.values.places import CONF
from sim.values.types import Event, Geometry, Outcome
from sim.workload.steps import Workload

LOADER_OPTIONS = ("retention", "replay_unit")
"""Options of a contract that are the loader's; all others are the cache policy's."""
AS_LOGGED = "as_logged"
"""The one precision of a replay: bytes are the log's."""
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Contract:
    """A cache as it is said to work: a file of ``conf/cache`` and options (the policy's own, and
    `LOADER_OPTIONS`).
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
    """What a file of ``conf/cache`` sets, by name. Raise ValueError for a policy that is none of
    them.
    """
    if policy not in policies():
        raise ValueError(f"unknown policy={policy}; known: {', '.join(policies())}")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        found = OmegaConf.to_container(compose(f"cache/{policy}").cache)
    assert isinstance(found, dict)
    return {str(name): value for name, value in found.items()}


def make_cache(contract: Contract) -> Any:
    """A fresh policy. Raise ValueError for options it does not have, and for what a log cannot
    tell it.
    """
    has = policy_options(contract.policy)
    known = [name for name in has if name != "_target_"]
    given = {name: value for name, value in contract.options if name not in LOADER_OPTIONS}
    if unknown := [name for name in given if name not in known]:
        raise ValueError(
            f"policy={contract.policy} has no option {', '.join(unknown)}; it has "
            f"{', '.join([*known, *LOADER_OPTIONS])}"
        )
    try:
        parsed = OmegaConf.from_dotlist([f"{name}={value}" for name, value in given.items()])
        made = instantiate({**has, **parsed}, _convert_="all")
    except (InstantiationException, OmegaConfBaseException) as error:
        raise ValueError(f"{contract}: {error.__cause__ or error}") from error
    if getattr(made, "needs_profile", False) or hasattr(made, "foresee"):
        what = "the future" if hasattr(made, "foresee") else "a profile of other sequences"
        raise ValueError(
            f"policy={contract.policy} needs {what}, which no engine's log tells; choose another"
            " policy"
        )
    return made


@dataclass(frozen=True)
class Lapse:
    """Of one expert before a gate, as ticks of the replay (None: never): its last load, the last
    gate that asked for it, its last eviction, the key that it was evicted for (None: trimmed when
    its batch was over)."""

    loaded: int | None
    asked: int | None
    evicted: int | None
    evicted_for: int | None


@dataclass(frozen=True, eq=False)
class Replay:
    """What a contract's cache found: ``resident`` [N] by the log's lookups; and how it came to
    that.
    """

    resident: NDArray[np.bool_]
    controller: Controller
    workload: Workload

    @cached_property
    def _events(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """Call, kind, key, value and tick of each event."""
        events = np.array(self.controller.events, np.int64).reshape(-1, 4)
        gate_calls = np.array(self.controller.gate_calls, np.int64)
        tick = np.searchsorted(gate_calls, events[:, 0], side="right") - 1
        return events[:, 0], events[:, 1], events[:, 2], events[:, 3], tick

    def lapse(self, key: int, tick: int, found: bool) -> Lapse:
        """The past of ``key`` at a gate, where it was ``found`` or had to be loaded."""
        call, kind, of, value, at = self._events
        issues = (kind == Event.ISSUE) & (of == key)
        now = call[issues & (at == tick)]
        # What the gate itself evicts comes after its lookups, unless it looks its needs up one by
        # one.
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
        """What the replay evicted to load ``key`` at a gate."""
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
    """One log, to be replayed under any number of contracts."""

    def __init__(self, log: ResidencyLog) -> None:
        self.log = log
        self.workload = Workload(log.trace, split="all")
        self.units = log.trace.header.model.experts + 1
        steps = self.workload.steps
        # Steps of the trace are numbered as recorded; the workload's are in the same order.
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
        order = np.argsort(cells, kind="stable")
        self._need: Ints = order[np.searchsorted(cells[order], self.tick * self.units + log.expert)]

    @property
    def keys(self) -> Ints:
        """The key that each lookup of the log asks for."""
        return self.log.site * self.units + self.log.expert

    def replay(self, contract: Contract, budget_bytes: int) -> Replay:
        """Raise ValueError (CapacityError among them) for a contract that cannot be, or not with
        this budget.
        """
        geometry, sizes, model = (
            as_geometry(self.log, budget_bytes),
            self.log.expert_bytes,
            self.log.trace.header.model,
        )
        loader = Loader(
            **{name: value for name, value in contract.options if name in LOADER_OPTIONS}
        )  # type: ignore[arg-type]
        controller = Controller(
            geometry, NoPrediction(), make_cache(contract), Fixed(AS_LOGGED), Load(), loader
        )
        durations = FixedDurations([0] * model.sites, 0, [0], dict.fromkeys(sizes, 1))
        simulate(controller, self.workload, durations)
        outcomes = np.array(controller.lookup_outcomes, np.int64)
        return Replay((outcomes == Outcome.HIT)[self._need], controller, self.workload)


def as_geometry(log: ResidencyLog, budget_bytes: int) -> Geometry:
    """The log's experts at the one precision that they are logged at."""
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
    """The lookups whose flag is not what the replay found, in the log's order."""
    return np.flatnonzero(log.resident != replay.resident)
