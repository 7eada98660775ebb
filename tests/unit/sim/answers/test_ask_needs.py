"""What a question is told where nothing fits, nothing runs, or one thing alone is enough."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sim.answers import ask
from sim.answers.ask import _link, _memory, answer, fits_of
from sim.answers.ask_parts import LOSSLESS, Fit, Need, Row
from sim.machine.link import Link
from sim.results.labels import Labels
from sim.study.trials import prepared

ROW = Row(
    *("lru", "fp16", ("system=lru",), LOSSLESS, 0.5, 1.0, None, 1.0, None, 0.5, "nothing"),
    Labels(),
)
FOURFOLD = 32 * 64 ** (43 / 128)
"""What halving the exponents of 1 to 64 comes to for 4, 64 ** (1 / 3): 1 part of 128 above it."""
LINK = Link(32.0, 0.8, 6.0, name="pcie")


class Proportional:
    """A bench where ``lru`` decodes as many tokens/s as the last word's number by ``per``."""

    def __init__(self, per: float) -> None:
        self.per = per

    def ask(self, words: tuple[str, ...]) -> Future[Any]:
        found: Future[Any] = Future()
        speed = float(words[-1].partition("=")[2]) / self.per
        found.set_result(SimpleNamespace(summary={"decode_tokens_per_s": speed}))
        return found


def run_of(memory_gib: float, count: int = 1, measured: object = None) -> Any:
    devices = SimpleNamespace(count=count) if count > 1 else None
    hardware = SimpleNamespace(
        links=[LINK], memory_gib=memory_gib, devices=devices, measured=measured
    )
    return SimpleNamespace(hardware=hardware)


@pytest.mark.parametrize(
    ("target", "need"),
    [
        # Of 32 to 2,048 GB/s: at once, at four times as much to 3 %, and never.
        (16.0, Need("link", 32.0, "a link of 32 GB/s (1x this one) with lru at fp16")),
        (64.0, Need("link", FOURFOLD, "a link of 130 GB/s (4x this one) with lru at fp16")),
        (2e3, Need("link", None, "no link of up to 2048 GB/s with lru at fp16")),
    ],
)
def test_the_link_that_a_target_needs_is_told_in_gb_per_s_and_times_this_one(
    target: float, need: Need
) -> None:
    found = _link(ROW, run_of(24.0), cast(Any, Proportional(2.0)), target)
    assert (found.what, found.told) == (need.what, need.told)
    assert found.value == (need.value and pytest.approx(need.value, rel=1e-3))


def test_no_other_link_is_asked_for_where_this_ones_times_were_measured() -> None:
    measured = SimpleNamespace(copy_us={"pcie": [[1, 2.0]]})
    found = _link(ROW, run_of(24.0, measured=measured), cast(Any, None), 16.0)
    told = "another link (this one's times were measured, not computed)"
    assert found == Need("link", None, told)
    of_others = run_of(24.0, measured=SimpleNamespace(copy_us={}))
    assert _link(ROW, of_others, cast(Any, Proportional(2.0)), 16.0).value == 32.0


@pytest.mark.parametrize(
    ("target", "needs_gib", "need"),
    [
        (12.0, 42.0, Need("memory", 24.0, "24 GiB of memory with lru at fp16")),
        (
            50.0,
            42.0,
            Need(
                "memory",
                None,
                "no memory of up to 44.1 GiB, which holds all experts with lru at fp16",
            ),
        ),
        # All experts fit already: more memory than there is brings nothing.
        (
            50.0,
            10.0,
            Need(
                "memory",
                None,
                "no memory of up to 24 GiB, which holds all experts with lru at fp16",
            ),
        ),
    ],
)
def test_the_memory_that_a_target_needs_ends_where_all_experts_fit(
    target: float, needs_gib: float, need: Need, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = (Fit("int4", 99.0, False), Fit("fp16", needs_gib, False))
    monkeypatch.setattr(ask, "fits_of", lambda run: fits)
    assert _memory(ROW, run_of(24.0), cast(Any, Proportional(1.0)), target) == need


def test_a_question_that_no_system_can_answer_tells_the_first_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = [("system=a precision=fp16", "it does not fit"), ("system=b", "nor does it")]
    monkeypatch.setattr(ask, "fits_of", lambda run: ())
    bench: Any = SimpleNamespace(all=lambda words: ({}, refused))
    with pytest.raises(
        ValueError, match=r"^no system can run: system=a precision=fp16: it does not fit$"
    ):
        answer(run_of(24.0), "gates", ["fp16"], None, bench, 48.0)


def test_no_precision_above_that_of_the_published_weights_is_asked_whether_it_fits() -> None:
    """Weights of 4.25 bits: at more bits nothing would be gained."""
    words = ("model=tiny_mixtral", "+model.stored=mxfp4", "trace.max_sequences=1")
    run = prepared(["system=load_on_demand", "budget=fit", *words])
    assert [one.precision for one in fits_of(run)] == ["mxfp4", "mxfp4_moe", "int4", "int2"]
