"""Writes tests/slotpack/golden: valid frames, and one broken frame for every way of breaking the format.

    python -m tests.slotpack.make_golden

The frames come from the Python reference.  Each file's outcome is in index.json: the SHA-256 of the decoded bytes, or
the name of the error.
"""

import hashlib
import json
import pathlib
import struct
from typing import Any

from slotpack.codec import ReferenceCoder
from slotpack.frames import MAX_RAW_BYTES, FrameHeader, Kind, write_varint
from tests.slotpack.blocks import quantised_block, text_block, word_block

GOLDEN = pathlib.Path(__file__).parent / "golden"
LOW = 1 << 23
UNIT_STREAM = struct.pack("<5I", 16, LOW, LOW, LOW, LOW)


def head(raw_bytes: int, kind: int, weight_bytes: int = 0, group_size: int = 0, reserved: int = 0) -> bytes:
    return b"SLTPK001" + struct.pack("<6I", raw_bytes, kind, weight_bytes, group_size, reserved, 0)


def table(*pairs: tuple[bytes, bytes], count: int | None = None) -> bytes:
    return struct.pack("<I", len(pairs) if count is None else count) + b"".join(a + b for a, b in pairs)


FULL_BYTE = table((b"\x61", write_varint(4096)))
FULL_ZERO_WORD = table((b"\x00", write_varint(65536)))
FULL_ZERO_BYTE = table((b"\x00", write_varint(4096)))
SINGLE = head(8, 1) + FULL_BYTE + UNIT_STREAM
"""Eight times the letter a, without a single stream byte."""


def context(key: int, *frequencies: int) -> bytes:
    padded = [*frequencies, *[0] * (16 - len(frequencies))]
    return struct.pack("<I", key) + b"".join(write_varint(frequency) for frequency in padded)


def quantised(contexts: bytes, nibbles: bytes = UNIT_STREAM) -> bytes:
    """One group of zeros: scale 0, center 0, the given contexts."""
    metadata = FULL_ZERO_WORD + UNIT_STREAM + FULL_ZERO_BYTE + UNIT_STREAM + FULL_ZERO_WORD + UNIT_STREAM
    return head(36, 3, 32, 64) + metadata + contexts + nibbles


ZERO_CONTEXT = context(0, 4096)


def valid_frames() -> dict[str, bytes]:
    coder = ReferenceCoder()

    def plain(raw: bytes, kind: Kind) -> bytes:
        frame = coder.encode_exact(raw, FrameHeader(raw_bytes=len(raw), kind=kind))
        assert frame is not None
        return frame

    block64, header64 = quantised_block(21, 40, 64)
    block32, header32 = quantised_block(22, 40, 32)
    frames = {
        "raw": plain(b"hello slotpack\n", Kind.RAW),
        "bytes-text": plain(text_block(1, 3000), Kind.BYTES),
        "bytes-single-symbol": SINGLE,
        "words-bf16": plain(word_block(2, 1500), Kind.WORDS),
        "quantised-zeros": quantised(struct.pack("<I", 1) + ZERO_CONTEXT),
        "quantised-extra-context": quantised(struct.pack("<I", 2) + context(9, 1, 4095) + ZERO_CONTEXT),
    }
    for name, block, header in (("quantised-64", block64, header64), ("quantised-32", block32, header32)):
        frame = coder.encode_exact(block, header)
        assert frame is not None
        frames[name] = frame
    return frames


def broken_frames() -> dict[str, tuple[bytes, str]]:
    raw = valid_frames()["raw"]
    text = valid_frames()["bytes-text"]
    one = struct.pack("<I", 1)
    stray = struct.pack("<5I", 17, LOW, LOW, LOW, LOW) + b"\0"
    return {
        "empty": (b"", "TruncatedFrame"),
        "bad-magic": (b"SLTPK002" + raw[8:], "BadMagic"),
        "bad-magic-short": (b"SLX", "BadMagic"),
        "truncated-header": (raw[:31], "TruncatedFrame"),
        "truncated-raw": (raw[:-1], "TruncatedFrame"),
        "truncated-stream": (text[:-1], "TruncatedFrame"),
        "truncated-table": (text[:40], "TruncatedFrame"),
        "truncated-contexts": (quantised(struct.pack("<I", 3) + ZERO_CONTEXT), "TruncatedFrame"),
        "trailing-raw": (raw + b"\0", "TrailingBytes"),
        "trailing-frame": (SINGLE + b"\0", "TrailingBytes"),
        "trailing-in-stream": (head(8, 1) + FULL_BYTE + stray, "TrailingBytes"),
        "trailing-after-nibbles": (quantised(one + ZERO_CONTEXT) + b"\0", "TrailingBytes"),
        "raw-length-zero": (head(0, 0), "BadHeader"),
        "raw-length-oversize": (head(MAX_RAW_BYTES + 1, 1) + FULL_BYTE + UNIT_STREAM, "OversizeFrame"),
        "kind-unknown": (head(8, 4) + FULL_BYTE + UNIT_STREAM, "BadHeader"),
        "reserved-set": (head(8, 1, reserved=1) + FULL_BYTE + UNIT_STREAM, "BadHeader"),
        "words-odd": (head(7, 2) + FULL_ZERO_WORD + UNIT_STREAM, "BadHeader"),
        "weights-without-kind-3": (head(8, 1, 4, 0) + FULL_BYTE + UNIT_STREAM, "BadHeader"),
        "group-size-48": (head(36, 3, 32, 48), "BadHeader"),
        "weights-not-whole-groups": (head(36, 3, 33, 64), "BadHeader"),
        "weights-above-raw": (head(36, 3, 64, 64), "BadHeader"),
        "weights-sum-off": (head(40, 3, 32, 64), "BadHeader"),
        "varint-not-canonical": (head(8, 1) + one + b"\xe1\x00" + write_varint(4096) + UNIT_STREAM, "BadVarint"),
        "varint-above-32-bits": (head(8, 1) + one + b"\xff\xff\xff\xff\x10" + UNIT_STREAM, "BadVarint"),
        "varint-six-bytes": (head(8, 1) + one + b"\x80\x80\x80\x80\x80\x00" + UNIT_STREAM, "BadVarint"),
        "table-empty": (head(8, 1) + table() + UNIT_STREAM, "BadTable"),
        "table-too-long": (head(8, 1) + table(count=257) + UNIT_STREAM, "BadTable"),
        "table-symbol-out-of-range": (head(8, 1) + table((write_varint(256), b"\1")) + UNIT_STREAM, "BadTable"),
        "table-frequency-zero": (head(8, 1) + table((b"\x61", b"\0")) + UNIT_STREAM, "BadTable"),
        "frequency-sum-low": (head(8, 1) + table((b"\x61", write_varint(4095))) + UNIT_STREAM, "FrequencySum"),
        "frequency-sum-high": (head(8, 1) + table((b"\x61", write_varint(4097))) + UNIT_STREAM, "FrequencySum"),
        "stream-shorter-than-states": (
            head(8, 1) + FULL_BYTE + struct.pack("<4I", 12, LOW, LOW, LOW),
            "TruncatedFrame",
        ),
        "state-below-bound": (head(8, 1) + FULL_BYTE + struct.pack("<5I", 16, LOW - 1, LOW, LOW, LOW), "StreamState"),
        "state-above-interval": (
            head(8, 1) + FULL_BYTE + struct.pack("<5I", 16, LOW, 1 << 31, LOW, LOW),
            "StreamState",
        ),
        "state-not-at-bound": (head(8, 1) + FULL_BYTE + struct.pack("<5I", 16, LOW, LOW, LOW + 1, LOW), "StreamState"),
        "contexts-none": (quantised(struct.pack("<I", 0)), "BadContext"),
        "contexts-too-many": (quantised(struct.pack("<I", 2049) + ZERO_CONTEXT), "BadContext"),
        "context-key-out-of-range": (quantised(one + context(1 << 18, 4096)), "BadContext"),
        "context-repeated": (quantised(struct.pack("<I", 2) + ZERO_CONTEXT * 2), "BadContext"),
        "context-missing": (quantised(one + context(5, 4096)), "BadContext"),
        "context-sum-low": (quantised(one + context(0, 4095)), "FrequencySum"),
        "context-sum-high": (quantised(one + context(0, 4096, 1)), "FrequencySum"),
    }


A, B, C = "a" * 64, "b" * 64, "c" * 64


def manifest_document() -> dict[str, Any]:
    """A valid manifest: two required files and an optional one in three objects, the second across both."""
    return {
        "format": "slotpack-v1",
        "files": [
            {"path": "one", "size": 100, "sha256": A, "optional": False},
            {"path": "two", "size": 50, "sha256": B, "optional": False},
            {"path": "mtp", "size": 10, "sha256": C, "optional": True},
        ],
        "objects": [
            {"sha256": A, "size": 60, "rawSize": 60, "rawSHA256": A, "ranges": [
                {"file": "one", "offset": 0, "length": 60}]},
            {"sha256": B, "size": 99, "rawSize": 90, "rawSHA256": B, "ranges": [
                {"file": "one", "offset": 60, "length": 40}, {"file": "two", "offset": 0, "length": 50}]},
            {"sha256": C, "size": 42, "rawSize": 10, "rawSHA256": C, "ranges": [
                {"file": "mtp", "offset": 0, "length": 10}]},
        ],
    }  # fmt: skip


def encode_manifest(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def manifests() -> dict[str, tuple[bytes, str | None]]:
    """Return golden manifests with the name of their error, None for the valid one."""
    valid = manifest_document()
    overlapping, missing, uncovered, mixed, future = (manifest_document() for _ in range(5))
    overlapping["objects"][1]["ranges"][0]["offset"] = 59
    missing["objects"][1]["ranges"][0]["offset"] = 61
    del uncovered["objects"][2]
    mixed["files"][1]["optional"] = True
    future["format"] = "slotpack-v2"
    return {
        "manifest-valid": (encode_manifest(valid), None),
        "manifest-overlapping-ranges": (encode_manifest(overlapping), "OverlappingRanges"),
        "manifest-missing-range": (encode_manifest(missing), "MissingRanges"),
        "manifest-file-without-objects": (encode_manifest(uncovered), "MissingRanges"),
        "manifest-mixed-optional": (encode_manifest(mixed), "MixedOptional"),
        "manifest-other-version": (encode_manifest(future), "ManifestError"),
        "manifest-truncated": (encode_manifest(valid)[:-9], "ManifestError"),
    }


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    coder = ReferenceCoder()
    index: dict[str, dict[str, str]] = {"manifest-valid": {}}
    for name, frame in valid_frames().items():
        (GOLDEN / f"{name}.bin").write_bytes(frame)
        index[name] = {"raw_sha256": hashlib.sha256(coder.decode(frame)).hexdigest()}
    for name, (frame, error) in broken_frames().items():
        (GOLDEN / f"{name}.bin").write_bytes(frame)
        index[name] = {"error": error}
    for name, (document, failure) in manifests().items():
        (GOLDEN / f"{name}.json").write_bytes(document)
        if failure is not None:
            index[name] = {"error": failure}
    (GOLDEN / "index.json").write_text(json.dumps(index, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
