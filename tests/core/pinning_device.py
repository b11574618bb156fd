"""A device that fetches from pinned files, and readers of such files."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from slotstream_core.errors import BackendError
from slotstream_core.experts.batches import Record
from slotstream_core.experts.mapped_files import MappedFiles
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.slot_memory import HostPins
from slotstream_core.experts.slots import SlotArrays
from slotstream_core.experts.sources import StoredExperts
from tests.core.expert_files import ExpertFile
from tests.core.native.test_device_lanes import ScriptedDevice

LAYERS, EXPERTS = 6, 40
"""Of a file of some 70 pages."""


class PinningDevice(ScriptedDevice):
    """A device that fetches from what was registered, and says what it copied from there."""

    def __init__(self) -> None:
        super().__init__()
        self.pins: HostPins | None = self
        self.registered: dict[int, int] = {}
        self.once_registered: dict[int, int] = {}
        self.stuck_at: int | None = None
        self.fetched_unpinned = False
        self.refusal_at: int | None = None
        self.lies = False
        self.keeps_pages = False
        self.fetched = 0
        self.copied_by: list[int] = []
        self.unregistered_in_use = False
        self.open_gate = threading.Event()
        self.open_gate.set()
        self.entered = threading.Semaphore(0)

    def register(self, address: int, byte_count: int) -> None:
        assert address % mmap.PAGESIZE == byte_count % mmap.PAGESIZE == 0
        for start, size in self.registered.items():
            assert address + byte_count <= start or start + size <= address
        if len(self.registered) == self.refusal_at:
            raise BackendError("pinning failed: the CUDA runtime says 801")
        self.registered[address] = self.once_registered[address] = byte_count

    def unregister(self, address: int) -> None:
        if address == self.stuck_at:
            raise BackendError("letting pinned memory go failed: the CUDA runtime says 713")
        size = self.registered[address]
        with self._lock:
            begun = [source for copies in self._begun.values() for _, source, _ in copies]
        self.unregistered_in_use |= any(address <= source < address + size for source in begun)
        del self.registered[address]

    def fetch(self, address: int, byte_count: int) -> bytes:
        assert self._is_registered(address, byte_count)
        return b"?" * byte_count if self.lies else ctypes.string_at(address, byte_count)

    def _is_registered(self, address: int, byte_count: int) -> bool:
        pages = range(address // mmap.PAGESIZE, (address + byte_count - 1) // mmap.PAGESIZE + 1)
        spans = list(self.registered.items())
        return all(any(start <= page * mmap.PAGESIZE < start + size for start, size in spans) for page in pages)

    def _finish(self, stream: int) -> int:
        self.entered.release()
        self.open_gate.wait()
        return super()._finish(stream)

    def _copy(self, target: int, source: int, byte_count: int, direction: int, stream: int) -> int:
        self.copied_by.append(threading.get_ident())
        pinned = self._is_registered(source, byte_count)
        self.fetched += pinned * byte_count
        self.fetched_unpinned |= not pinned and any(
            start <= source < start + size for start, size in list(self.once_registered.items())
        )
        if pinned and self.keeps_pages:  # of a file that became shorter, which only the device may look at
            return 0
        return super()._copy(target, source, byte_count, direction, stream)


@contextmanager
def reading(
    stored: ExpertFile, device: PinningDevice, *, pinned_bytes: int = 1 << 40, lanes: int = 3, ahead: int = 2
) -> Iterator[tuple[ExpertReader, SlotArrays]]:
    layout = stored.layout("BF16")
    with (
        StoredExperts(layout) as source,
        ExpertReader(source, lane_count=lanes, ahead_lane_count=ahead, memory=device, native=True) as reader,
    ):
        assert reader.mapped is not None
        reader.mapped.pin(pinned_bytes)
        assert reader.mapped.finished.wait(240)
        yield reader, SlotArrays(layout, 32, device)


def check_slots(stored: ExpertFile, arrays: SlotArrays, records: list[Record]) -> None:
    for record in records:
        for kind, view in enumerate(arrays.views):
            assert view[record.slot].tobytes() == stored.bytes_of(arrays.layout, record.layer, record.expert, kind)


def random_records(random: np.random.Generator, count: int, *, checked: bool) -> list[Record]:
    keys = random.choice(LAYERS * EXPERTS, count, replace=False).tolist()
    return [Record(*divmod(int(key), EXPERTS), slot, checked) for slot, key in enumerate(keys)]


def settled(mapped: MappedFiles, wanted_bytes: int) -> None:
    mapped.pin(wanted_bytes)
    assert mapped.finished.wait(240)
