"""What a log of Strata's tells, line by line, and the whole file of the machine that has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sim.answers.strata_log import Asked, Report, machine_text, read_report

NOTHING = Report(None, None, 0, 0.0, (), 0, 0, 0.0)
ASKED = Asked(5, 20, 600.0, 18, 900.0, 0, 0)


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({}, []),
        ({"probe_gb_per_s": 25.0, "drive_gb_per_s": 5.0}, []),
        (
            {"slots": 3, "slots_gib": 1.5},
            ["3 slots of 512.000 MiB over all layers (budget.slots_gib=1.5)"],
        ),
        ({"ram_blobs": 7}, ["experts from RAM 7, from files 0; 0 MiB read from files"]),
        (
            {"file_blobs": 7, "file_mb": 1.048576},
            ["experts from RAM 0, from files 7; 1 MiB read from files"],
        ),
        (
            {"requests": (replace(ASKED, lookups=8, decode_ms=0.0),)},
            ["hits 0.0% of 8 lookups while decoding"],
        ),
        ({"requests": (ASKED,)}, ["1 requests decode at a median of 20 tokens/s"]),
        (
            {
                "requests": (
                    replace(ASKED, hits=1, lookups=4, accepted=2, drafted=3),
                    replace(ASKED, hits=4, lookups=4, accepted=0, drafted=7, generated=36),
                    replace(ASKED, generated=45),
                    replace(ASKED, generated=0, decode_ms=0.0),
                )
            },
            [
                "hits 62.5% of 8 lookups while decoding",
                "drafts kept 2 of 10",
                "3 requests decode at a median of 40 tokens/s",
            ],
        ),
    ],
)
def test_a_fact_is_told_where_the_log_has_it(changes: dict[str, Any], facts: list[str]) -> None:
    assert replace(NOTHING, **changes).facts() == facts


@pytest.mark.parametrize(
    ("line", "report"),
    [
        ("PCIe probe: 12.5 GB/s host->device", replace(NOTHING, probe_gb_per_s=12.5)),
        ("loaded 9.0 GiB at 1000 GiB/s", replace(NOTHING, drive_gb_per_s=1073.741824)),
        (
            "expert cache 40 slots, 8.5 GiB of VRAM",
            replace(NOTHING, slots=40, slots_gib=8.5),
        ),
        (
            "expert tiers: GPU 1 hits; RAM 2 blobs, files 3 blobs 4.5 MB read",
            replace(NOTHING, ram_blobs=2, file_blobs=3, file_mb=4.5),
        ),
        (
            "prompt 25 tokens = 5 reused + 20 read in 600 ms (33.3 tok/s),"
            " 18 generated in 900 ms (20.0 tok/s)",
            replace(NOTHING, requests=(ASKED,)),
        ),
    ],
)
def test_each_line_alone_is_a_report(line: str, report: Report, tmp_path: Path) -> None:
    """Hits of no request, which come before any, are left out."""
    log = tmp_path / "engine.log"
    hits = "decode expert cache hit rate: 25.0% (100 hits / 400 lookups)"
    log.write_text(f"{hits}\n{line}\n", encoding="utf-8")
    assert read_report(log) == report


def test_a_line_whose_number_is_none_is_no_line_of_the_engine(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    path.write_text("PCIe probe: 1.2.3 GB/s host->device", encoding="utf-8")
    with pytest.raises(ValueError, match=r"^engine.log has no line of Strata's engine"):
        read_report(path)


def test_a_file_without_any_of_the_lines_is_told_two_of_them(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("decode expert cache hit rate: 25.0% (100 hits / 400 lookups)\n", "utf-8")
    with pytest.raises(ValueError, match="no line") as refused:
        read_report(log)
    assert str(refused.value) == (
        "engine.log has no line of Strata's engine: no 'PCIe probe: .. GB/s host->device', and no"
        " 'prompt .. tokens = .. reused + .. read'"
    )
    with pytest.raises(ValueError, match=r"a file of at most 256 MiB$"):
        read_report(tmp_path)


def text_of(report: Report, *links: str) -> str:
    hardware: Any = SimpleNamespace(name="big_box", link_names=links)
    return machine_text(report, hardware, "big_box", "mine", "engine.log", "engine.log, today")


HEAD = """\
# big_box, with what engine.log tells of it.
{facts}defaults:
  - big_box
  - _self_
name: mine
preset: calibrated
validated: none  # no token was compared
links:
"""
PCIE = """\
  pcie:
    peak_gb_per_s: 12.3457  # as the engine probed it
    efficiency: 1.0  # as measured
"""
NVME = """\
  nvme:
    peak_gb_per_s: 5  # at which all experts were loaded
    efficiency: 1.0  # as measured
"""
TAIL = 'source: "engine.log, today"\n'
BOTH = replace(NOTHING, probe_gb_per_s=12.345678, drive_gb_per_s=5.0, ram_blobs=1)
FACT = "# experts from RAM 1, from files 0; 0 MiB read from files\n"


@pytest.mark.parametrize(
    ("report", "links", "text"),
    [
        (BOTH, ("pcie", "nvme"), HEAD.format(facts=FACT) + PCIE + NVME + TAIL),
        (BOTH, ("pcie",), HEAD.format(facts=FACT) + PCIE + TAIL),
        (BOTH, ("nvme",), HEAD.format(facts=FACT) + NVME + TAIL),
        (
            replace(NOTHING, drive_gb_per_s=5.0),
            ("pcie", "nvme"),
            HEAD.format(facts="") + NVME + TAIL,
        ),
        (
            replace(NOTHING, probe_gb_per_s=12.345678),
            ("pcie", "nvme"),
            HEAD.format(facts="") + PCIE + TAIL,
        ),
    ],
)
def test_the_file_has_a_rate_for_each_link_that_the_log_tells_of(
    report: Report, links: tuple[str, ...], text: str
) -> None:
    assert text_of(report, *links) == text


@pytest.mark.parametrize(
    ("report", "link"),
    [
        (replace(NOTHING, drive_gb_per_s=5.0), "pcie"),
        (replace(NOTHING, probe_gb_per_s=12.0), "nvme"),
    ],
)
def test_a_rate_is_none_of_a_machine_without_such_a_link(report: Report, link: str) -> None:
    """Where memory is unified, the only link is the drive's, and the probe's rate is not its."""
    with pytest.raises(ValueError, match="no rate") as refused:
        text_of(report, link)
    assert str(refused.value) == (
        f"the log has no rate of a link of base=big_box ({link}): for pcie a line 'PCIe probe: .."
        " GB/s host->device' is needed, for a drive 'loaded .. GiB at .. GiB/s'"
    )


@pytest.mark.parametrize(
    ("probe", "drive", "says"),
    [
        (
            10_000.0,
            5.0,
            "the log says 1e+04 GB/s of pcie, as the engine probed it; a machine's file",
        ),
        (
            0.0,
            5.0,
            "the log says 0 GB/s of pcie, as the engine probed it; .* takes 0.1 to 256 GB/s",
        ),
        (12.0, 0.0001, "the log says 0.0001 GB/s of nvme, .* takes 0.01 to 64 GB/s: look at that"),
        (12.0, 65.0, r"65 GB/s of nvme, .* or set hardware.links.nvme.peak_gb_per_s by hand"),
    ],
)
def test_a_rate_that_no_link_has_is_refused_with_the_range(
    probe: float, drive: float, says: str
) -> None:
    report = replace(NOTHING, probe_gb_per_s=probe, drive_gb_per_s=drive)
    with pytest.raises(ValueError, match=says.replace("1e+04", r"1e\+04")):
        text_of(report, "pcie", "nvme")


def test_the_ends_of_the_ranges_are_rates() -> None:
    for probe, drive in ((0.1, 0.01), (256.0, 64.0)):
        report = replace(NOTHING, probe_gb_per_s=probe, drive_gb_per_s=drive)
        assert f"peak_gb_per_s: {probe:g}" in text_of(report, "pcie", "nvme")
