"""What is said of times that a device took in the place of another machine."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.cpu_runs import FREE, Prepare
from real.setup.execute import _stands_for, lateness, measure, replay_driver
from sim.results.labels import Labels, told

NEVER = "no time of paced_cpu was ever compared with a real machine's"


def facts(share: float, **others: Any) -> dict[str, Any]:
    late = {"services": 200, "share": share, "worst_s": 0.002}
    return {"device": "host", "stands_for": "paced_cpu", "late_services": late, **others}


def test_a_run_on_a_device_is_told_from_a_simulated_one_of_the_same_machine() -> None:
    """In a report both were ``lru paced_cpu``, with a ratio beside them, and nothing more."""
    ran = _stands_for(NEVER, facts(0.01))
    assert ran == f"{NEVER}; a run on device=host, which stands for paced_cpu"
    assert told([("a", Labels(machine=ran)), ("b", Labels(machine=NEVER))]) == [
        f"a: {ran}",
        f"b: {NEVER}",
    ]


@pytest.mark.parametrize(("share", "is_late"), [(0.05, False), (0.514, True)])
def test_that_a_device_was_too_late_stays_with_its_times(share: float, is_late: bool) -> None:
    label = _stands_for(NEVER, facts(share))
    warning = lateness(facts(share))
    assert label is not None
    assert label.endswith(": 51% of services came late, do not trust its times") == is_late
    assert (warning is not None) == is_late


def test_times_of_a_machine_of_their_own_or_of_a_virtual_clock_keep_their_label() -> None:
    assert _stands_for(None, facts(0.0, stands_for=None)) is None
    assert _stands_for(NEVER, {"device": "null", "input": "replay"}) == NEVER
    links_free = facts(0.0, late_services=None)
    assert _stands_for(None, links_free) == "a run on device=host, which stands for paced_cpu"


@pytest.mark.parametrize(
    ("words", "lossy"),
    [
        (("precision=bf16",), "lossy (every expert at bf16 or below)"),
        (("precision=fp16",), None),
        (("precision=bf16", "engine.weights=stand_in", "engine.stand_in_gib=0.01"), None),
    ],
    ids=["rounded", "exact", "patterns"],
)
def test_a_run_on_weights_that_its_store_rounded_is_labelled_lossy(
    prepare: Prepare, words: tuple[str, ...], lossy: str | None
) -> None:
    """The bundled weights are in fp16, of which bf16 keeps fewer bits: this was called lossless."""
    prepared = prepare("system=lru", *words, *FREE)
    driver = replay_driver(prepared)
    summary = measure(prepared, prepared.run, driver, driver.drive()).summary
    (stored,) = summary["real"]["store"]["precisions"].values()
    assert summary["labels"]["lossy"] == lossy
    assert stored["lossless"] == ("precision=fp16" in words)
