"""Finds out what cannot be imported here, and how to get it. Standard library only."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import io
import lzma
import os
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

NEEDED = {
    "torch": "torch",
    "numpy": "numpy",
    "triton": "triton",
    "cuda.bindings.runtime": "cuda-bindings",
    "transformers": "transformers",
    "safetensors": "safetensors",
    "tokenizers": "tokenizers",
    "simpy": "simpy",
    "polars": "polars",
    "hydra": "hydra-core",
    "omegaconf": "omegaconf",
    "antlr4": "antlr4-python3-runtime",
    "rich": "rich",
    "yaml": "pyyaml",
    "matplotlib": "matplotlib",
}
"""Modules, each with the package that brings it."""
PARTS = {"polars": ("polars", "_polars_runtime_32")}
"""Modules that need others beside them, with all of these."""
ONLY_FOR_GPU = ("triton", "cuda.bindings.runtime")


@dataclass(frozen=True)
class Missing:
    module: str
    package: str
    why: str


def absent(device: str, modules: Iterable[str] = NEEDED) -> list[Missing]:
    """What is not installed here at all, which takes no import to find out."""
    return [
        Missing(module, NEEDED[module], "it is not installed")
        for module in modules
        if (module not in ONLY_FOR_GPU or device == "cuda") and not _is_installed(module)
    ]


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def missing(device: str, modules: Iterable[str] = NEEDED) -> list[Missing]:
    """What cannot be imported here. Each is tried, since an installed package may still fail."""
    found = []
    for module in modules:
        if module in ONLY_FOR_GPU and device != "cuda":
            continue
        try:
            importlib.import_module(module)
        except Exception as error:  # a broken package may raise anything
            found.append(Missing(module, NEEDED[module], f"{type(error).__name__}: {error}"))
    return found


def advice(found: Sequence[Missing]) -> str:
    """What is missing, and the ways out: from an index, or carried from another machine."""
    lines = [f"{one.module} cannot be imported ({one.why})" for one in found]
    packages, modules = (
        " ".join(one.package for one in found),
        ",".join(one.module for one in found),
    )
    return "\n".join(
        [
            *lines,
            f"with a package index: python -m pip install {packages}",
            (
                "without one: where they are installed, python -m real.suite pack"
                f" modules={modules} output=carried.tar.xz; bring the file here, tar xJf"
                " carried.tar.xz -C FOLDER, and set PYTHONPATH=FOLDER:$PYTHONPATH; or python -m"
                f" real.suite bundle modules={modules} output=bundle.tar.xz, which holds the"
                " project, too"
            ),
        ]
    )


def pack(modules: Sequence[str], output: Path) -> int:
    """Write installed modules to one file; return its size in bytes.

    Raise ValueError for a module that is not installed here, or that only this version of Python
    can load.
    """
    if output.exists() or not output.parent.is_dir():
        raise ValueError(f"output={output} must be a new file in a folder that exists")
    files = files_of(modules)
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for path, name in files:
            archive.add(path, name)
    packed = lzma.compress(content.getvalue(), format=lzma.FORMAT_XZ, preset=9)
    part = output.with_name(f"{output.name}.part{os.getpid()}")
    part.write_bytes(packed)
    os.replace(part, output)
    return len(packed)


def files_of(modules: Sequence[str]) -> list[tuple[Path, str]]:
    """The files of installed modules and of what they need beside them, with names for an archive.

    Raise ValueError for a module that is not installed here, or that only this version of Python
    can load.
    """
    if unknown := [name for name in modules if name not in NEEDED]:
        raise ValueError(f"modules={','.join(unknown)} are none of {', '.join(NEEDED)}")
    return [
        found
        for module in modules
        for part in PARTS.get(module, (module,))
        for found in _files_of(part)
    ]


def _files_of(module: str) -> list[tuple[Path, str]]:
    """An installed module's files, and their names in an archive."""
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"{module} is not installed here ({error})") from None
    assert found.__file__ is not None
    here, told = Path(found.__file__), _metadata_of(module)
    if here.name != "__init__.py":
        return [(here, here.name), *told]
    files = [
        path
        for path in sorted(here.parent.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]
    tied = sysconfig.get_config_var("EXT_SUFFIX")
    if bound := [path.name for path in files if tied and path.name.endswith(tied)]:
        raise ValueError(
            f"{module} holds {bound[0]}, which only Python"
            f" {sys.version_info.major}.{sys.version_info.minor} can load; bring a wheel for the"
            " other machine's version instead (pip download --python-version)"
        )
    return [*((path, str(path.relative_to(here.parent.parent))) for path in files), *told]


def _metadata_of(module: str) -> list[tuple[Path, str]]:
    """The metadata of the package that a module comes with.

    Code may ask for that package's version, and fail without it.
    """
    names = importlib.metadata.packages_distributions().get(module, [])
    files = [path for name in sorted(set(names)) for path in importlib.metadata.files(name) or ()]
    return [
        (Path(str(path.locate())), str(path))
        for path in files
        if path.name == "METADATA" and path.parent.name.endswith(".dist-info")
    ]
