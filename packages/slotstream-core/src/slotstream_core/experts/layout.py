"""Where every expert lies on disk and how large it is in a slot. No tensor data is read here.

An expert's record is nine pieces (gate, up and down, each weight, scales and biases) or, in an unquantised checkpoint,
three. Each layer stores a kind of piece for all its experts in one tensor [experts, ...], so one expert's piece is
contiguous and so are the pieces of consecutive experts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol, cast

from slotstream_core.errors import CheckpointDamaged, UnsupportedModel

Projection = Literal["gate", "up", "down"]
Part = Literal["weight", "scales", "biases"]
PieceDtype = Literal["U32", "F32", "BF16", "F16"]
FloatName = Literal["F32", "BF16"]

PROJECTIONS: tuple[Projection, ...] = ("gate", "up", "down")
PARTS: tuple[Part, ...] = ("weight", "scales", "biases")
ITEM_BYTES: Mapping[PieceDtype, int] = {"U32": 4, "F32": 4, "BF16": 2, "F16": 2}


def trunk_modules(layer_count: int) -> list[str]:
    """Name the expert modules of the model's own layers in the published layout."""
    return [f"language_model.model.layers.{layer}.mlp.switch_mlp" for layer in range(layer_count)]


def draft_modules(layer_count: int = 1) -> list[str]:
    """Name the expert modules of the draft head, which has experts, and so a pool, of its own."""
    return [f"mtp.layers.{layer}.mlp.switch_mlp" for layer in range(layer_count)]


class TensorHeader(Protocol):
    """What a checkpoint knows about a tensor before reading it."""

    @property
    def dtype(self) -> str:
        """The safetensors name of the element type."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape."""

    @property
    def path(self) -> Path:
        """The file that holds it."""


class TensorExtent(Protocol):
    """Where a tensor's bytes lie in an open file."""

    @property
    def fd(self) -> int:
        """The open descriptor."""

    @property
    def offset(self) -> int:
        """Of the first byte, from the start of the file."""

    @property
    def byte_count(self) -> int:
        """Bytes of the whole tensor."""

    @property
    def stride_bytes(self) -> int | None:
        """From one entry of the first axis to the next; None where they adjoin."""


class TensorDirectory(Protocol):
    """The part of a checkpoint the expert layout needs; `Checkpoint` provides it."""

    @property
    def tensors(self) -> Mapping[str, TensorHeader]:
        """Every tensor by name."""

    def extent(self, name: str) -> TensorExtent:
        """Return where a tensor lies."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """A run of bytes in a file."""

    path: Path
    offset: int
    byte_count: int


@dataclass(frozen=True, kw_only=True)
class PieceKind:
    """One of the nine (or three) pieces of every record.

    Attributes:
        projection: Which matrix of the expert.
        part: Which tensor of the matrix.
        shape: Of one expert's piece; a row per output of the matrix.
        disk_dtype: As stored.
        slot_dtype: As held in a slot: packed weights as stored, floats in the backend's compute type.
    """

    projection: Projection
    part: Part
    shape: tuple[int, ...]
    disk_dtype: PieceDtype
    slot_dtype: PieceDtype

    @property
    def name(self) -> str:
        """Such as "gate.scales"."""
        return f"{self.projection}.{self.part}"

    @cached_property
    def item_count(self) -> int:
        """Values in one expert's piece."""
        return math.prod(self.shape)

    @cached_property
    def disk_bytes(self) -> int:
        """Bytes of one expert's piece on disk."""
        return self.item_count * ITEM_BYTES[self.disk_dtype]

    @cached_property
    def slot_bytes(self) -> int:
        """Bytes of one expert's piece in a slot."""
        return self.item_count * ITEM_BYTES[self.slot_dtype]

    @cached_property
    def converts(self) -> bool:
        """Whether the bytes change between disk and slot."""
        return self.disk_dtype != self.slot_dtype


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPiece:
    """One kind of piece for every expert of one layer: a tensor of the checkpoint.

    Attributes:
        tensor: Its name.
        path: The file that holds it.
        offset: Of expert 0's piece in the file.
        stride_bytes: From one expert's piece to the next; None where they adjoin, as in a stacked tensor.
    """

    tensor: str
    path: Path
    offset: int
    stride_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantization:
    """Affine quantisation of one projection: `bits` per value, one scale and bias for `group_size` inputs."""

    bits: int
    group_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertLayout:
    """The experts of a checkpoint: the same kinds of piece in every layer, and where each layer stores them.

    Attributes:
        kinds: The pieces of a record in record order.
        layers: For each layer, one `StoredPiece` a kind, in the order of `kinds`.
        expert_count: Experts a layer.
        quantization: By projection; None where the weights are plain floats.
    """

    kinds: tuple[PieceKind, ...]
    layers: tuple[tuple[StoredPiece, ...], ...]
    expert_count: int
    quantization: Mapping[Projection, Quantization | None]

    @property
    def layer_count(self) -> int:
        """Layers that have experts."""
        return len(self.layers)

    @property
    def record_count(self) -> int:
        """Experts of all layers together."""
        return self.layer_count * self.expert_count

    @property
    def record_bytes(self) -> int:
        """Bytes of one expert on disk."""
        return sum(kind.disk_bytes for kind in self.kinds)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one expert in a slot."""
        return sum(kind.slot_bytes for kind in self.kinds)

    @property
    def repacked(self) -> bool:
        """Whether the pieces of an expert adjoin, so that one read fetches it."""
        return any(piece.stride_bytes is not None for layer in self.layers for piece in layer)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that hold the experts."""
        return tuple(sorted({piece.path for layer in self.layers for piece in layer}))

    def extents(self, layer: int, expert: int) -> tuple[Extent, ...]:
        """Return where each piece of one expert lies, in the order of `kinds`."""
        return tuple(self.extent(layer, index, expert) for index in range(len(self.kinds)))

    def extent(self, layer: int, kind: int, expert: int) -> Extent:
        """Return where one piece (an index into `kinds`) of one expert lies."""
        stored = self.layers[layer][kind]
        byte_count = self.kinds[kind].disk_bytes
        stride_bytes = stored.stride_bytes or byte_count
        return Extent(path=stored.path, offset=stored.offset + expert * stride_bytes, byte_count=byte_count)

    @staticmethod
    def from_checkpoint(checkpoint: TensorDirectory, modules: Sequence[str], *, float_name: FloatName) -> ExpertLayout:
        """Read the layout from a checkpoint's headers.

        Args:
            checkpoint: An open checkpoint; its descriptors must outlive the layout.
            modules: The name of each layer's expert module, such as
                "language_model.model.layers.0.mlp.switch_mlp", first layer first.
            float_name: The backend's compute type, in which slots hold every float.

        Raises:
            CheckpointDamaged: A tensor is missing or its shape contradicts the others.
            UnsupportedModel: A stored type that slots cannot hold, or layers that differ in quantisation.
        """
        if not modules:
            raise UnsupportedModel("the model has no layer with routed experts; there is nothing to stream")
        described = [_describe(checkpoint, module, float_name) for module in modules]
        first = described[0]
        for module, other in zip(modules, described, strict=True):
            if other.kinds != first.kinds or other.expert_count != first.expert_count:
                raise UnsupportedModel(
                    f"the experts of {module} ({_summary(other)}) differ from those of {modules[0]} "
                    f"({_summary(first)}); one pool of slots serves all layers, so convert them alike"
                )
        return ExpertLayout(
            kinds=first.kinds,
            layers=tuple(other.layers[0] for other in described),
            expert_count=first.expert_count,
            quantization=first.quantization,
        )


def _summary(layout: ExpertLayout) -> str:
    pieces = ", ".join(f"{kind.name} {kind.disk_dtype} {list(kind.shape)}" for kind in layout.kinds)
    return f"{layout.expert_count} experts: {pieces}"


def _describe(checkpoint: TensorDirectory, module: str, float_name: FloatName) -> ExpertLayout:
    """Describe one layer as a layout of its own."""
    kinds: list[PieceKind] = []
    stored: list[StoredPiece] = []
    counts: dict[str, int] = {}
    quantized = f"{module}.gate_proj.scales" in checkpoint.tensors
    for projection in PROJECTIONS:
        for part in PARTS if quantized else PARTS[:1]:
            name = f"{module}.{projection}_proj.{part}"
            header = checkpoint.tensors.get(name)
            if header is None:
                raise CheckpointDamaged(f"the tensor {name} is missing; download or convert the checkpoint again")
            kind = _kind(name, header, projection, part, float_name, packed=quantized and part == "weight")
            extent = checkpoint.extent(name)
            expected = header.shape[0] * kind.disk_bytes
            if extent.byte_count != expected:
                raise CheckpointDamaged(
                    f"{header.path.name}: {name} holds {extent.byte_count:,} bytes and its shape "
                    f"{list(header.shape)} needs {expected:,}; download or convert the checkpoint again"
                )
            counts[name] = header.shape[0]
            kinds.append(kind)
            stored.append(
                StoredPiece(tensor=name, path=header.path, offset=extent.offset, stride_bytes=extent.stride_bytes)
            )
    if len(set(counts.values())) != 1:
        listing = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise CheckpointDamaged(f"the tensors of {module} disagree on the number of experts: {listing}")
    return ExpertLayout(
        kinds=tuple(kinds),
        layers=(tuple(stored),),
        expert_count=next(iter(counts.values())),
        quantization=_quantization(module, kinds),
    )


def _kind(
    name: str, header: TensorHeader, projection: Projection, part: Part, float_name: FloatName, *, packed: bool
) -> PieceKind:
    allowed = ("U32",) if packed else ("F32", "BF16", "F16")
    if header.dtype not in allowed:
        raise UnsupportedModel(
            f"{header.path.name}: {name} is stored as {header.dtype}; expected {' or '.join(allowed)}"
        )
    if len(header.shape) != 3 or 0 in header.shape:
        raise CheckpointDamaged(
            f"{header.path.name}: {name} has shape {list(header.shape)}; expected [experts, out, in]"
        )
    dtype = cast(PieceDtype, header.dtype)
    return PieceKind(
        projection=projection,
        part=part,
        shape=tuple(header.shape[1:]),
        disk_dtype=dtype,
        slot_dtype=dtype if packed else float_name,
    )


def _quantization(module: str, kinds: Sequence[PieceKind]) -> dict[Projection, Quantization | None]:
    """Recover bits and group size from shapes alone and check that every shape agrees.

    A packed weight [out, words] holds 32/bits values a word; scales are [out, in/group]. gate and up read the hidden
    width (the outputs of down), down reads the intermediate width (the outputs of gate).
    """
    shapes = {(kind.projection, kind.part): kind.shape for kind in kinds}
    hidden, intermediate = shapes["down", "weight"][0], shapes["gate", "weight"][0]
    result: dict[Projection, Quantization | None] = {}
    for projection in PROJECTIONS:
        inputs, outputs = (intermediate, hidden) if projection == "down" else (hidden, intermediate)
        rows, columns = shapes[projection, "weight"]
        scales = shapes.get((projection, "scales"))
        if scales is None:
            agrees, result[projection] = columns == inputs, None
        else:
            bits, group_size = columns * 32 // inputs, inputs // scales[1]
            agrees = (
                columns * 32 == bits * inputs
                and bits in (2, 3, 4, 5, 6, 8)
                and group_size * scales[1] == inputs
                and group_size in (32, 64, 128)
                and scales == shapes[projection, "biases"] == (rows, scales[1])
            )
            result[projection] = Quantization(bits=bits, group_size=group_size)
        if not agrees or rows != outputs:
            listing = ", ".join(f"{name}.{part} {list(shape)}" for (name, part), shape in shapes.items())
            raise CheckpointDamaged(
                f"the shapes of {module} contradict each other at {projection}_proj "
                f"(expected {outputs} outputs of {inputs} inputs): {listing}"
            )
    return result
