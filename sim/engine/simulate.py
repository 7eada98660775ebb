"""Simulate a run: put a controller on SimPy's clock, and write down what happens.

Theory of operation
===================

The controller decides and never acts; the engine acts and never decides
(contract C10). The engine consists of callback state machines around the controller: the links
(`sim.engine.links`), the compute stream with the CPU (`sim.engine.stream`), and the walk through
steps and gates (`sim.engine.engine`). Whatever they wait for is an *alarm* on the clock's heap
(`sim.engine.clock`). The run is this loop: ring the earliest alarm; its callback tells the
controller what has happened, acts on the answer, and sets further alarms.

=============  ====================================  ==============================================
alarm          what has happened                     what follows
=============  ====================================  ==============================================
transfer end   a hop is over, or its head or a       the link serves the next transfer; where a
               chunk is through                      need waited for this one, it is computed
CPU result     the CPU has computed a need           it computes the next
need done      a need of a wave has been computed    the next needs are admitted
prediction     a slow forecast is there              prefetches are queued
sequence end   a step that ends sequences is over    the next step begins
gate           the dense work before a gate is done  needs are looked up; what is there is computed,
                                                     what is not is queued as a demand
arrival        a request has come to an idle stream  a step begins
=============  ====================================  ==============================================

Alarms of one instant ring in the order of this table. After every call of the controller each link
with room is polled: it may issue what the call has queued, or what has found a slot since.

A step visits its sites one after another: dense work, the gate, the gate's needs, the next site.
The stream knows how long each need takes, so that computing them is arithmetic: one number says
when the stream will be free. Hence there is one alarm for each hop of a transfer, and one for a
gate; the others are rare. Where nothing else is due before a gate, it follows the one before
without an alarm. Only where operations slow each other down (`sim.engine.contended`)
no end is known beforehand, and each operation has an alarm of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from sim.core.controller import Controller
from sim.engine.clock import Clock, StuckError
from sim.engine.contended import ContendedEngine
from sim.engine.engine import Engine
from sim.engine.owners import OwnedEngine
from sim.machine.durations import ContendedDurations, Durations, OwnedDurations
from sim.policies.requires import PolicyError, name_of
from sim.process.uncollected import uncollected
from sim.values.record import Record
from sim.workload.steps import Workload

Progress = Callable[[int], None]


def simulate(
    controller: Controller,
    workload: Workload,
    durations: Durations,
    progress: Progress | None = None,
    *,
    packed: bool = False,
) -> Record:
    """Run the workload to its end, and return what happened when.

    ``progress`` is told the number of steps done, about every hundredth. ``packed``: long columns
    of the record and of the controller are arrays in the end, and take a fifth of the memory;
    nobody may read them before. Raise PolicyError, with the gate, for an answer of a policy that
    cannot be, and if the cache names so few victims that a demand can never be served.
    """
    clock = Clock()
    engine = make_engine(clock, controller, workload, durations, progress)
    if packed:
        engine.keep_packed()
    with uncollected():
        engine.begin()
        try:
            clock.run(until=engine.done)
        except PolicyError as error:
            error.add_gate(*engine.where)
            raise
        except StuckError as error:
            why = _why_stuck(controller, error)
            why.add_gate(*engine.where)
            raise why from error
    return engine.record


def make_engine(
    clock: Clock,
    controller: Controller,
    workload: Workload,
    durations: Durations,
    progress: Progress | None = None,
) -> Engine:
    """The engine for these durations: do parties slow each other down, do devices own experts?"""
    kind = OwnedEngine if isinstance(durations, OwnedDurations) else Engine
    if isinstance(durations, ContendedDurations) and durations.contention is not None:
        kind = ContendedEngine
    return kind(clock, controller, workload, durations, progress)


def _why_stuck(controller: Controller, error: StuckError) -> PolicyError:
    """Only a cache policy can do that: a demand waits for as long as no victim is named for it."""
    waiting = [
        transfer
        for demands, _ in controller.queues
        for transfer in demands
        if not transfer.cancelled
    ]
    if not waiting:
        return PolicyError(str(error))
    return PolicyError(
        f"{name_of(controller.cache)}: `victims` names too few keys for"
        f" {controller.geometry.name_of(waiting[0].key)}: no demand can be served any more, and the"
        " run cannot end. It must name every resident key that is not blocked; docs/add_policy.md"
        " says what else a cache must do"
    )
