"""Flags of a trace's sequences, by which ``exclude`` leaves some out."""

from __future__ import annotations

from collections.abc import Iterable

from sim.traces.header import Header
from sim.verbs.names import nearest


def check_flags(exclude: Iterable[str], *headers: Header, key: str = "trace.exclude") -> None:
    """Raise ValueError, with the nearest name, for a flag that no sequence of these traces has.

    ``key`` is the word that named them.
    """
    known = sorted(
        {flag for one in headers for sequence in one.sequences for flag in sequence.flags}
    )
    if unknown := [flag for flag in exclude if flag not in known]:
        raise ValueError(
            f"{key} names {', '.join(unknown)}, but the sequences of trace"
            f" {', '.join(one.name for one in headers)} have the flags"
            f" {', '.join(known) or '(none)'}{nearest(unknown[0], known)}; leave it out, or name one"
            " of these"
        )
