"""The layout against the published checkpoint: its sizes, and headers of its size in front of sparse data."""

import os
from pathlib import Path

import pytest

from slotstream_core import testing
from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.checkpoint.schema import TensorSpec, draft_specs, text_specs
from slotstream_core.checkpoint.shards import OutputTensor, Shard, plan_shards, write_index, write_json
from slotstream_core.checkpoint.storage import (
    StorageOptions,
    converted_config,
    quantization_block,
    stored_tensors,
)
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_planner import ModelGeometry

# Lengths of the published files: model-00001 to model-00011 together, and mtp.safetensors.
MODEL_FILES_BYTES = 103_770_199_081
DRAFT_FILE_BYTES = 1_470_955_171
VISION_BYTES = 897_862_112  # 333 bf16 tensors of a tower of depth 27, width 1152, inner width 4304
STORAGE = StorageOptions(bits=4, group_size=64)


@pytest.fixture(scope="module")
def document() -> dict[str, object]:
    return testing.config_document({"num_hidden_layers": 48}, widths="published")


def outputs_of(specs: list[TensorSpec]) -> list[tuple[OutputTensor, ...]]:
    return [stored_tensors(spec, STORAGE.of(spec), "BF16") for spec in specs]


def test_the_tensors_of_the_published_model_fill_its_files_but_for_their_headers(document: dict[str, object]) -> None:
    config = Qwen4ExpConfig.from_document(document)
    text = [tensor for module in outputs_of(list(text_specs(config))) for tensor in module]
    headers_bytes = MODEL_FILES_BYTES - VISION_BYTES - sum(tensor.byte_count for tensor in text)
    assert 0 < headers_bytes < 160 * (len(text) + 333)
    draft = [tensor for module in outputs_of(list(draft_specs(config))) for tensor in module]
    header_bytes = DRAFT_FILE_BYTES - sum(tensor.byte_count for tensor in draft)
    assert 0 < header_bytes < 160 * len(draft)


def test_a_checkpoint_of_the_published_size_opens_from_its_headers(document: dict[str, object], tmp_path: Path) -> None:
    config = Qwen4ExpConfig.from_document(document)
    main, draft = list(text_specs(config)), list(draft_specs(config))
    shards = plan_shards(outputs_of(main), 10_000_000_000)
    head = Shard(file_name="mtp.safetensors", tensors=tuple(t for module in outputs_of(draft) for t in module))
    for shard in (*shards, head):
        path = tmp_path / shard.file_name
        path.write_bytes(shard.header())
        os.truncate(path, shard.file_bytes)
    write_index(tmp_path, shards)
    block = quantization_block(STORAGE, [(spec, STORAGE.of(spec)) for spec in (*main, *draft)])
    write_json(tmp_path / "config.json", converted_config(document, block))
    with Checkpoint.open(tmp_path) as checkpoint:
        assert checkpoint.draft
        assert checkpoint.config.num_hidden_layers == 48
    geometry = ModelGeometry.from_checkpoint(tmp_path, compute="bf16")
    assert geometry.record_bytes == 2_764_800
    assert geometry.total_experts == 48 * 512
