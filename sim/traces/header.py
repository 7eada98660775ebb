"""The header of a trace: its model, sites, sequences, storage, origin and findings.

It is made of plain frozen values and stored as strict JSON. Reading trusts nothing: see
`sim.values.fields`.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath

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

SCHEMA = 1
ROUTES_FILE = "routes.parquet"
COUNTS_FILE = "prefill_counts.parquet"
FORECASTS_FILE = "prefill_forecasts_{norm}.parquet"
PREFILLS = ("rows", "counts")
SOURCES = ("captured", "imported", "synthetic")
SPLITS = ("fit", "eval")
NORMS = ("raw", "renormed")
POSITIONS = ("gate_in", "attn_in", "next_attn_in")
SITE_KINDS = ("ffn", "attn")
STACKS = ("encoder", "decoder", "draft")
COLUMNS = ("logits", "lookahead", "expert_norms", "active_shares")
STEP_NAMES = ("weights", "logits", "expert_norms", "active_shares")
_INT16_MAX = (1 << 15) - 1

Scalar = str | int | float | bool


@dataclass(frozen=True)
class ModelShape:
    """Geometry of the recorded model; ``hidden`` and ``expert_intermediate`` are in channels."""

    name: str
    architecture: str
    sites: int
    experts: int
    top_k: int
    hidden: int
    expert_intermediate: int


@dataclass(frozen=True)
class Site:
    """One MoE block. Blocks are numbered in execution order, the encoder's first, drafts last.

    ``layer`` is the block's layer number in the model, dense layers counted. ``stack`` is
    `encoder`, `decoder` or `draft` (layers that draft tokens); in a model without an encoder and
    draft layers every block is of the decoder.

    ``rule_match`` is the share (0..1) of recorded selections that ``rule`` reproduces from the
    logits as the model computed them, before any rounding. ``rule_weight_error`` is the largest
    absolute difference between a weight of the rule and the recorded one.
    """

    site: int
    name: str
    layer: int
    kind: str = "ffn"
    rule: RoutingRule | None = None
    rule_match: float = 1.0
    rule_weight_error: float = 0.0
    stack: str = "decoder"


@dataclass(frozen=True)
class TraceSequence:
    """One request.

    ``split`` is `fit` (thresholds, predictors and profiles are fitted on it) or `eval` (results are
    taken on it). ``prompt_tokens`` counts its valid prefill and chunk rows, ``decode_tokens`` its
    valid decode rows. ``flags`` are facts about the text, such as ``{"has_repetition": True}``.
    """

    sequence: int
    split: str
    domain: str
    prompt_tokens: int
    decode_tokens: int
    flags: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Lookahead:
    """What the lookahead columns hold: scores of later routers, fed with this site's input.

    These are the routers 1..``depth`` sites ahead. ``position`` is where in the layer the input is
    read (`POSITIONS`); ``norms`` are the recorded columns. ``step`` is the fixed-point step of the
    stored scores, None for float32.
    """

    position: str
    norms: tuple[str, ...]
    depth: int
    step: float | None = None


@dataclass(frozen=True)
class Finding:
    """Something about a trace that a user of its numbers should know.

    ``check`` names the check; ``text`` says what it found, with values, and the way out. A finding
    is ``serious`` if statistics or simulations of these rows mislead. ``sequences`` and ``sites``
    are those concerned, empty where the whole trace is.
    """

    check: str
    serious: bool
    text: str
    sequences: tuple[int, ...] = ()
    sites: tuple[int, ...] = ()


RANK = "rank"
"""Value of ``provenance["order"]``: without weights, but each token's experts stand by rank."""


@dataclass(frozen=True)
class Header:
    """Everything about a trace but its rows.

    - ``created``: ISO 8601.
    - ``steps``: the fixed-point steps of stored columns (`STEP_NAMES`); a column without one is
      stored as float32.
    - ``sparsities``: the shares of channels below the thresholds of `active_shares`.
    - ``columns`` (the optional columns recorded) and ``files`` (sha256 by relative path): filled
      when the trace is written.
    - ``prefill``: whether prompts are kept as `rows` or as `counts` of tokens
      (`sim.traces.prefill`).
    - ``findings``: what a check of the rows found, None where none was made.
    """

    name: str
    created: str
    source: str
    model: ModelShape
    dtype: str
    experts_implementation: str
    sites: tuple[Site, ...]
    sequences: tuple[TraceSequence, ...]
    licence: str
    lookahead: Lookahead | None = None
    steps: Mapping[str, float] = field(default_factory=dict)
    sparsities: tuple[float, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, Scalar] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] | None = None
    schema: int = SCHEMA
    prefill: str = "rows"

    @property
    def encoder_sites(self) -> int:
        """How many sites the encoder has; they are the first ones.

        Where there are some, rows of a prompt visit them and decoded rows visit the others. Without
        an encoder every row visits every site.
        """
        return sum(site.stack == "encoder" for site in self.sites)

    @property
    def draft_sites(self) -> int:
        """How many sites are of layers that draft tokens; they are the last ones.

        Rows have what such a layer chose for the same token (contract C185).
        """
        return sum(site.stack == "draft" for site in self.sites)

    @property
    def forecast_norms(self) -> tuple[str, ...]:
        """The norms of which the trace has forecasts of prompts (`sim.traces.forecasts`)."""
        return tuple(norm for norm in NORMS if forecasts_file(norm) in self.files)

    @property
    def null_experts(self) -> int:
        """How many experts compute nothing, according to the routing rules; they are the last."""
        return max(
            (site.rule.null_experts for site in self.sites if site.rule is not None), default=0
        )

    @property
    def lacks(self) -> frozenset[str]:
        """What an imported recording left out, in the words of `capture.importers.parts.LACKS`."""
        return frozenset(str(self.provenance.get("lacks", "")).split(", ")) - {""}

    @property
    def stands_in_order(self) -> bool:
        """Whether a token's experts stand in the order of their rank while weights are lacking."""
        return "weights" in self.lacks and self.provenance.get("order") == RANK

    def to_json(self) -> str:
        """The text of ``header.json``; `parse_header` gives an equal header back."""
        plain = asdict(self)
        for row, site in zip(plain["sites"], self.sites, strict=True):
            row["rule"] = None if site.rule is None else site.rule.to_json()
            if not self.encoder_sites and not self.draft_sites:
                # Older traces have no such field: their text, and so their files, stay the same.
                del row["stack"]
        if self.findings is None:
            del plain["findings"]
        if self.prefill == "rows":
            del plain["prefill"]
        return json.dumps(plain, indent=1, sort_keys=True, allow_nan=False) + "\n"


def forecasts_file(norm: str) -> str:
    """The path of a trace's file with the forecasts of prompts for ``norm``."""
    return FORECASTS_FILE.format(norm=norm)


def trace_sha256(header: Header) -> str:
    """The identity of a trace: a sha256 over all of its files but the header.

    It is taken of one line ``path sha256`` a file, sorted by path, each ending in a newline. An
    imported trace has a line more, the digest of what was said at the import and no file holds: its
    model, its dtype, what the recording lacks, and its sequences with their splits and flags.
    """
    lines = "".join(f"{path} {digest}\n" for path, digest in sorted(header.files.items()))
    if header.source == "imported":
        lines += f"header {_sha256_of_said(header)}\n"
    return hashlib.sha256(lines.encode()).hexdigest()


def _sha256_of_said(header: Header) -> str:
    said = {
        "model": asdict(header.model),
        "dtype": header.dtype,
        "lacks": sorted(header.lacks),
        "in_order": header.stands_in_order,
        "sequences": [vars(one) for one in header.sequences],
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


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
