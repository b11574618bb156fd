"""The safetensors files of a checkpoint directory, taken together and checked against the index."""

from pathlib import Path
from typing import Final

from slotstream_core.checkpoint.config import read_json_object
from slotstream_core.checkpoint.headers import TensorInfo, read_header
from slotstream_core.errors import CheckpointDamaged, CheckpointMissing

CONFIG_NAME: Final = "config.json"
INDEX_NAME: Final = "model.safetensors.index.json"
DRAFT_NAME: Final = "mtp.safetensors"


def read_directory(directory: Path) -> dict[str, TensorInfo]:
    """Return every tensor of a checkpoint directory by name.

    The files are those that the index names, or all `*.safetensors` when there is no index, and the draft head's own
    `mtp.safetensors` when it is there.

    Raises:
        CheckpointMissing: No such directory, no safetensors file in it, or a file that cannot be opened.
        CheckpointDamaged: A file is truncated or malformed, or the index and the files disagree.
    """
    if not directory.is_dir():
        raise CheckpointMissing(f"{directory} is not a directory; give the directory of a checkpoint")
    index = directory / INDEX_NAME
    placed = _read_index(index) if index.exists() else {}
    names = sorted(set(placed.values())) or sorted(path.name for path in directory.glob("*.safetensors"))
    if not names:
        raise CheckpointMissing(f"{directory} holds no .safetensors file; give the directory of a checkpoint")
    if DRAFT_NAME not in names and (directory / DRAFT_NAME).exists():
        names.append(DRAFT_NAME)
    tensors: dict[str, TensorInfo] = {}
    for name in names:
        if not (directory / name).exists():
            raise CheckpointMissing(
                f"{index.name} names {name}, which is not in {directory}; download or convert that file again"
            )
        for tensor in read_header(directory / name):
            if tensor.name in tensors:
                other = tensors[tensor.name].path.name
                raise CheckpointDamaged(
                    f"{tensor.name} is in both {other} and {name} of {directory}; remove the file that does not belong"
                )
            tensors[tensor.name] = tensor
    _check_index(directory, placed, tensors)
    return tensors


def _read_index(path: Path) -> dict[str, str]:
    placed = read_json_object(path).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise CheckpointDamaged(f"{path} has no weight_map; download or convert it again")
    for tensor, name in placed.items():
        if not isinstance(name, str) or Path(name).name != name or not name:
            raise CheckpointDamaged(f"{path} places {tensor} in {name!r}, which is not the name of a file beside it")
    return placed


def _check_index(directory: Path, placed: dict[str, str], tensors: dict[str, TensorInfo]) -> None:
    for name, file_name in placed.items():
        found = tensors.get(name)
        if found is None or found.path.name != file_name:
            where = "is in no file" if found is None else f"is in {found.path.name}"
            raise CheckpointDamaged(f"{INDEX_NAME} of {directory} places {name} in {file_name}, but it {where}")
