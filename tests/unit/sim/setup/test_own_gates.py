"""The gates of a run whose words name no trace are those of its model.

Contracts: C173
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.round_machine import small
from sim.answers.ask_fits import fit_beside
from sim.fitting.artefact import read_artefact
from sim.machine.model import Model
from sim.setup import own_gates as module
from sim.setup import whole
from sim.setup.choices import TraceChoice
from sim.setup.configure import configure
from sim.setup.own_gates import KEPT, USUAL, OwnGates, own_gates, preset_of, recorded, with_gates
from sim.setup.parts import make_model
from sim.setup.refusals import checked_settings
from sim.setup.whole import with_whole
from sim.study.cells import make_cell
from sim.study.plan import Plan
from sim.study.trials import prepared
from sim.synthetic.synthesis import Request
from sim.traces.trace import TraceError, read_header
from sim.values.fields import HEADER_FILE

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
    with pytest.raises(
        ValueError, match=r"no gates of 32 x 9 top-2 for model mixtral_8x7b.*trace.*another shape"
    ):
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


def preset_by_hand(**more: Any) -> Any:
    shape = {"name": "shape", "hidden": 64, "expert_intermediate": 128}
    values: dict[str, Any] = {
        "name": "p",
        "nearest": None,
        "layers": [(1, 2, 3), (1, 2)],
        "reading": lambda _: "reading",
        "shape": SimpleNamespace(**shape),
    }
    return SimpleNamespace(**{**values, **more})


def test_synthetic_gates_are_told_with_their_preset_and_the_sizes_of_another_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "recorded", lambda model: None)
    monkeypatch.setattr(module, "_made", lambda preset, request: Path(f"made/{request.tokens}"))
    found = preset_by_hand()
    monkeypatch.setattr(module, "preset_of", lambda model: found)
    told = "SYNTHETIC gates, from published statistics of p"
    for hidden, intermediate, of in ((64, 128, None), (65, 128, "shape"), (64, 129, "shape")):
        model: Any = SimpleNamespace(hidden=hidden, expert_intermediate=intermediate)
        assert own_gates(model) == OwnGates("made/2", told, True, of)
    found.nearest = "q"
    assert own_gates(model).told == f"{told}, borrowed from q"
    assert (USUAL.tokens, USUAL.sequences, USUAL.prompt_tokens) == (24, 8, 48)
    monkeypatch.setattr(module, "_bundled", lambda: {"r": ("traces/r", {})})
    monkeypatch.setattr(module, "recorded", lambda model: "r")
    assert own_gates(model) == OwnGates("traces/r", "gates recorded from r", False, None)


def test_gates_that_are_there_are_not_made_and_what_another_process_wrote_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def writes(place: Path, trace: str, _: object) -> None:
        asked.append(trace)
        place.mkdir(parents=True)
        (place / HEADER_FILE).touch()

    def breaks(place: Path, trace: str, _: object) -> None:
        raise OSError("full")

    def late(place: Path, trace: str, _: object) -> None:
        writes(place, trace, _)
        raise TraceError("t", "x", 1, "must be empty")

    monkeypatch.setattr(module, "_makers", lambda: "makers")
    monkeypatch.setattr(module, "load_fit", lambda preset, reading: (preset.name, reading))
    monkeypatch.setattr(
        module, "synthesize_like", lambda *given: asked.append(given) or SimpleNamespace(trace="t")
    )
    monkeypatch.setattr(module, "write_trace", writes)
    preset = preset_by_hand()
    place = module._made(preset, replace(FEW, lookahead=7))
    assert re.fullmatch(r"outputs/gates/p-[0-9a-f]{8}", str(place))
    # The shortest layer forecasts one site ahead.
    assert asked == [(preset, ("p", "reading"), replace(FEW, like="p", lookahead=1)), "t"]
    assert module._made(preset, replace(FEW, lookahead=1)) == place
    assert module._made(preset, replace(FEW, lookahead=0)) != place
    assert len(asked) == 4
    monkeypatch.setattr(module, "write_trace", late)
    assert (module._made(preset, replace(FEW, tokens=5)) / HEADER_FILE).is_file()
    monkeypatch.setattr(module, "write_trace", breaks)
    with pytest.raises(OSError, match="full"):
        module._made(preset, replace(FEW, tokens=6))


def test_what_makes_gates_is_every_program_and_preset_of_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "PRESETS", tmp_path / "presets")
    digests = [module._makers.__wrapped__()]
    for name in ("sim/synthetic/a.py", "sim/traces/b/c.json", "presets/d.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
        digests.append(module._makers.__wrapped__())
        (tmp_path / name).with_suffix(".txt").write_text(name)
        assert module._makers.__wrapped__() == digests[-1]
    assert len(set(digests)) == 4


def test_a_bundled_trace_is_of_a_model_of_all_its_sizes_or_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = {"sites": 2, "experts": 4, "top_k": 1, "hidden": 8, "expert_intermediate": 16}
    monkeypatch.setattr(module, "_bundled", lambda: {"t": ("traces/t", {"name": "m", **sizes})})
    same: Any = SimpleNamespace(**sizes, gates_of=None)
    assert recorded(same) == "t"
    for key in sizes:
        other: Any = SimpleNamespace(**{**sizes, key: 5}, gates_of=None)
        assert recorded(other) is None
        other.gates_of = "m"
        assert recorded(other) == "t"


def test_the_whole_of_a_model_is_that_of_the_file_whose_sizes_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files: dict[str, dict[str, Any]] = {
        "big": {"sites": 3, "experts": 5, "top_k": 2},
        "part": {"sizes_of": "big", "sites": 1, "experts": 5, "top_k": 2},
        "bare": {"sites": 3, "experts": 5},
    }
    monkeypatch.setattr(whole, "read", lambda place: files[place.stem])
    shape = whole._whole_shape.__wrapped__
    assert [shape(name) for name in ("big", "x/part", "bare")] == [(3, 5, 2), (3, 5, 2), None]
    monkeypatch.setattr(whole, "_whole_shape", {"n": (9, 8, 7), "s": (6, 5, 4)}.get)
    one = replace(small(), name="n")
    assert with_whole(one).whole == (9, 8, 7)
    assert with_whole(replace(one, gates_of="g", sizes_of="s")).whole == (6, 5, 4)
