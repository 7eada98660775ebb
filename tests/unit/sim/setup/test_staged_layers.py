"""Prompts whose experts come through a buffer for a layer, as llama.cpp has it.

Oracle: the engine's order. A layer's experts are there before it computes, and nothing comes while
it does. So a prompt takes what its copies take, and what its operations take.
"""

from __future__ import annotations

import polars as pl

from sim.setup.execute import execute
from sim.study.trials import prepared

WORDS = (
    "system=llama_cpp_n_cpu_moe",
    "cache.quotas.n_cpu_moe=16",
    "budget.resident_share=0.01",
    "trace.max_sequences=1",
    "workload.decode_tokens=1",
    "outputs=all",
)


def prompt_ns(*words: str) -> tuple[int, int, int]:
    """What a prompt takes, what its copies take, and what its operations take, in ns. The decoded
    token after it copies nothing: a CPU computes for it.
    """
    tables = execute(prepared([*WORDS, *words])).frames.tables()
    prompt = tables["tokens"].filter(pl.col("phase") == "prefill").row(0, named=True)
    moved = tables["transfers"].select((pl.col("end_ns") - pl.col("start_ns")).sum()).item()
    return prompt["end_ns"] - prompt["start_ns"], moved, prompt["compute_ns"]


def test_a_prompt_takes_its_copies_and_then_its_operations() -> None:
    prompt, moved, computed = prompt_ns()
    assert moved > 0
    assert prompt == moved + computed


def test_with_two_slots_the_next_experts_come_while_others_compute() -> None:
    prompt, moved, computed = prompt_ns("loader.staging_slots=2")
    assert prompt < moved + computed
