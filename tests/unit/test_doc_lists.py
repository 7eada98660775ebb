"""Lists, counts and digests that pages have of the project's own files are of those files."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
import yaml

from capture.importers.formats import FORMATS
from helpers.architectures import ARCHITECTURES
from sim import run
from sim.machine.config_windows import LISTED
from sim.machine.validated import Validated
from sim.values.places import ROOT
from unit.real.store.test_swapping import REFUSED
from unit.sim.machine.test_made_by_transformers import FAMILIES

DOCS = ROOT / "docs"


def page(name: str | Path) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def rows(text: str) -> list[list[str]]:
    """The cells of a page's first table after its head."""
    table = re.search(r"^\|[-:|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None
    return [line.strip("| ").split(" | ") for line in table[1].splitlines()]


def test_the_page_of_runs_names_every_system() -> None:
    told = set(re.findall(r"`(\w+)`", page("run.md").split("## Systems")[1]))
    told |= {f"{name}_code" for name in ("mixtral_offloading", "moe_infinity")}
    assert {path.stem for path in (ROOT / "conf" / "system").glob("*.yaml")} - told == set()


def test_what_pages_print_of_a_machines_errors_is_what_its_file_says() -> None:
    """Some of these examples take hours, so no test runs them."""
    told = [
        line
        for name in sorted(DOCS.rglob("*.md"))
        for line in re.findall(
            r"\w+: tokens/s are within [^\n;\]]*?on this machine[^\n;,\]]*", page(name)
        )
    ]
    assert told
    for line in told:
        machine, _, errors = line.partition(": ")
        file = ROOT / "conf" / "hardware" / f"{machine}.yaml"
        figures = yaml.safe_load(file.read_text(encoding="utf-8"))["validated"]
        figures.pop("_target_")
        assert errors == str(Validated(**figures)), line


# Contracts: C104
def test_the_contract_names_every_column_of_a_run_that_drafts() -> None:
    words = "trace.max_sequences=1", "workload.decode_tokens=3", "workload.draft_tokens=1"
    ran = run("lru", *words)
    lines = re.findall(r"^\| (\w+) \| .*? \| (.*) \|$", page("contracts/outputs.md"), re.MULTILINE)
    told = {name: set(re.findall(r"\w+", columns)) for name, columns in lines}
    for name in ("sequences", "tokens", "lookups", "transfers", "decisions"):
        assert set(getattr(ran, name).columns) - told[name] == set(), name


def test_the_page_of_traces_names_every_format() -> None:
    told = {name for row in rows(page("traces.md")) for name in re.findall(r"`(\w+)`", row[0])}
    assert told == set(FORMATS)


def test_ask_says_of_which_model_each_borrowed_statistic_is() -> None:
    told = {
        (model, row[1])
        for row in rows(page("ask.md").split("borrows")[1])
        for model in row[0].split(", ")
    }
    presets = (ROOT / "capture" / "presets").glob("*.yaml")
    read = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in presets]
    members = {name: of for one in read for name, of in one.get("members", {}).items()}
    assert told == {(name, of["nearest"]) for name, of in members.items() if "nearest" in of}


def test_counts_of_architectures_are_those_that_tests_build() -> None:
    assert f"by letting transformers make {len(FAMILIES)} architectures" in page("machines.md")
    built, passed = len(ARCHITECTURES), len(ARCHITECTURES) - len(REFUSED)
    told = f"Of the {built} architectures that the tests build {passed} pass"
    assert told in " ".join(page("real.md").split())
    told = f"Of its architectures, {len(LISTED)} read `layer_types`"
    assert told in " ".join(page("contracts/attention.md").split())


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.stem)
def test_a_digest_on_a_page_is_of_the_file_beside_it(path: Path) -> None:
    text = page(path)
    for digest, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", text, re.MULTILINE):
        assert hashlib.sha256((ROOT / name).read_bytes()).hexdigest() == digest
