"""What is known of the quality of lossy systems: what was measured on the bundled models.

A number is of one model and a few texts. It says nothing of another model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from sim.values.places import ASSETS

FILE = ASSETS / "measured_quality.yaml"
UNKNOWN = "not measured"


@dataclass(frozen=True)
class Quality:
    """The KL to full precision, in millinats a decoded token, with its 95 % interval over texts.

    ``model`` has the gates; ``resident_share`` is that of the measurement.
    """

    millinats: float
    interval: tuple[float, float]
    model: str
    texts: int
    resident_share: float

    def short(self) -> str:
        """The number with its interval."""
        low, high = self.interval
        return f"{self.millinats:.3g} [{low:.3g}, {high:.3g}]"

    def text(self) -> str:
        """The number for a sentence."""
        return f"{self.short()} millinats of KL a token"

    def label(self) -> str:
        """Of what the number is."""
        return (
            f"measured on {self.texts} texts of {self.model} with {self.resident_share:.0%} of the"
            " expert bytes resident"
        )


@cache
def _measured() -> dict[tuple[str, str], Quality]:
    parts: Any = OmegaConf.to_container(OmegaConf.load(FILE))
    found = {}
    for part in parts:
        for system, (value, low, high) in part["systems"].items():
            found[part["model"], system] = Quality(
                value, (low, high), part["model"], part["texts"], part["resident_share"]
            )
    return found


def quality_of(gates: str, system: str) -> Quality | None:
    """What a system costs the model whose gates these are; None where nobody measured that.

    ``system`` is that of a summary, which names all that is not as the system's file has it. So
    with another cache or precision nothing is known.
    """
    return _measured().get((gates, system))
