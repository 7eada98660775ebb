"""Calibrate once, simulate everything: how far simulated times are from those of recorded runs.

A machine is made of a calibration's facts and of the runs that belong to it (`real.calibration`).
Every other run is simulated on it. Systems whose runs were used are fitted, and are not scored.
Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean, mean, median
from typing import Any

from real.calibration.facts import Facts, Points, of_known_precisions, read_facts
from real.calibration.fit import figures
from real.calibration.in_run import InParts, in_parts, in_run
from real.calibration.write import Machine, gathers_of, hardware_text
from real.suite.kept import (
    FACTS,
    GATHER,
    KERNEL,
    NOISE,
    memory_gib,
    of_suite,
    replays,
    rows_of_suite,
)
from sim.answers.recorded_run import Recorded, read_recorded, stored_bytes, words_of
from sim.engine.simulate import simulate
from sim.machine.attention import LatentAttention
from sim.machine.model import Model
from sim.results.frames import Frames
from sim.results.kept import ABOVE_0, NUMBERS, TEXT, Shape, check_shape
from sim.results.labels import Labels, labels_in, labels_of
from sim.setup.build import build
from sim.setup.configure import changes, configure
from sim.values.units import gib

NAME = "calibrated"
DEFAULT = "lru"
"""The system whose recordings calibrate."""
REPLAYS = (
    "model=tiny_gates_half_mixtral",
    "trace=tiny_mixtral",
    "workload=hobbit_16_128",
    "trace.max_sequences=1",
    "workload.prompt_tokens=8",
    "workload.decode_tokens=12",
)
"""Words of the suite's replays."""
OWN_WORDS = {
    "floe": ("payload=active_share_nominal",),
    "floe zero_copy": (
        "payload=active_share_nominal",
        "hardware.links.pcie.scattered.form=zero_copy",
        "hardware.links.pcie.scattered.threads=1",
    ),
}
"""Words of single systems, by cell."""
RESERVED_BYTES = 1 << 30
"""More than a context takes; what a calibration tells counts its own memory."""
ROW_BYTES = 16384
"""Bytes of a row that the suite's probe gathers: two of Mixtral's vectors in 16 bits."""
MOST_MEDIAN, MOST_ERROR, MOST_MEAN, LEAST_TAU = 0.05, 0.12, 0.03, 0.95

TIMED: Shape = {"model": TEXT, "tpot_s": {"mean": ABOVE_0}, "budget": {"slots": NUMBERS}}
"""What is read of a recording's summary, beyond what simulates it again."""


@dataclass(frozen=True)
class Row:
    """One run: the seconds of a token, as simulated and as recorded.

    ``source`` is ``replay`` or ``recording``. ``recorded_s`` is None for a run that did not end.
    ``left_out`` says why one of the two is missing.
    """

    source: str
    system: str
    share: float
    recorded_s: float | None
    predicted_s: float | None
    fitted: bool
    left_out: str = ""

    @property
    def error(self) -> float | None:
        if self.predicted_s is None or self.recorded_s is None:
            return None
        return self.predicted_s / self.recorded_s - 1

    @property
    def is_scored(self) -> bool:
        return self.error is not None and not self.fitted


def calibrating_facts(folder: Path, runs: Sequence[str]) -> tuple[Facts, Mapping[str, float]]:
    """The facts of the calibration in ``folder``, with those of the recordings ``runs``.

    Also the parameters of what was measured. Raise ValueError where there are none.
    """
    place = folder / "suite" / "calibration.json"
    facts = of_known_precisions(read_facts(place), place)
    facts.device = _device_ns(folder, facts.expert_bytes)
    for name in runs:
        was = read_recorded(_place_of_recordings(folder) / name)
        if moves_in_part(was):
            facts.parts.append(_parts(was))
        else:
            slots = sum(was.summary["budget"]["slots"].values())
            facts.runs.append(in_run(was.tables, _model(was).block_params(0), slots))
    cfg, _ = configure("system=lru", *REPLAYS)
    model = Model(**{key: value for key, value in cfg.model.items() if key != "_target_"})
    return facts, {
        "expert": model.expert_params,
        "dense": model.block_params(0),
        "tail": model.head_params,
    }


def calibrating_runs(folder: Path) -> list[str]:
    """The recordings in ``folder`` that calibrate where nothing else is asked for.

    They are those of `DEFAULT`, and those that bring parts of experts, which alone tell how long it
    takes to choose rows.
    """
    return [
        name
        for name, was in _recordings(folder).items()
        if was.summary["system"] == DEFAULT or moves_in_part(was)
    ]


def _recordings(folder: Path) -> dict[str, Recorded]:
    """By name, the recorded runs in ``folder`` that came to their end; empty without any."""
    found = {}
    for place in sorted(_place_of_recordings(folder).glob("*/summary.json")):
        found[place.parent.name] = was = read_recorded(place.parent)
        check_shape(was.summary, TIMED, str(place))
    return found


def _place_of_recordings(folder: Path) -> Path:
    """Beside the suite's folder, or in it, where the suite itself leaves them."""
    beside, inside = folder / "recordings", folder / "suite" / "recordings"
    return inside if inside.is_dir() and not any(beside.glob("*/summary.json")) else beside


def _device_ns(folder: Path, expert_bytes: Mapping[str, int]) -> dict[str, float]:
    """Experts by the device's own clock, by precision, of those sizes; empty without any."""
    rows = rows_of_suite(folder, "kernels.json", "rows", KERNEL)
    took = {
        str(row["operator"]).removeprefix("expert ").replace("bf16", "fp16"): row
        for row in rows
        if str(row["operator"]).startswith("expert ") and row["read_bytes"] in expert_bytes.values()
    }
    return {
        name: float(took[name]["median_ns"])
        for name, size in expert_bytes.items()
        if name in took and took[name]["read_bytes"] == size
    }


def moves_in_part(was: Recorded) -> bool:
    """Whether the run's engine brought parts of experts, as scattered rows."""
    whole = stored_bytes(was.summary)
    return bool(whole) and not set(was.tables.transfers["moved_bytes"]) <= set(whole)


def _parts(was: Recorded) -> InParts:
    engine, budget = was.config["engine"], was.summary["budget"]
    (precision, slots), *_ = budget["slots"].items()
    threads = 1 if engine["gather"] == "zero_copy" else int(engine["gather_threads"])
    gather = str(engine["gather"]), threads, int(engine["gather_columns"]) * ROW_BYTES
    return in_parts(was.tables, precision, _model(was).block_params(0), slots, gather)


def _cell(was: Recorded) -> str:
    """The system, and how it gathers rows if not by threads."""
    system = str(was.summary["system"]).split()[0]
    forms = was.config.get("engine", {}).get("gather") == "zero_copy" and moves_in_part(was)
    return f"{system} zero_copy" if forms else system


def _model(was: Recorded) -> Model:
    known = {one.name for one in fields(Model)}
    told = {key: value for key, value in was.config["model"].items() if key in known}
    try:
        if isinstance(latent := told.get("latent"), Mapping):
            told["latent"] = LatentAttention(**{k: v for k, v in latent.items() if k != "_target_"})
        return Model(**told)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"model={told} of a recording is none ({error}); record it again"
        ) from None


def slower(facts: Facts, times: float) -> Facts:
    """The same facts with everything taking ``times`` as long: a control that must show."""

    def all_of(points: Points) -> Points:
        return [(argument, ns * times) for argument, ns in points]

    return replace(
        facts,
        copy=all_of(facts.copy),
        experts={name: all_of(points) for name, points in facts.experts.items()},
        on_cpu=all_of(facts.on_cpu),
        dense=facts.dense * times,
        tail=facts.tail * times,
        host={name: round(ns * times) for name, ns in facts.host.items()},
        runs=[
            replace(
                one,
                gate_ns=one.gate_ns * times,
                waits=[(at, ns * times) for at, ns in one.waits],
                first_ns=None if one.first_ns is None else one.first_ns * times,
                behind_ns=None if one.behind_ns is None else one.behind_ns * times,
            )
            for one in facts.runs
        ],
        parts=[
            replace(one, gate_ns=one.gate_ns * times, part_ns=one.part_ns * times)
            for one in facts.parts
        ],
        device={name: ns * times for name, ns in facts.device.items()},
    )


def write_machine(
    into: Path,
    folder: Path,
    facts: Facts,
    params: Mapping[str, float],
    *,
    contention: bool,
    name: str = NAME,
) -> None:
    """Write the machine of these facts as ``hardware/NAME.yaml`` in the folder ``into``."""
    told = of_suite(folder, "facts.json", FACTS)
    if not contention:
        facts = replace(facts, overlapped=[], beside_copy=None, beside_cpu=[], cpu_beside_copy=None)
    machine = Machine(
        name,
        "cuda",
        str(told["gpu"]),
        str(told["processor"]),
        str(told["date"])[:10],
        "pcie",
        "pinned memory",
        gib(memory_gib(folder) or 80),
        RESERVED_BYTES,
        params,
    )
    found = figures(facts, params["expert"], list(facts.experts), 3)
    gathers = gathers_of(rows_of_suite(folder, "facts.json", "gather", GATHER), ROW_BYTES)
    (into / "hardware").mkdir(parents=True, exist_ok=True)
    text = hardware_text(machine, found, facts, facts.left_out, gathers)
    (into / "hardware" / f"{name}.yaml").write_text(text, encoding="utf-8")


def predict(folder: Path, machine: Path, runs: Sequence[str], words: Sequence[str]) -> list[Row]:
    """Every replay and every recording in ``folder``, simulated on the machine in ``machine``.

    ``words`` are for recordings whose model or trace has another name or place here. Raise
    ValueError where there is no run at all.
    """
    on = (f"hardware={NAME}", f"hydra.searchpath=[file://{machine.resolve()}]")
    recordings = _recordings(folder)
    if unknown := set(runs) - set(recordings):
        raise ValueError(
            f"calibrating={','.join(sorted(unknown))}: there are {', '.join(recordings)}"
        )
    fitted = {_cell(recordings[name]) for name in runs}
    rows = [_replay(row, on, fitted) for row in replays(folder)]
    rows += [_recording(was, on, fitted, words) for was in recordings.values()]
    if not rows:
        raise ValueError(
            f"{folder} has no measured run: neither suite/replay.json nor a folder of a run in"
            " recordings/"
        )
    return rows


def predict_on(folder: Path, on: Sequence[str]) -> list[Row]:
    """Every replay in ``folder``, simulated on the machine that the words ``on`` name."""
    return [_replay(row, on, set()) for row in replays(folder)]


def gates_of_replays() -> Labels:
    """What must be said of the gates of the suite's replays."""
    cfg, system = configure("system=lru", *REPLAYS)
    return _of_gates(labels_of(build(cfg, system), None))


def named(folder: Path) -> list[tuple[str, Labels]]:
    """What must be said of the gates of the replays and recordings in ``folder``."""
    gates = [("replays", gates_of_replays())] if replays(folder) else []
    return gates + [
        (f"recordings of {was.summary['model']}", _of_gates(labels_in(was.summary)))
        for was in _recordings(folder).values()
    ]


def _of_gates(labels: Labels) -> Labels:
    return Labels(transplanted=labels.transplanted, synthetic=labels.synthetic)


def _replay(row: Mapping[str, Any], on: Sequence[str], fitted: set[str]) -> Row:
    cell, _, share = str(row["cell"]).rpartition(" ")
    made = Row("replay", cell, float(share), None, None, cell in fitted)
    if "result" not in row:
        return replace(made, left_out=f"{row['status']}: {row.get('reason', 'it did not end')}")
    made = replace(made, recorded_s=float(row["result"]["tpot_s"]["mean"]))
    words = [f"system={cell.split()[0]}", f"budget.resident_share={share}", *REPLAYS, *on]
    words += OWN_WORDS.get(cell, ())
    return _simulated(made, words, stored_bytes(row["result"]))


def _simulated(row: Row, words: Sequence[str], stored: Sequence[int]) -> Row:
    """The row with its prediction, or with why there is none."""
    try:
        return replace(row, predicted_s=_token_s(words, stored))
    except (ValueError, OSError) as error:
        return replace(row, left_out=str(error).splitlines()[0])


def _recording(was: Recorded, on: Sequence[str], fitted: set[str], words: Sequence[str]) -> Row:
    summary, cell, share = was.summary, _cell(was), float(was.summary["budget"]["resident_share"])
    recorded_s = float(summary["tpot_s"]["mean"])
    model = str(summary["model"])
    own = [word for name, word in (one.split(":", 1) for one in words) if name == model]
    if cell == "floe zero_copy":
        own += OWN_WORDS[cell][1:]
    made = Row("recording", f"{cell} ({model})", share, recorded_s, None, cell in fitted)
    return _simulated(made, words_of(summary, [*on, *own]), stored_bytes(summary))


def _token_s(words: Sequence[str], stored: Sequence[int]) -> float:
    """The mean seconds of a token after the first, of all requests."""
    cfg, system = configure("outputs=summary", *words)
    run = build(cfg, system, stored_bytes=stored, changed=changes(words))
    record = simulate(run.controller, run.workload, run.durations)
    frames = Frames(run.controller, run.workload, run.durations, record, run.hardware.link_names)
    columns = ("first_token_ns", "end_ns", "decode_tokens")
    return fmean(
        (end - first) / tokens / 1e9
        for first, end, tokens in frames.sequences.select(columns).rows()
    )


def sign(value: float) -> int:
    return (value > 0) - (value < 0)


def taus(rows: Sequence[Row], noise: float) -> dict[float, float]:
    """By budget: Kendall's tau of the replayed systems' order, calibrating ones among them. A pair
    of one predicted time is neither right nor wrong.

    Pairs count whose recorded times differ by more than twice the ``noise`` of repeats.
    """
    found = {}
    for share in sorted({row.share for row in rows if row.source == "replay"}):
        times = [
            (row.predicted_s, row.recorded_s)
            for row in rows
            if (row.source, row.share) == ("replay", share)
            and row.predicted_s is not None
            and row.recorded_s is not None
        ]
        told = [
            sign(predicted - other_predicted) * sign(recorded - other_recorded)
            for (predicted, recorded), (other_predicted, other_recorded) in combinations(times, 2)
            if max(recorded, other_recorded) > (1 + 2 * noise) * min(recorded, other_recorded)
        ]
        if told:
            found[share] = fmean(told)
    return found


def noise_of(folder: Path) -> float:
    """The largest noise of a system's repeats that the suite's validation saw; 0 without any."""
    cases = rows_of_suite(folder, "validation/validation.json", "cases", NOISE)
    return max((float(case["noise"]) for case in cases), default=0.0)


@dataclass(frozen=True)
class Line:
    """A line of the table: what was found, the target, and whether it is met."""

    what: str
    found: float
    target: float
    holds: bool


def lines(rows: Sequence[Row], noise: float = 0.0) -> list[Line]:
    """What is asked: of the errors of scored rows, each source by itself, and of the order of all
    systems (`taus`, which ``noise`` is for).
    """
    found = []
    for source in ("replay", "recording"):
        of = [row for row in rows if row.source == source and row.is_scored]
        errors = [row.error for row in of if row.error is not None]
        if not errors:
            continue
        middle, worst = median(map(abs, errors)), max(map(abs, errors))
        off = mean(errors)
        name = f"{len(errors)} {source}{'s' * (len(errors) != 1)}"
        found += [
            Line(f"{name}: median error", middle, MOST_MEDIAN, middle <= MOST_MEDIAN),
            Line(f"{name}: worst error", worst, MOST_ERROR, worst <= MOST_ERROR),
            Line(f"{name}: mean error", off, MOST_MEAN, abs(off) <= MOST_MEAN),
        ]
    return found + [
        Line(f"order of systems at {share:.0%}: tau", tau, LEAST_TAU, tau >= LEAST_TAU)
        for share, tau in taus(rows, noise).items()
    ]
