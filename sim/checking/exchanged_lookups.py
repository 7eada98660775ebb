"""Every lookup of a log that may name another expert than the engine was asked for, and every two
that may stand in each other's place: in closed form, for LRU in bytes.

What another expert at one place changes is known without a replay (`sim.checking.lookup_order`):
its own flag; where the expert that was named is next asked for, and where the other one is; and the
few experts so near to a frontier that one expert more or less before them decides. All places and
all experts are tried at once.

Flags decide, and what was read for them where the log tells it: of an expert in a batch something
was read if and only if it was absent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sim.checking.lookup_order import MIXED, Bools, Ints, LookupOrder, Near

MOST_NEAR = 4096
"""Needs that deviate or stand near a frontier, beyond which nothing is sought: the contract is
another one.
"""
SPECIAL = 6
"""Needs that an exchange may change though near no frontier: two lookups, and where their
experts come next.
"""
MOST_TOKENS = 2000
"""One-token steps of a site up to which pairs are sought."""


@dataclass(frozen=True)
class Exchanged:
    """A lookup of the log (its index there), and the experts any of which in its place explains
    every flag.
    """

    lookup: int
    experts: tuple[int, ...]


@dataclass(frozen=True)
class Swapped:
    """Two lookups of the log (their indices there) that explain every flag if each stands in the
    other's place.
    """

    lookup: int
    other: int


class _Site:
    """One site's lookups against its experts. [n, E]: the places of each expert before and after
    each lookup.
    """

    def __init__(self, order: LookupOrder, site: int) -> None:
        self.order, self.size = order, order.site_bytes[site]
        at = self.at = np.flatnonzero(order.site == site)
        count, experts = len(at), order.units - 1
        self.tick, self.expert, self.flag = order.tick[at], order.expert[at], order.flag[at]
        self.before_own, self.after_own = order.before[at], order.after[at]
        end = len(order)
        each = np.arange(count)
        marks = np.full((count + 1, experts), -1)
        marks[1 + each, self.expert] = at
        until = np.maximum.accumulate(marks, axis=0)
        marks = np.full((count + 1, experts), end)
        marks[each, self.expert] = at
        since = np.minimum.accumulate(marks[::-1], axis=0)[::-1]
        self.before: Ints = until[:-1]
        self.after: Ints = since[1:]
        first = np.searchsorted(self.tick, self.tick, "left")
        stop = np.searchsorted(self.tick, self.tick, "right")
        self.before_batch: Ints = until[first]
        """The last place of each expert in an earlier batch."""
        self.until_batch: Ints = until[stop]
        """The last place of each expert up to the batch's end."""
        self.after_batch: Ints = since[stop]
        """The first place of each expert in a later batch."""
        self.chosen = np.zeros((count, experts), np.bool_)
        """Whether the lookup's row chose the expert."""
        row = order.row[at] - order.row.min()
        by_row = np.zeros((int(row.max()) + 1 if count else 0, experts), np.bool_)
        by_row[row, self.expert] = True
        self.chosen = by_row[row]

    def there(
        self, place: Ints, tick: Ints, more: int | Bools, fewer: Bools | None = None
    ) -> Bools:
        """Whether what was last asked for at ``place`` is there before a batch, with an expert
        ``more`` (or ``fewer``) asked for since."""
        tick = np.minimum(tick, len(self.order.begin) - 2)
        threshold = self.order.frontier(0)[tick]
        if not isinstance(more, int):
            threshold = np.where(more, self.order.frontier(self.size)[tick], threshold)
        if fewer is not None:
            threshold = np.where(fewer, self.order.frontier(-self.size)[tick], threshold)
        return np.asarray((place >= 0) & (place >= threshold))

    def tick_at(self, place: Ints) -> Ints:
        """The batch of a place; the end is of the last."""
        return self.order.tick[np.minimum(place, len(self.order) - 1)]

    def begin_at(self, place: Ints) -> Ints:
        """Where the batch of a place begins; the end of all where it is the end."""
        begin = self.order.begin[self.tick_at(place)]
        return np.where(place < len(self.order), begin, len(self.order))

    def agrees(self, place: Ints, now: Bools) -> Bools:
        """Whether the log says of the need at ``place`` what is found ``now``; nothing is said
        past the end.
        """
        order = self.order
        need = order.need[np.minimum(place, len(order) - 1)]
        state = order.state[need]
        right = (state != MIXED) & ((now != order.found[need]) == (state == 1))
        return np.asarray((place >= len(order)) | right)


def exchanged(order: LookupOrder) -> Iterator[Exchanged]:
    """Every lookup that, naming another expert of its site that its row did not choose, explains
    every flag; by place.

    Nothing where far more deviates than one lookup can change.
    """
    found: dict[int, tuple[int, ...]] = {}
    for site in _sites(order):
        here = _Site(order, site)
        good = _exchanges(here)
        for lookup in np.flatnonzero(good.any(axis=1)).tolist():
            found[int(here.at[lookup])] = tuple(np.flatnonzero(good[lookup]).tolist())
    for place in sorted(found):
        yield Exchanged(int(order.lookup[place]), found[place])


def _sites(order: LookupOrder) -> list[int]:
    """The sites whose lookups may explain what deviates: all, or that of what is near no frontier,
    which only an exchange of its own expert, or in its place, explains; none where far more
    deviates than that."""
    lost, gained, others = order.near(max(order.site_bytes))
    if not order.deviates.any() or len(lost) + len(gained) > MOST_NEAR or len(others) > SPECIAL:
        return []
    own = {near.site for near in others}
    return [int(site) for site in np.unique(order.site) if not own or own == {int(site)}]


def _exchanges(site: _Site) -> Bools:
    """[n, E]: the expert in the lookup's place explains every flag."""
    order, at = site.order, site.at[:, None]
    good = ~site.chosen
    good &= site.there(site.before_batch, site.tick[:, None], 0) == site.flag[:, None]
    # The expert that is named: next found as old as its lookup before this one, with the other one
    # since.
    named, older = site.after_own[:, None], site.before_own[:, None]
    begin = site.begin_at(named)
    more = (site.before < older) & (site.after >= begin)
    in_batch = named < order.begin[site.tick + 1][:, None]
    good &= in_batch | site.agrees(named, site.there(older, site.tick_at(named), more))
    # The other one: next found as young as this lookup, and the one that is named no longer since.
    other = site.after_batch
    more = site.after_own[:, None] < site.begin_at(other)
    in_batch = site.after < order.begin[site.tick + 1][:, None]
    good &= in_batch | site.agrees(other, site.there(at, site.tick_at(other), more))
    lost, gained, others = order.near(site.size)
    for needs, sign in ((lost, 1), (gained, -1), (others, 0)):
        for near in needs:
            _hold_near(site, near, sign, good)
    if order.tells_bytes:
        good &= _reads_agree(site)
    return good


def _hold_near(site: _Site, near: Near, sign: int, good: Bools) -> None:
    """Strike out what does not do to this need what the log says: ``sign`` 1 if one expert more
    before it makes it absent, -1 if one fewer makes it present."""
    order, at = site.order, site.at
    state = int(order.state[near.need])
    inside = (at > near.place) & (at < near.begin)
    gone = inside & (site.before_own < near.place) & (site.after_own >= near.begin)
    come = (site.before < near.place) & (site.after >= near.begin) & inside[:, None]
    changed = _changed(come, gone[:, None], sign)
    right = (changed == (state == 1)) if state != MIXED else np.zeros_like(come)
    if near.site == int(order.site[at[0]]):
        # Where its own expert is the one named, or the other one, that is seen to already.
        right[at == near.place] = True
        right[inside, near.expert] = True
    mine = order.need[at] == near.need
    rest = order.deviating[near.need] - order.deviates[at]
    right[mine] = (rest[mine] == 0)[:, None]
    good &= right


def _changed(come: Bools, gone: Bools, sign: int) -> Bools:
    """Whether one expert more (``sign`` 1) or fewer (-1) was asked for since."""
    if not sign:
        return np.zeros_like(come & gone)
    return come & ~gone if sign > 0 else gone & ~come


def _reads_agree(site: _Site) -> Bools:
    """[n, E]: with the expert in the lookup's place, what was read in its batch is what its flags
    say, and so it is in all others."""
    order, at = site.order, site.at
    need, read, absent = order.need[at], order.reads[at], ~site.flag
    count, reads = order.lookups_of_need[need] - 1, order.reads_of_need[need] - read
    absents = order.absent_of_need[need] - absent
    agrees = (count == 0) | np.where(reads > 0, absents == count, absents == 0)
    ticks, batch = np.unique(site.tick, return_inverse=True)
    table = np.full((len(ticks), order.units - 1), -1)
    table[batch, site.expert] = need
    other = table[batch]

    def of_other(column: Ints | Bools) -> Ints:
        return np.where(other >= 0, column[other], 0).astype(np.int64)

    absents = of_other(order.absent_of_need) + absent[:, None]
    is_read = of_other(order.reads_of_need) + read[:, None] > 0
    others_agree = np.where(is_read, absents == of_other(order.lookups_of_need) + 1, absents == 0)
    odd = (
        int(order.at_odds.sum())
        - order.at_odds[need][:, None].astype(np.int64)
        - of_other(order.at_odds)
    )
    return np.asarray(agrees[:, None] & others_agree & (odd == 0))


# ---- pairs


def swapped(order: LookupOrder) -> Iterator[Swapped]:
    """Every two lookups of one site and slot, in steps of one token, that explain every flag if
    each stands, with its flag and what was read for it, in the other's place; by place. Nothing
    where what was read contradicts a flag.
    """
    if order.at_odds.any():
        return
    found: list[tuple[int, int]] = []
    for site in _sites(order):
        here = _Site(order, site)
        for slot in np.unique(order.slot).tolist():
            mine = np.flatnonzero(order.one_row[here.at] & (order.slot[here.at] == slot))
            if 1 < len(mine) <= MOST_TOKENS:
                good = _Pairs(here, mine).good()
                found += zip(
                    *(here.at[mine[side]].tolist() for side in np.nonzero(good)), strict=True
                )
    for place, other in sorted(found):
        yield Swapped(int(order.lookup[place]), int(order.lookup[other]))


class _Pairs:
    """Lookups of a site in steps of one token, two by two: [n, n], the earlier one by row. ``x`` is
    what the log names at the earlier place, ``z`` what it names at the later one."""

    def __init__(self, site: _Site, mine: Ints) -> None:
        self.site, self.order = site, site.order
        self.tick, self.expert, self.flag = site.tick[mine], site.expert[mine], site.flag[mine]
        self.early, self.late = site.at[mine][:, None], site.at[mine][None, :]
        own_before, own_after = site.before_own[mine], site.after_own[mine]
        self.x_before, self.x_after = own_before[:, None], own_after[:, None]
        self.z_before_late, self.z_after_late = own_before[None, :], own_after[None, :]
        self.z_before, self.z_after = (
            table[mine][:, self.expert] for table in (site.before, site.after)
        )
        self.x_before_late, self.x_after_late = self.z_before.T, self.z_after.T
        self.need = self.order.need[site.at[mine]]
        chooses = site.chosen[mine][:, self.expert]
        self.may_be: Bools = (self.tick[:, None] < self.tick[None, :]) & ~chooses & ~chooses.T

    def good(self) -> Bools:
        """Whether the two explain every flag in each other's place."""
        site = self.site
        late_begin = self.order.begin[self.tick][None, :]
        early_tick, late_tick = self.tick[:, None], self.tick[None, :]
        good: Bools = self.may_be & (site.there(self.z_before, early_tick, 0) == self.flag[None, :])
        # x at the later place: its last lookup before may have been the earlier one, which it was
        # not.
        was_early = self.x_before_late == self.early
        place = np.where(was_early, self.x_before, self.x_before_late)
        more = was_early & (self.z_before < self.x_before) & (self.z_after >= late_begin)
        good &= site.there(place, late_tick, more) == self.flag[:, None]
        # Between the two: x is older than the log says, z younger.
        more = (self.z_before < self.x_before) & (self.z_after >= site.begin_at(self.x_after))
        right = site.agrees(
            self.x_after, site.there(self.x_before, site.tick_at(self.x_after), more)
        )
        good &= (self.x_after >= late_begin) | right
        more = self.x_after < site.begin_at(self.z_after)
        right = site.agrees(self.z_after, site.there(self.early, site.tick_at(self.z_after), more))
        good &= (self.z_after >= late_begin) | right
        # After both: x is younger, z older.
        more = self.z_after_late < site.begin_at(self.x_after_late)
        good &= site.agrees(
            self.x_after_late, site.there(self.late, site.tick_at(self.x_after_late), more)
        )
        place = np.maximum(self.z_before_late, self.early)
        more = (self.x_before_late < place) & (
            self.x_after_late >= site.begin_at(self.z_after_late)
        )
        good &= site.agrees(
            self.z_after_late, site.there(place, site.tick_at(self.z_after_late), more)
        )
        if good.any():
            lost, gained, others = self.order.near(site.size)
            for needs, sign in ((lost, 1), (gained, -1), (others, 0)):
                for near in needs:
                    good &= self._right(near, sign)
        return good

    def _right(self, near: Near, sign: int) -> Bools:
        """Whether this need is found as the log says, where it is not seen to in `good`."""
        at_early, at_late = (
            (at > near.place) & (at < near.begin) for at in (self.early, self.late)
        )
        gone = at_early & (self.x_before < near.place) & (self.x_after >= near.begin)
        come = at_early & (self.z_before < near.place) & (self.z_after >= near.begin)
        gone_late = at_late & (self.z_before_late < near.place) & (self.z_after_late >= near.begin)
        come_late = at_late & (self.x_before_late < near.place) & (self.x_after_late >= near.begin)
        alone = at_early ^ at_late
        gone, come = (gone | gone_late) & alone, (come | come_late) & alone
        changed = _changed(come, gone, sign)
        state = int(self.order.state[near.need])
        right = (changed == (state == 1)) if state != MIXED else np.zeros_like(come)
        seen = (self.early == near.place) | (self.late == near.place)
        seen |= (self.need[:, None] == near.need) | (self.need[None, :] == near.need)
        if near.site == int(self.order.site[self.site.at[0]]):
            x_next = self.site.begin_at(self.x_after_late) == near.begin
            z_next = self.site.begin_at(self.z_after) == near.begin
            seen |= (self.expert[:, None] == near.expert) & x_next
            seen |= (self.expert[None, :] == near.expert) & z_next
        return np.asarray(right | seen)
