"""What layers computed on the host are made of: compiled pieces, their matrices, threads and cuts."""

import ctypes
from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from slotstream_core import _native
from slotstream_core.models.qwen4_exp.eager import attention, checking
from slotstream_core.models.qwen4_exp.eager.host import NATIVE_ROWS
from slotstream_core.models.qwen4_exp.eager.layer import cut_runs
from slotstream_core.models.qwen4_exp.host_products import HostThreads
from slotstream_core.models.qwen4_exp.ngram import NgramHash
from slotstream_core.native import NativeLibrary, NativeMatrix


def opened_library() -> NativeLibrary:
    library = NativeLibrary.load(threads=1)
    assert library is not None
    return library


def address_of(matrix: NativeMatrix) -> int:
    return ctypes.addressof(matrix.structure)


def _mismatches() -> dict[str, Callable[[], None]]:
    two, three, flat = (np.zeros(shape, np.float32) for shape in ((2, 4), (3, 4), (8,)))
    ids = np.zeros((2, 5), np.int32)
    return {
        "rows": lambda: _native.silu_multiply(two, three, two.copy()),
        "axes": lambda: _native.gate(flat, two, two.copy()),
        "type": lambda: _native.silu(np.zeros(4)),  # type: ignore[arg-type]
        "groups": lambda: _native.rms_norm(two, flat, 3, 1e-6, two.copy()),
        "more chosen than there are": lambda: _native.route(two, 1, ids, np.zeros((2, 5), np.float32)),
        "a key outside": lambda: _native.attend(
            flat, flat, flat, 1, 4, 1, np.array([2], np.int32), 1.0, np.zeros(2, np.float32), 0, 2, flat.copy()
        ),
        "taps": lambda: _native.convolve(two, three, three, 1, np.zeros((3, 3), np.float32)),
    }


def test_neighbouring_passes_go_through_experts_as_one_but_for_those_of_few_rows() -> None:
    many, few = NATIVE_ROWS + 1, NATIVE_ROWS
    assert cut_runs([many]) == ([many], [(0, slice(0, many))])
    totals, places = cut_runs([many, 50, few, 3, many, 40])
    assert totals == [many + 50, few, 3, many + 40]
    assert [run for run, _ in places] == [0, 0, 1, 2, 3, 3]
    assert [(rows.start, rows.stop) for _, rows in places] == [
        (0, many),
        (many, many + 50),
        (0, few),
        (0, 3),
        (0, many),
        (many, many + 40),
    ]


def test_python_and_c_agree_on_what_few_rows_are() -> None:
    assert NATIVE_ROWS == _native.FEW_ROWS


@pytest.mark.parametrize("plain", [False, True])
def test_the_pieces_agree_with_numpy_under_every_instruction_set(plain: bool) -> None:
    with opened_library() as library:
        assert checking.disagreement(library, plain=plain) is None


def test_instruction_sets_give_the_same_exponentials() -> None:
    x = np.linspace(-120, 120, 4099, dtype=np.float32)
    expected = 1 / (1 + np.exp(-x.astype(np.float64)))
    for name in _native.instruction_sets():
        _native.choose(name)
        found = x.copy()
        _native.sigmoid(found)
        assert np.abs(found - expected).max() < 2e-7
    _native.choose(_native.instruction_sets()[0])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_products_of_packed_words_are_those_of_the_unpacked_matrix(bits: int, group_size: int) -> None:
    draw = np.random.default_rng(bits * group_size)
    values = mx.array(draw.normal(size=(37, 256)).astype(np.float32))
    weight, scales, biases = mx.quantize(values, group_size, bits)
    matrix = NativeMatrix(weight, scales, biases, bits=bits, group_size=group_size)
    dense = np.array(mx.dequantize(weight, scales, biases, group_size=group_size, bits=bits))
    out, many = np.empty((5, 37), np.float32), np.empty((5, 37), np.float32)
    x = draw.normal(size=(5, 256)).astype(np.float32)
    with opened_library() as library:
        assert _native.is_narrow(address_of(matrix))
        for name in _native.instruction_sets():
            _native.choose(name)
            _native.multiply(library.handle, address_of(matrix), x, out)
            _native.multiply_many(library.handle, address_of(matrix), x, many)
            assert np.abs(out - x @ dense.T).max() < 1e-4
            assert np.abs(many - x @ dense.T).max() < 1e-4


@pytest.mark.parametrize("case", sorted(_mismatches()))
def test_a_piece_refuses_arrays_that_do_not_fit(case: str) -> None:
    with pytest.raises(ValueError, match=":"):
        _mismatches()[case]()


def test_rows_written_to_a_shared_cache_leave_the_other_owner_alone() -> None:
    rows = np.ones((2, 3), np.float32)
    first = attention.written(mx.zeros((0, 3)), None, rows, 0, axis=0, step=4)
    again = attention.written(first, first, 2 * rows, 2, axis=0, step=4)
    assert again is first
    branch = attention.written(first, None, 5 * rows, 2, axis=0, step=4)
    assert np.array(first)[:, 0].tolist() == [1, 1, 2, 2]
    assert np.array(branch)[:, 0].tolist() == [1, 1, 5, 5]


def test_a_layer_refuses_matrices_that_do_not_fit_and_arrays_of_another_shape() -> None:
    draw = np.random.default_rng(5)

    def matrix(rows: int, columns: int) -> NativeMatrix:
        dense = mx.array(draw.normal(size=(rows, columns)).astype(np.float32))
        return NativeMatrix(dense, None, None, bits=0, group_size=0)

    shapes = {"down": (3, 16), "up": (16, 3), "inject": (2, 16), "inputs": (12, 8), "output": (8, 6), "router": (4, 8)}
    shapes |= {"shared": (10, 8), "shared_down": (8, 5), "gate": (1, 8)}
    held = {name: matrix(*shape) for name, shape in shapes.items()}
    at = {name: address_of(each) for name, each in held.items()}
    reader = at["down"], at["up"], at["inject"], np.ones(16, np.float32), 2, 1e-6
    experts = at["router"], (at["shared"],), 0, 0, 0, 5, at["shared_down"], at["gate"], 2, 1
    layer = _native.layer(reader, reader, (at["inputs"],), at["output"], None, None, experts)
    swapped = at["up"], at["down"], at["inject"], np.ones(16, np.float32), 2, 1e-6
    with pytest.raises(ValueError, match="do not fit"):
        _native.layer(swapped, reader, (at["inputs"],), at["output"], None, None, experts)
    with pytest.raises(ValueError, match="outside its map"):
        _native.layer(reader, reader, (at["inputs"],), at["output"], None, None, (*experts[:5], 6, *experts[6:]))
    with pytest.raises(ValueError, match="missing"):
        _native.layer(reader, reader, (at["inputs"],), 0, None, None, experts)
    x, injection = np.zeros((3, 16), np.float32), np.zeros((3, 2), np.float32)
    with opened_library() as library:
        _native.enter(layer, library.handle, x, np.zeros(36, np.float32), injection)
        with pytest.raises(ValueError, match="another size"):
            _native.enter(layer, library.handle, x, np.zeros(35, np.float32), injection)
        with pytest.raises(ValueError, match="no delta rule"):
            _native.advance_delta(layer, library.handle, x, x, x, x, None, x, x, x, np.zeros((3, 2), np.int32), x)
        with pytest.raises(ValueError, match="no pool"):
            _native.enter(layer, 0, x, np.zeros(36, np.float32), injection)


def test_no_rows_are_read_into_no_room() -> None:
    widths, most = np.array([4, 8], np.int64), np.full(2, 2**62, np.int64)
    nothing, no_room = np.zeros((0, 2, 2), np.int64), np.zeros((0, 12), np.uint8)
    assert _native.read_rows(nothing, widths, no_room) == _native.read_rows(nothing, most, no_room) == 0
    with pytest.raises(ValueError, match="a piece is empty"):
        _native.read_rows(nothing, np.zeros(2, np.int64), no_room)
    with pytest.raises(ValueError, match="room for every row"):
        _native.read_rows(nothing, widths, np.zeros((1, 12), np.uint8))


def test_the_rows_of_one_token_are_those_it_has_among_others() -> None:
    draw = np.random.default_rng(2)
    numbers = draw.integers(1, 2**62, 3) * 2 + 1
    sizes, offsets = np.array([101, 103, 107, 109]), np.array([0, 101, 204, 311])
    tables = NgramHash(multipliers=numbers, head_sizes=sizes, head_offsets=offsets, eos_id=7)
    ids = draw.integers(0, 9, 60)
    together = tables.rows(np.array([7, 7]), ids)
    history = np.concatenate([[7, 7], ids])
    for t in range(len(ids)):
        assert np.array_equal(tables.rows(history[t : t + 2], ids[t : t + 1])[0], together[t])


def test_a_piece_that_fails_on_a_host_thread_is_raised_when_the_others_are_done() -> None:
    threads = HostThreads(2)
    done: list[int] = []

    def work(piece: int) -> None:
        if piece == 3:
            raise ValueError("piece 3")
        done.append(piece)

    with pytest.raises(ValueError, match="piece 3"):
        threads.run(work, range(6))
    threads.close()
    assert set(done) <= {0, 1, 2, 4, 5}
