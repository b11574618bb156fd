"""Checkpoint directories of headers only: real safetensors headers in front of sparse, empty data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ITEM_BYTES = {"BF16": 2, "F32": 4, "U32": 4, "I64": 8}

CONFIG: dict[str, Any] = {
    "model_type": "qwen4_exp",
    "text_config": {
        "num_hidden_layers": 8,
        "full_attention_interval": 4,
        "num_experts": 64,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 64,
        "hidden_size": 256,
        "hc_count": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 64,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "vocab_size": 8192,
        "max_position_embeddings": 8192,
    },
}

Tensors = dict[str, tuple[str, tuple[int, ...]]]


def packed(name: str, rows: tuple[int, ...], columns: int, group: int = 64) -> Tensors:
    """Return a 4-bit matrix as its three tensors."""
    return {
        f"{name}.weight": ("U32", (*rows, columns // 8)),
        f"{name}.scales": ("BF16", (*rows, columns // group)),
        f"{name}.biases": ("BF16", (*rows, columns // group)),
    }


def small_tensors(*, quantised: bool = True, layers: int = 8, draft: bool = False) -> Tensors:
    """Return the tensors of the small model of `CONFIG`."""
    tensors: Tensors = {"language_model.model.embed_tokens.weight": ("BF16", (8192, 256))}
    prefixes = [f"language_model.model.layers.{n}" for n in range(layers)] + (["mtp.layers.0"] if draft else [])
    for prefix in prefixes:
        tensors[f"{prefix}.mlp.gate.weight"] = ("BF16", (64, 256))
        for matrix, rows, columns in (("gate_proj", 64, 256), ("up_proj", 64, 256), ("down_proj", 256, 64)):
            name = f"{prefix}.mlp.switch_mlp.{matrix}"
            if quantised:
                tensors |= packed(name, (64, rows), columns)
            else:
                tensors[f"{name}.weight"] = ("BF16", (64, rows, columns))
    tensors |= packed("language_model.model.layers.1.ple.ple_embedding.ngram_embedding.shard_0", (1000,), 64, 32)
    return tensors


def write_shard(path: Path, tensors: Tensors) -> None:
    """Write a safetensors file whose data is a hole."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        size = ITEM_BYTES[dtype]
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(len(raw).to_bytes(8, "little") + raw)
        stream.truncate(8 + len(raw) + end)


def write_checkpoint(directory: Path, tensors: Tensors | None = None, config: dict[str, Any] | None = None) -> Path:
    """Write a one-shard checkpoint with an index."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = small_tensors() if tensors is None else tensors
    (directory / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    write_shard(directory / "model-00001.safetensors", tensors)
    index = {"weight_map": dict.fromkeys(tensors, "model-00001.safetensors")}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory
