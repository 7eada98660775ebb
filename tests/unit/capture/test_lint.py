"""The lint finds planted faults, does not accuse clean traces, and writes its findings down."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capture.import_trace import main as import_trace
from capture.lint import NATIVE_TOP_K, lint, main, native_top_k
from capture.linting.repeats import find_loops, shared_offsets
from capture.statistics.codes import selection_codes
from sim.traces.routing import RoutingRule
from sim.traces.synthesis import synthesize
from sim.traces.trace import DECODE, Finding, ModelShape, Trace, read_trace, write_trace
from sim.values.places import ROOT

BUNDLED = ROOT / "capture" / "assets" / "traces" / "tiny_mixtral"
SHARED = ROOT / ".." / "shared" / "traces"
NPZ, PHONE = (
    SHARED / "gpt_oss_20b" / "gptoss20b_decode_routing.npz",
    SHARED / "phone_qwen3_30b" / "qwen.route.csv",
)
TOKENS, SEQUENCES, PROMPT = 64, 10, 4
LENGTH = TOKENS + PROMPT
SHAPE = ModelShape("planted", "none", 3, 70, 4, 8, 8)


@pytest.fixture
def clean() -> Trace:
    """Ten sequences of 4 prompt and 64 decoded tokens, with unknown token ids."""
    return synthesize(
        SHAPE, tokens=TOKENS, sequences=SEQUENCES, prompt_tokens=PROMPT, persistence=0.2, skew=0.3
    )


def with_tokens(trace: Trace, seed: int = 0) -> Trace:
    token = np.random.default_rng(seed).integers(0, 1000, len(trace.token)).astype(np.int32)
    return replace(trace, token=token)


def altered(trace: Trace, **columns: Callable[[np.ndarray], None]) -> Trace:
    """The trace with columns that functions changed in place."""
    changed: dict[str, Any] = {}
    for name, change in columns.items():
        changed[name] = np.array(getattr(trace, name))
        change(changed[name])
    return replace(trace, **changed)


def named(trace: Trace) -> set[tuple[str, bool]]:
    return {(finding.check, finding.serious) for finding in lint(trace)}


def rows_of(sequence: int) -> slice:
    """The decoded rows of a sequence of the planted trace."""
    return slice(sequence * LENGTH + PROMPT, (sequence + 1) * LENGTH)


def test_clean_traces_are_not_accused(clean: Trace) -> None:
    assert lint(clean) == ()
    assert lint(with_tokens(clean)) == ()


def test_the_bundled_trace_is_clean_and_no_bundled_one_is_random() -> None:
    assert lint(read_trace(BUNDLED)) == ()
    for name in ("tiny_qwen2moe", "tiny_switch"):
        assert ("random_routing", False) not in named(read_trace(BUNDLED.with_name(name)))


@pytest.mark.parametrize("period", [1, 3, 7, 20])
def test_a_loop_is_found_in_tokens_with_its_period_and_share(clean: Trace, period: int) -> None:
    trace = with_tokens(clean)
    trace.token[rows_of(2)] = np.resize(np.arange(period), TOKENS)
    ((sequence, (share, found)),) = find_loops(trace).items()
    assert (sequence, found) == (2, period)
    assert share == (TOKENS - period) / TOKENS
    (finding,) = lint(trace)
    assert finding == Finding("repetition", True, finding.text, (2,))
    assert f"repeats {share:.0%} of its tokens every {period}" in finding.text


@pytest.mark.parametrize("period", [1, 3, 7, 11])
def test_a_loop_is_found_in_routing_where_tokens_are_unknown(clean: Trace, period: int) -> None:
    """The second half of a sequence repeats, but for one selection in twelve.

    That is 1 of 4 selections at 1 of 3 sites.
    """

    def loop(ids: np.ndarray) -> None:
        mine = ids[rows_of(5)]
        mine[TOKENS // 2 :] = np.resize(mine[:period], mine[TOKENS // 2 :].shape)
        mine[TOKENS // 2 :: 2, 0, 0] = 69

    trace = altered(clean, ids=loop)
    ((sequence, (share, found)),) = find_loops(trace).items()
    assert (sequence, found) == (5, period)
    assert share == (TOKENS // 2 - period) / TOKENS if period > 1 else share > 0.4
    assert ("repetition", True) in named(trace)


@pytest.mark.parametrize("seed", range(3))
def test_random_routing_is_noted_with_its_figure_and_chance(clean: Trace, seed: int) -> None:
    def random(ids: np.ndarray) -> None:
        drawn = np.random.default_rng(seed).random((*ids.shape[:2], SHAPE.experts))
        ids[:] = drawn.argsort(-1)[..., : SHAPE.top_k]

    (finding,) = lint(altered(clean, ids=random))
    assert finding == Finding("random_routing", False, finding.text)
    assert "by chance (5.7%: 4 of 70)" in finding.text
    assert 4.5 < float(finding.text.partition("%")[0]) < 6.5


@pytest.mark.parametrize(("persistence", "said"), [(0.2, False), (0.0, True)])
def test_chance_is_that_of_the_choices_that_were_not_dropped(
    persistence: float, said: bool
) -> None:
    """A token that chooses half as many experts finds half as many of the next one by chance."""
    whole = synthesize(SHAPE, tokens=256, sequences=12, persistence=persistence, skew=0.0)

    def drop(ids: np.ndarray) -> None:
        ids[..., 2:] = -1

    found = [one.text for one in lint(altered(whole, ids=drop)) if one.check == "random_routing"]
    assert len(found) == said
    assert all("by chance (2.9%: 2 of 70)" in text for text in found)


def test_null_experts_are_neither_lost_choices_nor_experts_that_nobody_selects(
    clean: Trace,
) -> None:
    """C97: choosing one is -1, so rows may have no other and no id is theirs."""

    def choose_null(ids: np.ndarray) -> None:
        ids[ids >= 60] = -1
        ids[::5] = -1

    trace = altered(clean, ids=choose_null)
    assert ("counts", True) in named(trace)
    rule = RoutingRule(null_experts=10)
    sites = tuple(replace(site, rule=rule) for site in trace.header.sites)
    assert named(replace(trace, header=replace(trace.header, sites=sites))) == set()


@pytest.mark.thorough
def test_popular_experts_or_reuse_alone_are_no_random_routing_nor_are_too_few_tokens() -> None:
    for skew, persistence in ((1.0, 0.0), (0.0, 0.3)):
        trace = synthesize(
            SHAPE, tokens=TOKENS, sequences=SEQUENCES, skew=skew, persistence=persistence
        )
        assert ("random_routing", False) not in named(trace), (skew, persistence)
    for seed in range(8):
        few = synthesize(SHAPE, tokens=8, sequences=2, skew=0.0, persistence=0.0, seed=seed)
        assert named(few) == set(), "two sequences of 8 tokens have too few choices to tell"


def test_a_row_repeats_by_its_own_number_of_choices(clean: Trace) -> None:
    """Every second row has one choice a site, which the row before has, too.

    So exactly these 32 of 64 rows repeat.
    """

    def thin(ids: np.ndarray) -> None:
        mine = ids[rows_of(4)]
        mine[1::2] = mine[::2]
        mine[1::2, :, 1:] = -1

    assert find_loops(altered(clean, ids=thin))[4] == (32 / TOKENS, 1)


def test_experts_beyond_the_64th_are_told_apart_from_those_before(clean: Trace) -> None:
    """Ids 0..5 and 64..69 have the same bits in different words.

    A loop that alternates between them has period 2.
    """

    def alternate(ids: np.ndarray) -> None:
        ids[rows_of(1)] = np.arange(4) + 64 * (np.arange(TOKENS) % 2)[:, None, None]

    assert find_loops(altered(clean, ids=alternate))[1][1] == 2


def test_loops_below_the_limit_and_short_sequences_are_left_alone(clean: Trace) -> None:
    trace = with_tokens(clean)
    trace.token[rows_of(2)][: TOKENS // 4] = 7
    assert find_loops(trace) == {}
    short = with_tokens(synthesize(SHAPE, tokens=20, sequences=2))
    short.token[:] = 7
    assert find_loops(short) == {}


def test_few_looping_tokens_are_a_note(clean: Trace) -> None:
    trace = with_tokens(synthesize(SHAPE, tokens=TOKENS, sequences=40))
    trace.token[:TOKENS] = 7
    assert named(trace) == {("repetition", False)}


def test_the_sources_own_flags_are_reported(clean: Trace) -> None:
    sequences = tuple(
        replace(item, flags={"has_repetition": item.sequence < 3})
        for item in clean.header.sequences
    )
    (finding,) = lint(replace(clean, header=replace(clean.header, sequences=sequences)))
    assert (finding.check, finding.serious, finding.sequences) == ("repetition", True, (0, 1, 2))
    assert "3 of 10 sequences (30% of the decoded tokens)" in finding.text
    assert "trace.exclude=[has_repetition]" in finding.text


def test_a_template_is_found_in_tokens_and_is_serious_by_its_share(clean: Trace) -> None:
    def plant(offsets: int) -> Trace:
        trace = with_tokens(clean)
        for sequence in range(SEQUENCES - 2):
            trace.token[rows_of(sequence)][:offsets] = np.arange(offsets) + 2000
        return trace

    assert named(plant(2)) == {("template_echo", False)}
    assert named(plant(20)) == {("template_echo", True)}


def test_a_template_is_found_in_routing_where_tokens_are_unknown(clean: Trace) -> None:
    def plant(ids: np.ndarray) -> None:
        for sequence in range(1, SEQUENCES):
            # The order inside a selection must not matter.
            ids[rows_of(sequence)][[0, 1, 9]] = ids[rows_of(0)][[0, 1, 9], :, ::-1]

    trace = altered(clean, ids=plant)
    decoded = [
        np.arange(LENGTH * number + PROMPT, LENGTH * (number + 1)) for number in range(SEQUENCES)
    ]
    assert shared_offsets(trace, decoded) == [0, 1, 9]
    assert named(trace) == {("template_echo", False)}
    assert shared_offsets(clean, decoded) == []


def test_two_sites_recorded_from_one_layer_are_found(clean: Trace) -> None:
    def duplicate(ids: np.ndarray) -> None:
        ids[:, 2] = ids[:, 0, ::-1]

    (finding,) = lint(altered(clean, ids=duplicate))
    assert finding == Finding("duplicated_layers", True, finding.text, sites=(0, 2))


@pytest.mark.parametrize("top_k", [3, 4])
def test_models_that_select_nearly_all_experts_are_not_accused(top_k: int) -> None:
    assert (
        lint(synthesize(ModelShape("all", "none", 3, 4, top_k, 8, 8), tokens=80, sequences=2)) == ()
    )


def test_a_router_that_chooses_nothing_is_found_once(clean: Trace) -> None:
    def stick(ids: np.ndarray) -> None:
        ids[:, :2] = np.arange(4)

    trace = altered(clean, ids=stick)
    (finding,) = lint(trace)
    assert finding == Finding("constant_routing", True, finding.text, sites=(0, 1))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {
                "position": lambda position: position.__iadd__(
                    np.arange(len(position)) % LENGTH >= 9
                )
            },
            "10 gap(s)",
        ),
        ({"phase": lambda phase: phase.__setitem__(rows_of(3).start - 1, DECODE)}, None),
        (
            {"phase": lambda phase: phase.__setitem__(rows_of(3).start + 9, 0)},
            "1 prompt row(s) after decoded ones",
        ),
        (
            {
                "step": lambda step: step.__setitem__(
                    rows_of(3).start + 9, step[rows_of(3).start + 8]
                )
            },
            "1 decoded row(s) that share a step",
        ),
    ],
)
def test_tokens_out_of_order_are_found(
    clean: Trace, change: dict[str, Any], said: str | None
) -> None:
    found = [finding for finding in lint(altered(clean, **change)) if finding.check == "order"]
    assert [said in finding.text for finding in found] == ([] if said is None else [True])
    if said is not None and not said.startswith("10"):
        assert found[0].sequences == (3,)


def test_rows_without_an_expert_and_experts_that_are_never_there_are_found(clean: Trace) -> None:
    def drop(ids: np.ndarray) -> None:
        ids[rows_of(0), 1] = -1

    (finding,) = lint(altered(clean, ids=drop))
    assert finding == Finding("counts", False, finding.text, sites=(1,))
    assert "64 token(s) x sites" in finding.text
    assert f"up to {TOKENS / (SEQUENCES * LENGTH):.1%}" in finding.text
    wide = replace(clean, header=replace(clean.header, model=replace(SHAPE, experts=100)))
    assert named(wide) == {("counts", True)}


def test_padding_is_counted_over_all_rows(clean: Trace) -> None:
    def pad(share: float) -> Trace:
        rows = np.arange(len(clean.valid)) < share * len(clean.valid)
        return replace(clean, valid=clean.valid & ~rows)

    assert ("padding", False) in named(pad(0.1))
    assert ("padding", True) in named(pad(0.3))
    assert any("30.0% of the rows are padding" in finding.text for finding in lint(pad(0.3)))


def test_fewer_experts_a_token_than_the_model_has_are_found_by_provenance_and_by_geometry(
    clean: Trace,
) -> None:
    header = replace(clean.header, provenance={NATIVE_TOP_K: 8})
    (finding,) = lint(replace(clean, header=header))
    assert (finding.check, finding.serious) == ("top_k", True)
    assert "4 experts a token were recorded, the model's own number is 8" in finding.text
    assert lint(replace(clean, header=replace(clean.header, provenance={NATIVE_TOP_K: 4}))) == ()
    mixtral = ModelShape("any name", "none", 32, 8, 1, 4096, 14336)
    assert native_top_k(replace(clean, header=replace(clean.header, model=mixtral))) == 2
    assert native_top_k(clean) is None


def test_codes_are_those_of_sets() -> None:
    rng = np.random.default_rng(5)
    ids = np.stack([rng.permutation(6)[:3] for _ in range(500)]).astype(np.int16)
    ids[::7, 1] = -1
    codes = selection_codes(ids)
    sets = [frozenset(row) - {-1} for row in ids.tolist()]
    assert len(set(codes.tolist())) == len(set(sets))
    assert len(set(zip(sets, codes.tolist(), strict=True))) == len(set(sets))
    assert selection_codes(np.full((1, 3), -1, np.int16)).tolist() == [0]


def test_the_command_writes_the_findings_and_keeps_the_rest(
    clean: Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = with_tokens(clean)
    trace.token[rows_of(2)] = 7
    write_trace(tmp_path / "trace", trace)
    before = read_trace(tmp_path / "trace", "all")
    assert main([str(tmp_path / "trace"), "write=false"]) == 1
    assert read_trace(tmp_path / "trace").header == before.header
    assert main([str(tmp_path / "trace")]) == 1
    after = read_trace(tmp_path / "trace", "all")
    assert after.header == replace(before.header, findings=lint(trace))
    np.testing.assert_array_equal(after.ids, before.ids)
    assert "repetition" in capsys.readouterr().out
    write_trace(tmp_path / "a=b", clean)
    assert main([str(tmp_path / "a=b")]) == 0
    assert read_trace(tmp_path / "a=b").header.findings == ()
    assert "nothing found" in capsys.readouterr().out


def test_findings_are_shown_where_the_trace_cannot_be_written(
    clean: Trace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def closed(*words: Any) -> None:
        raise PermissionError(13, "Permission denied", "header.json")

    trace = with_tokens(clean)
    trace.token[rows_of(2)] = 7
    write_trace(tmp_path / "trace", trace)
    monkeypatch.setattr("capture.lint.write_findings", closed)
    assert main([str(tmp_path / "trace")]) == 2
    told = capsys.readouterr()
    assert "repetition" in told.out
    assert told.err == (
        "lint: the findings above could not be kept in the trace ([Errno 13] Permission denied:"
        " 'header.json'); write=false only looks\n"
    )
    assert main([str(tmp_path / "trace"), "write=false"]) == 1


@pytest.mark.parametrize(
    "arguments", [[], ["a", "b"], ["a", "write=maybe"], ["a", "depth=3"], ["/nowhere"]]
)
def test_wrong_arguments_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("lint: ")


# Real traces: third-party data that is not part of the project


@pytest.mark.thorough
@pytest.mark.skipif(not NPZ.exists(), reason="the published gpt-oss trace is not here")
def test_repetition_and_the_chat_template_are_found_in_the_published_gpt_oss_trace(
    gpt_oss: Path,
) -> None:
    """Its source flags 209 of 703 sequences.

    Routing alone finds 60 loops, 49 of them among those: a rate of 23 % there, of 2 % in the
    others. Each answer begins with the marks of its channel and the same words.
    """
    trace = read_trace(gpt_oss)
    flags, loops, template = lint(trace)
    assert (flags.check, flags.serious, len(flags.sequences)) == ("repetition", True, 209)
    stated = {
        item["seq"]
        for item in json.loads((NPZ.parent / "sequences.json").read_text())
        if item["has_repetition"]
    }
    assert set(flags.sequences) == stated
    assert (loops.check, loops.serious, len(loops.sequences)) == ("repetition", True, 60)
    assert len(set(loops.sequences) & stated) == 49
    assert (template.check, template.serious) == ("template_echo", False)
    assert "(0, 1, 2, 3, 4)" in template.text


@pytest.mark.skipif(not PHONE.exists(), reason="the phone's published trace is not here")
def test_the_override_and_the_unrecorded_prompt_of_the_phones_trace_are_found(
    tmp_path: Path,
) -> None:
    """It was run with 6 of Qwen3's 8 experts a token.

    Of its 28 prompt tokens the last layer routed only the last.
    """
    assert import_trace(["format=bigmoe", f"path={PHONE}", f"output_dir={tmp_path / 'trace'}"]) == 0
    override, counts = lint(read_trace(tmp_path / "trace"))
    assert (override.check, override.serious) == ("top_k", True)
    assert "6 experts a token were recorded, the model's own number is 8" in override.text
    assert (counts.check, counts.serious, counts.sites) == ("counts", False, (47,))
    assert "27 token(s) x sites select no expert at all" in counts.text
