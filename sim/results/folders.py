"""The folders of results: locked while they are written, empty at first, and never half of old and new."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path

from sim.process.files import writing
from sim.process.interrupts import held_back
from sim.values.places import UNFINISHED, is_free, is_unfinished

BUILDING = ".building."
"""What the name of the folder begins with in which a run's files are made."""
ASIDE, MOVING = ".before-overwrite", ".being-moved"
"""What follows a folder's name in that of the folder beside it that has its older results: all of
them; and some of them, while they are moved.
"""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock ``directory`` (made if it is new) until the block or this process ends.

    The lock holds against others that ask for it in this way. If the block raises, a folder that
    was made for it is removed again if it is empty. Raise OSError if another process has the lock.
    """
    was_there, handle = directory.exists(), None
    try:
        with held_back():
            while (handle := _take(directory)) is None:
                pass
        yield
    except BaseException:
        if not was_there and handle is not None:
            forget(directory)
        raise
    finally:
        if handle is not None:
            os.close(handle)


def _take(directory: Path) -> int | None:
    """Open and lock ``directory``; return its file descriptor.

    None if another process has just removed it, or has put another in its place. Raise OSError if
    another process has the lock, or the directory cannot be made or opened.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _unwritable(directory, error) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise OSError(
            f"output_dir={directory} is being written by another process; choose another one"
        ) from None
    except OSError:
        return handle  # the file system has no locks: go on without
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(handle), directory.stat()):
            return handle
    os.close(handle)
    return None


def folder_for(words: Mapping[str, str], default: Path) -> Path:
    """The folder of a command's results: ``output_dir`` of its words, else ``default``, or the
    first of ``default-2``, ``default-3`` .. that is absent or empty, and that nobody writes into.
    """
    if "output_dir" in words:
        return Path(words["output_dir"])
    if words.get("overwrite") == "yes":
        return default
    later = (default.with_name(f"{default.name}-{number}") for number in count(2))
    return next(
        place for place in chain([default], later) if is_free(place) and not _is_held(place)
    )


def _is_held(directory: Path) -> bool:
    """Whether another process has the lock of a folder."""
    with suppress(OSError):
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
    return False


@contextmanager
def own_folder(
    directory: Path, overwrite: bool = False, *, at_once: bool = False
) -> Iterator[None]:
    """Lock an empty ``directory`` and empty it again if the block raises.

    `UNFINISHED` lies in it while the block writes. So what a process that was killed has left is not
    taken for whole, and is removed here first. Not so with ``at_once``: the block puts all of its
    results there in one step.

    With ``overwrite`` the folder need not be empty: what is in it goes aside first, to NAME`ASIDE`,
    and comes back if the block raises. After a process that was killed it comes back here, before
    anything else. Raise OSError as ``locked`` and ``check_writable`` do.
    """
    with locked(directory):
        is_own = False
        try:
            with held_back():
                if _bring_back(directory) and not overwrite:
                    raise OSError(
                        f"output_dir={directory} has its results again, which a killed command had"
                        " put aside; choose another one, or add overwrite=yes"
                    )
                if is_unfinished(directory):
                    _empty(directory)
                if overwrite:
                    _put_aside(directory)
                check_writable(directory)
                is_own = True
                if not at_once:
                    (directory / UNFINISHED).touch()
            with writing(directory):
                yield
            (directory / UNFINISHED).unlink(missing_ok=True)
        except BaseException:
            if is_own:
                _empty(directory)
            _bring_back(directory)
            raise
        _drop(_beside(directory, ASIDE))


def _beside(directory: Path, kind: str) -> Path:
    place = directory.absolute()
    return place.with_name(f"{place.name}{kind}")


def _put_aside(directory: Path) -> None:
    """Move what is in ``directory`` to the folder beside it that has its name and `ASIDE`.

    Raise OSError for a folder that is more than a command's results.
    """
    if Path.cwd().is_relative_to(directory.absolute()):
        raise OSError(f"output_dir={directory} has the working directory in it; choose another one")
    # A run that is killed while it writes its files leaves the folder in which it made them.
    names = [path.name for path in directory.iterdir() if not path.name.startswith(BUILDING)]
    if hidden := [name for name in names if name.startswith(".")]:
        raise OSError(
            f"output_dir={directory} has {hidden[0]}, which no command here leaves; empty it"
            " yourself, or choose another one"
        )
    # While some of it is here and some there the folder has another name: a process that is killed
    # then has written nothing yet.
    moving = _beside(directory, MOVING)
    moving.mkdir()
    _move_all(directory, moving)
    moving.rename(_beside(directory, ASIDE))


def _bring_back(directory: Path) -> bool:
    """Move what was put aside to ``directory`` again, in the place of what is there; return whether
    there was anything.
    """
    aside, moving = _beside(directory, ASIDE), _beside(directory, MOVING)
    if aside.is_dir():
        _empty(directory)
        aside.rename(moving)
    if not moving.is_dir():
        return False
    _move_all(moving, directory)
    moving.rmdir()
    return any(directory.iterdir())


def _drop(aside: Path) -> None:
    """Remove what was put aside, if there is any. From its first moment on nobody brings it back."""
    if aside.is_dir():
        gone = Path(tempfile.mkdtemp(prefix=f".{aside.name}.", dir=aside.parent))
        aside.rename(gone)
        shutil.rmtree(gone)


def _empty(directory: Path) -> None:
    for path in directory.iterdir():
        _remove(path)


def _move_all(source: Path, target: Path) -> None:
    for path in list(source.iterdir()):
        path.rename(target / path.name)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def forget(folder: Path) -> None:
    """Remove an empty ``folder`` and its empty parents, up to the working directory."""
    folder, here = folder.absolute(), Path.cwd()
    with suppress(OSError):  # it is not empty, or somebody else has removed it
        while folder != here and folder.is_dir():
            folder.rmdir()
            folder = folder.parent


def check_writable(directory: Path) -> None:
    """Raise OSError unless ``directory`` (made if it is new) is empty and can be written.

    Commands call it before any work is done.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise OSError("it is not empty")
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise _unwritable(directory, error) from error


def check_can_be_made(result: Path, key: str = "output_dir") -> None:
    """Raise OSError, with the ``key`` that names it, unless a folder or file beside which drafts
    are made could be made there. Nothing is.

    Commands whose result appears whole call it before any work is done.
    """
    place = result.absolute().parent
    while not os.path.lexists(place):
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise _unwritable(result, error, key) from error


def _unwritable(result: Path, error: OSError, key: str = "output_dir") -> OSError:
    return OSError(f"{key}={result} cannot be written ({error}); choose another one")
