"""Live runs of several sequences have the bits of the unpatched eager model on the same batches.

Oracles: transformers' own forward calls of the whole model. Its key-value caches are kept here
sequence by sequence, without padding, and put side by side for each call. Where prompts of a group
differ in length, the model's own experts are given only the rows that are tokens. Nobody reads what
they would make of padding, and with padding among its rows a matrix product may round otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
from transformers import AutoConfig, DynamicCache

from capture.models.discover import discover
from capture.models.model_cache import OF_OUTPUTS
from capture.recording.load import load_model
from capture.recording.prompts import Passage
from capture.recording.run import decoder_of
from capture.recording.settings import Settings
from helpers.architectures import tiny
from helpers.live_runs import cached_skeleton, recorded
from real.driver.settings import Live
from real.live.batch import check_batches
from real.live.live import LiveDriver
from real.live.run import live_driver, prepare
from real.live.workload import LivePrompt, blank_trace
from real.setup.prepare import Prepared, read_request
from sim.setup.configure import configure
from sim.setup.traces import load_trace
from sim.traces.trace import DECODE, PREFILL, Trace
from sim.values.places import ROOT
from sim.values.types import Step
from sim.workload.steps import Workload

ASSETS = ROOT / "capture" / "assets"
RAGGED = ("live.prompt_tokens=[3,11]", "live.new_tokens=[2,7]")
CONTINUOUS = ("workload=continuous_4", "workload.together=2")
STATIC = ("workload=static_4", "workload.together=2")
FREE = ("engine.links=free", "engine.compute=free")
Prepare = Callable[..., Prepared]
Drive = Callable[..., tuple[LiveDriver, Path]]


@pytest.fixture
def live(stores: Path, bundled_trace: Trace, monkeypatch: pytest.MonkeyPatch) -> Prepare:
    monkeypatch.setattr("real.store.weightless.skeleton", cached_skeleton)

    def prepared(*overrides: str, model: str = "tiny_mixtral") -> Prepared:
        path = f"capture/assets/traces/{model}"
        fixed = (
            f"model={model}",
            "input=live",
            f"engine.store_dir={stores}",
            "output_dir=unused",
            "device=null",
            "budget.resident_share=0.25",
            "live.sequences=3",
            "live.prompt_tokens=7",
            "live.new_tokens=3",
            f"trace.path={path}",
        )
        cfg, _ = configure(*fixed, *overrides, config="real")
        trace = bundled_trace if model == "tiny_mixtral" else load_trace(path, lookahead_sites=1)
        return prepare(read_request(cfg, "system"), trace)

    return prepared


@pytest.fixture(scope="module")
def ended() -> dict[tuple[str, ...], tuple[LiveDriver, Path]]:
    """Runs that several tests share."""
    return {}


@pytest.fixture
def driven(
    live: Prepare,
    ended: dict[tuple[str, ...], tuple[LiveDriver, Path]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Drive:
    def run(model: str, *overrides: str) -> tuple[LiveDriver, Path]:
        if (model, *overrides) not in ended:
            folder = tmp_path_factory.mktemp("out")
            driver = live_driver(live(*overrides, model=model), folder)
            driver.logits = []
            driver.drive()
            ended[model, *overrides] = driver, folder
        return ended[model, *overrides]

    return run


@cache
def eager(model: str, dtype: str = "float32") -> Any:
    """The whole model, unpatched."""
    transformers.logging.set_verbosity_error()
    whole = load_model(Settings(str(ASSETS / model), Path(), Path(), dtype=dtype))
    if hasattr(whole, "set_experts_implementation"):
        whole.set_experts_implementation("eager")
    return whole


class SideBySide:
    """An unpatched decoder whose caches are kept by sequence, [heads, T, D].

    They are padded anew for each call.
    """

    def __init__(self, model: Any, passages: Sequence[Passage]) -> None:
        self._model, self._passages = model, passages
        self._kept: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._next: dict[int, int] = {}
        self.fed: dict[int, list[int]] = {}

    @torch.no_grad()
    def run(self, step: Step) -> torch.Tensor:
        """Make a step's call; return its logits [n, V]."""
        numbers, past = step.sequences, DynamicCache(config=self._model.config)
        if step.decode:
            tokens = [[self._next[number]] for number in numbers]
            lengths = [self._kept[number][0][0].shape[1] for number in numbers]
            for number, (token,) in zip(numbers, tokens, strict=True):
                self.fed.setdefault(number, []).append(token)
            for layer in range(len(self._kept[numbers[0]])):
                keys, values = (
                    torch.stack(
                        [
                            _left(self._kept[number][layer][which], max(lengths))
                            for number in numbers
                        ]
                    )
                    for which in (0, 1)
                )
                past.update(keys, values, layer)
        else:
            tokens = [list(self._passages[number].prefill) for number in numbers]
            lengths = [0] * len(numbers)
        counts = [before + len(added) for before, added in zip(lengths, tokens, strict=True)]
        width = max(counts)
        mask = torch.tensor([[0] * (width - count) + [1] * count for count in counts])
        new = max(map(len, tokens))
        ids = torch.tensor([[0] * (new - len(added)) + added for added in tokens])
        given = {}
        if len(set(counts)) > 1:
            given = {
                "attention_mask": mask,
                "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)[:, -new:],
            }
        with experts_of_tokens(self._model, mask[:, -new:].flatten().bool()):
            logits = self._model(
                input_ids=ids, use_cache=True, **{OF_OUTPUTS: past}, **given
            ).logits[:, -1]
        for row, number in enumerate(numbers):
            self._kept[number] = [
                (
                    layer.keys[row, :, width - counts[row] :],
                    layer.values[row, :, width - counts[row] :],
                )
                for layer in past.layers
            ]
            self._next[number] = int(logits[row].argmax())
        return cast(torch.Tensor, logits)


def _left(states: torch.Tensor, width: int) -> torch.Tensor:
    padded = states.new_zeros(states.shape[0], width, states.shape[2])
    padded[:, width - states.shape[1] :] = states
    return padded


@contextmanager
def experts_of_tokens(model: Any, is_token: torch.Tensor) -> Iterator[None]:
    """Within the block transformers' own experts get the rows that are tokens; others get 0."""
    if is_token.all():
        yield
        return
    experts: list[Any] = [layer.experts for layer in discover(model)]

    def called_with_tokens(own: Any) -> Any:
        def forward(hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            total = torch.zeros_like(hidden)
            total[is_token] = own(hidden[is_token], ids[is_token], weights[is_token])
            return total

        return forward

    for module in experts:
        module.forward = called_with_tokens(module.forward)
    try:
        yield
    finally:
        for module in experts:
            del module.forward


def alone(model: Any, passage: Passage, new_tokens: int) -> tuple[list[int], list[torch.Tensor]]:
    """The tokens that a model feeds itself after a prompt, and the logits [1, V] after each."""
    run, fed, logits = decoder_of(model, [passage]), [], []
    with torch.no_grad():
        run.prefill(0)
        for index in range(new_tokens):
            fed.append(int(run.next_tokens(index)[0]))
            run.step(torch.tensor(fed[-1:]))
            logits.append(run.output.logits[:, -1])
    return fed, logits


@pytest.mark.parametrize(
    ("model", "overrides"),
    [
        ("tiny_switch", ("system=lru", *STATIC)),
        pytest.param("tiny_mixtral", ("system=lru", *STATIC), marks=pytest.mark.thorough),
        pytest.param("tiny_qwen2moe", ("system=lru", *STATIC), marks=pytest.mark.thorough),
        pytest.param(
            "tiny_mixtral",
            ("system=lru", "device=cpu", "loader=as_ready", *FREE, *STATIC),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "tiny_qwen2moe",
            ("system=lru", "device=cpu", *FREE, *STATIC),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "tiny_mixtral",
            ("system=lru", "device=host", *FREE, *STATIC),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "tiny_switch", ("system=lru", "device=host", *FREE, *STATIC), marks=pytest.mark.thorough
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[1:3]),
)
def test_a_group_of_equal_lengths_has_the_bits_of_the_unpatched_model_on_the_same_batch(
    driven: Drive, model: str, overrides: tuple[str, ...]
) -> None:
    driver, _ = driven(model, *overrides)
    whole, expected = eager(model), []
    with torch.no_grad():
        for group in (driver._model.passages[:2], driver._model.passages[2:]):
            run = decoder_of(whole, group)
            run.prefill(0)
            for index in range(4):
                if run.output is not None:
                    expected.append(run.output.logits[:, -1])
                if index < 3:
                    run.step(run.next_tokens(index))
    assert driver.logits is not None
    assert [len(logits) for logits in driver.logits] == [len(logits) for logits in expected]
    assert all(torch.equal(one, other) for one, other in zip(driver.logits, expected, strict=True))


@pytest.mark.alike
@pytest.mark.parametrize(
    ("model", "overrides"),
    [
        ("tiny_mixtral", ("system=lru", *CONTINUOUS, *RAGGED, "live.sequences=4")),
        ("tiny_qwen2moe", ("system=lru", *CONTINUOUS, *RAGGED, "live.sequences=4")),
        pytest.param(
            "tiny_qwen2moe",
            ("system=lru", *STATIC, *RAGGED, "live.sequences=4"),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "tiny_qwen2moe",
            ("system=lru", "engine.dtype=bfloat16", *CONTINUOUS, *RAGGED, "live.sequences=6"),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "tiny_mixtral",
            (
                "system=lru",
                "device=cpu",
                "loader=as_ready",
                *FREE,
                *CONTINUOUS,
                *RAGGED,
                "live.sequences=6",
                "workload.together=3",
            ),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "tiny_mixtral",
            ("system=lru", "device=host", *FREE, *CONTINUOUS, *RAGGED, "live.sequences=4"),
            marks=pytest.mark.thorough,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[1:3]),
)
def test_sequences_that_join_and_leave_have_the_bits_of_the_unpatched_model_on_the_same_batches(
    driven: Drive, model: str, overrides: tuple[str, ...]
) -> None:
    driver, _ = driven(model, *overrides)
    dtype = "bfloat16" if "engine.dtype=bfloat16" in overrides else "float32"
    oracle = SideBySide(eager(model, dtype), driver._model.passages)
    assert driver.logits is not None
    groups = [step.sequences for step in driver._live.workload.steps if step.decode]
    assert {1, 2} <= set(map(len, groups)), "batches grow and shrink"
    for step, logits in zip(driver._live.workload.steps, driver.logits, strict=True):
        assert torch.equal(logits, oracle.run(step)), step
    assert driver._model.batch.fed == oracle.fed


@pytest.mark.parametrize(
    ("model", "batches"),
    [
        ("tiny_mixtral", CONTINUOUS),
        pytest.param("tiny_switch", STATIC, marks=pytest.mark.thorough),
        pytest.param("tiny_qwen2moe", CONTINUOUS, marks=pytest.mark.thorough),
    ],
)
def test_padding_and_neighbours_do_not_change_what_a_sequence_generates(
    driven: Drive, model: str, batches: tuple[str, ...]
) -> None:
    """Equal up to rounding: products of several rows, or over longer caches, add up otherwise."""
    driver, _ = driven(model, "system=lru", *batches, *RAGGED, "live.sequences=4")
    whole, said = eager(model), dict[int, list[torch.Tensor]]()
    assert driver.logits is not None
    with_logits = [
        step for step in driver._live.workload.steps if step.decode or model != "tiny_switch"
    ]
    for step, logits in zip(with_logits, driver.logits, strict=True):
        if step.decode:
            for row, number in enumerate(step.sequences):
                said.setdefault(number, []).append(logits[row : row + 1])
    for number, passage in enumerate(driver._model.passages):
        fed, logits = alone(whole, passage, len(driver._model.batch.fed[number]))
        assert driver._model.batch.fed[number] == fed
        torch.testing.assert_close(torch.cat(said[number]), torch.cat(logits), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(("system=hobbit", *CONTINUOUS, *RAGGED), marks=pytest.mark.thorough),
        pytest.param(
            ("system=fate", *STATIC, *RAGGED, "budget.resident_share=0.5"),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            (
                "system=fate",
                *CONTINUOUS,
                "workload.lookahead_norm=renormed",
                "budget.resident_share=0.5",
            ),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            ("system=lru", "device=cpu", *FREE, *CONTINUOUS, *RAGGED), marks=pytest.mark.thorough
        ),
        pytest.param(("system=promoe", *STATIC, *RAGGED), marks=pytest.mark.thorough),
        ("system=hobbit", *CONTINUOUS, *RAGGED, "workload.arrivals_per_s=20"),
    ],
    ids=" ".join,
)
def test_calls_of_batches_get_the_same_answers_over_the_trace_of_what_was_seen(
    live: Prepare, overrides: tuple[str, ...]
) -> None:
    run = recorded(live(*overrides))
    trace = load_trace(
        "capture/assets/traces/tiny_mixtral", run.plain.predictor.requires.lookahead_sites
    )
    seen = run.seen
    assert max(len(step.sequences) for step in seen.steps) == 2
    assert sum(step.rows for step in seen.steps) == len(seen.trace.ids), (
        "each token is a row of a gate, padding is none"
    )
    assert (seen.trace.ids >= 0).all()
    assert run.difference(run.fresh(trace)) is None


def test_what_each_sequence_of_a_batch_generates_is_written_when_it_ends(driven: Drive) -> None:
    driver, folder = driven("tiny_mixtral", "system=lru", *CONTINUOUS, *RAGGED, "live.sequences=4")
    lines = [json.loads(line) for line in (folder / "generated.jsonl").read_text().splitlines()]
    ended = [number for step in driver._live.workload.steps for number in step.ends]
    assert [line["sequence"] for line in lines] == ended
    assert sorted(ended) == [0, 1, 2, 3]
    for line in lines:
        assert line["tokens"] == driver._model.batch.fed[line["sequence"]]
    trace = driver._live.trace
    for number, passage in enumerate(driver._model.passages):
        told = trace.token[trace.sequence == number].tolist()
        assert told == [*passage.prefill, *driver._model.batch.fed[number]]


@pytest.mark.parametrize(
    ("model", "overrides", "why"),
    [
        pytest.param(
            "tiny_switch",
            (*CONTINUOUS, *RAGGED, "live.sequences=6"),
            "has an encoder, .* choose workload.batching=static",
            marks=pytest.mark.thorough,
        ),
        ("tiny_mixtral", ("live.new_tokens=[5,2]",), r"must be a number, or \[least, most\]"),
    ],
)
def test_batches_that_cannot_be_are_refused_by_name(
    live: Prepare, model: str, overrides: tuple[str, ...], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        live_driver(live("system=lru", *overrides, model=model))


def composed(trace: Trace, lengths: Sequence[tuple[int, int]], batching: str) -> Workload:
    prompts = [LivePrompt("code", "eval", *each) for each in lengths]
    return Workload(blank_trace(trace.header, prompts), split="all", batching=batching, together=2)


class Placeless(torch.nn.Module):
    """A decoder that numbers its tokens itself."""

    config = AutoConfig.for_model("mixtral")

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> None: ...


@pytest.mark.parametrize(
    ("batching", "lengths", "sliding", "placeless"),
    [
        ("static", [(5, 3), (5, 3), (5, 2)], False, False),
        ("static", [(5, 3), (5, 4)], True, False),
        ("static", [(4, 3), (5, 3)], False, True),
        ("continuous", [(5, 3), (5, 4), (5, 4)], True, True),
        ("sequential", [(4, 3), (5, 4), (5, 4)], False, False),
    ],
)
def test_models_whose_caches_or_positions_cannot_be_put_together_are_refused_where_that_is_needed(
    bundled_trace: Trace,
    batching: str,
    lengths: list[tuple[int, int]],
    sliding: bool,
    placeless: bool,
) -> None:
    workload = composed(bundled_trace, lengths, batching) if batching != "sequential" else None
    if workload is None:
        prompts = [LivePrompt("code", "eval", *each) for each in lengths]
        workload = Workload(
            blank_trace(bundled_trace.header, prompts), split="all", batching=batching
        )
    of_windows = tiny("gpt_oss")
    for model, is_refused, why in (
        (of_windows, sliding, "caches DynamicSlidingWindowLayer, which cannot be put together"),
        (Placeless(), placeless, "takes no position_ids"),
    ):
        with pytest.raises(ValueError, match=why) if is_refused else nullcontext():
            check_batches(model, workload)


def test_rows_of_a_blank_trace_are_those_of_the_sequences_to_come(bundled_trace: Trace) -> None:
    workload = composed(bundled_trace, [(3, 2), (2, 1)], "static")
    trace = workload.trace
    assert trace.position.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert trace.step.tolist() == [0, 0, 0, 1, 2, 3, 3, 4]
    assert trace.phase.tolist() == [
        PREFILL,
        PREFILL,
        PREFILL,
        DECODE,
        DECODE,
        PREFILL,
        PREFILL,
        DECODE,
    ]
    assert [(step.sequences, step.rows, step.token) for step in workload.steps] == [
        ((0, 1), 5, 3),
        ((0, 1), 2, 4),
        ((0,), 1, 5),
    ]


def test_lengths_of_sequences_are_drawn_from_what_was_asked_for_and_drawn_again_alike() -> None:
    live = Live(sequences=40, prompt_tokens=[2, 5], new_tokens=7)
    prompts, new = zip(*live.lengths(), strict=True)
    assert set(prompts) == {2, 3, 4, 5}
    assert set(new) == {7}
    assert live.lengths() == live.lengths()
