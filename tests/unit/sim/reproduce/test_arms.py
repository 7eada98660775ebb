"""An arm follows from its words; its result is kept under two names, or a refusal says why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.reproduce import arms, keys
from sim.reproduce.arms import Arm, ArmError, Job, expand, load, result_path, run_job, save
from sim.reproduce.durations import Timing
from sim.reproduce.measured import Measured
from sim.reproduce.roles import Paper

WORDS = {"fast": ["hardware=a", "hardware.x=1"], "all": ["fast", "trace=one"]}
CALIBRATED = {"host_us": {"key": "hardware.host.us", "to": "H001"}}
PAPER = Paper("p", "P", "here", (), {}, {"one": {}, "two": {}}, WORDS, {}, CALIBRATED, {})
NUMBERS = Measured(
    [1.0],
    [2.0],
    [3.0],
    [4],
    [5.0],
    [6.0],
    [7.0],
    [8.0],
    0.1,
    0.2,
    0.3,
    0.4,
    0.5,
    9,
    "g",
    {"a": "b"},
)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["all"], Arm(("hardware=a", "hardware.x=1"), "one")),
        (["all", "trace=two", "timing=t"], Arm(("hardware=a", "hardware.x=1"), "two", "t")),
        (["all", "hardware=b"], Arm(("hardware=b",), "one")),
        (["all", "hardware=a"], Arm(("hardware=a",), "one")),
        (["all", "hardware.x=2", "seed=1"], Arm(("hardware=a", "hardware.x=2", "seed=1"), "one")),
        (["all", "hardwares=b"], Arm(("hardware=a", "hardware.x=1", "hardwares=b"), "one")),
        (["trace=one", "c.d.e=1", "c.de=2", "c.d={f:3}"], Arm(("c.de=2", "c.d={f:3}"), "one")),
        (["trace=one", "c=lru", "c=d=e"], Arm(("c=d=e",), "one")),
        (["trace=one", "calibrated=host_us"], Arm(("hardware.host.us=1.235",), "one")),
        (
            ["trace=one", "calibrated=host_us", "hardware.host.us=7"],
            Arm(("hardware.host.us=7",), "one"),
        ),
    ],
)
def test_an_arm_has_the_last_of_each_word(words: list[str], expected: Arm) -> None:
    assert expand(PAPER, words, {"host_us": 1.23456}) == expected


def test_a_constant_that_is_not_drawn_yet_is_nothing() -> None:
    arm = expand(PAPER, ["trace=one", "calibrated=host_us"], {})
    assert arm.words == ("hardware.host.us=0.000",)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fats"], "P: the word 'fats' is neither a list of words nor name=value"),
        (["trace=six"], "P: trace='six' is none of one, two"),
        (["fast"], "P: trace='' is none of one, two"),
    ],
)
def test_words_that_make_no_arm_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ArmError) as refused:
        expand(PAPER, words, {})
    assert str(refused.value) == message


def job(fits: dict[str, Path] | None = None, timing: Timing | None = None, **arm: Any) -> Job:
    asked = Arm(**{"words": ("a=1",), "trace": "one", **arm})
    return Job(asked, Path("traces/one"), "digest", fits or {}, timing)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The runs that were simulated; their configurations are of one value."""
    ran: list[tuple[Any, ...]] = []

    def measure(*asked: Any) -> Measured:
        ran.append(asked)
        return NUMBERS

    config = {"trace": {"path": "x"}, "predictor": {}}
    monkeypatch.setattr(arms, "composed", lambda job: (config, None))
    monkeypatch.setattr(arms, "measure", measure)
    # What the code is counts for every key alike, and takes long to read.
    monkeypatch.setattr(keys, "wide_sources", lambda: "all")
    monkeypatch.setattr(keys, "code_digest", lambda *modules: "some")
    return ran


def test_a_result_is_kept_under_its_key_and_that_under_the_words(
    tmp_path: Path, measured: list[Any]
) -> None:
    one, timed = job(), job(timing=Timing(1.0, 0.5, 2.0, 3.0, in_line=False))
    assert one.kept_at(tmp_path) is None
    assert run_job(one, tmp_path) is True
    (known,) = (tmp_path / "known").iterdir()
    key = known.read_text(encoding="ascii")
    assert (known, one.kept_at(tmp_path)) == (one.known(tmp_path), result_path(tmp_path, key))
    assert load(result_path(tmp_path, key)) == NUMBERS
    assert run_job(one, tmp_path) is False
    assert (timed.kept_at(tmp_path), run_job(timed, tmp_path)) == (None, True)
    assert [asked[1:] for asked in measured] == [
        (Path("traces/one"), None),
        (Path("traces/one"), timed.timing),
    ]
    assert len(list((tmp_path / "runs").iterdir())) == 2, "no half of a file is left"
    result_path(tmp_path, key).unlink()
    assert one.kept_at(tmp_path) is None


def test_the_name_of_a_job_follows_from_words_trace_timing_and_fits(
    tmp_path: Path, measured: list[Any]
) -> None:
    (tmp_path / "fit.json").write_text("1", encoding="ascii")
    fit = {"next_site": tmp_path / "fit.json"}
    others = [
        job(),
        job(words=("a=2",)),
        job(fits=fit),
        job(timing=Timing(1.0, 0.5, 2.0, 3.0, in_line=False)),
        job(timing=Timing(1.0, 0.5, 2.0, 3.0, in_line=True)),
    ]
    names = {one.known(tmp_path) for one in others}
    (tmp_path / "fit.json").write_text("2", encoding="ascii")
    assert len(names | {job(fits=fit).known(tmp_path)}) == 6
    assert job(trace="two").known(tmp_path) in names, "a trace counts by its digest"


def test_a_run_that_cannot_be_says_which(
    tmp_path: Path, measured: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*asked: Any) -> Measured:
        raise ValueError("no room")

    monkeypatch.setattr(arms, "measure", refuse)
    with pytest.raises(ArmError, match=r"^a=1 b=2 on one: no room$"):
        run_job(job(words=("a=1", "b=2")), tmp_path)
    assert not (tmp_path / "known").exists()


def test_a_word_that_makes_no_configuration_says_which() -> None:
    with pytest.raises(ArmError, match=r"^colour\.red=1 on one: colour\.red is no setting: "):
        arms.composed(job(words=("colour.red=1",)))


def test_a_result_is_written_whole_as_one_line(tmp_path: Path) -> None:
    save(tmp_path / "far" / "new" / "one.json", NUMBERS)
    text = (tmp_path / "far" / "new" / "one.json").read_text(encoding="utf-8")
    assert text.endswith("}\n")
    assert {"decode_ns": [1.0], "device_bytes": 9, "gates": "g"}.items() <= json.loads(text).items()
    assert [path.name for path in (tmp_path / "far" / "new").iterdir()] == ["one.json"]


def test_a_predictor_is_given_the_fit_that_is_of_its_class(tmp_path: Path) -> None:
    fits = {}
    for option in ("expert_paths", "next_site"):
        fits[option] = tmp_path / option / "fit.json"
        fits[option].parent.mkdir()
        fits[option].write_text(option, encoding="ascii")
    own = fits["next_site"]
    needs = {"_target_": "sim.policies.NextSiteConditional", "artefact": None}
    assert arms._give_fit(needs, fits) == keys.files_digest([own])
    assert needs == {"_target_": "sim.policies.NextSiteConditional", "artefact": str(own)}
    for other in (
        {"_target_": "sim.policies.NextSiteConditional", "artefact": "given"},
        {"_target_": "x"},
    ):
        before = dict(other)
        assert (arms._give_fit(other, fits), other) == (None, before)
    lacks = {"_target_": "sim.policies.NextSiteConditional", "artefact": None}
    assert arms._give_fit(lacks, {"expert_paths": fits["expert_paths"]}) is None
    assert lacks["artefact"] is None
