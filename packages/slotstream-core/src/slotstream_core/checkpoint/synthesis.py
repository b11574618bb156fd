"""Random checkpoints for tests and benchmarks, the same bytes for the same seed on every machine.

Every tensor is drawn from its own PCG64 stream, seeded by SHA-256 of `<seed>:<name>`, so that any program with numpy
can draw one of them alone.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.checkpoint.floats import encode
from slotstream_core.checkpoint.headers import CONFIG_NAME, DRAFT_NAME
from slotstream_core.checkpoint.huggingface import SOURCE_VISION_PREFIX, TEXT_PREFIXES, projection, source_module
from slotstream_core.checkpoint.ngram_tables import derive_ngram_tables
from slotstream_core.checkpoint.quantization import ModuleQuantization
from slotstream_core.checkpoint.schema import TensorSpec, draft_specs, text_specs
from slotstream_core.checkpoint.shards import (
    DEFAULT_SHARD_BYTES,
    OutputTensor,
    Shard,
    ShardWriter,
    blocks,
    plan_shards,
    write_index,
    write_json,
)
from slotstream_core.checkpoint.storage import (
    FloatType,
    StorageOptions,
    converted_config,
    quantization_block,
    stored_tensors,
)

TINY: Final[Mapping[str, Any]] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
    },
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "output_gate_type": "sigmoid",
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "hc_count": 4,
    "hc_lowrank": 32,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
    "ple_layer_ids": [2],
    "ple_embed_dim": 128,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 500,
    "make_ngram_vocab_size_divisible_by": 16,
    "split_ngram_parts": 4,
    "seed": 1234,
    "eos_token_id": 256,
    "bos_token_id": 256,
}
"""Text settings of a model of 0.9 M parameters that uses every part of the family."""

PUBLISHED: Final[Mapping[str, Any]] = {
    **TINY,
    "vocab_size": 248_320,
    "hidden_size": 2560,
    "max_position_embeddings": 262_144,
    "num_attention_heads": 24,
    "head_dim": 256,
    "rope_parameters": {**TINY["rope_parameters"], "mrope_section": [11, 11, 10]},
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 640,
    "shared_expert_intermediate_size": 640,
    "hc_lowrank": 320,
    "indexer_n_heads": 4,
    "indexer_head_dim": 128,
    "indexer_budget": 2048,
    "ple_embed_dim": 2560,
    "heads_per_ngram": 8,
    "ngram_vocab_size_base": 20_000_000,
    "make_ngram_vocab_size_divisible_by": 128,
    "split_ngram_parts": 128,
    "eos_token_id": 248_044,
    "bos_token_id": 248_044,
}
"""Text settings with the published model's widths and four layers; override the n-gram base to keep it small."""

VISION: Final[Mapping[str, Any]] = {
    "model_type": "qwen4_exp_vision",
    "depth": 2,
    "hidden_size": 32,
    "hidden_act": "gelu_pytorch_tanh",
    "intermediate_size": 64,
    "num_heads": 2,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 64,
}
"""Settings of a small vision tower; its output width is the text model's."""

Widths = Literal["tiny", "published"]
_BLOCK_BYTES: Final = 1 << 26
_SOURCE_STD: Final = 0.08
_SOURCE_FAN_IN: Final = 64


def config_document(
    overrides: Mapping[str, Any] | None = None, *, widths: Widths = "tiny", vision: bool = False
) -> dict[str, Any]:
    """Return a `config.json` document with `overrides` in its text part.

    Overriding `num_hidden_layers` or `full_attention_interval` alone repeats the family's pattern of layers.
    """
    text = {**(TINY if widths == "tiny" else PUBLISHED), **(overrides or {})}
    if overrides and "layer_types" not in overrides and len(text["layer_types"]) != text["num_hidden_layers"]:
        del text["layer_types"]
    if overrides and "full_attention_interval" in overrides and "layer_types" not in overrides:
        text.pop("layer_types", None)
    document: dict[str, Any] = {
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "model_type": "qwen4_exp",
        "dtype": "float32",
        "image_token_id": 265,
        "video_token_id": 266,
        "vision_start_token_id": 263,
        "vision_end_token_id": 264,
        "tie_word_embeddings": False,
        "text_config": {"model_type": "qwen4_exp_text", "hidden_act": "silu", "attention_bias": False, **text},
    }
    if vision:
        document["vision_config"] = {**VISION, "out_hidden_size": text["hidden_size"]}
    return document


def draw_uniform(name: str, shape: tuple[int, ...], low: float, high: float, seed: int) -> npt.NDArray[np.float32]:
    """Return float32 values `low + (high - low) * u` with u uniform in [0, 1), from the tensor's own stream."""
    values = _stream(name, seed).random(shape, dtype=np.float32)
    return (values * np.float32(high - low) + np.float32(low)).astype(np.float32)


def write_huggingface(
    directory: Path,
    config_overrides: Mapping[str, Any] | None = None,
    seed: int = 0,
    *,
    draft: bool = False,
    vision: bool = False,
    float_type: FloatType = "F32",
) -> Path:
    """Write a random checkpoint in the Hugging Face layout: one tensor an expert, centred norms.

    The draft head goes into `mtp.safetensors`.  Whole tensors are drawn at once, so keep it small.

    Returns:
        The directory, which is created.

    Raises:
        CheckpointError: The settings are impossible or the directory cannot be written to.
    """
    document = config_document(config_overrides, vision=vision)
    config = Qwen4ExpConfig.from_document(document)
    drawn: dict[str, npt.NDArray[np.generic]] = {}
    head: dict[str, npt.NDArray[np.generic]] = {}
    for spec in text_specs(config):
        drawn.update(_huggingface_tensors(config, spec, seed, float_type))
    if vision:
        for name, shape in _vision_shapes(document["vision_config"]):
            drawn[name] = encode(draw_uniform(name, shape, -0.1, 0.1, seed), float_type)
    if draft:
        for spec in draft_specs(config):
            head.update(_huggingface_tensors(config, spec, seed, float_type))
    directory.mkdir(parents=True, exist_ok=True)
    for file_name, tensors in (("model.safetensors", drawn), (DRAFT_NAME, head)):
        if tensors:
            outputs = tuple(
                OutputTensor(name=name, dtype="I64" if data.dtype == np.int64 else float_type, shape=data.shape)
                for name, data in tensors.items()
            )
            with ShardWriter(directory, Shard(file_name=file_name, tensors=outputs)) as writer:
                for name, data in tensors.items():
                    writer.write(name, data)
                writer.finish()
    write_json(directory / CONFIG_NAME, document)
    return directory


def write_synthetic(
    directory: Path,
    config_overrides: Mapping[str, Any] | None = None,
    seed: int = 0,
    *,
    bits: int | None = 4,
    group_size: int = 64,
    dense_bits: int | None = None,
    widths: Widths = "tiny",
    draft: bool = False,
    float_type: FloatType = "BF16",
    shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> Path:
    """Write a random checkpoint in our layout, in blocks of at most 64 MiB, whatever the widths.

    Quantised matrices are random words with scales and biases that give the same spread as an unquantised draw, so no
    values are ever quantised and disk speed is the limit.

    Returns:
        The directory, which is created.

    Raises:
        CheckpointError: The settings are impossible or the directory cannot be written to.
    """
    document = config_document(config_overrides, widths=widths)
    config = Qwen4ExpConfig.from_document(document)
    storage = StorageOptions(bits=bits, group_size=group_size, dense_bits=dense_bits)
    main, head = list(text_specs(config)), list(draft_specs(config)) if draft else []
    settings = [(spec, storage.of(spec)) for spec in (*main, *head)]
    outputs = {spec.module: stored_tensors(spec, setting, _kept_type(spec, float_type)) for spec, setting in settings}
    shards = plan_shards([outputs[spec.module] for spec in main], shard_bytes)
    directory.mkdir(parents=True, exist_ok=True)
    files = list(shards)
    if head:
        files.append(Shard(file_name=DRAFT_NAME, tensors=tuple(t for spec in head for t in outputs[spec.module])))
    by_module = dict(zip((spec.module for spec, _ in settings), settings, strict=True))
    for shard in files:
        with ShardWriter(directory, shard) as writer:
            for tensor in shard.tensors:
                module = tensor.name if tensor.name in by_module else tensor.name.rpartition(".")[0]
                _write_random(writer, config, *by_module[module], tensor, seed)
            writer.finish()
    write_index(directory, shards)
    write_json(directory / CONFIG_NAME, converted_config(document, quantization_block(storage, settings)))
    return directory


def _stream(name: str, seed: int) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def _kept_type(spec: TensorSpec, float_type: FloatType) -> FloatType:
    return "F32" if spec.role in ("decay", "centred_norm") else float_type


def _spread(spec: TensorSpec, name: str) -> tuple[float, float]:
    """Range of a tensor's values; a uniform range of half-width w has the deviation w / sqrt(3)."""
    if spec.role in ("norm", "centred_norm"):
        return 0.7, 1.3
    if spec.role == "decay":
        return -0.5, 0.5
    deviation = _SOURCE_STD * min(1.0, math.sqrt(_SOURCE_FAN_IN / spec.shape[-1]))
    if spec.role == "convolution":
        deviation = _SOURCE_STD
    if "embed" in name:
        deviation = 0.5
    half = deviation * math.sqrt(3.0)
    return -half, half


def _table(config: Qwen4ExpConfig, spec: TensorSpec) -> npt.NDArray[np.int64]:
    layer = int(spec.module.split(".layers.")[1].partition(".")[0])
    tables = derive_ngram_tables(config, config.ple_layers.index(layer))
    values = {
        "layer_multipliers": tables.multipliers,
        "ngram_heads_vocab_sizes": tables.head_sizes,
        "ngram_heads_offsets": tables.head_offsets,
    }
    return np.array(values[spec.module.rpartition(".")[2]], dtype=np.int64)


def _huggingface_tensors(
    config: Qwen4ExpConfig, spec: TensorSpec, seed: int, float_type: FloatType
) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
    module = source_module(spec, TEXT_PREFIXES[0])
    if spec.role == "table":
        yield module, _table(config, spec)
        return
    names, shape = [module + spec.suffix], spec.shape
    if spec.role == "expert":
        names, shape = [f"{module}.{e}.{projection(spec)}.weight" for e in range(spec.shape[0])], spec.shape[1:]
    if spec.role == "convolution":
        shape = (spec.shape[0], 1, spec.shape[1])
    for name in names:
        low, high = _spread(spec, name)
        yield name, encode(draw_uniform(name, shape, low, high, seed), float_type)


def _write_random(
    writer: ShardWriter,
    config: Qwen4ExpConfig,
    spec: TensorSpec,
    setting: ModuleQuantization | None,
    tensor: OutputTensor,
    seed: int,
) -> None:
    if tensor.dtype == "I64":
        writer.write(tensor.name, _table(config, spec))
        return
    rows = tensor.shape[0]
    row_bytes = tensor.byte_count // rows
    low, high = _spread(spec, tensor.name)
    # Scales and biases come from one stream, so that biases can follow the scales without keeping them.
    stream = _stream(spec.module if setting else tensor.name, seed + (tensor.dtype == "U32"))
    for start, stop in blocks(rows, row_bytes, _BLOCK_BYTES):
        shape = (stop - start, *tensor.shape[1:])
        data: npt.NDArray[np.generic]
        if setting is None:
            values = stream.random(shape, dtype=np.float32)
            data = encode((values * np.float32(high - low) + np.float32(low)).astype(np.float32), tensor.dtype)
        elif tensor.dtype == "U32":
            words = (stop - start) * row_bytes // 4
            data = stream.bit_generator.random_raw(-(-words // 2)).astype("<u8", copy=False).view("<u4")[:words]
        else:
            step = np.float32((high - low) / 2**setting.bits)
            scales = (stream.random(shape, dtype=np.float32) * np.float32(0.5) + np.float32(0.75)) * step
            middle = np.float32((2**setting.bits - 1) / 2)
            data = encode(scales if tensor.name.endswith(".scales") else -scales * middle, tensor.dtype)
        writer.write(tensor.name, data, start * row_bytes)


def _vision_shapes(vision: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner, merged = vision["hidden_size"], vision["intermediate_size"], vision["spatial_merge_size"] ** 2
    patch, frames = vision["patch_size"], vision["temporal_patch_size"]
    prefix = SOURCE_VISION_PREFIX
    yield f"{prefix}patch_embed.proj.weight", (hidden, vision["in_channels"], frames, patch, patch)
    yield f"{prefix}patch_embed.proj.bias", (hidden,)
    yield f"{prefix}pos_embed.weight", (vision["num_position_embeddings"], hidden)
    linears = {"attn.qkv": (3 * hidden, hidden), "attn.proj": (hidden, hidden)}
    linears |= {"mlp.linear_fc1": (inner, hidden), "mlp.linear_fc2": (hidden, inner)}
    for block in range(vision["depth"]):
        for name in ("norm1", "norm2"):
            yield f"{prefix}blocks.{block}.{name}.weight", (hidden,)
            yield f"{prefix}blocks.{block}.{name}.bias", (hidden,)
        for name, shape in linears.items():
            yield f"{prefix}blocks.{block}.{name}.weight", shape
            yield f"{prefix}blocks.{block}.{name}.bias", shape[:1]
    yield f"{prefix}merger.norm.weight", (hidden,)
    yield f"{prefix}merger.norm.bias", (hidden,)
    for name, shape in {
        "linear_fc1": (hidden * merged, hidden * merged),
        "linear_fc2": (vision["out_hidden_size"], hidden * merged),
    }.items():
        yield f"{prefix}merger.{name}.weight", shape
        yield f"{prefix}merger.{name}.bias", shape[:1]
