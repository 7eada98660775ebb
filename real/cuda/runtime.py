"""Every call that needs a GPU: streams, events, copies, pinned memory, graphs, spinning kernels.

Users of a runtime order their work by streams and events alone, and say of each piece of work what
it reads and writes. A GPU ignores that; the tests' runtime checks it, and refuses what is read
before it is there, or overwritten while it is read.

No work ever goes to the legacy default stream, which would wait for all other streams and hold them
up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from real.cuda.host import HostRuntime

Stream = Any
Event = Any
Graph = Any
Memory = Any
"""A piece of memory as ``Runtime.move`` takes it."""
T = TypeVar("T")
Uses = Sequence[Tensor] | Callable[[], Sequence[Tensor]]
"""Memory that a piece of work uses; a function is called only where that is looked at."""
CALLS = "cuda.bindings.runtime"
"""The module of raw calls, of the package cuda-bindings. torch's own cost 20 us, these 1 to 5."""


class DeviceError(ValueError):
    """The GPU or its driver has refused something; the message says what, and the way out."""


class Runtime(Protocol):
    @property
    def name(self) -> str:
        """The name of the device."""

    @property
    def device(self) -> torch.device:
        """Where the tensors lie that it computes with."""

    def stream(self, name: str) -> Stream:
        """A new stream; the name is for messages."""

    def make_current(self, stream: Stream) -> Stream:
        """From now on what the calling thread launches without naming a stream goes to this one.

        Return the stream that it went to before.
        """

    def event(self, *, timed: bool = False) -> Event: ...

    def record(self, event: Event, stream: Stream) -> None:
        """Let the event end when all that the stream has been given so far is over."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Let what the stream is given from now on come after the event. The host does not wait."""

    def query(self, event: Event) -> bool:
        """Whether the event has ended. What this thread gives to streams then comes after it."""

    def synchronize(self, event: Event) -> None:
        """Wait until the event has ended."""

    def elapsed_ns(self, first: Event, last: Event) -> int:
        """The ns between two timed events that have ended."""

    def allocate(self, num_bytes: int) -> Tensor:
        """Memory of the device, uint8. Raise DeviceError if there is not enough."""

    def allocated_bytes(self) -> int:
        """How many bytes are allocated on the device now."""

    def memory(self) -> tuple[int, int]:
        """The bytes of the device's memory, and how many of them are taken outside of any run.

        Taken are the context and its kernels, the workspace of a stream's products, and what other
        processes hold.
        """

    def register(self, memory: Tensor) -> None:
        """Pin host memory, so that it is copied without a detour. Raise DeviceError on failure."""

    def unregister(self, memory: Tensor) -> None: ...

    def mapped(self, memory: Tensor) -> Tensor:
        """Pinned host memory as kernels take it, which then read it over the link.

        Raise DeviceError for memory that the device does not see.
        """

    def copy(self, target: Tensor, source: Tensor, stream: Stream) -> None:
        """Copy bytes in the stream's order.

        One side is pinned host memory, or both are on the device. Other host memory is copied, too,
        but not beside other work.
        """

    def memory_of(self, memory: Tensor) -> Memory:
        """Contiguous memory as ``move`` takes it: to look at a tensor costs more than to copy it."""

    def move(self, target: Memory, source: Memory, num_bytes: int, stream: Stream) -> None:
        """Copy the first bytes of one memory to that of another, both at least so large."""

    def run(
        self,
        stream: Stream,
        work: Callable[[], T],
        *,
        reads: Sequence[Tensor] = (),
        writes: Sequence[Tensor] = (),
    ) -> T:
        """Call ``work``; what it launches goes to the stream."""

    def stamp(self, clock: Tensor, stream: Stream) -> None:
        """Write the GPU's time into ``clock`` (int64 [1] on the device), in the stream's order."""

    def spin_until(self, clock: Tensor, due_ns: int, stream: Stream) -> None:
        """Hold the stream until ``due_ns`` after the stamp in ``clock``."""

    def capture(
        self,
        stream: Stream,
        work: Callable[[], Any],
        *,
        reads: Sequence[Tensor] = (),
        writes: Sequence[Tensor] = (),
    ) -> Graph:
        """Make one graph of what ``work`` launches; it keeps the addresses of now.

        ``work`` is done once on the way.
        """

    def replay(
        self,
        graph: Graph,
        stream: Stream,
        *,
        reads: Uses = (),
        writes: Uses = (),
    ) -> None:
        """Launch a graph; its tables may point to other memory than at its capture."""

    def host_writes(self, memory: Tensor) -> None:
        """Called before the host writes pinned memory that copies may still read."""


@dataclass(frozen=True, eq=False)
class CudaStream:
    """A stream as torch has it, and as the raw calls take it."""

    torch: Any
    raw: Any


@dataclass(frozen=True, eq=False)
class CudaGraph:
    """A captured graph, and its executable form as the raw calls take it."""

    torch: Any
    raw: Any


def raw_calls() -> Any:
    """The module of raw calls. Raise DeviceError where it is not to be had."""
    try:
        return import_module(CALLS)
    except ImportError as error:
        raise DeviceError(
            f"the package cuda-bindings is missing ({CALLS} cannot be imported: {error}); install"
            " it (python -m pip install cuda-bindings, in the version of torch.version.cuda), or"
            " choose device=cpu"
        ) from None


class CudaRuntime:
    """The first CUDA device. torch allocates and captures; all that a run repeats are raw calls.

    Raise DeviceError where there is no device, or where the package of raw calls is missing.
    """

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise DeviceError(
                "there is no CUDA device here (torch sees none); choose device=cpu or device=null"
            )
        torch.cuda.init()  # type: ignore[no-untyped-call]
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.name = torch.cuda.get_device_name(self.device)
        self._cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        self._use(raw_calls())

    def _use(self, calls: Any) -> None:
        """Keep what is called over and over."""
        self._calls = calls
        self._not_ready = calls.cudaError_t.cudaErrorNotReady
        self._any_kind = calls.cudaMemcpyKind.cudaMemcpyDefault
        self._record, self._query = calls.cudaEventRecord, calls.cudaEventQuery
        self._wait, self._copy = calls.cudaStreamWaitEvent, calls.cudaMemcpyAsync
        self._launch = calls.cudaGraphLaunch

    def _check(self, code: Any, what: str) -> None:
        """Raise DeviceError for an error code; nothing that follows it can be trusted."""
        if code:
            _, name = self._calls.cudaGetErrorName(code)
            told = name.decode() if isinstance(name, bytes) else str(name)
            raise DeviceError(
                f"{what} failed on {self.name} with {told}; what the device did before may be the"
                " cause, and nothing can be run on it in this process any more"
            )

    def stream(self, name: str) -> CudaStream:
        made = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        return CudaStream(made, self._calls.cudaStream_t(made.cuda_stream))

    def make_current(self, stream: Stream) -> Any:
        before = torch.cuda.current_stream(self.device)
        torch.cuda.set_stream(stream.torch if isinstance(stream, CudaStream) else stream)
        return before

    def event(self, *, timed: bool = False) -> Event:
        flags = 0 if timed else self._calls.cudaEventDisableTiming
        code, event = self._calls.cudaEventCreateWithFlags(flags)
        self._check(code, "making an event (cudaEventCreateWithFlags)")
        return event

    def record(self, event: Event, stream: CudaStream) -> None:
        (code,) = self._record(event, stream.raw)
        if code:
            self._check(code, "recording an event (cudaEventRecord)")

    def wait(self, stream: CudaStream, event: Event) -> None:
        (code,) = self._wait(stream.raw, event, 0)
        if code:
            self._check(code, "ordering a stream behind an event (cudaStreamWaitEvent)")

    def query(self, event: Event) -> bool:
        (code,) = self._query(event)
        if not code:
            return True
        if code != self._not_ready:
            self._check(code, "asking an event (cudaEventQuery)")
        return False

    def synchronize(self, event: Event) -> None:
        (code,) = self._calls.cudaEventSynchronize(event)
        self._check(code, "waiting for an event (cudaEventSynchronize)")

    def elapsed_ns(self, first: Event, last: Event) -> int:
        code, elapsed_ms = self._calls.cudaEventElapsedTime(first, last)
        self._check(code, "reading two events (cudaEventElapsedTime)")
        return int(elapsed_ms * 1e6)

    def allocate(self, num_bytes: int) -> Tensor:
        try:
            return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
        except torch.OutOfMemoryError:
            free, total = torch.cuda.mem_get_info(self.device)
            raise DeviceError(
                f"the device has {free} B of {total} B free, but {num_bytes} B are needed; lower "
                "budget.resident_share or slots_gib, or end what else runs there"
            ) from None

    def allocated_bytes(self) -> int:
        return int(torch.cuda.memory_stats(self.device).get("allocated_bytes.all.current", 0))

    def memory(self) -> tuple[int, int]:
        stream: Any = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        before = torch.cuda.memory_allocated(self.device)
        with torch.cuda.stream(stream):
            x = torch.ones(64, 64, dtype=torch.float16, device=self.device)
            torch.matmul(x, x)
            del x
        stream.synchronize()
        # torch takes workspaces from the same memory as tensors, and keeps them.
        workspace = torch.cuda.memory_allocated(self.device) - before
        free, total = torch.cuda.mem_get_info(self.device)
        return total, total - free - torch.cuda.memory_reserved(self.device) + workspace

    def register(self, memory: Tensor) -> None:
        code = self._cudart.cudaHostRegister(memory.data_ptr(), memory.numel(), 0)
        if int(code):
            raise DeviceError(
                f"{memory.numel()} B of host memory cannot be pinned (cudaHostRegister: {code});"
                " free host memory, or choose engine.source=direct"
            )

    def unregister(self, memory: Tensor) -> None:
        self._cudart.cudaHostUnregister(memory.data_ptr())

    def mapped(self, memory: Tensor) -> Tensor:
        # Where addresses are unified, registered memory is mapped as well, and launches ask the
        # driver for its address on the device.
        if memory.numel() and not memory.is_pinned():
            raise DeviceError(
                f"{memory.numel() * memory.itemsize} B of host memory are not pinned: no kernel can"
                " read them"
            )
        return memory

    def copy(self, target: Tensor, source: Tensor, stream: CudaStream) -> None:
        if source.nbytes != target.nbytes or not (
            source.is_contiguous() and target.is_contiguous()
        ):
            raise ValueError(
                f"a copy of {source.nbytes} B in shape {list(source.shape)} into {target.nbytes} B"
                f" in shape {list(target.shape)}: both must be contiguous and equally large"
            )
        self.move(target.data_ptr(), source.data_ptr(), source.nbytes, stream)

    def memory_of(self, memory: Tensor) -> int:
        assert memory.is_contiguous()
        return memory.data_ptr()

    def move(self, target: int, source: int, num_bytes: int, stream: CudaStream) -> None:
        (code,) = self._copy(target, source, num_bytes, self._any_kind, stream.raw)
        if code:
            self._check(code, f"a copy of {num_bytes} B (cudaMemcpyAsync)")

    def run(
        self,
        stream: CudaStream,
        work: Callable[[], T],
        *,
        reads: Sequence[Tensor] = (),
        writes: Sequence[Tensor] = (),
    ) -> T:
        with torch.cuda.stream(stream.torch):
            return work()

    def stamp(self, clock: Tensor, stream: CudaStream) -> None:
        from real.kernels.pacing import stamp

        with torch.cuda.stream(stream.torch):
            stamp(clock)

    def spin_until(self, clock: Tensor, due_ns: int, stream: CudaStream) -> None:
        from real.kernels.pacing import spin_until

        with torch.cuda.stream(stream.torch):
            spin_until(clock, due_ns)

    def capture(
        self,
        stream: CudaStream,
        work: Callable[[], Any],
        *,
        reads: Sequence[Tensor] = (),
        writes: Sequence[Tensor] = (),
    ) -> CudaGraph:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.stream(stream.torch):
            # A first call compiles kernels and takes workspaces, which a capture must not see.
            work()
            stream.torch.synchronize()
            with torch.cuda.graph(graph, stream=stream.torch):
                work()
        graph.instantiate()
        return CudaGraph(graph, self._calls.cudaGraphExec_t(graph.raw_cuda_graph_exec()))

    def replay(
        self,
        graph: CudaGraph,
        stream: CudaStream,
        *,
        reads: Uses = (),
        writes: Uses = (),
    ) -> None:
        (code,) = self._launch(graph.raw, stream.raw)
        if code:
            self._check(code, "launching a graph (cudaGraphLaunch)")

    def host_writes(self, memory: Tensor) -> None: ...


def runtime_of(device: str) -> Runtime:
    """The runtime of ``device=cuda``, or of ``device=host``, which rehearses it.

    Raise ValueError for another device.
    """
    if device == "cuda":
        return CudaRuntime()
    if device == "host":
        return HostRuntime()
    raise ValueError(
        f"device={device} has no runtime; choose cuda, or host to rehearse it without a GPU"
    )
