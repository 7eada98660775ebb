"""One question about a model on a machine: which systems there are, how fast, and what would
change that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from sim.answers.ask_bench import Bench
from sim.answers.ask_parts import (
    BOUND,
    LOSSLESS,
    LOSSY,
    Change,
    Fit,
    Found,
    Need,
    Row,
    fastest_first,
)
from sim.answers.ask_quality import quality_of
from sim.answers.breakeven import in_three_digits
from sim.answers.link_words import with_peak
from sim.machine.budget import Budget, all_slot_bytes, make_geometry
from sim.machine.data_sheets import of_preset
from sim.machine.devices import device_of
from sim.machine.model import Model
from sim.machine.precision import (
    FILES,
    IN_FILES,
    MXFP4,
    PRECISION_BITS,
    bits_of_file,
    says_dense_bits,
)
from sim.results.believed import whose
from sim.results.intervals import Floats
from sim.results.labels import error_of, labels_in
from sim.results.latency import decode_time_and_tokens
from sim.results.outputs import held_share, lost_of
from sim.results.paired import paired, paired_rates
from sim.results.run import Run
from sim.setup.on_devices import holds_all
from sim.study.trials import Trial, slots_a_layer, tokens_per_s
from sim.values.units import GIB
from sim.verbs.names import chosen_by, names
from sim.workload.kv_room import GROWING
from sim.workload.speculation import OFFLOADED

PLAIN = "fp16"
"""The precision of systems that change none: they are asked at each of the precisions."""
RESIDENT, OF_FILES = "lru", "llama_cpp_n_cpu_moe"
"""The system that is asked where all experts fit, and the engine of llama.cpp's files."""
FULL = 1.0
LADDER = ("fp16", "fp8", "int8", "q4_k_m", "int4", "int2")
"""Precisions at which the answer says whether everything fits, best first."""
MORE_GIB = 8
DRAFTS = 2
"""How many tokens a step drafts where the answer says what drafting would bring."""
FEWER_KV_BITS = 8.5
"""Bits of keys and values where the answer says what fewer would bring: llama.cpp's ``q8_0``."""
FACTORS = (1.0, 64.0)
CLOSE = 0.03
"""A search for what a target needs ends at this share of its answer."""


def fits_of(run: Run) -> tuple[Fit, ...]:
    """At which precisions all experts fit beside all else that ``run`` takes."""
    model, ledger = run.model, run.ledger
    fixed = ledger.total_bytes - ledger.slot_bytes
    is_said = says_dense_bits(run.config)
    stored = MXFP4 if model.stored == MXFP4[0] else (model.stored,)
    ladder = [*stored, *LADDER] if model.stored else list(LADDER)
    best = PRECISION_BITS[str(model.stored)] if model.stored else max(PRECISION_BITS.values())
    found = []
    for name in dict.fromkeys(map(str, ladder)):
        if PRECISION_BITS[name] > best:
            continue
        geometry = make_geometry(
            model, (name,), Budget(FULL), device_of=device_of(run.hardware, model)
        )
        bits = model.dense_bits if is_said else bits_of_file((name,)) or Model.dense_bits
        in_it = replace(model, dense_bits=bits)
        other = (in_it.dense_bytes - model.dense_bytes) * run.hardware.copies
        needs = fixed + other + all_slot_bytes(geometry) * run.hardware.copies
        fits = needs <= run.hardware.memory_bytes
        if run.hardware.devices is not None:
            fits = holds_all(run.hardware, in_it, run.workload.limits, geometry)
        found.append(Fit(name, needs / GIB, fits))
    return tuple(found)


def systems_at(precisions: Sequence[str], whole: Sequence[str] = ()) -> list[tuple[str, ...]]:
    """The words of every system: those that change no precision at each of ``precisions``.

    At the precisions of ``whole`` everything fits, and nobody offloads: there `RESIDENT` alone is
    asked, and what llama.cpp reads from a file as it is, by its engine, too.
    """
    found: list[tuple[str, ...]] = [
        (f"system={name}", f"precision={precision}")
        for precision in whole
        for name in ((RESIDENT, OF_FILES) if precision in IN_FILES else (RESIDENT,))
    ]
    for name in names("system"):
        if _precision_of(name) != PLAIN:
            found.append((f"system={name}",))
            continue
        for precision in precisions:
            if precision not in whole:
                found.append((f"system={name}", f"precision={precision}"))
    return found


def _precision_of(system: str) -> str:
    """The precision that a system's file chooses."""
    return chosen_by(system, "precision") or PLAIN


def row_of(words: Sequence[str], found: Trial) -> Row:
    """The row of a trial."""
    summary, labels = found.summary, labels_in(found.summary)
    calibration = summary["calibration"]
    kind = BOUND if not labels.is_system else LOSSY if labels.lossy else LOSSLESS
    slots = summary["budget"]["slots"]
    lost = lost_of(summary)
    return Row(
        words[0].partition("=")[2],
        str(next(iter(slots))),
        tuple(words),
        kind,
        held_share(summary["budget"]),
        tokens_per_s(found),
        _pair(summary["ci95"]["decode_tokens_per_s"]),
        float(summary["ttft_s"]["mean"]),
        _pair(summary["ci95"]["ttft_s"]),
        sum(summary["stall_s"].values()) / summary["makespan_s"],
        lost or (labels.lossy or "nothing").removeprefix("lossy (").removesuffix(")"),
        labels,
        with_machine=_pair((calibration.get("ci95") or {}).get("decode_tokens_per_s")),
        errors=whose(calibration),
        stored_gib=summary["storage_bytes"] / GIB,
    )


def behind_the_fastest(
    rows: Sequence[Row], times: Mapping[tuple[str, ...], Floats]
) -> tuple[Row, ...]:
    """The rows with how far each is behind the fastest of its kind.

    ``times``: by a row's words, the decoding time of each sequence.
    """
    best = {
        kind: fastest_first(row for row in rows if row.kind == kind)[0].words
        for kind in {row.kind for row in rows}
    }
    return tuple(
        replace(
            row,
            behind=None
            if row.words == best[row.kind]
            else paired(times[best[row.kind]], times[row.words]),
        )
        for row in rows
    )


def _pair(interval: Sequence[float] | None) -> tuple[float, float] | None:
    return None if interval is None else (interval[0], interval[1])


def answer(
    run: Run,
    gates: str,
    precisions: Sequence[str],
    target: float | None,
    bench: Bench,
    prompt_tokens: float,
) -> Found:
    """Ask every system, then what would change the answer of the fastest ones.

    ``run`` is any run of the question, not simulated. Raise ValueError where no system can run.
    """
    fits = fits_of(run)
    fitting = [one.precision for one in fits if one.fits]
    whole = [name for name in fitting if name in (*precisions, *fitting[:1])]
    trials, refused = bench.all(systems_at(precisions, whole))
    if not trials:
        raise ValueError(f"no system can run: {refused[0][0]}: {refused[0][1]}")
    shape = run.trace.header.model.name
    rows = tuple(
        replace(row_of(words, found), quality=quality_of(shape, found.summary["system"]))
        for words, found in sorted(trials.items())
    )
    times = {words: decode_time_and_tokens(found)[0] for words, found in trials.items()}
    rows = behind_the_fastest(rows, times)
    asked = [
        [row for row in rows if row.kind != BOUND and f"precision={name}" in row.words]
        for name in precisions
    ]
    was_asked = run.model.stored in whole or any(map(run.model.keeps, precisions))
    machine = run.hardware
    found = Found(
        run.model.name,
        machine.title,
        machine.memory_gib if machine.devices is None else machine.all_memory_bytes / GIB,
        gates,
        prompt_tokens,
        rows,
        tuple(refused),
        fits,
        (),
        (),
        target,
        machine.preset,
        str(error) if (error := error_of(run)) is not None else "",
        tuple(row for some in asked for row in behind_the_fastest(some, times)),
        "" if was_asked else run.model.stored,
        machine.links[-1].name,
        str(of_preset(machine.preset) or ""),
    )
    best = [group[0] for kind in (LOSSLESS, LOSSY) if (group := found.named(kind))]
    if found.left_out:
        best = [*(some[0] for some in found.best_at_asked().values()), *best][:2]
    with ThreadPoolExecutor() as threads:
        changed = [threads.submit(_changes, row, run, bench) for row in best]
        needed = (
            [threads.submit(one, best[0], run, bench, target) for one in (_link, _memory)]
            if target is not None and best and best[0].tokens_per_s < target
            else []
        )
        return replace(
            found,
            changes=tuple(change for one in changed for change in one.result()),
            needs=tuple(need.result() for need in needed),
        )


def _changes(row: Row, run: Run, bench: Bench) -> list[Change]:
    """Twice the link, and each behind it, more memory and RAM, INT4, twice the context, slots that
    shrink with it, fewer bits of keys and values, and drafted tokens (whose layer's experts stay, or
    are offloaded), each alone.
    """
    each = "" if run.hardware.devices is None else " for each GPU"
    wanted = {
        "twice the link's bandwidth": (*row.words, *_link_words(run, 2.0)),
        f"{MORE_GIB} GiB more memory{each}": (*row.words, _memory_word(run, MORE_GIB)),
    }
    for number, link in list(enumerate(run.hardware.links))[1:]:
        wanted[f"twice the bandwidth of {link.name}"] = (*row.words, *_link_words(run, 2.0, number))
    if run.hardware.ram is not None:
        capacity_gib = run.hardware.ram.capacity_gib + MORE_GIB
        wanted[f"{MORE_GIB} GiB more RAM"] = (
            *row.words,
            f"hardware.ram.capacity_gib={capacity_gib:.6g}",
        )
    # Where memory is unified no CPU computes experts, and the host's memory is the device's.
    if run.hardware.cpu is not None and not run.hardware.is_unified:
        rate = run.hardware.cpu.memory_gb_per_s * 2
        wanted["twice the host memory's bandwidth"] = (
            *row.words,
            f"hardware.cpu.memory_gb_per_s={rate:.6g}",
        )
    fewer = "q3_k_m" if row.precision in FILES else "int4"
    is_chosen = any(word.startswith("precision=") for word in row.words)
    if is_chosen and PRECISION_BITS[fewer] < PRECISION_BITS[row.precision]:
        others = [word for word in row.words if not word.startswith("precision=")]
        wanted[f"experts at {fewer}"] = (*others, f"precision={fewer}")
    if (context := run.workload.lengths.context) is not None:
        wanted[f"a context of {2 * context:,} tokens"] = (
            *row.words,
            f"workload.context_tokens={2 * context}",
        )
        wanted[f"letting slots shrink with the context, at {context // 2:,} tokens of it,"] = (
            *row.words,
            f"workload.context_tokens={context // 2}",
            f"workload.kv_allocation={GROWING}",
        )
    if run.model.kv_bits > FEWER_KV_BITS:
        wanted[f"holding keys and values at {FEWER_KV_BITS:g} bits"] = (
            *row.words,
            f"++model.kv_bits={FEWER_KV_BITS:g}",
        )
    if run.workload.batching == "sequential" and not run.workload.speculation.tokens:
        drafting = f"drafting {DRAFTS} tokens a step, as often right as one engine logged,"
        wanted[drafting] = (
            *row.words,
            "workload=mtp_4",
            f"workload.draft_tokens={DRAFTS}",
        )
        wanted[
            f"drafting {DRAFTS} tokens a step with a layer whose experts are offloaded, too,"
        ] = (
            *wanted[drafting],
            f"workload.draft_experts={OFFLOADED}",
        )
    trials, _ = bench.all([row.words, *wanted.values()])
    before = decode_time_and_tokens(trials[row.words])
    held = slots_a_layer(trials[row.words])
    return [
        Change(
            what,
            row.name,
            tokens_per_s(trials[words]),
            paired_rates(decode_time_and_tokens(trials[words]), before),
            held - slots_a_layer(trials[words]),
        )
        for what, words in wanted.items()
        if words in trials and words != row.words
    ]


def _link_words(run: Run, factor: float, number: int = 0) -> tuple[str, ...]:
    link = run.hardware.links[number]
    return with_peak(link, link.peak_gb_per_s * factor, ".6g")


def _memory_word(run: Run, more_gib: float) -> str:
    return f"hardware.memory_gib={run.hardware.memory_gib + more_gib:.6g}"


def _link(row: Row, run: Run, bench: Bench, target: float) -> Need:
    """The bandwidth of the link to the device at which ``row`` reaches the target."""
    measured = run.hardware.measured
    if measured is not None and run.hardware.links[0].name in measured.copy_us:
        return Need("link", None, "another link (this one's times were measured, not computed)")
    low, high = FACTORS
    factor, whose = _first(row, lambda f: _link_words(run, f), bench, target, low, high)
    peak = run.hardware.links[0].peak_gb_per_s
    if factor is None:
        told = f"no link of up to {peak * high:.4g} GB/s{whose}"
    else:
        enough = in_three_digits(peak * factor, is_up=True)
        told = f"a link of {enough:g} GB/s ({factor:.2g}x this one){whose}"
    return Need("link", None if factor is None else peak * factor, told)


def _memory(row: Row, run: Run, bench: Bench, target: float) -> Need:
    """The device memory at which ``row`` reaches the target."""
    memory = run.hardware.memory_gib
    needs = next((one.needs_gib for one in fits_of(run) if one.precision == row.precision), None)
    # Of several devices one may need more than its part.
    count = run.hardware.devices.count if run.hardware.devices else 1
    high = max(memory, (needs or memory) * 1.05 if count == 1 else (needs or 0) / count * 1.5)
    size, whose = _first(
        row, lambda gib: (_memory_word(run, gib - memory),), bench, target, memory, high
    )
    if size is None:
        told = f"no memory of up to {high:.3g} GiB, which holds all experts{whose}"
    else:
        told = f"{in_three_digits(size, is_up=True):g} GiB of memory{whose}"
    return Need("memory", size, told)


def _first(
    row: Row,
    at: Callable[[float], tuple[str, ...]],
    bench: Bench,
    target: float,
    low: float,
    high: float,
) -> tuple[float | None, str]:
    """The least value at which ``row`` reaches the target, or else `RESIDENT` at its precision, and
    whose value it is, in words. None where neither does.

    The fastest system here need not be the one that gains by more: one that computes on the CPU
    stays as slow as the CPU.
    """
    precision = [one for one in row.words if one.startswith("precision=")]
    resident = (f"system={RESIDENT}", *precision)
    others = [resident] if precision and row.words != resident else []
    for words in (row.words, *others):

        def speed(value: float, words: tuple[str, ...] = words) -> float:
            return tokens_per_s(bench.ask((*words, *at(value))).result())

        if (found := _least(speed, target, low, high)) is not None:
            system = row.system if words == row.words else RESIDENT
            return found, f" with {system} at {row.precision}"
    return None, f" with {row.name}" + (f" or {RESIDENT}" if others else "")


def _least(speed: Callable[[float], float], target: float, low: float, high: float) -> float | None:
    """The least value at which ``speed`` reaches the target, to `CLOSE`; None if none does."""
    if speed(low) >= target:
        return low
    if speed(high) < target:
        return None
    while high / low > 1 + CLOSE:
        middle = (low * high) ** 0.5
        if speed(middle) >= target:
            high = middle
        else:
            low = middle
    return high
