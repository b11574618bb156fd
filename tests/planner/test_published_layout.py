"""The built-in geometry of the published model agrees with the names and shapes of its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.checkpoint.schema import draft_specs, text_specs
from slotstream_core.checkpoint.storage import StorageOptions, stored_tensors
from slotstream_core.checkpoint.synthesis import PUBLISHED, config_document
from slotstream_planner import ModelGeometry, published_geometry
from slotstream_planner.charges import draft_bytes, fixed_cost, minimum_target_bytes
from slotstream_planner.geometry import Compute
from tests.planner.checkpoints import Tensors, write_shard


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with every tensor header of the published text model, in front of holes."""
    kinds = ["full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(48)]
    document = config_document({**PUBLISHED, "num_hidden_layers": 48, "layer_types": kinds}, widths="tiny")
    config, storage = Qwen4ExpConfig.from_document(document), StorageOptions(bits=4, group_size=64)
    tensors: Tensors = {
        tensor.name: (tensor.dtype, tuple(tensor.shape))
        for spec in (*text_specs(config), *draft_specs(config))
        for tensor in stored_tensors(spec, storage.of(spec), "BF16")
    }
    directory = tmp_path_factory.mktemp("published")
    (directory / "config.json").write_text(json.dumps(document))
    write_shard(directory / "model.safetensors", tensors)
    return directory


@pytest.mark.parametrize("compute", ["bf16", "float32"])
def test_counts_and_sizes_agree(layout: Path, compute: Compute) -> None:
    read, built_in = ModelGeometry.from_checkpoint(layout, compute=compute), published_geometry(compute=compute)
    for name in (
        "layers",
        "full_attention_layers",
        "experts",
        "experts_per_token",
        "record_bytes",
        "slot_bytes",
        "ngram_bytes",
        "vocabulary",
        "context_limit",
        "hidden",
        "kv_bytes_per_token",
        "recurrent_bytes",
        "prefill_bytes_per_token",
    ):
        assert getattr(read, name) == getattr(built_in, name), name
    assert read.shared_bytes == pytest.approx(built_in.shared_bytes, rel=0.02)
    assert read.shared_resident_bytes == pytest.approx(built_in.shared_resident_bytes, rel=0.02)
    assert read.draft_resident_bytes == pytest.approx(built_in.draft_resident_bytes, rel=0.002)


def test_the_documented_charges_come_out_of_the_headers_alone(layout: Path) -> None:
    geometry = ModelGeometry.from_checkpoint(layout, compute="bf16")
    assert fixed_cost(geometry).total_bytes == 5_300_000_000
    assert draft_bytes(geometry, streamed=False) == 1_600_000_000
    assert minimum_target_bytes(geometry) == 8_100_000_000
