"""How bytes get into the memory of slots: written by the host where they lie, or copied to a device."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

LARGE_PAGE_BYTES = 1 << 21
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25  # of <sys/mman.h>


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceCopies:
    """Addresses of functions with the signatures of the CUDA runtime's, for lanes that are not Python's.

    Attributes:
        copy: As `cudaMemcpyAsync`.
        finish: As `cudaStreamSynchronize`.
        stream: As `cudaStreamCreateWithFlags`.
        launch: As `cudaLaunchKernel`, where a kernel copies; else 0.
        kernel: What it launches, see `slotstream_core.experts.copy_kernel`; else 0.
        event: As `cudaEventCreateWithFlags`, where a stream can wait for another one's copies; else 0, and so below.
        record: As `cudaEventRecord`.
        follow: As `cudaStreamWaitEvent`.
    """

    copy: int
    finish: int
    stream: int
    launch: int = 0
    kernel: int = 0
    event: int = 0
    record: int = 0
    follow: int = 0


class HostPins(Protocol):
    """Makes memory of the host that is in use already known to a device, which then fetches from it. Any thread."""

    def register(self, address: int, byte_count: int) -> None:
        """Pin whole pages that are only read, until `unregister`.

        Raises:
            BackendError: The driver refuses.
        """

    def unregister(self, address: int) -> None:
        """Undo a `register` of this address; nothing may be fetching from there.

        Raises:
            BackendError: The driver refuses.
        """

    def fetch(self, address: int, byte_count: int) -> bytes:
        """Return what the device finds in registered memory, fetched as records are.

        Raises:
            BackendError: It cannot.
        """


class SlotMemory(Protocol):
    """Where slots lie.  `put` and `finish` are called by reader lanes, several at once."""

    @property
    def direct(self) -> bool:
        """Whether the host may read from disk straight into slots."""

    @property
    def apart(self) -> bool:
        """Whether buffers lie outside the memory that a plan divides: in the host's, beside a device's own."""

    @property
    def copies(self) -> DeviceCopies | None:
        """What `put` and `finish` call, where nothing else belongs to them."""

    @property
    def pins(self) -> HostPins | None:
        """What lets the device fetch from files in memory; None where it cannot."""

    def buffer(self, byte_count: int) -> Bytes:
        """Return host memory that lanes read into, uint8 [byte_count], kept for as long as this object."""

    def keep(self, memory: memoryview) -> None:
        """Prepare the memory of slots, which is in use already; its contents stay."""

    def put(self, place: Bytes, data: Bytes) -> None:
        """Begin to copy ``data`` to ``place``, a part of memory given to `keep`, of the same length.

        Raises:
            BackendError: The device refuses.
        """

    def finish(self) -> None:
        """Return when every copy begun by this thread is complete.

        Raises:
            BackendError: The device failed to make one.
        """


class HostMemory:
    """Slots in memory that the host computes with or shares: written in place.

    Args:
        apart: See `SlotMemory.apart`.
    """

    direct = True
    apart = False
    copies: DeviceCopies | None = None
    pins: HostPins | None = None

    def __init__(self, *, apart: bool = False) -> None:
        self.apart = apart

    def buffer(self, byte_count: int) -> Bytes:
        """See `SlotMemory.buffer`. Untouched memory costs nothing.

        Where it is as large as one, it consists of large pages and begins with one: a disk brings each run of bytes to
        as many places as there are pages, and on a virtual machine every one of them costs processor time.
        """
        if byte_count < LARGE_PAGE_BYTES:
            return np.empty(byte_count, dtype=np.uint8)
        whole = -(-byte_count // LARGE_PAGE_BYTES) * LARGE_PAGE_BYTES
        block = np.empty(whole + LARGE_PAGE_BYTES, dtype=np.uint8)
        first = -block.ctypes.data % LARGE_PAGE_BYTES
        use_large_pages(block[first : first + whole].data)
        return block[first : first + byte_count]

    def keep(self, memory: memoryview) -> None:
        """See `SlotMemory.keep`: asks for large pages."""
        use_large_pages(memory)

    def put(self, place: Bytes, data: Bytes) -> None:
        """See `SlotMemory.put`: copies at once."""
        place[:] = data

    def finish(self) -> None:
        """See `SlotMemory.finish`: there is nothing to wait for."""


def use_large_pages(memory: memoryview) -> None:
    """Ask Linux to back memory with 2 MiB pages, which makes filling and reading it faster.

    What is in use already is moved, and its contents stay. Where the system cannot (other systems, kernels before 6.1,
    memory of a GPU driver), nothing happens. What does not fill such a page at either end keeps small ones.
    """
    if sys.platform != "linux":
        return
    address = np.frombuffer(memory, dtype=np.uint8).ctypes.data
    start = -(-address // LARGE_PAGE_BYTES) * LARGE_PAGE_BYTES
    byte_count = (address + memory.nbytes - start) // LARGE_PAGE_BYTES * LARGE_PAGE_BYTES
    if byte_count <= 0:
        return
    madvise = ctypes.CDLL(None).madvise
    for advice in (MADV_HUGEPAGE, MADV_COLLAPSE):
        madvise(ctypes.c_void_p(start), ctypes.c_size_t(byte_count), advice)
