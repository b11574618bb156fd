"""Between a live sequence state and its arrays in host memory.

A state is made of fixed arrays, which each pass replaces (recurrent states, convolution windows), and of row arrays,
which grow by one row for every so many tokens (keys, values, indexer blocks). A snapshot holds the fixed arrays of one
length and its rows in segments: read-only pieces that cover the tokens from 0 to the length without a gap. Snapshots of
one conversation, or of branches of one, share the segments of their common beginning, so that each costs only its
fixed arrays and the rows it adds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import mlx.core as mx
import numpy as np

from slotstream_core.errors import StateError
from slotstream_core.state.rows import (
    HostArray,
    HostValues,
    RowForm,
    RowSegment,
    StateSnapshot,
    along,
    host_dtype,
    segments_until,
)

_DTYPES: Final[Mapping[str, mx.Dtype]] = {
    "float32": mx.float32,
    "float16": mx.float16,
    "bfloat16": mx.bfloat16,
    "int32": mx.int32,
    "int64": mx.int64,
}
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}
_BITS: Final = {"bfloat16": mx.uint16}
"""Types that numpy does not have, and what their bits are held as."""


@dataclass(frozen=True, kw_only=True)
class GrowingArray:
    """A row array of a live state.

    Attributes:
        array: With its capacity along the growing axis.
        form: How it grows.
    """

    array: mx.array
    form: RowForm


class Storable(Protocol):
    """The part of a layer's state that snapshots are made of.  Names are the layer's own; "/" is not used in them."""

    def fixed_arrays(self) -> Mapping[str, mx.array | HostValues]:
        """The arrays that every pass replaces."""

    def row_arrays(self) -> Mapping[str, GrowingArray]:
        """The arrays that grow."""

    def load(self, length: int, fixed: Mapping[str, mx.array], rows: Mapping[str, mx.array]) -> None:
        """Become the state after ``length`` tokens; arrays are owned from now on and have the names given out."""


def snapshot_layers(
    layers: Mapping[str, Storable], *, length: int, model_key: str, known: Sequence[RowSegment] = ()
) -> StateSnapshot:
    """Copy the state of a sequence to host memory.

    Args:
        layers: What remembers something, by a name without "/".
        length: Tokens that all of them have seen.
        model_key: Which model they belong to.
        known: Segments from token 0 with the rows of the same tokens; they are used instead of being copied again.

    Returns:
        A snapshot; only rows that ``known`` lacks are new memory.
    """
    segments = segments_until(known, length)
    start = segments[-1].end if segments else 0
    fixed: dict[str, HostArray] = {}
    rows: dict[str, HostArray] = {}
    forms: dict[str, RowForm] = {}
    for layer, state in layers.items():
        for name, array in state.fixed_arrays().items():
            fixed[f"{layer}/{name}"] = _to_host(array)
        for name, growing in state.row_arrays().items():
            form = growing.form
            chosen = along(form.axis, form.rows(start), form.rows(length))
            rows[f"{layer}/{name}"] = _to_host(growing.array[chosen])
            forms[f"{layer}/{name}"] = form
    if start < length and rows:
        segments += (RowSegment(start=start, end=length, rows=rows, forms=forms),)
    return StateSnapshot(length=length, model_key=model_key, fixed=fixed, segments=segments)


def snapshot_bytes(layers: Iterable[Storable], *, length: int, known: Sequence[RowSegment] = ()) -> int:
    """Return the new memory that `snapshot_layers` would take, without copying anything."""
    start = min(known[-1].end, length) if known else 0
    total = 0
    for state in layers:
        total += sum(array.nbytes for array in state.fixed_arrays().values())
        for growing in state.row_arrays().values():
            form = growing.form
            row_bytes = growing.array.nbytes // max(1, growing.array.shape[form.axis])
            total += (form.rows(length) - form.rows(start)) * row_bytes
    return total


def load_layers(snapshot: StateSnapshot, layers: Mapping[str, Storable]) -> None:
    """Put a snapshot's arrays into the layers of an empty sequence, with the capacities of a sequence that grew.

    Raises:
        StateError: The snapshot has other arrays than the layers, which are then as they were.
    """
    found = []  # everything, before anything is replaced
    for layer, state in layers.items():
        fixed = {
            name: _to_device(_fitting(snapshot.fixed, f"{layer}/{name}", empty))
            for name, empty in state.fixed_arrays().items()
        }
        rows = {name: _joined(snapshot, f"{layer}/{name}", growing) for name, growing in state.row_arrays().items()}
        found.append((state, fixed, rows))
    for state, fixed, rows in found:
        state.load(snapshot.length, fixed, rows)


def _joined(snapshot: StateSnapshot, name: str, empty: GrowingArray) -> mx.array:
    """Return all rows of one array, zeros up to its capacity."""
    form = empty.form
    shape = list(empty.array.shape)
    shape[form.axis] = form.capacity(snapshot.length)
    dtype = _NAMES[empty.array.dtype]
    joined: mx.array | None = None
    if mx.default_device() == mx.cpu:  # its memory is the host's, so that the rows are copied once
        joined = mx.zeros(shape, _BITS.get(dtype, empty.array.dtype))
        mx.eval(joined)
    values: HostValues = np.zeros(shape, host_dtype(dtype)) if joined is None else np.asarray(joined)
    for segment in snapshot.segments:
        found = _found(segment.rows, name)
        first, last = form.rows(segment.start), form.rows(segment.end)
        expected = [*shape[: form.axis], last - first, *shape[form.axis + 1 :]]
        if found.dtype != dtype or list(found.values.shape) != expected:
            raise StateError(
                f"{name} is {found.dtype} {list(found.values.shape)} in a kept state and {dtype} {expected} in the "
                "model; the kept state belongs to another model"
            )
        values[along(form.axis, first, last)] = found.values
    whole = mx.array(values) if joined is None else joined
    return whole.view(_DTYPES[dtype]) if dtype in _BITS else whole


def _fitting(arrays: Mapping[str, HostArray], name: str, empty: mx.array | HostValues) -> HostArray:
    """Return a fixed array of the same kind as that of an empty sequence; along its first axis it may be longer."""
    found = _found(arrays, name)
    dtype = _NAMES[empty.dtype] if isinstance(empty, mx.array) else empty.dtype.name
    if found.dtype != dtype or found.values.ndim != empty.ndim or found.values.shape[1:] != tuple(empty.shape[1:]):
        raise StateError(
            f"{name} is {found.dtype} {list(found.values.shape)} in a kept state and {dtype} {list(empty.shape)} in "
            "the model; the kept state belongs to another model"
        )
    return found


def _found(arrays: Mapping[str, HostArray], name: str) -> HostArray:
    array = arrays.get(name)
    if array is None:
        raise StateError(f"a kept state has no array {name}; it belongs to another model")
    return array


def _to_host(array: mx.array | HostValues) -> HostArray:
    """Return a copy in host memory that nobody can change."""
    if isinstance(array, mx.array):
        name = _NAMES[array.dtype]
        if mx.default_device() != mx.cpu:
            # What the host looks at is moved, with all that shares its memory; kernels may know where that lies.
            array = mx.concatenate([array, array[:0]])
        values: HostValues = np.array(array.view(_BITS[name]) if name in _BITS else array, order="C")
    else:
        name = array.dtype.name
        values = array.copy()
    values.setflags(write=False)
    return HostArray(dtype=name, values=values)


def _to_device(array: HostArray) -> mx.array:
    values = mx.array(array.values)
    return values.view(_DTYPES[array.dtype]) if array.dtype in _BITS else values
