"""The calibration as a piece of the suite."""

from __future__ import annotations

import re

from real.calibration.calibration import Asked
from real.calibration.calibration import calibrate as measure_machine
from real.calibration.sizes import SIZES
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
        True,
        folder / f"{name}.yaml",
        context.folder / "calibration.json",
        context.deadline.left_s,
        (),
    )
    text, _ = measure_machine(asked, print)
    asked.output.write_text(text, encoding="utf-8")
