"""Reads and checks a command's words against its declaration, before anything else is done."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sim.process.drivers import has_cuda
from sim.values.fields import HEADER_FILE
from sim.values.places import ROOT, is_free, unquoted, words_for
from sim.verbs.names import chosen, lost, names, nearest, of_file, run_of, section, sections
from sim.verbs.synonyms import OF_HYDRA, meanings, paths, spoken
from sim.verbs.table import by_words
from sim.verbs.verb import Kind, Option, Verb

PLAIN = re.compile(r"[\w.\-]+(,[\w.\-]+)*")
"""One name, or several with commas; other texts are of Hydra's grammar, which Hydra reads."""
NEW_NAME = re.compile(r"[a-z0-9_]+")
OUTSIDE = ("hydra",)
"""Sections that no file of ``conf/`` has to name."""
SEARCHES = (
    "--config-dir",
    "-cd",
    "--config-path",
    "-cp",
    "hydra.searchpath",
    "--config-name",
    "-cn",
)
"""Words after which names may lie in folders that only Hydra knows."""
SEED = (
    "makes equal runs, as the seed is only repeated in a summary; what is drawn has a seed of its own:"
    " cache.seed, predictor.seed, workload.arrival_seed, workload.draft_seed"
)
"""Why nobody varies ``seed``."""
YES = ("yes", "no")
DEVICES = ("cpu", "cuda", "host", "null", "mps", "xpu")
"""Those of `moelab real`, and those that torch computes on."""
LISTED = {
    "system": "systems",
    "hardware": "machines",
    "model": "models",
    "trace": "traces",
    "workload": "workloads",
}
"""What ``moelab list`` calls a group; the others are policies."""


@dataclass(frozen=True)
class Words:
    """What a command line gave: ``own`` options by key; ``overrides`` for the configuration, in
    order; ``places``, the words without ``=``; ``flags``, which begin with -.
    """

    own: Mapping[str, str]
    overrides: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    flags: tuple[str, ...] = field(default=())


def read(verb: Verb, arguments: Iterable[str]) -> Words:
    """The words of a command line. Of several for one key the last counts.

    Raise ValueError, with the nearest name, for the first word that the verb does not take.
    """
    own: dict[str, str] = {}
    overrides, places, flags = [], [], []
    keys = [one.key for one in verb.options]
    for word in spoken(verb, [*arguments]):
        key, _, text = word.partition("=")
        if word.startswith("-") and verb.is_hydra:
            flags.append(word)
        elif word.startswith("~") and verb.config:
            overrides.append(word)
        elif is_place(word, keys if verb.most_places and not verb.config else None):
            places.append(word)
        elif _is_own(verb, key):
            own[key] = text
        else:
            overrides.append(word)
    if flags and not flags[-1].startswith("--") and places:
        places.pop()  # the value of a flag: -cd DIR
    given = {word.partition("=")[0].lstrip("+~"): word.partition("=")[2] for word in overrides}
    searched = any(word.startswith(SEARCHES) for word in (*flags, *overrides))
    _check_places(verb, places, searched)
    if not searched:
        _check_own_model({**given, **own})
    for word in overrides:
        _check_override(verb, word, given, searched)
    for key, text in own.items():
        _check_own(verb, key, text, searched)
    _check_trace({**given, **own}.get("trace.path", ""))
    _check_folder(verb, own, overrides, places)
    if missing := [one.key for one in verb.options if one.is_needed and one.key not in own]:
        raise ValueError(
            f"missing {' and '.join(f'{key}=...' for key in missing)}; {way_to_help(verb)}"
        )
    return Words(own, tuple(overrides), tuple(places), tuple(flags))


def read_all(name: str, arguments: Iterable[str]) -> Words:
    """The words for a verb of this name, and the defaults of the options that none of them has,
    but for a folder of results: that is a new one.

    Raise ValueError as `read` does.
    """
    verb = by_words()[name]
    words = read(verb, arguments)
    usual = {
        one.key: one.default for one in verb.options if one.default and one.kind is not Kind.FOLDER
    }
    return replace(words, own={**usual, **words.own})


def is_place(word: str, keys: Iterable[str] | None = ()) -> bool:
    """Whether a word is a path, or another value without a key, and no KEY=VALUE.

    A path that exists may have a = in its first part, too, unless that is one of the command's
    ``keys``. None: any key may be one, as where words go into the configuration.
    """
    key, equals, _ = word.partition("=")
    if not equals or "/" in key or " " in key:
        return True
    # A name may be longer than a path can be: Path.exists would raise.
    return keys is not None and key not in keys and os.path.exists(word)


def _check_own_model(given: Mapping[str, str]) -> None:
    """Raise ValueError, with the command that runs it, for a trace of a model of one's own under the
    name that it was imported with: no file has that name.
    """
    name, place = given.get("model", ""), Path(given.get("trace.path") or "nowhere")
    if not name or name in names("model"):
        return
    try:
        shape = json.loads((place / HEADER_FILE).read_text(encoding="utf-8"))["model"]
        if shape["name"] != name:
            return
        command = run_of(shape, place)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return
    raise ValueError(
        f"model={name}: the trace in {place} is of a model of this name, but no file has the rest of"
        f" its sizes; with those of a listed one: {command}"
    )


def _check_folder(
    verb: Verb, own: Mapping[str, str], overrides: Sequence[str], places: Sequence[str]
) -> None:
    """Raise ValueError for a folder of results that is a file, or has something in it; for one that
    all runs of a sweep would share; and for one that would be emptied of what is to be read.
    """
    given = {**{word.partition("=")[0]: word.partition("=")[2] for word in overrides}, **own}
    option, place = verb.option("output_dir"), unquoted(given.get("output_dir", ""))
    if place and Path(place).is_file():
        raise ValueError(f"output_dir={place} is a file; name a folder")
    if place and verb.sweeps and verb.is_hydra and not {",", "$"} & set(place):
        raise ValueError(
            f"output_dir={place} is one folder, and each run of a sweep needs its own: say"
            f" hydra.sweep.dir={place}, or leave the word out"
        )
    swept = unquoted(given.get("hydra.sweep.dir", ""))
    if verb.sweeps and swept and given.get("overwrite") != "yes" and not is_free(Path(swept)):
        # Its runs would be refused one by one, and a table of none of them take the place of theirs.
        raise ValueError(
            f"hydra.sweep.dir={swept} is not empty; choose another one, or add overwrite=yes (a study"
            " of the same words goes on where it was stopped)"
        )
    if place and given.get("overwrite") == "yes":
        folder = Path(place).resolve()
        texts = [*places, *(text for key, text in given.items() if key != "output_dir")]
        for path in map(unquoted, texts):
            # A name may be longer than a path can be: Path.exists would raise.
            if path and os.path.exists(path) and Path(path).resolve().is_relative_to(folder):
                raise ValueError(
                    f"overwrite=yes would empty output_dir={place} of {path}, which is read; choose"
                    " another output_dir"
                )
    if option is None or option.kind is not Kind.FOLDER or given.get("overwrite") == "yes":
        return
    if place and not is_free(Path(place)):
        also = ", or add overwrite=yes" if verb.option("overwrite") else ""
        new = ", leave the word out for a new one" if option.default else ""
        raise ValueError(f"output_dir={place} is not empty; choose another one{new}{also}")


def way_to_help(verb: Verb) -> str:
    """Where the options of a verb are told."""
    return f"moelab {verb.name} --help tells the options"


def _is_own(verb: Verb, key: str) -> bool:
    """Whether a key is the verb's and no value of the configuration."""
    if verb.option(key) is None or not verb.config:
        return verb.option(key) is not None
    return key in (*verb.taken, "output_dir") or key.partition(".")[0] not in sections(verb.config)


def _check_places(verb: Verb, places: Sequence[str], searched: bool) -> None:
    if len(places) > verb.most_places:
        word = places[verb.most_places]
        if not verb.most_places and word in by_words():
            raise ValueError(
                f"{word!r} is a verb of its own: moelab {word} --help tells its options"
            )
        known = [one.key for one in verb.options]
        raise ValueError(f"{word!r} is no KEY=VALUE{nearest(word, known)}; {way_to_help(verb)}")
    if len(places) < verb.least_places:
        raise ValueError(f"missing {verb.places}: {verb.usage}")
    for place in places if verb.place_group else ():
        system = place.split()[0] if place.split() else ""
        if "/" in system and not Path(place).exists():
            raise ValueError(f"{place}: there is no such file or folder")
        if not (searched or Path(place).exists() or "=" in system):
            check_names(verb.place_group, system, verb.place_group, False)
    if verb.choices and places and places[0] not in verb.choices:
        raise ValueError(
            f"{places[0]!r} is none of {', '.join(verb.choices)}"
            f"{nearest(places[0], (*verb.choices, *dict(meanings(verb))))}"
        )


def _check_own(verb: Verb, key: str, text: str, searched: bool) -> None:
    option = verb.option(key)
    assert option is not None
    if not text and option.can_be_empty:
        return
    if not text:
        raise ValueError(f"{key}= is empty; give a value, or leave it out")
    if searched and option.kind in (Kind.NAME, Kind.NAMES):
        return  # It may lie in a folder that only Hydra knows.
    check_value(option, text, searches=bool(verb.config))


def check_value(option: Option, text: str, searches: bool = True) -> None:
    """Raise ValueError unless ``text`` is a value that the option may have. ``searches``: the verb
    takes folders of one's own.
    """
    key, kind = option.key, option.kind
    if kind in (Kind.WHOLE, Kind.NUMBER):
        _check_number(option, text)
    elif kind is Kind.YES:
        _check_one(key, text, YES, text)
    elif kind in (Kind.ONE, Kind.SOME):
        for name in text.split(",") if kind is Kind.SOME else [text]:
            _check_one(key, text, option.values, name)
    elif kind in (Kind.NAME, Kind.NAMES):
        if not all(text.split(",")):
            raise ValueError(f"{key}={text} has a comma without a name beside it")
        if text not in option.values[1:]:
            check_names(key, text, option.values[0], kind is Kind.NAMES, searches)
    elif kind is Kind.NUMBERS:
        _check_numbers(key, text)
    elif kind is Kind.NEW_NAME and not NEW_NAME.fullmatch(text):
        raise ValueError(
            f"{key}={text} must be lower-case letters, digits and _: it names the file"
        )
    elif kind in (Kind.PLACE, Kind.WEIGHTS) and not _is_there(option, text):
        hub = ", and no OWNER/NAME of the hub" if kind is Kind.WEIGHTS else ""
        raise ValueError(
            f"{key}={text}: there is no such file or folder{hub}{nearest(text, option.values)}"
        )
    if key == "device":
        _check_device(text)


def _check_device(text: str) -> None:
    """Raise ValueError for what is no device, and for a GPU where there is no driver of any."""
    kind = text.partition(":")[0]
    if kind not in DEVICES:
        raise ValueError(f"device={text} is none of {', '.join(DEVICES)}")
    if kind == "cuda" and not has_cuda():
        raise ValueError(
            "device=cuda: there is no CUDA device here (no driver is installed); choose another one"
        )


def _is_there(option: Option, text: str) -> bool:
    is_of_hub = option.kind is Kind.WEIGHTS and text.count("/") == 1
    return text in option.values or Path(text).exists() or is_of_hub


def _check_numbers(key: str, text: str) -> None:
    """Raise ValueError unless ``text`` is finite numbers above 0, separated by commas."""
    try:
        is_right = all(0 < float(part) < float("inf") for part in text.split(","))
    except ValueError:
        is_right = False
    if not is_right:
        raise ValueError(f"{key}={text} must be numbers above 0, separated by commas")


def _check_trace(text: str) -> None:
    """Raise ValueError for the path of a trace that is not there. As a run does, look from the
    working directory, then from the project.
    """
    # What still has signs of Hydra's own is Hydra's to read.
    plain = () if not text or text == "null" or OF_HYDRA.fullmatch(text) else paths(text)
    for place in map(unquoted, plain):
        there = [base / place for base in (Path(), ROOT) if (base / place).is_dir()]
        if not there or not (there[0] / HEADER_FILE).is_file():
            what = f"it has no {HEADER_FILE}" if there else "there is no such file or folder"
            raise ValueError(
                f"trace.path={place}: {what}; give a trace's folder, or trace=NAME (moelab list"
                " traces)"
            )


def _check_one(key: str, text: str, allowed: Sequence[str], name: str) -> None:
    if name not in allowed:
        raise ValueError(
            f"{key}={text}: {name or 'nothing'} is none of {', '.join(allowed)}"
            f"{nearest(name, allowed)}"
        )


def _check_number(option: Option, text: str) -> None:
    whole = option.kind is Kind.WHOLE
    try:
        value = float(int(text) if whole else float(text))
    except ValueError:
        value = float("nan")
    if not value >= option.least:
        raise ValueError(
            f"{option.key}={text} must be a {'whole ' if whole else ''}number from"
            f" {option.least:g} on"
        )


def check_names(key: str, text: str, group: str, several: bool, searches: bool = True) -> None:
    """Raise ValueError, with the nearest name, for a name that is no file of a group. ``searches``:
    words can name a folder of one's own, in which it is found.
    """
    if text == "null" or (text and not PLAIN.fullmatch(text)):
        return
    known = names(group)
    for name in text.split(","):
        if name not in known:
            near = nearest(name, known) or f"; moelab list {LISTED.get(group, 'policies')} has them"
            if group == "trace" and Path(name).is_dir():
                near = f"; a folder is given as trace.path={name}"
            if group == "model" and not nearest(name, known):
                near += ", moelab models from=config.json makes one"
            for own in sorted(Path().glob(f"*/{group}/{name}.yaml")):
                words = words_for(own, group).replace(f"{group}=", f"{key}=", 1)
                near = (
                    f"; {own} is found by {words}"
                    if searches
                    else f"; conf/{group} has no copy of {own}"
                )
            raise ValueError(f"{key}={text}: there is no {group} {name!r}{near}")
    if "," in text and not several:
        raise ValueError(f"{key}={text} must be one name; moelab sweep takes several")


def without(group: str) -> str:
    """How to say that no file of a group is meant, or the one that holds anyway."""
    return f"{group}=none is without" if "none" in names(group) else "leave the word out"


def _check_override(verb: Verb, word: str, given: Mapping[str, str], searched: bool) -> None:
    """Raise ValueError for a word whose key or name no file of ``conf/`` has."""
    key, _, text = word.partition("=")
    bare = key.lstrip("+~").partition("@")[0]
    top = bare.split(".")[0].split("/")[0]
    if not verb.config:
        known = [one.key for one in verb.options]
        if verb.is_open:
            return
        raise ValueError(f"{word!r}: {key} is no option{nearest(key, known)}; {way_to_help(verb)}")
    known = [*sections(verb.config), *(one.key for one in verb.options if "." not in one.key)]
    if bare in verb.refused or f"{top}." in verb.refused:
        raise ValueError(f"{word}: {bare} is not given so here; {way_to_help(verb)}")
    if top in OUTSIDE or key.startswith(("+", "~")) or searched:
        return
    if verb.sweeps and bare == "seed" and set(",(") & set(text):
        raise ValueError(f"{word} {SEED}")
    if top not in known:
        raise ValueError(f"{word!r}: {top} is no option{nearest(top, known)}; {way_to_help(verb)}")
    option = verb.option(top) if bare == top else None
    if bare == top and names(top):
        if "null" in text.split(","):
            raise ValueError(f"{word}: {top} is chosen by the name of a file; {without(top)}")
        check_names(top, text, top, verb.sweeps)
    elif bare == top and option is not None and PLAIN.fullmatch(text):
        check_value(option, text)
    elif "." in bare:
        there_is = section(verb.config, top, chosen(verb.config, top, given))
        # Files of the group devices are a part of the machine.
        if top == "hardware" and given.get("devices") in names("devices"):
            there_is = {**there_is, "devices": of_file("devices", given["devices"])}
        found = lost(bare, {top: there_is})
        if found is not None:
            part, there = found
            near = nearest(part, there) or f"; it has {', '.join(there)}"
            raise ValueError(
                f"{word}: there is no {part} in {bare.rpartition('.' + part)[0]}{near}"
            )
        option = verb.option(bare)
        if option is not None and PLAIN.fullmatch(text):
            check_value(option, text)
