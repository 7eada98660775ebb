"""How good forecasts were: sums by hand, and two ways to count that must agree."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim.results.forecasts import (
    NAMES,
    SHARES,
    Counts,
    _prompts_told,
    count_forecasts,
    nearest_forecasts,
    prediction,
)
from sim.study.trials import prepared
from sim.traces.trace import DECODE


def test_three_gates_by_hand() -> None:
    counts = Counts()
    assert counts.shares() == dict.fromkeys(SHARES)
    counts.add([3, 1], [1, 2])
    counts.add([5], [5])
    counts.add([2, 4], [4, 2, 7])
    assert counts == Counts(gates=3, best_needed=2, equal=1, named=5, needed=6, both=4)
    assert counts.shares() == {
        "top1": 2 / 3,
        "recall_at_issued": 4 / 6,
        "precision": 4 / 5,
        "exact_set": 1 / 3,
    }


@pytest.mark.alike
@pytest.mark.parametrize("workload", ["sequential", "continuous_4"])
def test_columns_of_the_workload_count_what_asking_at_each_gate_counts(
    workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of one row and of several; prompts are asked in either way."""
    run = prepared(
        (
            "system=hobbit",
            f"workload={workload}",
            "trace.max_sequences=3",
            "workload.decode_tokens=4",
        )
    )
    predictor = run.controller.predictor
    assert predictor.as_routed
    from_columns = count_forecasts(run.workload, predictor)
    monkeypatch.setattr(predictor, "as_routed", False)
    assert count_forecasts(run.workload, predictor) == from_columns
    decode, prefill = from_columns
    assert min(decode.gates, prefill.gates) >= 15


class Gate:
    """Steps are namespaces with the needs of each site."""

    def open(self, step: Any) -> None:
        self.step = step

    def visit(self, site: int) -> None:
        self.site, self.needs = site, tuple(self.step.needs[site])


class Says:
    """Forecasts what a step tells at each site; as `Predictor`."""

    silent, as_routed, learns, prompts = False, False, True, True

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def afresh(self) -> Says:
        return self

    def predict(self, gate: Gate) -> Any:
        said = gate.step.says.get(gate.site, {})
        return [SimpleNamespace(site=site, needs=needs) for site, needs in said.items()]

    def observe(self, gate: Gate) -> None:
        self.seen.append((gate.step.number, gate.site))


def step_of(number: int, decode: bool, needs: Any, says: Any) -> Any:
    return SimpleNamespace(
        number=number,
        decode=decode,
        drafting=False,
        sites=tuple(range(len(needs))),
        needs=needs,
        says=says,
    )


# Site 0 tells of itself, which is for the next step, of site 1 and of site 2: the first other counts.
DECODED = step_of(0, True, [[1], [1, 2], [3]], {0: {0: [9], 1: (2, 5), 2: [3]}})
# Site 2 is told of twice, and what site 1 told counts.
PROMPT = step_of(1, False, [[0], [0], [4, 6]], {0: {2: [7]}, 1: {2: [4, 6]}})


def of_steps(*steps: Any) -> Any:
    trace = SimpleNamespace(header=SimpleNamespace(name="t"))
    return SimpleNamespace(steps=steps, gate=Gate, trace=trace)


def test_the_nearest_forecast_of_a_gate_counts_and_a_predictor_learns_of_every_gate() -> None:
    says: Any = Says()
    found = list(nearest_forecasts(of_steps(), says, [DECODED, PROMPT]))
    assert found == [(DECODED, [2, 5], [1, 2]), (PROMPT, [4, 6], [4, 6])]
    assert says.seen == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    says.learns = False
    assert len(list(nearest_forecasts(of_steps(), says, [DECODED]))) == 1
    assert len(says.seen) == 6


def test_the_section_of_a_summary_by_hand() -> None:
    says: Any = Says()
    says.requires = SimpleNamespace(lookahead_sites=0, row_scores=None, gate_inputs=False)
    counts = {"late": 1, "promoted": 2, "miss": 4, "hit": 50}
    found = prediction(of_steps(DECODED, PROMPT), says, counts, 3, 7)
    ones = dict.fromkeys(SHARES, 1.0)
    half = {"top1": 1.0, "recall_at_issued": 0.5, "precision": 0.5, "exact_set": 0.0}
    of_run = {"timely_recall": 0.3, "fitted_on": 7}
    assert found == half | of_run | {"prefill": ones, "prompts": "forecast"}
    only = prediction(of_steps(DECODED), says, counts, 3, 7)
    assert only == half | of_run | {"prefill": None, "prompts": None}
    nothing = prediction(of_steps(DECODED), says, dict.fromkeys(counts, 0), 0, 0)
    no_decode = prediction(of_steps(PROMPT), says, counts, 3, 0)
    assert (nothing["timely_recall"], no_decode["timely_recall"]) == (None, None)
    says.silent = True
    assert prediction(of_steps(DECODED, PROMPT), says, counts, 3, 7) == {
        **dict.fromkeys(NAMES),
        "fitted_on": 0,
        "prefill": None,
        "prompts": None,
    }


def routed(number: int, rows: int, *, decode: bool = True, drafting: bool = False) -> Any:
    return SimpleNamespace(
        start=number,
        rows=rows,
        decode=decode,
        drafting=drafting,
        gives_tokens=decode and not drafting,
        sites=(0, 1, 2),
        needs=[[]] * 3,
    )


def test_columns_of_single_rows_and_unions_of_several_by_hand() -> None:
    """Rows 0 and 1 are alone: of their four gates one was not forecast (-1). Row 2 drafts. The
    last site's own forecast is for no site of the step.
    """
    forecasts = np.array(
        [
            [[[3, 1]], [[4, -1]], [[8, 8]]],
            [[[-1, -1]], [[6, 7]], [[8, 8]]],
            [[[1, 2]], [[1, 2]], [[1, 2]]],
        ]
    )
    experts = np.array(
        [[[0, 9], [1, 3], [5, 4]], [[0, 9], [2, 5], [6, 5]], [[1, 2], [1, 2], [1, 2]]]
    )
    alone, alone_too, drafts = routed(0, 1), routed(1, 1), routed(2, 1, drafting=True)
    pair = routed(3, 2)
    unions = {"forecast": [[3, 5], [], [1]], "actual": [[9], [5, 3, 1], [7]]}
    workload: Any = SimpleNamespace(
        steps=[alone, alone_too, drafts, pair, routed(5, 2, decode=False)],
        gate=Gate,
        forecasts=[forecasts],
        experts_in_order=experts,
        places=lambda step: step.start,
        choices=SimpleNamespace(
            forecast_union=lambda rows, ahead: SimpleNamespace(
                needs={(3, 1): unions["forecast"]}[rows, ahead]
            ),
            union=lambda rows: SimpleNamespace(needs={3: unions["actual"]}[rows]),
        ),
    )
    workload.steps[-1].says = {0: {1: [2]}}
    workload.steps[-1].needs = [[0], [2], [1]]
    workload.steps[-1].number = 4
    says: Any = Says()
    says.as_routed = True
    decode, prefill = count_forecasts(workload, says)
    # [3, 1] of {1, 3}: all; [4] of {5, 4}: the best; [6, 7] of {6, 5}: the best. [3, 5] of {5, 3, 1}.
    assert decode == Counts(gates=4, best_needed=4, equal=1, named=7, needed=9, both=6)
    assert prefill == Counts(gates=1, best_needed=1, equal=1, named=1, needed=1, both=1)


FORECASTS = {0: [-1, 0], 1: [3, 3], 2: [-1, -1]}
"""By row of the trace: 0 and 2 are of prompts, 1 is of a decoded token."""
ANEW, ROWS = "capture it anew", "capture it with prefill_lookahead=rows"
CUT = "not forecast: {} reads them in part, and trace t keeps forecasts of whole ones; " + ROWS


@pytest.mark.parametrize(
    ("reads", "of_work", "gates", "told"),
    [
        ({}, {}, 1, "forecast"),
        ({"row_scores": 1}, {}, 1, "forecast"),
        ({"lookahead_sites": 0}, {}, 1, "forecast"),
        # Of the rows of prompts one has a forecast; then those of decoded tokens alone have.
        ({}, {"row": [0, 1]}, 1, "forecast"),
        ({}, {"row": [2, 1]}, 1, "not forecast: trace t has no forecast of these prompts"),
        (
            {"gate_inputs": True},
            {},
            0,
            "not forecast: the predictor reads gate inputs, which trace t keeps of decoded tokens"
            " only",
        ),
        ({"lookahead_sites": 0}, {}, 0, "not forecast: the predictor names nothing for them"),
        (
            {},
            {"norm": "other"},
            0,
            f"not forecast: trace t keeps no lookahead of prompts; {ANEW}",
        ),
        (
            {"row_scores": 1},
            {"norm": "other"},
            0,
            f"not forecast: trace t keeps no lookahead of prompts; {ROWS}",
        ),
        (
            {"row_scores": 1},
            {},
            0,
            "not forecast: the predictor reads each token's scores, which trace t keeps of decoded"
            f" tokens only; {ROWS}",
        ),
        ({}, {}, 0, "not forecast: trace t has no forecast of these prompts"),
        ({}, {"prefill_chunk": 3}, 0, CUT.format("workload.prefill_chunk=3")),
        (
            {},
            {"prefill_chunk": 3, "prompt_tokens": 4},
            0,
            CUT.format("workload.prefill_chunk=3 and workload.prompt_tokens=4"),
        ),
    ],
)
def test_why_prompts_were_not_forecast(
    reads: dict[str, Any], of_work: dict[str, Any], gates: int, told: str
) -> None:
    usual = {"lookahead_sites": 1, "row_scores": None, "gate_inputs": False}
    predictor: Any = SimpleNamespace(prompts=True, requires=SimpleNamespace(**{**usual, **reads}))
    of = {"norm": "rms", "prefill_chunk": None, "prompt_tokens": None, "row": [0], **of_work}
    workload: Any = SimpleNamespace(
        trace=SimpleNamespace(header=SimpleNamespace(name="t"), prompt_forecasts={"rms": 1}),
        phase=np.array([1 - DECODE, DECODE, 1 - DECODE]),
        row=np.array(of["row"]),
        norm=of["norm"],
        prefill_chunk=of["prefill_chunk"],
        lengths=SimpleNamespace(prompt_tokens=of["prompt_tokens"]),
        forecasts=[np.array([[[FORECASTS[at]]] for at in of["row"]])],
    )
    assert _prompts_told(workload, predictor, gates) == told
    predictor.prompts = False
    assert _prompts_told(workload, predictor, 0) == "not forecast by the system"
