"""What the commands that run one configuration share: its name, what was changed in it, and hydra's folder."""

from __future__ import annotations

from pathlib import Path

from hydra.core.hydra_config import HydraConfig

from sim import configure
from sim.build import ROOT

CONF = ROOT / "conf"


def system_name() -> str:
    """The system, and whatever of its mechanisms was swapped on the command line: ``hobbit precision=fp16``."""
    chosen = HydraConfig.get()
    return configure.system_name(chosen.runtime.choices.get("system"), chosen.overrides.task)


def changed() -> list[str]:
    """What was changed on the command line beside the system's mechanisms: machine, model, trace, workload."""
    return configure.changes(HydraConfig.get().overrides.task)


def forget(folder: Path) -> None:
    """Remove the folder that hydra makes for every run, and the parents it made: nothing has been written yet."""
    while folder != Path.cwd() and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
