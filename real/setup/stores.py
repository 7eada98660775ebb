"""The store of a run's experts: what it will hold is known, and checked, before it is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from real.driver.settings import Engine
from real.store.checkpoint import CheckpointExperts, weight_files
from real.store.experts import ExpertForm, Tensors
from real.store.store import Store, StoreHeader, open_or_write, plan_store
from real.store.variants import ALIGNMENT, StoreError
from sim.machine.model import Model
from sim.setup.sections import make_object
from sim.values.places import ASSETS
from sim.values.units import gib

STAND_IN = "stand_in"
Advance = Callable[[int, int], None]
"""Called with how many experts have been written to a store, and how many there are."""


@dataclass(frozen=True)
class PlannedStore:
    """A store that is still to be opened, or written first.

    The fields are arguments of `real.store.store.open_or_write`.
    """

    path: Path
    identity: Mapping[str, Any]
    forms: Sequence[ExpertForm]
    precisions: Sequence[str]
    tensors_of: Callable[[int, int], Tensors]
    header: StoreHeader
    """Where everything will be; it has no digest yet."""

    @property
    def variant_bytes(self) -> list[int]:
        """By precision, the bytes of an expert that a slot holds and a load moves."""
        return [variant.num_bytes for variant in self.header.variants]

    @property
    def by_neuron(self) -> bool:
        """Whether experts are stored neuron by neuron."""
        return self.header.resident is not None

    def open(self, advance: Advance) -> Store:
        """The store; written first if it is not there. Raise StoreError."""
        total = self.header.distinct
        return open_or_write(
            self.path,
            self.identity,
            self.forms,
            self.precisions,
            self.tensors_of,
            distinct=total,
            advance=lambda done: advance(done, total),
        )


def plan_of(
    engine: Engine,
    simulated: DictConfig,
    model: Model,
    folder: Path | None,
    forms: Sequence[ExpertForm],
) -> PlannedStore:
    """The store of a model at the system's precisions; ``folder`` is None for a stand-in.

    Raise StoreError for a model of other sizes, a precision that cannot be stored, and a checkpoint
    whose experts are not found.
    """
    precisions = list(make_object(simulated.precision).precisions)
    _check_forms(forms, model)
    is_stand_in = folder is None
    name = f"{model.name}-{'stand_in-' if is_stand_in else ''}{'-'.join(precisions)}.experts"
    path, distinct = Path(engine.store_dir) / name, None
    identity: dict[str, Any]
    if folder is None:
        each = sum(part.stride for part in plan_store({}, forms, precisions).parts)
        distinct = max(1, (gib(engine.stand_in_gib) - ALIGNMENT) // each)
        patterns: Any = forms
        identity = {"stand_in": 1}
        tensors_of = lambda site, expert: patterns[site].tensors(expert)  # noqa: E731
    else:
        tensors_of = CheckpointExperts(folder, forms).tensors
        identity = {"files": _identity(folder), "dtype": engine.dtype}
    header = plan_store(identity, forms, precisions, distinct)
    return PlannedStore(path, identity, forms, precisions, tensors_of, header)


def weights_folder(engine: Engine, model: Model) -> Path | None:
    """The folder of the checkpoint; None for a stand-in."""
    if engine.weights == STAND_IN:
        return None
    if engine.weights is not None:
        folder = Path(engine.weights)
        if not folder.is_dir():
            raise ValueError(
                f"engine.weights={engine.weights} is no folder; give a checkpoint's, or {STAND_IN}"
            )
        return folder
    bundled = ASSETS / model.name
    return bundled if (bundled / "config.json").is_file() else None


def _identity(folder: Path) -> dict[str, Any]:
    """The size and time of each of a checkpoint's files, which change where one is rewritten."""
    facts = {path.name: path.stat() for path in weight_files(folder)}
    return {name: [found.st_size, found.st_mtime_ns] for name, found in facts.items()}


def _check_forms(forms: Sequence[ExpertForm], model: Model) -> None:
    found: Mapping[str, Any] = forms[0].matrices(forms[0].like)
    inner, hidden = found["gate" if "gate" in found else "in"].shape
    matrices = sum(not name.endswith("_bias") for name in found)
    ours = (
        model.sites,
        model.experts,
        model.hidden,
        model.expert_intermediate,
        model.expert_matrices,
    )
    theirs = (len(forms), forms[0].layer.num_experts, hidden, inner, matrices)
    if ours != theirs:
        raise StoreError(
            f"model {model.name} has (sites, experts, hidden, intermediate, matrices) {ours}, the"
            f" weights have {theirs}; choose model= and engine.weights= of one model, or"
            f" engine.weights={STAND_IN}"
        )
