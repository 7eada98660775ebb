"""The project's own Mixture-of-Experts model: its recipe, its initial weights and its loss.

Mixtral's architecture as transformers implements it, so that whatever reads a Mixtral checkpoint reads this one.
The recipe was chosen on one seed by comparing gating statistics with published ones; the model card says what came out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM
from transformers.utils.logging import disable_progress_bar

from capture.corpus import DOMAINS
from capture.tokenizer import END_OF_TEXT_ID


@dataclass(frozen=True)
class Recipe:
    """Everything that the trained weights depend on besides the text; the defaults are the shipped checkpoint's.

    Raises ValueError if the values do not fit together.
    """

    layers: int = 16
    hidden: int = 128
    inter: int = 120
    experts: int = 8
    top_k: int = 2
    heads: int = 4
    kv_heads: int = 2
    vocab: int = 2048
    seq: int = 512
    batch: int = 4
    tokens: int = 3_717_120
    learning_rate: float = 2e-3
    weight_decay: float = 0.1
    warmup_steps: int = 100
    # Share of the steps at the end over which the learning rate falls to 0 (warmup, stable, decay).
    decay_share: float = 0.2
    # A stronger balancing loss makes gates hard to predict; none lets popularity collapse.
    balance_loss: float = 0.01
    # Holds the router's logits small, and with them the spread of the gate weights.
    z_loss: float = 1e-4
    init_std: float = 0.02
    # Large against the residual updates, so that gate inputs of neighbouring layers are similar, as in large models.
    embedding_std: float = 0.15
    mix: tuple[float, ...] = (0.4, 0.4, 0.2)
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "inter", "experts", "top_k", "heads", "kv_heads", "seq", "batch", "tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"cannot build a model: {name}={getattr(self, name)}; give at least 1")
        if not 1 <= self.top_k <= self.experts:
            raise ValueError(f"cannot build a router: top_k={self.top_k} of experts={self.experts}; give 1..experts")
        if self.hidden % self.heads or (self.hidden // self.heads) % 2:
            raise ValueError(
                f"cannot split hidden={self.hidden} over heads={self.heads}: rotary embeddings need an even whole "
                "number of dimensions per head; change --hidden or --heads"
            )
        if self.heads % self.kv_heads:
            raise ValueError(f"cannot share kv_heads={self.kv_heads} among heads={self.heads}; give a divisor of heads")
        if self.num_steps < 1:
            raise ValueError(
                f"cannot train on tokens={self.tokens}: one step takes batch*seq = {self.batch * self.seq} tokens; "
                "raise --tokens or lower --batch or --seq"
            )
        if not 0 <= self.decay_share <= 1:
            raise ValueError(f"cannot schedule decay_share={self.decay_share}; give a share between 0 and 1")
        if len(self.mix) != len(DOMAINS) or min(self.mix) < 0 or sum(self.mix) <= 0:
            raise ValueError(f"cannot mix domains {DOMAINS} as {self.mix}; give {len(DOMAINS)} shares >= 0, not all 0")

    @property
    def num_steps(self) -> int:
        return self.tokens // (self.batch * self.seq)

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of ``step`` (from 0): linear warmup, constant, then linear to 0 over the last decay_share."""
        decay_start = int((1 - self.decay_share) * self.num_steps)
        warmup = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        if step < decay_start:
            return self.learning_rate * warmup
        return self.learning_rate * warmup * (self.num_steps - step) / (self.num_steps - decay_start)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def build_model(recipe: Recipe) -> MixtralForCausalLM:
    """The model before the first step, in float32; seeds torch's global generator, as initialisation draws from it."""
    torch.manual_seed(recipe.seed)
    config = MixtralConfig(
        vocab_size=recipe.vocab,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.inter,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        num_local_experts=recipe.experts,
        num_experts_per_tok=recipe.top_k,
        max_position_embeddings=2048,
        initializer_range=recipe.init_std,
        router_aux_loss_coef=recipe.balance_loss,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        bos_token_id=END_OF_TEXT_ID,
        eos_token_id=END_OF_TEXT_ID,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    model = MixtralForCausalLM(config)
    # The fastest of the implementations on a CPU at these sizes.
    model.set_experts_implementation("eager")
    # Radford et al. 2019 (GPT-2), section 2.3: what is added to the residual stream shrinks with depth.
    residual_scale = 1 / math.sqrt(2 * recipe.layers)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("o_proj.weight") or "down_proj" in name:
                parameter.mul_(residual_scale)
            elif "embed_tokens" in name:
                parameter.normal_(0, recipe.embedding_std)
    return model


def load_model(folder: Path) -> MixtralForCausalLM:
    """A checkpoint in float32, ready to be evaluated; raises ValueError if the folder holds none."""
    if not (folder / "config.json").is_file():
        raise ValueError(f"cannot load a model: {folder / 'config.json'} does not exist; give a checkpoint folder")
    # A bar for 14 MB only gets between the tables.
    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    model.set_experts_implementation("eager")
    return model.eval()


def make_optimizer(model: MixtralForCausalLM, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW; no weight decay on vectors, embeddings and routers (it would flatten the gate weights)."""
    decayed: list[torch.Tensor] = []
    free: list[torch.Tensor] = []
    for name, parameter in model.named_parameters():
        is_decayed = parameter.dim() >= 2 and "embed" not in name and not name.endswith("mlp.gate.weight")
        (decayed if is_decayed else free).append(parameter)
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": free, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.95), eps=1e-8, fused=True)


@contextmanager
def recorded_router_logits(model: MixtralForCausalLM) -> Iterator[list[torch.Tensor]]:
    """A list that every forward pass appends its layers' router logits [token, expert] to; the caller clears it."""
    logits: list[torch.Tensor] = []

    def record(_module: torch.nn.Module, _inputs: object, outputs: Sequence[torch.Tensor]) -> None:
        logits.append(outputs[0])

    handles = [layer.mlp.gate.register_forward_hook(record) for layer in model.model.layers]
    try:
        yield logits
    finally:
        for handle in handles:
            handle.remove()


def balance_loss(router_logits: Sequence[torch.Tensor], top_k: int) -> torch.Tensor:
    """Mean over the layers of each layer's load-balancing loss; 1 where the load is even.

    transformers pools the logits of all layers before it averages, so that one collapsed layer goes unpunished.
    Source: Fedus et al., Switch Transformers, arXiv:2101.03961, equation 4, for top-k.
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
    """Mean over layers and tokens of the router's squared log-partition (Zoph et al., ST-MoE, arXiv:2202.08906)."""
    return torch.stack([logits.float().logsumexp(-1).pow(2).mean() for logits in router_logits]).mean()


def language_loss(model: MixtralForCausalLM, windows: torch.Tensor) -> torch.Tensor:
    """Mean nats per predicted token of windows [sequence, token]; each token is predicted from those before it."""
    logits = model(input_ids=windows[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.float().reshape(-1, logits.shape[-1]), windows[:, 1:].reshape(-1))
