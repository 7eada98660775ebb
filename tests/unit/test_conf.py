"""Every yaml composes, every system builds, every part of every system can be swapped."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from itertools import product, zip_longest
from typing import cast

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import MissingConfigException
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from helpers.usual import usual
from sim.core.loader import Loader
from sim.fitting.fits import profile_of
from sim.policies.belady import Foreseeing
from sim.policies.recency import Transient
from sim.setup.build import build
from sim.setup.parts import PARTS, make_part
from sim.setup.sections import make_object
from sim.traces.trace import Trace
from sim.values.places import MECHANISMS, ROOT
from sim.verbs.names import names

CONF = ROOT / "conf"
Configure = Callable[..., DictConfig]
GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name != "study")
"""All but studies, which are files of `sim.study`'s and no options of a run."""
OPTIONS = [(group, path.stem) for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]
SYSTEMS = [name for group, name in OPTIONS if group == "system"]
CHOSEN = ("predictor", "cache", "precision", "placement", "payload", "loader", "kernels")
"""What a system may choose, in the order of its file; placement and payload only where they are
not the usual ones.
"""
DOCUMENTED = {
    "hobbit",
    "edgemoe",
    "fate",
    "floe",
    "load_on_demand",
    "lru",
    "transformers",
    "deepspeed_inference",
    "deepspeed_mii",
    "llama_cpp",
    "mixtral_offloading",
    "mixtral_offloading_code",
    "moe_infinity",
    "moe_infinity_code",
    "fiddler",
    "eap",
    "io_free",
    "io_exp",
    "io_qexp",
    "sti",
    "resident_int2",
    "hobbit_cpu",
    "pregated_moe",
    "swapmoe",
    "adapmoe",
    "promoe",
    "sida",
    "oracle",
    "infinite_link",
}
SWAPS = [(group, name) for group, name in OPTIONS if group in MECHANISMS]
BUILT_ON = ("trace.max_sequences=1", "budget.resident_share=0.5")
MIXTRAL_EXPERT = 352_321_536
OPEN_VALUES = {
    "score_threshold": ("precision.low_above=0.4", "precision.skip_above=0.8"),
    "generic": (
        "hardware.memory_gib=24",
        "hardware.links.link.peak_gb_per_s=16",
        "hardware.compute.memory_gb_per_s=500",
    ),
}
"""Options that leave values open (???), with values."""


ALONE = ("system", "experiment", "devices")
"""Groups whose files set other groups' keys."""


def together() -> list[list[tuple[str, str]]]:
    """All options, in lists of such as compose together: of every group the one of a number.

    Composing takes a quarter of a second, so that no option is composed by itself without need.
    """
    of = {key: [option for option in OPTIONS if option[0] == key] for key in GROUPS}
    alone = [[option] for key in ALONE for option in of.pop(key)]
    return [[one for one in row if one] for row in zip_longest(*of.values())] + alone


@pytest.mark.alike
@pytest.mark.parametrize("chosen", together(), ids=lambda chosen: "/".join(chosen[0]))
def test_every_option_composes_with_the_rest(
    configure: Configure, chosen: list[tuple[str, str]]
) -> None:
    cfg = configure(*map("=".join, chosen))
    assert set(PARTS) <= set(cfg)
    missing = OmegaConf.missing_keys(cfg)
    for group, name in chosen:
        left_open = [key for key in missing if key.startswith(f"{group}.")]
        assert bool(left_open) == (name in OPEN_VALUES), name
        if group in PARTS:
            assert cfg[group] == option(group, name), (
                "a word on the command line puts the option's file in its place"
            )


def test_every_file_of_conf_is_an_option_of_a_group() -> None:
    """A .yml, or a yaml in the wrong place, would never be found."""
    found = {CONF / group / f"{name}.yaml" for group, name in OPTIONS} | {
        CONF / "config.yaml",
        CONF / "real.yaml",
    }
    found |= set((CONF / "study").glob("*.yaml"))
    assert {path for path in CONF.rglob("*") if path.is_file()} == found


@pytest.mark.alike
@pytest.mark.parametrize("group", PARTS)
def test_every_option_of_a_part_names_a_class_of_this_project_and_the_arguments_of_its_constructor(
    group: str,
) -> None:
    for name in (name for of, name in OPTIONS if of == group):
        part = option(group, name)
        assert part._target_.startswith("sim."), (group, name)
        arguments = inspect.signature(get_class(part._target_)).parameters
        assert set(part) - {"_target_"} <= set(arguments), (group, name)


@cache
def option(group: str, name: str) -> DictConfig:
    """An option file alone, with the defaults it builds on."""
    content = OmegaConf.load(CONF / group / f"{name}.yaml")
    if "defaults" not in content:
        return cast(DictConfig, content)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(f"{group}/{name}")[group]  # type: ignore[no-any-return]


@cache
def system_of(configure: Configure, system: str, *words: str) -> DictConfig:
    return configure(f"system={system}", *BUILT_ON, *words)


# ---- systems


@pytest.mark.alike
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_builds_on_the_bundled_trace(
    configure: Configure, bundled_trace: Trace, system: str
) -> None:
    run = build(
        configure(f"system={system}", *BUILT_ON, "experiment=more_memory"), system, bundled_trace
    )
    assert run.resident_share == 0.5
    assert len(run.workload.steps) > 1
    run.controller.check()


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_system_file_holds_choices_only(system: str) -> None:
    """Numbers live in option files, beside their source."""
    content = OmegaConf.load(CONF / "system" / f"{system}.yaml")
    assert list(content)[:1] == ["defaults"]
    shares = {
        "resident_int2": 1.0,
        "edgemoe": 0.25,
    }  # all is resident; FP32 slots for half would fit no usual card
    assert content.get("budget") == (
        {"resident_share": shares[system]} if system in shares else None
    )
    frozen = (
        {"loader"} if system == "expected_needs" else set()
    )  # before its test on held-out gates
    assert set(content) <= {"defaults", "budget", *frozen}
    chosen = [next(iter(choice.items())) for choice in content.defaults]
    names = [key.removeprefix("override /") for key, _ in chosen]
    assert names == [part for part in CHOSEN if part in names]
    assert {"predictor", "cache", "precision", "loader"} <= set(names)
    assert all((part, value) in OPTIONS for part, (_, value) in zip(names, chosen, strict=True))
    assert (
        (CONF / "system" / f"{system}.yaml")
        .read_text(encoding="utf-8")
        .startswith("# @package _global_\n#")
    )


# Every option in a system of few mechanisms; what divides or moves parts in one of many mechanisms
# and in one that moves parts; every system with one option of each kind.
OFTEN = [
    (group, name)
    for group, name in (
        ("predictor", "none"),
        ("cache", "lru"),
        ("precision", "fp16"),
        ("precision", "hobbit"),
        ("placement", "load"),
        ("payload", "whole"),
        ("loader", "on_demand"),
    )
]
PARTIAL = [swap for swap in SWAPS if swap[0] in ("precision", "payload", "loader")]
PAIRS = sorted(
    {*product(("lru",), SWAPS), *product(("hobbit", "floe"), PARTIAL), *product(SYSTEMS, OFTEN)}
)


@pytest.mark.alike
@pytest.mark.parametrize(
    ("system", "swap"),
    usual(PAIRS, [pair for at, pair in enumerate(PAIRS) if pair[0] == "lru" or at % 3 == 0]),
    ids=lambda v: v if isinstance(v, str) else "=".join(v),
)
def test_every_part_of_every_system_can_be_swapped(
    configure: Configure, bundled_trace: Trace, system: str, swap: tuple[str, str]
) -> None:
    """The option's file in the place of the system's: as the words do, but composed once a
    system.
    """
    build_swapped(configure, bundled_trace, system, swap)


@pytest.mark.thorough
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_option_of_every_mechanism_goes_with_every_system_or_is_refused(
    configure: Configure, bundled_trace: Trace, system: str
) -> None:
    """All pairs. Options that leave values open have their test above."""
    for swap in SWAPS:
        if (system, swap) not in PAIRS:
            build_swapped(configure, bundled_trace, system, swap)


def build_swapped(
    configure: Configure, bundled_trace: Trace, system: str, swap: tuple[str, str]
) -> None:
    group, name = swap
    # A CPU computes only where RAM holds every expert.
    machine = (
        ("hardware=rtx4090_nvme", "hardware.ram.capacity_gib=64") if group == "ram_cache" else ()
    )
    machine += ("hardware.memory_gib=96",)  # what takes more memory than another is no matter here
    cfg = system_of(configure, system, *machine).copy()
    OmegaConf.set_struct(cfg, False)
    cfg[group] = option(group, name)
    for word in OPEN_VALUES.get(name, ()):
        key, value = word.split("=")
        OmegaConf.update(cfg, key, float(value))
    if refusal := refused_together(cfg):
        # What does not go together says so.
        with pytest.raises(ValueError, match=refusal):
            build(cfg, system, bundled_trace)
        return
    run = build(cfg, system, bundled_trace)
    alone = option(group, name)
    controller = run.controller
    found = {
        "predictor": controller.predictor,
        "cache": controller.cache,
        "precision": controller.selector,
        "placement": controller.placement,
        "payload": controller.payload,
        "loader": controller.loader,
        "ram_cache": controller.ram.cache if controller.ram is not None else None,
        "kernels": make_part(OmegaConf.to_container(cfg, resolve=True), "kernels"),
    }[group]
    assert type(found) is get_class(alone._target_)


def refused_together(cfg: DictConfig) -> str | None:
    """The pairs of mechanisms that no run can have (contracts C140 to C142), as what the
    refusal says.
    """
    if cfg.kernels.get("together") and cfg.loader.get("wait", "wait_all") != "wait_all":
        return "kernels.together takes a layer's experts together"
    knows_its_reach = cfg.predictor._target_.rpartition(".")[2] in ("ExpectedNeeds", "NoPrediction")
    if cfg.loader.prefetch_budget == "in_time" and not knows_its_reach:
        return "in_time needs a predictor that says how far ahead it forecasts"
    several, sends = (
        cfg.precision.keys() >= {"high", "low"},
        get_class(cfg.precision._target_).reroutes,
    )
    if issubclass(get_class(cfg.cache._target_), Foreseeing) and (
        several or sends or "skip_above" in cfg.precision
    ):
        return "cache=belady. needs one precision"
    payload = cfg.payload._target_.rpartition(".")[2]
    if payload != "Whole" and cfg.loader.wait == "by_projection":
        return "loader.wait=by_projection does not go with payload="
    if several and payload == "WholeLayer" and not cfg.precision._target_.endswith(".PerExpert"):
        return (
            "payload=whole_layer brings experts that nobody chose, at no precision of .*; choose a"
            " fixed one"
        )
    if not cfg.loader.staging_slots:
        if not make_object(cfg.cache).admits_all:
            return r"the cache policy refuses variants: set loader\.staging_slots >= 1"
        if "n_cpu_moe" in (cfg.cache.get("quotas") or ()):
            return r"serve such pools from staging: loader\.staging_slots="
        if payload != "Whole":
            return r"partial moves land in staging: set loader\.staging_slots >= 1"
    elif several and payload not in ("Whole", "WholeLayer"):
        return "partial moves need one precision, got .*; choose a fixed one"
    if sends and payload != "Whole":
        return "what another expert would move in part is not known: choose payload=whole"
    return None


def test_the_systems_that_are_there_are_those_that_are_documented() -> None:
    assert set(SYSTEMS) >= DOCUMENTED


@pytest.mark.alike
@pytest.mark.parametrize("system", usual(SYSTEMS, ["lru", "hobbit", "fate", "floe", "edgemoe"]))
def test_a_swap_on_the_command_line_wins_over_the_system(configure: Configure, system: str) -> None:
    cfg = configure(f"system={system}", "cache=lfu", "precision=int8", "predictor=none")
    assert cfg.cache == option("cache", "lfu")
    assert cfg.precision == option("precision", "int8")
    assert cfg.predictor == option("predictor", "none")
    assert cfg.loader == system_of(configure, system).loader, (
        "what was not swapped stays the system's"
    )


@pytest.mark.alike
@pytest.mark.parametrize("machine", [name for group, name in OPTIONS if group == "hardware"])
def test_every_machine_runs_a_system_that_fits_it(
    configure: Configure, bundled_trace: Trace, machine: str
) -> None:
    """Its links, its RAM tier and its times reach the controller."""
    words = (
        f"hardware={machine}",
        "system=lru",
        "trace.max_sequences=1",
        "budget.resident_share=0.05",
    )
    run = build(configure(*words, *OPEN_VALUES.get(machine, ())), "lru", bundled_trace)
    assert run.controller.route == run.hardware.route
    assert (run.controller.ram is not None) == (run.hardware.ram is not None)
    for link in range(run.hardware.route.links):
        assert run.durations.hop_ns(link, 1_000_000) > run.durations.latency_ns(link)


def test_a_machine_without_a_managed_tier_leaves_its_policy_unused(
    configure: Configure, bundled_trace: Trace
) -> None:
    run = build(configure("ram_cache=fifo", *BUILT_ON), "x", bundled_trace)
    assert run.controller.ram is None


def test_every_switch_of_the_loader_has_its_key_and_its_default(configure: Configure) -> None:
    on_demand = configure("loader=on_demand").loader
    defaults = {field.name: field.default for field in fields(Loader)}
    assert {name: value for name, value in on_demand.items() if name != "_target_"} == defaults


def test_a_predictor_answers_later_where_the_machine_says_so(
    configure: Configure, bundled_trace: Trace
) -> None:
    slow = "hardware.prediction_us=50"
    assert build(
        configure("system=hobbit", slow, *BUILT_ON), "x", bundled_trace
    ).controller.predicts_later
    assert not build(
        configure("system=lru", slow, *BUILT_ON), "x", bundled_trace
    ).controller.predicts_later
    assert not build(
        configure("system=hobbit", *BUILT_ON), "x", bundled_trace
    ).controller.predicts_later


def test_streamed_layers_leave_room_for_experts(configure: Configure, bundled_trace: Trace) -> None:
    """Sixteen layers of Mixtral's attention, 83.9 MB each; two stay."""
    resident, streamed = (
        build(configure("system=lru", f"loader.dense_slots={n}", *BUILT_ON), "lru", bundled_trace)
        for n in (0, 2)
    )
    block = resident.model.block_bytes(0)
    assert resident.ledger.dense_bytes - streamed.ledger.dense_bytes == 14 * block
    assert streamed.controller.dense_bytes == (block,) * 16
    assert resident.controller.dense_bytes == ()


def test_what_pools_may_overflow_and_staging_holds_is_set_aside(
    configure: Configure, bundled_trace: Trace
) -> None:
    """A prompt's union may be all eight experts; the last one may stay beside it as far as the
    pool cannot hold it.
    """
    words = ("system=lru", "hardware.memory_gib=48", *BUILT_ON)
    overflowing = build(configure(*words, "loader.retention=after_batch"), "lru", bundled_trace)
    assert overflowing.ledger.overflow_bytes == 8 * MIXTRAL_EXPERT
    staging = build(
        configure(*words, "loader.destination=staging", "loader.staging_slots=3"),
        "lru",
        bundled_trace,
    )
    assert staging.ledger.staging_bytes == 3 * MIXTRAL_EXPERT


# ---- what is refused


@pytest.mark.parametrize(
    "word", ["cache.scoop=site", "budget.share=0.5", "seeds=3", "hardware.links.pcie.peak_gbps=3"]
)
def test_a_misspelt_key_is_refused(configure: Configure, word: str) -> None:
    with pytest.raises(ValueError, match=f"^Could not override '{word.partition('=')[0]}'"):
        configure(word)


def test_a_misspelt_option_is_refused_with_those_that_are_there() -> None:
    with (
        initialize_config_dir(str(CONF), version_base="1.3"),
        pytest.raises(
            MissingConfigException, match=r"Could not find 'cache/lruu'(?s:.)*lru_per_site"
        ),
    ):
        compose("config", ["cache=lruu"])


def test_values_left_open_are_named(configure: Configure, bundled_trace: Trace) -> None:
    with pytest.raises(
        ValueError, match=r"not set: precision\.low_above, precision\.skip_above; give them"
    ):
        build(configure("precision=score_threshold"), "x", bundled_trace)


def test_thresholds_that_are_given_are_the_ones_used(
    configure: Configure, bundled_trace: Trace
) -> None:
    run = build(
        configure("precision=score_threshold", *OPEN_VALUES["score_threshold"], *BUILT_ON),
        "x",
        bundled_trace,
    )
    assert (run.controller.selector.low_above, run.controller.selector.skip_above) == (0.4, 0.8)  # type: ignore[attr-defined]


def test_hobbits_thresholds_come_from_the_fit_split(
    configure: Configure, bundled_trace: Trace
) -> None:
    """67 % of the decode selections lie at or below the first, 97 % at or below the second."""
    run = build(configure("system=hobbit", *BUILT_ON), "hobbit", bundled_trace)
    selector = run.controller.selector
    scores = profile_of(bundled_trace).scores
    for threshold, share in ((selector.low_above, 0.67), (selector.skip_above, 0.97)):  # type: ignore[attr-defined]
        assert (scores <= threshold).mean() == pytest.approx(share, abs=0.01)


@pytest.mark.thorough
def test_equal_shares_give_every_system_equal_bytes(
    configure: Configure, bundled_trace: Trace
) -> None:
    """At the highest precision of each, as slots hold it; without a cache two experts, whatever
    the share.
    """
    for system in SYSTEMS:
        run = build(
            configure(f"system={system}", *BUILT_ON, "experiment=more_memory"),
            system,
            bundled_trace,
        )
        largest = run.controller.geometry.slot_sizes[0]
        held = 2 if isinstance(run.controller.cache, Transient) else 16 * 8 // 2
        assert sum(run.controller.slots.capacity_bytes) == held * largest, system


def test_a_system_bears_a_model_s_name_only_where_it_is_published_under_that_name() -> None:
    """It runs any model: ask names the fastest one for Qwen, too."""
    families = {name.split("_")[0] for name in names("model")} - {"tiny"}
    named = {name for name in names("system") if name.split("_")[0] in families}
    assert named == {"mixtral_offloading", "mixtral_offloading_code"}
