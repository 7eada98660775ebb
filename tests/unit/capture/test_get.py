"""Real gates in one command: downloaded, checked, imported, and what to do without a network."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import yaml

from capture import get
from capture.importers import catalogue
from capture.importers.catalogue import entry, fetched, names
from capture.importers.formats import FORMATS
from helpers.import_fixtures import FACTS
from sim.traces.trace import read_trace
from sim.values.places import ROOT
from sim.verbs.names import names as conf_names

pytest.importorskip("pooch")

SHARED = ROOT / ".." / "shared" / "traces"
TABLE = """sequence,position,phase,site,experts,weights
0,0,prefill,0,3 1,0.75 0.25
0,0,prefill,1,1 2,0.5 0.5
0,1,decode,0,2 3,0.75 0.25
0,1,decode,1,0 3,0.5 0.5
"""


def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **other: object) -> Path:
    """A catalogue of one entry, whose file lies at a file address."""
    source = tmp_path / "served" / "routes.csv"
    source.parent.mkdir()
    data = TABLE.encode()
    source.write_bytes(data)
    listed = {
        "name": "routes.csv",
        "url": source.as_uri(),
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    folder = tmp_path / "catalogue"
    folder.mkdir()
    content = {
        "about": "made up",
        "source": "nowhere",
        "licence": "CC0",
        "model": "tiny_mixtral",
        "format": "csv",
        "options": FACTS,
        "files": [{**listed, **other}],
        "by_hand": "",
    }
    (folder / "mine.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    monkeypatch.setattr(get, "entry", lambda name: entry(name, folder))
    return source


def words(tmp_path: Path) -> list[str]:
    return ["mine", f"cache={tmp_path / 'cache'}", f"output_dir={tmp_path / 'trace'}"]


def test_a_trace_is_downloaded_once_checked_and_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = made(tmp_path, monkeypatch)
    assert get.main(words(tmp_path)) == 0
    told = capsys.readouterr().out
    assert "licence: CC0" in told
    assert f"trace.path={tmp_path / 'trace'}" in told
    assert read_trace(tmp_path / "trace").header.model.sites > 0
    source.unlink()
    assert get.main([*words(tmp_path), "overwrite=yes"]) == 0, "it is in the cache"
    assert get.main(words(tmp_path)) == 2, "what is there is not written over"


def test_without_a_network_it_says_what_to_fetch_and_where_to_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = made(tmp_path, monkeypatch)
    source.rename(tmp_path / "by_hand.csv")
    assert get.main(words(tmp_path)) == 2
    told = capsys.readouterr().err
    place = tmp_path / "cache" / "mine" / "routes.csv"
    assert f"fetch {source.as_uri()} by hand and put it there" in told
    assert str(place) in told
    assert not (tmp_path / "trace").exists()
    (tmp_path / "by_hand.csv").rename(place)
    assert get.main(words(tmp_path)) == 0


def test_another_file_than_the_listed_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, monkeypatch, sha256="0" * 64)
    assert get.main(words(tmp_path)) == 2
    assert "hash" in capsys.readouterr().err
    assert not (tmp_path / "trace").exists()


def test_of_a_file_without_an_address_it_says_so(tmp_path: Path) -> None:
    wanted = entry("gpt_oss_20b")
    with pytest.raises(ValueError, match="no address to download it from; put it there by hand"):
        fetched(wanted, tmp_path)
    place = tmp_path / wanted.name / wanted.files[0].name
    place.parent.mkdir()
    place.write_bytes(b"other")
    with pytest.raises(ValueError, match="what is there has 5 bytes and sha256 "):
        fetched(wanted, tmp_path)


def test_the_catalogue_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(names()) >= 2
    for name in names():
        one = entry(name)
        assert one.format in FORMATS
        assert one.model in conf_names("model")
        assert all(len(file.sha256) == 64 and file.bytes > 0 for file in one.files)
        assert all(file.url or one.by_hand for file in one.files)
    with pytest.raises(ValueError, match="did you mean gpt_oss_20b"):
        entry("gpt_os_20b")
    assert get.main([]) == 0
    assert "phone_qwen3_30b" in capsys.readouterr().out


@pytest.mark.parametrize("name", names())
def test_files_that_are_here_are_those_of_the_catalogue(name: str) -> None:
    if not (SHARED / name).is_dir():
        pytest.skip("the published files are not here")
    for file in entry(name).files:
        assert catalogue._is(file, SHARED / name / file.name)


@pytest.mark.parametrize("command", ["import", "synthesize"])
def test_a_trace_is_replaced_only_where_that_is_said_and_only_by_a_whole_one(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from capture import import_trace, synthesize

    place = tmp_path / "trace"
    if command == "import":
        (tmp_path / "routes.csv").write_text(TABLE, encoding="utf-8")
        facts = [f"{key}={text}" for key, text in FACTS.items()]
        main, given = import_trace.main, ["format=csv", f"path={tmp_path / 'routes.csv'}", *facts]
    else:
        main, given = synthesize.main, ["like=mixtral_8x7b", "tokens=2", "sequences=2"]
    given.append(f"output_dir={place}")
    assert main(given) == 0
    before = (place / "header.json").stat().st_ino
    (place / "old").touch()
    assert main(given) == 2
    assert "add overwrite=yes" in capsys.readouterr().err
    assert (place / "header.json").stat().st_ino == before
    assert main([*given, "overwrite=yes"]) == 0
    assert not (place / "old").exists()
    kept = (place / "header.json").read_bytes()
    if command == "import":
        (tmp_path / "routes.csv").write_text("broken", encoding="utf-8")
        assert main([*given, "overwrite=yes"]) == 2
        assert (place / "header.json").read_bytes() == kept
