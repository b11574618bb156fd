"""`slotstream convert` from the command line."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from slotstream_cli.main import main
from slotstream_core import testing
from slotstream_core.checkpoint.quantization import ModuleQuantization
from slotstream_core.checkpoint.tensors import Checkpoint


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return testing.write_huggingface(tmp_path_factory.mktemp("convert") / "hf")


def test_convert_says_what_it_does_and_what_it_wrote(source: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["convert", str(source), str(tmp_path / "out"), "--dense-bits", "8"])
    assert result.exit_code == 0, result.output
    assert "writing model-00001-of-00001.safetensors" in result.stderr
    assert "1 files written" in result.stderr
    with Checkpoint.open(tmp_path / "out") as checkpoint:
        assert checkpoint.quantization.default == ModuleQuantization(bits=8, group_size=64)
        assert checkpoint.module_quantization(
            "language_model.model.layers.0.mlp.switch_mlp.gate_proj"
        ) == ModuleQuantization(bits=4, group_size=64)


def test_no_quantize_keeps_floats(source: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["convert", str(source), str(tmp_path / "out"), "--no-quantize"])
    assert result.exit_code == 0, result.output
    with Checkpoint.open(tmp_path / "out") as checkpoint:
        assert checkpoint.quantization.default is None


def test_options_that_contradict_each_other_are_a_usage_error(source: Path, tmp_path: Path) -> None:
    arguments = ["convert", str(source), str(tmp_path / "out"), "--no-quantize", "--bits", "4"]
    assert CliRunner().invoke(main, arguments).exit_code == 2
    assert CliRunner().invoke(main, ["convert", str(source), str(tmp_path / "out"), "--bits", "5"]).exit_code == 2
    result = CliRunner().invoke(main, ["convert", str(source), str(tmp_path / "out"), "--shard-gb", "nan"])
    assert result.exit_code == 2
    assert not (tmp_path / "out").exists()


def test_a_refusal_is_one_sentence_with_exit_code_1(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["convert", str(tmp_path / "nowhere"), str(tmp_path / "out")])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert "nowhere is not a directory" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()
