"""Kernels launched one after the other by one call, from a table of their arguments, without MLX in between.

MLX takes ten microseconds to hand a kernel over; the CUDA runtime, called from C, takes two or three. So a `Program`
keeps what is launched each time: kernels, grids, and arguments. A run launches a range of it on a stream of its own,
from its second time on as one CUDA graph, which the device need not fetch over its bus. What a graph is given stays as
it is, so what changes between runs stands in a table, which every run takes onto the device first, and kernels look it
up there. Numbers come back through a `Signal`, a word that a kernel writes into memory of the host.

Between MLX's work and a program's, the caller keeps order: arrays that a program reads are evaluated before it runs,
and what it writes has been waited for before MLX reads it. An array whose address a program knows must not be viewed by
the host (`np.array`, `item`, `memoryview`): on a GPU, MLX would move its memory elsewhere.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import Final, NamedTuple, Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.errors import BackendError, DeviceHung
from slotstream_core.models.qwen4_exp.device.kernels import KernelKey, KernelSpec, Output

SIGNAL_TIMEOUT_S = 60.0
"""Longest wait for a number: a device that takes longer has hung."""

TIMEOUT, ENDED = -1, -2  # what `await_number` returns without the number, besides codes of CUDA


TAKE = """
  // two words a thread, so that those of a usual program come over the bus all at once
  for (int i = threadIdx.x; i < pairs; i += blockDim.x)
    reinterpret_cast<uint4*>(table)[i] = reinterpret_cast<const uint4*>(sent)[i];
  __syncthreads();
  if (threadIdx.x == 0) taken[0] = (unsigned int)table[0];
"""
TAKE_THREADS = 512


class GraphFunctions(NamedTuple):
    """Addresses of the functions by which ranges of launches become graphs, with the signatures of CUDA's; 0: none."""

    begin_capture: int
    end_capture: int
    instantiate: int
    launch: int
    destroy_ready: int
    destroy: int


NO_GRAPHS: Final = GraphFunctions(0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pinned:
    """Memory of the host that kernels read and write, too.

    Attributes:
        data: As the host sees it; keeps the memory alive.
        address: As kernels see it.
    """

    data: npt.NDArray[np.uint8]
    address: int


class LaunchTarget(Protocol):
    """What runs kernels."""

    @property
    def launch(self) -> int:
        """Address of a function with the signature of `cudaLaunchKernel`."""

    @property
    def early(self) -> int:
        """Address of one with that of `cudaLaunchKernelExC`, where blocks may begin before the kernel before ended.

        0 elsewhere. The target's kernels wait for that one themselves before they do anything.
        """

    @property
    def query(self) -> int:
        """Address of one with that of `cudaStreamQuery`."""

    @property
    def stream(self) -> int:
        """What they are given."""

    @property
    def graphs(self) -> GraphFunctions:
        """What makes graphs; `NO_GRAPHS` where nothing does."""

    def compile(self, spec: KernelSpec, dtypes: Sequence[mx.Dtype], placed: Collection[str]) -> int:
        """Return the handle of a kernel whose inputs have these types; it stays valid as long as this object.

        Called by several threads at once.

        Args:
            spec: The kernel.
            dtypes: Of its inputs.
            placed: Names of the arguments instead of which it is given where they stand.

        Raises:
            BackendError: Its source is refused.
        """

    def pinned(self, byte_count: int) -> Pinned:
        """Return zeroed memory of the host that kernels reach."""

    def addresses(self, arrays: Sequence[mx.array]) -> list[int]:
        """Return where kernels find the first value of each array, which is evaluated first and stays where it is.

        Raises:
            BackendError: One is empty, or its values do not lie one after another.
        """


KernelVersion = tuple[KernelSpec, tuple[mx.Dtype, ...], frozenset[str]]
"""A kernel, the types of its inputs, and the names of the arguments that it looks up."""


class LaunchedKernels:
    """The kernels of one target, each version compiled once.

    Args:
        target: What compiles and runs them.

    Raises (constructor):
        BackendError: The package was installed without a compiler, so that nothing can launch.
    """

    def __init__(self, target: LaunchTarget) -> None:
        self.target = target
        try:
            self.native = importlib.import_module("slotstream_core._native")
        except ImportError as error:
            raise BackendError(f"kernels cannot be launched without the native library: {error}") from error
        self._handles: dict[tuple[KernelKey, tuple[mx.Dtype, ...], frozenset[str]], int] = {}

    def handles(self, wanted: Sequence[KernelVersion]) -> list[int]:
        """Versions of kernels; those that are new are compiled side by side.

        Raises:
            BackendError: A source is refused.
        """
        keys = [(spec.key, dtypes, placed) for spec, dtypes, placed in wanted]
        missing = {key: each for key, each in zip(keys, wanted, strict=True) if key not in self._handles}
        if missing:
            with ThreadPoolExecutor(max_workers=min(len(missing), os.cpu_count() or 1)) as threads:
                made = list(threads.map(lambda each: self.target.compile(*each), missing.values()))
            self._handles.update(zip(missing, made, strict=True))
        return [self._handles[key] for key in keys]

    def program(self) -> Program:
        """An empty program."""
        return Program(self)

    def signal(self) -> Signal:
        """A word that holds 0."""
        return Signal(self.target, self.native)


class Signal:
    """A word of 32 bits in memory of the host, by which a kernel says how far it is.

    Args:
        target: What runs the kernel.
        native: The compiled module.

    Attributes:
        address: Of the word, for kernels.
    """

    def __init__(self, target: LaunchTarget, native: ModuleType) -> None:
        self._memory = target.pinned(4)
        self._word = self._memory.data.view(np.uint32)
        self._native, self._query, self._stream = native, target.query, target.stream
        self.address = self._memory.address

    def wait(self, number: int, *, timeout_s: float = SIGNAL_TIMEOUT_S) -> None:
        """Return when the word is ``number`` (its lowest 32 bits), without letting the processor sleep.

        Raises:
            DeviceHung: It took too long. Kernels may still be at work: nothing that they use may be freed or reused.
            BackendError: The device failed, or everything launched ended without that number.
        """
        code = self._native.await_number(self.address, number, timeout_s, self._query, self._stream)
        if code:
            raise self.failure(code, number, timeout_s=timeout_s)

    def drain(self) -> None:
        """Return when nothing is under way on the stream any more, whether it is done or failed.

        Raises:
            DeviceHung: See `wait`.
        """
        never = int(self._word[0]) - 1  # numbers only grow
        code = self._native.await_number(self.address, never, SIGNAL_TIMEOUT_S, self._query, self._stream)
        if code == TIMEOUT:
            raise self.failure(code, never + 2)

    def failure(self, code: int, number: int, *, timeout_s: float = SIGNAL_TIMEOUT_S) -> DeviceHung | BackendError:
        """What compiled code means that did not see ``number`` and returned ``code``."""
        if code == TIMEOUT:
            return DeviceHung(
                f"the GPU has not answered for {timeout_s:g} s (kernels have not reached the number {number}); end "
                "this process and start it again, and look for the reason in the system's log"
            )
        if code == ENDED:
            return BackendError(f"kernels ended with the number {self._word[0]} instead of {number}")
        return BackendError(f"a kernel failed: the CUDA runtime says {code}; see its list of error codes")


def keep_for_ever(*objects: object) -> None:
    """Let objects never be freed, nor what they refer to: a device that does not answer may still write there."""
    for each in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """An argument that changes between runs: the address of an array, or a number.

    Attributes:
        name: For messages.
        index: In the table of its program.
        dtype: Of the array's values; None for a number.
    """

    name: str
    index: int
    dtype: mx.Dtype | None


Argument = mx.array | Place | int
"""An array that the program keeps alive, a place, or a number: the address of pinned memory, or a value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Launch:
    """A launch; its arguments are places, or where they stand among the constants of their program."""

    version: KernelVersion
    arguments: tuple[Place | int, ...]


class _Table:
    """Where a compiled program finds what changes between runs.

    Args:
        kernels: Compiles and runs kernels.
        array: On the device, uint64, an even number of words; not evaluated by anybody else.

    Attributes:
        array: As given.
        sent: What a run takes, in memory of the host.
        taken: Tells the number of the run that was taken last.
    """

    def __init__(self, kernels: LaunchedKernels, array: mx.array) -> None:
        self.array = array
        self.sent = kernels.target.pinned(array.nbytes)
        self.taken = kernels.signal()
        self.spec = KernelSpec(
            name="take_table",
            inputs=("sent",),
            outputs=(
                Output(name="table", shape=array.shape, dtype=mx.uint64),
                Output(name="taken", shape=(1,), dtype=mx.uint32),
            ),
            constants={},
            body=TAKE,
            blocks=1,
            threads=TAKE_THREADS,
            values=("pairs",),
        )


class Program:
    """Launches in order. Not for several threads at once.

    Args:
        kernels: Where its kernels come from.
    """

    def __init__(self, kernels: LaunchedKernels) -> None:
        self._kernels, self._native = kernels, kernels.native
        self._compiled: object | None = None  # of what was added so far
        self._launches: list[_Launch] = []
        self._constants: list[int] = []
        self._arrays: dict[int, tuple[mx.array, int]] = {}  # by identity, each with its place among the constants
        self._unresolved: list[tuple[mx.array, int]] = []
        self._words = np.zeros(64, np.uint64)  # of places; the first is the run's number
        self._used = 1
        self._held: dict[int, mx.array] = {}  # what places refer to
        self._tables: list[_Table] = []  # the last one is in use; runs under way may still look others up

    def place(self, name: str, dtype: mx.Dtype | None = None) -> Place:
        """A new argument that holds 0 until it is set; with a type it is the address of an array."""
        if self._used == len(self._words):
            self._words = np.concatenate([self._words, np.zeros_like(self._words)])
        self._used += 1
        self._compiled = None
        return Place(name=name, index=self._used - 1, dtype=dtype)

    def scratch(self, shape: Sequence[int], dtype: mx.Dtype) -> mx.array:
        """A new array of zeros for launches to write and read."""
        return mx.contiguous(mx.zeros(tuple(shape), dtype=dtype))

    def add(self, spec: KernelSpec, *arguments: Argument) -> None:
        """Append a launch.

        Args:
            spec: The kernel.
            *arguments: Its inputs, its outputs and its values. Arrays must have the types of the outputs.

        Raises:
            BackendError: The arguments are not what the kernel takes.
        """
        names = (*spec.inputs, *(output.name for output in spec.outputs), *spec.values)
        if len(arguments) != len(names):
            raise BackendError(f"{spec.name} takes {len(names)} arguments, not {len(arguments)}: {', '.join(names)}")
        inputs, rest = arguments[: len(spec.inputs)], arguments[len(spec.inputs) :]
        dtypes = tuple(_dtype(spec, name, argument) for name, argument in zip(spec.inputs, inputs, strict=True))
        for output, argument in zip(spec.outputs, rest, strict=False):
            if not isinstance(argument, int) and argument.dtype != output.dtype:
                raise BackendError(f"{output.name} of {spec.name} is {output.dtype}, and was given {argument.dtype}")
        for name, argument in zip(spec.values, rest[len(spec.outputs) :], strict=True):
            if isinstance(argument, mx.array) or (isinstance(argument, Place) and argument.dtype is not None):
                raise BackendError(f"{name} of {spec.name} is a number, and was given an array")
        placed = frozenset(n for n, argument in zip(names, arguments, strict=True) if isinstance(argument, Place))
        found = tuple(each if isinstance(each, Place) else self._constant(each) for each in arguments)
        self._launches.append(_Launch(version=(spec, dtypes, placed), arguments=found))
        self._compiled = None

    def mark(self) -> int:
        """How many launches there are: where the next one begins."""
        return len(self._launches)

    def set(self, place: Place, value: int) -> None:
        """Give a place a number, or an address, for the runs to come."""
        self._words[place.index] = value & 0xFFFFFFFFFFFFFFFF
        self._held.pop(place.index, None)

    def point(self, places: Sequence[Place], arrays: Sequence[mx.array]) -> None:
        """Give places the addresses of arrays, and keep these alive until others come.

        Raises:
            BackendError: An array has another type than its place, or no address.
        """
        for place, array in zip(places, arrays, strict=True):
            if array.dtype != place.dtype:
                raise BackendError(f"{place.name} is of {place.dtype}, and was given an array of {array.dtype}")
        for place, array, address in zip(places, arrays, self._kernels.target.addresses(arrays), strict=True):
            self._words[place.index] = address
            self._held[place.index] = array

    def entries(self, places: Sequence[Place]) -> npt.NDArray[np.uint64]:
        """What places that follow each other hold, to be written before a run. Valid until something is added.

        The caller keeps arrays alive whose addresses it writes.

        Raises:
            BackendError: They do not follow each other.
        """
        first = places[0].index
        if [place.index for place in places] != list(range(first, first + len(places))):
            raise BackendError("these places do not follow each other in their program")
        return self._words[first : first + len(places)]

    def run(self, first: int = 0, last: int | None = None) -> None:
        """Launch those from ``first`` up to ``last``, all of them otherwise, and return before they are done.

        The first run, and the first after something was added, compiles kernels, asks for the addresses of arrays,
        and is slow; so is the second of the same range, which becomes a graph.

        Raises:
            BackendError: There are no such launches, or a kernel, an array or a launch is refused.
            DeviceHung: The run before has not begun yet.
        """
        end = len(self._launches) if last is None else last
        if not 0 <= first <= end <= len(self._launches):
            raise BackendError(f"launches {first} to {end} are not among the {len(self._launches)} of the program")
        refused = self._native.launch(self.compiled, first, end)
        if refused is not None:
            raise self.refusal(*refused)

    @property
    def compiled(self) -> object:
        """The launches for functions of the compiled module; compiles what is new, as the first `run` does.

        Raises:
            BackendError: A kernel or an array is refused.
        """
        if self._compiled is None:
            self._compile()
        return self._compiled

    def refusal(self, number: int, code: int) -> BackendError | DeviceHung:
        """What compiled code means that could not make a launch, by its number, and returned ``code``."""
        if number < len(self._launches):
            name = self._launches[number].version[0].name
        elif code in (TIMEOUT, ENDED):
            return self._tables[-1].taken.failure(code, int(self._words[0]), timeout_s=SIGNAL_TIMEOUT_S)
        else:
            name = self._tables[-1].spec.name
        return BackendError(f"launching {name} failed: the CUDA runtime says {code}")

    def _compile(self) -> None:
        """Compile what is new and ask for the addresses of new arrays, together, and describe all launches."""
        target = self._kernels.target
        words = self._used + self._used % 2
        table = _Table(self._kernels, self.scratch((words,), mx.uint64))
        self._tables.append(table)
        at_table, *found = target.addresses([table.array, *(array for array, _ in self._unresolved)])
        for (_, index), address in zip(self._unresolved, found, strict=True):
            self._constants[index] = address
        self._unresolved.clear()
        take: KernelVersion = table.spec, (mx.uint64,), frozenset()
        handles = self._kernels.handles([*(launch.version for launch in self._launches), take])
        own = [table.sent.address, at_table, table.taken.address, words // 2]
        first_place = len(own) + len(self._constants)
        constants = [*own, *self._constants, *(at_table + 8 * index for index in range(words))]
        launches, indices = np.zeros((len(handles), 5), np.int64), list[int]()
        for row, launch, handle in zip(launches, self._launches, handles, strict=False):
            spec = launch.version[0]
            row[:] = handle, spec.blocks, spec.threads, len(indices), len(launch.arguments)
            indices += [
                first_place + each.index if isinstance(each, Place) else len(own) + each for each in launch.arguments
            ]
        launches[-1] = handles[-1], table.spec.blocks, table.spec.threads, len(indices), len(own)
        indices += range(len(own))
        functions = (target.launch, target.early, target.query, *target.graphs)
        self._compiled = self._native.program(
            *(functions, target.stream, launches, np.array(indices, np.int32), np.array(constants, np.uint64)),
            *(self._words[:words], table.sent.address, table.taken.address, SIGNAL_TIMEOUT_S),
        )

    def _constant(self, argument: mx.array | int) -> int:
        """Where an argument stands among the constants."""
        if isinstance(argument, int):
            self._constants.append(argument & 0xFFFFFFFFFFFFFFFF)
            return len(self._constants) - 1
        if id(argument) not in self._arrays:
            self._constants.append(0)
            self._arrays[id(argument)] = argument, len(self._constants) - 1
            self._unresolved.append(self._arrays[id(argument)])
        return self._arrays[id(argument)][1]


def _dtype(spec: KernelSpec, name: str, argument: Argument) -> mx.Dtype:
    dtype = None if isinstance(argument, int) else argument.dtype
    if dtype is None:
        raise BackendError(f"{name} of {spec.name} is an array, and was given a number")
    return dtype
