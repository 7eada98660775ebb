"""The places of the project's own files: its configuration and the bundled data.

In a checkout ``conf/`` lies beside the packages; an installed package carries it inside ``sim``.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

ROOT = Path(str(files("sim"))).parent
"""The folder that holds the packages.

Relative paths that do not exist below the working directory are looked up here.
"""
_CARRIED = ROOT / "sim" / "conf"
IS_CHECKOUT = not _CARRIED.is_dir()
CONF = ROOT / "conf" if IS_CHECKOUT else _CARRIED
"""The configuration, with a folder for each group."""
ASSETS = ROOT / "capture" / "assets"
"""The bundled models, traces, fits and prompts."""
PRESETS = ROOT / "capture" / "presets"
"""The synthesiser's presets."""
UNFINISHED = ".unfinished"
"""A file in a folder of results while a command writes them. Where it stays the command was killed."""
WORDS_OF_YAML = ("null", "true", "false", "nan", "inf")
QUOTED = re.compile(r"'([^'\\]|\\+[^\\])*\\*'")
"""A text in quotes. A quote inside has a backslash before it."""
MECHANISMS = (
    "predictor",
    "cache",
    "ram_cache",
    "precision",
    "placement",
    "payload",
    "loader",
    "kernels",
)
"""The folders of ``conf/`` from which a system chooses, and a command line may choose another file."""


def quoted(text: str) -> str:
    """A text that hydra reads as this text, and as no number, null, list or choice of several.

    >>> quoted("data/mine"), quoted("data/mine (1)"), quoted("data/größe")
    ('data/mine', "'data/mine (1)'", "'data/größe'")
    """
    if re.fullmatch(r"[A-Za-z_/][A-Za-z0-9_./-]*", text) and text.lower() not in WORDS_OF_YAML:
        return text
    # Inside quotes, only what stands before a quote is escaped.
    inner = re.sub(r"(\\*)('|$)", lambda m: 2 * m[1] + ("\\'" if m[2] else ""), text)
    return f"'{inner}'"


def unquoted(text: str) -> str:
    """The text that `quoted` has made this of; any other as it is.

    >>> [unquoted(quoted(text)) for text in ("mine", "a=b", "it's", "a\\\\'")]
    ['mine', 'a=b', "it's", "a\\\\'"]
    """
    if not QUOTED.fullmatch(text):
        return text
    return re.sub(r"(\\*)('|$)", lambda m: m[1][: len(m[1]) // 2] + m[2], text[1:-1])


def name_of(path: Path) -> Path:
    """How a file of the project is called, wherever it lies: ``conf/cache/lru.yaml``, also of an
    installed package. Of any other file only its last part.
    """
    if path.is_relative_to(CONF):
        return "conf" / path.relative_to(CONF)
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path(path.name)


def machine_file(name: str) -> Path:
    """Where a command writes a machine that it has measured, unless it is told: ``conf/hardware``
    of a checkout, else ``mine/hardware``. The working directory itself cannot be searched by Hydra
    once it has a folder ``outputs``, which is a key of every run.
    """
    return (CONF if IS_CHECKOUT else Path("mine")) / "hardware" / f"{name}.yaml"


def words_for(file: Path, group: str) -> str:
    """The words with which runs find a file of a group.

    Hydra finds it in a folder of the group's name alone, and not in the working directory's own
    (see `machine_file`). For a file elsewhere a comment says where it has to lie.

    >>> words_for(Path("mine/model/own.yaml"), "model"), words_for(CONF / "model/own.yaml", "model")
    ("model=own 'hydra.searchpath=[mine]'", 'model=own')
    >>> words_for(Path("own.yaml"), "model")
    "model=own 'hydra.searchpath=[mine]'  # once it lies in mine/model"
    """
    folder = file.absolute().parent
    if folder == CONF / group:
        return f"{group}={file.stem}"
    found = folder.name == group and folder.parent != Path.cwd()
    search = file.parent.parent if found else "mine"
    where = "" if found else f"  # once it lies in mine/{group}"
    return f"{group}={file.stem} 'hydra.searchpath=[{search}]'{where}"


def is_free(directory: Path) -> bool:
    """Whether results can go there without touching others: it is absent, an empty folder, or has
    only what a killed command left unfinished.
    """
    if not directory.exists():
        return True
    return directory.is_dir() and (is_unfinished(directory) or not any(directory.iterdir()))


def is_unfinished(directory: Path) -> bool:
    """Whether a command is writing results there, or was killed while it did."""
    return directory.is_dir() and (directory / UNFINISHED).exists()
