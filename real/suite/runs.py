"""The pieces that run systems: stores, copies inside the engine, replays, live runs, validation."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from omegaconf import OmegaConf
from rich.console import Console

from real.calibration.sizes import OWN_WORDS, SIZES, VARIANTS
from real.setup.execute import measure, replay_driver
from real.setup.prepare import Prepared, Request, prepare_replay
from real.suite.context import Cells, Context
from real.validation.cases import Plan, request_of
from sim.results.outputs import write_outputs
from sim.values.record import Record

STORES = Path("outputs/stores/suite")
RECORDINGS = "recordings"
"""The folder of the replays' files, of which `moelab audit_time` reads one."""
TIMELINE_STEPS = 8
"""How many steps of a replay can be looked at on a timeline."""
FREE = ("engine.links=free", "engine.compute=free")
MODEL = "tiny_mixtral"
"""The model of live runs: it comes with the project, and its gates decide."""
BATCH = 4
"""How many sequences the first system also runs at once."""
TOLD = (
    "system",
    "model",
    "trace",
    "budget",
    "labels",
    "overrides",
    "load_s",
    "makespan_s",
    "ttft_s",
    "tpot_s",
    "decode_tokens_per_s",
    "compute_busy_s",
    "stall_s",
    "lookups",
    "hit_ratio",
    "prefetch",
    "bytes",
    "link_utilisation",
    "real",
)
"""The keys of a run's summary that are kept."""
LEAST_S = 4.0
"""A cell is not begun with less time left."""


def words_of(context: Context) -> tuple[str, ...]:
    """The words that configure every run here: free links and compute, and the machine.

    The machine is this one, as calibrated, where there is a calibration.
    """
    words = (
        *SIZES[context.size].words,
        f"device={context.device}",
        f"engine.store_dir={STORES}",
        *FREE,
    )
    if (name := calibrated(context)) is None:
        return words
    kept = [word for word in words if not word.startswith("hardware=")]
    return (*kept, f"hardware={name}", f"hydra.searchpath=[file://{context.folder.resolve()}]")


def calibrated(context: Context) -> str | None:
    """The name of the machine that the calibration has written into the folder; None if none."""
    found = sorted((context.folder / "hardware").glob("*.yaml"))
    return found[0].stem if found else None


def stores(context: Context) -> None:
    """Write the files of experts that the runs will read, so that no run pays for them.

    Result: ``stores.json``.
    """
    size, cells = SIZES[context.size], Cells(context, "stores")
    for system in size.systems:
        cells.run(system, partial(_store, context, system), LEAST_S)
        gc.collect()
    cells.check_whole()


def _store(context: Context, system: str) -> dict[str, Any]:
    # This also makes a device, which says what it cannot run.
    prepared = _prepared(context, system, SIZES[context.size].budgets[0])
    assert prepared.weights is not None
    header = prepared.weights.store.header
    return {
        "file": prepared.weights.store.path.name,
        "bytes": header.num_bytes,
        "distinct_experts": header.distinct,
    }


def _prepared(context: Context, system: str, share: float, *words: str) -> Prepared:
    return prepare_replay(
        request_of((*words_of(context), *OWN_WORDS.get(system, ()), *words), system, share)
    )


def copies(context: Context) -> None:
    """Measure how much of the link's peak whole loads reach in the engine, with 1 and 2 issued.

    Result: ``copies.json``.
    """
    share, cells = SIZES[context.size].budgets[0], Cells(context, "copies")
    for in_flight in (1, 2):
        cells.run(f"in_flight={in_flight}", partial(_loads, context, share, in_flight), LEAST_S)
        gc.collect()
    cells.check_whole()


def _loads(context: Context, share: float, in_flight: int) -> dict[str, Any]:
    prepared = _prepared(context, "load_on_demand", share, f"loader.in_flight={in_flight}")
    record = replay_driver(prepared).drive()
    return {"in_flight": in_flight, **rates(record)}


def rates(record: Record) -> dict[str, Any]:
    """Rates of the services of link 0, in bytes per second.

    ``bytes_per_s`` is a service's by itself. ``bytes_per_s_behind`` is that of services that
    followed another at once, from the other's end: it includes the host's gap between them.
    """
    columns = (
        record.service_link,
        record.service_start_ns,
        record.service_end_ns,
        record.service_bytes,
    )
    services = sorted(
        (s, e, b) for link, s, e, b in zip(*columns, strict=True) if link == 0 and e >= 0
    )
    alone = [b / (e - s) * 1e9 for s, e, b in services if e > s]
    behind = [
        (e - before, b)
        for (_, before, _), (s, e, b) in pairwise(services)
        if s == before and e > before
    ]
    return {
        "services": len(services),
        "bytes": median([b for *_, b in services]) if services else None,
        "bytes_per_s": median(alone) if alone else None,
        "behind_another": len(behind),
        "bytes_per_s_behind": median([b / ns * 1e9 for ns, b in behind]) if behind else None,
    }


def replay(context: Context) -> None:
    """Run every system at every budget on forced routing, and FloE's loader in its other form.

    Budgets come in order, so that all systems have the first. Result: ``replay.json``, and a folder
    of each run's files in ``recordings``.
    """
    size, cells = SIZES[context.size], Cells(context, "replay")
    variants = [(name, name.split()[0], (word,)) for name, word in VARIANTS.items()]
    for share in size.budgets:
        for name, system, words in [*((one, one, ()) for one in size.systems), *variants]:
            cell = f"{name} {share:g}"
            work = partial(_replayed, context, cell, system, share, *words)
            cells.run(cell, work, max(LEAST_S, cells.longest_s))
            gc.collect()
    cells.check_whole()


def _replayed(
    context: Context, cell: str, system: str, share: float, *words: str
) -> dict[str, Any]:
    folder = context.folder / RECORDINGS / cell.replace(" ", "_")
    return recorded(_prepared(context, system, share, *words), folder)


def recorded(prepared: Prepared, folder: Path) -> dict[str, Any]:
    """Make a run, write its files into ``folder``, and return what its row keeps of them.

    An earlier try's files are written over.
    """
    driver = replay_driver(prepared)
    record = driver.drive()
    result = measure(prepared, prepared.run, driver, record)
    request = prepared.request
    plain: Any = OmegaConf.to_container(request.simulated, resolve=True)
    config = {**plain, "device": request.device, "input": request.input}
    config["engine"] = asdict(request.engine)
    wait = prepared.run.controller.loader.wait
    write_outputs(folder, result.summary, config, result.frames, wait, TIMELINE_STEPS)
    return {**{name: result.summary[name] for name in TOLD}, "link": rates(record)}


def live(context: Context) -> None:
    """Run bundled models whose own gates decide, on the device.

    Without loss their logits are compared with those of the whole model. Result: ``live.json``.
    Raise RuntimeError where they have other bits.
    """
    cells = Cells(context, "live")
    systems = SIZES[context.size].live
    for system, together in [*((system, 1) for system in systems), (systems[0], BATCH)]:
        name = f"{MODEL} {system}" + (f", {together} at once" if together > 1 else "")
        cells.run(name, partial(_live, context, MODEL, system, together), LEAST_S)
        gc.collect()
    wrong = [
        cell for cell, result in cells.done().items() if result["lossless"] and not result["equal"]
    ]
    if wrong:
        raise RuntimeError(
            f"{', '.join(wrong)}: other logits than the whole model's on the same device"
        )
    cells.check_whole()


def _live(context: Context, model: str, system: str, together: int) -> dict[str, Any]:
    from real.live.run import live_driver, prepare

    tokens = SIZES[context.size].live_tokens
    words = (
        f"device={context.device}",
        "input=live",
        f"model={model}",
        "trace=tiny_mixtral",
        *FREE,
        f"engine.store_dir={STORES}",
        f"live.sequences={together}",
        "live.prompt_tokens=8",
        f"live.new_tokens={tokens}",
        *((f"workload=static_{BATCH}",) if together > 1 else ()),
    )
    prepared = prepare(request_of(words, system, 0.5))
    driver = live_driver(prepared)
    driver.logits = []
    record = driver.drive()
    assert prepared.weights is not None
    lossless = all(prepared.weights.store.header.lossless)
    passages = driver._model.passages
    whole = (
        whole_logits(prepared.request, passages, tokens, driver.logits[0].device)
        if lossless
        else []
    )
    equal = lossless and all(torch.equal(a, b) for a, b in zip(driver.logits, whole, strict=True))
    return {
        "steps": len(record.step_end_ns),
        "makespan_s": record.makespan_ns / 1e9,
        "lossless": lossless,
        "equal": equal,
    }


def whole_logits(
    request: Request, passages: Sequence[Any], new_tokens: int, device: torch.device
) -> list[torch.Tensor]:
    """The last rows' logits of each step [B, V], by the whole unpatched model on a device.

    All passages run at once.
    """
    from capture.recording.load import load_model
    from capture.recording.run import decoder_of
    from real.setup.prepare import settings_of
    from real.setup.stores import weights_folder
    from sim.setup.sections import make_object

    folder = weights_folder(request.engine, make_object(request.simulated.model))
    assert folder is not None
    model = load_model(settings_of(request, folder)).to(device)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    logits = []
    with torch.no_grad():
        run = decoder_of(model, passages)
        run.prefill(0)
        logits.append(run.output.logits[:, -1])
        for index in range(new_tokens):
            run.step(run.next_tokens(index))
            logits.append(run.output.logits[:, -1])
    return logits


def validation(context: Context) -> None:
    """Put the simulator beside the device, in the folder ``validation``.

    Its files are those of `python -m real.validate`.
    """
    from real.validation.validation import Asked, validate

    size, folder = SIZES[context.size], context.folder / "validation"
    folder.mkdir(exist_ok=True)
    plan = Plan(size.validated, size.validated_budgets, size.repeats, 0, words_of(context))
    # A run may take twice as long as those before it; checks and the report need time, too.
    found = validate(
        Asked(plan, (), folder), Console(stderr=True), lambda: context.deadline.has(3 * LEAST_S)
    )
    print(found.text)
    if found.stopped_by is not None:
        raise found.stopped_by
