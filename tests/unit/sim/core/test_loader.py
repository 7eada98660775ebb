"""The loader's switches: what can be set, and what does not go together."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from sim.core.loader import Loader
from sim.values.types import Route


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("depth", "first_missing"),
        ("queue", "replace"),
        ("cancel_stale", False),
        ("demand_first", False),
        ("in_flight", 2),
        ("wait", "as_ready"),
        ("wait", "in_order"),
        ("prefetch_budget", "until_next_gate"),
        ("prefetch_budget", 0),
        ("prefetch_budget", 3),
        ("low_for_high", True),
        ("chunk_bytes", 1 << 20),
        ("staging_slots", 2),
        ("staging_holds", "projections"),
        ("dense_slots", 1),
        ("retention", "after_batch"),
        ("replay_unit", "access"),
        ("write_back", True),
    ],
)
def test_every_switch_can_be_set_alone(name: str, value: Any) -> None:
    assert asdict(Loader(**{name: value})) == asdict(Loader()) | {name: value}


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("depth", "deep", "all, first_missing"),
        ("queue", "lifo", "append, replace"),
        ("in_flight", 3, "1, 2"),
        ("in_flight", 0, "1, 2"),
        ("wait", "later", "wait_all, as_ready, in_order, by_projection"),
        ("destination", "disk", "pool, staging"),
        ("staging_holds", "tensors", "experts, projections"),
        ("demand_evicts", "all", "masked_last, unmasked"),
        ("retention", "forever", "strict, after_batch, until_next_visit"),
        ("replay_unit", "token", "union, access"),
        ("prefetch_budget", -1, "all, until_next_gate, within_layer, in_time, or a count >= 0"),
        ("prefetch_budget", "some", "all, until_next_gate, within_layer, in_time, or a count >= 0"),
        ("prefetch_budget", 1.5, "all, until_next_gate, within_layer, in_time, or a count >= 0"),
    ],
)
def test_what_is_unknown_is_refused_with_what_is_allowed(
    name: str, value: Any, allowed: str
) -> None:
    with pytest.raises(
        ValueError, match=rf"^loader\.{name}={value} is unknown; allowed: {allowed}$"
    ):
        Loader(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("chunk_bytes", 0, "must be a whole number >= 1"),
        ("chunk_bytes", "1MiB", "must be a whole number in"),
        ("staging_slots", -1, "must be a whole number >= 0"),
        ("dense_slots", 1.5, "must be a whole number in"),
        ("write_back", "yes", "must be true or false"),
        ("cancel_stale", 1, "must be true or false"),
    ],
)
def test_what_is_no_count_or_flag_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^loader\.{name}={value!r} {message}"):
        Loader(**{name: value})


# Contracts: C140
@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ({"destination": "staging"}, "loader.destination=staging needs loader.staging_slots >= 1"),
        (
            {"chunk_bytes": 1, "demand_first": False},
            "loader.chunk_bytes has no use with loader.demand_first=false",
        ),
        (
            {"chunk_bytes": 1, "write_back": True},
            "loader.chunk_bytes and loader.write_back cannot be",
        ),
        (
            {"write_back": True, "staging_slots": 1},
            "loader.write_back and staging cannot be combined",
        ),
        (
            {"write_back": True, "retention": "after_batch"},
            "loader.write_back needs loader.retention=strict",
        ),
        (
            {"demand_evicts": "unmasked"},
            "loader.demand_evicts=unmasked needs loader.staging_slots >= 1",
        ),
        (
            {"demand_evicts": "unmasked", "staging_slots": 1, "retention": "after_batch"},
            "loader.demand_evicts=unmasked has no use with loader.retention=after_batch",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(switches: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        Loader(**switches)


# Contracts: C140
def test_chunks_need_links_of_one_engine() -> None:
    Loader(chunk_bytes=1).check_route(Route((1, 1), (0, 0)))
    Loader().check_route(Route((1, 2), (0, 0)))
    with pytest.raises(
        ValueError, match=r"chunk_bytes=1 needs one engine on every link, got engines \[1, 2\]; set"
    ):
        Loader(chunk_bytes=1).check_route(Route((1, 2), (0, 0)))


@pytest.mark.parametrize("value", ["layers", "layer"])
def test_what_stands_for_a_number_of_slots_is_told(value: str) -> None:
    message = (
        f"^loader.staging_slots={value} must be a whole number, or layer: as many as a layer has"
    )
    with pytest.raises(ValueError, match=message):
        Loader(staging_slots=value)  # type: ignore[arg-type]
