"""What the fit sequences chose, counted one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.traces import make_trace
from sim.fitting.fits import fit_from_rows, fit_sequences, profile_of, sample_of, sample_rows
from sim.policies.requires import FitFile, Sample, Shape, Track
from sim.setup.build import build
from sim.setup.configure import configure
from sim.traces.trace import DECODE, Trace, TraceSequence, trace_sha256


def test_uses_are_the_choices_of_all_rows_of_the_fit_sequences_prompts_included(
    bundled_trace: Trace,
) -> None:
    fit = [one.sequence for one in bundled_trace.header.sequences if one.split == "fit"]
    counted: Counter[tuple[int, int]] = Counter()
    for row in np.flatnonzero(np.isin(bundled_trace.sequence, fit)):
        for site, chosen in enumerate(bundled_trace.ids[row].tolist()):
            counted.update((site, expert) for expert in chosen if expert >= 0)
    profile = profile_of(bundled_trace)
    uses = profile.uses
    assert len(profile.decoded) == sum(
        phase == DECODE and sequence in fit
        for phase, sequence in zip(bundled_trace.phase, bundled_trace.sequence, strict=True)
    )
    assert {at: int(uses[at]) for at in np.ndindex(uses.shape) if uses[at]} == counted
    assert min(counted.values()) > 1


# Contracts: C110
def test_a_profile_leaves_out_the_sequences_that_a_run_leaves_out(bundled_trace: Trace) -> None:
    """Of the fit sequences all but the first two carry the flag."""
    header = bundled_trace.header
    flagged = replace(
        bundled_trace,
        header=replace(
            header,
            sequences=tuple(
                replace(one, flags={"loops": one.sequence > 1}) for one in header.sequences
            ),
        ),
    )
    alone = replace(
        bundled_trace,
        header=replace(
            header,
            sequences=tuple(
                replace(one, split="fit" if one.sequence < 2 else "eval")
                for one in header.sequences
            ),
        ),
    )
    found, whole = profile_of(flagged, ("loops",)), profile_of(flagged)
    assert np.array_equal(found.uses, profile_of(alone).uses)
    assert np.array_equal(found.scores, profile_of(alone).scores)
    assert whole.uses.sum() > found.uses.sum()
    run = build_of(flagged, "trace.exclude=[loops]")
    assert run == found.ranking[: len(run)] != whole.ranking[: len(run)]


def build_of(trace: Trace, *words: str) -> list[tuple[int, int]]:
    """What a run of the trace has in its slots at first, the most used experts."""
    cfg, system = configure("system=lru", "cache=lru_warm", "trace.split=all", *words)
    geometry = (made := build(cfg, system, trace).controller).geometry
    return [(geometry.site_of(key), key % geometry.units) for key in made.slots.initial]


def test_a_trace_without_fit_sequences_has_no_profile(bundled_trace: Trace) -> None:
    header = bundled_trace.header
    sequences = tuple(replace(one, split="eval") for one in header.sequences)
    with pytest.raises(
        ValueError,
        match=r"^a policy of this run is fitted on what the fit sequences of the trace chose; .*fit",
    ):
        profile_of(replace(bundled_trace, header=replace(header, sequences=sequences)))


def test_a_fit_takes_the_first_unflagged_fit_sequences_that_have_rows_ascending() -> None:
    """Two of the trace have rows, 0 and 7; the header has more, and 7 comes first."""
    trace = make_trace()
    zero, seven = trace.header.sequences
    told = (
        replace(seven, split="fit", flags={"loops": True, "cut": False}),
        replace(zero, sequence=3, split="fit"),
        replace(zero, split="fit", flags={}),
    )

    def numbers(*sequences: TraceSequence, **choice: Any) -> tuple[int, ...]:
        return fit_sequences(
            replace(trace, header=replace(trace.header, sequences=sequences)), **choice
        )

    assert numbers(*told) == (0, 7)
    assert numbers(*told, most=1) == (7,)
    assert numbers(*told, exclude=["cut"]) == (0, 7)
    assert numbers(*told, exclude=["loops"]) == (0,)
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        numbers(told[0], told[1], exclude=["loops"])
    assert str(refused.value) == (
        "trace two sequences has no sequence to fit on: none of its sequences (splits: fit) has"
        " split fit and none of the flags loops; choose a trace with a fit split"
    )
    with pytest.raises(ValueError, match=r"\) has split fit; choose a trace with a fit split$"):
        numbers(replace(zero, split="eval"))


def test_a_sample_has_valid_rows_with_choices_by_weight_and_none_of_counted_prompts() -> None:
    trace = make_trace()
    assert sample_rows(trace, [7]).tolist() == [4, 5, 9, 11]
    assert sample_rows(trace, [0, 7]).tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11]
    counted = replace(trace, header=replace(trace.header, prefill="counts"))
    assert sample_rows(counted, [7]).tolist() == [9, 11]
    flipped = replace(trace, ids=trace.ids[..., ::-1], weights=trace.weights[..., ::-1])
    for made in (trace, flipped):
        sample = sample_of(made, [0])
        assert sample.sequence.tolist() == [0] * 7
        assert sample.token.tolist() == trace.token[[0, 1, 2, 6, 7, 8, 10]].tolist()
        # The rule's own order is by weight; row 2 dropped its second choice at site 1.
        assert sample.ids[0].tolist() == trace.ids[0].tolist()
        assert sample.ids[2, 1].tolist() == [trace.ids[2, 1, 0], -1]
    assert sample_of(trace, [0]).shape == Shape(3, 6, 2, 0, 0)


def test_a_fit_of_rows_says_what_it_was_made_of() -> None:
    def learn(sample: Sample, track: Track) -> dict[str, NDArray[Any]]:
        return {"tokens": np.array(list(track(sample.token)))}

    trace = make_trace()
    made = fit_from_rows(FitFile("counts", {"depth": 2}, learn=learn), trace, [7])
    assert (made.kind, made.parameters, made.sequences) == ("counts", {"depth": 2}, (7,))
    assert made.trace == {"name": "two sequences", "sha256": trace_sha256(trace.header)}
    assert (made.shape, made.results) == (Shape(3, 6, 2), {})
    assert made.arrays["tokens"].tolist() == trace.token[[4, 5, 9, 11]].tolist()
    assert fit_from_rows(FitFile("counts", learn=learn), trace, [7]).parameters == {}
    with pytest.raises(ValueError, match=r"^counts is made by moelab fit predictor=\.\.\. "):
        fit_from_rows(FitFile("counts"), trace, [7])
