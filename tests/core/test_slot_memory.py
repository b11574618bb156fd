"""Slots that the host may not touch: bytes arrive by copies, and prove themselves first."""

import ctypes
import threading
from typing import Any

import pytest

from slotstream_core.backend import FloatName
from slotstream_core.errors import BackendError
from slotstream_core.experts import cuda_memory as cuda_module
from slotstream_core.experts.batches import Batch, Record
from slotstream_core.experts.cuda_memory import CudaMemory, cuda_memory, prove
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.slot_memory import (
    LARGE_PAGE_BYTES,
    Bytes,
    DeviceCopies,
    HostMemory,
    use_large_pages,
)
from slotstream_core.experts.slots import SlotArrays
from slotstream_core.experts.sources import StoredExperts
from slotstream_core.experts.streamed import StreamedExperts
from tests.core.expert_files import ExpertFile


def read(reader: ExpertReader, arrays: SlotArrays, records: list[Record]) -> Batch:
    batch = reader.prepare(records, arrays)
    reader.submit(batch)
    batch.done.wait()
    return batch


class StagedMemory(HostMemory):
    """Slots that, like a device's, the host may not touch: copies arrive only when they are waited for."""

    direct = False

    def __init__(self) -> None:
        self._begun = threading.local()

    def put(self, place: Bytes, data: Bytes) -> None:
        self._begun.copies = [*getattr(self._begun, "copies", []), (place, data)]

    def finish(self) -> None:
        for place, data in getattr(self._begun, "copies", []):
            place[:] = data
        self._begun.copies = []


COPY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
FINISH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
STREAM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint)


class CopyingMemory(StagedMemory):
    """The same with functions in the CUDA runtime's manner, as compiled lanes call them."""

    def __init__(self, *, refusal: int = 0) -> None:
        super().__init__()
        self.refusal = refusal
        self._streams: list[list[tuple[int, int, int]]] = []
        self._functions = (COPY(self._copy), FINISH(self._finish), STREAM(self._make_stream))
        copy, finish, stream = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in self._functions)
        self.copies = DeviceCopies(copy=copy, finish=finish, stream=stream)

    @property
    def stream_count(self) -> int:
        return len(self._streams)

    def _make_stream(self, place: Any, flags: int) -> int:
        self._streams.append([])
        place[0] = len(self._streams)
        return 0

    def _copy(self, target: int, source: int, byte_count: int, direction: int, stream: int) -> int:
        self._streams[stream - 1].append((target, source, byte_count))
        return self.refusal

    def _finish(self, stream: int) -> int:
        for target, source, byte_count in self._streams[stream - 1]:
            ctypes.memmove(target, source, byte_count)
        self._streams[stream - 1].clear()
        return 0


@pytest.mark.parametrize("direct", [False, True])
def test_compiled_lanes_copy_to_a_device_on_a_stream_each(stored: ExpertFile, direct: bool) -> None:
    layout = stored.layout("BF16")
    arrays = []
    memory = CopyingMemory()
    for used in (HostMemory(), memory):
        source = StoredExperts(layout, direct=direct)
        with ExpertReader(source, lane_count=2, memory=used, native=True) as reader:
            if not reader.compiled:
                pytest.skip("installed without a compiler")
            arrays.append(SlotArrays(layout, 6, used))
            for expert in range(6):
                assert not read(reader, arrays[-1], [Record(1, expert, 5 - expert, True)]).errors
    assert 1 <= memory.stream_count <= 2
    for mine, other in zip(arrays[0].views, arrays[1].views, strict=True):
        assert mine.tobytes() == other.tobytes()


def test_a_copy_the_device_refuses_fails_its_record(stored: ExpertFile) -> None:
    memory = CopyingMemory(refusal=700)
    layout = stored.layout("BF16")
    with ExpertReader(StoredExperts(layout), lane_count=1, memory=memory, native=True) as reader:
        if not reader.compiled:
            pytest.skip("installed without a compiler")
        error = read(reader, SlotArrays(layout, 1, memory), [Record(0, 2, 0, True)]).errors[0]
    assert isinstance(error, BackendError)
    assert "the CUDA runtime says 700" in str(error)


def test_python_copies_where_pieces_change_on_the_way_to_a_device(stored: ExpertFile) -> None:
    memory = CopyingMemory()
    with ExpertReader(StoredExperts(stored.layout("F32")), lane_count=1, memory=memory, native=True) as reader:
        assert not reader.compiled


@pytest.mark.parametrize("float_name", ["F32", "BF16"])
@pytest.mark.parametrize("direct", [False, True])
def test_slots_that_only_copies_reach_hold_the_same_bytes(
    stored: ExpertFile, float_name: FloatName, direct: bool
) -> None:
    records = [Record(1, expert, expert, True) for expert in range(4)]
    layout = stored.layout(float_name)
    arrays = []
    for memory in (HostMemory(), StagedMemory()):
        source = StoredExperts(layout, direct=direct)
        with ExpertReader(source, lane_count=2, memory=memory) as reader:
            arrays.append(SlotArrays(layout, 4, memory))
            assert not read(reader, arrays[-1], records).errors
    for mine, other in zip(arrays[0].views, arrays[1].views, strict=True):
        assert mine.tobytes() == other.tobytes()


@pytest.mark.parametrize("byte_count", [LARGE_PAGE_BYTES, 3 * LARGE_PAGE_BYTES - 4096, 5 * LARGE_PAGE_BYTES + 1])
def test_what_lanes_read_into_begins_with_a_large_page(byte_count: int) -> None:
    buffer = HostMemory().buffer(byte_count)
    assert buffer.nbytes == byte_count
    assert buffer.ctypes.data % LARGE_PAGE_BYTES == 0
    buffer[:] = 7
    assert set(buffer[:: LARGE_PAGE_BYTES // 2].tolist()) == {7}


def test_a_buffer_smaller_than_a_large_page_takes_no_more_than_it_needs() -> None:
    buffer = HostMemory().buffer(5000)
    assert buffer.nbytes == 5000
    assert buffer.base is None


@pytest.mark.parametrize("byte_count", [1, LARGE_PAGE_BYTES // 2, 3 * LARGE_PAGE_BYTES + 17])
def test_memory_keeps_its_contents_when_it_moves_to_large_pages(byte_count: int) -> None:
    memory = bytearray(bytes(range(251)) * (byte_count // 251 + 1))
    before = bytes(memory)
    use_large_pages(memoryview(memory))
    assert memory == before


def test_growing_keeps_what_copies_brought(stored: ExpertFile) -> None:
    with StreamedExperts(StoredExperts(stored.layout()), slot_count=2, lane_count=1, memory=StagedMemory()) as experts:
        lease = experts.request(0, [1, 3])
        lease.wait()
        before = [view[lease.slots].tobytes() for view in experts.pool.slots.views]
        lease.release()
        experts.resize(4)
        assert [view[lease.slots].tobytes() for view in experts.pool.slots.views] == before


def test_memory_must_prove_that_computations_see_what_it_copies() -> None:
    class Lossy(HostMemory):
        def put(self, place: Bytes, data: Bytes) -> None:
            place[:] = data
            place[7] ^= 1

    prove(HostMemory())
    prove(StagedMemory())
    with pytest.raises(BackendError, match="does not see the bytes"):
        prove(Lossy())


def test_without_a_cuda_runtime_slots_are_written_in_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cuda_module, "RUNTIME", "libnosuchruntime.so")
    memory = cuda_memory()
    assert memory.direct
    assert memory.apart
    assert "libnosuchruntime.so" in caplog.text


class PinningRuntime:
    """The functions of the CUDA runtime that pin memory; the device finds it `shift` bytes further on."""

    def __init__(self, *, code: int = 0, shift: int = 0) -> None:
        self.code = code
        self.shift = shift
        self.pinned: dict[int, tuple[int, int]] = {}

    def cudaHostRegister(self, place: Any, size: Any, flags: Any) -> int:  # noqa: N802
        if not self.code:
            self.pinned[place.value] = (size.value, flags.value)
        return self.code

    def cudaHostGetDevicePointer(self, found: Any, place: Any, flags: Any) -> int:  # noqa: N802
        found._obj.value = place.value + self.shift
        return 0

    def cudaHostUnregister(self, place: Any) -> int:  # noqa: N802
        return 0 if self.pinned.pop(place.value, None) else 1


def test_files_are_pinned_for_reading_only_and_let_go() -> None:
    memory = CudaMemory.__new__(CudaMemory)
    memory._kernel = 0
    assert memory.pins is None  # without the kernel nothing fetches from there
    memory._kernel = 1
    assert memory.pins is memory
    runtime = memory._runtime = PinningRuntime()
    memory.register(4096, 8192)
    assert runtime.pinned == {4096: (8192, 0x0B)}  # portable, mapped, read-only
    memory.unregister(4096)
    assert runtime.pinned == {}
    with pytest.raises(BackendError, match="the CUDA runtime says 1"):
        memory.unregister(4096)


@pytest.mark.parametrize(
    ("code", "shift", "said"), [(801, 0, "pinning 8,192 bytes.* says 801"), (0, 64, "another address")]
)
def test_memory_that_the_driver_does_not_pin_as_it_should_is_not_kept(code: int, shift: int, said: str) -> None:
    memory = CudaMemory.__new__(CudaMemory)
    runtime = memory._runtime = PinningRuntime(code=code, shift=shift)  # type: ignore[assignment]
    with pytest.raises(BackendError, match=said):
        memory.register(4096, 8192)
    assert runtime.pinned == {}


def test_pieces_made_of_whole_blocks_begin_on_one_in_every_slot_that_the_host_writes(
    stored: ExpertFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotstream_core.experts.slots.DIRECT_ALIGNMENT", 256)
    layout = stored.layout()
    arrays = SlotArrays(layout, 3)
    whole = [kind.slot_bytes % 256 == 0 for kind in layout.kinds]
    assert any(whole)
    for kind, aligned, address, array in zip(layout.kinds, whole, arrays.addresses, arrays.by_kind, strict=True):
        assert array.shape == (3, *kind.shape)
        assert not aligned or address % 256 == 0
    arrays.grow(5)
    assert all(address % 256 == 0 for aligned, address in zip(whole, arrays.addresses, strict=True) if aligned)
