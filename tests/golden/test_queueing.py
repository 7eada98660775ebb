"""Requests that arrive over time, against closed forms of queueing theory; and worked examples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from sim.setup.build import build
from sim.setup.execute import execute
from sim.traces.trace import Trace
from sim.values.units import NS_PER_S
from sim.workload.batching import Batcher, Request, arrival_times, given_arrivals

Configure = Callable[..., DictConfig]
REQUESTS = 100_000
SMALL = ("system=lru", "trace.max_sequences=2", "budget.resident_share=0.5")


def mean_stay_s(rate_per_s: float, service_s: float, together: int = 1) -> float:
    """Mean time from a request's arrival to its end, where all steps take equally long."""
    arrivals = arrival_times(REQUESTS, rate_per_s, seed=4)
    batcher = Batcher(
        [Request(n, 1, 0, at) for n, at in enumerate(arrivals)], "continuous", together
    )
    now, stay, service_ns = 0, 0, round(service_s * NS_PER_S)
    while (parts := batcher.next(now)) is not None:
        if isinstance(parts, int):
            now = parts
            continue
        now += service_ns
        stay += sum(now - part.request.arrival_ns for part in parts)
    return stay / REQUESTS / NS_PER_S


@pytest.mark.alike
@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_server_with_equal_services_keeps_its_queue_as_long_as_theory_says(load: float) -> None:
    """M/D/1 (Pollaczek and Khinchine): wait = load * service / (2 (1 - load)).

    With 100,000 arrivals an error of some per cent is left.
    """
    service_s = 0.25
    expected = service_s + load * service_s / (2 * (1 - load))
    assert mean_stay_s(load / service_s, service_s) == pytest.approx(expected, rel=0.02)


def test_where_all_that_wait_join_the_next_step_nobody_waits_longer_than_one() -> None:
    """Without a limit a request waits for the rest of a step and is then served.

    So it stays between one and two services.
    """
    assert 0.25 < mean_stay_s(40.0, 0.25, together=REQUESTS) < 0.5


def run(
    configure: Configure, trace: Trace, *words: str
) -> tuple[list[dict[str, float]], dict[str, object]]:
    result = execute(build(configure(*SMALL, *words), "lru", trace))
    return result.frames.sequences.to_dicts(), result.summary


def test_a_request_that_comes_later_finds_the_stream_idle_or_waits_for_it(
    configure: Configure, bundled_trace: Trace
) -> None:
    """The second of two requests comes 1 s before the first ends, or 1 s after.

    It waits 1 s longer for its first token, or not at all.
    """
    (first, second), _ = run(configure, bundled_trace)
    end_s = first["end_ns"] / NS_PER_S
    (_, waits), _ = run(configure, bundled_trace, f"workload.arrivals_s=[0,{end_s - 1}]")
    (_, free), summary = run(configure, bundled_trace, f"workload.arrivals_s=[0,{end_s + 1}]")
    alone_ns = second["first_token_ns"] - second["arrival_ns"]
    assert waits["first_token_ns"] - waits["arrival_ns"] == pytest.approx(
        alone_ns + NS_PER_S, abs=2
    )
    assert free["first_token_ns"] - free["arrival_ns"] == alone_ns
    assert summary["stall_s"]["no_request"] == pytest.approx(1.0, abs=1e-8)  # type: ignore[index]
    assert summary["contracts"]["arrivals"] == {"given_s": [0, end_s + 1]}  # type: ignore[index]


def test_times_of_requests_are_their_tokens_times(
    configure: Configure, bundled_trace: Trace
) -> None:
    """TTFT is from the arrival to the end of the prompt, TPOT over the tokens after it.

    Percentiles are over requests.
    """
    requests, summary = run(
        configure, bundled_trace, "workload=continuous_4", "workload.arrivals_s=[0,0.5]"
    )
    ttft = [(r["first_token_ns"] - r["arrival_ns"]) / 1e9 for r in requests]
    tpot = [(r["end_ns"] - r["first_token_ns"]) / 1e9 / r["decode_tokens"] for r in requests]
    assert summary["ttft_s"]["mean"] == pytest.approx(sum(ttft) / 2)  # type: ignore[index]
    assert summary["tpot_s"]["mean"] == pytest.approx(sum(tpot) / 2)  # type: ignore[index]
    assert summary["tpot_s"]["p50"] == pytest.approx(sum(tpot) / 2)  # type: ignore[index]


@pytest.mark.parametrize("asked", ["workload.arrivals_s=[0,0,0,0]", "workload.arrivals_per_s=1e15"])
def test_in_a_burst_at_0_the_wait_for_ones_turn_counts_as_it_does_a_nanosecond_later(
    configure: Configure, bundled_trace: Trace, asked: str
) -> None:
    """An open loop is what was asked for, whatever the times.

    The fourth request waits for the three before it.
    """
    words = "workload=sequential", "trace.max_sequences=4"
    closed, _ = run(configure, bundled_trace, *words)
    burst, summary = run(configure, bundled_trace, *words, asked)
    later, late = run(configure, bundled_trace, *words, "workload.arrivals_s=[1e-9,1e-9,1e-9,1e-9]")
    assert [one["arrival_ns"] for one in burst] == [0] * 4
    assert [one["arrival_ns"] for one in closed] == [0, *(one["end_ns"] for one in burst[:3])]
    assert [one["end_ns"] for one in burst] == [one["end_ns"] for one in closed]
    for name in ("ttft_s", "latency_s", "tpot_s", "makespan_s"):
        assert summary[name] == late[name]
    assert summary["ttft_s"]["p95"] > burst[1]["end_ns"] / NS_PER_S  # type: ignore[index]
    assert summary["contracts"]["arrivals"] is not None  # type: ignore[index]
    assert [one["end_ns"] + 1 for one in burst] == [one["end_ns"] for one in later]


# Arrivals from a file


def test_arrivals_may_stand_in_a_file_one_a_line(tmp_path: Path) -> None:
    place = tmp_path / "arrivals.txt"
    place.write_text("# seconds\n0\n0.5  # a second one\n\n2e-9\n", encoding="utf-8")
    assert given_arrivals(str(place)) == (0, 500_000_000, 2)
    assert (
        given_arrivals([0, 1.5]) == given_arrivals(OmegaConf.create([0, 1.5])) == (0, 1_500_000_000)
    )
    assert arrival_times(2, given_ns=given_arrivals(str(place))) == (0, 500_000_000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0\nsoon\n", r"line 2: 'soon' is no time in seconds"),
        ("-1\n", r"line 1: time=-1\.0 must be"),
        (
            "0\n1.7e9\n",
            (
                r"line 2: time=1700000000\.0: .* after 1\.7e\+09 s, the latest is 4,000,000 s;"
                r" .*subtract"
            ),
        ),
    ],
)
def test_a_line_that_is_no_time_is_refused_by_its_number(
    tmp_path: Path, text: str, message: str
) -> None:
    place = tmp_path / "arrivals.txt"
    place.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        given_arrivals(str(place))
