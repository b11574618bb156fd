"""Compiled lanes that copy to a device: nothing has arrived, and no staging is used again, before its copy is done."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import numpy as np
import pytest

from slotstream_core.errors import BackendError, ExpertReadError
from slotstream_core.experts.batches import Record
from slotstream_core.experts.reader import ExpertReader, choose_lanes
from slotstream_core.experts.slot_memory import DeviceCopies, HostMemory
from slotstream_core.experts.slots import SlotArrays
from slotstream_core.experts.sources import StoredExperts
from slotstream_core.experts.streamed import StreamedExperts
from slotstream_core.native.binding import library_path
from slotstream_planner.lanes import COPYING_LANES
from tests.core.expert_files import ExpertFile, ScriptedSource, read_batch

pytestmark = pytest.mark.skipif(library_path() is None, reason="installed without a compiler")

COPY = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32, ctypes.c_void_p
)
FINISH = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
STREAM = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint32)


class ScriptedDevice(HostMemory):
    """Copies arrive when their stream is waited for, and say whether what they copied had changed by then."""

    direct = False

    def __init__(self) -> None:
        self.copy_code: Callable[[int], int] = lambda number: 0
        self.finish_code: Callable[[int], int] = lambda number: 0
        self.begun = self.finishes = self.streams = self.overwritten = 0
        self._lock = threading.Lock()
        self._begun: dict[int, list[tuple[int, int, bytes]]] = {}
        self._kept = (COPY(self._copy), FINISH(self._finish), STREAM(self._stream))
        addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in self._kept]
        self.copies = DeviceCopies(copy=addresses[0], finish=addresses[1], stream=addresses[2])

    def _stream(self, place: ctypes._Pointer[ctypes.c_void_p], flags: int) -> int:
        with self._lock:
            self.streams += 1
            place[0] = ctypes.c_void_p(self.streams)
            self._begun[self.streams] = []
        return 0 if flags == 1 else 1

    def _copy(self, target: int, source: int, byte_count: int, direction: int, stream: int) -> int:
        with self._lock:
            self.begun += 1
            code = self.copy_code(self.begun) if direction == 4 else 1
            if not code:
                self._begun[stream].append((target, source, ctypes.string_at(source, byte_count)))
        return code

    def _finish(self, stream: int) -> int:
        with self._lock:
            self.finishes += 1
            code = self.finish_code(self.finishes)
            for target, source, data in self._begun[stream]:
                self.overwritten += ctypes.string_at(source, len(data)) != data
                if not code:
                    ctypes.memmove(target, data, len(data))
            self._begun[stream] = []
        return code


def check_random_records(stored: ExpertFile, device: ScriptedDevice, *, direct: bool, turns: int) -> None:
    """Read some records a turn by compiled lanes, every third turn one ahead, and compare all bytes with the file's."""
    random = np.random.default_rng(3)
    layout = stored.layout("BF16")
    arrays = SlotArrays(layout, 12, device)
    with (
        StoredExperts(layout, direct=direct) as source,
        ExpertReader(source, lane_count=3, ahead_lane_count=2, memory=device, native=True) as reader,
    ):
        assert reader.compiled
        for turn in range(turns):
            ahead = turn % 3 == 2
            keys = random.choice(layout.record_count, 1 if ahead else int(random.integers(1, 13)), replace=False)
            records = [
                Record(*divmod(int(key), layout.expert_count), slot, bool(turn % 2)) for slot, key in enumerate(keys)
            ]
            assert read_batch(reader, arrays, records, ahead=ahead).errors == {}
            for record in records:
                for kind, view in enumerate(arrays.views):
                    assert view[record.slot].tobytes() == stored.bytes_of(layout, record.layer, record.expert, kind)


@pytest.mark.parametrize("direct", [False, True])
def test_random_records_arrive_on_the_device_as_they_lie_on_disk(stored: ExpertFile, direct: bool) -> None:
    device = ScriptedDevice()
    check_random_records(stored, device, direct=direct, turns=60)
    assert device.overwritten == 0
    assert 1 <= device.streams <= 5
    assert device.finishes < device.begun


@pytest.mark.parametrize("when", ["begun", "waited for"])
@pytest.mark.usefixtures("compiled_code_on")
def test_a_copy_that_fails_fails_its_request_and_publishes_nothing(stored: ExpertFile, when: str) -> None:
    device = ScriptedDevice()
    layout = stored.layout("BF16")
    with (
        StoredExperts(layout) as source,
        StreamedExperts(source, slot_count=8, lane_count=2, memory=device) as experts,
    ):
        assert experts.pool.reader.compiled
        if when == "begun":
            device.copy_code = lambda number: 700 if number == 3 else 0
        else:
            device.finish_code = lambda number: 700 if number == 1 else 0
        lease = experts.request(1, [2, 5])
        with pytest.raises(BackendError, match="the CUDA runtime says 700"):
            lease.wait()
        experts.pool.check_integrity()
        assert experts.pool.resident_count < 2
        again = experts.request(1, [2, 5])
        again.wait()
        for expert, slot in zip((2, 5), again.slots, strict=True):
            for kind, view in enumerate(experts.pool.slots.views):
                assert view[slot].tobytes() == stored.bytes_of(layout, 1, expert, kind)
        again.release()
    assert device.overwritten == 0


def test_a_short_read_is_told_as_ever_and_is_not_copied(stored: ExpertFile) -> None:
    device = ScriptedDevice()
    layout = stored.layout("BF16")
    arrays = SlotArrays(layout, 2, device)
    with ScriptedSource(layout) as source, ExpertReader(source, lane_count=1, memory=device, native=True) as reader:
        source.short.add((0, 1))
        batch = read_batch(reader, arrays, [Record(0, 1, 0, True)])
    assert isinstance(batch.errors[0], ExpertReadError)
    assert "the file ends there" in str(batch.errors[0])
    assert device.begun == 0


def test_python_copies_with_few_lanes_and_compiled_ones_with_most_cores(stored: ExpertFile) -> None:
    device = ScriptedDevice()
    with StoredExperts(stored.layout("BF16")) as source, StoredExperts(stored.layout("F32")) as widened:
        assert choose_lanes({}, core_count=16, source=source, memory=device) == 15
        assert choose_lanes({}, core_count=16, source=widened, memory=device) == COPYING_LANES
        off = {"SLOTSTREAM_NATIVE": "0"}
        assert choose_lanes(off, core_count=16, source=source, memory=device) == COPYING_LANES
        assert choose_lanes(off, core_count=16, source=source, memory=HostMemory()) == choose_lanes({}, core_count=16)
        wanted = {**off, "SLOTSTREAM_IO_QUEUE_DEPTH": "9"}
        assert choose_lanes(wanted, core_count=16, source=source, memory=device) == 9
