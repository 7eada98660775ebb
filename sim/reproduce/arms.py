"""The arms of experiments: single runs, composed from words and a trace, made once and kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra.utils import get_class
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sim.process.files import write_whole
from sim.reproduce import keys
from sim.reproduce.durations import Timing
from sim.reproduce.measured import Measured, measure
from sim.reproduce.roles import Paper
from sim.study.cells import make_cell
from sim.study.plan import Plan
from sim.values.code import files_digest
from sim.values.places import CONF

OWN = ("trace", "timing", "calibrated")
"""Words that this module resolves; all others belong to a configuration."""
WRONG = "sim.reproduce.always_wrong.AlwaysWrong"


class ArmError(ValueError):
    """A run of an experiment is impossible; the message says which, and why."""


@dataclass(frozen=True)
class Arm:
    """One run of an experiment.

    ``words`` are those of its configuration and ``trace`` names the trace that it replays.
    ``timing`` names durations that are given outright, None where the machine's are used.
    """

    words: tuple[str, ...]
    trace: str
    timing: str | None = None


@dataclass(frozen=True)
class Job:
    """An arm with all that it needs from outside.

    ``digest`` is that of the trace's bytes. ``fits`` are the files that were fitted on the trace,
    by the predictor's option. ``timing`` has the durations, where they are given outright.
    """

    arm: Arm
    trace_dir: Path
    digest: str
    fits: Mapping[str, Path]
    timing: Timing | None

    def kept_at(self, folder: Path) -> Path | None:
        """The file of the result in ``folder``; None if it is not known to be there."""
        known = self.known(folder)
        if not known.exists():
            return None
        path = result_path(folder, known.read_text(encoding="ascii"))
        return path if path.exists() else None

    def known(self, folder: Path) -> Path:
        """The file that holds the key of the result; its name follows from the arm's words."""
        fits = [files_digest(path.parent.iterdir()) for path in self.fits.values()]
        timing = asdict(self.timing) if self.timing else None
        return folder / "known" / keys.wide_key(self.arm.words, self.digest, timing, fits)


def result_path(folder: Path, key: str) -> Path:
    return folder / "runs" / f"{key}.json"


def expand(paper: Paper, words: Sequence[str], constants: Mapping[str, float]) -> Arm:
    """The arm that a list of words describes.

    Names of lists of words are replaced by these lists. Of two words for one setting the later one
    counts. Choosing an option, or a section, drops what was set inside of it before. ``constants`` are
    the calibrated ones, by name. Raise ArmError for an unknown word or trace.
    """
    chosen: dict[str, str] = {}
    for word in _flat(paper, words):
        name, found, value = word.partition("=")
        if not found:
            raise ArmError(
                f"{paper.title}: the word {word!r} is neither a list of words nor name=value"
            )
        inside = f"{name}."
        chosen = {key: one for key, one in chosen.items() if not f"{key}.".startswith(inside)}
        chosen[name] = value
    if (constant := chosen.pop("calibrated", None)) is not None:
        key = str(paper.calibrated[constant]["key"])
        chosen.setdefault(key, f"{constants.get(constant, 0.0):.3f}")
    trace = chosen.pop("trace", "")
    if trace not in paper.traces:
        raise ArmError(f"{paper.title}: trace={trace!r} is none of {', '.join(paper.traces)}")
    timing = chosen.pop("timing", None)
    return Arm(tuple(f"{name}={value}" for name, value in chosen.items()), trace, timing)


def _flat(paper: Paper, words: Sequence[Any]) -> list[str]:
    found: list[str] = []
    for word in words:
        found += _flat(paper, paper.words[str(word)]) if str(word) in paper.words else [str(word)]
    return found


def run_job(job: Job, folder: Path) -> bool:
    """Make sure that the job's result is kept in ``folder``; return whether it had to be run.

    Raise ArmError where the run is impossible.
    """
    config, fit = composed(job)
    timing = asdict(job.timing) if job.timing else None
    key = keys.narrow_key("sim.reproduce.measured", config, job.digest, timing, fit)
    path = result_path(folder, key)
    is_new = not path.exists()
    if is_new:
        try:
            save(path, measure(config, job.trace_dir, job.timing))
        except ValueError as error:
            raise ArmError(f"{' '.join(job.arm.words)} on {job.trace_dir.name}: {error}") from error
    write_whole(job.known(folder), key)
    return is_new


def composed(job: Job) -> tuple[dict[str, Any], str | None]:
    """The plain values of the arm's configuration, and the digest of the fit that they name.

    Raise ArmError for words that make no configuration.
    """
    wrong = "predictor=always_wrong" in job.arm.words
    words = [
        word.replace("predictor=always_wrong", "predictor=stated_accuracy")
        for word in job.arm.words
    ]
    try:
        plan = Plan("arm", base=("outputs=summary", f"trace.path={job.trace_dir}", *words))
        config = make_cell(plan, {}).config
    except (OmegaConfBaseException, ValueError) as error:
        raise ArmError(f"{' '.join(words)} on {job.trace_dir.name}: {error}") from error
    # Cells share their sections, so the predictor's is copied before it is changed.
    predictor = dict(config["predictor"])
    if wrong:
        predictor["_target_"] = WRONG
    fit = _give_fit(predictor, job.fits)
    return {**config, "predictor": predictor}, fit


def _give_fit(predictor: dict[str, Any], fits: Mapping[str, Path]) -> str | None:
    """Give a predictor that needs a fit the one beside its trace; return its digest, or None."""
    if predictor.get("artefact", "") is not None:
        return None
    for option, path in fits.items():
        target = OmegaConf.load(CONF / "predictor" / f"{option}.yaml")._target_
        if get_class(str(target)) is get_class(str(predictor["_target_"])):
            predictor["artefact"] = str(path)
            return files_digest(path.parent.iterdir())
    return None


def save(path: Path, measured: Measured) -> None:
    """Write a result to ``path``, whole or not at all."""
    write_whole(path, json.dumps(asdict(measured)) + "\n")


def load(path: Path) -> Measured:
    return Measured(**json.loads(path.read_text(encoding="utf-8")))
