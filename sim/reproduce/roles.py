"""The papers' claims as data, read from ``claims/*.yaml``.

A claim says what its paper states, its role, what recomputes it, and the rule that judges it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

FOLDER = Path(__file__).parent / "claims"
PAPERS = ("hobbit", "edgemoe", "fate", "floe")
ROLES = {
    "input": "a preset or an experiment uses the number: never scored",
    "identity": "follows from sizes and definitions by arithmetic",
    "fitted": "a constant is drawn from it: never scored",
    "predicted": "from bytes, rates and decisions; no gate of another model plays a part",
    "transferred": "the gates are not those of the claim's model",
    "not identifiable": "cannot be recomputed, and why",
}
SCORED = ("identity", "predicted", "transferred")
RULES = (
    "speedup",
    "speedup_range",
    "speedups",
    "slightly_below",
    "share",
    "odds",
    "reduction",
    "time",
    "rate",
    "kernel",
    "order",
    "within",
)
EXTENTS = ("full", "partly", "none")
BOUNDS = ("above", "below", "range")


class RolesError(ValueError):
    """A file of claims contradicts itself; the message says which claim, and what is wrong."""


@dataclass(frozen=True)
class Claim:
    """One statement of a paper.

    - ``where`` is its place in the paper, ``says`` what it says.
    - ``value`` is the published number, or [low, high]. ``bound`` says that the truth is only said
      to lie ``above`` or ``below`` it, or inside the ``range``.
    - ``extent`` says how far a simulator can recompute it at all. ``needs`` is ``simulation`` where
      times or decisions are needed.
    - ``check`` names an arithmetic of `sim.reproduce.identities`, ``args`` and ``of`` (a model) go
      with it, and its result is divided by ``scale``. ``experiment`` names one of the paper's.
    - ``rule`` judges it (`RULES`). ``about`` is the per cent that a "nearly" allows.
    - ``misprint`` is the arithmetic that contradicts the paper, known beforehand.
    - ``used`` says what is drawn from a fitted or input number, ``why`` why it is not identifiable.
    """

    id: str
    where: str
    says: str
    role: str
    value: float | tuple[float, float] | None = None
    unit: str = ""
    bound: str | None = None
    extent: str = "none"
    needs: str | None = None
    check: str | None = None
    args: tuple[Any, ...] = ()
    of: str | None = None
    scale: float = 1.0
    about: float = 0.0
    misprint: str | None = None
    experiment: str | None = None
    rule: str | None = None
    used: str | None = None
    why: str | None = None
    note: str | None = None

    @property
    def scored(self) -> bool:
        return self.role in SCORED


@dataclass(frozen=True)
class Experiment:
    """Several runs, and the number drawn from them.

    A word is one of a configuration, or the name of a list of words.

    - ``arms``: the words of each run, by name. ``common``: words of all runs.
    - ``over``: groups, for each of which all arms are run. A group is a list of words, or lists by
      arm. ``take`` says how the groups make one number: mean, max, range or any.
    - ``grid``: the parameters that the paper leaves unstated, varied one at a time. Each has a list
      of alternatives, of which the first is the documented default. An alternative is a list of
      words, or lists by arm, or under ``over`` one of these for each group.
    - ``measure``: a name of `sim.reproduce.measures`, and the arms that it reads.
    """

    name: str
    measure: tuple[str, tuple[Any, ...]]
    arms: Mapping[str, Sequence[str]] = field(default_factory=dict)
    common: Sequence[str] = ()
    over: tuple[Any, ...] = ((),)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    take: str = "mean"
    why: str = ""


@dataclass(frozen=True)
class Paper:
    """One paper's claims and experiments, as its file states them."""

    name: str
    title: str
    source: str
    claims: tuple[Claim, ...]
    experiments: Mapping[str, Experiment]
    traces: Mapping[str, Mapping[str, Any]]
    words: Mapping[str, Sequence[str]]
    timing: Mapping[str, Mapping[str, Any]]
    calibrated: Mapping[str, Mapping[str, str]]
    kernels: Mapping[str, Mapping[float, float]]

    def claim(self, name: str) -> Claim:
        return next(claim for claim in self.claims if claim.id == name)


@cache
def load_paper(name: str) -> Paper:
    """The paper in the file ``name`` of ``claims/``; raise RolesError where it is inconsistent."""
    if name not in PAPERS:
        raise RolesError(f"unknown paper={name}; known: {', '.join(PAPERS)}")
    data = OmegaConf.to_container(OmegaConf.load(FOLDER / f"{name}.yaml"))
    assert isinstance(data, dict)
    experiments = {
        str(key): _experiment(str(key), value) for key, value in data["experiments"].items()
    }
    claims = tuple(
        _claim(one, value) for key, value in data["claims"].items() for one in spread(str(key))
    )
    for claim in claims:
        _check(claim, experiments)
    part = {
        str(key): data.get(key) or {}
        for key in ("traces", "words", "timing", "calibrated", "kernels")
    }
    words = {str(key): value for key, value in part.pop("words").items()}
    return Paper(
        name, str(data["paper"]), str(data["source"]), claims, experiments, words=words, **part
    )


def spread(ids: str) -> list[str]:
    """The claims that ``ids`` names: ``H070-H072`` stands for H070, H071, H072."""
    first, _, last = ids.partition("-")
    if not all(re.fullmatch(r"[A-Z]\d{3}", one) for one in (first, last or first)):
        raise RolesError(f"claim {ids!r}: an id is a letter and three digits, a range two of them")
    numbers = range(int(first[1:]), int((last or first)[1:]) + 1)
    return [f"{first[0]}{number:03d}" for number in numbers]


def _claim(name: str, given: Mapping[str, Any]) -> Claim:
    if unknown := set(given) - {item.name for item in fields(Claim)}:
        raise RolesError(f"claim {name}: unknown keys {', '.join(sorted(unknown))}")
    values: dict[str, Any] = {
        key: tuple(one) if isinstance(one, list) else one for key, one in given.items()
    }
    return Claim(id=name, **values)


def _experiment(name: str, given: Mapping[str, Any]) -> Experiment:
    known = {item.name for item in fields(Experiment)} - {"name"}
    if unknown := set(given) - known:
        raise RolesError(f"experiment {name}: unknown keys {', '.join(sorted(unknown))}")
    ((measure, arms),) = dict(given["measure"]).items()
    values = {key: value for key, value in given.items() if key not in ("measure", "over")}
    groups = tuple(
        group for several in (given.get("over") or {}).values() for group in several
    ) or ((),)
    return Experiment(name=name, measure=(str(measure), tuple(arms)), over=groups, **values)


def _check(claim: Claim, experiments: Mapping[str, Experiment]) -> None:
    """Raise RolesError for a claim that lacks what its role needs, or has an unknown word."""
    wrong = [
        (claim.role not in ROLES, f"role {claim.role!r} is none of {', '.join(ROLES)}"),
        (claim.extent not in EXTENTS, f"extent {claim.extent!r} is none of {', '.join(EXTENTS)}"),
        (
            claim.bound not in (None, *BOUNDS),
            f"bound {claim.bound!r} is none of {', '.join(BOUNDS)}",
        ),
        (claim.role == "not identifiable" and not claim.why, "not identifiable needs its why"),
        (claim.role == "fitted" and not claim.used, "fitted needs what is drawn from it (used)"),
        (claim.role == "identity" and not claim.check, "an identity needs its check"),
        (
            claim.role in ("predicted", "transferred") and not (claim.experiment or claim.check),
            "it needs an experiment or a check",
        ),
        (
            claim.role in ("predicted", "transferred") and claim.rule not in RULES,
            f"rule {claim.rule!r} is none of {', '.join(RULES)}",
        ),
        (
            claim.experiment is not None and claim.experiment not in experiments,
            f"there is no experiment {claim.experiment!r}",
        ),
        (
            claim.misprint is not None and claim.role != "identity",
            "a misprint is shown by an identity's arithmetic",
        ),
    ]
    for is_wrong, why in wrong:
        if is_wrong:
            raise RolesError(f"claim {claim.id}: {why}")
