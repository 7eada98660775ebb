"""Presets of the synthesiser: a model's shape, its published statistics, and the fits to them.

``capture/presets/NAME.yaml`` is written by hand. ``python -m capture.calibrate like=NAME`` writes
``capture/presets/fitted/NAME.json``, with one fit for each reading of the published numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from sim.process.files import write_json
from sim.synthetic.gate_walk import Walk
from sim.traces.header import ModelShape
from sim.traces.routing import RoutingRule
from sim.values.places import PRESETS
from sim.values.units import require_number

FOLDER = PRESETS
FITTED = FOLDER / "fitted"
STATISTICS = (
    "used_1",
    "used_1_deep",
    "used_1_first",
    "used_far",
    "equal_1",
    "equal_far",
    "recall_1",
    "recall_2",
    "recall_3",
    "recall_quarter",
    "cosine",
    "any_first",
    "any_middle",
    "any_last",
    "repeat_first",
    "repeat_middle",
    "repeat_last",
    "repeat",
    "overlap_first",
    "overlap",
    "overlap_last",
    "overlap_8",
    "kept_8",
    "kept_32",
    "kept_64",
    "within_8",
    "gini",
    "top_fifth",
    "profiled_half",
    "union_5",
    "lru_half",
    "score_high",
    "score_low",
    "first_weight",
    "weight_output",
    "paths_2",
    "same_token",
)
"""The statistics that a target may be of; `capture.synthetic.targets` computes them."""


@dataclass(frozen=True)
class Target:
    """A published statistic that a fit should reach.

    - ``statistic``: a name of `STATISTICS`; ``value`` is the published number.
    - ``uncertainty``: half-width from the spread over data sets, rounding or vagueness.
    - ``knob``, ``within``: the knob that is moved to reach it, and the knob's range. A target
      without a knob is only compared.
    - ``borrowed``: the model that the statistic was really measured on, if it is another one.
    - ``readings``: the readings that it belongs to; none for all.

    Raise ValueError for an unknown name or a value out of its range.
    """

    statistic: str
    value: float
    uncertainty: float
    source: str
    knob: str | None = None
    within: tuple[float, float] | None = None
    borrowed: str | None = None
    readings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.statistic not in STATISTICS:
            raise ValueError(
                f"unknown statistic {self.statistic!r}; known: {', '.join(STATISTICS)}"
            )
        if self.knob is not None and self.knob not in KNOBS:
            raise ValueError(
                f"target {self.statistic}: unknown knob {self.knob!r}; known: {', '.join(KNOBS)}"
            )
        if (self.knob is None) != (self.within is None):
            raise ValueError(
                f"target {self.statistic}: give both knob and within (its range), or neither"
            )
        if self.within is not None and not self.within[0] < self.within[1]:
            raise ValueError(
                f"target {self.statistic}: within={list(self.within)} must be [low, high]"
            )
        require_number(f"target {self.statistic}: value", self.value)
        if not self.uncertainty > 0:
            raise ValueError(
                f"target {self.statistic}: uncertainty={self.uncertainty} must be above 0"
            )


KNOBS = tuple(item.name for item in fields(Walk))


@dataclass(frozen=True)
class Preset:
    """A model to imitate.

    - ``layers``: the numbers of its MoE layers in each stack, an encoder's first.
    - ``readings``: what each reading of the published numbers means; the first is the default.
    - ``assumed``: values of knobs before the fit; a knob that no target moves keeps its value.
    - ``nearest``: the preset whose targets this one borrows, and from whose knobs its fit starts;
      empty for one with targets of its own.
    """

    name: str
    shape: ModelShape
    rule: RoutingRule
    layers: tuple[tuple[int, ...], ...]
    assumed: Mapping[str, float]
    readings: Mapping[str, str]
    targets: tuple[Target, ...]
    note: str = ""
    nearest: str = ""

    def __post_init__(self) -> None:
        for target in self.targets:
            if unknown := set(target.readings) - set(self.readings):
                raise ValueError(
                    f"preset {self.name}: target {target.statistic} has unknown readings"
                    f" {sorted(unknown)}"
                )
        for reading in self.readings:
            knobs = [target.knob for target in self.targets_of(reading) if target.knob]
            if twice := sorted({knob for knob in knobs if knobs.count(knob) > 1}):
                raise ValueError(
                    f"preset {self.name}, reading {reading}: two targets move {', '.join(twice)}"
                )
        self.rule.check_experts(self.shape.experts, self.shape.top_k)

    def targets_of(self, reading: str) -> tuple[Target, ...]:
        return tuple(
            target for target in self.targets if not target.readings or reading in target.readings
        )

    def reading(self, name: str | None) -> str:
        """``name`` if this preset has such a reading, the default for None.

        Raise ValueError for another name.
        """
        if name is None:
            return next(iter(self.readings))
        if name not in self.readings:
            known = "; ".join(f"{key} ({meaning})" for key, meaning in self.readings.items())
            raise ValueError(f"unknown reading={name} of {self.name}; known: {known}")
        return name

    @property
    def start(self) -> Walk:
        """The knobs before any fit: those assumed, and `Walk`'s defaults."""
        return replace(Walk(), **dict(self.assumed))  # type: ignore[arg-type]


def _files() -> dict[str, Path]:
    """The file of each preset, by name; a file may hold several members of a family."""
    found: dict[str, Path] = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        text = _plain(path)
        for name in text.get("members", {path.stem: None}):
            found[str(name)] = path
    return found


@cache
def _plain(path: Path) -> dict[str, Any]:
    """The file's content, which is read once and shared; callers must copy what they change."""
    value = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(value, dict)
    return {str(key): item for key, item in value.items()}


def preset_names() -> tuple[str, ...]:
    """The names that ``like=`` accepts."""
    return tuple(sorted(_files()))


def load_preset(name: str) -> Preset:
    """The preset ``name``. Raise ValueError if there is none, or if its file breaks a rule."""
    files = _files()
    if name not in files:
        raise ValueError(f"unknown like={name}; known: {', '.join(sorted(files))}")
    text = dict(_plain(files[name]))
    members = text.pop("members", {name: {}})
    text |= {key: value for key, value in (members[name] or {}).items() if key != "targets"}
    text["targets"] = [*text.get("targets", []), *(members[name] or {}).get("targets", [])]
    try:
        if "nearest" in text:
            return _like_nearest(name, text, load_preset(text["nearest"]))
        return _preset(name, text)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{files[name]}: preset {name}: {error!r}; correct the file") from error


def _preset(name: str, text: Mapping[str, Any]) -> Preset:
    layers = tuple(tuple(range(*item)) for item in text["layers"])
    sizes = {key: text[key] for key in ("experts", "top_k", "hidden", "expert_intermediate")}
    shape = ModelShape(f"synthetic_{name}", text["architecture"], sum(map(len, layers)), **sizes)
    targets = [Target(**_tuples(item)) for item in text["targets"]]
    return Preset(
        name,
        shape,
        RoutingRule(**text["rule"]),
        layers,
        text.get("assumed", {}),
        text["readings"],
        tuple(targets),
        text.get("note", ""),
    )


def _like_nearest(name: str, text: Mapping[str, Any], nearest: Preset) -> Preset:
    """A preset with a shape of its own, and the targets of ``nearest`` by its first reading."""
    reading = nearest.reading(None)
    targets = tuple(
        replace(target, borrowed=target.borrowed or nearest.name, readings=())
        for target in nearest.targets_of(reading)
    )
    walk = load_fit(nearest, reading).walk
    own: dict[str, Any] = {
        "readings": {reading: f"{nearest.name}: {nearest.readings[reading]}"},
        "assumed": {knob: getattr(walk, knob) for knob in KNOBS},
        "targets": [],
    }
    return replace(_preset(name, {**text, **own}), targets=targets, nearest=nearest.name)


def _tuples(item: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in item.items()}


# Fits


@dataclass(frozen=True)
class FitRow:
    """A row of a fit table: the target, and the mean and deviation that fresh seeds achieve."""

    target: Target
    achieved: float
    deviation: float

    @property
    def residual(self) -> float:
        return self.achieved - self.target.value

    @property
    def is_reached(self) -> bool:
        """Within the uncertainty of the target, widened by the deviation from seed to seed."""
        return abs(self.residual) <= self.target.uncertainty + self.deviation


@dataclass(frozen=True)
class Fit:
    """The result of a calibration: the knobs, a row for each target, and the size of samples."""

    walk: Walk
    rows: tuple[FitRow, ...]
    sequences: int
    tokens: int


def write_fits(preset: Preset, fits: Mapping[str, Fit]) -> Path:
    """Store fits of a preset, by reading; fits of other readings stay. Returns the file."""
    path = FITTED / f"{preset.name}.json"
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for reading, fit in fits.items():
        stored[reading] = {
            "sequences": fit.sequences,
            "tokens": fit.tokens,
            "knobs": {name: getattr(fit.walk, name) for name in KNOBS},
            "table": [
                {
                    "statistic": row.target.statistic,
                    "target": row.target.value,
                    "uncertainty": row.target.uncertainty,
                    "source": row.target.source,
                    "borrowed": row.target.borrowed,
                    "knob": row.target.knob,
                    "achieved": round(row.achieved, 5),
                    "deviation": round(row.deviation, 5),
                    "residual": round(row.residual, 5),
                }
                for row in fit.rows
            ],
        }
    path.parent.mkdir(exist_ok=True)
    write_json(path, stored)
    return path


def load_fit(preset: Preset, reading: str) -> Fit:
    """The stored fit.

    Raise ValueError if there is none, or if the preset's targets have changed since.
    """
    path = FITTED / f"{preset.name}.json"
    remedy = f"run python -m capture.calibrate like={preset.name} reading={reading}"
    stored = json.loads(path.read_text(encoding="utf-8")).get(reading) if path.exists() else None
    if stored is None:
        raise ValueError(f"{path}: no fit of {preset.name} for reading={reading}; {remedy}")
    targets = preset.targets_of(reading)
    told = [
        (row["statistic"], row["target"], row["uncertainty"], row["knob"])
        for row in stored["table"]
    ]
    asked = [(item.statistic, item.value, item.uncertainty, item.knob) for item in targets]
    if told != asked:
        raise ValueError(
            f"{path}: the fit for reading={reading} is of other targets than the preset has;"
            f" {remedy}"
        )
    rows = tuple(
        FitRow(target, row["achieved"], row["deviation"])
        for target, row in zip(targets, stored["table"], strict=True)
    )
    return Fit(replace(Walk(), **stored["knobs"]), rows, stored["sequences"], stored["tokens"])
