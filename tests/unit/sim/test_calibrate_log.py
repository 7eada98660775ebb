"""A machine's constants are found again in a log that was made with them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from sim import calibrate as calibrate_command
from sim.answers import engine_log, strata_log
from sim.answers.engine_log import FEWEST_ROWS, LinkFit, read_log
from sim.answers.strata_log import read_report
from sim.calibrate import Request, calibrate, calibrate_lanes, config_text, fit_memory, main, parse
from sim.machine.roofline import Roofline
from sim.setup.configure import configure
from sim.setup.sections import make_object
from sim.values.places import ROOT
from sim.values.types import Step

COLUMNS = "columns=bytes:moved,loads:loads,io_ms:io"
MB = 1_000_000


def write_log(
    path: Path, io_ms: np.ndarray, loads: np.ndarray, moved: np.ndarray, compute_ms: float = 1.0
) -> Path:
    lines = ["# an engine's log", "token,moved,loads,io,compute"]
    rows = zip(moved, loads, io_ms, strict=True)
    lines += [f"{token},{m},{n},{io},{compute_ms}" for token, (m, n, io) in enumerate(rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def made(folder: Path, *, noise: float = 0.0, one_size: bool = False, rows: int = 80) -> Path:
    """A log made with 2 GB/s after 0.5 ms a load."""
    rng = np.random.default_rng(3)
    loads = rng.integers(1, 9, rows)
    moved = loads * MB if one_size else loads * MB + rng.integers(0, 40, rows) * MB // 4
    io_ms = 0.5 * loads + moved / (2e9 / 1e3)
    return write_log(
        folder / "log.csv", io_ms * (1 + noise * rng.standard_normal(rows)), loads, moved
    )


def request(log: Path, *more: str, columns: str = COLUMNS) -> list[str]:
    return [
        f"log={log}",
        columns,
        "base=rtx4090_pcie4",
        "name=mine",
        f"output={log.parent}/mine.yaml",
        *more,
    ]


def test_the_overhead_and_the_bandwidth_of_an_exact_log_come_back(tmp_path: Path) -> None:
    _, fit, memory = calibrate(parse(request(made(tmp_path))))
    assert fit.overhead_ms == pytest.approx(0.5, rel=1e-9)
    assert fit.bytes_per_ms == pytest.approx(2e6, rel=1e-9)
    assert fit.told_apart
    assert memory is None
    assert fit.error < 1e-9
    assert fit.held_out_error < 1e-9


def test_all_rows_may_be_fitted(tmp_path: Path) -> None:
    assert "rows 1 to 80 are fitted" in calibrate(parse(request(made(tmp_path), "rows=80")))[0]


def test_noise_moves_the_constants_little_and_shows_in_both_errors(tmp_path: Path) -> None:
    """5 % of Gaussian noise has a median absolute value of 3.4 %."""
    _, fit, _ = calibrate(parse(request(made(tmp_path, noise=0.05, rows=400))))
    assert fit.overhead_ms == pytest.approx(0.5, rel=0.05)
    assert fit.bytes_per_ms == pytest.approx(2e6, rel=0.05)
    assert 0.02 < fit.error < 0.05
    assert 0.02 < fit.held_out_error < 0.05


def test_loads_of_one_size_keep_the_overhead_of_the_base_machine(tmp_path: Path) -> None:
    """rtx4090_pcie4's copies cost 6 us.

    What else a load of 1 MB takes, 1.0 ms minus 6 us, is attributed to bytes.
    """
    text, fit, _ = calibrate(parse(request(made(tmp_path, one_size=True))))
    assert not fit.told_apart
    assert fit.overhead_ms == pytest.approx(0.006)
    assert fit.bytes_per_ms == pytest.approx(MB / (1.0 - 0.006), rel=1e-9)
    assert "the log does not tell it from the bytes" in text


def test_a_log_without_loads_tells_the_bandwidth_alone(tmp_path: Path) -> None:
    """All of the time is attributed to bytes.

    0.5 ms for each of 1 to 8 loads of 1 MB, and 0.5 ms a MB, are 1 ms a MB.
    """
    log = made(tmp_path, one_size=True)
    text, fit, _ = calibrate(parse(request(log, columns="columns=mb:loads,io_ms:io")))
    assert fit.bytes_per_ms == pytest.approx(MB, rel=1e-9)
    assert not fit.told_apart
    assert "overhead_us: 0  # a load; a part of the rate: the log tells no loads" in text


def test_the_file_describes_a_machine_that_takes_as_long_as_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = made(tmp_path)
    assert main(request(log)) == 0
    assert "2 GB/s after 500 us a load" in capsys.readouterr().out
    written = OmegaConf.load(tmp_path / "mine.yaml")
    base = OmegaConf.load(ROOT / "conf" / "hardware" / "rtx4090_pcie4.yaml")
    del written["defaults"]
    hardware = make_object(OmegaConf.to_container(OmegaConf.merge(base, written)))
    assert (hardware.name, hardware.validated, hardware.preset) == (
        "mine",
        "none",
        "calibrated",
    )
    assert hardware.links[0].hop_ns(10 * MB) == 500_000 + 5_000_000


def test_the_memory_efficiency_is_that_of_the_machine_whose_token_times_are_given() -> None:
    cfg, _ = configure("hardware=rtx4090_pcie4", "model=mixtral_8x7b")
    hardware, model = (
        make_object(OmegaConf.to_container(part)) for part in (cfg.hardware, cfg.model)
    )
    costs = Roofline(model, hardware, ("fp16",))
    step = Step(0, 0, 1, (0,), 64, True, (), (), tuple(range(model.sites)))
    token_ns = sum(costs.dense_ns(step)) + costs.tail_ns(step)
    token_ns += sum(model.top_k * costs.expert_ns(0, site, 1) for site in range(model.sites))
    found = fit_memory(hardware, model, "fp16", 64, token_ns / 1e6)
    assert found == pytest.approx(hardware.compute.memory_efficiency, rel=1e-4)


def test_compute_times_go_into_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = made(tmp_path)
    text = log.read_text().replace(",1.0\n", ",40\n")
    log.write_text(text)
    words = request(log, "model=mixtral_8x7b", columns=f"{COLUMNS},compute_ms:compute")
    _, _, memory = calibrate(parse(words))
    assert memory is not None
    assert 0.5 < memory < 1
    assert main(words) == 0
    assert capsys.readouterr().out == (
        f"{tmp_path}/mine.yaml: 2 GB/s after 500 us a load, median error 0.0%, held out 0.0%;"
        f" memory efficiency {memory:.3g}\n"
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["columns=loads:loads,io_ms:io"], "a link needs bytes and io"),
        (["columns=bytes:moved,loads:loads,io_h:io"], "with a kind of bytes, mb"),
        (["columns=bytes:moved,mb:moved,loads:loads,io_ms:io"], "bytes is given twice"),
        ([f"{COLUMNS},compute_ms:compute"], "need model=NAME"),
        ([COLUMNS, "rows=0"], "rows=0 must be a whole number from 1"),
        ([COLUMNS, "rows=1000"], "rows=1000: log.csv has 80"),
        ([COLUMNS, "rows=4"], "only 4 moved something"),
        ([COLUMNS, "link=nvme"], "link=nvme is none of rtx4090_pcie4's: pcie"),
        ([COLUMNS, "name=Mine"], "lower-case"),
        (
            ["columns=bytes:moved,loads:n,io_ms:io"],
            "has no column n; it has token, moved, loads, io, compute",
        ),
        ([COLUMNS, "log=nowhere.csv"], "log=nowhere.csv: there is no such file"),
        ([COLUMNS, "base=nonesuch"], "nonesuch"),
        ([COLUMNS, "lanes=3"], "lanes=3 is of lanes, and needs routes=TRACE"),
        ([COLUMNS, "copy_gb_per_s=2"], "copy_gb_per_s=2 is of lanes, and needs routes=TRACE"),
        ([f"{COLUMNS},stall_ms:compute"], "stall_ms:compute is of lanes, and needs routes=TRACE"),
        ([COLUMNS, "context=9"], "context=9 is of a token's computing, and needs model=NAME"),
        ([COLUMNS, "precision=int4"], "precision=int4 is of a token's computing, and needs model="),
        ([COLUMNS, "system=hobbit"], "system=hobbit changes nothing that is fitted here"),
        ([COLUMNS, "model.top_k=1"], "model.top_k=1 changes nothing that is fitted here"),
        ([COLUMNS, "output_dir=x"], "output_dir=x changes nothing that is fitted here"),
        (["columns=strata", "precision=int4"], "precision=int4 is of a token's computing"),
        ([COLUMNS, "precision=int3"], "precision=int3 is unknown; known: fp32, fp16, bf16, int8"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_nothing_written(
    words: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*request(made(tmp_path)), *words]) == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "mine.yaml").exists()


def test_a_file_that_exists_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "mine.yaml"
    output.write_text("mine", encoding="utf-8")
    assert main(request(made(tmp_path))) == 2
    told = capsys.readouterr().err
    assert told == f"error: output={output} exists; remove it, or choose another name\n"
    assert output.read_text(encoding="utf-8") == "mine"


def test_a_token_that_no_memory_efficiency_explains_is_refused_with_both_ends() -> None:
    """From all of the memory's bandwidth to a thousandth of it; both ends themselves can be."""
    cfg, _ = configure("hardware=rtx4090_pcie4", "model=mixtral_8x7b")
    hardware, model = (
        make_object(OmegaConf.to_container(part)) for part in (cfg.hardware, cfg.model)
    )
    step = Step(0, 0, 1, (0,), 64, True, (), (), tuple(range(model.sites)))
    ends = []
    for efficiency in (1.0, 0.001):
        compute = replace(hardware.compute, memory_efficiency=efficiency)
        costs = Roofline(model, replace(hardware, compute=compute), ("fp16",))
        token_ns = sum(costs.dense_ns(step)) + costs.tail_ns(step)
        token_ns += sum(model.top_k * costs.expert_ns(0, site, 1) for site in range(model.sites))
        ends.append(token_ns / 1e6)
    told = (
        f"a token of mixtral_8x7b at fp16 takes {ends[0]:.3g} to {ends[1]:.3g} ms on rtx4090_pcie4"
        " whatever its memory efficiency, the log says {:.3g}: another model, precision or base, or"
        " host time that the log counts as compute"
    )
    for compute_ms in (ends[0] * 0.99, ends[1] * 1.01):
        with pytest.raises(ValueError, match="whatever its memory efficiency") as refused:
            fit_memory(hardware, model, "fp16", 64, compute_ms)
        assert str(refused.value) == told.format(compute_ms)
    assert fit_memory(hardware, model, "fp16", 64, ends[0]) == pytest.approx(1.0)
    assert fit_memory(hardware, model, "fp16", 64, ends[1]) == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (lambda path: read_log(path, {"io_ms": "io"}), "must be a csv file of at most 1 MiB"),
        (read_report, "must be a file of at most 1 MiB"),
    ],
)
def test_a_log_that_is_no_file_or_too_large_is_not_read(
    read: Callable[[Path], object], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_log, "LARGEST_LOG_BYTES", 1 << 20)
    monkeypatch.setattr(strata_log, "LARGEST_BYTES", 1 << 20)
    large, whole = tmp_path / "large.csv", tmp_path / "whole.csv"
    large.write_bytes(b"x\n" * (1 << 19) + b"x")
    whole.write_bytes(b"x\n" * (1 << 19))
    for path in (tmp_path, large):
        with pytest.raises(ValueError, match=told) as refused:
            read(path)
        assert str(refused.value) == f"log={path} {told}"
    with pytest.raises(ValueError, match=r"whole\.csv has no"):
        read(whole)


@pytest.mark.parametrize("cell", ["", "nan", "-1", "inf", "fast"])
def test_a_cell_that_is_no_time_is_named(
    cell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = made(tmp_path)
    lines = log.read_text().splitlines()
    fields = lines[4].split(",")
    fields[3] = cell
    log.write_text("\n".join([*lines[:4], ",".join(fields), *lines[5:]]) + "\n")
    assert main(request(log)) == 2
    assert "row 3, column io" in capsys.readouterr().err


def test_a_log_in_which_more_bytes_are_faster_is_no_log_of_a_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loads = np.ones(40, dtype=int)
    moved = np.arange(1, 41) * MB
    assert (
        main(request(write_log(tmp_path / "log.csv", 100.0 - np.arange(1, 41), loads, moved))) == 2
    )
    assert "more bytes do not take longer" in capsys.readouterr().err


def test_a_log_may_begin_with_a_mark_of_utf_8(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("moved,io\n" + "1000,2\n" * 16, encoding="utf-8-sig")
    assert read_log(log, {"bytes": "moved", "io_ms": "io"})["bytes"].tolist() == [1000.0] * 16


def test_a_row_with_more_values_than_names_is_refused_not_read_askew(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("moved,io\n" + "1000,2\n" * 16 + "1000,2,5\n", encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"log\.csv row 17 has 3 values, and the first line 2 names"
    ):
        read_log(log, {"bytes": "moved", "io_ms": "io"})


def test_where_all_rows_are_fitted_no_error_of_others_is_told() -> None:
    assert (
        LinkFit(1.0, 1.0, True, 0.25, float("nan")).errors == "median error 25.0%, held out no row"
    )


def test_lanes_of_a_link_that_the_machine_has_not_are_refused(tmp_path: Path) -> None:
    hardware: Any = SimpleNamespace(link_names=("pcie", "nvme"), name="box")
    asked = parse(request(made(tmp_path)))
    assert calibrate_command._link(asked, hardware) == "pcie"
    assert calibrate_command._link(replace(asked, link="nvme"), hardware) == "nvme"
    with pytest.raises(ValueError, match=r"^link=usb is none of box's: pcie, nvme$"):
        calibrate_command._link(replace(asked, link="usb"), hardware)
    lanes = "columns=io_ms:io,compute_ms:compute,load_ms:loads"
    words = ["model=mixtral_8x7b", f"routes={tmp_path}", "copy_gb_per_s=fast"]
    with pytest.raises(ValueError, match=r"^copy_gb_per_s=fast must be a number \(GB/s\)$"):
        parse(request(made(tmp_path), *words, columns=lanes))


def test_a_field_that_no_csv_reader_takes_is_refused_by_its_line(tmp_path: Path) -> None:
    log = made(tmp_path)
    log.write_text(log.read_text(encoding="utf-8") + "9" * 200_000 + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"log\.csv line \d+ is no csv: field larger than"):
        read_log(log, {"bytes": "moved", "loads": "loads", "io": "io"})


def test_the_machines_file_has_the_fit_and_says_what_the_log_did_not_tell(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("x", encoding="utf-8")
    asked = replace(parse(request(log)), model="mixtral_8x7b")
    hardware: Any = SimpleNamespace(link_names=("pcie", "nvme"))
    fit = LinkFit(0.0123456789, 25e6 / 3, True, 0.0123, 0.4567)
    today = date.today().isoformat()
    head = (
        "# rtx4090_pcie4, with what log.csv (sha256 2d711642b726) tells of it: rows 1 to 7 are"
        " fitted.\ndefaults:\n  - rtx4090_pcie4\n  - _self_\nname: mine\npreset: calibrated\n"
        "validated: none  # no token was compared\nlinks:\n"
    )
    errors = "    peak_gb_per_s: 8.33333  # median error 1.2%, held out 45.7%\n"
    end = f'source: "log.csv, {today}, by sim.calibrate"\n'
    assert config_text(asked, hardware, fit, 0.71234567, 7) == (
        f"{head}  pcie:\n{errors}    efficiency: 1.0  # as measured\n"
        "    overhead_us: 12.3457  # a load\ncompute:\n"
        f"  memory_efficiency: 0.712346  # from the median token of mixtral_8x7b\n{end}"
    )
    other = config_text(
        replace(asked, link="nvme"), hardware, replace(fit, told_apart=False), None, 7
    )
    assert other == (
        f"{head}  nvme:\n{errors}    efficiency: 1.0  # as measured\n    overhead_us: 12.3457"
        f"  # a load; the base machine's: the log does not tell it from the bytes\n{end}"
    )


def test_words_become_a_request_and_what_is_left_out_is_as_the_help_says(tmp_path: Path) -> None:
    log = made(tmp_path)
    columns = {"bytes": "moved", "loads": "loads", "io_ms": "io"}
    plain = Request(
        log,
        columns,
        "rtx4090_pcie4",
        "mine",
        None,
        None,
        "fp16",
        1,
        None,
        tmp_path / "mine.yaml",
        None,
        1,
        None,
        (),
    )
    assert parse(request(log)) == plain
    lanes = "columns=io_ms:io,compute_ms:compute,load_ms:loads"
    words = ["model=mixtral_8x7b", "precision=int4", "context=9", "rows=20", f"routes={tmp_path}"]
    words += ["lanes=3", "copy_gb_per_s=2.5", "system=lru", "link=pcie"]
    whole = parse(request(log, *words, columns=lanes))
    assert whole == replace(
        plain,
        columns={"io_ms": "io", "compute_ms": "compute", "load_ms": "loads"},
        link="pcie",
        model="mixtral_8x7b",
        precision="int4",
        context=9,
        rows=20,
        trace=tmp_path,
        lanes=3,
        copy_gb_per_s=2.5,
        words=("system=lru",),
    )
    for more, told in (
        ([lanes, f"routes={tmp_path}"], "lanes need model=NAME, whose run the trace is"),
        (
            ["columns=io_ms:io,load_ms:x", f"routes={tmp_path}", "model=mixtral_8x7b"],
            "columns lack compute; lanes need io_ms, compute_ms and load_ms",
        ),
        (
            [COLUMNS, "model=mixtral_8x7b"],
            "compute times need model=NAME, whose work they are, and model=NAME a column of them",
        ),
        (["columns=io_ms:"], "columns: 'io_ms:' must be KIND:COLUMN with a kind of bytes, mb,"),
        (["columns=io_ms"], "columns: 'io_ms' must be KIND:COLUMN with a kind of bytes, mb,"),
    ):
        with pytest.raises(ValueError, match=f"^{told}"):
            parse([*request(log)[:1], *request(log)[2:], *more])


def test_lanes_are_fitted_to_half_of_the_rows_or_so_many_and_told_by_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    log = made(tmp_path)
    count = [16]
    fit = SimpleNamespace(
        compute_ms=3.5,
        engine_gb_per_s=2.0,
        file=lambda told, **given: asked.append((told, given)) or "defaults: [a]\nname: mine\n",
    )
    values = lambda: {"io": np.zeros(count[0]), "loads": 1}  # noqa: E731
    links = [SimpleNamespace(bytes_per_s=6e9)] * 2
    hardware = SimpleNamespace(link_names=("pcie", "nvme"), links=links)
    model = SimpleNamespace(projection_bytes=lambda precision: (1, 2, 3))
    for name, answer in (
        ("read_log", lambda *_: values()),
        ("lane_log", lambda residency, kept: ("log", residency, sorted(kept))),
        ("read_residency", lambda trace: trace.name),
        ("sections", lambda _: {"hardware": hardware, "model": model}),
        ("make_object", lambda made: made),
        ("fit_lanes", lambda *given: asked.append(given) or fit),
        ("fit_memory", lambda *given: asked.append(given) or 0.71234567),
        ("simulated_ms", lambda *given: asked.append(given) or "predicted"),
        (
            "errors_after",
            lambda *given: {"wall": np.array([-0.1, 0.02, 0.03]), given[0]: np.array([0.5])},
        ),
    ):
        monkeypatch.setattr(calibrate_command, name, answer)
    one = Request(
        log,
        {},
        "rtx4090_pcie4",
        "mine",
        None,
        "m",
        "int4",
        9,
        None,
        tmp_path / "a/mine.yaml",
        tmp_path / "routes",
        3,
        2.5,
        ("system=lru",),
    )
    text, told = calibrate_lanes(one)
    assert text == "defaults: [a]\nname: mine\n"
    assert told == (
        "tokens after 8, median error (with its sign): wall 3.0% (+2.0%), predicted 50.0% (+50.0%)"
    )
    fitted, memory, (lines, given), simulated = asked
    assert fitted == (("log", "routes", ["io"]), 8, 3, 3)
    assert memory == (hardware, model, "int4", 9, 3.5)
    assert re.fullmatch(
        r"rtx4090_pcie4, with what log\.csv \(sha256 [0-9a-f]{12}\) tells of its lanes: tokens 1 to"
        r" 8 are fitted\.",
        lines[0],
    )
    assert given == {
        "base": "rtx4090_pcie4",
        "name": "mine",
        "link": "pcie",
        "memory": "0.712346  # from the median token of m",
        "copy_gb_per_s": 2.5,
        "source": f"log.csv and its trace, {date.today().isoformat()}, by sim.calibrate",
    }
    run = ["hardware=rtx4090_pcie4", "model=m", "system=lru"]
    run += [f"trace.path={tmp_path / 'routes'}", "precision=int4"]
    assert simulated == (run, {"name": "mine"})
    assert calibrate_lanes(replace(one, rows=15, link="nvme"))[1].startswith("tokens after 15, ")
    assert asked[-2][1]["link"] == "nvme"
    few = f"^rows=%d: log.csv has 16; {FEWEST_ROWS} tell a fit from chance, and the others how far"
    for rows in (7, 16):
        with pytest.raises(ValueError, match=few % rows):
            calibrate_lanes(replace(one, rows=rows))
    monkeypatch.setattr(calibrate_command, "parse", lambda _: one)
    assert main([]) == 0
    assert capsys.readouterr().out == f"{one.output}: {told}\n"
    assert one.output.read_text() == text


@pytest.mark.parametrize(
    ("kinds", "rate"),
    [
        ("mib:moved,loads:loads,io_ms:io", r"2\.097e\+06"),
        ("bytes:moved,loads:loads,io_s:io", r"0\.002"),
        ("bytes:moved,loads:loads,io_us:io", "2000"),
    ],
)
def test_a_unit_that_makes_a_link_nowhere_near_its_base_is_refused(
    kinds: str, rate: str, tmp_path: Path
) -> None:
    told = rf"^columns={kinds} say {rate} GB/s, and pcie of base=rtx4090_pcie4 has 25\.7: a unit"
    with pytest.raises(ValueError, match=told):
        calibrate(parse(request(made(tmp_path), columns=f"columns={kinds}")))


def test_a_base_whose_link_has_measured_times_is_refused(tmp_path: Path) -> None:
    """The file said 2 GB/s, and a run of it took the base's 49."""
    asked = replace(parse(request(made(tmp_path))), base="h100_sxm_pcie5_measured")
    told = r"takes 1\.024 ms by the log, and would take 0\.05327 on the machine: its link pcie has"
    with pytest.raises(ValueError, match=told):
        calibrate(asked)


def test_a_word_about_the_machine_that_the_file_would_not_have_is_refused(tmp_path: Path) -> None:
    for word in ("hardware.compute.memory_gb_per_s=500", "hardware.memory_gib=3"):
        with pytest.raises(ValueError, match=rf"^{word} would not stand in the file, .*base=rtx40"):
            parse(request(made(tmp_path), word))
    assert parse(request(made(tmp_path), "hardware.links.pcie.overhead_us=3")).words
