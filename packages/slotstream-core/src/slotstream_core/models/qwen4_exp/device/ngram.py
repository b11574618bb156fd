"""The n-gram embedding for one row, as launches of a program, from packed rows of its table to the new streams."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.models.qwen4_exp.device.kernels import CHUNK, KernelKey, KernelSpec, Output, random_row
from slotstream_core.models.qwen4_exp.device.launching import Argument, LaunchedKernels, Place, Program
from slotstream_core.models.qwen4_exp.device.products import RowProducts, suits_product
from slotstream_core.models.qwen4_exp.ngram import NgramLayer, NgramSource, NgramState
from slotstream_core.models.qwen4_exp.ngram_rows import ReadRows
from slotstream_core.native.products import RecordLayout

UNPACK_THREADS = 128
GATE_THREADS = 512
RENEW_THREADS = 128

UNPACK = """
  // byte by byte: rows lie one after another, wherever that makes them begin
  const int place = blockIdx.x * blockDim.x + threadIdx.x;
  if (place < HEADS * WIDTH) {
    const int value = place % WIDTH;
    const unsigned char* row = rows + place / WIDTH * ROW_BYTES;
    const unsigned char* scale = row + WIDTH * BITS / 8 + value / GROUP * 2;
    const unsigned char* bias = scale + WIDTH / GROUP * 2;
    const float count = row[value * BITS / 8] >> value * BITS % 8 & ((1 << BITS) - 1);
    const float scaled = __uint_as_float((scale[0] | (unsigned int)scale[1] << 8) << 16) * count;
    embedding[place] = __float2bfloat16(scaled + __uint_as_float((bias[0] | (unsigned int)bias[1] << 8) << 16));
  }
"""

GATE = """
  // one block a stream: how its key matches what it asks, and what the norm before the convolution makes of the gate
  __shared__ float sums[4 * WARPS];
  const int stream = blockIdx.x, warp = threadIdx.x / 32;
  float key = 0, query = 0, match = 0, value = 0;
#pragma unroll
  for (int i = threadIdx.x; i < HIDDEN; i += 32 * WARPS) {
    const int channel = stream * HIDDEN + i;
    const float k = slotstream_float(keys[channel]), q = slotstream_float(streams[channel]);
    const float v = slotstream_float(values[VALUE_AT + i]);
    key += k * k, query += q * q, value += v * v;
    match += k * slotstream_float(key_norms[channel]) * (q * slotstream_float(query_norms[channel]));
  }
  const float own[4] = {slotstream_sum(key, 32), slotstream_sum(query, 32), slotstream_sum(match, 32),
                        slotstream_sum(value, 32)};
  if (threadIdx.x % 32 == 0)
    for (int i = 0; i < 4; i++) sums[4 * warp + i] = own[i];
  __syncthreads();
  if (threadIdx.x == 0) {
    float total[4] = {0, 0, 0, 0};
    for (int w = 0; w < WARPS; w++)
      for (int i = 0; i < 4; i++) total[i] += sums[4 * w + i];
    const float scaled = total[2] * rsqrtf(total[0] / HIDDEN + EPS) * rsqrtf(total[1] / HIDDEN + EPS);
    const float size = fabsf(scaled) > 1e-6f ? fabsf(scaled) : 1e-6f;
    const float gate = slotstream_logistic(scaled > 0 ? sqrtf(size) : scaled < 0 ? -sqrtf(size) : 0.0f);
    gates[2 * stream] = gate;
    gates[2 * stream + 1] = gate * rsqrtf(gate * gate * total[3] / HIDDEN + EPS);
  }
"""

RENEW = """
  // a thread a channel: the convolution over its last inputs, which move up by one, and the sum with the stream
  const int channel = blockIdx.x * blockDim.x + threadIdx.x;
  if (channel < CHANNELS) {
    const int stream = channel / HIDDEN;
    const float value = slotstream_float(values[VALUE_AT + channel % HIDDEN]);
    const __nv_bfloat16 now = __float2bfloat16(value * gates[2 * stream + 1] * slotstream_float(norms[channel]));
    float sum = slotstream_float(now) * slotstream_float(taps[(TAPS - 1) * CHANNELS + channel]);
    __nv_bfloat16 past[ROWS];  // read before any is written: no compiler could know that the two windows lie apart
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
      past[row] = window[row * CHANNELS + channel];
      if (row % DILATION == 0)
        sum += slotstream_float(past[row]) * slotstream_float(taps[row / DILATION * CHANNELS + channel]);
    }
#pragma unroll
    for (int row = 1; row < ROWS; row++) next_window[(row - 1) * CHANNELS + channel] = past[row];
    next_window[(ROWS - 1) * CHANNELS + channel] = now;
    const float added = gates[2 * stream] * value + sum * slotstream_logistic(sum);
    renewed[channel] = __float2bfloat16(slotstream_float(streams[channel]) + added);
  }
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class NgramPlaces:
    """The arguments of a program that are one n-gram layer's window, in this order.

    Attributes:
        window: Before the row.
        next_window: After it; elsewhere.
    """

    window: Place
    next_window: Place

    @property
    def all(self) -> tuple[Place, ...]:
        """In this order."""
        return (self.window, self.next_window)

    @staticmethod
    def of(program: Program) -> NgramPlaces:
        """New places; they follow each other."""
        return NgramPlaces(
            window=program.place("window", mx.bfloat16), next_window=program.place("next window", mx.bfloat16)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class NgramSizes:
    """What the kernels of an n-gram layer depend on.

    Attributes:
        heads: Rows of the table that a token has.
        row: How one of them is packed.
        streams: Residual streams.
        hidden: Values of each.
        taps: Of the convolution.
        dilation: Tokens between taps.
        eps: Of the norms.
        value_at: Where the value begins in its product.
    """

    heads: int
    row: RecordLayout
    streams: int
    hidden: int
    taps: int
    dilation: int
    eps: float
    value_at: int

    @property
    def row_bytes(self) -> int:
        """Of one packed row."""
        return self.row.columns * self.row.bits // 8 + 4 * self.row.columns // self.row.group_size


@dataclass(frozen=True, kw_only=True, slots=True)
class NgramKernels:
    """The kernels around the products of an n-gram layer.

    Attributes:
        unpack: Makes the products' input of packed rows.
        gate: Says how strongly the value enters each stream and the convolution.
        renew: Convolves, and adds to the streams.
    """

    unpack: KernelSpec
    gate: KernelSpec
    renew: KernelSpec


def ngram_kernels(sizes: NgramSizes) -> NgramKernels:
    """The kernels for some sizes."""
    width, channels, rows = sizes.row.columns, sizes.streams * sizes.hidden, (sizes.taps - 1) * sizes.dilation
    shared = {"HIDDEN": sizes.hidden, "VALUE_AT": sizes.value_at}
    return NgramKernels(
        unpack=KernelSpec(
            name="ngram_unpack",
            inputs=("rows",),
            outputs=(Output(name="embedding", shape=(1, sizes.heads * width), dtype=mx.bfloat16),),
            constants={
                "HEADS": sizes.heads,
                "WIDTH": width,
                "BITS": sizes.row.bits,
                "GROUP": sizes.row.group_size,
                "ROW_BYTES": sizes.row_bytes,
            },
            body=UNPACK,
            blocks=-(-sizes.heads * width // UNPACK_THREADS),
            threads=UNPACK_THREADS,
        ),
        gate=KernelSpec(
            name="ngram_gate",
            inputs=("keys", "values", "streams", "key_norms", "query_norms"),
            outputs=(Output(name="gates", shape=(sizes.streams, 2), dtype=mx.float32),),
            constants={**shared, "WARPS": GATE_THREADS // 32, "EPS": sizes.eps},
            body=GATE,
            blocks=sizes.streams,
            threads=GATE_THREADS,
        ),
        renew=KernelSpec(
            name="ngram_renew",
            inputs=("values", "gates", "streams", "norms", "taps", "window"),
            outputs=(
                Output(name="renewed", shape=(1, sizes.streams, sizes.hidden), dtype=mx.bfloat16),
                Output(name="next_window", shape=(rows, channels), dtype=mx.bfloat16),
            ),
            constants={**shared, "CHANNELS": channels, "ROWS": rows, "TAPS": sizes.taps, "DILATION": sizes.dilation},
            body=RENEW,
            blocks=-(-channels // RENEW_THREADS),
            threads=RENEW_THREADS,
        ),
    )


class DeviceNgram(NgramLayer):
    """An `NgramLayer` that a program can run for one row.

    Attributes:
        launchable: Whether `add` may be called: sizes, weights and the table's rows suit the kernels.
    """

    def __init__(self, source: NgramSource) -> None:
        super().__init__(source)
        row, matrices = self._table.record_layout(), [product for product, _ in self._projections.groups]
        taps = int(self._kernel.shape[0])
        self.launchable = False
        if (
            row is None
            or not row.bfloat16
            or self._dtype != mx.bfloat16
            or taps < 2
            or self._hidden % CHUNK
            or not all(suits_product(matrix) for matrix in matrices)
        ):
            return
        self.launchable = True
        self._products = RowProducts(matrices)
        self.sizes = NgramSizes(
            heads=len(self._hash.head_sizes),
            row=row,
            streams=self._count,
            hidden=self._hidden,
            taps=taps,
            dilation=self._dilation,
            eps=source.config.rms_norm_eps,
            value_at=self._count * self._hidden if len(matrices) == 1 else 0,
        )
        self._kernels = ngram_kernels(self.sizes)
        self._norms = [self._key_norm.plain_weight, self._query_norm.plain_weight]
        self._convolution = [self._conv_norm.plain_weight, mx.contiguous(self._kernel)]

    def read_with(self, read_rows: ReadRows) -> None:
        """Let compiled code read the table's rows: launches wait for them sooner than MLX's operations do."""
        self._table.read_with(read_rows)

    @property
    def launch_kind(self) -> tuple[KernelKey, ...]:
        """The same for layers that are launched alike."""
        kernels = self._kernels
        return kernels.unpack.key, self._products.spec.key, kernels.gate.key, kernels.renew.key

    def add(self, program: Program, rows: Place, window: NgramPlaces, streams: Argument, renewed: Argument) -> None:
        """Append what adds a token's n-grams to its streams.

        Args:
            program: Where to.
            rows: The token's packed rows, [heads, row bytes].
            window: The last inputs of the convolution, before and after.
            streams: [1, streams, hidden], bfloat16.
            renewed: Where the new streams go, as ``streams``; elsewhere.
        """
        kernels, products = self._kernels, self._products.scratch(program)
        embedding, gates = (
            program.scratch(output.shape, output.dtype)
            for spec in (kernels.unpack, kernels.gate)
            for output in spec.outputs
        )
        keys, values = products[0], products[-1]
        program.add(kernels.unpack, rows, embedding)
        self._products.add(program, embedding, products)
        program.add(kernels.gate, keys, values, streams, *self._norms, gates)
        given = (values, gates, streams, *self._convolution, window.window)
        program.add(kernels.renew, *given, renewed, window.next_window)

    def made_up(self) -> tuple[mx.array, npt.NDArray[np.uint8], NgramState]:
        """What a proof adds; the same every time, and so large that no part of the result hides the others.

        Returns:
            Streams [1, streams, hidden], a token's packed rows [heads, row bytes], and a state before it.
        """
        row, heads = self.sizes.row, self.sizes.heads
        counts = np.random.default_rng(1).integers(0, 256, (heads, row.columns * row.bits // 8), np.uint8)
        floats = np.array((0.1 * random_row(heads, 2 * row.columns // row.group_size)).view(mx.uint8))
        state = self.new_state()
        state.window = 16.0 * random_row(*state.window.shape)
        streams = 0.125 * random_row(1, self.sizes.streams, self.sizes.hidden)
        return streams, np.concatenate([counts, floats], axis=1), state


class LaunchedNgram:
    """An n-gram layer within a program.

    Args:
        kernels: Knows memory that the host and kernels reach.
        program: Its.
        layer: Its weights; it can be launched.

    Attributes:
        window: The arguments that are its window.
        rows: The token's packed rows, [heads, row bytes]; written by the host before a run that reads them.
    """

    def __init__(self, kernels: LaunchedKernels, program: Program, layer: DeviceNgram) -> None:
        heads, row_bytes = layer.sizes.heads, layer.sizes.row_bytes
        self._program, self._layer = program, layer
        self._memory = kernels.target.pinned(heads * row_bytes)
        self._rows = program.place("rows", mx.uint8)
        program.set(self._rows, self._memory.address)
        self.window = NgramPlaces.of(program)
        self.rows: npt.NDArray[np.uint8] = self._memory.data.reshape(heads, row_bytes)

    def add(self, streams: Argument, renewed: Argument) -> None:
        """Append it; see `DeviceNgram.add`."""
        self._layer.add(self._program, self._rows, self.window, streams, renewed)
