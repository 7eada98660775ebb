"""What protects a variant from eviction: pins and masks.

The rule: everything about these two states lives in this file. Nobody else keeps a list of what is
pinned or forecast, and every claim of a device slot goes through `Protection.claim` or its
questions. So no claim can be made against pins and masks of an earlier moment.

States
======

Each key (a variant: an expert at a precision) of the device is in one of three states. They say who
may evict it. They do not say whether it is there: a need is pinned while it is still on its way.

======  ==================================================  ====================================
state   which keys                                          who may evict it when it is resident
======  ==================================================  ====================================
FREE    all others                                          every claim
MASKED  named by the last forecast for their site           a demand, after all free keys; with
                                                            ``demand_evicts: unmasked`` nobody
PINNED  needs of the current gate that have been admitted   nobody
        and are not over (a masked key that is pinned, too,
        counts as pinned)
======  ==================================================  ====================================

A prefetch is a guess, so it evicts nothing that another guess has named: otherwise two prefetches
could evict each other's variants for ever. A demand is certain, so it takes guesses where it must,
but last. Nothing takes what the gate at hand is about to compute with.

Transitions
===========

1. A gate begins (`begin_gate`). The pins of the gate before are released: its needs are computed.
   The masks of the gate's own site are released: that forecast has now come true, or not. The
   needs that are admitted at once are pinned.
2. A need is admitted later (`pin`), when a union is served in waves.
3. A need of a wave is over (`unpin`), which makes room for the next needs.
4. A site is forecast (`mask`). The keys of the new forecast replace those of the last one for that
   site: only the newest guess counts.
5. All forecasts are forgotten (`forget_masks`), with ``queue: replace``: the forecasts of each gate
   replace those of all gates before it, whatever their sites.
6. The needs of a gate are over when the next gate begins. Those that no pool holds stay pinned
   (`keep_pins`) until they have left staging one by one (`unpin`). The policy has heard that they
   were asked for and not yet that they are gone, so that it would name them as victims.

No transition evicts anything. A key that is no longer protected stays until some claim takes it.

For speed
=========

Cache policies read the states as two maps with a byte for each key, ``Slots.pinned`` and
``Slots.blocked`` (pinned or masked). A gate changes the states several times, but most gates claim
nothing. So a transition only notes that the maps are *stale*; the next claim writes them anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sim.core.slots import Slots

Keys = Sequence[int] | NDArray[np.integer]
NO_KEYS: NDArray[np.int32] = np.empty(0, np.int32)
NOT_KEPT = bytearray()


class Protection:
    """Who is pinned, who is masked, and what may be evicted for whom, on the device.

    ``spares_masked`` is ``demand_evicts: unmasked``: a demand takes masked keys no more than a
    prefetch does. ``many``: forecasts name many keys at once, as arrays.
    """

    __slots__ = (
        "_are_masks_shown",
        "_is_stale",
        "_many",
        "_masked",
        "_masks",
        "_nothing",
        "_slots",
        "pins",
        "spares_masked",
        "unmasked",
    )

    def __init__(self, slots: Slots, spares_masked: bool, many: bool = False) -> None:
        self._slots, self.spares_masked, self._many = slots, spares_masked, many
        self.pins: list[int] = []
        """The pinned keys, in the order in which they were admitted."""
        self.unmasked: Keys = ()
        """What was forecast for the site of the current gate, best first."""
        self._masks: dict[int, Keys] = {}
        """By site, the keys of its last forecast."""
        # A bytearray takes over another one as it is, but copies plain bytes first.
        self._nothing = bytearray(len(slots.pinned))
        self._is_stale = True
        # Where pins change again and again and masks do not, the masked keys are kept.
        self._are_masks_shown, self._masked = False, NOT_KEPT

    # ---- transitions

    def begin_gate(self, site: int, admitted: list[int]) -> None:
        """Transition 1. ``admitted`` becomes ``pins`` and must not change any more elsewhere."""
        self.unmasked = self._masks.pop(site, ())
        self._are_masks_shown = False
        self.pins = admitted
        self._is_stale = True

    def pin(self, key: int) -> None:
        self.pins.append(key)
        self._is_stale = True

    def unpin(self, key: int) -> None:
        self.pins.remove(key)
        self._is_stale = True

    def keep_pins(self, keys: Sequence[int]) -> None:
        """Release all pins but those of these ``keys``, which are pinned."""
        self.pins = list(keys)
        self._is_stale = True

    def mask(self, site: int, keys: Sequence[int]) -> None:
        self._masks[site] = keys
        self._is_stale, self._are_masks_shown = True, False

    def mask_all(self, keys_of: Mapping[int, Keys]) -> None:
        """Transition 4, for each of these sites."""
        self._masks.update(keys_of)
        self._is_stale, self._are_masks_shown = True, False

    def forget_masks(self) -> None:
        self._masks.clear()
        self._is_stale, self._are_masks_shown = True, False

    # ---- what may be evicted for whom

    def claim(self, key: int, must: bool) -> Sequence[int] | None:
        """Claim a slot in the key's pool: the keys to evict, or None (see `Slots.claim`).

        ``must``: for a demand, or for a prefetch that a need waits for.
        """
        if self._is_stale:
            self.show()
        return self._slots.claim(key, must and not self.spares_masked)

    def would_evict(self, key: int, must: bool) -> Sequence[int] | None:
        """What `claim` would answer now."""
        self.show()
        return self._slots.would_evict(key, must and not self.spares_masked)

    def could_claim(self, key: int) -> bool:
        """Whether `claim` would succeed now for a demand."""
        return self.would_evict(key, must=True) is not None

    def excess(self, pools: Iterable[int]) -> list[int]:
        """The keys to evict so that none of these pools holds too much (see `Slots.excess`)."""
        self.show()
        return self._slots.excess(pools)

    def protects(self, key: int) -> bool:
        """Whether a key is pinned or masked."""
        return key in self.pins or any(key in keys for keys in self._masks.values())

    def show(self) -> None:
        """Write the maps that cache policies read, if a transition has happened since."""
        if not self._is_stale:
            return
        pinned, blocked = self._slots.pinned, self._slots.blocked
        pinned[:] = self._nothing
        if self._are_masks_shown and self._masked:
            blocked[:] = self._masked
        else:
            blocked[:] = self._nothing
            if self._many:
                np.frombuffer(blocked, np.uint8)[
                    np.concatenate([NO_KEYS, *self._masks.values()])
                ] = 1
            else:
                for keys in self._masks.values():
                    for key in keys:
                        blocked[key] = 1
            self._masked = bytearray(blocked) if self._are_masks_shown else NOT_KEPT
            self._are_masks_shown = True
        for key in self.pins:
            pinned[key] = blocked[key] = 1
        self._is_stale = False
