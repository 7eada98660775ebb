"""The directory of an unfinished capture, from which a killed capture is continued.

Each shard is a file of tensors with a few facts. It is written under another name and then renamed,
so it is there whole or not at all. Its sha256 lies beside it: a shard that was altered since would be
taken for what the model did. ``run.json`` says what is being captured, so that no other
capture is continued by mistake.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from capture.models.discover import CaptureError

RUN_FILE = "run.json"
LOCK_FILE = "lock"
AGAIN = "remove it, and it is recorded again"


class Shards:
    """The shards of the capture into ``output_dir``, in a hidden directory beside it.

    ``identity`` is everything that decides what is recorded. Raise `CaptureError` if the directory
    holds the shards of a capture with another identity.
    """

    def __init__(self, output_dir: Path, identity: Mapping[str, Any]) -> None:
        self.directory = output_dir.parent / f".{output_dir.name}.capture"
        self._known: set[str] = set()
        """Shards that this object wrote or compared with their digests."""
        self._lock = self._locked(output_dir)
        self._tell(json.loads(json.dumps(identity)))

    def _locked(self, output_dir: Path) -> int:
        """The file of the shards' lock, which is held until all are removed, or this process ends."""
        self.directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(lock)
            raise CaptureError(
                f"output_dir={output_dir} is being captured into by another process; wait for that"
                " one, or choose another folder"
            ) from None
        except OSError:
            pass  # the file system has no locks: go on without
        return lock

    def _tell(self, identity: dict[str, Any]) -> None:
        place = self.directory / RUN_FILE
        if place.exists():
            try:
                found = json.loads(place.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise CaptureError(
                    f"{place}: cannot be read ({error}); remove {self.directory}"
                ) from None
            if not isinstance(found, dict) or found != identity:
                keys = sorted(
                    key for key in {*identity, *found} if found.get(key) != identity.get(key)
                )
                raise CaptureError(
                    f"{self.directory} holds an unfinished capture that differs in"
                    f" {', '.join(keys)}; finish that one, choose another output_dir, or remove it"
                )
            return
        self._replace(place, json.dumps(identity, indent=1, sort_keys=True).encode())

    def has(self, name: str) -> bool:
        """Whether a shard is there. Raise `CaptureError` for one that was altered."""
        place = self._place(name)
        if name in self._known or not place.exists():
            return name in self._known
        told = self._digest(name)
        try:
            with place.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
            is_same = not told.exists() or told.read_text(encoding="ascii") == found
        except (OSError, ValueError) as error:
            raise CaptureError(f"{place}: cannot be read ({error}); {AGAIN}") from None
        if not is_same:
            raise CaptureError(f"{place}: was altered after it was written; {AGAIN}")
        self._known.add(name)
        return True

    def save(
        self, name: str, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]
    ) -> None:
        """Write a shard; after this call it survives even if the process is killed."""
        whole = {key: values.contiguous() for key, values in tensors.items()}
        content = safetensors.torch.save(whole, metadata={"facts": json.dumps(facts)})
        self._replace(self._digest(name), hashlib.sha256(content).hexdigest().encode())
        self._replace(self._place(name), content)
        self._known.add(name)

    def site(self, name: str, key: str, site: int) -> torch.Tensor | None:
        """One site's part [N, ..] of a tensor [N, S, ..]; None if the shard has no such tensor.

        No more than this part is read.
        """
        with self._opened(name) as shard:
            return shard.get_slice(key)[:, site] if key in shard.keys() else None  # noqa: SIM118

    def rows(self, name: str, key: str, begin: int, end: int) -> torch.Tensor:
        """Rows ``begin`` to ``end`` of a tensor of a shard; no more than these are read."""
        with self._opened(name) as shard:
            return shard.get_slice(key)[begin:end]  # type: ignore[no-any-return]

    def tensor(self, name: str, key: str) -> torch.Tensor:
        with self._opened(name) as shard:
            return shard.get_tensor(key)  # type: ignore[no-any-return]

    def has_tensor(self, name: str, key: str) -> bool:
        with self._opened(name) as shard:
            return key in shard.keys()  # noqa: SIM118

    def facts(self, name: str) -> dict[str, Any]:
        with self._opened(name) as shard:
            return json.loads(shard.metadata()["facts"])  # type: ignore[no-any-return]

    def remove(self) -> None:
        """Delete all shards, once the capture is complete."""
        shutil.rmtree(self.directory)
        os.close(self._lock)

    def _opened(self, name: str) -> Any:
        try:
            return safe_open(self._place(name), framework="pt")
        except (OSError, SafetensorError) as error:
            raise CaptureError(f"{self._place(name)}: {error}; {AGAIN}") from None

    def _place(self, name: str) -> Path:
        return self.directory / f"{name}.safetensors"

    def _digest(self, name: str) -> Path:
        return self.directory / f"{name}.sha256"

    def _replace(self, place: Path, content: bytes) -> None:
        draft = place.with_name(f"{place.name}.draft")
        try:
            with draft.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(draft, place)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise CaptureError(
                f"{place} cannot be written ({error.strerror}); finished sequences are kept: make"
                " room, and the same command goes on from there"
            ) from error
