"""Triton, if it is installed, and the rule for where its kernels run.

A launcher runs its Triton kernel on tensors of a CUDA device, and its torch reference on all
others. Inside ``interpreted()`` it runs the kernel everywhere, on Triton's interpreter, which needs
``TRITON_INTERPRET=1`` in the environment before Triton is first imported.

*Chained* kernels. From compute capability 9.0 on a kernel may be started before the one ahead of it
has ended (programmatic dependent launch). It loads what nobody writes, its weights, and then waits
for the results of the others (``gdc_wait``). So the GPU's memory is not idle between two kernels.
Only a kernel right behind one of this package is chained: a graph cannot begin with one.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

# The default of Triton 3.9, which warns that 3.10 will have another.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
triton: Any
try:
    triton = import_module("triton")
    tl: Any = import_module("triton.language")
except ImportError:
    triton = tl = None
gdc_wait: Any
gdc_launch_dependents: Any
try:
    _extra: Any = import_module("triton.language.extra.cuda")
    gdc_wait, gdc_launch_dependents = _extra.gdc_wait, _extra.gdc_launch_dependents
except (ImportError, AttributeError):
    gdc_wait = gdc_launch_dependents = None
CHAINING_FROM = 90
"""The least compute capability, times 10, that chains kernels."""

_launches_all = ContextVar("_launches_all", default=False)
_recorded_capability = ContextVar("_recorded_capability", default=0)
OPTIONS = ("num_warps", "num_stages", "launch_pdl")
Call = tuple[Any, dict[str, Any], dict[str, Any]]
"""A launch: the kernel, its arguments by name, and how to compile it (``num_warps``, ..)."""


def jit(function: Callable[..., Any]) -> Any:
    """A Triton kernel; without Triton the plain function, which nothing calls."""
    return function if triton is None else triton.jit(function)


def launches(tensor: Tensor) -> bool:
    """Whether a launcher runs its kernel on such a tensor, and not its reference.

    Raise RuntimeError for CUDA tensors without Triton.
    """
    if tensor.is_cuda and triton is None:
        raise RuntimeError("tensors on a CUDA device need Triton's kernels: pip install triton")
    return tensor.is_cuda or _launches_all.get()


def is_compiled() -> bool:
    """Whether kernels are compiled: then they may use a GPU's own instructions."""
    return os.environ.get("TRITON_INTERPRET") != "1"


def capability_of(device: torch.device | str) -> int:
    """The compute capability of a device, times 10; 0 for one that is no GPU."""
    if torch.device(device).type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return 10 * major + minor
    return _recorded_capability.get()


def chains(tensor: Tensor) -> bool:
    """Whether kernels on such a tensor's device can be chained."""
    chaining = capability_of(tensor.device) >= CHAINING_FROM
    return gdc_wait is not None and is_compiled() and chaining


def chained(chained: bool) -> dict[str, bool]:
    """The option with which a chained kernel is launched."""
    return {"launch_pdl": True} if chained else {}


@contextmanager
def interpreted() -> Iterator[None]:
    """Within the block kernels run on CPU tensors, slowly, so that they can be checked.

    Raise RuntimeError where the interpreter is off.
    """
    if triton is None or os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError(
            "the interpreter needs Triton installed and TRITON_INTERPRET=1 set before it is"
            " imported"
        )
    with _all_launching():
        yield


@contextmanager
def recorded(capability: int = 0) -> Iterator[list[Call]]:
    """Within the block launches are listed instead of made, on any device, such as ``meta``.

    They are those for a GPU of ``capability`` (times 10). Raise RuntimeError where kernels are
    interpreted: these cannot be compiled.
    """
    if triton is None or os.environ.get("TRITON_INTERPRET") == "1":
        raise RuntimeError("recording launches needs Triton installed and TRITON_INTERPRET unset")
    calls: list[Call] = []

    def run(kernel: Any, *values: Any, grid: Any, warmup: bool, **named: Any) -> None:
        options: dict[str, Any] = {name: named.pop(name) for name in OPTIONS if name in named}
        calls.append(
            (kernel, inspect.signature(kernel.fn).bind(*values, **named).arguments, options)
        )

    token = _recorded_capability.set(capability)
    try:
        with _all_launching(), patch.object(triton.JITFunction, "run", run):
            yield calls
    finally:
        _recorded_capability.reset(token)


@contextmanager
def _all_launching() -> Iterator[None]:
    token = _launches_all.set(True)
    try:
        yield
    finally:
        _launches_all.reset(token)


def blocks(size: int, block: int) -> int:
    """How many blocks cover a dimension."""
    return -(-size // block)


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least ``size``."""
    return 1 << (size - 1).bit_length()
