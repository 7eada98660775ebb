"""Experts that move neuron by neuron, as FloE's do: their stored form, and what slots hold of them.

A neuron of an expert is a row of its gate projection, a row of its up projection and a column of
its down projection. Of these the gate row and the down column move, side by side, as a *pair*. The
up projections of all experts stay on the device at 2 bits, outside the slots.

A partial move brings the pairs of some neurons, one behind another. A later transfer that completes
it appends its pairs in the same slot. The device then computes the expert of the neurons that have
come, and of no others.

Source: Zhou et al., FloE, arXiv:2505.05950, sections 3.2 and 3.4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from real.store.experts import ExpertForm, Tensors
from sim.values.types import Geometry

PRECISION = "floe"
"""The precision of systems whose experts are stored by neuron."""
PAIRS, UP = "pairs", "up"
GATED = {"gate", "up", "down"}
Numbers = NDArray[np.int64]


def by_neuron(form: ExpertForm, tensors: Tensors) -> dict[str, torch.Tensor]:
    """An expert's ``pairs`` [I, 2H] and ``up`` [I, H].

    Raise ValueError for an expert without a gate projection, or with biases.
    """
    found: Mapping[str, torch.Tensor] = form.matrices(tensors)
    if set(found) != GATED:
        raise ValueError(
            f"{form.layer.name}: experts of {', '.join(sorted(found))} have no neurons of gate, up"
            f" and down to move one by one; choose another precision than {PRECISION}"
        )
    return {PAIRS: torch.cat([found["gate"], found["down"].T], dim=1), UP: found["up"]}


def of_neurons(form: ExpertForm, pairs: torch.Tensor, up: torch.Tensor) -> dict[str, torch.Tensor]:
    """An expert of only these neurons, as stored tensors; ``pairs`` [n, 2H], ``up`` [n, H]."""
    hidden = up.shape[1]
    return form.stored({"gate": pairs[:, :hidden], "up": up, "down": pairs[:, hidden:].T})


class Arrivals:
    """Which neurons the slots hold of variants that have moved in part.

    The device's lock is held around ``begin``.

    - A live run sets ``rank(key, completes)``, which returns all of an expert's neurons, the most
      active first; ``completes`` says whether they join others that are there. As many of them come
      as the transfer has bytes for.
    - A replay does not know which neurons a token makes active. They are drawn at random, seeded by
      the transfer's number, so that they lie as scattered in memory as active ones would.
    """

    def __init__(self, geometry: Geometry, neurons: int) -> None:
        self._geometry, self._neurons = geometry, neurons
        self.rank: Callable[[int, bool], Numbers] | None = None
        # By key: the transfer, its bytes in all, and the order of the neurons.
        self._moving: dict[int, tuple[int, int, Numbers]] = {}

    def pair_bytes(self, key: int) -> int:
        return self._geometry.bytes_of(key) // self._neurons

    def begin(self, key: int, number: int, there_bytes: int, moved_bytes: int) -> None:
        """Choose the neurons that transfer ``number`` brings behind those that are there.

        A later service of the same transfer changes nothing.
        """
        last, _, order = self._moving.get(key, (-1, 0, np.zeros(0, np.int64)))
        if number == last:
            return
        if not there_bytes and moved_bytes >= self._geometry.bytes_of(key):
            # The whole variant moves as it is stored.
            self._moving.pop(key, None)
            return
        size = self.pair_bytes(key)
        before = -(-there_bytes // size)
        wanted = -(-(there_bytes + moved_bytes) // size) - before
        if self.rank is None:
            left = np.setdiff1d(np.arange(self._neurons), order[:before], assume_unique=True)
            left = np.random.default_rng((key, number)).permutation(left)
        else:
            ranked = self.rank(key, there_bytes > 0)
            left = ranked[~np.isin(ranked, order[:before])]
        # Neurons that come whole stand in the order of memory, the one that is cut off behind them.
        whole = max(0, (there_bytes + moved_bytes) // size - before)
        more = np.concatenate([np.sort(left[:whole]), left[whole:wanted]])
        self._moving[key] = (
            number,
            there_bytes + moved_bytes,
            np.concatenate([order[:before], more]),
        )

    def is_partial(self, key: int) -> bool:
        return key in self._moving

    def extent(self, key: int, begin: int, count: int) -> tuple[int, int]:
        """Where byte ``begin`` of the slot is in the stored variant.

        Return its place, and how many of ``count`` bytes follow it there.
        """
        if key not in self._moving:
            return begin, count
        size, (_, _, order) = self.pair_bytes(key), self._moving[key]
        place, at = divmod(begin, size)
        return int(order[place]) * size + at, min(count, size - at)

    def held(self, key: int) -> Numbers | None:
        """The neurons in a key's slot once all that moves has come; None if these are all.

        They stand in their order in the slot; one of which only part has come is left out.
        """
        if key not in self._moving:
            return None
        _, num_bytes, order = self._moving[key]
        return order[: num_bytes // self.pair_bytes(key)]
