"""The bare loop that the engine is measured beside."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from helpers.fake_runtime import FakeRuntime
from real.cuda.bare_loop import BareLoop
from sim.machine.model import Model


def test_the_bare_loop_is_in_legal_order_and_keeps_what_was_used_last() -> None:
    """Two sites of four experts, two a gate, with room for three: loads by hand."""
    shape = SimpleNamespace(
        sites=2, experts=4, top_k=2, hidden=32, expert_intermediate=16, name="small"
    )
    runtime = FakeRuntime(strict=True, late=2)
    loop = BareLoop(runtime, cast(Model, shape), 3)
    tokens = [[[0, 1], [0, 1]], [[0, 1], [0, 2]], [[0, 1], [0, 2]], [[0, 1], [0, 2]]]
    _, missed = loop.run(iter(tokens))
    loop.close()
    assert missed == 2, "of four experts in three slots each gate finds one"
    assert sum("copies" in line for line in runtime.log) == 4 + 3 + 2 + 2
    assert not runtime._pinned
