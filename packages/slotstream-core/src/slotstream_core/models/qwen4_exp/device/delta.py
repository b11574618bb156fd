"""The gated delta rule for one row, from the products with its input to what the output's map reads, in one kernel."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.errors import BackendError
from slotstream_core.models.qwen4_exp.device.kernels import (
    MOST_THREADS,
    Kernel,
    KernelKey,
    KernelSpec,
    Output,
    random_row,
)
from slotstream_core.models.qwen4_exp.device.launching import Place, Program
from slotstream_core.models.qwen4_exp.device.products import RowProducts, suits_product
from slotstream_core.models.qwen4_exp.gated_delta import KEY_EPS, DeltaPairs, DeltaState, GatedDeltaLayer
from slotstream_core.models.qwen4_exp.projections import WeightReader

ROW_THREADS = 8
"""Threads that take a row of a head's state together, four values each at a time."""

STEP = """
  // one block a value head: convolution, norms and rates of its channels, then its state, then the gated norm
  __shared__ float q[KEY], k[KEY], v[VALUE], rates[2], outputs[VALUE], length[1];
  const int head = blockIdx.x, shared_by = VALUE_HEADS / KEY_HEADS, key = head / shared_by;
  const int thread = threadIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = thread; i < 2 * KEY + VALUE; i += blockDim.x) {
    const int channel = i < KEY       ? key * KEY + i
                        : i < 2 * KEY ? (KEY_HEADS + key - 1) * KEY + i
                                      : (2 * KEY_HEADS - 2) * KEY + head * VALUE + i;
    const float now = slotstream_float(inputs[channel]);
    float sum = now * slotstream_float(taps[(TAPS - 1) * CHANNELS + channel]);
    for (int tap = 0; tap < TAPS - 1; tap++)
      sum += slotstream_float(window[tap * CHANNELS + channel]) * slotstream_float(taps[tap * CHANNELS + channel]);
    const float y = sum * slotstream_logistic(sum);
    if (i < KEY) q[i] = y;
    else if (i < 2 * KEY) k[i - KEY] = y;
    else v[i - 2 * KEY] = y;
    if (i >= 2 * KEY || head % shared_by == 0) {
      for (int tap = 0; tap < TAPS - 2; tap++)
        next_window[tap * CHANNELS + channel] = window[(tap + 1) * CHANNELS + channel];
      next_window[(TAPS - 2) * CHANNELS + channel] = inputs[channel];
    }
  }
  if (thread == 0) {
    const float x = slotstream_float(others[DECAY_AT + head]) + bias[head];
    rates[0] = expf(rate[head] * (x > 20.0f ? x : log1pf(expf(x))));
    rates[1] = slotstream_logistic(slotstream_float(others[STEP_AT + head]));
  }
  __syncthreads();
  if (warp < 2) {
    float* unit = warp == 0 ? q : k;
    float square = 0;
    for (int i = lane; i < KEY; i += 32) square += unit[i] * unit[i];
    const float scale = rsqrtf(slotstream_sum(square, 32) + KEY_EPS) * (warp == 0 ? rsqrtf(float(KEY)) : 1.0f);
    for (int i = lane; i < KEY; i += 32) unit[i] *= scale;
  }
  __syncthreads();
  const int row = thread / 8, part = thread % 8;
  const float4* from = reinterpret_cast<const float4*>(memory + (head * VALUE + row) * KEY) + part;
  float4* to = reinterpret_cast<float4*>(next_memory + (head * VALUE + row) * KEY) + part;
  float state[KEY / 8], read = 0, output = 0;
  for (int i = 0; i < KEY / 32; i++) {
    const float4 four = from[8 * i];
    state[4 * i] = four.x, state[4 * i + 1] = four.y, state[4 * i + 2] = four.z, state[4 * i + 3] = four.w;
    for (int j = 0; j < 4; j++) {
      state[4 * i + j] *= rates[0];
      read += state[4 * i + j] * k[32 * i + 4 * part + j];
    }
  }
  const float error = (v[row] - slotstream_sum(read, 8)) * rates[1];
  for (int i = 0; i < KEY / 32; i++) {
    for (int j = 0; j < 4; j++) {
      state[4 * i + j] += error * k[32 * i + 4 * part + j];
      output += state[4 * i + j] * q[32 * i + 4 * part + j];
    }
    to[8 * i] = make_float4(state[4 * i], state[4 * i + 1], state[4 * i + 2], state[4 * i + 3]);
  }
  output = slotstream_sum(output, 8);
  if (part == 0) outputs[row] = output;
  __syncthreads();
  if (warp == 0) {
    float square = 0;
    for (int i = lane; i < VALUE; i += 32) square += outputs[i] * outputs[i];
    square = slotstream_sum(square, 32);
    if (lane == 0) length[0] = rsqrtf(square / VALUE + EPS);
  }
  __syncthreads();
  if (thread < VALUE) {
    const float x = slotstream_float(inputs[GATE_AT + head * VALUE + thread]);
    const float gate = slotstream_logistic(x) * (SILU ? x : 1.0f) * slotstream_float(norm[thread]);
    gated[head * VALUE + thread] = __float2bfloat16(outputs[thread] * length[0] * gate);
  }
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeltaPlaces:
    """The arguments of a program that are one layer's state, in this order.

    Attributes:
        window: Before the row.
        memory: Before the row.
        next_window: After it; elsewhere.
        next_memory: After it; it may be where `memory` is.
    """

    window: Place
    memory: Place
    next_window: Place
    next_memory: Place

    @property
    def all(self) -> tuple[Place, ...]:
        """In this order."""
        return (self.window, self.memory, self.next_window, self.next_memory)

    @staticmethod
    def of(program: Program) -> DeltaPlaces:
        """New places; they follow each other."""
        return DeltaPlaces(
            window=program.place("window", mx.bfloat16),
            memory=program.place("memory", mx.float32),
            next_window=program.place("next window", mx.bfloat16),
            next_memory=program.place("next memory", mx.float32),
        )


class DeviceGatedDelta(GatedDeltaLayer):
    """A `GatedDeltaLayer` that advances by one row with one kernel."""

    def __init__(self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig) -> None:
        super().__init__(weights, prefix, config)
        self._step: Kernel | None = None
        self._launched: KernelSpec | None = None
        taps, channels = self._kernel.shape
        spec = self._spec(config, taps, channels)
        if spec is None or weights.device is None:
            return
        self._weights = [mx.contiguous(self._kernel), self._rate, self._dt_bias, self._norm.plain_weight]
        mx.eval(self._weights)
        step = weights.device.kernel(spec)
        x = random_row(1, config.hidden_size)
        window = random_row(taps - 1, channels)
        memory = random_row(self._value_heads, self._value_dim, self._key_dim).astype(mx.float32) * 0.1

        def advanced(state: DeltaState) -> list[mx.array]:
            return [self(x, state, start=0, record=False), state.window, state.memory]

        def ours() -> list[mx.array]:
            self._step = step
            return advanced(DeltaState(window=window, memory=memory))

        def plain() -> list[mx.array]:
            return advanced(DeltaState(window=window, memory=memory))

        proven = weights.device.proven("the gated delta rule", tuple(spec.constants.values()), ours, plain)
        self._step = step if proven else None
        maps = [product for product, _ in self._inputs.groups]
        if proven and all(suits_product(each) for each in (*maps, self._output)):
            self._launched = spec
            self._products = RowProducts(maps)
            self._output_product = RowProducts([self._output])

    @property
    def launchable(self) -> bool:
        """Whether `add` can be used."""
        return self._launched is not None

    @property
    def launch_kind(self) -> tuple[KernelKey, ...]:
        """The same for layers that are launched alike."""
        return self._products.spec.key, self._output_product.spec.key

    def add(self, program: Program, x: mx.array, state: DeltaPlaces, output: mx.array) -> None:
        """Append one row's way through this layer.

        Args:
            program: Where to.
            x: The row, [1, hidden].
            state: The state before and after.
            output: Where the result goes, [1, hidden].

        Raises:
            BackendError: It cannot be launched.
        """
        if self._launched is None:
            raise BackendError("a delta rule whose kernels did not prove themselves cannot be launched")
        products = self._products.scratch(program)
        gated = program.scratch((1, self._value_heads * self._value_dim), mx.bfloat16)
        self._products.add(program, x, products)
        before, after = (state.window, state.memory), (state.next_window, state.next_memory)
        program.add(self._launched, products[0], products[-1], *before, *self._weights, gated, *after)
        self._output_product.add(program, gated, [output])

    def _spec(self, config: Qwen4ExpConfig, taps: int, channels: int) -> KernelSpec | None:
        """The kernel of this layer's sizes; None when they or its types do not suit it."""
        heads, value, key = self._value_heads, self._value_dim, self._key_dim
        widths = [widths for _, widths in self._inputs.groups]
        own = [channels, heads * value, heads, heads]
        apart = widths == [own[:2], own[2:]]
        threads = ROW_THREADS * value
        suits = (
            (apart or widths == [own])
            and self._dtype == mx.bfloat16
            and key % 32 == 0
            and 64 <= threads <= MOST_THREADS
            and threads % 32 == 0
            and taps >= 2
        )
        if not suits:
            return None
        before = 0 if apart else channels + heads * value  # what precedes step and decay in their product
        return KernelSpec(
            name="delta_step",
            inputs=("inputs", "others", "window", "memory", "taps", "rate", "bias", "norm"),
            outputs=(
                Output(name="gated", shape=(1, heads * value), dtype=mx.bfloat16),
                Output(name="next_window", shape=(taps - 1, channels), dtype=mx.bfloat16),
                Output(name="next_memory", shape=(heads, value, key), dtype=mx.float32),
            ),
            constants={
                "KEY_HEADS": self._key_heads,
                "VALUE_HEADS": heads,
                "KEY": key,
                "VALUE": value,
                "TAPS": taps,
                "CHANNELS": channels,
                "GATE_AT": channels,
                "STEP_AT": before,
                "DECAY_AT": before + heads,
                "SILU": int(self._silu_gate),
                "EPS": self._eps,
                "KEY_EPS": KEY_EPS,
            },
            body=STEP,
            blocks=heads,
            threads=threads,
        )

    def __call__(self, x: mx.array, state: DeltaState, *, start: int, record: bool) -> mx.array:
        """See `GatedDeltaLayer.__call__`."""
        if self._step is None or len(x) != 1:
            return super().__call__(x, state, start=start, record=record)
        products = [product(x) for product, _ in self._inputs.groups]
        before = (state.window, state.memory)
        gated, state.window, state.memory = self._step(products[0], products[-1], *before, *self._weights)
        state.recorded = None
        if record:
            state.recorded, state.recorded_from = DeltaPairs([before, (state.window, state.memory)]), start
        return self._output(gated)
