"""The outputs of a run: files written together or not at all, a printed table, and one sentence.

The folder that they go to is locked while it is being written.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import Any

import polars as pl
from omegaconf import OmegaConf
from polars.io.plugins import register_io_source
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sim.machine.precision import AS_STORED
from sim.process.files import writing
from sim.process.interrupts import held_back
from sim.process.printing import print_text
from sim.results.bounded import bound_told
from sim.results.forecasts import NO_FORECAST, NOT
from sim.results.frames import Frames
from sim.results.intervals import OVER, beside
from sim.results.labels import Labels, caption, labels_in
from sim.results.timeline import trace_events
from sim.values.places import is_free
from sim.values.units import GIB

Summary = Mapping[str, Any]
BUILDING = ".building."
"""What the name of the folder begins with in which a run's files are made."""
ASIDE, MOVING = ".before-overwrite", ".being-moved"
"""What follows a folder's name in that of the folder beside it that has its older results: all of
them; and some of them, while they are moved.
"""
PART_ROWS = 1 << 20
"""A longer table is written in parts of so many rows, which take some 100 MB."""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock ``directory`` (made if it is new) until the block or this process ends.

    The lock holds against others that ask for it in this way. If the block raises, a folder that
    was made for it is removed again if it is empty. Raise OSError if another process has the lock.
    """
    was_there, handle = directory.exists(), None
    try:
        with held_back():
            while (handle := _take(directory)) is None:
                pass
        yield
    except BaseException:
        if not was_there and handle is not None:
            forget(directory)
        raise
    finally:
        if handle is not None:
            os.close(handle)


def _take(directory: Path) -> int | None:
    """Open and lock ``directory``; return its file descriptor.

    None if another process has just removed it, or has put another in its place. Raise OSError if
    another process has the lock, or the directory cannot be made or opened.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _unwritable(directory, error) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise OSError(
            f"output_dir={directory} is being written by another process; choose another one"
        ) from None
    except OSError:
        return handle  # the file system has no locks: go on without
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(handle), directory.stat()):
            return handle
    os.close(handle)
    return None


def folder_for(words: Mapping[str, str], default: Path) -> Path:
    """The folder of a command's results: ``output_dir`` of its words, else ``default``, or the
    first of ``default-2``, ``default-3`` .. that is absent or empty.
    """
    if "output_dir" in words:
        return Path(words["output_dir"])
    if words.get("overwrite") == "yes":
        return default
    later = (default.with_name(f"{default.name}-{number}") for number in count(2))
    return next(place for place in chain([default], later) if is_free(place))


@contextmanager
def own_folder(directory: Path, overwrite: bool = False) -> Iterator[None]:
    """Lock an empty ``directory`` and empty it again if the block raises.

    With ``overwrite`` the folder need not be empty: what is in it goes aside first, to NAME`ASIDE`,
    and comes back if the block raises. After a process that was killed it comes back here, before
    anything else. Raise OSError as ``locked`` and ``check_writable`` do.
    """
    with locked(directory):
        is_own = False
        try:
            with held_back():
                if _bring_back(directory) and not overwrite:
                    raise OSError(
                        f"output_dir={directory} has its results again, which a killed command had"
                        " put aside; choose another one, or add overwrite=yes"
                    )
                if overwrite:
                    _put_aside(directory)
                check_writable(directory)
                is_own = True
            with writing(directory):
                yield
        except BaseException:
            if is_own:
                _empty(directory)
            _bring_back(directory)
            raise
        _drop(_beside(directory, ASIDE))


def _beside(directory: Path, kind: str) -> Path:
    place = directory.absolute()
    return place.with_name(f"{place.name}{kind}")


def _put_aside(directory: Path) -> None:
    """Move what is in ``directory`` to the folder beside it that has its name and `ASIDE`.

    Raise OSError for a folder that is more than a command's results.
    """
    if Path.cwd().is_relative_to(directory.absolute()):
        raise OSError(f"output_dir={directory} has the working directory in it; choose another one")
    # A run that is killed while it writes its files leaves the folder in which it made them.
    names = [path.name for path in directory.iterdir() if not path.name.startswith(BUILDING)]
    if hidden := [name for name in names if name.startswith(".")]:
        raise OSError(
            f"output_dir={directory} has {hidden[0]}, which no command here leaves; empty it"
            " yourself, or choose another one"
        )
    # While some of it is here and some there the folder has another name: a process that is killed
    # then has written nothing yet.
    moving = _beside(directory, MOVING)
    moving.mkdir()
    _move_all(directory, moving)
    moving.rename(_beside(directory, ASIDE))


def _bring_back(directory: Path) -> bool:
    """Move what was put aside to ``directory`` again, in the place of what is there; return whether
    there was anything.
    """
    aside, moving = _beside(directory, ASIDE), _beside(directory, MOVING)
    if aside.is_dir():
        _empty(directory)
        aside.rename(moving)
    if not moving.is_dir():
        return False
    _move_all(moving, directory)
    moving.rmdir()
    return any(directory.iterdir())


def _drop(aside: Path) -> None:
    """Remove what was put aside, if there is any. From its first moment on nobody brings it back."""
    if aside.is_dir():
        gone = Path(tempfile.mkdtemp(prefix=f".{aside.name}.", dir=aside.parent))
        aside.rename(gone)
        shutil.rmtree(gone)


def _empty(directory: Path) -> None:
    for path in directory.iterdir():
        _remove(path)


def _move_all(source: Path, target: Path) -> None:
    for path in list(source.iterdir()):
        path.rename(target / path.name)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def forget(folder: Path) -> None:
    """Remove an empty ``folder`` and its empty parents, up to the working directory."""
    folder, here = folder.absolute(), Path.cwd()
    with suppress(OSError):  # it is not empty, or somebody else has removed it
        while folder != here and folder.is_dir():
            folder.rmdir()
            folder = folder.parent


def write_outputs(
    directory: Path,
    summary: Summary,
    config: Summary,
    frames: Frames | None,
    wait: str,
    timeline_steps: int | None,
) -> None:
    """Write every file of a run into ``directory``; without ``frames`` only ``summary.json``.

    Files are made in a hidden folder inside and moved out of it when all are complete. If anything
    fails on the way, none is left. ``wait`` and ``timeline_steps`` are those of
    `sim.results.timeline.trace_events`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=BUILDING, dir=directory))
    moved: list[Path] = []
    try:
        _write_json(building / "summary.json", summary, indent=1)
        if frames is not None:
            for name in frames.names:
                _write_table(frames.parts(name, PART_ROWS), building / f"{name}.parquet")
            run = {
                name: summary[name]
                for name in ("system", "model", "hardware", "trace", "budget", "labels")
            }
            _write_json(building / "timeline.json", trace_events(frames, wait, timeline_steps, run))
            (building / "config.yaml").write_text(
                OmegaConf.to_yaml(OmegaConf.create(dict(config))), encoding="utf-8"
            )
        for path in sorted(building.iterdir()):
            moved.append(directory / path.name)
            os.replace(path, moved[-1])
    except BaseException:
        for path in moved:
            path.unlink(missing_ok=True)
        raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def check_writable(directory: Path) -> None:
    """Raise OSError unless ``directory`` (made if it is new) is empty and can be written.

    Commands call it before any work is done.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise OSError("it is not empty")
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise _unwritable(directory, error) from error


def _unwritable(directory: Path, error: OSError) -> OSError:
    return OSError(f"output_dir={directory} cannot be written ({error}); choose another one")


def _write_table(parts: Iterator[pl.DataFrame], path: Path) -> None:
    """Write the rows of ``parts``, in order, to one parquet file. One part is held at a time."""
    first = next(parts)
    if (second := next(parts, None)) is None:
        with writing(path):
            first.write_parquet(path, compression="zstd")
        return
    schema, begun = first.schema, [first, second]
    del first, second

    def in_order(*_: object) -> Iterator[pl.DataFrame]:
        while begun:
            yield begun.pop(0)
        yield from parts

    with writing(path):
        register_io_source(in_order, schema=schema).sink_parquet(
            path, compression="zstd", maintain_order=True
        )


def _write_json(path: Path, content: Summary, indent: int | None = None) -> None:
    path.write_text(json.dumps(content, indent=indent, allow_nan=False) + "\n", encoding="utf-8")


def print_summary(summary: Summary, console: Console) -> None:
    """Print the table of a run with its labels, warnings about its trace, and its ``answer``."""
    title = f"{summary['system']} on {summary['hardware']}, {summary['model']}"
    # An override may be a list in brackets, which rich would take for markup.
    labels = _labels(labels_in(summary))
    ci = summary["ci95"]
    over = beside(
        (ci[name] for name in ("decode_tokens_per_s", "ttft_s", "tpot_s", "hit_ratio")), OVER
    )
    told = escape(". ".join(filter(None, [labels, over])))
    table = Table("metric", "value", "95 % interval", title=escape(title), caption=told)
    for name, value, unit, interval in (
        ("decode", summary["decode_tokens_per_s"], "tok/s", ci["decode_tokens_per_s"]),
        ("time to first token", summary["ttft_s"]["mean"], "s", ci["ttft_s"]),
        ("  p95 of requests", summary["ttft_s"]["p95"], "s", None),
        *_of_prompts(summary),
        ("time per output token", summary["tpot_s"]["mean"], "s", ci["tpot_s"]),
        ("  p95 of requests", summary["tpot_s"]["p95"], "s", None),
        ("hit ratio (decode)", summary["hit_ratio"], "", ci["hit_ratio"]),
        ("makespan", summary["makespan_s"], "s", None),
        ("compute busy", summary["compute_busy_s"], "s", None),
        *(
            (f"stall: {part.replace('_', ' ')}", value, "s", None)
            for part, value in summary["stall_s"].items()
            if value
        ),
        *(
            (f"slowed: {party}", value, "s", None)
            for party, value in (summary["slowed_s"] or {}).items()
            if value
        ),
        *(
            (f"link {link} busy", 100 * share, "%", None)
            for link, share in summary["link_utilisation"].items()
        ),
        *((("hit ratio (RAM)", summary["ram"]["hit_ratio"], "", None),) if summary["ram"] else ()),
        ("proven lower bound", summary["bounds"]["lower_s"], "s", None),
        ("cold start", summary["load_s"], "s", None),
        ("all experts", summary["storage_bytes"] / GIB, "GiB", None),
    ):
        bounds = "" if interval is None else f"{interval[0]:.4g} .. {interval[1]:.4g}"
        table.add_row(name, "-" if value is None else f"{value:.4g} {unit}".rstrip(), bounds)
    console.print(table)
    for finding in summary["trace"]["findings"] or ():
        print_text(console, f"WARNING: the trace: {finding}")
    if (sizes := summary["trace"]["expert_bytes"]) and sizes["note"]:
        print_text(console, f"NOTE: {sizes['note']}")
    print_text(console, answer(summary))


def _of_prompts(summary: Summary) -> Iterator[tuple[str, float | None, str, None]]:
    """Of devices that have layers: how fast prompts are read, and how fast in a pipeline."""
    if (pipelined := summary.get("pipelined")) is None:
        return
    about = "" if pipelined["exact"] else "about "
    yield "prompts", summary["prefill_tokens_per_s"], "tok/s", None
    times = f"tok/s, {about}{pipelined['times_as_fast']:.2f}x"
    yield "  in a pipeline", pipelined["prefill_tokens_per_s"], times, None


def _labels(labels: Labels) -> str:
    return caption([("", labels)])


def _observed(summary: Summary) -> str:
    """What an interval is over: sequences that share steps are one observation.

    >>> _observed({"trace": {"sequences": 8}, "contracts": {"together": 4}})
    'the batches of 8 sequences'
    """
    batches = "the batches of " if summary.get("contracts", {}).get("together", 1) > 1 else ""
    return f"{batches}{summary['trace']['sequences']} sequences"


def decodes(tokens_per_s: float | None) -> str:
    """How a run decodes, in words.

    >>> decodes(4.4), decodes(None)
    ('at 4.4 tokens/s', 'nothing')
    """
    return "nothing" if tokens_per_s is None else f"at {tokens_per_s:.3g} tokens/s"


def answer(summary: Summary) -> str:
    """The run in one sentence; a second says why prompts were not forecast, where it matters."""
    rate, interval = summary["decode_tokens_per_s"], summary["ci95"]["decode_tokens_per_s"]
    waiting = sum(summary["stall_s"].values()) / summary["makespan_s"]
    parts = {name: value for name, value in summary["stall_s"].items() if value}
    main = max(parts, key=lambda name: parts[name]) if parts else None
    speed = decodes(rate)
    if interval is not None:
        speed += f" (95 % over {_observed(summary)}: {interval[0]:.3g} to {interval[1]:.3g}"
        speed += f"{_with_machine(summary)})"
    because = f", mostly {main.replace('_', ' ')}" if main else ""
    labels, lost = labels_in(summary), lost_of(summary)
    lossy = f"; {labels.lossy}{f': {lost}' if lost else ''}" if labels.lossy else ""
    share, best = held_share(summary["budget"]), _best_precision(summary)
    at = "" if best in AS_STORED else f" at {best}"
    note = f" [{label}]" if (label := _labels(replace(labels, lossy=None))) else ""
    note += _prompts(summary)
    return (
        f"With {share:.0%} of the expert bytes{at} resident, {summary['system']} decodes {speed}"
        f" on {summary['hardware']}; it waits {waiting:.0%} of the"
        f" time{because}{bound_told(summary)}{lossy}.{note}"
    )


def held_share(budget: Mapping[str, Any]) -> float:
    """The share of the expert bytes that a run's pools have room for. Some caches leave most of
    their budget unused.

    >>> held_share({"resident_share": 0.5, "device_bytes": 20, "allowed_bytes": 80})
    0.125
    """
    return float(budget["resident_share"] * budget["device_bytes"] / budget["allowed_bytes"])


def _with_machine(summary: Summary) -> str:
    """The interval that has the machine's error too; empty where nobody knows that error."""
    ends = (summary["calibration"].get("ci95") or {}).get("decode_tokens_per_s")
    return f"; with the machine's error {ends[0]:.3g} to {ends[1]:.3g}" if ends else ""


def _prompts(summary: Summary) -> str:
    """Why prompts, or some decoded tokens, were not forecast where the system would have done so;
    else empty.
    """
    told = summary["prediction"].get("prompts") or ""
    return f" Prompts were {told}." if told.startswith(NOT) or NO_FORECAST in told else ""


def served(summary: Mapping[str, Any]) -> str:
    """In words: the highest precision at which needs were served, and what was lost."""
    lost, lossy = lost_of(summary), " (lossy)" if labels_in(summary).lossy else ""
    return f"at {_best_precision(summary)}{f', {lost}' if lost else ''}{lossy}"


def _best_precision(summary: Mapping[str, Any]) -> str:
    return str(next(iter(summary["budget"]["slots"])))


def lost_of(summary: Mapping[str, Any]) -> str:
    """In words: the shares of needs served at low precision, skipped, or by other experts.

    Empty for a run that lost nothing.
    """
    quality = summary["quality_proxy"]
    lost = ""
    if quality["low_share"] or quality["skip_share"] or quality["reroute_share"]:
        lost = (
            f"{quality['low_share']:.0%} of needs at low precision, {quality['skip_share']:.1%}"
            " skipped"
        )
    if quality["reroute_share"]:
        lost += f", {quality['reroute_share']:.1%} served by other experts"
    return lost
