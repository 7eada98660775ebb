"""``python -m sim.check``: check whether an engine's cache works as it is said to.

    python -m sim.check LOG budget=4000MiB [policy=NAME] [OPTION=VALUE ...]

LOG is a trace with a residency log (``python -m capture.import_trace format=bigmoe``). The log is
replayed under one contract or many. ``budget`` is what the engine's cache may hold. ``policy`` is a
file of ``conf/cache``. Options are the policy's own (``recency``, ``initial``, ``scope``, ..) and
the loader's ``retention`` and ``replay_unit``. Options that are not given are tried, as far as
`TRIED` has values for them.

The answer says

- which contracts explain every flag of the log;
- of the others, how many flags they explain, and the first lookup that they do not, with what the
  replay's cache did instead;
- how many lookups hit, in the log and in each replay;
- where no contract explains every flag, the single faults of the engine or of the log with which
  the best one does (`sim.checking.fault_search`).

The exit status is 0 if a contract explains every flag, 1 if none does, 2 if the log or an argument
is wrong.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from sim.checking.cache_replay import (
    LOADER_OPTIONS,
    Contract,
    Ints,
    Replay,
    Replayer,
    deviations,
    policy_options,
)
from sim.checking.cache_walk import CacheWalk
from sim.checking.fault_search import FaultSearch
from sim.checking.fault_words import layer_name, name, step_of, tell_faults, where
from sim.process.interrupts import telling
from sim.process.progress import tracked
from sim.traces.residency_log import ResidencyLog, read_log
from sim.traces.trace import DECODE
from sim.values.types import CapacityError
from sim.values.units import part_of
from sim.verbs.words import is_place

TRIED: Mapping[str, Sequence[str]] = {
    "initial": ("empty", "ascending"),
    "scope": ("global", "site"),
    "recency": ("rows", "needs"),
    "counts": ("resident", "sequence", "model"),
    "retention": ("after_batch", "strict"),
}
"""The values that are tried for an option that is not given: what engines do."""
SERIAL = ("replay_unit", "access")
"""One lookup at a time: tried on top of the best contract where none explains every flag."""
TRIED_POLICIES = ("lru", "lfu", "fifo")
UNITS = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "KiB": 1 << 10,
    "MB": 10**6,
    "MiB": 1 << 20,
    "GB": 10**9,
    "GiB": 1 << 30,
}
LARGEST_BUDGET = 1 << 60
SHOWN = 5
"""How many of the contracts that do not explain every flag are reported."""
ALONE = " It is the only one: with this one flag the other way round the contract explains the log."
"""Added to a deviation that is the only one.

A replay goes by what is asked for and never by flags, so a wrong flag has no consequences. But the
log then cannot exclude that an earlier lookup is wrong instead.
"""
Progress = Callable[[Sequence[Contract]], Iterable[Contract]]


@dataclass(frozen=True, eq=False)
class Verdict:
    """The verdict on one contract.

    ``wrong`` are the lookups whose flags it does not explain, in the log's order. ``refusal`` says
    why the contract could not be replayed; ``wrong`` and ``replay`` are then None.
    """

    contract: Contract
    wrong: Ints | None
    replay: Replay | None
    refusal: str = ""


def candidates(policies: Sequence[str], options: Mapping[str, str]) -> list[Contract]:
    """The contracts to try: each policy with the given options and all combinations of others.

    Raise ValueError for an option that none of the policies has.
    """
    found = []
    for policy in policies:
        has = {*policy_options(policy), *LOADER_OPTIONS}
        tried = {name: values for name, values in TRIED.items() if name in has}
        tried |= {name: (value,) for name, value in options.items()}
        if set(options) <= has:
            found += [
                Contract(policy, tuple(zip(tried, values, strict=True)))
                for values in product(*tried.values())
            ]
    if not found:
        known = "; ".join(
            f"{policy}:"
            f" {', '.join([*(n for n in policy_options(policy) if n != '_target_'), *LOADER_OPTIONS])}"
            for policy in policies
        )
        raise ValueError(
            f"no policy has all of the options {', '.join(options)}; options by policy: {known}"
        )
    return found


def check(replayer: Replayer, contract: Contract, budget_bytes: int) -> Verdict:
    """Replay the log under one contract."""
    try:
        replay = replayer.replay(contract, budget_bytes)
    except CapacityError as error:
        # Its way out is a run's, which has other words.
        told = str(error).partition("; raise ")[0]
        why = f"{told}; raise budget=, or choose a scope with fewer pools"
        return Verdict(contract, None, None, why)
    except ValueError as error:
        return Verdict(contract, None, None, str(error))
    return Verdict(contract, deviations(replayer.log, replay), replay)


def search(
    replayer: Replayer, contracts: Sequence[Contract], budget_bytes: int, progress: Progress
) -> list[Verdict]:
    """The verdicts on the contracts, best first.

    If none explains every flag, the best one is tried with lookups one at a time, too.
    """
    found = _ranked(check(replayer, contract, budget_bytes) for contract in progress(contracts))
    best = found[0]
    if best.wrong is not None and len(best.wrong) and SERIAL[0] not in dict(best.contract.options):
        serial = Contract(best.contract.policy, (*best.contract.options, SERIAL))
        found = _ranked([*found, check(replayer, serial, budget_bytes)])
    return found


def _ranked(verdicts: Iterable[Verdict]) -> list[Verdict]:
    return sorted(
        verdicts,
        key=lambda verdict: (
            verdict.wrong is None,
            0 if verdict.wrong is None else len(verdict.wrong),
        ),
    )


# ---- words


def tell(replayer: Replayer, replay: Replay, lookup: int) -> str:
    """A deviation in words: the lookup, its flag, what the replay found, and why."""
    log, tick, key = replayer.log, int(replayer.tick[lookup]), int(replayer.keys[lookup])
    found = bool(replay.resident[lookup])
    position = int(log.trace.position[log.row[lookup]])
    place = (
        f"row {log.line[lookup]}: step {log.step[lookup]},"
        f" {layer_name(log, int(log.site[lookup]))}, expert {log.expert[lookup]} (slot"
        f" {log.slot[lookup]}, position {position})"
    )
    said, was = ("absent", "resident") if found else ("resident", "absent")
    past = replay.lapse(key, tick, found)
    story = [f"{place}: the log says {said}, the replay found it {was}."]
    if found:
        since = (
            "there from the start"
            if past.loaded is None
            else f"loaded at {where(replayer, past.loaded)}"
        )
        asked = "" if past.asked is None else f", last asked for at {where(replayer, past.asked)}"
        story.append(f"In the replay it was {since}{asked}, and not evicted since.")
    elif past.evicted is None:
        story.append("In the replay it had never been there: no lookup before asked for it.")
    else:
        asked = (
            "never asked for"
            if past.asked is None
            else f"last asked for at {where(replayer, past.asked)}"
        )
        reason = (
            "when its batch was over"
            if past.evicted_for is None
            else f"for {name(replayer, past.evicted_for)}"
        )
        story.append(
            f"In the replay it was {asked} and evicted at {where(replayer, past.evicted)} {reason}."
        )
    if not found:
        begin = step_of(replayer, 0 if past.asked is None else past.asked)
        story.append(
            "If the contract holds, the log may lack a lookup of it in this layer, from step"
            f" {begin} to step {log.step[lookup]}."
        )
    if not found and (victims := replay.victims(key, tick)):
        story.append(
            "To load it the replay evicted"
            f" {' and '.join(name(replayer, victim) for victim in victims)}."
        )
    same = np.flatnonzero((replayer.tick == tick) & (replayer.keys == key))
    if len(same) > 1 and len(set(log.resident[same].tolist())) > 1:
        story.append(
            "The batch's other lookups of it are flagged differently: one batch finds an expert one"
            " way."
        )
    return " ".join(story)


def faults(replayer: Replayer, best: Verdict, budget_bytes: int) -> list[str]:
    """In words: the single faults with which the best contract explains every flag."""
    assert best.replay is not None
    try:
        walk = CacheWalk(replayer, best.contract, budget_bytes, best.replay)
    except ValueError as error:
        return [str(error)]
    return list(tell_faults(walk, FaultSearch(walk).search()))


def report(replayer: Replayer, verdicts: Sequence[Verdict], budget_bytes: int) -> list[str]:
    """The lines of the answer: what each contract explains, best first, and likely faults."""
    log = replayer.log
    total = len(log)
    lines = [
        f"{log.trace.header.name}: {total} lookups, {int(log.resident.sum())} of them flagged"
        f" resident: {hits_of(log, log.resident)}"
    ]
    if log.num_prefetched:
        lines.append(
            f"note: {log.num_prefetched} found what the engine had prefetched; a replay prefetches"
            " nothing"
        )
    whole = [
        verdict for verdict in verdicts if verdict.wrong is not None and not len(verdict.wrong)
    ]
    for verdict in whole:
        assert verdict.replay is not None
        lines.append(
            f"explains all {total} flags: {verdict.contract}:"
            f" {hits_of(log, verdict.replay.resident)}"
        )
    if len(whole) > 1:
        lines.append("this log cannot tell these contracts apart")
    rest = [verdict for verdict in verdicts if verdict.wrong is not None and len(verdict.wrong)]
    if not whole:
        lines.append("no contract explains every flag")
    for verdict in rest[:SHOWN]:
        assert verdict.wrong is not None
        assert verdict.replay is not None
        right = total - len(verdict.wrong)
        hits = hits_of(log, verdict.replay.resident)
        lines.append(
            f"explains {right} of {total} flags ({_percent(right, total)}): {verdict.contract}:"
            f" {hits}"
        )
        story = tell(replayer, verdict.replay, int(verdict.wrong[0]))
        lines.append(f"  first deviation: {story}{ALONE if len(verdict.wrong) == 1 else ''}")
        if not whole and verdict is rest[0]:
            lines += [f"  {line}" for line in faults(replayer, verdict, budget_bytes)]
    if len(rest) > SHOWN:
        least = rest[-1].wrong
        assert least is not None
        lines.append(
            f"{len(rest) - SHOWN} more explain fewer, down to {_percent(total - len(least), total)}"
        )
    if int(log.at_odds.sum()):
        row = int(log.line[log.at_odds.argmax()])
        lines.append(
            f"note: {int(log.at_odds.sum())} flags are not what was read for them, the first in row"
            f" {row}"
        )
    lines += [
        f"not replayed: {verdict.contract}: {verdict.refusal}"
        for verdict in verdicts
        if verdict.wrong is None
    ]
    return lines


def hits_of(log: ResidencyLog, resident: NDArray[np.bool_]) -> str:
    """In words: the share of lookups that hit, of all tokens and of decoded ones."""
    decoded = resident[log.trace.phase[log.row] == DECODE]
    of_decoded = (
        f", {_percent(int(decoded.sum()), len(decoded))} of decoded tokens'" if len(decoded) else ""
    )
    return f"hits {_percent(int(resident.sum()), len(resident))}{of_decoded}"


def _percent(part: int, total: int) -> str:
    """A share in per cent, rounded down so that only all of them are 100 %."""
    return f"{part * 10_000 // total / 100:.2f} %"


# ---- arguments


def parse(arguments: Sequence[str]) -> tuple[str, int, list[Contract]]:
    """The log's directory, the budget in bytes, and the contracts to try.

    Raise ValueError for the first argument that is wrong.
    """
    if not arguments or not is_place(arguments[0]):
        raise ValueError(
            "the first argument must be LOG, the directory of an imported trace with a"
            " residency log"
        )
    given: dict[str, str] = {}
    for argument in arguments[1:]:
        key, equals, text = argument.partition("=")
        if not equals or not key or not text:
            raise ValueError(
                f"{argument!r} is no key=value; give budget=, policy= or an option of the policy"
            )
        if key in given:
            raise ValueError(f"{key} is given twice; give it once")
        given[key] = text
    if "budget" not in given:
        raise ValueError(
            "budget is missing: no log tells what the engine's cache may hold; give budget=4000MiB"
            " or such"
        )
    budget = parse_budget(given.pop("budget"))
    policy = given.pop("policy", None)
    return arguments[0], budget, candidates([policy] if policy else TRIED_POLICIES, given)


def parse_budget(text: str) -> int:
    """``4000MiB`` as bytes. Raise ValueError unless it is a number and a unit, at least 1 B."""
    found = re.fullmatch(r"(\d{1,18})(\.\d{1,9})?([A-Za-z]*)", text, re.A)
    if found is None or found[3] not in UNITS:
        known = ", ".join(unit for unit in UNITS if unit)
        raise ValueError(
            f"budget={text} must be a number and a unit, such as 4000MiB (units: {known})"
        )
    whole, part, unit = found.groups()
    budget = int(whole) * UNITS[unit] + part_of(UNITS[unit], float(part or 0))
    if not 1 <= budget <= LARGEST_BUDGET:
        raise ValueError(f"budget={text} is {budget} B, must be 1 to {LARGEST_BUDGET} B")
    return budget


@telling("nothing was written")
def main(arguments: Sequence[str]) -> int:
    """Print the answer; return the exit status that the module's docstring states."""
    try:
        directory, budget, contracts = parse(arguments)
        log = read_log(directory)
        if budget < (largest := max(log.expert_bytes)):
            raise ValueError(
                f"budget={budget} B holds no expert: the log's take up to {largest} B; give what the"
                " engine's cache may hold"
            )
        replayer = Replayer(log)
    except (ValueError, OSError) as error:
        print(f"check: {error}", file=sys.stderr)
        return 2

    def shown(items: Sequence[Contract]) -> Iterable[Contract]:
        return tracked(items, "replaying")

    verdicts = search(replayer, contracts, budget, shown)
    if verdicts[0].wrong is None:
        print(
            f"check: none of {len(verdicts)} contracts can be replayed; {verdicts[0].contract}: "
            f"{verdicts[0].refusal}",
            file=sys.stderr,
        )
        return 2
    for line in report(replayer, verdicts, budget):
        print(line)
    return 0 if not len(verdicts[0].wrong) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
