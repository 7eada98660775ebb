"""The raw calls of the CUDA runtime, on a stand-in of their module."""

from __future__ import annotations

import sys

import pytest
import torch

from helpers.fake_calls import FakeCalls, Handle, cudaError_t, cudaMemcpyKind
from real.cuda.runtime import CudaGraph, CudaRuntime, CudaStream, DeviceError, raw_calls


@pytest.fixture
def calls() -> FakeCalls:
    return FakeCalls()


@pytest.fixture
def runtime(calls: FakeCalls) -> CudaRuntime:
    made = object.__new__(CudaRuntime)
    made.name = "a GPU"
    made._use(calls)
    return made


STREAM = CudaStream(None, Handle(7))


def test_events_are_made_with_a_clock_only_where_times_are_read(
    runtime: CudaRuntime, calls: FakeCalls
) -> None:
    runtime.event()
    runtime.event(timed=True)
    assert calls.made == [
        ("cudaEventCreateWithFlags", (calls.cudaEventDisableTiming,)),
        ("cudaEventCreateWithFlags", (0,)),
    ]


def test_events_are_recorded_waited_for_and_read_in_the_arguments_order(
    runtime: CudaRuntime, calls: FakeCalls
) -> None:
    first, last = runtime.event(), runtime.event()
    calls.made.clear()
    runtime.record(first, STREAM)
    runtime.wait(STREAM, first)
    runtime.synchronize(last)
    assert runtime.elapsed_ns(first, last) == 1_500_000
    assert calls.made == [
        ("cudaEventRecord", (first, STREAM.raw)),
        ("cudaStreamWaitEvent", (STREAM.raw, first, 0)),
        ("cudaEventSynchronize", (last,)),
        ("cudaEventElapsedTime", (first, last)),
    ]


def test_an_event_that_is_asked_has_ended_or_not_or_the_device_has_failed(
    runtime: CudaRuntime, calls: FakeCalls
) -> None:
    calls.codes["cudaEventQuery"] = [
        cudaError_t.cudaErrorNotReady,
        cudaError_t.cudaSuccess,
        cudaError_t.cudaErrorIllegalAddress,
    ]
    event = runtime.event()
    assert not runtime.query(event)
    assert runtime.query(event)
    with pytest.raises(
        DeviceError,
        match=r"asking an event \(cudaEventQuery\) failed on a GPU with cudaErrorIllegalAddress",
    ):
        runtime.query(event)


def test_a_copy_is_one_call_of_addresses_and_bytes(runtime: CudaRuntime, calls: FakeCalls) -> None:
    source, target = torch.arange(12, dtype=torch.int32), torch.zeros(3, 4, dtype=torch.int32)
    runtime.copy(target, source[:12].view(3, 4), STREAM)
    kind = cudaMemcpyKind.cudaMemcpyDefault
    assert calls.made == [
        ("cudaMemcpyAsync", (target.data_ptr(), source.data_ptr(), 48, kind, STREAM.raw))
    ]
    with pytest.raises(ValueError, match=r"a copy of 48 B .* into 44 B .* equally large"):
        runtime.copy(target.view(-1)[:11], source, STREAM)
    with pytest.raises(ValueError, match="both must be contiguous"):
        runtime.copy(target.T, source.view(4, 3), STREAM)


def test_a_graph_is_launched_by_its_executable_form(runtime: CudaRuntime, calls: FakeCalls) -> None:
    graph = CudaGraph(None, Handle(9))
    runtime.replay(graph, STREAM, reads=lambda: pytest.fail("a GPU does not look at what is read"))
    assert calls.made == [("cudaGraphLaunch", (graph.raw, STREAM.raw))]


@pytest.mark.parametrize("name", ["record", "wait", "copy", "replay", "synchronize", "elapsed_ns"])
def test_every_call_that_fails_is_told_by_name(
    name: str, runtime: CudaRuntime, calls: FakeCalls
) -> None:
    event, memory = runtime.event(), torch.zeros(4)
    given = {
        "record": ("cudaEventRecord", lambda: runtime.record(event, STREAM)),
        "wait": ("cudaStreamWaitEvent", lambda: runtime.wait(STREAM, event)),
        "copy": ("cudaMemcpyAsync", lambda: runtime.copy(memory, memory, STREAM)),
        "replay": ("cudaGraphLaunch", lambda: runtime.replay(CudaGraph(None, None), STREAM)),
        "synchronize": ("cudaEventSynchronize", lambda: runtime.synchronize(event)),
        "elapsed_ns": ("cudaEventElapsedTime", lambda: runtime.elapsed_ns(event, event)),
    }
    call, work = given[name]
    calls.codes[call] = [cudaError_t.cudaErrorInvalidValue]
    with pytest.raises(DeviceError, match=rf"\({call}\) failed on a GPU with cudaErrorInvalidVal"):
        work()


def test_where_the_package_of_raw_calls_is_missing_it_is_named_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", None)
    with pytest.raises(
        DeviceError, match=r"the package cuda-bindings is missing .*pip install cuda-bindings"
    ):
        raw_calls()
