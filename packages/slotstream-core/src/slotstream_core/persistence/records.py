"""What the files of a directory hold: heads with the fixed arrays of a state, segments with its rows, and replies."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from slotstream_core.errors import StateError, StateFileDamaged
from slotstream_core.generation.control import StopCheck
from slotstream_core.persistence.container import Container
from slotstream_core.state.rows import HostArray, RowForm, RowSegment, host_dtype

FORMAT: Final = 4
HEAD_SUFFIX: Final = ".slotprefix"
SEGMENT_SUFFIX: Final = ".slotseg"
REPLY_SUFFIX: Final = ".slotreply"
LARGEST_TOKENS: Final = 2**31
LARGEST_ARRAY_BYTES: Final = 2**40


@dataclass(frozen=True, kw_only=True)
class Extent:
    """Tokens whose rows a head takes from a segment file."""

    segment: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class HeadFile:
    """One kept state on disk.

    Attributes:
        name: File name without its suffix; derived from the identity and the ids.
        identity: Whose state it is: build, model and settings.
        build: What to call the build in a listing.
        tokens: Its length.
        pass_tokens: Prompt tokens per pass when it was computed.
        shared: Whether it is a head that conversations start with.
        continued: Whether its prompt went on from an earlier state.
        ancestors: Names of the heads with beginnings of its ids that were there when it was written, shortest first.
        extents: Its rows, adjoining, from token 0 on.
        row_bytes: Their size.
        arrays: Fixed arrays: name, dtype and shape, one a payload.
        written_ns: When it was written; a later modification time of the file means that it was used.
        used_ns: When it was written or used last.
        byte_count: Size of its own file.
    """

    name: str
    identity: str
    build: str
    tokens: int
    pass_tokens: int
    shared: bool
    continued: bool
    ancestors: Sequence[str]
    extents: Sequence[Extent]
    row_bytes: int
    arrays: Sequence[tuple[str, str, tuple[int, ...]]]
    written_ns: int
    used_ns: int
    byte_count: int

    @property
    def used(self) -> bool:
        """Whether it was ever gone on from."""
        return self.continued or self.used_ns != self.written_ns

    @property
    def fixed_bytes(self) -> int:
        """Size of its fixed arrays in memory."""
        return sum(math.prod(shape) * host_dtype(dtype).itemsize for _, dtype, shape in self.arrays)


def element_bytes(array: HostArray) -> memoryview:
    """Return an array's elements as bytes, in C order; copied only where they do not lie so in memory."""
    return np.ascontiguousarray(array.values).reshape(-1).view(np.uint8).data


def head_header(head: HeadFile) -> dict[str, Any]:
    """Return the JSON header of a head's file."""
    header = asdict(head)
    for name in ("byte_count", "used_ns"):
        del header[name]
    return {"format": FORMAT, "kind": "head", **header}


def parse_head(container: Container, *, used_ns: int) -> HeadFile:
    """Read a head's header.

    Raises:
        StateFileDamaged: It says something impossible.
    """
    header = _checked(container, "head", HEAD_SUFFIX)
    try:
        arrays = [(str(name), str(dtype), _shape(shape)) for name, dtype, shape in header["arrays"]]
        extents = [
            Extent(segment=str(e["segment"]), start=int(e["start"]), end=int(e["end"])) for e in header["extents"]
        ]
        head = HeadFile(
            name=container.path.name.removesuffix(HEAD_SUFFIX),
            identity=str(header["identity"]),
            build=str(header["build"]),
            tokens=int(header["tokens"]),
            pass_tokens=int(header["pass_tokens"]),
            shared=bool(header["shared"]),
            continued=bool(header["continued"]),
            ancestors=tuple(map(str, header["ancestors"])),
            extents=tuple(extents),
            row_bytes=int(header["row_bytes"]),
            arrays=tuple(arrays),
            written_ns=int(header["written_ns"]),
            used_ns=used_ns,
            byte_count=container.byte_count,
        )
        sizes = [math.prod(shape) * host_dtype(dtype).itemsize for _, dtype, shape in arrays]
    except (KeyError, TypeError, ValueError, ArithmeticError, StateError) as error:
        raise StateFileDamaged(container.path, f"its header is no head's ({error})") from error
    ends = [0, *(extent.end for extent in extents)]
    adjoining = all(extent.start == end < extent.end for extent, end in zip(extents, ends, strict=False))
    if not 0 < head.tokens < LARGEST_TOKENS or not adjoining or (extents and ends[-1] != head.tokens):
        raise StateFileDamaged(container.path, f"its rows do not cover its {head.tokens:,} tokens")
    if sizes != [payload.byte_count for payload in container.payloads]:
        raise StateFileDamaged(container.path, "its arrays have other sizes than its payloads")
    return head


def segment_header(segment: RowSegment, name: str) -> dict[str, Any]:
    """Return the JSON header of a segment's file of a name."""
    arrays = [
        [name, array.dtype, list(array.values.shape), asdict(segment.forms[name])]
        for name, array in segment.rows.items()
    ]
    header = {"format": FORMAT, "kind": "segment", "name": name}
    return {**header, "start": segment.start, "end": segment.end, "arrays": arrays}


def parse_segment(container: Container, *, stop: StopCheck | None = None) -> RowSegment:
    """Read a segment's file; ``stop`` is asked before each array.

    Raises:
        StateFileDamaged: It says something impossible, or a payload is damaged.
        OSError: It cannot be read.
    """
    header = _checked(container, "segment", SEGMENT_SUFFIX)
    rows: dict[str, HostArray] = {}
    forms: dict[str, RowForm] = {}
    try:
        start, end = int(header["start"]), int(header["end"])
        if not 0 <= start < end < LARGEST_TOKENS:
            raise ValueError(f"tokens {start} to {end}")
        data = container.read(stop=stop)
        for (name, dtype, shape, form), payload in zip(header["arrays"], data, strict=True):
            forms[name] = RowForm(**{key: int(value) for key, value in form.items()})
            values = np.frombuffer(payload, host_dtype(dtype)).reshape(_shape(shape))
            expected = forms[name].rows(end) - forms[name].rows(start)
            if values.shape[forms[name].axis] != expected:
                raise ValueError(f"{name} has {values.shape[forms[name].axis]} rows instead of {expected}")
            rows[name] = HostArray(dtype=dtype, values=values)
    except StateFileDamaged:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError, StateError) as error:
        raise StateFileDamaged(container.path, f"its header is no segment's ({error})") from error
    return RowSegment(start=start, end=end, rows=rows, forms=forms)


def fixed_arrays(head: HeadFile, container: Container) -> dict[str, HostArray]:
    """Read a head's fixed arrays.

    Raises:
        StateFileDamaged: A payload is damaged.
        OSError: The file cannot be read.
    """
    return {
        name: HostArray(dtype=dtype, values=np.frombuffer(data, host_dtype(dtype)).reshape(shape))
        for (name, dtype, shape), data in zip(head.arrays, container.read(), strict=True)
    }


def _checked(container: Container, kind: str, suffix: str) -> Mapping[str, Any]:
    """Return a header of a kind, written under the name that the file has: another's state must not take its place."""
    header = container.header
    if header.get("format") != FORMAT or header.get("kind") != kind:
        raise StateFileDamaged(container.path, f"it is no {kind} of format {FORMAT}")
    if header.get("name") != container.path.name.removesuffix(suffix):
        raise StateFileDamaged(container.path, f"it was written as {header.get('name')}")
    return header


def _shape(values: Sequence[Any]) -> tuple[int, ...]:
    shape = tuple(int(value) for value in values)
    if any(size < 0 for size in shape) or math.prod(shape) > LARGEST_ARRAY_BYTES:
        raise ValueError(f"an array of shape {list(shape)}")
    return shape
