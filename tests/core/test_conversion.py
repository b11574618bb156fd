"""Conversion from the Hugging Face layout: what comes out, what is refused, and being interrupted."""

import json
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from slotstream_core import testing
from slotstream_core.checkpoint.conversion import (
    ConversionOptions,
    ConversionProgress,
    ConversionReport,
    convert_checkpoint,
)
from slotstream_core.checkpoint.floats import decode, encode
from slotstream_core.checkpoint.headers import STATE_NAME, TensorInfo, read_directory
from slotstream_core.checkpoint.quantising import quantise_rows
from slotstream_core.checkpoint.quantization import ModuleQuantization
from slotstream_core.checkpoint.shards import OutputTensor, Shard, ShardWriter
from slotstream_core.checkpoint.source import read_values
from slotstream_core.checkpoint.storage import StorageOptions
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.errors import CheckpointDamaged, CheckpointError, CheckpointMissing, UnsupportedModel
from slotstream_planner.headers import read_headers

SMALL_SHARDS = 200_000
LAYER = "language_model.model.layers.0"
SOURCE_LAYER = "model.language_model.layers.0"
DIRECT = StorageOptions(bits=None)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("source") / "hf"
    testing.write_huggingface(directory, draft=True, vision=True)
    testing.write_tokenizer(directory)
    return directory


@pytest.fixture
def copied(source: Path, tmp_path: Path) -> Path:
    directory = tmp_path / "hf"
    directory.mkdir()
    for path in source.iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    return directory


def convert(
    source: Path, destination: Path, storage: StorageOptions | None = None, *, shard_bytes: int = SMALL_SHARDS
) -> ConversionReport:
    options = ConversionOptions(storage=storage or StorageOptions(), shard_bytes=shard_bytes, block_bytes=20_000)
    return convert_checkpoint(source, destination, options)


def source_tensors(directory: Path) -> dict[str, TensorInfo]:
    return read_directory(directory)


def values_of(tensors: dict[str, TensorInfo], name: str) -> npt.NDArray[np.float32]:
    tensor = tensors[name]
    return decode(read_values(tensor, 0, tensor.byte_count), tensor.dtype).reshape(tensor.shape)


def rewritten(directory: Path, changes: dict[str, tuple[str, npt.NDArray[np.generic]] | None]) -> None:
    """Rewrite model.safetensors with some tensors replaced, added, or (None) removed."""
    tensors = {tensor.name: tensor for tensor in read_headers(directory / "model.safetensors")}
    data = {name: (t.dtype, read_values(t, 0, t.byte_count).reshape(t.shape)) for name, t in tensors.items()}
    for name, change in changes.items():
        data.pop(name, None)
        if change is not None:
            data[name] = change
    outputs = tuple(OutputTensor(name=name, dtype=kind, shape=array.shape) for name, (kind, array) in data.items())
    with ShardWriter(directory, Shard(file_name="model.safetensors", tensors=outputs)) as writer:
        for name, (_, array) in data.items():
            writer.write(name, array)
        writer.finish()


def test_without_quantisation_every_value_arrives_unchanged_and_norms_are_folded_once(
    source: Path, tmp_path: Path
) -> None:
    convert(source, tmp_path / "out", DIRECT)
    stored = source_tensors(source)
    with Checkpoint.open(tmp_path / "out") as checkpoint:
        assert checkpoint.draft

        def same(ours: str, theirs: npt.NDArray[np.float32]) -> bool:
            return bool((np.array(checkpoint.read(ours)) == theirs).all())

        assert same("language_model.lm_head.weight", values_of(stored, "lm_head.weight"))
        norm = values_of(stored, f"{SOURCE_LAYER}.attn_hyper_connection.hc_norm.weight")
        assert same(f"{LAYER}.attn_hyper_connection.hc_norm.weight", np.float32(1) + norm)
        assert same(f"{LAYER}.linear_attn.norm.weight", values_of(stored, f"{SOURCE_LAYER}.linear_attn.norm.weight"))
        conv = values_of(stored, f"{SOURCE_LAYER}.linear_attn.conv1d.weight")
        assert same(f"{LAYER}.linear_attn.conv1d.weight", conv.transpose(0, 2, 1))
        for kind in ("gate_proj", "up_proj", "down_proj"):
            each = [values_of(stored, f"{SOURCE_LAYER}.mlp.experts.{e}.{kind}.weight") for e in range(16)]
            assert same(f"{LAYER}.mlp.switch_mlp.{kind}.weight", np.stack(each))
        patches = values_of(stored, "model.visual.patch_embed.proj.weight")
        assert same("vision_tower.patch_embed.proj.weight", patches.transpose(0, 2, 3, 4, 1))


def test_exactly_the_centred_norms_change(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out", DIRECT)
    stored = source_tensors(source)
    folded = set()
    with Checkpoint.open(tmp_path / "out") as checkpoint:
        for name in checkpoint.tensors:
            theirs = name.replace("language_model.model.", "model.language_model.").replace(
                "vision_tower", "model.visual"
            )
            if theirs in stored and "conv1d" not in name and "patch_embed" not in name and not name.endswith("id"):
                tensor = stored[theirs]
                if tensor.dtype == "I64":
                    continue
                if (np.array(checkpoint.read(name)) != values_of(stored, theirs)).any():
                    folded.add(".".join(part for part in name.split(".")[-3:-1] if not part.isdigit()))
    assert {name.rpartition(".")[2] for name in folded} == {
        "q_norm",
        "k_norm",
        "q_layernorm",
        "k_layernorm",
        "hc_norm",
        "norm_key",
        "norm_query",
        "norm_conv",
        "pre_fc_norm_embedding",
        "pre_fc_norm_hidden",
    }


def test_quantised_values_stay_within_half_a_step(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out", StorageOptions(bits=4, group_size=32, dense_bits=8))
    stored = source_tensors(source)
    with Checkpoint.open(tmp_path / "out") as checkpoint:
        for module, theirs, bits in (
            (f"{LAYER}.linear_attn.in_proj_qkv", f"{SOURCE_LAYER}.linear_attn.in_proj_qkv.weight", 8),
            (f"{LAYER}.mlp.switch_mlp.up_proj", f"{SOURCE_LAYER}.mlp.experts.0.up_proj.weight", 4),
            (
                "language_model.model.layers.1.ple.ple_embedding.ngram_embedding.shard_2",
                "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_2.weight",
                4,
            ),
        ):
            assert checkpoint.module_quantization(module) == ModuleQuantization(bits=bits, group_size=32)
            words = checkpoint.read(f"{module}.weight")
            assert checkpoint.tensors[f"{module}.scales"].dtype == "BF16"
            scales, biases = (checkpoint.read(f"{module}.{part}", mx.float32) for part in ("scales", "biases"))
            restored = np.array(mx.dequantize(words, scales, biases, group_size=32, bits=bits))
            wanted = values_of(stored, theirs)
            restored = restored[0] if restored.ndim == 3 else restored
            largest_step = float(np.abs(np.array(scales)).max())
            assert 0 < np.abs(restored - wanted).max() < 0.75 * largest_step


def test_narrow_matrices_take_a_smaller_group_and_the_smallest_stay_unquantised(tmp_path: Path) -> None:
    testing.write_huggingface(tmp_path / "hf", {"hc_lowrank": 16})
    convert(tmp_path / "hf", tmp_path / "out", StorageOptions(bits=4, group_size=128))
    with Checkpoint.open(tmp_path / "out") as checkpoint:
        mixer = f"{LAYER}.attn_hyper_connection"
        assert checkpoint.module_quantization(f"{mixer}.input_mix_weight_down") == ModuleQuantization(
            bits=4, group_size=128
        )
        assert checkpoint.module_quantization(f"{LAYER}.linear_attn.out_proj") == ModuleQuantization(
            bits=4, group_size=64
        )
        assert checkpoint.module_quantization(f"{mixer}.input_mix_weight_up") is None
        assert checkpoint.tensors[f"{LAYER}.mlp.gate.weight"].dtype == "BF16"
        assert checkpoint.tensors[f"{LAYER}.linear_attn.A_log"].dtype == "F32"


def test_fused_expert_tensors_give_the_same_bytes_as_single_ones(copied: Path, tmp_path: Path) -> None:
    convert(copied, tmp_path / "single")
    stored = source_tensors(copied)
    changes: dict[str, tuple[str, npt.NDArray[np.generic]] | None] = {}
    for layer in range(4):
        module = f"model.language_model.layers.{layer}.mlp.experts"
        experts = {
            kind: np.stack([values_of(stored, f"{module}.{e}.{kind}.weight") for e in range(16)])
            for kind in ("gate_proj", "up_proj", "down_proj")
        }
        changes |= {f"{module}.{e}.{kind}.weight": None for e in range(16) for kind in experts}
        changes[f"{module}.gate_up_proj"] = ("F32", np.concatenate([experts["gate_proj"], experts["up_proj"]], axis=1))
        changes[f"{module}.down_proj"] = ("F32", experts["down_proj"])
    rewritten(copied, changes)
    convert(copied, tmp_path / "fused")
    for path in (tmp_path / "single").iterdir():
        assert (tmp_path / "fused" / path.name).read_bytes() == path.read_bytes()


def test_a_text_model_alone_converts_too(copied: Path, tmp_path: Path) -> None:
    convert(copied, tmp_path / "a", DIRECT)
    stored = source_tensors(copied)
    changes: dict[str, tuple[str, npt.NDArray[np.generic]] | None] = {}
    for name, tensor in stored.items():
        if name.startswith("model.language_model."):
            data = read_values(tensor, 0, tensor.byte_count).reshape(tensor.shape)
            changes[name] = None
            changes[name.replace("language_model.", "")] = (tensor.dtype, data)
    rewritten(copied, changes)
    convert(copied, tmp_path / "b", DIRECT)
    with Checkpoint.open(tmp_path / "b") as checkpoint, Checkpoint.open(tmp_path / "a") as other:
        assert checkpoint.tensors.keys() == other.tensors.keys()


def test_bf16_sources_keep_their_type_and_their_folds_are_exact(tmp_path: Path) -> None:
    testing.write_huggingface(tmp_path / "hf", float_type="BF16")
    convert(tmp_path / "hf", tmp_path / "out", DIRECT)
    name = f"{LAYER}.attn_hyper_connection.hc_norm.weight"
    norm = values_of(source_tensors(tmp_path / "hf"), f"{SOURCE_LAYER}.attn_hyper_connection.hc_norm.weight")
    with Checkpoint.open(tmp_path / "out") as checkpoint:
        assert checkpoint.tensors[f"{LAYER}.mlp.gate.weight"].dtype == "BF16"
        assert checkpoint.tensors[f"{LAYER}.linear_attn.A_log"].dtype == "BF16"
        assert (np.array(checkpoint.read(name)).astype(np.float64) == 1.0 + norm.astype(np.float64)).all()


def test_tokenizer_files_come_along_and_the_state_goes(source: Path, tmp_path: Path) -> None:
    report = convert(source, tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"tokenizer.json", "chat_template.jinja", "generation_config.json", "config.json"} <= names
    assert STATE_NAME not in names
    assert names >= set(report.written_files)
    assert len(report.written_files) > 4


def test_a_conversion_is_deterministic(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "a")
    convert(source, tmp_path / "b")
    assert [p.name for p in sorted((tmp_path / "a").iterdir())] == [p.name for p in sorted((tmp_path / "b").iterdir())]
    for path in (tmp_path / "a").iterdir():
        assert (tmp_path / "b" / path.name).read_bytes() == path.read_bytes()


def test_progress_reaches_the_total_and_never_goes_back(source: Path, tmp_path: Path) -> None:
    steps: list[ConversionProgress] = []
    options = ConversionOptions(shard_bytes=SMALL_SHARDS, block_bytes=20_000)
    report = convert_checkpoint(source, tmp_path / "out", options, steps.append)
    done = [step.done_bytes for step in steps]
    assert done == sorted(done)
    assert done[-1] == report.total_bytes == steps[-1].total_bytes


KILLED = """
import os, sys
from pathlib import Path
from slotstream_core.checkpoint.conversion import ConversionOptions, convert_checkpoint
def progress(step):
    if step.file_name.startswith("model-00003"):
        os.kill(os.getpid(), 9)
convert_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]), ConversionOptions(shard_bytes=200_000), progress)
"""


def test_a_killed_conversion_is_finished_by_the_next_run_without_rewriting(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(source), str(out)], check=False)
    assert killed.returncode == -9
    with pytest.raises(CheckpointMissing, match="holds an unfinished conversion"):
        Checkpoint.open(out)
    leftovers = sorted(path.name for path in out.iterdir())
    assert [name for name in leftovers if name.endswith(".partial")] != []
    first = out / "model-00001-of-00006.safetensors"
    before = first.stat()
    report = convert_checkpoint(source, out, ConversionOptions(shard_bytes=SMALL_SHARDS))
    assert len(report.kept_files) == 2
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    convert_checkpoint(source, tmp_path / "whole", ConversionOptions(shard_bytes=SMALL_SHARDS))
    assert {p.name: p.read_bytes() for p in out.iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "whole").iterdir()
    }


def interrupted(source: Path, destination: Path) -> None:
    def stop(step: ConversionProgress) -> None:
        if step.file_name.startswith("model-00003"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_checkpoint(source, destination, ConversionOptions(shard_bytes=SMALL_SHARDS), stop)


def test_a_finished_file_that_changed_is_written_again(source: Path, tmp_path: Path) -> None:
    interrupted(source, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.partial"))
    path = tmp_path / "out" / "model-00002-of-00006.safetensors"
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    report = convert(source, tmp_path / "out")
    assert report.kept_files == ("model-00001-of-00006.safetensors",)
    assert path.read_bytes() == good


def test_other_options_do_not_continue_an_unfinished_conversion(source: Path, tmp_path: Path) -> None:
    interrupted(source, tmp_path / "out")
    with pytest.raises(CheckpointError, match="unfinished conversion of another source or with other options"):
        convert(source, tmp_path / "out", DIRECT)


def test_a_destination_in_use_is_left_alone(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out")
    with pytest.raises(CheckpointError, match="already holds a model"):
        convert(source, tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="is not empty"):
        convert(source, tmp_path / "full")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="Not a directory"):
        convert(source, tmp_path / "file")
    with pytest.raises(CheckpointError, match="lies inside the source"):
        convert(source, source / "out")


def test_a_converted_checkpoint_is_refused(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out")
    with pytest.raises(UnsupportedModel, match="is converted already .* would fold its norms twice"):
        convert(tmp_path / "out", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_unknown_tensors_and_settings_are_refused_by_name_before_anything_is_written(
    copied: Path, tmp_path: Path
) -> None:
    document = json.loads((copied / "config.json").read_text())
    document["text_config"]["sliding_window"] = 128
    (copied / "config.json").write_text(json.dumps(document))
    with pytest.raises(UnsupportedModel, match="sliding_window = 128"):
        convert(copied, tmp_path / "out")
    del document["text_config"]["sliding_window"]
    (copied / "config.json").write_text(json.dumps(document))
    rewritten(copied, {"model.visual.blocks.0.attn.extra.weight": ("F32", np.zeros(2, dtype=np.float32))})
    with pytest.raises(UnsupportedModel, match=r"uses the tensor model\.visual\.blocks\.0\.attn\.extra\.weight"):
        convert(copied, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_settings_that_only_concern_training_tools_are_no_obstacle(copied: Path, tmp_path: Path) -> None:
    document = json.loads((copied / "config.json").read_text())
    for section in (document, document["text_config"]):
        section |= {"return_dict": True, "id2label": {"0": "LABEL_0"}, "use_cache": True, "problem_type": None}
    (copied / "config.json").write_text(json.dumps(document))
    assert convert(copied, tmp_path / "out").kept_files == ()


def test_a_missing_expert_and_a_wrong_shape_are_named(copied: Path, tmp_path: Path) -> None:
    name = f"{SOURCE_LAYER}.mlp.experts.7.up_proj.weight"
    rewritten(copied, {name: None})
    with pytest.raises(CheckpointDamaged, match=rf"{name} \[32, 64\] is missing"):
        convert(copied, tmp_path / "out")
    rewritten(copied, {name: ("F32", np.zeros((64, 32), dtype=np.float32))})
    with pytest.raises(CheckpointDamaged, match=r"has shape \[64, 32\]; config\.json asks for \[32, 64\]"):
        convert(copied, tmp_path / "out")


def test_values_that_are_not_finite_are_refused(copied: Path, tmp_path: Path) -> None:
    bad = np.zeros((32, 64), dtype=np.float32)
    bad[1, 3] = np.nan
    name = f"{SOURCE_LAYER}.mlp.experts.7.up_proj.weight"
    rewritten(copied, {name: ("F32", bad)})
    with pytest.raises(CheckpointDamaged, match=rf"{name} .* not finite at element 67"):
        convert_checkpoint(copied, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_too_little_disk_is_said_before_writing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("usage", (), {"free": 1_000_000})
    monkeypatch.setattr("shutil.disk_usage", lambda _path: usage)
    with pytest.raises(CheckpointError, match=r"needs 0\.07 GB and its disk has 0\.00 GB free"):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


MEASURED = """
import sys
from pathlib import Path
from slotstream_core.checkpoint.conversion import ConversionOptions, convert_checkpoint
def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024
warm, source, out = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
options = ConversionOptions(block_bytes=1 << 20)
convert_checkpoint(warm, out / "warm", options)
before = peak()
convert_checkpoint(source, out / "big", options)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_memory_stays_far_below_the_largest_layer(source: Path, tmp_path: Path) -> None:
    kinds = ["linear_attention", "full_attention"]
    overrides: dict[str, object] = {
        "hidden_size": 256,
        "moe_intermediate_size": 256,
        "num_experts": 48,
        "ple_layer_ids": [],
    }
    overrides |= {"num_hidden_layers": 2, "layer_types": kinds}
    testing.write_huggingface(tmp_path / "hf", overrides)
    command = [sys.executable, "-c", MEASURED, str(source), str(tmp_path / "hf"), str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    layer_bytes = 48 * 3 * 256 * 256 * 4
    assert int(done.stdout) < layer_bytes // 4


def test_rounding_to_bf16_is_to_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -1.00390625, 3.3895314e38], dtype=np.float32)
    expected = np.array(mx.array(values).astype(mx.bfloat16).view(mx.uint16))
    assert (encode(values, "BF16") == expected).all()


def test_a_file_whose_tensors_are_not_all_written_does_not_appear(tmp_path: Path) -> None:
    shard = Shard(file_name="x.safetensors", tensors=(OutputTensor(name="a", dtype="F32", shape=(2,)),))
    with ShardWriter(tmp_path, shard) as writer:
        writer.write("a", np.zeros(1, dtype=np.float32))
        with pytest.raises(CheckpointError, match="4 bytes of its tensors were never written"):
            writer.finish()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_packed_codes_mean_to_mlx_what_they_meant_here(bits: int, group_size: int) -> None:
    values = np.random.default_rng(bits + group_size).normal(0, 0.05, (6, 256)).astype(np.float32)
    values[1] = 0
    values[2] = 0.03
    values[3, 5] = 4.0
    values[4] = np.abs(values[4])
    words, scales, biases = quantise_rows(values, ModuleQuantization(bits=bits, group_size=group_size))
    wide, offsets = mx.array(decode(scales, "BF16")), mx.array(decode(biases, "BF16"))
    restored = np.array(mx.dequantize(mx.array(words), wide, offsets, group_size=group_size, bits=bits))
    steps = np.array(wide).repeat(group_size, axis=-1)
    rounding = np.abs(values).max(axis=-1, keepdims=True) * 2.0**-8
    assert (np.abs(restored - values) <= 0.51 * steps + rounding).all()


def test_eight_bits_lose_no_more_than_with_float32_scales() -> None:
    values = np.random.default_rng(0).normal(0, 0.05, (512, 256)).astype(np.float32)
    words, scales, biases = quantise_rows(values, ModuleQuantization(bits=8, group_size=64))
    ours = mx.dequantize(
        mx.array(words), mx.array(decode(scales, "BF16")), mx.array(decode(biases, "BF16")), group_size=64, bits=8
    )
    exact = mx.quantize(mx.array(values), group_size=64, bits=8)
    theirs = mx.dequantize(exact[0], exact[1], exact[2], group_size=64, bits=8)

    def error(restored: mx.array) -> float:
        return float(np.sqrt(np.mean((np.array(restored) - values) ** 2)))

    assert error(ours) < 1.02 * error(theirs)
