"""The table of a run says what its summary says, row by row."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
from rich.console import Console

from helpers.bundled import Configure
from sim.results.outputs import print_summary
from sim.setup.build import build
from sim.setup.execute import execute
from sim.traces.trace import Trace

WORDS = "system=lru", "trace.max_sequences=2", "budget.resident_share=0.4", "bounds=max"


@pytest.fixture(scope="module")
def summary(configure: Configure, bundled_trace: Trace) -> dict[str, Any]:
    return dict(execute(build(configure(*WORDS), "lru", bundled_trace)).summary)


def printed(summary: dict[str, Any]) -> dict[str, str]:
    """The value of each row, by its name."""
    told = io.StringIO()
    print_summary(summary, Console(file=told, width=200))
    rows = [line.split("│")[1:3] for line in told.getvalue().splitlines() if line.count("│") > 2]
    return {name.strip(): value.strip() for name, value in rows}


def test_each_row_is_a_number_of_the_summary_in_its_unit(summary: dict[str, Any]) -> None:
    rows = printed(summary)
    (link,) = summary["link_utilisation"]
    assert rows["decode"] == f"{summary['decode_tokens_per_s']:.4g} tok/s"
    assert rows["time per output token"] == f"{summary['tpot_s']['mean']:.4g} s"
    assert rows["hit ratio (decode)"] == f"{summary['hit_ratio']:.4g}"
    assert rows["makespan"] == f"{summary['makespan_s']:.4g} s"
    assert rows[f"link {link} busy"] == f"{summary['link_utilisation'][link] * 100:.4g} %"
    assert rows["all experts"] == f"{summary['storage_bytes'] / 2**30:.4g} GiB"
    assert rows["proven lower bound"] == f"{summary['bounds']['lower_s']:.4g} s"


def test_what_is_zero_or_absent_has_no_row_or_a_dash(summary: dict[str, Any]) -> None:
    other = copy.deepcopy(summary)
    other["stall_s"] = {"demand": 0.0, "host": 1.25}
    other["slowed_s"], other["decode_tokens_per_s"] = {"compute": 0.5, "cpu": 0.0}, None
    rows = printed(other)
    assert rows["decode"] == "-"
    assert (rows["stall: host"], rows["slowed: compute"]) == ("1.25 s", "0.5 s")
    assert "stall: demand" not in rows
    assert "slowed: cpu" not in rows
