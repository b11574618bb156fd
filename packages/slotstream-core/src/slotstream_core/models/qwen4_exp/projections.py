"""Weights of one model as the layers use them: linear maps, dense or quantised, in the compute dtype.

Only this module knows how a resident matrix is stored; layers see `Projection` and plain vectors.
"""

import os
from collections.abc import Sequence

import mlx.core as mx

from slotstream_core.backend import Backend
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.errors import BackendError
from slotstream_core.models.qwen4_exp.device.kernels import DeviceKernels
from slotstream_core.models.qwen4_exp.eager.host import EagerHost
from slotstream_core.models.qwen4_exp.host_products import HOST_ROWS, HostMatrix, HostThreads, host_array
from slotstream_core.models.qwen4_exp.norms import RmsNorm


class Projection:
    """A linear map without bias, ``y = x @ W.T``, over the last axis.

    Either dense (``weight`` [out, in] in the compute dtype) or affine quantised (packed ``weight`` u32 with
    ``scales`` and ``biases`` [out, in / group_size] in the compute dtype). Owns its arrays; nothing mutates them.
    With ``host`` (CPU, float32) products of many rows go through numpy, see `host_products`.
    """

    def __init__(
        self,
        weight: mx.array,
        *,
        scales: mx.array | None = None,
        biases: mx.array | None = None,
        bits: int = 0,
        group_size: int = 0,
        host: HostThreads | None = None,
    ) -> None:
        self.weight = weight
        self.scales = scales
        self.biases = biases
        self.bits = bits
        self.group_size = group_size
        self.host = host
        self._transposed = weight.T
        mx.eval(self._transposed)  # a view; left lazy it would belong to the loading thread's stream
        self._host_view: HostMatrix | None = None

    def __call__(self, x: mx.array) -> mx.array:
        """Apply the map to ``x`` [..., in]; returns [..., out]."""
        if self.host is not None and x.ndim == 2 and x.shape[0] >= HOST_ROWS:
            return mx.array(self.host_matrix().multiply(host_array(x), self.host))
        if self.scales is None:
            return x @ self._transposed
        return mx.quantized_matmul(
            x, self.weight, scales=self.scales, biases=self.biases, group_size=self.group_size, bits=self.bits
        )

    def host_matrix(self) -> HostMatrix:
        """The same matrix for numpy."""
        if self._host_view is None:
            self._host_view = HostMatrix(
                self.weight, self.scales, self.biases, bits=self.bits, group_size=self.group_size
            )
        return self._host_view

    @property
    def out_features(self) -> int:
        """Length of the output vectors."""
        return int(self.weight.shape[0])

    def rows(self, ids: mx.array) -> mx.array:
        """The rows ``ids`` [T] of the matrix as an embedding, [T, in], dequantised in the compute dtype."""
        if self.scales is None or self.biases is None:
            return self.weight[ids]
        return mx.dequantize(
            self.weight[ids], self.scales[ids], self.biases[ids], group_size=self.group_size, bits=self.bits
        )

    def dense(self) -> mx.array:
        """The matrix [out, in] in the compute dtype, unpacked."""
        if self.scales is None or self.biases is None:
            return self.weight
        return mx.dequantize(self.weight, self.scales, self.biases, group_size=self.group_size, bits=self.bits)

    def arrays(self) -> list[mx.array]:
        """Every array this map owns, for evaluation at load and for counting bytes."""
        return [array for array in (self.weight, self.scales, self.biases) if array is not None]


def stack_projections(parts: Sequence[Projection]) -> list[tuple[Projection, list[int]]]:
    """Merge neighbouring maps of the same input that are stored alike, so that one product serves several.

    Returns:
        The merged maps in order, each with the output widths of the maps it replaces.
    """
    groups: list[list[Projection]] = []
    for part in parts:
        last = groups[-1][-1] if groups else None
        if last is not None and (last.bits, last.group_size) == (part.bits, part.group_size):
            groups[-1].append(part)
        else:
            groups.append([part])
    return [(_concatenate(group), [part.out_features for part in group]) for group in groups]


def _concatenate(group: list[Projection]) -> Projection:
    if len(group) == 1:
        return group[0]
    weight = mx.concatenate([part.weight for part in group])
    if group[0].scales is None:
        merged = Projection(weight, host=group[0].host)
    else:
        merged = Projection(
            weight,
            scales=mx.concatenate([part.scales for part in group if part.scales is not None]),
            biases=mx.concatenate([part.biases for part in group if part.biases is not None]),
            bits=group[0].bits,
            group_size=group[0].group_size,
            host=group[0].host,
        )
    mx.eval(merged.arrays())
    return merged


class FusedProjection:
    """Several linear maps of one input, computed with as few products as their storage allows.

    Attributes:
        groups: The products, each with the output widths of the maps it serves, in order.
    """

    def __init__(self, parts: Sequence[Projection]) -> None:
        self.groups = stack_projections(parts)

    def __call__(self, x: mx.array) -> list[mx.array]:
        """Outputs of every map for ``x`` [..., in], in the order the maps were given."""
        outputs: list[mx.array] = []
        for projection, widths in self.groups:
            y = projection(x)
            start = 0
            for width in widths:
                outputs.append(y[..., start : start + width] if len(widths) > 1 else y)
                start += width
        return outputs


class WeightReader:
    """Reads the resident weights of one checkpoint in the dtype that the backend computes in.

    Args:
        checkpoint: An open checkpoint; not owned.
        backend: Says which dtype to compute in.

    Attributes:
        compute_dtype: Dtype of activations and of everything read by default.
        gathering: The limits of products of rows with an expert each; None where there are none.
        host: Where products of many rows run when the host computes, else None; norms are written out then.
        eager: What eager layers compute with; None where MLX computes.
        device: Makes kernels of our own for a device; None where there are none.
    """

    def __init__(self, checkpoint: Checkpoint, backend: Backend) -> None:
        self._checkpoint = checkpoint
        self.host = HostThreads() if backend.kind == "cpu" else None
        self._one_group_is_wrong = backend.kind == "cuda"
        self.eager = None if self.host is None else EagerHost.load(self.host, os.environ)
        self.device = DeviceKernels.load(backend, os.environ)
        self.gathering = backend.gathering
        self.compute_dtype = backend.compute_dtype

    def eager_host(self) -> EagerHost:
        """Return `eager`.

        Raises:
            BackendError: There is none.
        """
        if self.eager is None:
            raise BackendError("the compiled products are not loaded; build the layers of MLX instead")
        return self.eager

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds a tensor of this full name."""
        return self._checkpoint.has(name)

    def vector(self, name: str, dtype: mx.Dtype | None = None) -> mx.array:
        """A whole tensor, in ``dtype`` or the compute dtype.

        Raises:
            CheckpointDamaged: The tensor is missing or cannot be read completely.
        """
        return self._checkpoint.read(name, dtype or self.compute_dtype)

    def norm(self, name: str, eps: float, *, groups: int = 1, factor: float = 1.0) -> RmsNorm:
        """The norm whose weights are ``name``, over ``groups`` equal parts of them, its result times ``factor``.

        Raises:
            CheckpointDamaged: The tensor is missing or cannot be read completely.
        """
        return self.norm_of(self.vector(name).reshape(groups, -1) * factor, eps)

    def norm_of(self, weight: mx.array, eps: float) -> RmsNorm:
        """The norm with ``weight`` [groups, dim]."""
        return RmsNorm(weight, eps, composed=self.host is not None)

    def projection(self, module: str, dtype: mx.Dtype | None = None) -> Projection:
        """The linear map of ``module`` (a name without ``.weight``), dense or quantised as stored.

        Raises:
            CheckpointDamaged: A tensor of it is missing or cannot be read completely.
        """
        dtype = dtype or self.compute_dtype
        stored = self._checkpoint.has(f"{module}.scales")
        quantization = self._checkpoint.module_quantization(module) if stored else None
        if quantization is None:
            return Projection(self._checkpoint.read(f"{module}.weight", dtype), host=self.host)
        weight = self._checkpoint.read(f"{module}.weight")
        scales = self._checkpoint.read(f"{module}.scales", dtype)
        biases = self._checkpoint.read(f"{module}.biases", dtype)
        bits, group_size = quantization.bits, quantization.group_size
        if self._one_group_is_wrong and scales.shape[-1] == 1:
            # MLX 0.32.4 chooses a kernel for Hopper here that returns numbers unrelated to the weights
            dense = mx.dequantize(weight, scales, biases, group_size=group_size, bits=bits)
            mx.eval(dense)
            return Projection(dense, host=self.host)
        return Projection(weight, scales=scales, biases=biases, bits=bits, group_size=group_size, host=self.host)
