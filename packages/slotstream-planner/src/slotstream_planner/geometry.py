"""The sizes of a model, read from a checkpoint's configuration and tensor headers.

No tensor data is read. Every size exists twice where the compute type matters: ``*_bytes`` is what is on
disk, ``*_resident_bytes`` and ``slot_bytes`` are what the same tensors occupy once loaded, which on a
backend that computes in float32 is more (quantised words stay as they are, scales and biases grow).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from slotstream_planner.errors import GeometryError
from slotstream_planner.headers import DTYPE_BYTES, TensorHeader, list_directory, read_checkpoint_headers, read_json

__all__ = ["SUPPORTED_MODEL_TYPES", "Compute", "ModelGeometry"]

Compute = Literal["bf16", "float32"]
"""The type a backend computes in: bf16 on Metal and CUDA, float32 on a CPU."""

SUPPORTED_MODEL_TYPES: Final = ("qwen4_exp", "qwen4_exp_text")

_FLOATS: Final = frozenset({"F16", "BF16", "F32", "F64"})
_EXPERT: Final = re.compile(r"^(?P<layer>.*\blayers\.\d+)\.mlp\.(switch_mlp|experts)\.")
_ROUTER: Final = re.compile(r"\.mlp\.gate\.weight$")
_NGRAM: Final = re.compile(r"\bngram_embedding\b")
_DRAFT: Final = re.compile(r"^(model\.)?mtp\.")
_VISION: Final = re.compile(r"^(vision_tower|model\.visual|visual)\.")
_HINTS_NAME: Final = "slotstream.json"
_CORRECTION: Final = Path("lookahead") / "tap-correction-attention-rank128-v1.safetensors"

_REFERENCE_WIDTH: Final = 4 * 2560 + 10 * 2 * (2560 + 640)
_REFERENCE_PREFILL_BYTES: Final = 1_300_000
"""Workspace per prompt token of a pass: the original's figure for the published model in bf16.

In float32 on a CPU a 256-token pass at the published widths was measured at 1.23 MB a token, so it serves both.
"""


@dataclass(frozen=True, kw_only=True)
class ModelGeometry:
    """Counts and byte sizes of one model on one compute type.

    Attributes:
        name: What to call the model.
        compute: The type it is loaded to compute in.
        layers: Decoder layers, each with its own experts.
        full_attention_layers: How many of them keep a key-value cache; the others are recurrent.
        experts: Routed experts per layer.
        experts_per_token: Routed experts a token uses per layer.
        record_bytes: One expert in the checkpoint.
        slot_bytes: One expert in a slot.
        shared_bytes: Every always-resident tensor, on disk.
        shared_resident_bytes: The same tensors once loaded.
        ngram_bytes: The n-gram table on disk. It is read row by row and never resident.
        draft_bytes: The draft head on disk, its own experts included; 0 when there is none.
        draft_resident_bytes: The draft head fully loaded.
        vision_bytes: The vision tower on disk; 0 when there is none.
        vision_resident_bytes: The vision tower once loaded.
        correction_bytes: The forecast correction file; 0 when there is none.
        vocabulary: Token ids.
        context_limit: The most positions the model was made for.
        hidden: Width of the residual streams.
        expert_width: Inner width of a routed expert.
        kv_bytes_per_token: Sequence cache of one token over all full-attention layers.
        recurrent_bytes: Recurrent state of one sequence over all other layers, kept in float32.
        prefill_bytes_per_token: Workspace per token of a prompt pass.
        default_pool_fraction: The share of the experts an automatic plan may hold, when the
            checkpoint asks for one (``slotstream.json``); None for no such wish.
        float_router_bytes: Routers stored as floats, as `shared_resident_bytes` counts them; the engine holds them as
            float32 everywhere, see `slotstream_planner.engine_memory`.
        built_in: True when the numbers ship with the package and no checkpoint was read.
    """

    name: str
    compute: Compute
    layers: int
    full_attention_layers: int
    experts: int
    experts_per_token: int
    record_bytes: int
    slot_bytes: int
    shared_bytes: int
    shared_resident_bytes: int
    ngram_bytes: int
    draft_bytes: int
    draft_resident_bytes: int
    vision_bytes: int
    vision_resident_bytes: int
    correction_bytes: int
    vocabulary: int
    context_limit: int
    hidden: int
    expert_width: int
    kv_bytes_per_token: int
    recurrent_bytes: int
    prefill_bytes_per_token: int
    default_pool_fraction: float | None = None
    float_router_bytes: int = 0
    built_in: bool = False

    def __post_init__(self) -> None:
        for name in ("layers", "experts", "experts_per_token", "record_bytes", "slot_bytes", "vocabulary", "hidden"):
            if not 0 < getattr(self, name) < 2**62:
                raise GeometryError(f"{self.name}: {name} is {getattr(self, name)}; a model needs at least 1")
        if self.experts_per_token > self.experts:
            raise GeometryError(
                f"{self.name}: {self.experts_per_token} experts per token out of {self.experts} is impossible"
            )
        if self.expert_set_bytes >= 2**62 or self.context_limit * max(1, self.kv_bytes_per_token) >= 2**62:
            raise GeometryError(f"{self.name}: its sizes exceed 4 exabytes, so its configuration must be damaged")

    @property
    def total_experts(self) -> int:
        """Experts over all layers: the largest useful pool in slots."""
        return self.layers * self.experts

    @property
    def expert_set_bytes(self) -> int:
        """All routed experts on disk, without the draft head's own."""
        return self.total_experts * self.record_bytes

    @property
    def kv_layer_bytes_per_token(self) -> int:
        """Sequence cache of one token in one full-attention layer."""
        return self.kv_bytes_per_token // max(1, self.full_attention_layers)

    @property
    def disk_bytes(self) -> int:
        """Everything on disk: experts, shared tensors, n-grams, draft head, vision and correction."""
        return (
            self.expert_set_bytes
            + self.shared_bytes
            + self.ngram_bytes
            + self.draft_bytes
            + self.vision_bytes
            + self.correction_bytes
        )

    @classmethod
    def from_checkpoint(cls, directory: str | Path, *, compute: Compute) -> ModelGeometry:
        """Read the geometry of a checkpoint directory.

        Args:
            directory: Holds ``config.json`` and safetensors files in the converted layout, quantised or not.
            compute: The type the backend will compute in.

        Raises:
            GeometryError: A file is missing or damaged, the architecture is unknown, or the
                configuration and the tensors disagree.
        """
        root = Path(directory).expanduser()
        list_directory(root)
        config = _Config(read_json(root / "config.json"), root / "config.json")
        return _assemble(root, config, list(read_checkpoint_headers(root).values()), compute)


class _Config:
    """The text part of a ``config.json``, with typed access that names what is missing."""

    def __init__(self, document: Mapping[str, Any], path: Path) -> None:
        model_type = document.get("model_type")
        if model_type not in SUPPORTED_MODEL_TYPES:
            raise GeometryError(
                f"{path}: model_type is {model_type!r}; this version plans {', '.join(SUPPORTED_MODEL_TYPES)}"
            )
        text = document.get("text_config", document)
        if not isinstance(text, dict):
            raise GeometryError(f"{path}: text_config is not a JSON object")
        self._values: dict[str, Any] = text
        self._path = path

    def count(self, key: str, *, default: int | None = None) -> int:
        value = self._values.get(key, default)
        if type(value) is not int or not 0 < value < 2**40:
            raise GeometryError(f"{self._path}: {key} is {value!r}; a whole number above 0 belongs there")
        return value

    def full_attention_layers(self) -> int:
        layers = self.count("num_hidden_layers")
        kinds = self._values.get("layer_types")
        if isinstance(kinds, list):
            return sum(1 for kind in kinds if kind in ("full_attention", "indexed_attention"))
        return layers // self.count("full_attention_interval", default=4)


def _resident_bytes(tensors: Iterable[TensorHeader], compute: Compute) -> int:
    """Bytes after loading: floats take the compute type, float32 and packed words stay as they are."""
    total = 0
    for tensor in tensors:
        width = DTYPE_BYTES[tensor.dtype]
        if tensor.dtype in _FLOATS:
            width = 4 if compute == "float32" else max(2, min(4, width))
        total += tensor.elements * width
    return total


def _assemble(root: Path, config: _Config, tensors: list[TensorHeader], compute: Compute) -> ModelGeometry:
    layers, experts = config.count("num_hidden_layers"), config.count("num_experts")
    routed: dict[str, list[TensorHeader]] = {}
    groups: dict[str, list[TensorHeader]] = {"draft": [], "vision": [], "ngram": [], "shared": []}
    for tensor in tensors:
        group = _group(tensor.name)
        if group == "expert":
            routed.setdefault(_layer_of(tensor.name), []).append(tensor)
        else:
            groups[group].append(tensor)
    record_bytes, slot_bytes = _expert_bytes(root, routed, layers, experts, compute)
    fixed_itemsize = 4 if compute == "float32" else 2
    hints = _hints(root)
    correction = root / _CORRECTION
    full = config.full_attention_layers()
    hidden, inter = config.count("hidden_size"), config.count("moe_intermediate_size")
    per_token = config.count("num_experts_per_tok")
    key_value = 2 * config.count("num_key_value_heads") * config.count("head_dim")
    indexer = config.count("indexer_kv_heads", default=1) * config.count("indexer_head_dim", default=128)
    routers = [t for t in groups["shared"] if _ROUTER.search(t.name) and t.dtype in _FLOATS]
    width = config.count("hc_count", default=4) * hidden + per_token * 2 * (hidden + inter)
    return ModelGeometry(
        name=hints.get("name") or root.resolve().name,
        compute=compute,
        layers=layers,
        full_attention_layers=full,
        experts=experts,
        experts_per_token=per_token,
        record_bytes=record_bytes,
        slot_bytes=slot_bytes,
        shared_bytes=sum(t.byte_count for t in groups["shared"]),
        shared_resident_bytes=_resident_bytes(groups["shared"], compute),
        ngram_bytes=sum(t.byte_count for t in groups["ngram"]),
        draft_bytes=sum(t.byte_count for t in groups["draft"]),
        draft_resident_bytes=_resident_bytes(groups["draft"], compute),
        vision_bytes=sum(t.byte_count for t in groups["vision"]),
        vision_resident_bytes=_resident_bytes(groups["vision"], compute),
        correction_bytes=correction.stat().st_size if correction.is_file() else 0,
        vocabulary=config.count("vocab_size"),
        context_limit=config.count("max_position_embeddings"),
        hidden=hidden,
        expert_width=inter,
        kv_bytes_per_token=full * (key_value + indexer) * fixed_itemsize,
        recurrent_bytes=(layers - full)
        * config.count("linear_num_value_heads")
        * config.count("linear_key_head_dim")
        * config.count("linear_value_head_dim")
        * 4,
        prefill_bytes_per_token=_REFERENCE_PREFILL_BYTES * width // _REFERENCE_WIDTH,
        default_pool_fraction=hints.get("default_pool_fraction"),
        float_router_bytes=_resident_bytes(routers, compute),
    )


def _group(name: str) -> str:
    if _DRAFT.search(name):
        return "draft"
    if _VISION.search(name):
        return "vision"
    if _NGRAM.search(name):
        return "ngram"
    return "expert" if _EXPERT.search(name) else "shared"


def _layer_of(name: str) -> str:
    match = _EXPERT.search(name)
    return match["layer"] if match else ""


def _expert_bytes(
    root: Path, routed: Mapping[str, list[TensorHeader]], layers: int, experts: int, compute: Compute
) -> tuple[int, int]:
    """Return (record bytes, slot bytes), the same for every layer or the checkpoint is refused."""
    if len(routed) != layers:
        raise GeometryError(
            f"{root}: config.json has {layers} layers but {len(routed)} of them hold switch_mlp expert tensors; "
            "convert the checkpoint first, or download its missing shards"
        )
    sizes: dict[tuple[int, int], str] = {}
    for layer, tensors in routed.items():
        for tensor in tensors:
            if not tensor.shape or tensor.shape[0] != experts:
                raise GeometryError(
                    f"{tensor.name} in {tensor.path} has shape {list(tensor.shape)}; config.json says its first "
                    f"dimension is {experts} experts"
                )
        record = sum(t.byte_count for t in tensors) // experts
        sizes.setdefault((record, _resident_bytes(tensors, compute) // experts), layer)
    if len(sizes) > 1:
        listed = ", ".join(f"{record} bytes in {layer}" for (record, _), layer in sizes.items())
        raise GeometryError(
            f"{root}: experts differ in size between layers ({listed}); every layer's experts need one "
            "quantisation to share a pool"
        )
    return next(iter(sizes))


def _hints(root: Path) -> dict[str, Any]:
    """Return the wishes of ``slotstream.json``, checked; an absent file wishes nothing."""
    path = root / _HINTS_NAME
    if not path.is_file():
        return {}
    hints = read_json(path)
    fraction = hints.get("default_pool_fraction")
    if fraction is not None and (type(fraction) not in (int, float) or not 0 < fraction <= 1):
        raise GeometryError(
            f"{path}: default_pool_fraction is {fraction!r}; a number above 0 and at most 1 belongs there"
        )
    name = hints.get("name")
    if name is not None and not isinstance(name, str):
        raise GeometryError(f"{path}: name is {name!r}; a string belongs there")
    return hints
