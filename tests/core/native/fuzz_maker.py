"""What right arguments are drawn from: numbers, arrays, and descriptions of matrices in C."""

import ctypes
import os
import random
import tempfile
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from slotstream_core.experts.copy_kernel import Grid
from slotstream_core.native.binding import MatrixStructure
from slotstream_core.native.lanes import LaneSettings

Array = npt.NDArray[Any]

LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, Grid, Grid, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
)
EARLY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
QUERY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
BEGIN = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32)
END = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
MAKE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_uint64)


class Address(int):
    """Of something in C that its owner keeps valid; 0 for nothing. Not any other number can be tried in its place."""


class Maker:
    """Random arguments. Every array has memory of exactly its own size, so that a step outside is noticed."""

    def __init__(self, module: ModuleType, library: ctypes.CDLL, seed: int) -> None:
        self.module = module
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.kept: list[Any] = []
        self.matrices: list[Address] = []
        pool = ctypes.c_void_p()
        variant = self.random.choice([i for i in range(8) if library.ss_variant_runnable(i)])
        assert library.ss_pool_create(2, variant, ctypes.byref(pool)) == 0
        self.pool = Address(pool.value or 0)
        self.lasting: list[Any] = []
        with tempfile.TemporaryFile() as file:
            file.write(bytes(1024))
            file.flush()
            self.zeros = os.dup(file.fileno())
        self.lanes = self._open_lanes(library)
        refusing = LAUNCH(lambda *_: self.up_to(9, 0) // 9), EARLY(lambda *_: self.up_to(9, 0) // 9)
        graphs = BEGIN(lambda *_: self.up_to(9, 0) // 9), END(self._capture), MAKE(self._instantiate)
        functions = (*refusing, QUERY(lambda _: 0), *graphs, END(lambda *_: 0), QUERY(lambda _: 0), QUERY(lambda _: 0))
        self.lasting.append(functions)
        self.launch, self.early, self.query, *self.graphs = (
            Address(ctypes.cast(function, ctypes.c_void_p).value or 0) for function in functions
        )

    def _capture(self, stream: int, graph: Any) -> int:
        graph[0] = self.up_to(1, 0)
        return self.up_to(9, 0) // 9

    def _instantiate(self, ready: Any, graph: int, flags: int) -> int:
        ready[0] = 1
        return self.up_to(9, 0) // 9

    def _open_lanes(self, library: ctypes.CDLL) -> Address:
        scratch = np.zeros(4 * 4096, np.uint8)
        self.lasting.append(scratch)
        start = scratch.__array_interface__["data"][0]
        start += -start % 64
        settings = LaneSettings(
            demand_lanes=1,
            ahead_lanes=1,
            alignment=1,
            merge_bytes=4096,
            job_bytes=4096,
            staging=1,
            scratch=start,
            scratch_bytes=4096,
            scratch_stride=4096,
            ahead_scratch=start + 2 * 4096,
            ahead_scratch_bytes=4096,
            ahead_scratch_stride=4096,
        )
        lanes = ctypes.c_void_p()
        assert library.ss_lanes_create(ctypes.byref(settings), ctypes.byref(lanes)) == 0
        return Address(lanes.value or 0)

    def up_to(self, most: int, least: int = 1) -> int:
        return self.random.randint(least, most)

    def floats(self, *shape: int) -> Array:
        return self.numbers.standard_normal(shape).astype(np.float32)

    def spread(self, rows: int, width: int) -> Array:
        """Rows that may have something between them."""
        return self.floats(rows, width + self.random.choice((0, 0, 1, 5)))[:, :width]

    def ids(self, below: int, *shape: int) -> Array:
        return self.numbers.integers(0, below, shape).astype(np.int32)

    def matrix(self, rows: int, columns: int, members: int = 1) -> Address:
        """That of a description; quantised where the columns allow it, mostly."""
        groups = [group for group in (32, 64, 128) if columns % group == 0]
        bits, group, kind = 0, 0, self.random.choice((np.float32, np.uint16))
        if groups and self.random.random() < 0.8:
            bits, group = self.random.choice((4, 8)), self.random.choice(groups)
            arrays = [self.numbers.integers(0, 2**32, (members, rows, columns * bits // 32)).astype(np.uint32)]
            for _ in range(2):
                values = self.floats(members, rows, columns // group)
                arrays.append(values if kind is np.float32 else (values.view(np.uint32) >> 16).astype(np.uint16))
        else:
            values = self.floats(members, rows, columns)
            arrays = [values if kind is np.float32 else (values.view(np.uint32) >> 16).astype(np.uint16)]
        places = [array.__array_interface__["data"][0] for array in arrays]
        structure = MatrixStructure(
            weight=places[0],
            scales=places[1] if bits else None,
            biases=places[2] if bits else None,
            weight_bytes=arrays[0].nbytes,
            scales_bytes=arrays[1].nbytes if bits else 0,
            members=members,
            rows=rows,
            columns=columns,
            bits=bits,
            group=group,
            type=0 if kind is np.float32 else 1,
        )
        self.kept.append((arrays, structure))
        self.matrices.append(Address(ctypes.addressof(structure)))
        return self.matrices[-1]

    def spoiled(self, address: Address) -> Address:
        """That of the same description with something wrong that can be seen from it; or none at all."""
        if self.random.random() < 0.2:
            return Address(0)
        spoiled = MatrixStructure.from_buffer_copy(MatrixStructure.from_address(address))
        name, values = self.random.choice(
            (
                ("weight", (None,)),
                ("scales", (None, 1)) if spoiled.bits else ("scales", (16,)),
                ("biases", (None, 1)) if spoiled.bits else ("biases", (16,)),
                ("weight_bytes", (0, -1, spoiled.weight_bytes - 1)),
                ("members", (0, -1, 2**31, 2**62)),
                ("rows", (0, -1, spoiled.rows + 1, 2**41, 2**62)),
                ("columns", (0, -1, spoiled.columns + 128, 2**41, 2**62)),
                ("bits", (1, 3, 16, -4)),
                ("group", (1, 16, 96, -32, 2**31 - 1)),
                ("type", (2, -1)),
            )
        )
        setattr(spoiled, name, self.random.choice(values))
        self.kept.append(spoiled)
        return Address(ctypes.addressof(spoiled))
