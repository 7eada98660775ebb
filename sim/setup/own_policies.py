"""What policies of one's own answer is checked where it enters a run.

The project's own policies are held to their contracts by tests, and nothing here slows them down. A
class from elsewhere is only known to have the right names. Its answers go into lists of the decision
core as indices, where a wrong one names another expert, or ends as an error that names no policy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sim.policies.base import Choice, Gate, Policy
from sim.policies.requires import PolicyError
from sim.policies.row_forecast import RowForecast
from sim.setup.own_arguments import FIRST, watched
from sim.setup.own_failures import Answers, is_own
from sim.setup.own_said import INTERFACES
from sim.values.types import REROUTE, SKIP, Geometry, Place, PoolPlan

Said = list[tuple[int, ...]]
"""What was forecast at a gate: a site and its experts, one by one."""


def check_answers(policies: Mapping[str, Policy], geometry: Geometry) -> None:
    """From now on raise ValueError for what a policy of one's own answers that cannot be.

    The policy becomes of a class derived from its own, whose questions check what they answer. So
    copies of it are checked, too, and whoever asks for its class or name sees no difference.
    """
    for section, policy in policies.items():
        own = type(policy)
        if is_own(own) or "_is_checked" in vars(own):
            continue
        at = Answers(section, policy)
        own = watched(at.who, policy, INTERFACES[section])
        about = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__slots__": ()}
        questions = {"told": _told(at, own), **_QUESTIONS[section](at, own, geometry)}
        kind: Any = type(own)
        checked = kind(own.__name__, (own,), {**about, "_is_checked": True, **questions})
        object.__setattr__(policy, "__class__", checked)


# ---- what policies answer

Questions = dict[str, Callable[..., Any] | property]


def _told(at: Answers, own: Any) -> Callable[..., Any]:
    """What a policy tells of itself, which becomes a part of a summary: plain values by name."""

    def told(self: Any, sequences: Collection[int]) -> Mapping[str, Any]:
        found = own.told(self, sequences)
        if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
            at.refuse("told", found, "a dict of texts and their values")
        plain = {
            name: value.tolist() if isinstance(value, np.generic | np.ndarray) else value
            for name, value in found.items()
        }
        try:
            json.dumps(plain, allow_nan=False)
        except (TypeError, ValueError):
            at.refuse("told", found, "of what JSON can hold: text, finite numbers, lists, dicts")
        return plain

    return told


def _of_predictor(at: Answers, own: Any, geometry: Geometry) -> Questions:
    run: dict[tuple[int, int], Said] = {}
    """What was said at the first gates of the run."""
    fresh: list[Any] = []

    def predict(self: Any, gate: Gate) -> Iterator[Choice]:
        said: Said | None = None
        before: Said | None = None
        # It says the same when it walks through the same gates afresh, as metrics do.
        if fresh and any(one is self for one in fresh):
            before = run.get((gate.step, gate.site))
        elif len(run) < FIRST:
            said = run[gate.step, gate.site] = []
        site, away, count = gate.site, -1, 0
        for choice in at.each("predict", own.predict(self, gate), "the Choices that it forecasts"):
            _check_forecast(at, choice, geometry)
            if not len(choice.needs):
                continue
            far = (choice.site - site) % geometry.sites
            far = geometry.sites if not far and count else far
            if far <= away:
                must = f"each once, the nearest first, seen from site {site}"
                at.refuse("predict: site", choice.site, must)
            away, count = far, count + 1
            if said is not None:
                said.append(_plainly(choice))
            elif before is not None and count <= len(before):
                _check_afresh(at, _plainly(choice), before[count - 1], gate)
            yield choice
        if before is not None and count < len(before):
            _check_afresh(at, (), before[count], gate)

    def afresh(self: Any) -> Any:
        found = own.afresh(self)
        if not isinstance(found, own.__mro__[1]) or (found is self and self.learns):
            at.refuse("afresh", found, "another predictor of this class, as before its first gate")
        object.__setattr__(found, "__class__", type(self))
        fresh.append(found)
        return found

    return {"predict": predict, "afresh": afresh}


def _plainly(choice: Choice) -> tuple[int, ...]:
    return (int(choice.site), *map(int, choice.needs))


def _check_afresh(at: Answers, now: tuple[int, ...], then: tuple[int, ...], gate: Gate) -> None:
    """Refuse what is said now where the run's own predictor said something else at the same gate."""
    if now != then:
        told = f"site {now[0]} experts {[*now[1:]]}" if now else "nothing more"
        raise PolicyError(
            f"{at.who}: `afresh` gives a predictor that forecasts {told} at step {gate.step}, site"
            f" {gate.site}, where the run's own forecast site {then[0]} experts {[*then[1:]]}: it"
            " must be as before its first gate, and share nothing that `observe` changes"
        )


def _check_forecast(at: Answers, choice: Choice, geometry: Geometry) -> None:
    """Refuse a forecast that names no experts of one site, each once, or that ranks them by NaN."""
    is_foreign = not is_own(type(choice))
    for name in ("site", "needs", "keys", "tokens", "experts", "weights") if is_foreign else ():
        if not hasattr(choice, name):
            at.refuse("predict", choice, f"Choices, such as RowForecast; this one has no `{name}`")
    site = at.whole("predict: site", choice.site, 0, geometry.sites - 1)
    last = geometry.experts - 1
    count = len(choice.needs)
    needs = at.wholes("predict: needs", choice.needs, count, 0, last, "each an expert")
    if len(set(needs)) < count:
        at.refuse("predict: needs", choice.needs, "different experts")
    keys = [site * geometry.units + expert for expert in needs]
    if list(choice.keys) != keys:
        at.refuse("predict: keys", choice.keys, f"{keys}, the keys of `needs` at precision 0")
    if len(choice.tokens) != count:
        at.refuse("predict: tokens", choice.tokens, f"{count} numbers, one for each need")
    if not (is_foreign or isinstance(choice, RowForecast)):
        return
    experts, weights = np.asarray(choice.experts), np.asarray(choice.weights)
    if experts.ndim != 2 or weights.shape != experts.shape:
        must = f"an array [rows, n] as `experts` is, which is {list(experts.shape)}"
        at.refuse("predict: weights", choice.weights, must)
    if not (np.isfinite(weights) & (weights >= 0)).all():
        at.refuse("predict: weights", choice.weights, "finite and not negative")


def _of_selector(at: Answers, own: Any, geometry: Geometry) -> Questions:
    count = len(geometry.precisions)

    def select(self: Any, choice: Choice, resident: Any) -> Sequence[int]:
        is_gate = hasattr(choice, "tick")
        most = count - 1 if not (self.reroutes and is_gate) else (geometry.experts + 1) * count - 1
        what = "a precision or -1 (SKIP) for each need"
        found = own.select(self, choice, resident)
        wanted = at.wholes("select", found, len(choice.needs), -1, most, what)
        for need, one in zip(choice.needs, wanted, strict=True):
            if SKIP < one < count and geometry.key(one, choice.site, need) in geometry.missing:
                told = geometry.name_of(geometry.key(one, choice.site, need))
                at.refuse(
                    "select", found, f"without {told}, which `missing` says is stored nowhere"
                )
        if is_gate:
            for one, score in zip(wanted, choice.scores, strict=True):
                may = self.permitted(score)
                if one not in may and not (one >= count and REROUTE in may):
                    must = f"among {may}, which `permitted` says of a need of score {score:g}"
                    at.refuse("select", one, must)
        return wanted

    def permitted(self: Any, score: float) -> tuple[int, ...]:
        must = "some of the precisions, SKIP and REROUTE, as a tuple"
        found = own.permitted(self, score)
        if not isinstance(found, tuple) or not found:
            at.refuse("permitted", found, must)
        return tuple(at.wholes("permitted", found, len(found), REROUTE, count - 1, must))

    def rule(self: Any) -> None:
        """Nothing is decided for many gates at once, so that ``select`` is asked, and checked, at each."""

    return {"select": select, "permitted": permitted, "rule": property(rule)}


def _of_placement(at: Answers, own: Any, geometry: Geometry) -> Questions:
    def place(self: Any, gate: Gate, keys: Sequence[int], *others: Any) -> Sequence[int]:
        found = own.place(self, gate, keys, *others)
        places = at.wholes(
            "place", found, len(keys), min(Place), max(Place), "a Place for each key"
        )
        if Place.CPU in places and not self.uses_cpu:
            at.refuse("place", found, "without Place.CPU, or say uses_cpu = True")
        if self.constant is not None and set(places) - {self.constant}:
            at.refuse("place", found, f"{self.constant} throughout, as `constant` says")
        return places

    return {"place": place}


def _of_cache(at: Answers, own: Any, geometry: Geometry) -> Questions:
    must = "an iterator over resident keys of the pool that are not blocked, each once"

    def victims(self: Any, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        named: set[int] = set()
        for key in at.each("victims", own.victims(self, pool, incoming, blocked), must):
            victim = at.whole("victims: a key", key, 0, len(blocked) - 1)
            if victim in named:
                at.refuse("victims: a key", key, "named once")
            named.add(victim)
            yield victim

    def admit(self: Any, key: int, victims: Sequence[int]) -> bool:
        found = own.admit(self, key, victims)
        if not isinstance(found, bool | np.bool_):
            at.refuse("admit", found, "True or False")
        return bool(found)

    def pools(self: Any, geometry: Geometry) -> PoolPlan:
        return _checked_plan(at, own.pools(self, geometry), geometry)

    return {"victims": victims, "admit": admit, "pools": pools}


def _checked_plan(at: Answers, plan: PoolPlan, geometry: Geometry) -> PoolPlan:
    """The plan with plain numbers."""
    if not isinstance(plan, PoolPlan):
        at.refuse("pools", plan, "a PoolPlan of sim.values.types")
    keys, room = geometry.num_keys, geometry.capacity_bytes
    count = len(plan.capacity_bytes)
    capacity = at.wholes(
        "pools: capacity_bytes", plan.capacity_bytes, count, 0, room, "bytes, one for each pool"
    )
    if not capacity or sum(capacity) > room:
        at.refuse("pools: capacity_bytes", plan.capacity_bytes, f"at most {room} B together")
    pool_of = at.wholes("pools: pool_of", plan.pool_of, keys, 0, count - 1, "a pool for each key")
    filled = (*at.each("pools: initial", plan.initial, "keys"),)
    initial = at.wholes("pools: initial", filled, len(filled), 0, keys - 1, "each a key")
    wrong = [k for k in initial if k in geometry.missing or k % geometry.units == geometry.experts]
    if wrong or len(set(initial)) < len(initial):
        at.refuse("pools: initial", plan.initial, "keys of experts, each once")
    return PoolPlan(tuple(capacity), pool_of, tuple(initial))


def _of_payload(at: Answers, own: Any, geometry: Geometry) -> Questions:
    everything = sum(geometry.key_bytes)

    def moved_bytes(self: Any, key: int, gate: Gate, place: int) -> int:
        found = own.moved_bytes(self, key, gate, place)
        return at.whole("moved_bytes", found, 1, everything, "bytes: ")

    def forecast_bytes(self: Any, key: int, choice: Choice, place: int, gate: Gate) -> int:
        found = own.forecast_bytes(self, key, choice, place, gate)
        return at.whole("forecast_bytes", found, 1, everything, "bytes: ")

    def missing_bytes(self: Any, key: int, gate: Gate, place: int, moved_bytes: int) -> int:
        found = own.missing_bytes(self, key, gate, place, moved_bytes)
        return at.whole("missing_bytes", found, 0, geometry.key_bytes[key], "bytes: ")

    return {
        "moved_bytes": moved_bytes,
        "forecast_bytes": forecast_bytes,
        "missing_bytes": missing_bytes,
    }


_QUESTIONS: Mapping[str, Callable[[Answers, Any, Geometry], Questions]] = {
    "predictor": _of_predictor,
    "cache": _of_cache,
    "ram_cache": _of_cache,
    "precision": _of_selector,
    "placement": _of_placement,
    "payload": _of_payload,
}
