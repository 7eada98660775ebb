"""A transfer on its way to the device: one variant, or what a site's dense work needs, which is its
dense block, or keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sim.values.types import PrefetchOutcome

UNUSED_AT_END: Final = int(PrefetchOutcome.UNUSED_AT_END)


class Transfer:
    """One variant, or one site's dense block, on its way, over one link or several.

    The life of a transfer (docs/contracts/links.md)::

        queued --+-- a need asks ---> promoted: a demand takes its place
          |      +-- given up ------> cancelled, or dropped for want of a slot
          |
          | issued: it has started
          v
        in service --- cut, or handed on ---> waiting --- given up ---> dropped
          |    ^                                 |
          |    +------------- issued ------------+
          |
          | its last hop ends
          v
        landed: in its pool, or in staging; perhaps its rest follows

    1. *Queued* on the first link of its route, as a demand or as a prefetch. It ``waits`` there,
       and has no ``number`` yet.
    2. *Promoted*: a need asks for a prefetch that is still queued. A new demand takes its place,
       and the prefetch counts as ``cancelled``. With ``demand_first: false`` the prefetch itself
       becomes a demand, where it stands.
    3. *Cancelled*: a prefetch that has never started is no longer wanted. *Dropped* (no slot): its
       turn came, and it found no slot. Either way its entry stays in the queue until the queue
       comes to it, marked ``cancelled``.
    4. *Claimed*: its slot on the device is its own, from the issue on link 0 on. A dense block has
       its slot from the start, and so has the rest of a partial move.
    5. *Started*: it has been issued on a link for the first time. That gives it its ``number``.
       From now on it is in flight, whether a link serves it or it waits between two hops.
    6. *Urgent*: a need waits for this prefetch, which has started. It goes with the demands, and is
       not given up any more.
    7. *Cut* (chunks): it gives way to a demand and waits for the same link again, with
       ``left_bytes`` to move.
    8. *Handed on*: a hop has ended, and the transfer is queued on the next link inwards. With
       cut-through that happens when the hop's head is through; until the hop ends the transfer
       ``feeds`` on it. If it then finds no slot it has ``bounced``: it is set aside, and queued
       again when the hop ends.
    9. *Dropped*: a started prefetch that waits is no longer wanted, or finds no slot. It gives back
       what it has claimed.
    10. *Landed*: its last hop has ended, and it is ``over``. The variant is resident in its pool or
        in staging. A partial prefetch that did not bring all that a need waits for has
        ``rest_bytes``: a demand for the rest follows into the same slot.

    ``key``: the variant. ``prefetch``: it is a prefetch, and no demand. ``moved_bytes``: what it
    moves over link 0; ``left_bytes``: what its hop on ``link`` has still to move. ``call``: the
    controller call that queued it. ``is_needed``: a need waits for it; it is a demand, or an urgent
    prefetch. ``victims``: the keys evicted on the device for it;
    ``write_back``: those of them whose bytes go back over the link. ``outcome``: of a prefetch that
    has started, a ``PrefetchOutcome``. ``staged``: it lands in staging. ``dense``: it is a dense
    block. ``partial``: it moves less than the variant. ``overtaken``: a partial prefetch for which
    a gate of its site did not ask. ``parent``: the number of the partial prefetch whose rest it is,
    or -1. ``later_hops``: (link, call that queued it there) of all hops but the first.
    """

    # What every transfer uses has a slot; what only some need is a default of the class.
    __slots__ = (
        "__dict__",
        "call",
        "cancelled",
        "claimed",
        "first_link",
        "is_needed",
        "key",
        "later_hops",
        "left_bytes",
        "link",
        "moved_bytes",
        "number",
        "outcome",
        "over",
        "prefetch",
        "victims",
        "waits",
    )
    staged: bool = False
    dense: bool = False
    partial: bool = False
    overtaken: bool = False
    bounced: bool = False
    feeds: int = 0
    rest_bytes: int = 0
    parent: int = -1
    write_back: Sequence[int] = ()

    def __init__(
        self, key: int, prefetch: bool, moved_bytes: int, call: int, link: int = 0
    ) -> None:
        self.key = key
        self.prefetch = prefetch
        self.call = call
        self.link = self.first_link = link
        self.later_hops: tuple[tuple[int, int], ...] = ()
        self.moved_bytes = self.left_bytes = moved_bytes
        self.number = -1
        self.outcome = UNUSED_AT_END
        self.waits = True
        self.is_needed = not prefetch
        self.over = self.cancelled = self.claimed = False
        self.victims: Sequence[int] = ()

    @property
    def urgent(self) -> bool:
        """It is a prefetch that a need waits for."""
        return self.prefetch and self.is_needed

    @property
    def hops(self) -> tuple[tuple[int, int], ...]:
        """(link, call that queued it there), outermost first."""
        return ((self.first_link, self.call), *self.later_hops)


NO_TRANSFER = Transfer(-1, False, 0, 0)
