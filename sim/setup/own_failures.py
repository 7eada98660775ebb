"""How a policy of one's own is refused: by its section, class and question, with what was found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import index
from pathlib import Path
from sysconfig import get_path
from traceback import extract_tb
from typing import Any, NoReturn

from sim.policies.base import Policy
from sim.policies.requires import FitError, PolicyError

OWN = ("sim", "real", "capture")
PAGE = "docs/add_policy.md and sim/policies/base.py say what it must answer"
_ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = tuple(f"{_ROOT / name}/" for name in OWN)
_MADE = "<string>"
_PACKAGES = (*_FOLDERS, *(get_path(name) for name in ("stdlib", "purelib", "platlib")), _MADE)
"""Where nobody looks for the mistake of a policy of his own. `_MADE` is what ``dataclass`` writes."""


def is_own(cls: type) -> bool:
    """Whether a class is the project's."""
    return cls.__module__.partition(".")[0] in OWN


def who_is(section: str, policy: Policy) -> str:
    """A policy as refusals name it."""
    return f"{section}: {_class_of(policy)}"


def _class_of(one: object) -> str:
    return f"{type(one).__module__}.{type(one).__qualname__}"


def fail(who: str, name: str, error: Exception | SystemExit) -> NoReturn:
    """Raise for an error that ended ``name`` of a policy: the policy's own, with its place.

    A refusal stays as it is: by a check of this package, by any other code of the project, or of a
    fit, whose reader adds its file.
    """
    in_project = extract_tb(error.__traceback__)[-1].filename.startswith(_FOLDERS)
    if isinstance(error, PolicyError | FitError) or (isinstance(error, ValueError) and in_project):
        raise error
    lacks = isinstance(error, AttributeError) and in_project and who.endswith(_class_of(error.obj))
    hint = "; does its `__init__` call super().__init__(...)?" if lacks else ""
    raise PolicyError(f"{who}: `{name}` {ended(error)}{hint}") from error


def is_from_outside(error: Exception) -> bool:
    """Whether it was raised in code of one's own, or in what this called."""
    frames = extract_tb(error.__traceback__)
    return any(not one.filename.startswith(_PACKAGES) for one in frames)


def ended(error: Exception | SystemExit) -> str:
    """``ended with KeyError: 3 (mine/mru.py, line 8, in victims)``: the last place in code of one's own."""
    frames = extract_tb(error.__traceback__)
    place = ([one for one in frames if not one.filename.startswith(_PACKAGES)] or frames)[-1]
    told = f"{type(error).__name__}{f': {error}' if str(error) else ''}"
    return f"ended with {told} ({place.filename}, line {place.lineno}, in {place.name})"


class Answers:
    """Who answers, and refusals that name them."""

    def __init__(self, section: str, policy: Policy) -> None:
        self.who = who_is(section, policy)

    def refuse(self, question: str, found: object, must: str) -> NoReturn:
        told = repr(found)
        told = told if len(told) <= 200 else f"{told[:200]} .."
        raise PolicyError(
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
