"""Records passages unit by unit, measures site by site, and writes the trace from the shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import safetensors.torch
import torch

from capture.models.discover import MoELayer
from capture.recording.describe import describe
from capture.recording.hidden import HiddenFiles
from capture.recording.plan import Plan
from capture.recording.prompts import Passage, has_repetition
from capture.recording.rows import TOKEN_COLUMNS, Array
from capture.recording.rules import token_table
from capture.recording.settings import Settings
from capture.recording.shards import Shards
from capture.recording.sites import (
    SiteFacts,
    Tokens,
    facts_of,
    load_tokens,
    measure_site,
    site_name,
    told_of,
)
from capture.recording.units import (
    Unit,
    hidden_sequences,
    prompt_rows,
    record_unit,
    scored_rows,
    units_of,
)
from sim.traces.forecasts import forecast_cells
from sim.traces.header import Scalar, forecasts_file
from sim.traces.parts import header_of_part, write_trace_parts
from sim.traces.trace import DECODE, Header, Lookahead, Site, Trace, TraceSequence

ROUTERS_FILE = "routers.safetensors"
THRESHOLDS_FILE = "thresholds.safetensors"
# A trace is written once and read often, so slow and thorough compression pays.
COMPRESSION: Final = "brotli"
COMPRESSION_LEVEL = 11

Advance = Callable[[str, int], None]


class Recording:
    """A capture in progress: ``run`` records what is missing, ``write`` writes the trace."""

    def __init__(
        self,
        model: Any,
        layers: Sequence[MoELayer],
        passages: Sequence[Passage],
        plan: Plan,
        settings: Settings,
        shards: Shards,
    ) -> None:
        self.model, self.layers, self.passages = model, list(layers), list(passages)
        self.plan, self.settings, self.shards = plan, settings, shards
        self.units = units_of(passages, settings.batch)
        wanted = settings.hidden_sequences if plan.depth or plan.sparsities else 0
        self.hidden = hidden_sequences(passages, wanted)

    def run(self, advance: Advance) -> None:
        """Record every unit and measure every site that has no shard yet.

        ``advance(task, count)`` is called as sequences and sites are finished, with the tasks
        ``sequences`` and ``sites``. What an earlier run has done is counted, too.
        """
        for unit in self.units:
            if not self.shards.has(unit.name):
                record_unit(
                    self.model,
                    self.layers,
                    unit,
                    self.plan,
                    self.settings,
                    self.hidden,
                    self.shards,
                )
            advance("sequences", len(unit.passages))
        tokens = self.tokens()
        fit = [
            number for number, passage in enumerate(self.passages) if passage.prompt.split == "fit"
        ]
        for layer in self.layers:
            if not self.shards.has(site_name(layer.site)):
                measure_site(layer, tokens, self.plan, self.settings, fit, self.shards)
            advance("sites", 1)

    def tokens(self) -> Tokens:
        return load_tokens(self.shards, [unit.name for unit in self.units])

    def write(self, header: Header) -> Header:
        """Write the trace from the shards, then remove the shards; returns the trace's header.

        ``header`` has the facts known before the run: name, model, versions, provenance, licence.
        """
        tokens = self.tokens()
        facts = facts_of(self.shards, len(self.layers))
        hidden = HiddenFiles(
            self.shards, tokens, self.settings, len(self.layers), bool(self.plan.sparsities)
        )
        header = self._completed(header, tokens, facts, hidden)
        files: dict[str, bytes | Callable[[Path], None]] = dict(hidden.files())
        tensors = self.plan.routers | self._token_tables(facts)
        if tensors:
            files[ROUTERS_FILE] = safetensors.torch.save(
                {key: values.contiguous() for key, values in tensors.items()}
            )
        if self.plan.sparsities:
            thresholds = [
                self.shards.tensor(site_name(layer.site), "thresholds") for layer in self.layers
            ]
            files[THRESHOLDS_FILE] = safetensors.torch.save({"thresholds": torch.stack(thresholds)})
        told = {*files, *map(forecasts_file, self._counted_norms(header))}
        files["README.md"] = describe(header, tokens.begins[-1], told).encode()
        parts = self._parts(header, tokens)
        counted = header.prefill == "counts"
        num_rows = int((tokens.phase == DECODE).sum()) if counted else tokens.begins[-1]
        header = write_trace_parts(
            self.settings.output_dir,
            header,
            parts,
            num_rows,
            files,
            forecast_norms=self._counted_norms(header),
            compression=COMPRESSION,
            compression_level=COMPRESSION_LEVEL,
        )
        self.shards.remove()
        return header

    def _completed(
        self, header: Header, tokens: Tokens, facts: Sequence[SiteFacts], hidden: HiddenFiles
    ) -> Header:
        plan, settings = self.plan, self.settings
        steps = {"logits": settings.logits_step} if settings.logits and settings.logits_step else {}
        columns = ["logits"] if settings.logits else []
        columns += ["lookahead"] if plan.depth else []
        provenance: dict[str, Scalar] = dict(header.provenance)
        if settings.weights_step:
            steps["weights"] = settings.weights_step
            provenance["rounding_reorders_weights"] = sum(item.reordered for item in facts)
        if plan.sparsities:
            columns += ["expert_norms", "active_shares"]
            steps["expert_norms"] = _power_of_two_step(max(item.largest_norm for item in facts))
            steps["active_shares"] = 1 / plan.expert_intermediate
            provenance["thresholds_pooled_over_site"] = sum(item.num_pooled for item in facts)
            provenance["active_shares_of"] = plan.quantity
            if plan.unmeasured:
                numbers = ", ".join(map(str, plan.unmeasured))
                provenance["sites_not_measured"] = (
                    f"{numbers}: {next(iter(plan.unmeasured.values()))}"
                )
        provenance |= told_of(facts, fitted=settings.logits)
        null = self.layers[0].num_classes - self.layers[0].num_experts
        if null:
            provenance["null_experts"] = null
        if tokens.kept.any():
            provenance |= hidden.error()
        provenance |= {f"not_recorded_{key}": reason for key, reason in plan.left_out.items()}
        ahead = (
            Lookahead(plan.position, plan.norms, plan.depth, settings.lookahead_step)
            if plan.depth
            else None
        )
        sites = [self._site(layer, item) for layer, item in zip(self.layers, facts, strict=True)]
        return replace(
            header,
            sites=tuple(sites),
            sequences=self._sequences(tokens),
            lookahead=ahead,
            steps=steps,
            sparsities=plan.sparsities,
            provenance=provenance,
            columns=tuple(columns),
        )

    def _site(self, layer: MoELayer, facts: SiteFacts) -> Site:
        fit = facts.fit
        return Site(
            layer.site,
            layer.name,
            layer.layer,
            layer.kind,
            fit.rule,
            fit.match,
            fit.weight_error,
            stack=layer.side,
        )

    def _sequences(self, tokens: Tokens) -> tuple[TraceSequence, ...]:
        decode, found = tokens.decode, []
        for number, passage in enumerate(self.passages):
            own = tokens.valid & (tokens.sequence == number)
            decoded = own & decode
            found.append(
                TraceSequence(
                    sequence=number,
                    split=passage.prompt.split,
                    domain=passage.prompt.domain,
                    prompt_tokens=int(own.sum() - decoded.sum()),
                    decode_tokens=int(decoded.sum()),
                    flags={"has_repetition": has_repetition(tokens.token[decoded].tolist())},
                )
            )
        return tuple(found)

    def _token_tables(self, facts: Sequence[SiteFacts]) -> dict[str, torch.Tensor]:
        """The tables [vocabulary, K] of sites where the token's id chooses."""
        tables = {}
        for layer, item in zip(self.layers, facts, strict=True):
            table = token_table(layer) if item.by_token else None
            if table is not None:
                tables[f"token_experts_{layer.site}"] = torch.from_numpy(table.astype(np.int16))
        return tables

    def _parts(self, header: Header, tokens: Tokens) -> Iterator[Trace]:
        """A part of the trace for each unit; steps count on from unit to unit."""
        step, decoded = 0, 0
        for index, unit in enumerate(self.units):
            begin, end = tokens.begins[index : index + 2]
            count = int(tokens.decode[begin:end].sum())
            yield self._part(header, unit, tokens.decode[begin:end], step, decoded, decoded + count)
            step += self.shards.facts(unit.name)["steps"]
            decoded += count

    def _part(
        self, header: Header, unit: Unit, decode: Array, first_step: int, begin: int, end: int
    ) -> Trace:
        def column(name: str) -> Array:
            return self.shards.tensor(unit.name, name).numpy()

        def measured(name: str) -> Array | None:
            if not self.plan.sparsities:
                return None
            sites = [
                self.shards.rows(site_name(layer.site), name, begin, end) for layer in self.layers
            ]
            return _spread(decode, torch.stack(sites, dim=1).numpy())

        columns = {name: column(name) for name in (*TOKEN_COLUMNS, "ids", "weights")}
        columns["step"] = (columns["step"] + first_step).astype(np.int32)
        sequences = range(unit.first, unit.first + len(unit.passages))
        scored = scored_rows(columns["phase"], columns["valid"], self.settings)
        prompts = prompt_rows(columns["phase"], columns["valid"])
        rules = [site.rule for site in header.sites]
        step, sequence = columns["step"][prompts], columns["sequence"][prompts]
        return Trace(
            header_of_part(header, sequences),
            **columns,
            logits=column("logits") if self.settings.logits else None,
            lookahead={
                norm: _spread(scored, column(f"lookahead_{norm}")) for norm in self.plan.norms
            },
            expert_norms=measured("norms"),
            active_shares=measured("shares"),
            prompt_forecasts={
                norm: forecast_cells(
                    rules, header.model.top_k, step, sequence, column(f"prompt_lookahead_{norm}")
                )
                for norm in self._counted_norms(header)
            },
        )

    def _counted_norms(self, header: Header) -> tuple[str, ...]:
        """The norms whose forecasts of prompts are kept as counts."""
        counted = self.settings.prefill_lookahead == "counts" and any(
            site.rule is not None for site in header.sites
        )
        return self.plan.norms if counted else ()


def _spread(chosen: Array, values: Array) -> Array:
    """Values of the ``chosen`` rows, widened to all rows with NaN."""
    spread = np.full((len(chosen), *values.shape[1:]), np.nan, np.float32)
    spread[chosen] = values
    return spread


def _power_of_two_step(largest: float) -> float:
    """The smallest power of two of which ``largest`` is at most 32767 multiples (16 bits)."""
    return float(2.0 ** np.ceil(np.log2(max(largest, 1e-6) / np.iinfo(np.int16).max)))
