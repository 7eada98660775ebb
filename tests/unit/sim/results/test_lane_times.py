"""What tokens of a machine with lanes spend on reading, and on waiting for it."""

from __future__ import annotations

from sim.answers.engine_lanes import simulated_ms
from sim.setup.build import build
from sim.setup.configure import configure
from sim.setup.execute import execute

WORDS = ("system=lru", "trace.max_sequences=1", "loader.in_flight=2")
LANES = (
    "hardware.links.pcie.engines=2",
    "+hardware.links.pcie.copy_gb_per_s=8.0",
    "+hardware.links.pcie.unit=projection",
    "loader.wait=by_projection",
)


# Contracts: C104
def test_reading_and_waiting_stand_in_the_tokens_of_a_machine_with_lanes() -> None:
    cfg, system = configure(*WORDS, *LANES)
    frames = execute(build(cfg, system)).frames
    tokens, services = frames.tokens, frames.record
    begun = zip(
        services.service_start_ns, services.service_end_ns, services.service_bytes, strict=True
    )
    read_ns = sum(end - start - round(moved / 8) for start, end, moved in begun if end >= 0)
    assert abs(int(tokens["reading_ns"].sum()) - read_ns) <= len(services.service_end_ns)
    # Nothing else than transfers stops this machine's stream.
    assert (tokens["waiting_ns"] == tokens["stall_ns"]).all()
    assert int(tokens["waiting_ns"].sum()) > 0
    found = simulated_ms([*WORDS, *LANES])
    decoded = tokens.filter(tokens["phase"] == "decode")
    assert found["io"].tolist() == (decoded["reading_ns"].to_numpy() / 1_000_000).tolist()


def test_without_lanes_the_table_is_as_ever() -> None:
    cfg, system = configure(*WORDS)
    assert not {"reading_ns", "waiting_ns"} & set(execute(build(cfg, system)).frames.tokens.columns)
