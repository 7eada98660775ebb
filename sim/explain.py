"""``python -m sim.explain``: say why an expert was there, or was not, when a gate asked for it.

    python -m sim.explain RUN layer=3 expert=5 step=40

RUN is the output directory of ``python -m sim``. ``layer`` is the layer's number in the model,
dense layers counted, as in the trace's header; ``site=`` gives the number among the MoE layers
instead. ``step`` is that of the tables ``lookups`` and ``tokens``.

The answer says, as far as the run's files and the trace tell,

- the outcome of the lookup;
- when the expert was last there, and when, for which key and why it was evicted;
- whether it was prefetched and what became of that, or why it was not.

The exit status is 0, or 2 with one message where the run or the lookup does not exist.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from sim.answers.explain_names import Names, ms
from sim.answers.explain_prefetches import prefetch_story
from sim.answers.explain_residency import residency_story
from sim.answers.lookahead_ranks import forecasts
from sim.results.labels import told
from sim.results.run_log import RunLog
from sim.setup.traces import load_trace, trace_directory
from sim.traces.trace import Trace, read_header, trace_sha256
from sim.verbs.table import verb_of
from sim.verbs.words import read

LARGEST = 10**9
USAGE = "moelab explain RUN layer=3 expert=5 step=40 (or site=3)"


@dataclass(frozen=True)
class Question:
    """An expert of a site in a step."""

    step: int
    site: int
    expert: int


class Explained:
    """A run, and the trace that it replayed if that is still where the run found it."""

    def __init__(self, run: RunLog) -> None:
        self.run = run

    @cached_property
    def trace(self) -> Trace | None:
        path = str(self.run.choice("trace", "path"))
        try:
            # Results are read elsewhere, too, where another trace may lie at the same relative path.
            if (
                trace_sha256(read_header(trace_directory(path)))
                != self.run.summary["trace"]["sha256"]
            ):
                return None
            return load_trace(path, lookahead_sites=1)
        except (ValueError, OSError):
            return None

    @cached_property
    def layers(self) -> Sequence[int] | None:
        """The layer of each site; None without the trace."""
        return None if self.trace is None else [site.layer for site in self.trace.header.sites]

    def site_of(self, layer: int) -> int:
        """The site of a layer; raise ValueError if it has none, or without the trace."""
        if self.layers is None:
            raise ValueError(
                f"layer={layer}: the trace that it replayed is not at {self.run.choice('trace', 'path')}"
                f" (any more), which tells layers from sites; give site= instead (0 to {self.run.sites - 1})"
            )
        if layer not in self.layers:
            raise ValueError(
                f"layer={layer} has no experts; layers with experts:"
                f" {', '.join(map(str, self.layers))}"
            )
        return self.layers.index(layer)

    def explain(self, asked: Question) -> list[str]:
        """The explanation, in paragraphs of a few sentences.

        Raise ValueError where the run has no such step, site, expert or lookup.
        """
        row = self._lookup(asked)
        run, names = self.run, Names(self.run, self.layers)
        key = int(row["key"]) if row["key"] >= 0 else asked.site * run.units + asked.expert
        foreseen = None
        if self.trace is not None:
            own = asked.site < run.own_sites
            foreseen = (
                forecasts(run, self.trace, asked.step, asked.site, asked.expert) if own else []
            )
        return [
            self._outcome(asked, row, names),
            *residency_story(run, names, key, row),
            *prefetch_story(run, names, key, row, foreseen),
        ]

    def _outcome(self, asked: Question, row: dict[str, Any], names: Names) -> str:
        run = self.run
        tokens = run.tokens.filter(pl.col("step") == asked.step)
        of = [
            f"sequence {s} position {p}"
            for s, p in tokens.select("sequence", "position").iter_rows()
        ]
        whose = f"{', '.join(of[:3])}{' ..' if len(of) > 3 else ''}"
        wanted, served = row["wanted"] or "a skip", row["served"] or "nothing"
        at = f"at {ms(row['gate_ns'])}, tick {row['tick']}"
        waited = row["ready_ns"] - row["gate_ns"]
        parts = [
            f"Step {asked.step} ({row['phase']}; {whose}), {names.site(asked.site)}, expert"
            f" {asked.expert}: {row['outcome'].upper()} {at}, for {row['tokens']}"
            f" token{'s' if row['tokens'] > 1 else ''}; {wanted} was wanted, {served} served."
        ]
        if row["outcome"] != "skip" and row["key"] % run.units != asked.expert:
            parts.append(
                f"{run.mechanism('precision')} sent it to expert {row['key'] % run.units}."
            )
        if row["outcome"] in ("late", "promoted", "miss"):
            parts.append(f"It was there {ms(waited)} later.")
        elif row["outcome"] == "cpu":
            parts.append(
                f"The CPU computed it ({run.mechanism('placement')}), done {ms(waited)} later."
            )
        elif row["outcome"] == "skip":
            by = run.mechanism("precision") if row["wanted"] is None else run.mechanism("placement")
            parts.append(f"{by} left it out: it was not computed.")
        return " ".join(parts)

    def _lookup(self, asked: Question) -> dict[str, Any]:
        """The row of ``lookups``; raise ValueError, naming what there is, where there is none."""
        run, lookups = self.run, self.run.lookups
        for name, value, count in (
            ("site", asked.site, run.sites),
            ("expert", asked.expert, run.experts),
        ):
            if not 0 <= value < count:
                raise ValueError(
                    f"{name}={value} is not one of this run's {count}; give {name}=0 to {count - 1}"
                )
        of_step = lookups.filter(pl.col("step") == asked.step)
        if not len(of_step):
            steps = lookups["step"].to_list()
            raise ValueError(
                f"step={asked.step} is none of this run's; it has steps {min(steps)} to"
                f" {max(steps)}"
            )
        of_gate = of_step.filter(pl.col("site") == asked.site)
        if not len(of_gate):
            sites = ", ".join(map(str, of_step["site"].unique().sort().to_list()))
            raise ValueError(
                f"step={asked.step} has no gate at site {asked.site}; it visits sites {sites}"
            )
        found = of_gate.filter(pl.col("expert") == asked.expert)
        if not len(found):
            experts = ", ".join(map(str, of_gate["expert"].to_list()))
            raise ValueError(
                f"expert={asked.expert} was not asked for in step={asked.step} at site"
                f" {asked.site}; its needs were experts {experts}"
            )
        return found.row(0, named=True)


def parse(arguments: Sequence[str]) -> tuple[str, dict[str, int]]:
    """The run's directory and the given numbers by key.

    Raise ValueError for the first argument that is wrong.
    """
    found = read(verb_of("explain"), arguments)
    if ("layer" in found.own) == ("site" in found.own):
        raise ValueError(f"give either layer= or site=: {USAGE}")
    for key, text in found.own.items():
        if int(text) > LARGEST:
            raise ValueError(f"{key}={text} must be at most {LARGEST}")
    return found.places[0], {key: int(text) for key, text in found.own.items()}


def main(arguments: Sequence[str]) -> int:
    """Print the explanation; return the exit status that the module's docstring states."""
    try:
        directory, given = parse(arguments)
        explained = Explained(RunLog(directory))
        site = given["site"] if "site" in given else explained.site_of(given["layer"])
        lines = explained.explain(Question(given["step"], site, given["expert"]))
        lines += told([("", explained.run.labels)])
    except ValueError as error:
        print(f"explain: {error}", file=sys.stderr)
        return 2
    for line in lines:
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
