"""The gates of a run whose words name no trace are those of its model.

Contracts: C173
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.round_machine import small
from sim.answers.ask_fits import fit_beside
from sim.fitting.artefact import read_artefact
from sim.machine.model import Model
from sim.setup import own_gates as module
from sim.setup.choices import TraceChoice
from sim.setup.configure import configure
from sim.setup.own_gates import KEPT, OwnGates, own_gates, preset_of, recorded, with_gates
from sim.setup.parts import make_model
from sim.setup.refusals import checked_settings
from sim.setup.whole import with_whole
from sim.study.cells import make_cell
from sim.study.plan import Plan
from sim.study.trials import prepared
from sim.synthetic.synthesis import Request
from sim.traces.trace import read_header

FEW = Request("", 2, sequences=4, prompt_tokens=3)
SYSTEMS = ("eap", "edgemoe", "moe_infinity", "sida")


@pytest.fixture(autouse=True)
def few_gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept in a folder of the test, and usually few."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own_gates, "__defaults__", (FEW,))


def config_of(*words: str):
    return checked_settings(configure(*words, "outputs=summary")[0])


def model_of(*words: str) -> Model:
    return make_model(config_of(*words))


def made() -> list[Path]:
    return sorted(KEPT.iterdir()) if KEPT.exists() else []


@pytest.mark.parametrize(
    ("words", "trace"),
    [
        ([], "tiny_mixtral"),
        (["model=tiny_mixtral"], "tiny_mixtral"),
        (["model=tiny_qwen2moe"], "tiny_qwen2moe"),
        (["model=tiny_switch"], "tiny_switch"),
        (["model=tiny_switch", "trace=tiny_mixtral"], "tiny_mixtral"),
        # Its gates are declared, whatever its sizes.
        (["model.hidden=64"], "tiny_mixtral"),
    ],
)
def test_recorded_gates_of_the_model_are_taken_unless_the_words_name_a_trace(
    words: list[str], trace: str
) -> None:
    assert with_gates(config_of(*words))["trace"]["path"] == f"capture/assets/traces/{trace}"
    assert made() == []


def test_synthetic_gates_of_the_model_are_made_once_and_kept() -> None:
    words = ("model=switch_base_8", "system=lru", "budget=fit")
    run = prepared(words)
    assert run.trace.header.name == "synthetic_switch_base_8"
    (place,) = made()
    assert run.config["trace"]["path"] == str(place)
    written = (place / "routes.parquet").stat().st_mtime_ns
    again = prepared([*words, "trace.max_sequences=1"])
    assert made() == [place]
    assert (place / "routes.parquet").stat().st_mtime_ns == written
    assert len(again.workload.sequences) == 1
    assert own_gates(model_of("model=switch_base_8"), Request("", 3, sequences=2)).path != str(
        place
    )


def test_gates_are_made_anew_where_what_makes_them_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = model_of("model=switch_base_8")
    first = own_gates(model)
    monkeypatch.setattr(module, "_makers", lambda: "other code")
    assert own_gates(model).path != first.path


def test_a_model_of_the_shape_of_a_preset_gets_its_gates_as_a_transplant() -> None:
    words = ("model=mixtral_8x7b", "model.name=mine", "model.expert_intermediate=7168")
    config = with_gates(config_of(*words))
    assert config["model"]["gates_of"] == "synthetic_mixtral_8x7b"
    assert config["model"]["sizes_of"] == "mine"
    run = prepared([*words, "system=lru", "budget.resident_share=0.1"])
    assert run.model.transplant
    assert len(made()) == 1


def test_a_model_without_gates_is_refused_with_the_ways_to_some() -> None:
    with pytest.raises(ValueError, match=r"no gates of 32 x 9 top-2 for model mixtral_8x7b.*trace"):
        with_gates(config_of("model=mixtral_8x7b", "model.experts=9"))


def test_every_verb_that_runs_takes_them_as_a_study_does() -> None:
    """A cell is planned with the gates that its run takes, so its key names their digest."""
    cell = make_cell(Plan("p", base=("model=switch_base_8", "system=lru")), {})
    (place,) = made()
    assert cell.config["trace"]["path"] == str(place)
    assert cell.trace_sha256 is not None
    assert make_cell(Plan("p", base=("model.experts=9",)), {}).trace_sha256 is not None
    odd = make_cell(Plan("p", base=("model=mixtral_8x7b", "model.experts=9")), {})
    assert odd.trace_sha256 is None, "its run says why"


def test_presets_are_found_by_name_before_shape() -> None:
    assert recorded(model_of("model=mixtral_8x7b")) is None
    near = preset_of(model_of("model=mixtral_8x22b"))
    assert near is not None
    assert near.name == "mixtral_8x22b"


@pytest.mark.thorough
def test_what_systems_learn_is_fitted_on_gates_that_nobody_is_judged_on() -> None:
    words = ("model=switch_base_8", "budget=fit")
    run = prepared([*words, "system=lru"])
    (place,) = made()
    with pytest.raises(ValueError, match=rf"no fit next_site .*trace\.path={place} output_dir="):
        prepared([*words, "system=eap"])
    assert fit_beside(run.trace, place) == SYSTEMS
    judged = {one.sequence for one in run.workload.sequences}
    assert (
        sorted(path.suffix for path in (place / "fits").iterdir()) == [".json"] * 4 + [".npz"] * 4
    )
    for fit in (place / "fits").glob("*.json"):
        learnt_on = read_artefact(fit).sequences
        assert len(learnt_on) == 2
        assert not judged & set(learnt_on)
    for system in SYSTEMS:
        prepared([*words, f"system={system}"])
    assert read_header(place).name == "synthetic_switch_base_8"


def test_gates_of_another_model_are_chosen_with_the_sizes_of_this_one() -> None:
    model = replace(small(), name="big")
    own = OwnGates("traces/t", "told")
    assert own.words(model) == ["trace.path=traces/t"]
    assert replace(own, gates_of="tiny").words(model) == [
        "trace.path=traces/t",
        "model.gates_of=tiny",
        "model.sizes_of=big",
    ]


def test_what_a_whole_model_is_stands_in_its_file_or_was_given() -> None:
    mixtral = replace(small(), name="mixtral_8x7b")
    assert with_whole(mixtral).whole == (32, 8, 2)
    assert with_whole(replace(mixtral, whole=(1, 2, 1))).whole == (1, 2, 1)
    assert with_whole(replace(small(), name="nobodys")).whole is None


@pytest.mark.parametrize("path", ["", 3])
def test_a_trace_is_a_directory(path: Any) -> None:
    with pytest.raises(
        ValueError, match=rf"^trace\.path={path!r} must be the directory of a trace$"
    ):
        TraceChoice(path, "eval", (), None)
