"""Parties that slow each other down: paces by hand, work in progress by hand, limits of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sim.engine.clock import NEED_DONE, TRANSFER_END, Alarm, Clock
from sim.engine.contest import Contest, Draw
from sim.engine.simulate import simulate
from sim.machine.contention import COMPUTE, CPU, FIRST_LINK, WHOLE, Contention
from sim.machine.hardware import Hardware
from sim.machine.parts import SharedMemory
from sim.machine.roofline import Roofline
from sim.setup.execute import execute
from sim.study.trials import prepared

LINK = FIRST_LINK
ALL = 1 << COMPUTE | 1 << CPU | 1 << LINK


def leaves(share: float) -> Contention:
    """Compute leaves the link this share of its pace."""
    return Contention(1, {(LINK, COMPUTE): round(share * WHOLE)})


# Contracts: C73
def test_a_link_keeps_its_share_while_compute_works_and_all_of_it_else() -> None:
    paces = Contention(2, {(LINK, COMPUTE): 700_000}).paces
    assert paces(1 << COMPUTE | 1 << LINK) == (WHOLE, WHOLE, 700_000, WHOLE)
    assert paces(1 << CPU | 1 << LINK) == (WHOLE,) * 4


# Contracts: C73
def test_beside_several_rivals_a_party_keeps_the_product_rounded_once() -> None:
    """A third of a third is 0.111110 when rounded once: 0.333333 squared is 0.11111088..."""
    contention = Contention(1, {(COMPUTE, LINK): 333_333, (COMPUTE, CPU): 333_333, (CPU, LINK): 1})
    assert contention.paces(ALL) == (111_110, 1, WHOLE)
    assert contention.paces(1 << COMPUTE | 1 << CPU) == (333_333, WHOLE, WHOLE)


# Contracts: C73
def test_who_is_slowed_by_a_rival_and_by_a_memory_is_slowed_by_both() -> None:
    """Half of its pace beside the link, and three quarters of that: 60 of the 80 that are asked."""
    shared = Contention(1, {(CPU, LINK): 500_000}, 60, {CPU: 30, LINK: 50})
    assert shared.paces(1 << CPU | 1 << LINK) == (WHOLE, 375_000, 750_000)


# Contracts: C73
def test_those_who_ask_for_more_than_a_memory_gives_get_equal_parts_of_what_they_ask() -> None:
    """30 and 50 are asked of 60, so each gets three quarters.

    The CPU alone gets all that it asks for; who draws from elsewhere is not slowed.
    """
    shared = Contention(1, {}, 60, {CPU: 30, LINK: 50})
    assert shared.paces(ALL) == (WHOLE, 750_000, 750_000)
    assert shared.paces(1 << CPU) == (WHOLE,) * 3


# Contracts: C73
@pytest.mark.parametrize("could_draw", [60, 120, 6000])
def test_who_could_draw_more_than_a_memory_gives_takes_no_more_from_others(
    could_draw: int,
) -> None:
    """It asks for all 60, the link for 20: each gets three quarters of that, 45 and 15. A faster
    device made the drive beside it slower before: edgemoe on gb10 by 5 % at twice the bandwidth.
    """
    shared = Contention(1, {}, 60, {CPU: could_draw, LINK: 20})
    own, link = shared.paces(ALL)[CPU], shared.paces(ALL)[LINK]
    assert link == 750_000
    assert own == 45 * WHOLE // could_draw
    assert shared.paces(1 << CPU)[CPU] == 60 * WHOLE // could_draw


# Contracts: C74
def test_a_pace_is_rounded_down_and_never_stands_still() -> None:
    """2 of 3 is 0.666666; 1 of 5 million would round down to nothing."""
    assert Contention(1, {}, 2, {CPU: 1, LINK: 2}).paces(ALL)[CPU] == 666_666
    assert Contention(1, {}, 1, {CPU: 1, LINK: 4_999_999}).paces(ALL)[LINK] == 1


def ends_of(
    contention: Contention, *works: tuple[int, int, int, int], engines: tuple[int, ...] = ()
) -> tuple[list[tuple[int, int]], list[int]]:
    """(party, end) of works (party, from, latency, work) in order, and how much each was slowed."""
    env, ends = Clock(), []
    contest = Contest(env, contention, engines)
    for order, (party, at, latency, work) in enumerate(works):

        def begin(
            now: int,
            party: int = party,
            latency: int = latency,
            work: int = work,
            order: int = order,
        ) -> None:
            def done(now: int) -> None:
                ends.append((party, now))

            contest.begin(party, now, latency, work, TRANSFER_END + order, done)

        Alarm(env, begin).set(at, NEED_DONE)
    env.run(until=env.timeout(1 << 40))
    return ends, contest.slowed_ns


def test_a_transfer_goes_slowly_for_as_long_as_compute_works() -> None:
    """The transfer goes at 0.7 while compute works until 100, so 70 are done.

    The 30 that are left go at the whole pace.
    """
    ends, slowed = ends_of(leaves(0.7), (COMPUTE, 0, 0, 100), (LINK, 0, 0, 100))
    assert ends == [(COMPUTE, 100), (LINK, 130)]
    assert slowed == [0, 0, 30]


def test_a_latency_holds_nobody_up_and_is_held_up_by_nobody() -> None:
    """Both draw 2 of 2: alone until 40, at half from then on.

    The CPU has 60 left and the link 50. The link ends at 140, when 10 of the CPU's are left.
    """
    ends, slowed = ends_of(
        Contention(1, {}, 2, {CPU: 2, LINK: 2}), (CPU, 0, 0, 100), (LINK, 10, 30, 50)
    )
    assert ends == [(LINK, 140), (CPU, 150)]
    assert slowed == [0, 50, 50]


# Contracts: C74
def test_work_ends_at_the_first_whole_ns_at_which_nothing_remains() -> None:
    """At two thirds, rounded down to a millionth, 2 ns take a little over 3, so 4.

    Then the other is alone: of its 10 ns 4 x 0.666666 are done, and 7.33 remain.
    """
    ends, _ = ends_of(Contention(1, {}, 2, {CPU: 1, LINK: 2}), (CPU, 0, 0, 2), (LINK, 0, 0, 10))
    assert ends == [(CPU, 4), (LINK, 12)]


def test_what_begins_when_another_ends_does_not_meet_it() -> None:
    ends, slowed = ends_of(
        leaves(0.5), (COMPUTE, 0, 0, 10), (LINK, 10, 0, 10), (COMPUTE, 20, 0, 10)
    )
    assert ends == [(COMPUTE, 10), (LINK, 20), (COMPUTE, 30)]
    assert sum(slowed) == 0


# Contracts: C73
def test_the_engines_of_a_link_share_the_pace_that_others_leave_it() -> None:
    """The link has half of its pace while compute works, so two engines have a quarter each.

    Of works of 10 and 40 ns the first is done at 40. The other has 30 left; it goes at a half until
    compute ends at 60, then at the whole pace: 20 more.
    """
    works = ((COMPUTE, 0, 0, 60), (LINK, 0, 0, 10), (LINK, 0, 0, 40))
    ends, slowed = ends_of(leaves(0.5), *works, engines=(2,))
    assert ends == [(LINK, 40), (COMPUTE, 60), (LINK, 80)]
    assert slowed == [0, 0, 30]


def rung(env: Clock, contest: Contest, draw: Draw, *done_ns: int) -> list[tuple[int, int]]:
    """The marks of a piece of work that rang, as (work done, time)."""
    rings: list[tuple[int, int]] = []
    for work in done_ns:
        contest.mark(draw, 0, work, lambda now, work=work: rings.append((work, now)))
    env.run(until=env.timeout(1 << 40))
    return rings


def begun(env: Clock, contest: Contest, party: int, work: int, number: int) -> Draw:
    return contest.begin(party, 0, 0, work, TRANSFER_END + number, lambda now: None)


# Contracts: C75
def test_a_mark_rings_when_so_much_is_done_however_long_that_took() -> None:
    """At a quarter of the pace 10 are done until 40; then 25 more take 25, and 64 more take 64."""
    env = Clock()
    contest = Contest(env, leaves(0.25))
    begun(env, contest, COMPUTE, 40, 0)
    link = begun(env, contest, LINK, 100, 1)
    assert rung(env, contest, link, 5, 35, 99) == [(5, 20), (35, 65), (99, 129)]


# Contracts: C75
def test_what_is_held_draws_nothing_and_goes_on_where_it_stood() -> None:
    """Two engines share the link from 0 to 10, so each has done 5 of 20.

    One is held until 18. By then the other has done 13 and has 7 left. Both go on at half: the
    other ends at 32, when the first has 8 left, and is then alone.
    """
    env = Clock()
    contest = Contest(env, Contention(1), (2,))
    first, other = (begun(env, contest, LINK, 20, number) for number in (1, 2))
    for at_ns, held in ((10, True), (18, False)):
        Alarm(env, lambda now, held=held: contest.hold(first, now, held)).set(at_ns, NEED_DONE)
    rings = rung(env, contest, first, 5, 6, 19)
    assert rings == [(5, 10), (6, 20), (19, 39)]
    assert contest.slowed_ns == [0, 0, 0]
    assert other.left == 0


# Runs

DEMAND = (
    "system=load_on_demand",
    "trace.max_sequences=1",
    "workload.prompt_tokens=1",
    "workload.decode_tokens=4",
    "budget.resident_share=0.3",
)


def makespan_ns(words: tuple[str, ...], **changes: Any) -> int:
    """The makespan of a run on a changed machine."""
    run = prepared(list(words))
    hardware = replace(run.hardware, **changes)
    durations = Roofline(run.model, hardware.together(False), run.controller.geometry.precisions)
    return simulate(run.controller, run.workload, durations).makespan_ns


def beside_compute(hardware: Hardware, times: float) -> dict[str, Any]:
    return {"beside": {hardware.link_names[0]: {"compute": times}}}


def test_where_nothing_overlaps_nobody_is_slowed() -> None:
    """With ``wait_all``, no prefetches and one token at a time, nothing overlaps.

    The link works only while the stream stands still.
    """
    words, hardware = (*DEMAND, "loader.wait=wait_all"), prepared(DEMAND).hardware
    name = hardware.link_names[0]
    slowed = {"beside": {name: {"compute": 4.0}, "compute": {name: 4.0}}}
    assert makespan_ns(words, **slowed) == makespan_ns(words)


def test_a_slower_link_under_computation_costs_time_where_they_overlap() -> None:
    """Loads are on demand, and experts are computed as they arrive.

    The slower the worse, but never as bad as a link that is always that slow.
    """
    hardware = prepared(DEMAND).hardware
    words = (*DEMAND, "loader.wait=as_ready")
    times = [makespan_ns(words, **beside_compute(hardware, by)) for by in (1.0, 1.5, 4.0)]
    assert times[0] < times[1] < times[2]
    always = replace(hardware.links[0], efficiency=hardware.links[0].efficiency * 0.25)
    assert times[2] < makespan_ns(words, links=(always,))


def test_computing_beside_copies_takes_so_many_times_as_long_and_no_more() -> None:
    """With prefetches experts are computed while copies run. Slowed computing costs time.

    It costs at most what it would if copies always ran, and a factor of 1 costs nothing.
    """
    words = ("system=mixtral_offloading", *DEMAND[1:])
    run = prepared(words)
    name, compute = run.hardware.link_names[0], run.hardware.compute
    times = [makespan_ns(words, beside={"compute": {name: by}}) for by in (1.0, 100.0, 200.0)]
    assert makespan_ns(words) == times[0] < times[1] < times[2]
    always = replace(
        compute,
        memory_gb_per_s=compute.memory_gb_per_s / 200,
        peak_tflops=compute.peak_tflops / 200,
        launch_us=compute.launch_us * 200,
    )
    assert times[2] < makespan_ns(words, compute=always)


def test_where_every_factor_is_1_there_is_no_contention() -> None:
    """So such a machine takes the arithmetic engine: its runs are those without the section."""
    hardware = prepared(DEMAND).hardware
    name = hardware.link_names[0]
    assert replace(hardware, beside={"compute": {name: 1.0}, name: {"cpu": 1}}).contention is None


def test_a_memory_that_is_shared_as_drawn_lies_between_its_two_bounds() -> None:
    """At the lower bound nobody is slowed, at the upper one all are always (``slows: always``)."""
    hardware = prepared(DEMAND).hardware
    total = hardware.compute.memory_gb_per_s * hardware.compute.memory_efficiency
    shared = SharedMemory(total * 0.8, ("compute", hardware.link_names[0]), "as_drawn")
    words = (*DEMAND, "loader.wait=as_ready")
    least, drawn, most = (
        makespan_ns(words, shared_memory=memory)
        for memory in (None, shared, replace(shared, slows="always"))
    )
    assert least < drawn < most


# Contracts: C74
@pytest.mark.parametrize(
    ("party", "words"),
    [("nvme", ()), ("cpu", ("placement=decode_absent_on_cpu",))],
    ids=["nvme", "cpu"],
)
def test_the_parts_of_a_run_with_contention_still_sum_to_its_makespan(
    party: str, words: tuple[str, ...]
) -> None:
    """What compute was slowed by counts as compute, and what others were does not; a sum that does
    not hold is refused.
    """
    run = prepared(
        [
            *DEMAND,
            *words,
            "bounds=max",
            "loader.wait=as_ready",
            "hardware=gb10",
            "hardware.shared_memory.gb_per_s=150",
            f"hardware.shared_memory.parties=[compute,{party}]",
        ]
    )
    result = execute(run)
    summary = result.summary
    assert summary["slowed_s"]["compute"] > 0
    assert summary["slowed_s"][party] > 0
    assert summary["compute_busy_s"] + sum(summary["stall_s"].values()) == pytest.approx(
        summary["makespan_s"]
    )
    assert summary["slowed_s"]["compute"] == result.frames.record.slowed_ns[COMPUTE] / 1e9
    assert summary["bounds"]["lower_s"] <= summary["makespan_s"]


def test_a_memory_of_which_those_in_use_never_ask_too_much_slows_nobody() -> None:
    """On unified memory the cores beside the device ask for too much; the drive does not."""
    hardware = prepared([*DEMAND, "hardware=gb10"]).hardware
    assert hardware.together(False).contention is None
    shared = hardware.together(True).contention
    assert shared is not None
    compute, cpu, link = (1 << COMPUTE, 1 << CPU, 1 << LINK)
    assert shared.paces(compute | link) == (WHOLE,) * 3
    asked = (273 * 0.85 + 273 * 0.5) / 273
    assert shared.paces(compute | cpu)[:2] == (int(WHOLE / asked),) * 2


# Contracts: C141
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("+hardware.beside.pcie.compute=0.5",),
            r"hardware\.beside\.pcie\.compute=0\.5 must be from 1 to 1000",
        ),
        (
            ("+hardware.beside.pcie.pcie=2",),
            r"hardware\.beside\.pcie\.pcie: no party is its own rival",
        ),
        (
            ("+hardware.beside.nvme.compute=2",),
            r"hardware\.beside has nvme; those of rtx4090_pcie4 are compute, cpu, pcie",
        ),
        (
            ("+hardware.beside.compute=2",),
            r"hardware\.beside\.compute=2 must map other parties to how many times as long",
        ),
        (
            ("+hardware.beside=2",),
            r"hardware\.beside=2 must map a party to others and how many times as long it takes"
            r" beside them$",
        ),
        (
            (
                "+hardware.beside.pcie.compute=2",
                "hardware.links.pcie.engines=2",
                "loader.chunk_bytes=1000000",
            ),
            r"loader\.chunk_bytes=1000000 needs one engine on every link, got engines \[2\]",
        ),
        (
            (
                (
                    "+hardware.shared_memory={_target_: sim.machine.SharedMemory, gb_per_s: 9,"
                    " parties: [compute, pcie], slows: often}"
                ),
            ),
            r"hardware\.shared_memory\.slows='often'; allowed: always, as_drawn",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepared(["system=lru", "hardware=rtx4090_pcie4", "trace.max_sequences=1", *words])


# Contracts: C75
def test_what_is_held_for_long_has_not_moved() -> None:
    """Done to 5 of 10 by 5, held for 20 ms: its end is 5 ns after that."""
    env, held_until, ends = Clock(), 20_000_000, []
    contest = Contest(env, Contention(1))
    draw = contest.begin(LINK, 0, 0, 10, TRANSFER_END, ends.append)
    for at_ns, held in ((5, True), (held_until, False)):
        Alarm(env, lambda now, held=held: contest.hold(draw, now, held)).set(at_ns, NEED_DONE)
    env.run(until=env.timeout(1 << 40))
    assert ends == [held_until + 5]
