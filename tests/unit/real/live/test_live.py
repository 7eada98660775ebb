"""Live runs have the bits of the unpatched eager model, and their decisions repeat.

They have these bits in whatever order experts are computed. Oracles: transformers' own forward
calls of the whole model; a fresh controller over the trace of what was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers

from capture.models.discover import CaptureError
from capture.recording.prompts import Passage
from capture.recording.run import decoder_of
from capture.tiny.model import load_model
from helpers.live_runs import cached_skeleton, recorded
from real.host.cpu import CpuDevice
from real.live.live import LiveDriver
from real.live.run import live_driver, prepare, run_as_it_was
from real.setup.prepare import Prepared, read_request
from sim.setup.configure import configure
from sim.setup.traces import load_trace
from sim.traces.trace import Trace
from sim.values.places import ROOT

ASSETS = ROOT / "capture" / "assets"
TRACES = {
    name: f"capture/assets/traces/{name}"
    for name in ("tiny_mixtral", "tiny_qwen2moe", "tiny_switch")
}
FREE = ("engine.links=free", "engine.compute=free")
Prepare = Callable[..., Prepared]


@pytest.fixture
def live(stores: Path, bundled_trace: Trace, monkeypatch: pytest.MonkeyPatch) -> Prepare:
    monkeypatch.setattr("real.store.weightless.skeleton", cached_skeleton)

    def prepared(*overrides: str, model: str = "tiny_mixtral") -> Prepared:
        fixed = (
            f"model={model}",
            "input=live",
            f"engine.store_dir={stores}",
            "output_dir=unused",
            "budget.resident_share=0.25",
            "live.sequences=1",
            "live.prompt_tokens=9",
            "live.new_tokens=5",
        )
        words = (*fixed, f"trace.path={TRACES[model]}", *overrides)
        cfg, _ = configure(*words, config="real")
        trace = bundled_trace if model == "tiny_mixtral" else _trace(TRACES[model])
        return prepare(read_request(cfg, "system"), trace)

    return prepared


@cache
def _trace(path: str) -> Trace:
    return load_trace(path, lookahead_sites=1)


def by_transformers(model: str, passages: Sequence[Passage], new_tokens: int) -> list[torch.Tensor]:
    """The last row's logits of each step, by the whole model and nothing of this package."""
    transformers.logging.set_verbosity_error()
    whole = load_model(ASSETS / model)
    if hasattr(whole, "set_experts_implementation"):
        whole.set_experts_implementation("eager")
    logits = []
    with torch.no_grad():
        for passage in passages:
            run = decoder_of(whole, [passage])
            run.prefill(0)
            for index in range(new_tokens + 1):
                if run.output is not None:
                    logits.append(run.output.logits[:, -1])
                if index < new_tokens:
                    run.step(run.next_tokens(index))
    return logits


def driven(prepared: Prepared) -> tuple[LiveDriver, Any]:
    driver = live_driver(prepared)
    driver.logits = []
    return driver, driver.drive()


@pytest.mark.alike
@pytest.mark.parametrize(
    ("model", "overrides"),
    [
        ("tiny_mixtral", ("system=lru", "loader=as_ready", "engine.compute=free")),
        (
            "tiny_qwen2moe",
            ("system=lru", "loader=as_ready", "engine.compute=free", "model.top_k=4"),
        ),
        pytest.param("tiny_switch", ("system=lru", *FREE), marks=pytest.mark.thorough),
        pytest.param(
            "tiny_qwen2moe",
            ("system=mixtral_offloading", "device=null"),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "tiny_mixtral",
            ("system=load_on_demand", "engine.source=direct", *FREE),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "tiny_mixtral", ("system=moe_infinity", "device=null"), marks=pytest.mark.thorough
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_at_full_precision_a_live_run_has_the_bits_of_the_eager_model(
    live: Prepare, model: str, overrides: tuple[str, ...]
) -> None:
    prepared = live(*overrides, model=model)
    assert all(
        prepared.weights is not None and lossless
        for lossless in prepared.weights.store.header.lossless
    )
    driver, record = driven(prepared)
    expected = by_transformers(model, driver._model.passages, 5)
    assert driver.logits is not None
    assert len(driver.logits) == len(expected) == 5 + (model != "tiny_switch")
    assert all(torch.equal(one, other) for one, other in zip(driver.logits, expected, strict=True))
    assert len(record.step_end_ns) == 6
    assert prepared.run.controller.lookup_outcomes.count(5) > 10, "something was moved"


@pytest.mark.thorough
def test_as_ready_really_computes_in_another_order_than_the_model_adds(live: Prepare) -> None:
    """Without this the bitwise test above would say nothing of the order."""
    prepared = live("system=lru", "loader=as_ready", "engine.compute=free", model="tiny_qwen2moe")
    driver, _ = driven(prepared)
    g = prepared.run.controller.geometry
    computed = [key for key, _, _ in driver.stream.computed if key >= 0]
    sites = [g.site_of(key) for key in computed if g.expert_of(key) < g.experts]
    experts = [g.expert_of(key) for key in computed if g.expert_of(key) < g.experts]
    descents = sum(
        a > b and s == t for a, b, s, t in zip(experts, experts[1:], sites, sites[1:], strict=False)
    )
    assert descents > 20


# Contracts: C122
@pytest.mark.thorough
def test_adding_up_in_the_order_of_computation_would_not_have_the_same_bits(
    live: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken line: outputs are added in the order in which they were computed."""

    def as_computed(form: Any, hidden: Any, ids: Any, weights: Any, outputs: Any) -> torch.Tensor:
        from real.store.swapping import rows_of

        total = torch.zeros_like(hidden)
        for expert, output in outputs.items():
            row, rank = rows_of(ids, expert)
            total.index_add_(0, row, output * weights[row, rank, None])
        return total

    monkeypatch.setattr("real.store.work.add_up", as_computed)
    prepared = live("system=lru", "loader=as_ready", "engine.compute=free", model="tiny_qwen2moe")
    driver, _ = driven(prepared)
    expected = by_transformers("tiny_qwen2moe", driver._model.passages, 5)
    assert driver.logits is not None
    assert not all(
        torch.equal(one, other) for one, other in zip(driver.logits, expected, strict=True)
    )


# Contracts: C122
@pytest.mark.parametrize(
    ("device", "overrides"),
    [
        pytest.param("cpu", ("system=hobbit", *FREE), marks=pytest.mark.thorough),
        pytest.param(
            "cpu", ("system=fate", "budget.resident_share=0.5", *FREE), marks=pytest.mark.thorough
        ),
        pytest.param("cpu", ("system=fiddler", *FREE), marks=pytest.mark.thorough),
        ("null", ("system=hobbit_cpu",)),
        pytest.param("null", ("system=promoe",), marks=pytest.mark.thorough),
        pytest.param(
            "null", ("system=eap", "budget.resident_share=0.5"), marks=pytest.mark.thorough
        ),
        pytest.param("null", ("system=lru", "placement=skip_absent"), marks=pytest.mark.thorough),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_the_calls_of_a_live_run_get_the_same_answers_over_the_trace_of_what_was_seen(
    live: Prepare, device: str, overrides: tuple[str, ...]
) -> None:
    """A live gate offers what a trace's gate does: choices, scores, forecasts, tokens, inputs."""
    prepared = live(f"device={'null' if device == 'null' else device}", *overrides)
    run = recorded(prepared)
    trace = load_trace(TRACES["tiny_mixtral"], run.plain.predictor.requires.lookahead_sites)
    assert run.gates == 6 * 16, "steps, sites"
    assert run.difference(run.fresh(trace)) is None


@pytest.mark.thorough
def test_low_precision_changes_the_logits_and_full_precision_on_the_same_path_does_not(
    live: Prepare,
) -> None:
    """The quantised bytes are what is computed: the logits are near the model's, not equal."""
    driver, _ = driven(live("system=lru", "precision=int4", "device=null"))
    expected = by_transformers("tiny_mixtral", driver._model.passages, 1)
    assert driver.logits is not None
    assert not torch.equal(driver.logits[0], expected[0])
    assert torch.cosine_similarity(driver.logits[0], expected[0]) > 0.97


@pytest.mark.thorough
def test_a_live_run_on_the_virtual_clock_is_repeated_to_the_ns(live: Prepare) -> None:
    one, other = (driven(live("system=hobbit", "device=null"))[1] for _ in range(2))
    assert one == other


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (("system=oracle",), "knows the future"),
        pytest.param(("system=pregated_moe",), "told the run's needs", marks=pytest.mark.thorough),
        pytest.param(
            ("system=lru", "workload=recorded"), "has no trace's steps", marks=pytest.mark.thorough
        ),
        pytest.param(
            ("system=lru", "workload=continuous_4_chunked"),
            "prompts are read whole",
            marks=pytest.mark.thorough,
        ),
        (("system=lru", "workload.prompt_tokens=8"), "its lengths are live.prompt_tokens"),
        (("system=lru", "model=mixtral_8x7b"), "needs a model that decides"),
        pytest.param(
            ("system=lru", "live.prompt_tokens=100000"),
            "has [0-9]+ tokens, needs 100000 .* lower live.prompt_tokens or live.new_tokens, or",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_what_a_live_run_cannot_have_is_refused_by_name(
    live: Prepare, overrides: tuple[str, ...], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        live(*overrides)


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (("system=oracle",), "a cache that knows the future"),
        (("system=lru", "live.prompt_tokens=100000"), "tokens, needs 100000"),
        (("system=mixtral_offloading_code", "engine.links=free"), "nothing is copied back"),
    ],
    ids=["future", "texts", "device"],
)
def test_a_live_run_that_cannot_be_is_refused_before_its_store_is_written(
    live: Prepare, overrides: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    """A store of a large model takes minutes, after which the run was refused."""
    with pytest.raises(ValueError, match=why):
        live(*overrides, f"engine.store_dir={tmp_path}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("live.prompts=nowhere", "nowhere: cannot be read"),
        ("live.sequences=5000", "has [0-9]+ prompts"),
    ],
)
def test_prompts_that_are_missing_are_told_before_any_expert_is_written(
    live: Prepare, word: str, why: str
) -> None:
    with pytest.raises(CaptureError, match=why):
        live("system=lru", word)


@pytest.mark.thorough
def test_a_device_is_given_back_when_the_model_fails(
    live: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = live("system=lru", *FREE)
    driver = live_driver(prepared)
    monkeypatch.setattr(
        driver, "_tell_tokens", lambda tokens: (_ for _ in ()).throw(RuntimeError("no more"))
    )
    with pytest.raises(RuntimeError, match="no more"):
        driver.drive()
    device = cast(CpuDevice, prepared.device)
    assert not any(thread.is_alive() for thread in device._threads)
    assert all(
        "forward" not in form.layer.experts.__dict__ for form in driver._model.weightless.forms
    )


# Contracts: C188
def test_layers_with_a_window_keep_its_tokens_of_what_the_model_has_shown(live: Prepare) -> None:
    """Of 9 + 5 tokens half of the layers keep four."""
    prepared = live("system=lru", *FREE, "++model.windows=[4,0]")
    driver, _ = driven(prepared)
    run = run_as_it_was(prepared, driver)
    half = run.model.sites // 2 * run.model.layer_kv_bytes
    assert run.ledger.kv_bytes == half * 4 + half * 14
