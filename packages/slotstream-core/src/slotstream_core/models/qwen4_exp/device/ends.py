"""The ends of a launched token: its embedding; the final mixer and the output head, whose logits go to the host."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.models.qwen4_exp.device.kernels import KernelSpec, Output
from slotstream_core.models.qwen4_exp.device.launching import LaunchedKernels, Program
from slotstream_core.models.qwen4_exp.device.products import DENSE_BITS, RowProducts, suits_product
from slotstream_core.models.qwen4_exp.device.streams import DeviceStreamMixer, StreamBuffers, StreamReader
from slotstream_core.models.qwen4_exp.hyper_connections import StreamMixer
from slotstream_core.models.qwen4_exp.projections import Projection
from slotstream_core.models.qwen4_exp.vocabulary import OutputHead

PUBLISH_THREADS = 256
EMBEDDING_THREADS = 128

EMBED = """
  const int place = blockIdx.x * blockDim.x + threadIdx.x;
  if (place < COLUMNS) {
    __nv_bfloat16 value;
    if (BITS == 16) {
      value = reinterpret_cast<const __nv_bfloat16*>(weight)[token * COLUMNS + place];
    } else {
      constexpr int STORED = BITS == 16 ? 4 : BITS;
      const unsigned int* row = reinterpret_cast<const unsigned int*>(weight) + token * (COLUMNS * STORED / 32);
      const float count = (row[place * STORED / 32] >> (place * STORED % 32)) & ((1u << STORED) - 1);
      const long long group = token * (COLUMNS / GROUP) + place / GROUP;
      value = __float2bfloat16(slotstream_float(scales[group]) * count + slotstream_float(biases[group]));
    }
    for (int s = 0; s < STREAMS; s++) streams[s * COLUMNS + place] = value;
  }
"""

PUBLISH_LOGITS = """
  const int place = blockIdx.x * blockDim.x + threadIdx.x;
  if (place < VOCABULARY) out[place] = slotstream_float(logits[place]);
  __threadfence_system();
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadParts:
    """What turns the last streams into logits.

    Attributes:
        streams: Mixes the streams.
        matrix: Multiplies what comes out.
    """

    streams: StreamReader
    matrix: Projection

    @property
    def kind(self) -> tuple[object, ...]:
        """The same for ends whose kernels are."""
        return (*self.streams.kernels.sizes, self.matrix.out_features, self.matrix.bits, self.matrix.group_size)


def head_parts(mixer: StreamMixer, head: OutputHead) -> HeadParts | None:
    """The parts of a model's end; None where one of them cannot be launched."""
    if not isinstance(mixer, DeviceStreamMixer) or mixer.reader is None or not suits_product(head.matrix):
        return None
    return HeadParts(streams=mixer.reader, matrix=head.matrix)


class LaunchedEmbedding:
    """The embedding of a token within a program.

    Args:
        program: Theirs.
        config: Sizes.
        matrix: Of the embeddings; see `suits_product`.
    """

    def __init__(self, program: Program, config: Qwen4ExpConfig, matrix: Projection) -> None:
        dense, columns = matrix.scales is None, config.hidden_size
        self._arrays = matrix.arrays() * (3 if dense else 1)  # in the places of scales, too
        self._program, self._token = program, program.place("token")
        self._spec = KernelSpec(
            name="embed",
            inputs=("weight", "scales", "biases"),
            outputs=(Output(name="streams", shape=(1, config.hc_count, columns), dtype=mx.bfloat16),),
            constants={
                "STREAMS": config.hc_count,
                "COLUMNS": columns,
                "BITS": DENSE_BITS if dense else matrix.bits,
                "GROUP": columns if dense else matrix.group_size,
            },
            body=EMBED,
            blocks=-(-columns // EMBEDDING_THREADS),
            threads=EMBEDDING_THREADS,
            values=("token",),
        )

    def add(self, streams: mx.array) -> None:
        """Append what writes the token's embedding into all ``streams`` [1, streams, hidden]."""
        self._program.add(self._spec, *self._arrays, streams, self._token)

    def choose(self, token: int) -> None:
        """Say whose embedding the next run writes; an id inside the vocabulary."""
        self._program.set(self._token, token)


class LaunchedHead:
    """The final mixer and the output head within a program.

    Args:
        kernels: Compiles and runs kernels.
        program: Theirs.
        config: Sizes.
        parts: Their weights.
    """

    def __init__(self, kernels: LaunchedKernels, program: Program, config: Qwen4ExpConfig, parts: HeadParts) -> None:
        vocabulary = parts.matrix.out_features
        self._parts, self._product = parts, RowProducts([parts.matrix])
        self._read = StreamBuffers(program, config)
        self._rounded = self._product.scratch(program)
        self._memory = kernels.target.pinned(4 * vocabulary)
        self._spec = KernelSpec(
            name="publish_logits",
            inputs=("logits",),
            outputs=(Output(name="out", shape=(1, vocabulary), dtype=mx.float32),),
            constants={"VOCABULARY": vocabulary},
            body=PUBLISH_LOGITS,
            blocks=-(-vocabulary // PUBLISH_THREADS),
            threads=PUBLISH_THREADS,
        )

    def add(self, program: Program, streams: mx.array) -> None:
        """Append what writes the logits of ``streams`` [1, streams, hidden]; an announcement has to follow."""
        self._parts.streams.add_mix(program, streams, self._read)
        self._product.add(program, self._read.mixed, self._rounded)
        program.add(self._spec, *self._rounded, self._memory.address)

    def logits(self) -> mx.array:
        """A new array of what was written, [1, vocabulary], float32; call after the announcement."""
        return mx.array(self._memory.data.view(np.float32).reshape(1, -1))
