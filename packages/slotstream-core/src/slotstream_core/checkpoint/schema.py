"""The tensors that a `qwen4_exp` checkpoint in our layout (the published MLX names) must hold.

One table serves the validation of a checkpoint, the conversion into one, and the writing of synthetic ones.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.checkpoint.ngram_tables import derive_ngram_tables

ROOT: Final = "language_model.model"
HEAD: Final = "language_model.lm_head"
DRAFT: Final = "mtp"
VISION_PREFIX: Final = "vision_tower."

_NGRAM_PART: Final = re.compile(r"\.ngram_embedding\.shard_(\d{1,9})\.weight$")

Role = Literal[
    "embedding", "matrix", "expert", "ngram", "small", "norm", "centred_norm", "convolution", "decay", "table"
]
"""What a tensor is for.

embedding, matrix, expert, ngram: may be quantised along their last axis.
small: router and gate matrices too small to quantise.  norm: multiplies as stored.
centred_norm: stored as multiplied here; the Hugging Face layout stores the multiplier minus one.
convolution: [channels, kernel, 1] here, [channels, 1, kernel] in the Hugging Face layout.
decay: A_log and dt_bias.  table: int64 hash constants.
"""

QUANTISABLE: Final[frozenset[Role]] = frozenset({"embedding", "matrix", "expert", "ngram"})


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One logical tensor.

    Attributes:
        module: Path of the module it belongs to, for example `language_model.model.layers.0.mlp.gate`.
        suffix: `.weight`, or empty for a bare parameter.
        shape: Logical shape (before packing), [out, in] for matrices, [experts, out, in] for experts.
        role: What it is for.
        optional: Whether a checkpoint may lack it.
    """

    module: str
    suffix: str
    shape: tuple[int, ...]
    role: Role
    optional: bool = False

    @property
    def name(self) -> str:
        """Name of the (unquantised) tensor."""
        return self.module + self.suffix


def text_specs(config: Qwen4ExpConfig, *, ngram_parts: int | None = None) -> Iterator[TensorSpec]:
    """Yield the text model's tensors, embedding first, then layer by layer, then the head.

    Args:
        config: The model's settings.
        ngram_parts: Number of shards of each n-gram table; the configuration's when None.
    """
    yield _spec(f"{ROOT}.embed_tokens", (config.vocab_size, config.hidden_size), "embedding")
    for layer in range(config.num_hidden_layers):
        prefix = f"{ROOT}.layers.{layer}"
        if layer in config.ple_layers:
            yield from _ngram_specs(config, f"{prefix}.ple", config.ple_layers.index(layer), ngram_parts)
        yield from _mixer_specs(config, f"{prefix}.attn_hyper_connection", inject=True)
        if config.layer_types[layer] == "linear_attention":
            yield from _delta_specs(config, f"{prefix}.linear_attn")
        else:
            yield from _attention_specs(config, f"{prefix}.self_attn")
        yield from _mixer_specs(config, f"{prefix}.mlp_hyper_connection", inject=True)
        yield from _expert_specs(config, f"{prefix}.mlp")
    yield from _mixer_specs(config, f"{ROOT}.hyper_connection_mixer", inject=False)
    yield _spec(HEAD, (config.vocab_size, config.hidden_size), "embedding")


def draft_specs(config: Qwen4ExpConfig) -> Iterator[TensorSpec]:
    """Yield the draft head's tensors: one full-attention layer and the projections that join its inputs."""
    hidden = config.hidden_size
    yield _spec(f"{DRAFT}.pre_fc_norm_embedding", (hidden,), "centred_norm")
    yield _spec(f"{DRAFT}.pre_fc_norm_hidden", (config.streams_width,), "centred_norm")
    yield _spec(f"{DRAFT}.fc_embedding", (hidden, hidden), "matrix")
    yield _spec(f"{DRAFT}.fc_hidden", (hidden, hidden), "matrix")
    prefix = f"{DRAFT}.layers.0"
    yield from _mixer_specs(config, f"{prefix}.attn_hyper_connection", inject=True)
    yield from _attention_specs(config, f"{prefix}.self_attn")
    yield from _mixer_specs(config, f"{prefix}.mlp_hyper_connection", inject=True)
    yield from _expert_specs(config, f"{prefix}.mlp")
    yield from _mixer_specs(config, f"{DRAFT}.hyper_connection_mixer", inject=False)


def count_ngram_parts(names: Iterable[str]) -> int | None:
    """Return how many shards an n-gram table has by the names found, whatever `split_ngram_parts` says; None for none.

    Both layouts name them alike.  A number beyond those found is ignored, so that the gap is reported as missing.
    """
    parts = [int(match[1]) for match in map(_NGRAM_PART.search, names) if match]
    return min(max(parts) + 1, len(parts)) if parts else None


def _spec(module: str, shape: tuple[int, ...], role: Role, *, suffix: str = ".weight") -> TensorSpec:
    return TensorSpec(module=module, suffix=suffix, shape=shape, role=role)


def _mixer_specs(c: Qwen4ExpConfig, prefix: str, *, inject: bool) -> Iterator[TensorSpec]:
    yield _spec(f"{prefix}.hc_norm", (c.streams_width,), "centred_norm")
    yield _spec(f"{prefix}.input_mix_weight_down", (c.hc_lowrank, c.streams_width), "matrix")
    yield _spec(f"{prefix}.input_mix_weight_up", (c.streams_width, c.hc_lowrank), "matrix")
    if inject:
        yield _spec(f"{prefix}.block_inject_weight", (c.hc_count, c.streams_width), "small")


def _delta_specs(c: Qwen4ExpConfig, prefix: str) -> Iterator[TensorSpec]:
    convolved = 2 * c.linear_key_width + c.linear_value_width
    heads = c.linear_num_value_heads
    yield _spec(f"{prefix}.in_proj_qkv", (convolved, c.hidden_size), "matrix")
    yield _spec(f"{prefix}.in_proj_z", (c.linear_value_width, c.hidden_size), "matrix")
    yield _spec(f"{prefix}.in_proj_a", (heads, c.hidden_size), "small")
    yield _spec(f"{prefix}.in_proj_b", (heads, c.hidden_size), "small")
    yield _spec(f"{prefix}.conv1d", (convolved, c.linear_conv_kernel_dim, 1), "convolution")
    yield _spec(f"{prefix}.A_log", (heads,), "decay", suffix="")
    yield _spec(f"{prefix}.dt_bias", (heads,), "decay", suffix="")
    yield _spec(f"{prefix}.norm", (c.linear_value_head_dim,), "norm")
    yield _spec(f"{prefix}.out_proj", (c.hidden_size, c.linear_value_width), "matrix")


def _attention_specs(c: Qwen4ExpConfig, prefix: str) -> Iterator[TensorSpec]:
    queries, keys = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    yield _spec(f"{prefix}.q_proj", (2 * queries, c.hidden_size), "matrix")
    yield _spec(f"{prefix}.k_proj", (keys, c.hidden_size), "matrix")
    yield _spec(f"{prefix}.v_proj", (keys, c.hidden_size), "matrix")
    yield _spec(f"{prefix}.o_proj", (c.hidden_size, queries), "matrix")
    yield _spec(f"{prefix}.q_norm", (c.head_dim,), "centred_norm")
    yield _spec(f"{prefix}.k_norm", (c.head_dim,), "centred_norm")
    indexed = (c.indexer_n_heads + 1) * c.indexer_head_dim
    yield _spec(f"{prefix}.indexer.index_qk_proj", (indexed, c.hidden_size), "small")
    yield _spec(f"{prefix}.indexer.q_layernorm", (c.indexer_head_dim,), "centred_norm")
    yield _spec(f"{prefix}.indexer.k_layernorm", (c.indexer_head_dim,), "centred_norm")


def _expert_specs(c: Qwen4ExpConfig, prefix: str) -> Iterator[TensorSpec]:
    hidden, inner, shared = c.hidden_size, c.moe_intermediate_size, c.shared_expert_intermediate_size
    yield _spec(f"{prefix}.gate", (c.num_experts, hidden), "small")
    yield _spec(f"{prefix}.shared_expert.gate_proj", (shared, hidden), "matrix")
    yield _spec(f"{prefix}.shared_expert.up_proj", (shared, hidden), "matrix")
    yield _spec(f"{prefix}.shared_expert.down_proj", (hidden, shared), "matrix")
    yield _spec(f"{prefix}.shared_expert_gate", (1, hidden), "small")
    yield _spec(f"{prefix}.switch_mlp.gate_proj", (c.num_experts, inner, hidden), "expert")
    yield _spec(f"{prefix}.switch_mlp.up_proj", (c.num_experts, inner, hidden), "expert")
    yield _spec(f"{prefix}.switch_mlp.down_proj", (c.num_experts, hidden, inner), "expert")


def _ngram_specs(c: Qwen4ExpConfig, prefix: str, index: int, parts: int | None) -> Iterator[TensorSpec]:
    parts = c.split_ngram_parts if parts is None else parts
    yield _spec(f"{prefix}.key_proj", (c.streams_width, c.ple_embed_dim), "matrix")
    yield _spec(f"{prefix}.value_proj", (c.hidden_size, c.ple_embed_dim), "matrix")
    for name in ("norm_key", "norm_query", "norm_conv"):
        yield _spec(f"{prefix}.{name}", (c.streams_width,), "centred_norm")
    yield _spec(f"{prefix}.conv1d", (c.streams_width, c.ple_conv_kernel_size, 1), "convolution")
    store = f"{prefix}.ple_embedding"
    lengths = (("layer_multipliers", c.ngram_size), ("ngram_heads_vocab_sizes", c.ngram_heads))
    for name, length in (*lengths, ("ngram_heads_offsets", c.ngram_heads)):
        yield TensorSpec(module=f"{store}.{name}", suffix="", shape=(length,), role="table", optional=True)
    rows = derive_ngram_tables(c, index).total_rows
    part_rows = -(-rows // parts)  # every part but the last has this many, so row // part_rows finds the part
    for part in range(-(-rows // part_rows)):
        length = min(part_rows, rows - part * part_rows)
        yield _spec(f"{store}.ngram_embedding.shard_{part}", (length, c.ngram_row_width), "ngram")
