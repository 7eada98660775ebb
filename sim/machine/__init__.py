"""A machine and a model as numbers: links, compute, memory, sizes, budgets and durations.

The names exported here are public: configurations use them.
"""

from sim.machine.hardware import Compute, Cpu, Hardware, Link
from sim.machine.model import LatentAttention, Model
from sim.machine.parts import Host, Ram, SharedMemory

__all__ = [
    "Compute",
    "Cpu",
    "Hardware",
    "Host",
    "LatentAttention",
    "Link",
    "Model",
    "Ram",
    "SharedMemory",
]
