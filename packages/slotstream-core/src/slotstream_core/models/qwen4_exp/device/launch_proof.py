"""Launched layers prove themselves before they are used: a row takes either way through a layer of each kind."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

import mlx.core as mx
import numpy as np

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.errors import BackendError
from slotstream_core.experts.resident import ResidentLease
from slotstream_core.experts.stacks import ExpertArrays, Experts, QuantizedStack, Slots
from slotstream_core.models.qwen4_exp.decoder_layer import DecoderLayer
from slotstream_core.models.qwen4_exp.device.experts import PROOF_PLACES, random_experts
from slotstream_core.models.qwen4_exp.device.kernels import DeviceKernels, first_difference, random_row
from slotstream_core.models.qwen4_exp.device.launched import BoundProgram, LaunchedLayers, LaunchedPass
from slotstream_core.models.qwen4_exp.device.launching import LaunchedKernels
from slotstream_core.models.qwen4_exp.device.layer_program import (
    LaunchedForecasts,
    LayerParts,
    LayerProgram,
    layer_parts,
    routing_parts,
)
from slotstream_core.models.qwen4_exp.gated_delta import DeltaState, GatedDeltaLayer
from slotstream_core.models.qwen4_exp.moe import pass_leases

logger = logging.getLogger("slotstream.device")

FORECASTS = LaunchedForecasts(tap="attention", corrected=True)
"""Compiled for the proof, too; what they say decides nothing but what is read early."""


class ProofExperts:
    """An `Experts` of a few random matrices, which serve for all experts.

    Args:
        config: Sizes.
        form: How they are stored.
        placed: Whether every expert has a place to stay.
    """

    def __init__(self, config: Qwen4ExpConfig, form: QuantizedStack, *, placed: bool) -> None:
        self.group_limit = config.num_experts
        self._arrays = random_experts(config, form)
        self._places = mx.array(np.arange(config.num_experts, dtype=np.int32) % PROOF_PLACES) if placed else None

    def arrays(self, layer: int) -> ExpertArrays:
        """See `Experts.arrays`."""
        return self._arrays

    def places(self, layer: int) -> mx.array | None:
        """See `Experts.places`."""
        return self._places

    def open_sweep(self, *, ends_prompt: bool, threads: int = 0) -> None:
        """See `Experts.open_sweep`: nothing is to be read."""

    def request(self, layer: int, experts: Sequence[int] | Slots, *, threads: int = 0) -> ResidentLease:
        """See `Experts.request`."""
        return ResidentLease(np.asarray(experts, np.int32) % PROOF_PLACES)


def launched_layers(
    device: DeviceKernels | None,
    config: Qwen4ExpConfig,
    layers: Sequence[DecoderLayer],
    experts: Experts,
    renewed: Collection[int],
) -> LaunchedLayers | None:
    """What launches a model's layers; None where nothing does, or it has not proven itself, after a warning.

    Args:
        device: Kernels of the model.
        config: Sizes.
        layers: All decoder layers.
        experts: Where routed experts come from.
        renewed: As `LaunchedLayers` takes it.
    """
    kernels = None if device is None else device.launched
    if device is None or kernels is None:
        return None
    kinds: dict[object, int] = {}
    for index, layer in enumerate(layers):
        if (parts := layer_parts(layer)) is not None:
            kinds.setdefault(parts.mixer.launch_kind, index)
    for kind, index in kinds.items():
        key = ("launched layers", kind)
        if key not in device.verdicts:
            fault = _fault(kernels, config, layers, experts, index)
            device.verdicts[key] = fault is None
            if fault is not None:
                logger.warning("layers are not launched whole: %s; MLX's operations are used, which is slower", fault)
        if not device.verdicts[key]:
            return None
    return LaunchedLayers(kernels, config, layers, experts, renewed) if kinds else None


def _fault(
    kernels: LaunchedKernels, config: Qwen4ExpConfig, layers: Sequence[DecoderLayer], experts: Experts, index: int
) -> str | None:
    """What is wrong when a row is launched through a layer; None for nothing."""
    layer, parts, form = layers[index], layer_parts(layers[index]), experts.arrays(index).gate
    if parts is None or not isinstance(form, QuantizedStack):
        return f"layer {index} has a part without kernels"
    following = {number: routing_parts(layers[number]) for number in range(index, min(index + 2, len(layers)))}
    routings = {number: each for number, each in following.items() if each is not None}
    for placed in (False, True):
        proof = ProofExperts(config, form, placed=placed)
        try:
            launches = LayerProgram(
                kernels,
                config,
                {index: parts},
                {index: index + 1},
                routings,
                placed=placed,
                forecasts=None if placed else FORECASTS,
            )
            found = _launched(launches, proof, config, index, parts)
        except (BackendError, RuntimeError, ValueError) as error:
            return str(error).splitlines()[0][:200]
        chosen = (launches.routed.ids * 1, launches.routed.mix * 1)
        wanted = _computed(layer, proof.arrays(index), config, parts, *chosen)
        if (difference := first_difference(found, wanted)) is not None:
            return f"of layer {index}, {difference}"
    return None


def _state(config: Qwen4ExpConfig, parts: LayerParts) -> DeltaState:
    empty = parts.mixer.new_state()
    memory = random_row(*empty.memory.shape).astype(mx.float32) * 0.1
    return DeltaState(window=random_row(*empty.window.shape), memory=memory)


def _streams(config: Qwen4ExpConfig) -> mx.array:
    return random_row(1, config.hc_count, config.hidden_size)


def _launched(
    launches: LayerProgram, proof: ProofExperts, config: Qwen4ExpConfig, index: int, parts: LayerParts
) -> list[mx.array]:
    bound, state = BoundProgram(launches, proof), _state(config, parts)
    places = proof.places(index)
    bound.bind({} if places is None else {index: places})
    taken = LaunchedPass({index: index + 1}, bound, proof, None)
    with pass_leases() as leases:
        streams, _ = taken.run(index, _streams(config), [state] * (index + 1), leases)
    found = [launches.middle * 1, launches.row * 1, launches.routed.logits * 1, streams]
    found += [state.window * 1, state.memory * 1]
    mx.eval(found)
    return found


def _computed(
    layer: DecoderLayer, arrays: ExpertArrays, config: Qwen4ExpConfig, parts: LayerParts, ids: mx.array, mix: mx.array
) -> list[mx.array]:
    """As `_launched`, by the layer's own calls; equal logits may be chosen between, so the choice is given."""
    streams, state = _streams(config), _state(config, parts)
    mixer: GatedDeltaLayer = parts.mixer
    x, injection = layer.attention_streams.read(streams)
    middle = layer.attention_streams.inject(streams, mixer(x, state, start=0, record=False), injection)
    row, injection = layer.expert_streams.read(middle)
    logits = layer.experts.router_logits(row)
    output = layer.experts.mix_slots(arrays, row, ids % PROOF_PLACES, mix)
    return [middle, row, logits, layer.expert_streams.inject(middle, output, injection), state.window, state.memory]
