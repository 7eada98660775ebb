"""DeepSeekMoE-16B, built from transformers' own classes.

Only the hub's remote code knows the model type ``deepseek``, and that code does not run on
transformers 5. The architecture is exactly the text tower of DeepSeek-OCR-2, to which this module
adds a language-model head: attention without compression, a softmax router that takes the best 6 of
64 without normalising, shared experts for every token, and a dense first layer.

Source: Dai et al., DeepSeekMoE, arXiv:2401.06066, section 3; the configuration of
deepseek-ai/deepseek-moe-16b-base.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers import GenerationMixin
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.deepseek_ocr2.configuration_deepseek_ocr2 import DeepseekOcr2TextConfig
from transformers.models.deepseek_ocr2.modeling_deepseek_ocr2 import (
    DeepseekOcr2TextModel,
    DeepseekOcr2TextPreTrainedModel,
)

from capture.models.discover import CaptureError
from capture.models.model_cache import OF_OUTPUTS, cache_of

MODEL_TYPE = "deepseek"
_ALIKE = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "max_position_embeddings",
    "rms_norm_eps",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "hidden_act",
    "tie_word_embeddings",
    "attention_bias",
    "initializer_range",
)
_FIXED: dict[str, Any] = {
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "moe_layer_freq": 1,
    "rope_scaling": None,
    "attention_bias": False,
    "tie_word_embeddings": False,
}


class DeepseekMoeForCausalLM(DeepseekOcr2TextPreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """The text tower with a language-model head.

    Loads the hub's checkpoint, which has one tensor for each expert.
    """

    def __init__(self, config: DeepseekOcr2TextConfig) -> None:
        super().__init__(config)
        self.model = DeepseekOcr2TextModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        cache: Any = None,
        inputs_embeds: Any = None,
        use_cache: Any = None,
        logits_to_keep: int = 0,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        output = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **{OF_OUTPUTS: past_key_values if cache is None else cache},
            **others,
        )
        hidden = (
            output.last_hidden_state[:, -logits_to_keep:]
            if logits_to_keep
            else output.last_hidden_state
        )
        return CausalLMOutputWithPast(logits=self.lm_head(hidden), **{OF_OUTPUTS: cache_of(output)})


# The checkpoint names its tensors experts.{e}.gate_proj and so on, as Qwen2-MoE does, so
# transformers' rules that fuse Qwen2-MoE's experts fit.
register_checkpoint_conversion_mapping(
    DeepseekMoeForCausalLM.__name__, get_checkpoint_conversion_mapping("qwen2_moe"), overwrite=True
)


def native_config(plain: Mapping[str, Any]) -> DeepseekOcr2TextConfig:
    """The text tower's configuration, from the ``config.json`` of a model of type ``deepseek``.

    Raise `CaptureError` for a setting that the tower does not have.
    """
    for key, value in _FIXED.items():
        if plain.get(key, value) != value:
            raise CaptureError(
                f"config.json: {key} is {plain[key]!r}, only {value!r} is known of models of this"
                " type"
            )
    layers, dense = plain["num_hidden_layers"], plain.get("first_k_dense_replace", 1)
    return DeepseekOcr2TextConfig(
        **{key: plain[key] for key in _ALIKE if key in plain},
        topk_method="greedy",
        routed_scaling_factor=1.0,
        n_group=1,
        topk_group=1,
        mlp_layer_types=["dense"] * dense + ["sparse"] * (layers - dense),
        rope_parameters={"rope_type": "default", "rope_theta": plain.get("rope_theta", 10000.0)},
    )
