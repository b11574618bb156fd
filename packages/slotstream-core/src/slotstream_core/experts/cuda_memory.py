"""Slots on an NVIDIA GPU: pinned host buffers, and copies that the device makes beside its computation.

A host view of an MLX array makes its memory managed: written through the view, pages move to the host and back at a
small part of the bus's speed. So the memory is advised to stay on the device, the host never touches it, and bytes
arrive in the same addresses by a kernel that fetches them from pinned memory (compiled lanes), or by the CUDA runtime's
asynchronous copy on a stream of each thread's own. The runtime is the one MLX brought into the process.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import weakref

import mlx.core as mx
import numpy as np

from slotstream_core.errors import BackendError
from slotstream_core.experts.copy_kernel import ROW_BYTES, Grid, Pieces, compile_copy_kernel
from slotstream_core.experts.slot_memory import Bytes, DeviceCopies, HostMemory, HostPins, SlotMemory

logger = logging.getLogger("slotstream.experts")

RUNTIME = "libcudart.so.13"
COPY_DEFAULT = 4  # cudaMemcpyDefault: the runtime sees from the addresses which way it goes
STREAM_NON_BLOCKING = 1
ADVISE_PREFERRED_LOCATION = 3
REGISTER_FOR_READING = 0x01 | 0x02 | 0x08  # cudaHostRegisterPortable, Mapped, ReadOnly
LOCATION_DEVICE = 1
PROOF_BYTES = 1 << 16


class _Location(ctypes.Structure):
    """`cudaMemLocation`."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class CudaMemory:
    """`SlotMemory` on one device.

    Args:
        device: Its number, as the CUDA runtime counts.

    Raises (constructor):
        BackendError: The CUDA runtime is not in the process, or refuses.
    """

    direct = False
    apart = True

    def __init__(self, *, device: int = 0) -> None:
        try:
            self._runtime = ctypes.CDLL(RUNTIME)
            # Beginning a copy takes a few microseconds; letting go of Python's lock for it costs more with many lanes.
            self._quick = ctypes.PyDLL(RUNTIME)
        except OSError as error:
            raise BackendError(f"the CUDA runtime {RUNTIME} cannot be loaded ({error})") from error
        self._device = _Location(LOCATION_DEVICE, device)
        self._streams = threading.local()
        for library in (self._runtime, self._quick):
            library.cudaMemcpyAsync.argtypes = [
                ctypes.c_void_p,
                ctypes.c_void_p,
                ctypes.c_size_t,
                ctypes.c_int,
                ctypes.c_void_p,
            ]
        self._runtime.cudaStreamSynchronize.argtypes = [ctypes.c_void_p]
        self._runtime.cudaLaunchKernel.argtypes = [
            ctypes.c_void_p,
            Grid,
            Grid,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_void_p,
        ]
        self._kernel = 0

    @property
    def copies(self) -> DeviceCopies | None:
        """See `SlotMemory.copies`."""
        return DeviceCopies(
            copy=function_address(self._runtime.cudaMemcpyAsync),
            finish=function_address(self._runtime.cudaStreamSynchronize),
            stream=function_address(self._runtime.cudaStreamCreateWithFlags),
            launch=function_address(self._runtime.cudaLaunchKernel) if self._kernel else 0,
            kernel=self._kernel,
            event=function_address(self._runtime.cudaEventCreateWithFlags),
            record=function_address(self._runtime.cudaEventRecord),
            follow=function_address(self._runtime.cudaStreamWaitEvent),
        )

    @property
    def pins(self) -> HostPins | None:
        """See `SlotMemory.pins`: the kernel fetches."""
        return self if self._kernel else None

    def use_kernel(self) -> None:
        """Have compiled lanes copy with one kernel instead of piece by piece, once it has copied bytes rightly here.

        Raises:
            BackendError: It cannot be compiled, or does not.
        """
        kernel = compile_copy_kernel(self._runtime, device=self._device.id)
        for shift in (0, 16, 8, 4, 1):
            self._prove_kernel(kernel, shift)
        self._kernel = kernel

    def _prove_kernel(self, kernel: int, shift: int) -> None:
        """Copy two pieces by the kernel, the second from ``shift`` bytes past a row, and back by the runtime."""
        data, first = self.buffer(PROOF_BYTES), 20 * ROW_BYTES + shift
        data[:] = np.random.default_rng(shift).integers(0, 256, PROOF_BYTES, dtype=np.uint8)
        found = self._through_kernel(kernel, data.ctypes.data, [first, PROOF_BYTES - first])
        if not np.array_equal(np.roll(data, -first), found):
            raise BackendError("the copy kernel does not copy what it is given")

    def _through_kernel(self, kernel: int, address: int, lengths: list[int]) -> Bytes:
        """Return adjoining pieces of the host's memory in the other order, fetched by the kernel."""
        total = sum(lengths)
        found, place = self.buffer(total), ctypes.c_void_p()
        found[:] = 0
        self._require(self._runtime.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(total)), "taking memory")
        base = place.value or 0
        pieces = Pieces()
        done = 0
        for length in lengths:
            pieces.add(address + done, base + total - done - length, length)
            done += length
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(pieces))
        try:
            self._require(
                self._runtime.cudaLaunchKernel(kernel, Grid(3, 1, 1), Grid(64, 1, 1), arguments, 0, self._stream()),
                "copying by a kernel",
            )
            self._require(
                self._runtime.cudaMemcpyAsync(found.ctypes.data, base, total, COPY_DEFAULT, self._stream()),
                "copying from the device",
            )
            self.finish()
        finally:
            self._runtime.cudaFree(place)
        return found

    def register(self, address: int, byte_count: int) -> None:
        """See `HostPins.register`."""
        place = ctypes.c_void_p(address)
        self._require(
            self._runtime.cudaHostRegister(place, ctypes.c_size_t(byte_count), ctypes.c_uint(REGISTER_FOR_READING)),
            f"pinning {byte_count:,} bytes of a mapped file",
        )
        seen = ctypes.c_void_p()
        code = self._runtime.cudaHostGetDevicePointer(ctypes.byref(seen), place, ctypes.c_uint(0))
        if code or seen.value != address:
            self.unregister(address)
            self._require(code, "asking where the device finds pinned memory")
            raise BackendError("the device finds pinned memory at another address than the host")

    def unregister(self, address: int) -> None:
        """See `HostPins.unregister`."""
        self._require(self._runtime.cudaHostUnregister(ctypes.c_void_p(address)), "letting pinned memory go")

    def fetch(self, address: int, byte_count: int) -> bytes:
        """See `HostPins.fetch`."""
        return self._through_kernel(self._kernel, address, [byte_count]).tobytes()

    def buffer(self, byte_count: int) -> Bytes:
        """See `SlotMemory.buffer`: pinned, so that the device fetches from it at the bus's speed."""
        address = ctypes.c_void_p()
        self._require(
            self._runtime.cudaMallocHost(ctypes.byref(address), ctypes.c_size_t(byte_count)),
            f"pinning {byte_count:,} bytes of host memory",
        )
        block = (ctypes.c_uint8 * byte_count).from_address(address.value or 0)
        weakref.finalize(block, self._runtime.cudaFreeHost, address).atexit = False
        return np.frombuffer(memoryview(block), dtype=np.uint8)

    def keep(self, memory: memoryview) -> None:
        """See `SlotMemory.keep`: the pages go to the device and stay there."""
        address = ctypes.c_void_p(np.frombuffer(memory, dtype=np.uint8).ctypes.data)
        size = ctypes.c_size_t(memory.nbytes)
        self._require(
            self._runtime.cudaMemAdvise(address, size, ctypes.c_int(ADVISE_PREFERRED_LOCATION), self._device),
            f"keeping {memory.nbytes:,} bytes on the device",
        )
        self._require(
            self._runtime.cudaMemPrefetchAsync(address, size, self._device, ctypes.c_uint(0), self._stream()),
            f"moving {memory.nbytes:,} bytes to the device",
        )
        self.finish()

    def put(self, place: Bytes, data: Bytes) -> None:
        """See `SlotMemory.put`."""
        if place.nbytes != data.nbytes:
            raise BackendError(f"{data.nbytes:,} bytes do not fill a place of {place.nbytes:,}")
        self._require(
            self._quick.cudaMemcpyAsync(place.ctypes.data, data.ctypes.data, data.nbytes, COPY_DEFAULT, self._stream()),
            f"copying {data.nbytes:,} bytes to the device",
        )

    def finish(self) -> None:
        """See `SlotMemory.finish`."""
        self._require(self._runtime.cudaStreamSynchronize(self._stream()), "copying to the device")

    def _stream(self) -> ctypes.c_void_p:
        stream: ctypes.c_void_p | None = getattr(self._streams, "stream", None)
        if stream is None:
            stream = ctypes.c_void_p()
            self._require(
                self._runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), STREAM_NON_BLOCKING), "making a stream"
            )
            self._streams.stream = stream
        return stream

    def _require(self, code: int, action: str) -> None:
        if code:
            raise BackendError(f"{action} failed: the CUDA runtime says {code}; see its list of error codes")


def function_address(function: object) -> int:
    """Where a function of a library loaded by `ctypes` lies."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def cuda_memory() -> SlotMemory:
    """Return memory on the device once it has proven itself, else memory written through host views, with a warning."""
    try:
        memory = CudaMemory()
        prove(memory)
    except BackendError as error:
        logger.warning("expert slots are written through host views, which is slow: %s", error)
        return HostMemory(apart=True)
    try:
        memory.use_kernel()
    except (BackendError, AttributeError) as error:  # a runtime without one of the functions
        logger.warning("records are copied to the device piece by piece, which is slower: %s", error)
    return memory


def prove(memory: SlotMemory) -> None:
    """Check that bytes put into an array's memory are what a computation reads, twice, as slots are refilled.

    Raises:
        BackendError: They are not.
    """
    array = mx.zeros((PROOF_BYTES,), dtype=mx.uint8)
    mx.eval(array)
    window = memoryview(array).cast("B")  # type: ignore[arg-type]
    memory.keep(window)
    place = np.frombuffer(window, dtype=np.uint8)
    data = memory.buffer(PROOF_BYTES)
    for seed in (1, 2):
        data[:] = np.random.default_rng(seed).integers(0, 256, PROOF_BYTES, dtype=np.uint8)
        memory.put(place, data)
        memory.finish()
        weights = mx.arange(PROOF_BYTES, dtype=mx.uint32) % 251
        found = int(np.array((array.astype(mx.uint32) * weights).sum()))
        wanted = int((data.astype(np.uint64) * (np.arange(PROOF_BYTES) % 251)).sum()) % 2**32
        if found != wanted:
            raise BackendError("a computation does not see the bytes that were copied into an array")
