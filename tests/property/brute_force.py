"""Finds the shortest possible run of a tiny instance by trying everything.

At every instant it tries every load and every eviction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product

Variant = tuple[int, int]
"""An expert, and its precision (0 is the highest)."""


@dataclass(frozen=True)
class Instance:
    """A tiny instance: one site, one row a gate.

    ``gates`` are the needs of each gate, as (expert, lowest precision that may serve it). Times are
    in whole units: ``dense`` before each gate, ``expert`` by precision, ``load`` and ``size`` by
    precision.
    """

    gates: tuple[tuple[Variant, ...], ...]
    capacity: int
    dense: int
    expert: tuple[int, ...]
    load: tuple[int, ...]
    size: tuple[int, ...]
    initial: frozenset[Variant] = frozenset()

    @property
    def experts(self) -> range:
        return range(1 + max(expert for needs in self.gates for expert, _ in needs))


@dataclass(frozen=True)
class State:
    """An instant at which nothing more happens by itself; ``gate`` -1 is before the first gate.

    The compute stream has ``left`` units to do, of the dense work before the next gate
    (``is_dense``) or of a need. ``waiting`` are the needs of this gate that have not begun,
    ``pinned`` the variants that served the others. ``moving`` is the variant on its way, and for
    how long still.
    """

    gate: int
    is_dense: bool
    left: int
    waiting: tuple[Variant, ...]
    pinned: frozenset[Variant]
    resident: frozenset[Variant]
    moving: tuple[Variant, int] | None


def shortest(instance: Instance) -> int:
    """The makespan of the best schedule, in units."""
    first = settled(
        instance, State(-1, True, instance.dense, (), frozenset(), instance.initial, None)
    )
    states = {first}
    time = 0
    while None not in states:
        states = {
            settled(instance, passed(choice))
            for state in states
            for choice in choices(instance, state)
        }
        time += 1
    return time


def choices(instance: Instance, state: State | None) -> Iterator[State]:
    """The states that the link's choices lead to.

    It may do nothing, go on, or begin to load anything in the place of whatever is not pinned.
    """
    assert state is not None
    yield state
    if state.moving is not None:
        return
    loose = sorted(state.resident - state.pinned)
    used = sum(instance.size[p] for _, p in state.resident)
    absent = [
        v for v in product(instance.experts, range(len(instance.size))) if v not in state.resident
    ]
    for variant in absent:
        for count in range(len(loose) + 1):
            for victims in combinations(loose, count):
                freed = sum(instance.size[p] for _, p in victims)
                if used - freed + instance.size[variant[1]] <= instance.capacity:
                    moving = (variant, instance.load[variant[1]])
                    yield replace(state, resident=state.resident - set(victims), moving=moving)


def passed(state: State) -> State:
    """The state one unit of time later."""
    moving = None if state.moving is None else (state.moving[0], state.moving[1] - 1)
    return replace(state, left=max(0, state.left - 1), moving=moving)


def settled(instance: Instance, state: State) -> State | None:
    """The state after all that happens by itself at this instant; None at the end of the run."""
    if state.moving is not None and state.moving[1] == 0:
        state = replace(state, resident=state.resident | {state.moving[0]}, moving=None)
    while state.left == 0:
        if state.is_dense:
            gate = state.gate + 1
            state = replace(
                state, gate=gate, is_dense=False, waiting=instance.gates[gate], pinned=frozenset()
            )
        elif state.waiting:
            begun = _begun(instance, state)
            if begun is None:
                break
            state = begun
        elif state.gate == len(instance.gates) - 1:
            return None
        else:
            state = replace(state, is_dense=True, left=instance.dense)
    return state


def _begun(instance: Instance, state: State) -> State | None:
    """The state after the first waiting need that something resident may serve has begun.

    Which of several begins first does not matter.
    """
    for need in state.waiting:
        able = [v for v in state.resident if v[0] == need[0] and v[1] <= need[1]]
        if able:
            variant = min(able, key=lambda v: (instance.expert[v[1]], v))
            waiting = tuple(other for other in state.waiting if other != need)
            return replace(
                state,
                waiting=waiting,
                left=instance.expert[variant[1]],
                pinned=state.pinned | {variant},
            )
    return None
