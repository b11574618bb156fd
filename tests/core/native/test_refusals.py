"""What the native library does not take is a typed error, for any shape; what it takes agrees with NumPy."""

import threading
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotstream_core.errors import NativeError
from slotstream_core.native import NativeExperts, NativeMatrix, host_view
from slotstream_core.native.checking import difference, random_matrix
from slotstream_core.native.products import RecordLayout
from tests.core.native.variants import opened, runnable

every_variant = pytest.mark.parametrize("variant", runnable())


def quantised(rows: int = 4, columns: int = 64) -> NativeMatrix:
    return random_matrix(np.random.default_rng(0), (rows, columns), bits=4, group_size=32)[0]


@every_variant
@settings(max_examples=40)
@given(
    rows=st.integers(1, 70),
    groups=st.integers(1, 19),
    layout=st.sampled_from([(4, 32), (4, 64), (4, 128), (8, 32), (8, 64), (8, 128)]),
    count=st.integers(1, 20),
    threads=st.integers(1, 3),
    narrow=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_products_of_any_shape_agree_with_numpy(
    variant: str, rows: int, groups: int, layout: tuple[int, int], count: int, threads: int, narrow: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    bits, group = layout
    matrix, dense = random_matrix(random, (rows, groups * group), bits=bits, group_size=group, bfloat16=narrow)
    x = random.standard_normal((count, groups * group)).astype(np.float32)
    found = opened(variant, threads).multiply(matrix, x)
    assert np.abs(found - x @ dense.T).max() < 1e-4
    assert found[:1].tobytes() == opened(variant, 1).multiply(matrix, x[:1]).tobytes()


@every_variant
@settings(max_examples=25)
@given(
    hidden=st.integers(1, 4),
    inner=st.integers(1, 4),
    slots=st.integers(1, 6),
    rows=st.integers(0, 20),
    top=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
def test_experts_of_any_shape_equal_the_same_experts_one_by_one(
    variant: str, hidden: int, inner: int, slots: int, rows: int, top: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    shapes = ((slots, 32 * inner, 32 * hidden), (slots, 32 * inner, 32 * hidden), (slots, 32 * hidden, 32 * inner))
    gate, up, down = (random_matrix(random, shape, bits=4, group_size=32)[0] for shape in shapes)
    stacks = NativeExperts(gate=gate, up=up, down=down)
    x = random.standard_normal((rows, 32 * hidden)).astype(np.float32)
    chosen = random.integers(0, slots, (rows, top))
    mix = random.random((rows, top)).astype(np.float32)
    library = opened(variant)
    found, parts = library.experts(stacks, x, chosen, mix), library.experts(stacks, x, chosen, None)
    for row in range(rows):
        part = slice(row, row + 1)
        assert found[part].tobytes() == library.experts(stacks, x[part], chosen[part], mix[part]).tobytes()
    assert np.allclose(found, (parts * mix[..., None]).sum(1), rtol=1e-4, atol=1e-5)


def test_matrices_that_do_not_fit_together_are_refused() -> None:
    words, scales = np.zeros((4, 8), np.uint32), np.zeros((4, 2), np.float32)
    for arguments, bits, group, message in (
        ((words, scales), 4, 32, "a weight, scales and biases"),
        ((words, scales, scales), 3, 32, "3 bits"),
        ((words, scales, scales), 4, 16, "groups of 16"),
        ((words.astype(np.int32), scales, scales), 4, 32, "int32"),
        ((words, scales, scales.astype(np.float64)), 4, 32, "float64"),
        ((words, scales, scales.astype(np.uint16)), 4, 32, "both"),
        ((words, scales[:, :1], scales[:, :1]), 4, 32, "one after another"),
        ((words, scales[:3], scales[:3]), 4, 32, "shape"),
        ((words[0], scales[0], scales[0]), 4, 32, "axes"),
        ((words[:0], scales[:0], scales[:0]), 4, 32, "empty"),
        ((words, scales, scales), 0, 0, "no scales"),
        ((words,), 0, 0, "float32 or bfloat16"),
        ((words.astype(np.float32).T,), 0, 0, "one after another"),
    ):
        with pytest.raises(NativeError, match=message):
            NativeMatrix(*arguments, bits=bits, group_size=group)


def test_a_strided_bfloat16_array_is_refused() -> None:
    strided = mx.zeros((4, 6), dtype=mx.bfloat16)[:, ::2]
    mx.eval(strided)
    with pytest.raises(NativeError, match="contiguous"):
        host_view(strided)


@every_variant
def test_activations_and_indices_that_do_not_fit_are_refused(variant: str) -> None:
    library, matrix = opened(variant), quantised()
    x = np.ones((2, 64), np.float32)
    inputs: tuple[Any, ...] = (x[:, :32], x[0], x.astype(np.float64), x[None])
    for wrong in inputs:
        with pytest.raises(NativeError, match="activations are"):
            library.multiply(matrix, wrong)
    for member in (-1, 1, 2**40):
        with pytest.raises(NativeError, match="does not exist"):
            library.multiply(matrix, x, member=member)
    outputs: tuple[Any, ...] = (np.empty((2, 3), np.float32), np.empty((2, 4)), np.empty((4, 2), np.float32).T)
    for out in outputs:
        with pytest.raises(NativeError, match="the result goes to"):
            library.multiply(matrix, x, out=out)
    for sources, members in (([2], [0]), ([-1], [0]), ([0], [1]), ([0], [2**32]), ([0, 1], [0])):
        with pytest.raises(NativeError, match="does not exist|cannot be paired"):
            library.multiply_members(matrix, x, np.array(sources), np.array(members))
    with pytest.raises(NativeError, match="whole numbers"):
        library.multiply_members(matrix, x, np.array([0.0]), np.array([0]))
    for row in (-1, 4):
        with pytest.raises(NativeError, match="does not exist"):
            library.unpack_rows(matrix, np.array([row]))


@every_variant
def test_experts_that_do_not_fit_together_are_refused(variant: str) -> None:
    library, matrix = opened(variant), quantised(rows=64)
    stacks = NativeExperts(gate=matrix, up=matrix, down=matrix)
    x, slots, mix = np.ones((2, 64), np.float32), np.zeros((2, 3), np.int64), np.ones((2, 3), np.float32)
    assert library.experts(stacks, x, slots, mix).shape == (2, 64)
    with pytest.raises(NativeError, match="contradict"):
        library.experts(NativeExperts(gate=quantised(), up=matrix, down=matrix), x, slots, mix)
    with pytest.raises(NativeError, match="does not exist"):
        library.experts(stacks, x, slots + 1, mix)
    with pytest.raises(NativeError, match="cannot be routed"):
        library.experts(stacks, x, slots[:1], mix)
    with pytest.raises(NativeError, match="weights of slots"):
        library.experts(stacks, x, slots, mix[:, :2])


@every_variant
def test_records_and_pieces_of_wrong_sizes_are_refused(variant: str) -> None:
    library = opened(variant)
    good = RecordLayout(columns=64, bits=4, group_size=32, bfloat16=False)
    assert library.unpack_records(np.zeros((3, 48), np.uint8), good).shape == (3, 64)
    for layout in (
        RecordLayout(columns=64, bits=5, group_size=32, bfloat16=False),
        RecordLayout(columns=64, bits=4, group_size=20, bfloat16=False),
        RecordLayout(columns=48, bits=4, group_size=32, bfloat16=False),
        RecordLayout(columns=128, bits=4, group_size=32, bfloat16=False),
    ):
        with pytest.raises(NativeError):
            library.unpack_records(np.zeros((3, 48), np.uint8), layout)


@every_variant
def test_many_threads_may_call_at_once_with_the_same_bits(variant: str) -> None:
    library = opened(variant, 3)
    random = np.random.default_rng(1)
    matrix, dense = random_matrix(random, (300, 256), bits=4, group_size=64)
    x = random.standard_normal((5, 256)).astype(np.float32)
    expected = library.multiply(matrix, x)
    assert difference(expected, x @ dense.T) < 1e-5
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(40):
            if library.multiply(matrix, x).tobytes() != expected.tobytes():
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
