"""The words of a faster link are those of a machine that is accepted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.answers.link_words import with_peak
from sim.machine.link import Link


def test_a_link_has_a_peak_of_its_own_in_full_or_in_so_many_digits() -> None:
    link = Link(7.0, 0.5, 80.0, name="nvme")
    assert with_peak(link, 100 / 3) == ("hardware.links.nvme.peak_gb_per_s=33.333333333333336",)
    assert with_peak(link, 100 / 3, ".6g") == ("hardware.links.nvme.peak_gb_per_s=33.3333",)


@pytest.mark.parametrize(("engines", "own"), [(1, 7.0), (4, 1.75), (4, 7.0)])
def test_engines_keep_their_part_of_a_link_with_any_peak(engines: int, own: float) -> None:
    """A what-if about the link of a phone searched up to 20,000 GB/s, and was refused."""
    lanes = Link(7.0, 1.0, 0.0, engines=engines, engine_gb_per_s=own, name="ufs")
    for peak, digits in ((1.1, ""), (16111.7, ""), (100 / 3, ".6g"), (200 / 3, ".6g")):
        pairs = (word.split("=") for word in with_peak(lanes, peak, digits))
        faster = replace(lanes, **{key.rpartition(".")[2]: float(value) for key, value in pairs})
        assert faster.peak_gb_per_s == pytest.approx(peak, rel=1e-5)
        assert faster.engine_gb_per_s == pytest.approx(own * peak / 7, rel=1e-5)
