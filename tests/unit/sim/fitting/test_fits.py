"""What the fit sequences chose, counted one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from sim.fitting.fits import profile_of
from sim.traces.trace import Trace


def test_uses_are_the_choices_of_all_rows_of_the_fit_sequences_prompts_included(
    bundled_trace: Trace,
) -> None:
    fit = [one.sequence for one in bundled_trace.header.sequences if one.split == "fit"]
    counted: Counter[tuple[int, int]] = Counter()
    for row in np.flatnonzero(np.isin(bundled_trace.sequence, fit)):
        for site, chosen in enumerate(bundled_trace.ids[row].tolist()):
            counted.update((site, expert) for expert in chosen if expert >= 0)
    uses = profile_of(bundled_trace).uses
    assert {at: int(uses[at]) for at in np.ndindex(uses.shape) if uses[at]} == counted
    assert min(counted.values()) > 1


def test_a_trace_without_fit_sequences_has_no_profile(bundled_trace: Trace) -> None:
    header = bundled_trace.header
    sequences = tuple(replace(one, split="eval") for one in header.sequences)
    with pytest.raises(
        ValueError,
        match=r"^a policy of this run is fitted on what the fit sequences of the trace chose; .*fit",
    ):
        profile_of(replace(bundled_trace, header=replace(header, sequences=sequences)))
