"""Opening checkpoints: what a good one gives, and one sentence for every way of being bad."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from slotstream_core import testing
from slotstream_core.checkpoint.headers import DTYPE_BYTES
from slotstream_core.checkpoint.quantization import ModuleQuantization
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.errors import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointMissing,
    UnsupportedModel,
)

EXPERTS = "language_model.model.layers.0.mlp.switch_mlp.gate_proj"
SHARD = "model-00001-of-00001.safetensors"


@pytest.fixture
def quantised(tmp_path: Path) -> Path:
    return testing.write_tiny_model(tmp_path / "model", draft=True)


def rewrite_header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    change(header)
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + raw[8 + length :])


def edit_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    document = json.loads(path.read_text())
    for name, value in changes.items():
        document["text_config"][name] = value
    path.write_text(json.dumps(document))


def test_a_quantised_checkpoint_opens_with_its_settings_and_reads_its_tensors(quantised: Path) -> None:
    with Checkpoint.open(quantised) as checkpoint:
        assert checkpoint.draft
        assert checkpoint.config.layer_types[3] == "full_attention"
        assert checkpoint.module_quantization(EXPERTS) == ModuleQuantization(bits=4, group_size=64)
        assert checkpoint.read(f"{EXPERTS}.weight").shape == (16, 32, 8)
        scales = checkpoint.read(f"{EXPERTS}.scales", mx.float32)
        assert scales.dtype == mx.float32
        assert bool((checkpoint.read_rows(f"{EXPERTS}.scales", 3, 5, mx.float32) == scales[3:5]).all())


def test_an_extent_points_at_the_bytes_of_its_tensor(quantised: Path) -> None:
    with Checkpoint.open(quantised) as checkpoint:
        extent = checkpoint.extent(f"{EXPERTS}.weight")
        raw = os.pread(extent.fd, extent.byte_count, extent.offset)
        read = np.array(checkpoint.read(f"{EXPERTS}.weight"))
    assert raw == read.tobytes()


def test_an_unquantised_checkpoint_reads_back_exactly_what_was_drawn(tmp_path: Path) -> None:
    testing.write_tiny_model(tmp_path / "a", seed=3, bits=None)
    testing.write_tiny_model(tmp_path / "b", seed=3, bits=None)
    assert (tmp_path / "a" / SHARD).read_bytes() == (tmp_path / "b" / SHARD).read_bytes()
    with Checkpoint.open(tmp_path / "a") as checkpoint:
        assert checkpoint.module_quantization(EXPERTS) is None
        assert checkpoint.read(f"{EXPERTS}.weight").dtype == mx.float32
        assert checkpoint.read("language_model.model.layers.1.ple.ple_embedding.layer_multipliers").dtype == mx.int64


def test_bf16_tensors_keep_their_type_unless_another_is_asked_for(quantised: Path) -> None:
    name = "language_model.model.layers.0.mlp.gate.weight"
    with Checkpoint.open(quantised) as checkpoint:
        stored, wide = checkpoint.read(name), checkpoint.read(name, mx.float32)
    assert stored.dtype == mx.bfloat16
    assert bool((stored.astype(mx.float32) == wide).all())


def test_a_closed_checkpoint_says_so(quantised: Path) -> None:
    checkpoint = Checkpoint.open(quantised)
    checkpoint.close()
    checkpoint.close()
    with pytest.raises(CheckpointError, match="was closed"):
        checkpoint.read(f"{EXPERTS}.weight")


def test_opening_leaves_no_file_open_when_it_fails(quantised: Path) -> None:
    (quantised / "mtp.safetensors").write_bytes(b"123")
    before = len(list(Path("/dev/fd").iterdir()))
    with pytest.raises(CheckpointDamaged, match="3 bytes long"):
        Checkpoint.open(quantised)
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_a_wrong_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissing, match="nowhere is not a directory"):
        Checkpoint.open(tmp_path / "nowhere")
    with pytest.raises(CheckpointMissing, match=r"config\.json cannot be read: No such file"):
        Checkpoint.open(tmp_path)


def test_a_directory_without_weights_is_refused(quantised: Path) -> None:
    for path in [*quantised.glob("*.safetensors"), quantised / "model.safetensors.index.json"]:
        path.unlink()
    with pytest.raises(CheckpointMissing, match=r"holds no \.safetensors file"):
        Checkpoint.open(quantised)


def test_an_unknown_architecture_is_named(quantised: Path) -> None:
    (quantised / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UnsupportedModel, match="model_type is 'llama'"):
        Checkpoint.open(quantised)


@pytest.mark.parametrize("text", ["{", "[]", '{"model_type": "qwen4_exp", "text_config": 3}', "[" * 5000])
def test_a_broken_config_is_refused(quantised: Path, text: str) -> None:
    (quantised / "config.json").write_text(text)
    with pytest.raises(CheckpointDamaged, match=r"config\.json"):
        Checkpoint.open(quantised)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ({"layer_types": ["sliding_attention"] * 4}, "sliding_attention"),
        ({"output_gate_type": "tanh"}, "output_gate_type is 'tanh'"),
        ({"rope_parameters": {"rope_type": "yarn", "mrope_section": [2, 1, 1]}}, "rope_type is 'yarn'"),
    ],
)
def test_a_setting_that_would_change_the_arithmetic_is_refused_by_name(
    quantised: Path, changes: dict[str, object], message: str
) -> None:
    edit_config(quantised, **changes)
    with pytest.raises(UnsupportedModel, match=message):
        Checkpoint.open(quantised)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"num_experts_per_tok": 17}, "num_experts_per_tok exceeds num_experts"),
        ({"num_key_value_heads": 3}, "num_key_value_heads must divide"),
        ({"layer_types": ["linear_attention"]}, "layer_types must list one kind for each of the 4 layers"),
        ({"ple_layer_ids": [4]}, "ple_layer_ids must name linear_attention layers"),
        ({"eos_token_id": 600}, "eos_token_id lies outside the vocabulary"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1"),
        ({"num_hidden_layers": 2**39, "layer_types": None}, "num_hidden_layers is 549755813888"),
        ({"ngram_vocab_size_base": 2**39}, "ngram_vocab_size_base is 549755813888"),
    ],
)
def test_an_impossible_setting_is_named(quantised: Path, changes: dict[str, object], message: str) -> None:
    edit_config(quantised, **changes)
    with pytest.raises(CheckpointDamaged, match=message):
        Checkpoint.open(quantised)


def test_quantisation_modes_this_version_cannot_compute_are_refused(quantised: Path) -> None:
    path = quantised / "config.json"
    document = json.loads(path.read_text())
    for change, message in (
        ({"mode": "mxfp4"}, "mode is 'mxfp4'"),
        ({"bits": 5}, "bits is 5"),
        ({"group_size": 16}, "group_size is 16"),
        ({"extra": "x"}, "unknown setting extra"),
    ):
        path.write_text(json.dumps({**document, "quantization": {**document["quantization"], **change}}))
        with pytest.raises(UnsupportedModel, match=message):
            Checkpoint.open(quantised)


def test_an_index_that_names_a_missing_file_is_refused(quantised: Path) -> None:
    (quantised / SHARD).rename(quantised / "elsewhere.safetensors")
    with pytest.raises(CheckpointMissing, match=f"names {SHARD}, which is not in"):
        Checkpoint.open(quantised)


def test_an_index_that_places_a_tensor_in_the_wrong_file_is_refused(quantised: Path) -> None:
    path = quantised / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["language_model.nothing"] = SHARD
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointDamaged, match=r"places language_model\.nothing in .* but it is in no file"):
        Checkpoint.open(quantised)
    index["weight_map"] = {"x": "../x.safetensors"}
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointDamaged, match="not the name of a file beside it"):
        Checkpoint.open(quantised)


def test_a_truncated_shard_names_file_tensor_and_byte_counts(quantised: Path) -> None:
    shard = quantised / SHARD
    size = shard.stat().st_size
    os.truncate(shard, size - 10)
    with pytest.raises(
        CheckpointDamaged, match=rf"{SHARD} is truncated: \S+ ends at byte {size:,} .*{size - 10:,} bytes"
    ):
        Checkpoint.open(quantised)


def test_trailing_bytes_are_noticed(quantised: Path) -> None:
    with (quantised / SHARD).open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(CheckpointDamaged, match="tensors end at byte"):
        Checkpoint.open(quantised)


def test_a_header_larger_than_its_file_is_refused(quantised: Path) -> None:
    (quantised / SHARD).write_bytes((1000).to_bytes(8, "little") + b"{}")
    with pytest.raises(CheckpointDamaged, match="announces a header of 1,000 bytes and is 10 bytes long"):
        Checkpoint.open(quantised)


def test_overlapping_and_scattered_tensors_are_refused(quantised: Path) -> None:
    def overlap(header: dict[str, Any]) -> None:
        names = [name for name in header if name != "__metadata__"]
        size = header[names[1]]["data_offsets"][1] - header[names[1]]["data_offsets"][0]
        header[names[1]]["data_offsets"] = [4, 4 + size]

    rewrite_header(quantised / SHARD, overlap)
    with pytest.raises(CheckpointDamaged, match=r"inside .*, which ends at byte|belong to no tensor"):
        Checkpoint.open(quantised)


def test_a_tensor_of_the_wrong_shape_or_type_is_refused(quantised: Path) -> None:
    def reshape(header: dict[str, Any]) -> None:
        header[f"{EXPERTS}.weight"]["shape"] = [16, 8, 32]

    rewrite_header(quantised / SHARD, reshape)
    with pytest.raises(CheckpointDamaged, match=r"gate_proj.weight .* has shape \[16, 8, 32\].* need \[16, 32, 8\]"):
        Checkpoint.open(quantised)


def test_packed_words_must_be_unsigned(quantised: Path) -> None:
    def retype(header: dict[str, Any]) -> None:
        header[f"{EXPERTS}.weight"]["dtype"] = "I32"

    rewrite_header(quantised / SHARD, retype)
    with pytest.raises(CheckpointDamaged, match=r"gate_proj\.weight in .* is I32; it should be U32"):
        Checkpoint.open(quantised)


def test_a_missing_tensor_is_named_with_its_shape(quantised: Path) -> None:
    def rename(header: dict[str, Any]) -> None:
        header["language_model.model.layers.0.mlp.gated.weight"] = header.pop(
            "language_model.model.layers.0.mlp.gate.weight"
        )

    rewrite_header(quantised / SHARD, rename)
    (quantised / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointDamaged, match=r"layers\.0\.mlp\.gate\.weight \[16, 64\] is missing"):
        Checkpoint.open(quantised)


def test_an_impossible_shard_number_is_refused_at_once(quantised: Path) -> None:
    store = "language_model.model.layers.1.ple.ple_embedding.ngram_embedding"

    def renumber(header: dict[str, Any]) -> None:
        for part in ("weight", "scales", "biases"):
            header[f"{store}.shard_999999999.{part}"] = header.pop(f"{store}.shard_3.{part}")

    rewrite_header(quantised / SHARD, renumber)
    (quantised / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointDamaged, match=r"shard_3\.weight \[516, 32\] is missing"):
        Checkpoint.open(quantised)


def test_an_unknown_tensor_is_refused_by_name(quantised: Path) -> None:
    def rename(header: dict[str, Any]) -> None:
        name = "language_model.model.layers.1.ple.ple_embedding.layer_multipliers"
        header["language_model.model.layers.1.ple.surprise"] = header.pop(name)

    rewrite_header(quantised / SHARD, rename)
    (quantised / "model.safetensors.index.json").unlink()
    with pytest.raises(UnsupportedModel, match=r"uses the tensor language_model\.model\.layers\.1\.ple\.surprise"):
        Checkpoint.open(quantised)


def test_a_tensor_in_two_files_is_refused(quantised: Path) -> None:
    (quantised / "model.safetensors.index.json").unlink()
    (quantised / "copy.safetensors").write_bytes((quantised / "mtp.safetensors").read_bytes())
    with pytest.raises(CheckpointDamaged, match=r"is in both copy\.safetensors and mtp\.safetensors"):
        Checkpoint.open(quantised)


def test_the_hugging_face_layout_points_at_convert(tmp_path: Path) -> None:
    testing.write_huggingface(tmp_path / "hf")
    with pytest.raises(CheckpointDamaged, match="slotstream convert SRC DST"):
        Checkpoint.open(tmp_path / "hf")


def test_scales_that_are_not_finite_are_refused_when_they_are_read(quantised: Path) -> None:
    name = f"{EXPERTS}.scales"
    with Checkpoint.open(quantised) as checkpoint:
        extent = checkpoint.extent(name)
        with (quantised / SHARD).open("r+b") as stream:
            stream.seek(extent.offset + 2 * 7)
            stream.write((0x7FC0).to_bytes(2, "little"))
        with pytest.raises(CheckpointDamaged, match=rf"{name} in .*not finite at element 7 of 512"):
            checkpoint.read(name)
        assert checkpoint.read_rows(name, 1, 2).shape == (1, 32, 1)


def test_a_file_that_shrinks_after_opening_fails_the_read(quantised: Path) -> None:
    with Checkpoint.open(quantised) as checkpoint:
        os.truncate(quantised / SHARD, 20_000)
        with pytest.raises(CheckpointDamaged, match=r"became shorter: .* wanted .* bytes"):
            checkpoint.read("language_model.model.layers.0.mlp.gate.weight")


@pytest.fixture
def unprivileged(quantised: Path) -> Iterator[Path]:
    """A model whose files belong to whoever runs the tests, read by somebody whom permissions bind."""
    if os.geteuid() != 0:
        yield quantised
        return
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "model"
        shutil.copytree(quantised, directory)
        nobody = 65534
        for path in (Path(name), directory, *directory.iterdir()):
            os.chown(path, nobody, nobody)
        os.seteuid(nobody)
        try:
            yield directory
        finally:
            os.seteuid(0)


def test_a_file_without_read_permission_is_named(unprivileged: Path) -> None:
    (unprivileged / SHARD).chmod(0)
    with pytest.raises(CheckpointMissing, match=rf"{SHARD} cannot be read: Permission denied"):
        Checkpoint.open(unprivileged)
    (unprivileged / "config.json").chmod(0)
    with pytest.raises(CheckpointMissing, match=r"config\.json cannot be read: Permission denied"):
        Checkpoint.open(unprivileged)


def test_a_directory_without_read_permission_is_named(unprivileged: Path) -> None:
    unprivileged.chmod(0)
    try:
        with pytest.raises(CheckpointMissing, match="model cannot be read: Permission denied"):
            Checkpoint.open(unprivileged)
    finally:
        unprivileged.chmod(0o755)


def test_rows_outside_a_tensor_are_refused(quantised: Path) -> None:
    with Checkpoint.open(quantised) as checkpoint, pytest.raises(CheckpointError, match="has 16 rows"):
        checkpoint.read_rows(f"{EXPERTS}.weight", 10, 17)


def test_every_stored_type_has_a_width() -> None:
    assert DTYPE_BYTES["BF16"] == 2
    assert set(DTYPE_BYTES.values()) == {1, 2, 4, 8}
