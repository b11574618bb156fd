"""`ExpertLayer`, computed at once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core import _native
from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.experts.stacks import ExpertArrays, Experts, Lease, QuantizedStack, Slots, Stack, Sweep
from slotstream_core.models.qwen4_exp.eager.forecast import compact_router
from slotstream_core.models.qwen4_exp.eager.host import NATIVE_ROWS, EagerHost, MatrixView, rows_of
from slotstream_core.models.qwen4_exp.eager.products import EagerMap, EagerMaps
from slotstream_core.models.qwen4_exp.eager.routed import Attended, ExpertCalls, RoutedRows
from slotstream_core.models.qwen4_exp.host_products import Floats
from slotstream_core.models.qwen4_exp.moe import ExpertLayer, PassLeases, PassWatch, requested_groups
from slotstream_core.models.qwen4_exp.projections import WeightReader
from slotstream_core.models.qwen4_exp.sweep import compute_groups, rows_by_expert

Views = tuple[MatrixView, MatrixView, MatrixView]


class EagerShared:
    """The shared expert's part of one call; computed when started, while routed experts are still read."""

    def __init__(self, layer: EagerExpertLayer, x: Floats) -> None:
        self._layer = layer
        self._x = x
        self._parts: tuple[Floats, Floats] | None = None

    def start(self) -> None:
        """See `SharedRun.start`."""
        self._parts = self._layer.shared_parts(self._x)

    def finish(self) -> None:
        """See `SharedRun.finish`."""
        self.start()

    def join(self, mix: mx.array, routed: mx.array) -> mx.array:
        """See `SharedRun.join`."""
        shared, gate = self._parts or self._layer.shared_parts(self._x)
        return mx.array(self._layer.combine(shared, gate, np.asarray(mix), np.asarray(routed)))


class EagerExpertLayer(ExpertLayer):
    """See `ExpertLayer`."""

    def __init__(
        self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig, *, layer: int, experts: Experts
    ) -> None:
        super().__init__(weights, prefix, config, layer=layer, experts=experts)
        host = weights.eager_host()
        self._eager = host
        self._router_map = EagerMap(self._router, host)
        self._shared_maps = EagerMaps(self._shared_inputs, host)
        self._shared_down_map = EagerMap(self._shared_down, host)
        self._shared_gate_map = EagerMap(self._shared_gate, host)
        self._seen: tuple[ExpertArrays, Views | None] | None = None
        self._calls: ExpertCalls | None = None
        self._compact: MatrixView | None = None

    def prepare_forecasts(self) -> int:
        """Return a router for forecasts by its address in C, valid as long as this layer: a compact one where it pays.

        Nothing is decided by its results, so their bits do not matter.
        """
        if self._compact is None:
            self._compact = compact_router(self._router, self._eager)
        return self._router_map.handle if self._compact is None else self._compact.handle

    @property
    def compact_bytes(self) -> int:
        """Bytes of what `prepare_forecasts` made."""
        return 0 if self._compact is None else self._compact.matrix.nbytes

    def description(self) -> tuple[Any, ...] | None:
        """The resident part for `_native.layer`; None when a matrix is not taken."""
        matrices = self._router_map.handle, self._shared_down_map.handle, self._shared_gate_map.handle
        if not (all(matrices) and all(self._shared_maps.handles)):
            return None
        router, down, gate = matrices
        places = [number for place in self._shared_maps.places for number in place]
        return router, self._shared_maps.handles, *places, down, gate, self._top, int(self._normalise)

    def calls(self, compiled: _native.Layer) -> ExpertCalls | None:
        """The compiled calls for the experts as they lie now; None when their matrices are not taken."""
        views = self._views(self._experts.arrays(self._layer))
        if views is None:
            return None
        if self._calls is None or self._calls.stacks is not views:
            self._calls = ExpertCalls(compiled, self._eager, views)
        return self._calls

    def join_streams(
        self, calls: ExpertCalls, attended: Attended, leases: PassLeases, watch: PassWatch | None, out: Floats
    ) -> None:
        """Write the streams after the experts to ``out`` [T, streams * hidden].

        Args:
            calls: What computes.
            attended: What they start from.
            leases: Hold the experts while they are read.
            watch: Told when they are requested.
            out: The result.

        Raises:
            ExpertReadError: A record could not be read.
        """
        places, ids = self._experts.places(self._layer), attended.ids
        if places is not None:
            calls.join(attended, np.asarray(places)[ids], calls.share(attended.x), out)
            return
        if watch is not None:
            mx.eval(watch.arrays())
        leases.release()
        limit = self._experts.group_limit
        if ids.size > limit and len(distinct := np.unique(ids)) > limit:
            rows = RoutedRows(attended, self._expert_count, calls)
            with closing(requested_groups(self._experts, self._layer, distinct)) as groups:
                compute_groups(groups, [rows])
            rows.join(out)
            return
        # who watches may read ahead meanwhile
        ask = self._experts.visit if watch is None else self._experts.request
        lease = ask(self._layer, ids, threads=self._eager.handle)
        leases.hold(lease)
        if watch is not None:
            watch.requested(self._layer, ids)
        shared = calls.share(attended.x)
        late = frozenset(lease.late())
        early = np.array([slot not in late for slot in lease.slots.reshape(-1).tolist()]) if late else None
        if early is not None and early.any():
            outputs = self._compute_in_turn(calls, attended.x, lease, early)
            calls.join_outputs(attended, outputs, shared, out)
            return
        lease.wait()
        calls.join(attended, lease.slots, shared, out)

    def _compute_in_turn(self, calls: ExpertCalls, x: Floats, lease: Lease, early: npt.NDArray[np.bool_]) -> Floats:
        """Outputs [T * top, hidden] of what a lease holds for ``x``; what is ``early`` is computed before the wait."""
        slots = lease.slots.reshape(-1)
        pairs, outputs = np.arange(slots.size, dtype=np.int32), np.empty((slots.size, x.shape[1]), np.float32)
        calls.fill(x, pairs[early], slots[early], outputs)
        lease.wait()
        calls.fill(x, pairs[~early], slots[~early], outputs)
        return outputs

    def sweep_streams(
        self, calls: ExpertCalls, passes: Sequence[Attended], sweep: Sweep, outs: Sequence[Floats]
    ) -> None:
        """As `join_streams` for each of some passes, each expert being read once for all of them.

        Raises:
            ExpertReadError: A record could not be read.
        """
        swept = [RoutedRows(attended, self._expert_count, calls) for attended in passes]
        compute_groups(sweep.layer(self._layer, rows_by_expert(swept)), swept)
        for rows, out in zip(swept, outs, strict=True):
            rows.join(out)

    def route(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """See `ExpertLayer.route`; best experts first."""
        logits = self._router_map(rows_of(x))
        ids = np.empty((len(logits), self._top), np.int32)
        mix = np.empty(ids.shape, np.float32)
        _native.route(logits, int(self._normalise), ids, mix)
        return mx.array(ids), mx.array(mix)

    def router_logits(self, x: mx.array) -> mx.array:
        """See `ExpertLayer.router_logits`."""
        return mx.array(self._router_map(rows_of(x)))

    def _shared(self, x: mx.array) -> EagerShared:
        return EagerShared(self, rows_of(x))

    def shared_parts(self, x: Floats) -> tuple[Floats, Floats]:
        """The shared expert's output [T, hidden] for ``x`` and its raw gate [T, 1]."""
        gate, up = self._shared_maps(x)
        inner = np.empty(gate.shape, np.float32)
        _native.silu_multiply(gate, up, inner)
        return self._shared_down_map(inner), self._shared_gate_map(x)

    def combine(self, shared: Floats, gate: Floats, mix: Floats, routed: Floats) -> Floats:
        """The gated shared expert plus the sum of ``routed`` [T, k, hidden] weighted by ``mix``; [T, hidden]."""
        out, top = np.empty(shared.shape, np.float32), mix.shape[1]
        outputs = routed.reshape(-1, shared.shape[1])

        def part(first: int, last: int) -> None:
            rows = slice(first, last)
            _native.combine(shared[rows], gate[rows], mix[rows], outputs[first * top : last * top], out[rows])

        self._eager.run_parts(part, len(out), values=outputs.size)
        return out

    def _take_places(self, places: mx.array, ids: mx.array) -> mx.array:
        return mx.array(np.asarray(places)[np.asarray(ids)])

    def _compute(self, x: mx.array, slots: mx.array) -> mx.array:
        arrays = self._experts.arrays(self._layer)
        views = self._views(arrays)
        if views is None:
            return super()._compute(x, slots)
        places, rows = np.asarray(slots), rows_of(x)
        sources = np.repeat(np.arange(len(rows), dtype=np.int32), places.shape[1])
        return mx.array(self._outputs(views, rows, sources, places.reshape(-1)).reshape(*places.shape, -1))

    def _compute_pairs(self, x: mx.array, rows: npt.NDArray[np.integer], slots: Slots) -> mx.array:
        arrays = self._experts.arrays(self._layer)
        views = self._views(arrays)
        if views is None:
            return super()._compute_pairs(x, rows, slots)
        return mx.array(self._outputs(views, rows_of(x), rows.astype(np.int32), slots))

    def _outputs(self, views: Views, x: Floats, sources: Slots, slots: Slots) -> Floats:
        """Row ``sources[i]`` of ``x``, all rows of a pass, through the expert in ``slots[i]``; [pairs, hidden]."""
        gate, up, down = (view.handle for view in views)
        outputs, rows = np.empty((len(slots), x.shape[1]), np.float32), x[sources]
        if len(x) > NATIVE_ROWS:
            pairs = np.arange(len(slots), dtype=np.int32)
            _native.expert_pairs(self._eager.handle, gate, up, down, rows, pairs, slots, outputs)
        else:
            _native.experts(self._eager.handle, gate, up, down, rows, slots, outputs)
        return outputs

    def _views(self, arrays: ExpertArrays) -> Views | None:
        """The places as the compiled products see them; the arrays change when the pool is resized."""
        if self._seen is None or self._seen[0] is not arrays:
            self._seen = (arrays, view_experts(self._eager, arrays))
        return self._seen[1]


def view_experts(host: EagerHost, arrays: ExpertArrays) -> Views | None:
    """View the three stacks; None when the compiled products do not take one of them."""

    def view(stack: Stack) -> MatrixView | None:
        if isinstance(stack, QuantizedStack):
            return host.view(stack.weight, stack.scales, stack.biases, bits=stack.bits, group_size=stack.group_size)
        return host.view(stack.weight, None, None, bits=0, group_size=0)

    gate, up, down = view(arrays.gate), view(arrays.up), view(arrays.down)
    return None if gate is None or up is None or down is None else (gate, up, down)
