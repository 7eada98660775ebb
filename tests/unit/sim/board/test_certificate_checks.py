"""Checks of certificates and words of boards that a whole run does not come to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.boards import BOARD, A, B
from sim import certify
from sim.answers.comparison import SAME
from sim.board import certificates
from sim.board.certificates import (
    INTERVAL,
    LABELS,
    NUMBER,
    NUMBERS,
    SECTION,
    TEXT,
    WORDS,
    Check,
    _check_pair,
    _is,
)
from sim.board.entries import Board, Entry
from sim.results.intervals import OVER
from sim.results.labels import Labels
from sim.results.paired import Paired


@pytest.mark.parametrize(
    ("value", "kind", "is_one"),
    [
        (None, INTERVAL, True),
        ([1.0, 2.0], INTERVAL, True),
        ([0.0, 2.0], INTERVAL, False),
        ([1.0, 2.0, 3.0], INTERVAL, False),
        (None, NUMBERS, False),
        ([], NUMBERS, False),
        ([0.0], NUMBERS, True),
        ([], WORDS, False),
        (["a", "b"], WORDS, True),
        (["a", 1], WORDS, False),
        ("a\n", TEXT, False),
        (0, NUMBER, False),
        (2, NUMBER, True),
    ],
)
def test_a_value_of_a_certificate_has_its_form(value: object, kind: str, is_one: bool) -> None:
    assert _is(value, kind) is is_one


def test_runs_of_different_lengths_are_no_pair() -> None:
    runs = {side: {"decode_ns": times} for side, times in (("a", [1, 2]), ("b", [1]))}
    assert _check_pair({"pair": {}, "runs": runs}) == Check(
        "pair: ratio, interval, coverage and verdict from the sequences' times",
        "the runs have different numbers of sequences",
    )


def test_a_run_that_does_not_run_again_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"status": "refused", "error": "no such trace"}
    monkeypatch.setattr(certificates, "run_cell", lambda *words: row)
    cell: Any = None
    assert certificates._check_rerun({}, "b", cell) == Check(
        "b: run again", "it is refused: no such trace"
    )


@pytest.mark.parametrize(
    ("value", "kind", "is_one"),
    [
        (None, TEXT, False),
        ({}, SECTION, True),
        ([], SECTION, False),
        ({"a": 1}, SECTION, True),
        ({"a": 1}, LABELS, False),
        ({"a": None, "b": "x", "c": ["x", "y"]}, LABELS, True),
        ({"a": ["x", 1]}, LABELS, False),
        ({"a": "x\n"}, LABELS, False),
        ([1.0, "2"], INTERVAL, False),
        ("12", INTERVAL, False),
        ([1.0, -1.0], NUMBERS, False),
        ([1e18], NUMBERS, False),
        ([9e17], NUMBERS, True),
        ([True], NUMBERS, False),
        ("12", NUMBERS, False),
        (True, NUMBER, False),
        (-1, NUMBER, False),
        ("1", NUMBER, False),
        (float("nan"), NUMBER, False),
        (["a\n"], WORDS, False),
        ("ab", WORDS, False),
    ],
)
def test_a_value_that_is_nearly_of_its_form_is_not(value: object, kind: str, is_one: bool) -> None:
    assert _is(value, kind) is is_one


@pytest.mark.parametrize(
    ("mine", "theirs", "is_near"),
    [
        (2.0, 2.0 + 1.9e-9, True),
        (2.0, 2.0 + 2.1e-9, False),
        (-2.0, -2.0 - 1.9e-9, True),
        (2.0, 2, True),
        (2.0, "2.0", False),
        (2, 2, True),
        (2, 3, False),
        (0.0, 0, True),
        ([1.0, 2.0], [1.0, 2.0], True),
        ([1.0, 2.0], [1.0, 3.0], False),
        ([1.0], [1.0, 2.0], False),
        ([1.0], None, False),
        ({"a": 1.0, "b": [2]}, {"b": [2], "a": 1.0}, True),
        ({"a": 1.0}, {"a": 2.0}, False),
        ({"a": 1.0}, {"b": 1.0}, False),
        ({"a": 1.0}, {"a": 1.0, "b": 1}, False),
        ({"a": 1.0}, None, False),
        (None, None, True),
        (None, 0, False),
    ],
)
def test_numbers_agree_to_a_billionth_and_all_else_exactly(
    mine: Any, theirs: Any, is_near: bool
) -> None:
    assert certificates._near(mine, theirs) is is_near


@pytest.mark.parametrize("rerun", [False, True])
def test_other_code_is_a_fault_until_the_rerun_and_other_words_always(
    rerun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "code_of", lambda config: config)
    monkeypatch.setattr(certificates, "digest", lambda *parts: "-".join(parts))
    cell: Any = SimpleNamespace(config="here", key="k")

    def found(code: str, key: str) -> list[tuple[str, str]]:
        checks = list(certificates._check_origin({"code": code, "key": key}, cell, "b", rerun))
        assert [check.what for check in checks] == [
            "b: code that its run imports",
            "b: configuration and trace of its words",
        ]
        return [(check.fault, check.note) for check in checks]

    assert found("here", "k-here") == [("", ""), ("", "")]
    told = "it was made by code there, and here is here; "
    changed = (
        ("", f"{told}the rerun below tells whether that matters")
        if rerun
        else (f"{told}rerun=yes shows whether its numbers hold", "")
    )
    assert found("there", "k-there") == [changed, ("", "")]
    other = ("these words give k-here, the certificate has k", "")
    assert found("here", "k") == [("", ""), other]


SAME_CONFIG: dict[str, Any] = {name: {"a": 1} for name in SAME}


@pytest.mark.parametrize(
    ("change", "times", "fault"),
    [
        ({}, (2, 2, 2), ""),
        ({SAME[0]: 2, SAME[-1]: 3}, (2, 2, 2), f"they differ in {SAME[0]}, {SAME[-1]}"),
        ({}, (2, 2, 3), "times of 2 and 2 sequences, of 3"),
        ({}, (2, 1, 2), "times of 2 and 1 sequences, of 2"),
        ({}, (1, 2, 2), "times of 1 and 2 sequences, of 2"),
    ],
)
def test_runs_are_of_the_same_work_and_as_many_sequences(
    change: dict[str, Any], times: tuple[int, int, int], fault: str
) -> None:
    cells: Any = {
        "a": SimpleNamespace(config=SAME_CONFIG),
        "b": SimpleNamespace(config=SAME_CONFIG | change),
    }
    runs = {
        side: {"decode_ns": [1] * count, "decode_tokens": [1] * count}
        for side, count in zip("ab", times, strict=False)
    }
    found = certificates._check_conditions({"runs": runs, "sequences": [0] * times[2]}, cells)
    assert found == Check("both runs: the same work, model, machine and sequences", fault)


@pytest.mark.parametrize(
    ("change", "faults"),
    [
        ({}, ["", ""]),
        ({"tokens_per_s": 2.0}, ["2.5e+08, not 2.0", ""]),
        ({"at_most_faster": 1.4}, ["", "1.5, not 1.4"]),
        ({"lower_s": None}, ["", "there is no bound, not 1.5"]),
        ({"lower_s": None, "at_most_faster": None}, [""]),
        ({"decode_ns": [0, 0], "tokens_per_s": 5e9}, ["", ""]),
    ],
)
def test_a_rate_is_tokens_over_time_and_a_distance_makespan_over_bound(
    change: dict[str, Any], faults: list[str]
) -> None:
    run = {
        "decode_tokens": [2, 3],
        "decode_ns": [8, 12],
        "tokens_per_s": 2.5e8,
        "makespan_s": 3.0,
        "lower_s": 2.0,
        "at_most_faster": 1.5,
    } | change
    found = list(certificates._check_sums(run, "a"))
    whats = ["a: tokens/s from its sequences", "a: distance to its bound"]
    assert found == [Check(what, fault) for what, fault in zip(whats, faults, strict=False)]


def test_a_trace_is_read_for_both_sides_and_named_where_it_differs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(certificates, "trace_directory", lambda path: path)
    monkeypatch.setattr(certificates, "checked_header", lambda path: path)
    monkeypatch.setattr(certificates, "trace_sha256", lambda header: f"sha of {header}")
    config = lambda path: SimpleNamespace(config={"trace": {"path": path}})  # noqa: E731
    what = "trace: sha256 of every file"
    for a, b, fault in (
        ("x", "x", ""),
        ("x", "y", "b: sha of y, not sha of x, as was certified"),
        ("y", "x", "a: sha of y, not sha of x, as was certified"),
    ):
        cells: Any = {"a": config(a), "b": config(b)}
        told = certificates._check_trace({"trace_sha256": "sha of x"}, cells)
        assert told == Check(what, fault)


@pytest.mark.parametrize(
    "word",
    [
        "hydra.run.dir=x",
        "+hydra.searchpath=[x]",
        "output_dir=x",
        "++a.output_dir=x",
        "~hydra",
        "--help",
        "-m",
    ],
)
def test_a_word_that_says_where_files_lie_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        certificates._cell(["system=lru", word])
    assert str(refused.value) == (
        f"{word!r} is no word of a certificate: it chooses where files lie; what is to be certified"
        " lies in conf"
    )


def test_classes_of_conf_alone_may_be_chosen_however_deep() -> None:
    known = sorted(certificates._targets())[0]
    certificates._check_targets({"a": [{"_target_": known}, ({"b": 1},)], "_target_": None})
    for config in (
        {"_target_": "shutil.rmtree"},
        {"a": {"_target_": "shutil.rmtree"}},
        [1, {"_target_": "shutil.rmtree"}],
        {"_target_": known, "a": ({"_target_": "shutil.rmtree"},)},
    ):
        with pytest.raises(ValueError, match=r"^_target_=shutil\.rmtree is in no file of conf: "):
            certificates._check_targets(config)


@pytest.mark.parametrize(("speedup", "interval"), [(2.0, (1.5, 2.5)), (0.5, None)])
def test_a_certificate_has_both_runs_their_pair_and_what_they_were_made_with(
    speedup: float, interval: tuple[float, float] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "code_of", lambda config: f"code of {config['is']}")
    monkeypatch.setattr(certificates, "versions", lambda: "v")
    monkeypatch.setattr(certificates, "digest", lambda one: f"digest of {one}")

    def run(entry: Entry, gap: float | None) -> Entry:
        row = {
            **entry.row,
            "key": f"k {entry.name}",
            "config": f'{{"is": "{entry.name}"}}',
            "trace_sha256": "sha",
            "sequence": (1, 4),
            "decode_tokens": (5, 6),
            "makespan_s": 3.0,
            "bounds.method": "m",
            "bounds.lower_s": 2.0,
            "gap": gap,
        }
        return replace(entry, row=row)

    def told(entry: Entry, most: float | None) -> dict[str, Any]:
        return {
            "command": entry.command,
            "words": entry.words,
            "key": f"k {entry.name}",
            "code": f"code of {entry.name}",
            "labels": entry.labels.row(),
            "decode_ns": entry.row["decode_ns"],
            "decode_tokens": [5, 6],
            "tokens_per_s": entry.tokens_per_s,
            "hit_ratio": 0.876543,
            "makespan_s": 3.0,
            "bound": "m",
            "lower_s": 2.0,
            "at_most_faster": most,
        }

    a, b = run(A, 0.5), run(B, None)
    pair = Paired(speedup, interval, None, 4)
    board = replace(BOARD, coverage=BOARD.coverage if interval else None)
    monkeypatch.setattr(Board, "ahead", lambda self, ours, theirs: pair)
    assert certificates.certificate(board, a, b) == {
        "kind": "moelab certificate",
        "schema": 1,
        "claim": {"a": "a", "b": "b", "a_is": pair.verdict},
        "measure": "time of the steps that decode, by sequence; ratio: b's time over a's",
        "board": "t on h",
        "trace_sha256": "sha",
        "conditions": "digest of {}",
        "sequences": [1, 4],
        "runs": {"a": told(a, 1.5), "b": told(b, None)},
        "pair": {
            "ratio": speedup,
            "interval_95": [1.5, 2.5] if interval else None,
            "coverage": {"lowest": 0.9412, "highest": 0.9561, "trials": 4000} if interval else None,
        },
        "versions": "v",
    }


@pytest.mark.parametrize(
    ("fault", "note", "rerun", "interval"),
    [
        ("", "", "", [1.25, 2.75]),
        ("it is not", "", "rerun=yes", None),
        ("", "look", "rerun=no", None),
    ],
)
def test_the_command_prints_each_check_the_claim_the_labels_and_the_verdict(
    fault: str,
    note: str,
    rerun: str,
    interval: list[float] | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    none = Labels().row()
    content = {
        "claim": {"a": "x", "b": "y", "a_is": "faster"},
        "pair": {"ratio": 2.0, "interval_95": interval},
        "board": "t on h",
        "runs": {"a": {"labels": none | {"lossy": "lossy"}}, "b": {"labels": none}},
    }
    asked: list[bool] = []
    both = [Check("one"), Check("two", fault, note)]
    monkeypatch.setattr(certify, "read_certificate", lambda place: content)
    monkeypatch.setattr(certify, "checks", lambda found, rerun: asked.append(rerun) or both)
    words = ["certificate.json", *([rerun] if rerun else [])]
    assert certify.main(words) == (1 if fault else 0)
    assert asked == [rerun == "rerun=yes"]
    told = f"{'differs' if fault else 'holds  '} two{f': {fault or note}' if fault or note else ''}"
    low_high = "1.250, 2.750" if interval else "one sequence"
    assert capsys.readouterr().out.splitlines() == [
        "holds   one",
        told,
        f"x against y: faster, 2.000x [{low_high}] as fast; t on h. {OVER}",
        "x: lossy",
        *(
            [
                "Not checked: that the runs have these times, hits, bounds and labels. rerun=yes"
                " does that."
            ]
            if rerun != "rerun=yes"
            else []
        ),
        "It does not hold." if fault else "The certificate holds.",
    ]


@pytest.mark.parametrize(
    ("faults", "verdict"),
    [
        (("a: code that its run imports", "b: code that its run imports"), "All else holds."),
        (("a: code that its run imports", "a: tokens/s"), "It does not hold."),
    ],
)
def test_other_code_alone_is_no_verdict(
    faults: tuple[str, str],
    verdict: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    labels = {"labels": Labels().row()}
    content = {
        "claim": {"a": "x", "b": "y", "a_is": "faster"},
        "pair": {"ratio": 2.0, "interval_95": None},
        "board": "t on h",
        "runs": {"a": labels, "b": labels},
    }
    monkeypatch.setattr(certify, "read_certificate", lambda place: content)
    monkeypatch.setattr(
        certify, "checks", lambda found, rerun: [Check("trace"), *(Check(w, "no") for w in faults)]
    )
    assert certify.main(["certificate.json"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith(verdict)


def test_a_file_may_be_as_large_as_the_largest_and_is_one_of_this_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "_check_shape", lambda found, place: None)
    place = tmp_path / "c.json"
    text = '{"kind": "moelab certificate", "schema": 1}'
    place.write_text(text.ljust(certificates.LARGEST_BYTES), encoding="utf-8")
    assert certificates.read_certificate(place) == {"kind": "moelab certificate", "schema": 1}
    for other in ("[1]", text.replace("1}", "2}"), text.replace("moelab", "another")):
        place.write_text(other, encoding="utf-8")
        with pytest.raises(ValueError, match=r".") as refused:
            certificates.read_certificate(place)
        assert str(refused.value) == (
            f"{place} is no certificate of schema 1: moelab leaderboard writes"
        )
