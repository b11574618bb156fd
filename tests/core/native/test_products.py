"""Products of the native library against NumPy and MLX, in every variant this machine runs."""

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from slotstream_core.errors import NativeError
from slotstream_core.native import NativeExperts, NativeMatrix, host_view
from slotstream_core.native.checking import LAYOUTS, difference, random_matrix
from slotstream_core.native.library import NativeLibrary
from slotstream_core.native.products import RecordLayout
from tests.core.native.variants import opened, runnable

TOLERANCE = 2e-5
every_variant = pytest.mark.parametrize("variant", runnable())
Floats = npt.NDArray[np.float32]


def rows_of(random: np.random.Generator, count: int, columns: int) -> Floats:
    return random.standard_normal((count, columns)).astype(np.float32)


def random_experts(
    random: np.random.Generator, *, slots: int, inner: int, hidden: int, bits: int, group_size: int
) -> NativeExperts:
    gate, up, down = (
        random_matrix(random, shape, bits=bits, group_size=group_size)[0]
        for shape in ((slots, inner, hidden), (slots, inner, hidden), (slots, hidden, inner))
    )
    return NativeExperts(gate=gate, up=up, down=down)


def rounded_to_bfloat16(values: Floats) -> tuple[npt.NDArray[np.uint16], Floats]:
    narrow = mx.array(values).astype(mx.bfloat16)
    return host_view(narrow).astype(np.uint16), np.array(narrow.astype(mx.float32))


@every_variant
@pytest.mark.parametrize(("bits", "group"), LAYOUTS)
@pytest.mark.parametrize("narrow", [False, True], ids=["float32", "bfloat16"])
def test_quantised_products_agree_with_numpy_for_one_to_nine_rows(
    variant: str, bits: int, group: int, narrow: bool
) -> None:
    random = np.random.default_rng(1)
    library = opened(variant)
    for rows, columns in ((1, group), (3, 3 * group), (18, 5 * group), (41, 10 * group)):
        matrix, dense = random_matrix(random, (rows, columns), bits=bits, group_size=group, bfloat16=narrow)
        for count in range(1, 10):
            x = rows_of(random, count, columns)
            assert difference(library.multiply(matrix, x), x @ dense.T) < TOLERANCE


@every_variant
def test_long_rows_agree_with_numpy(variant: str) -> None:
    random = np.random.default_rng(2)
    for narrow in (False, True):
        matrix, dense = random_matrix(random, (5, 513 * 32 + 32), bits=4, group_size=32, bfloat16=narrow)
        for count in (1, 4):
            x = rows_of(random, count, matrix.columns)
            assert difference(opened(variant).multiply(matrix, x), x @ dense.T) < TOLERANCE


@every_variant
def test_products_agree_with_the_quantised_product_of_mlx(variant: str) -> None:
    random = np.random.default_rng(3)
    weight = mx.array(rows_of(random, 64, 256))
    packed, scales, biases = mx.quantize(weight, group_size=64, bits=4)
    mx.eval(packed, scales, biases)
    matrix = NativeMatrix(packed, scales, biases, bits=4, group_size=64)
    x = rows_of(random, 4, 256)
    expected = mx.quantized_matmul(mx.array(x), packed, scales, biases, group_size=64, bits=4)
    assert difference(opened(variant).multiply(matrix, x), np.array(expected)) < TOLERANCE


@every_variant
@pytest.mark.parametrize("narrow", [False, True], ids=["float32", "bfloat16"])
def test_dense_products_agree_with_numpy(variant: str, narrow: bool) -> None:
    random = np.random.default_rng(4)
    for rows, columns in ((1, 1), (3, 7), (18, 33), (41, 300)):
        weight = rows_of(random, rows, columns)
        bits, narrowed = rounded_to_bfloat16(weight)
        matrix = NativeMatrix(bits if narrow else weight)
        dense = narrowed if narrow else weight
        for count in range(1, 10):
            x = rows_of(random, count, columns)
            expected = x.astype(np.float64) @ dense.T.astype(np.float64)
            assert difference(opened(variant).multiply(matrix, x), expected) < TOLERANCE


@every_variant
def test_bfloat16_activations_are_used_as_they_are(variant: str) -> None:
    random = np.random.default_rng(5)
    for matrix in (
        random_matrix(random, (9, 192), bits=4, group_size=64)[0],
        NativeMatrix(rows_of(random, 9, 192)),
    ):
        bits, values = rounded_to_bfloat16(rows_of(random, 3, 192))
        library = opened(variant)
        assert library.multiply(matrix, bits).tobytes() == library.multiply(matrix, values).tobytes()


@every_variant
@pytest.mark.parametrize(("bits", "group"), [*LAYOUTS, (0, 0)])
def test_a_row_has_the_same_bits_alone_and_among_others_on_any_number_of_threads(
    variant: str, bits: int, group: int
) -> None:
    random = np.random.default_rng(6)
    columns = 5 * max(group, 32)
    if bits:
        matrix, _ = random_matrix(random, (3, 71, columns), bits=bits, group_size=group)
    else:
        matrix = NativeMatrix(random.standard_normal((3, 71, columns)).astype(np.float32))
    x = rows_of(random, 19, columns)
    alone = np.concatenate([opened(variant, 1).multiply(matrix, row[None], member=1) for row in x])
    for count in (*range(2, 10), 19):
        for threads in (1, 2, 3):
            together = opened(variant, threads).multiply(matrix, x[:count], member=1)
            assert together.tobytes() == alone[:count].tobytes()


@every_variant
def test_the_place_in_a_stack_changes_no_bits(variant: str) -> None:
    random = np.random.default_rng(7)
    packed, scales, biases = (
        random.integers(0, 2**32, (1, 40, 40), dtype=np.uint32),
        random.uniform(0.01, 0.02, (1, 40, 5)).astype(np.float32),
        random.uniform(-0.1, 0, (1, 40, 5)).astype(np.float32),
    )
    stack = NativeMatrix(*(np.repeat(piece, 4, axis=0) for piece in (packed, scales, biases)), bits=4, group_size=64)
    x = rows_of(random, 6, 320)
    library = opened(variant)
    first = library.multiply(stack, x)
    for member in range(1, 4):
        assert library.multiply(stack, x, member=member).tobytes() == first.tobytes()


@every_variant
def test_pairs_of_rows_and_members_equal_products_one_by_one(variant: str) -> None:
    random = np.random.default_rng(8)
    stack, _ = random_matrix(random, (5, 37, 256), bits=4, group_size=64)
    x = rows_of(random, 7, 256)
    sources, members = random.integers(0, 7, 40), random.integers(0, 5, 40)
    library = opened(variant)
    found = library.multiply_members(stack, x, sources, members)
    for pair in range(40):
        alone = library.multiply(stack, x[sources[pair]][None], member=int(members[pair]))
        assert found[pair].tobytes() == alone.tobytes()
    assert library.multiply_members(stack, x, sources[:0], members[:0]).shape == (0, 37)


@every_variant
@pytest.mark.parametrize("narrow", [False, True], ids=["float32", "bfloat16"])
def test_the_experts_of_a_layer_agree_with_their_definition(variant: str, narrow: bool) -> None:
    random = np.random.default_rng(9)
    (gate, dense_gate), (up, dense_up), (down, dense_down) = (
        random_matrix(random, shape, bits=4, group_size=32, bfloat16=narrow)
        for shape in ((6, 96, 160), (6, 96, 160), (6, 160, 96))
    )
    for rows in (1, 2, 5, 9, 30):
        x = rows_of(random, rows, 160)
        slots = np.stack([random.permutation(6)[:3] for _ in range(rows)])
        mix = random.random((rows, 3)).astype(np.float32)
        found = opened(variant).experts(NativeExperts(gate=gate, up=up, down=down), x, slots, mix)
        parts = opened(variant).experts(NativeExperts(gate=gate, up=up, down=down), x, slots, None)
        expected = np.zeros((rows, 3, 160))
        for row, choice in np.ndindex(rows, 3):
            slot = slots[row, choice]
            g, u = dense_gate[slot] @ x[row], dense_up[slot] @ x[row]
            expected[row, choice] = dense_down[slot] @ (g / (1 + np.exp(-g)) * u)
        assert difference(parts, expected) < TOLERANCE
        assert difference(found, (expected * mix[..., None]).sum(1)) < TOLERANCE


@every_variant
def test_experts_have_the_same_bits_for_a_row_alone_and_in_other_slots(variant: str) -> None:
    random = np.random.default_rng(10)
    stacks = random_experts(random, slots=4, inner=64, hidden=128, bits=4, group_size=64)
    x = rows_of(random, 8, 128)
    slots = np.stack([random.permutation(4)[:2] for _ in range(8)]).astype(np.int32)
    mix = random.random((8, 2)).astype(np.float32)
    together = opened(variant, 2).experts(stacks, x, slots, mix)
    for threads in (1, 3):
        for row in range(8):
            part = slice(row, row + 1)
            alone = opened(variant, threads).experts(stacks, x[part], slots[part], mix[part])
            assert alone.tobytes() == together[part].tobytes()


@every_variant
def test_many_rows_of_experts_are_computed_in_blocks_with_the_same_bits(variant: str) -> None:
    random = np.random.default_rng(11)
    stacks = random_experts(random, slots=2, inner=32, hidden=32, bits=8, group_size=32)
    x = rows_of(random, 700, 32)
    slots = np.stack([random.permutation(2) for _ in range(700)])
    mix = random.random((700, 2)).astype(np.float32)
    found = opened(variant).experts(stacks, x, slots, mix)
    for row in (0, 511, 512, 699):
        part = slice(row, row + 1)
        assert found[part].tobytes() == opened(variant).experts(stacks, x[part], slots[part], mix[part]).tobytes()


@every_variant
def test_gates_of_any_size_stay_finite(variant: str) -> None:
    one = NativeMatrix(np.ones((1, 1, 1), np.float32))
    x = np.array([[-1e30], [-200.0], [-88.5], [-1.0], [0.0], [1.0], [88.5], [1e18]], np.float32)
    found = opened(variant).experts(
        NativeExperts(gate=one, up=one, down=one), x, np.zeros((8, 1), np.int32), np.ones((8, 1), np.float32)
    )
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        expected = wide / (1 + np.exp(-wide)) * wide
    assert np.allclose(found, expected, rtol=1e-6, atol=1e-20)


@every_variant
def test_activations_of_extreme_sizes_are_scaled_without_loss(variant: str) -> None:
    random = np.random.default_rng(12)
    matrix, dense = random_matrix(random, (13, 256), bits=4, group_size=64)
    x = rows_of(random, 2, 256)
    for size in (1e-25, 1e-5, 1e10, 1e30):
        big = (x * np.float32(size)).astype(np.float32)
        for rows in (big, big[:1]):
            found = opened(variant).multiply(matrix, rows)
            assert difference(found, rows.astype(np.float64) @ dense.T) < TOLERANCE
    assert not np.isfinite(opened(variant).multiply(matrix, np.full((1, 256), np.inf, np.float32))).any()
    assert np.isnan(opened(variant).multiply(matrix, np.full((1, 256), np.nan, np.float32))).all()


@every_variant
@pytest.mark.parametrize(("bits", "group"), LAYOUTS)
def test_unpacked_rows_equal_those_of_mlx(variant: str, bits: int, group: int) -> None:
    random = np.random.default_rng(13)
    with mx.stream(mx.cpu):  # a GPU rounds otherwise
        unpack_like_mlx(opened(variant), random, bits, group)


def unpack_like_mlx(library: NativeLibrary, random: np.random.Generator, bits: int, group: int) -> None:
    for dtype in (mx.float32, mx.bfloat16):
        weight = mx.array(rows_of(random, 20, 2 * group)).astype(dtype)
        packed, scales, biases = mx.quantize(weight, group_size=group, bits=bits)
        mx.eval(packed, scales, biases)
        matrix = NativeMatrix(packed, scales, biases, bits=bits, group_size=group)
        rows = np.array([3, 0, 19, 3])
        wide = [piece.astype(mx.float32) for piece in (scales, biases)]
        expected = np.array(mx.dequantize(packed, wide[0], wide[1], group_size=group, bits=bits))[rows]
        assert np.allclose(library.unpack_rows(matrix, rows), expected, rtol=1e-6, atol=1e-7)


@every_variant
def test_records_are_unpacked_and_rounded_as_mlx_rounds(variant: str) -> None:
    random = np.random.default_rng(14)
    weight = mx.array(rows_of(random, 33, 128)).astype(mx.bfloat16)
    pieces = mx.quantize(weight, group_size=32, bits=4)
    mx.eval(*pieces)
    records = np.concatenate([host_view(piece).view(np.uint8).reshape(33, -1) for piece in pieces], axis=1)
    layout = RecordLayout(columns=128, bits=4, group_size=32, bfloat16=True)
    wide = [piece.astype(mx.float32) for piece in pieces[1:]]
    expected = np.array(
        mx.dequantize(pieces[0], wide[0], wide[1], group_size=32, bits=4).astype(mx.bfloat16).astype(mx.float32)
    )
    found = opened(variant).unpack_records(records, layout, round_to_bfloat16=True)
    assert found.tobytes() == expected.tobytes()
    with pytest.raises(NativeError, match="smaller"):
        opened(variant).unpack_records(records[:, :-2], layout)
