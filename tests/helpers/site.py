"""The modules of the documentation site, which lie in docs and belong to no package."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

from sim.values.places import ROOT


def _loaded(name: str) -> ModuleType:
    spec = spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site_glossary = _loaded("site_glossary")
site_reference = _loaded("site_reference")
