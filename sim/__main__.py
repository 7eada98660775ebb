"""``python -m sim system=hobbit ...``: simulate one run, write its files, print the answer.

``python -m sim -m ...`` simulates every combination. It ends with one table, one figure and one
sentence for each budget, which lie in its folder, too (`sim.results.overview`).
``python -m sim list KIND`` is ``python -m sim.list KIND`` (`sim.verbs.begin`).
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from rich.console import Console

from sim.process.interrupts import Terminated, code_of, telling
from sim.process.printing import print_text
from sim.results.folders import forget, own_folder
from sim.results.intervals import Floats
from sim.results.latency import decode_time_and_tokens
from sim.results.outputs import decodes, print_summary, write_outputs
from sim.results.overview import Done, Refused, overview
from sim.results.overview_words import show, write
from sim.setup.build import build
from sim.setup.command import (
    changed,
    compose_once,
    forget_made,
    in_one_line,
    output_folder,
    overwrites,
    system_name,
)
from sim.setup.execute import Result, execute
from sim.values.places import CONF

DONE: list[Done] = []
"""The runs of a multirun that have ended."""
REFUSED: list[Refused] = []
"""Those that were refused."""
FOLDER: list[Path] = []
"""The folder of a multirun, as soon as it has a run."""
OVERWRITE: list[bool] = []
"""Has an item if a run may empty its folder: hydra hands on no words but those of its own."""


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
        forget_made()
        if not _is_many():
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
        if not HydraConfig.get().launcher._target_.endswith(".BasicLauncher"):
            raise  # the run has a process of its own: hydra reports it, and fails, at the end
        _note(Refused(" ".join(HydraConfig.get().overrides.task), str(error)))
    except (KeyboardInterrupt, Terminated) as stop:
        forget_made()
        if _is_many() and not DONE and not REFUSED:
            _forget_all()
        print(f"interrupted; {_left()}", file=sys.stderr)
        sys.exit(code_of(stop))


def _run(cfg: DictConfig, output_dir: Path) -> None:
    started = time.perf_counter()
    run = build(cfg, system_name(), changed=changed())
    with own_folder(output_dir, overwrite=any(OVERWRITE)):
        full = cfg.outputs == "all"
        result = execute(run, progress=Console(stderr=True))
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
    if _is_many():
        _note(Done(summary, tuple(HydraConfig.get().overrides.task), _decode_ns(result)))
        return
    console = Console()
    print_summary(summary, console)
    print_text(console, f"files: {output_dir}")


def _take_flags() -> None:
    """Put the overrides that ``flags=`` stands for in its place. Raise ValueError."""
    given = [word for word in sys.argv[1:] if word.startswith("flags=")]
    if not given:
        return
    if given[1:]:
        raise ValueError("flags= stands twice; write all flags in one, as in flags='-c 8192 -np 2'")
    # Late: other runs need none of it.
    from sim.answers.engine_flags import read_flags, words_of

    rest = [word for word in sys.argv[1:] if word not in given]
    words = [word for word in rest if not word.startswith("-")]
    made = words_of(read_flags(given[0].partition("=")[2]), words)
    sys.argv[1:] = [*made[: len(made) - len(words)], *rest]


def _is_many() -> bool:
    """Whether this is one run of a multirun."""
    return bool(HydraConfig.get().mode == RunMode.MULTIRUN)


def _decode_ns(result: Result) -> Floats:
    return decode_time_and_tokens(result.frames)[0]


def _forget_all() -> None:
    """Remove what hydra writes for a multirun before its first run."""
    folder = Path(HydraConfig.get().sweep.dir)
    (folder / "multirun.yaml").unlink(missing_ok=True)
    forget(folder)


def _note(run: Done | Refused) -> None:
    """Keep a run of a multirun for its table, and say that it has ended."""
    if not FOLDER:
        FOLDER.append(Path(HydraConfig.get().sweep.dir))
    if isinstance(run, Done):
        DONE.append(run)
        told = f"{' '.join(run.words)}: decodes {decodes(run.summary['decode_tokens_per_s'])}"
    else:
        REFUSED.append(run)
        told = f"{run.words}: refused"
    print(f"{len(DONE) + len(REFUSED)}: {told}", file=sys.stderr, flush=True)


def _tell_all() -> int:
    """Print and write what the runs of a multirun say together; return its exit status."""
    if FOLDER:
        found = overview(DONE, REFUSED)
        FOLDER[0].mkdir(parents=True, exist_ok=True)
        write(found, FOLDER[0])
        show(found, Console())
        print_text(Console(), f"files: {FOLDER[0]}")
    return 3 if REFUSED else 0


def _left() -> str:
    """What a call leaves that is stopped now: of a multirun, the runs that have ended."""
    kept = f" of this run; {len(DONE)} are kept in {FOLDER[0]}" if DONE else ""
    return f"nothing was written{kept}"


@telling(_left)
def _command() -> int:
    # Hydra tells each run of a multirun on stdout, from the second on.
    logging.getLogger("hydra").setLevel(logging.WARNING)
    OVERWRITE.append(overwrites())
    try:
        _take_flags()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    compose_once()
    return in_one_line(main) or _tell_all()


if __name__ == "__main__":
    sys.exit(_command())
