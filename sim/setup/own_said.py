"""What policies of one's own say of themselves is checked before they are prepared.

From then on their errors are told with their names (`sim.setup.own_arguments.watched`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from sim.machine.model import Model
from sim.machine.precision import PRECISION_BITS
from sim.policies.base import (
    CachePolicy,
    Payload,
    Placement,
    Policy,
    PrecisionSelector,
    Predictor,
)
from sim.policies.requires import Requires
from sim.setup.own_arguments import QUESTIONS, check_takes, watched
from sim.setup.own_failures import Answers, fail, is_own
from sim.values.types import Place

INTERFACES: Mapping[str, type] = {
    "predictor": Predictor,
    "cache": CachePolicy,
    "ram_cache": CachePolicy,
    "precision": PrecisionSelector,
    "placement": Placement,
    "payload": Payload,
}
NEVER_ASKED = (("observe", "learns", True), ("admit", "admits_all", False))
"""Methods that nobody calls unless the class says so, with what it must say."""


def check_said(policies: Mapping[str, Policy], model: Model) -> None:
    """Raise ValueError for what a policy of one's own, by section, says of itself that cannot be,
    and for an object that is no policy of its section.
    """
    for section, policy in policies.items():
        at, interface = Answers(section, policy), INTERFACES[section]
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
        if not is_own(type(policy)):
            check_takes(at.who, policy, interface)
            _check_asked(at, policy, interface)
            _check_values(at, section, policy, model)
            object.__setattr__(policy, "__class__", watched(at.who, policy, interface))


def _check_asked(at: Answers, policy: Policy, interface: type) -> None:
    """Refuse methods that nothing would call or check."""
    held = policy.__dict__ if "__dict__" in dir(type(policy)) else {}  # none with __slots__
    for name in QUESTIONS:
        if name in held and hasattr(interface, name):
            at.refuse(
                name,
                held[name],
                "a method of the class: one that is set on the object is not checked, and a copy"
                " of the object calls it on the first one",
            )
    for name, word, value in NEVER_ASKED:
        if not hasattr(interface, name):
            continue
        has_own = getattr(type(policy), name) is not getattr(interface, name)
        says = (one for one in type(policy).__mro__ if one is not interface)
        if has_own and word not in held and not any(word in vars(one) for one in says):
            at.refuse(
                word,
                not value,
                f"said by a class that has `{name}`: {word} = {value}, or `{name}` is never called",
            )


def _check_values(at: Answers, section: str, policy: Policy, model: Model) -> None:
    """Refuse values that cannot be, of properties that may fail themselves."""
    asked = "requires"
    try:
        required = policy.requires
        asked = "what the class says"
        said = _SAID.get(section)
        if isinstance(required, Requires) and said is not None:
            said(at, policy, model)
    except Exception as error:
        fail(at.who, asked, error)
    if not isinstance(required, Requires):
        at.refuse("requires", required, "a Requires of sim.policies.requires")


def _predictor_said(at: Answers, policy: Any, model: Model) -> None:
    if policy.reach is not None:
        at.whole("reach", policy.reach, 0, model.sites, "None, or ")
    if policy.learns and type(policy).afresh is Predictor.afresh:
        at.refuse(
            "afresh",
            None,
            "a method that gives the same predictor as before its first gate, for it learns",
        )
    if policy.as_routed and not policy.requires.lookahead_sites:
        at.refuse("as_routed", True, "False, or requires must have lookahead_sites=1 or more")


def _selector_said(at: Answers, policy: Any, model: Model) -> None:
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


def _placement_said(at: Answers, policy: Any, model: Model) -> None:
    if policy.constant is not None:
        at.whole("constant", policy.constant, min(Place), max(Place), "None, or a Place: ")
    time = policy.decision_us(model.experts)
    if not isinstance(time, int | float) or not isfinite(time) or time < 0:
        at.refuse("decision_us", time, "a finite int or float of microseconds, 0 or more")


def _payload_said(at: Answers, policy: Any, model: Model) -> None:
    share = policy.active_share
    if not isinstance(share, int | float) or not 0 < share <= 1:
        at.refuse("active_share", share, "an int or float above 0, at most 1")


_SAID: Mapping[str, Callable[[Answers, Any, Model], None]] = {
    "predictor": _predictor_said,
    "precision": _selector_said,
    "placement": _placement_said,
    "payload": _payload_said,
}
