"""What the comparison with other engines stands on: models of equal experts, a limit that holds, honest lines."""

import json
import os
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from benchmarks.cages import Caged, CageUnavailable, forget_pages, memory_cage
from benchmarks.offline.peer_models import ExpertShape, write_gguf, write_mlx_lm
from benchmarks.offline.peers import Contestant, decode_s, judge, why_killed

SHAPE = ExpertShape(layers=2, experts=8, chosen=2, hidden=128, width=64, vocabulary=320)


def gguf_tensors(path: Path) -> dict[str, tuple[tuple[int, ...], int, int]]:
    """Read shapes, types and offsets in the file back as the format describes them."""
    data = path.read_bytes()
    at = 24

    def take(form: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(form, data, at)
        at += struct.calcsize(form)
        return int(value)

    def text() -> str:
        nonlocal at
        length = take("<Q")
        at += length
        return data[at - length : at].decode()

    magic, version, tensors, fields = struct.unpack_from("<4sIQQ", data)
    assert (magic, version) == (b"GGUF", 3)
    for _ in range(fields):
        text()
        kind = take("<I")
        if kind == 8:
            text()
        else:
            at += 4
    found = {}
    for _ in range(tensors):
        name = text()
        shape = tuple(take("<Q") for _ in range(take("<I")))
        kind = take("<I")
        found[name] = (shape, kind, take("<Q"))
    start = -(-at // 32) * 32
    return {name: (shape, kind, start + offset) for name, (shape, kind, offset) in found.items()}


def test_a_gguf_model_holds_experts_of_four_and_a_half_bits(tmp_path: Path) -> None:
    path = tmp_path / "peer.gguf"
    assert write_gguf(path, SHAPE) == SHAPE.weights * 9 // 16
    tensors = gguf_tensors(path)
    shape, kind, offset = tensors["blk.1.ffn_down_exps.weight"]
    assert (shape, kind) == ((64, 128, 8), 2)
    blocks = np.frombuffer(path.read_bytes()[offset : offset + 18], np.uint8)
    assert blocks[:2].view("<f2")[0] == pytest.approx(0.25 / (4.6 * 8), rel=1e-3)
    assert tensors["blk.0.ffn_gate_inp.weight"][:2] == ((128, 8), 0)


def test_a_gguf_model_ends_where_its_last_tensor_does(tmp_path: Path) -> None:
    path = tmp_path / "peer.gguf"
    write_gguf(path, SHAPE)
    shape, _, offset = max(gguf_tensors(path).values(), key=lambda tensor: tensor[2])
    assert path.stat().st_size == offset + int(np.prod(shape)) * 18 // 32


def test_a_checkpoint_for_mlx_lm_is_readable_and_its_experts_counted(tmp_path: Path) -> None:
    counted = write_mlx_lm(tmp_path / "model", SHAPE)
    tensors = load_file(tmp_path / "model" / "model-00001.safetensors")
    experts = {name: array for name, array in tensors.items() if "switch_mlp" in name}
    assert counted == 2 * sum(array.nbytes for array in experts.values())
    assert tensors["model.layers.1.mlp.switch_mlp.gate_proj.weight"].shape == (8, 64, 16)
    assert tensors["model.layers.1.mlp.switch_mlp.down_proj.scales"].shape == (8, 128, 1)


def test_without_the_right_to_make_a_group_one_sentence_says_where_it_was_tried(tmp_path: Path) -> None:
    with (
        pytest.raises(CageUnavailable, match=f"{tmp_path / 'nowhere'}.*run as root"),
        memory_cage(tmp_path / "nowhere"),
    ):
        pass


def test_a_cage_kills_what_outgrows_it_and_counts_what_does_not() -> None:
    environment = dict(os.environ)
    grow = "import sys; block = bytearray(int(sys.argv[1])); print(len(block))"
    try:
        with memory_cage() as cage:
            small, large = (
                cage.run([sys.executable, "-c", grow, str(size)], 64 << 20, environment=environment, timeout_s=60)
                for size in (16 << 20, 256 << 20)
            )
    except CageUnavailable as error:
        pytest.skip(str(error))
    assert (small.status, small.output.strip()) == (0, str(16 << 20))
    assert 16 << 20 <= small.peak_bytes <= 64 << 20
    assert large.killed
    assert not large.output


def test_forgetting_the_pages_of_a_file_leaves_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"bytes" * 1000)
    forget_pages([path])
    assert path.read_bytes() == b"bytes" * 1000


def run(output: object, *, status: int = 0) -> Caged:
    return Caged(
        output=json.dumps(output),
        complaint="",
        status=status,
        peak_bytes=10**9,
        read_bytes=10**9,
        processor_s=1.0,
        wall_s=2.0,
    )


def test_the_second_series_is_what_is_timed() -> None:
    assert decode_s(run({"load_s": 9.0, "decode_s": 4.0})) == 4.0
    assert decode_s(run([{"samples_ns": [9_000_000_000, 2_000_000_000]}])) == 2.0


def test_a_killed_engine_has_no_speed_and_says_so() -> None:
    pool = Contestant(name="pool", command=[], files=[], runs=[run({"decode_s": 4.0})])
    other = Contestant(name="mlx-lm", command=[], files=[], runs=[run(None, status=-9)])
    values: dict[str, float] = {}
    table: list[tuple[str, ...]] = []
    judge([pool, other], 0.25, 2 * 10**9, 16, values, table)
    assert values["25.0% pool decode_tokens_per_s"] == 4.0
    assert "25.0% mlx-lm decode_tokens_per_s" not in values
    assert values["25.0% mlx-lm wall_s"] == 2.0
    assert table[1][:3] == ("2.00 GB (25.0%), mlx-lm", "killed", "")
    assert why_killed([pool, other], 0.25, 2 * 10**9) == {
        "25.0% mlx-lm": "killed by signal 9 when the memory group held 1.00 GB of 2.00 that it may"
    }
