"""``python -m sim.audit RUN``: compute a run's summary again from its files, and say what differs.

The exit status is 0 where everything agrees, 1 where a key differs, 2 where RUN is no run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polars.exceptions import PolarsError

from sim.audit import growth, intervals, lookups, settings, sizes, times, traffic
from sim.audit.files import NoRunError, RunFiles, read_run
from sim.audit.rules import Left, Rule, agrees, flat

MISSING = "(nothing)"
CHANGED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, PolarsError)
"""What rules raise over values of another type, or beyond all numbers, which no run writes."""
NO_RULE = "no rule of this version knows it"


@dataclass(frozen=True)
class Difference:
    """A key whose value in the summary, ``found``, is not what its rule expects."""

    rule: Rule
    found: Any

    def __str__(self) -> str:
        rule = self.rule
        return (
            f"{rule.key}: summary.json has {self.found!r}, the files give {rule.expected!s}"
            f" ({rule.text})"
        )


@dataclass(frozen=True)
class Audit:
    """The result: keys that agree, keys that differ, and by reason keys that are not recomputed."""

    agreed: Sequence[str]
    differences: Sequence[Difference]
    not_recomputed: Mapping[str, Sequence[str]]


def audit(run: RunFiles) -> Audit:
    """Compare every key of the summary with what the run's files give."""
    said: list[Rule | Left] = []
    for module in (times, lookups, traffic, sizes, growth, settings, intervals):
        said += module.rules(run)
    told = {
        **dict(flat(run.summary)),
        **_ends(run.summary),
        "stall_s": _sum(run.summary["stall_s"]),
    }
    rules = [one for one in said if isinstance(one, Rule)]
    differences = [
        Difference(one, told.get(one.key, MISSING))
        for one in rules
        if not agrees(told.get(one.key, MISSING), one.expected)
    ]
    ruled = {one.key for one in rules}
    reasons = {one.key: one.reason for one in said if isinstance(one, Left)}
    not_recomputed: dict[str, list[str]] = {}
    for key in told:
        if key not in ruled and "[" not in key:
            not_recomputed.setdefault(_reason(key, reasons), []).append(key)
    wrong = {one.rule.key for one in differences}
    return Audit([one.key for one in rules if one.key not in wrong], differences, not_recomputed)


def _reason(key: str, reasons: Mapping[str, str]) -> str:
    """The reason given for the key, or for the innermost section around it that has one."""
    parts = key.split(".")
    above = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((reasons[name] for name in above if name in reasons), NO_RULE)


def _sum(values: Mapping[str, float]) -> float:
    return sum(round(value * 1e9) for value in values.values()) / 1e9


def _ends(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Both ends of each interval, under keys such as ``ci95.hit_ratio[0]``."""
    return {
        f"{section}.{name}[{place}]": end
        for section, intervals in (
            ("ci95", summary["ci95"]),
            ("calibration.ci95", summary["calibration"]["ci95"]),
        )
        if isinstance(intervals, Mapping)
        for name, ends in intervals.items()
        if ends is not None
        for place, end in enumerate(ends)
    }


def main(words: Sequence[str]) -> int:
    """Print what differs and what was not recomputed; return the exit status."""
    if len(words) != 1 or words[0].startswith("-"):
        print(
            "error: name one folder that moelab run wrote: moelab audit RUN",
            file=sys.stderr,
        )
        return 2
    try:
        found = audit(read_run(Path(words[0])))
    except NoRunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except CHANGED as error:
        told = (str(error).splitlines() or [""])[0]
        print(
            f"error: {words[0]} is no run of this version, or its files were changed:"
            f" {type(error).__name__} {told}; run again",
            file=sys.stderr,
        )
        return 2
    for difference in found.differences:
        print(f"DIFFERS {difference}")
    print("not recomputed:")
    for reason, keys in found.not_recomputed.items():
        print(f"  {', '.join(keys)}: {reason}")
    print(f"{len(found.agreed)} keys agree, {len(found.differences)} differ")
    return 1 if found.differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
