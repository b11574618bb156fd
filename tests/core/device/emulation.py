"""Kernels compiled for the host: the very source a GPU gets, run by threads of the system."""

from __future__ import annotations

import ctypes
import itertools
import math
import shutil
import subprocess
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.errors import BackendError
from slotstream_core.experts.cuda_memory import function_address
from slotstream_core.models.qwen4_exp.device.kernels import HEADER, Kernel, KernelSpec, parameter_types
from slotstream_core.models.qwen4_exp.device.launching import NO_GRAPHS, GraphFunctions, Pinned

COMPILER = shutil.which("g++") or shutil.which("clang++")
SHIM = Path(__file__).with_name("emulated.h")


@dataclass
class Emulator:
    """A `KernelCompiler` for the host.

    Attributes:
        folder: Where sources and libraries go.
        launches: Names of the kernels run so far.
        spoil: What to replace in every source by what.
    """

    folder: Path
    launches: list[str] = field(default_factory=list)
    spoil: tuple[tuple[str, str], ...] = ()
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _built: dict[tuple[object, ...], ctypes.CDLL] = field(default_factory=dict)

    def __call__(self, spec: KernelSpec) -> Kernel:
        """Return the kernel of ``spec``; it is compiled when it first runs."""
        built: list[ctypes.CDLL] = []

        def run(*inputs: mx.array) -> list[mx.array]:
            mx.eval(inputs)
            assert len(inputs) == len(spec.inputs)
            held = [host_bytes(array) for array in inputs]
            results = [np.zeros(out.dtype.size * math.prod(out.shape) + 64, np.uint8) for out in spec.outputs]
            if not built:
                built.append(self.build(spec, [array.dtype for array in inputs]))
            pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*held, *results)]
            built[0].run(*pointers)
            self.launches.append(spec.name)
            return [
                mx.array(data[:-64].view(np.uint8)).view(output.dtype).reshape(output.shape)
                for data, output in zip(results, spec.outputs, strict=True)
            ]

        return run

    def build(self, spec: KernelSpec, dtypes: Sequence[mx.Dtype], placed: Collection[str] = ()) -> ctypes.CDLL:
        """A library with `run`, which takes an address an array, and `launched`, which takes what a launch does.

        The latter is given the addresses of arguments that are ``placed``.
        """
        body = spec.source
        for right, wrong in self.spoil:
            body = body.replace(right, wrong)
        key = (spec.key, body, tuple(dtypes), frozenset(placed))
        if key not in self._built:
            self._built[key] = self._compile(spec, dtypes, body, placed)
        return self._built[key]

    def _compile(self, spec: KernelSpec, dtypes: Sequence[mx.Dtype], body: str, placed: Collection[str]) -> ctypes.CDLL:
        types = parameter_types(spec, dtypes)
        given = ", ".join(f"{kind} given_{name}" for name, kind in types.items())
        return self.compiled(
            spec.name,
            f'#include "{SHIM}"\n{HEADER}\n'
            + "".join(f"static {kind} {name};\n" for name, kind in types.items())
            + f"static void kernel() {{\n{body}\n}}\n"
            + f'extern "C" void run({given}) {{\n'
            + "".join(f"  {name} = given_{name};\n" for name in types)
            + f"  launch({spec.blocks}, {spec.threads}, kernel);\n}}\n"
            + 'extern "C" int launched(void** arguments, int blocks, int threads) {\n'
            + f"  if (!arguments) return {len(types)};\n"
            + "".join(
                f"  {name} = {stars}({kind}{stars})arguments[{index}];\n"
                for index, (name, kind) in enumerate(types.items())
                for stars in ("**" if name in placed else "*",)
            )
            + f"  launch(blocks, threads, kernel);\n  return {len(types)};\n}}\n",
        )

    def compiled(self, name: str, text: str) -> ctypes.CDLL:
        """A library made from C++."""
        assert COMPILER is not None
        number = next(self._numbers)
        source, library = self.folder / f"{number}_{name}.cpp", self.folder / f"{number}_{name}.so"
        source.write_text(text)
        command = [COMPILER, "-std=c++17", "-O0", "-shared", "-fPIC", "-o", str(library), str(source)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return ctypes.CDLL(str(library))


LAUNCHER = """
#include <unistd.h>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>
struct grid { uint32_t x, y, z; };
static int refuse_from = -1, hang_from = -1, launches, fault, graphs, fail_graphs;
static const void* kernels[1 << 16];
// A launch of a graph has what its arguments were when it was captured.
struct node { const void* kernel; grid blocks, threads; std::vector<uint64_t> given; };
struct graph { std::vector<node> nodes; };
static graph* capturing;
// What was launched and has not run yet, where a thread runs it later. Never freed: it outlives what is static.
static std::mutex& door = *new std::mutex;
static std::condition_variable& news = *new std::condition_variable;
static std::deque<node>& waiting = *new std::deque<node>;
static int lag_us = -1;
static void run(const node& one) {
  std::vector<void*> given;
  for (const uint64_t& value : one.given) given.push_back(const_cast<uint64_t*>(&value));
  reinterpret_cast<int (*)(void**, int, int)>(const_cast<void*>(one.kernel))(given.data(), one.blocks.x, one.threads.x);
}
static void work() {
  std::unique_lock<std::mutex> inside(door);
  for (;; news.notify_all()) {
    news.wait(inside, [] { return !waiting.empty(); });
    const node one = waiting.front();
    const int pause = lag_us > 0 ? rand() % lag_us : 0;
    inside.unlock();
    if (pause > 0) usleep(pause);
    run(one);
    inside.lock();
    waiting.pop_front();
  }
}
static void drain() {
  std::unique_lock<std::mutex> inside(door);
  news.wait(inside, [] { return waiting.empty(); });
}
extern "C" int32_t launch(const void* kernel, grid blocks, grid threads, void** given, size_t shared, void* stream) {
  if (shared || blocks.y != 1 || blocks.z != 1 || threads.y != 1 || threads.z != 1 || stream != (void*)7) return 1;
  if (refuse_from == launches) return 719;
  // how many a kernel takes only the kernel knows
  const int count = reinterpret_cast<int (*)(void**, int, int)>(const_cast<void*>(kernel))(nullptr, 0, 0);
  node one = {kernel, blocks, threads, {}};
  for (int i = 0; i < count; i++) one.given.push_back(*(uint64_t*)given[i]);
  if (capturing) {
    capturing->nodes.push_back(one);
    return 0;
  }
  const bool hangs = hang_from >= 0 && launches >= hang_from;
  kernels[launches++ % (1 << 16)] = kernel;
  if (hangs) return 0;
  std::unique_lock<std::mutex> inside(door);
  if (lag_us < 0) return run(one), 0;
  waiting.push_back(one);
  news.notify_all();
  return 0;
}
extern "C" int32_t begin_capture(void* stream, int32_t mode) {
  if (stream != (void*)7 || mode != 2 || capturing) return 1;
  if (fail_graphs == 1) return 901;
  capturing = new graph;
  return 0;
}
extern "C" int32_t end_capture(void* stream, void** made) {
  if (stream != (void*)7 || !capturing) return 1;
  *made = capturing, graphs++, capturing = nullptr;
  return 0;
}
extern "C" int32_t instantiate(void** ready, void* made, uint64_t flags) {
  if (flags || fail_graphs == 2) return 2;
  *ready = new graph(*(graph*)made), graphs++;
  return 0;
}
extern "C" int32_t launch_graph(void* ready, void* stream) {
  if (fail_graphs == 3) return 719;
  for (node& one : ((graph*)ready)->nodes) {
    std::vector<void*> given;
    for (uint64_t& value : one.given) given.push_back(&value);
    const int32_t code = launch(one.kernel, one.blocks, one.threads, given.data(), 0, stream);
    if (code) return code;
  }
  return 0;
}
extern "C" int32_t destroy(void* made) {
  delete (graph*)made, graphs--;
  return 0;
}
extern "C" int left_graphs() { return graphs; }
extern "C" void fail_at(int step) { fail_graphs = step; }
struct attribute { int32_t id, unused; int32_t value[16]; };
struct config { grid blocks, threads; size_t shared; void* stream; const attribute* attributes; uint32_t count; };
extern "C" int32_t launch_early(const config* how, const void* kernel, void** given) {
  if (how->count != 1 || how->attributes->id != 6 || how->attributes->value[0] != 1) return 1;
  return launch(kernel, how->blocks, how->threads, given, how->shared, how->stream);
}
extern "C" int32_t query(void* stream) {
  std::unique_lock<std::mutex> inside(door);
  return stream != (void*)7 ? 1 : !waiting.empty() || (hang_from >= 0 && launches > hang_from) ? 600 : fault;
}
extern "C" void lag(int longest_us) {
  static std::thread* worker;
  drain();
  if (!worker) worker = new std::thread(work);
  lag_us = longest_us;
}
extern "C" int left_launches() {
  std::unique_lock<std::mutex> inside(door);
  return waiting.size();
}
extern "C" void hang(int from) { hang_from = from; }
extern "C" void refuse(int from) { refuse_from = from; }
extern "C" void fail(int code) { fault = code; }
extern "C" int launched(const void** where) {
  drain();
  for (int i = 0; where && i < launches; i++) where[i] = kernels[i];
  return launches;
}
extern "C" void forget() { launches = 0; }
"""


class EmulatedTarget:
    """A `LaunchTarget` on the host: a launch has run its kernel when it returns, unless it `lag`s.

    Args:
        emulator: Compiles the kernels.
        early: Whether launches say that they may begin early; they never do.
        graphs: Whether there are graphs.
    """

    stream = 7

    def __init__(self, emulator: Emulator, *, early: bool = False, graphs: bool = True) -> None:
        self._emulator = emulator
        self._launcher = emulator.compiled("launcher", LAUNCHER)
        self._names: dict[int, str] = {}
        self._kept: list[ctypes.CDLL] = []
        self.launch = function_address(self._launcher.launch)
        self.early = function_address(self._launcher.launch_early) if early else 0
        self.query = function_address(self._launcher.query)
        made = self._launcher
        functions = (
            made.begin_capture,
            made.end_capture,
            made.instantiate,
            made.launch_graph,
            made.destroy,
            made.destroy,
        )
        self.graphs = GraphFunctions(*map(function_address, functions)) if graphs else NO_GRAPHS

    def compile(self, spec: KernelSpec, dtypes: Sequence[mx.Dtype], placed: Collection[str]) -> int:
        """See `LaunchTarget.compile`."""
        try:
            library = self._emulator.build(spec, dtypes, placed)
        except RuntimeError as error:
            raise BackendError(f"compiling {spec.name} failed: {error}") from error
        self._kept.append(library)
        handle = function_address(library.launched)
        self._names[handle] = spec.name
        return handle

    def pinned(self, byte_count: int) -> Pinned:
        """See `LaunchTarget.pinned`."""
        room = np.zeros(byte_count + 64, np.uint8)
        data = room[-room.ctypes.data % 64 :][:byte_count]
        return Pinned(data=data, address=data.ctypes.data)

    def addresses(self, arrays: Sequence[mx.array]) -> list[int]:
        """See `LaunchTarget.addresses`."""
        mx.eval(list(arrays))
        found = []
        for array in arrays:
            view = memoryview(array)  # type: ignore[arg-type]
            if not view.c_contiguous or not view.nbytes:
                raise BackendError(f"an array of shape {array.shape} is empty, or its values do not lie together")
            found.append(np.frombuffer(view.cast("B"), np.uint8).ctypes.data)
        return found

    def launches(self) -> list[str]:
        """Names of the kernels launched since the last call; each run begins with `take_table`."""
        handles = (ctypes.c_void_p * self._launcher.launched(None))()
        self._launcher.launched(handles)
        self._launcher.forget()
        return [self._names[handle or 0] for handle in handles]

    def lag(self, longest_us: int) -> None:
        """Let another thread run what is launched from now on, in order, each so long after it may; -1: none."""
        self._launcher.lag(longest_us)

    def left_launches(self) -> int:
        """How many have not ended yet."""
        return int(self._launcher.left_launches())

    def refuse(self, *, from_launch: int) -> None:
        """Let the launch fail that comes after so many; -1: none."""
        self._launcher.refuse(from_launch)

    def hang(self, *, from_launch: int) -> None:
        """Let launches be accepted and never run that come after so many; -1: none."""
        self._launcher.hang(from_launch)

    def fail_graphs(self, step: int) -> None:
        """Let a step towards graphs fail: 1 capturing, 2 instantiating, 3 launching one; 0: none."""
        self._launcher.fail_at(step)

    def left_graphs(self) -> int:
        """How many there are, ready ones and others."""
        return int(self._launcher.left_graphs())

    def answer(self, code: int) -> None:
        """What a query says."""
        self._launcher.fail(code)


def host_bytes(array: mx.array) -> npt.NDArray[np.uint8]:
    """The bytes of an array, aligned as a device's are."""
    stored = np.array(mx.contiguous(array).view(mx.uint8)).reshape(-1)
    room = np.zeros(stored.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    room[start : start + stored.nbytes] = stored
    return room[start : start + stored.nbytes]
