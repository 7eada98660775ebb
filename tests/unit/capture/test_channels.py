"""Which channels of the next layer's experts a gate input names: by hand and on the bundled model.

Oracle: the masks and shares that the capture itself measured.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from capture.channels import main, named_and_found
from sim.fitting.artefact import read_artefact
from sim.traces.trace import read_trace
from sim.values.places import ROOT

MODEL = ROOT / "capture" / "assets" / "tiny_mixtral"
SHIPPED = ROOT / "capture" / "assets" / "predictors" / "tiny_mixtral" / "channels.json"
TRACE = ROOT / "capture" / "assets" / "traces" / "tiny_mixtral"


def test_counts_of_one_expert_by_hand() -> None:
    """Two rows, four channels, thresholds 1 and 2.

    The second row chose the expert and made channels 0 and 1 active at the first threshold, channel
    1 at the second. Named are channels 1, 2, 3 at the first and 1, 3 at the second.
    """
    values = np.array([[0.5, 1.0, 2.0, 0.0], [0.9, 2.0, 1.5, 3.0]], np.float32)
    masks = np.array([[[1, 1, 0, 0], [0, 1, 0, 0]]], np.bool_)
    named, found, active = named_and_found(
        values, np.array([1, 2], np.float32), np.array([1]), masks
    )
    assert named.tolist() == [[2, 1], [3, 2]], "a value at its threshold is active"
    assert found.tolist() == [[0, 0], [1, 1]]
    assert active.tolist() == [[0, 0], [2, 1]]


@pytest.mark.thorough
def test_what_comes_with_the_project_is_what_the_command_makes(tmp_path: Path) -> None:
    assert main([f"model={MODEL}", "trace=tiny_mixtral", f"output_dir={tmp_path}"]) == 0
    made, shipped = read_artefact(tmp_path / "channels.json"), read_artefact(SHIPPED)
    assert made.arrays.keys() == shipped.arrays.keys()
    for name, values in shipped.arrays.items():
        # A channel at its threshold may fall to the other side on another machine.
        wrong = np.count_nonzero(made.arrays[name] != values)
        assert wrong <= values.size / 1000, name
    assert made.results == pytest.approx(shipped.results, abs=1e-3)


def test_active_channels_are_those_that_the_trace_recorded() -> None:
    artefact, trace = read_artefact(SHIPPED), read_trace(TRACE, ("active_shares",))
    assert trace.active_shares is not None
    row_at = {
        (s, p): n
        for n, (s, p) in enumerate(
            zip(trace.sequence.tolist(), trace.position.tolist(), strict=True)
        )
    }
    sequence, position = artefact.arrays["sequence"].tolist(), artefact.arrays["position"].tolist()
    rows = [row_at[at] for at in zip(sequence, position, strict=True)]
    active = np.take_along_axis(
        artefact.arrays["active"], trace.ids[rows].astype(np.int64)[..., None], 2
    )
    recorded = trace.active_shares[rows] * int(artefact.arrays["width"][0])
    assert np.allclose(active[:, 1:], recorded[:, 1:], atol=1e-3)
    assert (
        artefact.arrays["found"] <= np.minimum(artefact.arrays["named"], artefact.arrays["active"])
    ).all()
    assert artefact.results["recall_0.9"] == pytest.approx(
        artefact.arrays["found"][..., 2].sum() / artefact.arrays["active"][..., 2].sum(), abs=1e-6
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "missing model="),
        ([f"model={MODEL}", "trace=none_such"], "none_such"),
        (
            [f"model={MODEL.with_name('tiny_switch')}", "trace=tiny_switch"],
            "capture it with hidden_sequences=4 or more",
        ),
    ],
)
def test_what_cannot_be_counted_is_refused_in_one_message(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, f"output_dir={tmp_path / 'out'}"]) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert told.err.strip().startswith("channels: ")
    assert not (tmp_path / "out").exists()


def test_another_checkpoint_of_the_same_shape_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(MODEL, tmp_path / "other")
    place = tmp_path / "other" / "model.safetensors"
    tensors = load_file(place)
    save_file({name: values * 2 for name, values in tensors.items()}, place, {"format": "pt"})
    told = [f"model={place.parent}", "trace=tiny_mixtral", f"output_dir={tmp_path / 'out'}"]
    assert main(told) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "but trace tiny_mixtral was captured from a7b3d369503a; name those" in error
    assert not (tmp_path / "out").exists()
