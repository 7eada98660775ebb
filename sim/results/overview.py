"""Many runs as one answer: who is fastest at each budget, lossless or not, and how surely.

Runs are put side by side only where they did the same work on the same model and machine, with as
many bytes for experts. Each such set has one line a run, one sentence, and ratios that are paired
over sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sim.results.intervals import Floats
from sim.results.labels import Labels, labels_in
from sim.results.paired import Paired, paired
from sim.values.units import GIB

Summary = Mapping[str, Any]
LOSSLESS, LOSSY, BOUND = "lossless", "lossy", "a bound"
CONDITIONS = ("budget", "hardware", "model", "system", "trace", "workload", "experiment", "outputs")
"""The sections whose words a set of runs shares, or that a line says otherwise."""
OF_STEPS = (
    "context_tokens",
    "draft_tokens",
    "draft_accepted",
    "draft_seed",
    "draft_layers",
    "draft_experts",
)
"""What a workload says of the tokens before the first, and of those that steps check."""


@dataclass(frozen=True)
class Done:
    """A run that has ended. ``words`` are its overrides; ``decode_ns`` is the time in decode steps
    of each of its sequences, None where it is not known.
    """

    summary: Summary
    words: tuple[str, ...] = ()
    decode_ns: Floats | None = None


@dataclass(frozen=True)
class Refused:
    """A configuration that could not run, and why."""

    words: str
    why: str


@dataclass(frozen=True)
class Line:
    """A run in its set. ``ahead`` is how many times as fast it decodes as the set's best, None of
    that one itself and where the sequences' times are not known.
    """

    name: str
    summary: Summary
    labels: Labels
    ahead: Paired | None

    @property
    def tokens_per_s(self) -> float:
        """0 where nothing is decoded, as in no run of the set."""
        return float(self.summary["decode_tokens_per_s"] or 0)

    @property
    def interval(self) -> tuple[float, float] | None:
        found = self.summary["ci95"]["decode_tokens_per_s"]
        return None if found is None else (float(found[0]), float(found[1]))

    @property
    def waits(self) -> float:
        """The share of the makespan in which the compute stream stands idle."""
        return float(sum(self.summary["stall_s"].values()) / self.summary["makespan_s"])

    @property
    def kind(self) -> str:
        """What the run may be compared with: `LOSSLESS`, `LOSSY`, or a `BOUND` that is no system."""
        return kind_of(self.labels)


def kind_of(labels: Labels) -> str:
    if not labels.is_system:
        return BOUND
    return LOSSY if labels.lossy else LOSSLESS


@dataclass(frozen=True)
class Set:
    """Runs of the same work on one model and machine with the same bytes for experts, fastest
    first.

    ``best`` is the fastest lossless system; without one the fastest system, else the fastest run.
    """

    title: str
    share: float
    gib: float
    lines: tuple[Line, ...]
    best: Line

    @property
    def decodes(self) -> bool:
        """Whether anything is decoded: all runs do the same work."""
        return self.best.tokens_per_s > 0


@dataclass(frozen=True)
class Overview:
    """All sets, and all that was refused."""

    sets: tuple[Set, ...]
    refused: tuple[Refused, ...]

    @property
    def titles(self) -> tuple[str, ...]:
        """What the sets are about, each once."""
        return tuple(dict.fromkeys(one.title for one in self.sets))

    def named(self) -> list[tuple[str, Labels]]:
        """Every run's labels, under its name."""
        return [(line.name, line.labels) for one in self.sets for line in one.lines]


def work_of(summary: Summary) -> dict[str, Any]:
    """The work of a run, by name: what must be equal for runs in one chart."""
    trace, contracts = summary["trace"], summary["contracts"]
    return {
        "number of sequences": trace["sequences"],
        **{
            name: trace.get(key)
            for name, key in (
                ("trace", "name"),
                ("split", "split"),
                ("trace sha256", "sha256"),
                ("sequences", "numbers"),
                ("prompt tokens", "prefill_tokens"),
                ("decode tokens", "decode_tokens"),
            )
        },
        **{
            name: contracts.get(name)
            for name in ("batching", "together", "prefill_chunk", "arrivals", *OF_STEPS)
        },
    }


def overview(runs: Sequence[Done], refused: Sequence[Refused] = ()) -> Overview:
    """Put runs into sets, and compare each set's runs with its best."""
    varied = _varied([run.words for run in runs])
    grouped: dict[tuple[str, float, float], list[tuple[str, Done]]] = {}
    for run, words in zip(runs, varied, strict=True):
        name = " ".join([run.summary["system"], *_own(words, run.summary["system"])])
        budget = run.summary["budget"]
        key = (
            _title(run.summary, words) + "\0" + repr(work_of(run.summary)),
            budget["allowed_bytes"] / GIB,
            budget["resident_share"],
        )
        grouped.setdefault(key, []).append((name, run))
    sets = [
        _set(key[0].partition("\0")[0], key[2], key[1], named) for key, named in grouped.items()
    ]
    order = {title: number for number, title in enumerate(one.title for one in sets)}
    return Overview(
        tuple(sorted(sets, key=lambda one: (order[one.title], one.gib))), tuple(refused)
    )


def _varied(words: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Of each run's words those that not every run has."""
    shared = set.intersection(*map(set, words)) if words else set()
    return [tuple(word for word in own if word not in shared) for own in words]


def _own(words: Sequence[str], system: str) -> list[str]:
    """The words that tell a run from others of its set and are not in its name."""
    return [
        word
        for word in words
        if word.partition("=")[0].lstrip("+~").split(".")[0] not in CONDITIONS
        and word not in system.split()
    ]


def _title(summary: Summary, words: Sequence[str]) -> str:
    """What a set is about: model, machine, trace, workload, and words that change one of them."""
    trace = summary["trace"]
    count = trace["sequences"]
    parts = [
        f"{summary['model']} on {summary['hardware']}",
        f"trace {trace['name']} ({trace['split']}), {count} sequence{'s' * (count != 1)}",
        f"{summary['workload']}",
    ]
    changed = [
        word
        for word in words
        if word.startswith("workload=")
        or (
            "." in word.partition("=")[0]
            and word.partition("=")[0].lstrip("+~").split(".")[0]
            in ("hardware", "model", "workload")
        )
    ]
    return "; ".join([*parts, *changed])


def _set(title: str, share: float, gib: float, named: Sequence[tuple[str, Done]]) -> Set:
    ranked = sorted(named, key=lambda one: (-(one[1].summary["decode_tokens_per_s"] or 0), one[0]))
    order = {LOSSLESS: 0, LOSSY: 1, BOUND: 2}
    best = min(range(len(ranked)), key=lambda at: (order[kind_of(_labels(ranked[at]))], at))
    lines = tuple(
        Line(
            name,
            run.summary,
            labels_in(run.summary),
            None if at == best else _ahead(run, ranked[best][1]),
        )
        for at, (name, run) in enumerate(ranked)
    )
    return Set(title, share, gib, lines, lines[best])


def _labels(named: tuple[str, Done]) -> Labels:
    return labels_in(named[1].summary)


def _ahead(ours: Done, theirs: Done) -> Paired | None:
    if ours.decode_ns is None or theirs.decode_ns is None:
        return None
    if not ours.decode_ns.sum() or not theirs.decode_ns.sum():
        return None
    return paired(ours.decode_ns, theirs.decode_ns)
