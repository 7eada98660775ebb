"""The command that imports: its arguments, what it prints, and that it needs no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import capture.import_trace
import sim.traces.writing
from capture.import_trace import main
from capture.importers.formats import FORMATS, KEYS, REQUIRED, parse
from capture.importers.parts import FACTS as FACT_KEYS
from capture.importers.parts import LACKS
from capture.importers.source import ImportFailure
from helpers.import_fixtures import FACTS, imported

NAMES = (
    "bigmoe",
    "gpt_oss_fingerprint",
    "npz",
    "llama_moe_trace",
    "colibri",
    "vllm",
    "sglang",
    "ktransformers",
    "moe_cache_eval",
    "megatron_router_trace",
    "commitmoe",
    "flame",
    "parquet",
    "csv",
    "jsonl",
)
CSV = "sequence,position,phase,site,experts\n0,0,prefill,0,3 1\n0,1,decode,0,2 5\n"


def test_every_format_has_its_line_in_the_commands_text() -> None:
    assert tuple(FORMATS) == NAMES
    text = capture.import_trace.__doc__ or ""
    assert all(f"``{name}``" in text for name in NAMES)


def test_importing_needs_no_torch() -> None:
    code = (
        "import sys, capture.import_trace; sys.exit('torch' in sys.modules or 'safetensors' in"
        " sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["format=npz", "colour=red"], "known keys: " + ", ".join(KEYS)),
        (["format"], "known key=value"),
        (["format=npz", "format=npz"], "format is given twice"),
        (["format=npz", "path="], "path is empty"),
        (["format=npz"], "missing path=..."),
        (
            ["format=xml", "path=p", "output_dir=o"],
            "unknown format=xml; known formats: " + ", ".join(FORMATS),
        ),
        (
            ["format=npz", "path=p", "output_dir=o", "masks=m"],
            "masks=m is no key of format=npz; leave it out",
        ),
        (
            ["format=npz", "path=p", "output_dir=o", "experts=0"],
            "experts=0 must be a whole number of 1 or more",
        ),
        (
            ["format=npz", "path=p", "output_dir=o", "hidden=1e3"],
            "hidden=1e3 must be a whole number",
        ),
        (
            ["format=npz", "path=p", "output_dir=o", "hidden=" + "9" * 5000],
            "must be a whole number",
        ),
    ],
)
def test_a_wrong_argument_is_refused_by_name(given: list[str], told: str) -> None:
    with pytest.raises(ImportFailure) as refused:
        parse(given)
    assert told in str(refused.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_format_knows_the_facts_that_its_files_do_not_tell(name: str) -> None:
    keys = FORMATS[name].keys
    assert set(FACT_KEYS) - {"experts"} <= set(keys)
    assert not set(keys) & set(REQUIRED)
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("where", ["parse_header", "file_sha256", "trace_frame"])
def test_an_import_that_is_interrupted_leaves_nothing_that_the_next_would_trip_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    (tmp_path / "r.csv").write_text(CSV, encoding="utf-8")
    words = [
        "format=csv",
        f"path={tmp_path / 'r.csv'}",
        f"output_dir={tmp_path / 'trace'}",
        *(f"{key}={text}" for key, text in FACTS.items()),
    ]

    def press(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sim.traces.writing, where, press)
        assert main(words) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["r.csv"]
    assert main(words) == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_path_that_is_not_there_is_refused_with_one_line_and_nothing_is_left(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {
        "format": name,
        "path": str(tmp_path / "absent"),
        "output_dir": str(tmp_path / "trace"),
        **FACTS,
    }
    given = {key: text for key, text in given.items() if key in REQUIRED + FORMATS[name].keys}
    given |= {"sequence_length": "8"} if name == "flame" else {}
    assert main([f"{key}={text}" for key, text in given.items()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"import: path={tmp_path / 'absent'} ")
    assert not list(tmp_path.iterdir())


def test_the_command_says_what_arrived_and_what_the_file_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    header = imported("csv", tmp_path / "a.csv", tmp_path / "trace").header
    out = capsys.readouterr().out
    assert "tiny_imported: 1 prompt and 1 decode tokens of 1 sequence at 1 sites" in out
    assert "lacks weights, steps, tokens, scores" in out
    words = str(header.provenance["lacks"]).split(", ")
    assert words == [word for word in LACKS if word in words]
    assert header.provenance["missing"] == ", ".join(LACKS[word] for word in words)
    assert (header.source, header.licence) == ("imported", "CC0-1.0")
    assert str(tmp_path) not in header.to_json()


def test_an_output_directory_in_use_is_refused_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "mine").touch()
    given = {
        "format": "csv",
        "path": str(tmp_path / "absent"),
        "output_dir": str(tmp_path / "trace"),
        **FACTS,
    }
    assert main([f"{key}={text}" for key, text in given.items()]) == 2
    assert "is not empty" in capsys.readouterr().err
