"""``python -m sim.audit`` on a run, on altered runs, and on what is no run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from omegaconf import OmegaConf

from helpers.worked import make_run
from sim.audit.__main__ import audit, main
from sim.audit.files import COLUMNS, RunFiles, read_run
from sim.audit.rules import flat, is_number
from sim.results.outputs import write_outputs
from sim.setup.build import build
from sim.setup.configure import configure
from sim.setup.execute import execute
from sim.values.places import ROOT

NOT_RECOMPUTED = {
    "schema",
    "version",
    "system",
    "trace.name",
    "trace.sha256",
    "trace.source",
    "trace.gates",
    "trace.findings",
    "trace.expert_bytes",
    "load_s",
    "stall_s.demand",
    "stall_s.behind_demand",
    "stall_s.behind_prefetch",
    "stall_s.late_prefetch",
    "stall_s.no_slot",
    "slowed_s",
    "prediction.top1",
    "prediction.recall_at_issued",
    "prediction.precision",
    "prediction.exact_set",
    "prediction.fitted_on",
    "peak_bytes.device",
    "bounds.compute_s",
    "bounds.link_s",
    "bounds.relaxed_s",
    "bounds.method",
    "bounds.belady_loads",
    "bounds.why_no_belady",
    "labels.transplanted",
    "labels.part",
    "labels.synthetic",
    "labels.machine",
    "labels.lossy",
    "labels.knows_future",
    "labels.reference",
    "prediction.prompts",
    "prediction.prefill",
    "overrides",
    "budget.initial_bytes",
    "contracts.loop",
    "contracts.carry_over",
    "contracts.warmup_tokens",
}
LOOSE = {"budget.device_bytes", "budget.slots.fp16", "peak_bytes.staging", "peak_bytes.ram"}
"""Keys for which the files give only a range, in which most other values lie, too."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("audit") / "run"
    run = make_run()
    result = execute(run)
    write_outputs(found, result.summary, run.config, result.frames, "as_ready", None)
    return found


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "run"))


# Contracts: C106
def test_a_run_agrees_and_what_is_not_recomputed_is_told_with_the_reason(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(folder)]) == 0
    told = capsys.readouterr().out
    assert re.search(r"  .*\bload_s\b.*: what was on the device at the start is in no file\n", told)
    assert "DIFFERS" not in told
    found = audit(read_run(folder))
    assert {key for keys in found.not_recomputed.values() for key in keys} == NOT_RECOMPUTED
    keys = {key for key, _ in flat(read_run(folder).summary)}
    assert keys - NOT_RECOMPUTED <= set(found.agreed)


def altered(summary: dict[str, Any], key: str) -> dict[str, Any]:
    """A copy in which one value is replaced by another of its kind."""
    found = json.loads(json.dumps(summary))
    *above, name = key.split(".")
    section = found
    for part in above:
        section = section[part]
    value = section[name]
    if isinstance(value, list):
        section[name] = [1e9, 2e9]
    elif isinstance(value, bool):
        section[name] = not value
    else:
        section[name] = value * 1.0001 + 1 if is_number(value) else "another"
    return found


def test_no_value_can_be_altered_unnoticed(folder: Path) -> None:
    run = read_run(folder)
    assert isinstance(run.summary, dict)
    for key, _ in flat(run.summary):
        if key not in NOT_RECOMPUTED | LOOSE:
            found = audit(replace(run, summary=altered(run.summary, key)))
            assert key in {one.rule.key for one in found.differences}, key


def test_one_pool_in_ram_has_the_capacity_of_the_machine_and_no_other(tmp_path: Path) -> None:
    config, name = configure("system=lru", "hardware=rtx4090_nvme", "trace.max_sequences=1")
    run = build(config, name)
    result = execute(run)
    write_outputs(tmp_path / "run", result.summary, run.config, result.frames, "as_ready", None)
    found = read_run(tmp_path / "run")
    assert isinstance(found.summary, dict)
    assert not audit(found).differences
    found.summary["ram"]["capacity_bytes"] -= 1 << 20
    assert [one.rule.key for one in audit(found).differences] == ["ram.capacity_bytes"]


def test_a_value_that_is_gone_or_new_is_told(folder: Path) -> None:
    run = read_run(folder)
    without = {key: value for key, value in run.summary.items() if key != "hit_ratio_prefill"}
    assert [str(one) for one in audit(replace(run, summary=without)).differences] == [
        "hit_ratio_prefill: summary.json has '(nothing)', the files give 0.2 ((hit + high_for_low)"
        " / needs asked for)"
    ]
    more = audit(replace(run, summary={**run.summary, "of_a_later_version": 3}))
    assert more.not_recomputed["no rule of this version knows it"] == ["of_a_later_version"]
    assert not more.differences


ALTERED: dict[str, tuple[Callable[[RunFiles], dict[str, pl.DataFrame]], set[str]]] = {
    "a hit that was a miss": (
        lambda run: {
            "lookups": run.lookups.with_columns(
                outcome=pl.when(pl.col("outcome") == "hit")
                .then(pl.lit("miss"))
                .otherwise("outcome")
            )
        },
        {"lookups.hit", "lookups.miss", "hit_ratio", "hit_ratio_prefill", "miss_penalty"},
    ),
    "a transfer that moved more": (
        lambda run: {
            "transfers": run.transfers.with_columns(moved_bytes=pl.col("moved_bytes") + 1)
        },
        {"bytes.pcie.demand", "bytes.pcie.prefetch", "prefetch.wasted_bytes"},
    ),
    "a step that took longer": (
        lambda run: {
            "tokens": run.tokens.with_columns(end_ns=pl.col("end_ns") + pl.col("step") // 5)
        },
        {"makespan_s", "stall_s", "prefill_tokens_per_s", "link_utilisation.pcie"},
    ),
    "a prefetch that was never queued": (
        lambda run: {"decisions": run.decisions.filter(pl.col("kind") != "queue_prefetch")},
        {"prefetch.queued", "prefetch.promoted", "prefetch.cancelled", "prefetch.dropped_no_slot"},
    ),
}


@pytest.mark.parametrize("name", ALTERED)
def test_a_table_that_was_altered_is_noticed_where_it_counts(folder: Path, name: str) -> None:
    run = read_run(folder)
    change, keys = ALTERED[name]
    assert keys <= {one.rule.key for one in audit(replace(run, **change(run))).differences}


def test_a_difference_is_told_with_both_values_and_the_rule(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = copied / "summary.json"
    summary = json.loads(place.read_text(encoding="utf-8"))
    place.write_text(json.dumps(altered(summary, "prefetch.wasted_bytes")), encoding="utf-8")
    assert main([str(copied)]) == 1
    assert capsys.readouterr().out.startswith(
        "DIFFERS prefetch.wasted_bytes: summary.json has 81.008, the files give 80 "
        "(bytes over the link to the device of prefetches that no lookup found)\n"
    )


def nothing(folder: Path) -> None:
    shutil.rmtree(folder)


def write(name: str, text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_text(text, encoding="utf-8")

    return change


def without_column(folder: Path) -> None:
    place = folder / "lookups.parquet"
    pl.read_parquet(place).drop("skips").write_parquet(place)


def without_keys(section: str, *keys: str, **more: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = OmegaConf.load(folder / "config.yaml")
        for key in keys:
            del config[section][key]
        config[section].update(more)
        OmegaConf.save(config, folder / "config.yaml")

    return change


def stalled(value: str) -> Callable[[Path], None]:
    """A summary with this as the first part of its stalls."""

    def change(folder: Path) -> None:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        summary["stall_s"]["demand"] = float(value)
        (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")

    return change


def cut(table: str, part: Callable[[pl.DataFrame], pl.DataFrame]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        place = folder / f"{table}.parquet"
        part(pl.read_parquet(place)).write_parquet(place)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (cut("tokens", lambda rows: rows.head(len(rows) // 2)), "tokens.parquet lacks se"),
        (
            cut("tokens", lambda rows: rows.filter(pl.col("step") > 0)),
            "tokens.parquet lacks step 0",
        ),
        (cut("tokens", lambda rows: rows.clear()), "tokens.parquet lacks sequence"),
        (cut("sequences", lambda rows: rows.tail(1)), "sequences.parquet lacks sequence"),
        (cut("sequences", lambda rows: rows.clear()), "sequences.parquet has 0 lines for 0"),
        (cut("sequences", lambda rows: pl.concat([rows] * 2)), "sequences.parquet has "),
        (
            cut("lookups", lambda rows: rows.with_columns(pl.col("weight").cast(pl.String))),
            "its files were changed: InvalidOperationError `sum` operation not supported",
        ),
        (without_keys("model", experts="x"), "its files were changed: ValueError invalid literal"),
        (stalled("1e300"), "its files were changed: OverflowError cannot convert"),
        (stalled("NaN"), "its files were changed: ValueError cannot convert"),
        (nothing, "holds no run"),
        (write("summary.json", "{"), "holds no run"),
        (write("summary.json", "[1]"), "is no summary of a run: it has no budget.slots"),
        (
            write("summary.json", '{"budget": {"slots": {"fp16": 1}}}'),
            "is no run of this version, or its files were changed: KeyError",
        ),
        (
            lambda folder: (folder / "tokens.parquet").unlink(),
            "lacks tokens.parquet; run again with outputs=all",
        ),
        (write("transfers.parquet", "PAR1"), "transfers.parquet cannot be read"),
        (without_column, "lookups.parquet lacks the columns skips"),
        (write("config.yaml", "a: [1"), "config.yaml cannot be read"),
        (
            write("config.yaml", "model: {}"),
            "config.yaml is no configuration of a run: it lacks hardware, workload",
        ),
        (
            without_keys("model", "sites", "experts"),
            "config.yaml is no configuration of a run: model lacks sites, experts\n",
        ),
        (
            without_keys("hardware", "links"),
            "config.yaml is no configuration of a run: hardware lacks links\n",
        ),
        (
            without_keys("workload", kv_allocation="growing"),
            "lacks ledger.parquet; run again with outputs=all",
        ),
    ],
)
def test_what_is_no_run_is_told_in_one_line(
    copied: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], None], message: str
) -> None:
    change(copied)
    assert main([str(copied)]) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert told.err.startswith("error: ")
    assert (told.out, told.err.count("\n")) == ("", 1)


def test_it_wants_one_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["a", "b"]) == main(["--help"]) == 2
    assert capsys.readouterr().err.count("name one folder") == 3


def test_it_is_a_command_that_needs_nothing_else_of_the_project(folder: Path) -> None:
    code = (
        "import runpy, sys; sys.argv = ['audit', sys.argv[1]]; runpy.run_module('sim.audit',"
        " run_name='__main__')"
    )
    told = (
        "import atexit, sys; atexit.register(lambda: print([m for m in sys.modules if m[:4] in"
        " ('sim.', 'duck')]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{told}; {code}", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert all(
        name.startswith(("sim.audit", "sim.process")) for name in eval(done.stdout.splitlines()[-1])
    )


def test_of_each_table_only_columns_that_a_run_has_are_read(folder: Path) -> None:
    for name, columns in COLUMNS.items():
        assert set(columns) <= set(pl.read_parquet(folder / f"{name}.parquet").columns), name
