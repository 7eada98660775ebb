"""The errors of machines of which only data sheets told the figures, and what they say of another one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import exp, log, sqrt
from statistics import fmean, median

from scipy.special import stdtrit

from real.suite.pairs import SHEETS, SHEETS_AND_LINK, TOKEN, Pair
from sim.machine.data_sheets import SheetErrors
from sim.machine.validated import validated
from sim.results.intervals import LEVEL

Times = tuple[str, float, float]
"""A run, and the predicted and the measured time of its token."""


def by_machine(pairs: Iterable[Pair]) -> dict[str, list[Times]]:
    """The scored runs that data sheets predict, by machine.

    Cards of one kind are one machine, whether there was one or several. Machines whose names have
    an addition are left out: ``H100, an engine of threads`` is of an engine that is gone.
    """
    found: dict[str, list[Times]] = {}
    for pair in pairs:
        of_sheets = pair.basis in (SHEETS, SHEETS_AND_LINK) and pair.is_scored
        if of_sheets and pair.quantity == TOKEN and "," not in pair.machine:
            kind = re.sub(r"^\d+ x ", "", pair.machine)
            found.setdefault(kind, []).append((pair.run, pair.predicted_s, pair.measured_s))
    return found


def sheet_errors(machines: Mapping[str, Iterable[Times]]) -> SheetErrors:
    """The errors of these machines together. Raise ValueError where there is none."""
    errors = [validated(times).log_error for times in machines.values()]
    if not errors:
        raise ValueError("errors of data sheets need a machine with a scored run")
    mean = fmean(error * error for error in errors)
    return SheetErrors(len(errors), exp(median(errors)), sqrt(mean))


def reach(errors: SheetErrors) -> float:
    """The factor within which 95 % of another machine's times are, if it errs like these."""
    return float(exp(stdtrit(errors.machines, LEVEL) * errors.log_error))


def left_out(machines: Mapping[str, Iterable[Times]]) -> dict[str, tuple[int, int]]:
    """By machine: how many of its runs are within what all others say of it, and how many it has.

    Raise ValueError where there are no others.
    """
    found = {}
    for name, times in machines.items():
        most = log(reach(sheet_errors({k: v for k, v in machines.items() if k != name})))
        inside = [abs(log(predicted / measured)) <= most for _, predicted, measured in times]
        found[name] = sum(inside), len(inside)
    return found


def told(machines: Mapping[str, Iterable[Times]]) -> str:
    """The errors in a sentence, and how often they say right what another machine does."""
    errors, held = sheet_errors(machines), left_out(machines)
    share = fmean(inside / runs for inside, runs in held.values())
    inside, runs = (sum(column) for column in zip(*held.values(), strict=True))
    return (
        f"{errors}; 95 % of another one's times are expected within {reach(errors):.2g} times. Each"
        f" left out in turn, {inside} of {runs} runs are within what the others say, and {share:.0%}"
        " if machines count alike"
    )
