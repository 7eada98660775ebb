"""The calibration as a piece of the suite."""

from __future__ import annotations

import json
import re

from real.calibration.calibration import Asked
from real.calibration.calibration import calibrate as measure_machine
from real.calibration.sizes import SIZES
from real.calibration.write import Gathers, gathers_of
from real.cuda.runtime import runtime_of
from real.suite.context import Context


def calibrate(context: Context) -> None:
    """Write ``hardware/NAME.yaml``, which the runs after it take, and ``calibration.json``."""
    folder = context.folder / "hardware"
    folder.mkdir(exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "_", f"{runtime_of(context.device).name} measured".lower())
    asked = Asked(
        name,
        context.device,
        SIZES[context.size].calibration,
        folder / f"{name}.yaml",
        context.folder / "calibration.json",
        context.deadline.left_s,
        (),
        _probed(context),
    )
    text, _ = measure_machine(asked, print)
    asked.output.write_text(text, encoding="utf-8")


def _probed(context: Context) -> Gathers | None:
    """The rates of scattered rows that the probe has measured before; None where it has not."""
    facts = context.folder / "facts.json"
    if not facts.is_file():
        return None
    _, row_bytes, _, _ = SIZES[context.size].gather
    return gathers_of(json.loads(facts.read_text(encoding="utf-8"))["gather"], row_bytes)
