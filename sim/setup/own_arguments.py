"""What a policy of one's own takes and may read, that it leaves alone what it is given, and answers
alike again.

What a policy is given are the decision core's own lists. Whoever sorts one makes another run of it,
and nothing would say so. Nor would anything where a question changes the policy: bounds, metrics and
devices ask other questions than the run did. What a policy did not declare it cannot read, whatever
other policies of the run declare, or earlier runs of the process. As with answers, only classes from
elsewhere are watched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from inspect import Parameter, getattr_static, signature
from itertools import count, zip_longest
from types import GeneratorType
from typing import Any

import numpy as np

from sim.policies.requires import PolicyError, Requires
from sim.setup.own_failures import fail, is_own

LAZY = ("predict", "victims")
"""Questions whose answers come one by one."""
QUESTIONS = (
    *LAZY,
    "admit",
    "select",
    "decide",
    "permitted",
    "place",
    "decision_us",
    "moved_bytes",
    "forecast_bytes",
    "missing_bytes",
)
"""What may be asked twice, and is where a call is watched."""
SEEN = ("needs", "keys", "tokens", "scores", "experts", "weights")
"""What a gate or a forecast shows that can be changed in place."""
PLAIN = ("int", "float", "bool", "Cause")
"""Types of what nobody can change."""

OF_LOOKAHEAD = ("forecasts", "routed", "lookahead", "ranked")
"""What a gate offers of lookahead scores."""
SHOWN = ("Gate", "Choice")
"""Types of arguments that offer what a policy must declare."""

FIRST, EVERY = 500, 32
"""Which calls of a method are watched: the first ones, and then one of so many. To copy all that each
call is given, and to ask twice, would take several times as long as a fast policy.
"""

Kept = tuple[str, Any, Any]
"""A name, what has it, and a copy of what it was."""
Call = Callable[..., Any]
END = object()


class Shown:
    """A gate, or a forecast, without what a policy has not declared.

    ``hidden``: by the names of what it hides, the declaration that is missing.
    """

    __slots__ = ("_choice", "_hidden")

    def __init__(self, choice: Any, hidden: Mapping[str, str]) -> None:
        self._choice, self._hidden = choice, hidden

    def __getattr__(self, name: str) -> Any:
        if name in self._hidden:
            raise RuntimeError(
                f"`{name}` was not asked for; declare requires = Requires({self._hidden[name]})"
            )
        return getattr(self._choice, name)


def hidden_by(requires: Requires) -> dict[str, str]:
    """What gates do not show to a policy, each with the declaration that would show it."""
    found = {} if requires.lookahead_sites else dict.fromkeys(OF_LOOKAHEAD, "lookahead_sites=...")
    for name, declares, word in (
        ("gate_input", requires.gate_inputs, "gate_inputs=True"),
        ("preferences", requires.preferences, "preferences=True"),
        ("share", requires.active_shares, "active_shares=True"),
    ):
        if not declares:
            found[name] = word
    return found


def check_takes(who: str, one: object, interface: type) -> None:
    """Raise ValueError for a method that does not take what its interface's is given. The object is
    known to have every method of it.
    """
    for name, parameters in _methods(interface):
        wanted = [parameter.name for parameter in parameters]
        method = getattr(one, name)
        if is_own(_defines(type(one), name)):
            continue
        if not callable(method):
            raise ValueError(f"{who}: `{name}` is {method!r}, and must be a method")
        try:
            takes = signature(method)
        except ValueError:  # of a function in C nobody knows it
            continue
        try:
            takes.bind(*wanted)
        except TypeError:
            raise ValueError(
                f"{who}: `{name}` takes {takes}, and is given ({', '.join(wanted)});"
                f" write it as sim.policies.base.{interface.__name__}.{name} is"
            ) from None


def watched(who: str, policy: Any, interface: type) -> Any:
    """A class derived from that of ``policy``, or this class where it is one already. Gates show its
    methods what it ``requires``.

    Its methods raise `PolicyError` for an error of theirs. Where a call is watched, they also do
    where it changes what it is given, and where a question has another answer when it is asked again.
    """
    own = type(policy)
    if "_is_watched" in vars(own):
        return own
    try:
        hidden = hidden_by(policy.requires)
    except Exception as error:
        fail(who, "requires", error)
    methods = {
        name: _watch(who, name, given, _showing(_unbound(own, name), given, hidden))
        for name, given in _methods(interface)
    }
    about = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__slots__": ()}
    kind: Any = type(own)
    return kind(own.__name__, (own,), {**about, **methods, "_is_watched": True})


def _unbound(own: Any, name: str) -> Call:
    """A method as a function of the object and what is given, be it a static or a class method."""
    found = getattr_static(own, name)
    if isinstance(found, staticmethod | classmethod):
        return lambda self, *values, **others: found.__get__(self, type(self))(*values, **others)
    method: Call = getattr(own, name)
    return method


def _showing(method: Call, given: Sequence[Parameter], hidden: Mapping[str, str]) -> Call:
    """``method``, whose gates and forecasts are `Shown` to it."""
    places = [place for place, one in enumerate(given) if one.annotation in SHOWN]
    if not places or not hidden:
        return method

    def shown(self: Any, *values: Any, **others: Any) -> Any:
        seen = [*values]
        for place in places[: len(seen)]:
            seen[place] = Shown(seen[place], hidden)
        return method(self, *seen, **others)

    return shown


def _methods(interface: type) -> Iterator[tuple[str, Sequence[Parameter]]]:
    """The methods of an interface, and what they are given."""
    for name in dir(interface):
        method = getattr(interface, name)
        if not name.startswith("_") and callable(method):
            parameters = list(signature(method).parameters.values())[1:]
            yield name, [one for one in parameters if one.default is Parameter.empty]


def _defines(cls: type, name: str) -> type:
    """The class that a method is from; ``object`` where an instance has it."""
    return next((one for one in cls.__mro__ if name in vars(one)), object)


def _watch(who: str, name: str, given: Sequence[Parameter], method: Call) -> Call:
    """``method``, whose errors are told, and of whose calls some are watched."""

    def called(self: Any, *values: Any, **others: Any) -> Any:
        try:
            return method(self, *values, **others)
        except (Exception, SystemExit) as error:
            fail(who, name, error)

    if name not in QUESTIONS and all(one.annotation in PLAIN for one in given):
        return called
    numbers, names, is_question = count(), [one.name for one in given], name in QUESTIONS

    def asked(self: Any, *values: Any, **others: Any) -> Any:
        number = next(numbers)
        if others or len(values) != len(names) or (number >= FIRST and number % EVERY):
            try:
                found = method(self, *values, **others)
            except (Exception, SystemExit) as error:
                fail(who, name, error)
            return _failing(who, name, found) if isinstance(found, GeneratorType) else found
        named = dict(zip(names, values, strict=True))
        ask = partial(called, self, *values)
        kept = _kept(named)
        found = _listed(who, name, ask())
        _check(who, name, kept)
        again = _listed(who, name, ask()) if is_question else None
        if name in LAZY and _is_many(found) and _is_many(again):
            return _twice(who, name, named, found, again)
        if is_question and not _alike(found, again):
            _differ(who, name, found, again)
        return found

    return asked


def _is_many(found: object) -> bool:
    return isinstance(found, Iterable) and not isinstance(found, str)


def _listed(who: str, name: str, found: Any) -> Any:
    """What is found; of a question that is not lazy all of it."""
    if isinstance(found, Iterator) and name not in LAZY:
        return [*_failing(who, name, found)]
    return found


def _failing(who: str, name: str, found: Iterator[Any]) -> Iterator[Any]:
    """What is found, one by one, with the errors of its generator told."""
    try:
        yield from found
    except (Exception, SystemExit) as error:
        fail(who, name, error)


def _alike(one: Any, other: Any) -> bool:
    """Whether two answers say the same. What cannot be compared is no answer, and refused as such."""
    if one is other or (one is END) != (other is END):
        return one is other
    if hasattr(one, "needs") and hasattr(other, "needs"):
        one, other = (one.site, *one.needs), (other.site, *other.needs)
    try:
        first, second = np.asarray(one), np.asarray(other)
    except ValueError:  # of lists in a list, of other lengths
        return True
    if "O" in (first.dtype.kind, second.dtype.kind):
        return True
    return np.array_equal(first, second, equal_nan=first.dtype.kind == second.dtype.kind == "f")


def _differ(who: str, name: str, found: Any, again: Any) -> None:
    told = ["nothing" if one is END else _told(one) for one in (found, again)]
    raise PolicyError(
        f"{who}: `{name}` answers {told[0]} and, asked again at once, {told[1]}: a question must"
        " change nothing and always answer alike; change the policy where it is told something"
        " (`observe`, `on_...`), and draw nothing at random"
    )


def _told(one: Any) -> str:
    return f"site {one.site} experts {[*one.needs]}" if hasattr(one, "needs") else repr(one)


def _twice(who: str, name: str, named: Mapping[str, Any], found: Any, again: Any) -> Iterator[Any]:
    """What is found, one by one, if what is found again is the same."""
    if found is again and isinstance(found, Iterator):
        raise PolicyError(
            f"{who}: `{name}` gives the same iterator when it is asked again: make a new one"
        )
    pairs = zip_longest(
        _each(who, name, named, found), _each(who, name, named, again), fillvalue=END
    )
    for one, other in pairs:
        if not _alike(one, other):
            _differ(who, name, one, other)
        yield one


def _each(who: str, name: str, named: Mapping[str, Any], found: Iterable[Any]) -> Iterator[Any]:
    """What is found, one by one. What others change between two of them is not held against it."""
    answers = iter(found)
    while True:
        kept = _kept(named)
        try:
            one = next(answers, END)
        except (Exception, SystemExit) as error:
            fail(who, name, error)
        _check(who, name, kept)
        if one is END:
            return
        yield one


def _kept(named: Mapping[str, Any]) -> list[Kept]:
    """Copies of what can be changed in place."""
    kept: list[Kept] = []
    for name, value in named.items():
        if isinstance(value, list | bytearray | np.ndarray):
            kept.append((name, value, value.copy()))
        elif hasattr(value, "needs"):
            shown = ((one, getattr(value, one, None)) for one in SEEN)
            kept += [
                (f"{name}.{one}", has, has.copy())
                for one, has in shown
                if isinstance(has, list | np.ndarray)
            ]
    return kept


def _check(who: str, method: str, kept: Sequence[Kept]) -> None:
    for name, now, before in kept:
        same = (
            np.array_equal(now, before, equal_nan=now.dtype.kind == "f")
            if isinstance(now, np.ndarray)
            else now == before
        )
        if not same:
            raise PolicyError(
                f"{who}: `{method}` changes {name}, which it may only read: change a copy"
            )
