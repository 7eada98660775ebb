"""``python -m sim.export model=NAME machine=NAME``: what other programs need of a simulated machine.

By default it is the flags with which llama.cpp serves a model fastest, as far as the simulator
knows. With ``to=dynamo`` it is a node's step times and requests, for a simulator of many nodes.

Layers of experts on the CPU (``--n-cpu-moe``, ``-ot``) and a GPU cache of experts
(``--moe-cache-mib``) are searched for one context; with ``gpus=N`` how layers are split (``-ts``),
too. What is printed after ``run with`` repeats the fastest run.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from shlex import join, quote

from rich.console import Console

from sim.answers.ask_gates import asked, dense_told
from sim.answers.engine_flags import STATE_BITS, Flags
from sim.answers.export import Search, exported
from sim.answers.export_words import sentence, table_of
from sim.answers.serving import profiled, requests_of, written
from sim.answers.serving_words import points_of, replay_command, told_of
from sim.machine.precision import in_four_bits
from sim.process.files import write_json
from sim.process.interrupts import telling
from sim.process.orphans import leave_with_parent, naming_killed_workers
from sim.process.printing import print_text
from sim.process.progress import Shown
from sim.results.folders import folder_for, own_folder
from sim.study.trials import Trial, prepared, trial
from sim.verbs.table import verb_of
from sim.verbs.words import Words, read

WORKERS = 2
DYNAMO, OF_DYNAMO = "dynamo", ("system", "batches")
SYSTEM, BATCHES = "lru", "1,2,4"


@telling("nothing was written")
def main(arguments: Sequence[str]) -> int:
    """Exit status: 0; 2 with one message where nothing can be exported, and nothing left."""
    console = Console()
    try:
        words = read(verb_of("export"), arguments)
        name = f"export_{words.own['model']}_{words.own['machine']}"
        place = folder_for(words.own, Path("outputs") / name)
        with own_folder(place, overwrite=words.own.get("overwrite") == "yes"):
            if words.own.get("to") == DYNAMO:
                _hand_over(words, place, console)
                return 0
            if mine := [f"{key}=" for key in OF_DYNAMO if key in words.own]:
                raise ValueError(f"{mine[0]} is of to={DYNAMO}; leave it out, or add to={DYNAMO}")
            given, source = _given(words)
            found = _search(words, given)
            text = sentence(found, words.own["model"], words.own["machine"], source)
            _write(place, found, text, given)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    console.print(table_of(found))
    for line, why in found.refused.items():
        print_text(console, f"left out {line.line()}: {why}")
    print_text(console, text)
    told = _repeated(found, given)
    print_text(console, f"run with: {told}")
    print_text(console, f"files: {place}")
    return 0


def _given(words: Words) -> tuple[list[str], str]:
    """The overrides of every run but its flags, and what is told of the gates and dense weights."""
    common, gates, model = asked(words)
    said = [word for word in words.overrides if word.startswith("precision=")]
    precision = said[-1].partition("=")[2] if said else in_four_bits(str(model.stored))
    if int(words.own.get("gpus", "1")) > 1:
        common = [*common, f"hardware.devices.state_bits={STATE_BITS}"]
    told = f"{gates.told}; {dense_told(common, [precision])}"
    return [*common, *([] if said else [f"precision={precision}"])], told


def _hand_over(words: Words, place: Path, console: Console) -> None:
    """Write a node's step times and requests for ai-dynamo's replay, and tell how to run it."""
    if others := [f"{key}=" for key in ("gpus", "kv") if key in words.own]:
        raise ValueError(f"{others[0]} is of llama.cpp's flags; leave it out with to={DYNAMO}")
    given, source = _given(words)
    given = [*given, f"system={words.own.get('system', SYSTEM)}"]
    batches = [int(text) for text in words.own.get("batches", BATCHES).split(",")]
    context = int(words.own.get("context", "4096"))
    run = prepared([*given, "budget=fit"])
    size = int(run.config["workload"].get("block_tokens", 512))
    with _trying("simulating steps") as simulate:
        found = profiled(given, batches, context, simulate)
    written(place, found, requests_of(run, size))
    text = told_of(found, words.own["model"], words.own["machine"], source)
    content = {
        "answer": text,
        "labels": found.labels.row(),
        "points": list(map(asdict, found.points)),
    }
    write_json(place / "answer.json", content)
    console.print(points_of(found))
    print_text(console, text)
    command = replay_command(size)
    print_text(console, f"run there: {command}")
    print_text(console, f"files: {place}")


def _search(words: Words, given: Sequence[str]) -> Search:
    kind = words.own.get("kv", "f16")
    base = Flags(int(words.own.get("context", "4096")), keys=kind, values=kind)
    with _trying("trying flags") as simulate:
        return exported(base, given, simulate, int(words.own.get("gpus", "1")))


@contextmanager
def _trying(what: str) -> Iterator[Callable[[Sequence[str]], Future[Trial]]]:
    """Simulate trials in processes of their own, and show how many are done."""
    context = multiprocessing.get_context("spawn")
    with (
        naming_killed_workers("nothing was written; give the same words again"),
        ProcessPoolExecutor(WORKERS, context, leave_with_parent) as pool,
        Shown() as bar,
    ):
        task = bar.add_task(what, total=None)

        def simulate(words: Sequence[str]) -> Future[Trial]:
            future = pool.submit(trial, tuple(words))
            future.add_done_callback(lambda _: bar.advance(task))
            return future

        try:
            yield simulate
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _repeated(found: Search, given: Sequence[str]) -> str:
    """The command that repeats the fastest run."""
    flags = quote(found.best()[0].flags.line())
    return f"moelab run flags={flags} {join(given)}"


def _write(place: Path, found: Search, text: str, given: Sequence[str]) -> None:
    """Write ``flags.txt``, the line alone, and ``answer.json``."""
    best = found.best()
    (place / "flags.txt").write_text(best[0].flags.line() + "\n", encoding="utf-8")
    rows = [{**asdict(row), "labels": row.labels.row(), "line": row.flags.line()} for row in best]
    content = {"answer": text, "run": _repeated(found, given), "lines": rows}
    write_json(place / "answer.json", content)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
