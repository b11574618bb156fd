"""The kernel that copies to a device, compiled for the host, behind compiled lanes: it brings the right bytes."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from slotstream_core.errors import BackendError
from slotstream_core.experts.batches import Record
from slotstream_core.experts.copy_kernel import MOST_PIECES, SOURCE, Grid, Pieces, compile_copy_kernel
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.slot_memory import DeviceCopies
from slotstream_core.experts.slots import SlotArrays
from slotstream_core.experts.sources import StoredExperts
from slotstream_core.native.binding import library_path
from tests.core.expert_files import ExpertFile, expert_file, read_batch
from tests.core.native.test_device_lanes import ScriptedDevice, check_random_records

COMPILER = shutil.which("g++") or shutil.which("clang++")
KERNEL_HANDLE = 77
MOST_BLOCKS = 8

pytestmark = pytest.mark.skipif(library_path() is None or COMPILER is None, reason="there is no compiler")

LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, Grid, Grid, ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_void_p
)
SHIM = """
#include <cstddef>
#define __device__
#define __global__
struct alignas(16) uint4 { unsigned int x, y, z, w; };
struct alignas(8) uint2 { unsigned int x, y; };
struct place { unsigned int x; };
static thread_local place blockIdx, blockDim, threadIdx, gridDim;
"""
RUN = """
extern "C" void run(const slotstream_pieces* pieces, unsigned int blocks, unsigned int threads) {
  gridDim.x = blocks, blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
    for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) slotstream_copy_pieces(*pieces);
}
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernel as a function of the host: its argument, blocks and threads."""
    folder = tmp_path_factory.mktemp("copies")
    source, library = folder / "copies.cpp", folder / "copies.so"
    source.write_text(SHIM + SOURCE + RUN)
    aligned = ("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")  # as a device asks for
    command = [str(COMPILER), "-std=c++17", "-O1", *aligned, "-shared", "-fPIC", "-o", str(library), str(source)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))


class LaunchingDevice(ScriptedDevice):
    """A device whose copies are made by the kernel when its stream is waited for; single copies are refused."""

    def __init__(self, kernel: ctypes.CDLL) -> None:
        super().__init__()
        self.kernel = kernel
        self.launches: list[Pieces] = []
        self.grids: list[int] = []
        self.launch_code = 0
        self._waiting: dict[int, list[tuple[Pieces, int, int]]] = {}
        self._guard = threading.Lock()
        self._launching = LAUNCH(self._launch)
        self.copy_code = lambda number: 1
        plain = self.copies
        assert plain is not None
        launch = ctypes.cast(self._launching, ctypes.c_void_p).value or 0
        self.copies = DeviceCopies(
            copy=plain.copy, finish=plain.finish, stream=plain.stream, launch=launch, kernel=KERNEL_HANDLE
        )

    def _launch(
        self,
        handle: int,
        blocks: Grid,
        threads: Grid,
        arguments: ctypes._Pointer[ctypes.c_void_p],
        shared: int,
        on: int,
    ) -> int:
        pieces = Pieces.from_buffer_copy(ctypes.string_at(arguments[0], ctypes.sizeof(Pieces)))
        right = handle == KERNEL_HANDLE and not shared and (blocks.y, blocks.z, threads.y, threads.z) == (1, 1, 1, 1)
        with self._guard:
            self.launches.append(pieces)
            self.grids.append(blocks.x)
            self._waiting.setdefault(on, []).append((pieces, blocks.x, threads.x))
        return self.launch_code if right else 1

    def _finish(self, stream: int) -> int:
        with self._guard:
            waiting = self._waiting.pop(stream, [])
        for pieces, blocks, threads in waiting:
            self.kernel.run(ctypes.byref(pieces), blocks, threads)
        return super()._finish(stream)


@pytest.mark.parametrize("direct", [False, True])
def test_the_kernel_brings_random_records_as_they_lie_on_disk(
    stored: ExpertFile, kernel: ctypes.CDLL, direct: bool
) -> None:
    device = LaunchingDevice(kernel)
    check_random_records(stored, device, direct=direct, turns=40)
    assert device.begun == 0
    assert device.streams <= 2
    assert any(launch.count > 1 for launch in device.launches)


def test_a_launch_that_the_device_refuses_fails_its_records(stored: ExpertFile, kernel: ctypes.CDLL) -> None:
    device = LaunchingDevice(kernel)
    device.launch_code = 700
    layout = stored.layout("BF16")
    with StoredExperts(layout) as source, ExpertReader(source, lane_count=1, memory=device, native=True) as reader:
        batch = read_batch(reader, SlotArrays(layout, 1, device), [Record(0, 2, 0, True)])
    assert isinstance(batch.errors[0], BackendError)
    assert "the CUDA runtime says 700" in str(batch.errors[0])


class Pins:
    """Every memory of the host is a device's, too."""

    def register(self, address: int, byte_count: int) -> None:
        pass

    def unregister(self, address: int) -> None:
        pass

    def fetch(self, address: int, byte_count: int) -> bytes:
        return ctypes.string_at(address, byte_count)


@pytest.mark.parametrize("gap", [0, 8, 20, 7])
def test_records_of_a_pinned_file_arrive_wherever_it_holds_them(tmp_path: Path, kernel: ctypes.CDLL, gap: int) -> None:
    device = LaunchingDevice(kernel)
    device.pins = Pins()
    with expert_file(tmp_path, experts=60, gap=gap) as stored:
        layout = stored.layout("BF16")
        with StoredExperts(layout) as source, ExpertReader(source, lane_count=1, memory=device, native=True) as reader:
            assert reader.mapped is not None
            reader.mapped.pin(1 << 40)
            assert reader.mapped.finished.wait(240)
            arrays = SlotArrays(layout, 60, device)
            for count in (60, 3):
                records = [Record(1, expert, expert, False) for expert in range(count)]
                assert read_batch(reader, arrays, records).errors == {}
                for record in records:
                    for kind, view in enumerate(arrays.views):
                        assert view[record.slot].tobytes() == stored.bytes_of(layout, 1, record.expert, kind)
    assert len(device.grids) == 5 + 1  # 540 pieces and 27
    assert {launch.origin[0] % 16 for launch in device.launches} >= {gap % 16}
    for launch in device.launches:  # as the runtime's own proof and `fetch` list pieces
        listed = Pieces()
        for piece in range(launch.count):
            listed.add(launch.origin[piece], launch.target[piece], launch.bytes[piece])
        assert listed.ends[: listed.count] == launch.ends[: launch.count]


def test_a_launch_has_as_many_blocks_as_its_bytes_need_and_no_more_than_keep_the_bus_full(
    tmp_path: Path, kernel: ctypes.CDLL
) -> None:
    device = LaunchingDevice(kernel)
    with expert_file(tmp_path, experts=40, bits=None) as stored:
        layout = stored.layout("BF16")
        with StoredExperts(layout) as source, ExpertReader(source, lane_count=1, memory=device, native=True) as reader:
            arrays = SlotArrays(layout, 40, device)
            for count in (1, 40):
                read_batch(reader, arrays, [Record(1, expert, expert, False) for expert in range(count)])
    for launch, blocks in zip(device.launches, device.grids, strict=True):
        rows = launch.ends[launch.count - 1]
        assert blocks == min(MOST_BLOCKS, -(-rows // 32))
    assert max(device.grids) == MOST_BLOCKS
    assert min(device.grids) == 1


class GuardedPages:
    """Memory with pages before and behind that nobody may touch; `first` is its address."""

    def __init__(self, pages: int) -> None:
        size = (pages + 2) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, size)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.first, self.byte_count = start + mmap.PAGESIZE, pages * mmap.PAGESIZE
        libc = ctypes.CDLL(None, use_errno=True)
        for page in (start, start + size - mmap.PAGESIZE):
            if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), 0):
                raise OSError(ctypes.get_errno(), "mprotect")

    @property
    def values(self) -> npt.NDArray[np.uint8]:
        block = (ctypes.c_uint8 * self.byte_count).from_address(self.first)
        return np.frombuffer(memoryview(block), dtype=np.uint8)


LENGTHS = (*range(1, 50), 112, 127, 128, 129, 496, 511, 512, 513, 527, 1024, 2047, 4095)


def alignments() -> list[tuple[int, int, int]]:
    """Every way in which source and target lie, with lengths that come round: bytes, and both modulo 16."""
    ways = itertools.product(range(16), range(16), range(5))
    return [(LENGTHS[number * 7 % len(LENGTHS)], *way[:2]) for number, way in enumerate(ways)]


@pytest.mark.parametrize(("blocks", "at_the_end"), [(1, False), (8, True)])
def test_the_kernel_copies_every_byte_of_every_piece_and_no_other(
    kernel: ctypes.CDLL, blocks: int, at_the_end: bool
) -> None:
    """Pieces of all alignments lie side by side, the first or last of them where readable memory begins or ends."""
    random = np.random.default_rng(blocks)
    ways = alignments()
    random.shuffle(ways)
    assert {way[1:] for way in ways} == set(itertools.product(range(16), range(16)))
    for start in range(0, len(ways), MOST_PIECES):
        some = ways[start : start + MOST_PIECES]
        source, target = GuardedPages(40), GuardedPages(40)
        source.values[:] = random.integers(1, 256, source.byte_count, dtype=np.uint8)
        wanted = np.zeros(target.byte_count, np.uint8)
        pieces, origin, place = Pieces(), 0, 0
        total = [0, 0]
        for length, *lies in some:
            for side in (0, 1):
                total[side] += (lies[side] - total[side]) % 16 + length
        if at_the_end:  # whole words, so that the last byte of the last piece can be the last of the page
            origin, place = (source.byte_count - total[0]) // 16 * 16, (target.byte_count - total[1]) // 16 * 16
        for length, source_lies, target_lies in some:
            origin += (source_lies - origin) % 16
            place += (target_lies - place) % 16
            pieces.add(source.first + origin, target.first + place, length)
            wanted[place : place + length] = source.values[origin : origin + length]
            origin, place = origin + length, place + length
        kernel.run(ctypes.byref(pieces), blocks, 64)
        assert np.array_equal(target.values, wanted)


@pytest.mark.parametrize("length", [1, 5, 16, 17, 100, 512, 4096 - 16])
def test_the_kernel_reads_nothing_beyond_the_page_that_holds_a_piece(kernel: ctypes.CDLL, length: int) -> None:
    source, target = GuardedPages(1), GuardedPages(1)
    source.values[:] = np.random.default_rng(length).integers(1, 256, source.byte_count, dtype=np.uint8)
    last = source.byte_count - length
    for origin, place in itertools.product({0, last}, {0, last}):
        target.values[:] = 0
        pieces = Pieces()
        pieces.add(source.first + origin, target.first + place, length)
        kernel.run(ctypes.byref(pieces), 2, 32)
        assert np.array_equal(target.values[place:][:length], source.values[origin:][:length])
        assert not target.values[:place].any()
        assert not target.values[place + length :].any()


def test_the_argument_has_the_size_that_the_library_and_the_kernel_give_it(kernel: ctypes.CDLL, tmp_path: Path) -> None:
    header = Path(__file__).parents[3] / "packages/slotstream-core/csrc/copies.h"
    program = tmp_path / "size.cpp"
    program.write_text(
        f'#include <stdint.h>\n#include "{header}"\n{SHIM}{SOURCE}\n'
        'static_assert(sizeof(ss_pieces) == sizeof(slotstream_pieces) && SS_COPIES == 128, "");\n'
        'extern "C" int size() { return sizeof(ss_pieces); }\n'
    )
    library = tmp_path / "size.so"
    command = [str(COMPILER), "-std=c++17", "-shared", "-fPIC", "-o", str(library), str(program)]
    subprocess.run(command, check=True)
    assert ctypes.CDLL(str(library)).size() == ctypes.sizeof(Pieces)


def test_without_the_cuda_compiler_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotstream_core.cuda_compiler.COMPILER", "libnosuchcompiler.so")

    class Runtime:
        def cudaDeviceGetAttribute(self, place: object, attribute: int, device: int) -> int:  # noqa: N802
            return 0

    with pytest.raises(BackendError, match="libnosuchcompiler"):
        compile_copy_kernel(Runtime(), device=0)  # type: ignore[arg-type]
