"""Making a package of a model directory: blocks, kinds, objects, manifest.

A safetensors file is cut so that each quantised matrix (packed u32 weights with their BF16 scales and biases) becomes
blocks of kind 3, every other BF16 tensor becomes blocks of kind 2, and headers, gaps, other types and all other files
become blocks of kind 1.  Blocks hold 32 MiB.  The bytes of a package depend on the model's bytes alone.
"""

import concurrent.futures
import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import struct
from collections.abc import Callable, Iterable, Iterator

from slotpack import codec
from slotpack.errors import PackError
from slotpack.files import hash_file, write_atomically
from slotpack.frames import Kind
from slotpack.manifest import (
    MANIFEST_NAME,
    MAX_OBJECTS,
    FileEntry,
    FileRange,
    Manifest,
    ObjectEntry,
    check_manifest,
    is_safe_name,
)
from slotpack.moved import moved_reason

BLOCK_BYTES = 32 * 2**20
MAX_SAFETENSORS_HEADER_BYTES = 100 * 10**6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """Bytes that become one object.

    Attributes:
        kind: The representation to try.
        ranges: Where the bytes lie, in order.
        weight_bytes: For kind 3, the length of the first range.
        group_size: For kind 3, 32 or 64.
    """

    kind: Kind
    ranges: tuple[FileRange, ...]
    weight_bytes: int = 0
    group_size: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor of a safetensors file, with offsets from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin_bytes: int
    end_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackProgress:
    """How far packing is: source bytes done of all, and object bytes so far."""

    done_bytes: int
    total_bytes: int
    object_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackReport:
    """What was packed.

    Attributes:
        manifest: The written manifest.
        object_bytes: Bytes of all objects.
        model_bytes: Bytes of all source files.
        kinds: Objects per kind as stored (blocks that did not get smaller count as kind 0).
    """

    manifest: Manifest
    object_bytes: int
    model_bytes: int
    kinds: dict[Kind, int]


def read_tensors(path: pathlib.Path) -> list[Tensor]:
    """Return the tensors of a safetensors file in file order.

    Raises:
        PackError: When the header is not a safetensors header.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        (header_bytes,) = struct.unpack("<Q", prefix) if len(prefix) == 8 else (size,)
        if header_bytes > min(MAX_SAFETENSORS_HEADER_BYTES, size - 8):
            raise PackError(f"{path.name} is not a safetensors file: its header does not fit in {size:,} bytes")
        try:
            header = json.loads(file.read(header_bytes))
            entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
            tensors = [
                Tensor(
                    name=name,
                    dtype=str(entry["dtype"]),
                    shape=tuple(int(length) for length in entry["shape"]),
                    begin_bytes=8 + header_bytes + int(entry["data_offsets"][0]),
                    end_bytes=8 + header_bytes + int(entry["data_offsets"][1]),
                )
                for name, entry in entries
            ]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise PackError(f"{path.name} is not a safetensors file: its header cannot be read") from error
    tensors.sort(key=lambda tensor: (tensor.begin_bytes, tensor.end_bytes))
    position = 8 + header_bytes
    for tensor in tensors:
        if not position <= tensor.begin_bytes <= tensor.end_bytes <= size:
            raise PackError(f"{path.name}: the tensor {tensor.name} overlaps another or leaves the file")
        position = tensor.end_bytes
    return tensors


def _quantised_group_size(weight: Tensor, scales: Tensor, biases: Tensor) -> int:
    """Return 32 or 64 when the three tensors are a 4-bit affine matrix, else 0."""
    if weight.dtype != "U32" or scales.dtype != "BF16" or biases.dtype != "BF16":
        return 0
    weight_bytes = weight.end_bytes - weight.begin_bytes
    scale_bytes = scales.end_bytes - scales.begin_bytes
    if scale_bytes == 0 or biases.end_bytes - biases.begin_bytes != scale_bytes:
        return 0
    for group_size in (32, 64):
        if weight_bytes * 4 == scale_bytes * group_size:
            return group_size
    return 0


def _cut(file: str, begin: int, end: int, kind: Kind) -> Iterator[Block]:
    for start in range(begin, end, BLOCK_BYTES):
        length = min(BLOCK_BYTES, end - start)
        yield Block(kind=kind, ranges=(FileRange(file=file, offset_bytes=start, length_bytes=length),))


def _cut_quantised(file: str, weight: Tensor, scales: Tensor, biases: Tensor, group_size: int) -> Iterator[Block]:
    """Yield blocks of n weight bytes with their n * 4 / group_size bytes of scales and as many of biases."""
    length = weight.end_bytes - weight.begin_bytes
    for start in range(0, length, BLOCK_BYTES):
        weight_bytes = min(BLOCK_BYTES, length - start)
        parts = [(weight.begin_bytes + start, weight_bytes)]
        metadata = (start * 4 // group_size, weight_bytes * 4 // group_size)
        parts += [(tensor.begin_bytes + metadata[0], metadata[1]) for tensor in (scales, biases)]
        yield Block(
            kind=Kind.QUANTIZED,
            ranges=tuple(FileRange(file=file, offset_bytes=at, length_bytes=count) for at, count in parts),
            weight_bytes=weight_bytes,
            group_size=group_size,
        )


def _plan_safetensors(path: pathlib.Path) -> Iterator[Block]:
    tensors = read_tensors(path)
    by_name = {tensor.name: tensor for tensor in tensors}
    consumed: set[str] = set()
    for weight in tensors:
        stem = weight.name.removesuffix(".weight")
        scales, biases = by_name.get(f"{stem}.scales"), by_name.get(f"{stem}.biases")
        if stem == weight.name or scales is None or biases is None:
            continue
        group_size = _quantised_group_size(weight, scales, biases)
        if group_size:
            consumed |= {weight.name, scales.name, biases.name}
            yield from _cut_quantised(path.name, weight, scales, biases, group_size)
    plain_from = 0
    for tensor in tensors:
        own_block = tensor.name in consumed or tensor.dtype == "BF16"
        if not own_block or tensor.begin_bytes == tensor.end_bytes:
            continue
        yield from _cut(path.name, plain_from, tensor.begin_bytes, Kind.BYTES)
        plain_from = tensor.end_bytes
        if tensor.name not in consumed:
            yield from _cut(path.name, tensor.begin_bytes, tensor.end_bytes, Kind.WORDS)
    yield from _cut(path.name, plain_from, path.stat().st_size, Kind.BYTES)


def plan_blocks(directory: pathlib.Path, files: Iterable[FileEntry]) -> list[Block]:
    """Return the blocks of a model, required ones first, then by file and offset.

    Raises:
        PackError: When a safetensors file cannot be read or there are too many blocks.
    """
    optional = {entry.path: entry.optional for entry in files}
    blocks: list[Block] = []
    for name in optional:
        path = directory / name
        if name.endswith(".safetensors"):
            blocks += _plan_safetensors(path)
        else:
            blocks += _cut(name, 0, path.stat().st_size, Kind.BYTES)
    if len(blocks) > MAX_OBJECTS:
        raise PackError(f"the model needs {len(blocks):,} objects; a package holds at most {MAX_OBJECTS:,}")
    blocks.sort(key=lambda block: (optional[block.ranges[0].file], block.ranges[0].file, block.ranges[0].offset_bytes))
    return blocks


def list_model_files(
    directory: pathlib.Path, optional_names: Iterable[str] = (), excluded_names: Iterable[str] = ()
) -> list[FileEntry]:
    """Hash the files of a model directory, in name order.  Excluded names and those starting with a dot are left out.

    Raises:
        PackError: When there is nothing to pack, or something that a package cannot hold.
    """
    optional, excluded = set(optional_names), set(excluded_names)
    if not directory.is_dir():
        raise PackError(f"{directory} is not a directory; pass the directory that holds the model's files")
    moved = moved_reason(directory)
    if moved is not None:
        raise PackError(moved)
    entries: list[FileEntry] = []
    for path in sorted(directory.iterdir()):
        if path.name.startswith(".") or path.name in excluded:
            continue
        if not path.is_file():
            raise PackError(
                f"{path} is not a regular file; a package holds plain files without directories, so exclude it"
            )
        if not is_safe_name(path.name):
            raise PackError(f"{path.name!r} is not a name that every system accepts; rename the file")
        size = path.stat().st_size
        digest = hash_file(path)
        entries.append(FileEntry(path=path.name, size_bytes=size, sha256=digest, optional=path.name in optional))
    missing = optional - {entry.path for entry in entries}
    if missing:
        raise PackError(f"the optional file {sorted(missing)[0]} is not in {directory}")
    if not entries:
        raise PackError(f"{directory} holds no files to pack")
    return entries


def _read_block(directory: pathlib.Path, block: Block) -> bytes:
    parts: list[bytes] = []
    for item in block.ranges:
        with (directory / item.file).open("rb") as file:
            file.seek(item.offset_bytes)
            parts.append(file.read(item.length_bytes))
        if len(parts[-1]) != item.length_bytes:
            raise PackError(f"{item.file} became shorter while it was packed; leave the model alone and start again")
    return b"".join(parts)


def pack_block(directory: pathlib.Path, output: pathlib.Path, block: Block) -> tuple[ObjectEntry, Kind]:
    """Encode one block, decode it again, and write its object unless it is already there.

    Raises:
        PackError: When the round trip differs; the object is not written.
    """
    raw = _read_block(directory, block)
    frame = codec.encode(raw, kind=block.kind, weight_bytes=block.weight_bytes, group_size=block.group_size)
    if codec.decode(frame) != raw:
        raise PackError(f"a block of {block.ranges[0].file} did not survive its round trip; nothing was written for it")
    entry = ObjectEntry(
        sha256=hashlib.sha256(frame).hexdigest(),
        size_bytes=len(frame),
        raw_size_bytes=len(raw),
        raw_sha256=hashlib.sha256(raw).hexdigest(),
        ranges=block.ranges,
    )
    target = output / entry.path
    if not target.is_file() or target.stat().st_size != len(frame) or hash_file(target) != entry.sha256:
        write_atomically(target, frame)
    return entry, Kind(frame[12])


def _encode_all(
    directory: pathlib.Path,
    output: pathlib.Path,
    blocks: list[Block],
    workers: int,
    progress: Callable[[PackProgress], None] | None,
) -> list[tuple[ObjectEntry, Kind]]:
    total = sum(item.length_bytes for block in blocks for item in block.ranges)
    done = object_bytes = 0
    results: list[tuple[ObjectEntry, Kind]] = []
    with concurrent.futures.ThreadPoolExecutor(max_workers=workers) as pool:
        # A bounded window keeps at most 2 blocks a worker in memory.
        waiting = iter(blocks)
        window = [pool.submit(pack_block, directory, output, b) for b in itertools.islice(waiting, 2 * workers)]
        try:
            while window:
                entry, kind = window.pop(0).result()
                results.append((entry, kind))
                window += [pool.submit(pack_block, directory, output, b) for b in itertools.islice(waiting, 1)]
                done += entry.raw_size_bytes
                object_bytes += entry.size_bytes
                if progress is not None:
                    progress(PackProgress(done_bytes=done, total_bytes=total, object_bytes=object_bytes))
        finally:
            for future in window:
                future.cancel()
    return results


def pack_model(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    workers: int = 1,
    optional: Iterable[str] = (),
    excluded: Iterable[str] = (),
    progress: Callable[[PackProgress], None] | None = None,
) -> PackReport:
    """Pack every file of a model directory into a package directory.

    Every block is decoded again and compared before its object is written, and the manifest is written last.  Running
    it again over an unfinished package keeps the objects that are already there.

    Args:
        model: Directory with the model's files; subdirectories are refused, names starting with a dot are left out.
        output: Directory of the package; created when missing.
        workers: Blocks coded at a time.
        optional: Names of files without which the model is still complete.
        excluded: Names of files and directories that are left out.
        progress: Called after every block, in the calling thread.

    Raises:
        PackError: When the model cannot be packed.
    """
    if workers < 1:
        raise PackError(f"workers is at least 1, not {workers}")
    directory, target = pathlib.Path(model), pathlib.Path(output)
    if target.resolve() == directory.resolve() or directory.resolve() in target.resolve().parents:
        raise PackError(f"{target} lies inside the model directory; choose another output")
    files = list_model_files(directory, optional, excluded)
    results = _encode_all(directory, target, plan_blocks(directory, files), workers, progress)
    manifest = Manifest(files=tuple(files), objects=tuple(entry for entry, _kind in results))
    check_manifest(manifest)
    write_atomically(target / MANIFEST_NAME, manifest.to_bytes())
    counts = {kind: sum(1 for _entry, stored in results if stored is kind) for kind in Kind}
    return PackReport(
        manifest=manifest, object_bytes=manifest.transfer_bytes, model_bytes=manifest.model_bytes, kinds=counts
    )
