"""Size and speed of the Slotpack coder on 4-bit weights, next to zstd -19 and xz -6 on the same bytes.

Speeds are bytes of the decoded block per second of CPU time of one core, the best of several rounds; the programs are
interleaved.  zstd is measured by its own benchmark mode, xz by Python's lzma.
"""

import argparse
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
from slotpack.packing import Block, list_model_files, plan_blocks

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


def model_block(model: pathlib.Path) -> tuple[bytes, Block]:
    """Return the largest quantised block of a checkpoint."""
    blocks = [block for block in plan_blocks(model, list_model_files(model)) if block.kind == 3]
    block = max(blocks, key=lambda item: item.weight_bytes)
    data = b""
    for item in block.ranges:
        with (model / item.file).open("rb") as file:
            file.seek(item.offset_bytes)
            data += file.read(item.length_bytes)
    return data, block


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
    if arguments.model is not None:
        raw, block = model_block(arguments.model)
        weight_bytes, group_size, source = block.weight_bytes, block.group_size, "model"
    else:
        weight_bytes, group_size, source = arguments.weight_mib * 2**20, GROUP, "synthetic"
        raw = synthetic_block(weight_bytes)
    shape = {"kind": 3, "weight_bytes": weight_bytes, "group_size": group_size}
    frame = slotpack.encode(raw, **shape)
    if slotpack.decode(frame) != raw:
        raise SystemExit("the round trip differs")
    rows = [("slotpack", len(frame), *_rates(lambda: slotpack.encode(raw, **shape), frame, raw, arguments.rounds))]
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
        key = name.split()[0]
        values |= {
            f"{key}_bytes": size,
            f"{key}_encode_bytes_per_s": round(encode),
            f"{key}_decode_bytes_per_s": round(decode),
        }
    settings = {"backend": codec.backend, "source": source, "group_size": group_size, "rounds": arguments.rounds}
    result = BenchmarkResult(benchmark=f"slotpack_codec_{source}", settings=settings, values=values)
    report(result, table=table, record=arguments.record)


def _rates(encode: Callable[[], bytes], frame: bytes, raw: bytes, rounds: int) -> tuple[float, float]:
    return best_rate(encode, len(raw), rounds), best_rate(lambda: slotpack.decode(frame), len(raw), rounds)


if __name__ == "__main__":
    main()
