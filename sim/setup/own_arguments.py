"""What a policy of one's own takes, and that it leaves alone what it is given.

What a policy is given are the decision core's own lists. Whoever sorts one makes another run of it,
and nothing would say so. As with answers, only classes from elsewhere are watched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import Parameter, signature
from itertools import count
from typing import Any, TypeVar

import numpy as np

OWN = ("sim", "real", "capture")
LAZY = ("predict", "victims")
"""Questions whose answers come one by one."""
SEEN = ("needs", "keys", "tokens", "scores", "experts", "weights")
"""What a gate or a forecast shows that can be changed in place."""
PLAIN = ("int", "bool", "Cause")
"""Types of what nobody can change."""

FIRST, EVERY = 500, 32
"""Which calls of a method are watched: the first ones, and then one of so many. To copy all that each
call is given would take three times as long as a fast policy.
"""

Item = TypeVar("Item")
Kept = tuple[str, Any, Any]
"""A name, what has it, and a copy of what it was."""


def is_own(cls: type) -> bool:
    """Whether a class is the project's."""
    return cls.__module__.partition(".")[0] in OWN


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


def watched(who: str, own: Any, interface: type) -> Any:
    """A class derived from ``own`` whose methods raise ValueError where a call that is watched
    changes what it is given.
    """
    methods = {
        name: _watch(who, name, [one.name for one in given], getattr(own, name))
        for name, given in _methods(interface)
        if any(one.annotation not in PLAIN for one in given) and not is_own(_defines(own, name))
    }
    about = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__slots__": ()}
    kind: Any = type(own)
    return kind(own.__name__, (own,), {**about, **methods})


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


def _watch(
    who: str, name: str, given: Sequence[str], method: Callable[..., Any]
) -> Callable[..., Any]:
    numbers = count()

    def asked(self: Any, *values: Any) -> Any:
        number = next(numbers)
        if number >= FIRST and number % EVERY:
            return method(self, *values)
        named = dict(zip(given, values, strict=True))
        kept = _kept(named)
        found = method(self, *values)
        _check(who, name, kept)
        is_lazy = name in LAZY and isinstance(found, Iterable) and not isinstance(found, str)
        return _each(who, name, named, found) if is_lazy else found

    return asked


def _each(who: str, name: str, named: Mapping[str, Any], found: Iterable[Item]) -> Iterator[Item]:
    """What is found, one by one. What others change between two of them is not held against it."""
    answers = iter(found)
    while True:
        kept = _kept(named)
        try:
            one = next(answers)
        except StopIteration:
            return
        finally:
            _check(who, name, kept)
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
            raise ValueError(
                f"{who}: `{method}` changes {name}, which it may only read: change a copy"
            )
