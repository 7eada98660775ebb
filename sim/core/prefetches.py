"""What follows from forecasts: keys are masked, and prefetches are queued and cancelled.

A gate asks the predictor (contract C29). The keys that it forecasts are
masked, and those that are absent are queued as prefetches. Each gate cancels the waiting prefetches
that it has overtaken. Where a predictor has a latency, its forecasts are kept until
``prediction_ready``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sim.core.loader import Loader
from sim.core.queues import CANCELLED, QUEUE_PREFETCH
from sim.core.ranked import NOBODY, NONE, Ints
from sim.core.simple import Simple
from sim.core.slots import ABSENT, QUEUED, UNUSED
from sim.core.transfer import Transfer
from sim.core.transfers import Transfers
from sim.policies.base import (
    ASK,
    CachePolicy,
    Choice,
    FloatArray,
    Gate,
    IntArray,
    Payload,
    PrecisionSelector,
    Predictor,
    ScoreRule,
)
from sim.policies.row_forecast import Ranking, Together, ranking_of
from sim.values.types import SKIP, Geometry, Route


@dataclass(frozen=True)
class Kept:
    """A copy of a forecast that takes effect after its gate's call, because the predictor has a
    latency. Implements ``Choice``.
    """

    site: int
    needs: Sequence[int]
    keys: list[int]
    tokens: Sequence[int]
    scores: Sequence[float]
    experts: IntArray
    weights: FloatArray
    moved_bytes: Sequence[int]
    """The bytes that the payload wants moved for each need; empty where moves are whole."""


class Prefetches(Transfers):
    """What is forecast, and the prefetches for it.

    ``predicts_later``: forecasts take effect at ``prediction_ready``, not at their gate.
    """

    __slots__ = (
        "_cancels_all",
        "_forecasting",
        "_forecasts_simply",
        "_gate",
        "_rule",
        "predictor",
        "selector",
    )

    def __init__(
        self,
        geometry: Geometry,
        predictor: Predictor,
        cache: CachePolicy,
        selector: PrecisionSelector,
        loader: Loader,
        payload: Payload,
        route: Route,
        ram_cache: CachePolicy | None,
        predicts_later: bool,
        dense_bytes: Sequence[int],
        simple: Simple,
    ) -> None:
        super().__init__(geometry, cache, loader, payload, route, ram_cache, dense_bytes, simple)
        self.predictor, self.selector, self.predicts_later = predictor, selector, predicts_later
        budget = loader.prefetch_budget
        self._cancels_all = budget == "until_next_gate"
        # What every forecast reads. Unpacking one tuple is faster than finding seven attributes.
        self._forecasting = (
            self.state,
            self.protection.mask,
            simple.one_variant,
            simple.moves,
            loader.queue == "replace",
            budget if isinstance(budget, int) else -1,  # -1 counts down and is never used up
            loader.depth == "first_missing",
        )
        self._rule = selector.rule
        # Whether a forecast queues all that is absent, as simple moves, behind what waits already.
        self._forecasts_simply = (
            simple.moves and loader.queue == "append" and not isinstance(budget, int)
        )
        self._ranks = loader.prefetch_order == "likeliest"
        self._gate: Gate | None = None
        self._predictions: dict[int, tuple[int, list[Kept]]] = {}
        self._gate_call_of = [0] * geometry.sites

    # ---- what a policy or a driver may ask

    @property
    def foreseen(self) -> Sequence[int]:
        """The experts that were last forecast for the current gate's site, best first."""
        units = self.geometry.units
        return [int(key) % units for key in self.protection.unmasked]

    # ---- what became of prefetches

    @property
    def num_prefetches_queued(self) -> int:
        many = sum(len(rows.keys) for rows in self.many_events if rows.kind == QUEUE_PREFETCH)
        alone = self.events[1::4] if self._packed_events is None else self._packed_events["kind"]
        return many + int(np.count_nonzero(np.asarray(alone) == QUEUE_PREFETCH))

    @property
    def prefetch_counts(self) -> list[int]:
        """How many prefetches had each ``PrefetchOutcome``; final after ``finish``."""
        counts = list(self._never_issued)
        for _, transfer in self.issued.objects():
            if transfer.prefetch:
                counts[transfer.outcome] += 1
        return counts

    def finish(self) -> None:
        """The run is over: prefetches that are still queued count as cancelled."""
        waiting = self._ranked.left().tolist()
        self._never_issued[CANCELLED] += len(waiting)
        for key in waiting:
            self.state[key] = QUEUED
        self._ranked = NOBODY
        left = (t for t in self._waiting_prefetches() if t.prefetch and not t.cancelled)
        self._never_issued[CANCELLED] += sum(1 for t in left if t.number < 0)

    # ---- a call of the driver

    def prediction_ready(self, tick: int) -> None:
        """The forecasts made at gate ``tick`` take effect, except for sites that have had a gate
        since.
        """
        self.calls += 1
        made, forecasts = self._predictions.pop(tick)
        gate = self._gate
        assert gate is not None
        self._forecast([f for f in forecasts if self._gate_call_of[f.site] <= made], gate)

    # ---- what a gate has overtaken

    def _cancel_passed(self, site: int, serving: Sequence[int]) -> None:
        """Cancel the waiting prefetches that a gate at ``site`` has overtaken, except for the keys
        that are ``serving`` its needs.
        """
        of_site = self._prefetches_of[site]
        passed: Ints = NONE
        if self._waits_unmade:
            self._make_asked(serving)
            passed = self._ranked.unmade_of(site)
            if not self.loader.cancel_stale:
                for place in passed.tolist():
                    self._made(place)
                passed = NONE
        if self._moves_simply and not self._cancels_all and not len(passed):
            for transfer in of_site:
                if transfer.waits and not transfer.cancelled and transfer.key not in serving:
                    break
            else:
                # All of them have started, or serve this gate.
                of_site.clear()
                self._drop_cancelled()
                return
        if self._cancels_all:
            self._cancel(self._waiting_prefetches(), serving)
        if self.loader.cancel_stale:
            for transfer in of_site:
                if transfer.waits:
                    self._cancel(of_site, serving)
                    break
            if len(passed):
                self._cancel_unmade(passed)
        # A prefetch that has started may wait again, unless moves are simple: then the next gate
        # of this site looks at it once more.
        kept = [] if self._moves_simply else [t for t in of_site if not t.over and not t.cancelled]
        self._prefetches_of[site] = kept
        if not self.payload.whole:
            for transfer in kept:
                if transfer.partial and transfer.key not in serving:
                    transfer.overtaken = True
        self._drop_cancelled()

    # ---- what is forecast

    def _keep_forecasts(self, gate: Gate) -> None:
        self._gate_call_of[gate.site] = self.calls
        self._gate = gate
        self._predictions[gate.tick] = (
            self.calls,
            [self._keep(choice, gate) for choice in self.predictor.predict(gate)],
        )

    def _keep(self, choice: Choice, gate: Gate) -> Kept:
        payload = self.payload
        moved = (
            ()
            if payload.whole
            else [payload.forecast_bytes(k, choice, i, gate) for i, k in enumerate(choice.keys)]
        )
        return Kept(
            choice.site,
            list(choice.needs),
            list(choice.keys),
            list(choice.tokens),
            list(choice.scores),
            choice.experts,
            choice.weights,
            moved,
        )

    def _forecast(self, forecasts: Iterable[Choice], gate: Gate) -> None:
        """Mask the keys that are forecast, and queue the absent ones
        (contract C29).
        """
        if self._ranks:
            self._forecast_ranked(forecasts, gate)
            return
        if self._forecasts_simply and self._rule is not None:
            self._forecast_by_rule(forecasts, self._rule)
            return
        state, mask, is_plain, is_simple, replace, left, stops = self._forecasting
        for choice in forecasts:
            if replace:
                self._replace_forecasts()
                replace = False
            site = choice.site
            keys = choice.keys if is_plain else self._forecast_keys(choice)
            mask(site, keys)
            missing = False
            for key in keys:
                found = state[key]
                if found > UNUSED:
                    missing = True
                    if found == ABSENT and left:
                        left -= 1
                        if is_simple:
                            self._queue_simply(key, site)
                        else:
                            self._queue_prefetch(key, site, choice, gate)
            if missing:
                if self.ram is not None and self.ram.untold:
                    self.ram.tell(gate)
                if stops:
                    return
            if not left:
                return

    def _forecast_by_rule(self, forecasts: Iterable[Choice], rule: ScoreRule) -> None:
        """``_forecast`` and ``_forecast_keys`` in one piece, where moves are simple and a rule names
        the variants.
        """
        state, mask, _, _, _, _, stops = self._forecasting
        serving_alone = self._serving_alone
        for choice in forecasts:
            site, by_rule = choice.site, getattr(choice, "variants", None)
            variants = self._named(choice)[1] if by_rule is None else by_rule(rule)
            if ASK in variants:
                variants = self._decided(choice, variants)
            if SKIP in variants:
                variants = [key for key in variants if key != SKIP]
            keys, missing = variants, False
            for key in variants:
                found = state[key]
                if found > UNUSED and key >= serving_alone:
                    serving = self._serving(key)
                    if serving != key:
                        keys = [*keys]
                        keys[variants.index(key)] = key = serving
                        found = state[key]
                if found > UNUSED:
                    missing = True
                    if found == ABSENT:
                        self._queue_simply(key, site)
            mask(site, keys)
            if missing and stops:
                return

    def _forecast_ranked(self, forecasts: Iterable[Choice], gate: Gate) -> None:
        """``prefetch_order: likeliest``: mask the keys of all forecasts, then queue the absent
        ones, likeliest first, whatever their sites.
        """
        state, _, is_plain, is_simple, replace, left, stops = self._forecasting
        kept: Together | None = None
        if is_plain and not stops:
            kept = getattr(forecasts, "together", None)
        choices = list(forecasts)
        if choices and replace:
            self._replace_forecasts()
        found = Together.of(choices, self._rankings(choices)) if kept is None else kept
        self.protection.mask_all(found.by_site)
        states = np.frombuffer(bytes(state), np.uint8)
        places = (states[found.keys] == ABSENT).nonzero()[0]
        if left >= 0:
            places = places[:left]
        keys = found.keys[places]
        if self._waits_unmade:
            self._queue_ranked(keys, found.by_site)
        else:
            for key, nth in zip(keys.tolist(), found.choice[places].tolist(), strict=True):
                choice = choices[nth]
                if is_simple:
                    self._queue_simply(key, choice.site)
                else:
                    self._queue_prefetch(key, choice.site, choice, gate)
        if self.ram is not None and self.ram.untold:
            self.ram.tell(gate)

    def _rankings(self, choices: Iterable[Choice]) -> Iterator[Ranking]:
        """Of each choice the keys that would serve it now, and how likely each is; with ``depth:
        first_missing`` up to the first choice that lacks one.
        """
        state, _, is_plain, _, _, _, stops = self._forecasting
        units = self.geometry.units
        for choice in choices:
            keys, likely = ranking_of(choice)
            if not is_plain:
                by_expert = dict(zip(choice.needs, likely.tolist(), strict=True))
                serving = self._forecast_keys(choice)
                keys = np.array(serving, np.int32)
                likely = np.array([by_expert[key % units] for key in serving], np.float64)
            yield keys, likely
            if stops and any(state[key] > UNUSED for key in keys.tolist()):
                return

    def _replace_forecasts(self) -> None:
        """``queue: replace``: forget all earlier forecasts, and cancel the prefetches that wait
        for them.
        """
        if self._waits_unmade:
            self._empty_queue()
        else:
            self._cancel(self._waiting_prefetches(), ())
        self.protection.forget_masks()

    def _named(self, choice: Choice) -> tuple[Sequence[int], list[int]]:
        """The precisions at which the selector wants a choice's experts, and the keys of these
        variants; SKIP in both for an expert that is left out.
        """
        constant, keys, plane = self.selector.constant, choice.keys, self._plane
        wanted = (
            [constant] * len(keys) if constant is not None else self.selector.select(choice, self)
        )
        if not any(wanted):
            return wanted, keys  # all at the highest precision
        return wanted, [
            keys[place] + p * plane if p >= 0 else SKIP for place, p in enumerate(wanted)
        ]

    def _decided(self, choice: Choice, variants: list[int]) -> list[int]:
        """The variants that a choice names by the selector's rule, where this says ASK of some
        experts: now the selector decides about these.
        """
        site, plane, units = choice.site, self._plane, self.geometry.units
        found, keys = list(variants), choice.keys
        for place, variant in enumerate(variants):
            if variant == ASK:
                key = keys[place]
                p = self.selector.decide(site, key % units, self)
                found[place] = key + p * plane if p >= 0 else SKIP
        return found

    def _forecast_keys(self, choice: Choice) -> list[int]:
        """The keys that would serve a choice now; read-only."""
        by_rule = getattr(choice, "variants", None) if self._rule is not None else None
        keys: list[int] = self._named(choice)[1] if by_rule is None else by_rule(self._rule)
        if ASK in keys:
            keys = self._decided(choice, keys)
        if SKIP in keys:
            keys = [key for key in keys if key != SKIP]
        state, serving_alone, variants = self.state, self._serving_alone, keys
        for place, key in enumerate(variants):
            if key >= serving_alone and state[key] > UNUSED:
                serving = self._serving(key)
                if serving != key:
                    if keys is variants:
                        keys = list(variants)
                    keys[place] = serving
        return keys

    # ---- queueing

    def _queue_simply(self, key: int, site: int) -> None:
        """``_queue_prefetch`` in one piece, for simple moves."""
        calls = self.calls
        transfer = self._transfer_of[key] = Transfer(key, True, self._key_bytes[key], calls)
        self.state[key] = QUEUED
        self._prefetches[0].append(transfer)
        self._prefetches_of[site].append(transfer)
        self.events += (calls, QUEUE_PREFETCH, key, -1)

    def _queue_prefetch(self, key: int, site: int, choice: Choice, gate: Gate) -> None:
        moved_bytes = self._key_bytes[key]
        if not self.payload.whole:
            place = choice.needs.index(key % self.geometry.units)
            if isinstance(choice, Kept):
                moved_bytes = choice.moved_bytes[place]
            else:
                moved_bytes = self.payload.forecast_bytes(key, choice, place, gate)
            self.require_moved(key, moved_bytes, "forecast_bytes")
        self.events += (self.calls, QUEUE_PREFETCH, key, -1)
        self._prefetches_of[site].append(self._queue(key, True, moved_bytes))
