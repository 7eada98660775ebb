"""What a verb and an option are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What an option's text must be."""

    TEXT = "text"
    WHOLE = "whole number"
    NUMBER = "number"
    YES = "yes or no"
    ONE = "one of"
    SOME = "some of, with commas"
    NAME = "a file of conf"
    NAMES = "files of conf, with commas"
    PLACE = "a path that exists, or one of the values"
    WEIGHTS = "a model's folder, OWNER/NAME of the hub, or one of the values"
    NUMBERS = "numbers, with commas"
    NEW_NAME = "the name of a file that is to be written"
    FOLDER = "a folder for results"


@dataclass(frozen=True)
class Option:
    """One ``KEY=VALUE``.

    - ``meaning`` ends with the unit in brackets, where there is one.
    - ``default``: what holds without the word; "" where nothing does.
    - ``values``: what `Kind.ONE` and `Kind.SOME` allow, and what `Kind.PLACE` and `Kind.WEIGHTS`
      allow besides; the folder of ``conf/`` for `Kind.NAME` and `Kind.NAMES`, and names that are
      allowed besides its files.
    - ``least``: the smallest number allowed.
    - ``can_be_empty``: whether ``KEY=`` means none of them.

    A key in capitals stands for several keys, and is only told.
    """

    key: str
    meaning: str
    kind: Kind = Kind.TEXT
    default: str = ""
    values: tuple[str, ...] = ()
    least: float = 0.0
    is_needed: bool = False
    can_be_empty: bool = False

    @property
    def is_told_only(self) -> bool:
        """Whether it stands for keys that are not listed."""
        return self.key != self.key.lower()


@dataclass(frozen=True)
class Verb:
    """One command.

    - ``name``: what is typed after ``moelab``; ``aliases`` are other ways to say it.
    - ``module``: what ``python -m`` runs; ``lead`` are words that come before the user's.
    - ``places``: how words without ``=`` are called, "" if there are none; ``least_places`` and
      ``most_places`` say how many there may be.
    - ``place_group``: the folder of ``conf/`` whose names a place may be, unless it is a path.
    - ``config``: the file of ``conf/`` whose values are options, too; "" for none.
    - ``refused``: keys of that file that this verb sets itself; with a point at the end all below.
    - ``taken``: keys of that file that the verb reads itself, as options of its own.
    - ``is_open``: further options depend on others, and the command itself checks them.
    - ``is_hydra``: words that begin with ``-`` are Hydra's.
    - ``examples`` run as printed, ``moelab`` in front.
    """

    name: str
    group: str
    module: str
    about: str
    options: tuple[Option, ...] = ()
    examples: tuple[str, ...] = ()
    docs: str = ""
    aliases: tuple[str, ...] = ()
    lead: tuple[str, ...] = ()
    places: str = ""
    least_places: int = 0
    most_places: int = 0
    place_group: str = ""
    config: str = ""
    refused: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    is_open: bool = False
    is_hydra: bool = False
    sweeps: bool = False

    @property
    def usage(self) -> str:
        """How it is called."""
        words = ["moelab", self.name, self.places, "[KEY=VALUE ...]" if self.options else ""]
        return " ".join(word for word in words if word)

    @property
    def choices(self) -> tuple[str, ...]:
        """What the word without ``=`` may be; () where it may be anything."""
        return tuple(self.places.strip("[]").split("|")) if "|" in self.places else ()

    def option(self, key: str) -> Option | None:
        """The option of this key; None if the verb has none."""
        return next((one for one in self.options if one.key == key and not one.is_told_only), None)
