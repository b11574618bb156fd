"""The settings of a `qwen4_exp` text model, read from `config.json`.

Both ways of writing the file are understood: the Hugging Face one (settings nested under `text_config`, sparse
attention called `indexed_attention`) and the published MLX one (`full_attention`, a `quantization` block beside).
A setting whose value would change the arithmetic in a way this version does not implement is refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from slotstream_core.checkpoint.headers import read_json_object
from slotstream_core.checkpoint.settings import Settings
from slotstream_core.errors import CheckpointDamaged, UnsupportedModel

LayerKind = Literal["linear_attention", "full_attention"]
GateActivation = Literal["sigmoid", "silu"]

MODEL_TYPES: Final = ("qwen4_exp", "qwen4_exp_text")

CONVERTED_MARKS: Final[Mapping[str, object]] = {"layout": 1, "centred_norms": "folded"}
"""What `slotstream convert` records in `config.json` under `slotstream`."""

MAX_LAYERS: Final = 10_000
MAX_NGRAM_PARTS: Final = 100_000
"""Beyond any real model; they keep a damaged file from costing minutes before it is refused."""

_LAYER_KINDS: Final[Mapping[str, LayerKind]] = {
    "linear_attention": "linear_attention",
    "full_attention": "full_attention",
    "indexed_attention": "full_attention",
}

_FIXED: Final[Mapping[str, tuple[object, ...]]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "attn_output_gate": (True,),
    "tie_word_embeddings": (False,),
    "indexer_kv_heads": (1,),
    "mlp_only_layers": ([],),
    "decoder_sparse_step": (1,),
    "mtp_use_dedicated_embeddings": (False,),
}
"""Settings with one value that is implemented; absent means that value."""


@dataclass(frozen=True, kw_only=True)
class Qwen4ExpConfig:
    """Settings of the text model and its optional draft head.

    Widths are in elements.  Names follow `config.json`; layers are counted from zero except in `ple_layer_ids`.

    Attributes:
        layer_types: One entry a layer; `full_attention` layers carry the sparse-attention indexer.
        mrope_section: Rotary pairs for the temporal, vertical and horizontal position.
        ple_layer_ids: One-based ids, ascending, of the layers with an n-gram embedding.
        ngram_seed: Seed of the n-gram hash multipliers (`seed` in the file).
        eos_token_ids: Ends of a document; the first one stops the n-gram history.  Empty when the file names none.
        vision: The vision tower's settings as found, or None.
        image_token_id: Placeholder of one image patch group, or None.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    layer_types: tuple[LayerKind, ...]
    rms_norm_eps: float
    max_position_embeddings: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    partial_rotary_factor: float
    mrope_section: tuple[int, int, int]
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    output_gate_type: GateActivation
    num_experts: int
    num_experts_per_tok: int
    norm_topk_prob: bool
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    hc_count: int
    hc_lowrank: int
    indexer_n_heads: int
    indexer_head_dim: int
    indexer_budget: int
    indexer_compress_ratio: int
    ple_layer_ids: tuple[int, ...]
    ple_embed_dim: int
    ple_conv_kernel_size: int
    ngram_size: int
    heads_per_ngram: int
    ngram_vocab_size_base: int
    make_ngram_vocab_size_divisible_by: int
    ngram_seed: int
    split_ngram_parts: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    image_token_id: int | None
    video_token_id: int | None
    vision_start_token_id: int | None
    vision_end_token_id: int | None
    vision: Mapping[str, Any] | None

    @property
    def streams_width(self) -> int:
        """Width of all residual streams together: `hc_count * hidden_size`."""
        return self.hc_count * self.hidden_size

    @property
    def rotary_dim(self) -> int:
        """Rotated elements of an attention head."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def linear_key_width(self) -> int:
        """All key heads of a gated delta layer together."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def linear_value_width(self) -> int:
        """All value heads of a gated delta layer together."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def ngram_heads(self) -> int:
        """Hashed rows a token reads in each n-gram embedding."""
        return (self.ngram_size - 1) * self.heads_per_ngram

    @property
    def ngram_row_width(self) -> int:
        """Elements of one n-gram row."""
        return self.ple_embed_dim // self.ngram_heads

    @property
    def ple_layers(self) -> tuple[int, ...]:
        """Zero-based layers with an n-gram embedding, in the order of their n-gram index."""
        return tuple(layer - 1 for layer in self.ple_layer_ids)

    @classmethod
    def from_file(cls, path: Path) -> "Qwen4ExpConfig":
        """Read `config.json`.

        Raises:
            CheckpointMissing: No such file, or it cannot be opened.
            CheckpointDamaged: Not JSON, or a setting is missing or impossible.
            UnsupportedModel: Another architecture, or a setting this version does not implement.
        """
        return cls.from_document(read_json_object(path), origin=str(path))

    @classmethod
    def from_document(cls, document: Mapping[str, Any], *, origin: str = "config.json") -> "Qwen4ExpConfig":
        """Read the settings from the decoded file; `origin` names it in messages.

        Raises:
            CheckpointDamaged: A setting is missing or impossible.
            UnsupportedModel: Another architecture, or a setting this version does not implement.
        """
        model_type = document.get("model_type")
        if model_type not in MODEL_TYPES:
            raise UnsupportedModel(
                f"{origin}: model_type is {model_type!r}; this version runs {' and '.join(MODEL_TYPES)} models only"
            )
        _check_layout(document.get("slotstream"), origin)
        text = document.get("text_config", document)
        if not isinstance(text, dict):
            raise CheckpointDamaged(f"{origin}: text_config is {type(text).__name__} where an object belongs")
        settings = Settings(origin, text)
        for name, accepted in _FIXED.items():
            settings.refuse_other(name, accepted)
        config = cls(
            **_attention_settings(settings),
            **_expert_settings(settings),
            **_ngram_settings(settings),
            **_token_settings(Settings(origin, document), settings),
        )
        _check_consistency(config, origin)
        return config


def _check_layout(marks: object, origin: str) -> None:
    """Refuse a converted checkpoint whose marks say that it is stored in another way than this version reads."""
    if marks is None:
        return
    if not isinstance(marks, dict):
        raise CheckpointDamaged(f"{origin}: slotstream is {type(marks).__name__} where an object belongs")
    for name, value in CONVERTED_MARKS.items():
        if marks.get(name, value) != value:
            raise UnsupportedModel(
                f"{origin}: slotstream.{name} is {marks[name]!r}; this version reads {value!r} only. "
                "Update Slotstream or convert the model again"
            )


def _attention_settings(settings: Settings) -> dict[str, Any]:
    layers = settings.count("num_hidden_layers", limit=MAX_LAYERS)
    rope = settings.section("rope_parameters", fallback="rope_scaling")
    rope.refuse_other("rope_type", ("default",))
    rope.refuse_other("mrope_interleaved", (True,))
    gate = settings.text("output_gate_type", default="silu")
    if gate not in ("sigmoid", "silu"):
        raise UnsupportedModel(f"{settings.origin}: output_gate_type is {gate!r}; this version knows sigmoid and silu")
    return {
        "vocab_size": settings.count("vocab_size"),
        "hidden_size": settings.count("hidden_size"),
        "num_hidden_layers": layers,
        "layer_types": _layer_types(settings, layers),
        "rms_norm_eps": settings.number("rms_norm_eps", default=1e-6),
        "max_position_embeddings": settings.count("max_position_embeddings"),
        "num_attention_heads": settings.count("num_attention_heads"),
        "num_key_value_heads": settings.count("num_key_value_heads"),
        "head_dim": settings.count("head_dim"),
        "rope_theta": rope.number("rope_theta", default=settings.number("rope_theta", default=1e7)),
        "partial_rotary_factor": rope.number(
            "partial_rotary_factor", default=settings.number("partial_rotary_factor", default=0.25)
        ),
        "mrope_section": rope.counts("mrope_section", length=3),
        "linear_num_key_heads": settings.count("linear_num_key_heads"),
        "linear_num_value_heads": settings.count("linear_num_value_heads"),
        "linear_key_head_dim": settings.count("linear_key_head_dim"),
        "linear_value_head_dim": settings.count("linear_value_head_dim"),
        "linear_conv_kernel_dim": settings.count("linear_conv_kernel_dim", default=4),
        "output_gate_type": gate,
        "indexer_n_heads": settings.count("indexer_n_heads"),
        "indexer_head_dim": settings.count("indexer_head_dim"),
        "indexer_budget": settings.count("indexer_budget"),
        "indexer_compress_ratio": settings.count("indexer_compress_ratio"),
    }


def _expert_settings(settings: Settings) -> dict[str, Any]:
    return {
        "num_experts": settings.count("num_experts"),
        "num_experts_per_tok": settings.count("num_experts_per_tok"),
        "norm_topk_prob": settings.flag("norm_topk_prob", default=True),
        "moe_intermediate_size": settings.count("moe_intermediate_size"),
        "shared_expert_intermediate_size": settings.count("shared_expert_intermediate_size"),
        "hc_count": settings.count("hc_count", default=4),
        "hc_lowrank": settings.count("hc_lowrank", default=320),
    }


def _ngram_settings(settings: Settings) -> dict[str, Any]:
    return {
        "ple_layer_ids": tuple(sorted(set(settings.counts("ple_layer_ids", default=())))),
        "ple_embed_dim": settings.count("ple_embed_dim", default=settings.count("hidden_size")),
        "ple_conv_kernel_size": settings.count("ple_conv_kernel_size", default=4),
        "ngram_size": settings.count("ngram_size", default=3, limit=16),
        "heads_per_ngram": settings.count("heads_per_ngram", default=8, limit=64),
        "ngram_vocab_size_base": settings.count("ngram_vocab_size_base", default=20_000_000, limit=2**32),
        "make_ngram_vocab_size_divisible_by": settings.count("make_ngram_vocab_size_divisible_by", default=128),
        "ngram_seed": settings.integer("seed", default=1234),
        "split_ngram_parts": settings.count("split_ngram_parts", default=512, limit=MAX_NGRAM_PARTS),
    }


def _token_settings(document: Settings, text: Settings) -> dict[str, Any]:
    vision = document.values.get("vision_config")
    if vision is not None and not isinstance(vision, dict):
        raise CheckpointDamaged(f"{document.origin}: vision_config is {type(vision).__name__} where an object belongs")
    return {
        "eos_token_ids": text.token_ids("eos_token_id") or document.token_ids("eos_token_id"),
        "bos_token_id": text.token_id("bos_token_id"),
        "image_token_id": document.token_id("image_token_id"),
        "video_token_id": document.token_id("video_token_id"),
        "vision_start_token_id": document.token_id("vision_start_token_id"),
        "vision_end_token_id": document.token_id("vision_end_token_id"),
        "vision": vision,
    }


def _layer_types(settings: Settings, layers: int) -> tuple[LayerKind, ...]:
    names = settings.values.get("layer_types")
    if names is None:
        interval = settings.count("full_attention_interval", default=4)
        return tuple("linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers))
    if not isinstance(names, list) or len(names) != layers:
        raise CheckpointDamaged(
            f"{settings.origin}: layer_types must list one kind for each of the {layers} layers, "
            f"and has {len(names) if isinstance(names, list) else names!r}"
        )
    for name in names:
        if not isinstance(name, str) or name not in _LAYER_KINDS:
            raise UnsupportedModel(
                f"{settings.origin}: layer_types names {name!r}; this version knows {', '.join(sorted(_LAYER_KINDS))}"
            )
    return tuple(_LAYER_KINDS[name] for name in names)


def _check_consistency(config: Qwen4ExpConfig, origin: str) -> None:
    c = config
    rules: list[tuple[bool, str]] = [
        (c.num_experts_per_tok <= c.num_experts, "num_experts_per_tok exceeds num_experts"),
        (c.num_attention_heads % c.num_key_value_heads == 0, "num_key_value_heads must divide num_attention_heads"),
        (
            c.linear_num_value_heads % c.linear_num_key_heads == 0,
            "linear_num_key_heads must divide linear_num_value_heads",
        ),
        (0 < c.rotary_dim <= c.head_dim and c.rotary_dim % 2 == 0, "partial_rotary_factor gives no even rotary width"),
        (c.rotary_dim <= c.indexer_head_dim, "the rotary width exceeds indexer_head_dim"),
        (2 * sum(c.mrope_section) == c.rotary_dim, "mrope_section must add up to half the rotary width"),
        (c.indexer_budget % c.indexer_compress_ratio == 0, "indexer_compress_ratio must divide indexer_budget"),
        (c.hc_count > 1, "hc_count must be at least 2"),
        (c.ngram_size > 1, "ngram_size must be at least 2"),
        (
            all(1 <= i <= c.num_hidden_layers and c.layer_types[i - 1] == "linear_attention" for i in c.ple_layer_ids),
            "ple_layer_ids must name linear_attention layers, counted from 1",
        ),
        (not c.ple_layer_ids or c.ple_embed_dim % c.ngram_heads == 0, "the n-gram heads must divide ple_embed_dim"),
        (not c.ple_layer_ids or bool(c.eos_token_ids), "eos_token_id is needed by the n-gram embedding"),
        (all(0 <= i < c.vocab_size for i in c.eos_token_ids), "eos_token_id lies outside the vocabulary"),
    ]
    for holds, complaint in rules:
        if not holds:
            raise CheckpointDamaged(f"{origin}: {complaint}")
