"""Simple runs: what a run must leave out so that shorter code decides the same.

Most runs use few of the loader's features. For them the decision core and the engine have *short
ways*: the same steps in one piece, without the questions whose answers are known before the run.
They are worth it: in full, a run of ``tests/bench/engine_speed.py`` takes twice as many
instructions.

This file is the only place that says when a short way may be taken (`how_simple`). It answers for
several things, because they do not depend on each other: a run whose transfers take two links still
has simple gates. Each line names what makes a run *not* simple, and why it would matter.

``one_variant``: a wanted variant can only be served by itself.

- Several precisions, or a selector that may skip a need, send it elsewhere, or name another
  precision: then the serving key must be looked for.

``needs``: what a gate admits is there, waits for a transfer, or was skipped by its selector.

- A placement other than LOAD: an absent need may be computed on the CPU, or be left out.
- ``replay_unit: access``: each need waits for its own wave.
- Streamed dense blocks: a gate frees a block and queues another one.
- Predictions with a latency: a gate's forecasts take effect later, at an event of their own.

An engine adds what it alone knows: there must be no host time at a gate, and a need's computation
must take a time that is known when it begins (no contention). Then the end of a gate whose needs
are admitted at once is a sum.

``variants``: a gate's needs are looked up and loaded as they stand. Beside ``needs``:

- Staging slots: a need may be served from outside its pool, and must leave again. (Moves of parts
  and policies that refuse need staging, so that they are excluded here, too.)
- ``retention: after_batch`` or ``until_next_visit``: what exceeds the capacity is trimmed at gates.
- Slots that shrink: the same, and the capacity is read at each step's first gate.
- A selector that reroutes: a need may be served by another expert.

In what remains the needs of a row fit their pools, so that they are admitted at once. (A union of
several rows may not fit: the controller still compares its size, and serves it in full where it may
not.) So the policies hear the same calls in the same order.

``gates``: both ``variants`` and ``one_variant``. Then a need's serving key is its own.

``moves``: a transfer is queued, issued and arrives, each once.

- Several links (a managed RAM tier needs two): it is queued again after each hop.
- Chunks: it may be cut, and wait again.
- Staging slots: it may land outside the pools.
- Streamed dense blocks, and keys and values from other tiers: they are transfers without a claim.

In what remains nothing that has started waits, so that no waiting transfer is urgent or holds a
claim. A transfer that ends has arrived in its pool. Only the one link can have anything to issue.
What is kept of a transfer that has landed (`sim.core.issued`) depends on fewer of its parts.

``ranked``: each gate queues all that it forecasts anew, in one order, and all who wait are those of the last
gate. They wait as keys (`sim.core.ranked`).

- ``prefetch_order: nearest``, ``queue: append``, prefetches among demands: the queue has no such end.
- ``prefetch_budget: until_next_gate``: every gate cancels what it does not ask for, of all sites.
- Several links, chunks: what has started may wait again.
- Moves of parts: a prefetch moves what its forecast says.

``tests/differential/test_simple_runs.py`` runs random scenarios both ways and compares all rows.
One difference is known, and kept so that the files of runs stay what they were: where a claim has
several victims, the rows of all but the first follow the issue's row in the short way, and stand
before it in the full one. They have the same call number.
"""

from __future__ import annotations

from typing import NamedTuple

from sim.core.loader import Loader
from sim.policies.base import Placement, PrecisionSelector
from sim.values.types import Geometry, Place, Route


class Simple(NamedTuple):
    """Which short ways a run may take; the module says what each means."""

    one_variant: bool
    needs: bool
    variants: bool
    gates: bool
    moves: bool
    ranked: bool


def how_simple(
    geometry: Geometry,
    selector: PrecisionSelector,
    placement: Placement,
    loader: Loader,
    route: Route,
    predicts_later: bool,
    *,
    shrinks: bool = False,
    brings: bool = False,
    whole: bool = True,
) -> Simple:
    """Which short ways this run may take. ``brings``: keys and values come over its links.
    ``whole``: variants move whole.
    """
    stages, streams = loader.staging_slots > 0, loader.dense_slots > 0
    one_variant = len(geometry.precisions) == 1 and selector.constant == 0
    needs = (
        placement.constant == Place.LOAD
        and loader.replay_unit == "union"
        and not (streams or predicts_later)
    )
    strict = not (loader.overflows or shrinks)
    variants = needs and strict and not (stages or selector.reroutes)
    once = route.links == 1 and loader.chunk_bytes is None
    moves = once and not (stages or streams or brings)
    ranked = (
        once
        and whole
        and loader.prefetch_order == "likeliest"
        and loader.queue == "replace"
        and loader.demand_first
        and loader.prefetch_budget != "until_next_gate"
    )
    return Simple(one_variant, needs, variants, variants and one_variant, moves, ranked)
