"""Writes all that a machine with a GPU needs as one file.

That is what the suite reads of the project, and packages.

What may be sent to a lent machine is often limited, and the machine may reach no package index.
"""

from __future__ import annotations

import io
import lzma
import os
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from real.suite.needs import files_of
from real.suite.pairs import FILE
from sim.values.places import ROOT

ASSETS, RESULTS = "capture/assets", "real/results"
MODEL = "tiny_mixtral"
"""The bundled model whose weights, trace and predictors the suite reads."""
CARRIED = "build/carried"
"""Where packages lie in a bundle; PYTHONPATH must name it."""
PRESET = 6
"""The level of xz: 9 takes several times as long for a few per cent."""


@dataclass(frozen=True)
class Bundle:
    """What was written, in bytes.

    The project's files, those of its files that were left out, packages, and the packed file.
    """

    tree_bytes: int
    left_out_bytes: int
    package_bytes: int
    packed_bytes: int


def is_read(name: str) -> bool:
    """Whether the suite may read a file of the project, named from its root."""
    parts = Path(name).parts
    if name.startswith(RESULTS + "/"):
        return name == f"{RESULTS}/{FILE.name}"
    if not name.startswith(ASSETS + "/"):
        return True
    # What is left out are the weights, traces and predictors of other bundled models.
    return all(not part.startswith("tiny_") or part == MODEL for part in parts)


def tracked(root: Path = ROOT) -> list[str]:
    """The project's files, named from its root. Raise ValueError where it is no checkout."""
    done = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z"], capture_output=True, text=True
    )
    if done.returncode:
        raise ValueError(
            f"{root} is no git checkout ({done.stderr.strip()}): what belongs to the project is not"
            " known"
        )
    return sorted(name for name in done.stdout.split("\0") if name and (root / name).is_file())


def bundle(modules: Sequence[str], output: Path, most_bytes: int) -> Bundle:
    """Write the project and these installed packages to one new file (tar, xz).

    Raise ValueError for what cannot be packed, and where the file would take more than
    ``most_bytes``; then no file is left.
    """
    if output.exists() or not output.parent.is_dir():
        raise ValueError(f"output={output} must be a new file in a folder that exists")
    names = tracked()
    kept = [(ROOT / name, name) for name in names if is_read(name)]
    packages = [(path, f"{CARRIED}/{name}") for path, name in files_of(modules)]
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for path, name in (*kept, *packages):
            archive.add(path, name)
    packed = lzma.compress(content.getvalue(), format=lzma.FORMAT_XZ, preset=PRESET)
    told = Bundle(
        _size(kept),
        _size([(ROOT / name, name) for name in names if not is_read(name)]),
        _size(packages),
        len(packed),
    )
    if len(packed) > most_bytes:
        raise ValueError(
            f"the bundle takes {len(packed)} B, more than {most_bytes}: bring fewer packages"
            " (modules=), or raise most_mib"
        )
    part = output.with_name(f"{output.name}.part{os.getpid()}")
    part.write_bytes(packed)
    os.replace(part, output)
    return told


def _size(files: Sequence[tuple[Path, str]]) -> int:
    return sum(path.stat().st_size for path, _ in files)
