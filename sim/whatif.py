"""``python -m sim.whatif QUESTION``: say how speed depends on one thing, and where that turns.

The things are memory, link, predictor, CPU, bits, context and drafts; ``--help`` explains each.
"""

from __future__ import annotations

import csv
import multiprocessing
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from itertools import chain, count
from pathlib import Path

from rich.console import Console

from sim.answers.breakeven import Crossing, crossing, in_three_digits, knee
from sim.answers.whatif import Answer, BreakEven, Row
from sim.answers.whatif_bench import Bench
from sim.answers.whatif_figure import draw
from sim.answers.whatif_growth import growth_in, growth_table
from sim.answers.whatif_questions import (
    CONTEXT,
    FIT_BUDGET,
    OF_BUDGET,
    QUESTIONS,
    Question,
    of_run,
    of_share,
    waiting_share,
)
from sim.answers.whatif_words import sentence, table_of
from sim.process.files import write_json, writing
from sim.process.interrupts import telling
from sim.process.orphans import leave_with_parent, naming_killed_workers
from sim.process.printing import print_text
from sim.process.progress import Shown
from sim.results.folders import check_writable, forget, locked
from sim.results.labels import labels_in, told
from sim.results.latency import decode_time_and_tokens
from sim.results.paired import paired
from sim.results.run import Run
from sim.setup.configure import group_of
from sim.study.trials import Trial, prepared, slots_a_layer, tokens_per_s
from sim.values.places import is_free
from sim.values.units import GIB
from sim.verbs.table import verb_of
from sim.verbs.words import read

WORKERS = 2
KEPT = "trials"
"""The folder in which finished runs are kept until there is an answer."""
FILES = ("table.csv", "answer.json", "figure.png", "figure.svg")
RECALL = 0.9
"""The recall of the predictor that is asked about, unless predictor.recall is given."""


def answer(
    name: str,
    words: Sequence[str],
    values: Sequence[float],
    pool: Executor,
    tell: Callable[[], None] = lambda: None,
    directory: Path | None = None,
    target: float | None = None,
) -> Answer:
    """Simulate every value, and find by bisection where the answer turns, and what ``target``
    tokens a second need.

    Every run is kept in ``directory`` as soon as it is done; runs that are there are not repeated.
    ``tell`` is called after each. Raise ValueError if no value can run.
    """
    question, own = QUESTIONS[name], []
    if name == "predictor":
        own = [word for word in words if word.startswith("predictor.")]
        words = [word for word in words if word not in own]
        if not any(word.startswith("predictor.recall=") for word in own):
            own.append(f"predictor.recall={RECALL}")
    words = _on_base(question, words)
    run = _base_run(name, words, values)
    if name in OF_BUDGET:
        # Their points say the budget in words that do not go with another choice of it.
        words = [word for word in words if word != FIT_BUDGET]
    question = of_run(question, run)
    bench = Bench(question, words, own, run, pool, tell, directory)
    found, refused = bench.at(values)
    if not found:
        raise ValueError(f"none of the values can run: {refused[0]}")
    ran = sorted(found)
    growth = growth_in(bench, words, found) if question.axis == CONTEXT else ()
    names = [*question.words(ran[0], run)]
    against, asked = names[-1], names[-1 if question.is_apart else 0]
    rows = [row for value, series in found.items() for row in _rows(value, series, against)]
    even = (
        question.arithmetic(words, run, ran)
        if question.arithmetic
        else _break_even(question, run, bench, ran, found)
    )
    speeds = [next(row.tokens_per_s for row in rows if row.value == value) for value in ran]
    at = knee(ran, speeds) if name == "memory" else None
    labels = tuple(
        (name, labels_in(one.summary)) for value in ran for name, one in found[value].items()
    )
    return Answer(
        name,
        question.axis,
        tuple(rows),
        even,
        None if at is None else ran[at],
        tuple(refused),
        labels,
        question.is_log,
        None if target is None else _needed(question, target, bench, found, asked),
        run.model.top_k,
        _about(run),
        growth,
    )


def _base_run(name: str, words: Sequence[str], values: Sequence[float]) -> Run:
    """The run before the question varies a thing. Raise ValueError where it cannot run.

    That its own share does not fit does not matter to a question that replaces it: then it is the
    run of the first value that does.
    """
    try:
        return prepared(words)
    except ValueError:
        if name != "memory":
            raise
        for value in values:
            with suppress(ValueError):
                return prepared([*words, *of_share(value)])
        raise


def _about(run: Run) -> str:
    """Model, machine, precisions and slots, before the question varies one of them."""
    precisions = ", ".join(run.controller.geometry.precisions)
    slots = f"{run.ledger.slot_bytes / GIB:.3g} GiB of slots"
    # A cache may leave most of its budget unused.
    held = sum(run.controller.slots.capacity_bytes) / run.controller.geometry.capacity_bytes
    share = f"{100 * run.resident_share * held:.3g} % of the expert bytes"
    return (
        f"{run.model.name} on {run.hardware.title}, experts at {precisions}, {slots} ({share}),"
        " unless varied"
    )


def _on_base(question: Question, words: Sequence[str]) -> list[str]:
    """``words`` after those of the question's own that they do not replace: any word about the budget
    replaces its budget, and another choice of a group its choice.
    """
    given = {word.partition("=")[0] for word in words} | {
        "budget" for word in words if group_of(word) == "budget"
    }
    kept = [word for word in question.base if group_of(word) not in given]
    instead = [
        word
        for word in question.instead
        if group_of(word) in given and word.partition("=")[0] not in given
    ]
    return [*kept, *instead, *words]


def _rows(value: float, series: Mapping[str, Trial], against: str) -> Iterable[Row]:
    """The rows of a value; ``against`` is the series that others are compared with."""
    for name, one in series.items():
        summary = one.summary
        faster = None
        if name != against and against in series:
            last = decode_time_and_tokens(series[against])[0]
            faster = paired(decode_time_and_tokens(one)[0], last)
        yield Row(
            value,
            name,
            tokens_per_s(one),
            summary["ci95"]["decode_tokens_per_s"],
            waiting_share(summary),
            summary["hit_ratio"],
            faster.speedup if faster else None,
            faster.interval if faster else None,
            slots_a_layer(one),
        )


def _break_even(
    question: Question,
    run: Run,
    bench: Bench,
    ran: Sequence[float],
    found: Mapping[float, Mapping[str, Trial]],
) -> BreakEven:
    assert question.difference is not None
    measure = question.difference

    def difference(value: float) -> float:
        at, refused = bench.at([value])
        if refused:
            raise ValueError(refused[0])
        return measure(at[value])

    cross: Crossing = crossing(difference, *(question.span or (ran[0], ran[-1])))
    closed = question.closed_form(run, found[ran[0]], ran[0])
    turned, above, below = question.told
    if cross.value is not None:
        told = turned.format(f"{cross.value:.3g}")
    else:
        told = above.format(f"{cross.high:g}") if cross.sign > 0 else below.format(f"{cross.low:g}")
    if closed is not None:
        told += f" (closed form: {closed:.4g})"
    return BreakEven(question.what, cross.value, cross.low, cross.high, closed, told)


def _needed(
    question: Question,
    target: float,
    bench: Bench,
    found: Mapping[float, Mapping[str, Trial]],
    name: str,
) -> BreakEven:
    """The value at which the series ``name`` decodes ``target`` tokens a second: of the last two of
    the search the one that does. What is told is rounded to the side that does. Where each value has
    a series of its own, it is that.
    """

    def speed(at: Mapping[str, Trial]) -> float:
        one = next(iter(at.values())) if question.is_discrete else at[name]
        return tokens_per_s(one)

    def over(value: float) -> float:
        at, refused = bench.at([value], name)
        if name not in at.get(value, {}):
            raise ValueError(refused[0])
        return speed(at[value]) - target

    ran = sorted(value for value in found if question.is_discrete or name in found[value])
    if not ran:
        return BreakEven("target", None, 0, 0, None, f"no point of {name} can run")
    low, high = ran[0], ran[-1]
    if question.is_discrete or low == high:
        # Of precisions there is nothing between two points.
        enough = [value for value in ran if speed(found[value]) >= target]
        told = (
            f"{target:g} tokens/s are reached at {', '.join(f'{value:g}' for value in enough)}"
            if enough
            else f"no point reaches {target:g} tokens/s"
            if len(ran) > 1
            else f"{question.amount.format(ran[0])}, the one point that ran, gives"
            f" {speed(found[low]):.3g} of {target:g} tokens/s; name several in values= to learn what"
            " they need"
        )
        return BreakEven("target", enough[-1] if enough else None, low, high, None, told)
    cross: Crossing = crossing(over, low, high)
    turned, above, below = question.needs
    text = turned if cross.value is not None else above if cross.sign > 0 else below
    amount = question.amount.format
    is_above = speed(found[high]) >= target
    value = None if cross.value is None else cross.high if is_above else cross.low
    told = text.format(
        target=f"{target:g}",
        value=amount(
            in_three_digits(value or 0, is_above) if not question.is_whole else value or 0
        ),
        low=amount(cross.low),
        high=amount(cross.high),
    )
    return BreakEven("target", value, cross.low, cross.high, None, told)


@telling("what is done is kept: the same words go on from there")
def main(arguments: Sequence[str]) -> int:
    """Answer one question; return the exit code.

    A question that cannot be asked ends with one line and exit code 2, and nothing is written.
    """
    try:
        given = read(verb_of("whatif"), arguments)
        own, words = given.own, given.overrides
        (name,) = given.places
        values = _values(name, own.get("values"))
        target = float(own["target"]) if "target" in own else None
        overwrite = own.get("overwrite") == "yes"
        place = Path(own["output_dir"]) if "output_dir" in own else _default_folder(name, overwrite)
        base = [word for word in words if name != "predictor" or not word.startswith("predictor.")]
        system = _base_run(name, _on_base(QUESTIONS[name], base), values).system
        with locked(place), writing(place):
            _check_output(place, overwrite)
            try:
                found = _with_progress(name, words, values, place / KEPT, target)
            finally:
                # An older answer stays until there is a new one.
                if not any((place / KEPT).iterdir()):
                    (place / KEPT).rmdir()
                    forget(place)
            text = sentence(found, system)
            _write(place, found, text, system)
            shutil.rmtree(place / KEPT)  # the runs that were kept for this answer
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _print(found, system, text, place)
    return 0


def _print(found: Answer, system: str, text: str, output_dir: Path) -> None:
    console = Console()
    console.print(table_of(found, system), crop=False)
    if found.growth:
        console.print(growth_table(found.growth))
    for why in found.refused:
        print_text(console, f"left out {why}")
    print_text(console, text)
    print_text(console, f"files: {output_dir}")


def _check_output(directory: Path, overwrite: bool) -> None:
    """Raise OSError unless ``directory`` is empty, or only has what an interrupted call left; with
    ``overwrite`` it may have an older answer.
    """
    names = {path.name for path in directory.iterdir()}
    is_own = names <= {KEPT, *FILES}
    if not (is_own and (KEPT in names or overwrite)):
        check_writable(directory)
    (directory / KEPT).mkdir(exist_ok=True)


def _default_folder(name: str, overwrite: bool) -> Path:
    """The first folder of this question that is free, or has what an interrupted call left."""
    first = Path("outputs") / f"whatif_{name}"
    later = (first.with_name(f"{first.name}-{number}") for number in count(2))
    return next(
        place
        for place in chain([first], later)
        if overwrite or is_free(place) or (place / KEPT).is_dir()
    )


def _values(name: str, text: str | None) -> tuple[float, ...]:
    """The points that were asked for, in order. Raise ValueError where none of them can be."""
    question = QUESTIONS[name]
    if text is None:
        return question.values
    values = tuple(sorted({*question.always, *(float(part) for part in text.split(","))}))
    if values[0] > question.most:
        raise ValueError(f"values={text}: {question.axis} can be {question.most:g} at most")
    return values


def _with_progress(
    name: str,
    words: Sequence[str],
    values: Sequence[float],
    directory: Path,
    target: float | None = None,
) -> Answer:
    # Spawned, because a process that is forked while other threads run may wait forever.
    context = multiprocessing.get_context("spawn")
    with (
        naming_killed_workers("what is done is kept: the same words go on from there"),
        ProcessPoolExecutor(WORKERS, context, leave_with_parent) as pool,
        Shown() as bar,
    ):
        task = bar.add_task(f"what if: {name} ({len(values)} points, then a search)", total=None)
        try:
            return answer(name, words, values, pool, lambda: bar.advance(task), directory, target)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _write(directory: Path, found: Answer, text: str, system: str) -> None:
    with (directory / "table.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*asdict(found.rows[0])])
        writer.writeheader()
        writer.writerows(asdict(row) for row in found.rows)
    content = {"system": system, "answer": text, **asdict(found), "labels": told(found.labels)}
    write_json(directory / "answer.json", content)
    draw(directory, found, system)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
