"""What the runs of one process share, and what they do not."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from sim.process.shared import Shared
from sim.setup.build import build
from sim.setup.execute import execute
from sim.setup.parts import PARTS
from sim.setup.sections import make_object

Configure = Callable[..., DictConfig]


def test_the_least_recently_used_goes_first() -> None:
    shared, made = Shared(2), []

    def get(key: str) -> str:
        return shared.get(key, lambda: made.append(key) or key)

    for key in ("a", "b", "a", "c", "a", "b"):
        assert get(key) == key
    assert made == ["a", "b", "c", "b"]


@pytest.mark.alike
@pytest.mark.parametrize("system", ["hobbit", "fate", "oracle"])
def test_a_run_of_shared_steps_is_a_run_of_its_own(configure: Configure, system: str) -> None:
    shared = Shared()
    words = (f"system={system}", "trace.max_sequences=1")
    alone = execute(build(configure(*words), system)).summary
    for _ in range(2):
        assert execute(build(configure(*words), system, shared=shared)).summary == alone


def test_steps_that_depend_on_time_are_not_shared(configure: Configure) -> None:
    shared = Shared()
    cfg = configure("workload=continuous_4", "workload.arrivals_per_s=1", "trace.max_sequences=2")
    assert build(cfg, "x", shared=shared).workload is not build(cfg, "x", shared=shared).workload
    cfg = configure("trace.max_sequences=2")
    assert build(cfg, "x", shared=shared).workload is build(cfg, "x", shared=shared).workload


def test_plain_values_make_what_hydra_makes_of_them(configure: Configure) -> None:
    cfg = configure("system=fate", "hardware=rtx4090_nvme", "trace=tiny_mixtral")
    for name in PARTS:
        ours, theirs = (
            make_object(OmegaConf.to_container(cfg[name])),
            instantiate(cfg[name], _convert_="all"),
        )
        assert type(ours) is type(theirs), name
        told = [re.sub(" at 0x[0-9a-f]+", "", str(vars(made))) for made in (ours, theirs)]
        assert told[0] == told[1], name


def test_a_constructor_s_refusal_names_the_part(configure: Configure) -> None:
    plain = OmegaConf.to_container(configure())
    assert isinstance(plain, dict)
    plain["cache"] = {**plain["cache"], "weigths": 1}
    with pytest.raises(ValueError, match=r"^cache: .*weigths"):
        build(plain, "x")
