"""What policies say that they require, setting by setting: a run is built and refused by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sim.policies.belady import Belady
from sim.policies.expected_needs import ExpectedNeeds
from sim.policies.importance import RecentImportance
from sim.policies.learned import LearnedPerSite
from sim.policies.lookahead import ConfidentLookahead, GateLookahead
from sim.policies.matching import ActivationMatching
from sim.policies.paths import ExpertPaths, NextSiteConditional
from sim.policies.payloads import ActiveShare, ReusedChannels
from sim.policies.precisions import LowForFew, PerExpert, ScoreThreshold, SkipLight
from sim.policies.quotas import MeasuredLoads
from sim.policies.recency import LRU
from sim.policies.references import Foreseen
from sim.policies.requires import NOTHING, FitFile, Requires
from sim.policies.reroutes import MaskedGate
from sim.policies.token_routes import TokenRoutes

TRAIN = "capture fit predictor=... trace.path=TRACE output_dir=TRACE/fits"
CHANNELS = "capture channels model=DIR trace=..."
MEASURE = "real quality_fit"
FILE = "a.json"
PAIR = ("fp16", "int4")
ROWS = ("rows",)


def trained(inputs: str, score_sites: int, artefact: str | None = None) -> FitFile:
    parameters: dict[str, str | int] = {"inputs": inputs, "stride": 2, "history": 0}
    return FitFile("learned", parameters | {"score_sites": score_sites}, artefact, command=TRAIN)


def recorded(artefact: str | None) -> FitFile:
    return FitFile("channels", None, artefact, command=CHANNELS, optional=True, learnt=False)


@pytest.mark.parametrize(
    ("policy", "requires"),
    [
        (LRU(), NOTHING),
        (LRU(initial="popular"), Requires(profile=True)),
        (LRU("site", quotas=MeasuredLoads()), Requires(profile=True, recorded=ROWS)),
        (Belady(), Requires(future=True)),
        (Belady(initial="popular"), Requires(future=True, profile=True)),
        (GateLookahead(3), Requires(lookahead_sites=3)),
        (ConfidentLookahead(), Requires(lookahead_sites=1)),
        (ExpectedNeeds(), NOTHING),
        (RecentImportance(), NOTHING),
        (Foreseen(), Requires(future=True)),
        (ActivationMatching("empty"), NOTHING),
        (LearnedPerSite("ids", 2, 0, 5), Requires(recorded=ROWS, fit=trained("ids", 0))),
        (
            LearnedPerSite("scores", 2, 0, 5),
            Requires(lookahead_sites=5, row_scores="raw", recorded=ROWS, fit=trained("scores", 5)),
        ),
        (
            LearnedPerSite("gate_input", 2, 0, 5, artefact=FILE),
            Requires(gate_inputs=True, recorded=ROWS, fit=trained("gate_input", 0, FILE)),
        ),
        (ActiveShare(0.9), Requires(active_shares=True)),
        (ActiveShare(0.9, "nominal"), NOTHING),
        (ReusedChannels(0.9), Requires(active_shares=True, fit=recorded(None))),
        (ReusedChannels(0.9, artefact=FILE), Requires(active_shares=True, fit=recorded(FILE))),
        (MaskedGate("fp16"), Requires(preferences=True)),
        (ScoreThreshold(*PAIR, 0.5, 0.9), NOTHING),
        (ScoreThreshold(*PAIR, 0.5, 0.9, (0.5, 0.9)), NOTHING),
        (ScoreThreshold(*PAIR, None, None, (0.5, 0.9)), Requires(profile=True)),
        (SkipLight("fp16", 0.9, 0.5), NOTHING),
        (SkipLight("fp16", None, 0.5), Requires(profile=True)),
        (PerExpert(*PAIR), Requires(profile=True)),
        (PerExpert(*PAIR, table=[["fp16"]]), NOTHING),
        (
            PerExpert(*PAIR, artefact=FILE),
            Requires(fit=FitFile("expert_widths", None, FILE, command=MEASURE)),
        ),
        (LowForFew(*PAIR, 0.5), NOTHING),
        (
            LowForFew(*PAIR, 0.5, artefact=FILE),
            Requires(fit=FitFile("low_share", None, FILE, command=MEASURE)),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_policy_requires_what_its_settings_need_and_no_more(
    policy: Any, requires: Requires
) -> None:
    assert policy.requires == requires


@pytest.mark.parametrize(
    ("policy", "kind", "parameters", "reads"),
    [
        (ActivationMatching(artefact=FILE), "activation_matrices", {}, ("rows", "sequences")),
        (ExpertPaths("first", artefact=FILE), "expert_paths", {"key": "first"}, ("rows", "order")),
        (ExpertPaths("set", artefact=FILE), "expert_paths", {"key": "set"}, ROWS),
        (NextSiteConditional("logs", artefact=FILE), "next_site", {}, ROWS),
        (TokenRoutes(artefact=FILE), "token_routes", {}, ROWS),
    ],
)
def test_a_fitted_predictor_makes_its_own_file(
    policy: Any, kind: str, parameters: dict[str, str | int], reads: tuple[str, ...]
) -> None:
    fit = policy.requires.fit
    assert replace(policy.requires, fit=None) == Requires(recorded=reads)
    assert fit == FitFile(kind, parameters, FILE, policy.fit)
    assert (fit.optional, fit.learnt) == (False, True)
