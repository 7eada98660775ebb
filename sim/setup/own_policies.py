"""What policies of one's own say and answer is checked where it enters a run.

The project's own policies are held to their contracts by tests, and nothing here slows them down. A
class from elsewhere is only known to have the right names. Its answers go into lists of the decision
core as indices, where a wrong one names another expert, or ends as an error that names no policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from operator import index
from typing import Any, NoReturn

import numpy as np

from sim.machine.model import Model
from sim.machine.precision import PRECISION_BITS
from sim.policies.base import (
    CachePolicy,
    Choice,
    Gate,
    Payload,
    Placement,
    Policy,
    PrecisionSelector,
    Predictor,
)
from sim.policies.requires import Requires
from sim.policies.row_forecast import RowForecast
from sim.setup.own_arguments import check_takes, is_own, watched
from sim.values.types import REROUTE, Geometry, Place, PoolPlan

_INTERFACES: Mapping[str, type] = {
    "predictor": Predictor,
    "cache": CachePolicy,
    "ram_cache": CachePolicy,
    "precision": PrecisionSelector,
    "placement": Placement,
    "payload": Payload,
}
PAGE = "docs/add_policy.md and sim/policies/base.py say what it must answer"


def check_said(policies: Mapping[str, Policy], model: Model) -> None:
    """Raise ValueError for what a policy of one's own, by section, says of itself that cannot be,
    and for an object that is no policy of its section.
    """
    for section, policy in policies.items():
        made: type = type(policy)
        if made is dict:
            raise ValueError(
                f"{section}: the chosen file has no _target_, the class that it makes; add"
                " _target_: MODULE.CLASS to it"
            )
        at, interface = _Answers(section, policy), _INTERFACES[section]
        names = {name for name in dir(interface) if not name.startswith("_")}
        names |= {*interface.__annotations__}
        # ``dir`` of an object makes CPython 3.11 look up all its methods anew at each call.
        missing = names - {*dir(type(policy))}
        if lacking := sorted(missing and missing - {*dir(policy)}):
            inherits = interface in type(policy).__mro__
            way = "say it in the class, as" if inherits else "let it inherit"
            raise ValueError(
                f"{at.who} has no {', '.join(lacking)}; {way}"
                f" sim.policies.base.{interface.__name__}{' does' if inherits else ''}"
            )
        if is_own(type(policy)):
            continue
        check_takes(at.who, policy, interface)
        if not isinstance(policy.requires, Requires):
            at.refuse("requires", policy.requires, "a Requires of sim.policies.requires")
        said = _SAID.get(section)
        if said is not None:
            said(at, policy, model)


def check_answers(policies: Mapping[str, Policy], geometry: Geometry) -> None:
    """From now on raise ValueError for what a policy of one's own answers that cannot be.

    The policy becomes of a class derived from its own, whose questions check what they answer. So
    copies of it are checked, too, and whoever asks for its class or name sees no difference.
    """
    for section, policy in policies.items():
        own = type(policy)
        if is_own(own) or "_is_checked" in vars(own):
            continue
        at = _Answers(section, policy)
        own = watched(at.who, own, _INTERFACES[section])
        about = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__slots__": ()}
        questions = _QUESTIONS[section](at, own, geometry)
        kind: Any = type(own)
        checked = kind(own.__name__, (own,), {**about, "_is_checked": True, **questions})
        object.__setattr__(policy, "__class__", checked)


class _Answers:
    """Who answers, and refusals that name them."""

    def __init__(self, section: str, policy: Policy) -> None:
        self.who = f"{section}: {type(policy).__module__}.{type(policy).__qualname__}"

    def refuse(self, question: str, found: object, must: str) -> NoReturn:
        told = repr(found)
        told = told if len(told) <= 200 else f"{told[:200]} .."
        raise ValueError(
            f"{self.who}: `{question}` is {told} ({type(found).__name__}), and must be {must};"
            f" {PAGE}"
        )

    def each(self, question: str, found: object, must: str) -> Iterator[Any]:
        """What is found, one by one."""
        if not isinstance(found, Iterable) or isinstance(found, str):
            self.refuse(question, found, must)
        return iter(found)

    def whole(self, question: str, found: object, least: int, most: int, what: str = "") -> int:
        """A whole number from ``least`` to ``most``."""
        try:
            number = index(found)  # type: ignore[arg-type]
        except TypeError:
            number = least - 1
        if not least <= number <= most:
            self.refuse(question, found, f"{what}a whole number from {least} to {most}")
        return number

    def wholes(
        self, question: str, found: object, count: int, least: int, most: int, what: str
    ) -> list[int]:
        """As many whole numbers."""
        must = f"{count} whole numbers from {least} to {most}, {what}"
        try:
            numbers = [index(one) for one in self.each(question, found, must)]
        except TypeError:
            self.refuse(question, found, must)
        if len(numbers) != count or any(not least <= one <= most for one in numbers):
            self.refuse(question, found, must)
        return numbers


# ---- what policies say of themselves


def _predictor_said(at: _Answers, policy: Any, model: Model) -> None:
    if policy.reach is not None:
        at.whole("reach", policy.reach, 0, model.sites, "None, or ")
    if policy.learns and type(policy).afresh is Predictor.afresh:
        at.refuse(
            "afresh",
            None,
            "a method that gives the same predictor as before its first gate, for it learns",
        )


def _selector_said(at: _Answers, policy: Any, model: Model) -> None:
    names, must = policy.precisions, "a tuple of different names of precisions, highest first"
    if not isinstance(names, tuple) or not names or len(set(names)) < len(names):
        at.refuse("precisions", names, must)
    bits = [PRECISION_BITS.get(name, 0.0) for name in names]
    if 0.0 in bits:
        return  # the model's sizes refuse it, with the names that there are
    if bits != sorted(bits, reverse=True):
        at.refuse(
            "precisions", names, f"{must}; these have {', '.join(map('{:g}'.format, bits))} bits"
        )
    if policy.constant is not None:
        at.whole("constant", policy.constant, 0, len(names) - 1, "None, or ")


def _placement_said(at: _Answers, policy: Any, model: Model) -> None:
    if policy.constant is not None:
        at.whole("constant", policy.constant, min(Place), max(Place), "None, or a Place: ")
    time = policy.decision_us(model.experts)
    if not isinstance(time, int | float) or not isfinite(time) or time < 0:
        at.refuse("decision_us", time, "a finite number of microseconds, 0 or more")


def _payload_said(at: _Answers, policy: Any, model: Model) -> None:
    share = policy.active_share
    if not isinstance(share, int | float) or not 0 < share <= 1:
        at.refuse("active_share", share, "a number above 0, at most 1")


_SAID: Mapping[str, Callable[[_Answers, Any, Model], None]] = {
    "predictor": _predictor_said,
    "precision": _selector_said,
    "placement": _placement_said,
    "payload": _payload_said,
}


# ---- what policies answer

Questions = dict[str, Callable[..., Any] | property]


def _of_predictor(at: _Answers, own: Any, geometry: Geometry) -> Questions:
    def predict(self: Any, gate: Gate) -> Iterator[Choice]:
        for choice in at.each("predict", own.predict(self, gate), "the Choices that it forecasts"):
            _check_forecast(at, choice, geometry)
            yield choice

    return {"predict": predict}


def _check_forecast(at: _Answers, choice: Choice, geometry: Geometry) -> None:
    """Refuse a forecast that names no experts of one site, each once, or that ranks them by NaN."""
    for name in ("site", "needs", "keys", "tokens", "experts", "weights"):
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
    if not isinstance(choice, RowForecast) and is_own(type(choice)):
        return
    experts, weights = np.asarray(choice.experts), np.asarray(choice.weights)
    if experts.ndim != 2 or weights.shape != experts.shape:
        must = f"an array [rows, n] as `experts` is, which is {list(experts.shape)}"
        at.refuse("predict: weights", choice.weights, must)
    if not (np.isfinite(weights) & (weights >= 0)).all():
        at.refuse("predict: weights", choice.weights, "finite and not negative")


def _of_selector(at: _Answers, own: Any, geometry: Geometry) -> Questions:
    count = len(geometry.precisions)

    def select(self: Any, choice: Choice, resident: Any) -> Sequence[int]:
        is_gate = hasattr(choice, "tick")
        most = count - 1 if not (self.reroutes and is_gate) else (geometry.experts + 1) * count - 1
        what = "a precision or -1 (SKIP) for each need"
        found = own.select(self, choice, resident)
        wanted = at.wholes("select", found, len(choice.needs), -1, most, what)
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


def _of_placement(at: _Answers, own: Any, geometry: Geometry) -> Questions:
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


def _of_cache(at: _Answers, own: Any, geometry: Geometry) -> Questions:
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


def _checked_plan(at: _Answers, plan: PoolPlan, geometry: Geometry) -> PoolPlan:
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
    initial = at.wholes(
        "pools: initial", plan.initial, len(plan.initial), 0, keys - 1, "each a key"
    )
    wrong = [k for k in initial if k in geometry.missing or k % geometry.units == geometry.experts]
    if wrong or len(set(initial)) < len(initial):
        at.refuse("pools: initial", plan.initial, "keys of experts, each once")
    return PoolPlan(tuple(capacity), pool_of, tuple(initial))


def _of_payload(at: _Answers, own: Any, geometry: Geometry) -> Questions:
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


_QUESTIONS: Mapping[str, Callable[[_Answers, Any, Geometry], Questions]] = {
    "predictor": _of_predictor,
    "cache": _of_cache,
    "ram_cache": _of_cache,
    "precision": _of_selector,
    "placement": _of_placement,
    "payload": _of_payload,
}
