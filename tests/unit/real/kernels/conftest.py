"""Where kernels are checked: on Triton's interpreter, or with TRITON_INTERPRET=0 on a GPU."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest
import torch

from real.kernels.jit import interpreted

HAS_TRITON = importlib.util.find_spec("triton") is not None


@pytest.fixture
def device() -> Iterator[str]:
    """The device on which a test's launchers run kernels; meanwhile torch.empty gives NaN."""
    if not HAS_TRITON:
        pytest.skip("Triton is not installed")
    torch.use_deterministic_algorithms(True)
    assert bool(torch.empty(9).isnan().all())
    try:
        if os.environ["TRITON_INTERPRET"] == "1":
            with interpreted():
                yield "cpu"
        elif torch.cuda.is_available():
            yield "cuda"
        else:
            pytest.skip("neither Triton's interpreter nor a GPU: unset TRITON_INTERPRET")
    finally:
        torch.use_deterministic_algorithms(False)
