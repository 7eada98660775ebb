"""A system's decisions in a real forward pass.

What loses nothing changes nothing, and the two loops agree where they must.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from real.lossy.assess import check_may_close, is_lossless
from real.lossy.loss import quality_of, token_losses
from real.lossy.mixture import all_at, mixing
from real.lossy.replay import (
    Reference,
    Replayed,
    Subject,
    agreement,
    closed_loop,
    eyes_of,
    live_run,
    open_loop,
    refer,
)
from real.lossy.texts import Reading, Text, read_whole
from real.lossy.variants import Variants
from real.store.swapping import expert_forms, swapped_experts
from sim.results.run import Run
from sim.setup.build import build
from sim.setup.configure import configure
from sim.setup.execute import execute
from sim.values.types import Outcome

LOSSY = ("system=hobbit", "precision=hobbit_int8", "budget.resident_share=0.25")
LOSSLESS = ("system=lru", "budget.resident_share=0.25")


def _run(words: tuple[str, ...], trace: Any) -> Run:
    cfg, name = configure(*words)
    return build(cfg, name, trace)


@pytest.fixture(scope="module")
def reference(subject: Subject) -> Reference:
    return refer(subject, 2, "raw")


def _read(model: Any, subject: Subject, text: Text, compute: Any) -> torch.Tensor:
    """The logits of a text, step by step, with the experts computed by ``compute``."""
    reading = Reading(model)
    with swapped_experts(model, compute, subject.forms):
        return torch.cat(
            [reading.prompt(text.prompt), *(reading.step(token) for token in text.fed)]
        )


def _closed(words: tuple[str, ...], subject: Subject, reference: Reference) -> tuple[Run, Replayed]:
    run = _run(words, reference.trace)
    variants = Variants(subject.forms, run.controller.geometry.precisions)
    eyes = eyes_of(subject, run.workload.depth, run.workload.norm)
    return run, closed_loop(run, subject, reference, variants, eyes)


@pytest.fixture(scope="module")
def lossy(subject: Subject, reference: Reference) -> tuple[Run, Replayed]:
    return _closed(LOSSY, subject, reference)


def test_the_full_precision_pass_records_the_gates_of_the_trace(
    subject: Subject, reference: Reference
) -> None:
    for rows in subject.rows:
        mine, bundled = reference.trace.ids[rows], subject.trace.ids[rows]
        assert (np.sort(mine, -1) == np.sort(bundled, -1)).all()
        # The bundled trace rounds weights to steps of 1/8192, and its lookahead to 1/28.
        assert np.abs(reference.trace.weights[rows] - subject.trace.weights[rows]).max() <= 1 / 8192
        known = np.isfinite(subject.trace.lookahead["raw"][rows])[:, :, :2]
        gap = np.abs(reference.trace.lookahead["raw"][rows] - subject.trace.lookahead["raw"][rows])[
            :, :, :2
        ]
        assert known.any()
        assert gap[known].max() <= 0.5 / 28 + 1e-5
        assert (np.isfinite(reference.trace.lookahead["raw"][rows])[:, :, :2] == known).all()


def test_the_full_precision_pass_forecasts_prompts_as_the_trace_does(
    subject: Subject, reference: Reference
) -> None:
    """Forecasts are kept together, as in the trace.

    Those of sequences that were not read, and of other norms, stay.
    """
    cells = [
        trace.prompt_forecasts["raw"].filter(pl.col("ahead") <= 2)
        for trace in (subject.trace, reference.trace)
    ]
    read = pl.col("sequence").is_in([text.sequence for text in subject.texts])
    recorded, shown = (frame.filter(read) for frame in cells)
    place = ["step", "sequence", "site", "ahead", "expert"]
    both = recorded.join(shown, on=place, how="full", suffix="_shown").fill_null(0)
    assert recorded.height > 400
    # Near ties may fall the other way on another machine.
    assert (both["tokens"] - both["tokens_shown"]).abs().sum() <= 0.002 * recorded["tokens"].sum()
    assert (both["score"] - both["score_shown"]).abs().median() < 1e-5
    others = [frame.filter(~read) for frame in cells]
    assert others[0].equals(others[1])
    assert reference.trace.prompt_forecasts["renormed"].equals(
        subject.trace.prompt_forecasts["renormed"]
    )


def test_the_full_precision_pass_keeps_what_it_does_not_measure(
    subject: Subject, reference: Reference
) -> None:
    """It keeps active shares, by which FloE moves in an open loop, and other sequences' rows.

    Predictors are fitted on the latter.
    """
    recorded, shown = subject.trace, reference.trace
    assert recorded.active_shares is not None
    assert shown.active_shares is not None
    assert np.array_equal(shown.active_shares, recorded.active_shares, equal_nan=True)
    others = ~np.isin(recorded.sequence, [text.sequence for text in subject.texts])
    assert np.array_equal(shown.ids[others], recorded.ids[others])
    assert np.array_equal(
        shown.lookahead["raw"][others], recorded.lookahead["raw"][others], equal_nan=True
    )


def test_reading_step_by_step_finds_what_one_pass_finds(
    mixtral: Any, subject: Subject, reference: Reference
) -> None:
    whole = read_whole(mixtral, subject.texts[0])
    torch.testing.assert_close(reference.logits[0], whole, rtol=1e-4, atol=1e-4)


# Contracts: C129
@pytest.mark.alike
@pytest.mark.parametrize("loop", ["open", "closed"])
def test_a_lossless_system_changes_exactly_nothing(
    loop: str, subject: Subject, reference: Reference
) -> None:
    run = _run(LOSSLESS, reference.trace)
    assert is_lossless(run)
    variants = Variants(subject.forms, run.controller.geometry.precisions)
    if loop == "open":
        replayed = open_loop(run, subject, reference, variants)
    else:
        replayed = closed_loop(run, subject, reference, variants, eyes_of(subject, 0, "raw"))
    for loss in replayed.losses:
        assert (loss.divergence == 0).all()
        assert np.array_equal(loss.full, loss.lossy, equal_nan=True)
    alone = execute(_run(LOSSLESS, reference.trace))
    assert replayed.result.summary == alone.summary
    assert replayed.result.frames.lookups.equals(alone.frames.lookups)


@pytest.mark.thorough
def test_a_lossy_system_in_the_loop_changes_gates_and_logits(
    reference: Reference, lossy: tuple[Run, Replayed], subject: Subject
) -> None:
    run, replayed = lossy
    assert not is_lossless(run)
    assert quality_of(replayed.losses).divergence.value > 0
    outcomes = replayed.result.summary["lookups"]
    assert outcomes["skip"] > 0
    assert 0 < replayed.result.summary["quality_proxy"]["low_share"] < 1
    shares = [
        agreement(mine, ids) for mine, ids in zip(replayed.chosen, reference.ids, strict=True)
    ]
    assert 0.9 < np.nanmean(np.concatenate(shares)) < 1


def test_the_gates_that_a_lossy_model_showed_give_the_run_again(
    lossy: tuple[Run, Replayed],
) -> None:
    run, replayed = lossy
    again = execute(_run(LOSSY, run.workload.trace))
    assert again.summary == replayed.result.summary
    for name, table in again.frames.tables().items():
        assert table.equals(replayed.result.frames.tables()[name]), name


def test_what_the_model_computed_is_what_the_lookups_say(
    mixtral: Any, subject: Subject, reference: Reference, lossy: tuple[Run, Replayed]
) -> None:
    """An unpaused pass takes its choices from a table of the run's lookups.

    It raises KeyError if a gate asked for an expert that has no lookup.
    """
    run, replayed = lossy
    rows = run.workload.needs
    lookups = {}
    keys = zip(
        rows.tick.tolist(),
        rows.expert.tolist(),
        run.controller.lookup_keys,
        run.controller.lookup_outcomes,
        strict=True,
    )
    for tick, expert, key, outcome in keys:
        lookups[tick, expert] = (
            -1 if outcome == Outcome.SKIP else run.controller.geometry.precision_of(key)
        )
    variants = Variants(subject.forms, run.controller.geometry.precisions)
    text, tick = subject.texts[0], [-1]

    def decide(site: int, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Any:
        tick[0] += 1
        served = all_at(0)(site, hidden, ids, weights)
        codes = [[lookups[tick[0], expert] for expert in row] for row in ids.tolist()]
        return replace(served, codes=torch.tensor(codes))

    logits = _read(mixtral, subject, text, mixing(variants, decide))
    expected = token_losses(reference.logits[0], logits, subject.following(text))
    assert np.array_equal(expected.divergence, replayed.losses[0].divergence)


def test_one_low_precision_in_the_loop_is_a_model_with_these_weights(
    mixtral: Any, subject: Subject, reference: Reference
) -> None:
    words = ("system=lru", "precision=int4", "budget.resident_share=0.25")
    _, replayed = _closed(words, subject, reference)
    variants = Variants(subject.forms, ("int4",))
    for index, text in enumerate(subject.texts):
        logits = _read(mixtral, subject, text, mixing(variants, all_at(0)))
        expected = token_losses(reference.logits[index], logits, subject.following(text))
        assert np.array_equal(expected.divergence, replayed.losses[index].divergence)


def test_a_text_that_the_model_writes_is_fed_with_its_own_tokens(
    subject: Subject, reference: Reference
) -> None:
    run = _run(LOSSLESS, reference.trace)
    variants = Variants(subject.forms, ("fp16",))
    written: list[int] = []

    def tokens_of(step: Any) -> list[int]:
        if not step.decode:
            return list(next(t.prompt for t in subject.texts if t.sequence == step.sequences[0]))
        return [written[-1]]

    def on_step(step: Any, logits: torch.Tensor) -> None:
        written.append(int(logits[-1].argmax()))

    live_run(run, subject, variants, eyes_of(subject, 0, "raw"), tokens_of, on_step)
    text, greedy = subject.texts[0], []
    reading = Reading(subject.model)
    logits = reading.prompt(text.prompt)
    for _ in text.fed:
        greedy.append(int(logits[-1].argmax()))
        logits = reading.step(greedy[-1])
    assert written[: len(greedy)] == greedy
    fed = run.workload.trace.token[subject.rows[0]]
    assert fed[-len(text.fed) :].tolist() == greedy
    assert subject.trace.token[subject.rows[0]].tolist() == [*text.prompt, *text.fed]


def test_the_share_of_choices_in_common_is_counted_row_by_row() -> None:
    ours = np.array([[[0, 1], [2, 3]], [[4, 5], [-1, -1]]])
    theirs = np.array([[[1, 0], [3, 7]], [[6, 7], [-1, -1]]])
    assert np.array_equal(agreement(ours, theirs), [[1, 0.5], [0, np.nan]], equal_nan=True)


# Contracts: C129
def test_what_cannot_run_in_the_loop_is_refused(subject: Subject, reference: Reference) -> None:
    with pytest.raises(ValueError, match="knows what gates will need"):
        check_may_close(_run(("system=sti",), reference.trace))
    check_may_close(_run(("system=deepspeed_inference",), reference.trace))
    with pytest.raises(ValueError, match="choose workload=sequential"):
        _closed(("system=lru", "workload=static_4"), subject, reference)
    other = replace(subject.trace, token=np.full_like(subject.trace.token, -1))
    with pytest.raises(ValueError, match="has no token ids"):
        Subject(subject.model, other, [subject.texts[0].sequence])


def test_no_gate_looks_beyond_the_last(subject: Subject) -> None:
    eyes, hidden = eyes_of(subject, 3, "raw"), torch.ones(1, subject.model.config.hidden_size)
    last = len(subject.layers) - 1
    assert [len(eyes.ahead(site, hidden, 3)) for site in (last - 3, last - 2, last - 1, last)] == [
        3,
        2,
        1,
        0,
    ]


def test_a_model_of_another_shape_is_refused(subject: Subject) -> None:
    header = replace(subject.trace.header, model=replace(subject.trace.header.model, experts=4))
    with pytest.raises(
        ValueError, match="16 sites of 8 experts, top-2; trace tiny_mixtral has 16 of 4"
    ):
        Subject(subject.model, replace(subject.trace, header=header), [subject.texts[0].sequence])
    assert len(expert_forms(subject.model)) == 16
