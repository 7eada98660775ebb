"""Evaluates a checkpoint of the project's own models: loss by domain, and gating statistics.

The statistics stand beside published numbers. ``python -m capture.train_tiny --evaluate
capture/assets/tiny_mixtral`` evaluates on the held-out part of the whole corpus. With ``--passages
capture/assets/prompts/heldout.jsonl`` it evaluates on the shipped passages alone, which are the
same text on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from capture.recording.prompts import read_prompts
from capture.statistics.gating_report import FEWEST_LAYERS, Statistic, report
from capture.statistics.gating_stats import Gating
from capture.statistics.published import PAPERS
from capture.tiny.corpus import DOMAINS, Corpus
from capture.tiny.families import Site, family_of
from capture.tiny.model import load_model
from capture.tiny.tokenizer import consecutive_windows, encode, load_tokenizer, sample_windows
from sim.process.progress import tracked

# How many tokens of each domain the gating statistics are computed from.
GATING_TOKENS = (5120, 5120, 3072)
PASSAGE_TOKENS = 200
WINDOWS_PER_BATCH = 8
Windows = npt.NDArray[np.int64]
Domains = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class HeldOut:
    """Text that no model of the project was trained on, as token ids.

    The loss is computed over ``windows`` [S, T]; ``domains`` [S] are their indices into DOMAINS.
    The gates are recorded on ``gating`` [S, T]. ``notes`` say what text this is.
    """

    windows: Windows
    domains: Domains
    gating: Windows
    notes: tuple[str, ...]


@dataclass(frozen=True)
class DomainLoss:
    """The loss over a domain's predicted ``tokens``.

    Bits per byte can be compared between models with different tokenizers.
    """

    tokens: int
    nats_per_token: float
    bits_per_byte: float


@dataclass(frozen=True)
class Evaluation:
    """``losses`` by domain, and gating ``statistics`` of each stack with FEWEST_LAYERS sites."""

    losses: Mapping[str, DomainLoss]
    statistics: Mapping[str, Sequence[Statistic]]


def evaluate(folder: Path, text: Corpus | Path, console: Console) -> Evaluation:
    """Prints and returns the evaluation of the checkpoint in ``folder``.

    ``text`` is a corpus, or the path of a file of passages.
    """
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    family = family_of(model)
    if isinstance(text, Path):
        held_out = held_out_passages(text, tokenizer)
    else:
        held_out = held_out_corpus(text, tokenizer, family.window, family.prefix)
    console.print(*held_out.notes, sep="\n", highlight=False)
    losses = held_out_loss(
        model, held_out.windows, held_out.domains, byte_lengths(tokenizer), console
    )
    print_losses(losses, console)
    statistics = {}
    for stack, gating in capture_gating(model, held_out.gating).items():
        sequences, tokens, num_sites, _ = gating.logits.shape
        if num_sites < FEWEST_LAYERS:
            console.print(
                f"no gating statistics of the {stack}: {num_sites} sites, they need {FEWEST_LAYERS}"
            )
            continue
        statistics[stack] = report(gating)
        print_statistics(stack, statistics[stack], sequences * tokens, console)
    return Evaluation(losses, statistics)


def held_out_corpus(corpus: Corpus, tokenizer: Tokenizer, length: int, prefix: int) -> HeldOut:
    """The held-out documents, in windows that predict every token but the first ``prefix`` once."""
    stream = encode(corpus.held_out, tokenizer)
    windows, domains = consecutive_windows(stream, length, prefix)
    gating, _ = sample_windows(stream, length, [tokens // length for tokens in GATING_TOKENS])
    return HeldOut(windows, domains, gating, corpus.notes)


def held_out_passages(path: Path, tokenizer: Tokenizer) -> HeldOut:
    """The first PASSAGE_TOKENS tokens of every passage of ``path`` that has as many.

    They serve for loss and gates alike. Raises ValueError if no passage is long enough.
    """
    prompts = [prompt for prompt in read_prompts(path) if prompt.domain in DOMAINS]
    tokens = [tokenizer.encode(prompt.text).ids[:PASSAGE_TOKENS] for prompt in prompts]
    long = [index for index, ids in enumerate(tokens) if len(ids) == PASSAGE_TOKENS]
    if not long:
        raise ValueError(
            f"cannot evaluate on {path}: no passage of {DOMAINS} has {PASSAGE_TOKENS} tokens"
        )
    windows = np.array([tokens[index] for index in long], np.int64)
    domains = np.array([DOMAINS.index(prompts[index].domain) for index in long], np.uint8)
    return HeldOut(
        windows, domains, windows, (f"{len(long)} passages of {PASSAGE_TOKENS} tokens: {path}",)
    )


def byte_lengths(tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """Bytes of text that each token stands for, by token id; 0 for special tokens."""
    vocabulary = tokenizer.get_vocab()
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    lengths = np.zeros(max(vocabulary.values()) + 1, np.int64)
    for token, index in vocabulary.items():
        # In a byte-level vocabulary each character of a token stands for one byte.
        lengths[index] = 0 if token in special else len(token)
    return lengths


@torch.no_grad()
def held_out_loss(
    model: PreTrainedModel,
    windows: Windows,
    domains: Domains,
    token_bytes: npt.NDArray[np.int64],
    console: Console | None = None,
) -> dict[str, DomainLoss]:
    """The loss of each domain.

    A window is read without the text before it, and its prefix is not predicted.
    """
    prefix = family_of(model).prefix
    nats, counts, num_bytes = (
        np.zeros(len(DOMAINS)),
        np.zeros(len(DOMAINS), int),
        np.zeros(len(DOMAINS), int),
    )
    batches = range(0, len(windows), WINDOWS_PER_BATCH)
    console = console or Console(quiet=True)
    for start in tracked(batches, "held-out loss"):
        batch = windows[start : start + WINDOWS_PER_BATCH]
        of_tokens = token_losses(model, batch, prefix)
        for domain, of_window, window in zip(domains[start:], of_tokens, batch, strict=False):
            nats[domain] += of_window.sum()
            counts[domain] += of_window.size
            num_bytes[domain] += token_bytes[window[prefix:]].sum()
    return {
        name: DomainLoss(
            int(counts[at]), nats[at] / counts[at], nats[at] / num_bytes[at] / np.log(2)
        )
        for at, name in enumerate(DOMAINS)
        if counts[at]
    }


@torch.no_grad()
def token_losses(model: PreTrainedModel, windows: Windows, prefix: int) -> npt.NDArray[np.float32]:
    """Loss in nats of every token after a window's first ``prefix``, [window, token - prefix]."""
    tokens = torch.from_numpy(windows)
    logits = family_of(model).predict(model, tokens, prefix)
    losses = F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), tokens[:, prefix:].reshape(-1), reduction="none"
    )
    return np.asarray(losses.reshape(len(windows), -1).numpy())


class GateRecorder:
    """Hooks that record, by site, what the gates of the last forward pass saw and chose.

    ``remove`` removes them from the model.
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        self.gate_inputs: dict[Site, torch.Tensor] = {}
        self.gate_outputs: dict[Site, Sequence[torch.Tensor]] = {}
        self.layer_inputs: dict[Site, torch.Tensor] = {}
        self._handles = []
        for site in sites:
            self._handles.append(site.router.register_forward_hook(self._gate_hook(site)))
            self._handles.append(site.layer_norm.register_forward_hook(self._input_hook(site)))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _gate_hook(
        self, site: Site
    ) -> Callable[[torch.nn.Module, tuple[torch.Tensor, ...], Any], None]:
        def hook(_module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], outputs: Any) -> None:
            self.gate_inputs[site], self.gate_outputs[site] = inputs[0], outputs

        return hook

    def _input_hook(
        self, site: Site
    ) -> Callable[[torch.nn.Module, tuple[torch.Tensor, ...], Any], None]:
        def hook(_module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], _outputs: Any) -> None:
            self.layer_inputs[site] = inputs[0]

        return hook


@torch.no_grad()
def capture_gating(model: PreTrainedModel, windows: Windows) -> dict[str, Gating]:
    """The gates of ``model`` on token ids [window, token], by stack.

    The text is teacher-forced: one pass over a window shows what decoding it would. In an
    encoder-decoder the encoder reads a window's prefix, the decoder its start token and the rest.
    The sample of x W_up is from the first batch of windows.
    """
    family = family_of(model)
    sites = family.sites(model)
    recorder = GateRecorder(sites)
    batches: list[dict[Site, dict[str, npt.NDArray[np.floating]]]] = []
    up_projections: dict[Site, npt.NDArray[np.float32]] = {}
    try:
        for start in range(0, len(windows), WINDOWS_PER_BATCH):
            batch = torch.from_numpy(windows[start : start + WINDOWS_PER_BATCH])
            # The padding is the token to be predicted last, so that all of the window is read.
            family.predict(model, F.pad(batch, (0, 1)), family.prefix)
            recorded = {}
            for site in sites:
                routed = family.routed(recorder.gate_outputs[site])
                norms, sample = expert_outputs(
                    family.expert, site, recorder.gate_inputs[site], routed.experts
                )
                up_projections.setdefault(site, sample)
                arrays = {
                    "gate_inputs": recorder.gate_inputs[site],
                    "layer_inputs": recorder.layer_inputs[site],
                    "logits": routed.logits,
                    "weights": routed.weights,
                    "experts": routed.experts,
                    "output_norms": norms,
                }
                recorded[site] = {
                    name: np.asarray(array.reshape(len(batch), -1, array.shape[-1]).numpy())
                    for name, array in arrays.items()
                }
            batches.append(recorded)
    finally:
        recorder.remove()
    stacks = dict.fromkeys(site.stack for site in sites)
    return {
        stack: _gating([site for site in sites if site.stack == stack], batches, up_projections)
        for stack in stacks
    }


def _gating(
    sites: Sequence[Site],
    batches: Sequence[Mapping[Site, Mapping[str, npt.NDArray[np.floating]]]],
    up_projections: Mapping[Site, npt.NDArray[np.float32]],
) -> Gating:
    """Joins the sites' records [window, token, X] of all batches to [window, token, site, X]."""
    names = batches[0][sites[0]]
    arrays = {
        name: np.concatenate(
            [np.stack([recorded[site][name] for site in sites], 2) for recorded in batches]
        )
        for name in names
    }
    return Gating(
        **arrays,
        routers=np.stack([site.router_weight.detach().numpy() for site in sites]),
        norm_gains=np.stack([site.norm_gain.detach().numpy() for site in sites]),
        up_projections=np.concatenate([up_projections[site] for site in sites]),
    )


def expert_outputs(
    expert: Callable[[Any, int, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    site: Site,
    gate_inputs: torch.Tensor,
    chosen: torch.Tensor,
) -> tuple[torch.Tensor, npt.NDArray[np.float32]]:
    """Norms of the chosen experts' unweighted outputs, [token, K], and a sample of x W_up.

    The sample is every seventh value, as a vector.
    """
    inputs = gate_inputs.reshape(-1, gate_inputs.shape[-1])
    norms, up_values = torch.zeros(chosen.shape), []
    for index in np.unique(chosen.numpy()).tolist():
        tokens, ranks = torch.where(chosen == index)
        up, outputs = expert(site.experts, index, inputs[tokens])
        norms[tokens, ranks] = outputs.norm(dim=-1)
        up_values.append(up.reshape(-1)[::7])
    return norms, np.asarray(torch.cat(up_values).numpy())


def print_losses(losses: Mapping[str, DomainLoss], console: Console) -> None:
    table = Table(title="Held-out loss", title_justify="left")
    for column in ("domain", "tokens", "nats/token", "bits/byte"):
        table.add_column(column, justify="left" if column == "domain" else "right")
    for domain, loss in losses.items():
        table.add_row(
            domain, f"{loss.tokens:,}", f"{loss.nats_per_token:.3f}", f"{loss.bits_per_byte:.3f}"
        )
    console.print(table)


def print_statistics(
    stack: str, statistics: Sequence[Statistic], num_tokens: int, console: Console
) -> None:
    """Prints a row per statistic (here, by chance, published, source), then the papers."""
    title = f"Gating of the {stack} on {num_tokens:,} held-out tokens, means over its sites"
    table = Table(title=title, title_justify="left")
    for column in ("statistic", "here", "chance", "published", "source"):
        table.add_column(
            column, justify="right" if column in ("here", "chance", "published") else "left"
        )
    for row in statistics:
        published = row.published
        chance = "" if row.chance is None else f"{row.chance:.3f}"
        cells = (published.value, published.source) if published else ("", "")
        table.add_row(row.name, f"{row.value:.3f}", chance, *cells)
    console.print(table)
    for paper, reference in PAPERS.items():
        console.print(f"{paper}: {reference}", highlight=False)
    console.print(
        "0.25 and 0.464 are what experts drawn uniformly, 2 of 8, give: lower bounds, not"
        " measurements."
    )
