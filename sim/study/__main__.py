"""``python -m sim.study name=NAME [launcher=pool] [workers=N] [output_dir=DIR] [retry=yes]
[OVERRIDES...]``

Many runs as one dataset: a grid, a list or a search. ``name``: a file of conf/study, or a path to
one (docs/studies.md). Other words are overrides of every cell, as for ``python -m sim``. The same
words again go on where a study was stopped. Exit status: 0, 2 for what cannot be run or written, 3
where a cell was refused or failed, 130 and 143 where it was interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from sim.process.interrupts import telling
from sim.results.overview import Overview
from sim.results.overview_words import show, write
from sim.study.cells import Cell, plan_cells
from sim.study.conduct import answer, conduct, say
from sim.study.dataset import read_cells
from sim.study.kept_rows import whole_rows
from sim.study.launchers import OPTIONS, make_launcher
from sim.study.plan import read_plan
from sim.study.rows import DONE, overview_of
from sim.study.search import run_search, told
from sim.values.code import project_digest
from sim.verbs.table import verb_of
from sim.verbs.words import read

OF_LAUNCHERS = tuple(dict.fromkeys(key for keys in OPTIONS.values() for key in keys))
INCOMPLETE = 3


@telling("what is finished is recorded, the same words go on")
def main(words: Sequence[str]) -> int:
    """Exit status, see above."""
    try:
        asked = read(verb_of("study"), words)
        options, plan = asked.own, read_plan(asked.own["name"]).with_last(asked.overrides)
        output_dir = Path(options.get("output_dir", f"outputs/studies/{plan.name}"))
        given = {key: options[key] for key in OF_LAUNCHERS if key in options}
        launcher = make_launcher(options.get("launcher", "pool"), given)
        retry, code = options.get("retry") == "yes", project_digest()
        if plan.search:
            if retry:
                raise ValueError(
                    "retry=yes is of a grid or a list: proposals of a search follow from the trials"
                    " that were; another output_dir starts anew"
                )
            print(told(plan.name, run_search(plan, launcher, output_dir, say, code)))
            return 0
        cells = plan_cells(plan)
        found = conduct(plan.name, cells, launcher, output_dir, retry, say, code)
        whole = _together(cells, output_dir)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    write(whole, output_dir)
    show(whole, Console())
    print(answer(plan.name, found, output_dir))
    return 0 if found.counts[DONE] == found.counts.total() else INCOMPLETE


def _together(cells: Sequence[Cell], output_dir: Path) -> Overview:
    """What the cells say together: a table, a figure, who is best."""
    keys = {cell.key for cell in cells}
    rows = whole_rows(read_cells(output_dir).to_dicts(), output_dir)
    return overview_of(row for row in rows if row["key"] in keys)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
