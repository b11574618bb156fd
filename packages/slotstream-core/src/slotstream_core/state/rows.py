"""A sequence state as plain host arrays: what the prefix cache keeps and what its disk tier writes.  Without MLX."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from slotstream_core.errors import StateError

HostValues = npt.NDArray[np.generic]

_TYPES: Final[Mapping[str, str]] = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "uint16",
    "int32": "int32",
    "int64": "int64",
}
"""How numpy holds each element type; it has no bfloat16, whose bits are kept."""


def host_dtype(name: str) -> np.dtype[np.generic]:
    """Return the numpy type that holds elements of a named type; bfloat16 as its bits.

    Raises:
        StateError: No state has elements of that type.
    """
    if name not in _TYPES:
        raise StateError(f"a state has no {name} elements; known are {', '.join(_TYPES)}")
    return np.dtype(_TYPES[name])


@dataclass(frozen=True, kw_only=True, eq=False)
class HostArray:
    """An array in host memory.

    Attributes:
        dtype: Name of the element type; see `host_dtype` for how numpy holds it.
        values: Read-only, C order.
    """

    dtype: str
    values: HostValues


@dataclass(frozen=True, kw_only=True)
class RowForm:
    """How an array grows with the sequence.

    Attributes:
        axis: The axis that grows.
        tokens_per_row: Tokens for one row; a row exists once all of its tokens were seen.
        step_rows: Capacity is a multiple of this many rows, so that a restored array has the strides of one that grew.
    """

    axis: int
    tokens_per_row: int
    step_rows: int

    def rows(self, tokens: int) -> int:
        """Rows of the first so many tokens."""
        return tokens // self.tokens_per_row

    def capacity(self, tokens: int) -> int:
        """Rows that an array for so many tokens has room for."""
        return -(-self.rows(tokens) // self.step_rows) * self.step_rows


@dataclass(frozen=True, kw_only=True, eq=False)
class RowSegment:
    """Rows of all growing arrays for the tokens from ``start`` to ``end``.  Never changes; compared by identity.

    Attributes:
        start: First token.
        end: One past the last token.
        rows: By array name, ``<layer>/<name>``; along its axis an array holds its rows of these tokens only.
        forms: How each of them grows.
        owner: The segment whose memory this one is a part of; None when it owns its memory.
    """

    start: int
    end: int
    rows: Mapping[str, HostArray]
    forms: Mapping[str, RowForm]
    owner: "RowSegment | None" = None

    @property
    def byte_size(self) -> int:
        """Bytes of the rows of these tokens."""
        return sum(array.values.nbytes for array in self.rows.values())

    def part(self, start: int, end: int) -> "RowSegment":
        """Return the rows of some of its tokens, in the same memory.

        Raises:
            StateError: The tokens are not all in this segment.
        """
        if not self.start <= start < end <= self.end:
            raise StateError(f"tokens {start:,} to {end:,} are not in a segment of {self.start:,} to {self.end:,}")
        if (start, end) == (self.start, self.end):
            return self
        rows = {}
        for name, array in self.rows.items():
            form = self.forms[name]
            first = form.rows(self.start)
            chosen = along(form.axis, form.rows(start) - first, form.rows(end) - first)
            rows[name] = HostArray(dtype=array.dtype, values=array.values[chosen])
        return RowSegment(start=start, end=end, rows=rows, forms=self.forms, owner=self.owner or self)


@dataclass(frozen=True, kw_only=True, eq=False)
class StateSnapshot:
    """The state of a sequence after ``length`` tokens.

    Attributes:
        length: Tokens seen.
        model_key: Which model the state belongs to.
        fixed: Arrays of this length, by ``<layer>/<name>``.
        segments: Rows from token 0 to ``length``, adjoining, in order.
    """

    length: int
    model_key: str
    fixed: Mapping[str, HostArray]
    segments: tuple[RowSegment, ...]

    @property
    def fixed_bytes(self) -> int:
        """Bytes that belong to this length alone."""
        return sum(array.values.nbytes for array in self.fixed.values())

    @property
    def row_bytes(self) -> int:
        """Bytes of all rows, shared ones included."""
        return sum(segment.byte_size for segment in self.segments)


def segments_until(segments: Sequence[RowSegment], length: int) -> tuple[RowSegment, ...]:
    """Return adjoining segments cut at a length; what lies behind it is left out."""
    kept = [segment.part(segment.start, min(segment.end, length)) for segment in segments if segment.start < length]
    return tuple(kept)


def along(axis: int, start: int, end: int) -> tuple[slice, ...]:
    """Return what selects a range of one axis."""
    return (*(slice(None),) * axis, slice(start, end))
