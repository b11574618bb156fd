"""A small model directory in the checkpoint layout, and packages of it."""

import json
import pathlib
import random
import struct
from typing import NamedTuple

from slotpack.catalog import CatalogModel, model_from_package
from slotpack.packing import pack_model
from tests.slotpack.blocks import quantised_block, text_block, word_block


def safetensors(tensors: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    """Return a safetensors file of (dtype, shape, bytes) by name."""
    header: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _dtype, _shape, data in tensors.values())


def quantised_tensors(stem: str, seed: int, groups: int, group_size: int) -> dict[str, tuple[str, list[int], bytes]]:
    """Return the three tensors of a quantised matrix."""
    raw, header = quantised_block(seed, groups, group_size)
    cut = header.weight_bytes
    return {
        f"{stem}.weight": ("U32", [cut // 4], raw[:cut]),
        f"{stem}.scales": ("BF16", [groups], raw[cut : cut + 2 * groups]),
        f"{stem}.biases": ("BF16", [groups], raw[cut + 2 * groups :]),
    }


def write_model(directory: pathlib.Path, seed: int = 1) -> pathlib.Path:
    """Write a model of two shards, an optional draft head and small files; return the directory."""
    directory.mkdir(parents=True)
    shard1 = {
        **quantised_tensors("layers.0.proj", seed, 700, 64),
        "layers.0.norm.weight": ("BF16", [900], word_block(seed, 900)),
        **quantised_tensors("layers.1.proj", seed + 1, 40, 32),
        "offsets": ("I64", [4], struct.pack("<4q", 1, 2, 3, 4)),
    }
    shard2 = {"embed.weight": ("BF16", [4000], word_block(seed + 2, 4000)), "none": ("F32", [0], b"")}
    (directory / "model-00001.safetensors").write_bytes(safetensors(shard1))
    (directory / "model-00002.safetensors").write_bytes(safetensors(shard2))
    (directory / "mtp.safetensors").write_bytes(safetensors(quantised_tensors("mtp.fc", seed + 3, 30, 64)))
    (directory / "config.json").write_bytes(text_block(seed, 1500))
    (directory / "tokenizer.json").write_bytes(random.Random(seed).randbytes(700))
    (directory / "notes.txt").write_bytes(b"")
    return directory


class Packaged(NamedTuple):
    """A model directory, its package, and a catalog entry that wants no spare disk space."""

    model: pathlib.Path
    package: pathlib.Path
    entry: CatalogModel


def write_package(root: pathlib.Path) -> Packaged:
    """Write a model and its package."""
    model = write_model(root / "model")
    pack_model(model, root / "package", optional=["mtp.safetensors"])
    return described(model, root / "package")


def described(model: pathlib.Path, package: pathlib.Path) -> Packaged:
    """Return both with the catalog entry of the package."""
    entry = model_from_package(package, name="test", directory_name="test", margin_bytes=0)
    return Packaged(model, package, entry)


def same_files(model: pathlib.Path, copy: pathlib.Path, *, without: tuple[str, ...] = ()) -> bool:
    """Tell whether a directory holds exactly the model's files besides the lock file."""
    wanted = {path.name: path.read_bytes() for path in model.iterdir() if path.name not in without}
    found = {path.name: path.read_bytes() for path in copy.iterdir() if path.is_file() and path.name != ".pull.lock"}
    return wanted == found
