"""Statistics of gates as papers print them, read from ``capture/assets/published.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sim.values.places import ASSETS

FILE = ASSETS / "published.json"


@dataclass(frozen=True)
class Published:
    """A number as a paper prints it; ``paper`` is a key of PAPERS, ``place`` a table or figure."""

    value: str
    paper: str
    place: str

    @property
    def source(self) -> str:
        return f"{self.paper}, {self.place}"


_CONTENT = json.loads(FILE.read_text(encoding="utf-8"))
PAPERS: Mapping[str, str] = _CONTENT["papers"]
# HOBBIT's "theoretical" 0.25 and 0.46 are the values for experts drawn uniformly, 2 of 8. They are
# lower bounds, not measurements.
PUBLISHED: Mapping[str, Published] = {
    name: Published(**fields) for name, fields in _CONTENT["values"].items()
}
