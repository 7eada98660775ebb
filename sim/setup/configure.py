"""Configurations from Python, as the command line composes them: for notebooks, studies and demos.

>>> cfg, system = configure("system=lru", "cache=lfu", "budget.resident_share=0.25")
>>> system, cfg.budget.resident_share
('lru cache=lfu', 0.25)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from sim.setup.composing import compose_plainly
from sim.values.places import CONF, MECHANISMS, name_of

ONE_AT_A_TIME = Lock()
"""Hydra has one state in a process, which threads would take from each other."""
SURROUNDINGS = ("hardware", "devices", "model", "trace", "workload")


def configure(*overrides: str, config: str = "config") -> tuple[DictConfig, str]:
    """The configuration that ``python -m sim`` has with these overrides, and the run's name.

    Both are arguments of ``sim.setup.build.build``. ``config``: the file of ``conf/`` to start
    from. ``output_dir`` is a placeholder: a run from Python writes nothing. Raise ValueError, in one
    line, for overrides that do not fit the configuration.
    """
    if plainly := compose_plainly(overrides, config):
        values, chosen = plainly
        return DictConfig(values | {"output_dir": "unused"}), system_name(chosen, overrides)
    whole = composed_by_hydra(overrides, config)
    check_own_files(whole.hydra)
    system = whole.hydra.runtime.choices.get("system")
    cfg = DictConfig({name: value for name, value in whole.items() if name != "hydra"})
    return cfg, system_name(system, overrides)


def composed_by_hydra(overrides: Iterable[str], config: str) -> DictConfig:
    """The whole configuration, with hydra's own section. Raise ValueError as ``configure`` does."""
    # Imported late: loading hydra takes longer than a short run, and not every user of this module
    # composes.
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException

    try:
        with ONE_AT_A_TIME:
            # Inside a running hydra application its state must survive this composition.
            running = GlobalHydra.instance().hydra
            GlobalHydra.instance().clear()
            try:
                with initialize_config_dir(str(CONF), version_base="1.3"):
                    words = [*overrides, "output_dir=unused"]
                    return compose(config, words, return_hydra_config=True)
            finally:
                GlobalHydra.instance().hydra = running
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ValueError(in_a_line(error)) from None
    except UnicodeDecodeError as error:
        raise ValueError(not_utf8(error)) from None
    except RecursionError:
        told = " ".join(overrides)
        raise ValueError(
            f"{told}: a file that these words choose starts from itself, if only through others;"
            " look at the lists `defaults`"
        ) from None


RESOLVING = "raised while resolving interpolation: "
"""What OmegaConf puts before the error of a resolver."""


def in_a_line(error: Exception) -> str:
    """What hydra says of words, or files, that do not fit the configuration, in one line."""
    # Below an empty line hydra lists its files and folders.
    lines = str(error).strip().partition("\n\n")[0].splitlines()
    kept = [line.strip() for line in lines if not line.startswith("See http")]
    if RESOLVING in kept[0]:
        # A resolver's own error tells all. The key below is one of hydra's own.
        return kept[0].partition(RESOLVING)[2]
    if kept[0].startswith("Error merging"):
        kept += [f"({line})" for line in str(error.__cause__ or "").splitlines()[:1]]
    return " ".join(kept)


def not_utf8(error: UnicodeDecodeError) -> str:
    """That a file which was chosen is no text, and how it begins: hydra does not say which it is."""
    begin = error.object[:60].decode("utf-8", "replace").splitlines()[:1]
    return (
        f"a chosen yaml file, which begins with {' '.join(begin)!r}, is not in UTF-8 (byte"
        f" {error.start}: {error.reason}); write it as UTF-8"
    )


def check_own_files(hydra: Any) -> None:
    """Raise ValueError for a folder of ``hydra.searchpath`` that is not there, and for a chosen file
    of somebody's own that is not read, because another one has its name: Hydra looks in ``conf/``
    first, and then in these folders in turn. ``hydra``: the part of a configuration that is Hydra's.
    """
    before = [CONF]
    for folder in (place.removeprefix("file://") for place in hydra.searchpath):
        if "://" not in folder and not Path(folder).is_dir():
            raise ValueError(
                f"hydra.searchpath={list(hydra.searchpath)}: {folder} is no folder that can be seen"
                f" from {Path.cwd()}; give its whole path"
            )
        for key, name in hydra.runtime.choices.items():
            file = Path(key.partition("@")[0]) / f"{name}.yaml"
            own = Path(folder) / file
            read = next((place / file for place in before if (place / file).is_file()), None)
            if own.is_file() and read is not None and own.read_bytes() != read.read_bytes():
                first = name_of(read) if read.is_relative_to(CONF) else read
                raise ValueError(
                    f"{own} is not read: {first} has the same name and comes first;"
                    f" rename yours, and choose it by that name ({file.parent}=NAME)"
                )
        before.append(Path(folder))


def system_name(chosen: str | None, overrides: Iterable[str]) -> str:
    """A run's name: its system and every mechanism that was replaced, such as ``hobbit
    precision=fp16``. Of several words for one key the last counts.
    """
    replaced = (word for word in overrides if group_of(word) in MECHANISMS)
    return " ".join([str(chosen or "custom"), *last_of_each(replaced).values()])


def last_of_each(overrides: Iterable[str]) -> dict[str, str]:
    """By key, the last word that sets it; in the order of these."""
    last: dict[str, str] = {}
    for word in overrides:
        key = word.lstrip("+~").partition("=")[0]
        last.pop(key, None)
        last[key] = word
    return last


def changes(overrides: Iterable[str]) -> list[str]:
    """The overrides that change what surrounds the system: machine, model, trace or workload. Of
    several for one key the last counts. One that says what its file has anyway changes nothing.

    >>> changes(["system=lru", "trace.max_sequences=8", "model=tiny_mixtral", "trace.max_sequences=4"])
    ['model=tiny_mixtral', 'trace.max_sequences=4']
    >>> changes(["trace=tiny_qwen2moe", "trace.split=eval"])
    ['trace=tiny_qwen2moe']
    """
    last = last_of_each(overrides)
    chosen = {key: word.partition("=")[2] for key, word in last.items() if key in SURROUNDINGS}
    return [
        word
        for key, word in last.items()
        if group_of(word) in SURROUNDINGS and not _is_default(key, word, chosen)
    ]


def _is_default(key: str, word: str, chosen: Mapping[str, str]) -> bool:
    """Whether the file of the key's group gives the key this value."""
    group, *names = key.split(".")
    if not names or word[0] in "+~":
        return False
    name = chosen.get(group) or _first_choices()[group]
    return _stated(group, name).get(".".join(names)) == word.partition("=")[2]


@cache
def _first_choices() -> dict[str, str]:
    """The file of each group that a run has without a word."""
    whole = OmegaConf.load(CONF / "config.yaml")
    return {
        key: str(value) for one in whole.defaults if one != "_self_" for key, value in one.items()
    }


@cache
def _stated(group: str, name: str) -> dict[str, str]:
    """What a file of ``conf/`` states itself, as words have it, by key; empty where there is no
    such file.
    """
    path = CONF / group / f"{name}.yaml"
    if not path.is_file():
        return {}
    found = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(found, dict)
    return {str(key): str(value) for key, value in found.items() if isinstance(value, str | int)}


def group_of(override: str) -> str:
    """The configuration group, or the section, that an override changes.

    >>> group_of("loader.chunk_bytes=1048576"), group_of("+experiment=more_memory")
    ('loader', 'experiment')
    """
    return override.lstrip("+~").split("=")[0].split("@")[0].split(".")[0]
