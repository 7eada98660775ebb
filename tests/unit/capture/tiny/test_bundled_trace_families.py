"""The bundled traces of the fine-grained model and of the encoder-decoder.

They hold what is promised, and every system runs on them.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from omegaconf import DictConfig

from helpers.usual import usual
from sim.fitting.artefact import read_artefact
from sim.fitting.fits import fit_from_rows, fit_sequences
from sim.fitting.prepare import SHIPPED
from sim.setup.build import build
from sim.setup.execute import execute
from sim.setup.sections import make_object
from sim.traces.trace import DECODE, Trace, read_trace
from sim.values.places import ROOT

ASSETS = ROOT / "capture" / "assets"
LARGEST_BYTES = 5_000_000
# By model: sites, experts, top-k, hidden size, expert width, sites of the encoder.
SHAPES = {"tiny_qwen2moe": (12, 32, 4, 96, 16, 0), "tiny_switch": (12, 8, 1, 96, 48, 6)}
SYSTEMS = sorted(path.stem for path in (ROOT / "conf" / "system").glob("*.yaml"))
STREAMED = "dense blocks of an encoder-decoder model are not streamed"
REFUSED = {
    **dict.fromkeys(
        [
            ("tiny_switch", name)
            for name in ("deepspeed_inference", "deepspeed_mii", "sti", "transformers")
        ],
        STREAMED,
    ),
    # Networks, and paths of four choices of 32, would weigh too much for what they are worth here.
    ("tiny_switch", "promoe"): "no fit learned-",
    ("tiny_switch", "floe"): "records no active shares of experts' channels",
    **dict.fromkeys(
        [("tiny_qwen2moe", name) for name in ("floe", "promoe")], "records lookahead for 2 sites"
    ),
    ("tiny_qwen2moe", "edgemoe"): "no fit expert_paths-set",
}
"""The refusals of systems that cannot run on a trace as it ships."""
Configure = Callable[..., DictConfig]

every_trace = pytest.mark.parametrize("name", SHAPES)


@cache
def read(name: str) -> Trace:
    return read_trace(ASSETS / "traces" / name, "all")


@every_trace
def test_a_trace_holds_what_is_promised(name: str) -> None:
    trace = read(name)
    header = trace.header
    model = header.model
    shape = (
        model.sites,
        model.experts,
        model.top_k,
        model.hidden,
        model.expert_intermediate,
        header.encoder_sites,
    )
    assert shape == SHAPES[name]
    splits = Counter(item.split for item in header.sequences)
    assert splits["fit"] == splits["eval"] >= 32
    assert len({item.decode_tokens for item in header.sequences}) == 1
    assert all(
        24 <= item.prompt_tokens <= 64 and item.decode_tokens >= 28 for item in header.sequences
    )
    assert len({item.domain for item in header.sequences}) >= 3
    assert header.lookahead is not None
    assert (header.lookahead.depth >= 2, "raw" in header.lookahead.norms) == (True, True)
    assert all(site.rule_match == 1.0 and site.rule_weight_error < 1e-6 for site in header.sites)


@every_trace
def test_a_trace_stays_small_and_says_how_to_make_it_again(name: str) -> None:
    folder = ASSETS / "traces" / name
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= LARGEST_BYTES
    command = str(read_trace(folder).header.provenance["command"])
    assert command.startswith(f"python -m capture model=capture/assets/{name} ")
    text = (folder / "README.md").read_text()
    assert f"\n    {command}\n" in text
    assert "Licence:" in text


@every_trace
def test_rows_visit_the_sites_of_their_stack_and_choose_as_many_experts_as_the_model(
    name: str,
) -> None:
    trace = read(name)
    chosen = (trace.ids >= 0).sum(-1)
    encoder = SHAPES[name][-1]
    visited = np.ones(chosen.shape, bool)
    if encoder:
        visited = (trace.phase != DECODE)[:, None] == (np.arange(chosen.shape[1]) < encoder)
    # No token is dropped because an expert is full.
    np.testing.assert_array_equal(chosen, np.where(visited, SHAPES[name][2], 0))


SEQUENCES = 1


@pytest.mark.alike
@pytest.mark.parametrize(
    ("system", "name"),
    usual(
        list(product(SYSTEMS, SHAPES)),
        [(system, [*SHAPES][at % len(SHAPES)]) for at, system in enumerate(SYSTEMS)],
    ),
)
def test_every_system_runs_on_a_trace_and_serves_every_need_once(
    name: str, system: str, configure: Configure
) -> None:
    chosen = (
        f"trace={name}",
        f"model={name}",
        f"system={system}",
        f"trace.max_sequences={SEQUENCES}",
        "outputs=summary",
    )
    if reason := REFUSED.get((name, system)):
        with pytest.raises(ValueError, match=reason):
            build(configure(*chosen), system)
        return
    trace = read(name)
    result = execute(build(configure(*chosen), system, trace))
    replayed = [item for item in trace.header.sequences if item.split == "eval"][:SEQUENCES]
    assert result.summary["trace"]["decode_tokens"] == sum(item.decode_tokens for item in replayed)
    # A prompt needs the union of its tokens' experts at a site, a decoded token its own.
    needs = 0
    for item in replayed:
        own = trace.sequence == item.sequence
        prompt, decoded = (
            trace.ids[own & (trace.phase != DECODE)],
            trace.ids[own & (trace.phase == DECODE)],
        )
        needs += sum(len(np.unique(of_site[of_site >= 0])) for of_site in np.moveaxis(prompt, 1, 0))
        needs += int((decoded >= 0).sum())
    assert sum(result.summary["lookups"].values()) == needs


@every_trace
def test_lru_misses_what_a_textbook_lru_misses(name: str, configure: Configure) -> None:
    """Before the first token the slots hold the experts in order.

    The last of them counts as the most recent.
    """
    run = build(
        configure(f"trace={name}", f"model={name}", "system=lru", "trace.max_sequences=1"), "lru"
    )
    slots = run.controller.geometry.capacity_bytes // run.controller.geometry.variant_bytes[0]
    assert slots == SHAPES[name][0] * SHAPES[name][1] // 2
    result = execute(run)
    trace = read(name)
    sequence = next(item.sequence for item in trace.header.sequences if item.split == "eval")
    own, decode = trace.sequence == sequence, trace.phase == DECODE
    experts = SHAPES[name][1]
    cached: OrderedDict[tuple[int, int], None] = OrderedDict.fromkeys(
        divmod(key, experts) for key in range(slots)
    )
    misses = 0
    for step in [np.flatnonzero(own & ~decode), *np.flatnonzero(own & decode)[:, None]]:
        for site in range(trace.ids.shape[1]):
            needed = [
                (site, expert)
                for expert in need_order(trace.ids[step, site], trace.weights[step, site])
            ]
            for key in needed:
                if key not in cached:
                    misses += 1
                    # Other needs of this gate are not evicted.
                    del cached[next(old for old in cached if old not in needed)]
                cached[key] = None
                cached.move_to_end(key)
    assert result.summary["lookups"]["miss"] == misses


def need_order(ids: np.ndarray, weights: np.ndarray) -> list[int]:
    """A gate's experts in need order.

    One token's go by falling weight, those of several by how many tokens want them; ties by number.
    """
    if len(ids) == 1:
        return [
            expert
            for _, expert in sorted(zip((-weights[0]).tolist(), ids[0].tolist(), strict=True))
            if expert >= 0
        ]
    counts = Counter(ids[ids >= 0].tolist())
    return sorted(counts, key=lambda expert: (-counts[expert], expert))


@every_trace
def test_one_pass_over_a_sequence_chooses_what_the_trace_recorded_step_by_step(name: str) -> None:
    """A second implementation: the evaluation's hooks, without a cache, on all tokens at once."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from capture.tiny.evaluation import GateRecorder
    from capture.tiny.families import family_of
    from capture.tiny.model import load_model

    trace, model = read(name), load_model(ASSETS / name)
    family = family_of(model)
    sites = family.sites(model)
    for sequence in (0, 63):
        own, decode = trace.sequence == sequence, trace.phase == DECODE
        prompt, decoded = (
            torch.from_numpy(trace.token[rows][None].astype(np.int64))
            for rows in (own & ~decode, own & decode)
        )
        recorder = GateRecorder(sites)
        with torch.no_grad():
            if SHAPES[name][-1]:
                assert decoded[0, 0] == model.config.decoder_start_token_id
                model(input_ids=prompt, decoder_input_ids=decoded)
            else:
                model(input_ids=torch.cat([prompt, decoded], 1))
        recorder.remove()
        for site, place in enumerate(sites):
            routed = family.routed(recorder.gate_outputs[place])
            recorded = trace.ids[own, site]
            visited = recorded[:, 0] >= 0
            theirs, ours = np.sort(recorded[visited], -1), np.sort(routed.experts.numpy(), -1)
            # A near-tie may fall the other way.
            assert (theirs == ours).mean() > 0.995, (sequence, site)
            alike = (recorded[visited] == routed.experts.numpy()).all(-1)
            error = np.abs(trace.weights[own, site][visited] - routed.weights.numpy())[alike]
            assert error.max() <= trace.header.steps["weights"] / 2 + 1e-4


@every_trace
def test_fits_that_ship_are_those_of_the_fit_split(name: str, configure: Configure) -> None:
    trace = read(name)
    shipped = sorted(path.stem for path in (SHIPPED / name).glob("*.json"))
    found = []
    for predictor in ("activation_matrix", "expert_paths", "next_site", "token_routes"):
        fitted = make_object(configure(f"predictor={predictor}").predictor).requires.fit
        if fitted.name not in shipped:
            continue
        found.append(fitted.name)
        fresh = fit_from_rows(fitted, trace, fit_sequences(trace))
        stored = read_artefact(SHIPPED / name / f"{fitted.name}.json")
        assert stored.sequences == fresh.sequences
        assert all((stored.arrays[key] == fresh.arrays[key]).all() for key in fresh.arrays), (
            "make predictors"
        )
    assert sorted(found) == shipped
    assert len(found) >= 3


def test_traces_lie_where_the_configuration_looks_for_them(configure: Configure) -> None:
    for name in SHAPES:
        assert Path(configure(f"trace={name}").trace.path) == Path("capture/assets/traces") / name
