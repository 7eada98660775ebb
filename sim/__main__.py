"""``python -m sim system=hobbit ...``: simulate one run, write its files, print the answer.

``python -m sim list systems|models|machines|traces|workloads``: what there is to choose from.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console

from sim import catalogue
from sim.build import build
from sim.configure import SURROUNDINGS, group_of, system_name
from sim.execute import execute
from sim.outputs import check_writable, print_summary, write_outputs

CONF = str(Path(__file__).parents[1] / "conf")


@hydra.main(version_base="1.3", config_path=CONF, config_name="config")
def main(cfg: DictConfig) -> None:
    """One run. Exit code 2, one line and nothing written for a configuration that cannot run."""
    started = time.perf_counter()
    output_dir = Path(str(cfg.output_dir))
    _forget(Path(HydraConfig.get().runtime.output_dir))
    try:
        run = build(cfg, _system_name())
        check_writable(output_dir)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    try:
        result = execute(run, progress=Console(stderr=True))
    except KeyboardInterrupt:
        _forget(output_dir)
        print("interrupted; nothing was written", file=sys.stderr)
        sys.exit(130)
    summary = {**result.summary, "overrides": _changed(), "wall_s": round(time.perf_counter() - started, 3)}
    full = cfg.outputs == "all"
    write_outputs(output_dir, summary, run.config, result.frames if full else None,
                  run.controller.loader.wait, cfg.timeline_steps)  # fmt: skip
    console = Console()
    print_summary(summary, console)
    console.print(f"files: {output_dir}", soft_wrap=True)


def _system_name() -> str:
    chosen = HydraConfig.get()
    return system_name(chosen.runtime.choices.get("system"), chosen.overrides.task)


def _changed() -> list[str]:
    """What was changed on the command line beside the system's mechanisms: machine, model, trace, workload."""
    return [word for word in HydraConfig.get().overrides.task if group_of(word) in SURROUNDINGS]


def _forget(folder: Path) -> None:
    """Remove the folder that hydra makes for every run, and the parents it made: nothing has been written yet."""
    while folder != Path.cwd() and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


if __name__ == "__main__":
    if sys.argv[1:2] == ["list"]:
        sys.exit(catalogue.main(sys.argv[2:]))
    main()
