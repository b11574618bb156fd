"""Routing, routed experts and the shared expert for one row: four kernels."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.errors import BackendError
from slotstream_core.experts.stacks import ExpertArrays, Experts, QuantizedStack
from slotstream_core.models.qwen4_exp.device.kernels import (
    CHUNK,
    MOST_THREADS,
    DeviceKernels,
    KernelSpec,
    Output,
    quantised_alike,
    random_row,
)
from slotstream_core.models.qwen4_exp.device.launching import Place, Program
from slotstream_core.models.qwen4_exp.moe import ExpertLayer, PassLeases, PassWatch
from slotstream_core.models.qwen4_exp.projections import WeightReader

WARPS = 8
"""Of a block; each computes one value at a time."""

PROOF_PLACES = 16

ROUTER = """
  const int expert = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (expert < EXPERTS) {
    float dot = 0, values[16];
#pragma unroll
    for (int step = 0; step < HIDDEN / 16; step += 32) {
      const int chunk = step + lane;
      if (chunk >= HIDDEN / 16) break;
      slotstream_load(x + 16 * chunk, values);
      const float4* row = reinterpret_cast<const float4*>(router + expert * HIDDEN + 16 * chunk);
      for (int i = 0; i < 4; i++) {
        const float4 four = row[i];
        dot += four.x * values[4 * i] + four.y * values[4 * i + 1];
        dot += four.z * values[4 * i + 2] + four.w * values[4 * i + 3];
      }
    }
    dot = slotstream_sum(dot, 32);
    if (lane == 0) logits[expert] = dot;
  }
"""

CHOOSE = """
  // one block, a thread an expert: the best of each warp's 32 are found first, then the best of these
  constexpr int WARPS = (EXPERTS + 31) / 32, KEPT = TOP < 32 ? TOP : 32;
  __shared__ unsigned long long keys[WARPS * KEPT];
  __shared__ float best[TOP], sums[32];
  const int thread = threadIdx.x, lane = thread % 32;
  const float logit = thread < EXPERTS ? logits[thread] : 0.0f;
  const float value = thread < EXPERTS && logit == logit ? logit : -INFINITY;
  int rank = 0;
#pragma unroll
  for (int apart = 1; apart < 32; apart++) {
    const float other = __shfl_xor_sync(0xffffffffu, value, apart);
    rank += other > value || (other == value && (lane ^ apart) < lane);
  }
  if (rank < KEPT) {
    // a number that grows with the value, and among equals with an earlier place; -0 is 0
    const unsigned int bits = __float_as_uint(value + 0.0f), ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
    keys[thread / 32 * KEPT + rank] = (unsigned long long)ordered << 32 | (0xffffffffu - thread);
  }
  __syncthreads();
  if (thread < WARPS * KEPT) {
    const unsigned long long mine = keys[thread];
    const int expert = int(0xffffffffu - (unsigned int)mine);
    int place = 0;
#pragma unroll 16
    for (int i = 0; i < WARPS * KEPT; i++) place += keys[i] > mine;
    if (place < TOP) {
      ids[place] = expert;
      best[place] = logits[expert];
    }
  }
  __syncthreads();
  if (!NORMALISED) {
    const float part = slotstream_sum(thread < EXPERTS ? expf(logit - best[0]) : 0.0f, 32);
    if (lane == 0) sums[thread / 32] = part;
    __syncthreads();
  }
  if (thread < TOP) {
    float total = 0;
    if (NORMALISED) for (int i = 0; i < TOP; i++) total += expf(best[i] - best[0]);
    else for (int i = 0; i < WARPS; i++) total += sums[i];
    mix[thread] = expf(best[thread] - best[0]) / total;
  }
"""

INNER = """
  // a warp for each inner value of each chosen expert, then of the shared one, then for the shared one's strength; the
  // weights of several steps are on their way at once
  constexpr int AHEAD = 5;
  const int unit = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, routed = TOP * WIDTH;
  float values[16], weights[16];
  if (unit < routed) {
    const int chosen = slots[unit / WIDTH];
    const size_t row = size_t(PLACED ? places[chosen] : chosen) * WIDTH + unit % WIDTH;
    const size_t groups = row * (HIDDEN / GROUP), words = row * (HIDDEN / 32 * BITS);
    float open = 0, value = 0;
    for (int step = 0; step < HIDDEN / 16; step += 32 * AHEAD) {
      slotstream_packed<BITS> gates[AHEAD], ups[AHEAD];
      float scales[AHEAD][4];
#pragma unroll
      for (int i = 0; i < AHEAD; i++) {
        const int place = step + 32 * i + lane, chunk = place < HIDDEN / 16 ? place : 0;
        const size_t group = groups + 16 * chunk / GROUP;
        gates[i] = slotstream_take<BITS>(gate + words, chunk);
        ups[i] = slotstream_take<BITS>(up + words, chunk);
        scales[i][0] = slotstream_float(gate_scales[group]), scales[i][1] = slotstream_float(gate_biases[group]);
        scales[i][2] = slotstream_float(up_scales[group]), scales[i][3] = slotstream_float(up_biases[group]);
      }
      __syncwarp();  // the compiler would wait for each before it asks for the next
#pragma unroll
      for (int i = 0; i < AHEAD; i++) {
        const int place = step + 32 * i + lane, chunk = place < HIDDEN / 16 ? place : 0;
        const float counts = place < HIDDEN / 16 ? 1.0f : 0.0f;
        slotstream_load(x + 16 * chunk, values);
        const float total = slotstream_total(values) * counts;
        open += scales[i][0] * counts * slotstream_dot(gates[i], values) + scales[i][1] * total;
        value += scales[i][2] * counts * slotstream_dot(ups[i], values) + scales[i][3] * total;
      }
    }
    open = slotstream_sum(open, 32);
    value = slotstream_sum(value, 32);
    if (lane == 0) inner[unit] = __float2bfloat16(open * slotstream_logistic(open) * value);
  } else if (unit < routed + SHARED) {
    const int row = unit - routed, groups = row * (HIDDEN / OWN_GROUP), words = HIDDEN / 32 * OWN_BITS;
    float open = 0, value = 0;
#pragma unroll
    for (int step = 0; step < HIDDEN / 16; step += 32) {
      const int chunk = step + lane;
      if (chunk >= HIDDEN / 16) break;
      const int group = groups + 16 * chunk / OWN_GROUP, up_group = group + SHARED * (HIDDEN / OWN_GROUP);
      slotstream_load(x + 16 * chunk, values);
      const float total = slotstream_total(values);
      open += slotstream_float(own_scales[group]) * slotstream_dot<OWN_BITS>(own + row * words, chunk, values);
      open += slotstream_float(own_biases[group]) * total;
      const unsigned int* packed = own + (row + SHARED) * words;
      value += slotstream_float(own_scales[up_group]) * slotstream_dot<OWN_BITS>(packed, chunk, values);
      value += slotstream_float(own_biases[up_group]) * total;
    }
    open = slotstream_sum(open, 32);
    value = slotstream_sum(value, 32);
    if (lane == 0) inner[unit] = __float2bfloat16(open * slotstream_logistic(open) * value);
  } else if (unit == routed + SHARED) {
    float dot = 0;
#pragma unroll
    for (int step = 0; step < HIDDEN / 16; step += 32) {
      const int chunk = step + lane;
      if (chunk >= HIDDEN / 16) break;
      slotstream_load(x + 16 * chunk, values);
      slotstream_load(opening + 16 * chunk, weights);
      for (int i = 0; i < 16; i++) dot += weights[i] * values[i];
    }
    dot = slotstream_sum(dot, 32);
    if (lane == 0) strength[0] = slotstream_logistic(dot);
  }
"""

OUTER = """
  // a warp for each value of the result; the weights of several steps are on their way at once
  constexpr int PARTS = WIDTH / 16, STEPS = (TOP * PARTS + 31) / 32, AHEAD = 7;
  const int unit = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  __shared__ size_t rows[TOP];
  __shared__ float shares[TOP];
  for (int i = threadIdx.x; i < TOP; i += blockDim.x) {
    const int chosen = slots[i];
    rows[i] = size_t(PLACED ? places[chosen] : chosen) * HIDDEN;
    shares[i] = mix[i];
  }
  __syncthreads();
  if (unit < HIDDEN) {
    float total = 0, apart = 0, values[16];
    for (int step = 0; step < STEPS; step += AHEAD) {
      slotstream_packed<BITS> packed[AHEAD];
      float scale[AHEAD], bias[AHEAD];
#pragma unroll
      for (int i = 0; i < AHEAD; i++) {
        const int place = (step + i) * 32 + lane, chunk = place < TOP * PARTS ? place : 0, part = chunk % PARTS;
        const size_t row = rows[chunk / PARTS] + unit, g = row * (WIDTH / GROUP) + 16 * part / GROUP;
        packed[i] = slotstream_take<BITS>(down + row * (WIDTH / 32 * BITS), part);
        scale[i] = slotstream_float(scales[g]);
        bias[i] = slotstream_float(biases[g]);
      }
      __syncwarp();  // the compiler would wait for each before it asks for the next
#pragma unroll
      for (int i = 0; i < AHEAD; i++) {
        const int place = (step + i) * 32 + lane, chunk = place < TOP * PARTS ? place : 0;
        slotstream_load(inner + 16 * chunk, values);
        float dot = scale[i] * slotstream_dot(packed[i], values);
        dot += bias[i] * slotstream_total(values);
        total += place < TOP * PARTS ? shares[chunk / PARTS] * dot : 0.0f;
      }
    }
    for (int chunk = lane; chunk < SHARED / 16; chunk += 32) {
      const int g = unit * (SHARED / OWN_GROUP) + 16 * chunk / OWN_GROUP;
      slotstream_load(inner + TOP * WIDTH + 16 * chunk, values);
      const unsigned int* packed = own + unit * (SHARED / 32 * OWN_BITS);
      apart += slotstream_float(own_scales[g]) * slotstream_dot<OWN_BITS>(packed, chunk, values);
      apart += slotstream_float(own_biases[g]) * slotstream_total(values);
    }
    total = slotstream_sum(total + strength[0] * apart, 32);
    if (lane == 0) output[unit] = __float2bfloat16(total);
  }
"""


class RoutingKernels:
    """Kernels that choose a row's experts: logits, and the ids and weights of the largest.

    Args:
        kernels: Makes them.
        config: Sizes.
    """

    def __init__(self, kernels: DeviceKernels, config: Qwen4ExpConfig) -> None:
        experts, top = config.num_experts, config.num_experts_per_tok
        self.sizes = (experts, top, config.hidden_size, config.norm_topk_prob)
        self._logits_spec = KernelSpec(
            name="router_logits",
            inputs=("x", "router"),
            outputs=(Output(name="logits", shape=(1, experts), dtype=mx.float32),),
            constants={"EXPERTS": experts, "HIDDEN": config.hidden_size},
            body=ROUTER,
            blocks=-(-experts // WARPS),
            threads=32 * WARPS,
        )
        self._choice_spec = KernelSpec(
            name="choose_experts",
            inputs=("logits",),
            outputs=(
                Output(name="ids", shape=(1, top), dtype=mx.int32),
                Output(name="mix", shape=(1, top), dtype=mx.float32),
            ),
            constants={"EXPERTS": experts, "TOP": top, "NORMALISED": int(config.norm_topk_prob)},
            body=CHOOSE,
            blocks=1,
            threads=-(-experts // 32) * 32,
        )
        self.logits = kernels.kernel(self._logits_spec)
        self.choose = kernels.kernel(self._choice_spec)

    def add_logits(self, program: Program, x: mx.array, router: mx.array, logits: mx.array) -> None:
        """Append the router's product with ``x``."""
        program.add(self._logits_spec, x, router, logits)

    def add_choice(self, program: Program, logits: mx.array, ids: mx.array, mix: mx.array) -> None:
        """Append the choice of the largest ``logits``."""
        program.add(self._choice_spec, logits, ids, mix)


class ExpertBuffers:
    """What launches that choose and compute experts leave for the next: scratch of one program.

    Args:
        program: Whose.
        config: Sizes.

    Attributes:
        logits: The router's.
        ids: Of the chosen experts, [1, top].
        mix: Their weights.
        slots: Where they lie.
        inner: Inner values of all experts.
        strength: Of the shared one.
    """

    def __init__(self, program: Program, config: Qwen4ExpConfig) -> None:
        top = config.num_experts_per_tok
        inner = top * config.moe_intermediate_size + config.shared_expert_intermediate_size
        self.logits = program.scratch((1, config.num_experts), mx.float32)
        self.ids = program.scratch((1, top), mx.int32)
        self.mix = program.scratch((1, top), mx.float32)
        self.slots = program.scratch((1, top), mx.int32)
        self.inner = program.scratch((inner,), mx.bfloat16)
        self.strength = program.scratch((1,), mx.float32)


@dataclass(frozen=True, kw_only=True, slots=True)
class StackPlaces:
    """The arguments of a program that are the arrays of a layer's experts.

    Attributes:
        gate: Weight, scales and biases.
        up: As `gate`.
        down: As `gate`.
    """

    gate: tuple[Place, ...]
    up: tuple[Place, ...]
    down: tuple[Place, ...]

    @property
    def all(self) -> tuple[Place, ...]:
        """In this order."""
        return (*self.gate, *self.up, *self.down)

    @staticmethod
    def of(program: Program) -> StackPlaces:
        """New places; they follow each other."""
        kinds = (("weight", mx.uint32), ("scales", mx.bfloat16), ("biases", mx.bfloat16))
        gate, up, down = (
            tuple(program.place(f"{name} {kind}", dtype) for kind, dtype in kinds) for name in ("gate", "up", "down")
        )
        return StackPlaces(gate=gate, up=up, down=down)


class ExpertKernels:
    """Kernels that compute a row's routed experts and the shared one, together.

    Args:
        kernels: Makes them.
        config: Sizes.
        stack: Of routed experts, stored like all of them.
        own: Bits and group size of the shared expert.
    """

    def __init__(
        self, kernels: DeviceKernels, config: Qwen4ExpConfig, stack: QuantizedStack, own: tuple[int, int]
    ) -> None:
        hidden, width, shared = config.hidden_size, config.moe_intermediate_size, config.shared_expert_intermediate_size
        self._top = top = config.num_experts_per_tok
        constants = {
            "TOP": top,
            "HIDDEN": hidden,
            "WIDTH": width,
            "SHARED": shared,
            "BITS": stack.bits,
            "GROUP": stack.group_size,
            "OWN_BITS": own[0],
            "OWN_GROUP": own[1],
        }
        self.sizes = tuple(constants.values())
        # by whether slots are looked up in places
        self._inner_specs: list[KernelSpec] = []
        self._outer_specs: list[KernelSpec] = []
        for placed in (0, 1):
            looked_up = ("slots", "places")
            routed = ("gate", "gate_scales", "gate_biases", "up", "up_scales", "up_biases")
            inner = KernelSpec(
                name="experts_inner",
                inputs=("x", *looked_up, *routed, "own", "own_scales", "own_biases", "opening"),
                outputs=(
                    Output(name="inner", shape=(top * width + shared,), dtype=mx.bfloat16),
                    Output(name="strength", shape=(1,), dtype=mx.float32),
                ),
                constants={**constants, "PLACED": placed},
                body=INNER,
                blocks=-(-(top * width + shared + 1) // WARPS),
                threads=32 * WARPS,
            )
            down = ("down", "scales", "biases", "own", "own_scales", "own_biases")
            outer = KernelSpec(
                name="experts_outer",
                inputs=("inner", "strength", "mix", *looked_up, *down),
                outputs=(Output(name="output", shape=(1, hidden), dtype=mx.bfloat16),),
                constants={**constants, "PLACED": placed},
                body=OUTER,
                blocks=-(-hidden // WARPS),
                threads=32 * WARPS,
            )
            self._inner_specs.append(inner)
            self._outer_specs.append(outer)
        self._inner = [kernels.kernel(spec) for spec in self._inner_specs]
        self._outer = [kernels.kernel(spec) for spec in self._outer_specs]

    def compute(
        self,
        arrays: ExpertArrays,
        x: mx.array,
        mix: mx.array,
        slots: mx.array,
        places: mx.array | None,
        own_in: list[mx.array],
        own_out: list[mx.array],
    ) -> mx.array:
        """The mixed outputs [1, hidden] of the experts in ``slots``, or of those whose slots ``places`` tells."""
        placed = int(places is not None)
        looked_up = [slots, slots if places is None else places]
        gate, up, down = (_arrays(stack) for stack in (arrays.gate, arrays.up, arrays.down))
        inner, strength = self._inner[placed](x, *looked_up, *gate, *up, *own_in)
        return self._outer[placed](inner, strength, mix, *looked_up, *down, *own_out)[0]

    def add(
        self,
        program: Program,
        stacks: StackPlaces,
        x: mx.array,
        routed: ExpertBuffers,
        places: Place | None,
        own: tuple[list[mx.array], list[mx.array]],
        output: mx.array,
    ) -> None:
        """Append what `compute` does.

        Args:
            program: Where to.
            stacks: The routed experts.
            x: The row.
            routed: What chose them; their slots are given there, or found by their ids in ``places``.
            places: The slot of every expert.
            own: What `compute` takes of the shared expert, for either half.
            output: Where the result goes, [1, hidden].
        """
        placed = int(places is not None)
        slots = routed.slots if places is None else routed.ids
        looked_up = [slots, slots if places is None else places]
        inner, outer = self._inner_specs[placed], self._outer_specs[placed]
        program.add(inner, x, *looked_up, *stacks.gate, *stacks.up, *own[0], routed.inner, routed.strength)
        program.add(outer, routed.inner, routed.strength, routed.mix, *looked_up, *stacks.down, *own[1], output)


def _arrays(stack: object) -> list[mx.array]:
    return [stack.weight, stack.scales, stack.biases] if isinstance(stack, QuantizedStack) else []


class DeviceExpertLayer(ExpertLayer):
    """An `ExpertLayer` that routes one row and computes its experts with kernels."""

    def __init__(
        self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig, *, layer: int, experts: Experts
    ) -> None:
        super().__init__(weights, prefix, config, layer=layer, experts=experts)
        self._config = config
        self._kernels = weights.device
        self._routing: RoutingKernels | None = None
        self._mixing: ExpertKernels | None = None
        if weights.device is None or config.hidden_size % CHUNK or config.num_experts > MOST_THREADS:
            return
        self._router_weight = self._router.dense()
        mx.eval(self._router_weight)
        self._prove_routing(weights.device)
        self._prove_mixing(weights.device)

    def _prove_routing(self, device: DeviceKernels) -> None:
        routing = RoutingKernels(device, self._config)
        x = random_row(1, self._config.hidden_size)

        def spread(ids: mx.array, mix: mx.array) -> list[mx.array]:
            chosen = mx.zeros((1, self._expert_count))
            return [mx.put_along_axis(chosen, ids, mix, axis=-1)]  # whatever the order of ids

        def ours() -> list[mx.array]:
            self._routing = routing
            logits = self.router_logits(x)
            return [logits, *spread(*self.route(x))]

        def plain() -> list[mx.array]:
            logits = self.router_logits(x)
            return [logits, *spread(*self.route(x))]

        self._routing = routing if device.proven("routing", routing.sizes, ours, plain) else None

    def _prove_mixing(self, device: DeviceKernels) -> None:
        config, stack = self._config, self._experts.arrays(self._layer)
        inputs = self._shared_inputs.groups
        own, hidden = inputs[0][0], config.hidden_size
        stacks = (stack.gate, stack.up, stack.down)
        suits = (
            len(inputs) == 1
            and quantised_alike(own)
            and quantised_alike(self._shared_down)
            and (own.bits, own.group_size) == (self._shared_down.bits, self._shared_down.group_size)
            and all(isinstance(each, QuantizedStack) and quantised_alike(each) for each in stacks)
            and len({(each.bits, each.group_size) for each in stacks if isinstance(each, QuantizedStack)}) == 1
        )
        if not suits or not isinstance(stack.gate, QuantizedStack):
            return
        self._own_in = [*own.arrays(), self._shared_gate.dense()]
        self._own_out = self._shared_down.arrays()
        mx.eval(self._own_in)
        mixing = ExpertKernels(device, config, stack.gate, (own.bits, own.group_size))
        top, arrays = config.num_experts_per_tok, random_experts(config, stack.gate)
        x, ids = random_row(1, hidden), mx.array(np.arange(top, dtype=np.int32)[None] * 3 % PROOF_PLACES)
        places = mx.array(np.arange(PROOF_PLACES - 1, -1, -1, dtype=np.int32))
        mix = mx.softmax(mx.arange(top, dtype=mx.float32))[None]

        def plain() -> list[mx.array]:
            return [self.mix_slots(arrays, x, slots, mix) for slots in (ids, places[ids])]

        def ours() -> list[mx.array]:
            given = (self._own_in, self._own_out)
            return [mixing.compute(arrays, x, mix, ids, where, *given) for where in (None, places)]

        self._mixing = mixing if device.proven("experts", mixing.sizes, ours, plain) else None

    @property
    def launchable(self) -> bool:
        """Whether `add_logits`, `add_choice` and `add_experts` can be used."""
        return self._routing is not None and self._mixing is not None and self._experts.group_limit >= self._top

    def add_logits(self, program: Program, x: mx.array, logits: mx.array) -> None:
        """Append the router's logits of ``x`` [1, hidden]; only where `launchable`."""
        self._launched[0].add_logits(program, x, self._router_weight, logits)

    def add_choice(self, program: Program, to: ExpertBuffers) -> None:
        """Append the choice by the logits there; only where `launchable`."""
        self._launched[0].add_choice(program, to.logits, to.ids, to.mix)

    def add_experts(
        self,
        program: Program,
        stacks: StackPlaces,
        x: mx.array,
        routed: ExpertBuffers,
        places: Place | None,
        output: mx.array,
    ) -> None:
        """Append the chosen experts and the shared one, see `ExpertKernels.add`; only where `launchable`."""
        self._launched[1].add(program, stacks, x, routed, places, (self._own_in, self._own_out), output)

    @property
    def _launched(self) -> tuple[RoutingKernels, ExpertKernels]:
        if self._routing is None or self._mixing is None:
            raise BackendError("experts whose kernels did not prove themselves cannot be launched")
        return self._routing, self._mixing

    def route(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """See `ExpertLayer.route`."""
        if self._routing is None or len(x) != 1:
            return super().route(x)
        ids, mix = self._routing.choose(self.router_logits(x))
        return ids, mix

    def router_logits(self, x: mx.array) -> mx.array:
        """See `ExpertLayer.router_logits`."""
        if self._routing is None or len(x) != 1:
            return super().router_logits(x)
        return self._routing.logits(x, self._router_weight)[0]

    def mix_routed(
        self, x: mx.array, ids: mx.array, mix: mx.array, leases: PassLeases, watch: PassWatch | None
    ) -> mx.array:
        """See `ExpertLayer.mix_routed`."""
        if self._mixing is None or len(x) != 1 or self._experts.group_limit < self._top:
            return super().mix_routed(x, ids, mix, leases, watch)
        places, slots = self._experts.places(self._layer), ids
        if places is None:
            chosen = self._chosen(ids, leases, watch)
            slots = mx.array(self._lease(chosen, leases, watch).slots)
        arrays = self._experts.arrays(self._layer)
        return self._mixing.compute(arrays, x, mix, slots, places, self._own_in, self._own_out)


def random_experts(config: Qwen4ExpConfig, form: QuantizedStack) -> ExpertArrays:
    """Some experts for a proof, stored as ``form`` is."""
    hidden, width = config.hidden_size, config.moe_intermediate_size
    return ExpertArrays(
        gate=_random_stack(form, width, hidden),
        up=_random_stack(form, width, hidden),
        down=_random_stack(form, hidden, width),
    )


def _random_stack(form: QuantizedStack, rows: int, columns: int) -> QuantizedStack:
    """Some experts' matrices, stored as ``form`` is."""
    values = random_row(PROOF_PLACES, rows, columns) * columns**-0.5
    weight, scales, biases = mx.quantize(values, group_size=form.group_size, bits=form.bits)
    return QuantizedStack(weight=weight, scales=scales, biases=biases, bits=form.bits, group_size=form.group_size)
