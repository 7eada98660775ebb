"""A machine's rates and facts from a log of Strata's form. The figures are made up."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from sim.answers.strata_log import Asked, read_report
from sim.calibrate import main
from sim.setup.configure import configure
from sim.setup.sections import make_object

START = """\
strata generate: PCIe probe: 12.5 GB/s host->device (best of 12.5 12.1) -> pcie_frac 0.40 (default 0.55)
strata generate: loaded 30.00 GiB at 2.50 GiB/s
strata generate: expert cache auto: 9.00 GiB free, 700 MiB reserved (+100 MiB for the draft head) -> 4000 slots
strata generate: expert cache 4096 slots, 8.00 GiB of VRAM; policy is
"""
REQUESTS = """\
strata serve: prompt 25 tokens = 5 reused + 20 read in 600 ms (33.3 tok/s), \
18 generated in 900 ms (20.0 tok/s), drafts accepted 10 of 17, 1 checkpoints
strata serve: decode expert cache hit rate: 25.0% (100 hits / 400 lookups)
strata serve: expert tiers: GPU 100 hits this request; \
since the start RAM 300 blobs, files 0 blobs 0.0 MB read (the GGUF in place)
strata serve: prompt 900 tokens = 0 reused + 900 read in 1500 ms (600.0 tok/s), \
60 generated in 2000 ms (30.0 tok/s)
strata serve: decode expert cache hit rate: 75.0% (450 hits / 600 lookups); \
10 more read over PCIe (2.0% of all 610 routed)
strata serve: expert tiers: GPU 450 hits this request; \
since the start RAM 420 blobs, files 30 blobs 61.5 MB read (the GGUF in place)
"""


def log_of(folder: Path, text: str) -> Path:
    file = folder / "engine.log"
    file.write_text(text, encoding="utf-8")
    return file


def calibrated(log: Path, base: str) -> int:
    output = log.parent / "mine.yaml"
    return main([f"log={log}", "columns=strata", f"base={base}", "name=mine", f"output={output}"])


def test_every_line_of_the_log_is_read(tmp_path: Path) -> None:
    report = read_report(log_of(tmp_path, f"strata: other words\n{START}{REQUESTS}"))
    assert report.probe_gb_per_s == 12.5
    assert report.drive_gb_per_s == pytest.approx(2.5 * 1.073741824)
    assert (report.slots, report.slots_gib) == (4096, 8.0)
    assert report.requests == (
        Asked(5, 20, 600.0, 18, 900.0, 10, 17, 100, 400),
        Asked(0, 900, 1500.0, 60, 2000.0, 0, 0, 450, 600),
    )
    assert (report.ram_blobs, report.file_blobs, report.file_mb) == (420, 30, 61.5)


def test_facts_are_sums_over_requests(tmp_path: Path) -> None:
    assert read_report(log_of(tmp_path, START + REQUESTS)).facts() == [
        "4096 slots of 2.000 MiB over all layers (budget.slots_gib=8)",
        "hits 55.0% of 1000 lookups while decoding",
        "drafts kept 10 of 17",
        "experts from RAM 420, from files 30; 58.65 MiB read from files",
        "2 requests decode at a median of 25 tokens/s",
    ]


def test_after_a_restart_the_last_start_counts(tmp_path: Path) -> None:
    again = START.replace("12.5 GB/s", "11.0 GB/s").replace("4096 slots", "2048 slots")
    report = read_report(log_of(tmp_path, START + REQUESTS + again))
    assert (report.probe_gb_per_s, report.slots, len(report.requests)) == (11.0, 2048, 2)


@pytest.mark.parametrize(
    ("base", "rates"),
    [
        ("rtx4090_pcie4", {"pcie": 12.5}),
        ("rtx4090_nvme", {"pcie": 12.5, "nvme": 2.5 * 1.073741824}),
    ],
)
def test_the_machine_has_the_rates_of_the_log_and_all_else_of_its_base(
    tmp_path: Path, base: str, rates: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrated(log_of(tmp_path, START + REQUESTS), base) == 0
    assert "hits 55.0% of 1000 lookups" in capsys.readouterr().out
    own = OmegaConf.load(tmp_path / "mine.yaml")
    del own["defaults"]
    hardware = configure(f"hardware={base}")[0].hardware
    before = make_object(hardware)
    machine = make_object(OmegaConf.merge(hardware, own))
    for link, name in enumerate(before.link_names):
        moved = 1_000_000_000
        latency = before.links[link].latency_ns
        # The file has rates of six digits.
        assert machine.hop_ns(link, moved) == pytest.approx(latency + 1e9 / rates[name], rel=5e-6)
    assert (machine.name, machine.preset, machine.validated) == ("mine", "calibrated", "none")
    assert (machine.compute, machine.memory_gib) == (before.compute, before.memory_gib)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nothing of it\n", "engine.log has no line of Strata's engine"),
        (REQUESTS, "the log has no rate of a link"),
        (START.splitlines()[1] + "\n", "the log has no rate of a link"),
    ],
)
def test_a_log_without_rates_is_refused_and_nothing_is_written(
    tmp_path: Path, text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrated(log_of(tmp_path, text), "rtx4090_pcie4") == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "mine.yaml").exists()


def test_a_base_whose_measured_times_stand_for_the_link_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file would say the probed rate, and runs would take the base's table."""
    assert calibrated(log_of(tmp_path, START), "h100_sxm_pcie5_measured") == 2
    assert "its link pcie has times of its own (measured.copy_us" in capsys.readouterr().err
    assert not (tmp_path / "mine.yaml").exists()


def test_words_of_fits_do_not_go_with_such_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = log_of(tmp_path, START)
    words = [f"log={log}", "columns=strata", "base=rtx4090_pcie4", "name=mine", "rows=9"]
    assert main([*words, f"output={tmp_path / 'mine.yaml'}"]) == 2
    assert "rows= does not go with columns=strata" in capsys.readouterr().err
