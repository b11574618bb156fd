"""Packing: kinds and order, deterministic bytes, verify, unpack, inspect, and refusals."""

import hashlib
import json
import pathlib
import struct

import pytest

from slotpack import packing
from slotpack.__main__ import main
from slotpack.errors import ManifestError, PackError
from slotpack.frames import Kind
from slotpack.manifest import MANIFEST_NAME, FileEntry
from slotpack.packing import list_model_files, pack_model, plan_blocks, read_tensors
from slotpack.unpacking import inspect_package, read_package, unpack_package, verify_package
from tests.slotpack.models import Packaged, quantised_tensors, safetensors, same_files, write_model


def tree_bytes(directory: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_model_comes_back_byte_for_byte(packaged: Packaged, tmp_path: pathlib.Path) -> None:
    model, package, _entry = packaged
    verify_package(package)
    report = unpack_package(package, tmp_path / "copy")
    assert same_files(model, tmp_path / "copy")
    assert report.skipped == {}


def test_a_package_depends_on_the_model_alone(tmp_path: pathlib.Path) -> None:
    model = write_model(tmp_path / "model")
    pack_model(model, tmp_path / "one", workers=1)
    pack_model(model, tmp_path / "two", workers=4)
    assert tree_bytes(tmp_path / "one") == tree_bytes(tmp_path / "two")


def test_every_byte_is_in_one_block_and_tensors_choose_the_kind(tmp_path: pathlib.Path) -> None:
    model = write_model(tmp_path / "model")
    files = list_model_files(model, ["mtp.safetensors"])
    blocks = plan_blocks(model, files)
    covered = sorted((r.file, r.offset_bytes, r.length_bytes) for block in blocks for r in block.ranges)
    position: dict[str, int] = {}
    for file, offset, length in covered:
        assert position.get(file, 0) == offset
        position[file] = offset + length
    assert position == {entry.path: entry.size_bytes for entry in files if entry.size_bytes}
    first = [block for block in blocks if block.ranges[0].file == "model-00001.safetensors"]
    assert [block.kind for block in first] == [
        Kind.BYTES,
        Kind.QUANTIZED,
        Kind.WORDS,
        Kind.QUANTIZED,
        Kind.BYTES,
    ]
    assert [(block.weight_bytes, block.group_size) for block in first if block.kind is Kind.QUANTIZED] == [
        (22400, 64),
        (640, 32),
    ]


def test_required_blocks_come_first_then_file_and_offset(tmp_path: pathlib.Path) -> None:
    model = write_model(tmp_path / "model")
    blocks = plan_blocks(model, list_model_files(model, ["mtp.safetensors"]))
    keys = [(b.ranges[0].file == "mtp.safetensors", b.ranges[0].file, b.ranges[0].offset_bytes) for b in blocks]
    assert keys == sorted(keys)


def test_large_tensors_are_cut_into_blocks(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "BLOCK_BYTES", 1024)
    model = write_model(tmp_path / "model")
    pack_model(model, tmp_path / "package")
    quantised = [entry for entry in read_package(tmp_path / "package").objects if len(entry.ranges) == 3]
    assert [entry.raw_size_bytes for entry in quantised[:2]] == [1024 + 128, 1024 + 128]
    unpack_package(tmp_path / "package", tmp_path / "copy")
    assert same_files(model, tmp_path / "copy")


def test_packing_again_keeps_good_objects_and_repairs_damaged_ones(packaged: Packaged) -> None:
    model, package, _entry = packaged
    before = tree_bytes(package)
    entry = read_package(package).objects[1]
    (package / entry.path).write_bytes(b"damaged")
    (package / MANIFEST_NAME).unlink()
    pack_model(model, package, optional=["mtp.safetensors"])
    assert tree_bytes(package) == before


def test_a_round_trip_that_differs_writes_no_manifest(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotpack.codec.decode", lambda frame: b"something else")
    with pytest.raises(PackError, match="round trip"):
        pack_model(write_model(tmp_path / "model"), tmp_path / "package")
    assert not (tmp_path / "package" / MANIFEST_NAME).exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: b"",
    ],
)
def test_verify_names_a_damaged_object(packaged: Packaged, damage: "object") -> None:
    _model, package, _entry = packaged
    target = package / read_package(package).objects[2].path
    assert callable(damage)
    target.write_bytes(damage(target.read_bytes()))
    with pytest.raises(PackError, match=target.name):
        verify_package(package)


def test_verify_refuses_a_manifest_with_a_wrong_file_digest(packaged: Packaged) -> None:
    _model, package, _entry = packaged
    document = json.loads((package / MANIFEST_NAME).read_bytes())
    document["files"][0]["sha256"] = "0" * 64
    (package / MANIFEST_NAME).write_text(json.dumps(document))
    with pytest.raises(PackError, match="original model"):
        verify_package(package)


def test_inspect_counts_objects_by_kind(packaged: Packaged) -> None:
    _model, package, _entry = packaged
    summary = inspect_package(package)
    assert sum(count for count, _o, _r in summary.objects_by_kind.values()) == len(summary.manifest.objects)
    assert sum(size for _c, size, _r in summary.objects_by_kind.values()) == summary.object_bytes
    assert summary.objects_by_kind[Kind.QUANTIZED][0] >= 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1",
        struct.pack("<Q", 2**60) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 9) + b'{"a":null',
        safetensors({"a": ("BF16", [1], b"ab")})[:-1],
    ],
)
def test_a_broken_safetensors_file_is_refused(tmp_path: pathlib.Path, data: bytes) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "x.safetensors").write_bytes(data)
    with pytest.raises(PackError, match=r"x\.safetensors"):
        pack_model(tmp_path / "model", tmp_path / "package")


def test_overlapping_tensors_are_refused(tmp_path: pathlib.Path) -> None:
    text = json.dumps({n: {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]} for n in "ab"}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"ab")
    with pytest.raises(PackError, match="overlaps"):
        read_tensors(path)


def test_a_matrix_with_other_metadata_is_not_kind_3(tmp_path: pathlib.Path) -> None:
    tensors = quantised_tensors("m", 1, 8, 64)
    tensors["m.biases"] = ("F16", [8], tensors["m.biases"][2])
    (tmp_path / "m.safetensors").write_bytes(safetensors(tensors))
    entry = FileEntry(path="m.safetensors", size_bytes=1, sha256="0" * 64)
    assert {block.kind for block in plan_blocks(tmp_path, [entry])} == {Kind.BYTES, Kind.WORDS}


def test_directories_that_cannot_be_packed_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(PackError, match="not a directory"):
        pack_model(tmp_path / "none", tmp_path / "package")
    (tmp_path / "model").mkdir()
    with pytest.raises(PackError, match="no files"):
        pack_model(tmp_path / "model", tmp_path / "package")
    (tmp_path / "model" / "sub").mkdir()
    with pytest.raises(PackError, match="regular file"):
        pack_model(tmp_path / "model", tmp_path / "package")
    with pytest.raises(PackError, match="inside the model"):
        pack_model(tmp_path / "model", tmp_path / "model" / "package")
    with pytest.raises(PackError, match="optional file nine"):
        pack_model(write_model(tmp_path / "good"), tmp_path / "package", optional=["nine"])


def test_the_command_line_packs_verifies_inspects_and_unpacks(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "model")
    package, copy = str(tmp_path / "package"), str(tmp_path / "copy")
    assert main(["pack", "--model", str(model), "--output", package, "--workers", "2"]) == 0
    assert main(["verify", "--package", package]) == 0
    assert main(["inspect", "--package", package]) == 0
    assert main(["unpack", "--package", package, "--output", copy]) == 0
    assert same_files(model, tmp_path / "copy")
    digest = hashlib.sha256((tmp_path / "package" / MANIFEST_NAME).read_bytes()).hexdigest()
    assert capsys.readouterr().out.count(digest) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "--package", "/nonexistent"],
        ["unpack", "--package", "/nonexistent", "--output", "/nonexistent/out"],
        ["inspect", "--package", "/dev/null"],
        ["pack", "--model", "/nonexistent", "--output", "/nonexistent/out"],
        ["pack", "--model", "/proc/self", "--output", "/nonexistent/out", "--workers", "0"],
    ],
)
def test_the_command_line_refuses_in_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert message.count("\n") == 1


def test_a_broken_manifest_is_refused_by_every_reader(tmp_path: pathlib.Path) -> None:
    (tmp_path / MANIFEST_NAME).write_text("{}")
    for reader in (verify_package, inspect_package, read_package):
        with pytest.raises(ManifestError):
            reader(tmp_path)


def test_excluded_names_are_left_out(tmp_path: pathlib.Path) -> None:
    model = write_model(tmp_path / "model")
    (model / "lookahead").mkdir()
    arguments = ["pack", "--model", str(model), "--output", str(tmp_path / "package")]
    assert main(arguments) == 1
    assert main([*arguments, "--exclude", "lookahead", "--exclude", "notes.txt"]) == 0
    unpack_package(tmp_path / "package", tmp_path / "copy")
    (model / "lookahead").rmdir()
    assert same_files(model, tmp_path / "copy", without=("notes.txt",))
