"""The keys that ART's own blocks take, passed on as they are, and those that nothing would honour, with why.

Names are those of `art.dev` in openpipe-art 0.4.11 and 0.5.17; a peer test compares them with the package.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


INIT_ARGS = _names(
    """device_map disable_log_stats dtype enable_prefix_caching fast_inference fix_tokenizer float8_kv_cache full_finetuning
    gpu_memory_utilization load_in_4bit load_in_8bit max_lora_rank max_seq_length random_state resize_model_vocab revision
    rope_scaling trust_remote_code use_async use_exact_model_name use_gradient_checkpointing"""
)
ENGINE_ARGS = _names(
    """additional_config allowed_local_media_path block_size calculate_kv_scales code_revision collect_detailed_traces
    cpu_offload_gb device disable_async_output_proc disable_custom_all_reduce disable_log_requests disable_log_stats
    disable_logprobs_during_spec_decoding disable_mm_preprocessor_cache disable_sliding_window download_dir dtype
    enable_chunked_prefill enable_log_requests enable_lora_bias enable_prefix_caching enable_prompt_adapter enable_sleep_mode
    enforce_eager fully_sharded_loras gpu_memory_utilization guided_decoding_backend ignore_patterns kv_cache_dtype
    limit_mm_per_prompt load_format logits_processor_pattern long_lora_scaling_factors long_prefill_token_threshold lora_dtype
    lora_extra_vocab_size max_cpu_loras max_logprobs max_long_partial_prefills max_lora_rank max_loras max_model_len
    max_num_batched_tokens max_num_partial_prefills max_num_seqs max_parallel_loading_workers max_prompt_adapter_token
    max_prompt_adapters max_seq_len_to_capture mm_processor_kwargs model_impl model_loader_extra_config
    multi_step_stream_outputs ngram_prompt_lookup_max ngram_prompt_lookup_min num_gpu_blocks_override num_lookahead_slots
    num_scheduler_steps num_speculative_tokens otlp_traces_endpoint override_neuron_config pipeline_parallel_size
    preemption_mode quantization ray_workers_use_nsight revision rope_scaling rope_theta scheduler_cls scheduler_delay_factor
    scheduling_policy seed spec_decoding_acceptance_method speculative_disable_by_batch_size speculative_disable_mqa_scorer
    speculative_draft_tensor_parallel_size speculative_max_model_len speculative_model speculative_model_quantization swap_space
    tensor_parallel_size tokenizer tokenizer_mode tokenizer_pool_extra_config tokenizer_pool_size tokenizer_revision
    trust_remote_code typical_acceptance_sampler_posterior_alpha typical_acceptance_sampler_posterior_threshold
    use_v2_block_manager worker_cls"""
)
SERVER_ARGS = _names(
    """allow_credentials allowed_headers allowed_methods allowed_origins chat_template chat_template_content_format
    disable_fastapi_docs disable_frontend_multiprocessing enable_auto_tool_choice enable_prompt_tokens_details enable_reasoning
    enable_request_id_headers enable_server_load_tracking host max_log_len middleware port prompt_adapters reasoning_parser
    response_role root_path tool_call_parser tool_parser_plugin uvicorn_log_level"""
)
TRAINER_ARGS = _names(
    """weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm optim optim_args gradient_checkpointing
    gradient_checkpointing_kwargs bf16 fp16 tf32 seed full_determinism"""
)
"""Those of `training` that ART's loop honours, beside `learning_rate` and `beta`, which each train request carries."""

_ONE_STEP = "ART makes one optimiser step of each sequence that it packs"
_RATE = "ART sets the learning rate of the request before each optimiser step, so that a schedule has no effect"
_OWN_LOSS = "ART puts its own loss in the place of TRL's, which reads it"
_SAMPLING = "sampling would be another distribution than the one that is trained"
_TLS = "ART says http:// of its endpoint in any case"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("init_args.model_name", "engine_args.model"), "it is backend.base_model"),
    "init_args.token": "a secret has no place in a run's files: set HF_TOKEN where the server runs",
    "engine_args.served_model_name": "ART serves each step under backend.name",
    "engine_args.enable_lora": "ART decides it",
    "engine_args.skip_tokenizer_init": "a chat endpoint needs the tokenizer",
    "engine_args.qlora_adapter_name_or_path": "ART decides which adapter is served",
    **dict.fromkeys(("engine_args.generation_config", "engine_args.override_generation_config"), _SAMPLING),
    "server_config.server_args.api_key": "it is backend.api_key",
    "server_config.server_args.lora_modules": "ART decides which adapters are served",
    "server_config.server_args.return_tokens_as_token_ids": "ART needs it on, and turns it on",
    **{f"server_config.server_args.{key}": _TLS for key in
       ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "enable_ssl_refresh", "ssl_cert_reqs")},
    "server_config.engine_args": "the engine is made before it is read: it is backend.engine_args",
    **{f"training.{key}": _RATE for key in ("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_ratio", "warmup_steps")},
    **{f"training.{key}": _ONE_STEP for key in
       ("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps", "auto_find_batch_size")},
    **{f"training.{key}": _OWN_LOSS for key in
       ("reward_weights", "sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps", "label_smoothing_factor",
        "max_prompt_length", "max_completion_length", "temperature", "average_tokens_across_devices")},
    "training.num_generations": "it is trajectory_builders.<name>.num_generations",
    "training.hub_token": "ART pushes nothing to a hub from its training loop",
}  # fmt: skip


def checked(block: Mapping[str, Any] | None, known: frozenset[str], name: str) -> dict[str, Any] | None:
    """The block as it is; a key that ART would not honour is refused with the reason.

    Raises:
        ValueError: names the key, the reason, and the key that was likely meant.
    """
    if block is None:
        return None
    for key in block:
        place = f"{name}.{key}"
        if place in REFUSED:
            raise ValueError(f"{key}: would change nothing, or not what it says: {REFUSED[place]}")
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            meant = f", did you mean {near[0]}?" if near else f"; it honours {', '.join(sorted(known)[:12])}, ..."
            raise ValueError(f"{key}: ART would not honour it{meant}")
    return dict(block)
