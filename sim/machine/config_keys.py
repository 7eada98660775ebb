"""The keys of a transformers ``config.json``: which give a size, and which change none.

A key that stands nowhere here may hide a layer, so it is refused.
"""


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PER_LAYER = "num_attention_heads_per_layer"
READ = {
    "sites": ("num_hidden_layers", "num_layers", "encoder_layers"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "top_k": ("num_experts_per_tok", "experts_per_token", "moe_topk", "moe_k"),
    "hidden": ("hidden_size", "d_model"),
    "heads": ("num_attention_heads", "num_heads", "encoder_attention_heads", PER_LAYER),
    "vocab": ("vocab_size",),
    "width": ("intermediate_size", "d_ff", "encoder_ffn_dim"),
}
"""Sizes that every model has, with the keys under which configurations give them.

``width`` is that of the experts; where ``moe_intermediate_size`` gives theirs, of dense blocks.
"""
DENSE_WIDTH = (
    "intermediate_size_mlp",
    "prefix_dense_intermediate_size",
    "dense_intermediate_size",
)
"""The width of layers without experts, where the experts' is ``width``."""
SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size")
"""The width of all shared experts together."""
SHARED_COUNT = (
    "n_shared_experts",
    "moe_num_shared_experts",
    "num_shared_experts",
    "num_shared_expert",
)
"""Or how many there are, each as wide as an expert."""
HEAD_DIM = ("head_dim", "d_kv", "attention_head_dim")
LEADING = ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")
"""How many leading layers have no experts."""
STEPS = {
    "decoder_sparse_step": 1,
    "moe_layer_interval": 1,
    "interleave_moe_layer_step": 1,
    "moe_layer_freq": 0,
}
"""One in how many layers has experts: the last of every group of so many (1), or the first (0)."""
BY_LAYER = ("mlp_layer_types", "is_moe_layer", "moe_layer_freq")
"""Lists that say of each layer whether it has experts, in these words:"""
HAS_EXPERTS = {
    "dense": False,
    "sparse": True,
    "False": False,
    "True": True,
    "0": False,
    "1": True,
}
MORE = (
    *DENSE_WIDTH,
    *SHARED_WIDTH,
    *SHARED_COUNT,
    *HEAD_DIM,
    *LEADING,
    *STEPS,
    *BY_LAYER,
    *_names("""
        num_key_value_heads moe_intermediate_size tie_word_embeddings encoder_sparse_step
        mlp_only_layers moe_layers moe_layer_end_index layer_types sliding_window use_sliding_window
        max_window_layers sliding_window_pattern prefix_dense_sliding_window_pattern
        global_attn_every_n_layers attention_chunk_size no_rope_layers no_rope_layer_interval
        max_position_embeddings attention_bias qkv_bias lm_head_bias use_qk_norm gating q_lora_rank
        kv_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim model_type num_decoder_layers
        decoder_layers decoder_ffn_dim decoder_attention_heads is_encoder_decoder
        num_sparse_encoder_layers num_sparse_decoder_layers router_bias
        relative_attention_num_buckets quantization_config
    """),
)
DRAFTS = (
    "num_nextn_predict_layers",
    "num_mtp_layers",
    "num_mtp_modules",
    "mtp_transformer_layers",
    "mtp_layer_types",
    "mtp_mlp_layer_types",
    "use_mtp",
)
"""Of layers that predict several tokens, which are not counted."""
SIGHT = _names("""
    add_classification_head anyres_pooling_size anyres_vit_max_image_size anyres_vit_two_views
    class_num dense_list im_end_id im_newline_id im_start_id mask_init_id num_media_embeds
    org_vocab_size pool_type skip_cls_token text_end_id text_start_id video_end_id
    video_start_id vit_add_patchemb_bias vit_input_resolution vit_mapping_type vit_norm_type
    vit_patch vit_remove_prenorm vit_token vit_used_rms_norm
""")
"""Of parts for pictures and for classes, which models of text do not have (Hunyuan)."""
GENERATION = _names("""
    diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size length_penalty
    max_length min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
    output_scores remove_invalid_values repetition_penalty return_dict_in_generate temperature
    tf_legacy_loss tie_encoder_decoder top_k top_p torchscript typical_p use_bfloat16
""")
"""Of how text is made, which earlier versions of transformers wrote into every ``text_config``."""
NO_SIZE = (
    *DRAFTS,
    *SIGHT,
    *GENERATION,
    *_names("""
        _attn_implementation_autoset _name_or_path activation_dropout activation_function
        add_cross_attention add_router_probs architectures attention_dropout attention_multiplier
        attn_scale attn_temperature_tuning auto_map aux_loss_alpha batch_prioritized_routing
        bos_token_id cache_implementation chunk_size_feed_forward cla_share_factor
        classifier_dropout clip_qkv decoder_layerdrop decoder_start_token_id dense_act_fn dropout
        dropout_rate dtype embd_pdrop embedding_multiplier enable_moe_fp32_combine encoder_layerdrop
        eod_token_id eos_token_id ep_size expert_capacity expert_selection_fn experts_implementation
        feed_forward_proj final_logit_softcapping floor_scale for_llm_compressor
        group_limited_greedy hidden_act hidden_dropout id2label init_std initial_context_length
        initializer_factor initializer_range input_jitter_noise is_decoder label2id layer_norm_eps
        layer_norm_epsilon layer_rope_theta layernorm_full_attention_beta
        layernorm_linear_attention_beta layernorm_mlp_beta load_balance_coeff logit_scale
        logits_scaling moe_apply_router_weight_on_input moe_capacity moe_drop_tokens
        moe_eval_capacity_token_fraction moe_norm_min moe_random_routing_dropped_token
        moe_routed_scaling_factor moe_router_logit_softcapping moe_token_dropout moe_use_aux_free
        mup_enabled n_group norm_topk_prob normalize_router_prob_before_dropping num_expert_groups
        num_limited_groups original_max_position_embeddings output_attentions output_hidden_states
        output_past output_router_logits pad_id pad_token_id partial_rotary_factor
        position_embedding_xdrope pretraining_tp problem_type qk_head_dim
        relative_attention_max_distance resid_pdrop residual_multiplier return_dict rms_norm_eps
        rope_interleave rope_parameters rope_scaling rope_theta rotary_dim route_norm route_scale
        routed_scaling_factor router_aux_loss_coef router_dtype router_ignore_padding_tokens
        router_jitter_noise router_scaling_factor router_type router_z_loss_coef scale_embedding
        score_func scoring_func second_expert_policy sep_token_id seq_aux
        shared_expert_combination_strategy shared_expert_gate shared_moe_mode swiglu_alpha
        swiglu_limit topk_group topk_method torch_dtype transformers_version use_cache
        use_grouped_mm use_rotary_pos_emb
    """),
    "mlp_intermediate_size",  # MiniMax-M2's: of layers without experts, of which it has none
)
MUST_BE: dict[str, tuple[object, ...]] = {
    "attn_type_list": (1,),
    "mlp_bias": (False,),
    "moe_layer_num_skipped": (0,),
    "norm_type": ("rms",),
    "pruned_heads": ({},),
    "qk_norm_type": ("per_layer",),
    "use_bias": (False,),
    "use_cla": (False,),
    "use_mixed_mlp_moe": (True,),
    "use_routing_bias": (True,),
}
"""Keys of which one value is known to change no size, alone or in a list for each layer."""
SIDES = ("encoder", "decoder")
TOP_K_OF = {"switch_transformers": 1, "nllb-moe": 2}
"""Top-k by ``model_type``, where it stands in the model's code and not in its configuration."""
ONE_SHARED = ("hunyuan", "hunyuan_v1_moe", "llama4_text")
"""Where there is one shared expert, unless a key says how many, each as wide as ``width`` says."""
TIED = ("cohere2_moe",)
"""Where the embedding is the LM head, unless a key says otherwise."""
