"""Every system of ``conf/system``, in the simulator and in the device's main loop.

Both run the bundled trace, on machines with one link and with two, one request after another and
several together. Oracle: the other driver. Tables are compared with ``==``, decisions call by call,
and each log is replayed into a fresh controller.
"""

from __future__ import annotations

from zlib import crc32

import pytest

from differential.both_drivers import check_both_drivers
from helpers.bundled import Configure
from sim.results.run import Run
from sim.setup.build import build
from sim.traces.trace import Trace
from sim.values.places import ROOT

SYSTEMS = sorted(path.stem for path in (ROOT / "conf" / "system").glob("*.yaml"))
SHORT = "+workload.decode_tokens=24"
ALONE = ("trace.max_sequences=1", SHORT)
ROOM = "hardware.memory_gib=32"
"""llama.cpp's staging does not fit beside half of all experts in 24 GiB."""
TOGETHER = ("workload=continuous_4_chunked", "trace.max_sequences=2", SHORT)
NVME = ("hardware=rtx4090_nvme", "hardware.ram.capacity_gib=1", *ALONE)
OVER_TIME = (*TOGETHER, "workload.arrivals_per_s=4")
MORE = (
    ("hobbit", NVME),
    (
        "mixtral_offloading",
        (
            *(NVME[0], "hardware.ram.capacity_gib=48", *ALONE),
            *("placement=absent_on_cpu", "loader.wait=in_order", "hardware.host.wake_us=20"),
        ),
    ),
    ("hobbit", (*TOGETHER, "loader.chunk_bytes=4194304", "hardware.prediction_us=30")),
    ("hobbit", OVER_TIME),
    ("sti", (*NVME, "precision=per_expert")),
)
USUAL = (
    "deepspeed_inference",
    "edgemoe",
    "fate",
    "fiddler",
    "floe",
    "hobbit",
    "moe_infinity",
    "oracle",
)
"""One of each kind; the others, of the same parts, run where time is no matter (``make
thorough``).
"""


def share_of(system: str) -> float:
    """By the system's name, so that a new system moves no other one to another share. At a quarter
    swapmoe loads nothing.
    """
    return 0.5 if system == "swapmoe" or crc32(system.encode()) % 2 else 0.25


CASES = [
    pytest.param(
        system,
        (f"budget.resident_share={share_of(system)}", *ALONE, ROOM),
        marks=() if system in USUAL else pytest.mark.thorough,
    )
    for system in SYSTEMS
]


@pytest.mark.alike
@pytest.mark.parametrize(("system", "overrides"), [*CASES, *MORE])
def test_a_system_does_the_same_on_both_drivers(
    configure: Configure, bundled_trace: Trace, system: str, overrides: tuple[str, ...]
) -> None:
    def fresh() -> Run:
        return build(configure(f"system={system}", *overrides), system, bundled_trace)

    for name, table in check_both_drivers(fresh).items():
        # Experts that are absent are the CPU's in this one, and nothing else moves.
        assert len(table) or (system, name) == ("llama_cpp", "transfers"), name
