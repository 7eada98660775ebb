"""The policies under ``conf/``, found by file name, and how their questions are asked."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from sim.policies.profile import Profile
from sim.setup.sections import make_object
from sim.values.places import ROOT
from sim.values.types import Geometry

CONF = ROOT / "conf"
GROUPS = ("cache", "ram_cache", "predictor", "precision", "placement")
GIVEN = {"low_above": 0.3, "skip_above": 0.7}
"""Values for what option files leave open (``???``)."""
GEOMETRY = Geometry(3, 5, 2, ("fp16", "int4"), (16.0, 4.0), (8, 2), 3 * 5 * 8 // 2)
PROFILE = Profile(
    uses=np.random.default_rng(1).integers(0, 9, (3, 5)),
    decoded=np.random.default_rng(2).permuted(np.tile(np.arange(5), (9, 3, 1)), axis=2)[:, :, :2],
)
Make = Callable[[], Any]


def discover(conf: Path, group: str) -> dict[str, Make]:
    """Makers of fresh policies, by file name."""
    return {
        path.stem: partial(make, conf, group, path.stem)
        for path in sorted((conf / group).glob("*.yaml"))
    }


def make(conf: Path, group: str, name: str) -> Any:
    policy = make_object(composed(conf, group, name))
    if getattr(policy, "quantiles", None) is not None:
        policy.profile(np.linspace(0, 1, 101))
    return policy


@cache
def composed(conf: Path, group: str, name: str) -> Any:
    """The composed configuration as plain values.

    With OmegaConf's own containers most of the time of these tests would be spent there.
    """
    with initialize_config_dir(str(conf), version_base="1.3"):
        cfg = compose(f"{group}/{name}")
    for key in OmegaConf.missing_keys(cfg):
        OmegaConf.update(cfg, key, GIVEN[key.rpartition(".")[2]])
    return OmegaConf.to_container(cfg[group], resolve=True)


def each(*groups: str) -> pytest.MarkDecorator:
    found = {
        f"{group}/{name}": policy
        for group in groups
        for name, policy in discover(CONF, group).items()
    }
    return pytest.mark.parametrize("make_policy", found.values(), ids=found.keys())


def unchanged(policy: object, question: Callable[[], Any]) -> Any:
    """The answer to a question that is asked twice.

    Asking must not change the policy, and both answers must be equal.
    """
    before = pickle.dumps(policy)
    answer, again = question(), question()
    assert pickle.dumps(policy) == before, "a question changed the policy"
    assert answer == again
    return answer
