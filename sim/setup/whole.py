"""How large the published model is of which a run has a part, or whose sizes it has."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from sim.machine.model import Model
from sim.values.places import CONF
from sim.verbs.names import read


def with_whole(model: Model) -> Model:
    """``model`` with ``whole`` filled in: sites, experts and top-k of the published model.

    They stand in the file of ``conf/model`` whose sizes the model has.
    """
    if model.whole is not None:
        return model
    return replace(model, whole=_whole_shape(model.sizes_of or model.name))


@cache
def _whole_shape(name: str) -> tuple[int, int, int] | None:
    """Sites, experts and top-k in ``conf/model/NAME.yaml``; None without such a file."""
    found = read(CONF / "model" / f"{Path(name).name}.yaml")
    if found.get("sizes_of") is not None:
        return _whole_shape(str(found["sizes_of"]))
    # A file that takes its values from another one has none of these keys.
    if not {"sites", "experts", "top_k"} <= found.keys():
        return None
    return (int(found["sites"]), int(found["experts"]), int(found["top_k"]))
