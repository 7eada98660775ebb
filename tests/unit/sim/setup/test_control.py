"""A controller has what its parts and its machine have; all of them are made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sim.setup import control as module
from sim.setup.control import make_controller


def named(**values: Any) -> Any:
    return SimpleNamespace(**values)


@pytest.mark.parametrize(
    ("ram_link", "later", "silent", "dense_slots", "moves"),
    [(None, True, False, 0, False), (1, True, True, 2, True), (0, False, False, 1, False)],
)
def test_a_controller_has_its_parts_and_what_of_them_only_some_machines_need(
    ram_link: int | None,
    later: bool,
    silent: bool,
    dense_slots: int,
    moves: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    route = named(ram_link=ram_link, ram_bytes=8)
    monkeypatch.setattr(module, "route_of", lambda hardware, model: route)
    monkeypatch.setattr(module, "Controller", lambda *given, **of: (given, of))
    monkeypatch.setattr(module, "moves_kv", lambda parts: moves)
    answered: list[Any] = []
    monkeypatch.setattr(module, "check_answers", lambda *given: answered.append(given))
    parts = named(
        hardware=named(
            ram=named(capacity_gib=0.5), predicts_later=lambda sites: later if sites == 3 else None
        ),
        model=named(sites=2, block_bytes=lambda n: 10 + n, site_kv_bytes=lambda n: 20 + n),
        predictor=named(requires=named(lookahead_sites=3), silent=silent),
        loader=named(dense_slots=dense_slots),
        policies=lambda: "policies",
        **{name: name for name in ("cache", "ram_cache", "precision", "placement", "payload")},
    )
    geometry = named(variant_bytes=(4, 8, 2))
    room = named(spare_bytes="spare")
    assert make_controller(geometry, parts, room) == (
        (geometry, parts.predictor, "cache", "precision", "placement", parts.loader),
        {
            "route": route,
            "ram_cache": None if ram_link is None else "ram_cache",
            "payload": "payload",
            "predicts_later": later and not silent,
            "dense_bytes": (10, 11) if dense_slots else (),
            "spare_bytes": "spare",
            "kv_bytes": (20, 21) if moves else (),
        },
    )
    assert answered == [("policies", geometry)]
    assert make_controller(geometry, parts)[1]["spare_bytes"] is None
    route.ram_bytes = 0
    make_controller(geometry, parts)
    route.ram_bytes = 7
    with pytest.raises(
        ValueError,
        match=r"^hardware\.ram\.capacity_gib=0\.5 holds no expert of 8 B; raise it, or set hardware"
        r"\.ram=null$",
    ):
        make_controller(geometry, parts)
    parts.hardware.ram = None
    make_controller(geometry, parts)
