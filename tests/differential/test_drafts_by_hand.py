"""Drafts whose experts are offloaded, worked by hand (contract C184).

Two sites, of which the second one drafts. Dense work takes 10 ns, an expert 5 ns, the head 20 ns,
and a load 100 ns. Both simulators must give these times.
"""

from __future__ import annotations

from dataclasses import replace

from differential import production_rows, reference
from differential.rows import Timeline
from differential.scenario import Batching, Link, Loader, PoolSpec, Request, Row, Scenario
from differential.test_engine_against_reference import first_difference

DRAFTS = Batching(
    "static", 1, dense_ns=(10, 10), tail_ns=20, drafts=2, accepted=(1.0, 1.0), draft_sites=1
)
UNITS = 4
"""Keys of a site: its experts and its dense block."""
EVERYTHING = tuple((0, site, expert) for site in (0, 1) for expert in range(3))


def row(expert: int, of_draft: int) -> Row:
    """What a token needs of the model's site, and of the site that drafts."""
    return Row((((expert, 1.0),), ((of_draft, 1.0),)), ((None,), (None,)))


def scenario(*requests: Request, held: int = 6, batching: Batching = DRAFTS) -> Scenario:
    return Scenario(
        sites=2,
        experts=3,
        variant_bytes=(100,),
        service_ns=(100,),
        base_ns=(5,),
        per_token_ns=(0,),
        pools=(PoolSpec(600, (0,), None, EVERYTHING[:held]),),
        steps=(),
        loader=Loader(wait="wait_all"),
        links=(Link(0, 1),),
        requests=requests,
        batching=batching,
    )


def run(asked: Scenario) -> Timeline:
    timeline = production_rows.run(asked)
    assert first_difference(timeline, reference.run(asked)) is None
    return timeline


def walked(timeline: Timeline) -> list[tuple[int, int, int]]:
    """Of each gate the site, its time and the end of its needs."""
    return [(gate.site, gate.gate_ns, gate.end_ns) for gate in timeline.gates]


THREE = (row(0, 0), row(1, 1), row(2, 2))


def test_the_page_s_example_drafts_twice_and_checks_three_tokens_after_115_ns() -> None:
    timeline = run(scenario(Request((), THREE)))
    assert walked(timeline) == [(1, 10, 15), (1, 45, 50), (0, 80, 95)]
    assert [(step.start_ns, step.end_ns) for step in timeline.steps] == [
        (0, 35),
        (35, 70),
        (70, 115),
    ]
    assert [(one.tick, one.key % UNITS) for one in timeline.lookups] == [
        (0, 0),
        (1, 1),
        (2, 0),
        (2, 1),
        (2, 2),
    ]


def test_an_absent_expert_of_a_draft_is_loaded_as_any_other() -> None:
    """The draft layer's experts 1 and 2 are not there; only 1 is asked for, at the second draft."""
    timeline = run(scenario(Request((), THREE), held=4))
    assert walked(timeline) == [(1, 10, 15), (1, 45, 150), (0, 180, 195)]
    assert [(one.kind, one.hops) for one in timeline.transfers] == [("demand", ((0, 45),))]
    assert timeline.makespan_ns == 215


def test_a_sequence_drafts_as_many_as_it_checks_and_its_last_token_takes_no_draft() -> None:
    """Every draft is wrong: 2 drafts and 3 rows, 1 and 2, then the last row alone."""
    wrong = replace(DRAFTS, accepted=(0.0, 0.0))
    timeline = run(scenario(Request((), THREE), batching=wrong))
    assert [gate.site for gate in timeline.gates] == [1, 1, 0, 1, 0, 0]
    # The second step's draft reads its own next token, the second one.
    assert [one.key % UNITS for one in timeline.lookups] == [0, 1, 0, 1, 2, 1, 1, 2, 2]
    assert timeline.makespan_ns == 115 + 35 + 40 + 35


def test_sequences_draft_together_as_long_as_they_check_so_many() -> None:
    """One checks two drafts, the other one. They share the first draft's union and its tail."""
    both = replace(DRAFTS, size=2)
    two = Request((), (row(0, 0), row(1, 1)))
    timeline = run(scenario(Request((), THREE), two, batching=both))
    assert [step.sequences for step in timeline.steps] == [(0, 1), (0,), (0, 1)]
    assert walked(timeline) == [(1, 10, 15), (1, 45, 50), (0, 80, 95)]


def test_a_prompt_is_read_without_the_draft_layer() -> None:
    timeline = run(scenario(Request(THREE, (row(0, 0),))))
    assert walked(timeline) == [(0, 10, 25), (0, 55, 60)]
