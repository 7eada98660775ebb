"""Runs whose prompts begin alike (contract C179): words, ledger, summary, audit, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, open_dict

from real.setup.prepare import read_request
from sim.audit.__main__ import audit
from sim.audit.files import read_run
from sim.engine.simulate import simulate
from sim.results.calls import RecordedController
from sim.results.outputs import write_outputs
from sim.results.replay import replay
from sim.screen import read_words, screen
from sim.screening.moves import ScreenError
from sim.setup.build import build
from sim.setup.configure import configure as configured
from sim.setup.execute import execute
from sim.traces.trace import Trace

Configure = Callable[..., DictConfig]
WORDS = ("system=lru", "workload=shared_prefix")


def summary_of(configure: Configure, trace: Trace, *words: str) -> dict[str, Any]:
    return execute(build(configure(*WORDS, *words), "lru", trace)).summary


# Contracts: C177, C179
def test_the_shipped_requests_are_cut_timed_and_reused(
    configure: Configure, bundled_trace: Trace
) -> None:
    """By hand, whole blocks of 8: 6, 7, 7, 5, 7 and 6. The second finds 4 (32 tokens), the third 6,
    the fourth 4, the fifth 7 and the last 6. The device holds 8: after the third request its own 7
    and one of the second. So of the fifth's 7 it holds 4 + 1, hence RAM the two others.
    """
    run = build(configure(*WORDS), "lru", bundled_trace)
    prompts = [item.prompt_tokens for item in run.workload.sequences]
    assert prompts == [48, 60, 56, 40, 60, 50]
    assert list(run.workload.arrivals_ns.values())[:3] == [0, 500_000_000, 1_000_000_000]
    found = execute(run).summary["prefixes"]
    token_bytes = run.model.kv_bytes_per_token
    reused = 8 * (4 + 6 + 4 + 7 + 6)
    assert found["read_tokens"] == sum(prompts) - reused == 98
    assert found["read_again"] == 0
    assert sum(found["reused"].values()) == reused
    assert found["moved_bytes"] == {"ram": found["reused"]["ram"] * token_bytes, "disk": 0}
    assert found["reused"]["ram"] > 0
    assert found["waits_s"] > 0


def test_without_tiers_every_prompt_is_read_and_read_again(
    configure: Configure, bundled_trace: Trace
) -> None:
    found = summary_of(
        configure, bundled_trace, "workload.kv_device_gib=0", "workload.kv_ram_gib=0"
    )["prefixes"]
    assert found["read_tokens"] == found["prompt_tokens"] == 314
    assert found["read_again"] == 8 * (4 + 6 + 4 + 7 + 6)


# Contracts: C178
def test_what_the_device_holds_is_a_line_of_the_ledger(
    configure: Configure, bundled_trace: Trace
) -> None:
    """A block takes 8 tokens of 64 KiB: 4 MiB hold 8 of them, and not a part of one more."""
    more = build(configure(*WORDS, "workload.kv_device_gib=0.0042"), "lru", bundled_trace)
    none = build(configure(*WORDS, "workload.kv_device_gib=0"), "lru", bundled_trace)
    assert (more.ledger.prefix_bytes, none.ledger.prefix_bytes) == (4 << 20, 0)
    assert more.ledger.total_bytes - none.ledger.total_bytes == 4 << 20


# Contracts: C179
@pytest.mark.parametrize("tier", ["ram", "disk"])
def test_the_audit_agrees_with_such_a_run_and_finds_a_byte_that_moved_elsewhere(
    configure: Configure, bundled_trace: Trace, tmp_path: Path, tier: str
) -> None:
    words = ["hardware=rtx4090_nvme", "workload.kv_ram_gib=0", "workload.kv_disk_gib=1"]
    run = build(configure(*WORDS, *(words if tier == "disk" else [])), "lru", bundled_trace)
    result = execute(run)
    place = tmp_path / "run"
    write_outputs(place, result.summary, run.config, result.frames, "as_ready", None)
    files = read_run(place)
    assert isinstance(files.summary, dict)
    assert not audit(files).differences
    files.summary["prefixes"]["moved_bytes"][tier] += 1
    found = [one.rule.key for one in audit(files).differences]
    assert found == [f"prefixes.moved_bytes.{tier}"]


def test_the_calls_of_such_a_run_replay(configure: Configure, bundled_trace: Trace) -> None:
    config = configure(*WORDS)
    with open_dict(config):
        for one in config.workload.requests:
            del one["timestamp"]
    first, second = (build(config, "lru", bundled_trace) for _ in range(2))
    controller = RecordedController(first.controller)
    simulate(controller, first.workload, first.durations)  # type: ignore[arg-type]
    brought = [call for call in controller.log if call.kind == "bring"]
    assert brought
    assert replay(controller.log, second.controller, second.workload) is None


REFUSED = {
    "hardware=rtx4090_pcie4 devices=layers_2": "does not go with hardware.devices",
    "workload.kv_disk_gib=1": "no link from a drive to RAM",
    "hardware=m4": "the RAM of machine m4 is its device.s memory; hold keys",
    "workload.requests=null": "which prompts begin alike is told by workload.requests",
    "workload.kv_allocation=growing": "kv_allocation=growing does not go with workload.requests",
    "workload.prompt_tokens=8": "workload.prompt_tokens does not go with workload.requests",
    "workload.arrivals_per_s=1": "workload.arrivals_per_s does not go with workload.requests",
    "workload.context_tokens=99": "workload.context_tokens does not go with workload.requests",
    "workload.short_sequences=drop": "workload.short_sequences does not go with",
    "workload.batching=recorded workload.together=1": "does not go with workload.batching=recorded",
    "workload.block_tokens=512": "6 hash_ids for input_length=48, which has 1 blocks",
    "workload.block_tokens=0": "workload.block_tokens=0 must be",
    "workload.kv_ram_gib=-1": "workload.kv_ram_gib=-1 must be",
    "workload.requests=7": "must be a file, or a list",
    "system=floe": "do not go with payload=",
    "system=deepspeed_inference": "do not go with loader.dense_slots",
}


# Contracts: C179
@pytest.mark.alike
@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_go_together_is_refused_by_name(
    configure: Configure, bundled_trace: Trace, words: str
) -> None:
    with pytest.raises(ValueError, match=REFUSED[words]):
        build(configure(*WORDS, *words.split()), "lru", bundled_trace)


def test_a_sequence_that_is_too_short_for_its_request_is_named(
    configure: Configure, bundled_trace: Trace
) -> None:
    request = "{input_length: 16, output_length: 900, hash_ids: [1, 2]}"
    with pytest.raises(
        ValueError, match=r"output_length=900, but sequence 32 of trace .* has 98 tok"
    ):
        build(configure(*WORDS, f"workload.requests=[{request}]"), "lru", bundled_trace)


# Contracts: C179
def test_screening_and_runs_on_a_device_refuse_what_comes_over_links() -> None:
    closed = "workload.requests=[{input_length: 16, output_length: 9, hash_ids: [1, 2]}]"
    words = ("system=lru", "workload.block_tokens=8", "workload.kv_ram_gib=1", closed)
    with pytest.raises(ScreenError, match="keys and values move beside experts"):
        screen(read_words(words))
    config, system = configured(*WORDS, "hardware=rtx4090_pcie4", config="real")
    with pytest.raises(ValueError, match="no device of ours holds prefixes"):
        read_request(config, system)
