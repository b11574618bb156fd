"""A compact, lossless file of bf16 weights, cut into pieces of a bounded size.

A weight is rotated left by one bit, so that its first byte is the exponent (which compresses to a third) and its
second the sign and mantissa (which do not compress).  Layout: u32 header length, JSON header, blobs.
"""

from __future__ import annotations

import json
import lzma
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

_CHUNK_VALUES = 1 << 20


def pack_weights(tensors: dict[str, npt.NDArray[np.uint16]], *, threads: int) -> bytes:
    """Return the archive of uint16 bit patterns of bf16 tensors, by name."""
    flat = np.concatenate([t.reshape(-1) for t in tensors.values()])
    rotated = (flat << 1) | (flat >> 15)
    exponents = (rotated >> 8).astype(np.uint8)
    rest = (rotated & 0xFF).astype(np.uint8).tobytes()
    chunks = [exponents[i : i + _CHUNK_VALUES].tobytes() for i in range(0, len(exponents), _CHUNK_VALUES)]
    with ThreadPoolExecutor(threads) as pool:
        blobs = list(pool.map(lambda chunk: lzma.compress(chunk, preset=4), chunks))
    header = json.dumps(
        {
            "shapes": {name: list(t.shape) for name, t in tensors.items()},
            "blobs": [len(blob) for blob in blobs],
        }
    ).encode()
    return struct.pack("<I", len(header)) + header + b"".join(blobs) + rest


def unpack_weights(archive: bytes) -> dict[str, npt.NDArray[np.uint16]]:
    """Return the tensors of an archive as uint16 bit patterns of bf16."""
    (header_bytes,) = struct.unpack_from("<I", archive)
    header = json.loads(archive[4 : 4 + header_bytes])
    offset = 4 + header_bytes
    planes = []
    for size in header["blobs"]:
        planes.append(lzma.decompress(archive[offset : offset + size]))
        offset += size
    exponents = np.frombuffer(b"".join(planes), dtype=np.uint8).astype(np.uint16)
    rest = np.frombuffer(archive, dtype=np.uint8, offset=offset).astype(np.uint16)
    rotated = (exponents << 8) | rest
    flat = (rotated >> 1) | (rotated << 15)
    tensors, start = {}, 0
    for name, shape in header["shapes"].items():
        count = int(np.prod(shape, dtype=np.int64))
        tensors[name] = flat[start : start + count].reshape(shape)
        start += count
    return tensors


def write_pieces(archive: bytes, folder: Path, *, piece_bytes: int = 15 << 20) -> list[Path]:
    """Cut an archive into ``weights-N.bin`` files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for index, start in enumerate(range(0, len(archive), piece_bytes)):
        path = folder / f"weights-{index}.bin"
        path.write_bytes(archive[start : start + piece_bytes])
        paths.append(path)
    return paths


def read_pieces(folder: Path) -> bytes:
    """Join the ``weights-N.bin`` files of a folder."""
    paths = sorted(folder.glob("weights-*.bin"), key=lambda p: int(p.stem.split("-")[1]))
    return b"".join(path.read_bytes() for path in paths)
