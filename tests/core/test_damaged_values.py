"""Checkpoints whose headers are right and whose contents are not."""

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from slotstream_core import SamplingParams, load
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.errors import (
    CheckpointDamaged,
    CheckpointMissing,
    RequestError,
    TemplateError,
    TokenizerError,
    UnsupportedModel,
)
from slotstream_core.generation.sampling import Sampler
from slotstream_core.text.template import ChatTemplate
from slotstream_core.text.tokenizer import Tokenizer

BF16_NAN = np.uint16(0x7FC0)


@pytest.fixture
def copy(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def overwrite(directory: Path, chosen: Callable[[str], bool], value: np.generic) -> None:
    """Fill the tensors chosen by name with one value, bit for bit."""
    with Checkpoint.open(directory) as checkpoint:
        found = [tensor for name, tensor in checkpoint.tensors.items() if chosen(name)]
    assert found
    for tensor in found:
        with tensor.path.open("r+b") as stream:
            stream.seek(tensor.offset)
            stream.write(value.tobytes() * (tensor.byte_count // value.nbytes))


def generate(directory: Path) -> None:
    with load(directory) as engine:
        list(engine.generate("Hello", max_tokens=4, sampling=SamplingParams(seed=1)))


@pytest.mark.parametrize("part", ["scales", "biases"])
def test_ngram_rows_that_are_not_finite_are_refused_where_they_are_read(copy: Path, part: str) -> None:
    overwrite(copy, lambda name: ".ngram_embedding." in name and name.endswith(part), BF16_NAN)
    with pytest.raises(CheckpointDamaged, match=rf"ngram_embedding\.shard_\d+\.{part} .*not finite in row"):
        generate(copy)


@pytest.mark.parametrize("table", ["ngram_heads_vocab_sizes", "ngram_heads_offsets"])
@pytest.mark.parametrize("value", [-(2**62), 2**62])
def test_ngram_heads_outside_their_table_are_refused(copy: Path, table: str, value: int) -> None:
    overwrite(copy, lambda name: name.endswith(table), np.int64(value))
    with pytest.raises(CheckpointDamaged, match=r"head 0 of .* rows from row"):
        generate(copy)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_numbers_end_the_reply_with_a_reason(temperature: float) -> None:
    sampler = Sampler(SamplingParams(temperature=temperature, seed=1))
    with pytest.raises(CheckpointDamaged, match="2 of 3 logits are not numbers"):
        sampler.sample(np.array([math.nan, 1.0, math.nan], np.float32))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "model-00001-of-00001.safetensors"])
def test_a_pipe_in_place_of_a_file_is_refused_instead_of_waited_for(copy: Path, name: str) -> None:
    (copy / name).unlink(missing_ok=True)
    os.mkfifo(copy / name)
    with pytest.raises(CheckpointMissing, match=rf"{name} is a pipe"):
        Checkpoint.open(copy)


@pytest.mark.parametrize(
    ("marks", "failure"),
    [
        ({"layout": 2}, UnsupportedModel),
        ({"layout": 1, "centred_norms": "kept"}, UnsupportedModel),
        (7, CheckpointDamaged),
    ],
)
def test_another_layout_than_the_one_this_version_reads_is_refused(
    copy: Path, marks: object, failure: type[Exception]
) -> None:
    document = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**document, "slotstream": marks}))
    with pytest.raises(failure, match=r"config\.json: slotstream"):
        Checkpoint.open(copy)


def test_text_that_is_no_unicode_is_a_request_error(tiny_model: Path) -> None:
    tokenizer = Tokenizer.from_directory(tiny_model, vocabulary=288, eos_ids=[])
    with pytest.raises(RequestError, match=r"character 3 of the text is '\\udcff'"):
        tokenizer.encode("ab\udcff")


def test_deep_json_beside_the_weights_is_a_typed_error(copy: Path) -> None:
    (copy / "generation_config.json").write_text("[" * 100_000)
    with pytest.raises(TokenizerError, match="generation_config"):
        Tokenizer.from_directory(copy, vocabulary=288, eos_ids=[])
    (copy / "chat_template.jinja").unlink()
    (copy / "tokenizer_config.json").write_text("[" * 100_000)
    with pytest.raises(TemplateError, match="cannot be read"):
        ChatTemplate.from_directory(copy)


def test_an_end_of_text_that_is_null_names_none(copy: Path) -> None:
    (copy / "generation_config.json").write_text('{"eos_token_id": null}')
    assert Tokenizer.from_directory(copy, vocabulary=288, eos_ids=[257]).eos_ids == {257, 258}


def test_a_template_that_calls_itself_for_ever_is_a_typed_error() -> None:
    with pytest.raises(TemplateError, match="failed on this conversation"):
        ChatTemplate("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", name="test").render([])
