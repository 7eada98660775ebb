"""The claims' files: every claim of the four papers has one role.

None is scored that must not be.
"""

from __future__ import annotations

import csv
from collections import Counter
from typing import Any

import pytest

from sim.reproduce.roles import (
    PAPERS,
    ROLES,
    SCORED,
    Experiment,
    RolesError,
    _check,
    _claim,
    _experiment,
    load_paper,
    spread,
)
from sim.values.places import ROOT

FACTS = ROOT / ".." / "shared" / "facts" / "claims.csv"
COUNTS = {"hobbit": 118, "edgemoe": 82, "fate": 78, "floe": 307}


# Contracts: C137
@pytest.mark.parametrize("name", PAPERS)
def test_every_claim_of_a_paper_has_exactly_one_role(name: str) -> None:
    """Oracle: the claims are numbered without a gap."""
    ids = [claim.id for claim in load_paper(name).claims]
    letter = ids[0][0]
    assert sorted(ids) == [f"{letter}{number:03d}" for number in range(1, COUNTS[name] + 1)]
    assert {claim.role for claim in load_paper(name).claims} <= set(ROLES)


@pytest.mark.skipif(not FACTS.exists(), reason="the table of claims is not here")
def test_the_claims_carry_the_tables_values_and_places() -> None:
    with FACTS.open(encoding="utf-8") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    claims = {claim.id: claim for name in PAPERS for claim in load_paper(name).claims}
    assert set(claims) == set(rows)
    for name, row in rows.items():
        claim = claims[name]
        if claim.why and "evaluation of answers" in claim.why:
            continue
        assert claim.where == row["section_or_table"], name
        given = [float(row[key]) for key in ("value_low", "value_high") if row[key]]
        ends = (
            ()
            if claim.value is None
            else claim.value
            if isinstance(claim.value, tuple)
            else (claim.value,)
        )
        assert {*given} == {*ends}, name
        assert claim.extent == {"yes": "full", "partly": "partly"}.get(
            row["reproducible_in_simulator"].split(":")[0].split()[0], "none"
        ), name


def test_what_the_table_calls_reproducible_is_not_waved_away() -> None:
    """What a simulator can recompute in full is scored, used or fitted, with few exceptions.

    They are two sizes whose bit-widths are not stated, a model that is not named, and a theorem on
    activations.
    """
    full = [claim for name in PAPERS for claim in load_paper(name).claims if claim.extent == "full"]
    assert {claim.id for claim in full if claim.role == "not identifiable"} == {
        "E057",
        "E067",
        "F008",
        "L307",
    }
    simulated = [
        claim for name in PAPERS for claim in load_paper(name).claims if claim.needs == "simulation"
    ]
    assert len(simulated) == 18
    assert all(claim.role in SCORED for claim in simulated)


# Contracts: C137
def test_no_number_that_a_constant_is_drawn_from_is_scored() -> None:
    for name in PAPERS:
        paper = load_paper(name)
        drawn = {step["to"] for step in paper.calibrated.values()}
        assert all(not paper.claim(one).scored for one in drawn)
        per_machine = Counter(
            claim.used for claim in paper.claims if claim.role == "fitted" and claim.experiment
        )
        assert len(per_machine) <= 1, "one calibrated constant"


def test_a_kernels_line_is_drawn_from_its_two_ends_alone() -> None:
    paper = load_paper("floe")
    for claim in paper.claims:
        if claim.check == "kernel_ms":
            assert (claim.role == "fitted") == (claim.args[1] in (0, 0.9)), claim.id
            assert paper.kernels[claim.args[0]][claim.args[1]] == claim.value


def test_a_range_of_ids_is_all_of_them() -> None:
    assert spread("H070-H072") == ["H070", "H071", "H072"]
    assert spread("F001") == ["F001"]
    with pytest.raises(RolesError, match="H7"):
        spread("H7")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"role": "guessed"}, "role 'guessed'"),
        ({"role": "not identifiable"}, "needs its why"),
        ({"role": "identity"}, "needs its check"),
        ({"role": "fitted"}, "what is drawn from it"),
        ({"role": "predicted", "check": "ratio", "rule": "roughly"}, "rule 'roughly'"),
        ({"role": "predicted", "rule": "time"}, "experiment or a check"),
        ({"role": "transferred", "experiment": "none", "rule": "time"}, "no experiment 'none'"),
        ({"role": "input", "misprint": "x"}, "identity's arithmetic"),
        ({"role": "input", "extent": "much"}, "extent 'much' is none of full, partly, none"),
        ({"role": "input", "bound": "near"}, "bound 'near' is none of above, below, range"),
        ({"role": "transferred", "check": "ratio"}, "rule None is none of speedup, "),
        ({"role": "input", "colour": 1}, "colour"),
    ],
)
def test_a_claim_that_could_not_be_judged_is_refused_by_name(
    given: dict[str, object], why: str
) -> None:
    with pytest.raises(RolesError, match=why) as error:
        _check(_claim("H001", {"where": "1", "says": "x", **given}), {})
    assert "H001" in str(error.value)


def test_a_claim_with_all_that_its_role_needs_is_taken_as_it_is_written() -> None:
    given: dict[str, Any] = {"where": "1", "says": "x", "value": [1, 2], "args": [3]}
    own: list[dict[str, Any]] = [
        {"role": "input"},
        {"role": "not identifiable", "why": "y"},
        {"role": "fitted", "used": "y", "bound": "above"},
        {"role": "identity", "check": "ratio", "misprint": "y"},
        {"role": "predicted", "check": "ratio", "rule": "time", "extent": "partly"},
        {"role": "transferred", "experiment": "e", "rule": "order"},
    ]
    experiment = _experiment("e", {"measure": {"rate": ["a"]}})
    for one in own:
        made = _claim("H001", given | one)
        _check(made, {"e": experiment})
        assert (made.id, made.value, made.args) == ("H001", (1, 2), (3,))
        assert made.scored == (one["role"] in ("identity", "predicted", "transferred"))


def test_an_experiment_runs_over_all_its_groups_or_over_one_that_adds_nothing() -> None:
    given = {"measure": {"rate": ["a", 1]}, "over": {"x": [["m=1"], ["m=2"]], "y": [["m=3"]]}}
    found = _experiment("e", given | {"take": "max", "common": ["c"]})
    assert found == Experiment(
        "e", ("rate", ("a", 1)), common=["c"], over=(["m=1"], ["m=2"], ["m=3"]), take="max"
    )
    assert _experiment("e", {"measure": {"rate": []}}).over == ((),)


def test_a_paper_or_a_key_that_is_not_known_is_refused_by_name() -> None:
    with pytest.raises(RolesError, match=f"^unknown paper=shannon; known: {', '.join(PAPERS)}$"):
        load_paper("shannon")
    with pytest.raises(RolesError, match=r"^experiment e: unknown keys colour, size$"):
        _experiment("e", {"measure": {"rate": []}, "size": 1, "colour": 2})
