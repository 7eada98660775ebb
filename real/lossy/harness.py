"""Runs lm-evaluation-harness on a model whose experts are served as a system would serve them.

An optional extra (``pip install 'moe-offload-lab[harness]'``). The harness scores many requests in
batches of its own, so there is no cache here. A need is served as its selector *wants* it with
nothing resident, which is the most that the system may lose. Systems whose precision depends on
what is resident lose less in a run.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from capture.recording.load import load_tokenizer
from capture.recording.settings import Settings
from real.lossy.assess import Weights, built
from real.lossy.mixture import LEFT_OUT, Served, mixing
from real.lossy.replay import Subject
from real.lossy.variants import Scheme, Variants
from real.store.swapping import swapped_experts
from sim.policies.base import PrecisionSelector
from sim.policies.payloads import ActiveShare
from sim.policies.row_forecast import RowForecast
from sim.traces.routing import need_order


class NothingResident:
    """Answers selectors that ask what is resident: nothing is."""

    def has(self, precision: int, site: int, expert: int) -> bool:
        return False

    def expert_of(self, key: int) -> int:
        return key

    @property
    def foreseen(self) -> Sequence[int]:
        return ()


def require_harness() -> None:
    """Raise ValueError where lm-evaluation-harness is not installed."""
    # Its transformers models need accelerate, which installing lm-eval alone does not bring.
    if any(importlib.util.find_spec(name) is None for name in ("lm_eval", "accelerate")):
        raise ValueError(
            "tasks= needs lm-evaluation-harness, which is not installed: pip install"
            " 'moe-offload-lab[harness]' (or lm-eval); without it leave tasks= out, and the texts"
            " of the trace are used"
        )


class AsWanted:
    """Serves every row as the selector wants it with nothing resident.

    Each row is a gate of its own.
    """

    def __init__(self, selector: PrecisionSelector, experts: int) -> None:
        self._selector, self._experts = selector, experts

    def __call__(
        self, site: int, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> Served:
        if self._selector.constant is not None:
            return Served(ids, weights, torch.full_like(ids, self._selector.constant))
        chosen = torch.where(ids < self._experts, ids, LEFT_OUT).cpu().numpy().astype(np.int64)
        values = np.where(chosen < 0, np.float32(0), weights.float().cpu().numpy())
        codes = np.full(chosen.shape, LEFT_OUT)
        order = need_order(chosen, values)
        ranked = np.take_along_axis(chosen, order, -1)
        for row, experts in enumerate(ranked):
            choice = RowForecast(
                site,
                self._experts + 1,
                experts[None],
                np.take_along_axis(values, order, -1)[row][None],
            )
            wanted = dict(
                zip(choice.needs, self._selector.select(choice, NothingResident()), strict=True)
            )
            codes[row] = [wanted.get(int(expert), LEFT_OUT) for expert in chosen[row]]
        return Served(ids, weights, torch.from_numpy(codes).to(ids.device))


@dataclass(frozen=True)
class Tasks:
    """Tasks by name, of the harness or of ``directory``.

    ``limit`` is how many documents of each task are read; None: all.
    """

    names: tuple[str, ...]
    directory: Path | None = None
    limit: int | None = None


def harness_scores(
    overrides: Sequence[str], weights: Weights, scheme: Scheme, tasks: Tasks
) -> dict[str, Any]:
    """The harness's results for the full-precision model and for the lossy one.

    Their keys are ``full`` and ``lossy``. Raise ValueError where the harness is missing, knows no
    such task, or the system's payload is sparse.
    """
    require_harness()
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    known = _manager(TaskManager, tasks)
    if unknown := [name for name in tasks.names if name not in known.all_tasks]:
        raise ValueError(
            f"tasks={','.join(unknown)}: the harness has no such task (lm-eval ls tasks names"
            " them); one of your own is a yaml file in task_dir=DIR"
        )
    run = built(overrides)
    if isinstance(run.controller.payload, ActiveShare):
        raise ValueError(
            f"{run.system} leaves out channels of decoded tokens only, and the harness reads whole"
            " texts: it would show nothing of that; leave tasks= out, and the texts of the trace"
            " are decoded"
        )
    scheme.check_used(run.controller.geometry.precisions)
    model = weights.load(run.trace.header)
    subject = Subject(model, run.trace, [run.workload.sequences[0].sequence])
    nowhere: Any = None
    tokenizer = load_tokenizer(
        Settings(model=model.config._name_or_path, prompts=nowhere, output_dir=nowhere)
    )
    variants = Variants(subject.forms, run.controller.geometry.precisions, scheme)
    found = {}
    for name in ("full", "lossy"):
        language_model = HFLM(pretrained=model, tokenizer=tokenizer)
        decide = AsWanted(run.controller.selector, run.model.experts)
        compute = (
            mixing(Variants(subject.forms, ("fp32",)), _all_full)
            if name == "full"
            else mixing(variants, decide)
        )
        with swapped_experts(model, compute, subject.forms):
            answer = lm_eval.simple_evaluate(
                model=language_model, tasks=list(tasks.names), limit=tasks.limit, task_manager=known
            )
        found[name] = answer["results"]
    return found


def _manager(make: Any, tasks: Tasks) -> Any:
    """The harness's finder of tasks.

    The harness has thousands of its own, which are searched only where they are needed.
    """
    if tasks.directory is None:
        return make()
    own = make(include_path=str(tasks.directory), include_defaults=False)
    is_enough = all(name in own.all_tasks for name in tasks.names)
    return own if is_enough else make(include_path=str(tasks.directory))


def _all_full(site: int, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Served:
    return Served(ids, weights, torch.zeros_like(ids))
