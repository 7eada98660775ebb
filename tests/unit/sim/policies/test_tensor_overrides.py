"""Which layers' experts rest on the CPU, as llama.cpp's options say."""

from __future__ import annotations

from typing import Any

import pytest

from sim.policies.tensor_overrides import TensorOverrides
from sim.values.types import CapacityError, Geometry


def quotas(
    slots: int = 99,
    sites: int = 4,
    experts: int = 3,
    layers: tuple[int, ...] = (),
    null_experts: int = 0,
    **options: Any,
) -> list[int]:
    geometry = Geometry(
        sites,
        experts,
        1,
        ("fp16",),
        (16.0,),
        (1,),
        slots,
        layers=layers,
        null_experts=null_experts,
    )
    return list(TensorOverrides(**options).divide(geometry, slots, None))


# Contracts: C145
@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (0, [3, 3, 3, 3]),
        (1, [0, 3, 3, 3]),
        (3, [0, 0, 0, 3]),
        (4, [0, 0, 0, 0]),
        (99, [0, 0, 0, 0]),
        ("all", [0, 0, 0, 0]),
    ],
)
def test_experts_of_the_first_layers_rest_on_the_cpu(first: int | str, expected: list[int]) -> None:
    assert quotas(n_cpu_moe=first) == expected


def test_layers_without_experts_count_as_layers() -> None:
    """The first site is layer 1, as in DeepSeek's models."""
    assert quotas(n_cpu_moe=2, layers=(1, 2, 3, 4)) == [0, 3, 3, 3]
    assert quotas(n_cpu_moe=2, layers=(1, 3, 5, 7)) == [0, 3, 3, 3]


def test_layer_1_is_not_layer_11() -> None:
    assert quotas(sites=12, n_cpu_moe=2) == [0, 0] + [3] * 10


@pytest.mark.parametrize(
    ("slots", "layers", "expected"),
    [
        (12, (), [3, 3, 3, 3]),
        (11, (), [0, 3, 3, 3]),
        (2, (), [0, 0, 0, 0]),
        (8, (1, 2, 3, 4), [0, 0, 3, 3]),
    ],
)
def test_fewest_takes_as_few_layers_as_the_budget_forces(
    slots: int, layers: tuple[int, ...], expected: list[int]
) -> None:
    assert quotas(slots, layers=layers) == expected


def test_experts_without_weights_take_no_slot() -> None:
    assert quotas(null_experts=1, n_cpu_moe=3) == [0, 0, 0, 2]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([r"blk\.(1|2)\.ffn_.*_exps=CPU"], [3, 0, 0, 3]),
        (["exps=CPU"], [0, 0, 0, 0]),
        # The first pattern that finds the name counts.
        ([r"blk\.3\.=CUDA0", "exps=CPU"], [0, 0, 0, 3]),
        (["exps=CPU", r"blk\.3\.=CUDA0"], [0, 0, 0, 0]),
        # Only the first = divides; a search, so no anchor is needed.
        ([r"_exps\.weight$=CPU"], [0, 0, 0, 0]),
    ],
)
def test_patterns_are_searched_in_order(overrides: list[str], expected: list[int]) -> None:
    assert quotas(n_cpu_moe=0, overrides=overrides) == expected


def test_a_pattern_stands_before_the_number_of_layers() -> None:
    assert quotas(n_cpu_moe=2, overrides=[r"blk\.0\.=CUDA0"]) == [3, 0, 3, 3]
    assert quotas(n_cpu_moe="all", overrides=[r"blk\.0\.=CUDA0"]) == [3, 0, 0, 0]


def test_experts_that_are_split_are_refused_by_name() -> None:
    with pytest.raises(
        ValueError,
        match=r"split the experts of layer 2: ffn_gate_exps on the device, ffn_up_exps on the CPU",
    ):
        quotas(n_cpu_moe=0, overrides=[r"blk\.2\.ffn_up_exps=CPU"])


@pytest.mark.parametrize("regex", ["^attn", r"blk\\\\.1\\\\.ffn", r"blk\.9\."])
def test_a_pattern_that_finds_no_experts_is_refused(regex: str) -> None:
    """It is of other tensors, of a layer that there is not, or escaped once too often."""
    with pytest.raises(ValueError, match="finds no tensor of experts"):
        quotas(n_cpu_moe=0, overrides=[f"{regex}=CPU"])


def test_too_few_slots_are_refused_with_the_numbers_and_the_way_out() -> None:
    with pytest.raises(
        CapacityError,
        match=r"put 3 of 4 layers of experts on the device, which take 9 slots, but the budget"
        r" holds 8; raise cache.quotas.n_cpu_moe \(it is 1\)",
    ):
        quotas(8, n_cpu_moe=1)
    with pytest.raises(CapacityError, match="fewest"):
        quotas(8, overrides=["exps=CUDA0"])


@pytest.mark.parametrize("value", [-1, 1.5, True, "most", None])
def test_a_number_of_layers_that_cannot_be_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"cache\.quotas\.n_cpu_moe="):
        TensorOverrides(value)


@pytest.mark.parametrize(
    "override", ["exps", "=CPU", "exps=", "exps=cpu", "exps=CUDA", "exps=CPU=CPU", 3]
)
def test_an_override_that_is_none_is_refused(override: Any) -> None:
    with pytest.raises(ValueError, match="must be REGEX=BUFFER"):
        TensorOverrides(overrides=[override])


def test_a_broken_pattern_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'blk\\\\.\(' is no regular expression"):
        TensorOverrides(overrides=[r"blk\.(=CPU"])
