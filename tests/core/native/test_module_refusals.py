"""Arguments that look right one by one and are not: refused by `_native`, with nothing written."""

import ctypes
from itertools import combinations

import numpy as np
import pytest

from slotstream_core.experts.integrity import UNMAPPED
from slotstream_core.experts.residency import Count
from slotstream_core.native.binding import library_path
from slotstream_core.native.checking import random_matrix
from slotstream_core.native.lanes import PieceKindStructure
from tests.core.native.fuzz_maker import Maker
from tests.core.native.fuzz_recipes import advance_delta, forecast, foresee

if library_path() is None:
    pytest.skip("installed without a compiler", allow_module_level=True)

from slotstream_core import _native


def test_sizes_whose_product_is_no_number_are_refused() -> None:
    values, out = np.ones(64, np.float32), np.zeros(64, np.float32)
    for kv_heads, dim in ((2**32, 2**32), (2**62, 2), (2**63 - 1, 2**63 - 1)):
        with pytest.raises(ValueError, match="attend: "):
            _native.attend(values, values, values, kv_heads, dim, 1, None, 1.0, out.copy(), 0, 0, out)
    rows = np.ones((2, 8), np.float32)
    with pytest.raises(ValueError, match="too large"):
        _native.mix_streams(rows, rows, 2**62, rows.copy())
    with pytest.raises(ValueError, match="too large"):
        _native.convolve(rows, rows, np.ones((3, 8), np.float32), 2**62, rows.copy())


def test_rows_of_no_width_take_no_time_however_many_they_are() -> None:
    none = np.zeros((2**40, 0), np.float32)
    _native.mix_streams(none, none, 3, none)
    _native.inject(none, none, none, none)
    _native.silu_multiply(none, none, none)


def test_what_is_made_of_no_values_is_still_written() -> None:
    out = np.full((2, 4), 7, np.float32)
    none, shared = np.zeros((2, 0), np.float32), np.ones((2, 4), np.float32)
    _native.combine(shared, np.zeros((2, 1), np.float32), none, np.zeros((0, 4), np.float32), out)
    assert (out == 0.5).all()
    _native.score_blocks(none, np.ones((4, 4), np.float32), 1.0, out)
    assert not out.any()


def test_indices_that_a_call_would_write_over_are_refused() -> None:
    memory = np.zeros(64, np.float32)
    chosen, out = memory[32:36].view(np.int32), memory[32:64]
    keys = np.ones((1, 4, 32), np.float32)
    with pytest.raises(ValueError, match="shares memory with the indices"):
        _native.attend(keys[0, 0], keys, keys, 1, 32, 4, chosen, 1.0, np.zeros(4, np.float32), 0, 1, out)
    matrix, _ = random_matrix(np.random.default_rng(0), (2, 32, 32), bits=4, group_size=32)
    rows, address = np.zeros((3, 32), np.float32), ctypes.addressof(matrix.structure)
    slots = rows.reshape(-1)[90:93].view(np.int32).reshape(3, 1)
    with pytest.raises(ValueError, match="shares memory with the indices"):
        _native.experts(1, address, address, address, np.ones((3, 32), np.float32), slots, rows)
    assert not memory.any()
    assert not rows.any()


def test_a_forecast_without_ranks_is_refused() -> None:
    path = library_path()
    assert path is not None
    args = foresee(Maker(_native, ctypes.CDLL(str(path)), seed=3))
    args[3], args[4] = args[3][:, :0].copy(), args[4][:0].copy()
    with pytest.raises(ValueError, match="foresee: .*ranks"):
        _native.foresee(*args)


def test_a_router_of_another_width_is_refused() -> None:
    path = library_path()
    assert path is not None
    maker = Maker(_native, ctypes.CDLL(str(path)), seed=3)
    args = forecast(maker)
    experts = args[3].shape[1]
    for rows, columns in ((experts + 1, 32), (experts, 32 * 1000)):
        matrix, _ = random_matrix(np.random.default_rng(0), (rows, columns), bits=4, group_size=32)
        args[4] = ctypes.addressof(matrix.structure)
        with pytest.raises(ValueError, match="forecast: .*router does not fit"):
            _native.forecast(*args)


def test_a_history_in_the_memory_that_it_begins_with_is_refused() -> None:
    path = library_path()
    assert path is not None
    maker = Maker(_native, ctypes.CDLL(str(path)), seed=3)
    args = advance_delta(maker)
    while args[6] is None:
        args = advance_delta(maker)
    memory, history = args[5], args[6]
    both = np.zeros(history.size + memory.size, np.float32)
    args[6] = both[: history.size].reshape(history.shape)
    args[5] = both[history.size - 1 : -1].reshape(memory.shape)
    with pytest.raises(ValueError, match="advance_delta: .* shares memory"):
        _native.advance_delta(*args)
    assert not both.any()


def test_a_grant_whose_arrays_share_memory_is_refused() -> None:
    counts = np.zeros(len(Count), np.int64)
    counts[[Count.IDLE, Count.FREE]] = 4
    empty, free = np.full(4, UNMAPPED, np.int32), np.arange(4, dtype=np.int32)[::-1].copy()
    holds = np.zeros(4, np.int32)
    books = (
        empty[:2].copy(),
        empty[:2].copy(),
        np.zeros(2, np.uint8),
        np.zeros(2, np.int64),
        empty,
        holds,
        np.zeros(4, np.uint8),
        free,
    )
    kinds = np.zeros(ctypes.sizeof(PieceKindStructure), np.uint8)
    made = _native.residency(*books, counts, kinds, None, 1)  # type: ignore[arg-type]
    sizes = (2, 2, 3, 6)  # ids, slots, held, records
    for one, other in combinations(range(4), 2):
        arrays = [np.zeros(size, np.int32) for size in sizes]
        both = np.zeros(sizes[one] + sizes[other] - 1, np.int32)
        arrays[one], arrays[other] = both[: sizes[one]], both[sizes[one] - 1 :]
        arrays[0][:] = 0, 1
        with pytest.raises(ValueError, match="two arrays share memory"):
            _native.grant(made, 0, 0, *arrays)
    assert not holds.any()
    assert _native.grant(made, 0, 0, *(np.array([0, 1][:size] + [0] * (size - 2), np.int32) for size in sizes)) == (
        2,
        0,
    )


def test_a_matrix_or_a_pool_that_is_not_there_is_refused() -> None:
    x, out = np.ones((1, 32), np.float32), np.zeros((1, 4), np.float32)
    matrix, _ = random_matrix(np.random.default_rng(0), (4, 32), bits=4, group_size=32)
    refused = "{}: a matrix is missing or was refused"
    for pool, address, words in (
        (0, ctypes.addressof(matrix.structure), "no pool"),
        (1, 0, refused.format("multiply")),
    ):
        with pytest.raises(ValueError, match=words):
            _native.multiply(pool, address, x, out)
    with pytest.raises(ValueError, match=refused.format("is_narrow")):
        _native.is_narrow(0)
    with pytest.raises(ValueError, match=refused.format("layer")):
        _native.layer((0, 0, 0, x[0], 1, 1e-6), (), (), 0, None, None, ())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a reader is not a tuple"):
        _native.layer(None, None, (), 0, None, None, ())  # type: ignore[arg-type]


def test_values_between_their_places_are_refused() -> None:
    memory = memoryview(bytearray(65))[1:].cast("f")
    with pytest.raises(ValueError, match="not float32"):
        _native.silu(memory)  # type: ignore[arg-type]
