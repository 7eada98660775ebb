"""The table and the sentence of an audit of times, whole."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from helpers.printed import Heard
from sim import audit_time as command
from sim.answers.time_audit import Cause, TimeAudit
from sim.audit_time import expert_share, sentence, table_of
from sim.results.labels import Labels

MS = 1_000_000
FOUND = TimeAudit(
    4,
    200 * MS,
    180 * MS,
    (
        Cause("link rate", 10.0 * MS, ((7, 8.0 * MS), (2, 2.0 * MS)), ((1, 10.0 * MS),)),
        Cause("queueing", -30.0 * MS, ((3, -30.0 * MS),), ((0, -30.123 * MS), (5, 0.123 * MS))),
        Cause("cpu", 0.0, (), ()),
    ),
)


def test_each_cause_has_its_ms_a_token_its_share_and_its_places() -> None:
    table = table_of(FOUND, "t [x]", Labels(lossy="[lossy]"))
    assert [[str(column.header), *column.cells] for column in table.columns] == [
        ["cause", "link rate", "queueing", "cpu", "sum"],
        ["ms a token", "+2.500", "-7.500", "+0.000", "-5.000"],
        ["%", "+5.0%", "-15.0%", "+0.0%", "-10.0%"],
        ["mostly in steps", "7 (+8.00), 2 (+2.00)", "3 (-30.00)", "", ""],
        ["mostly at sites", "1 (+10.00)", "0 (-30.12), 5 (+0.12)", "", ""],
    ]
    assert [row.end_section for row in table.rows] == [False, False, True, False]
    assert (table.title, table.caption) == (r"t \[x]", r"\[lossy]")


def test_the_sentence_has_both_times_and_the_largest_cause_of_either_sign() -> None:
    assert sentence(FOUND) == (
        "Simulated 45 ms a token, recorded 50 (-10.0%) over 4 tokens; most of it is queueing: -7.5 ms"
        " a token. A step's time in () is in ms."
    )
    same = TimeAudit(4, 200 * MS, 200 * MS, (Cause("cpu", 0.0, (), ()),))
    assert sentence(same) == (
        "Simulated 50 ms a token, recorded 50 (+0.0%) over 4 tokens; no cause differs. A step's time"
        " in () is in ms."
    )


@pytest.mark.parametrize(
    ("tail_ns", "steps", "share"), [(4, [20, 30], 0.44), (40, [20, 30], 0.0), (4, [], 0.0)]
)
def test_experts_take_what_dense_layers_and_tails_leave_of_decode_steps(
    tail_ns: int, steps: list[int], share: float
) -> None:
    """Two steps of layers 0 and 2 of 3 and 7 ns, and a tail of 4 ns: 28 of 50 ns. A step's rows have
    its time each; what a prompt's steps take does not count.
    """
    run: Any = SimpleNamespace(
        workload=SimpleNamespace(
            steps=[
                SimpleNamespace(decode=True, sites=(0, 2)),
                SimpleNamespace(decode=False, sites=(0, 1, 2)),
                SimpleNamespace(decode=True, sites=(0, 2)),
            ]
        ),
        durations=SimpleNamespace(dense_ns=lambda step: [3, 100, 7], tail_ns=lambda step: tail_ns),
    )
    rows = [{"step": 9, "phase": "prefill", "compute_ns": 1000}]
    rows += [
        {"step": at, "phase": "decode", "compute_ns": ns}
        for at, ns in enumerate(steps)
        for _ in "ab"
    ]
    frames: Any = SimpleNamespace(tokens=pl.DataFrame(rows))
    assert expert_share(run, frames) == pytest.approx(share)


@pytest.mark.parametrize("own", [[], ["output_dir=a", "output_dir=b"]])
def test_the_command_prints_table_and_sentence_and_writes_where_it_is_told(
    own: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heard, told = Heard(), list[Any]()
    monkeypatch.setattr(command, "Console", lambda: heard)
    monkeypatch.setattr(
        command, "own_folder", lambda place: told.append(("own", place)) or nullcontext()
    )
    monkeypatch.setattr(command, "write", lambda *of: told.append(("write", *of)))
    monkeypatch.setattr(
        command, "audit", lambda *of: told.append(("audit", *of)) or (FOUND, "t", Labels())
    )
    assert command.main(["there", "hardware=h", *own, "seed=2"]) == 0
    audited = ("audit", Path("there"), ["hardware=h", "seed=2"])
    written = [("own", Path("b")), audited, ("write", Path("b"), FOUND, "t", Labels())]
    assert told == (written if own else [audited])
    assert [str(table.title) for table in heard.tables] == ["t"]
    assert heard.lines == [sentence(FOUND)]
    assert command.main(["there", "-h"]) == 0
    assert command.main([]) == 2
    assert capsys.readouterr().out.count("python -m sim.audit_time RUN hardware=NAME") == 2


def test_what_is_written_is_the_audit_with_its_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "draw", lambda *of: of[0].joinpath("figure").write_text(of[2]))
    command.write(tmp_path, FOUND, "the title", Labels())
    found = json.loads((tmp_path / "audit_time.json").read_text(encoding="utf-8"))
    assert (found["title"], found["difference_ns"]) == ("the title", -20 * MS)
    assert (found["tokens"], found["recorded_ns"], found["simulated_ns"]) == (4, 200 * MS, 180 * MS)
    assert found["causes"][0]["name"] == "link rate"
    assert (tmp_path / "figure").read_text() == "the title"
