"""What the commands that run one configuration share: its name, what was changed in it, and its
folder.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from sim.results.outputs import forget
from sim.setup import configure


def system_name() -> str:
    """The system, and whatever of its mechanisms was swapped on the command line: ``hobbit
    precision=fp16``.
    """
    chosen = HydraConfig.get()
    return configure.system_name(chosen.runtime.choices.get("system"), chosen.overrides.task)


def changed() -> list[str]:
    """What was changed on the command line beside the system's mechanisms: machine, model,
    trace, workload.
    """
    return configure.changes(HydraConfig.get().overrides.task)


def fresh_folder(path: str) -> str:
    """A new folder: ``path``, or the first of ``path-2``, ``path-3``... that there is not. It is
    made here, so that no two runs have one folder, in whatever second they begin.
    """
    wanted = Path(path)
    for number in count(2):
        try:
            wanted.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(
                f"no folder for a run can be made in {wanted.parent} ({error}); choose"
                " hydra.run.dir=DIR"
            ) from None
        try:
            wanted.mkdir()
            return str(wanted)
        except FileExistsError:
            wanted = wanted.with_name(f"{Path(path).name}-{number}")
        except FileNotFoundError:
            pass  # another run has just cleared away the folder around it, which was empty
    raise AssertionError("numbers do not end")


def output_folder(cfg: DictConfig) -> Path:
    """Where a run's files go. The folder that hydra makes for every run is removed where it is
    another one.
    """
    asked = Path(str(cfg.output_dir))
    if asked.absolute() != Path(HydraConfig.get().runtime.output_dir).absolute():
        forget_made()
    return asked


def forget_made() -> None:
    """Remove the folder that hydra makes for every run, if nothing is in it."""
    forget(Path(HydraConfig.get().runtime.output_dir))


# Cached: one composition has one folder, and the runs of a multirun share the one around theirs.
OmegaConf.register_new_resolver("fresh", fresh_folder, use_cache=True, replace=True)
