"""The workloads of ``conf/``: what each composes on the bundled trace, and what the command line
may change.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from omegaconf import DictConfig

from sim.results.run import Run
from sim.setup.build import build
from sim.traces.trace import Trace
from sim.workload.steps import Limits

Configure = Callable[..., DictConfig]
SEQUENCES = 6
BUILT_ON = ("system=lru", f"trace.max_sequences={SEQUENCES}", "budget.resident_share=0.5")


def run_of(configure: Configure, trace: Trace, *overrides: str) -> Run:
    return build(configure(*BUILT_ON, *overrides), "lru", trace)


@pytest.mark.parametrize(
    ("option", "batching", "together", "mixes"),
    [
        ("recorded", "recorded", 1, False),
        ("sequential", "sequential", 1, False),
        ("static_4", "static", 4, False),
        ("continuous_4", "continuous", 4, False),
        ("continuous_4_chunked", "continuous", 4, True),
    ],
)
def test_every_workload_composes_what_it_says(
    configure: Configure,
    bundled_trace: Trace,
    option: str,
    batching: str,
    together: int,
    mixes: bool,
) -> None:
    """The trace recorded one sequence after another. Chunks alone put prompts and tokens into
    one step.
    """
    workload = run_of(configure, bundled_trace, f"workload={option}").workload
    assert (workload.batching, workload.is_timed) == (batching, False)
    assert max(len(step.sequences) for step in workload.steps) == together
    assert len(workload.row) == sum(s.prompt_tokens + s.decode_tokens for s in workload.sequences)
    assert len(workload.sequences) == SEQUENCES
    phase = workload.trace.phase[workload.row]
    mixed = [
        step for step in workload.steps if len(set(phase[step.start : step.stop].tolist())) > 1
    ]
    assert bool(mixed) == mixes


def test_sequences_together_chunks_and_arrivals_are_set_on_the_command_line(
    configure: Configure, bundled_trace: Trace
) -> None:
    words = "workload=continuous_4", "workload.together=3", "workload.prefill_chunk=8"
    timed = "workload.arrivals_per_s=0.25", "workload.arrival_seed=7"
    workload = run_of(configure, bundled_trace, *words, *timed).workload
    assert workload.is_timed
    tokens = sorted(s.prompt_tokens + s.decode_tokens for s in workload.sequences)
    assert workload.limits == Limits(sum(tokens[-3:]), rows=8 + 2, kept_tokens=0)
    other = run_of(configure, bundled_trace, *words, timed[0], "workload.arrival_seed=8").workload
    assert workload.arrivals_ns.keys() == other.arrivals_ns.keys()
    assert workload.arrivals_ns != other.arrivals_ns


def test_every_system_meets_the_same_arrivals(configure: Configure, bundled_trace: Trace) -> None:
    """A comparison is paired: when requests arrive is the workload's alone."""
    words = (*BUILT_ON, "workload=continuous_4", "workload.arrivals_per_s=0.5", "seed=9")
    runs = [
        build(configure(*words, f"system={name}"), name, bundled_trace)
        for name in ("lru", "hobbit")
    ]
    assert runs[0].workload.arrivals_ns == runs[1].workload.arrivals_ns


# Contracts: C142
@pytest.mark.alike
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "workload=recorded workload.together=4",
            r"together=4 does not go with workload\.batching=recorded",
        ),
        (
            "workload=recorded workload.arrivals_per_s=1",
            r"arrivals_per_s=1 does not go with workload\.batching=recorded",
        ),
        (
            "workload=recorded workload.draft_tokens=2",
            r"draft_tokens=2 does not go with workload\.batching=recorded",
        ),
        (
            "workload=mtp_4 workload.draft_tokens=5",
            r"workload\.draft_accepted has 4 shares for workload\.draft_tokens=5; give the share",
        ),
        (
            "workload.draft_accepted=often",
            r"workload\.draft_accepted='often' must be a number",
        ),
        ("workload.together=2", r"together=2 does not go with workload\.batching=sequential"),
        (
            "workload=static_4 workload.together=0",
            r"workload\.together=0 must be a whole number >= 1",
        ),
        (
            "workload=static_4 workload.prefill_chunk=all",
            r"workload\.prefill_chunk='all' must be a whole number",
        ),
        (
            "workload=static_4 workload.arrivals_per_s=-1",
            r"workload\.arrivals_per_s=-1 must be a number >= 0",
        ),
        (
            "workload=static_4 workload.arrivals_per_s=1 cache=belady",
            r"set workload\.arrivals_per_s=null",
        ),
        (
            "workload=static_4 workload.arrivals_s=[0,0,0,0,0,0] cache=belady precision=fp16",
            r"cache Belady knows the future only .*; set .* and workload\.arrivals_s=null",
        ),
        (
            "workload=static_4 workload.arrivals_s=[1e12,2e12]",
            r"workload: workload\.arrivals_s\[0\]=1.* 4,000,000 s",
        ),
        (
            "workload=static_4 workload.arrivals_s=5",
            r"arrivals_s=5 must be a list of seconds, or a text file",
        ),
        (
            "workload=recorded workload.arrivals_s=[0,1]",
            r"arrivals_s=\[0\.0, 1\.0\] does not go with .*recorded",
        ),
        (
            "trace.exclude=[long]",
            r"trace\.exclude names long, but the sequences of trace .* have the flags",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_way_out(
    configure: Configure, bundled_trace: Trace, words: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run_of(configure, bundled_trace, *words.split())


# Contracts: C151
def test_a_layer_that_drafts_takes_its_room_from_the_slots_while_tokens_are_drafted(
    configure: Configure, bundled_trace: Trace
) -> None:
    words = "workload=mtp_4", "hardware.memory_gib=48"
    drafting = run_of(configure, bundled_trace, *words)
    model = drafting.model
    layer = model.block_bytes(model.sites - 1) + model.experts * model.expert_bytes("fp16")
    assert drafting.ledger.draft_bytes == layer
    without = run_of(configure, bundled_trace, *words, "workload.draft_tokens=0")
    assert without.ledger.draft_bytes == 0


# Contracts: C151
def test_every_system_meets_the_same_drafts_and_none_changes_nothing(
    configure: Configure, bundled_trace: Trace
) -> None:
    words = *BUILT_ON, "workload=mtp_4", "workload.draft_layers=0"
    steps = [
        build(configure(*words, f"system={name}"), name, bundled_trace).workload.steps
        for name in ("lru", "hobbit")
    ]
    assert steps[0] == steps[1]
    assert any(step.kept[0] < step.rows for step in steps[0] if step.decode)
    none = run_of(configure, bundled_trace, "workload=mtp_4", "workload.draft_tokens=0").workload
    assert none.steps == run_of(configure, bundled_trace, "workload=sequential").workload.steps


# Contracts: C152
def test_a_context_takes_room_from_slots_and_time_from_every_step(
    configure: Configure, bundled_trace: Trace
) -> None:
    """A token attends to 10,000 more, and so reads the bytes of their keys and values more."""
    words = "workload=static_4", "hardware.memory_gib=48"
    short = run_of(configure, bundled_trace, *words)
    long = run_of(configure, bundled_trace, *words, "workload.context_tokens=10000")
    model = long.model
    assert long.ledger.kv_bytes == 4 * 10_000 * model.kv_bytes_per_token
    longer = run_of(configure, bundled_trace, *words, "workload.context_tokens=20000")
    read = 4 * 10_000 * model.layer_kv_bytes
    rate = long.hardware.compute.memory_gb_per_s * long.hardware.compute.memory_efficiency
    last = -1, 0
    more = [
        run.durations.dense_ns(run.workload.steps[last[0]])[last[1]]
        for run in (short, long, longer)
    ]
    assert more[0] < more[1]
    sequences = len(long.workload.steps[-1].sequences)
    assert more[2] - more[1] == pytest.approx(read * sequences / 4 / rate, abs=1)
