"""Initial weights, optimizer and losses of the project's own models, the same for all recipes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from capture.tiny.families import family_named, family_of
from capture.tiny.recipes import Recipe


def build_model(recipe: Recipe) -> Any:
    """The model before the first step, in float32.

    Seeds torch's global generator, from which the initial weights are drawn.
    """
    torch.manual_seed(recipe.seed)
    family = family_named(recipe.family)
    model = family.fresh(recipe)
    # Radford et al. 2019 (GPT-2), section 2.3: weights that add to the residual stream are scaled
    # down with depth.
    residual_scale = 1 / math.sqrt(2 * recipe.layers)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(family.residual_outputs):
                parameter.mul_(residual_scale)
            elif name.endswith(family.embeddings):
                parameter.normal_(0, recipe.embedding_std)
    return model


def load_model(folder: Path) -> Any:
    """A checkpoint in float32, ready for evaluation.

    Raises ValueError if the folder holds no checkpoint of a known family.
    """
    config = folder / "config.json"
    if not config.is_file():
        raise ValueError(f"cannot load a model: {config} does not exist; give a checkpoint folder")
    family = family_named(json.loads(config.read_text()).get("model_type"))
    # A progress bar for 14 MB would only come between the tables.
    disable_progress_bar()
    return family.model_class.from_pretrained(
        folder, dtype=torch.float32, **family.load_options
    ).eval()


def make_optimizer(model: PreTrainedModel, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW without weight decay on vectors, embeddings and routers.

    On routers, decay would flatten the gate weights.
    """
    decayed: list[torch.Tensor] = []
    free: list[torch.Tensor] = []
    for name, parameter in model.named_parameters():
        is_decayed = parameter.dim() >= 2 and not name.endswith(family_of(model).undecayed)
        (decayed if is_decayed else free).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": recipe.weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=recipe.learning_rate, betas=(0.9, 0.95), eps=1e-8, fused=True
    )


@contextmanager
def recorded_router_logits(model: PreTrainedModel) -> Iterator[list[torch.Tensor]]:
    """A list to which every forward pass appends its sites' router logits [token, expert].

    The caller clears it.
    """
    family = family_of(model)
    logits: list[torch.Tensor] = []

    def record(_module: torch.nn.Module, _inputs: object, outputs: Sequence[torch.Tensor]) -> None:
        logits.append(family.routed(outputs).logits)

    handles = [site.router.register_forward_hook(record) for site in family.sites(model)]
    try:
        yield logits
    finally:
        for handle in handles:
            handle.remove()


def balance_loss(router_logits: Sequence[torch.Tensor], top_k: int) -> torch.Tensor:
    """The load-balancing loss, mean over layers; 1 where the load is even.

    transformers instead pools the logits of all layers first, which leaves one collapsed layer
    unpunished. Source: Fedus et al., Switch Transformers, arXiv:2101.03961, equation 4, here for
    top-k.
    """
    total = torch.zeros(())
    for logits in router_logits:
        num_tokens, num_experts = logits.shape
        probabilities = logits.float().softmax(-1)
        chosen = probabilities.topk(top_k, -1).indices.reshape(-1)
        load = torch.bincount(chosen, minlength=num_experts) / num_tokens
        total = total + num_experts * (load * probabilities.mean(0)).sum() / top_k
    return total / len(router_logits)


def z_loss(router_logits: Sequence[torch.Tensor]) -> torch.Tensor:
    """The router's squared log-partition function, mean over layers and tokens.

    Source: Zoph et al., ST-MoE, arXiv:2202.08906.
    """
    return torch.stack(
        [logits.float().logsumexp(-1).pow(2).mean() for logits in router_logits]
    ).mean()


def language_loss(model: PreTrainedModel, windows: torch.Tensor, prefix: int) -> torch.Tensor:
    """Mean loss in nats of the tokens of windows [sequence, token] after their ``prefix``.

    Each is predicted from the tokens before it.
    """
    logits = family_of(model).predict(model, windows, prefix)
    return F.cross_entropy(
        logits.float().reshape(-1, logits.shape[-1]), windows[:, prefix:].reshape(-1)
    )
