"""A number for each set of experts, whatever their order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def selection_codes(ids: NDArray[np.int16]) -> NDArray[np.uint64]:
    """A number for each set of experts, whatever their order in ``ids`` [..., K]; 0 for none.

    Each expert has a random number of 64 bits, a set their exclusive or: two sets share a code once
    in 2**64.
    """
    numbers = np.random.default_rng(0).integers(1, 1 << 63, int(ids.max(initial=0)) + 2, np.uint64)
    # The id -1 is the last number's index.
    numbers[-1] = 0
    return np.asarray(np.bitwise_xor.reduce(numbers[ids], axis=-1))
