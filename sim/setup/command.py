"""The common part of commands that run one configuration under hydra: the run's name, what was
changed, and its folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from sim.results.folders import forget
from sim.setup import configure


def system_name() -> str:
    """The run's name: the system and every mechanism of it that the command line replaced, such as
    ``hobbit precision=fp16``. Raise ValueError as `configure.check_own_files` does.
    """
    chosen = HydraConfig.get()
    configure.check_own_files(chosen)
    return configure.system_name(chosen.runtime.choices.get("system"), chosen.overrides.task)


def changed() -> list[str]:
    """The overrides of the command line that change machine, model, trace or workload."""
    return configure.changes(given())


def given() -> list[str]:
    """All overrides of the command line."""
    return list(HydraConfig.get().overrides.task)


def compose_once() -> None:
    """Let hydra compose the configuration of a single run once.

    Hydra composes it another time before that, only to learn whether it sets ``hydra.mode``. That
    takes as long as all else that a short run composes. No file of ``conf/`` sets it, so hydra asks
    only where the words name something of hydra's own, or another folder of configurations.
    """
    ask = Hydra.get_mode

    def mode(hydra: Hydra, config_name: str | None, overrides: list[str]) -> Any:
        words = [*overrides, *(word for word in sys.argv[1:] if word.startswith("--config"))]
        is_asked = any("hydra" in word or word.startswith("--config") for word in words)
        return ask(hydra, config_name, overrides) if is_asked else None

    Hydra.get_mode = mode  # type: ignore[assignment]


def overwrites() -> bool:
    """Whether the words say ``overwrite=yes``, which is no value of a configuration: it is taken
    out of them, before Hydra reads them.
    """
    given = [word for word in sys.argv[1:] if word.startswith("overwrite=")]
    sys.argv[1:] = [word for word in sys.argv[1:] if word not in given]
    return given[-1:] == ["overwrite=yes"]


def in_one_line(main: Callable[[], Any]) -> int:
    """Run hydra's ``main``; return 0, or 2 after one line about words that fit no configuration."""
    # Else hydra itself prints what does not fit, in several lines, and ends with exit code 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        main()
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        print(f"error: {configure.in_a_line(error)}", file=sys.stderr)
        return 2
    except UnicodeDecodeError as error:
        print(f"error: {configure.not_utf8(error)}", file=sys.stderr)
        return 2
    return 0


def fresh_folder(path: str) -> str:
    """Make a new folder and return its path: ``path``, or the first of ``path-2``, ``path-3``...
    that does not exist.

    Making it here gives two runs different folders even if they begin in the same second. Where the
    command line names a folder none is made, and hydra stays where it is: there may be no place for
    one.
    """
    if any(word.startswith("output_dir=") and "$" not in word for word in sys.argv[1:]):
        return "."
    wanted = Path(path)
    for number in count(2):
        try:
            wanted.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(
                f"no folder for a run can be made in {wanted.parent} ({error}); choose"
                " another one: output_dir=DIR"
            ) from None
        try:
            wanted.mkdir()
            return str(wanted)
        except FileExistsError:
            wanted = wanted.with_name(f"{Path(path).name}-{number}")
        except FileNotFoundError:
            pass  # Another run has just removed the empty folder around it.
    raise AssertionError("numbers do not end")


def output_folder(cfg: DictConfig) -> Path:
    """The folder of a run's files. If it is another than hydra's, the folder that hydra makes for
    every run is removed.
    """
    asked = Path(str(cfg.output_dir))
    if asked.absolute() != Path(HydraConfig.get().runtime.output_dir).absolute():
        forget_made()
    return asked


def forget_made() -> None:
    """Remove the folder that hydra makes for every run, if it is empty."""
    forget(Path(HydraConfig.get().runtime.output_dir))


# Cached, so that one composition has one folder and the runs of a multirun share the folder around
# theirs.
OmegaConf.register_new_resolver("fresh", fresh_folder, use_cache=True, replace=True)
