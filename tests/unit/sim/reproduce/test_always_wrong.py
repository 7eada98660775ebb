"""The predictor that is never right names what is not needed, all of it, in a drawn order."""

from __future__ import annotations

import numpy as np

from sim.reproduce.always_wrong import AlwaysWrong


def test_it_names_all_experts_that_are_not_needed_in_an_order_of_its_seed() -> None:
    one = object.__new__(AlwaysWrong)
    others = list(range(2, 12))
    named = [one._named(np.random.default_rng(seed), 1, [0, 1], others) for seed in (3, 3, 4)]
    assert [sorted(names) for names in named] == [others] * 3
    assert named[0] == named[1] != named[2]
    assert all(type(name) is int for name in named[0])
