"""Training networks: on the fit split alone, reproducibly, and with known answers found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from capture.fit import Site, Training, main, parse, recall, train_site
from sim.fitting.artefact import read_artefact
from sim.traces.trace import read_trace
from sim.values.places import ROOT

QUICK = ("epochs=1", "trace.max_sequences=4")


def linear_rule(rows: int = 800) -> Site:
    """Four experts; the two with the largest of four linear scores are wanted.

    One feature never changes.
    """
    rng = np.random.default_rng(0)
    features = np.concatenate(
        [rng.standard_normal((rows, 6)) * 5 + 3, np.ones((rows, 1))], axis=1
    ).astype(np.float32)
    scores = (features[:, :6] - 3) @ rng.standard_normal((6, 4))
    wanted = np.zeros((rows, 4), np.float32)
    np.put_along_axis(wanted, np.argsort(-scores, axis=1)[:, :2], 1, axis=1)
    return Site(features, wanted, np.arange(rows) % 8 == 0)


@pytest.mark.parametrize("width", [0, 16])
def test_a_rule_that_a_network_can_hold_is_learnt(width: int) -> None:
    """Chance is 1/2.

    The layers that come back take the features as they are, without centring or scaling.
    """
    data = linear_rule()
    layers = train_site(
        data, width, Training(epochs=60, rate=0.02), torch.Generator().manual_seed(1)
    )
    assert [weight.shape for weight, _ in layers] == ([(7, 16), (16, 4)] if width else [(7, 4)])
    values: Any = data.features
    for number, (weight, bias) in enumerate(layers):
        values = (np.maximum(values, 0) if number else values) @ weight + bias
    assert recall(values, data) > 0.93


def test_what_is_held_out_is_not_learnt() -> None:
    """Held-out rows decide at most which epoch is kept.

    So with one epoch, other wishes of theirs change nothing.
    """
    data = linear_rule()
    changed = data.wanted.copy()
    changed[data.held_out] = changed[data.held_out][:, ::-1]
    layers = [
        train_site(one, 0, Training(epochs=1), torch.Generator().manual_seed(1))
        for one in (data, replace(data, wanted=changed))
    ]
    assert all((a[0] == b[0]).all() and (a[1] == b[1]).all() for a, b in zip(*layers, strict=True))


def test_recall_counts_held_out_rows_alone() -> None:
    """By hand, with the scores 3 2 1 in both rows:

    - The first row wants {0, 1}: 2 of 2 found. The second wants {2}: 0 of 1.
    - If only the second is held out: 0 of 1. If both are: 2 of 3.
    """
    wanted = np.array([[1, 1, 0], [0, 0, 1]], np.float32)
    scores = np.array([[3.0, 2.0, 1.0]] * 2)
    assert recall(scores, Site(wanted, wanted, np.array([False, True]))) == 0
    assert recall(scores, Site(wanted, wanted, np.array([True, True]))) == pytest.approx(2 / 3)


def test_the_command_trains_on_the_fit_split_and_says_how(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["predictor=learned", *QUICK, "width=16", "seed=3"]
    assert main([*words, f"output_dir={tmp_path / 'a'}"]) == 0
    artefact = read_artefact(tmp_path / "a" / "learned-scores-1-1-3.json")
    assert artefact.sequences == (0, 1, 2, 3)
    splits = {
        s.sequence: s.split
        for s in read_trace(ROOT / "capture/assets/traces/tiny_mixtral").header.sequences
    }
    assert {splits[number] for number in artefact.sequences} == {"fit"}
    assert artefact.results["seed"] == 3
    assert f"recall {artefact.results['held_out_recall']:.3f}" in capsys.readouterr().out
    # The hidden layer shrinks with depth, from 16 units to fewer than the eight experts, where it
    # is left out.
    widths = [
        artefact.arrays[f"site{s}_w0"].shape[1] if f"site{s}_w1" in artefact.arrays else 0
        for s in range(15)
    ]
    assert widths == [16, 15, 14, 13, 11, 10, 9, 8, 0, 0, 0, 0, 0, 0, 0]
    assert main([*words, f"output_dir={tmp_path / 'b'}"]) == 0
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), "the same networks"


@pytest.mark.alike
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["predictor=next_site"],
            "NextSiteConditional is no network; moelab fit makes its statistics",
        ),
        (["predictor=learned", "epochs=0"], "epochs=0 must be a number above 0"),
        (["predictor=learned", "rate=fast"], "rate=fast must be a number (float)"),
        (["predictor=learned", "predictor.score_sites=4"], "fewer predictor.score_sites"),
        (
            ["predictor=learned", "trace.max_sequences=1"],
            "1 fit sequence, but training holds one out",
        ),
        (["predictor=learned", "depth=2"], "'depth=2' is no key=value"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_one_message(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, f"output_dir={tmp_path / 'fits'}"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "fits").exists()


def test_settings_are_told_from_other_words() -> None:
    training, rest = parse(["predictor=learned", "width=8", "rate=0.01", "trace=tiny_mixtral"])
    assert training == Training(width=8, rate=0.01)
    assert rest == ["predictor=learned", "trace=tiny_mixtral"]
