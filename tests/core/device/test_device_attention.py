"""A full-attention layer for one row, launched on the host: it agrees with MLX's operations, whatever came before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from slotstream_core.backend import CUDA_GATHERING, Backend
from slotstream_core.checkpoint.synthesis import write_synthetic
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.models.qwen4_exp import attention as plain_attention
from slotstream_core.models.qwen4_exp import indexer
from slotstream_core.models.qwen4_exp.attention import AttentionState, SparseAttention
from slotstream_core.models.qwen4_exp.device import attention_states
from slotstream_core.models.qwen4_exp.device.attention import AttentionPlaces, DeviceAttention, TokenPlace
from slotstream_core.models.qwen4_exp.device.attention_kernels import AttentionSizes, InputPlaces, attention_kernels
from slotstream_core.models.qwen4_exp.device.attention_states import AttentionAdvance
from slotstream_core.models.qwen4_exp.device.kernels import TOLERANCE
from slotstream_core.models.qwen4_exp.device.launching import LaunchedKernels
from slotstream_core.models.qwen4_exp.indexer import Selector
from slotstream_core.models.qwen4_exp.projections import Projection, WeightReader
from slotstream_core.models.qwen4_exp.rotary import RotaryEmbedding
from tests.core.device.emulation import COMPILER, EmulatedTarget, Emulator

pytestmark = pytest.mark.skipif(
    COMPILER is None or Backend.detect().kind == "cuda", reason="runs kernels on the host, with a C++ compiler"
)

SETTINGS = {
    "vocab_size": 288,
    "num_hidden_layers": 1,
    "layer_types": ["full_attention"],
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "ple_layer_ids": [],
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
}
RATIO, BEST = 4, 4
DEVICE = Backend(kind="metal", compute_dtype=mx.bfloat16, gathering=CUDA_GATHERING)


@dataclass
class Pair:
    """A layer computed both ways.

    Attributes:
        plain: With MLX's operations.
        device: With launches.
        step: Runs the launches on a row and a state, and returns the output.
        chosen: Returns the tokens that the last launches saw.
        seen: The tokens that each row of the operations saw, where they chose some.
    """

    plain: SparseAttention
    device: DeviceAttention
    rotary: RotaryEmbedding
    step: Callable[[mx.array, AttentionState], mx.array]
    chosen: Callable[[], npt.NDArray[np.int32]]
    seen: list[npt.NDArray[np.int32]] = field(default_factory=list)

    def read(self, x: mx.array, state: AttentionState, *, record: bool = False) -> mx.array:
        """A pass of MLX's operations."""
        angles, block_angles = self.rotary.pass_angles(state.length, len(x), RATIO)
        y = self.plain(x, state, angles=angles, block_angles=block_angles, record=record)
        mx.eval(y, *state.arrays())
        return y

    def both(self, x: mx.array, ours: AttentionState, theirs: AttentionState) -> None:
        """Advance two states by a row, and compare."""
        self.seen.clear()
        y, wanted = self.step(x, ours), self.read(x, theirs)
        assert ours.length == theirs.length == ours.index.length == theirs.index.length
        assert distance(y, wanted) < TOLERANCE
        if self.seen:
            (tokens,) = self.seen
            np.testing.assert_array_equal(self.chosen(), tokens[: BEST * RATIO : RATIO] // RATIO)
        assert_alike(ours, theirs)


def distance(one: mx.array, other: mx.array) -> float:
    mine, reference = (np.array(each.astype(mx.float32)) for each in (one, other))
    assert mine.shape == reference.shape
    return float(np.linalg.norm(mine - reference) / max(1e-9, float(np.linalg.norm(reference))))


def assert_alike(ours: AttentionState, theirs: AttentionState) -> None:
    length, blocks = theirs.length, theirs.length // RATIO
    assert ours.index.tail.shape == theirs.index.tail.shape == (length % RATIO, theirs.index.tail.shape[1])
    parts = [(ours.keys[:, :length], theirs.keys[:, :length]), (ours.values[:, :length], theirs.values[:, :length])]
    parts += [(ours.index.blocks[:blocks], theirs.index.blocks[:blocks]), (ours.index.tail, theirs.index.tail)]
    assert max(distance(one, other) for one, other in parts) < 0.005


def rounded_once(matrix: Projection, x: mx.array) -> mx.array:
    """What a GPU makes of a product: MLX adds in bfloat16 on the host."""
    weight = matrix.weight.astype(mx.float32)
    if matrix.scales is not None and matrix.biases is not None:
        scales, biases = matrix.scales.astype(mx.float32), matrix.biases.astype(mx.float32)
        weight = mx.dequantize(matrix.weight, scales, biases, group_size=matrix.group_size, bits=matrix.bits)
    return (x.astype(mx.float32) @ weight.T).astype(mx.bfloat16)


def rows(count: int, seed: int) -> mx.array:
    return mx.random.normal((count, 64), key=mx.random.key(seed)).astype(mx.bfloat16)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("attention")
    write_synthetic(folder / "model", SETTINGS, bits=4, group_size=32)
    with Checkpoint.open(folder / "model") as stored, pytest.MonkeyPatch.context() as patch:
        weights, prefix = WeightReader(stored, DEVICE), "language_model.model.layers.0.self_attn"
        device = DeviceAttention(weights, prefix, stored.config)
        assert device.launchable
        target = EmulatedTarget(Emulator(folder))
        program = LaunchedKernels(target).program()
        rotary = RotaryEmbedding(stored.config, mx.bfloat16)
        token, scratch = TokenPlace(program, rotary, RATIO), device.scratch(program)
        x, y = program.place("x", mx.bfloat16), program.scratch((1, 64), mx.bfloat16)
        places = AttentionPlaces.of(program)
        device.add(program, x, places, y, token=token, scratch=scratch)
        entries = program.entries(places.all)

        def step(row: mx.array, state: AttentionState) -> mx.array:
            program.point([x], [mx.contiguous(row)])
            advance = AttentionAdvance({0: entries}, {0: state}, target)
            token.move(state.length)
            program.run()
            advance.complete()
            return mx.array(np.array(y.astype(mx.float32)))

        found = Pair(
            plain=SparseAttention(weights, prefix, stored.config),
            device=device,
            rotary=rotary,
            step=step,
            chosen=lambda: np.array(scratch.arrays["chosen"]),
        )
        patch.setattr(Projection, "__call__", rounded_once)
        indices = Selector.token_indices

        def noted(self: Selector, scores: mx.array, *, position: int) -> mx.array:
            tokens = indices(self, scores, position=position)
            found.seen.append(np.array(tokens))
            return tokens

        patch.setattr(Selector, "token_indices", noted)
        for module in (plain_attention, attention_states):
            patch.setattr(module, "CACHE_STEP_TOKENS", 8)
        for module in (indexer, attention_states):
            patch.setattr(module, "BLOCK_STEP", 4)
        yield found


@pytest.mark.parametrize("prompt", [0, 4, 18, 61])
def test_a_row_gives_what_the_operations_give(pair: Pair, prompt: int) -> None:
    ours, theirs = pair.plain.new_state(), pair.plain.new_state()
    if prompt:
        for state in (ours, theirs):
            pair.read(rows(prompt, 1), state)
    for turn in range(6):  # over the end of a block, of the caches, and at 18 to where blocks are chosen
        assert pair.device.chooses(theirs.length) == ((theirs.length + 1) // RATIO > BEST)
        pair.both(rows(1, 10 + turn), ours, theirs)
        assert bool(pair.seen) == pair.device.chooses(theirs.length - 1)


def test_operations_go_on_from_what_launches_left(pair: Pair) -> None:
    ours, theirs = pair.plain.new_state(), pair.plain.new_state()
    for start, count in ((1, 3), (20, 7), (40, 30)):
        x = rows(count, start)
        assert distance(pair.read(x, ours), pair.read(x, theirs)) < TOLERANCE
        for turn in range(3):
            pair.both(rows(1, start + turn), ours, theirs)


def test_forks_keep_what_they_held(pair: Pair) -> None:
    ours, theirs = pair.plain.new_state(), pair.plain.new_state()
    for state in (ours, theirs):
        pair.read(rows(22, 1), state)
    pair.both(rows(1, 2), ours, theirs)
    kept, reference = ours.fork(), theirs.fork()
    for turn in range(6):  # the tail is begun anew meanwhile
        pair.both(rows(1, 10 + turn), ours, theirs)
    assert_alike(kept, reference)
    for turn in range(3):
        pair.both(rows(1, 20 + turn), kept, reference)
    assert_alike(ours, theirs)


def test_a_recorded_pass_is_trimmed_and_launches_go_on(pair: Pair) -> None:
    ours, theirs = pair.plain.new_state(), pair.plain.new_state()
    for state in (ours, theirs):
        pair.read(rows(21, 1), state)
    pair.both(rows(1, 2), ours, theirs)
    for state in (ours, theirs):
        pair.read(rows(5, 3), state, record=True)
        state.trim(23)
        state.forget_passes()
    for turn in range(4):
        pair.both(rows(1, 10 + turn), ours, theirs)


def test_a_way_back_is_kept_while_launches_go_on(pair: Pair) -> None:
    state = pair.plain.new_state()
    pair.read(rows(21, 1), state)
    pair.step(rows(1, 2), state)
    length, index, tail = state.length, state.index.copy(), np.array(state.index.tail.astype(mx.float32))
    first = pair.step(rows(1, 3), state)
    for turn in range(4):
        pair.step(rows(1, 4 + turn), state)
    state.length, state.index = length, index
    np.testing.assert_array_equal(np.array(index.tail.astype(mx.float32)), tail)
    assert distance(pair.step(rows(1, 3), state), first) == 0


def test_arrays_are_written_in_place_until_something_else_refers_to_them(pair: Pair) -> None:
    state = pair.plain.new_state()
    pair.read(rows(5, 1), state)
    before = state.keys, state.values, state.index.blocks
    pair.step(rows(1, 2), state)
    assert all(a is b for a, b in zip(before, (state.keys, state.values, state.index.blocks), strict=True))
    room = state.index.tail_room
    pair.step(rows(1, 3), state)
    assert state.index.tail_room is room
    kept = state.fork()
    pair.step(rows(1, 4), state)
    assert kept.keys is before[0]
    assert state.keys is not before[0]
    assert state.index.blocks is not before[2]
    assert state.index.tail_room is not room


def test_sequences_take_turns_and_their_places_are_asked_for_once(pair: Pair) -> None:
    first, second = pair.plain.new_state(), pair.plain.new_state()
    pair.read(rows(9, 1), first)
    references = first.fork(), second.fork()
    known = []
    for turn in range(2):
        pair.both(rows(1, turn), first, references[0])
        pair.both(rows(1, 9 + turn), second, references[1])
        known.append((first.buffers, second.buffers))
    assert known[0][0] is known[1][0]
    assert known[0][1] is known[1][1]
    pair.read(rows(2, 5), first)
    assert first.buffers is None  # nothing keeps MLX from reusing the memory


def test_positions_beyond_the_longest_sequence_are_not_launched(pair: Pair) -> None:
    assert pair.device.reaches(511)
    assert not pair.device.reaches(512)


@pytest.mark.parametrize("complete", [9, 64, 700])
def test_the_largest_scores_are_listed_in_order_and_of_equals_the_first(tmp_path: Path, complete: int) -> None:
    best, ratio, random = 8, 2, np.random.default_rng(complete)
    sizes = AttentionSizes(
        heads=2, kv_heads=1, dim=32, rotary=8, index_heads=1, index_dim=16, ratio=ratio, best=best, eps=1e-6,
        positions=160,
    )  # fmt: skip
    kernel = attention_kernels(sizes, InputPlaces(query=0, key=0, value=0, index=0)).choose
    assert kernel.threads == 96
    program = LaunchedKernels(EmulatedTarget(Emulator(tmp_path))).program()
    scores, position = program.place("scores", mx.float32), program.place("position")
    chosen = program.scratch((best,), mx.int32)
    program.add(kernel, scores, chosen, position)
    distinct = (random.permutation(complete) / 7).astype(np.float32)
    drawn: dict[str, npt.NDArray[np.float32]] = {
        "distinct": distinct,
        "a few values": random.integers(0, 4, complete).astype(np.float32),
        "mostly nothing": np.where(distinct * 7 < 3, distinct, 0).astype(np.float32),
        "nothing": np.zeros(complete, np.float32),
        "all alike": np.full(complete, 3e38, np.float32),
        "tiny and huge": np.where(distinct * 7 < complete // 2, 1e-40, np.float32(np.inf)).astype(np.float32),
    }
    for name, values in drawn.items():
        program.point([scores], [mx.array(values)])
        program.set(position, complete * ratio)  # the token after those blocks
        program.run()
        wanted = np.sort(np.argsort(-values, kind="stable")[:best])
        np.testing.assert_array_equal(np.array(chosen), wanted, err_msg=name)


def test_sizes_that_the_kernels_do_not_compute_are_told_apart() -> None:
    published = AttentionSizes(
        heads=24, kv_heads=2, dim=256, rotary=64, index_heads=4, index_dim=128, ratio=4, best=512, eps=1e-6,
        positions=262_144,
    )  # fmt: skip
    assert published.suits
    assert published.splits == 65
    kernels = attention_kernels(published, InputPlaces(query=0, key=0, value=0, index=0))
    assert (kernels.parts.blocks, kernels.parts.threads, kernels.choose.threads) == (130, 256, 1024)
