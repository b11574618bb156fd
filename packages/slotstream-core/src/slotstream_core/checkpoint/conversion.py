"""Conversion of a Hugging Face checkpoint into our layout.

Memory stays at a few blocks of `block_bytes`, whatever the model's size: tensors are read, quantised and written in
blocks of rows or experts.  Every finished file is recorded, so that a run that was killed is taken up by the next.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from slotstream_core.checkpoint.claiming import check_free_space, claimed
from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.checkpoint.floats import encode
from slotstream_core.checkpoint.headers import CONFIG_NAME, DRAFT_NAME, DTYPE_BYTES, read_directory
from slotstream_core.checkpoint.quantising import quantise_rows
from slotstream_core.checkpoint.quantization import ModuleQuantization, Quantization
from slotstream_core.checkpoint.resumption import ConversionState, fingerprint
from slotstream_core.checkpoint.schema import TensorSpec
from slotstream_core.checkpoint.shards import (
    DEFAULT_SHARD_BYTES,
    OutputTensor,
    Shard,
    ShardWriter,
    blocks,
    plan_shards,
    write_atomically,
    write_index,
    write_json,
)
from slotstream_core.checkpoint.source import (
    SourceCheckpoint,
    SourceTensor,
    VisionTensor,
    read_source_block,
    read_values,
)
from slotstream_core.checkpoint.storage import (
    FloatType,
    StorageOptions,
    converted_config,
    quantization_block,
    stored_tensors,
)
from slotstream_core.checkpoint.validation import check_tensors
from slotstream_core.errors import CheckpointError

COPIED_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
    "slotstream.json",
    "LICENSE",
    "NOTICE",
)
"""Files beside the weights that a converted model keeps."""


@dataclass(frozen=True, kw_only=True)
class ConversionOptions:
    """What to convert into.

    Attributes:
        storage: How matrices are quantised.
        shard_bytes: Tensor data of one output file; a module is never split, so a file may be larger than this.
        block_bytes: float32 values held at once, in bytes.
    """

    storage: StorageOptions = field(default_factory=StorageOptions)
    shard_bytes: int = DEFAULT_SHARD_BYTES
    block_bytes: int = 32 * 2**20


@dataclass(frozen=True, kw_only=True)
class ConversionProgress:
    """How far a conversion is.

    Attributes:
        done_bytes: Output bytes that are written or were found intact.
        total_bytes: Output bytes altogether.
        file_name: The file at hand.
        kept: Whether that file was finished by an earlier run.
    """

    done_bytes: int
    total_bytes: int
    file_name: str
    kept: bool


@dataclass(frozen=True, kw_only=True)
class ConversionReport:
    """What a conversion did.

    Attributes:
        directory: The converted model.
        written_files: Weight files written by this run.
        kept_files: Weight files that an earlier run had finished.
        total_bytes: Bytes of all weight files.
    """

    directory: Path
    written_files: tuple[str, ...]
    kept_files: tuple[str, ...]
    total_bytes: int


@dataclass(frozen=True, kw_only=True)
class _Item:
    """One logical tensor on its way: where it comes from and what it becomes."""

    source: SourceTensor | VisionTensor
    setting: ModuleQuantization | None
    outputs: tuple[OutputTensor, ...]


def convert_checkpoint(
    source: Path,
    destination: Path,
    options: ConversionOptions | None = None,
    progress: Callable[[ConversionProgress], None] | None = None,
) -> ConversionReport:
    """Convert a checkpoint from the Hugging Face layout into ours.

    Centred norms are folded (`1 + w`, in float32) exactly once and the fold is recorded in `config.json`, which is
    written last: a directory with it is complete.  The same source and options give the same bytes.  The fallible
    parts, names, shapes and free space, are checked before anything is written.

    Args:
        source: The checkpoint to read.
        destination: The directory to fill: a new one, an empty one, or one left by an interrupted run of the same
            conversion.
        options: Quantisation and sizes; 4-bit in groups of 64 when None.
        progress: Called after every block and every file, on the caller's thread.

    Raises:
        CheckpointMissing: The source, or a file of it, is missing or cannot be opened.
        CheckpointDamaged: The source is truncated, incomplete, or holds values that are not finite.
        UnsupportedModel: The source is of another architecture, quantised or converted already, or has a tensor or
            setting this version does not know.
        CheckpointError: The destination holds something else, is too small, or cannot be written to.
    """
    options = options or ConversionOptions()
    _check_paths(source, destination)
    checkpoint = SourceCheckpoint(source)
    main = [_plan(tensor, options.storage) for tensor in checkpoint.text]
    main.extend(_plan_vision(tensor) for tensor in checkpoint.vision)
    draft = [_plan(tensor, options.storage) for tensor in checkpoint.draft]
    shards = plan_shards([item.outputs for item in main], options.shard_bytes)
    files = list(shards)
    if draft:
        outputs = [tensor for item in draft for tensor in item.outputs]
        outputs.sort(key=lambda tensor: -DTYPE_BYTES[tensor.dtype])
        files.append(Shard(file_name=DRAFT_NAME, tensors=tuple(outputs)))
    settings = {"layout": 1, "storage": asdict(options.storage), "shard_bytes": options.shard_bytes}
    identity = fingerprint(settings, (source / CONFIG_NAME, *checkpoint.files))
    with claimed(destination, doing="conversion"):
        state = ConversionState.begin(destination, identity)
        try:
            report = _write_files(files, [*main, *draft], state, options.block_bytes, progress)
        except BaseException:
            if not state.finished:
                state.discard()
            raise
        block = quantization_block(options.storage, _settings([*main, *draft]))
        _complete(checkpoint, destination, shards, converted_config(checkpoint.document, block))
        state.discard()
    return report


def _check_paths(source: Path, destination: Path) -> None:
    if destination.resolve() == source.resolve() or source.resolve() in destination.resolve().parents:
        raise CheckpointError(f"{destination} lies inside the source {source}; give a directory elsewhere")


def _plan(source: SourceTensor, storage: StorageOptions) -> _Item:
    setting = storage.of(source.spec)
    outputs = stored_tensors(source.spec, setting, _float_type(source, storage))
    return _Item(source=source, setting=setting, outputs=outputs)


def _plan_vision(source: VisionTensor) -> _Item:
    output = OutputTensor(name=source.name, dtype=source.tensor.dtype, shape=source.shape)
    return _Item(source=source, setting=None, outputs=(output,))


def _float_type(source: SourceTensor, storage: StorageOptions) -> FloatType:
    """Folded norms in float32, where the fold is exact; the rest as found, or bf16 beside quantised matrices."""
    if source.spec.role == "centred_norm":
        return "F32"
    found: FloatType = "F32" if source.dtype == "F32" else "F16" if source.dtype == "F16" else "BF16"
    return found if storage.bits is None or source.spec.role == "decay" else "BF16"


def _settings(items: Sequence[_Item]) -> Iterator[tuple[TensorSpec, ModuleQuantization | None]]:
    for item in items:
        if isinstance(item.source, SourceTensor):
            yield item.source.spec, item.setting


def _write_files(
    files: Sequence[Shard],
    items: Sequence[_Item],
    state: ConversionState,
    block_bytes: int,
    progress: Callable[[ConversionProgress], None] | None,
) -> ConversionReport:
    kept = [shard for shard in files if state.intact(shard)]
    missing = [shard for shard in files if shard not in kept]
    check_free_space(state.directory, sum(shard.file_bytes for shard in missing))
    total_bytes = sum(shard.file_bytes for shard in files)
    done_bytes = 0

    def report(shard: Shard, extra_bytes: int) -> None:
        if progress is not None:
            progress(
                ConversionProgress(
                    done_bytes=done_bytes + extra_bytes,
                    total_bytes=total_bytes,
                    file_name=shard.file_name,
                    kept=shard in kept,
                )
            )

    for shard in files:
        if shard in missing:
            _write_shard(shard, items, state.directory, block_bytes, partial(report, shard))
            state.record(shard.file_name)
        done_bytes += shard.file_bytes
        report(shard, 0)
    return ConversionReport(
        directory=state.directory,
        written_files=tuple(shard.file_name for shard in missing),
        kept_files=tuple(shard.file_name for shard in kept),
        total_bytes=total_bytes,
    )


def _write_shard(
    shard: Shard, items: Sequence[_Item], directory: Path, block_bytes: int, advance: Callable[[int], None]
) -> None:
    names = {tensor.name for tensor in shard.tensors}
    written_bytes = 0
    with ShardWriter(directory, shard) as writer:
        for item in items:
            if item.outputs[0].name not in names:
                continue
            for block_written_bytes in _write_item(writer, item, block_bytes):
                written_bytes += block_written_bytes
                advance(written_bytes)
        writer.finish()


def _write_item(writer: ShardWriter, item: _Item, block_bytes: int) -> Iterator[int]:
    """Write one logical tensor; yield the bytes of each block."""
    if isinstance(item.source, VisionTensor):
        stored = item.source.tensor
        whole = read_values(stored, 0, stored.byte_count).reshape(stored.shape)
        writer.write(item.outputs[0].name, np.moveaxis(whole, 1, -1) if item.source.channels_last else whole)
        yield stored.byte_count
        return
    spec = item.source.spec
    rows = spec.shape[0]
    row_values = int(np.prod(spec.shape[1:], dtype=np.int64))
    for start, stop in blocks(rows, 4 * row_values, block_bytes):
        values = read_source_block(item.source, start, stop)
        block_written_bytes = 0
        for tensor, data in zip(item.outputs, _encode_block(item, values), strict=True):
            writer.write(tensor.name, data, start * (tensor.byte_count // rows))
            block_written_bytes += data.nbytes
        yield block_written_bytes


def _encode_block(item: _Item, values: npt.NDArray[np.generic]) -> tuple[npt.NDArray[np.generic], ...]:
    """Return the stored form of a block: one array, or words, scales and biases."""
    first = item.outputs[0]
    if first.dtype == "I64":
        return (values,)
    floats = np.asarray(values, dtype=np.float32)
    if item.setting is None:
        if isinstance(item.source, SourceTensor) and item.source.spec.role == "centred_norm":
            floats = np.float32(1.0) + floats
        return (encode(floats, first.dtype),)
    return quantise_rows(floats, item.setting)


def _complete(
    checkpoint: SourceCheckpoint, destination: Path, shards: Sequence[Shard], document: dict[str, object]
) -> None:
    write_index(destination, shards)
    config = Qwen4ExpConfig.from_document(document, origin=CONFIG_NAME)
    check_tensors(config, Quantization.from_document(document), read_directory(destination))
    for name in COPIED_FILES:
        path = checkpoint.directory / name
        try:
            write_atomically(destination / name, path.read_bytes())
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CheckpointError(f"{path} cannot be copied: {error.strerror}") from error
    write_json(destination / CONFIG_NAME, document)
