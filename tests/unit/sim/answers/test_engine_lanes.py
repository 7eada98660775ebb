"""What an engine's log tells of lanes comes back from a log that was made with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from omegaconf import OmegaConf

from capture.importers.formats import import_into, parse
from sim.answers import engine_lanes
from sim.answers.engine_lanes import (
    LaneFit,
    LaneLog,
    _least_relative,
    errors_after,
    fit_lanes,
    lane_log,
    simulated_ms,
)
from sim.calibrate import main
from sim.calibrate import parse as parse_request
from sim.setup.configure import configure
from sim.setup.sections import make_object
from sim.traces.residency_log import read_log
from sim.values.places import ROOT

FOLDER = ROOT / ".." / "shared" / "traces" / "phone_qwen3_30b"
TOKENS, SITES, ENGINES = 40, 5, 4


def made(wake_ms: float = 0.25, ms_per_mb: float = 1.2, load_ms_per_mb: float = 0.4) -> LaneLog:
    """A log of engines with these figures; every token computes for 80 ms."""
    rng = np.random.default_rng(7)
    absent = rng.integers(0, 5, (TOKENS, SITES))
    size = np.array([2_000_000, 3_000_000] * 2 + [2_500_000])
    started = np.minimum(ENGINES, 3 * absent).sum(axis=1)
    io = wake_ms * started + ms_per_mb * (absent * size).sum(axis=1) / 1e6
    load = load_ms_per_mb * (absent * size).sum(axis=1) / 1e6
    times = {"io": io, "compute": np.full(TOKENS, 80.0), "load": load, "stall": np.zeros(TOKENS)}
    return LaneLog(absent, size, times)


def test_the_figures_of_an_exact_log_come_back() -> None:
    fit = fit_lanes(made(), 20, ENGINES, 3)
    assert fit.wake_ms == pytest.approx(0.25, rel=1e-9)
    assert fit.engine_gb_per_s == pytest.approx(1 / 1.2, rel=1e-9)
    assert fit.load_gb_per_s == pytest.approx(1 / 0.4, rel=1e-9)
    assert fit.compute_ms == 80.0


def test_nothing_after_the_fitted_tokens_and_no_stall_changes_the_fit() -> None:
    log = made()
    later = {name: column.copy() for name, column in log.times_ms.items()}
    for column in later.values():
        column[20:] *= 3
    later["stall"] += 5
    assert fit_lanes(replace(log, times_ms=later), 20, ENGINES, 3) == fit_lanes(log, 20, ENGINES, 3)


def test_times_of_no_such_link_are_refused_with_both_figures() -> None:
    with pytest.raises(ValueError, match=r"wake in -0\.5 ms .* give another number \(lanes\)"):
        fit_lanes(made(wake_ms=-0.5), 20, ENGINES, 3)
    with pytest.raises(ValueError, match=r"book-keeping takes 0 ms a byte; name its column"):
        fit_lanes(made(load_ms_per_mb=0.0), 20, ENGINES, 3)


def test_a_log_of_another_run_is_refused_with_both_numbers() -> None:
    residency: Any = SimpleNamespace(
        step=np.array([0, 1, 2]),
        site=np.array([0, 0, 0]),
        loaded_bytes=np.array([5, 0, 1]),
        expert_bytes=(5,),
    )
    log = lane_log(residency, {"io": np.ones(2)})
    assert log.absent.tolist() == [[0], [1]]
    with pytest.raises(ValueError, match="the trace has 2 decoded tokens, the log has io 3"):
        lane_log(residency, {"io": np.ones(3)})


def test_a_token_that_reads_nothing_tells_nothing_of_reads() -> None:
    log = made()
    log.absent[4] = 0
    for name in ("io", "load"):
        log.times_ms[name][4] = 0
    fit = fit_lanes(log, 20, ENGINES, 3)
    assert (fit.wake_ms, fit.ms_per_byte * 1e6) == (pytest.approx(0.25), pytest.approx(1.2))
    assert fit.load_ms_per_byte * 1e6 == pytest.approx(0.4)
    # (c / 0.5 - 1)² + (c / 2 - 1)² is least at 2.5 / 4.25; a time of 0 has no relative error.
    least = _least_relative(np.ones((3, 1)), np.array([0.5, 2.0, 0.0]))
    assert least == [pytest.approx(10 / 17)]


def test_the_file_of_a_machine_has_the_figures_in_its_units() -> None:
    """A lane reads a byte in 5e-7 ms: 2 GB/s; book-keeping takes 2e-7 ms a byte: 5 GB/s."""
    fit = LaneFit(4, 0.25, 5e-7, 2e-7, 80.0)
    words: dict[str, Any] = {
        "base": "phone",
        "name": "mine",
        "link": "ufs",
        "memory": "0.5",
        "source": "a log",
    }
    text = fit.file(["one", "two"], copy_gb_per_s=5.2, **words)
    assert text == (
        "# one\n# two\ndefaults:\n  - phone\n  - _self_\nname: mine\npreset: calibrated\n"
        "validated: none  # tokens of one run are no runs\n"
        "links:\n  ufs:\n"
        "    engines: 4  # lanes, as given\n"
        "    engine_gb_per_s: 2  # a lane\n"
        "    peak_gb_per_s: 8  # all lanes: no cap for all was felt\n"
        "    efficiency: 1.0  # as measured\n"
        "    overhead_us: 0.0  # a lane's start is told, not a read's\n"
        "    wake_us: 250  # a lane's start\n"
        "    unit: projection  # as the engine reads\n"
        "    copy_gb_per_s: 5.2  # as given; no column tells it\n"
        "compute:\n  memory_efficiency: 0.5\n"
        "host:\n  load_gb_per_s: 5  # book-keeping of loads, beside the reads\n"
        'source: "a log"\n'
    )
    without = [line for line in text.splitlines() if "copy_gb_per_s" not in line]
    assert fit.file(["one", "two"], copy_gb_per_s=None, **words).splitlines() == without


@pytest.mark.parametrize("engines", [1, 2, 3, 4, 8])
def test_a_file_with_six_digits_is_a_machine_whatever_was_fitted(engines: int) -> None:
    """Twice 0.885938 is less than the 1.77188 that twice 0.88593847 is in six digits."""
    place = {"base": "phone", "name": "mine", "link": "ufs", "memory": "0.5", "source": "a log"}
    for rate in (0.88593847, *np.random.default_rng(1).uniform(0.1, 10, 200)):
        fit = LaneFit(engines, 0.1, 1e3 / (rate * 1e9), 1e-7, 80.0)
        file = OmegaConf.create(fit.file([], copy_gb_per_s=None, **place))
        make_object({"_target_": "sim.machine.Link", "name": "ufs", **file.links.ufs})


@pytest.mark.parametrize(
    ("hardware", "name"),
    [(None, {"name": "m", "links": 1}), ({"name": "n"}, {"name": "n", "links": 1})],
)
def test_a_simulated_run_is_its_decoded_tokens_in_ms(
    hardware: dict[str, Any] | None, name: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = pl.DataFrame(
        {
            "phase": ["prefill", "decode", "decode"],
            "start_ns": [0, 1_000_000, 4_000_000],
            "end_ns": [9, 3_500_000, 9_000_000],
            "reading_ns": [9, 1_000_000, 2_000_000],
            "waiting_ns": [9, 500_000, 3_000_000],
        }
    )
    built: list[Any] = []
    config = OmegaConf.create({"hardware": {"name": "m", "links": 1}})
    OmegaConf.set_struct(config, True)
    monkeypatch.setattr(engine_lanes, "configure", lambda *words: (config, words))
    monkeypatch.setattr(engine_lanes, "build", lambda cfg, system: built.append((cfg, system)))
    result = SimpleNamespace(frames=SimpleNamespace(tokens=tokens))
    monkeypatch.setattr(engine_lanes, "execute", lambda run: result)
    found = simulated_ms(["a=1"], hardware)
    assert {name: column.tolist() for name, column in found.items()} == {
        "io": [1.0, 2.0],
        "stall": [0.5, 3.0],
        "wall": [2.5, 5.0],
    }
    ((cfg, system),) = built
    assert (cfg["hardware"], system) == (name, ("a=1",))


def test_errors_keep_their_signs() -> None:
    found = errors_after(
        {"io": np.array([1.0, 3.0]), "stall": np.ones(2), "wall": np.ones(2)},
        {"io": np.array([1.0, 2.0])},
        1,
    )
    assert {name: error.tolist() for name, error in found.items()} == {"io": [0.5]}


def test_a_token_of_no_measured_time_has_no_relative_error() -> None:
    """Its stall was infinitely far off, or no number where the simulation has none either."""
    waited = np.array([5.0, 0.0, 0.0, 2.0])
    found = errors_after(
        {"io": np.ones(4), "stall": np.array([5.0, 0.0, 1.0, 3.0]), "wall": np.ones(4)},
        {"io": np.array([1.0, 0, 0, 0]), "stall": waited},
        1,
    )
    assert {name: error.tolist() for name, error in found.items()} == {"stall": [0.5]}


WORDS = ("log=x.csv", "base=oneplus_15r", "name=mine", "lanes=4", "routes=.")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("columns=io_ms:a,compute_ms:b", "model=qwen3_30b_a3b"), "columns lack load"),
        (("columns=io_ms:a,compute_ms:b,load_ms:c",), "lanes need model=NAME"),
        (
            ("columns=io_ms:a,compute_ms:b,load_ms:c,mb:d", "model=qwen3_30b_a3b"),
            "columns: mb:d changes nothing with routes=, whose trace tells bytes and loads",
        ),
    ],
)
def test_columns_that_lanes_need_are_asked_for(
    words: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_text("a\n", encoding="utf-8")
    with pytest.raises(ValueError, match=told):
        parse_request([*WORDS, *words])


@pytest.mark.thorough
@pytest.mark.skipif(not FOLDER.exists(), reason="the published phone trace is not here")
def test_the_phones_machine_file_has_what_its_log_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`moelab calibrate routes=` on decoded tokens 1 to 64 writes the file of the catalogue."""
    words = ["format=bigmoe", f"path={FOLDER / 'qwen.route.csv'}", f"output_dir={tmp_path / 't'}"]
    name, request, trace = parse(words)
    import_into(name, request, trace, lambda items, text: items)
    columns = "io_ms:io_ms,compute_ms:compute_ms,load_ms:mgmt_ms,stall_ms:stall_ms,wall_ms:wall_ms"
    asked = [
        f"log={FOLDER / 'qwen.metrics'}",
        f"routes={trace}",
        f"columns={columns}",
        "lanes=4",
        "copy_gb_per_s=5.2",
        "base=oneplus_15r",
        "name=oneplus_15r_bigmoe",
        "rows=64",
        "model=qwen3_30b_a3b",
        "precision=q4_k_m",
        "model.top_k=6",
        "+model.dense_bits=5.35",
        "system=lru",
        "loader=bigmoe",
        "cache.recency=rows",
        "budget.slots_gib=3.90625",
        "trace.split=all",
        f"output={tmp_path / 'm.yaml'}",
    ]
    assert main(asked) == 0
    assert "tokens after 64, median error (with its sign): io 2." in capsys.readouterr().out
    kept = ROOT / "conf" / "hardware" / "oneplus_15r_bigmoe.yaml"
    written, of_project = (
        yaml.safe_load(path.read_text("utf-8")) for path in (tmp_path / "m.yaml", kept)
    )
    for section in ("links", "compute", "host"):
        assert written[section] == of_project[section]
    cfg, _ = configure("hardware=oneplus_15r_bigmoe")
    assert make_object(cfg["hardware"]).lanes
    assert len(read_log(trace)) == 44_766
