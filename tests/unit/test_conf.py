"""Every yaml composes, every system builds, every part of every system can be swapped."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from itertools import product

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException, MissingConfigException
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from sim.build import PARTS, ROOT, build, fit_scores
from sim.trace import Trace

CONF = ROOT / "conf"
Configure = Callable[..., DictConfig]
GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir())
OPTIONS = [(group, path.stem) for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]
SYSTEMS = [name for group, name in OPTIONS if group == "system"]
MECHANISMS = ("predictor", "cache", "precision", "placement", "loader")
SWAPS = [(group, name) for group, name in OPTIONS if group in MECHANISMS]
BUILT_ON = ("trace.max_sequences=1", "budget.resident_share=0.5")
OPEN_VALUES = {"score_threshold": ("precision.low_above=0.4", "precision.skip_above=0.8")}
"""Options that leave values open (???), with values."""


@pytest.mark.parametrize(("group", "name"), OPTIONS, ids="/".join)
def test_every_option_composes_with_the_rest(configure: Configure, group: str, name: str) -> None:
    cfg = configure(f"{group}={name}")
    assert set(PARTS) <= set(cfg)
    left_open = {key.rpartition(".")[2] for key in OmegaConf.missing_keys(cfg)}
    assert bool(left_open) == (name in OPEN_VALUES)


def test_every_file_of_conf_is_an_option_of_a_group() -> None:
    """A .yml, or a yaml in the wrong place, would never be found."""
    found = {CONF / group / f"{name}.yaml" for group, name in OPTIONS} | {CONF / "config.yaml"}
    assert {path for path in CONF.rglob("*") if path.is_file()} == found


@pytest.mark.parametrize("group", PARTS)
def test_every_option_of_a_part_names_a_class_of_this_project_and_the_arguments_of_its_constructor(group: str) -> None:
    for name in (name for of, name in OPTIONS if of == group):
        part = option(group, name)
        assert part._target_.startswith("sim."), (group, name)
        arguments = inspect.signature(get_class(part._target_)).parameters
        assert set(part) - {"_target_"} <= set(arguments), (group, name)


@cache
def option(group: str, name: str) -> DictConfig:
    """An option file alone, with the defaults it builds on."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(f"{group}/{name}")[group]  # type: ignore[no-any-return]


# ---- systems ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_builds_on_the_bundled_trace(configure: Configure, bundled_trace: Trace, system: str) -> None:
    run = build(configure(f"system={system}", *BUILT_ON), system, bundled_trace)
    assert run.resident_share == 0.5
    assert len(run.workload.steps) > 1
    run.controller.check()


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_system_file_holds_choices_only(system: str) -> None:
    """Numbers live in option files, beside their source."""
    content = OmegaConf.load(CONF / "system" / f"{system}.yaml")
    assert list(content) == ["defaults"]
    chosen = [next(iter(choice.items())) for choice in content.defaults]
    assert [key for key, _ in chosen] == [f"override /{part}" for part in ("predictor", "cache", "precision", "loader")]
    assert all(isinstance(value, str) for _, value in chosen)
    assert (CONF / "system" / f"{system}.yaml").read_text(encoding="utf-8").startswith("# @package _global_\n#")


@pytest.mark.parametrize(
    ("system", "swap"), list(product(SYSTEMS, SWAPS)), ids=lambda v: v if isinstance(v, str) else "=".join(v)
)
def test_every_part_of_every_system_can_be_swapped(
    configure: Configure, bundled_trace: Trace, system: str, swap: tuple[str, str]
) -> None:
    group, name = swap
    cfg = configure(f"system={system}", f"{group}={name}", *OPEN_VALUES.get(name, ()), *BUILT_ON)
    several = len(OmegaConf.select(cfg, "precision").keys() & {"high", "low"}) == 2
    if several and cfg.cache._target_.endswith("Belady"):
        # The one pair that does not go together says so.
        with pytest.raises(ValueError, match="cache=belady needs one precision"):
            build(cfg, system, bundled_trace)
        return
    run = build(cfg, system, bundled_trace)
    alone = option(group, name)
    found = {"predictor": run.controller.predictor, "cache": run.controller.cache, "precision": run.controller.selector,
             "loader": run.controller.loader}.get(group)  # fmt: skip
    if found is not None:
        assert f"{type(found).__module__}.{type(found).__qualname__}" == alone._target_


def test_the_systems_that_are_there_are_those_that_are_documented() -> None:
    assert set(SYSTEMS) >= {"hobbit", "load_on_demand", "lru", "mixtral_offloading", "oracle"}


def test_a_swap_on_the_command_line_wins_over_the_system(configure: Configure) -> None:
    cfg = configure("system=hobbit", "cache=lfu", "precision=int8", "predictor=none")
    assert cfg.cache._target_ == "sim.policies.caches.LFU"
    assert cfg.precision.precision == "int8"
    assert cfg.predictor._target_ == "sim.policies.predictors.NoPrediction"
    assert cfg.loader.depth == "first_missing", "what was not swapped stays the system's"


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["cache.scoop=site", "budget.share=0.5", "seeds=3", "hardware.link.peak_gbps=3"])
def test_a_misspelt_key_is_refused(configure: Configure, word: str) -> None:
    with pytest.raises(ConfigCompositionException, match="Could not override"):
        configure(word)


def test_a_misspelt_option_is_refused_with_those_that_are_there(configure: Configure) -> None:
    with pytest.raises(MissingConfigException, match=r"Could not find 'cache/lruu'(?s:.)*lru_per_site"):
        configure("cache=lruu")


def test_values_left_open_are_named(configure: Configure, bundled_trace: Trace) -> None:
    with pytest.raises(ValueError, match=r"not set: precision\.low_above, precision\.skip_above; give them"):
        build(configure("precision=score_threshold"), "x", bundled_trace)


def test_thresholds_that_are_given_are_the_ones_used(configure: Configure, bundled_trace: Trace) -> None:
    run = build(configure("precision=score_threshold", *OPEN_VALUES["score_threshold"], *BUILT_ON), "x", bundled_trace)
    assert (run.controller.selector.low_above, run.controller.selector.skip_above) == (0.4, 0.8)  # type: ignore[attr-defined]


def test_hobbits_thresholds_come_from_the_fit_split(configure: Configure, bundled_trace: Trace) -> None:
    """67 % of the decode selections lie at or below the first, 97 % at or below the second."""
    run = build(configure("system=hobbit", *BUILT_ON), "hobbit", bundled_trace)
    selector = run.controller.selector
    scores = fit_scores(bundled_trace)
    for threshold, share in ((selector.low_above, 0.67), (selector.skip_above, 0.97)):  # type: ignore[attr-defined]
        assert (scores <= threshold).mean() == pytest.approx(share, abs=0.01)


def test_equal_shares_give_every_system_equal_bytes(configure: Configure, bundled_trace: Trace) -> None:
    """All but the one without a cache."""
    held = {
        system: sum(
            build(configure(f"system={system}", *BUILT_ON), system, bundled_trace).controller.slots.capacity_bytes
        )
        for system in SYSTEMS
    }
    assert held.pop("load_on_demand") == 2 * 352_321_536
    assert set(held.values()) == {16 * 8 * 352_321_536 // 2}
