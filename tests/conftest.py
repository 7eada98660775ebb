"""Options and fixtures that several folders share."""

from __future__ import annotations

import os

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from bundled import BUNDLED, Configure
from sim.build import ROOT, load_trace
from sim.trace import Trace

# Before anything imports Triton: kernels are checked on its interpreter. To check them on a GPU, set it to 0.
os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--scenarios", type=int, default=600, metavar="N",
        help="random runs in which the engine is compared with the reference (half of them with ties)",
    )  # fmt: skip


@pytest.fixture(scope="session")
def configure() -> Configure:
    """Compose ``conf/`` with overrides, as ``python -m sim`` does."""

    def composed(*overrides: str) -> DictConfig:
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            return compose("config", ["output_dir=unused", *overrides])

    return composed


@pytest.fixture(scope="session")
def bundled_trace() -> Trace:
    """The bundled trace with its lookahead scores and active shares; its arrays are read-only."""
    return load_trace(BUNDLED, lookahead_sites=3, active_shares=True)
