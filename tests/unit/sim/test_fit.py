"""Fits: what is written and read back, on which sequences, and when a fit does not suit a run."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.bundled import BUNDLED, Configure
from sim.fit import main
from sim.fitting import artefact
from sim.fitting.artefact import ArtefactError, read_artefact, write_artefact
from sim.fitting.fits import fit_from_rows, fit_sequences, sample_of
from sim.fitting.prepare import SHIPPED, find_artefact, prepare
from sim.policies.fitted import FittedPredictor
from sim.policies.lookahead import GateLookahead
from sim.policies.paths import ExpertPaths, NextSiteConditional
from sim.policies.references import Foreseen
from sim.policies.requires import FitFile
from sim.results.forecasts import count_forecasts
from sim.results.labels import labels_of
from sim.setup.build import build
from sim.setup.execute import execute
from sim.setup.fit_requests import request_of
from sim.setup.sections import _target, make_object
from sim.traces.gate_inputs import read_gate_inputs
from sim.traces.trace import Trace, TraceError, read_trace, trace_sha256
from sim.values.places import ROOT
from sim.workload.steps import Workload

SHARES = ("budget.resident_share=0.5", "trace.max_sequences=1")
FITTED = sorted(
    path.stem
    for path in (ROOT / "conf" / "predictor").glob("*.yaml")
    if "artefact: null" in path.read_text(encoding="utf-8")
)
NEXT_SITE = NextSiteConditional().requires.fit
assert NEXT_SITE is not None


@pytest.fixture
def written(tmp_path: Path, bundled_trace: Trace) -> Path:
    artefact = fit_from_rows(NEXT_SITE, bundled_trace, fit_sequences(bundled_trace))
    return write_artefact(tmp_path, NEXT_SITE.name, artefact)


def test_a_fit_comes_back_as_it_was_written(written: Path, bundled_trace: Trace) -> None:
    artefact = read_artefact(written)
    again = fit_from_rows(NEXT_SITE, bundled_trace, fit_sequences(bundled_trace))
    assert replace(artefact, arrays={}) == replace(again, arrays={})
    assert artefact.trace == {"name": "tiny_mixtral", "sha256": trace_sha256(bundled_trace.header)}
    for name, values in again.arrays.items():
        assert artefact.arrays[name].dtype == values.dtype
        assert (artefact.arrays[name] == values).all()
    first = [path.read_bytes() for path in (written, written.with_suffix(".npz"))]
    write_artefact(written.parent, written.stem, again)
    assert [path.read_bytes() for path in (written, written.with_suffix(".npz"))] == first, (
        "the same bytes"
    )


def test_a_fit_sees_the_valid_rows_of_the_fit_split_alone(bundled_trace: Trace) -> None:
    numbers = fit_sequences(bundled_trace)
    assert set(numbers) == {s.sequence for s in bundled_trace.header.sequences if s.split == "fit"}
    sample = sample_of(bundled_trace, numbers)
    assert set(sample.sequence.tolist()) == set(numbers)
    # What evaluation sequences hold changes nothing.
    of_eval = np.isin(bundled_trace.sequence, numbers, invert=True)
    ids = bundled_trace.ids.copy()
    ids[of_eval] = 0
    other = fit_from_rows(NEXT_SITE, replace(bundled_trace, ids=ids), numbers)
    mine = fit_from_rows(NEXT_SITE, bundled_trace, numbers)
    assert all((mine.arrays[name] == other.arrays[name]).all() for name in mine.arrays)
    assert fit_sequences(bundled_trace, most=3) == numbers[:3]


def test_a_trace_without_a_fit_split_is_refused(bundled_trace: Trace) -> None:
    header = bundled_trace.header
    sequences = tuple(replace(sequence, split="eval") for sequence in header.sequences)
    with pytest.raises(ValueError, match="has no sequence to fit on"):
        fit_sequences(replace(bundled_trace, header=replace(header, sequences=sequences)))


# What ships with the project


@pytest.mark.parametrize("name", FITTED)
def test_what_ships_is_of_the_bundled_trace_and_its_fit_split(
    configure: Configure, bundled_trace: Trace, name: str, tmp_path: Path
) -> None:
    predictor = make_object(configure(f"predictor={name}").predictor)
    workload = Workload(
        bundled_trace,
        split="eval",
        batching="sequential",
        lookahead=predictor.requires.lookahead_sites,
    )
    artefact = find_artefact(predictor.requires.fit, "predictor", workload, tmp_path)
    assert set(artefact.sequences) <= set(fit_sequences(bundled_trace))
    if artefact.kind != "learned":
        fresh = fit_from_rows(predictor.requires.fit, bundled_trace, fit_sequences(bundled_trace))
        assert artefact.sequences == fresh.sequences
        assert set(artefact.arrays) == set(fresh.arrays)
        assert all((artefact.arrays[key] == fresh.arrays[key]).all() for key in fresh.arrays), (
            "make predictors"
        )


def test_a_fit_in_the_folder_of_its_trace_comes_before_what_ships(
    configure: Configure, bundled_trace: Trace, tmp_path: Path
) -> None:
    wanted = make_object(configure("predictor=next_site").predictor).requires.fit
    workload = Workload(bundled_trace, split="eval", batching="sequential")
    few = fit_sequences(bundled_trace)[:2]
    write_artefact(tmp_path / "fits", wanted.name, fit_from_rows(wanted, bundled_trace, few))
    found = find_artefact(wanted, "predictor", workload, tmp_path)
    assert found is not None
    assert found.sequences == few
    shipped = find_artefact(wanted, "predictor", workload, tmp_path / "elsewhere")
    assert shipped is not None
    assert len(shipped.sequences) > 2


def test_what_ships_stays_small() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) < 1_000_000


# Runs


# Contracts: C110
@pytest.mark.parametrize("name", ["expert_paths", "learned"])
def test_a_run_on_what_was_fitted_on_is_refused_unless_all_is_asked_for(
    configure: Configure, bundled_trace: Trace, name: str
) -> None:
    words = (f"predictor={name}", "system=lru", "budget.resident_share=0.5")
    with pytest.raises(
        ArtefactError, match=r"fitted on 32 of the sequences of this run \(trace\.split=fit: 0, 1, "
    ):
        build(configure(*words, "trace.split=fit"), "x", bundled_trace)
    assert build(configure(*words, "trace.split=all"), "x", bundled_trace).fitted_on == 32
    assert build(configure(*words), "x", bundled_trace).fitted_on == 0


def test_the_summary_says_how_many_sequences_were_fitted_on(
    configure: Configure, bundled_trace: Trace
) -> None:
    words = ("predictor=next_site", "system=lru", "trace.split=all", *SHARES)
    run = build(configure(*words), "x", bundled_trace)
    assert [sequence.split for sequence in run.workload.sequences] == ["fit"]
    assert execute(run).summary["prediction"]["fitted_on"] == 1


# Contracts: C113
@pytest.mark.parametrize(
    ("words", "known"),
    [
        (("cache=popular", "trace.split=eval"), 0),
        (("cache=popular", "trace.split=fit"), 32),
        (("cache=popular", "trace.split=all"), 32),
        (("cache=lru", "trace.split=all"), 0),
        (("cache=lru", "predictor=next_site", "trace.split=all"), 32),
        (("devices=owners_2", "hardware.devices.order=use", "trace.split=all"), 32),
        (("devices=owners_2", "hardware.devices.order=use"), 0),
    ],
)
def test_a_run_of_the_sequences_that_a_policy_profiled_or_was_fitted_on_says_so(
    configure: Configure, bundled_trace: Trace, words: tuple[str, ...], known: int
) -> None:
    run = build(
        configure("system=lru", *words, "budget.resident_share=0.25", "loader.staging_slots=4"),
        "x",
        bundled_trace,
    )
    told = f"knows the future (fitted on {known} of its sequences)" if known else None
    assert labels_of(run, None).knows_future == told


def with_json(place: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    value = json.loads(place.read_text(encoding="utf-8"))
    change(value)
    place.write_text(json.dumps(value), encoding="utf-8")
    return place


# Contracts: C110
@pytest.mark.alike
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda v: v["trace"].update(sha256="0" * 64),
            "with trace 000000000000, this run of trace tiny_mixtral has",
        ),
        (lambda v: v["shape"].update(sites=15), "with model shape"),
        (lambda v: v.update(kind="expert_paths"), "with kind expert_paths"),
        (lambda v: v.update(parameters={"key": "set"}), "with parameters {'key': 'set'}"),
        (lambda v: v.update(schema=2), "schema 1"),
        (lambda v: v.pop("results"), "must be an object of"),
        (lambda v: v.update(arrays_sha256="0" * 64), "sha256"),
        (lambda v: v.update(sequences=[-1]), "sequences"),
        (lambda v: v["shape"].update(experts=True), "shape"),
        (lambda v: v.update(parameters={"key": [1]}), "parameters"),
        (lambda v: v.update(trace="t"), "trace t must have name and sha256; fit again"),
        (lambda v: v["trace"].pop("name"), r"trace .* must have name and sha256; fit again"),
        (lambda v: v["trace"].update(name=1), r"trace .* must have name and sha256; fit again"),
        (lambda v: v.update(results=[]), r"results \[\] must be names with numbers; fit again"),
        (
            lambda v: v.update(results={"recall": "high"}),
            "results {'recall': 'high'} must be names with numbers; fit again",
        ),
    ],
)
def test_a_fit_of_something_else_is_refused_before_the_run(
    configure: Configure,
    bundled_trace: Trace,
    written: Path,
    change: Callable[[dict[str, Any]], object],
    said: str,
) -> None:
    with_json(written, change)
    words = ("predictor=next_site", f"predictor.artefact={written}", "system=lru", *SHARES)
    with pytest.raises(ArtefactError, match=said.replace("{", r"\{").replace("}", r"\}")):
        build(configure(*words), "x", bundled_trace)


def test_a_fit_that_does_not_ship_says_how_to_make_it(
    configure: Configure, bundled_trace: Trace
) -> None:
    words = ("predictor=expert_paths", "predictor.key=first", "system=lru", *SHARES)
    with pytest.raises(
        ArtefactError,
        match=r"no fit expert_paths-first comes with .* moelab fit predictor=",
    ):
        build(configure(*words), "x", bundled_trace)
    words = ("predictor=next_site", "predictor.artefact=nowhere.json", "system=lru", *SHARES)
    with pytest.raises(ArtefactError, match=r"nowhere\.json cannot be read"):
        build(configure(*words), "x", bundled_trace)
    words = ("predictor=next_site", "predictor.artefact=nowhere.npz", "system=lru", *SHARES)
    with pytest.raises(ArtefactError, match=r"must be the \.json file"):
        build(configure(*words), "x", bundled_trace)


def packed(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return stream.getvalue()


def npy(values: np.ndarray[Any, Any], shape: tuple[int, ...] | None = None) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": values.dtype.str, "fortran_order": False, "shape": shape or values.shape}
    )
    return stream.getvalue() + values.tobytes()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no archive", "must be an .npz file"),
        (packed(together=b"no array"), "must be an .npz file"),
        # The array claims four thousand million values and has one.
        (packed(together=npy(np.zeros(1), (1 << 32,))), "must be numbers in"),
        (packed(together=npy(np.array(["a"]))), "must be numbers in"),
        (packed(together=npy(np.zeros(3)) + b"more"), "must be numbers in"),
    ],
)
def test_arrays_that_are_not_what_they_claim_are_refused(
    written: Path, content: bytes, said: str
) -> None:
    written.with_suffix(".npz").write_bytes(content)
    with_json(written, lambda v: v.update(arrays_sha256=hashlib.sha256(content).hexdigest()))
    with pytest.raises(ArtefactError, match=said):
        read_artefact(written)


def test_an_array_of_a_later_format_is_refused(written: Path) -> None:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.zeros(1), version=(2, 0))
    content = packed(together=stream.getvalue())
    written.with_suffix(".npz").write_bytes(content)
    with_json(written, lambda v: v.update(arrays_sha256=hashlib.sha256(content).hexdigest()))
    with pytest.raises(
        ArtefactError, match=r"npz: together\.npy version \(2, 0\) must be 1\.0; fit again"
    ):
        read_artefact(written)


def test_files_are_no_larger_than_a_fit_is(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = written.with_suffix(".npz")
    with zipfile.ZipFile(arrays) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    text = written.stat().st_size
    monkeypatch.setattr(artefact, "LARGEST_ARRAYS_BYTES", unpacked)
    monkeypatch.setattr(artefact, "LARGEST_JSON_BYTES", text)
    read_artefact(written)
    monkeypatch.setattr(artefact, "LARGEST_ARRAYS_BYTES", unpacked - 1)
    with pytest.raises(
        ArtefactError, match=f"npz: the unpacked size must be at most {unpacked - 1} bytes; fit"
    ):
        read_artefact(written)
    monkeypatch.setattr(artefact, "LARGEST_ARRAYS_BYTES", arrays.stat().st_size - 1)
    with pytest.raises(
        ArtefactError,
        match=rf"npz: size {arrays.stat().st_size} must be at most {arrays.stat().st_size - 1} bytes;",
    ):
        read_artefact(written)
    monkeypatch.setattr(artefact, "LARGEST_JSON_BYTES", text - 1)
    with pytest.raises(
        ArtefactError, match=rf"json: size {text} must be at most {text - 1} bytes; fit again"
    ):
        read_artefact(written)


def test_a_text_that_is_no_json_is_refused_with_the_file(written: Path) -> None:
    written.write_text("{", encoding="utf-8")
    with pytest.raises(ArtefactError, match=r"json: the text must be JSON; fit again \(moelab fit"):
        read_artefact(written)


def test_a_policy_may_do_without_a_fit_that_does_not_ship(
    tmp_path: Path, bundled_trace: Trace
) -> None:
    workload: Any = SimpleNamespace(trace=bundled_trace)
    fit = FitFile("nothing", None, None, command="nothing", optional=True)
    assert find_artefact(fit, "payload", workload, tmp_path) is None
    with pytest.raises(ArtefactError, match=f"give payload.artefact=DIR/{fit.name}.json$"):
        find_artefact(replace(fit, optional=False), "payload", workload, tmp_path)
    with pytest.raises(ArtefactError, match=r"nowhere\.json cannot be read"):
        find_artefact(replace(fit, artefact="nowhere.json"), "payload", workload, tmp_path)
    for misfit in ("fit.npz", "", 1, True):
        named = replace(fit, artefact=misfit)  # type: ignore[arg-type]
        with pytest.raises(ArtefactError, match=f"^payload.artefact={misfit!r} must be the .json"):
            find_artefact(named, "payload", workload, tmp_path)


def test_a_pickle_is_never_opened(written: Path) -> None:
    stream = io.BytesIO()
    np.savez(stream, together=np.array([{"a": 1}], object), allow_pickle=True)
    written.with_suffix(".npz").write_bytes(stream.getvalue())
    with_json(
        written, lambda v: v.update(arrays_sha256=hashlib.sha256(stream.getvalue()).hexdigest())
    )
    with pytest.raises(ArtefactError):
        read_artefact(written)


# The command


def test_the_command_writes_what_a_run_then_takes(
    tmp_path: Path, configure: Configure, bundled_trace: Trace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predictor=expert_paths", "predictor.key=first", f"output_dir={tmp_path}"]) == 0
    place = tmp_path / "expert_paths-first.json"
    assert f"{place}: expert_paths of 32 fit sequences of tiny_mixtral" in capsys.readouterr().out
    words = (
        "predictor=expert_paths",
        "predictor.key=first",
        f"predictor.artefact={place}",
        "system=lru",
        *SHARES,
    )
    predictor: Any = build(configure(*words), "x", bundled_trace).controller.predictor
    assert predictor.key == "first"


@pytest.mark.alike
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trace=tiny_mixtral"], "missing predictor=NAME"),
        (["predictor=none"], "NoPrediction has nothing to fit"),
        (["predictor=foreseen"], "Foreseen has nothing to fit"),
        (["predictor=activation_matrix_empty"], "ActivationMatching has nothing to fit"),
        (["predictor=learned"], "moelab capture fit"),
        (
            ["predictor=next_site", "loader=free"],
            "'loader=free' is no key=value of predictor, trace, output_dir",
        ),
        (["predictor=nobody"], "nobody"),
        (["predictor=next_site", "predictor.combine=max"], "unknown predictor.combine"),
        (["predictor=next_site", "trace.path=nowhere"], "nowhere"),
        (["predictor=next_site", "trace.max_sequences=0"], "trace.max_sequences"),
    ],
)
def test_the_command_refuses_with_one_message(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*arguments, f"output_dir={tmp_path / 'fits'}"]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert message.startswith("fit: ")
    assert not (tmp_path / "fits").exists()


def test_the_command_reads_what_its_words_say() -> None:
    request = request_of(
        ["predictor=next_site", "predictor.combine=product", "trace.max_sequences=2"]
    )
    assert isinstance(request.predictor, NextSiteConditional)
    assert (request.predictor.combine, len(request.sequences)) == ("product", 2)
    assert str(request.output_dir) == "outputs/predictors"


# Gate inputs


def test_gate_inputs_are_those_of_the_rows(bundled_trace: Trace) -> None:
    """Checked by the scores that the trace keeps.

    The router of a site on its input gives its logits.
    """
    safetensors = pytest.importorskip("safetensors.numpy")
    trace = read_trace(ROOT / BUNDLED, ("logits",))
    assert trace.logits is not None
    routers = safetensors.load_file(ROOT / BUNDLED / "routers.safetensors")
    kept = read_gate_inputs(ROOT / BUNDLED, trace, (0, 33))
    rows = np.flatnonzero(kept.place >= 0)
    assert set(trace.sequence[rows].tolist()) == {0, 33}
    site = 5
    inputs = kept.of(rows, site)
    assert inputs is not None
    by_file = safetensors.load_file(ROOT / BUNDLED / "hidden" / "sequence_033.safetensors")
    mine = rows[trace.sequence[rows] == 33]
    order = np.argsort(by_file["position"])
    values = by_file["gate_in"].astype(np.float32) * by_file["scale"][..., None]
    assert (kept.of(mine, site) == values[order, site]).all()
    error = inputs @ routers["router_weight"][site].astype(np.float32).T - trace.logits[rows, site]
    # Both are rounded: gate inputs to 0.7 % in the mean square, logits to 1/28.
    assert np.sqrt((error**2).mean()) < 0.02 * np.sqrt((trace.logits[rows, site] ** 2).mean())
    assert kept.of(np.flatnonzero(trace.sequence == 1)[:2], site) is None


def test_a_sequence_without_gate_inputs_is_named(
    configure: Configure, bundled_trace: Trace
) -> None:
    words = ("predictor=learned_gate_input", "system=lru", "budget.resident_share=0.5")
    with pytest.raises(
        TraceError, match=r"sequences is \[40, 41, .*have no gate inputs .*trace\.max_sequences"
    ):
        build(configure(*words), "x", bundled_trace)
    run = build(configure(*words, "trace.max_sequences=8"), "x", bundled_trace)
    counts, _ = count_forecasts(run.workload, run.controller.predictor)
    assert counts.gates == 8 * 64 * 15
    assert counts.both / counts.needed > 0.6


def test_a_gate_input_file_that_lies_is_refused(tmp_path: Path, bundled_trace: Trace) -> None:
    folder = tmp_path / "hidden"
    folder.mkdir()
    place = folder / "sequence_000.safetensors"
    shutil.copy(ROOT / BUNDLED / "hidden" / place.name, place)
    content = place.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])

    def told(change: Callable[[dict[str, Any]], object], match: str) -> None:
        forged = json.loads(json.dumps(header))
        change(forged)
        text = json.dumps(forged).encode()
        place.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
        with pytest.raises(TraceError, match=match):
            read_gate_inputs(tmp_path, bundled_trace, (0,))

    told(lambda v: v["gate_in"].update(shape=[64, 16, 127]), "must span")
    told(lambda v: v["gate_in"].update(data_offsets=[0, 1 << 20]), "must have a dtype|must span")
    told(lambda v: v["gate_in"].update(dtype="F8_E4M3"), "must have a dtype")
    told(lambda v: v["gate_in"].update(shape=[1 << 40, 16, 128]), "must have a dtype")
    told(lambda v: v.pop("position"), "must be position")
    place.write_bytes((1 << 40).to_bytes(8, "little") + b"{}")
    with pytest.raises(TraceError, match="header of at most"):
        read_gate_inputs(tmp_path, bundled_trace, (0,))


def test_networks_on_raw_scores_are_not_run_on_renormed_ones(
    configure: Configure, bundled_trace: Trace
) -> None:
    words = ("predictor=learned", "system=lru", "workload.lookahead_norm=renormed", *SHARES)
    with pytest.raises(ValueError, match=r"set workload\.lookahead_norm=raw"):
        build(configure(*words), "x", bundled_trace)


def test_a_trace_without_lookahead_is_refused_by_a_predictor_that_reads_it(
    configure: Configure,
) -> None:
    trace = read_trace(ROOT / BUNDLED)
    header = replace(trace.header, lookahead=None, columns=())
    for name in ("learned", "gate_percentile"):
        with pytest.raises(
            ValueError, match="records lookahead for 0 sites, but the predictor needs"
        ):
            build(
                configure(f"predictor={name}", "system=lru", *SHARES),
                "x",
                replace(trace, header=header),
            )


# How good forecasts were


def test_asking_again_counts_what_the_columns_count(bundled_trace: Trace) -> None:
    """The fast count of plain lookahead, against the walk that every other predictor takes."""
    for batching in ({"batching": "sequential"}, {"batching": "static", "together": 3}):
        workload = Workload(bundled_trace, lookahead=2, max_sequences=4, **batching)  # type: ignore[arg-type]
        fast = count_forecasts(workload, GateLookahead(2))
        slow = count_forecasts(workload, GateLookahead(2, experts=99))
        assert fast == slow
        assert fast[0].gates > 100


def test_the_future_is_always_right(bundled_trace: Trace) -> None:
    workload = Workload(bundled_trace, batching="static", together=2, max_sequences=2)
    predictor = Foreseen()
    assert prepare(predictor, "predictor", workload, ROOT / BUNDLED) == 0
    counts, _ = count_forecasts(workload, predictor)
    assert counts.gates == counts.equal == counts.best_needed > 100
    assert counts.named == counts.needed == counts.both


def test_a_walk_begins_afresh_after_a_run(bundled_trace: Trace) -> None:
    workload = Workload(bundled_trace, batching="sequential", max_sequences=1)
    predictor: FittedPredictor = ExpertPaths()
    prepare(predictor, "predictor", workload, ROOT / BUNDLED)
    first = count_forecasts(workload, predictor)
    gate = workload.gate()
    gate.open(workload.steps[5])
    gate.visit(3)
    predictor.observe(gate)
    assert count_forecasts(workload, predictor) == first


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            "def fit(self, sample, track=iter): return {}['x']",
            r"`fit` ended with KeyError: 'x' \(\S+",
        ),
        (
            "def fit(self, sample, track=iter): raise ValueError('few')",
            r"`fit` ended with ValueError: few \(",
        ),
        ("def fit(self, sample): return {}", r"`fit` ended with TypeError: .* 2 positional arg"),
        ("pass", r"`fit` ended with NotImplementedError \(\S+"),
        ("kind = property(lambda self: {}['x'])", r"`requires` ended with KeyError: 'x' \(\S+"),
    ],
)
def test_a_predictor_of_ones_own_that_fails_to_fit_is_told_with_its_place(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lines: str,
    told: str,
) -> None:
    """It was a traceback."""
    (tmp_path / "predictor").mkdir()
    (tmp_path / "predictor" / "own_fit.yaml").write_text("_target_: own_fit.Own\n")
    source = (
        "from sim.policies.fitted import FittedPredictor\n"
        f"class Own(FittedPredictor):\n    kind = 'own_fit'\n    {lines}\n"
    )
    (tmp_path / "own_fit.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_fit", raising=False)
    words = ["predictor=own_fit", f"hydra.searchpath=[file://{tmp_path}]", "trace.max_sequences=1"]
    _target.cache_clear()
    assert main([*words, f"output_dir={tmp_path / 'fits'}"]) == 2
    printed = capsys.readouterr().err.splitlines()[-1]
    assert re.search(rf"^fit: predictor: own_fit\.Own: {told}", printed), printed
