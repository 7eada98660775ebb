"""A trial that is kept is read again; one that is broken is simulated and written anew."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from sim.study import trials
from sim.study.trials import Trial, kept_trial, slots_a_layer, tokens_per_s


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[Trial]:
    """The trials that were simulated; each has its number in every part."""
    ran: list[Trial] = []

    def trial(words: Any) -> Trial:
        number, end = len(ran), {"end_ns": [len(ran)]}
        tables = pl.DataFrame(end), pl.DataFrame({"sequence": [number]})
        ran.append(Trial({"at": number}, {"seed": number}, *tables))
        return ran[-1]

    monkeypatch.setattr(trials, "trial", trial)
    monkeypatch.setattr(trials, "_key", " ".join)
    return ran


def plain(found: Trial) -> tuple[Any, ...]:
    return found.summary, found.config, found.tokens.to_dicts(), found.sequences.to_dicts()


def test_a_trial_is_simulated_once_and_then_read(tmp_path: Path, simulated: list[Trial]) -> None:
    # A name in brackets is no pattern.
    tmp_path = tmp_path / "x [y]"
    tmp_path.mkdir()
    first = kept_trial(["a"], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "a.json",
        "a.tokens.parquet",
        "a.sequences.parquet",
    }
    assert plain(kept_trial(["a"], tmp_path)) == plain(first)
    assert plain(first) == ({"at": 0}, {"seed": 0}, [{"end_ns": 0}], [{"sequence": 0}])
    assert kept_trial(["b"], tmp_path).summary == {"at": 1}
    assert kept_trial(["a"], None).summary == {"at": 2}
    assert len(simulated) == 3


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", None),
        ("a.json", "{"),
        ("a.json", '{"summary": {}}'),
        ("a.json", "[]"),
        ("a.tokens.parquet", "no table"),
        ("a.sequences.parquet", None),
    ],
)
def test_a_trial_that_lost_a_part_is_simulated_anew(
    name: str, text: str | None, tmp_path: Path, simulated: list[Trial]
) -> None:
    kept_trial(["a"], tmp_path)
    if text is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert kept_trial(["a"], tmp_path) is simulated[1]
    assert plain(kept_trial(["a"], tmp_path)) == plain(simulated[1])


def test_a_trial_is_made_of_its_words_and_of_a_trace_with_every_column(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trials._trace.cache_clear()
    asked: list[Any] = []
    config = {"trace": {"path": str(tmp_path)}}
    monkeypatch.setattr(trials, "configure", lambda *words: (asked.append(words) or words, "lru x"))
    monkeypatch.setattr(trials, "checked_settings", lambda cfg: cfg)
    monkeypatch.setattr(trials, "with_gates", lambda cfg: config)
    monkeypatch.setattr(trials, "load_trace", lambda path, **columns: (path, columns))
    monkeypatch.setattr(trials, "build", lambda *given, changed: (*given, changed))
    words = ["system=lru", "trace.max_sequences=1"]
    trace = (
        str(tmp_path),
        {"lookahead_sites": 1, "active_shares": True, "logits": True},
    )
    assert trials.prepared(words) == (config, "lru x", trace, ["trace.max_sequences=1"])
    assert asked == [("outputs=summary", *words)]
    run = SimpleNamespace(config="config")
    frames = SimpleNamespace(tokens="tokens", sequences="sequences")
    monkeypatch.setattr(trials, "prepared", lambda words: run)
    monkeypatch.setattr(
        trials, "execute", lambda one: SimpleNamespace(summary="summary", frames=frames)
    )
    found: Any = trials.trial(words)
    assert vars(found) == {
        "summary": "summary",
        "config": "config",
        "tokens": "tokens",
        "sequences": "sequences",
    }


@pytest.mark.parametrize(("contracts", "slots"), [({}, 3.0), ({"draft_experts": True}, 9 / 4)])
def test_slots_are_over_all_layers_and_those_of_drafts_where_these_have_experts(
    contracts: dict[str, bool], slots: float
) -> None:
    summary = {"budget": {"slots": {"high": 6, "low": 3}}, "contracts": contracts}
    config = {"model": {"sites": 3}, "workload": {"draft_layers": 1}}
    assert slots_a_layer(Trial(summary, config, pl.DataFrame(), pl.DataFrame())) == slots


def test_a_trial_that_decodes_nothing_has_no_speed_and_says_so() -> None:
    trace = {"name": "prompts", "sequences": 3}

    def told(rate: float | None) -> Trial:
        empty = pl.DataFrame()
        return Trial({"decode_tokens_per_s": rate, "trace": trace}, {}, empty, empty)

    assert tokens_per_s(told(2.5)) == 2.5
    with pytest.raises(ValueError, match="nothing is decoded in 3 sequences of prompts, so there"):
        tokens_per_s(told(None))


def test_a_machine_is_named_by_either_key_and_told_by_its_own() -> None:
    said = ["system=lru", "machine=rtx3090_pcie4", "machine.memory_gib=30", "trace.max_sequences=1"]
    own = [word.replace("machine", "hardware") for word in said]
    first, second = trials.prepared(said), trials.prepared(own)
    assert first.hardware == second.hardware
    assert first.changed == second.changed == tuple(own[1:])
    assert trials._key(said) == trials._key(own)
