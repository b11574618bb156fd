"""One row's way through the decoder layers of a model, as launches of one program.

A layer is three ranges of launches. The first reads the streams, mixes, and chooses experts; the second forecasts the
next layer's experts; the third computes the experts, once these are in their slots. Where every expert of a model has a
slot, nothing is published and nothing waited for within a run of layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.models.qwen4_exp.decoder_layer import DecoderLayer
from slotstream_core.models.qwen4_exp.device.attention import (
    AttentionPlaces,
    DeviceAttention,
    Scratch,
    TokenPlace,
)
from slotstream_core.models.qwen4_exp.device.corrections import ForecastCorrections
from slotstream_core.models.qwen4_exp.device.delta import DeltaPlaces, DeviceGatedDelta
from slotstream_core.models.qwen4_exp.device.ends import HeadParts, LaunchedEmbedding, LaunchedHead
from slotstream_core.models.qwen4_exp.device.experts import DeviceExpertLayer, ExpertBuffers, StackPlaces
from slotstream_core.models.qwen4_exp.device.launching import Argument, LaunchedKernels, Place
from slotstream_core.models.qwen4_exp.device.ngram import DeviceNgram, LaunchedNgram
from slotstream_core.models.qwen4_exp.device.publishing import (
    Announcement,
    GivenSlots,
    PublishedForecast,
    PublishedIds,
)
from slotstream_core.models.qwen4_exp.device.streams import DeviceHyperConnection, StreamBuffers, StreamReader
from slotstream_core.models.qwen4_exp.forecasting import TargetCorrection
from slotstream_core.models.qwen4_exp.projections import Projection
from slotstream_core.models.qwen4_exp.rotary import RotaryEmbedding
from slotstream_core.options import Tap


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchedForecasts:
    """How forecasts are made within a program.

    Attributes:
        tap: Where the streams are taken.
        corrections: Of each layer from the second on; none where they are not corrected.
    """

    tap: Tap
    corrections: tuple[TargetCorrection, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RoutingParts:
    """What says which experts a layer's router would choose.

    Attributes:
        streams: Reads the streams for it.
        experts: The router.
    """

    streams: StreamReader
    experts: DeviceExpertLayer


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerParts:
    """The parts of a layer that can be launched whole.

    Attributes:
        attention_streams: Reads and feeds the streams around the mixer.
        mixer: The gated delta rule or the attention.
        routing: Reads and feeds them around the experts, and these.
        ngram: What is added to the streams before; None for nothing, and where MLX adds it.
    """

    attention_streams: StreamReader
    mixer: DeviceGatedDelta | DeviceAttention
    routing: RoutingParts
    ngram: DeviceNgram | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerRanges:
    """Where a layer's launches are in the program.

    Attributes:
        start: The first that takes streams.
        routed: After the choice of experts.
        foreseen: After the forecast of the next layer's; the experts come next.
        end: After the experts, and after logits and announcement where the layer ends a run.
    """

    start: int
    routed: int
    foreseen: int
    end: int


def routing_parts(layer: DecoderLayer) -> RoutingParts | None:
    """What can be launched of a layer's routing; None where its kernels are not proven."""
    streams, experts = layer.expert_streams, layer.experts
    if not isinstance(streams, DeviceHyperConnection) or streams.reader is None:
        return None
    if not isinstance(experts, DeviceExpertLayer) or not experts.launchable:
        return None
    return RoutingParts(streams=streams.reader, experts=experts)


def layer_parts(layer: DecoderLayer, ngram: DeviceNgram | None = None) -> LayerParts | None:
    """The parts of a layer that can be launched; None where one of them cannot.

    Args:
        layer: The layer.
        ngram: What is added to the streams before it, where that can be launched.
    """
    streams, mixer, routing = layer.attention_streams, layer.mixer, routing_parts(layer)
    if not isinstance(streams, DeviceHyperConnection) or streams.reader is None or routing is None:
        return None
    if not isinstance(mixer, DeviceGatedDelta | DeviceAttention) or not mixer.launchable:
        return None
    return LayerParts(attention_streams=streams.reader, mixer=mixer, routing=routing, ngram=ngram)


class LayerProgram:
    """The launches of all layers that can be launched, in runs of neighbours.

    Args:
        kernels: Compiles and runs them.
        config: Sizes.
        rotary: Turns positions into angles.
        layers: The parts of launched layers by index.
        runs: First layer of each run and the one after its last.
        routings: The routing of every layer that may be forecast, by index.
        placed: Whether every expert has a slot.
        choosing: Whether attention chooses what a row sees.
        forecasts: Whether and how forecasts are made.
        head: What makes logits after the last layer; None where MLX does.
        embedding: Of tokens, with which the first layer begins; None where it begins with streams.

    Attributes:
        target: What runs them.
        native: The compiled module.
        program: The launches.
        number: The argument that holds what is announced.
        entry: The streams that a run begins with.
        streams: Those it ends with, [1, streams, hidden].
        middle: The streams between a layer's mixer and its experts.
        routed: What was chosen last.
        row: What the last router read, [1, hidden].
        token: Where the row stands in its sequence.
        deltas: The states of launched layers with a gated delta rule.
        attentions: Those of launched layers with attention.
        ngrams: What is added to the streams before launched layers.
        stacks: Of the launched layers.
        places: Of the launched layers; with `placed` alone.
        ranges: By layer.
        done: Announces the end of a run.
        ids: Publishes what was chosen.
        forecast: Publishes forecasts; None without.
        slots: Takes the slots of what was chosen.
        head: Makes logits where a run ends with the last layer; None without.
        layers: How many the model has.
        embedding: Writes what the first layer begins with, where that begins a run; None without.
    """

    def __init__(
        self,
        kernels: LaunchedKernels,
        config: Qwen4ExpConfig,
        rotary: RotaryEmbedding,
        layers: Mapping[int, LayerParts],
        runs: Mapping[int, int],
        routings: Mapping[int, RoutingParts],
        *,
        placed: bool,
        choosing: bool,
        forecasts: LaunchedForecasts | None,
        head: HeadParts | None,
        embedding: Projection | None,
    ) -> None:
        self._kernels, self.target, self.native = kernels, kernels.target, kernels.native
        self.program = program = kernels.program()
        self.number = program.place("number")
        self.done = Announcement(kernels, self.number)
        self.ids = PublishedIds(kernels, config, self.number)
        self.forecast = None if forecasts is None else PublishedForecast(kernels, config, self.number)
        self.slots = GivenSlots(program, config.num_experts_per_tok)
        self.token = TokenPlace(program, rotary, config.indexer_compress_ratio)
        self.deltas: dict[int, DeltaPlaces] = {}
        self.attentions: dict[int, AttentionPlaces] = {}
        self.ngrams: dict[int, LaunchedNgram] = {}
        self._scratch: dict[object, Scratch] = {}
        self.stacks = {index: StackPlaces.of(program) for index in layers}
        self.places: dict[int, Place] = {}
        if placed:
            self.places = {index: program.place("places", mx.int32) for index in layers}
        self._choosing, self._forecasts, self._routings = choosing, forecasts, routings
        shape = (1, config.hc_count, config.hidden_size)
        self.entry = program.scratch(shape, mx.bfloat16)
        self.streams, self.middle = program.scratch(shape, mx.bfloat16), program.scratch(shape, mx.bfloat16)
        self._renewed = program.scratch(shape, mx.bfloat16)
        self._output = program.scratch((1, config.hidden_size), mx.bfloat16)
        self._read, self._foreseen = StreamBuffers(program, config), StreamBuffers(program, config)
        self._forecast_logits = program.scratch((1, config.num_experts), mx.float32)
        self._corrections: ForecastCorrections | None = None
        if forecasts is not None and forecasts.corrections:
            self._corrections = ForecastCorrections(program, forecasts.corrections)
        self.routed = ExpertBuffers(program, config)
        self.row = self._read.mixed
        self.head = None if head is None else LaunchedHead(kernels, program, config, head)
        self.layers = config.num_hidden_layers
        self.embedding: LaunchedEmbedding | None = None
        if embedding is not None and 0 in runs:
            self.embedding = LaunchedEmbedding(program, config, embedding)
        self.ranges: dict[int, LayerRanges] = {}
        for first, after in runs.items():
            for index in range(first, after):
                streams = self.entry if index == first else self.streams
                self.ranges[index] = self._add(index, layers[index], streams, last=index == after - 1)

    def _add(self, index: int, parts: LayerParts, streams: Argument, *, last: bool) -> LayerRanges:
        program, read, routing = self.program, self._read, parts.routing
        start = program.mark()
        if self.embedding is not None and index == 0:
            self.embedding.add(self.entry)
        if parts.ngram is not None:
            self.ngrams[index] = LaunchedNgram(self._kernels, program, parts.ngram)
            self.ngrams[index].add(streams, self._renewed)
            streams = self._renewed
        parts.attention_streams.add_read(program, streams, read)
        self._add_mixer(index, parts.mixer)
        parts.attention_streams.add_inject(program, streams, self._output, read, self.middle)
        routing.streams.add_read(program, self.middle, read)
        routing.experts.add_logits(program, read.mixed, self.routed.logits)
        routing.experts.add_choice(program, self.routed)
        places = self.places.get(index)
        if places is None:
            self.ids.add(program, self.routed.ids)
        routed = program.mark()
        self._add_forecast(index + 1, streams)
        foreseen = program.mark()
        if places is None:
            self.slots.add(program, self.routed.slots)
        routing.experts.add_experts(program, self.stacks[index], read.mixed, self.routed, places, self._output)
        routing.streams.add_inject(program, self.middle, self._output, read, self.streams)
        if self.head is not None and index == self.layers - 1:
            self.head.add(program, self.streams)
        if last:
            self.done.add(program)
        return LayerRanges(start=start, routed=routed, foreseen=foreseen, end=program.mark())

    def _add_mixer(self, index: int, mixer: DeviceGatedDelta | DeviceAttention) -> None:
        program, x, y = self.program, self._read.mixed, self._output
        if isinstance(mixer, DeviceGatedDelta):
            self.deltas[index] = delta = DeltaPlaces.of(program)
            mixer.add(program, x, delta, y)
            return
        self.attentions[index] = attention = AttentionPlaces.of(program)
        kind = mixer.launch_kind
        if kind not in self._scratch:
            self._scratch[kind] = mixer.scratch(program)
        scratch = self._scratch[kind]
        mixer.add(program, x, attention, y, token=self.token, scratch=scratch, choosing=self._choosing)

    def _add_forecast(self, target: int, entering: Argument) -> None:
        """Append the forecast of a layer from the streams of the layer before."""
        routing = self._routings.get(target)
        if self._forecasts is None or self.forecast is None or routing is None:
            return
        streams = entering if self._forecasts.tap == "boundary" else self.middle
        routing.streams.add_mix(self.program, streams, self._foreseen)
        routing.experts.add_logits(self.program, self._foreseen.mixed, self._forecast_logits)
        logits = self._forecast_logits
        if self._corrections is not None:
            logits = self._corrections.add(target, self._foreseen.mixed, logits)
        self.forecast.add(self.program, logits)


def runs_of(layers: Sequence[int], renewed: frozenset[int]) -> dict[int, int]:
    """The runs of neighbours among launched layers: the first of each, and the one after its last.

    Args:
        layers: The launched layers, ascending.
        renewed: Layers whose streams come from elsewhere.
    """
    runs: dict[int, int] = {}
    first: int | None = None
    for index in layers:
        if first is None or runs[first] != index or index in renewed:
            first = index
        runs[first] = index + 1
    return runs
