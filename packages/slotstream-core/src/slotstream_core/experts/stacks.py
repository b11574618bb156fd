"""The arrays a layer's expert computation reads, and the seam between models and experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import mlx.core as mx
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from slotstream_core.experts.compiled_requests import CompiledRun

Slots = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizedStack:
    """One projection of many experts, quantised; the arguments of `mx.gather_qmm` with `transpose=True`.

    Attributes:
        weight: uint32 [places, out, in * bits / 32].
        scales: [places, out, in / group_size] in the backend's compute type.
        biases: As `scales`.
        bits: Bits a value.
        group_size: Inputs that share a scale.
    """

    weight: mx.array
    scales: mx.array
    biases: mx.array
    bits: int
    group_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseStack:
    """One projection of many experts in plain floats: weight [places, out, in] in the backend's compute type."""

    weight: mx.array


Stack = QuantizedStack | DenseStack


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertArrays:
    """The three projections; the first axis of every array is the place a `Lease` names in `slots`.

    The owner may rewrite places no lease holds. Never assign to these arrays, and keep nothing computed from a place
    beyond the lease that covers it.
    """

    gate: Stack
    up: Stack
    down: Stack


class Lease(Protocol):
    """The right to read some places until released."""

    @property
    def slots(self) -> npt.NDArray[np.int32]:
        """Place of each requested expert, in the request's order and shape; known at once, readable after `wait`."""

    def late(self) -> list[int]:
        """Return the places whose records may not be there yet; the others can be read without `wait`."""

    def wait(self) -> None:
        """Return when every record is in place.

        Raises:
            ExpertReadError: A record could not be read. The lease is released; records that arrived stay valid.
            CheckpointDamaged: A record holds scales that are not finite. As above.
        """

    def release(self) -> None:
        """Give the places back. Only after all work that reads them was evaluated; a second call does nothing."""


class SweptExperts(Protocol):
    """Some experts of a layer that is being swept, in place until released."""

    @property
    def experts(self) -> Sequence[int]:
        """Their ids, ascending."""

    @property
    def slots(self) -> npt.NDArray[np.int32]:
        """Place of each."""

    def release(self) -> None:
        """Give the places back. Only after all work that reads them was evaluated; a second call does nothing."""


class Sweep(Protocol):
    """Brings the experts of one layer after the other past a pass of many rows. A context manager."""

    def __enter__(self) -> Self:
        """Borrow what the sweep needs."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give it back, whatever is still under way."""

    def layer(self, layer: int, rows: npt.NDArray[np.integer]) -> Iterator[SweptExperts]:
        """Yield every needed expert of a layer once, in groups. Take layers in order, each to its end.

        Release a group at the latest before asking for the next but one.

        Args:
            layer: The layer.
            rows: [experts], how many rows chose each expert.

        Raises:
            ExpertReadError: A record could not be read.
            CheckpointDamaged: A record holds scales that are not finite.
        """


class Experts(Protocol):
    """Where a model's routed experts come from. Used by one thread."""

    @property
    def group_limit(self) -> int:
        """Most distinct experts one request may name so that two such requests can be held at once."""

    def arrays(self, layer: int) -> ExpertArrays:
        """Return the arrays that the slots of a lease of this layer index.

        Ask again in every pass: they may move, those of all layers at once.
        """

    def places(self, layer: int) -> mx.array | None:
        """Return int32 [experts], the place of every expert, if the whole layer is in place to stay; else None.

        With it a layer needs neither routing readback nor lease: `places[ids]` are the slots. It holds until the pool
        is resized, so ask again in every pass.
        """

    def request(self, layer: int, experts: Sequence[int] | Slots, *, threads: int = 0) -> Lease:
        """Pin what is resident, start reading the rest, and return without waiting for a disk.

        Args:
            layer: The layer.
            experts: Ids, at most `group_limit` distinct ones; equal ones share a place. An array may have any shape.
            threads: Threads of compiled products, by their address, that are idle and may help to read; 0 for none.

        Raises:
            PoolError: An id is out of range, or the request needs more places than are free of other leases.
        """

    def visit(self, layer: int, experts: Sequence[int] | Slots, *, threads: int = 0) -> Lease:
        """As `request`, for work that ends before anything else is asked: what is there may be held for nobody."""

    def open_run(self, top: int) -> CompiledRun | None:
        """Have compiled code make the requests of one row, layer by layer; None where `request` makes each.

        Args:
            top: Experts of each request.
        """

    def open_sweep(self, *, ends_prompt: bool, threads: int = 0) -> Sweep | None:
        """Return a way through all layers for a pass of many rows, or None when `request` serves it as well.

        Args:
            ends_prompt: Whether the next passes will be short ones that follow on this one.
            threads: As for `request`; they are idle whenever a group is asked for.
        """
