"""Payloads: how many bytes an access moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.bundled import Configure
from sim.policies.payloads import ActiveShare, ReusedChannels, Whole, WholeLayer
from sim.policies.requires import Given, Shape
from sim.setup.build import build
from sim.setup.execute import execute
from sim.traces.trace import Trace
from sim.values.types import Geometry

GEOMETRY = Geometry(2, 8, 2, ("fp16",), (16.0,), (1000,), 8000)
SPARSITIES = (0.5, 0.8, 0.9)
SHARES = np.array([[[0.52, 0.31, 0.125], [0.4, 0.2, 0.0999]]], np.float32)
"""Active shares of one row's two experts, at each sparsity."""


def given(geometry: Geometry) -> Given:
    """What a payload is given of a trace with active shares."""
    return Given(Shape(2, 8, 2), geometry, sparsities=SPARSITIES)


def gate(
    *experts: int, rows: int = 1, share: Any = SHARES, site: int = 0, position: int = 9
) -> Any:
    """A gate of so many rows that all chose these experts.

    The first row is at position 9 of sequence 4.
    """
    return SimpleNamespace(
        needs=list(experts),
        experts=np.array([experts] * rows),
        share=share,
        site=site,
        row_sequence=np.full(rows, 4),
        row_position=np.arange(rows) + position,
    )


def forecast(*experts: int, rows: int = 1, site: int = 1) -> Any:
    return SimpleNamespace(needs=list(experts), experts=np.array([experts] * rows), site=site)


def test_a_whole_payload_is_never_asked() -> None:
    assert Whole().whole
    with pytest.raises(NotImplementedError):
        Whole().moved_bytes(0, gate(1), 0)
    with pytest.raises(NotImplementedError):
        Whole().missing_bytes(0, gate(1), 0, 1)
    with pytest.raises(NotImplementedError):
        Whole().forecast_bytes(0, forecast(1), 0, gate(1))


# Layer by layer


# Contracts: C45
@pytest.mark.parametrize(
    ("needs", "experts"),
    [((3, 5), [4, 4]), ((3,), [8]), ((0, 1, 2), [3, 3, 2]), (tuple(range(8)), [1] * 8)],
)
def test_the_needs_of_a_gate_bring_all_experts_of_the_layer_between_them(
    needs: tuple[int, ...], experts: list[int]
) -> None:
    payload = WholeLayer()
    payload.prepare(given(GEOMETRY))
    moved = [payload.moved_bytes(expert, gate(*needs), index) for index, expert in enumerate(needs)]
    assert moved == [1000 * count for count in experts]
    assert moved == [
        payload.forecast_bytes(e, forecast(*needs), index, gate(1)) for index, e in enumerate(needs)
    ]
    assert sum(moved) == 8 * 1000
    assert payload.missing_bytes(3, gate(*needs), 0, moved[0]) == 0


def widths(*rows: Sequence[int]) -> Geometry:
    """Sites whose experts have precisions of 1,000 and 300 bytes; a row names those of one site."""
    missing = {
        (1 - p, site, expert) for site, row in enumerate(rows) for expert, p in enumerate(row)
    }
    count = len(rows[0])
    keys = frozenset((p * len(rows) + site) * (count + 1) + expert for p, site, expert in missing)
    return Geometry(
        len(rows), count, 2, ("int8", "int2"), (8.0, 2.0), (1000, 300), 8000, missing=keys
    )


# Contracts: C45
@pytest.mark.parametrize(
    ("site", "needs", "moved"),
    [
        (0, (1, 4), [300 + 1000 + 300, 300 + 1000]),  # each its own, then by id: 0 and 3, 2
        (0, (4, 1), [300 + 1000 + 300, 300 + 1000]),
        (0, (0,), [1000 + 300 + 1000 + 300 + 300]),
        (0, (0, 1, 2, 3, 4), [1000, 300, 1000, 300, 300]),
        (1, (1, 4), [300 * 3, 300 * 2]),
    ],
)
def test_a_layer_of_several_widths_is_dealt_out_expert_by_expert(
    site: int, needs: tuple[int, ...], moved: list[int]
) -> None:
    """Each need brings itself, so that no move is partial; together they bring the layer."""
    payload = WholeLayer()
    payload.prepare(given(widths((0, 1, 0, 1, 1), (1,) * 5)))
    assert [
        payload.moved_bytes(0, gate(*needs, site=site), index) for index in range(len(needs))
    ] == moved
    assert [
        payload.forecast_bytes(0, forecast(*needs, site=site), i, gate(1))
        for i in range(len(needs))
    ] == moved
    assert sum(moved) == (2900, 1500)[site]


def test_experts_without_weights_bring_nothing() -> None:
    """Five of eight experts are stored."""
    payload = WholeLayer()
    payload.prepare(
        given(replace(GEOMETRY, null_experts=3, missing=frozenset((5, 6, 7, 14, 15, 16))))
    )
    assert [payload.moved_bytes(0, gate(3, 1), index) for index in range(2)] == [3000, 2000]


# Contracts: C140
def test_a_layer_whose_experts_may_move_at_either_width_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"at no precision of int8, int2; choose a fixed one, or precision=per_expert",
    ):
        WholeLayer().prepare(given(replace(widths((0, 1)), missing=frozenset())))


def test_a_streamed_layer_moves_each_expert_at_its_width(
    configure: Configure, bundled_trace: Trace
) -> None:
    """Every gate moves all experts of its layer, whichever it needs."""
    words = (
        "system=sti",
        "precision=per_expert",
        "precision.low_share=0.6",
        "trace.max_sequences=1",
    )
    run = build(configure(*words, "hardware.memory_gib=96"), "sti", bundled_trace)
    execute(run)
    controller = run.controller
    sizes, table = controller.geometry.variant_bytes, controller.selector.table  # type: ignore[attr-defined]
    assert sum(map(sum, table)) == int(0.6 * 16 * 8)
    layers = [sum(sizes[p] for p in row) for row in table]
    assert len(set(layers)) > 2
    moved = sum(transfer.moved_bytes for transfer in controller.issued if not transfer.dense)
    assert moved == sum(layers[site] for site in run.workload.gate_site.tolist())


# Active channels


def active(sparsity: float = 0.9, shares: str = "recorded") -> ActiveShare:
    payload = ActiveShare(sparsity, shares)
    payload.prepare(given(GEOMETRY))
    return payload


@pytest.mark.parametrize(
    ("sparsity", "moved"), [(0.5, [520, 400]), (0.8, [310, 200]), (0.9, [125, 100])]
)
def test_a_row_moves_the_channels_that_it_makes_active(sparsity: float, moved: list[int]) -> None:
    """Shares of 1,000 bytes, rounded to the nearest.

    A share is a number of channels, whatever float32 makes of it.
    """
    assert [active(sparsity).moved_bytes(e, gate(3, 5), i) for i, e in enumerate((3, 5))] == moved


# Contracts: C96
def test_what_was_not_recorded_moves_whole() -> None:
    """A prompt of one token, or experts in attention, have shares of NaN."""
    assert (
        active().moved_bytes(3, gate(3, 5, share=np.full((1, 2, 3), np.nan, np.float32)), 0) == 1000
    )


def test_a_forecast_moves_the_nominal_share() -> None:
    """1 - 0.8 of 1,000 bytes."""
    assert active(0.8).forecast_bytes(3, forecast(3, 5), 0, gate(1)) == 200
    assert active(0.8, "nominal").moved_bytes(3, gate(3, 5), 0) == 200


def test_several_rows_move_whole_experts() -> None:
    assert active().moved_bytes(3, gate(3, 5, rows=2), 0) == 1000
    assert active().forecast_bytes(3, forecast(3, 5, rows=2), 0, gate(1)) == 1000


def test_what_a_prefetch_lacks_of_a_rows_channels_is_left_out_but_not_of_several_rows() -> None:
    """FloE section 3.3.2: channels that the predictor misses are not computed."""
    assert active().missing_bytes(3, gate(3, 5), 0, 100) == 0
    assert active().missing_bytes(3, gate(3, 5, rows=2), 0, 100) == 900


# Channels by reused up projections


WIDTH = 40


def reused(missed: str = "dropped") -> ReusedChannels:
    """A payload that knows one row, of 40 channels, at site 1 and sparsity 0.9.

    The forecast names 6 channels of expert 3. The row makes 4 of these active, and 5 in all. Of
    expert 5, which the row does not choose, it names 2.
    """
    payload = ReusedChannels(0.9, missed)
    payload.prepare(given(GEOMETRY))
    counts = {name: np.zeros((1, 2, 8, 3), np.uint8) for name in ("named", "found", "active")}
    counts["named"][0, 1, 3], counts["found"][0, 1, 3], counts["active"][0, 1, 3] = (
        (22, 10, 6),
        (18, 8, 4),
        (20, 9, 5),
    )
    counts["named"][0, 1, 5] = (20, 8, 2)
    payload.know(
        {
            **counts,
            "sequence": np.array([4], np.uint8),
            "position": np.array([9], np.uint8),
            "width": np.array([WIDTH], np.uint32),
        }
    )
    return payload


@pytest.mark.parametrize(("expert", "moved"), [(3, 150), (5, 50), (6, 1)])
def test_a_prefetch_moves_the_channels_that_are_named_for_it(expert: int, moved: int) -> None:
    """6, 2 and 0 of 40 channels of 1,000 bytes, and at least one byte."""
    assert reused().forecast_bytes(8 + expert, forecast(expert, 1), 0, gate(1, 2)) == moved


@pytest.mark.parametrize("where", [{"position": 8}, {"site": 1}])
def test_of_a_row_that_is_not_known_or_a_later_site_it_moves_the_nominal_share(
    where: dict[str, int],
) -> None:
    assert reused().forecast_bytes(8 + 3, forecast(3, site=1), 0, gate(1, **where)) == 100
    assert ReusedChannels(0.9).missed == "dropped"


def test_what_was_not_named_is_left_out_or_fetched() -> None:
    """5 - 4 of 40 channels of 1,000 bytes are missing.

    A prefetch that moved more than was named lacks no more than it has not.
    """
    at = gate(3, 5, site=1)
    assert reused().missing_bytes(8 + 3, at, 0, 150) == 0
    assert reused("fetched").missing_bytes(8 + 3, at, 0, 150) == 25
    assert reused("fetched").missing_bytes(8 + 3, at, 0, 990) == 10
    assert reused("fetched").missing_bytes(8 + 3, gate(3, 5, site=1, position=8), 0, 150) == 0
    assert reused("fetched").missing_bytes(8 + 3, gate(3, 5, site=1, rows=2), 0, 150) == 850


def test_a_need_moves_what_its_row_makes_active_and_several_rows_move_all() -> None:
    assert reused().moved_bytes(3, gate(3, 5), 0) == 125
    assert reused().forecast_bytes(8 + 3, forecast(3, rows=2), 0, gate(1, rows=2)) == 1000


# Contracts: C112
def test_how_good_forecasts_of_channels_are_is_counted_over_the_chosen_experts() -> None:
    """Recall is 4 of 5, precision 4 of 6; what is named for expert 5 does not count."""
    assert reused().channel_counts([4, 7]) == (1, 5, 4, 6)
    assert reused().channel_counts([7]) == (0, 0, 0, 0)


def test_channels_of_another_model_are_refused() -> None:
    payload = reused()
    good = {name: np.zeros((1, 2, 8, 3), np.uint8) for name in ("named", "found", "active")}
    good |= {name: np.zeros(1, np.uint8) for name in ("sequence", "position")}
    good["width"] = np.array([WIDTH], np.uint32)
    changes = (
        {"named": np.zeros((1, 2, 7, 3), np.uint8)},
        {"position": np.zeros(2, np.uint8)},
        {"found": np.full((1, 2, 8, 3), WIDTH + 1, np.uint8)},
        {"width": np.array([0], np.uint32)},
    )
    for change in changes:
        with pytest.raises(ValueError, match=r"named|rows"):
            payload.know({**good, **change})


def test_channels_are_dropped_or_fetched_where_they_are_missed() -> None:
    with pytest.raises(ValueError, match=r"unknown payload\.missed=kept"):
        ReusedChannels(0.9, "kept")


# Contracts: C43
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
        r"sparsities \[0\.5, 0\.8, 0\.9\], not at payload\.sparsity=0\.7; choose one of these, or"
        r" payload=active_share_nominal"
    )
    with pytest.raises(ValueError, match=message):
        active(0.7)
    assert active(0.7, "nominal").moved_bytes(3, gate(3), 0) == 300
