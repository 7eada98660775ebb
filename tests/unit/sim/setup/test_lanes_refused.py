"""What does not go with lanes and with kernels that go by projection is refused before a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from real.setup.prepare import read_request
from sim.policies.belady import Belady
from sim.setup.build import build
from sim.setup.configure import configure
from sim.setup.refusals import _check_required

LANES = "+hardware.links.pcie.wake_us=2.0"
UNIT = "+hardware.links.pcie.unit=projection"
BY_PROJECTION = "loader.wait=by_projection"


# Contracts: C141
@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((LANES, "loader.chunk_bytes=4096"), r"wake_us=2\.0 does not go with loader\.chunk_bytes"),
        ((UNIT, "loader.write_back=true"), r"unit=projection does not go with .*write_back"),
        (
            (BY_PROJECTION, "loader.write_back=true"),
            r"wait=by_projection does not go with .*write_back",
        ),
        (
            (
                BY_PROJECTION,
                "+hardware.beside={compute: {pcie: 1.5}}",
            ),
            r"wait=by_projection does not go with hardware\.beside",
        ),
        ((BY_PROJECTION, "payload=whole_layer"), r"wait=by_projection does not go with payload"),
    ],
)
def test_a_run_is_refused_with_both_words(words: tuple[str, ...], told: str) -> None:
    cfg, system = configure("system=lru", "trace.max_sequences=1", *words)
    with pytest.raises(ValueError, match=told):
        build(cfg, system)


# Contracts: C141
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            (
                "+hardware.links.pcie.page_cache={_target_: sim.machine.link_parts.Pages,"
                " capacity_gib: 1, gb_per_s: 20}",
                "loader.chunk_bytes=4096",
            ),
            r"^loader\.chunk_bytes=4096 does not go with hardware\.links\.pcie\.page_cache: what is"
            r" kept of a read that was cut is not modelled; set one of them to null$",
        ),
        (
            ("+model.encoder_sites=1",),
            r"^model \S+ has its first 1 sites in an encoder, but trace tiny_mixtral 0; choose a"
            r" model that goes with it, or set model\.encoder_sites$",
        ),
    ],
)
def test_parts_that_do_not_go_together_are_refused(words: tuple[str, ...], told: str) -> None:
    cfg, system = configure("system=lru", "trace.max_sequences=1", *words)
    with pytest.raises(ValueError, match=told):
        build(cfg, system)


def test_no_ram_cache_knows_what_will_be_missing_on_the_device() -> None:
    trace = SimpleNamespace(active_shares=None)
    workload: Any = SimpleNamespace(trace=trace, norm="raw", is_timed=False)
    _check_required("cache", Belady(), workload)
    with pytest.raises(
        ValueError,
        match=r"^ram_cache Belady cannot know what will be missing on the device; choose"
        r" ram_cache=lru$",
    ):
        _check_required("ram_cache", Belady(), workload)


# Contracts: C141
@pytest.mark.parametrize(
    "word",
    [
        LANES,
        UNIT,
        BY_PROJECTION,
        "+hardware.host.load_us=3.0",
        "+hardware.host.load_gb_per_s=3.0",
    ],
)
def test_a_device_has_none_of_it(word: str) -> None:
    cfg, system = configure("system=lru", word, config="real")
    with pytest.raises(ValueError, match="a device's engines read whole variants"):
        read_request(cfg, system)
