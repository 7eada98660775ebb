"""All verbs, in the order in which they are told."""

from __future__ import annotations

from sim.verbs import asking, machines, many, tracing
from sim.verbs.verb import Verb

VERBS: tuple[Verb, ...] = (*asking.VERBS, *many.VERBS, *tracing.VERBS, *machines.VERBS)
GROUPS = {
    asking.ASK: "Ask",
    many.MANY: "Many runs",
    tracing.TRACES: "Traces",
    machines.MACHINES: "Machines and devices",
}
"""The groups of verbs, and their headings."""


def by_words() -> dict[str, Verb]:
    """The verbs by what may be typed, aliases included."""
    return {name: verb for verb in VERBS for name in (verb.name, *verb.aliases)}


def of_module(module: str) -> Verb | None:
    """The verb that ``python -m MODULE`` is; None for a module that is no verb."""
    return next((verb for verb in VERBS if verb.module == module and not verb.lead), None)


def verb_of(name: str) -> Verb:
    """The verb of this name; raise KeyError for another one."""
    return by_words()[name]
