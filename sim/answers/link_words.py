"""The words of a machine whose link is faster or slower."""

from __future__ import annotations

from sim.machine.link import Link


def with_peak(link: Link, peak_gb_per_s: float, digits: str = "") -> tuple[str, ...]:
    """The words that give a link this peak. Engines with a pace of their own keep their part of it.

    Without their words a machine with such engines refuses any peak that they do not reach together.
    ``digits``: how the peak is written, such as ``.6g``; empty: in full.
    """
    place = f"hardware.links.{link.name}"
    peak = f"{peak_gb_per_s:{digits}}" if digits else repr(peak_gb_per_s)
    words = (f"{place}.peak_gb_per_s={peak}",)
    if link.engine_gb_per_s is None:
        return words
    own_gb_per_s = link.engine_gb_per_s * (float(peak) / link.peak_gb_per_s)
    return *words, f"{place}.engine_gb_per_s={own_gb_per_s!r}"
