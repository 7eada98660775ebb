"""The request for a measurement of quality, read from the command line and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException

from capture.models.discover import CaptureError
from capture.recording.settings import SettingError
from real.lossy.assess import LOOPS, Loop, Weights
from real.lossy.harness import Tasks
from real.lossy.variants import Scheme
from real.store.experts import SwapError
from sim.results.folders import folder_for
from sim.results.labels import labels_in, told
from sim.traces.trace import TraceError
from sim.verbs.options import WEIGHTS
from sim.verbs.table import verb_of
from sim.verbs.words import read_all

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


def weights_of(own: Mapping[str, str]) -> Weights:
    """The model of a verb's options, all of which are given."""
    place = own["weights"]
    is_bundled = place == WEIGHTS.default
    return Weights(None if is_bundled else place, own["dtype"], own["device"], int(own["threads"]))


def request_of(verb: str, words: Sequence[str]) -> Request:
    """What the words ask of a verb that measures quality. Raise ValueError for wrong ones."""
    given = read_all(verb, words)
    own, overrides, usual = given.own, given.overrides, verb_of(verb).option("output_dir")
    assert usual is not None, "each of them writes files"
    loop, prompts, weights = own.get("loop", "both"), own.get("prompts"), weights_of(own)
    if prompts is not None and any(word.startswith("trace") for word in overrides):
        raise ValueError(
            "prompts= are captured anew, trace= names what was captured: give one of them"
        )
    if prompts is not None and weights.place is None:
        raise ValueError(
            "prompts= are captured with a model: say which, weights=DIR or weights=OWNER/NAME"
        )
    return Request(
        overrides,
        weights,
        Scheme(own["quantiser"], int(own["group"])),
        LOOPS if loop == "both" else (loop,),
        prompts,
        folder_for(own, Path(usual.default)),
        _tasks(own),
        own["overwrite"] == "yes",
    )


def _tasks(own: Mapping[str, str]) -> Tasks | None:
    """The tasks of the harness; None if there are none."""
    limit = int(own.get("limit", "0"))
    if "tasks" not in own:
        if limit or "task_dir" in own:
            alone = f"limit={limit}" if limit else f"task_dir={own['task_dir']}"
            raise ValueError(f"{alone} is for the harness: say which tasks=a,b")
        return None
    directory = Path(own["task_dir"]) if "task_dir" in own else None
    return Tasks(tuple(own["tasks"].split(",")), directory, limit or None)


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
