"""Every kernel is compiled to machine code for GPUs that are not here: none spills, all fit."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from real.kernels import ahead
from real.kernels.ahead import SHARED_BYTES, TARGETS, Compiled, main, summary
from sim.values.places import ROOT

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)
KERNELS = {
    "row_dots_kernel",
    "integer_dots_kernel",
    "_fixed_point_kernel",
    "tensor_dots_kernel",
    "block_sums_kernel",
    "_add_parts_kernel",
    "_sparse_expert_kernel",
    "_gather_rows_kernel",
    "_stacked_gates_kernel",
    "_stamp_kernel",
    "_spin_kernel",
}
"""All kernels of the package: the interpreter checks their numbers, this that they compile."""


def fresh(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process that compiles kernels: this process interprets them."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        env={**environment, "TRITON_CACHE_DIR": str(cache)},
    )


def compiled(cache: Path, *options: str) -> list[Compiled]:
    done = fresh(cache, "-m", "real.kernels.ahead", "--json", *options)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    names = {field.name for field in fields(Compiled)}
    return [Compiled(**{name: line[name] for name in names}) for line in lines]


@pytest.mark.thorough
def test_one_launch_of_every_kernel_compiles_for_hopper(tmp_path: Path) -> None:
    made = compiled(tmp_path, "--few", "--targets", "90")
    assert {one.kernel for one in made} == KERNELS
    for one in made:
        assert not one.faults()
        assert 0 < one.registers < 255
        assert one.programs >= 1
    # A kernel of one input has so many bytes under way on a multiprocessor as its latency needs.
    flights = [one.flight_bytes for one in made if one.kernel == "integer_dots_kernel"]
    assert min(flights) >= 32 << 10


@pytest.mark.thorough
def test_the_page_of_kernels_counts_the_launches_that_are_compiled(tmp_path: Path) -> None:
    code = (
        "from real.kernels.ahead import TARGETS, launches\n"
        "counts = [len(list(launches(False, target))) for target in TARGETS]\n"
        "print(sum(counts), len(list(launches(True, 90))))"
    )
    done = fresh(tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr[-3000:]
    page = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    assert re.findall(r"(\d+) kernels compiled", page) == done.stdout.split()


@pytest.mark.thorough
@pytest.mark.parametrize("target", TARGETS)
def test_every_launch_of_every_shape_compiles(target: int, tmp_path: Path) -> None:
    made = compiled(tmp_path, "--targets", str(target))
    assert {one.kernel for one in made} == KERNELS
    assert {one.constants["BITS"] for one in made if "BITS" in one.constants} == {2, 4, 8, 16}


@pytest.mark.thorough
def test_a_tile_that_is_too_large_is_found(tmp_path: Path) -> None:
    """A tile's 64 x 2048 weights do not fit into the registers of 128 threads."""
    code = (
        "import torch; from real.kernels import ahead; from real.kernels.jit import recorded\n"
        "from real.kernels.tiles import GateTile\n"
        "with recorded() as calls:\n"
        "    one = ahead._meta(1, 64, 4096)\n"
        "    ahead.stacked_gates(ahead._meta(1, 4096), one, 2, GateTile(64, 2048))\n"
        "print(ahead.compile_for(calls[0], 89).faults())"
    )
    done = fresh(tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "spills" in done.stdout or "shared memory" in done.stdout


def test_a_spill_and_too_much_shared_memory_are_told() -> None:
    limit = SHARED_BYTES[89]
    assert not Compiled("k", 89, {}, 255, 0, 0, limit).faults()
    assert Compiled("k", 89, {}, 255, 0, 8, 0).faults() == [
        "k {} for sm_89 spills 8 bytes a thread"
    ]
    told = f"k {{}} for sm_89 takes {limit + 1} B of shared memory of {limit}"
    assert Compiled("k", 89, {}, 255, 0, 0, limit + 1).faults() == [told]
    assert not Compiled("k", 90, {}, 255, 0, 0, limit + 1).faults()


def test_programs_of_a_multiprocessor_are_limited_by_what_they_use_most_of() -> None:
    """65536 registers, 228 KiB of shared memory and 64 warps, with 1 KiB for each program."""
    assert Compiled("k", 90, {}, 128, 0, 0, 0, warps=2, tile_bytes=8192).programs == 8
    assert Compiled("k", 90, {}, 129, 0, 0, 0, warps=2).programs == 7
    assert Compiled("k", 90, {}, 32, 0, 0, 113 << 10, warps=4).programs == 2
    assert Compiled("k", 90, {}, 32, 0, 0, 0, warps=1).programs == 32
    assert Compiled("k", 89, {}, 32, 0, 0, 0, warps=8).programs == 6
    assert Compiled("k", 90, {}, 128, 0, 0, 0, warps=2, tile_bytes=8192).flight_bytes == 65536


def test_the_summary_names_the_kernel_that_fills_a_multiprocessor_least() -> None:
    most = Compiled("full", 90, {}, 32, 0, 0, 0, warps=4)
    least = Compiled("_empty", 120, {}, 200, 0, 0, 0, warps=8)
    assert summary([most, least]).endswith(
        "the fewest warps of a multiprocessor are 8, of empty on sm_120"
    )
    assert summary([most, least]).startswith("2 kernels compiled; none spills")


def test_kernels_are_told_in_order_and_how_many_there_are_every_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ahead, "_calls", lambda few, target: [None] * 3)
    monkeypatch.setattr(
        ahead, "_compile_one", lambda one: Compiled(f"k{one[2]}", one[1], {}, 32, 0, 8 * one[2], 0)
    )
    monkeypatch.setattr(ahead, "TOLD_EVERY_S", 0.0)
    monkeypatch.setattr(sys, "argv", ["ahead", "--targets", "80", "90", "--jobs", "1", "--json"])
    assert main() == 1
    told = capsys.readouterr()
    lines = [json.loads(line) for line in told.out.splitlines()]
    assert [(line["kernel"], line["target"]) for line in lines] == [
        (f"k{number}", target) for target in (80, 90) for number in range(3)
    ]
    assert told.err.splitlines()[:2] == ["1 of 6 kernels", "2 of 6 kernels"]
    assert "k2 {} for sm_90 spills 16 bytes a thread" in told.err


def test_where_kernels_are_interpreted_compiling_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(sys, "argv", ["ahead", "--few"])
    assert main() == 2
    assert (
        capsys.readouterr().err
        == "error: recording launches needs Triton installed and TRITON_INTERPRET unset\n"
    )
