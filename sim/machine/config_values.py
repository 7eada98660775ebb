"""Single values of a transformers ``config.json``, and the error where they cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import Any

from sim.machine.config_keys import READ

Config = Mapping[str, Any]


MOST = 1 << 30
"""The largest size of one kind that is read: above all models', and small enough to compute with."""


class ConfigError(ValueError):
    """A configuration from which no sizes can be computed; the message says what was found."""


def optional(config: Config, key: str) -> int:
    """The size under ``key``, 0 where there is none. A list has it once for each layer."""
    value = config.get(key)
    if isinstance(value, list) and value:
        if any(one != value[0] for one in value):
            raise ConfigError(f"{key}={str(value)[:60]} differs by layer; it must be one size")
        value = value[0]
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
        raise ConfigError(f"{key}={repr(value)[:60]} must be a whole number of 0 to {MOST:,}")
    return value


def flag(config: Config, key: str, default: bool = False) -> bool:
    """Whether ``key`` says true; null says false, as it does to transformers."""
    value = config.get(key, default)
    if value is not None and not isinstance(value, bool):
        raise ConfigError(f"{key}={repr(value)[:60]} must be true or false")
    return bool(value)


def listing(config: Config, key: str) -> list[Any]:
    """The list of words or numbers under ``key``, empty where there is none."""
    value = config.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or any(not isinstance(one, (str, int)) for one in value):
        raise ConfigError(f"{key}={str(value)[:60]} must be a list of words or numbers")
    return value


def check_length(key: str, given: Sized, layers: int, name: str) -> None:
    """Raise ConfigError unless what is ``given`` under ``key`` has an entry for each layer."""
    if len(given) != layers:
        raise ConfigError(f"{name}: {key} has {len(given)} entries for {layers} layers")


def agreed(config: Config, keys: Iterable[str], name: str) -> int:
    """The size under those of ``keys`` that are given, 0 where none is."""
    found = {key: size for key in keys if (size := optional(config, key))}
    if len(set(found.values())) > 1:
        raise ConfigError(f"{name}: {found} name one thing and differ")
    return next(iter(found.values()), 0)


def number(config: Config, what: str, name: str) -> int:
    """The size that every model has, under one of the keys in ``READ[what]``."""
    if size := agreed(config, READ[what], name):
        return size
    raise ConfigError(
        f"{name}: none of {', '.join(READ[what])} is given (this is the model's {what})"
    )
