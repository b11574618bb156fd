"""The expert reader and layout: complete reads, honest failures, conversions, and a shutdown that ends."""

from __future__ import annotations

import dataclasses
import errno
import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from slotstream_core.errors import (
    CheckpointDamaged,
    CheckpointMissing,
    ExpertReadError,
    PoolError,
    SettingError,
    UnsupportedModel,
)
from slotstream_core.experts import reader as reader_module
from slotstream_core.experts.batches import Batch, Record
from slotstream_core.experts.layout import ExpertLayout, PieceKind, Quantization
from slotstream_core.experts.reader import ExpertReader, choose_lanes
from slotstream_core.experts.resident import ResidentExperts
from slotstream_core.experts.slots import SlotArrays, is_finite
from slotstream_core.experts.sources import StoredExperts, prefers_direct
from slotstream_core.experts.stacks import DenseStack, Experts, QuantizedStack, Stack
from slotstream_core.experts.streamed import StreamedExperts
from tests.core.expert_files import (
    HIDDEN,
    INTERMEDIATE,
    ExpertFile,
    Header,
    Place,
    ScriptedSource,
    expert_file,
    have_ended,
    thread_numbers,
)

pytestmark = pytest.mark.usefixtures("lanes")


def read(reader: ExpertReader, arrays: SlotArrays, records: Sequence[Record]) -> Batch:
    batch = reader.prepare(records, arrays)
    reader.submit(batch)
    batch.done.wait()
    return batch


def descriptors() -> list[Path]:
    """List what is open, without what only waits for the garbage collector."""
    gc.collect()
    return sorted(Path("/dev/fd").iterdir())


def test_the_layout_is_read_from_headers(stored: ExpertFile) -> None:
    layout = stored.layout()
    assert [kind.name for kind in layout.kinds] == [
        f"{projection}.{part}" for projection in ("gate", "up", "down") for part in ("weight", "scales", "biases")
    ]
    assert layout.record_count == 12
    packed, scales = HIDDEN * INTERMEDIATE // 2, HIDDEN * INTERMEDIATE // 32
    assert layout.record_bytes == 3 * (packed + 2 * 2 * scales)
    assert layout.slot_bytes == 3 * (packed + 2 * 4 * scales)
    assert layout.quantization["down"] == Quantization(bits=4, group_size=32)
    last = layout.extents(1, 5)
    assert sum(extent.byte_count for extent in last) == layout.record_bytes
    assert last[-1].offset + last[-1].byte_count == stored.path.stat().st_size


def test_a_record_of_the_published_model_is_as_large_as_published() -> None:
    directory = published_directory()
    layout = ExpertLayout.from_checkpoint(directory, ["m"], float_name="BF16")
    assert layout.record_bytes == layout.slot_bytes == 2_764_800
    assert layout.quantization["gate"] == Quantization(bits=4, group_size=64)


def published_directory() -> ExpertFile:
    directory = ExpertFile(path=Path("model.safetensors"), fd=0)
    for projection, rows, columns in (("gate", 640, 2560), ("up", 640, 2560), ("down", 2560, 640)):
        for part, dtype, width in (("weight", "U32", columns // 8), *((p, "BF16", columns // 64) for p in PAIR)):
            name = f"m.{projection}_proj.{part}"
            directory.tensors[name] = Header(dtype, (512, rows, width), directory.path)
            directory.places[name] = Place(0, 0, 512 * rows * width * (4 if dtype == "U32" else 2))
    return directory


PAIR = ("scales", "biases")


def test_a_missing_tensor_is_named() -> None:
    directory = published_directory()
    del directory.tensors["m.up_proj.biases"]
    with pytest.raises(CheckpointDamaged, match=r"m\.up_proj\.biases is missing"):
        ExpertLayout.from_checkpoint(directory, ["m"], float_name="F32")


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "error"),
    [
        ("m.gate_proj.weight", "I64", (512, 640, 320), "m.gate_proj.weight is stored as I64; expected U32"),
        ("m.gate_proj.scales", "U32", (512, 640, 40), "m.gate_proj.scales is stored as U32; expected F32 or BF16"),
        ("m.gate_proj.scales", "BF16", (512, 640), r"shape \[512, 640\]; expected \[experts, out, in\]"),
        ("m.gate_proj.scales", "BF16", (512, 640, 0), "expected"),
        ("m.gate_proj.scales", "BF16", (512, 640, 41), r"holds 26,214,400 bytes and .* needs 26,869,760"),
    ],
)
def test_an_unusable_tensor_is_refused_by_name(name: str, dtype: str, shape: tuple[int, ...], error: str) -> None:
    directory = published_directory()
    directory.tensors[name] = Header(dtype, shape, directory.path)
    with pytest.raises((CheckpointDamaged, UnsupportedModel), match=error):
        ExpertLayout.from_checkpoint(directory, ["m"], float_name="F32")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("m.up_proj.weight", (512, 640, 300)),
        ("m.down_proj.scales", (512, 2560, 20)),
        ("m.up_proj.biases", (511, 640, 40)),
    ],
)
def test_shapes_that_contradict_each_other_are_refused(name: str, shape: tuple[int, ...]) -> None:
    directory = published_directory()
    old = directory.tensors[name]
    directory.tensors[name] = Header(old.dtype, shape, old.path)
    directory.places[name] = Place(0, 0, shape[0] * shape[1] * shape[2] * (4 if old.dtype == "U32" else 2))
    with pytest.raises(CheckpointDamaged, match=r"contradict each other|disagree on the number of experts"):
        ExpertLayout.from_checkpoint(directory, ["m"], float_name="F32")


def test_layers_of_different_quantisation_are_refused(tmp_path: Path) -> None:
    with expert_file(tmp_path, layers=1, bits=4) as four, expert_file(tmp_path, layers=1, bits=8) as eight:
        both = ExpertFile(path=four.path, fd=four.fd, tensors=dict(four.tensors), places=dict(four.places))
        for name in eight.tensors:
            renamed = name.replace("layers.0", "layers.1")
            both.tensors[renamed], both.places[renamed] = eight.tensors[name], eight.places[name]
        modules = ["layers.0.mlp.switch_mlp", "layers.1.mlp.switch_mlp"]
        with pytest.raises(UnsupportedModel, match=r"layers\.1\.mlp\.switch_mlp .*differ from those of layers\.0"):
            ExpertLayout.from_checkpoint(both, modules, float_name="F32")


def test_no_expert_layer_at_all_is_refused(stored: ExpertFile) -> None:
    with pytest.raises(UnsupportedModel, match="nothing to stream"):
        ExpertLayout.from_checkpoint(stored, [], float_name="F32")


def test_neighbours_on_disk_are_read_together(stored: ExpertFile) -> None:
    source = ScriptedSource(stored.layout())
    arrays = SlotArrays(source.layout, 6)
    with ExpertReader(source, lane_count=1) as reader:
        batch = read(reader, arrays, [Record(0, expert, 5 - expert, False) for expert in range(6)])
    assert batch.errors == {}
    assert source.read_count == 1  # the whole layer lies in one run
    assert batch.bytes_read == 6 * source.layout.record_bytes
    for expert in range(6):
        assert arrays.views[0][5 - expert].tobytes() == stored.bytes_of(source.layout, 0, expert, 0)


@pytest.mark.parametrize("most_bytes", [1, 700, 5000])
def test_a_read_that_returns_little_is_continued(stored: ExpertFile, most_bytes: int) -> None:
    source = ScriptedSource(stored.layout())
    source.most_bytes = most_bytes
    arrays = SlotArrays(source.layout, 2)
    with ExpertReader(source, lane_count=2) as reader:
        assert read(reader, arrays, [Record(1, 2, 0, True), Record(1, 3, 1, True)]).errors == {}
    whole = SlotArrays(source.layout, 2)
    with ExpertReader(StoredExperts(source.layout), lane_count=2) as reader:
        assert read(reader, whole, [Record(1, 2, 0, True), Record(1, 3, 1, True)]).errors == {}
    for mine, other in zip(arrays.views, whole.views, strict=True):
        assert mine.tobytes() == other.tobytes()


def test_a_file_cut_after_opening_is_reported_with_its_numbers(tmp_path: Path) -> None:
    with expert_file(tmp_path) as stored:
        layout = stored.layout()
        os.truncate(stored.path, layout.extents(1, 5)[-1].offset)
        arrays = SlotArrays(layout, 1)
        with ExpertReader(StoredExperts(layout), lane_count=1) as reader:
            error = read(reader, arrays, [Record(1, 5, 0, True)]).errors[0]
            neighbours = read(reader, SlotArrays(layout, 2), [Record(1, 4, 0, True), Record(1, 5, 1, True)])
    assert isinstance(error, ExpertReadError)
    assert str(stored.path) in str(error)
    assert "expert 5 of layer 1" in str(neighbours.errors[1])
    assert "wanted 128 bytes" in str(error)
    assert "got 0 (the file ends there)" in str(error)


@contextmanager
def direct(stored: ExpertFile) -> Iterator[StoredExperts]:
    with StoredExperts(stored.layout(), direct=True) as source:
        if source.alignment == 1:
            pytest.skip("the file system of the temporary directory has no direct reads")
        yield source


@pytest.mark.parametrize("bits", [4, None])
def test_direct_reads_put_the_same_bytes_in_slots(tmp_path: Path, bits: Literal[4] | None) -> None:
    with expert_file(tmp_path, bits=bits) as stored, direct(stored) as source:
        one, other = (SlotArrays(source.layout, 12) for _ in range(2))
        records = [Record(number % 2, number // 2, 11 - number, True) for number in range(12)]
        for chosen, arrays in ((source, one), (StoredExperts(source.layout), other)):
            for part in (records[:5], records[5:6], records[6:]):
                with ExpertReader(chosen, lane_count=3) as reader:
                    assert read(reader, arrays, part).errors == {}
        for mine, theirs in zip(one.views, other.views, strict=True):
            assert mine.any()
            assert mine.tobytes() == theirs.tobytes()


def test_a_direct_read_beyond_the_end_is_reported_with_its_numbers(tmp_path: Path) -> None:
    with expert_file(tmp_path) as stored, direct(stored) as source:
        layout = source.layout
        os.truncate(stored.path, layout.extents(1, 5)[-1].offset + 100)
        with ExpertReader(source, lane_count=1) as reader:
            error = read(reader, SlotArrays(layout, 1), [Record(1, 5, 0, True)]).errors[0]
    assert "wanted 128 bytes" in str(error)
    assert "got 100 (the file ends there)" in str(error)


def test_direct_reads_leave_no_descriptor_open(stored: ExpertFile) -> None:
    before = descriptors()
    with StoredExperts(stored.layout(), direct=True) as source:
        ResidentExperts(source, lane_count=2)
        source.close()
    assert descriptors() == before


@pytest.mark.parametrize("refused", ["open", "preadv"])
def test_a_file_system_without_direct_reads_is_read_in_the_ordinary_way(
    stored: ExpertFile, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    before = descriptors()
    allowed = os.open

    def refuse(*arguments: Any) -> int:
        if refused == "open" and not arguments[1] & os.O_DIRECT:
            return allowed(*arguments)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, refused, refuse)
    source = StoredExperts(stored.layout(), direct=True)
    monkeypatch.undo()
    assert source.alignment == 1
    assert len(descriptors()) == len(before) + 1
    with StreamedExperts(source, slot_count=2, lane_count=1) as experts:
        experts.request(0, [0, 5]).wait()
    source.close()
    source.close()
    assert descriptors() == before


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    with expert_file(tmp_path) as stored:
        layout = stored.layout()
        stored.path.unlink()
        with pytest.raises(CheckpointMissing, match=rf"{stored.path} cannot be opened .*No such file"):
            StoredExperts(layout)


def test_direct_reads_are_preferred_when_the_cache_could_not_hold_the_experts(stored: ExpertFile) -> None:
    layout = stored.layout()
    total_bytes = 12 * layout.record_bytes
    assert not prefers_direct(layout, available_bytes=total_bytes)
    assert prefers_direct(layout, available_bytes=total_bytes - 1)


def test_a_closed_descriptor_is_a_read_error_and_no_traceback(tmp_path: Path) -> None:
    with expert_file(tmp_path) as stored:
        layout = stored.layout()
        source = StoredExperts(layout)
    arrays = SlotArrays(layout, 1)
    source.close()
    with ExpertReader(source, lane_count=1) as reader:
        error = read(reader, arrays, [Record(0, 0, 0, True)]).errors[0]
    assert "Bad file descriptor" in str(error)


def test_a_source_that_breaks_its_contract_cannot_hang_a_request(stored: ExpertFile) -> None:
    class Broken(StoredExperts):
        native_read = None

        def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
            raise RuntimeError("no such thing")

    arrays = SlotArrays(stored.layout(), 1)
    with ExpertReader(Broken(stored.layout()), lane_count=1) as reader:
        error = read(reader, arrays, [Record(0, 0, 0, True)]).errors[0]
    assert "RuntimeError: no such thing" in str(error)


def test_close_ends_every_lane_and_refuses_new_reads(stored: ExpertFile) -> None:
    before = thread_numbers()
    reader = ExpertReader(StoredExperts(stored.layout()), lane_count=5)
    started = thread_numbers() - before
    assert len(started) == 5
    reader.close()
    reader.close()
    assert have_ended(started)
    with pytest.raises(ExpertReadError, match="closed"):
        reader.prepare([Record(0, 0, 0, True)], SlotArrays(stored.layout(), 1))


def test_close_does_not_wait_for_a_disk_that_never_answers(stored: ExpertFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "CLOSE_WAIT_S", 0.0)
    source = ScriptedSource(stored.layout())
    source.open_gate.clear()
    before = thread_numbers()
    reader = ExpertReader(source, lane_count=1)
    started = thread_numbers() - before
    arrays = SlotArrays(source.layout, 2)
    stuck, queued = (reader.prepare([Record(0, index, index, True)], arrays) for index in range(2))
    reader.submit(stuck)
    reader.submit(queued)
    source.entered.acquire()
    reader.close()
    assert queued.done.is_set()
    assert "cancelled" in str(queued.errors[0])
    assert not stuck.done.is_set()
    source.open_gate.set()
    stuck.done.wait()
    assert have_ended(started)
    source.close()


@pytest.mark.usefixtures("compiled_code_on")
def test_streaming_leaves_no_descriptor_open(stored: ExpertFile) -> None:
    before = descriptors()
    for _ in range(3):
        with (
            StoredExperts(stored.layout()) as source,
            StreamedExperts(source, slot_count=4, lane_count=2) as experts,
        ):
            experts.request(0, [0, 1]).wait()
    assert len(descriptors()) <= len(before)  # what a stuck lane of another test held may be closed meanwhile


def test_a_failed_construction_leaves_no_lane_running(stored: ExpertFile) -> None:
    before = thread_numbers()
    with pytest.raises(PoolError):
        StreamedExperts(StoredExperts(stored.layout()), slot_count=-1, lane_count=3)
    assert have_ended(thread_numbers() - before)


def test_lanes_come_from_the_environment_or_the_cores() -> None:
    assert choose_lanes({}, core_count=2) == 8
    assert choose_lanes({}, core_count=64) == 32
    assert choose_lanes({"SLOTSTREAM_IO_QUEUE_DEPTH": "128"}, core_count=2) == 128


@pytest.mark.parametrize("text", ["", "0", "129", "-3", "4.0", "many", "9" * 5000, "٣"])
def test_an_unusable_lane_count_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="SLOTSTREAM_IO_QUEUE_DEPTH"):
        choose_lanes({"SLOTSTREAM_IO_QUEUE_DEPTH": text}, core_count=2)


SPECIAL = np.array([0.0, -0.0, 1.0, -1.5, 3.1415927, 1e-40, 6e-8, 65504.0, 1.00390625, 1.01171875], np.float32)


@pytest.mark.parametrize(("disk", "slot"), [("BF16", "F32"), ("F16", "F32"), ("F16", "BF16"), ("F32", "BF16")])
def test_conversion_equals_that_of_mlx(disk: Literal["BF16", "F16", "F32"], slot: Literal["F32", "BF16"]) -> None:
    names = {"BF16": mx.bfloat16, "F16": mx.float16, "F32": mx.float32}
    random = np.random.default_rng(3).standard_normal(1014).astype(np.float32)
    source = mx.array(np.concatenate([SPECIAL, random])).astype(names[disk])
    wanted = memoryview(source.astype(names[slot])).cast("B")  # type: ignore[arg-type]
    kind = PieceKind(projection="up", part="weight", shape=(16, 64), disk_dtype=disk, slot_dtype=slot)
    layout = ExpertLayout(
        kinds=tuple(dataclasses.replace(kind, projection=projection) for projection in ("gate", "up", "down")),
        layers=(),
        expert_count=1,
        quantization=dict.fromkeys(("gate", "up", "down")),
    )
    slots = SlotArrays(layout, 3)
    slots.write(1, 2, np.frombuffer(memoryview(source).cast("B"), np.uint8))  # type: ignore[arg-type]
    assert slots.views[1][2].tobytes() == wanted.tobytes()
    assert (
        slots.arrays.up.weight[2].astype(mx.float32).tolist()
        == source.astype(names[slot]).astype(mx.float32).reshape(16, 64).tolist()
    )
    assert not slots.views[1][:2].any()
    assert not slots.views[2].any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_found_in_every_type(value: float) -> None:
    good = np.full(8, 3e4, np.float32)
    bad = good.copy()
    bad[5] = value
    for values, finite in ((good, True), (bad, False)):
        assert is_finite("F32", values.view(np.uint8)) is finite
        assert is_finite("F16", values.astype(np.float16).view(np.uint8)) is finite
        assert is_finite("BF16", (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)) is finite


def mlp(experts: Experts, layer: int, wanted: list[int], x: mx.array) -> npt.NDArray[np.float32]:
    """Compute one expert MLP a row: x [N, 1, hidden] and one expert id a row, to float32 [N, 1, hidden]."""
    lease = experts.request(layer, wanted)
    lease.wait()
    arrays, index = experts.arrays(layer), mx.array(lease.slots)

    def project(values: mx.array, stack: Stack) -> mx.array:
        if isinstance(stack, DenseStack):
            return mx.gather_mm(values, stack.weight.swapaxes(-1, -2), rhs_indices=index)
        assert isinstance(stack, QuantizedStack)
        return mx.gather_qmm(
            values,
            stack.weight,
            stack.scales,
            stack.biases,
            rhs_indices=index,
            group_size=stack.group_size,
            bits=stack.bits,
        )

    gate = project(x, arrays.gate)
    result = project(gate * mx.sigmoid(gate) * project(x, arrays.up), arrays.down)
    mx.eval(result)
    lease.release()
    return np.array(result)


@pytest.mark.parametrize("bits", [4, 8, None])
def test_streamed_experts_compute_exactly_what_resident_ones_do(tmp_path: Path, bits: Literal[4, 8] | None) -> None:
    random = np.random.default_rng(11)
    with expert_file(tmp_path, bits=bits) as stored:
        source = StoredExperts(stored.layout())
        resident = ResidentExperts(source, lane_count=2)
        assert resident.group_limit == 6
        assert resident.places(1).tolist() == list(range(6))
        for slot_count in (3, 7, 12):
            with StreamedExperts(source, slot_count=slot_count, lane_count=2) as streamed:
                for _ in range(6):
                    layer, wanted = int(random.integers(2)), random.permutation(6)[:3].tolist()
                    x = mx.array(random.standard_normal((3, 1, HIDDEN)).astype(np.float32))
                    one, other = mlp(resident, layer, wanted, x), mlp(streamed, layer, wanted, x)
                    assert one.any()
                    assert one.tobytes() == other.tobytes()


def test_resident_experts_refuse_what_streamed_ones_refuse(stored: ExpertFile) -> None:
    resident = ResidentExperts(StoredExperts(stored.layout()), lane_count=1)
    with pytest.raises(PoolError, match="ids are 0 to 5"):
        resident.request(0, [6])
    with pytest.raises(PoolError, match="layer 2"):
        resident.request(2, [0])


def test_resident_experts_report_a_record_that_cannot_be_read(stored: ExpertFile) -> None:
    source = ScriptedSource(stored.layout())
    source.failing.add((1, 4))
    with pytest.raises(ExpertReadError, match="layer 1"):
        ResidentExperts(source, lane_count=1)
