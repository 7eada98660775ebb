"""Files of ``torch.save``, read without running anything that they hold."""

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
    """What the file holds: tensors in memory, numbers, text, lists and dicts, and nothing else.

    Raise `ImportFailure` without torch, `TraceError` for what torch's restricted unpickler does not
    take: code, classes, a truncated or damaged file.
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
        # What torch's reader raises for a damaged or hostile file has no common base.
        said = str(error).split("\n")[0].split(". ")[0]
        refuse(
            "content",
            True,
            said,
            "must be plain tensors, numbers, text, lists and dicts (weights_only=True)",
        )
        raise


def array_of(refuse: Refuse, name: str, value: object, kinds: str, dimensions: int) -> NDArray[Any]:
    """``value``, a dense tensor of ``dimensions`` and of a dtype of ``kinds`` (numpy's letters),
    as an array.
    """
    import torch

    wrong = not isinstance(value, torch.Tensor)
    refuse(name, wrong, type(value).__name__, f"must be a tensor with {dimensions} dimension(s)")
    assert isinstance(value, torch.Tensor)
    plain = value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized
    # A few stored numbers can be stretched to any shape by strides of 0.
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
