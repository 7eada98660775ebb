"""Evaluates a checkpoint of the project's own model on held-out text: loss by domain, gating beside published numbers.

``python -m capture.train_tiny --evaluate capture/assets/tiny_mixtral``
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import MixtralForCausalLM

from capture.corpus import DOMAINS, Corpus
from capture.gating_report import FEWEST_LAYERS, Statistic, report
from capture.gating_stats import PAPERS, Gating
from capture.tiny_model import load_model
from capture.tokenizer import TokenStream, consecutive_windows, encode, load_tokenizer, sample_windows

WINDOW_TOKENS = 512
# Windows of each domain that the gating statistics are taken from: 26 * 512 = 13,312 tokens.
GATING_WINDOWS = (10, 10, 6)
WINDOWS_PER_BATCH = 8

Hook = Callable[[torch.nn.Module, tuple[torch.Tensor, ...], Any], None]


def evaluate(folder: Path, corpus: Corpus, console: Console) -> tuple[dict[str, float], list[Statistic]]:
    """Prints and returns the held-out loss of each domain (nats per token) and the gating statistics of ``folder``."""
    model = load_model(folder)
    stream = encode(corpus.held_out, load_tokenizer(folder))
    console.print(*corpus.notes, sep="\n", highlight=False)
    losses = held_out_loss(model, stream, console)
    print_losses(losses, stream, corpus, console)
    if model.config.num_hidden_layers < FEWEST_LAYERS:
        console.print(f"no gating statistics: {model.config.num_hidden_layers} layers, they need {FEWEST_LAYERS}")
        return losses, []
    windows, _ = sample_windows(stream, WINDOW_TOKENS, GATING_WINDOWS)
    statistics = report(capture_gating(model, windows))
    print_statistics(statistics, windows.size, console)
    return losses, statistics


@torch.no_grad()
def held_out_loss(model: MixtralForCausalLM, stream: TokenStream, console: Console | None = None) -> dict[str, float]:
    """Mean nats per token of each domain over the whole stream, in windows of 512 tokens that start without context."""
    windows, domains = consecutive_windows(stream, WINDOW_TOKENS)
    sums, counts = np.zeros(len(DOMAINS)), np.zeros(len(DOMAINS), int)
    batches = range(0, len(windows), WINDOWS_PER_BATCH)
    console = console or Console(quiet=True)
    for start in track(batches, "held-out loss", console=console, disable=not console.is_terminal):
        of_tokens = token_losses(model, windows[start : start + WINDOWS_PER_BATCH])
        for domain, of_window in zip(domains[start:], of_tokens, strict=False):
            sums[domain] += of_window.sum()
            counts[domain] += of_window.size
    return {name: sums[index] / counts[index] for index, name in enumerate(DOMAINS) if counts[index]}


@torch.no_grad()
def token_losses(model: MixtralForCausalLM, windows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Nats of every token but a window's first, [window, token - 1]."""
    inputs = torch.from_numpy(windows)
    logits = model(input_ids=inputs, use_cache=False).logits[:, :-1]
    losses = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), inputs[:, 1:].reshape(-1), reduction="none")
    return np.asarray(losses.reshape(len(windows), -1).numpy())


class GateRecorder:
    """What the gates of one forward pass saw and chose, by layer; ``remove`` takes the hooks out of the model."""

    def __init__(self, model: MixtralForCausalLM) -> None:
        self.gates: dict[int, tuple[torch.Tensor, ...]] = {}
        self.layer_inputs: dict[int, torch.Tensor] = {}
        self._handles = []
        for index, layer in enumerate(model.model.layers):
            self._handles.append(layer.mlp.gate.register_forward_hook(self._gate_hook(index)))
            self._handles.append(layer.input_layernorm.register_forward_hook(self._input_hook(index)))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _gate_hook(self, index: int) -> Hook:
        def hook(_module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], outputs: Any) -> None:
            self.gates[index] = (inputs[0], *outputs)

        return hook

    def _input_hook(self, index: int) -> Hook:
        def hook(_module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], _outputs: Any) -> None:
            self.layer_inputs[index] = inputs[0]

        return hook


@torch.no_grad()
def capture_gating(model: MixtralForCausalLM, windows: npt.NDArray[np.int64]) -> Gating:
    """The gates of ``model`` on token ids [window, token], teacher-forced: the order of decoding, in one pass.

    The sample of x W_up is from the first batch of windows.
    """
    recorder = GateRecorder(model)
    parts: dict[str, list[npt.NDArray[np.floating]]] = {}
    up_projections: npt.NDArray[np.float32] | None = None
    try:
        for start in range(0, len(windows), WINDOWS_PER_BATCH):
            batch = windows[start : start + WINDOWS_PER_BATCH]
            model.model(input_ids=torch.from_numpy(batch), use_cache=False)
            output_norms, sample = expert_outputs(model, recorder)
            up_projections = sample if up_projections is None else up_projections
            gates = [recorder.gates[index] for index in range(len(recorder.gates))]
            inputs = [recorder.layer_inputs[index] for index in range(len(recorder.layer_inputs))]
            for name, layers in {
                "gate_inputs": [gate[0] for gate in gates],
                "layer_inputs": inputs,
                "logits": [gate[1] for gate in gates],
                "weights": [gate[2] for gate in gates],
                "experts": [gate[3] for gate in gates],
                "output_norms": output_norms,
            }.items():
                parts.setdefault(name, []).append(stack_layers(layers, batch.shape))
    finally:
        recorder.remove()
    layers = model.model.layers
    return Gating(
        **{name: np.concatenate(batches) for name, batches in parts.items()},
        routers=np.stack([layer.mlp.gate.weight.numpy() for layer in layers]),
        norm_gains=np.stack([layer.post_attention_layernorm.weight.numpy() for layer in layers]),
        up_projections=up_projections if up_projections is not None else np.zeros(0, np.float32),
    )


def stack_layers(layers: Sequence[torch.Tensor], batch_shape: tuple[int, ...]) -> npt.NDArray[np.floating]:
    """Per-layer tensors [window * token, X] or [window, token, X] as one array [window, token, layer, X]."""
    return np.asarray(torch.stack([layer.reshape(*batch_shape, -1) for layer in layers], 2).numpy())


def expert_outputs(
    model: MixtralForCausalLM, recorder: GateRecorder
) -> tuple[list[torch.Tensor], npt.NDArray[np.float32]]:
    """Norms of the chosen experts' unweighted outputs, [token, K] per layer, and every seventh value of x W_up."""
    all_norms, up_values = [], []
    for index, layer in enumerate(model.model.layers):
        inputs, _, _, chosen = recorder.gates[index]
        inputs = inputs.reshape(-1, inputs.shape[-1])
        norms = torch.zeros(chosen.shape)
        experts = layer.mlp.experts
        for expert in range(experts.gate_up_proj.shape[0]):
            tokens, ranks = torch.where(chosen == expert)
            gate, up = F.linear(inputs[tokens], experts.gate_up_proj[expert]).chunk(2, -1)
            norms[tokens, ranks] = F.linear(F.silu(gate) * up, experts.down_proj[expert]).norm(dim=-1)
            up_values.append(up.reshape(-1)[::7])
        all_norms.append(norms)
    return all_norms, np.asarray(torch.cat(up_values).numpy())


def print_losses(losses: dict[str, float], stream: TokenStream, corpus: Corpus, console: Console) -> None:
    """A row per domain; bits per byte are comparable with models of other tokenizers."""
    tokens = stream.tokens_by_domain()
    table = Table(title="Held-out loss", title_justify="left")
    for column in ("domain", "tokens", "nats/token", "bits/byte"):
        table.add_column(column, justify="left" if column == "domain" else "right")
    for domain, loss in losses.items():
        num_bytes = sum(len(document.text.encode()) for document in corpus.held_out if document.domain == domain)
        bits_per_byte = loss * tokens[domain] / num_bytes / np.log(2)
        table.add_row(domain, f"{tokens[domain]:,}", f"{loss:.3f}", f"{bits_per_byte:.3f}")
    console.print(table)


def print_statistics(statistics: Sequence[Statistic], num_tokens: int, console: Console) -> None:
    """A row per statistic: here, by chance, published, where; the papers below."""
    table = Table(title=f"Gating on {num_tokens:,} held-out tokens, means over layers", title_justify="left")
    for column in ("statistic", "here", "chance", "published", "source"):
        table.add_column(column, justify="right" if column in ("here", "chance", "published") else "left")
    for row in statistics:
        published = row.published
        chance = "" if row.chance is None else f"{row.chance:.3f}"
        cells = (published.value, published.source) if published else ("", "")
        table.add_row(row.name, f"{row.value:.3f}", chance, *cells)
    console.print(table)
    for paper, reference in PAPERS.items():
        console.print(f"{paper}: {reference}", highlight=False)
    console.print("0.25 and 0.464 are what experts drawn uniformly, 2 of 8, give: lower bounds, not measurements.")
