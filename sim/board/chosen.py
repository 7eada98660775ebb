"""Which sequences the words of a run choose, from its trace's header alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.setup.traces import trace_directory
from sim.traces.header import Header
from sim.traces.header_text import parse_header


def header_of(config: Mapping[str, Any]) -> Header:
    """The header of a configuration's trace. Raise OSError or ValueError where there is none."""
    place = trace_directory(str(config["trace"]["path"])) / "header.json"
    return parse_header(place.read_bytes())


def chosen_fault(told: Sequence[int], config: Mapping[str, Any]) -> str:
    """Why these are not the sequences that the configuration chooses, "" where they are.

    A chosen few of them would say another ratio. Where short ones are dropped, and where requests
    say how many there are, the header alone does not tell which: then no other may be among them.
    """
    choice, workload = config["trace"], config["workload"]
    may = [
        one.sequence
        for one in header_of(config).sequences
        if choice["split"] in ("all", one.split)
        and not any(one.flags.get(flag) for flag in choice["exclude"])
    ]
    most = choice["max_sequences"] or len(may)
    if workload.get("short_sequences") == "drop" or workload.get("requests") is not None:
        is_chosen = set(told) <= set(may) and len(set(told)) == len(told) <= most
    else:
        is_chosen = sorted(told) == sorted(may[:most])
    shown = ", ".join(map(str, told[:8])) + " .." * (len(told) > 8)
    return "" if is_chosen else f"the words do not choose {shown} ({len(told)} in all)"
