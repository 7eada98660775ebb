"""What does not go with lanes and with kernels that go by projection is refused before a run."""

from __future__ import annotations

import pytest

from real.setup.prepare import read_request
from sim.setup.build import build
from sim.setup.configure import configure

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
