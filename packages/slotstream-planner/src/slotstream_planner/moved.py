"""Experts that were moved out of a checkpoint's shards into records: where their tensors lie since.

The directory `experts` of a checkpoint then holds one file a layer, whose records begin on pages: one expert's pieces,
one after the other. `index.json` there says of every tensor that was moved where its first entry begins and how far it
is to the next, and which shards were written anew without them. A tensor that a shard still has is read there; the
index only says where the others are, so that either form of each layer makes a whole checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from slotstream_planner.index_entries import as_file_name, as_size, as_text

__all__ = ["MOVED_INDEX", "MOVED_NAME", "MOVED_SUFFIX", "MovedExperts", "MovedFile", "MovedShard", "MovedTensor"]

MOVED_NAME: Final = "experts"
"""The directory in a checkpoint."""

MOVED_INDEX: Final = "index.json"
"""In it."""

MOVED_SUFFIX: Final = ".records"
"""Of the files with a layer's experts."""

MOVED_FORMAT: Final = "slotstream-moved-experts"
MOVED_VERSION: Final = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedTensor:
    """A stacked tensor whose entries lie in records.

    Attributes:
        name: In the checkpoint.
        dtype: Its safetensors type.
        shape: As it was in its shard; the first axis counts experts.
        offset: Of the first expert's piece in the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedFile:
    """The experts of one layer.

    Attributes:
        name: In the directory.
        file_bytes: Its length.
        stride_bytes: From one record to the next.
        sha256: Of the whole file, in hexadecimal.
        tensors: What its records are made of, in their order.
    """

    name: str
    file_bytes: int
    stride_bytes: int
    sha256: str
    tensors: tuple[MovedTensor, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedShard:
    """A shard that was, or is about to be, written anew without tensors that were moved.

    Attributes:
        name: In the checkpoint's directory; its header as it was is kept beside the records, under this name.
        file_bytes: Its length with them.
        sha256: Of the file as it was, in hexadecimal.
    """

    name: str
    file_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedExperts:
    """What `index.json` says.

    Attributes:
        files: One a layer.
        shards: Those without tensors that were moved.
    """

    files: tuple[MovedFile, ...] = ()
    shards: tuple[MovedShard, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the contents of `index.json`."""
        return {
            "format": MOVED_FORMAT,
            "version": MOVED_VERSION,
            "files": [asdict(file) for file in self.files],
            "shards": [asdict(shard) for shard in self.shards],
        }

    @staticmethod
    def parse(document: Mapping[str, Any]) -> MovedExperts:
        """Return what `document` describes.

        Raises:
            ValueError: It is of another format, or damaged; the text says what is wrong.
        """
        if document.get("format") != MOVED_FORMAT or document.get("version") != MOVED_VERSION:
            raise ValueError(
                f"it is {document.get('format')!r} version {document.get('version')!r}; this version reads "
                f"{MOVED_FORMAT!r} version {MOVED_VERSION}"
            )
        try:
            return MovedExperts(
                files=tuple(_file(entry) for entry in document["files"]),
                shards=tuple(
                    MovedShard(
                        name=as_file_name(entry["name"]),
                        file_bytes=as_size(entry["file_bytes"]),
                        sha256=as_text(entry["sha256"]),
                    )
                    for entry in document["shards"]
                ),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is damaged ({type(error).__name__}: {error})") from error


def _file(entry: Mapping[str, Any]) -> MovedFile:
    return MovedFile(
        name=as_file_name(entry["name"]),
        file_bytes=as_size(entry["file_bytes"]),
        stride_bytes=as_size(entry["stride_bytes"]),
        sha256=as_text(entry["sha256"]),
        tensors=tuple(
            MovedTensor(
                name=as_text(tensor["name"]),
                dtype=as_text(tensor["dtype"]),
                shape=tuple(as_size(length) for length in tensor["shape"]),
                offset=as_size(tensor["offset"]),
            )
            for tensor in entry["tensors"]
        ),
    )
