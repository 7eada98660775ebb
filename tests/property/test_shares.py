"""A share of a count is exactly what its decimal text says, to the last slot, everywhere."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor
from types import SimpleNamespace

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from sim.machine.budget import Budget
from sim.policies.precisions import LowForFew, PerExpert
from sim.policies.recency import LRU
from sim.values.types import Geometry
from sim.values.units import part_of

COUNTS = st.integers(1, 100_000)
SIZES = st.sampled_from((1, 1_000, 17_301_504, 352_321_536))


@st.composite
def shares(draw: st.DrawFn) -> tuple[float, Fraction]:
    """k / 10^d in 0..1: the float that its decimal text gives, and the exact fraction."""
    digits = draw(st.integers(1, 9))
    part = draw(st.integers(1, 10**digits))
    return float(f"{part // 10**digits}.{part % 10**digits:0{digits}d}"), Fraction(part, 10**digits)


# Contracts: C83
@given(share=shares(), count=COUNTS)
@example(share=(0.575, Fraction(575, 1000)), count=1440)
@example(share=(0.29, Fraction(29, 100)), count=100)
def test_a_part_is_the_exact_one_rounded_down_or_up(
    share: tuple[float, Fraction], count: int
) -> None:
    written, exact = share
    assert part_of(count, written) == floor(exact * count)
    assert part_of(count, written, up=True) == ceil(exact * count)


@given(share=shares(), count=COUNTS, size=SIZES)
@example(share=(0.575, Fraction(575, 1000)), count=1440, size=17_301_504)
def test_a_budget_holds_so_many_slots(share: tuple[float, Fraction], count: int, size: int) -> None:
    written, exact = share
    assert Budget(written).capacity_bytes(count * size) // size == floor(exact * count)


@given(share=shares(), count=COUNTS, size=SIZES)
@example(share=(0.575, Fraction(575, 1000)), count=1440, size=17_301_504)
def test_a_pool_by_precision_holds_so_many_slots(
    share: tuple[float, Fraction], count: int, size: int
) -> None:
    written, exact = share
    if exact == 1:
        return
    cache = LRU("precision", (written, float(1 - exact)), "empty")
    plan = cache.pools(Geometry(1, 2, 1, ("fp16", "int4"), (16.0, 4.0), (size, 1), count * size))
    assert plan.capacity_bytes[0] // size == floor(exact * count)
    assert sum(plan.capacity_bytes) == count * size


@given(share=shares(), count=st.integers(1, 400))
@example(share=(0.575, Fraction(575, 1000)), count=120)
@example(share=(0.29, Fraction(29, 100)), count=100)
def test_so_many_experts_are_low(share: tuple[float, Fraction], count: int) -> None:
    written, exact = share
    least_used = PerExpert("int4", "int2", written)
    least_used.profile(np.arange(count).reshape(1, count))
    assert least_used.table is not None
    assert sum(least_used.table[0]) == floor(exact * count)
    prompt = SimpleNamespace(needs=list(range(count)), experts=np.zeros((2, 1), np.int64), site=0)
    few = LowForFew("int4", "int2", written)
    assert sum(few.select(prompt, None)) == floor(exact * count)  # type: ignore[arg-type]
