"""The header of a trace: its model, sites, sequences, storage, origin and findings.

It is made of plain frozen values and stored as strict JSON, which `sim.traces.header_text` reads.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from sim.traces.routing import RoutingRule

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
