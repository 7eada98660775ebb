"""Options and fixtures that several folders share."""

from __future__ import annotations

import fcntl
import gc
import os
import subprocess
from collections.abc import Generator
from copy import deepcopy
from functools import cache
from pathlib import Path
from zlib import crc32

import pytest
from omegaconf import DictConfig

from capture.import_trace import main as import_trace
from helpers.bundled import BUNDLED, Configure
from sim.setup.configure import configure as compose
from sim.setup.traces import load_trace
from sim.traces.trace import Trace
from sim.values.places import ROOT

GPT_OSS = ROOT / ".." / "shared" / "traces" / "gpt_oss_20b" / "gptoss20b_decode_routing.npz"
"""A published trace: third-party data that is not part of the project."""
TENTHS = 10

# Before anything imports torch or polars. Where a worker has a core, more threads wait for each
# other: capturing two passages takes 33 s with them and 1 s without.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("POLARS_MAX_THREADS", "1")

# Before anything imports Triton: kernels are checked on its interpreter. To check them on a GPU,
# set it to 0.
os.environ.setdefault("TRITON_INTERPRET", "1")


@cache
def tenth() -> int:
    """Which tenth of the cases of tests with the mark ``alike`` runs: another one for another
    commit, so that no case rests for good. Without git it is the first.
    """
    asked = ["git", "rev-parse", "HEAD"]
    try:
        told = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(told[:8], 16) % TENTHS


def pytest_report_header() -> str:
    return f"alike: tenth {tenth() + 1} of {TENTHS}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test with the mark ``alike`` about a tenth of the cases run for each change.

    They are chosen by a checksum of the case's name, so that a new case moves no other one, and an
    axis of ten values is not cut to one. The others have the mark ``thorough``.
    """
    families: dict[str, list[tuple[int, pytest.Item]]] = {}
    for item in items:
        if item.get_closest_marker("alike") is not None:
            family, _, case = item.nodeid.partition("[")
            families.setdefault(family, []).append((crc32(case.encode()), item))
    for cases in families.values():
        least = min(number for number, _ in cases)
        for number, item in cases:
            if number % TENTHS != tenth() and number != least:
                item.add_marker(pytest.mark.thorough)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """While tests are collected nothing is garbage, and what was imported and collected stays for
    good: the garbage collector need not walk it, neither then nor later.

    Later it comes less often, for most tests leave no garbage: a tenth of the time of all tests.
    """
    gc.disable()
    found = yield
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()
    return found


def pytest_sessionfinish() -> None:
    """Extension modules look at exit whether their objects are gone."""
    gc.unfreeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--scenarios",
        type=int,
        default=64,
        metavar="N",
        help=(
            "random runs in which the engine is compared with the reference (half of them with"
            " ties)"
        ),
    )
    parser.addoption(
        "--anew", action="store_true", help="write what tests/golden keeps of figures and tables"
    )


@pytest.fixture(scope="session")
def configure() -> Configure:
    """Compose ``conf/`` with overrides, as ``python -m sim`` does; the same ones again cost a
    copy.
    """

    @cache
    def composed(*overrides: str) -> DictConfig:
        return compose(*overrides)[0]

    return lambda *overrides: deepcopy(composed(*overrides))


@pytest.fixture(scope="session")
def bundled_trace() -> Trace:
    """The bundled trace with its logits, lookahead scores and active shares; its arrays are
    read-only.
    """
    return load_trace(BUNDLED, lookahead_sites=3, active_shares=True, logits=True)


@pytest.fixture(scope="session")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published gpt-oss-20b trace, imported once for all processes of a run: that takes
    longer than most tests.
    """
    if not GPT_OSS.exists():
        pytest.skip("the published gpt-oss-20b trace is not here")
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "gpt_oss_20b"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            assert import_trace(["format=npz", f"path={GPT_OSS}", f"output_dir={folder}"]) == 0
    return folder
