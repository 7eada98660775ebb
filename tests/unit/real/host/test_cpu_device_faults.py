"""Faults of the machine while the CPU device runs: each is reported, and the run ends."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from helpers.cpu_runs import FREE, THOROUGH, Prepare, check_contents, run
from real.host.cpu import CpuDevice
from real.store.variants import StoreError

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@pytest.mark.parametrize(
    "source",
    [pytest.param("buffered", marks=THOROUGH), "direct", pytest.param("mmap", marks=THOROUGH)],
)
def test_a_file_that_is_cut_while_it_is_read_ends_the_run_with_a_message(
    prepare: Prepare, tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(
        "system=load_on_demand", f"engine.source={source}", *FREE, store_dir=tmp_path
    )
    assert prepared.weights is not None
    path, device = prepared.weights.store.path, cast(CpuDevice, prepared.device)
    compute, computed = device.compute, []

    def cut_at_the_60th(key: int, rows: int, nominal_ns: int) -> None:
        computed.append(key)
        if len(computed) == 60:
            os.truncate(path, path.stat().st_size // 8)
        compute(key, rows, nominal_ns)

    monkeypatch.setattr(device, "compute", cut_at_the_60th)
    with pytest.raises(RuntimeError, match="engine 0 of link 0 failed") as failed:
        run(prepared)
    assert isinstance(failed.value.__cause__, StoreError)
    assert "it was cut while the run was reading it" in str(failed.value.__cause__)
    assert len(computed) > 59


@pytest.mark.parametrize("source", ["ram", "buffered"])
def test_a_store_that_another_run_writes_anew_before_this_one_reads_it_ends_the_run(
    prepare: Prepare, tmp_path: Path, source: str
) -> None:
    """Both have one name, and places in the file are alike: its experts were another model's."""
    words = ("system=load_on_demand", f"engine.source={source}", *FREE)
    first = prepare(*words, store_dir=tmp_path)
    prepare(*words, "engine.dtype=bfloat16", store_dir=tmp_path)
    with pytest.raises((StoreError, RuntimeError)) as failed:
        run(first)
    assert "was written anew" in str(failed.value.__cause__ or failed.value)


def test_a_store_that_another_run_writes_once_more_with_the_same_experts_is_read(
    prepare: Prepare, tmp_path: Path
) -> None:
    words = ("system=load_on_demand", "engine.source=buffered", *FREE)
    first = prepare(*words, store_dir=tmp_path)
    assert first.weights is not None
    first.weights.store.path.unlink()
    prepare(*words, store_dir=tmp_path)
    run(first)


def test_a_read_error_ends_the_run_with_the_systems_own_words(
    prepare: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare("system=load_on_demand", "engine.source=buffered", *FREE)
    preadv, left = os.preadv, [150]

    def fails_later(file: int, buffers: Any, offset: int) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(5, "Input/output error")
        return preadv(file, buffers, offset)

    monkeypatch.setattr("real.store.reading.os.preadv", fails_later)
    with pytest.raises(RuntimeError, match="engine 0 of link 0 failed") as failed:
        run(prepared)
    assert "Input/output error" in str(failed.value.__cause__)


@THOROUGH
def test_short_reads_are_read_on_and_change_nothing(
    prepare: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare("system=lru", "engine.source=buffered", *FREE)
    preadv = os.preadv
    monkeypatch.setattr(
        "real.store.reading.os.preadv",
        lambda f, b, o: preadv(f, [b[0][: max(1, len(b[0]) // 2)]], o),
    )
    run(prepared)
    assert check_contents(prepared) > 20


def test_a_loader_that_hangs_is_noticed_and_the_run_ends(
    prepare: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog gives a wait up when nothing is handed over for longer than the patience."""
    prepared = prepare("system=load_on_demand", "engine.patience_s=0.3", *FREE)
    device, hold = cast(CpuDevice, prepared.device), threading.Event()
    monkeypatch.setattr(device, "_move", lambda *_arguments: hold.wait(20))
    with pytest.raises(
        RuntimeError, match=r"nothing has happened for 0\.3 s|did not end within 0\.3 s"
    ):
        run(prepared)
    hold.set()
    for thread in device._threads:
        thread.join(20)
