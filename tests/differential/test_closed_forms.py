"""Runs whose times have a formula: the controller and the engine against arithmetic.

Times are small whole numbers of ns. In the helpers' scenarios dense work takes 1 a site and an
expert takes 1, unless a test says otherwise, so the first gate is at 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from differential import production_rows
from differential.by_hand import foresee, gate, machine, outcomes, sequence, served, stalls, token
from differential.production import ScenarioWorkload
from differential.rows import Timeline
from differential.scenario import Batching, Link, Loader, Need, Placement, Request, Row, Scenario
from sim.core.controller import Controller
from sim.core.loader import Loader as RunLoader
from sim.engine.simulate import simulate
from sim.machine.durations import Durations, FixedDurations
from sim.policies.placements import Load
from sim.policies.precisions import Fixed
from sim.policies.predictors import NoPrediction
from sim.policies.recency import LRU
from sim.results.frames import Frames
from sim.traces.trace import DECODE, PREFILL, Header, ModelShape, Site, Trace, TraceSequence
from sim.values.record import Record
from sim.values.types import Geometry
from sim.workload.steps import Workload

FIRST_NS = 1
"""The first gate."""


def run(scenario: Scenario) -> Timeline:
    return production_rows.run(scenario)


def run_and_keep(scenario: Scenario) -> tuple[Timeline, Controller]:
    kept: list[Controller] = []

    def driver(controller: Controller, workload: ScenarioWorkload, durations: Durations) -> Record:
        kept.append(controller)
        return simulate(controller, workload, durations)  # type: ignore[arg-type]

    return production_rows.run(scenario, driver), kept[0]


def ends(timeline: Timeline, link: int = 0) -> list[int]:
    """Of the services of a link, in the order in which they began."""
    return [row.end_ns for row in timeline.services if row.link == link]


# ---- hop after hop


@pytest.mark.parametrize(
    ("outer", "middle", "inner"), [(10, 10, 10), (30, 5, 7), (4, 40, 9), (3, 8, 50)]
)
def test_three_hops_are_a_pipeline_of_whole_transfers(outer: int, middle: int, inner: int) -> None:
    """The i-th of n equal transfers arrives after the sum of the hops and i - 1 times the
    slowest.
    """
    links = (Link(0, inner), Link(0, middle), Link(0, outer))
    timeline = run(machine(token(gate(0, 1, 2, 3)), links=links))
    first, slowest = outer + middle + inner, max(outer, middle, inner)
    arrived = [FIRST_NS + first + i * slowest for i in range(4)]
    assert [row.ready_ns for row in timeline.lookups] == ends(timeline) == arrived
    assert timeline.makespan_ns == arrived[-1] + 1


# Contracts: C59
@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        pytest.param(20, 5, id="slow to fast"),
        pytest.param(5, 20, id="fast to slow"),
        pytest.param(9, 9, id="equally fast"),
    ],
)
@pytest.mark.parametrize("pieces", [2, 3, 6])
def test_cut_through_of_two_hops_ends_when_a_copy_in_pieces_does(
    outer: int, inner: int, pieces: int
) -> None:
    """A copy in n equal pieces: one piece on each link, and n - 1 more on the slower one.

    With a ns a byte outside, c inside, B bytes and a head of H = B / n:
    a H + c H + (n - 1) max(a, c) H = max(a H + c B, a B + c H).
    """
    size = 12
    head = size // pieces
    links = (Link(0, inner), Link(0, outer, head_bytes=head))
    timeline = run(machine(token(gate(0)), links=links, variant_bytes=(size,)))
    pipelined = (outer + inner) * head + (pieces - 1) * max(outer, inner) * head
    assert pipelined == max(outer * head + inner * size, outer * size + inner * head)
    # The outer hop takes what it takes alone, and so does the inner one: it never starves.
    handed_on = pipelined - inner * size
    assert served(timeline) == [
        (0, 1, FIRST_NS, FIRST_NS + outer * size),
        (0, 0, FIRST_NS + handed_on, FIRST_NS + pipelined),
    ]
    assert stalls(timeline) == {"storage": handed_on, "demand": inner * size}


@pytest.mark.parametrize(("outer", "inner"), [(20, 5), (5, 20)])
def test_overheads_count_once_a_hop_with_cut_through(outer: int, inner: int) -> None:
    """Overheads p outside and q inside: max((p + a H) + (q + c B), (p + a B) + (q + c H)).

    The last H bytes leave the outer link at p + a B. Behind them the inner link still has c H to
    move, and its own service began q + c B before it ends.
    """
    size, head, p, q = 12, 3, 7, 4
    links = (Link(q, inner), Link(p, outer, head_bytes=head))
    timeline = run(machine(token(gate(0)), links=links, variant_bytes=(size,)))
    starved = p + outer * size + (q + inner * head)
    end = max(p + outer * head + q + inner * size, starved)
    assert ends(timeline) == [FIRST_NS + end]


@pytest.mark.parametrize("head", [0, 12, 99])
@pytest.mark.parametrize(("outer", "inner"), [(20, 5), (5, 20)])
def test_cut_through_of_a_single_piece_is_store_and_forward(
    outer: int, inner: int, head: int
) -> None:
    """A head of all bytes hands on when the hop ends: a B + c B."""
    size = 12
    links = (Link(0, inner), Link(0, outer, head_bytes=head))
    timeline = run(machine(token(gate(0)), links=links, variant_bytes=(size,)))
    assert ends(timeline) == [FIRST_NS + (outer + inner) * size]


# ---- engines that share a link

LATENCY, RATE = 6, 10


def shared(*sizes: int, engines: int = 2) -> Timeline:
    """One expert of each size, all needed at the first gate: one site for each size, fetched
    ahead from the first.
    """
    sites = len(sizes) + 1
    forecasts = tuple(foresee(5) for _ in sizes)
    step = token(gate(0), *(gate(5) for _ in sizes), ahead={0: forecasts})
    scenario = machine(
        step,
        links=(Link(LATENCY, RATE, engines=engines),),
        initial=((0, 0, 0),),
        variant_bytes=(max(sizes),),
        capacity=sites * max(sizes),
        site_bytes=((1, *sizes),),
        loader=Loader(lookahead=len(sizes)),
    )
    return run(scenario)


def test_two_equal_transfers_on_two_engines_end_together_after_one_latency_and_the_work_of_both() -> (
    None
):
    """Each has half the link: L + 2 r B."""
    assert ends(shared(3, 3)) == [FIRST_NS + LATENCY + 2 * RATE * 3] * 2


@pytest.mark.parametrize(("small", "large"), [(1, 2), (2, 7), (4, 5)])
def test_the_smaller_of_two_ends_after_twice_its_work_and_the_larger_after_the_work_of_both(
    small: int, large: int
) -> None:
    """Halves until the small one is through at L + 2 r b; the link has then done as much of the
    large one.
    """
    expected = [FIRST_NS + LATENCY + 2 * RATE * small, FIRST_NS + LATENCY + RATE * (small + large)]
    assert ends(shared(small, large)) == expected
    assert ends(shared(large, small)) == expected[::-1]


def test_two_engines_save_one_latency_of_two() -> None:
    """One after another the second ends at 2 L + r (b + B); shared it ends at L + r (b + B),
    whatever the shares.
    """
    apart, together = ends(shared(2, 7, engines=1))[-1], ends(shared(2, 7))[-1]
    assert apart == FIRST_NS + 2 * LATENCY + RATE * (2 + 7)
    assert apart - together == LATENCY


@pytest.mark.parametrize("joins_ns", [1, 10, 29])
def test_one_that_joins_midway_slows_the_other_from_the_end_of_its_latency_on(
    joins_ns: int,
) -> None:
    """Five bytes from the first gate on, three bytes from j later. When the second begins to draw,
    at j + L, the first has done j of r B. It has r B - j left, at half the pace if that is not more
    than the second's r b, and ends at j + L + 2 (r B - j); the second at L + r (b + B), as if the
    link had never stopped. Else the second ends first, at j + L + 2 r b, and the first at L + r (b
    + B).
    """
    large, small = 5, 3
    # (2, 5) is fetched ahead from site 0's gate on, site 1 needs 7 when its gate comes.
    step = token(
        gate(0), gate(7), gate(5), ahead={0: (foresee(), foresee(5))}, dense_ns=(1, joins_ns - 1, 1)
    )
    scenario = machine(
        step,
        links=(Link(LATENCY, RATE, engines=2),),
        initial=((0, 0, 0),),
        capacity=99,
        variant_bytes=(large,),
        site_bytes=((1, small, large),),
        loader=Loader(lookahead=2),
    )
    timeline = run(scenario)
    assert [row.start_ns for row in timeline.services] == [FIRST_NS, FIRST_NS + joins_ns]
    left, both = RATE * large - joins_ns, FIRST_NS + LATENCY + RATE * (small + large)
    first, second = FIRST_NS + joins_ns + LATENCY + 2 * left, both
    if left > RATE * small:
        first, second = both, FIRST_NS + joins_ns + LATENCY + 2 * RATE * small
    assert ends(timeline) == [first, second]


# ---- chunks and write-back


@pytest.mark.parametrize("after_ns", [2, 11, 12, 13, 31, 32])
def test_a_prefetch_gives_way_to_a_demand_at_its_next_chunk_end_and_pays_its_overhead_again(
    after_ns: int,
) -> None:
    """o + r a byte, B bytes, chunks of c from 1 on; the demand comes d later.

    Chunk k ends after o + k r c: the first of these after d is the cut, if it is not the last. The
    demand is there o + r B later, the rest of the prefetch another o + r (B - k c) later.
    """
    size, chunk, overhead, rate = 6, 2, 3, 5
    step = token(
        gate(0), gate(6), ahead={0: (foresee(5),)}, dense_ns=(1, after_ns - 1), tail_ns=200
    )
    loader = Loader(lookahead=1, chunk_bytes=chunk, cancel_stale=False)
    scenario = machine(
        step,
        links=(Link(overhead, rate),),
        variant_bytes=(size,),
        initial=((0, 0, 0),),
        loader=loader,
    )
    timeline = run(scenario)
    whole = overhead + rate * size
    chunk_ends = [overhead + rate * moved for moved in range(chunk, size, chunk)]
    k = next((k for k, ns in enumerate(chunk_ends, 1) if ns > after_ns), 0)
    if not k:
        cut_ns, expected = whole, [(0, 0, whole, size), (1, whole, 2 * whole, size)]
    else:
        cut_ns, there, left = chunk_ends[k - 1], chunk_ends[k - 1] + whole, size - k * chunk
        expected = [
            (0, 0, cut_ns, k * chunk),
            (1, cut_ns, there, size),
            (0, there, there + overhead + rate * left, left),
        ]
    services = [
        (n, start - FIRST_NS, end - FIRST_NS, b) for n, start, end, b in served(timeline, *SERVICE)
    ]
    assert services == expected
    assert stalls(timeline) == {"behind_prefetch": cut_ns - after_ns, "demand": whole}


SERVICE = ("number", "start_ns", "end_ns", "bytes")


# Contracts: C36
def test_what_is_written_back_goes_over_the_link_before_the_transfer_that_took_its_slot() -> None:
    """Sites of 2, 3 and 4 bytes in a pool of 5: (0, 0) and (1, 0) are there, (2, 7) needs both
    slots.

    hop(4) + hop(2) + hop(3), one service: overheads 3 times 2, 10 a byte for 9 bytes.
    """
    step = token((), (), gate(7))
    scenario = machine(
        step,
        links=(Link(2, 10),),
        variant_bytes=(4,),
        site_bytes=((2, 3, 4),),
        capacity=5,
        initial=((0, 0, 0), (0, 1, 0)),
        loader=Loader(write_back=True),
    )
    timeline = run(scenario)
    gate_ns = 3
    assert [len(row.victims) for row in timeline.transfers] == [2]
    assert served(timeline, *SERVICE) == [(0, gate_ns, gate_ns + 3 * 2 + 10 * (4 + 2 + 3), 4)]
    assert stalls(timeline) == {"demand": 3 * 2 + 10 * 9}
    without = run(replace(scenario, loader=Loader()))
    assert served(without, *SERVICE) == [(0, gate_ns, gate_ns + 2 + 10 * 4, 4)]


# ---- slots


# Contracts: C19, C24
@pytest.mark.parametrize(
    ("wait", "third_asked_ns", "third_load_ns", "end_ns"),
    [
        pytest.param("as_ready", 12, 21, 32, id="0 computed 11 to 12; link free at 21"),
        pytest.param("in_order", 12, 21, 32, id="the same: they arrive in need order"),
        pytest.param("wait_all", 22, 22, 33, id="0 computed 21 to 22, when both are there"),
    ],
)
def test_a_union_of_three_in_a_pool_of_two_takes_two_waves(
    wait: Any, third_asked_ns: int, third_load_ns: int, end_ns: int
) -> None:
    """0 loads 1 to 11, 1 loads 11 to 21. 2 is admitted when 0 has been computed, and takes its
    slot: 1 is still pinned.

    as_ready: asked for at 12, loads 21 to 31, computed 31 to 32. wait_all: asked for at 22, loads
    22 to 32.
    """
    union = (Need(0, 2), Need(1, 1), Need(2, 1))
    timeline = run(machine(token(union, rows=2), capacity=2, loader=Loader(wait=wait)))
    assert [row.lookup_ns for row in timeline.lookups] == [1, 1, third_asked_ns]
    assert served(timeline, "start_ns", "end_ns") == [
        (1, 11),
        (11, 21),
        (third_load_ns, third_load_ns + 10),
    ]
    assert [row.victims for row in timeline.transfers] == [(), (), (0,)]
    assert timeline.makespan_ns == end_ns
    assert timeline.busy_ns == 1 + 3


# Contracts: C41
def test_an_exchange_moves_no_bytes() -> None:
    """A pool of two holds (0, 0) and (1, 6). (1, 5) is staged 1 to 11 while expert 0 computes, and
    hits at site 1's gate: one load in all. It takes the slot of (1, 6), the least recent, so the
    next token hits 5 and misses 6.
    """
    first = token(gate(0), gate(5), ahead={0: (foresee(5),)}, ends=False)
    later = token(gate(0), gate(5, 6), begins=False, token=2)
    loader = Loader(lookahead=1, destination="staging", staging_slots=1)
    scenario = machine(
        first, later, capacity=3, initial=((0, 1, 6), (0, 0, 0)), base_ns=(20,), loader=loader
    )
    tight = replace(scenario, pools=(replace(scenario.pools[0], capacity_bytes=2),))
    timeline, controller = run_and_keep(tight)
    assert outcomes(timeline) == ["hit", "hit", "hit", "hit", "miss"]
    assert served(timeline, "start_ns", "end_ns", "bytes")[0] == (1, 11, 1)
    assert [row.kind for row in timeline.transfers] == ["prefetch", "demand"]
    assert timeline.prefetch["used"] == 1
    assert controller.slots.peak_bytes == 2
    assert controller.staging.most_used == 1
    # With room for all three 6 stays: what the exchange took was its slot.
    assert outcomes(run(scenario)) == ["hit"] * 5


@pytest.mark.parametrize(("retention", "peak", "loads"), [("after_batch", 5, 8), ("strict", 3, 8)])
def test_after_batch_a_pool_holds_at_its_peak_what_stayed_and_the_union(
    retention: Any, peak: int, loads: int
) -> None:
    """A pool of 3. Union (0, 1, 2) fills it; union (3, 4) comes on top: 5. The trim at the next
    gate leaves 3 of them, without those of the last gate: 2, 3, 4. Union (5, 6) comes on top of
    these: 5 again. Then 0 is not there any more: 3 + 1 = 4. With `strict` it is never more than 3,
    and the loads are the same, for each union takes the oldest.
    """
    steps = sequence(gate(0, 1, 2), gate(3, 4), gate(5, 6), gate(0))
    timeline, controller = run_and_keep(
        machine(*steps, capacity=3, loader=Loader(retention=retention))
    )
    assert controller.slots.peak_bytes == peak
    assert len(timeline.transfers) == loads
    # The last union stays beside what fits: trimmed at the end of the sequence.
    assert controller.slots.capacity_bytes[0] - controller.slots.free_bytes[0] == 3


# ---- the CPU


@pytest.mark.parametrize("cpu_ns", [3, 8, 20])
def test_a_site_ends_when_its_last_load_is_computed_and_the_last_result_of_the_cpu_is_back(
    cpu_ns: int,
) -> None:
    """Needs 0, 1 and 2 at 1: 0 loads 10 and computes 1, until 12; the CPU computes 1, then 2, until
    1 + 2 t.

    The site ends at max(12, 1 + 2 t). What the stream waits for 0 is a demand's, the rest the CPU's
    join.
    """
    placement = Placement(cpu=frozenset({(0, 1), (0, 2)}), cpu_ns=cpu_ns)
    timeline = run(machine(token(gate(0, 1, 2)), placement=placement))
    assert outcomes(timeline) == ["miss", "cpu", "cpu"]
    assert [row.ready_ns for row in timeline.lookups] == [11, 1 + cpu_ns, 1 + 2 * cpu_ns]
    assert timeline.makespan_ns == max(12, 1 + 2 * cpu_ns)
    join = max(0, 1 + 2 * cpu_ns - 12)
    assert stalls(timeline) == {"demand": 10} | ({"cpu_join": join} if join else {})


# ---- continuous batching

PROMPTS = ((0, 1), (0,), (2, 2, 2))
DECODED = ((0, 0), (1,), ())
ARRIVALS = (0, 29, 40)
STEPS = [(0, 29, (0,)), (29, 47, (1,)), (47, 76, (0, 1)), (76, 96, (2,)), (96, 114, (0,))]
"""Three requests, an expert a row at the only site; two run at a time. Everything is there: dense
work takes 5, the tail 2, an expert of u rows 10 + u.

A (at 0): prompt of two rows, 0 and 1; decodes 0, 0. B (at 29): prompt of one row, 0; decodes 1.
C (at 40): prompt of three rows, all 2; decodes nothing.

0 to 29    A's prompt: 7, experts 0 and 1, 11 each.
29 to 47   B comes now: its prompt alone, 7 and 11.
47 to 76   A decodes 0, B decodes 1: 7, 11 each. B is through; C, here since 40, has room.
76 to 96   C's prompt: 7, one expert of 3 rows, 13. C is through.
96 to 114  A decodes 0: 7 and 11.
"""
TTFT = [29 - 0, 47 - 29, 96 - 40]


def test_three_requests_batched_continuously_take_the_steps_worked_out_by_hand() -> None:
    def rows(experts: tuple[int, ...]) -> tuple[Row, ...]:
        return tuple(Row((((expert, 1.0),),), ((),)) for expert in experts)

    requests = tuple(
        Request(rows(prompt), rows(decoded), arrival_ns)
        for prompt, decoded, arrival_ns in zip(PROMPTS, DECODED, ARRIVALS, strict=True)
    )
    batching = Batching("continuous", size=2, dense_ns=(5,), tail_ns=2)
    shape = machine(
        token(gate(0)), initial=((0, 0, 0), (0, 0, 1), (0, 0, 2)), base_ns=(10,), per_token_ns=(1,)
    )
    timeline = run(replace(shape, steps=(), requests=requests, batching=batching))
    assert [(row.start_ns, row.end_ns, row.sequences) for row in timeline.steps] == STEPS
    assert timeline.sequence_ends == ((1, 76), (2, 96), (0, 114))
    assert stalls(timeline) == {}


def test_a_workload_of_these_requests_takes_the_same_steps_and_tells_the_times_to_first_tokens() -> (
    None
):
    workload = Workload(trace_of_requests(), batching="continuous", together=2, arrivals=ARRIVALS)
    geometry = Geometry(1, 3, 1, ("fp16",), (16.0,), (1,), capacity_bytes=3)
    controller = Controller(geometry, NoPrediction(), LRU(), Fixed("fp16"), Load(), RunLoader())
    durations = FixedDurations([5], 2, [10], {1: 10}, [1])
    record = simulate(controller, workload, durations)
    steps = zip(
        record.step_start_ns,
        record.step_end_ns,
        (step.sequences for step in workload.steps),
        strict=True,
    )
    assert list(steps) == STEPS
    requests = Frames(controller, workload, durations, record, ["link"]).sequences.sort("sequence")
    assert (requests["first_token_ns"] - requests["arrival_ns"]).to_list() == TTFT
    assert requests["end_ns"].to_list() == [114, 76, 96]


def trace_of_requests() -> Trace:
    counts = [(len(prompt), len(decoded)) for prompt, decoded in zip(PROMPTS, DECODED, strict=True)]
    experts = [
        expert for pair in zip(PROMPTS, DECODED, strict=True) for part in pair for expert in part
    ]
    rows = len(experts)
    return Trace(
        header=Header(
            name="requests",
            created="",
            source="synthetic",
            model=ModelShape("requests", "none", 1, 3, 1, 1, 1),
            dtype="none",
            experts_implementation="none",
            sites=(Site(0, "site 0", 0),),
            sequences=tuple(TraceSequence(n, "eval", "", *count) for n, count in enumerate(counts)),
            licence="none",
        ),
        step=np.arange(rows, dtype=np.int32),
        phase=np.array(
            [phase for a, b in counts for phase in [PREFILL] * a + [DECODE] * b], np.uint8
        ),
        sequence=np.array(
            [n for n, count in enumerate(counts) for _ in range(sum(count))], np.int32
        ),
        position=np.array([place for count in counts for place in range(sum(count))], np.int32),
        token=np.full(rows, -1, np.int32),
        valid=np.ones(rows, np.bool_),
        ids=np.array(experts, np.int16).reshape(rows, 1, 1),
        weights=np.ones((rows, 1, 1), np.float32),
    )
