"""A machine and a model as numbers: links, compute, memory, sizes, budgets and durations.

The names exported here are public: configurations use them.
"""

from sim.machine.attention import LatentAttention
from sim.machine.compute import Compute, Cpu
from sim.machine.devices import Device, Devices, Peer
from sim.machine.hardware import Hardware
from sim.machine.kernels import Kernels
from sim.machine.link import Link
from sim.machine.link_parts import Gather, Pages, Reads, Scattered, Unpack
from sim.machine.measured import Measured
from sim.machine.model import Model
from sim.machine.parts import Forecasting, Host, Ram, SharedMemory, Swap
from sim.machine.precision import Precision
from sim.machine.validated import Validated

__all__ = [
    "Compute",
    "Cpu",
    "Device",
    "Devices",
    "Forecasting",
    "Gather",
    "Hardware",
    "Host",
    "Kernels",
    "LatentAttention",
    "Link",
    "Measured",
    "Model",
    "Pages",
    "Peer",
    "Precision",
    "Ram",
    "Reads",
    "Scattered",
    "SharedMemory",
    "Swap",
    "Unpack",
    "Validated",
]
