"""Where the time of a pull from loopback goes: hashing, decoding, writing, receiving, and everything else.

A synthetic model is packed and served by another process; the pull runs with timers around its parts.  CPU time is that
of all threads of the pulling process; the server's is not counted.  Wall time is summed over threads, so that waiting
for the disk shows.  Setting up connections is part of "other" and does not grow with the model.
"""

import argparse
import functools
import hashlib
import http.server
import json
import multiprocessing
import os
import pathlib
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx

from benchmarks.offline.slotpack_codec import synthetic_block
from benchmarks.recording import BenchmarkResult, format_table, report
from slotpack import codec, resume
from slotpack.catalog import model_from_package
from slotpack.packing import pack_model
from slotpack.pulling import PullOptions, pull


class Timers:
    """CPU seconds per part, summed over threads."""

    def __init__(self) -> None:
        self.cpu_s: dict[str, float] = {}
        self.wall_s: dict[str, float] = {}
        self._lock = threading.Lock()

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its CPU time added to a part."""

        @functools.wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            begin, wall = time.thread_time(), time.monotonic()
            try:
                return function(*arguments, **options)
            finally:
                spent, waited = time.thread_time() - begin, time.monotonic() - wall
                with self._lock:
                    self.cpu_s[part] = self.cpu_s.get(part, 0.0) + spent
                    self.wall_s[part] = self.wall_s.get(part, 0.0) + waited

        return timed


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """A file handler that keeps connections alive and writes no log."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:
        """Write nothing."""


def serve(directory: str, port: Any) -> None:
    """Serve a directory until the process is ended."""
    handler = functools.partial(QuietHandler, directory=directory)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        port.value = server.server_address[1]
        server.serve_forever()


def write_model(directory: pathlib.Path, blocks: int, weight_bytes: int) -> None:
    """Write a safetensors file of quantised matrices."""
    directory.mkdir()
    header: dict[str, object] = {}
    bodies: list[bytes] = []
    offset = 0
    for number in range(blocks):
        raw = synthetic_block(weight_bytes, seed=number)
        groups = weight_bytes // 32
        cuts = {"weight": ("U32", 0, weight_bytes), "scales": ("BF16", weight_bytes, 2 * groups)}
        cuts["biases"] = ("BF16", weight_bytes + 2 * groups, 2 * groups)
        for name, (dtype, begin, length) in cuts.items():
            shape = [length // (4 if dtype == "U32" else 2)]
            header[f"layers.{number}.{name}"] = {
                "dtype": dtype,
                "shape": shape,
                "data_offsets": [offset + begin, offset + begin + length],
            }
        bodies.append(raw)
        offset += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(bodies)


def measure(root: pathlib.Path, base: str, connections: int) -> tuple[Timers, float, int]:
    """Pull with timers; return them, the wall seconds of the pull, and the model's bytes."""
    model = model_from_package(root / "package", name="bench", directory_name="bench", margin_bytes=0)
    remote = type(model)(**{**vars(model), "package_bases": (base,)})
    timers = Timers()
    originals = (codec.decode_many, resume.PartFile.hash, resume.PartFile.write, resume.PartFile.sync)
    sha256, iter_raw = hashlib.sha256, httpx.Response.iter_raw
    codec.decode_many = timers.around("decode", codec.decode_many)
    resume.PartFile.hash = timers.around("hash", resume.PartFile.hash)  # type: ignore[method-assign]
    resume.PartFile.write = timers.around("write", resume.PartFile.write)  # type: ignore[method-assign]
    resume.PartFile.sync = timers.around("write", resume.PartFile.sync)  # type: ignore[method-assign]
    hashlib.sha256 = lambda data=b"", **more: timers.around("hash", sha256)(data, **more)  # type: ignore[assignment]

    def timed_pieces(response: httpx.Response) -> Any:
        pieces = iter_raw(response)
        take = timers.around("receive", lambda: next(pieces, None))
        while (piece := take()) is not None:
            yield piece

    httpx.Response.iter_raw = timed_pieces  # type: ignore[assignment,method-assign]
    begin, cpu = time.monotonic(), time.process_time()
    try:
        pull(remote, root / "copy", options=PullOptions(connections=connections))
    finally:
        codec.decode_many = originals[0]
        resume.PartFile.hash, resume.PartFile.write, resume.PartFile.sync = originals[1:]  # type: ignore[method-assign]
        hashlib.sha256, httpx.Response.iter_raw = sha256, iter_raw  # type: ignore[misc,method-assign]
    wall, total = time.monotonic() - begin, time.process_time() - cpu
    timers.cpu_s["other"] = total - sum(timers.cpu_s.values())
    return timers, wall, model.model_bytes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--weight-mib", type=int, default=16)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write_model(root / "model", arguments.blocks, arguments.weight_mib * 2**20)
        pack_model(root / "model", root / "package", workers=os.cpu_count() or 1)
        port = multiprocessing.Value("i", 0)
        process = multiprocessing.Process(target=serve, args=(str(root / "package"), port), daemon=True)
        process.start()
        try:
            while port.value == 0:
                time.sleep(0.01)
            timers, wall, size = measure(root, f"http://127.0.0.1:{port.value}", arguments.connections)
        finally:
            process.terminate()
            process.join()
    parts = timers.cpu_s
    total = sum(parts.values())
    order = sorted(parts, key=lambda part: -parts[part])
    rows = [
        (part, f"{parts[part]:.2f}", f"{100 * parts[part] / total:.0f}%", f"{timers.wall_s.get(part, 0.0):.2f}")
        for part in order
    ]
    table = format_table(("part", "CPU s", "share", "wall s"), rows)
    table += f"\n{size / 1e6:.0f} MB of model in {wall:.2f} s: {size / wall / 1e6:.0f} MB/s"
    values: dict[str, int | float] = {"model_bytes": size, "wall_s": round(wall, 3)}
    values |= {f"{part}_cpu_s": round(seconds, 4) for part, seconds in parts.items()}
    values |= {f"{part}_wall_s": round(seconds, 4) for part, seconds in timers.wall_s.items()}
    settings = {"backend": codec.backend, "connections": arguments.connections, "blocks": arguments.blocks}
    report(
        BenchmarkResult(benchmark="slotpack_pull", settings=settings, values=values),
        table=table,
        record=arguments.record,
    )


if __name__ == "__main__":
    main()
