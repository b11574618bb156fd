"""Size and speed of the Slotpack coder on 4-bit weights, next to zstd -19 and xz -6 on the same bytes.

A batch is as many different blocks as the coder decodes at once on one core; sizes are those of its first block.
Speeds are decoded bytes per second of CPU time of one core, the best of several rounds.  zstd is measured by its own
benchmark mode, xz by Python's lzma.
"""

import argparse
import dataclasses
import lzma
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable

import numpy as np

import slotpack
from benchmarks.recording import BenchmarkResult, format_table, report
from slotpack import codec
from slotpack.packing import list_model_files, plan_blocks

GROUP = 64


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """Round float32 to BF16 bit patterns, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def synthetic_block(weight_bytes: int, seed: int = 0) -> bytes:
    """Quantise bell-shaped rows of different spread the way MLX does: affine, 4 bits, groups of 64."""
    rng = np.random.default_rng(seed)
    columns = 2560
    rows = 2 * weight_bytes // columns + 1
    spread = np.exp(rng.normal(0, 0.35, (rows, 1))).astype(np.float32) * 0.02
    values = (rng.standard_normal((rows, columns), dtype=np.float32) * spread).ravel()[: 2 * weight_bytes]
    groups = values.reshape(-1, GROUP)
    low, high = groups.min(1), groups.max(1)
    low_is_edge = np.abs(low) > np.abs(high)
    scale = np.where(low_is_edge, 1, -1) * np.maximum((high - low) / 15, 1e-7)
    edge = np.where(low_is_edge, low, high)
    zero = np.round(edge / scale)
    scale = np.where(zero != 0, edge / np.where(zero == 0, 1, zero), scale)
    bias = np.where(zero == 0, 0, edge)
    nibbles = np.clip(np.round((groups - bias[:, None]) / scale[:, None]), 0, 15).astype(np.uint8)
    packed = nibbles[:, 0::2] | nibbles[:, 1::2] << 4
    return packed.tobytes() + bf16_bits(scale).tobytes() + bf16_bits(bias).tobytes()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """A quantised block and the frame that holds it."""

    raw: bytes
    weight_bytes: int
    group_size: int

    def encode(self) -> bytes:
        """Return the block as a frame."""
        shape = {"weight_bytes": self.weight_bytes, "group_size": self.group_size}
        return slotpack.encode(self.raw, kind=3, **shape)


def model_samples(model: pathlib.Path, count: int) -> list[Sample]:
    """Return the largest quantised blocks of a checkpoint."""
    blocks = [block for block in plan_blocks(model, list_model_files(model)) if block.kind == 3]
    samples: list[Sample] = []
    for block in sorted(blocks, key=lambda item: -item.weight_bytes)[:count]:
        data = b""
        for item in block.ranges:
            with (model / item.file).open("rb") as file:
                file.seek(item.offset_bytes)
                data += file.read(item.length_bytes)
        samples.append(Sample(raw=data, weight_bytes=block.weight_bytes, group_size=block.group_size))
    return samples


def best_rate(work: Callable[[], object], size: int, rounds: int) -> float:
    """Bytes per second of CPU time of the calling thread, best of the rounds."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.thread_time()
        work()
        best = min(best, time.thread_time() - begin)
    return size / best


def zstd_numbers(raw: bytes) -> tuple[int, float, float] | None:
    """Size, encode and decode rate of zstd -19, or None where it is not installed."""
    if shutil.which("zstd") is None:
        return None
    with tempfile.NamedTemporaryFile() as file:
        file.write(raw)
        file.flush()
        command = ["zstd", "-b19", "-i1", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.findall(r"->\s*(\d+)[^\r>]*?([\d.]+) MB/s\s*,\s*([\d.]+) MB/s", done.stdout + done.stderr)
    if not found:
        return None
    size, encode, decode = found[-1]
    return int(size), float(encode) * 1e6, float(decode) * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=pathlib.Path, help="a checkpoint instead of synthetic weights")
    parser.add_argument("--weight-mib", type=int, default=28)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    count = codec.batch_frames
    if arguments.model is not None:
        samples, source = model_samples(arguments.model, count), "model"
    else:
        size, source = arguments.weight_mib * 2**20, "synthetic"
        samples = [
            Sample(raw=synthetic_block(size, seed), weight_bytes=size, group_size=GROUP) for seed in range(count)
        ]
    first, raws = samples[0], [sample.raw for sample in samples]
    raw = first.raw
    frames = [sample.encode() for sample in samples]
    if slotpack.decode(frames[0]) != raw or slotpack.decode_many(frames) != raws:
        raise SystemExit("the round trip differs")
    encode, decode, batch = _rates(first, frames, raws, arguments.rounds)
    rows = [("slotpack", len(frames[0]), encode, decode), ("slotpack batch", len(frames[0]), encode, batch)]
    packed = lzma.compress(raw, preset=6)
    xz_encode = best_rate(lambda: lzma.compress(raw, preset=6), len(raw), 1)
    rows.append(("xz -6", len(packed), xz_encode, best_rate(lambda: lzma.decompress(packed), len(raw), 2)))
    zstd = zstd_numbers(raw)
    if zstd is not None:
        rows.append(("zstd -19", *zstd))
    table = format_table(
        ("coder", "bytes", "of raw", "encode MB/s", "decode MB/s"),
        [
            (name, f"{size:,}", f"{100 * size / len(raw):.2f}%", f"{encode / 1e6:.1f}", f"{decode / 1e6:.1f}")
            for name, size, encode, decode in rows
        ],
    )
    values: dict[str, int | float] = {"raw_bytes": len(raw)}
    for name, size, encode, decode in rows:
        key = name.replace(" batch", "_batch").split()[0]
        values |= {
            f"{key}_bytes": size,
            f"{key}_encode_bytes_per_s": round(encode),
            f"{key}_decode_bytes_per_s": round(decode),
        }
    settings = {"backend": codec.backend, "source": source, "group_size": first.group_size, "rounds": arguments.rounds}
    settings["batch_frames"] = len(frames)
    result = BenchmarkResult(benchmark=f"slotpack_codec_{source}", settings=settings, values=values)
    report(result, table=table, record=arguments.record)


def _rates(sample: Sample, frames: list[bytes], raws: list[bytes], rounds: int) -> tuple[float, float, float]:
    """Return bytes per second of encoding, of decoding one frame, and of decoding the batch; rounds interleaved."""
    encode = decode = batch = 0.0
    for _ in range(rounds):
        encode = max(encode, best_rate(sample.encode, len(sample.raw), 1))
        decode = max(decode, best_rate(lambda: slotpack.decode(frames[0]), len(sample.raw), 1))
        batch = max(batch, best_rate(lambda: slotpack.decode_many(frames), sum(map(len, raws)), 1))
    return encode, decode, batch


if __name__ == "__main__":
    main()
