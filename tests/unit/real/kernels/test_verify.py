"""The check of compiled kernels finds what is wrong, what is left out, and what raises."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import real.kernels.verify as kernels
from real.kernels.verify import verify

CPU = torch.device("cpu")


def broken(monkeypatch: pytest.MonkeyPatch, name: str, change: Any) -> dict[str, list[bool]]:
    """By operator, which of its checks hold when a launcher's result is changed."""
    launcher = getattr(kernels, name)
    monkeypatch.setattr(kernels, name, lambda *args, **kwargs: change(launcher(*args, **kwargs)))
    found: dict[str, list[bool]] = {}
    for check in verify(CPU, real=False):
        found.setdefault(check.operator.split()[0], []).append(check.holds)
    return found


def spoil(result: torch.Tensor) -> torch.Tensor:
    return result * 1.0001


def leave_out(result: torch.Tensor) -> torch.Tensor:
    result[..., -1] = torch.nan
    return result


def refuse(result: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("an illegal memory access")


@pytest.mark.parametrize("change", [spoil, leave_out, refuse])
def test_a_kernel_that_is_wrong_is_found_and_no_other(
    monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    found = broken(monkeypatch, "gated_gemv", change)
    assert not any(found.pop("gated_gemv"))
    assert set(found) == {
        "dequant_gemv",
        "integer_gemv",
        "grouped_gemm",
        "expert",
        "masked_expert",
        "partial_expert",
        "sparse_expert",
        "gathered_expert",
        "gather_rows",
        "stacked_gates",
        "sequential_gates",
    }
    assert all(all(held) for held in found.values())


def test_a_second_call_with_other_bits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(1000))
    found = broken(monkeypatch, "dense_expert", lambda result: result * (1 + 1e-7 * next(calls)))
    assert not all(found.pop("expert"))
    assert all(all(held) for held in found.values())


def test_a_row_that_is_brought_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    bring = kernels.gather_rows

    def shifted(
        source: torch.Tensor, row_C: torch.Tensor, target: torch.Tensor, columns: int
    ) -> None:
        bring(source, row_C.roll(1), target, columns)

    assert kernels._gathered(CPU, 67, 26, 7) == 0
    monkeypatch.setattr(kernels, "gather_rows", shifted)
    assert kernels._gathered(CPU, 67, 26, 7) > 0.5


def test_a_wrong_selection_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = broken(
        monkeypatch, "stacked_gates", lambda gated: (gated[0], gated[1].flip(2), gated[2])
    )
    assert not any(found["stacked_gates"])
    assert all(found["sequential_gates"])
