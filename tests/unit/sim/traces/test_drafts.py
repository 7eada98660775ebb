"""Draft sites by hand: left out, taken as recorded, and standing in for the last MoE layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers.traces import make_trace
from sim.traces.drafts import with_draft_sites
from sim.traces.trace import Trace

TOLD = "gates of draft layers stand in: those of layers.1, the model's last MoE layer"


def recorded() -> Trace:
    """Two sites of the model and one of a layer that drafts."""
    trace = make_trace()
    first, second, draft = trace.header.sites
    sites = (first, second, replace(draft, stack="draft"))
    return replace(trace, header=replace(trace.header, sites=sites))


@pytest.mark.parametrize(
    ("layers", "taken"), [(0, [0, 1]), (2, [0, 1, 2, 1]), (3, [0, 1, 2, 1, 1])]
)
def test_sites_beyond_those_recorded_have_what_the_last_moe_layer_chose(
    layers: int, taken: list[int]
) -> None:
    trace, found = recorded(), with_draft_sites(recorded(), layers)
    for name in ("ids", "weights", "logits", "expert_norms", "active_shares"):
        np.testing.assert_array_equal(getattr(found, name), getattr(trace, name)[:, taken])
    assert found.lookahead.keys() == {"raw", "renormed"}
    for norm, scores in found.lookahead.items():
        np.testing.assert_array_equal(scores[:, :3], trace.lookahead[norm][:, taken[:3]])
        assert np.isnan(scores[:, 3:]).all()
    assert found.header.model == replace(trace.header.model, sites=len(taken))
    assert [(s.site, s.name, s.layer, s.stack) for s in found.header.sites] == [
        (site, f"layers.{old}", old, "decoder" if site < 2 else "draft")
        for site, old in enumerate(taken)
    ]
    stands_in = {"draft_gates": TOLD} if layers > 1 else {}
    assert found.header.provenance == {**trace.header.provenance, **stands_in}


def test_a_trace_that_has_so_many_is_returned_as_it_is() -> None:
    trace = recorded()
    assert with_draft_sites(trace, 1) is trace
    bare = replace(make_trace(), logits=None, lookahead={}, expert_norms=None, active_shares=None)
    assert with_draft_sites(bare, 0) is bare
    one = with_draft_sites(bare, 1)
    assert one.ids.shape == (12, 4, 2)
    assert [site.stack for site in one.header.sites] == ["decoder"] * 3 + ["draft"]
    assert (one.logits, one.expert_norms, one.active_shares) == (None, None, None)
