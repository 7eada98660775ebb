"""Gathers every pair of a predicted and a measured time, from files of runs and by simulation."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from real.suite.kept import CASE, GPU, of_suite, rows_of_suite
from real.suite.pairs import (
    CALIBRATING,
    CONTROLS,
    FITTED,
    IO,
    ONE,
    PREDICTED,
    READ,
    SHEETS,
    SHEETS_AND_LINK,
    STALL,
    STEP,
    TOKEN,
    Pair,
)
from real.suite.prediction import (
    Row,
    calibrating_facts,
    calibrating_runs,
    gates_of_replays,
    noise_of,
    predict,
    predict_on,
    slower,
    write_machine,
)
from sim.reproduce import field, phone
from sim.results.kept import ABOVE_0
from sim.results.labels import caption

GPUS = {"NVIDIA H100 80GB HBM3": ("H100", "h100_sxm_pcie5_measured", "h100_sxm_pcie5")}
"""What a GPU is called here, its measured machine of ``conf/hardware``, and that of data sheets."""
VALIDATION = "validation/validation.json"
CALIBRATION = "a calibration and some recordings"
OTHERS, HALF, ANOTHER = "other systems' runs", "the first half of the run", "another published run"
PHONE = "OnePlus 15R"
OF_SAME_MACHINE = {PHONE: "oneplus_15r", "Tesla P40": "p40_pcie3"}
"""Machines whose published runs were made on just the machine of a file of ``conf/hardware``, though
their words have other figures of it.
"""


def of_machine(
    folder: Path, words: Sequence[str], tell: Callable[[str], None], keep: Path | None = None
) -> list[Pair]:
    """The replays and recordings of a measured machine, on its own figures and on data sheets.

    ``folder`` and ``words`` are those of `predict`. The folder ``keep`` gets the machine that
    predicted them. ``tell`` hears of each run that makes no pair, and why, and of what no
    calibration could be made of. Raise ValueError for another folder.
    """
    gpu = of_suite(folder, "facts.json", GPU)["gpu"]
    name, measured, sheets = GPUS.get(gpu, (gpu, "", ""))
    runs, noise = calibrating_runs(folder), noise_of(folder)
    facts, params = calibrating_facts(folder, runs)
    for told in facts.left_out:
        tell(f"left out of the calibration: {told}")
    if keep is not None:
        write_machine(keep, folder, facts, params, contention=True, name=measured or "measured")
    rows = _predicted(folder, runs, words)
    wrong = {
        "rates_1.1": _predicted(folder, runs, words, times=1.1),
        "rates_0.9": _predicted(folder, runs, words, times=0.9),
        "contention_off": _predicted(folder, runs, words, contention=False),
    }
    found = []
    for number, row in enumerate(rows):
        pair = _of_row(row, name, measured, CALIBRATION, noise)
        if pair is not None:
            times = {control: wrong[control][number].predicted_s for control in CONTROLS}
            known = {control: time for control, time in times.items() if time is not None}
            found.append(replace(pair, controls=known))
        else:
            why = row.left_out or "no time was measured"
            tell(f"no pair: {row.source} {row.system} at {row.share:g}: {why}")
    if sheets:
        for row in predict_on(folder, (f"hardware={sheets}",)):
            pair = _of_row(row, name, sheets, SHEETS, noise)
            if pair is not None:
                found.append(pair)
    return found


def _predicted(
    folder: Path,
    runs: Sequence[str],
    words: Sequence[str],
    times: float = 1.0,
    contention: bool = True,
) -> list[Row]:
    facts, params = calibrating_facts(folder, runs)
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        write_machine(place, folder, slower(facts, times), params, contention=contention)
        return predict(folder, place, runs, words)


def _of_row(row: Row, machine: str, file: str, basis: str, noise: float) -> Pair | None:
    """A pair; None where a time is missing."""
    if row.predicted_s is None or row.recorded_s is None:
        return None
    role = PREDICTED
    if row.fitted:
        role = FITTED if row.source == "recording" else CALIBRATING
    gates = ""
    if row.source == "replay":
        gates = caption([(row.source, gates_of_replays())])
    told = row.source, row.system, row.share, TOKEN, role, row.recorded_s, row.predicted_s
    return Pair(machine, file, basis, *told, noise, gates)


def of_validation(folder: Path) -> list[Pair]:
    """The runs of a measured machine that ``python -m real.validate`` predicted from others.

    None where the suite left no such report in ``folder``.
    """
    cases = rows_of_suite(folder, VALIDATION, "cases", CASE)
    if not cases:
        return []
    gpu = of_suite(folder, "facts.json", GPU)["gpu"]
    machine, *_ = GPUS.get(gpu, (gpu,))
    steps = of_suite(folder, VALIDATION, {"facts": {"steps a run": ABOVE_0}})["facts"][
        "steps a run"
    ]
    return [_of_case(machine, case, int(steps)) for case in cases]


def _of_case(machine: str, case: dict[str, Any], steps: int) -> Pair:
    measured_s, predicted_s = (case[key] / steps for key in ("measured_s", "predicted_s"))
    told = "validation", case["system"], float(case["resident_share"]), STEP, PREDICTED
    return Pair(machine, "", OTHERS, *told, measured_s, predicted_s, float(case["noise"]))


def of_phone(folder: Path) -> list[Pair]:
    """The tokens of the recorded phone runs, each by itself."""
    found = []
    for run in phone.read_runs(folder):
        basis = HALF if run.recording.fitted else basis_of(run.recording.model)
        for quantity, name in ((ONE, "wall"), (STALL, "stall"), (IO, "io")):
            pairs = zip(run.predicted[name], run.measured[name], strict=True)
            for number, (ours, theirs) in enumerate(pairs, start=1):
                role = FITTED if number <= run.recording.fitted else PREDICTED
                times = float(theirs) / 1e3, float(ours) / 1e3
                told = "token", str(number), None, quantity, role, *times
                found.append(Pair(PHONE, "", basis, *told))
    return found


def basis_of(model: str) -> str:
    """What predicts the phone's run of another model."""
    return f"{phone.QWEN.model}'s run, for {model}"


def of_field(gates: Path) -> list[Pair]:
    """The runs that others published, simulated on the gates in the folder.

    What was published of just a machine of ``conf/hardware`` is also simulated on that file as it
    is.
    """
    published = field.published()
    field.check_gates(gates, published)
    found = []
    for row in field.rows(gates, published):
        one = row.published
        if one.machine not in OF_SAME_MACHINE and (name := _file_of(one)):
            found.append(_of_published(row, name, SHEETS))
        else:
            found.append(_of_published(row, "", ANOTHER if one.fitted_on else SHEETS_AND_LINK))
    for machine, name in OF_SAME_MACHINE.items():
        own = [one for one in published if one.machine == machine and not one.fitted_on]
        plain = [
            replace(
                one, words=tuple(word for word in one.words if not word.startswith("hardware."))
            )
            for one in own
        ]
        found += [_of_published(row, name, SHEETS) for row in field.rows(gates, plain)]
    return found


def _file_of(one: field.Published) -> str:
    """The file of ``conf/hardware`` that a run was simulated on as it is; empty where its words change
    the machine, or take several.
    """
    names = [word.partition("=")[2] for word in one.words if word.startswith("hardware=")]
    is_changed = any(word.lstrip("+").startswith(("hardware.", "devices=")) for word in one.words)
    return "" if one.fitted_on or is_changed or len(names) != 1 else names[0]


def _of_published(row: field.Row, file: str, basis: str) -> Pair:
    one = row.published
    system = next(word for word in one.words if word.startswith("system=")).partition("=")[2]
    name = f"{system} ({one.name})"
    times = 1 / one.tokens_per_s, 1 / row.tokens_per_s
    role = FITTED if one.name in field.FITTED else PREDICTED
    told = "published", name, None, READ if one.is_prompt else TOKEN, role, *times
    return Pair(one.machine, file, basis, *told, gates=f"SYNTHETIC gates: {row.gates}")
