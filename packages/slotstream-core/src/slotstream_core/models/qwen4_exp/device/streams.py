"""Hyper-connections for one row: two kernels read the streams, one feeds them."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.models.qwen4_exp.device.kernels import (
    CHUNK,
    MOST_THREADS,
    DeviceKernels,
    KernelSpec,
    Output,
    quantised_alike,
    random_row,
)
from slotstream_core.models.qwen4_exp.device.launching import Argument, Program
from slotstream_core.models.qwen4_exp.hyper_connections import HyperConnection, StreamMixer
from slotstream_core.models.qwen4_exp.projections import Projection, WeightReader

STREAM_THREADS = 64
"""Threads that take a stream together."""

DOWN = """
  // one block for each of LOW rows of the quantised map, and of INJECTED dense ones
  __shared__ float dots[STREAMS * 2], squares[STREAMS * 2];
  const int row = blockIdx.x, stream = threadIdx.x / 64, part = threadIdx.x % 64;
  const __nv_bfloat16* x = streams + stream * HIDDEN;
  const __nv_bfloat16* norm = norms + stream * HIDDEN;
  float dot = 0, square = 0, values[16], weights[16];
  for (int chunk = part; chunk < HIDDEN / 16; chunk += 64) {
    slotstream_load(x + 16 * chunk, values);
    slotstream_load(norm + 16 * chunk, weights);
    for (int i = 0; i < 16; i++) {
      square += values[i] * values[i];
      values[i] *= weights[i];
    }
    const int place = stream * (HIDDEN / 16) + chunk;
    if (row < LOW) {
      const int group = (row * STREAMS * HIDDEN + 16 * place) / GROUP;
      const unsigned int* packed = down + row * (STREAMS * HIDDEN / 32 * BITS);
      dot += slotstream_float(scales[group]) * slotstream_dot<BITS>(packed, place, values);
      dot += slotstream_float(biases[group]) * slotstream_total(values);
    } else if (INJECTED) {
      slotstream_load(inject + (row - LOW) * STREAMS * HIDDEN + 16 * place, weights);
      for (int i = 0; i < 16; i++) dot += weights[i] * values[i];
    }
  }
  dot = slotstream_sum(dot, 32);
  square = slotstream_sum(square, 32);
  if (threadIdx.x % 32 == 0) {
    dots[threadIdx.x / 32] = dot;
    squares[threadIdx.x / 32] = square;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0;
    for (int s = 0; s < STREAMS; s++) {
      const float scale = rsqrtf((squares[2 * s] + squares[2 * s + 1]) / HIDDEN + EPS);
      total += scale * (dots[2 * s] + dots[2 * s + 1]);
      if (row == 0) lengths[s] = scale;
    }
    const float open = slotstream_logistic(total);
    if (row < LOW) low[row] = __float2bfloat16(total * open);
    else if (INJECTED) injection[row - LOW] = __float2bfloat16(open);
  }
"""

UP = """
  // eight values of the result a block, eight threads for each and each stream
  __shared__ float parts[STREAMS * 8];
  const int pair = threadIdx.x / 8, lane = threadIdx.x % 8, stream = pair % STREAMS;
  const int place = blockIdx.x * 8 + pair / STREAMS, row = stream * HIDDEN + place;
  float dot = 0, values[16];
  for (int chunk = lane; chunk < LOW / 16; chunk += 8) {
    slotstream_load(low + 16 * chunk, values);
    const int group = (row * LOW + 16 * chunk) / GROUP;
    dot += slotstream_float(scales[group]) * slotstream_dot<BITS>(up + row * (LOW / 32 * BITS), chunk, values);
    dot += slotstream_float(biases[group]) * slotstream_total(values);
  }
  dot = slotstream_sum(dot, 8);
  if (lane == 0) {
    const float normed = slotstream_float(streams[row]) * lengths[stream] * slotstream_float(norms[row]);
    parts[pair] = slotstream_logistic(dot) * normed;
  }
  __syncthreads();
  if (threadIdx.x < 8) {
    float total = 0;
    for (int s = 0; s < STREAMS; s++) total += parts[threadIdx.x * STREAMS + s];
    mixed[blockIdx.x * 8 + threadIdx.x] = __float2bfloat16(total);
  }
"""

INJECT = """
  const int place = blockIdx.x * blockDim.x + threadIdx.x;
  if (place < STREAMS * HIDDEN) {
    const float added = 2.0f * slotstream_float(injection[place / HIDDEN]) * slotstream_float(output[place % HIDDEN]);
    fed[place] = __float2bfloat16(slotstream_float(streams[place]) + added);
  }
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamSpecs:
    """The kernels of hyper-connections of one size.

    Attributes:
        sizes: What tells them from others.
        down: Reads the streams into the low rank and, where there are injections, says how strong they are.
        up: Mixes the streams.
        inject: Feeds them.
    """

    sizes: tuple[int, ...]
    down: KernelSpec
    up: KernelSpec
    inject: KernelSpec


def stream_specs(config: Qwen4ExpConfig, down: Projection, up: Projection, *, injects: bool) -> StreamSpecs:
    """The kernels for some weights.

    Args:
        config: Sizes and eps.
        down: A map from all streams to the low rank, quantised like the others'.
        up: A map back, likewise.
        injects: Whether there are injections.
    """
    streams, hidden, low = config.hc_count, config.hidden_size, config.hc_lowrank
    sizes = {"STREAMS": streams, "HIDDEN": hidden, "LOW": low}
    injected, threads = streams if injects else 0, STREAM_THREADS * streams
    return StreamSpecs(
        sizes=(*sizes.values(), injected, down.bits, down.group_size, up.bits, up.group_size),
        down=KernelSpec(
            name="streams_down",
            inputs=("streams", "norms", "down", "scales", "biases", "inject"),
            outputs=(
                Output(name="low", shape=(low,), dtype=mx.bfloat16),
                Output(name="lengths", shape=(streams,), dtype=mx.float32),
                Output(name="injection", shape=(1, streams, 1), dtype=mx.bfloat16),
            ),
            constants={
                **sizes,
                "INJECTED": injected,
                "BITS": down.bits,
                "GROUP": down.group_size,
                "EPS": config.rms_norm_eps,
            },
            body=DOWN,
            blocks=low + injected,
            threads=threads,
        ),
        up=KernelSpec(
            name="streams_up",
            inputs=("streams", "norms", "low", "lengths", "up", "scales", "biases"),
            outputs=(Output(name="mixed", shape=(1, hidden), dtype=mx.bfloat16),),
            constants={**sizes, "BITS": up.bits, "GROUP": up.group_size},
            body=UP,
            blocks=hidden // 8,
            threads=threads,
        ),
        inject=KernelSpec(
            name="streams_inject",
            inputs=("streams", "output", "injection"),
            outputs=(Output(name="fed", shape=(1, streams, hidden), dtype=mx.bfloat16),),
            constants={"STREAMS": streams, "HIDDEN": hidden},
            body=INJECT,
            blocks=-(-streams * hidden // 256),
            threads=256,
        ),
    )


class StreamKernels:
    """Kernels that read and feed the streams of hyper-connections of one size.

    Args:
        kernels: Makes them.
        specs: What they are.

    Attributes:
        sizes: As in `StreamSpecs`.
    """

    def __init__(self, kernels: DeviceKernels, specs: StreamSpecs) -> None:
        self.sizes = specs.sizes
        self.down = kernels.kernel(specs.down)
        self.up = kernels.kernel(specs.up)
        self.inject = kernels.kernel(specs.inject)


class StreamBuffers:
    """What launches that read streams leave for the next: scratch of one program.

    Args:
        program: Whose.
        config: Sizes.

    Attributes:
        low: The low rank.
        lengths: Of the streams.
        mixed: The block input, [1, hidden].
        injection: How strongly the block's output enters each stream.
    """

    def __init__(self, program: Program, config: Qwen4ExpConfig) -> None:
        self.low = program.scratch((config.hc_lowrank,), mx.bfloat16)
        self.lengths = program.scratch((config.hc_count,), mx.float32)
        self.mixed = program.scratch((1, config.hidden_size), mx.bfloat16)
        self.injection = program.scratch((1, config.hc_count, 1), mx.bfloat16)


class StreamReader:
    """Reads one row's streams with one hyper-connection's weights.

    Args:
        kernels: Of its sizes.
        specs: The same, for programs.
        mixing: Those that leave injections out.
        norms: Weights of the streams' norms, [streams, hidden].
        down: The map to the low rank.
        up: The map back.
        inject: The map to the injection's logits, or None.
    """

    def __init__(
        self,
        kernels: StreamKernels,
        specs: StreamSpecs,
        mixing: StreamSpecs,
        norms: mx.array,
        down: Projection,
        up: Projection,
        inject: Projection | None,
    ) -> None:
        self.kernels = kernels
        self._specs = specs
        self._mixing = mixing
        self._norms = norms
        self._down = [norms, *down.arrays(), norms if inject is None else inject.dense()]
        self._up = up.arrays()
        mx.eval(self._down)

    def read(self, streams: mx.array) -> tuple[mx.array, mx.array]:
        """The block input [1, hidden] and the injection [1, streams, 1], of which nothing is written without a map."""
        low, lengths, injection = self.kernels.down(streams, *self._down)
        return self.kernels.up(streams, self._norms, low, lengths, *self._up)[0], injection

    def add_read(self, program: Program, streams: Argument, to: StreamBuffers) -> None:
        """Append what `read` does."""
        self._add(program, self._specs, streams, to)

    def add_mix(self, program: Program, streams: Argument, to: StreamBuffers) -> None:
        """Append what `read` does, without the injection."""
        self._add(program, self._mixing, streams, to)

    def _add(self, program: Program, specs: StreamSpecs, streams: Argument, to: StreamBuffers) -> None:
        program.add(specs.down, streams, *self._down, to.low, to.lengths, to.injection)
        program.add(specs.up, streams, self._norms, to.low, to.lengths, *self._up, to.mixed)

    def add_inject(
        self, program: Program, streams: Argument, output: mx.array, read: StreamBuffers, fed: mx.array
    ) -> None:
        """Append what feeds ``streams`` with a block's ``output``, as ``read`` says; the result goes to ``fed``."""
        program.add(self._specs.inject, streams, output, read.injection, fed)


def stream_reader(
    weights: WeightReader,
    config: Qwen4ExpConfig,
    norms: mx.array,
    down: Projection,
    up: Projection,
    inject: Projection | None = None,
) -> StreamReader | None:
    """What reads one row of a hyper-connection; None when its sizes or types do not suit the kernels."""
    suits = (
        norms.dtype == mx.bfloat16
        and norms.shape == (config.hc_count, config.hidden_size)
        and quantised_alike(down)
        and quantised_alike(up)
        and config.hidden_size % CHUNK == 0
        and config.hc_count * STREAM_THREADS <= MOST_THREADS
    )
    if weights.device is None or not suits:
        return None
    specs = stream_specs(config, down, up, injects=inject is not None)
    mixing = stream_specs(config, down, up, injects=False)
    return StreamReader(StreamKernels(weights.device, specs), specs, mixing, norms, down, up, inject)


class DeviceStreamMixer(StreamMixer):
    """A `StreamMixer` that mixes one row with kernels.

    Attributes:
        reader: What does, once it has proven itself.
    """

    def __init__(self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig) -> None:
        super().__init__(weights, prefix, config)
        reader = stream_reader(weights, config, self._norm.plain_weight, self._down, self._up)
        self.reader: StreamReader | None = None
        if reader is not None and weights.device is not None:
            streams = random_row(1, config.hc_count, config.hidden_size)
            if weights.device.proven(
                "mixing streams",
                reader.kernels.sizes,
                lambda: [reader.read(streams)[0]],
                lambda: [self.mix(streams)],
            ):
                self.reader = reader

    def mix(self, streams: mx.array) -> mx.array:
        """See `StreamMixer.mix`."""
        if self.reader is None or len(streams) != 1:
            return super().mix(streams)
        return self.reader.read(streams)[0]


class DeviceHyperConnection(HyperConnection):
    """A `HyperConnection` that reads and feeds one row's streams with kernels.

    Attributes:
        reader: What does, once it has proven itself.
    """

    def __init__(self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig) -> None:
        super().__init__(weights, prefix, config)
        reader = stream_reader(weights, config, self._norm.plain_weight, self._down, self._up, self._inject)
        self.reader: StreamReader | None = None
        if reader is not None and weights.device is not None:
            streams, output = random_row(1, config.hc_count, config.hidden_size), random_row(1, config.hidden_size)

            def ours() -> list[mx.array]:
                mixed, injection = reader.read(streams)
                return [mixed, injection, *reader.kernels.inject(streams, output, injection)]

            def plain() -> list[mx.array]:
                mixed, injection = self.read(streams)
                return [mixed, injection, self.inject(streams, output, injection)]

            if weights.device.proven("hyper-connections", reader.kernels.sizes, ours, plain):
                self.reader = reader

    def mix(self, streams: mx.array) -> mx.array:
        """See `StreamMixer.mix`."""
        if self.reader is None or len(streams) != 1:
            return super().mix(streams)
        return self.reader.read(streams)[0]

    def read(self, streams: mx.array) -> tuple[mx.array, mx.array]:
        """See `HyperConnection.read`."""
        if self.reader is None or len(streams) != 1:
            return super().read(streams)
        return self.reader.read(streams)

    def inject(self, streams: mx.array, output: mx.array, injection: mx.array) -> mx.array:
        """See `HyperConnection.inject`."""
        if self.reader is None or len(streams) != 1:
            return super().inject(streams, output, injection)
        return self.reader.kernels.inject(streams, output, injection)[0]
