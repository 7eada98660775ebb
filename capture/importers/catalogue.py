"""The catalogue of published gates: where each lies, under which licence, and who reads it.

An entry is a file of ``capture/presets/catalogue``. Its first file is what the importer is given;
others lie beside it. A file without an address has to be put into the cache by hand.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml  # type: ignore[import-untyped]

from sim.values.places import PRESETS
from sim.verbs.names import nearest

CATALOGUE = PRESETS / "catalogue"


@dataclass(frozen=True)
class Listed:
    """One file: its ``url`` (None: nobody serves it), size and sha256."""

    name: str
    url: str | None
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Entry:
    """One trace of the catalogue. ``options`` are those of the importer; ``model`` is a file of
    conf/model, and ``words`` say how its run differs; ``by_hand`` says what to do where a file cannot be downloaded.
    """

    name: str
    about: str
    source: str
    licence: str
    model: str
    format: str
    options: Mapping[str, str]
    files: tuple[Listed, ...]
    by_hand: str
    words: tuple[str, ...] = ()


def names(folder: Path = CATALOGUE) -> tuple[str, ...]:
    """The names of all entries, in order."""
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


def entry(name: str, folder: Path = CATALOGUE) -> Entry:
    """The entry of a name; raise ValueError, with the nearest, for another one."""
    known = names(folder)
    if name not in known:
        near = nearest(name, known) or f"; there are {', '.join(known)}"
        raise ValueError(f"the catalogue has no {name!r}{near}")
    read: dict[str, Any] = yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
    files = tuple(Listed(**one) for one in read.pop("files"))
    words = tuple(read.pop("words", ()))
    return Entry(name=name, files=files, words=words, **read)


def fetched(wanted: Entry, cache: Path) -> Path:
    """The first file of an entry, with the others beside it: in ``cache``, downloaded where it is
    not there, and with the size and hash that the catalogue has.

    Raise ValueError with the way by hand where a file cannot be had, or is another one.
    """
    for one in wanted.files:
        place = cache / wanted.name / one.name
        if place.is_file() and _is(one, place):
            continue
        if one.url is None:
            raise ValueError(_by_hand(wanted, place, _found(one, place)))
        try:
            _download(one, place)
        except (OSError, ValueError) as error:
            raise ValueError(_by_hand(wanted, place, " ".join(str(error).split()))) from None
    return cache / wanted.name / wanted.files[0].name


def _download(one: Listed, place: Path) -> None:
    import pooch

    assert one.url is not None
    local = _copied if urlsplit(one.url).scheme == "file" else None
    place.parent.mkdir(parents=True, exist_ok=True)
    pooch.retrieve(
        one.url, f"sha256:{one.sha256}", fname=place.name, path=place.parent, downloader=local
    )


def _copied(url: str, output: Any, _: Any) -> None:
    shutil.copyfile(unquote(urlsplit(url).path), output)


def _is(one: Listed, place: Path) -> bool:
    return place.stat().st_size == one.bytes and _sha256(place) == one.sha256


def _sha256(place: Path) -> str:
    with place.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _found(one: Listed, place: Path) -> str:
    if not place.is_file():
        return "it has no address to download it from"
    return (
        f"what is there has {place.stat().st_size} bytes and sha256 {_sha256(place)[:12]}.., not"
        f" {one.bytes} and {one.sha256[:12]}.."
    )


def _by_hand(wanted: Entry, place: Path, why: str) -> str:
    """What to fetch by hand, and where to put it."""
    one = next(each for each in wanted.files if each.name == place.name)
    where = f"fetch {one.url} by hand and put it there" if one.url else "put it there by hand"
    also = f"; or {wanted.by_hand}" if wanted.by_hand else ""
    return (
        f"{wanted.name}: no {place} ({one.bytes} bytes, sha256 {one.sha256}): {why}; {where}{also}"
    )


def table(folder: Path = CATALOGUE) -> Sequence[tuple[str, str, str, str, str]]:
    """Name, what it is, size, licence and source of every entry."""
    return [
        (
            one.name,
            one.about,
            f"{sum(file.bytes for file in one.files) / 2**20:.1f} MiB",
            one.licence,
            one.source,
        )
        for one in (entry(name, folder) for name in names(folder))
    ]
