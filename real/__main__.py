"""Runs a system on a device, writes its files, and prints the answer.

    python -m real system=... device=cpu|cuda|host|null [input=live|replay]

The files are those of ``python -m sim``, written by the same code. A live run also leaves
``generated.jsonl``.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from real.driver.loop import Driver
from real.setup.execute import Result, lateness, measure, replay_driver
from real.setup.prepare import (
    Prepared,
    Request,
    check_slowing,
    check_words,
    prepare_replay,
    read_request,
)
from sim.process.interrupts import Terminated, code_of, terminate
from sim.process.printing import print_text
from sim.process.progress import Shown
from sim.results.folders import forget, own_folder
from sim.results.outputs import print_summary, write_outputs
from sim.setup.command import (
    changed,
    compose_once,
    forget_made,
    given,
    in_one_line,
    output_folder,
    system_name,
)
from sim.values.places import CONF


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="real")
def main(cfg: DictConfig) -> None:
    """Make one run.

    Exit code 2 and one line for what cannot run, 1 for what fails in the run, 128 + n for signal n.
    """
    started = time.perf_counter()
    signal.signal(signal.SIGTERM, terminate)
    output_dir = output_folder(cfg)
    console = Console(stderr=True)
    try:
        check_words(cfg, given())
        check_slowing(cfg, given())
        request = read_request(cfg, system_name(), changed())
        with own_folder(output_dir):
            with _bar(console, "experts") as (advance, _):
                prepared = _prepare(request, advance)
            code, told, summary = _run(prepared, cfg, output_dir, started, console)
    except NotBegunError as failed:
        forget(output_dir)
        print(f"{failed}; nothing was written", file=sys.stderr)
        sys.exit(failed.code)
    except (ValueError, OSError) as error:
        forget_made()
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, Terminated) as stop:
        forget_made()
        print("interrupted before the run; nothing was written", file=sys.stderr)
        sys.exit(code_of(stop))
    if summary is not None:
        _print(summary, output_dir)
    if told:
        print(told, file=sys.stderr)
    sys.exit(code)


class NotBegunError(Exception):
    """The run ended before its driver was made; ``code`` is the exit status."""

    def __init__(self, told: str, code: int) -> None:
        super().__init__(told)
        self.code = code


def _prepare(request: Request, advance: Any) -> Prepared:
    if request.input == "replay":
        return prepare_replay(request, advance=advance)
    from real.live.run import prepare

    return prepare(request, advance=advance)


def _run(
    prepared: Prepared, cfg: DictConfig, output_dir: Path, started: float, console: Console
) -> tuple[int, str | None, dict[str, Any] | None]:
    """Run and write. Return the exit code, and the summary, or where the code is not 0 a message.

    In that case the command keeps what there is so far. Raise NotBegunError where that is nothing.
    """
    driver: Driver | None = None
    try:
        with _bar(console, f"{prepared.run.system} on {prepared.request.device}: steps") as (
            _,
            count,
        ):
            total = prepared.num_steps
            driver = _driver(prepared, output_dir, lambda done: count(done, total))
            record = driver.drive()
        result = _measured(prepared, driver, record)
        return 0, None, _write(prepared, result, cfg, output_dir, started)
    except (KeyboardInterrupt, Terminated) as stop:
        if driver is None:
            raise NotBegunError("interrupted", code_of(stop)) from None
        return code_of(stop), f"interrupted; {_keep(driver, output_dir, 'interrupted')}", None
    except (RuntimeError, ValueError, OSError, MemoryError) as error:
        reason = _reason(error)
        if driver is None:
            raise NotBegunError(f"error: {reason}", 1) from error
        return 1, f"error: {reason}\n{_keep(driver, output_dir, reason)}", None


def _driver(prepared: Prepared, output_dir: Path, advance: Any) -> Driver:
    if prepared.request.input == "replay":
        return replay_driver(prepared, advance)
    from real.live.run import live_driver

    return live_driver(prepared, output_dir, advance)


def _measured(prepared: Prepared, driver: Driver, record: Any) -> Result:
    if prepared.request.input == "replay":
        return measure(prepared, prepared.run, driver, record)
    from real.live.run import run_as_it_was

    return measure(prepared, run_as_it_was(prepared, driver), driver, record)


def _write(
    prepared: Prepared, result: Result, cfg: DictConfig, output_dir: Path, started: float
) -> dict[str, Any]:
    summary = {**result.summary, "wall_s": round(time.perf_counter() - started, 3)}
    config: Any = OmegaConf.to_container(cfg, resolve=True)
    write_outputs(
        output_dir,
        summary,
        config,
        result.frames if cfg.outputs == "all" else None,
        prepared.run.controller.loader.wait,
        cfg.timeline_steps,
    )
    return summary


def _print(summary: dict[str, Any], output_dir: Path) -> None:
    console = Console()
    print_summary(summary, console)
    if told := lateness(summary["real"]):
        print_text(console, told)
    print_text(console, f"files: {output_dir}")


def _keep(driver: Driver, output_dir: Path, reason: str) -> str:
    """Write down how far a run came; return a sentence about that."""
    record = driver.record
    ended = len(record.step_end_ns)
    partial = {
        "reason": reason,
        "steps_done": ended,
        "lookups": len(record.lookup_ns),
        "transfers": len(record.service_number),
        "step_start_ns": record.step_start_ns[:ended],
        "step_end_ns": record.step_end_ns,
    }
    path = output_dir / "partial.json"
    try:
        path.write_text(json.dumps(partial) + "\n", encoding="utf-8")
    except OSError as error:
        path.unlink(missing_ok=True)
        return f"{ended} steps had been done; {path} cannot be written either ({error.strerror})"
    return f"{ended} steps had been done; their times are kept in {path}"


def _reason(error: BaseException) -> str:
    """The error, with what caused it in another thread."""
    cause = error.__cause__
    return str(error) if cause is None or str(cause) in str(error) else f"{error}: {cause}"


@contextmanager
def _bar(console: Console, what: str) -> Iterator[tuple[Any, Any]]:
    """A bar that shows ``(done, total)``; both functions are the same."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Shown(*columns, console=console) as bar:
        task = bar.add_task(what, total=None)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield advance, advance


def _command() -> int:
    compose_once()
    return in_one_line(main)


if __name__ == "__main__":
    sys.exit(_command())
