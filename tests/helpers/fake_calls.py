"""A stand-in of cuda.bindings.runtime: its names, the order of its arguments, its error codes.

Every function of that module returns a tuple of the error code and what else it returns. The names
and arguments were read from version 13.0.3.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any


class cudaError_t(IntEnum):
    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorNotReady = 600
    cudaErrorIllegalAddress = 700


class cudaMemcpyKind(IntEnum):
    cudaMemcpyHostToDevice = 1
    cudaMemcpyDefault = 4


class Handle:
    def __init__(self, init_value: int = 0) -> None:
        self.value = init_value


class FakeCalls:
    """Notes (name, arguments) of each call; ``codes`` are what calls of a name return next."""

    cudaError_t = cudaError_t
    cudaMemcpyKind = cudaMemcpyKind
    cudaStream_t = cudaEvent_t = cudaGraphExec_t = Handle
    cudaEventDisableTiming = 2

    def __init__(self) -> None:
        self.made: list[tuple[str, tuple[Any, ...]]] = []
        self.codes: dict[str, list[cudaError_t]] = {}

    def _call(self, name: str, *arguments: Any) -> cudaError_t:
        self.made.append((name, arguments))
        codes = self.codes.get(name)
        return codes.pop(0) if codes else cudaError_t.cudaSuccess

    def cudaEventCreateWithFlags(self, flags: int) -> tuple[cudaError_t, Handle]:
        return self._call("cudaEventCreateWithFlags", flags), Handle(len(self.made))

    def cudaEventRecord(self, event: Handle, stream: Handle) -> tuple[cudaError_t]:
        return (self._call("cudaEventRecord", event, stream),)

    def cudaEventQuery(self, event: Handle) -> tuple[cudaError_t]:
        return (self._call("cudaEventQuery", event),)

    def cudaEventSynchronize(self, event: Handle) -> tuple[cudaError_t]:
        return (self._call("cudaEventSynchronize", event),)

    def cudaEventElapsedTime(self, start: Handle, end: Handle) -> tuple[cudaError_t, float]:
        return self._call("cudaEventElapsedTime", start, end), 1.5

    def cudaStreamWaitEvent(self, stream: Handle, event: Handle, flags: int) -> tuple[cudaError_t]:
        return (self._call("cudaStreamWaitEvent", stream, event, flags),)

    def cudaMemcpyAsync(
        self, dst: int, src: int, count: int, kind: cudaMemcpyKind, stream: Handle
    ) -> tuple[cudaError_t]:
        return (self._call("cudaMemcpyAsync", dst, src, count, kind, stream),)

    def cudaGraphLaunch(self, graphExec: Handle, stream: Handle) -> tuple[cudaError_t]:
        return (self._call("cudaGraphLaunch", graphExec, stream),)

    def cudaGetErrorName(self, error: cudaError_t) -> tuple[cudaError_t, bytes]:
        return cudaError_t.cudaSuccess, error.name.encode()
