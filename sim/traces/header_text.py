"""The text of a trace's header, read and checked. Nothing in it is trusted: see `sim.values.fields`."""

from pathlib import PurePosixPath

from sim.traces.header import (
    COLUMNS,
    COUNTS_FILE,
    NORMS,
    POSITIONS,
    PREFILLS,
    ROUTES_FILE,
    SCHEMA,
    SITE_KINDS,
    SOURCES,
    SPLITS,
    STACKS,
    STEP_NAMES,
    Finding,
    Header,
    Lookahead,
    ModelShape,
    Site,
    TraceSequence,
    forecasts_file,
)
from sim.traces.routing import RoutingRule
from sim.values.fields import (
    HEADER_FILE,
    Fields,
    TraceError,
    is_number,
    is_scalar,
    is_sha256,
    is_text,
    load_object,
)

_INT16_MAX = (1 << 15) - 1


def parse_header(text: str | bytes) -> Header:
    """The header in the text of ``header.json``.

    Raise `TraceError` for anything that `Header.to_json` cannot write.
    """
    value = load_object(text)
    if isinstance(value, dict) and value.get("schema") != SCHEMA:
        remedy = "convert the trace, or use the version of this program that wrote it"
        raise TraceError(HEADER_FILE, "schema", value.get("schema"), f"must be {SCHEMA}", remedy)
    header = _header(Fields(value, "", Header, {"findings": None, "prefill": "rows"}))
    check_header(header)
    return header


def check_header(header: Header) -> None:
    """Raise `TraceError` unless the parts of ``header`` agree with each other."""
    model = header.model
    if model.top_k > model.experts:
        raise TraceError(
            HEADER_FILE, "model.top_k", model.top_k, f"must be <= model.experts={model.experts}"
        )
    numbers = [site.site for site in header.sites]
    if numbers != list(range(model.sites)):
        rule = f"must be 0..{model.sites - 1} in order, one for each of model.sites"
        raise TraceError(HEADER_FILE, "sites[].site", numbers, rule)
    stacks = [site.stack for site in header.sites]
    if stacks != sorted(stacks, key=STACKS.index) or "decoder" not in stacks:
        rule = (
            "must be those of the encoder, if any, then at least one of the decoder, then those of"
            " draft layers, if any"
        )
        raise TraceError(HEADER_FILE, "sites[].stack", stacks, rule)
    for site in header.sites:
        try:
            if site.rule is not None:
                site.rule.check_experts(model.experts, model.top_k)
        except ValueError as error:
            raise TraceError(
                HEADER_FILE, f"sites[{site.site}].rule", site.rule, str(error)
            ) from None
    sequences = [item.sequence for item in header.sequences]
    if len(set(sequences)) != len(sequences):
        raise TraceError(HEADER_FILE, "sequences[].sequence", sequences, "must be distinct")
    for name in header.steps:
        if name not in STEP_NAMES:
            raise TraceError(HEADER_FILE, "steps", name, f"must be one of {STEP_NAMES}")
    if len(set(header.columns)) != len(header.columns):
        raise TraceError(HEADER_FILE, "columns", header.columns, "must be distinct")
    if ("lookahead" in header.columns) != (header.lookahead is not None):
        raise TraceError(
            HEADER_FILE, "lookahead", header.lookahead, "must come with its column, and only then"
        )
    if ("active_shares" in header.columns) != bool(header.sparsities):
        raise TraceError(
            HEADER_FILE,
            "sparsities",
            header.sparsities,
            "must come with their column, and only then",
        )
    if list(header.sparsities) != sorted(set(header.sparsities)):
        raise TraceError(
            HEADER_FILE, "sparsities", header.sparsities, "must be ascending and distinct"
        )
    for norm in header.forecast_norms:
        if header.lookahead is None or norm not in header.lookahead.norms:
            rule = "must not be listed where the lookahead has no such norm"
            raise TraceError(HEADER_FILE, "files", forecasts_file(norm), rule)
    for index, finding in enumerate(header.findings or ()):
        for name, among in (("sequences", set(sequences)), ("sites", set(numbers))):
            if not among.issuperset(getattr(finding, name)):
                rule = f"must be among those of this {HEADER_FILE}"
                raise TraceError(
                    HEADER_FILE, f"findings[{index}].{name}", getattr(finding, name), rule
                )


def check_path(path: str) -> None:
    """Raise `TraceError` unless ``path`` stays inside the trace and is not the header itself."""
    plain = PurePosixPath(path)
    inside = (
        not plain.is_absolute()
        and ".." not in plain.parts
        and str(plain) == path
        and path.isprintable()
    )
    if not inside or "\\" in path or path in (HEADER_FILE, "."):
        rule = f"must be a plain relative path inside the trace, not {HEADER_FILE}"
        raise TraceError(HEADER_FILE, "files", path, rule)


def _header(fields: Fields) -> Header:
    files = fields.table("files", "sha256 by path", is_sha256)
    for path in files:
        check_path(path)
    if ROUTES_FILE not in files:
        raise fields.refusal("files", f"must list {ROUTES_FILE}")
    prefill = fields.text("prefill", PREFILLS)
    if (COUNTS_FILE in files) != (prefill == "counts"):
        raise fields.refusal(
            "prefill", f"must be counts where files list {COUNTS_FILE}, and only there"
        )
    lookahead = fields.value["lookahead"]
    return Header(
        name=fields.line("name"),
        created=fields.text("created"),
        source=fields.text("source", SOURCES),
        model=_model(Fields(fields.value["model"], "model", ModelShape)),
        dtype=fields.text("dtype"),
        experts_implementation=fields.text("experts_implementation"),
        sites=fields.array(
            "sites", lambda value, path: _site(Fields(value, path, Site, {"stack": "decoder"}))
        ),
        sequences=fields.array(
            "sequences", lambda value, path: _sequence(Fields(value, path, TraceSequence))
        ),
        licence=fields.text("licence"),
        lookahead=None
        if lookahead is None
        else _lookahead(Fields(lookahead, "lookahead", Lookahead)),
        steps=fields.table("steps", "positive numbers", lambda value: is_number(value, 1e6, 0.0)),
        sparsities=fields.array("sparsities", _sparsity),
        versions=fields.table("versions", "text", is_text),
        provenance=fields.table("provenance", "text, numbers and bools", is_scalar),
        columns=fields.array("columns", _column),
        files=files,
        findings=None if fields.value["findings"] is None else fields.array("findings", _finding),
        schema=fields.integer("schema", SCHEMA, SCHEMA),
        prefill=prefill,
    )


def _model(fields: Fields) -> ModelShape:
    return ModelShape(
        name=fields.line("name"),
        architecture=fields.text("architecture"),
        sites=fields.integer("sites", 1, _INT16_MAX),
        experts=fields.integer("experts", 1, _INT16_MAX),
        top_k=fields.integer("top_k", 1, _INT16_MAX),
        hidden=fields.integer("hidden", 1),
        expert_intermediate=fields.integer("expert_intermediate", 1),
    )


def _site(fields: Fields) -> Site:
    rule = fields.value["rule"]
    try:
        parsed = None if rule is None else RoutingRule.from_json(rule)
    except ValueError as error:
        raise fields.refusal("rule", str(error)) from None
    return Site(
        site=fields.integer("site", 0),
        name=fields.line("name"),
        layer=fields.integer("layer", 0),
        kind=fields.text("kind", SITE_KINDS),
        rule=parsed,
        rule_match=fields.number("rule_match", 1.0),
        rule_weight_error=fields.number("rule_weight_error", 1e9),
        stack=fields.text("stack", STACKS),
    )


def _sequence(fields: Fields) -> TraceSequence:
    return TraceSequence(
        sequence=fields.integer("sequence", 0),
        split=fields.text("split", SPLITS),
        domain=fields.text("domain"),
        prompt_tokens=fields.integer("prompt_tokens", 0),
        decode_tokens=fields.integer("decode_tokens", 0),
        flags=fields.table("flags", "bools", lambda value: isinstance(value, bool)),
    )


def _finding(value: object, path: str) -> Finding:
    fields = Fields(value, path, Finding)
    return Finding(
        check=fields.text("check"),
        serious=fields.flag("serious"),
        text=fields.text("text"),
        sequences=fields.integers("sequences"),
        sites=fields.integers("sites"),
    )


def _lookahead(fields: Fields) -> Lookahead:
    norms = fields.array("norms", _norm)
    if len(set(norms)) != len(norms):
        raise fields.refusal("norms", "must be distinct")
    return Lookahead(
        position=fields.text("position", POSITIONS),
        norms=norms,
        depth=fields.integer("depth", 1, _INT16_MAX),
        step=None if fields.value["step"] is None else fields.number("step", 1e6, above=0.0),
    )


def _norm(value: object, path: str) -> str:
    if value not in NORMS:
        raise TraceError(HEADER_FILE, path, value, f"must be one of {NORMS}")
    return str(value)


def _column(value: object, path: str) -> str:
    if value not in COLUMNS:
        raise TraceError(HEADER_FILE, path, value, f"must be one of {COLUMNS}")
    return str(value)


def _sparsity(value: object, path: str) -> float:
    if not is_number(value, 1.0):
        raise TraceError(HEADER_FILE, path, value, "must be a share in 0..1")
    return float(value)  # type: ignore[arg-type]
