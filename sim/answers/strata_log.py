"""Reads the log of Strata's engine, which its users publish with their machines: what it measured
of links, how many experts it held, and what each request took.

What is read (lines of ``strata generate`` and ``strata serve``, Niko1221/Strata 0.1.35 to 0.1.40):

- ``PCIe probe: X GB/s host->device``: the link to the device;
- ``loaded X GiB at Y GiB/s``: all experts, from the drive;
- ``expert cache N slots, X GiB of VRAM``: the experts that the device holds;
- ``prompt N tokens = R reused + F read in T ms (..), G generated in T ms (..), drafts accepted A of
  D``: one request; after it come
- ``decode expert cache hit rate: P% (H hits / L lookups)``, of that request;
- ``expert tiers: .. RAM N blobs, files M blobs X MB read``, since the start.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from sim.machine.hardware import Hardware
from sim.values.units import GB, GIB, MIB

_N = r"\d+(?:\.\d+)?"
PROBE = re.compile(rf"PCIe probe: ({_N}) GB/s host->device")
LOADED = re.compile(rf"loaded ({_N}) GiB at ({_N}) GiB/s")
SLOTS = re.compile(rf"expert cache (\d+) slots, ({_N}) GiB of VRAM")
REQUEST = re.compile(
    rf"prompt \d+ tokens = (\d+) reused \+ (\d+) read in ({_N}) ms \({_N} tok/s\), (\d+) generated"
    rf" in ({_N}) ms \({_N} tok/s\)(?:, drafts accepted (\d+) of (\d+))?"
)
HITS = re.compile(rf"decode expert cache hit rate: {_N}% \((\d+) hits / (\d+) lookups\)")
TIERS = re.compile(rf"expert tiers: .* RAM (\d+) blobs, files (\d+) blobs ({_N}) MB read")
LARGEST_BYTES = 1 << 28
PCIE = "pcie"
"""The link that a probe is of."""
PLAUSIBLE_PCIE = (0.1, 256.0)
"""GB/s: from less than one lane of PCIe 1.0 (0.25) to more than 16 of PCIe 7.0 (242)."""
PLAUSIBLE_DRIVE = (0.01, 64.0)
"""GB/s: from a slow card to four PCIe 5.0 drives at once (56); above it files came from memory."""


@dataclass(frozen=True)
class Asked:
    """One request: tokens reused, read and generated, times in ms, drafts, and experts looked up."""

    reused: int
    read: int
    read_ms: float
    generated: int
    decode_ms: float
    accepted: int
    drafted: int
    hits: int = 0
    lookups: int = 0


@dataclass(frozen=True)
class Report:
    """What one log tells. None or 0: it does not say. Counts of blobs are of all its requests."""

    probe_gb_per_s: float | None
    drive_gb_per_s: float | None
    slots: int
    slots_gib: float
    requests: tuple[Asked, ...]
    ram_blobs: int
    file_blobs: int
    file_mb: float

    def facts(self) -> list[str]:
        """What the log tells beside rates, a line each."""
        lines = []
        if self.slots:
            size = self.slots_gib * GIB / self.slots / MIB
            lines.append(
                f"{self.slots} slots of {size:.3f} MiB over all layers (budget.slots_gib="
                f"{self.slots_gib:g})"
            )
        if lookups := sum(one.lookups for one in self.requests):
            hits = sum(one.hits for one in self.requests)
            lines.append(f"hits {hits / lookups:.1%} of {lookups} lookups while decoding")
        if drafted := sum(one.drafted for one in self.requests):
            accepted = sum(one.accepted for one in self.requests)
            lines.append(f"drafts kept {accepted} of {drafted}")
        if self.ram_blobs or self.file_blobs:
            lines.append(
                f"experts from RAM {self.ram_blobs}, from files {self.file_blobs};"
                f" {self.file_mb * 1e6 / MIB:.4g} MiB read from files"
            )
        if decoded := [one for one in self.requests if one.decode_ms]:
            rate = median(1e3 * one.generated / one.decode_ms for one in decoded)
            lines.append(f"{len(decoded)} requests decode at a median of {rate:.4g} tokens/s")
        return lines


def read_report(path: Path) -> Report:
    """The facts of a log. Of lines that come again, as after a restart, the last one counts.

    Raise ValueError for a file that is too large, and for one without any of the lines.
    """
    if not path.is_file() or path.stat().st_size > LARGEST_BYTES:
        raise ValueError(f"log={path} must be a file of at most {LARGEST_BYTES >> 20} MiB")
    requests: list[Asked] = []
    told: dict[re.Pattern[str], Sequence[str]] = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        for pattern in (PROBE, LOADED, SLOTS, TIERS):
            if found := pattern.search(line):
                told[pattern] = found.groups()
        if found := REQUEST.search(line):
            requests.append(_asked(found.groups(default="0")))
        elif requests and (found := HITS.search(line)):
            hits, lookups = map(int, found.groups())
            requests[-1] = replace(requests[-1], hits=hits, lookups=lookups)
    if not told and not requests:
        raise ValueError(
            f"{path.name} has no line of Strata's engine: no 'PCIe probe: .. GB/s host->device', and"
            " no 'prompt .. tokens = .. reused + .. read'"
        )
    slots, slots_gib = told.get(SLOTS, ("0", "0"))
    ram, files, file_mb = told.get(TIERS, ("0", "0", "0"))
    return Report(
        float(told[PROBE][0]) if PROBE in told else None,
        float(told[LOADED][1]) * GIB / GB if LOADED in told else None,
        int(slots),
        float(slots_gib),
        tuple(requests),
        int(ram),
        int(files),
        float(file_mb),
    )


def _asked(groups: Sequence[str]) -> Asked:
    reused, read, read_ms, generated, decode_ms, accepted, drafted = groups
    return Asked(
        int(reused),
        int(read),
        float(read_ms),
        int(generated),
        float(decode_ms),
        int(accepted),
        int(drafted),
    )


def rates_of(report: Report, hardware: Hardware) -> dict[str, tuple[float, str]]:
    """The rates, in GB/s, that links of a machine have by a report, each with what it is.

    Where memory is unified the only link is the drive's, of which a probe of PCIe tells nothing.
    Raise ValueError where the report has no rate of any of the links, and for a rate that no link
    has.
    """
    rates: dict[str, tuple[float, str]] = {}
    *_, last = hardware.link_names
    if report.probe_gb_per_s is not None and PCIE in hardware.link_names:
        rates[PCIE] = report.probe_gb_per_s, "as the engine probed it"
    if report.drive_gb_per_s is not None and last != PCIE:
        rates[last] = report.drive_gb_per_s, "at which all experts were loaded"
    if not rates:
        raise ValueError(
            f"the log has no rate of a link of base={hardware.name} ({', '.join(hardware.link_names)}):"
            f" for {PCIE} a line 'PCIe probe: .. GB/s host->device' is needed, for a drive 'loaded .."
            " GiB at .. GiB/s'"
        )
    for link, (rate, why) in rates.items():
        low, high = PLAUSIBLE_PCIE if link == PCIE else PLAUSIBLE_DRIVE
        if not low <= rate <= high:
            raise ValueError(
                f"the log says {rate:.4g} GB/s of {link}, {why}; a machine's file takes {low:g} to"
                f" {high:g} GB/s: look at that line of the log, or set"
                f" hardware.links.{link}.peak_gb_per_s by hand"
            )
    return rates


def machine_text(
    report: Report, hardware: Hardware, base: str, name: str, what: str, source: str
) -> str:
    """The text of a machine's file: ``base`` with the rates of a report.

    Raise ValueError where the log has no rate that the base machine has a link for.
    """
    rates = rates_of(report, hardware)
    lines = [
        f"# {base}, with what {what} tells of it.",
        *(f"# {fact}" for fact in report.facts()),
        "defaults:",
        f"  - {base}",
        "  - _self_",
        f"name: {name}",
        "preset: calibrated",
        "validated: none  # no token was compared",
        "links:",
    ]
    for link, (rate, why) in rates.items():
        lines += [
            f"  {link}:",
            f"    peak_gb_per_s: {rate:.6g}  # {why}",
            "    efficiency: 1.0  # as measured",
        ]
    return "\n".join([*lines, f'source: "{source}"', ""])
