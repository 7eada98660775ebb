"""What llama.cpp computes a micro-batch in, beside what its own logs say that it set aside.

The logs are published in issues and discussions of ikawrakow/ik_llama.cpp, which users ran beside
llama.cpp; each row names its place there, and the line "compute buffer size".
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.catalogue import conf
from sim.answers.graph_memory import graph_bytes, window_bytes
from sim.machine.model import Model
from sim.values.units import MIB

Q6_K_BITS = 6.5625
CONTEXT = 16_384


def staged(model: Model, bits: float) -> int:
    """One tensor of a layer's experts."""
    return int(model.experts * model.expert_intermediate * model.hidden * bits / 8)


# Contracts: C154
@pytest.mark.parametrize(
    ("name", "asked", "logged_mib"),
    [
        # Discussion 357: Qwen3-235B-A22B in Q6_K, -ub 512 -c 16384 -fa, experts on the CPU.
        ("qwen3_235b_a22b", {"context": CONTEXT, "bits": Q6_K_BITS}, 774.00),
        # The same with attention on the CPU, too (-ngl 0): no mask comes to the GPU.
        ("qwen3_235b_a22b", {"context": 0, "bits": Q6_K_BITS}, 742.00),
        # The second of two GPUs, which has the head, and experts of its own.
        ("qwen3_235b_a22b", {"context": CONTEXT}, 304.75),
        # Issue 514: Qwen3-30B-A3B, -c 16384, flash attention off.
        ("qwen3_30b_a3b", {"context": CONTEXT, "flash": False}, 1080.00),
    ],
)
def test_a_micro_batch_takes_what_the_engine_logged(
    name: str, asked: dict[str, Any], logged_mib: float
) -> None:
    model = conf(name)
    staged_bytes = staged(model, asked.pop("bits", 0))
    assert graph_bytes(model, 512, staged_bytes=staged_bytes, **asked) == logged_mib * MIB


@pytest.mark.parametrize(
    ("sizes", "context", "logged_mib"),
    [
        # Issue 539: Qwen3-32B and pull request 344: GLM-Z1-32B, no experts, flash attention off.
        ({"heads": 64, "hidden": 5_120, "vocab": 151_936}, 40_960, 5252.01),
        ({"heads": 48, "hidden": 6_144, "vocab": 151_552}, 8_192, 832.01),
    ],
)
def test_scores_take_what_the_engine_logged(
    sizes: dict[str, int], context: int, logged_mib: float
) -> None:
    model: Any = SimpleNamespace(head_dim=128, top_k=0, expert_intermediate=0, **sizes)
    found = graph_bytes(model, 512, context, flash=False)
    assert found / MIB == pytest.approx(logged_mib, abs=0.02), "a few hundred bytes are logged more"


def test_an_older_mask_took_half_as_much_again() -> None:
    """Discussion 357, an older llama.cpp: Qwen3-235B-A22B, down projections in Q8_0, -c 32768: 1,024 MiB
    were logged, and 32 of them are missing here, as much as a mask of 16 bits.
    """
    model = conf("qwen3_235b_a22b")
    found = graph_bytes(model, 512, 2 * CONTEXT, staged_bytes=staged(model, 8.5))
    assert found == 992 * MIB == 1024 * MIB - 512 * 2 * CONTEXT * 2


@pytest.mark.parametrize(
    ("name", "bits", "tokens", "logged_mib"),
    [
        ("qwen3_235b_a22b", 16, 32_768, 6016.00),  # discussion 357
        ("qwen3_235b_a22b", 8.5, 65_536, 6392.00),  # issue 530
        ("qwen3_30b_a3b", 16, 32_768, 3072.00),  # issue 398
        ("deepseek_v3", 16, 163_840, 10980.00),  # pull request 237
        ("deepseek_v3", 8.5, 131_072, 4666.50),  # issue 485
        ("deepseek_v2", 16, 32_768, 2160.00),  # pull request 386
        ("deepseek_v2", 8.5, 32_768, 1147.50),  # pull request 400
    ],
)
def test_keys_and_values_take_what_the_engine_logged(
    name: str, bits: float, tokens: int, logged_mib: float
) -> None:
    assert replace(conf(name), kv_bits=bits).kv_bytes(tokens) == logged_mib * MIB


def test_a_window_is_held_with_a_micro_batch_in_whole_cells() -> None:
    """Every second layer of gpt-oss-20b attends to 128 tokens. 128 + 512 are three times 256 cells, so
    640 tokens more than the window: 12 layers of 2 KiB. A context of 300 tokens has no more cells.
    """
    model = conf("gpt_oss_20b")
    assert window_bytes(model, 512, 8_192) == 640 * 12 * 2_048
    assert window_bytes(model, 512, 300) == 172 * 12 * 2_048
    assert window_bytes(model, 512, 100) == 0
    assert window_bytes(conf("qwen3_30b_a3b"), 512, 8_192) == 0
