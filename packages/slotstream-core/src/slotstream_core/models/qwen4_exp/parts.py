"""Which classes compute a layer: MLX's operations, compiled ones on the host, or kernels on a device."""

from __future__ import annotations

from dataclasses import dataclass

from slotstream_core.models.qwen4_exp.attention import SparseAttention
from slotstream_core.models.qwen4_exp.device.attention import DeviceAttention
from slotstream_core.models.qwen4_exp.device.delta import DeviceGatedDelta
from slotstream_core.models.qwen4_exp.device.experts import DeviceExpertLayer
from slotstream_core.models.qwen4_exp.device.ngram import DeviceNgram
from slotstream_core.models.qwen4_exp.device.streams import DeviceHyperConnection, DeviceStreamMixer
from slotstream_core.models.qwen4_exp.draft_inputs import DraftInputs
from slotstream_core.models.qwen4_exp.draft_outputs import DraftOutputs
from slotstream_core.models.qwen4_exp.gated_delta import GatedDeltaLayer
from slotstream_core.models.qwen4_exp.hyper_connections import HyperConnection, StreamMixer
from slotstream_core.models.qwen4_exp.moe import ExpertLayer
from slotstream_core.models.qwen4_exp.ngram import NgramLayer
from slotstream_core.models.qwen4_exp.projections import WeightReader
from slotstream_core.models.qwen4_exp.vocabulary import Embedding, OutputHead


@dataclass(frozen=True, kw_only=True)
class LayerParts:
    """The classes a model is built from; all take and return MLX arrays and share their states' classes."""

    attention: type[SparseAttention] = SparseAttention
    delta: type[GatedDeltaLayer] = GatedDeltaLayer
    draft_inputs: type[DraftInputs] = DraftInputs
    draft_outputs: type[DraftOutputs] = DraftOutputs
    embedding: type[Embedding] = Embedding
    experts: type[ExpertLayer] = ExpertLayer
    head: type[OutputHead] = OutputHead
    mixer: type[StreamMixer] = StreamMixer
    ngram: type[NgramLayer] = NgramLayer
    streams: type[HyperConnection] = HyperConnection


def layer_parts(weights: WeightReader) -> LayerParts:
    """The eager classes where the compiled products are there, those of kernels on a device, else those of MLX."""
    if weights.device is not None:
        return LayerParts(
            attention=DeviceAttention,
            delta=DeviceGatedDelta,
            experts=DeviceExpertLayer,
            mixer=DeviceStreamMixer,
            ngram=DeviceNgram,
            streams=DeviceHyperConnection,
        )
    if weights.eager is None:
        return LayerParts()
    # Imported here because these modules need the compiled parts of the package.
    from slotstream_core.models.qwen4_exp.eager.attention import EagerAttention
    from slotstream_core.models.qwen4_exp.eager.delta import EagerGatedDelta
    from slotstream_core.models.qwen4_exp.eager.draft_inputs import EagerDraftInputs
    from slotstream_core.models.qwen4_exp.eager.draft_outputs import EagerDraftOutputs
    from slotstream_core.models.qwen4_exp.eager.experts import EagerExpertLayer
    from slotstream_core.models.qwen4_exp.eager.ngram import EagerNgram
    from slotstream_core.models.qwen4_exp.eager.streams import EagerHyperConnection, EagerStreamMixer
    from slotstream_core.models.qwen4_exp.eager.vocabulary import EagerEmbedding, EagerOutputHead

    return LayerParts(
        attention=EagerAttention,
        delta=EagerGatedDelta,
        draft_inputs=EagerDraftInputs,
        draft_outputs=EagerDraftOutputs,
        embedding=EagerEmbedding,
        experts=EagerExpertLayer,
        head=EagerOutputHead,
        mixer=EagerStreamMixer,
        ngram=EagerNgram,
        streams=EagerHyperConnection,
    )
