"""The words of a fit become a request, or are refused, before a trace is read."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sim.setup import fit_requests
from sim.setup.fit_requests import FitRequest, request_of


class NextSite:
    """A predictor by its requirements."""

    def __init__(self, fit: Any) -> None:
        self.requires = SimpleNamespace(fit=fit, lookahead_sites=3)


CHOICE = SimpleNamespace(path="t", exclude=["loops"], max_sequences=2)
STATISTICS, NETWORK = SimpleNamespace(learn="learn"), SimpleNamespace(learn=None)


def trace_of(*given: Any) -> Any:
    return SimpleNamespace(given=given, header="header")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is composed (``words``), of which predictor (``part``)."""
    found: dict[str, Any] = {"part": NextSite(STATISTICS)}

    def parts(words: list[str]) -> Any:
        found["words"] = words
        return {"predictor": found["part"], "trace": CHOICE}

    monkeypatch.setattr(fit_requests, "_parts", parts)
    monkeypatch.setattr(fit_requests, "load_trace", trace_of)
    monkeypatch.setattr(
        fit_requests, "check_recorded_for", lambda *given: found.update(checked=given)
    )
    monkeypatch.setattr(fit_requests, "fit_sequences", lambda *given: given)
    return found


def test_a_request_has_its_predictor_its_trace_and_a_folder(asked: dict[str, Any]) -> None:
    words = ["predictor=a", "predictor.b=c=d", "hydra.searchpath=[x]", "trace.max_sequences=2"]
    one, trace = asked["part"], trace_of("t", 3)
    sequences: Any = (trace, ["loops"], 2)
    expected = FitRequest(one, STATISTICS, CHOICE, trace, sequences, Path("outputs/predictors"))  # type: ignore[arg-type]
    assert request_of(words) == expected
    assert (asked["words"], asked["checked"]) == (words, (one, "header"))
    folder = request_of(["output_dir=a", "predictor=a", "output_dir=mine"]).output_dir
    assert (folder, asked["words"]) == (Path("mine"), ["predictor=a"])
    asked["part"] = NextSite(NETWORK)
    assert request_of(["predictor=a"], trains=True).fit is NETWORK
    assert request_of(["predictor=a"]).fit is NETWORK


@pytest.mark.parametrize(
    ("words", "fit", "trains", "told"),
    [
        *(
            (
                [word],
                STATISTICS,
                False,
                f"{word!r} is no key=value of predictor, trace, output_dir or hydra.searchpath;"
                " leave it out",
            )
            for word in (
                "predictor",
                "predictor=",
                "cache=lru",
                "hydra.verbose=true",
                "output_dir=",
            )
        ),
        (
            ["predictor=a", "trace.split=eval"],
            STATISTICS,
            False,
            "trace.split=eval: a fit is made of the fit sequences; leave it out",
        ),
        (
            ["predictor=a", "predictor.artefact=x.json"],
            STATISTICS,
            True,
            "predictor.artefact=x.json names a fit that is there, and this makes one; leave it out",
        ),
        (
            ["trace=t"],
            STATISTICS,
            False,
            "missing predictor=NAME (a file of conf/predictor) or cache=weighted_score",
        ),
        (["predictor=a"], None, False, "NextSite has nothing to fit; moelab run takes it as it is"),
        (
            ["predictor=a"],
            STATISTICS,
            True,
            "NextSite is no network; moelab fit makes its statistics",
        ),
    ],
)
def test_what_cannot_be_fitted_is_told(
    words: list[str], fit: Any, trains: bool, told: str, asked: dict[str, Any]
) -> None:
    asked["part"] = NextSite(fit)
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        request_of(words, trains)
