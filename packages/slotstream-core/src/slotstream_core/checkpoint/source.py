"""A checkpoint in the Hugging Face layout, checked completely and read block by block in our orientation."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.checkpoint.floats import STORAGE_TYPES, decode, first_not_finite
from slotstream_core.checkpoint.headers import (
    CONFIG_NAME,
    DTYPE_BYTES,
    TensorInfo,
    list_directory,
    read_directory,
    read_json_object,
)
from slotstream_core.checkpoint.huggingface import (
    SOURCE_VISION_PREFIX,
    TEXT_PREFIXES,
    projection,
    source_module,
    vision_name,
)
from slotstream_core.checkpoint.schema import DRAFT, TensorSpec, count_ngram_parts, draft_specs, text_specs
from slotstream_core.checkpoint.source_settings import refuse_unknown_settings
from slotstream_core.checkpoint.validation import FLOATS
from slotstream_core.errors import CheckpointDamaged, CheckpointError, CheckpointMissing, UnsupportedModel

Arrangement = Literal["whole", "each", "gate half", "up half"]
"""Where an expert's rows are: one tensor for everything, one tensor an expert, or half of a fused tensor."""


@dataclass(frozen=True, kw_only=True)
class SourceTensor:
    """One logical tensor and where its values are in the source.

    Attributes:
        spec: The tensor in our layout.
        tensors: The stored tensors that hold it; one, or one an expert.
        arrangement: How its values lie in them.
    """

    spec: TensorSpec
    tensors: tuple[TensorInfo, ...]
    arrangement: Arrangement

    @property
    def dtype(self) -> str:
        """Stored type of its values."""
        return self.tensors[0].dtype


@dataclass(frozen=True, kw_only=True)
class VisionTensor:
    """A vision tensor, carried over as it is under the name `name`."""

    name: str
    tensor: TensorInfo

    @property
    def channels_last(self) -> bool:
        """Whether its second axis moves to the end: the patch convolution, [out, in, t, h, w] -> [out, t, h, w, in]."""
        return len(self.tensor.shape) == 5

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in our layout."""
        shape = self.tensor.shape
        return (shape[0], *shape[2:], shape[1]) if self.channels_last else shape


class SourceCheckpoint:
    """A Hugging Face checkpoint whose every tensor has its place in ours.

    Attributes:
        directory: The directory.
        document: The decoded `config.json`.
        config: The model's settings.
        text: The text model's tensors in the order of our layout.
        draft: The draft head's tensors; empty when there is none.
        vision: The vision tower's tensors; empty when there is none.
        files: Every safetensors file that is read.
    """

    def __init__(self, directory: Path) -> None:
        """Check a directory from its configuration and headers.

        Raises:
            CheckpointMissing: A file is missing or cannot be opened.
            CheckpointDamaged: A file or tensor is not what it should be.
            UnsupportedModel: Another architecture, an already converted checkpoint, or a tensor or setting that this
                version does not know.
        """
        list_directory(directory)
        self.directory = directory
        origin = directory / CONFIG_NAME
        self.document: dict[str, Any] = read_json_object(origin)
        self.config = Qwen4ExpConfig.from_document(self.document, origin=str(origin))
        tensors = read_directory(directory)
        _refuse_converted(directory, self.document, tensors)
        refuse_unknown_settings(self.document, str(origin))
        self.files: tuple[Path, ...] = tuple(sorted({tensor.path for tensor in tensors.values()}))
        prefix = _text_prefix(directory, tensors)
        used: set[str] = set()
        specs = text_specs(self.config, ngram_parts=count_ngram_parts(tensors))
        self.text = tuple(_locate_all(specs, prefix, tensors, used))
        has_draft = any(name.startswith(f"{DRAFT}.") for name in tensors)
        self.draft = tuple(_locate_all(draft_specs(self.config), prefix, tensors, used)) if has_draft else ()
        self.vision = tuple(_locate_vision(tensors, used))
        unknown = sorted(set(tensors) - used)
        if unknown:
            others = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise UnsupportedModel(f"{directory}: no part of a qwen4_exp model uses the tensor {unknown[0]}{others}")


def read_source_block(source: SourceTensor, start: int, stop: int) -> npt.NDArray[np.generic]:
    """Return entries `start` to `stop` of the first axis, in our orientation: float32, or int64 for tables.

    Raises:
        CheckpointDamaged: A value is not finite, or a file became shorter.
    """
    spec = source.spec
    row_shape = spec.shape[1:]
    if source.arrangement == "whole":
        tensor = source.tensors[0]
        row_bytes = tensor.byte_count // spec.shape[0]
        data = read_values(tensor, start * row_bytes, (stop - start) * row_bytes)
    else:
        values = int(np.prod(row_shape))
        expert_bytes = values * DTYPE_BYTES[source.dtype]
        data = np.empty((stop - start, values), dtype=STORAGE_TYPES[source.dtype])
        for row, expert in enumerate(range(start, stop)):
            data[row] = _read_expert(source, expert, expert_bytes)
    # A depthwise convolution has one value for each channel and tap, so [C, 1, K] and [C, K, 1] are the same bytes.
    shaped = data.reshape(stop - start, *row_shape)
    return shaped if spec.role == "table" else decode(shaped, source.dtype)


def _read_expert(source: SourceTensor, expert: int, expert_bytes: int) -> npt.NDArray[np.generic]:
    if source.arrangement == "each":
        return read_values(source.tensors[expert], 0, expert_bytes)
    half = 0 if source.arrangement == "gate half" else 1
    return read_values(source.tensors[0], (2 * expert + half) * expert_bytes, expert_bytes)


def read_values(tensor: TensorInfo, start_byte: int, byte_count: int) -> npt.NDArray[np.generic]:
    """Return `byte_count` bytes of a tensor, `start_byte` bytes into it, as a flat array of its storage type.

    Raises:
        CheckpointMissing: The file cannot be opened.
        CheckpointDamaged: A value is not finite, or the file became shorter.
    """
    data = np.empty(byte_count // DTYPE_BYTES[tensor.dtype], dtype=STORAGE_TYPES[tensor.dtype])
    view = data.view(np.uint8).data
    try:
        descriptor = os.open(tensor.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointMissing(f"{tensor.path} cannot be read: {error.strerror}") from error
    try:
        done = 0
        while done < byte_count:
            got = os.preadv(descriptor, [view[done : done + (1 << 30)]], tensor.offset + start_byte + done)
            if got == 0:
                raise CheckpointDamaged(
                    f"{tensor.path} became shorter: {tensor.name} wanted {byte_count:,} bytes from byte "
                    f"{tensor.offset + start_byte:,} and got {done:,}"
                )
            done += got
    except OSError as error:
        raise CheckpointDamaged(f"{tensor.name} in {tensor.path} cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    bad = first_not_finite(data, tensor.dtype)
    if bad is not None:
        element = start_byte // DTYPE_BYTES[tensor.dtype] + bad
        raise CheckpointDamaged(
            f"{tensor.name} in {tensor.path} holds a value that is not finite at element {element:,}"
        )
    return data


def _refuse_converted(directory: Path, document: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> None:
    evidence = next((name for name in tensors if name.startswith("language_model.") or ".switch_mlp." in name), None)
    if "slotstream" in document or evidence is not None:
        found = "config.json records it" if evidence is None else f"it holds {evidence}"
        raise UnsupportedModel(
            f"{directory} is converted already ({found}); converting it again would fold its norms twice. "
            "Give the original checkpoint"
        )
    for key in ("quantization", "quantization_config"):
        if document.get(key) is not None:
            raise UnsupportedModel(
                f"{directory / CONFIG_NAME}: {key} is present; convert reads unquantised checkpoints only"
            )


def _text_prefix(directory: Path, tensors: Mapping[str, TensorInfo]) -> str:
    for prefix in TEXT_PREFIXES:
        if f"{prefix}embed_tokens.weight" in tensors:
            return prefix
    raise CheckpointDamaged(
        f"{directory} has no {' or '.join(f'{prefix}embed_tokens.weight' for prefix in TEXT_PREFIXES)}; "
        "it is not a complete qwen4_exp checkpoint in the Hugging Face layout"
    )


def _locate_all(
    specs: Iterator[TensorSpec], prefix: str, tensors: Mapping[str, TensorInfo], used: set[str]
) -> Iterator[SourceTensor]:
    for spec in specs:
        found = _locate(spec, source_module(spec, prefix), tensors)
        if found is None:
            continue
        used.update(tensor.name for tensor in found.tensors)
        yield found


def _locate(spec: TensorSpec, module: str, tensors: Mapping[str, TensorInfo]) -> SourceTensor | None:
    name, shape = module + spec.suffix, spec.shape
    arrangement: Arrangement = "whole"
    if spec.role == "convolution":
        shape = (shape[0], shape[2], shape[1])
    if spec.role == "expert":
        kind = projection(spec)
        if f"{module}.0.{kind}.weight" in tensors:
            names = [f"{module}.{expert}.{kind}.weight" for expert in range(shape[0])]
            each = tuple(_checked(tensors, expert_name, shape[1:], spec) for expert_name in names)
            return SourceTensor(spec=spec, tensors=each, arrangement="each")
        name = f"{module}.down_proj"
        if kind != "down_proj":
            name, shape = f"{module}.gate_up_proj", (shape[0], 2 * shape[1], shape[2])
            arrangement = "gate half" if kind == "gate_proj" else "up half"
    if spec.optional and name not in tensors:
        return None
    return SourceTensor(spec=spec, tensors=(_checked(tensors, name, shape, spec),), arrangement=arrangement)


def _checked(tensors: Mapping[str, TensorInfo], name: str, shape: Sequence[int], spec: TensorSpec) -> TensorInfo:
    tensor = tensors.get(name)
    if tensor is None:
        raise CheckpointDamaged(f"{name} {list(shape)} is missing; download the checkpoint again")
    if tensor.shape != tuple(shape):
        raise CheckpointDamaged(
            f"{name} in {tensor.path} has shape {list(tensor.shape)}; config.json asks for {list(shape)}"
        )
    accepted = ("I64",) if spec.role == "table" else FLOATS
    if tensor.dtype not in accepted:
        raise UnsupportedModel(f"{name} in {tensor.path} is {tensor.dtype}; convert reads {' and '.join(accepted)}")
    return tensor


def _locate_vision(tensors: Mapping[str, TensorInfo], used: set[str]) -> Iterator[VisionTensor]:
    for name in sorted(tensors):
        ours = vision_name(name) if name.startswith(SOURCE_VISION_PREFIX) else None
        if ours is not None:
            tensor = tensors[name]
            if tensor.dtype not in FLOATS:
                raise CheckpointError(f"{name} in {tensor.path} is {tensor.dtype}; convert reads {', '.join(FLOATS)}")
            used.add(name)
            yield VisionTensor(name=ours, tensor=tensor)
