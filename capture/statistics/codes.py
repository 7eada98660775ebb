"""Codes that identify sets of experts, so that selections can be compared by one number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def selection_codes(ids: NDArray[np.int16]) -> NDArray[np.uint64]:
    """A number for each set of experts in ``ids`` [..., K], whatever their order; 0 for no expert.

    Each expert has a random 64-bit number, and the code is the exclusive or of the set's numbers.
    Two different sets have the same code with a probability of about 2**-64.
    """
    numbers = np.random.default_rng(0).integers(1, 1 << 63, int(ids.max(initial=0)) + 2, np.uint64)
    # An id of -1 indexes the last number, which must not change a code.
    numbers[-1] = 0
    return np.asarray(np.bitwise_xor.reduce(numbers[ids], axis=-1))
