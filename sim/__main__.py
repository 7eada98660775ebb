"""``python -m sim system=hobbit ...``: simulate one run, write its files, print the answer.

``python -m sim list KIND`` is ``python -m sim.list KIND`` (`sim.verbs.begin`).
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from rich.console import Console

from sim.bounds.bounds import MAX, RELAXATION
from sim.results.outputs import own_folder, print_summary, write_outputs
from sim.setup.build import build
from sim.setup.command import changed, forget_made, output_folder, overwrites, system_name
from sim.setup.execute import execute
from sim.values.places import CONF

REFUSED: list[str] = []
"""The runs of a multirun that were refused, with the reason."""
OVERWRITE: list[bool] = []
"""Has an item if a run may empty its folder: hydra hands on no words but those of its own."""


class Interrupted(Exception):
    """Signal ``number`` was received: the run must end and write nothing."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by signal {number}")
        self.number = number


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def main(cfg: DictConfig) -> None:
    """Simulate one run.

    A configuration that cannot run ends with one line and exit code 2, and nothing is written. In a
    hydra multirun such a run is left out, the others go on, and the exit code is 3.
    """
    output_dir = output_folder(cfg)
    try:
        _run(cfg, output_dir)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        forget_made()
        if HydraConfig.get().mode != RunMode.MULTIRUN:
            sys.exit(2)
        if not HydraConfig.get().launcher._target_.endswith(".BasicLauncher"):
            raise  # the run has a process of its own: hydra reports it, and fails, at the end
        REFUSED.append(f"{HydraConfig.get().job.override_dirname}: {error}")
    except (KeyboardInterrupt, Interrupted) as interruption:
        forget_made()
        print("interrupted; nothing was written", file=sys.stderr)
        sys.exit(
            128 + (interruption.number if isinstance(interruption, Interrupted) else signal.SIGINT)
        )


def _run(cfg: DictConfig, output_dir: Path) -> None:
    started = time.perf_counter()
    run = build(cfg, system_name(), changed=changed())
    with own_folder(output_dir, overwrite=any(OVERWRITE)):
        full = cfg.outputs == "all"
        result = execute(run, progress=Console(stderr=True), bounds=RELAXATION if full else MAX)
        wall_s = time.perf_counter() - started - result.bounds_wall_s
        summary = {**result.summary, "wall_s": round(wall_s, 3)}
        write_outputs(
            output_dir,
            summary,
            run.config,
            result.frames if full else None,
            run.controller.loader.wait,
            cfg.timeline_steps,
        )
    console = Console()
    print_summary(summary, console)
    console.print(f"files: {output_dir}", soft_wrap=True)


def _on_signal(number: int, _: object) -> None:
    raise Interrupted(number)


def _tell_refused() -> int:
    """Print the runs that were left out; return the exit status of all runs."""
    if not REFUSED:
        return 0
    print(f"{len(REFUSED)} of the runs were refused:", *REFUSED, sep="\n  ", file=sys.stderr)
    return 3


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _on_signal)
    OVERWRITE.append(overwrites())
    main()
    sys.exit(_tell_refused())
