"""A file of experts: written once, and refused where it was cut, altered, or has other experts."""

from __future__ import annotations

import fcntl
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.cpu_runs import FREE, Prepare
from real.driver.settings import Engine
from real.host.cpu import CpuDevice
from real.setup.prepare import prepare_replay, read_request
from real.store.store import Store
from real.store.variants import StoreError
from sim.setup.configure import configure

PATTERNS = ("engine.weights=stand_in", "engine.stand_in_gib=0.01")
pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def test_a_store_is_written_once_and_opened_again(prepare: Prepare, stores: Path) -> None:
    prepare("system=lru", *FREE)
    path = stores / "tiny_mixtral-fp16.experts"
    written = path.stat().st_mtime_ns
    store = Store(path)
    store.verify()
    assert store.header.lossless == (True,)
    prepare("system=lru", *FREE)
    assert path.stat().st_mtime_ns == written


def test_a_store_that_was_cut_or_altered_is_refused_by_what_is_wrong(
    prepare: Prepare, tmp_path: Path
) -> None:
    prepare("system=lru", *FREE, store_dir=tmp_path)
    path = tmp_path / "tiny_mixtral-fp16.experts"
    content = bytearray(path.read_bytes())
    path.write_bytes(content[:-5000])
    with pytest.raises(StoreError, match=r"has \d+ bytes, but its header tells of \d+"):
        prepare("system=lru", *FREE, store_dir=tmp_path)
    content[-5000] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"another sha256 than its header tells: it was altered"):
        prepare("system=lru", *FREE, store_dir=tmp_path)
    path.write_bytes(content[:60] + b"{" * 4000 + content[4060:])
    with pytest.raises(StoreError, match="header is damaged"):
        Store(path)
    path.write_bytes(b"PK" + content[2:])
    with pytest.raises(StoreError, match=r"no store of experts.*; delete it, and the next"):
        Store(path)


def test_a_store_is_read_through_once_more_where_its_file_has_another_time(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare("system=lru", *FREE, store_dir=tmp_path)
    path, read = tmp_path / "tiny_mixtral-fp16.experts", list[Path]()
    verify = Store.verify
    monkeypatch.setattr(Store, "verify", lambda store: (read.append(store.path), verify(store)))
    prepare("system=lru", *FREE, store_dir=tmp_path)
    assert read == []
    path.write_bytes(path.read_bytes())
    for _ in range(2):
        prepare("system=lru", *FREE, store_dir=tmp_path)
    assert read == [path]


def test_a_store_of_other_experts_than_the_run_counts_with_is_refused(prepare: Prepare) -> None:
    lru, hobbit = (prepare(f"system={system}", *FREE) for system in ("lru", "hobbit"))
    assert lru.weights is not None
    assert hobbit.weights is not None
    geometry = lru.run.controller.geometry
    lru.weights.store.check_shape(geometry)
    with pytest.raises(
        StoreError,
        match=r"holds 16 x 8 experts of \(92160,\) B, the run needs 15 x 8 of \(92160,\) B",
    ):
        lru.weights.store.check_shape(replace(geometry, sites=15))
    with pytest.raises(
        StoreError, match=r"experts of \(92160, \d+\) B, the run needs 16 x 8 of \(92160,\) B"
    ):
        CpuDevice(lru.run.controller, hobbit.weights, Engine(source="direct"))


def test_a_full_disk_leaves_no_store_and_says_how_much_room_it_needs(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("real.store.store.os.posix_fallocate", full)
    with pytest.raises(StoreError, match=r"No space left on device.*it takes \d+ bytes; make room"):
        prepare("system=lru", *FREE, store_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_of_a_store_is_removed_by_the_next_and_not_what_one_still_writes(
    prepare: Prepare, tmp_path: Path
) -> None:
    """Of a large model it is as large as the store, and its disk was full ever after."""
    left, held = (tmp_path / f"tiny_mixtral-fp16.experts.part{number}" for number in (1, 2))
    left.write_bytes(b"left")
    with held.open("wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        prepare("system=lru", *FREE, store_dir=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "tiny_mixtral-fp16.experts",
        held.name,
    ]


def test_a_model_without_gates_is_refused_before_its_store_is_written(tmp_path: Path) -> None:
    words = ("model=tiny_mixtral", "model.sites=3", "model.experts=5", "engine.weights=stand_in")
    cfg, _ = configure(*words, f"engine.store_dir={tmp_path}", "system=lru", config="real")
    with pytest.raises(ValueError, match=r"^there are no gates of 3 x 5 top-2 for model tiny_mix"):
        prepare_replay(read_request(cfg, "lru"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("system=mixtral_offloading_code", *FREE), "device=cpu does not run loader.write_back"),
        (("system=mixtral_offloading_code", "device=host"), "loader.write_back"),
        (("trace=tiny_mixtral", "model.sites=15", *PATTERNS), "has 16 x 8 top-2"),
    ],
    ids=["cpu", "host", "trace"],
)
def test_a_replay_that_cannot_be_is_refused_before_its_store_is_written(
    prepare: Prepare, tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    """A stand-in of a GiB was written before a trace of other sites was refused."""
    with pytest.raises(ValueError, match=why):
        prepare(*words, store_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
