"""The models of ``conf/model``, as objects."""

from __future__ import annotations

from functools import cache

from hydra import compose, initialize_config_dir

from sim.machine.model import Model
from sim.setup.sections import make_object
from sim.values.places import ROOT


@cache
def conf(name: str) -> Model:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return make_object(compose(f"model/{name}").model)  # type: ignore[no-any-return]
