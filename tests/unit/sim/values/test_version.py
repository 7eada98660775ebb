"""The version has one owner, which can be read where the project is not installed."""

from __future__ import annotations

import tomllib

import yaml

from sim.values.places import ROOT
from sim.values.version import VERSION


def test_the_package_is_built_with_the_version_that_runs_tell() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"] == {
        "version": {"attr": "sim.values.version.VERSION"}
    }
    assert all(part.isdigit() for part in VERSION.split(".")), (
        "setuptools reads it without running the module"
    )


def test_the_citation_names_the_version_that_runs_tell() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == VERSION
