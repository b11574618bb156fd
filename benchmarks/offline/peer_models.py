"""Random mixture-of-experts models for other engines, with the routed experts of a given shape.

Only sizes matter: the same number of layers and experts, the same widths, 4 bits a weight. A GGUF file in the layout of
`qwen3moe` with Q4_0 weights (32 of them in 18 bytes, 4.5 bits each, what an affine 4-bit group of 64 with two 16-bit
numbers takes), and a checkpoint in the layout that mlx-lm reads for the same architecture, affine 4-bit in groups of 64
whose scales are float32, because MLX's products on a CPU are tens of times slower with 16-bit ones.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

ALIGNMENT = 32
UINT32, FLOAT32, STRING = 4, 6, 8
F32_TENSOR, Q4_0_TENSOR = 0, 2
Q4_0_WEIGHTS, Q4_0_BYTES = 32, 18
GROUP = 64
NIBBLE_STD = 4.6  # of uniform whole numbers from 0 to 15
DIFFERENT = 4
"""Experts of a layer whose weights differ; the others repeat them, which no timing depends on."""
HEADS, KEY_HEADS, HEAD_WIDTH = 24, 2, 256

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class ExpertShape:
    """The sizes that both models share."""

    layers: int
    experts: int
    chosen: int
    hidden: int
    width: int
    vocabulary: int

    @property
    def weights(self) -> int:
        """Weights of all routed experts."""
        return self.layers * self.experts * 3 * self.hidden * self.width


@dataclass(frozen=True, kw_only=True)
class _Tensor:
    """One tensor to write: its shape as rows of `shape[-1]` values, and whether it is quantised."""

    name: str
    shape: tuple[int, ...]
    quantised: bool


def write_gguf(path: Path, shape: ExpertShape) -> int:
    """Write a random `qwen3moe` model; memory stays at one expert's matrix.

    Returns:
        The bytes of its routed experts.
    """
    tensors = list(_gguf_tensors(shape))
    fields = _gguf_fields(shape)
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields)))
        for key, (kind, packed) in fields.items():
            file.write(_text(key) + struct.pack("<I", kind) + packed)
        offset = 0
        for tensor in tensors:
            dimensions = tensor.shape[::-1]
            kind = Q4_0_TENSOR if tensor.quantised else F32_TENSOR
            file.write(_text(tensor.name) + struct.pack("<I", len(dimensions)))
            file.write(struct.pack(f"<{len(dimensions)}QIQ", *dimensions, kind, offset))
            offset += -(-_gguf_bytes(tensor) // ALIGNMENT) * ALIGNMENT
        _pad(file)
        for tensor in tensors:
            for block in _gguf_data(tensor, rng):
                file.write(block)
            _pad(file)
    return sum(_gguf_bytes(tensor) for tensor in tensors if "_exps" in tensor.name)


def _gguf_fields(shape: ExpertShape) -> dict[str, tuple[int, bytes]]:
    def whole(number: int) -> tuple[int, bytes]:
        return UINT32, struct.pack("<I", number)

    def real(number: float) -> tuple[int, bytes]:
        return FLOAT32, struct.pack("<f", number)

    name = "qwen3moe"
    return {
        "general.architecture": (STRING, _text(name)),
        "general.alignment": whole(ALIGNMENT),
        f"{name}.block_count": whole(shape.layers),
        f"{name}.context_length": whole(4096),
        f"{name}.embedding_length": whole(shape.hidden),
        f"{name}.feed_forward_length": whole(shape.width),
        f"{name}.expert_feed_forward_length": whole(shape.width),
        f"{name}.expert_count": whole(shape.experts),
        f"{name}.expert_used_count": whole(shape.chosen),
        f"{name}.attention.head_count": whole(HEADS),
        f"{name}.attention.head_count_kv": whole(KEY_HEADS),
        f"{name}.attention.key_length": whole(HEAD_WIDTH),
        f"{name}.attention.value_length": whole(HEAD_WIDTH),
        f"{name}.attention.layer_norm_rms_epsilon": real(1e-6),
        f"{name}.rope.freq_base": real(1e6),
        f"{name}.vocab_size": whole(shape.vocabulary),
        "tokenizer.ggml.model": (STRING, _text("no_vocab")),
    }


def _gguf_tensors(shape: ExpertShape) -> Iterator[_Tensor]:
    def tensor(name: str, *sizes: int, quantised: bool = True) -> _Tensor:
        return _Tensor(name=f"{name}.weight", shape=sizes, quantised=quantised)

    hidden, queries, keys = shape.hidden, HEADS * HEAD_WIDTH, KEY_HEADS * HEAD_WIDTH
    yield tensor("token_embd", shape.vocabulary, hidden)
    yield tensor("output_norm", hidden, quantised=False)
    yield tensor("output", shape.vocabulary, hidden)
    for layer in range(shape.layers):
        block = f"blk.{layer}"
        for norm in ("attn_norm", "ffn_norm"):
            yield tensor(f"{block}.{norm}", hidden, quantised=False)
        for norm in ("attn_q_norm", "attn_k_norm"):
            yield tensor(f"{block}.{norm}", HEAD_WIDTH, quantised=False)
        yield tensor(f"{block}.attn_q", queries, hidden)
        yield tensor(f"{block}.attn_k", keys, hidden)
        yield tensor(f"{block}.attn_v", keys, hidden)
        yield tensor(f"{block}.attn_output", hidden, queries)
        yield tensor(f"{block}.ffn_gate_inp", shape.experts, hidden, quantised=False)
        yield tensor(f"{block}.ffn_gate_exps", shape.experts, shape.width, hidden)
        yield tensor(f"{block}.ffn_up_exps", shape.experts, shape.width, hidden)
        yield tensor(f"{block}.ffn_down_exps", shape.experts, hidden, shape.width)


def _gguf_bytes(tensor: _Tensor) -> int:
    values = int(np.prod(tensor.shape))
    return values // Q4_0_WEIGHTS * Q4_0_BYTES if tensor.quantised else values * 4


def _gguf_data(tensor: _Tensor, rng: np.random.Generator) -> Iterator[bytes]:
    """The bytes of one tensor: norms of one, others so large that they keep the size of what they multiply."""
    if len(tensor.shape) == 1:
        yield np.ones(tensor.shape, np.float32).tobytes()
    elif not tensor.quantised:
        yield (rng.standard_normal(tensor.shape, np.float32) / np.float32(np.sqrt(tensor.shape[-1]))).tobytes()
    else:
        scale = np.array([_scale(tensor.name, tensor.shape[-1])], "<f2").view(np.uint8)
        matrices = tensor.shape[0] if len(tensor.shape) == 3 else 1
        size = _gguf_bytes(tensor) // matrices
        drawn = []
        for _ in range(min(matrices, DIFFERENT)):
            blocks = np.frombuffer(rng.bytes(size), np.uint8).reshape(-1, Q4_0_BYTES).copy()
            blocks[:, :2] = scale
            drawn.append(blocks.tobytes())
        for matrix in range(matrices):
            yield drawn[matrix % DIFFERENT]


def _scale(name: str, inputs: int) -> float:
    """The scale of a quantised matrix; embeddings of about one, so that a token's own row decides its routing."""
    return 1 / NIBBLE_STD if "embd" in name or "embed" in name else 0.25 / (NIBBLE_STD * np.sqrt(inputs))


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _pad(file: BinaryIO) -> None:
    file.write(bytes(-file.tell() % ALIGNMENT))


def write_mlx_lm(directory: Path, shape: ExpertShape) -> int:
    """Write a random checkpoint of the same sizes for mlx-lm, one file a layer; memory stays at one expert's matrix.

    Returns:
        The bytes of its routed experts.
    """
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(_mlx_lm_config(shape), indent=1), encoding="utf-8")
    rng = np.random.default_rng(0)
    hidden, queries, keys = shape.hidden, HEADS * HEAD_WIDTH, KEY_HEADS * HEAD_WIDTH
    outer = [
        *_affine("model.embed_tokens", (shape.vocabulary, hidden)),
        *_affine("lm_head", (shape.vocabulary, hidden)),
    ]
    _write_tensors(directory / "model-outer.safetensors", [*outer, _ones("model.norm", hidden)], rng)
    expert_bytes = 0
    for layer in range(shape.layers):
        block = f"model.layers.{layer}"
        experts = [
            *_affine(f"{block}.mlp.switch_mlp.gate_proj", (shape.experts, shape.width, hidden)),
            *_affine(f"{block}.mlp.switch_mlp.up_proj", (shape.experts, shape.width, hidden)),
            *_affine(f"{block}.mlp.switch_mlp.down_proj", (shape.experts, hidden, shape.width)),
        ]
        trunk = [
            *_affine(f"{block}.self_attn.q_proj", (queries, hidden)),
            *_affine(f"{block}.self_attn.k_proj", (keys, hidden)),
            *_affine(f"{block}.self_attn.v_proj", (keys, hidden)),
            *_affine(f"{block}.self_attn.o_proj", (hidden, queries)),
            *_affine(f"{block}.mlp.gate", (shape.experts, hidden)),
            _ones(f"{block}.self_attn.q_norm", HEAD_WIDTH),
            _ones(f"{block}.self_attn.k_norm", HEAD_WIDTH),
            _ones(f"{block}.input_layernorm", hidden),
            _ones(f"{block}.post_attention_layernorm", hidden),
        ]
        _write_tensors(directory / f"model-{layer:05d}.safetensors", [*experts, *trunk], rng)
        expert_bytes += sum(part.byte_count for part in experts)
    return expert_bytes


def _mlx_lm_config(shape: ExpertShape) -> dict[str, Any]:
    return {
        "model_type": "qwen3_moe",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "intermediate_size": shape.width,
        "moe_intermediate_size": shape.width,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": HEAD_WIDTH,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.chosen,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "rms_norm_eps": 1e-6,
        "vocab_size": shape.vocabulary,
        "rope_theta": 1e6,
        "tie_word_embeddings": False,
        "max_position_embeddings": 4096,
        "quantization": {"group_size": GROUP, "bits": 4},
    }


@dataclass(frozen=True, kw_only=True)
class _Part:
    """One tensor of a safetensors file and where its values come from, a block of leading-axis entries at a time."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    draw: Callable[[np.random.Generator, tuple[int, ...]], bytes]

    @property
    def byte_count(self) -> int:
        return int(np.prod(self.shape)) * 4


def _affine(name: str, shape: tuple[int, ...]) -> list[_Part]:
    scale = _scale(name, shape[-1])

    def words(rng: np.random.Generator, sizes: tuple[int, ...]) -> bytes:
        return rng.bytes(4 * int(np.prod(sizes)))

    def same(value: float) -> Callable[[np.random.Generator, tuple[int, ...]], bytes]:
        return lambda _, sizes: np.full(sizes, value, np.float32).tobytes()

    packed, groups = (*shape[:-1], shape[-1] // 8), (*shape[:-1], shape[-1] // GROUP)
    return [
        _Part(name=f"{name}.weight", dtype="U32", shape=packed, draw=words),
        _Part(name=f"{name}.scales", dtype="F32", shape=groups, draw=same(scale)),
        _Part(name=f"{name}.biases", dtype="F32", shape=groups, draw=same(-7.5 * scale)),
    ]


def _ones(name: str, width: int) -> _Part:
    return _Part(
        name=f"{name}.weight", dtype="F32", shape=(width,), draw=lambda _, sizes: np.ones(sizes, np.float32).tobytes()
    )


def _write_tensors(path: Path, parts: Sequence[_Part], rng: np.random.Generator) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    offset = 0
    for part in parts:
        header[part.name] = {
            "dtype": part.dtype,
            "shape": list(part.shape),
            "data_offsets": [offset, offset + part.byte_count],
        }
        offset += part.byte_count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for part in parts:
            if len(part.shape) == 3:
                drawn = [part.draw(rng, part.shape[1:]) for _ in range(min(part.shape[0], DIFFERENT))]
                for matrix in range(part.shape[0]):
                    file.write(drawn[matrix % DIFFERENT])
            else:
                file.write(part.draw(rng, part.shape))
