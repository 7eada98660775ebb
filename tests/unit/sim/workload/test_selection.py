"""Which batchings take which options, each by its whole refusal."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sim.workload.lengths import Lengths
from sim.workload.selection import check_batching

PLAIN: dict[str, Any] = {
    "together": 1,
    "prefill_chunk": None,
    "arrivals_per_s": None,
    "arrivals": None,
    "lengths": Lengths(),
}
OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"together": 2}, "together=2"),
    ({"prefill_chunk": 8}, "prefill_chunk=8"),
    ({"arrivals_per_s": 0.5}, "arrivals_per_s=0.5"),
    ({"arrivals": [0, 1_500_000_000]}, "arrivals_s=[0.0, 1.5]"),
    ({"arrivals": []}, "arrivals_s=[]"),
    ({"lengths": Lengths(prompt_tokens=3)}, "prompt_tokens=3"),
    ({"lengths": Lengths(decode_tokens=0)}, "decode_tokens=0"),
    ({"draft_tokens": 1}, "draft_tokens=1"),
    ({"lengths": Lengths(each=((3, 1),))}, "requests=(given)"),
    ({"lengths": Lengths(each=((3, 1),)), "arrivals": [0]}, "requests=(given)"),
]


@pytest.mark.parametrize(("option", "told"), OPTIONS, ids=[told for _, told in OPTIONS])
def test_recorded_steps_take_no_option_and_others_do(option: dict[str, Any], told: str) -> None:
    for batching in ("static", "continuous"):
        check_batching(batching, **(PLAIN | option))
    with pytest.raises(
        ValueError,
        match=f"^{re.escape(f'workload.{told} does not go with workload.batching=recorded, which')}"
        " keeps the trace's steps; choose workload.batching=sequential, static or continuous$",
    ):
        check_batching("recorded", **(PLAIN | option))


def test_without_options_every_batching_is_taken_and_no_other() -> None:
    for batching in ("recorded", "sequential", "static", "continuous"):
        check_batching(batching, **PLAIN)
    with pytest.raises(
        ValueError,
        match=r"^unknown workload\.batching=batch; allowed: recorded, sequential, static, continuous$",
    ):
        check_batching("batch", **PLAIN)


def test_one_sequence_at_a_time_is_one() -> None:
    with pytest.raises(
        ValueError, match=r"^workload\.together=2 does not go with workload\.batching=seq"
    ):
        check_batching("sequential", **(PLAIN | {"together": 2}))
    for batching in ("sequential", "static"):
        with pytest.raises(ValueError, match=r"^workload\.together=0 must be a whole number >= 1$"):
            check_batching(batching, **(PLAIN | {"together": 0}))
