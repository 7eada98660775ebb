"""The header's text by hand: each field's bounds, and every refusal by its whole sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from helpers.traces import RULE, make_trace
from sim.traces.header import Finding, Header, Lookahead, Site, forecasts_file
from sim.traces.header_text import parse_header
from sim.traces.trace import TraceError

REPAIR = "; capture or synthesise the trace again, or restore the file"
Edit = Callable[[dict[str, Any]], object]


def header(**change: Any) -> Header:
    whole = replace(
        make_trace().header,
        columns=("logits", "lookahead", "active_shares"),
        files={"routes.parquet": "0" * 64},
    )
    return replace(whole, **change)


def stacked(*stacks: str) -> tuple[Site, ...]:
    return tuple(
        replace(site, stack=stack) for site, stack in zip(header().sites, stacks, strict=True)
    )


def edited(*edits: Edit) -> str:
    plain = json.loads(header().to_json())
    for edit in edits:
        edit(plain)
    return json.dumps(plain)


def put(*path: Any) -> Edit:
    """Set the value at a path of keys: the last argument."""
    *keys, last, value = path

    def edit(plain: Any) -> None:
        for key in keys:
            plain = plain[key]
        plain[last] = value

    return edit


INTS: list[tuple[tuple[Any, ...], int, int]] = [
    (("model", "hidden"), 1, (1 << 31) - 1),
    (("model", "expert_intermediate"), 1, (1 << 31) - 1),
    (("sites", 0, "layer"), 0, (1 << 31) - 1),
    (("sequences", 0, "sequence"), 0, (1 << 31) - 1),
    (("sequences", 0, "prompt_tokens"), 0, (1 << 31) - 1),
    (("sequences", 0, "decode_tokens"), 0, (1 << 31) - 1),
    (("lookahead", "depth"), 1, (1 << 15) - 1),
    # Some cannot lie on both bounds in one header: see below.
    (("model", "sites"), 1, (1 << 15) - 1),
    (("model", "experts"), 1, (1 << 15) - 1),
    (("model", "top_k"), 1, (1 << 15) - 1),
    (("sites", 0, "site"), 0, (1 << 31) - 1),
]


def name_of(path: tuple[Any, ...]) -> str:
    return f"{path[0]}[0].{path[2]}" if len(path) == 3 else ".".join(path)


@pytest.mark.parametrize(("path", "least", "most"), INTS)
def test_whole_numbers_have_bounds(path: tuple[Any, ...], least: int, most: int) -> None:
    for value in (least - 1, most + 1):
        with pytest.raises(TraceError) as refused:
            parse_header(edited(put(*path, value)))
        assert str(refused.value) == (
            f"header.json: {name_of(path)} is {value}, must be an int in {least}..{most}{REPAIR}"
        )


@pytest.mark.parametrize(("path", "least", "most"), INTS[:7])
def test_whole_numbers_may_lie_on_their_bounds(
    path: tuple[Any, ...], least: int, most: int
) -> None:
    for value in (least, most):
        parse_header(edited(put(*path, value)))


def test_a_model_may_have_one_of_each_and_as_many_experts_as_ids_can_name() -> None:
    def one(plain: dict[str, Any]) -> None:
        plain["model"].update(sites=1, experts=1, top_k=1)
        plain["sites"] = plain["sites"][:1]

    assert parse_header(edited(one)).model.experts == 1
    most = edited(lambda plain: plain["model"].update(experts=32767, top_k=32767))
    assert parse_header(most).model.top_k == 32767


NUMBERS: list[tuple[tuple[Any, ...], float, bool]] = [
    (("sites", 0, "rule_match"), 1.0, True),
    (("sites", 0, "rule_weight_error"), 1e9, True),
    (("lookahead", "step"), 1e6, False),
]


@pytest.mark.parametrize(("path", "most", "zero"), NUMBERS)
def test_numbers_have_bounds(path: tuple[Any, ...], most: float, zero: bool) -> None:
    parse_header(edited(put(*path, most)))
    above = "" if zero else ", > 0.0"
    for value in (most * 1.5, *(() if zero else (0,))):
        with pytest.raises(TraceError) as refused:
            parse_header(edited(put(*path, value)))
        assert str(refused.value) == (
            f"header.json: {name_of(path)} is {value}, must be a number in 0..{most}{above}{REPAIR}"
        )
    if zero:
        parse_header(edited(put(*path, 0)))


WRONG: list[tuple[Edit, str]] = [
    (put("model", "top_k", 7), "model.top_k is 7, must be <= model.experts=6"),
    (
        put("model", "sites", 2),
        "sites[].site is [0, 1, 2], must be 0..1 in order, one for each of model.sites",
    ),
    (
        put("sites", 1, "site", 2),
        "sites[].site is [0, 2, 2], must be 0..2 in order, one for each of model.sites",
    ),
    (
        put("sites", 1, "rule", "bias", [0.0]),
        f"sites[1].rule is {replace(RULE, bias=(0.0,))}, routing rule: bias is '1 values', must"
        " have 6",
    ),
    (put("sequences", 1, "sequence", 0), "sequences[].sequence is [0, 0], must be distinct"),
    (
        put("steps", "ids", 0.5),
        "steps is 'ids', must be one of ('weights', 'logits', 'expert_norms', 'active_shares')",
    ),
    (put("steps", "logits", 2e6), "steps is {'logits': 2000000.0}, must be an object of positive"),
    (
        put("steps", "logits", 0.0),
        "steps is {'logits': 0.0}, must be an object of positive numbers",
    ),
    (
        put("columns", ["logits", "logits", "lookahead", "active_shares"]),
        "columns is ('logits', 'logits', 'lookahead', 'active_shares'), must be distinct",
    ),
    (put("lookahead", None), "lookahead is None, must come with its column, and only then"),
    (
        put("columns", ["logits", "active_shares"]),
        f"lookahead is {Lookahead('gate_in', ('raw', 'renormed'), 2)}, must come with its column,"
        " and only then",
    ),
    (put("sparsities", []), "sparsities is (), must come with their column, and only then"),
    (
        put("columns", ["logits", "lookahead"]),
        "sparsities is (0.5, 0.9), must come with their column, and only then",
    ),
    (put("sparsities", [0.9, 0.5]), "sparsities is (0.9, 0.5), must be ascending and distinct"),
    (put("sparsities", [0.5, 0.5]), "sparsities is (0.5, 0.5), must be ascending and distinct"),
    (put("sparsities", [0.5, 1.5]), "sparsities[1] is 1.5, must be a share in 0..1"),
    (put("lookahead", "norms", ["raw", "raw"]), "lookahead.norms is ['raw', 'raw'], must be dis"),
    (
        put("files", "prefill_counts.parquet", "0" * 64),
        "prefill is 'rows', must be counts where files list prefill_counts.parquet, and only there",
    ),
    (
        put("prefill", "counts"),
        "prefill is 'counts', must be counts where files list prefill_counts.parquet, and only",
    ),
    (put("files", {}), "files is {}, must list routes.parquet"),
    (put("schema", 2), "schema is 2, must be 1"),
    (put("source", "guessed"), "source is 'guessed', must be one of ('captured', 'imported', 'syn"),
    (put("sites", 0, "rule", 3), "sites[0].rule is 3, routing rule must be an object, not int"),
    (put("findings", [3]), "findings[0] is 3, must be a JSON object"),
]


@pytest.mark.parametrize(("edit", "told"), WRONG)
def test_parts_that_do_not_agree_are_refused_with_their_values(edit: Edit, told: str) -> None:
    with pytest.raises(TraceError) as refused:
        parse_header(edited(edit))
    text = str(refused.value)
    assert text.startswith(f"header.json: {told}")
    assert text.endswith(
        "; convert the trace, or use the version of this program that wrote it"
        if "schema" in told
        else REPAIR
    )


@pytest.mark.parametrize(
    ("stacks", "encoders", "drafts"),
    [
        (("decoder", "decoder", "decoder"), 0, 0),
        (("encoder", "encoder", "decoder"), 2, 0),
        (("decoder", "draft", "draft"), 0, 2),
        (("encoder", "decoder", "draft"), 1, 1),
    ],
)
def test_sites_of_stacks_are_counted_and_named_in_the_text_where_there_are_several(
    stacks: tuple[str, ...], encoders: int, drafts: int
) -> None:
    made = header(sites=stacked(*stacks))
    assert (made.encoder_sites, made.draft_sites) == (encoders, drafts)
    plain = json.loads(made.to_json())
    assert all(("stack" in site) == bool(encoders or drafts) for site in plain["sites"])
    assert parse_header(made.to_json()) == made


@pytest.mark.parametrize(
    "stacks", [("draft", "decoder", "decoder"), ("encoder", "encoder", "encoder")]
)
def test_stacks_stand_in_order_with_a_decoder_among_them(stacks: tuple[str, ...]) -> None:
    with pytest.raises(TraceError) as refused:
        parse_header(header(sites=stacked(*stacks)).to_json())
    assert str(refused.value) == (
        f"header.json: sites[].stack is {list(stacks)}, must be those of the encoder, if any, then"
        " at least one of the decoder, then those of draft layers, if any" + REPAIR
    )


def test_findings_are_about_sequences_and_sites_that_there_are() -> None:
    good = header(findings=(Finding("a", True, "b", (0, 7), (0, 2)), Finding("c", False, "d")))
    assert parse_header(good.to_json()) == good
    assert parse_header(header(findings=()).to_json()).findings == ()
    for index, name, finding in (
        (1, "sequences", Finding("a", True, "b", (0, 3))),
        (1, "sites", Finding("a", True, "b", (), (2, 3))),
    ):
        wrong = header(findings=(Finding("c", False, "d"), finding))
        with pytest.raises(TraceError) as refused:
            parse_header(wrong.to_json())
        shown = list(getattr(finding, name))
        assert str(refused.value) == (
            f"header.json: findings[{index}].{name} is {tuple(shown)}, must be among those of this"
            f" header.json{REPAIR}"
        )


def test_what_a_header_says_of_its_recording() -> None:
    assert header().lacks == frozenset()
    told = header(provenance={"lacks": "weights, tokens", "order": "rank"})
    assert (told.lacks, told.stands_in_order) == ({"weights", "tokens"}, True)
    assert not header(provenance={"lacks": "tokens", "order": "rank"}).stands_in_order
    assert not header(provenance={"lacks": "weights", "order": "id"}).stands_in_order
    first, second, third = header().sites
    null = replace(second, rule=replace(RULE, null_experts=2))
    some = header(sites=(replace(first, rule=None), null, third))
    assert some.null_experts == 2
    assert parse_header(some.to_json()) == some
    assert header(sites=(replace(first, rule=None),)).null_experts == 0


def test_forecasts_of_prompts_are_listed_by_their_norm_where_the_lookahead_has_it() -> None:
    files = {**header().files, forecasts_file("renormed"): "1" * 64}
    made = header(files=files)
    assert made.forecast_norms == ("renormed",)
    assert parse_header(made.to_json()) == made
    for ahead, columns in (
        (Lookahead("gate_in", ("raw",), 2), ("lookahead", "active_shares")),
        (None, ("active_shares",)),
    ):
        with pytest.raises(TraceError) as refused:
            parse_header(header(files=files, lookahead=ahead, columns=columns).to_json())
        assert str(refused.value) == (
            "header.json: files is 'prefill_forecasts_renormed.parquet', must not be listed where"
            f" the lookahead has no such norm{REPAIR}"
        )


@pytest.mark.parametrize(
    "path", ["../out", "/abs", "header.json", "a/../b", "a//b", "./a", "", ".", "a\\b", "a\nb"]
)
def test_a_path_is_plain_and_inside(path: str) -> None:
    with pytest.raises(TraceError) as refused:
        parse_header(edited(put("files", path, "0" * 64)))
    shown = path.replace("\n", "?")
    assert str(refused.value) == (
        f"header.json: files is '{shown}', must be a plain relative path inside the trace, not"
        f" header.json{REPAIR}"
    )


@pytest.mark.parametrize("path", [("name",), ("model", "name"), ("sites", 0, "name")])
def test_no_line_breaks_in_a_name(path: tuple[Any, ...]) -> None:
    with pytest.raises(TraceError, match="must be text without a line break"):
        parse_header(edited(put(*path, "a\nb")))
    parse_header(edited(put(*path, "漢字 $x$")))
