"""Whose errors a machine tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.study.trials import trial

FEW = ("system=lru", "trace.max_sequences=1", "workload.decode_tokens=2")
BASE = "h100_sxm_pcie5_measured"


# Contracts: C113
@pytest.mark.parametrize(
    ("values", "is_told"),
    [
        ("name: mine\nsource: me\nmemory_gib: 70\nram: null\n", True),
        ("name: mine\ncompute:\n  memory_gb_per_s: 9000\n", False),
        ("links:\n  pcie:\n    efficiency: 0.9\n", False),
        ("name: mine\nhost:\n  sync_us: 1\n", False),
    ],
)
def test_a_file_that_changes_figures_tells_no_errors_of_the_one_that_it_begins_from(
    values: str, is_told: bool, tmp_path: Path
) -> None:
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "mine.yaml").write_text(
        f"defaults: [{BASE}, _self_]\n{values}", encoding="utf-8"
    )
    found = trial((*FEW, "hardware=mine", f"hydra.searchpath=[file://{tmp_path}]"))
    label = found.summary["labels"]["machine"]
    assert ("measured runs on this machine" in label) == is_told
    assert ("was ever compared" in label) != is_told
    assert (found.summary["calibration"]["validated"] == "compared") == is_told


def test_a_machine_as_its_file_has_it_tells_its_errors_and_one_of_words_alone_does_not() -> None:
    for words, told in (((), "compared"), (("hardware.host.sync_us=1",), "none")):
        summary = trial((*FEW, f"hardware={BASE}", *words)).summary
        assert summary["calibration"]["validated"] == told
