"""The questions of `sim.whatif`: what each varies, and how to find where it turns.

Where simple arithmetic gives the turning point, too, a question has a closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from sim.answers import closed_forms
from sim.answers.link_words import with_peak
from sim.answers.whatif import BreakEven
from sim.machine.precision import PRECISION_BITS
from sim.results.run import Run
from sim.results.stalls import NOTHING_TO_DO
from sim.setup.run_memory import rooms_for_kv
from sim.study.trials import Trial, prepared, tokens_per_s
from sim.workload.speculation import OFFLOADED, ON_DEVICE


@dataclass(frozen=True)
class Question:
    """One question.

    - ``words`` gives the overrides of each series for a value. Other series are compared with the
      last one. With ``is_apart`` a series that cannot run leaves the others.
    - ``base`` are overrides that hold unless their sections are given. Where one has given way,
      ``instead`` has what holds there unless that key is given, too.
    - ``difference`` of a value's trials, by series, changes its sign at the turning point ``what``.
    - ``told`` says what that means, in three texts: it turns at a value; it has not turned at the
      highest; it has turned at the lowest already.
    - ``most``: the largest value that can be.
    - ``span``: where to search for the turning point; None for the range of ``values``.
    - ``closed_form`` gives the turning point by arithmetic, from the trials at a value.
    - ``arithmetic`` answers where nothing is searched for, from the overrides, their run and the
      values that ran.
    - ``is_discrete``: there is nothing between two values. ``is_whole``: only whole numbers are.
    - ``always`` are values that are asked for beside those that are given.
    - ``needs`` says what a ``{target}`` asks for, in three texts: a ``{value}``; it is reached
      everywhere from ``{low}`` to ``{high}``; it is reached nowhere. ``amount`` says a value of it,
      with its unit.
    """

    axis: str
    values: tuple[float, ...]
    words: Callable[[float, Run], Mapping[str, tuple[str, ...]]]
    difference: Callable[[Mapping[str, Trial]], float] | None
    what: str
    told: tuple[str, str, str]
    is_log: bool = False
    most: float = inf
    span: tuple[float, float] | None = None
    closed_form: Callable[[Run, Mapping[str, Trial], float], float | None] = lambda run, at, value: (
        None
    )
    arithmetic: Callable[[Sequence[str], Run, Sequence[float]], BreakEven | None] | None = None
    is_discrete: bool = False
    is_whole: bool = False
    is_apart: bool = False
    base: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()
    always: tuple[float, ...] = ()
    amount: str = "{:.3g}"
    needs: tuple[str, str, str] = (
        "{target} tokens/s need {value}",
        "{target} tokens/s are reached from {low} on",
        "nothing up to {high} gives {target} tokens/s",
    )


def of_run(question: Question, run: Run) -> Question:
    """The question in words that say which of a machine's links is asked about, where there are
    several; and that a wait for requests is none, where these arrive over time.
    """
    question = _of_links(question, run)
    if question.difference is not _waits_more or not run.workload.is_timed:
        return question
    told = tuple(f"{text} (waiting for requests aside)" for text in question.told)
    return replace(question, told=told)  # type: ignore[arg-type]


def _of_links(question: Question, run: Run) -> Question:
    links = [link.name for link in run.hardware.links]
    if question is not QUESTIONS["link"] or not links[1:]:
        return question
    name = links[0]
    return replace(
        question,
        axis=f"peak bandwidth of {name}, {', '.join(links[1:])} as it is (GB/s)",
        told=tuple(text.replace("GB/s", f"GB/s of {name}") for text in question.told),  # type: ignore[arg-type]
        amount=f"{name} at {{:.3g}} GB/s (peak)",
    )


def waiting_s(summary: Mapping[str, Any]) -> float:
    """How long the stream waits, in seconds. With nothing to do it waits for nothing that memory or
    a link could bring.
    """
    return float(sum({**summary["stall_s"], NOTHING_TO_DO: 0.0}.values()))


def waiting_share(summary: Mapping[str, Any]) -> float:
    """The share of the time with something to do in which the stream waits."""
    busy_s = summary["makespan_s"] - summary["stall_s"].get(NOTHING_TO_DO, 0.0)
    return float(waiting_s(summary) / busy_s)


def _waits_more(at: Mapping[str, Trial]) -> float:
    """Waiting time less computing time, in seconds."""
    (one,) = at.values()
    return waiting_s(one.summary) - float(one.summary["compute_busy_s"])


def _first_is_slower(at: Mapping[str, Trial]) -> float:
    """How much slower the first series decodes than the second, in tokens/s."""
    first, second = (tokens_per_s(one) for one in at.values())
    return second - first


def held_bits(run: Run) -> float:
    """The bits a weight at which the run's slots hold an expert of its highest precision."""
    geometry = run.controller.geometry
    return geometry.bits[0] * geometry.slot_sizes[0] / geometry.variant_bytes[0]


def of_share(share: float) -> tuple[str, ...]:
    """The words of a budget of this share."""
    return f"budget.resident_share={share!r}", OWN_SHARE


def _at_bits(bits: float, run: Run) -> Mapping[str, tuple[str, ...]]:
    name = next((name for name in PRECISIONS if PRECISION_BITS[name] == bits), None)
    if name is None:
        known = ", ".join(f"{PRECISION_BITS[name]:g}" for name in reversed(PRECISIONS))
        raise ValueError(f"values={bits:g}: no precision here has so many bits; there are {known}")
    full = held_bits(run)
    share = min(1.0, run.resident_share * full / PRECISION_BITS[name])
    return {name: (f"precision={name}", *of_share(share))}


def _all_fit(words: Sequence[str], run: Run, ran: Sequence[float]) -> BreakEven | None:
    """The most bits a weight at which all experts are resident in the run's bytes for them. None
    where the cache keeps few of them, however many there is room for.
    """
    slots, geometry = run.controller.slots, run.controller.geometry
    # Pools hold whole slots, and some only whole layers: so much is left of any budget.
    rounded = max(geometry.sites, geometry.experts) * geometry.slot_sizes[0]
    if geometry.capacity_bytes - sum(slots.capacity_bytes) > rounded:
        return None
    bits = run.resident_share * held_bits(run)
    told = f"in these bytes all experts are resident at up to {bits:.3g} bits a weight"
    return BreakEven("all resident", bits, ran[0], ran[-1], bits, told)


def _kv_bits(run: Run) -> list[float]:
    """The bits at which keys and values are asked about, the model's own last."""
    own = run.model.kv_bits
    return [*(bits for bits in KV_BITS if bits < own), own]


def _at_context(tokens: float, run: Run) -> Mapping[str, tuple[str, ...]]:
    return {
        f"{bits:g} bits": (
            f"workload.context_tokens={round(tokens)}",
            f"++model.kv_bits={bits:g}",
        )
        for bits in _kv_bits(run)
    }


def once_allocated(question: Question, shares: Mapping[str, float]) -> Question:
    """A question about contexts whose series have these shares of the experts at each of them."""

    def words(value: float, run: Run) -> Mapping[str, tuple[str, ...]]:
        asked = question.words(value, run)
        return {name: (*asked[name], f"budget.resident_share={shares[name]!r}") for name in shares}

    return replace(question, words=words, base=())


def _kv_fills(words: Sequence[str], run: Run, ran: Sequence[float]) -> BreakEven:
    """The context whose keys and values, at the model's own bits, fill what memory slots leave. Of
    several devices it is the first one that is full.
    """
    context = round(ran[0])
    at_first = prepared([*words, f"workload.context_tokens={context}"])
    sequences = at_first.ledger.kv_bytes // run.model.kv_bytes(context)
    rooms, geometry = rooms_for_kv(at_first), run.controller.geometry

    def fills_at(bits: float) -> float:
        model = replace(run.model, kv_bits=bits)
        return min(
            tokens_that_fill(
                room.bytes * room.parts / sequences, model.kv_bytes_by_window(room.sites)
            )
            for room in rooms
        )

    *fewer, (_, fills) = ((bits, fills_at(bits)) for bits in _kv_bits(run))
    taken = run.model.kv_bytes(context + 1024) - run.model.kv_bytes(context)
    slots = sequences * taken / max(geometry.slot_sizes) / geometry.sites
    each = f" of each of {sequences} sequences" if sequences > 1 else ""
    told = (
        f"1,024 more tokens of context{each} take as many bytes as {slots:.3g} slots a layer; keys"
        f" and values alone fill the memory at {fills:,.0f} tokens"
    )
    less = ", ".join(f"{tokens:,.0f} at {bits:g} bits" for bits, tokens in reversed(fewer))
    told += f" ({less})" if less else ""
    return BreakEven("memory is full", fills, ran[0], ran[-1], fills, told)


def tokens_that_fill(room_bytes: float, by_window: Mapping[int, int]) -> float:
    """How many tokens a sequence has whose keys and values take so many bytes.

    ``by_window``: the bytes of a token in the layers with each window. Infinite where every layer
    has one, and all of them are full before.
    """
    each_bytes, full_bytes = sum(by_window.values()), 0
    for window in sorted(filter(None, by_window)):
        if room_bytes <= full_bytes + each_bytes * window:
            break
        each_bytes -= by_window[window]
        full_bytes += by_window[window] * window
    return (room_bytes - full_bytes) / each_bytes if each_bytes else inf


def _at_drafts(tokens: float, run: Run) -> Mapping[str, tuple[str, ...]]:
    layers = run.config["workload"].get("draft_layers") or 1
    asked = f"workload.draft_tokens={tokens:g}", f"workload.draft_layers={layers}"
    return {
        name: (*asked, f"workload.draft_experts={where}")
        for name, where in ((DRAFTS_MOVE, OFFLOADED), (DRAFTS_STAY, ON_DEVICE))
    }


def _drafts_pay(words: Sequence[str], run: Run, ran: Sequence[float]) -> BreakEven:
    """How much longer than without drafts a step may take that checks the most of them."""
    most = round(ran[-1])
    given = replace(run.workload.speculation, tokens=most).expected_tokens
    told = (
        f"a step with {most} drafts gives {given:.3g} tokens in the mean, so they pay while it takes less than"
        f" {given:.3g} times as long as one without"
    )
    return BreakEven("drafts pay", None, ran[0], ran[-1], given, told)


DRAFTS_MOVE, DRAFTS_STAY = "offloaded", "on device"
DRAFTS = "drafted tokens a step"
KV_BITS = (4.5, 8.5)
"""llama.cpp's q4_0 and q8_0: 32 numbers in 18 and in 34 bytes (ggml, ``block_q4_0``)."""
CONTEXT = "tokens of context"
FIT_BUDGET = "budget=fit"
OWN_SHARE = "budget.slots_gib=null"
"""Makes the budget a share, because the question varies it, even if the run's was in GiB."""
OF_BUDGET = ("memory", "bits")
"""The questions that vary the budget's share."""
PRECISIONS = ("fp16", "int8", "int4", "int2")
QUESTIONS: dict[str, Question] = {
    "memory": Question(
        "share of the expert bytes resident",
        (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
        lambda value, run: {"decode": of_share(value)},
        _waits_more,
        "waiting equals computing",
        (
            "from {} of the expert bytes resident on it computes longer than it waits",
            "it waits longer than it computes even at {}",
            "it computes longer than it waits even at {}",
        ),
        amount="{:.3g} of the expert bytes resident",
        most=1.0,
    ),
    "link": Question(
        "peak bandwidth of the link (GB/s)",
        (4, 8, 16, 31.5, 63, 126, 252, 504),
        lambda value, run: {"decode": with_peak(run.hardware.links[0], value)},
        _waits_more,
        "waiting equals computing",
        (
            "from {} GB/s on it computes longer than it waits",
            "it waits longer than it computes even at {} GB/s",
            "it computes longer than it waits even at {} GB/s",
        ),
        is_log=True,
        span=(1.0, 20_000.0),
        closed_form=closed_forms.of_link,
        amount="a link of {:.3g} GB/s (peak)",
    ),
    "predictor": Question(
        "precision of the forecasts",
        (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
        lambda value, run: {
            "prefetching": ("predictor=stated_accuracy", f"predictor.precision={value!r}"),
            "on demand": ("predictor=none",),
        },
        _first_is_slower,
        "a prefetch begins to pay",
        (
            "a prefetch pays from a precision of {} on",
            "no precision up to {} makes a prefetch pay",
            "a prefetch pays even at a precision of {}",
        ),
        amount="forecasts of a precision of {:.3g}",
        most=1.0,
    ),
    "cpu": Question(
        "bandwidth of the host's memory (GB/s)",
        (12.5, 25, 50, 100, 200, 400, 800),
        lambda value, run: {
            "computed by the CPU": (
                "placement=absent_on_cpu",
                f"hardware.cpu.memory_gb_per_s={value!r}",
            ),
            "loaded": ("placement=load", f"hardware.cpu.memory_gb_per_s={value!r}"),
        },
        _first_is_slower,
        "the CPU is as fast as loading",
        (
            "the CPU is faster than loading from {} GB/s of host memory on",
            "loading is faster even at {} GB/s",
            "the CPU is faster even at {} GB/s",
        ),
        is_log=True,
        span=(1.0, 2000.0),
        closed_form=closed_forms.of_cpu,
        amount="host memory of {:.3g} GB/s",
    ),
    "bits": Question(
        "bits of a weight",
        tuple(PRECISION_BITS[p] for p in reversed(PRECISIONS)),
        _at_bits,
        None,
        "",
        ("", "", ""),
        arithmetic=_all_fit,
        is_discrete=True,
    ),
    "kv": Question(
        CONTEXT,
        (2048, 4096, 8192, 16384, 32768, 65536, 131072),
        _at_context,
        None,
        "",
        ("", "", ""),
        is_log=True,
        arithmetic=_kv_fills,
        is_whole=True,
        is_apart=True,
        base=(FIT_BUDGET,),
        amount="{:,.0f} tokens of context",
        needs=(
            "{target} tokens/s allow at most {value}",
            "{target} tokens/s are reached up to {high}",
            "not even {low} gives {target} tokens/s",
        ),
    ),
    "drafts": Question(
        DRAFTS,
        (0, 1, 2, 3, 4),
        _at_drafts,
        None,
        "",
        ("", "", ""),
        arithmetic=_drafts_pay,
        is_discrete=True,
        is_apart=True,
        base=(FIT_BUDGET, "workload=mtp_4"),
        # Another workload asks for no drafts, and would refuse what words say of them.
        instead=("workload.draft_tokens=0",),
        always=(0,),
    ),
}
