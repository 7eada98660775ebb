"""How many bytes an access moves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim.policies.payloads import ActiveShare, Whole, WholeLayer
from sim.types import Geometry

GEOMETRY = Geometry(2, 8, 2, ("fp16",), (16.0,), (1000,), 8000)
SPARSITIES = (0.5, 0.8, 0.9)
SHARES = np.array([[[0.52, 0.31, 0.125], [0.4, 0.2, 0.0999]]], np.float32)
"""Of one row's two experts, at each sparsity."""


def gate(*experts: int, rows: int = 1, share: Any = SHARES) -> Any:
    """A gate of so many rows, which all chose these experts."""
    return SimpleNamespace(needs=list(experts), experts=np.array([experts] * rows), share=share)


def forecast(*experts: int, rows: int = 1) -> Any:
    return SimpleNamespace(needs=list(experts), experts=np.array([experts] * rows))


def test_a_whole_payload_is_never_asked() -> None:
    assert Whole().whole
    with pytest.raises(NotImplementedError):
        Whole().moved_bytes(0, gate(1), 0)
    with pytest.raises(NotImplementedError):
        Whole().missing_bytes(0, gate(1), 0, 1)


# ---- layer by layer --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("needs", "experts"), [((3, 5), [4, 4]), ((3,), [8]), ((0, 1, 2), [3, 3, 2]), (tuple(range(8)), [1] * 8)]
)
def test_the_needs_of_a_gate_bring_all_experts_of_the_layer_between_them(
    needs: tuple[int, ...], experts: list[int]
) -> None:
    payload = WholeLayer()
    payload.prepare(GEOMETRY, ())
    moved = [payload.moved_bytes(expert, gate(*needs), index) for index, expert in enumerate(needs)]
    assert moved == [1000 * count for count in experts]
    assert sum(moved) == 8 * 1000
    assert payload.missing_bytes(3, gate(*needs), 0, moved[0]) == 0


# ---- active channels -------------------------------------------------------------------------------------------------


def active(sparsity: float = 0.9, shares: str = "recorded") -> ActiveShare:
    payload = ActiveShare(sparsity, shares)
    payload.prepare(GEOMETRY, SPARSITIES)
    return payload


@pytest.mark.parametrize(("sparsity", "moved"), [(0.5, [520, 400]), (0.8, [310, 200]), (0.9, [125, 100])])
def test_a_row_moves_the_channels_that_it_makes_active(sparsity: float, moved: list[int]) -> None:
    """Shares of 1,000 bytes to the nearest: a share is a number of channels, whatever float32 makes of it."""
    assert [active(sparsity).moved_bytes(e, gate(3, 5), i) for i, e in enumerate((3, 5))] == moved


def test_a_forecast_moves_the_nominal_share() -> None:
    """1 - 0.8 of 1,000 bytes."""
    assert active(0.8).moved_bytes(3, forecast(3, 5), 0) == 200
    assert active(0.8, "nominal").moved_bytes(3, gate(3, 5), 0) == 200


def test_several_rows_move_whole_experts() -> None:
    assert active().moved_bytes(3, gate(3, 5, rows=2), 0) == 1000
    assert active().moved_bytes(3, forecast(3, 5, rows=2), 0) == 1000


def test_what_a_prefetch_lacks_of_a_rows_channels_is_left_out_but_not_of_several_rows() -> None:
    """FloE section 3.3.2: channels that the predictor misses are not computed."""
    assert active().missing_bytes(3, gate(3, 5), 0, 100) == 0
    assert active().missing_bytes(3, gate(3, 5, rows=2), 0, 100) == 900


@pytest.mark.parametrize(("share", "moved"), [(0.0, 1), (1.0, 1000)])
def test_an_access_moves_at_least_a_byte_and_at_most_all(share: float, moved: int) -> None:
    assert active().moved_bytes(3, gate(3, share=np.full((1, 1, 3), share)), 0) == moved


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.0,), r"payload\.sparsity=1\.0 must be at least 0 and below 1"),
        ((-0.1,), r"payload\.sparsity"),
        (("most",), r"payload\.sparsity"),
        ((0.9, "guessed"), r"unknown payload\.shares=guessed; known: recorded, nominal"),
    ],
)
def test_shares_that_make_no_sense_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ActiveShare(*arguments)


def test_a_sparsity_that_is_not_recorded_is_refused_with_those_that_are() -> None:
    message = (
        r"sparsities \[0\.5, 0\.8, 0\.9\], not at payload\.sparsity=0\.7; choose one of these, or payload\.shares="
    )
    with pytest.raises(ValueError, match=message):
        active(0.7)
    assert active(0.7, "nominal").moved_bytes(3, gate(3), 0) == 300
