"""Whether there is a driver of CUDA."""

from __future__ import annotations

import pytest

from sim.process import drivers


@pytest.mark.parametrize("there", [(), ("libcuda.so.1",), ("nvcuda.dll",)], ids=str)
def test_any_of_the_drivers_names_will_do(
    there: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str) -> None:
        if name not in there:
            raise OSError(name)

    monkeypatch.setattr(drivers, "CDLL", load)
    assert drivers.has_cuda() is bool(there)
