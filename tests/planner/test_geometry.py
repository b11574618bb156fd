"""Geometry comes from headers, in the published sizes, and damaged checkpoints are refused by name."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from slotstream_planner import GeometryError, ModelGeometry, published_geometry
from slotstream_planner.charges import (
    draft_bytes,
    fixed_cost,
    floor_slots,
    lookahead_bytes,
    minimum_target_bytes,
    vision_bytes,
)
from tests.planner.checkpoints import CONFIG, Tensors, small_tensors, write_checkpoint, write_shard


def test_the_published_constants_come_out_of_the_published_geometry() -> None:
    geometry = published_geometry()
    assert fixed_cost(geometry).total_bytes == 5_300_000_000
    assert floor_slots(geometry) == 640
    assert minimum_target_bytes(geometry) == 8_100_000_000
    assert geometry.expert_set_bytes == 67_947_724_800
    assert geometry.kv_bytes_per_token == 27_648
    assert geometry.recurrent_bytes == 113_246_208
    assert geometry.prefill_bytes_per_token == 1_300_000
    assert draft_bytes(geometry, streamed=False) == 1_600_000_000
    assert draft_bytes(geometry, streamed=True) == 389_017_600
    assert lookahead_bytes(geometry) == 409 * 2**20
    assert vision_bytes(geometry) == 900_000_000


def test_the_published_download_is_as_large_as_its_files() -> None:
    files_bytes = 103_770_199_081 + 1_470_955_171 + 37_540_708
    assert published_geometry().disk_bytes == pytest.approx(files_bytes, rel=1e-6)


def test_a_checkpoint_of_the_published_widths_gives_the_published_record(tmp_path: Path) -> None:
    config = copy.deepcopy(CONFIG)
    config["text_config"] |= {
        "num_hidden_layers": 1,
        "layer_types": ["full_attention"],
        "num_experts": 512,
        "hidden_size": 2560,
        "moe_intermediate_size": 640,
    }
    tensors: Tensors = {}
    for matrix, rows, columns in (("gate_proj", 640, 2560), ("up_proj", 640, 2560), ("down_proj", 2560, 640)):
        name = f"language_model.model.layers.0.mlp.switch_mlp.{matrix}"
        tensors[f"{name}.weight"] = ("U32", (512, rows, columns // 8))
        tensors[f"{name}.scales"] = ("BF16", (512, rows, columns // 64))
        tensors[f"{name}.biases"] = ("BF16", (512, rows, columns // 64))
    directory = write_checkpoint(tmp_path, tensors, config)
    assert ModelGeometry.from_checkpoint(directory, compute="bf16").record_bytes == 2_764_800
    assert ModelGeometry.from_checkpoint(directory, compute="float32").slot_bytes == 3_072_000


def test_sizes_are_summed_by_role(tmp_path: Path) -> None:
    geometry = ModelGeometry.from_checkpoint(write_checkpoint(tmp_path, small_tensors(draft=True)), compute="bf16")
    record = 3 * (64 * 256 // 2 + 2 * 2 * 64 * 256 // 64)
    assert geometry.record_bytes == geometry.slot_bytes == record
    assert geometry.layers == 8
    assert geometry.full_attention_layers == 2
    assert geometry.ngram_bytes == 1000 * (64 // 2 + 2 * 2 * 2)
    assert geometry.draft_bytes == 64 * record + 64 * 256 * 2
    assert geometry.shared_bytes == 8192 * 256 * 2 + 8 * 64 * 256 * 2
    assert geometry.kv_bytes_per_token == 2 * (2 * 2 * 64 + 64) * 2


def test_float32_compute_widens_slots_but_not_records(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path)
    narrow = ModelGeometry.from_checkpoint(directory, compute="bf16")
    wide = ModelGeometry.from_checkpoint(directory, compute="float32")
    assert wide.record_bytes == narrow.record_bytes
    assert wide.slot_bytes - narrow.slot_bytes == 3 * 2 * 2 * 64 * 256 // 64
    assert wide.shared_resident_bytes == 2 * narrow.shared_resident_bytes
    assert wide.kv_bytes_per_token == 2 * narrow.kv_bytes_per_token
    assert wide.recurrent_bytes == narrow.recurrent_bytes


def test_an_unquantised_checkpoint_is_read_too(tmp_path: Path) -> None:
    geometry = ModelGeometry.from_checkpoint(write_checkpoint(tmp_path, small_tensors(quantised=False)), compute="bf16")
    assert geometry.record_bytes == 3 * 64 * 256 * 2


def test_no_tensor_data_is_read(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path)
    shard = directory / "model-00001.safetensors"
    header_bytes = int.from_bytes(shard.read_bytes()[:8], "little")
    noise = b"\xff" * (shard.stat().st_size - 8 - header_bytes)
    before = ModelGeometry.from_checkpoint(directory, compute="bf16")
    with shard.open("r+b") as stream:
        stream.seek(8 + header_bytes)
        stream.write(noise)
    assert ModelGeometry.from_checkpoint(directory, compute="bf16") == before


def test_a_checkpoint_may_ask_for_a_share_of_its_experts(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path)
    (directory / "slotstream.json").write_text(json.dumps({"name": "demo", "default_pool_fraction": 0.25}))
    geometry = ModelGeometry.from_checkpoint(directory, compute="float32")
    assert (geometry.name, geometry.default_pool_fraction) == ("demo", 0.25)


@pytest.mark.parametrize("fraction", [0, -1, 1.5, "half", True])
def test_an_impossible_share_is_refused(tmp_path: Path, fraction: object) -> None:
    directory = write_checkpoint(tmp_path)
    (directory / "slotstream.json").write_text(json.dumps({"default_pool_fraction": fraction}))
    with pytest.raises(GeometryError, match="default_pool_fraction"):
        ModelGeometry.from_checkpoint(directory, compute="bf16")


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(GeometryError, match="nowhere is not a directory"):
        ModelGeometry.from_checkpoint(tmp_path / "nowhere", compute="bf16")


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, config={**CONFIG, "model_type": "llama"})
    with pytest.raises(GeometryError, match="'llama'.*qwen4_exp"):
        ModelGeometry.from_checkpoint(directory, compute="bf16")


def test_a_truncated_shard_is_refused_with_its_byte_counts(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path)
    shard = directory / "model-00001.safetensors"
    with shard.open("r+b") as stream:
        stream.truncate(shard.stat().st_size - 1000)
    with pytest.raises(GeometryError, match=r"model-00001\.safetensors is truncated.*shard_0\.biases ends at byte"):
        ModelGeometry.from_checkpoint(directory, compute="bf16")


@pytest.mark.parametrize("content", [b"", b"\x05", b"\xff" * 8, (4).to_bytes(8, "little") + b"{no}"])
def test_a_file_that_is_not_safetensors_is_refused(tmp_path: Path, content: bytes) -> None:
    directory = write_checkpoint(tmp_path)
    (directory / "model-00001.safetensors").write_bytes(content)
    with pytest.raises(GeometryError, match="download or convert it again"):
        ModelGeometry.from_checkpoint(directory, compute="bf16")


def test_an_index_that_names_a_missing_shard_is_refused(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path)
    (directory / "model-00001.safetensors").unlink()
    with pytest.raises(GeometryError, match=r"names model-00001\.safetensors, which is not in"):
        ModelGeometry.from_checkpoint(directory, compute="bf16")


def test_a_layer_without_experts_is_refused(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, small_tensors(layers=7))
    with pytest.raises(GeometryError, match="8 layers but 7"):
        ModelGeometry.from_checkpoint(directory, compute="bf16")


def test_experts_of_two_sizes_are_refused(tmp_path: Path) -> None:
    tensors = small_tensors()
    tensors["language_model.model.layers.0.mlp.switch_mlp.up_proj.scales"] = ("F32", (64, 64, 4))
    with pytest.raises(GeometryError, match="differ in size between layers"):
        ModelGeometry.from_checkpoint(write_checkpoint(tmp_path, tensors), compute="bf16")


def test_tensors_that_disagree_with_the_configuration_are_refused(tmp_path: Path) -> None:
    config = copy.deepcopy(CONFIG)
    config["text_config"]["num_experts"] = 32
    with pytest.raises(GeometryError, match="first dimension is 32 experts"):
        ModelGeometry.from_checkpoint(write_checkpoint(tmp_path, config=config), compute="bf16")


@pytest.mark.parametrize("value", [None, 0, -4, 1.5, "many", 2**60])
def test_a_configuration_value_that_is_no_count_is_named(tmp_path: Path, value: object) -> None:
    config = copy.deepcopy(CONFIG)
    config["text_config"]["hidden_size"] = value
    with pytest.raises(GeometryError, match="hidden_size"):
        ModelGeometry.from_checkpoint(write_checkpoint(tmp_path, config=config), compute="bf16")


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path)
    write_shard(directory / "mtp.safetensors", {"language_model.model.embed_tokens.weight": ("BF16", (8192, 256))})
    with pytest.raises(GeometryError, match="is in both"):
        ModelGeometry.from_checkpoint(directory, compute="bf16")


def test_geometry_that_overflows_is_refused() -> None:
    geometry = published_geometry()
    with pytest.raises(GeometryError, match="damaged"):
        ModelGeometry(**{**vars(geometry), "experts": 2**40, "record_bytes": 2**40})
