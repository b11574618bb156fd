"""Which settings of a Hugging Face `config.json` are understood; any other is refused by name."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.errors import UnsupportedModel

_READ_UNDER_OTHER_NAMES: Final = frozenset(
    {
        "attention_bias",
        "attn_output_gate",
        "decoder_sparse_step",
        "eos_token_id",
        "full_attention_interval",
        "hidden_act",
        "indexer_kv_heads",
        "mlp_only_layers",
        "model_type",
        "mtp_use_dedicated_embeddings",
        "rope_parameters",
        "rope_scaling",
        "seed",
        "text_config",
        "tie_word_embeddings",
        "vision_config",
    }
)

_WITHOUT_EFFECT: Final = frozenset(
    {
        "_attn_implementation",
        "_attn_implementation_internal",
        "_experts_implementation",
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "auto_map",
        "chunk_size_feed_forward",
        "dtype",
        "finetuning_task",
        "id2label",
        "initializer_range",
        "intermediate_size",
        "is_encoder_decoder",
        "label2id",
        "language_model_only",
        "mamba_ssm_dtype",
        "mtp_num_hidden_layers",
        "number_of_conv_states",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "pad_token_id",
        "problem_type",
        "return_dict",
        "router_aux_loss_coef",
        "sep_token_id",
        "task_specific_params",
        "tokenizer_class",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "use_cache",
    }
)
"""Settings that do not change what the model computes when it generates."""


def refuse_unknown_settings(document: Mapping[str, Any], origin: str) -> None:
    """Refuse a configuration with a setting that could mean something this version does not know.

    Raises:
        UnsupportedModel: Naming the first such setting.
    """
    known = {field.name for field in fields(Qwen4ExpConfig)} | _READ_UNDER_OTHER_NAMES | _WITHOUT_EFFECT
    text = document.get("text_config")
    for section in (document, text if isinstance(text, dict) else {}):
        for name in sorted(section):
            if name not in known and section[name] is not None:
                raise UnsupportedModel(
                    f"{origin}: the setting {name} = {str(section[name])[:80]} is not known to this version; "
                    "remove it if it has no effect on generation"
                )
