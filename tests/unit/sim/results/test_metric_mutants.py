"""Defects planted in the metrics, each a rewritten line, are noticed.

The two runs worked by hand notice each, or the audit of a run does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from omegaconf import DictConfig

from helpers.planted import Defect, plant
from helpers.worked import STAGED, make_run
from sim.audit.__main__ import audit
from sim.audit.files import RunFiles
from sim.audit.rules import flat
from sim.bounds.bounds import Bounds, lower_bounds
from sim.engine.simulate import simulate
from sim.results import metrics
from sim.results.frames import Frames
from sim.results.run import Run
from sim.setup.build import build
from sim.traces.trace import Trace
from unit.sim.results.test_worked_runs import NOT_BY_HAND, by_hand, is_same

Configure = Callable[..., DictConfig]

DEFECTS = {
    "high_for_low is no hit": Defect(
        "sim.results.hits", "is_in(FOUND_RESIDENT)", 'is_in(["hit"])', ""
    ),
    "a hit ratio over everything": Defect(
        "sim.results.hits", 'lookups["skips"] != ALWAYS', 'lookups["skips"] != ""', ""
    ),
    "a hit ratio without what is left out for being absent": Defect(
        "sim.results.hits", 'lookups["skips"] != ALWAYS', 'lookups["outcome"] != "skip"', ""
    ),
    "a precision's needs with those that are served as they are there": Defect(
        "sim.results.hits",
        'fixed = lookups.filter(pl.col("skips") == NEVER)',
        "fixed = lookups",
        "",
    ),
    "promotions cost nothing": Defect("sim.results.hits", "is_in(MISSED)", 'is_in(["miss"])', ""),
    "wasted without dropped": Defect(
        "sim.results.transfer_frames",
        '.column("outcome"), WASTED)',
        '.column("outcome"), WASTED[:2])',
        "",
    ),
    "wasted on every link": Defect(
        "sim.results.transfer_frames",
        " & (link < self.controller.route.ends)].sum()",
        "].sum()",
        "",
    ),
    "wasted by demands": Defect(
        "sim.results.transfer_frames", "(self._kinds == 1) & np.isin", "np.isin", ""
    ),
    "a link's bytes by the other's": Defect(
        "sim.results.transfer_frames",
        "(link == at) & (kind == k)",
        "(link != at) & (kind == k)",
        "",
    ),
    "tpot's interval over every sequence": Defect(
        "sim.results.believed", "(tokens > 0).astype(np.float64)", "np.ones(len(tokens))", ""
    ),
    "the hit interval's denominator doubled": Defect(
        "sim.results.metrics",
        "by_batch(frames, counted))",
        "2 * by_batch(frames, counted))",
        "",
    ),
    "a batch's time in equal parts": Defect(
        "sim.results.latency",
        'return by_batch(frames, sum_by_sequence(frames, rows["sequence"], share))',
        'return sum_by_sequence(frames, rows["sequence"], share)',
        "",
    ),
    "p95 is p50": Defect(
        "sim.results.latency",
        "np.percentile(values_ns, p)",
        "np.percentile(values_ns, min(p, 50))",
        "",
    ),
    "the peak on the device grows with what is left over": Defect(
        "sim.results.metrics", "ledger.total_bytes - max(0,", "ledger.total_bytes + max(0,", ""
    ),
    "how far pools were over, the other way round": Defect(
        "sim.results.metrics",
        "controller.slots.peak_bytes - sum(controller.slots.capacity_bytes)",
        "sum(controller.slots.capacity_bytes) - controller.slots.peak_bytes",
        "",
    ),
    "no channels": Defect(
        "sim.results.metrics",
        "for section, policy in run.policies.items()}",
        "for section, policy in [('precision', run.controller.selector)]}",
        "",
    ),
    "every end of a need is a wave": Defect(
        "sim.results.metrics", "sum(count > 0 for", "sum(count >= 0 for", ""
    ),
    "unions at the lowest precision": Defect(
        "sim.results.metrics",
        "geometry.slot_bytes[geometry.key(0, site, 0)]",
        "geometry.slot_bytes[-1]",
        "",
    ),
}
CONFIGURED = {
    "hobbit": "system=hobbit",
    "light experts left out": "system=adapmoe precision.skip_above=0.7",
    "channels": "system=floe",
    "a batch and one alone": "system=lru workload=static_4 workload.together=2",
    "over a drive and RAM": "system=mixtral_offloading hardware=rtx4090_nvme",
}


@dataclass(frozen=True, eq=False)
class Measured:
    """A run that has been simulated, to be summarised again and again.

    ``page`` is its name, if docs/metrics.md works it by hand.
    """

    run: Run
    frames: Frames
    bounds: Bounds
    page: str = ""

    def wrong(self) -> list[str]:
        """The values that differ from the page, or from what the run's tables give."""
        summary = json.loads(json.dumps(metrics.summarise(self.run, self.frames, self.bounds)))
        files = RunFiles(summary, self.run.config, **self.frames.tables())
        found = [str(difference) for difference in audit(files).differences]
        values = dict(flat(summary))
        page = by_hand(self.page) if self.page else {}
        assert not set(page) & set(NOT_BY_HAND)
        return found + [
            f"{key}: page" for key, value in page.items() if not is_same(values[key], value)
        ]


def measured(run: Run, page: str = "") -> Measured:
    record = simulate(run.controller, run.workload, run.durations)
    frames = Frames(run.controller, run.workload, run.durations, record, run.hardware.link_names)
    frames.tables()
    return Measured(run, frames, lower_bounds(run.workload, run.durations, run.controller), page)


@pytest.fixture(scope="module")
def runs(configure: Configure, bundled_trace: Trace) -> Sequence[Measured]:
    short = ("trace.max_sequences=3", "+workload.decode_tokens=6", "budget.resident_share=0.4")
    configured = [
        build(configure(*short, *words.split()), name, bundled_trace)
        for name, words in CONFIGURED.items()
    ]
    return [
        measured(make_run(), "first"),
        measured(make_run(**STAGED), "second"),
        *map(measured, configured),
    ]


def test_without_a_defect_nothing_differs(runs: Sequence[Measured]) -> None:
    for one in runs:
        assert one.wrong() == [], one.run.system


@pytest.mark.alike
@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_in_a_metric_is_noticed(
    name: str, runs: Sequence[Measured], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plant(DEFECTS[name], monkeypatch) >= 1
    assert any(one.wrong() for one in runs), name
