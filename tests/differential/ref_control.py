"""The controller of the reference: it asks, queues, issues, claims and drops (sections 3 to 6)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from differential.history import History
from differential.ref_clock import Clock
from differential.ref_memory import Asked, Pool, Staging, Tier, Transfer
from differential.ref_moves import Moves
from differential.ref_pages import SwappedMemory
from differential.ref_steps import future
from differential.scenario import SKIP, Fixed, Forecast, Key, Need, Prediction, Scenario, Step


@dataclass(frozen=True)
class Waiting:
    """A need that is not admitted yet: who serves it for how many rows, at which precision (or
    SKIP), or that another need brings its expert; `chosen` by the router."""

    need: Need
    wanted: int
    chosen: int
    joins: bool = False

    @property
    def has_key(self) -> bool:
        return self.wanted != SKIP and not self.joins


class Control(Moves):
    """What the gates ask for. How transfers move is in `Moves`."""

    def __init__(self, scenario: Scenario, clock: Clock) -> None:
        cache = scenario.cache
        history = History(scenario, cache, future(scenario) if cache.name == "belady" else ())
        device = Tier(scenario, scenario.pools, history, scenario.slot)
        ram = scenario.ram and Tier(
            scenario,
            scenario.ram.pools,
            History(scenario, scenario.ram.cache, is_ram=True),
            scenario.size,
        )
        super().__init__(scenario, clock, device, ram, Staging(scenario.loader.staging_slots))
        self.serves_from_staging = scenario.refuses or scenario.moves_partially
        self.serves_from_staging |= self.loader.demand_evicts == "unmasked"
        self.step: Step
        self.waiting: list[Waiting] = []
        self.foretold: dict[int, list[int]] = {}
        """By site, the experts of its last forecast, best first."""
        self.instead: dict[int, int] = {}
        """By expert that the gate's router chose, who serves."""
        self.tick, self.site = -1, 0
        self.number = -1
        """Of the step, from 0 on."""
        self.last_gate: dict[int, int] = {}
        self.predictions: dict[int, tuple[int, list[tuple[int, Prediction]]]] = {}
        self.lookups: list[Asked] = []
        self.visited: list[Pool] = []
        """The pools of the needs that the last gate has admitted."""
        self.swapped = SwappedMemory(scenario, scenario.swap) if scenario.swap else None

    # ---- calls

    def begin_sequence(self, sequence: int) -> None:
        self.clock.say("begin_sequence", sequence)
        for tier in (self.device, self.ram):
            if tier:
                tier.history.begin_sequence()
        self.poll()

    def bring(self, link: int, tokens: int) -> None:
        self.clock.say("bring", tokens)
        self.queue_kv(link, tokens)
        self.poll()

    def end_sequence(self, sequence: int) -> None:
        self.clock.say("end_sequence", sequence)
        self.trim()
        self.poll()

    def gate(self, step: Step, site: int) -> list[Asked]:
        """The steps of contract C15. Answers the needs that were admitted, the skipped ones,
        too."""
        is_new = step is not getattr(self, "step", None)
        self.number += is_new
        self.tick, self.step, self.site = self.tick + 1, step, site
        self.last_gate[site] = self.tick
        self.clock.say("gate", self.tick)
        if self.scenario.spare_bytes and is_new:
            self.let_go()
            self.device.grow(self.scenario.spare(self.number))
            self.trim(is_room_made=True)
        else:
            self.trim()
            self.let_go()
        self.visited = []
        self.masked.pop(site, None)
        self.waiting = self.choose(step, site, self.foretold.pop(site, []))
        serving = self.unadmitted_keys()
        admitted = self.admit()
        self.cancel_stale(serving)
        self.look_up(admitted)
        self.stream_dense()
        coming = self.coming(step, site)
        if self.scenario.prediction_ns:
            self.predictions[self.tick] = site, coming
        else:
            self.look_ahead(coming, self.tick)
        if self.swapped:
            self.swapped.gate(step, site)
        self.touch(admitted)
        self.poll()
        return admitted

    def touch(self, admitted: list[Asked]) -> None:
        if self.swapped:
            pools = set().union(*(pool.resident for pool in self.device.pools))
            self.swapped.admit(admitted, pools | set(self.staging.staged))

    def need_done(self, key: Key) -> list[Asked]:
        """Contract C24: the key is unpinned and the next needs come in."""
        self.clock.say("need_done", self.scenario.pack(key))
        del self.pinned[key]
        self.leave(key)
        admitted = self.admit()
        self.look_up(admitted)
        self.touch(admitted)
        self.poll()
        return admitted

    def cpu_done(self, key: Key) -> None:
        self.clock.say("cpu_done", self.scenario.pack(key))
        self.poll()

    def prediction_ready(self, tick: int) -> None:
        self.clock.say("prediction_ready", tick)
        self.look_ahead(self.predictions.pop(tick)[1], tick)
        self.poll()

    # ---- steps 1 to 7

    def let_go(self) -> None:
        """Step 2."""
        needs = list(self.pinned)
        self.pinned.clear()
        for key in needs:
            self.leave(key)

    def trim(self, is_room_made: bool = False) -> None:
        """Step 1: nothing outlives its batch, or its slot, beyond the capacity, but what is pinned.

        With `until_next_visit` only pools that the last gate has visited are trimmed, unless room
        is made in all.
        """
        if self.loader.retention == "strict" and not self.scenario.spare_bytes:
            return
        keeps = self.loader.retention == "until_next_visit" and not is_room_made
        masked = self.everything_masked()
        for pool in self.device.pools:
            if keeps and pool not in self.visited:
                continue
            ordered = self.device.history.victims_first(pool.resident - set(self.pinned))
            for key in sorted(ordered, key=lambda key: key in masked):
                if self.device.over(pool) > 0:
                    self.evict(key)
                    self.trimmed.append((self.clock.now, self.scenario.pack(key)))

    def leave(self, key: Key) -> None:
        """Step 2, and the end of a wave's need: it leaves staging, and what no pool holds is as
        good as evicted.
        """
        if key in self.unused and key in self.staging.staged:
            # A CPU computed the need, and a forecast of its own site has brought it since.
            self.drop_staged(key)
        if key in self.staging.staged and self.scenario.refuses and not self.is_partial(key):
            victims = self.pool_victims(key, needed=False)
            if victims is not None and self.scenario.admits(key, len(victims)):
                self.enter(key, victims)
        self.staging.staged.pop(key, None)
        if not self.device.holds(key):
            self.device.history.evicted(key)

    def choose(self, step: Step, site: int, foretold: list[int]) -> list[Waiting]:
        """Step 4: of what one expert serves, its own need or the first brings it for all, at the
        highest precision.
        """
        needs = step.needs[site]
        answers = self.answers(site, needs, foretold)
        self.instead = {
            need.expert: expert for need, (expert, _) in zip(needs, answers, strict=True)
        }
        found = []
        for index, (need, (expert, wanted)) in enumerate(zip(needs, answers, strict=True)):
            if wanted == SKIP:
                found.append(Waiting(need, SKIP, need.expert))
                continue
            group = [i for i, (other, at) in enumerate(answers) if other == expert and at != SKIP]
            own = [i for i in group if needs[i].expert == expert]
            rows = min(step.rows, sum(needs[i].tokens for i in group))
            served = replace(need, expert=expert, tokens=rows)
            found.append(
                Waiting(
                    served,
                    min(answers[i][1] for i in group),
                    need.expert,
                    index != [*own, *group][0],
                )
            )
        return found

    def answers(
        self, site: int, needs: tuple[Need, ...], foretold: list[int]
    ) -> list[tuple[int, int]]:
        """Of each need who serves it, at which precision (or SKIP)."""
        plain = [(need.expert, self.select(site, need.expert, need.score)) for need in needs]
        rule = self.scenario.reroute
        if rule is None:
            return plain
        if not rule.by_forecast:
            table = dict(rule.instead)
            return [table.get((site, expert), (expert, wanted)) for expert, wanted in plain]
        counted = foretold[: len(needs)]
        if not counted:
            return [(expert, 0) for expert, _ in plain]
        turns = [expert for expert in counted if expert not in [need.expert for need in needs]]
        while len(turns) < len(needs):
            turns += counted
        return [(need.expert if need.expert in counted else turns.pop(0), 0) for need in needs]

    def select(self, site: int, expert: int, score: float) -> int:
        """The wanted precision, or SKIP."""
        selector = self.scenario.selector
        if isinstance(selector, Fixed):
            return selector.precision
        if score <= selector.low_above:
            return 0
        if score <= selector.skip_above:
            return 1
        here = [p for p in range(self.scenario.precisions) if self.is_there((p, site, expert))]
        return self.scenario.precisions - 1 if here else SKIP

    def serving(self, wanted: int, site: int, expert: int) -> Key:
        """The key that serves a need or a forecast (step 5)."""
        own: Key = (wanted, site, expert)
        higher: list[Key] = [(p, site, expert) for p in range(wanted - 1, -1, -1)]
        lower: list[Key] = [(p, site, expert) for p in range(wanted + 1, self.scenario.precisions)]
        for key in [own, *higher] + (lower if self.loader.low_for_high else []):
            if self.is_there(key):
                return key
        for key in [own, *higher]:
            if key in self.moving and self.moving[key].started:
                return key
        return own

    def unadmitted_keys(self) -> set[Key]:
        return {
            self.serving(one.wanted, self.site, one.need.expert)
            for one in self.waiting
            if one.has_key
        }

    def admit(self) -> list[Asked]:
        """Step 6: needs come in, in need order, until one does not fit beside what is pinned."""
        admitted = []
        while self.waiting:
            one = self.waiting[0]
            need, wanted = one.need, one.wanted
            key = (
                self.serving(wanted, self.site, need.expert)
                if one.has_key
                else (wanted, self.site, need.expert)
            )
            if one.has_key and not self.fits(key):
                break
            self.waiting.pop(0)
            admitted.append(
                Asked(need, wanted, key, self.tick, self.clock.now, one.chosen, one.joins)
            )
            if one.has_key:
                self.pinned[key] = None
                self.visited.append(self.device.pool(key))
        self.lookups += admitted
        return admitted

    def fits(self, key: Key) -> bool:
        if self.loader.replay_unit == "access" and self.pinned:
            return False
        pool = self.device.pool(key)
        together = [other for other in (*self.pinned, key) if self.device.pool(other) is pool]
        is_full = self.device.bytes(together) > pool.room
        is_held_to_it = not self.scenario.is_short(pool.spec) and not self.scenario.refuses
        if self.loader.retention == "strict" and is_full and is_held_to_it:
            return False
        staged = [
            other
            for other in (*self.pinned, key)
            if self.may_stage(other) and not self.device.holds(other)
        ]
        return not self.may_stage(key) or len(staged) <= self.staging.slots

    def may_stage(self, key: Key) -> bool:
        """Whether the variant may have to be served from staging."""
        return self.serves_from_staging or self.scenario.is_short(self.device.pool(key).spec)

    def cancel_stale(self, serving: set[Key]) -> None:
        """Step 7: of what waits, and of what is staged for this site, only what serves a need
        stays.
        """
        everywhere = self.loader.prefetch_budget == "until_next_gate"
        here = self.loader.cancel_stale
        self.cancel(
            transfer
            for transfer in self.cancellable()
            if transfer.key not in serving
            and (everywhere or (here and transfer.key[1] == self.site))
        )
        for key in list(self.staging.staged):
            if key[1] == self.site and key not in self.pinned and key not in serving:
                self.drop_staged(key)
        for key, transfer in self.moving.items():
            if key[1] == self.site and transfer.kind == "prefetch" and key not in serving:
                transfer.overtaken = not transfer.whole

    # ---- steps 8 to 10

    def look_up(self, admitted: list[Asked]) -> None:
        """Look up, tell the policies, and let in what is staged."""
        told, staged = [], []
        for one in admitted:
            if one.wanted == SKIP:
                one.outcome = "skip"
                continue
            if one.joins:
                one.outcome = "reroute"
                continue
            if one.key in self.staging.staged and not self.is_partial(one.key):
                staged.append(one.key)
            one.outcome = self.outcome(one)
            if one.outcome == "miss" and one.transfer:
                told.append(one.key)
            if (
                one.outcome in ("hit", "high_for_low", "low_for_high")
                and one.need.expert != one.chosen
            ):
                one.outcome = "reroute"
        asked = [one for one in admitted if one.wanted != SKIP and not one.joins]
        ranks = None
        if self.step.ranks:
            ranks = [
                [self.instead.get(expert, expert) for expert in row]
                for row in self.step.ranks[self.site]
            ]
        self.device.history.requested(asked, self.step.token, self.site, ranks, self.number)
        if self.ram:
            self.ram.history.asked_for(told, self.number)
        for key in staged:
            self.exchange(key)

    def outcome(self, one: Asked) -> str:
        """Name the lookup's outcome; what is not there makes the need wait for a transfer, or
        for the CPU.
        """
        key, need = one.key, one.need
        if self.is_there(key):
            return self.found(one)
        if key in self.moving:
            return self.found_moving(one, self.moving[key])
        placement = self.scenario.placement
        place = placement.place(self.site, need.expert, need.tokens) if placement else "load"
        if place != "load":
            return place
        one.transfer = self.queue(key, "demand", self.scenario.moved_bytes(key, need))
        return "miss"

    def found(self, one: Asked) -> str:
        key = one.key
        if key in self.unused:
            self.unused.remove(key)
            self.prefetch["used"] += 1
        if key in self.staging.staged and self.is_partial(key):
            lacking = self.scenario.missing_bytes(key, one.need, self.staging.staged[key])
            if lacking:
                one.transfer = self.queue_rest(key, lacking)
                return "miss"
        if key[0] == one.wanted:
            return "hit"
        return "high_for_low" if key[0] < one.wanted else "low_for_high"

    def found_moving(self, one: Asked, transfer: Transfer) -> str:
        assert transfer.kind == "prefetch", "no demand outlives its gate"
        assert not transfer.needed
        transfer.needed = True
        one.transfer = transfer
        if transfer.started:
            if not transfer.whole:
                transfer.lacking = one.need
            self.hurry(transfer)
        elif not transfer.whole:
            transfer.moved = self.scenario.moved_bytes(transfer.key, one.need)
            transfer.whole = transfer.moved == self.scenario.size(transfer.key)
        if transfer.started:
            self.prefetch["late"] += 1
            return "late"
        self.prefetch["promoted"] += 1
        self.make_demand(transfer)
        return "promoted"

    # ---- steps 11 and 12

    def stream_dense(self) -> None:
        slots = self.loader.dense_slots
        if slots:
            self.dense_here.remove(self.site)
            coming = (self.site + slots) % self.scenario.sites
            key = (0, coming, self.scenario.experts)
            self.dense_coming[coming] = self.queue(key, "dense", self.scenario.size(key))

    def coming(self, step: Step, site: int) -> list[tuple[int, Prediction]]:
        """What is forecast at a gate, by the site that it is of, in order."""
        own = [(site, step.own[site])] if step.own and self.loader.lookahead else []
        return [*own, *enumerate(step.forecasts[site][: self.loader.lookahead], start=site + 1)]

    def look_ahead(self, coming: list[tuple[int, Prediction]], tick: int) -> None:
        """Step 12: nearest site first, as long as depth and budget let it; or all sites, and
        then likeliest first.
        """
        budget = self.loader.prefetch_budget
        left = budget if isinstance(budget, int) else math.inf
        ranked = self.loader.prefetch_order == "likeliest"
        first = True
        named: list[tuple[Key, Forecast]] = []
        for site, forecast in coming:
            if forecast is None:
                break
            if self.last_gate.get(site, -1) > tick:
                continue
            self.masked.pop(site, None)
            if self.loader.queue == "replace" and first:
                self.cancel(self.cancellable())
                self.masked.clear()
                self.foretold.clear()
            first = False
            foreseen = self.foreseen(site, forecast)
            self.masked[site] = {key for key, _ in foreseen}
            self.foretold[site] = [key[2] for key, _ in foreseen]
            all_there = all(self.is_there(key) for key, _ in foreseen)
            if ranked:
                named += foreseen
            else:
                left -= self.prefetch_absent(foreseen, left)
            if (left == 0 and not ranked) or (
                self.loader.depth == "first_missing" and not all_there
            ):
                break
        self.prefetch_absent(sorted(named, key=lambda pair: pair[1].likeliness, reverse=True), left)

    def prefetch_absent(self, foreseen: list[tuple[Key, Forecast]], most: float) -> int:
        """How many were queued."""
        told: list[Key] = []
        for key, one in foreseen:
            if len(told) < most and not self.is_there(key) and key not in self.moving:
                self.prefetch["queued"] += 1
                self.queue(key, "prefetch", self.scenario.moved_bytes(key, one))
                told.append(key)
        if self.ram:
            self.ram.history.asked_for(told, self.number)
        return len(told)

    def foreseen(self, site: int, forecast: Iterable[Forecast]) -> list[tuple[Key, Forecast]]:
        wanted = [(self.select(site, one.expert, one.score), one) for one in forecast]
        return [
            (self.serving(precision, site, one.expert), one)
            for precision, one in wanted
            if precision != SKIP
        ]

    # ---- afterwards

    def finish(self) -> Counter[str]:
        """The end of the run: the outcomes of what still waits, moves, or was never asked for."""
        for transfer in list(self.moving.values()):
            assert transfer.kind != "demand", "a demand was left"
            if transfer.kind == "prefetch" and not transfer.needed:
                self.prefetch["unused_at_end" if transfer.started else "cancelled"] += 1
        self.prefetch["unused_at_end"] += len(self.unused)
        return self.prefetch
