"""Ready-made tiny models for the tests of this package and of apps that embed it.

They have random weights: the text they make means nothing, but every part of the engine runs on them in milliseconds.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from slotstream_core.checkpoint.synthesis import config_document, write_huggingface, write_synthetic

__all__ = [
    "CHAT_TEMPLATE",
    "SPECIAL_TOKENS",
    "config_document",
    "write_huggingface",
    "write_synthetic",
    "write_tiny_model",
    "write_tokenizer",
]

SPECIAL_TOKENS: Final = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""Ids 256 and up of the tiny tokenizer; ids 0 to 255 are single bytes."""

CHAT_TEMPLATE: Final = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking %}<think>
{% else %}<think>

</think>

{% endif %}
{%- endif -%}
"""


def write_tokenizer(directory: Path) -> None:
    """Write a byte-level tokenizer of 267 tokens, its settings and a chat template into a directory."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    structural = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    tokenizer.add_tokens([AddedToken(text, special=text not in structural) for text in SPECIAL_TOKENS])
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "bos_token": None}
    generation = {"eos_token_id": [258, 256], "pad_token_id": 256, "do_sample": True}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def write_tiny_model(
    directory: Path,
    config_overrides: Mapping[str, Any] | None = None,
    seed: int = 0,
    *,
    bits: int | None = 4,
    draft: bool = False,
) -> Path:
    """Write a complete tiny model: a random checkpoint in our layout with a tokenizer and a chat template.

    Args:
        directory: Where to write; created.
        config_overrides: Changes to the text settings.
        seed: Selects the weights.
        bits: 4 or 8 for a quantised model, None for float32 weights.
        draft: Whether to add a draft head.

    Returns:
        The directory.
    """
    write_synthetic(
        directory, config_overrides, seed, bits=bits, draft=draft, float_type="F32" if bits is None else "BF16"
    )
    write_tokenizer(directory)
    return directory
