"""The command that fits a preset's knobs to its published statistics.

``python -m capture.calibrate like=NAME [reading=NAME]`` (``like=all`` fits every preset)

Every target statistic has one knob. The procedure:

1. A sweep takes the targets in the order of the preset's file. It solves each knob for its own
   target alone, by false position inside the knob's range, with the same random numbers at every
   step. It stops when the statistic is within a quarter of the target's uncertainty. Where the
   target is out of reach the knob stays at the better end of its range.
2. Knobs also shift each other's statistics a little, so sweeps repeat until no knob moves. From the
   second sweep on, a knob goes half of its way.
3. The achieved values that are reported come from seeds that the fit did not use.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from capture.synthetic.calibration import Stack, calibrate
from sim.process.interrupts import telling
from sim.process.printing import print_text
from sim.process.progress import saying
from sim.synthetic.preset import Fit, Preset, load_preset, preset_names, write_fits
from sim.values.places import IS_CHECKOUT, PRESETS


def stack_of(preset: Preset) -> Stack:
    """The preset's decoder.

    An encoder, if there is one, gets the same knobs: nobody publishes statistics of the two apart.
    """
    return Stack(preset.rule, len(preset.layers[-1]), preset.shape.experts, preset.shape.top_k)


def fit_table(title: str, fit: Fit) -> Table:
    """A console table with a row per target: wanted, achieved, missed by, knob, source."""
    table = Table("statistic", "target", "achieved", "residual", "knob", "source", title=title)
    for row in fit.rows:
        target = row.target
        source = target.source + (f"; BORROWED from {target.borrowed}" if target.borrowed else "")
        knob = (
            f"{target.knob} = {getattr(fit.walk, target.knob):.4g}"
            if target.knob
            else "(not fitted)"
        )
        table.add_row(
            target.statistic,
            f"{target.value:.3f} ± {target.uncertainty:.3f}",
            f"{row.achieved:.3f} ± {row.deviation:.3f}",
            f"{row.residual:+.3f}{'' if row.is_reached else ' MISSED'}",
            knob,
            source,
        )
    return table


def parse(arguments: Sequence[str]) -> list[tuple[Preset, str]]:
    """The (preset, reading) pairs to fit.

    Raise ValueError for the first argument that is wrong, and where fits cannot be kept.
    """
    if not IS_CHECKOUT:
        raise ValueError(
            f"fits are kept beside the presets, and nothing writes into an installed package"
            f" ({PRESETS}); run it in a checkout of the project"
        )
    given: dict[str, str] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals or key not in ("like", "reading"):
            raise ValueError(
                f"{argument!r} is not one of the known key=value; known keys: like, reading"
            )
        if key in given:
            raise ValueError(f"{key} is given twice; give it once")
        given[key] = text
    if "like" not in given:
        raise ValueError(
            f"missing like=...; it has no default (known: all, {', '.join(preset_names())})"
        )
    presets = [
        load_preset(name)
        for name in (preset_names() if given["like"] == "all" else [given["like"]])
    ]
    if "reading" in given:
        return [(preset, preset.reading(given["reading"])) for preset in presets]
    return [(preset, reading) for preset in presets for reading in preset.readings]


@telling("the fits printed above are written")
def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message on stderr when an argument is wrong."""
    console = Console()
    try:
        chosen = parse(arguments)
    except ValueError as error:
        print(f"calibrate: {error}", file=sys.stderr)
        return 2
    for preset, reading in chosen:
        begun = time.monotonic()
        with saying(preset.name) as tell:
            fit = calibrate(stack_of(preset), preset.start, preset.targets_of(reading), tell)
        path = write_fits(preset, {reading: fit})
        console.print(
            fit_table(f"{preset.name}, reading={reading} ({preset.readings[reading]})", fit)
        )
        print_text(console, f"{path}, {time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
