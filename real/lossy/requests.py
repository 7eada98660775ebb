"""The request for a measurement of quality, read from the command line and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException

from capture.models.discover import CaptureError
from capture.recording.settings import SettingError
from real.lossy.assess import LOOPS, Loop, Weights
from real.lossy.harness import Tasks
from real.lossy.variants import Scheme
from real.store.experts import SwapError
from sim.results.labels import labels_in, told
from sim.results.outputs import folder_for
from sim.traces.trace import TraceError

OWN = (
    "weights",
    "prompts",
    "loop",
    "quantiser",
    "group",
    "dtype",
    "device",
    "threads",
    "output_dir",
    "overwrite",
    "tasks",
    "task_dir",
    "limit",
)
OUTPUT_DIR = "outputs/quality"
WRONG_INPUT = (
    ValueError,
    OSError,
    OmegaConfBaseException,
    CaptureError,
    SettingError,
    TraceError,
    SwapError,
)


@dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    overrides: tuple[str, ...]
    weights: Weights
    scheme: Scheme
    loops: tuple[str, ...]
    prompts: str | None
    output_dir: Path
    tasks: Tasks | None
    overwrite: bool = False


def request_of(words: Sequence[str]) -> Request:
    """The request of these words. Raise ValueError for the first word that is wrong."""
    own: dict[str, str] = {}
    overrides = []
    for word in words:
        key, equals, text = word.partition("=")
        if key not in OWN:
            overrides.append(word)
        elif not equals or not text or key in own:
            raise ValueError(f"{word!r}: give {key}=VALUE, once")
        else:
            own[key] = text
    loop = own.get("loop", "both")
    if loop not in (*LOOPS, "both"):
        raise ValueError(f"unknown loop={loop}; known: {', '.join(LOOPS)}, both")
    if "prompts" in own and any(word.startswith("trace") for word in overrides):
        raise ValueError(
            "prompts= are captured anew, trace= names what was captured: give one of them"
        )
    if "prompts" in own and "weights" not in own:
        raise ValueError(
            "prompts= are captured with a model: say which, weights=DIR or weights=OWNER/NAME"
        )
    weights = Weights(
        own.get("weights"),
        own.get("dtype", "float32"),
        own.get("device", "cpu"),
        _whole(own, "threads", 0),
    )
    scheme = Scheme(own.get("quantiser", "groups"), _whole(own, "group", 64))
    return Request(
        tuple(overrides),
        weights,
        scheme,
        LOOPS if loop == "both" else (loop,),
        own.get("prompts"),
        folder_for(own, Path(OUTPUT_DIR)),
        _tasks(own),
        own.get("overwrite") == "yes",
    )


def _tasks(own: dict[str, str]) -> Tasks | None:
    """The tasks of the harness; None if there are none."""
    if "tasks" not in own:
        if alone := [key for key in ("task_dir", "limit") if key in own]:
            raise ValueError(f"{alone[0]}={own[alone[0]]} is for the harness: say which tasks=a,b")
        return None
    directory = Path(own["task_dir"]) if "task_dir" in own else None
    if directory is not None and not directory.is_dir():
        raise ValueError(
            f"task_dir={directory} is no folder; give the one that the tasks' yaml files are in"
        )
    return Tasks(tuple(own["tasks"].split(",")), directory, _whole(own, "limit", 0) or None)


def _whole(own: dict[str, str], key: str, default: int) -> int:
    text = own.get(key, str(default))
    if not text.isdecimal():
        raise ValueError(f"{key}={text} must be a whole number of 0 or more")
    return int(text)


def told_of_quality(loops: Sequence[Loop]) -> list[str]:
    """What a reader must know of these systems.

    Of a transplant also which numbers are of which model.
    """
    labels = [(str((s := loop.replayed.result.summary)["system"]), labels_in(s)) for loop in loops]
    is_transplant = any(one.transplanted for _, one in labels)
    both = (
        ["Times are of those sizes, quality is of the model that has the gates."]
        if is_transplant
        else []
    )
    return [*told(labels), *both]
