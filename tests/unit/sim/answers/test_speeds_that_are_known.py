"""What the front door says of a model that fits, beside what owners of the device publish.

Words are those that `moelab ask` runs. Sources are in ``sim/reproduce/claims/field.csv``.
"""

from __future__ import annotations

from statistics import median

import pytest

from sim.answers.ask import OF_FILES, systems_at
from sim.machine.precision import in_four_bits
from sim.study.trials import tokens_per_s, trial

PUBLISHED = (
    # model, machine, file, tokens of context, tokens a second
    ("gpt_oss_20b", "rtx3090_pcie4", "mxfp4_moe", 512, 238.89),
    ("gpt_oss_20b", "rtx5090_pcie5", "mxfp4_moe", 8704, 385.75),
    ("gpt_oss_20b", "gb10", "mxfp4_moe", 128, 84.1),
    ("gpt_oss_20b", "m2_ultra", "mxfp4_moe", 128, 116.08),
    ("gpt_oss_120b", "gb10", "mxfp4_moe", 128, 59.02),
    ("gpt_oss_120b", "m2_ultra", "mxfp4_moe", 128, 79.68),
    ("qwen3_30b_a3b", "gb10", "q8_0", 128, 60.92),
    ("qwen3_30b_a3b", "rtx4090_pcie4", "q4_0", 2048, 205.87),
    ("qwen3_30b_a3b", "rtx5090_pcie5", "q4_0", 8704, 212.2),
    ("qwen3_30b_a3b", "strix_halo", "q4_k_m", 128, 71.48),
)


def test_a_model_that_fits_is_as_fast_as_owners_of_the_device_say() -> None:
    ratios = {}
    for model, machine, precision, context, told in PUBLISHED:
        _, of_file = systems_at([precision], [precision])[:2]
        assert of_file == (f"system={OF_FILES}", f"precision={precision}")
        words = (*of_file, f"model={model}", f"hardware={machine}", "budget=fit")
        seen = (f"workload.context_tokens={context}", "trace.max_sequences=1")
        ratios[model, machine] = tokens_per_s(trial([*words, *seen])) / told
    assert all(1 / 1.25 < ratio < 1.25 for ratio in ratios.values()), ratios
    assert median(max(ratio, 1 / ratio) for ratio in ratios.values()) < 1.08, ratios


@pytest.mark.parametrize("model", ["gpt_oss_20b", "gpt_oss_120b"])
def test_gpt_oss_is_asked_in_the_file_that_people_run(model: str) -> None:
    assert in_four_bits("mxfp4") == "mxfp4_moe"
    at = f"model={model}", "hardware=gb10", "budget=fit", "trace.max_sequences=1"
    published, of_file = (
        trial([f"system={OF_FILES}", f"precision={name}", *at]).summary
        for name in ("mxfp4", "mxfp4_moe")
    )
    assert published["labels"]["lossy"] is None
    assert of_file["labels"]["lossy"] == "lossy (every weight at mxfp4_moe or below)"
    assert of_file["tpot_s"]["mean"] < published["tpot_s"]["mean"]
