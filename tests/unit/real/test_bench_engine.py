"""The engine beside the bare loop, at a tiny size with the host in the GPU's place."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from helpers.fake_runtime import FakeRuntime
from real.bench_engine import main
from real.cuda.bare_loop import BareLoop
from sim.machine.model import Model


@pytest.mark.thorough
def test_both_are_measured_in_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["device=host", "size=tiny", "tokens=2", f"store_dir={tmp_path}"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ratio"] == pytest.approx(told["engine_ms"] / told["bare_ms"], rel=0.01)
    for name in ("engine_misses", "bare_misses"):
        assert 0 < told[name] <= 48 * 8


def test_the_bare_loop_is_in_legal_order_and_keeps_what_was_used_last() -> None:
    """Two sites of four experts, two a gate, with room for three: loads by hand."""
    shape = SimpleNamespace(
        sites=2, experts=4, top_k=2, hidden=32, expert_intermediate=16, name="small"
    )
    runtime = FakeRuntime(strict=True, late=2)
    loop = BareLoop(runtime, cast(Model, shape), 3)
    tokens = [[[0, 1], [0, 1]], [[0, 1], [0, 2]], [[0, 1], [0, 2]], [[0, 1], [0, 2]]]
    _, missed = loop.run(iter(tokens))
    loop.close()
    assert missed == 2, "of four experts in three slots each gate finds one"
    assert sum("copies" in line for line in runtime.log) == 4 + 3 + 2 + 2
    assert not runtime._pinned


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("token=5", "token=5 is unknown"),
        ("size=huge", "size=huge must be one of whole, tiny"),
        ("model=gpt", "model=gpt must be one of qwen3_30b_a3b, mixtral_8x7b"),
    ],
)
def test_words_that_say_nothing_are_refused(
    word: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word]) == 2
    assert why in capsys.readouterr().err
