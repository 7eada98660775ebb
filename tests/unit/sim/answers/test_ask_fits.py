"""Systems whose statistics the trace's rows do not tell are left for their own run to refuse."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sim.answers import ask_fits
from sim.answers.ask_fits import fit_beside


def test_what_rows_do_not_tell_and_networks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    learned = {
        "counts": lambda: None,
        "gates": lambda: None,
        "network": None,
    }
    fits = {name: SimpleNamespace(name=name, learn=learn) for name, learn in learned.items()}

    def from_rows(fit: Any, trace: object, sequences: object) -> str:
        if fit.name == "gates":
            raise ValueError("the trace has no logits")
        return f"{fit.name} of {trace} {sequences}"

    chosen = {"a": "gates", "d": "counts", "c": "network", "b": "counts", "e": "none", "f": ""}
    written: list[tuple[Path, str, str]] = []
    monkeypatch.setattr(ask_fits, "names", lambda group: [*chosen])
    monkeypatch.setattr(ask_fits, "chosen_by", lambda system, group: chosen[system])
    monkeypatch.setattr(
        ask_fits,
        "predictor_of",
        lambda name: SimpleNamespace(requires=SimpleNamespace(fit=fits.get(name))),
    )
    monkeypatch.setattr(ask_fits, "fit_sequences", lambda trace: (3, 5))
    monkeypatch.setattr(ask_fits, "fit_from_rows", from_rows)
    monkeypatch.setattr(ask_fits, "write_artefact", lambda *words: written.append(words))
    assert fit_beside(cast(Any, "trace"), Path("there")) == ("b", "d")
    assert written == [(Path("there/fits"), "counts", "counts of trace (3, 5)")]
