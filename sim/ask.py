"""``python -m sim.ask model=NAME machine=NAME``: does a model fit, which system is fastest on the
machine, how fast, and what would change that.

Every system of ``conf/system`` is simulated with the budget that fits, at its own precision; those
that change no precision at each of ``precisions``. Gates are recorded ones of the model's shape
where there are any, else synthetic ones. ``docs/ask.md`` says how to read the answer.
"""

from __future__ import annotations

import csv
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from sim.answers.ask import answer
from sim.answers.ask_bench import Bench
from sim.answers.ask_figure import draw
from sim.answers.ask_fits import fit_beside
from sim.answers.ask_gates import asked, dense_told
from sim.answers.ask_parts import Found
from sim.answers.ask_words import paragraph, tables_of, told_of
from sim.machine.precision import in_four_bits
from sim.process.files import write_json
from sim.process.interrupts import is_terminal, telling
from sim.process.orphans import leave_with_parent, naming_killed_workers
from sim.process.printing import print_text
from sim.process.progress import Shown
from sim.results.folders import folder_for, own_folder
from sim.results.run import Run
from sim.study.trials import prepared
from sim.verbs.asking import PATIENCE_S
from sim.verbs.table import verb_of
from sim.verbs.words import Words, read

WORKERS = 2
WIDTH = 150


@telling("nothing was written")
def main(arguments: Sequence[str]) -> int:
    """Exit status: 0; 2 with one message where the question cannot be asked, and nothing left."""
    try:
        words = read(verb_of("ask"), arguments)
        own = words.own
        place = folder_for(own, Path("outputs") / f"ask_{_name(words)}")
        with own_folder(place, overwrite=own.get("overwrite") == "yes"):
            found = _ask(words)
            text = paragraph(found)
            _write(place, found, text)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    console = Console(width=None if is_terminal() else WIDTH)
    console.print(f"{found.model} on {found.machine}, {found.memory_gib:g} GiB", style="bold")
    for table in tables_of(found):
        console.print(table)
    for label in told_of(found):
        print_text(console, label)
    for why, systems in _by_reason(found.refused).items():
        print_text(console, f"left out {', '.join(systems)}: {why}")
    print_text(console, text)
    print_text(console, f"files: {place}")
    return 0


def _by_reason(refused: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """The systems that one reason leaves out, in the order of the first of each reason."""
    found: dict[str, list[str]] = {}
    for system, why in refused:
        found.setdefault(why, []).append(system)
    return found


def _name(words: Words) -> str:
    return f"{words.own['model']}_{words.own['machine']}"


def _ask(words: Words) -> Found:
    """Choose the gates, run every system, and find what would change the answer."""
    own = words.own
    context_tokens = int(own.get("context", "4096"))
    common, gates, model = asked(words, context_tokens)
    common.append("budget=fit")
    stored = str(model.stored or "fp16")
    both = dict.fromkeys((stored, in_four_bits(stored)))
    precisions = own["precisions"].split(",") if "precisions" in own else list(both)
    run = prepared([*common, "system=load_on_demand", f"precision={precisions[0]}"])
    common += _at_the_end_of(context_tokens, run)
    run = prepared([*common, "system=load_on_demand", f"precision={precisions[0]}"])
    told = gates.told
    if gates.is_made and (systems := fit_beside(run.trace, Path(gates.path))):
        told += f"; {', '.join(systems)} are fitted on those of them that nobody is judged on"
    lengths = [one.prompt_tokens for one in run.workload.sequences]
    mean = sum(lengths) / len(lengths)
    context = multiprocessing.get_context("spawn")
    target = float(own["target"]) if "target" in own else None
    with (
        naming_killed_workers("nothing was written; give the same words again"),
        ProcessPoolExecutor(WORKERS, context, leave_with_parent) as pool,
        Shown() as bar,
    ):
        task = bar.add_task("asking every system", total=None)
        try:
            patience = float(own.get("patience", PATIENCE_S))

            def tell() -> None:
                bar.update(task, advance=1, total=bench.begun)

            bench = Bench(common, pool, tell, patience)
            source = f"{told}; {dense_told(common, precisions)}"
            return answer(run, source, precisions, target, bench, mean)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _at_the_end_of(tokens: int, run: Run) -> list[str]:
    """Put every sequence at the end of a context of so many tokens, or of its own length where one
    is longer. A model with an encoder stays as it is: nothing comes before its prompts.
    """
    if run.model.encoder_sites:
        return []
    longest = max(one.prompt_tokens + one.decode_tokens for one in run.workload.sequences)
    return [f"workload.context_tokens={max(tokens, longest)}"]


def _write(place: Path, found: Found, text: str) -> None:
    """Write ``answer.json``, ``answer.txt``, ``table.csv`` and the figure."""
    content = {"answer": text, **found.plain(), "labels": told_of(found)}
    write_json(place / "answer.json", content)
    (place / "answer.txt").write_text(text + "\n", encoding="utf-8")
    with (place / "table.csv").open("w", newline="", encoding="utf-8") as file:
        rows = [
            {
                **{k: v for k, v in asdict(row).items() if k != "labels"},
                "words": " ".join(row.words),
                "quality": "" if row.quality is None else row.quality.text(),
            }
            for row in found.rows
        ]
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    draw(place, found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
