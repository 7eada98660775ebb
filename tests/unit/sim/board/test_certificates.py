"""A certificate holds as it was written, and not with anything in it altered."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.boards import plain, small
from sim.board import certificates
from sim.board.certificates import PAIR, certificate, checks, read_certificate
from sim.certify import main
from sim.results.coverage import coverage_at
from sim.results.paired import paired


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    board = small()[0][1]
    ours, theirs = board.entry("fifo"), board.entry("lru")
    assert ours is not None
    assert theirs is not None
    return plain(certificate(board, ours, theirs))


def put(tmp_path: Path, content: Any) -> Path:
    place = tmp_path / "certificate.json"
    place.write_text(json.dumps(content), encoding="utf-8")
    return place


def faults(content: dict[str, Any], rerun: bool = False) -> dict[str, str]:
    return {check.what: check.fault for check in checks(content, rerun) if check.fault}


# Contracts: C138
def test_it_holds_by_its_hashes_its_arithmetic_and_a_rerun(
    whole: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = put(tmp_path, whole)
    assert main([str(place)]) == 0
    told = capsys.readouterr().out
    assert "Not checked: that the runs have these times" in told
    assert "TRANSPLANTED" in told
    assert main([str(place), "rerun=yes"]) == 0
    told = capsys.readouterr().out
    assert "holds   b: run again" in told
    assert told.endswith("The certificate holds.\n")


def change(*keys: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def alter(content: dict[str, Any]) -> None:
        inside: Any = content
        for key in keys[:-1]:
            inside = inside[int(key)] if isinstance(inside, list) else inside[key]
        last: Any = int(keys[-1]) if isinstance(inside, list) else keys[-1]
        inside[last] = value(inside[last]) if callable(value) else value

    return alter


ALTERED: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "a verdict": (change("claim", "a_is", value="cannot tell!"), "a_is is"),
    "a ratio": (change("pair", "ratio", value=lambda one: one * 1.001), "ratio is"),
    "an interval": (
        change("pair", "interval_95", "0", value=lambda one: one * 1.01),
        "interval_95",
    ),
    "a coverage": (change("pair", "coverage", "lowest", value=0.99), "coverage is"),
    "a time": (change("runs", "a", "decode_ns", "1", value=lambda one: one + 1000), "not"),
    "tokens": (change("runs", "b", "tokens_per_s", value=lambda one: one + 1), "not"),
    "a bound": (change("runs", "a", "lower_s", value=lambda one: one * 2), "not"),
    "a word": (change("runs", "a", "words", "5", value="cache=lfu"), "these words give"),
    "a machine": (
        change("runs", "a", "words", "0", value="hardware=rtx3090_pcie4"),
        "these words give",
    ),
    "the code": (change("runs", "b", "code", value="0" * 24), "rerun=yes shows whether"),
    "the trace": (change("trace_sha256", value="0" * 64), "as was certified"),
    "sequences": (change("sequences", value=[1, 2]), "of 2"),
    "who it is of": (change("claim", "a", value="my_policy"), "my_policy is none of its words"),
    "its system's name": (change("claim", "a", value="lru"), "called lru, but it is lru cache="),
    "no name": (change("claim", "b", value=""), "nothing is none of its words"),
    "versions": (change("versions", value="python 2"), "they are python 3"),
    "its machine": (change("board", value="gpt-oss-120b on H100"), "rtx4090_pcie4, .."),
    "a command": (change("runs", "a", "command", value="moelab run system=fate"), "is not moelab"),
    "what is measured": (change("measure", value="quality"), "the measure is not: time of"),
    "a bound that is gone": (change("runs", "b", "lower_s", value=None), "there is no bound, not"),
    "no time": (change("runs", "a", "decode_tokens", value=[0] * 4), "coverage is None, not"),
}


@pytest.mark.parametrize("name", ALTERED)
def test_what_is_altered_is_found(name: str, whole: dict[str, Any]) -> None:
    alter, fault = ALTERED[name]
    content = plain(whole)
    alter(content)
    found = faults(content)
    assert found
    assert any(fault in one for one in found.values()), found


@pytest.mark.parametrize("key", ["hit_ratio", "makespan_s", "lower_s", "at_most_faster"])
def test_what_only_a_rerun_shows_is_found_by_it(key: str, whole: dict[str, Any]) -> None:
    content = plain(whole)
    content["runs"]["b"][key] *= 1.01
    assert key in faults(content, rerun=True)["b: run again"]


def test_labels_and_bytes_are_found_by_a_rerun(whole: dict[str, Any]) -> None:
    content = plain(whole)
    content["runs"]["a"]["labels"]["transplanted"] = None
    content["conditions"] = "0" * 24
    found = faults(content, rerun=True)
    assert "labels" in found["a: run again"] or "bytes" in found["a: run again"]
    content["conditions"] = whole["conditions"]
    content["board"] = content["board"].replace("21 GiB", "1 GiB")
    found = faults(content, rerun=True)
    assert "it has 21 GiB for experts, the certificate's board" in found["b: run again"]
    content["board"] = whole["board"]
    assert "labels" in faults(content, rerun=True)["a: run again"]


def test_other_code_with_the_same_numbers_is_no_fault_after_a_rerun(
    whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "code_of", lambda _: "other")
    assert set(faults(whole)) == {"a: code that its run imports", "b: code that its run imports"}
    assert faults(whole, rerun=True) == {}
    notes = [check.note for check in checks(whole, rerun=True) if check.note]
    assert len(notes) == 2


def test_a_trace_with_altered_bytes_is_found(
    whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def altered(_: object) -> None:
        raise ValueError("routes.parquet: the file was altered or truncated")

    monkeypatch.setattr(certificates, "checked_header", altered)
    assert "altered" in faults(whole)["trace: sha256 of every file"]


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (change("schema", value=2), "no certificate of schema"),
        (change("runs", "a", "decode_ns", "0", value=-1), "runs.a.decode_ns must be numbers"),
        (change("runs", "a", "decode_ns", value="x"), "runs.a.decode_ns must be numbers"),
        (change("runs", "b", value=[]), "runs.b must be a section"),
        (
            change("runs", "b", "lower_s", value=0),
            "runs.b.lower_s must be a number above 0, or null",
        ),
        (change("runs", "b", "at_most_faster", value="x"), "must be a number above 0, or null"),
        (change("pair", "ratio", value=float("nan")), "pair.ratio must be a number"),
        (change("claim", "a", value="\x1b[2J"), "claim.a must be text"),
        (change("runs", "a", "labels", value={"lossy": 3}), "runs.a.labels must be"),
        (change("runs", "a", "hit_ratio", value=[]), "hit_ratio must be a share, or null, got []"),
        (change("runs", "b", "hit_ratio", value=1.5), "runs.b.hit_ratio must be a share, or null"),
        (change("runs", "b", "bound", value="\n"), r"runs.b.bound must be text, got '\n';"),
        (change("runs", "a", "words", "0", value="hydra.searchpath=[/tmp]"), "where files lie"),
        (change("runs", "a", "words", "0", value="no_such=1"), "no_such"),
        (
            change("runs", "a", "words", value=lambda one: [*one, "cache._target_=shutil.rmtree"]),
            "is in no file of conf",
        ),
        *(
            (change("runs", "a", "words", value=lambda one, word=word: [*one, word]), message)
            for word, message in (
                ("trace.max_sequences=4x", "trace.max_sequences='4x' must be a whole number"),
                ("trace.exclude=5", "trace.exclude=5 must be a list of flags"),
                ("trace.path=[1]", "trace.path=[1] must be one value"),
                ("~model", "model=None must be a section of values"),
            )
        ),
    ],
)
def test_hostile_files_are_refused_in_one_line(
    alter: Callable[[dict[str, Any]], None],
    message: str,
    whole: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    content = plain(whole)
    alter(content)
    assert main([str(put(tmp_path, content)), "rerun=yes"]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


def test_what_is_no_file_of_json_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "x.json"
    place.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="is no file; moelab leaderboard writes certificates"):
        read_certificate(place.parent)
    with pytest.raises(ValueError, match="is no JSON"):
        read_certificate(place)
    place.write_bytes(b" " * (certificates.LARGEST_BYTES + 1))
    with pytest.raises(ValueError, match="no certificate has over"):
        read_certificate(place)


def cut(content: dict[str, Any], places: slice) -> dict[str, Any]:
    """The certificate of a few of its sequences, with arithmetic and names that fit them."""
    few = plain(content)
    few["sequences"] = few["sequences"][places]
    for run in few["runs"].values():
        for name in ("decode_ns", "decode_tokens"):
            run[name] = run[name][places]
        run["tokens_per_s"] = sum(run["decode_tokens"]) / sum(run["decode_ns"]) * 1e9
    few["board"] = few["board"].replace("4 sequences", f"{len(few['sequences'])} sequences")
    times = [np.array(few["runs"][side]["decode_ns"], float) for side in "ab"]
    ahead = paired(*times)
    covers = coverage_at(np.array(few["runs"]["a"]["decode_tokens"], float))
    assert ahead.interval is not None
    assert covers is not None
    few["pair"] = {
        "ratio": ahead.speedup,
        "interval_95": list(ahead.interval),
        "coverage": asdict(covers),
    }
    few["claim"]["a_is"] = ahead.verdict
    return few


def test_a_chosen_few_of_the_sequences_do_not_hold(whole: dict[str, Any]) -> None:
    few = cut(whole, slice(1, 3))
    first, second = few["sequences"]
    assert faults(few) == {
        "sequences: those that the words choose": (
            f"the words do not choose {first}, {second} (2 in all)"
        ),
        PAIR: "not computed of such sequences",
    }


@pytest.mark.parametrize("longer", ["sequences", "decode_ns", "decode_tokens"])
def test_a_forged_file_of_many_sequences_takes_no_memory_for_its_coverage(
    longer: str, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "coverage_at", lambda lengths: pytest.fail("computed"))
    forged = plain(whole)
    for part in [forged] if longer == "sequences" else forged["runs"].values():
        part[longer] = [1] * 1000
    assert faults(forged)[PAIR] == "not computed of such sequences"
