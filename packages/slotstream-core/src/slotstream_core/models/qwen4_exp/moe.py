"""Routed and shared experts of one layer. The routed ones come through the `Experts` seam, resident or streamed."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.experts.stacks import ExpertArrays, Experts, Lease, QuantizedStack, Stack, Sweep
from slotstream_core.models.qwen4_exp.gathering import LimitedProducts, compute_experts
from slotstream_core.models.qwen4_exp.host_products import HOST_ROWS, Floats, HostMatrix, host_array, multiply_by_expert
from slotstream_core.models.qwen4_exp.projections import FusedProjection, WeightReader
from slotstream_core.models.qwen4_exp.sweep import PassRows, compute_groups, rows_by_expert


class PassLeases:
    """The leases a pass holds: those of the layer being computed, released once its work was evaluated.

    On a device a layer's graph is built while its records are still being read, since places are known at once and
    nothing reads them before an evaluation. So a pass evaluates through `evaluate`, or calls `arrive` before.
    """

    def __init__(self) -> None:
        self._held: list[Lease] = []

    def arrive(self) -> None:
        """Return when everything that is held is in place; call before work that reads it is evaluated.

        Raises:
            ExpertReadError: A record could not be read.
            CheckpointDamaged: A record holds scales that are not finite.
        """
        for lease in self._held:
            lease.wait()

    def evaluate(self, *arrays: mx.array | list[mx.array]) -> None:
        """Evaluate arrays that may read what is held, and give that back.

        Raises:
            ExpertReadError: As `arrive`.
            CheckpointDamaged: As `arrive`.
        """
        self.arrive()
        mx.eval(*arrays)
        self.release()

    @property
    def any_held(self) -> bool:
        """Whether work that was not evaluated yet may read leased places."""
        return bool(self._held)

    def hold(self, lease: Lease) -> None:
        """Keep ``lease`` until `release`."""
        self._held.append(lease)

    def release(self) -> None:
        """Give back every lease; call only after an evaluation that includes all work reading them."""
        while self._held:
            self._held.pop().release()

    def abandon(self) -> list[Lease]:
        """Hold nothing any more and give nothing back; return what was held, to be kept for ever."""
        held, self._held = self._held, []
        return held


@contextmanager
def pass_leases() -> Iterator[PassLeases]:
    """The leases of one pass, all given back at the end, also when it fails."""
    leases = PassLeases()
    try:
        yield leases
    finally:
        leases.release()


class RequestedExperts:
    """The `SweptExperts` of one request.

    Attributes:
        experts: Their ids, ascending.
        slots: The place of each.
        released: Whether the places were given back.
    """

    def __init__(self, experts: npt.NDArray[np.integer], lease: Lease) -> None:
        self.experts: list[int] = experts.tolist()
        self.slots = lease.slots
        self.released = False
        self._lease = lease

    def wait(self) -> None:
        """See `Lease.wait`."""
        self._lease.wait()

    def release(self) -> None:
        """See `SweptExperts.release`."""
        self.released = True
        self._lease.release()


def requested_groups(
    experts: Experts, layer: int, distinct: npt.NDArray[np.int32]
) -> Generator[RequestedExperts, None, None]:
    """Yield experts that do not fit in one request, in several. The next is read while one is computed.

    At most two are held at once: see `compute_groups` for when they are released. Close it when something fails.

    Args:
        experts: Where they come from.
        layer: Of the experts.
        distinct: Ids, ascending.

    Raises:
        ExpertReadError: A record could not be read.
    """
    limit = experts.group_limit
    parts = [distinct[start : start + limit] for start in range(0, len(distinct), limit)]
    with pass_leases() as leases:
        coming: list[RequestedExperts] = []
        before: RequestedExperts | None = None

        def ask(part: npt.NDArray[np.int32]) -> None:
            lease = experts.request(layer, part)
            leases.hold(lease)
            coming.append(RequestedExperts(part, lease))

        ask(parts[0])
        for index, part in enumerate(parts):
            if not coming:
                ask(part)
            group = coming.pop()
            if index + 1 < len(parts) and (before is None or before.released):
                ask(parts[index + 1])
            group.wait()
            yield group
            before = group


Shown = mx.array | Floats
"""What a watch is shown: of MLX, or of NumPy where layers are computed at once."""


class PassWatch(Protocol):
    """Who looks at a pass on its way: what forecasts the next layer's experts, or records what a forecast needs.

    It may compute from what it is shown, and must leave it alone.
    """

    def entering(self, layer: int, streams: mx.array) -> None:
        """A layer begins, from these streams [T, streams, hidden]."""

    def attended(self, layer: int, streams: Shown) -> None:
        """A layer's attention has joined the streams, [T, streams, hidden]; its experts come next."""

    def routing(self, layer: int, x: Shown) -> None:
        """A layer's router reads these rows [T, hidden]."""

    def arrays(self) -> list[mx.array]:
        """What to evaluate together with the routing."""

    def requested(self, layer: int, experts: npt.NDArray[np.integer]) -> None:
        """The arrays are evaluated and the layer's experts [T, top] requested; they may not be there yet."""


class SharedRun(Protocol):
    """The shared expert's part of one call."""

    def start(self) -> None:
        """Begin to compute, because experts are being read meanwhile."""

    def finish(self) -> None:
        """Compute, and return when it is done."""

    def join(self, mix: mx.array, routed: mx.array) -> mx.array:
        """Add the sum of ``routed`` [T, k, hidden] weighted by ``mix`` [T, k]; returns [T, hidden]."""


class LazyShared:
    """A `SharedRun` in MLX's graph: ``shared`` [T, hidden]."""

    def __init__(self, shared: mx.array) -> None:
        self._shared = shared

    def start(self) -> None:
        """See `SharedRun.start`."""
        mx.async_eval(self._shared)  # type: ignore[no-untyped-call]

    def finish(self) -> None:
        """See `SharedRun.finish`."""
        mx.eval(self._shared)

    def join(self, mix: mx.array, routed: mx.array) -> mx.array:
        """See `SharedRun.join`."""
        # the weighted sum over k in routing order, float32: [T, 1, k] @ [T, k, hidden]
        mixed = mx.addmm(self._shared.astype(mx.float32)[:, None], mix[:, None], routed.astype(mx.float32))
        return mixed[:, 0].astype(self._shared.dtype)


class ExpertLayer:
    """Router, routed experts and the shared expert of one layer.

    Args:
        weights: Reads router and shared expert.
        prefix: Name of the layer's ``mlp``.
        config: Model settings.
        layer: Index that names this layer to ``experts``.
        experts: Where routed experts come from; not owned.
    """

    def __init__(
        self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig, *, layer: int, experts: Experts
    ) -> None:
        self._layer = layer
        self._experts = experts
        self._host = weights.host
        self._limited = (
            None if weights.gathering is None else LimitedProducts(weights.gathering, expert_count=config.num_experts)
        )
        self._top = config.num_experts_per_tok
        self._expert_count = config.num_experts
        self._normalise = config.norm_topk_prob
        self._router = weights.projection(f"{prefix}.gate", mx.float32)
        shared = f"{prefix}.shared_expert"
        self._shared_inputs = FusedProjection(
            [weights.projection(f"{shared}.gate_proj"), weights.projection(f"{shared}.up_proj")]
        )
        self._shared_down = weights.projection(f"{shared}.down_proj")
        self._shared_gate = weights.projection(f"{prefix}.shared_expert_gate")

    def __call__(self, x: mx.array, leases: PassLeases, watch: PassWatch | None = None) -> mx.array:
        """Mix the chosen experts of every row of ``x`` [T, hidden]; returns [T, hidden].

        Raises:
            ExpertReadError: A record could not be read.
        """
        if watch is not None:
            watch.routing(self._layer, x)
        ids, mix = self.route(x)
        return self.mix_routed(x, ids, mix, leases, watch)

    def mix_routed(
        self, x: mx.array, ids: mx.array, mix: mx.array, leases: PassLeases, watch: PassWatch | None
    ) -> mx.array:
        """What a call does after `route`, whose results it takes.

        Raises:
            ExpertReadError: A record could not be read.
        """
        shared = self._shared(x)
        places = self._experts.places(self._layer)
        if places is None:
            return shared.join(mix, self._streamed(x, ids, shared, leases, watch))
        return shared.join(mix, self._compute(x, self._take_places(places, ids)))

    def sweep(self, passes: Sequence[mx.array], sweep: Sweep) -> list[mx.array]:
        """What a call with each of ``passes`` [T, hidden] gives, to the bit, each expert being read once for all.

        Raises:
            ExpertReadError: A record could not be read.
        """
        swept: list[PassRows] = []
        beside: list[tuple[SharedRun, mx.array]] = []
        for x in passes:
            ids, mix = self.route(x)
            shared = self._shared(x)
            shared.finish()
            mx.eval(ids, mix)
            swept.append(self._pass_rows(x, np.array(ids, np.int32)))
            beside.append((shared, mix))
        compute_groups(sweep.layer(self._layer, rows_by_expert(swept)), swept)
        outputs = []
        for rows, (shared, mix) in zip(swept, beside, strict=True):
            outputs.append(shared.join(mix, rows.outputs()))
            mx.eval(outputs[-1])  # one pass's pairs are put in order at a time
        return outputs

    def route(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """Ids [T, top] of the chosen experts and their float32 weights [T, top]."""
        logits = self.router_logits(x)
        rest = self._expert_count - self._top
        ids = mx.argpartition(logits, rest, axis=-1)[:, rest:] if rest else mx.argsort(logits, axis=-1)
        if self._normalise:
            return ids, mx.softmax(mx.take_along_axis(logits, ids, axis=-1), axis=-1)
        return ids, mx.take_along_axis(mx.softmax(logits, axis=-1), ids, axis=-1)

    def router_logits(self, x: mx.array) -> mx.array:
        """float32 [T, experts]; the largest are chosen."""
        return self._router(x.astype(mx.float32))

    def _shared(self, x: mx.array) -> SharedRun:
        gate, up = self._shared_inputs(x)
        return LazyShared(self._shared_down(gate * mx.sigmoid(gate) * up) * mx.sigmoid(self._shared_gate(x)))

    def mix_slots(self, arrays: ExpertArrays, x: mx.array, slots: mx.array, mix: mx.array) -> mx.array:
        """The shared expert and those in ``slots`` [T, top] of some arrays, mixed with ``mix``: [T, hidden]."""
        return self._shared(x).join(mix, self._routed(arrays, x, slots))

    def _take_places(self, places: mx.array, ids: mx.array) -> mx.array:
        return places[ids]

    def _compute(self, x: mx.array, slots: mx.array) -> mx.array:
        """Outputs [T, k, hidden] of the experts in ``slots`` [T, k] for ``x`` [T, hidden]."""
        return self._routed(self._experts.arrays(self._layer), x, slots)

    def _routed(self, arrays: ExpertArrays, x: mx.array, slots: mx.array) -> mx.array:
        if self._host is not None and x.shape[0] >= HOST_ROWS:
            places = np.asarray(slots)
            pairs = np.repeat(host_array(x), self._top, axis=0)
            outputs = multiply_by_expert(host_stacks(arrays), pairs, places.reshape(-1), self._host)
            return mx.array(outputs).reshape(*places.shape, -1)
        if self._limited is not None:
            return self._limited.compute(arrays, x, slots)
        return compute_experts(arrays, x[:, None, None, :], slots)[:, :, 0]

    def _streamed(
        self, x: mx.array, ids: mx.array, shared: SharedRun, leases: PassLeases, watch: PassWatch | None
    ) -> mx.array:
        chosen, limit = self._chosen(ids, leases, watch), self._experts.group_limit
        if chosen.size > limit and len(distinct := np.unique(chosen)) > limit:
            return self._grouped(x, chosen, distinct, shared)
        lease = self._lease(chosen, leases, watch)
        shared.start()
        if self._host is not None:
            lease.wait()  # products on the host read places at once
        return self._compute(x, mx.array(lease.slots))

    def _chosen(self, ids: mx.array, leases: PassLeases, watch: PassWatch | None) -> npt.NDArray[np.int32]:
        """Read ``ids`` back: the only wait of this layer; everything before it is computed too."""
        leases.evaluate(ids, watch.arrays() if watch is not None else [])
        return np.array(ids, np.int32)

    def _lease(self, chosen: npt.NDArray[np.int32], leases: PassLeases, watch: PassWatch | None) -> Lease:
        """Request experts, which fit in one request, and hold them."""
        lease = self._experts.request(self._layer, chosen)
        leases.hold(lease)
        if watch is not None:
            watch.requested(self._layer, chosen)
        return lease

    def _grouped(
        self, x: mx.array, chosen: npt.NDArray[np.int32], distinct: npt.NDArray[np.int32], shared: SharedRun
    ) -> mx.array:
        """As one request, in several."""
        rows = self._pass_rows(x, chosen)
        shared.start()
        with closing(requested_groups(self._experts, self._layer, distinct)) as groups:
            compute_groups(groups, [rows])
        return rows.outputs()

    def _pass_rows(self, x: mx.array, chosen: npt.NDArray[np.int32]) -> PassRows:
        on_host = self._host is not None and x.shape[0] >= HOST_ROWS
        return PassRows(chosen, self._expert_count, x, self._compute_pairs, on_host=on_host)

    def _compute_pairs(self, x: mx.array, rows: npt.NDArray[np.integer], slots: npt.NDArray[np.int32]) -> mx.array:
        """Outputs [pairs, hidden] of row ``rows[i]`` of ``x`` through the expert in ``slots[i]``."""
        arrays = self._experts.arrays(self._layer)
        if self._host is not None and x.shape[0] >= HOST_ROWS:
            return mx.array(multiply_by_expert(host_stacks(arrays), host_array(x)[rows], slots, self._host))
        if self._limited is not None:
            return self._limited.compute_pairs(arrays, x, rows, slots, self._top)
        chosen = x[mx.array(rows.astype(np.int32))]
        return compute_experts(arrays, chosen[:, None, :], mx.array(slots))[:, 0]


def host_stacks(arrays: ExpertArrays) -> tuple[HostMatrix, HostMatrix, HostMatrix]:
    """The gate, up and down matrices of every place, for numpy."""

    def view(stack: Stack) -> HostMatrix:
        if isinstance(stack, QuantizedStack):
            return HostMatrix(stack.weight, stack.scales, stack.biases, bits=stack.bits, group_size=stack.group_size)
        return HostMatrix(stack.weight, None, None, bits=0, group_size=0)

    return view(arrays.gate), view(arrays.up), view(arrays.down)
