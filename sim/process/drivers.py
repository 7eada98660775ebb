"""Whether this computer could have a GPU, asked without loading anything that uses one."""

from __future__ import annotations

from ctypes import CDLL

LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
"""The driver of CUDA, as Linux and Windows name it. torch needs it, too."""


def has_cuda() -> bool:
    """Whether there is a driver of CUDA. That there is a device only torch can tell."""
    for name in LIBRARIES:
        try:
            CDLL(name)
        except OSError:
            continue
        return True
    return False
