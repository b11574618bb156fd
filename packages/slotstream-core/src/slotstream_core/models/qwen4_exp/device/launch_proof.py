"""Launched layers prove themselves before they are used: a row takes either way through a layer of each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import mlx.core as mx
import numpy as np

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.errors import BackendError, StateError
from slotstream_core.experts.resident import ResidentLease
from slotstream_core.experts.stacks import ExpertArrays, Experts, QuantizedStack, Slots
from slotstream_core.models.qwen4_exp.attention import AttentionState, SparseAttention
from slotstream_core.models.qwen4_exp.decoder_layer import DecoderLayer
from slotstream_core.models.qwen4_exp.device.ends import HeadParts, LaunchedEmbedding, LaunchedHead
from slotstream_core.models.qwen4_exp.device.experts import PROOF_PLACES, random_experts
from slotstream_core.models.qwen4_exp.device.kernels import DeviceKernels, first_difference, random_row
from slotstream_core.models.qwen4_exp.device.launched import BoundProgram, LaunchedLayers, LaunchedPass
from slotstream_core.models.qwen4_exp.device.launching import LaunchedKernels
from slotstream_core.models.qwen4_exp.device.layer_program import (
    LaunchedForecasts,
    LayerProgram,
    layer_parts,
    routing_parts,
)
from slotstream_core.models.qwen4_exp.device.ngram import DeviceNgram, LaunchedNgram
from slotstream_core.models.qwen4_exp.device.products import suits_product
from slotstream_core.models.qwen4_exp.device.publishing import Entrance, run_once
from slotstream_core.models.qwen4_exp.gated_delta import DeltaState, GatedDeltaLayer
from slotstream_core.models.qwen4_exp.moe import pass_leases
from slotstream_core.models.qwen4_exp.ngram import NgramLayer
from slotstream_core.models.qwen4_exp.projections import Projection
from slotstream_core.models.qwen4_exp.rotary import RotaryEmbedding
from slotstream_core.state.sequence import LayerState

PROOF_TOKENS = 5
"""Tokens that a state has seen before the row."""

FORECASTS = LaunchedForecasts(tap="attention", corrections=())
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

    def visit(self, layer: int, experts: Sequence[int] | Slots, *, threads: int = 0) -> ResidentLease:
        """See `Experts.visit`; as `request`."""
        return self.request(layer, experts)

    def open_run(self, top: int) -> None:
        """See `Experts.open_run`: there is nothing to bring."""


def launched_layers(
    device: DeviceKernels | None,
    config: Qwen4ExpConfig,
    rotary: RotaryEmbedding,
    layers: Sequence[DecoderLayer],
    experts: Experts,
    ngrams: Mapping[int, NgramLayer],
    head: HeadParts | None,
    embedding: Projection | None,
) -> LaunchedLayers | None:
    """What launches a model's layers; None where nothing does, or it has not proven itself, after a warning.

    Args:
        device: Kernels of the model.
        config: Sizes.
        rotary: Turns positions into angles.
        layers: All decoder layers.
        experts: Where routed experts come from.
        ngrams: What is added to the streams before some layers, by MLX where launches have not proven themselves, after
            a warning.
        head: Of the model's end, likewise.
        embedding: Of tokens, likewise.
    """
    kernels = None if device is None else device.launched
    if device is None or kernels is None:
        return None
    kinds: dict[object, int] = {}
    for index, layer in enumerate(layers):
        if (parts := layer_parts(layer)) is not None:
            kinds.setdefault(parts.mixer.launch_kind, index)
    for kind, index in kinds.items():
        proof = LayerProof(device, kernels, config, rotary, layers, index)
        find_fault = partial(proof.fault, experts)
        if not device.faultless(("launched layers", kind), find_fault, "layers are not launched whole"):
            return None
    if not kinds:
        return None
    if head is not None and not head_proven(device, kernels, config, head):
        head = None
    if embedding is not None and not embedding_proven(device, kernels, config, embedding):
        embedding = None
    added = {
        index: layer
        for index, layer in ngrams.items()
        if isinstance(layer, DeviceNgram) and layer.launchable and ngrams_proven(device, kernels, layer)
    }
    for ngram in added.values():
        ngram.read_with(kernels.native.read_rows)
    renewed = ngrams.keys() - added.keys()
    return LaunchedLayers(device, kernels, config, rotary, layers, experts, renewed, added, head, embedding)


def ngrams_proven(device: DeviceKernels, kernels: LaunchedKernels, layer: DeviceNgram) -> bool:
    """Whether launches add n-grams as MLX does; as `head_proven`."""
    key = ("launched n-grams", *layer.launch_kind)
    return device.faultless(key, lambda: ngram_fault(kernels, layer), "n-grams are not launched")


def ngram_fault(kernels: LaunchedKernels, layer: DeviceNgram) -> str | None:
    """What is wrong with random streams to which the n-grams of random rows are added; None for nothing."""
    (streams, packed, state), program = layer.made_up(), kernels.program()
    renewed, window = (program.scratch(shape, mx.bfloat16) for shape in (streams.shape, state.window.shape))
    try:
        launched = LaunchedNgram(kernels, program, layer)
        launched.rows[:] = packed
        launched.add(streams, renewed)
        program.point(launched.window.all, [state.window, window])
        run_once(kernels, program)
        found = [renewed * 1, window[:-1], window[-1:]]
        mx.eval(found)
        embeddings = layer.embed(packed, np.arange(len(packed))[None])
        added = layer(streams, np.zeros(1, np.int64), embeddings, state, start=0, record=False)
        difference = first_difference(found, [added, state.window[:-1], state.window[-1:]])
    except (BackendError, RuntimeError, ValueError) as error:
        return str(error).splitlines()[0][:200]
    return None if difference is None else f"of n-grams, {difference}"


def embedding_proven(
    device: DeviceKernels, kernels: LaunchedKernels, config: Qwen4ExpConfig, matrix: Projection
) -> bool:
    """Whether a launch gives the embedding that MLX does; as `head_proven`."""
    key = ("launched embedding", *matrix.weight.shape, matrix.bits, matrix.group_size)
    return device.faultless(key, lambda: embedding_fault(kernels, config, matrix), "embeddings are not launched")


def embedding_fault(kernels: LaunchedKernels, config: Qwen4ExpConfig, matrix: Projection) -> str | None:
    """What is wrong with the embedding of the last token; None for nothing."""
    if not suits_product(matrix):
        return "it is stored another way"
    token, program = matrix.out_features - 1, kernels.program()
    try:
        streams = program.scratch((1, config.hc_count, config.hidden_size), mx.bfloat16)
        launched = LaunchedEmbedding(program, config, matrix)
        launched.add(streams)
        launched.choose(token)
        run_once(kernels, program)
    except (BackendError, RuntimeError, ValueError) as error:
        return str(error).splitlines()[0][:200]
    wanted = mx.broadcast_to(matrix.rows(mx.array([token]))[:, None, :], streams.shape)
    difference = first_difference([streams * 1], [wanted])
    return None if difference is None else f"of the embedding, {difference}"


def head_proven(device: DeviceKernels, kernels: LaunchedKernels, config: Qwen4ExpConfig, head: HeadParts) -> bool:
    """Whether launches give the logits that MLX does; tried once for each kind of end, with a warning where not."""
    key = ("launched head", *head.kind)
    return device.faultless(key, lambda: head_fault(device, kernels, config, head), "logits are not launched")


def head_fault(device: DeviceKernels, kernels: LaunchedKernels, config: Qwen4ExpConfig, head: HeadParts) -> str | None:
    """What is wrong with the logits of random streams; None for nothing."""
    streams, program = random_row(1, config.hc_count, config.hidden_size), kernels.program()
    try:
        entry, launched = program.scratch(streams.shape, mx.bfloat16), LaunchedHead(kernels, program, config, head)
        launched.add(program, entry)
        mx.eval(Entrance(device, kernels.target, entry).take(streams))
        run_once(kernels, program)
        wanted = head.matrix(head.streams.read(streams)[0]).astype(mx.float32)
    except (BackendError, RuntimeError, ValueError) as error:
        return str(error).splitlines()[0][:200]
    difference = first_difference([launched.logits()], [wanted])
    return None if difference is None else f"of the output head, {difference}"


class LayerProof:
    """Takes a row either way through a layer.

    Args:
        device: The model's kernels.
        kernels: Launches kernels.
        config: Sizes.
        rotary: Turns positions into angles.
        layers: All decoder layers.
        index: Which of them.
    """

    def __init__(
        self,
        device: DeviceKernels,
        kernels: LaunchedKernels,
        config: Qwen4ExpConfig,
        rotary: RotaryEmbedding,
        layers: Sequence[DecoderLayer],
        index: int,
    ) -> None:
        self._device, self._kernels, self._config, self._rotary = device, kernels, config, rotary
        self._layer, self._index = layers[index], index
        following = {number: routing_parts(layers[number]) for number in range(index, min(index + 2, len(layers)))}
        self._routings = {number: each for number, each in following.items() if each is not None}
        self._streams = random_row(1, config.hc_count, config.hidden_size)

    def fault(self, experts: Experts) -> str | None:
        """What is wrong when the row is launched; None for nothing.

        Args:
            experts: Stored as those that the layer will meet.
        """
        form, parts = experts.arrays(self._index).gate, layer_parts(self._layer)
        if parts is None or not isinstance(form, QuantizedStack):
            return f"layer {self._index} has a part without kernels"
        for placed in (False, True):
            proof = ProofExperts(self._config, form, placed=placed)
            try:
                launches = LayerProgram(
                    self._kernels,
                    self._config,
                    self._rotary,
                    {self._index: parts},
                    {self._index: self._index + 1},
                    self._routings,
                    placed=placed,
                    choosing=True,
                    forecasts=None if placed else FORECASTS,
                    head=None,
                    embedding=None,
                )
                found = self._launched(launches, proof)
            except (BackendError, RuntimeError, ValueError) as error:
                return str(error).splitlines()[0][:200]
            # equal logits may be chosen between, so the other way is given the choice
            wanted = self._computed(proof.arrays(self._index), launches.routed.ids * 1, launches.routed.mix * 1)
            if (difference := first_difference(found, wanted)) is not None:
                return f"of layer {self._index}, {difference}"
        return None

    def _launched(self, launches: LayerProgram, proof: ProofExperts) -> list[mx.array]:
        bound, state, places = BoundProgram(launches, proof, self._device), self._state(), proof.places(self._index)
        bound.bind({} if places is None else {self._index: places})
        if launches.attentions:
            launches.token.move(PROOF_TOKENS)
        taken = LaunchedPass(0, {self._index: self._index + 1}, bound, proof, None, {})
        with pass_leases() as leases:
            streams, _ = taken.run(self._index, self._streams, [state] * (self._index + 1), leases)
        found = [launches.middle * 1, launches.row * 1, launches.routed.logits * 1, streams, *_remembered(state)]
        mx.eval(found)
        return found

    def _computed(self, arrays: ExpertArrays, ids: mx.array, mix: mx.array) -> list[mx.array]:
        """As `_launched`, by the layer's own calls."""
        layer, state = self._layer, self._state()
        x, injection = layer.attention_streams.read(self._streams)
        middle = layer.attention_streams.inject(self._streams, self._mixed(x, state, PROOF_TOKENS), injection)
        row, injection = layer.expert_streams.read(middle)
        logits = layer.experts.router_logits(row)
        output = layer.experts.mix_slots(arrays, row, ids % PROOF_PLACES, mix)
        return [middle, row, logits, layer.expert_streams.inject(middle, output, injection), *_remembered(state)]

    def _state(self) -> LayerState:
        """A state after `PROOF_TOKENS`."""
        state: LayerState = self._layer.new_state()
        if isinstance(state, DeltaState):
            state.window = random_row(*state.window.shape)
            state.memory = random_row(*state.memory.shape).astype(mx.float32) * 0.1
        else:
            self._mixed(random_row(PROOF_TOKENS, self._config.hidden_size), state, 0)
        return state

    def _mixed(self, x: mx.array, state: LayerState, start: int) -> mx.array:
        mixer = self._layer.mixer
        if isinstance(mixer, GatedDeltaLayer) and isinstance(state, DeltaState):
            return mixer(x, state, start=start, record=False)
        if not isinstance(mixer, SparseAttention) or not isinstance(state, AttentionState):
            raise StateError(f"a {type(state).__name__} was passed to a {type(mixer).__name__}")
        angles, block_angles = self._rotary.pass_angles(start, len(x), self._config.indexer_compress_ratio)
        return mixer(x, state, angles=angles, block_angles=block_angles, record=False)


def _remembered(state: LayerState) -> list[mx.array]:
    """Copies of what a state holds of its tokens."""
    if isinstance(state, AttentionState):
        rows = [array[:, : state.length] for array in (state.keys, state.values)]
        return [*(array * 1 for array in rows), state.index.tail * 1]
    return [array * 1 for array in state.arrays()]
