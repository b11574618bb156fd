"""Slots that the host may not touch: bytes arrive by copies, and prove themselves first."""

import threading
from collections.abc import Iterator

import pytest

from slotstream_core.backend import FloatName
from slotstream_core.errors import BackendError
from slotstream_core.experts import cuda_memory as cuda_module
from slotstream_core.experts.batches import Batch, Record
from slotstream_core.experts.cuda_memory import cuda_memory, prove
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.slot_memory import Bytes, HostMemory
from slotstream_core.experts.slots import SlotArrays
from slotstream_core.experts.sources import StoredExperts
from slotstream_core.experts.streamed import StreamedExperts
from tests.core.expert_files import ExpertFile, expert_file


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExpertFile]:
    with expert_file(tmp_path_factory.mktemp("experts")) as opened:
        yield opened


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
    assert cuda_memory().direct
    assert "libnosuchruntime.so" in caplog.text
