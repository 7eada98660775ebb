"""The one reader of summaries: what it asks of them, and that every command which reads runs uses it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from helpers.summaries import summary_of
from sim import pareto
from sim.answers.recorded_run import read_recorded
from sim.audit.files import read_run as read_for_audit
from sim.compare import read_run
from sim.reporting.runs import read_runs
from sim.results.kept import SHAPE, Kind, Shape, read_summary
from sim.results.run_log import RunLog
from sim.study.trials import trial
from sim.values.places import UNFINISHED

READERS: Mapping[str, Callable[[Path], Any]] = {
    "audit": read_for_audit,
    "audit_time": read_recorded,
    "compare": read_run,
    "explain": RunLog,
    "pareto": lambda folder: pareto.read([folder]),
    "report": lambda folder: read_runs([folder]),
}


def _names(shape: Shape, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, kind in shape.items():
        yield (*before, name)
        if not isinstance(kind, Kind):
            yield from _names(kind, (*before, name))


def _written(folder: Path, content: object) -> Path:
    folder.mkdir()
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "summary.json").write_text(text, encoding="utf-8")
    return folder


def test_the_summary_of_a_run_has_all_that_commands_read(tmp_path: Path) -> None:
    made = trial(["system=lru", "trace.max_sequences=1"]).summary
    assert read_summary(_written(tmp_path / "run", made)) == json.loads(json.dumps(made))


@pytest.mark.parametrize("names", list(_names(SHAPE)), ids=".".join)
@pytest.mark.parametrize("value", [None, {"x": "y"}, [], True, float("1e999")], ids=str)
def test_a_value_of_another_kind_is_refused_with_its_key_or_taken_where_it_may_stand(
    names: tuple[str, ...], value: object, tmp_path: Path
) -> None:
    told = summary_of()
    section = told
    for name in names[:-1]:
        section = section[name]
    section[names[-1]] = value
    text = json.dumps(told).replace("Infinity", "1e999")
    kind: Any = SHAPE
    for name in names:
        kind = kind[name]
    if isinstance(kind, Kind) and kind.is_one(value):
        read_summary(_written(tmp_path / "run", text))
        return
    key = ".".join(names)
    with pytest.raises(ValueError, match=rf"summary\.json (lacks|has) {key}.*run it again$"):
        read_summary(_written(tmp_path / "run", text))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", r"cannot be read \(Expecting value"),
        ('{"schema": 1, "schema": 1}', r"cannot be read \(a key comes twice"),
        ('{"schema": NaN}', r"cannot be read \(NaN is not a JSON number"),
        ("[" * 100_000, "cannot be read"),
        ("[]", "it is no JSON object"),
        ('{"schema": 2}', "has schema=2, and this version reads 1: another version wrote it"),
        ("{}", "has schema=null, and this version reads 1"),
    ],
    ids=["nothing", "twice", "nan", "deep", "list", "version", "empty"],
)
def test_what_is_no_summary_of_this_version_is_refused(
    text: str, told: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"summary\.json .*{told}.*run it again$"):
        read_summary(_written(tmp_path / "run", text))


@pytest.mark.parametrize("value", [1e300, -1e300, 10**30, 2**63])
def test_a_number_that_no_run_has_is_refused_and_a_seed_may_be_any(
    value: float, tmp_path: Path
) -> None:
    read_summary(_written(tmp_path / "run", summary_of(seed=10**30, makespan_s=2.0**62)))
    with pytest.raises(ValueError, match=r"summary\.json has makespan_s=.* must be a number; it"):
        read_summary(_written(tmp_path / "other", summary_of(makespan_s=value)))


@pytest.mark.parametrize("findings", [None, [], ["a token repeats"]])
@pytest.mark.parametrize(
    "size",
    [None, {"taken": True, "most": 8, "note": None}, {"taken": False, "most": 8, "note": "x"}],
)
def test_what_lint_found_and_the_bytes_of_a_trace_are_taken_and_may_lack(
    findings: object, size: object, tmp_path: Path
) -> None:
    read_summary(_written(tmp_path / "without", summary_of()))
    told = summary_of(trace={"findings": findings, "expert_bytes": size})
    assert read_summary(_written(tmp_path / "run", told))["trace"] == told["trace"]


@pytest.mark.parametrize("reader", ["report", "compare"])
@pytest.mark.parametrize(
    ("key", "value"),
    [("findings", 5), ("findings", [5]), ("expert_bytes", 5), ("expert_bytes", {"taken": True})],
)
def test_what_lint_found_and_the_bytes_of_a_trace_are_refused_where_they_were_changed(
    key: str, value: object, reader: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"summary\.json has trace\.{key}=.*, which must be"):
        READERS[reader](_written(tmp_path / "run", summary_of(trace={key: value})))


@pytest.mark.parametrize("quality", [{"low_share": 0.5}, {"low_share": "x", "skip_share": 0}])
def test_shares_of_quality_that_were_changed_are_refused(
    quality: dict[str, Any], tmp_path: Path
) -> None:
    told = summary_of()
    told["quality_proxy"] = quality
    with pytest.raises(ValueError, match=r"has quality_proxy=.*, which must be low_share, skip_sh"):
        read_summary(_written(tmp_path / "run", told))


def test_a_folder_that_is_closed_to_the_user_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(folder: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr("sim.results.kept.is_unfinished", closed)
    with pytest.raises(ValueError, match=rf"^{tmp_path} cannot be read .*denied.*; let it be read"):
        read_summary(tmp_path)


def test_a_folder_that_is_not_there_is_told_from_one_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no run: no summary\.json is in it; name what"):
        read_summary(tmp_path)
    with pytest.raises(ValueError, match="holds no run: there is no such folder; name what"):
        read_summary(tmp_path / "absent")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sim import run

    folder = tmp_path_factory.mktemp("runs") / "run"
    run("lru", "trace.max_sequences=1").write(str(folder))
    return folder


@pytest.mark.parametrize("name", READERS)
def test_c132_a_folder_that_is_being_written_is_read_by_no_command(
    name: str, finished: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "päth with spaces" / "run"
    shutil.copytree(finished, copied)
    READERS[name](copied)
    (copied / UNFINISHED).touch()
    with pytest.raises(ValueError, match=rf"run is not whole: {UNFINISHED} lies in it"):
        READERS[name](copied)
