"""The header parser against arbitrary bytes."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotstream_planner.errors import CheckpointUnreadable, GeometryError
from slotstream_planner.headers import read_headers

quick = settings(max_examples=60)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "U8", "BF16", "F99"]) | json_values,
        "shape": st.lists(st.integers(-2, 9), max_size=3) | json_values,
        "data_offsets": st.lists(st.integers(-2, 64), min_size=1, max_size=3) | json_values,
    }
)


def write(path: Path, header: bytes, data: bytes) -> Path:
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def refused_or_consistent(path: Path) -> None:
    message = str(path)
    tensors = []
    try:
        tensors = read_headers(path)
    except GeometryError as error:
        message = str(error)
    assert str(path) in message
    assert sum(tensor.byte_count for tensor in tensors) < max(1, path.stat().st_size)
    for before, after in itertools.pairwise(tensors):
        assert before.offset + before.byte_count == after.offset


@quick
@given(raw=st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_with_the_file_named(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    refused_or_consistent(path)


@quick
@given(header=st.dictionaries(st.text(max_size=6), entries | json_values, max_size=4), size=st.integers(0, 80))
def test_arbitrary_headers_are_refused_or_lie_without_gaps(tmp_path: Path, header: dict[str, Any], size: int) -> None:
    refused_or_consistent(write(tmp_path / "x.safetensors", json.dumps(header).encode(), bytes(size)))


def test_a_name_given_twice_is_refused(tmp_path: Path) -> None:
    entry = '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    path = write(tmp_path / "x.safetensors", f'{{"a":{entry},"a":{entry}}}'.encode(), b"1")
    with pytest.raises(GeometryError, match="names a twice"):
        read_headers(path)


def test_a_gap_between_tensors_is_refused(tmp_path: Path) -> None:
    header = {
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "b": {"dtype": "U8", "shape": [1], "data_offsets": [3, 4]},
    }
    path = write(tmp_path / "x.safetensors", json.dumps(header).encode(), b"1234")
    with pytest.raises(GeometryError, match="has 2 bytes that belong to no tensor before b"):
        read_headers(path)


def test_a_directory_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointUnreadable, match="Is a directory"):
        read_headers(tmp_path)
