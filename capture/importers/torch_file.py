"""Reads files of ``torch.save`` without running any code that they may hold."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capture.importers.source import ImportFailure, Refuse, require_file

LARGEST_FILE_BYTES = 1 << 32
WHAT = "a file of torch.save"


def load(key: str, path: Path, refuse: Refuse) -> Any:
    """The contents of the file: tensors on the CPU, numbers, text, lists and dicts.

    Raise `ImportFailure` if torch is not installed. Raise `TraceError` for whatever torch's
    restricted unpickler does not accept: code, classes, a truncated or damaged file.
    """
    require_file(key, path, WHAT, LARGEST_FILE_BYTES, "record less")
    try:
        import torch
    except ImportError:
        raise ImportFailure(
            f"{key}={path} was written by torch, which reads it: pip install -e '.[model]'"
        ) from None
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
            packed = any(
                member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()
            )
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        refuse("content", True, str(error), "must be a whole zip archive, as torch.save writes")
        raise
    rule = f"must be stored without compression, at most {LARGEST_FILE_BYTES} bytes"
    refuse("content", packed or unpacked > LARGEST_FILE_BYTES, f"{unpacked} bytes", rule)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # The exceptions that torch raises for damaged or hostile files have no common base.
        said = str(error).split("\n")[0].split(". ")[0]
        refuse(
            "content",
            True,
            said,
            "must be plain tensors, numbers, text, lists and dicts (weights_only=True)",
        )
        raise


def array_of(refuse: Refuse, name: str, value: object, kinds: str, dimensions: int) -> NDArray[Any]:
    """``value`` as an array.

    It must be a dense tensor with ``dimensions`` and a dtype of ``kinds`` (numpy's letters).
    """
    import torch

    wrong = not isinstance(value, torch.Tensor)
    refuse(name, wrong, type(value).__name__, f"must be a tensor with {dimensions} dimension(s)")
    assert isinstance(value, torch.Tensor)
    plain = value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized
    # Strides of 0 could stretch a few stored numbers to any shape.
    held = plain and value.numel() * value.element_size() <= value.untyped_storage().nbytes()
    rule = "must be a dense tensor that stores each of its values"
    refuse(name, not held, f"{value.dtype} {list(value.shape)}", rule)
    try:
        found = value.detach().numpy()
    except (TypeError, RuntimeError):
        found = np.empty(0, object)
    rule = (
        f"must be {dimensions} dimension(s) of"
        f" {'true and false' if kinds == 'b' else 'whole numbers'}"
    )
    wrong = found.dtype.kind not in kinds or found.ndim != dimensions
    refuse(name, wrong, f"{value.dtype} {list(value.shape)}", rule)
    return found
