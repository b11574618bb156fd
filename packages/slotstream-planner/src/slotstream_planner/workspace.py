"""Rules the engine applies while it runs a plan: barrier periods, pass workspace and shared reads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from slotstream_planner.geometry import ModelGeometry
from slotstream_planner.prefill import PrefillPass

__all__ = [
    "ReadScope",
    "barrier_period",
    "group_read_scopes",
    "pass_workspace_bytes",
    "share_reads",
    "shared_token_bytes",
    "vision_workspace_bytes",
]

_LOOKAHEAD_PERIOD: Final = 4
_SMALL_SCOPE_TOKENS: Final = 8_192
_ORDINARY_SCOPE_TOKENS: Final = 4_096
_SHARED_SIZES: Final = frozenset({256, 512, 1024})
_LEAST_SHARED_PASSES: Final = 4
_SCOPE_TOKEN_BYTES: Final = 32_768
_PAIR_BYTES: Final = 24 * 8 + 16
_LEAST_ROWS: Final = 64
_PATCH_QUERIES: Final = 256
_SHORT_PASS: Final = 255
_SHARED_FRACTION: Final = 5


@dataclass(frozen=True, kw_only=True)
class ReadScope:
    """Consecutive passes that read each expert once between them.

    Attributes:
        passes: The passes, in order; a single one shares with nobody.
    """

    passes: tuple[PrefillPass, ...]

    @property
    def tokens(self) -> int:
        """Prompt tokens of all its passes."""
        return sum(each.tokens for each in self.passes)


def barrier_period(geometry: ModelGeometry, *, rows: int, slots: int, lookahead: bool, reserved_slots: int) -> int:
    """Return after how many layers a pass waits for the compute queue.

    A period of p keeps the experts of p + 1 layers pinned. It falls back to 1 when that would leave half a
    layer's experts or fewer free to be replaced.

    Args:
        geometry: The model.
        rows: Tokens in the pass.
        slots: Slots of the pool.
        lookahead: Whether likely experts are read ahead; without it the period is 1.
        reserved_slots: Slots set aside for the lookahead.
    """
    period = _LOOKAHEAD_PERIOD if lookahead else 1
    used_per_layer = min(geometry.experts, rows * geometry.experts_per_token)
    free = slots - ((period + 1) * used_per_layer + reserved_slots)
    return period if free > geometry.experts // 2 else 1


def pass_workspace_bytes(
    geometry: ModelGeometry, *, tokens: int, extent: int, queries: int, scope_tokens: int = 0
) -> int:
    """Return what one pass needs beside the loaded model, to be checked just before it runs.

    Args:
        geometry: The model.
        tokens: Tokens of the pass.
        extent: Key rows it attends to.
        queries: Query rows attended at once.
        scope_tokens: Tokens of the read scope it belongs to; 0 for none.
    """
    rows = max(tokens, _LEAST_ROWS)
    workspace = max(rows * geometry.prefill_bytes_per_token, queries * extent * _PAIR_BYTES)
    return workspace + max(0, scope_tokens - tokens) * _SCOPE_TOKEN_BYTES


def vision_workspace_bytes(patches: int) -> int:
    """Return what encoding an image of this many patches needs."""
    return min(patches, _PATCH_QUERIES) * patches * 16 * 4 + patches * 1152 * 32


def group_read_scopes(passes: Sequence[PrefillPass], *, boundaries: Collection[int] = ()) -> list[ReadScope]:
    """Group four or more identical full passes of 256, 512 or 1024 tokens so that they share expert reads.

    A scope holds at most 8,192 tokens of 256-token passes or 4,096 of larger ones, and never crosses a
    position where state is to be saved.

    Args:
        passes: A schedule in order.
        boundaries: Positions at which a scope must end.
    """
    ends = frozenset(boundaries)
    scopes: list[ReadScope] = []
    run: list[PrefillPass] = []
    for each in passes:
        if run and not _joins(run, each, ends):
            scopes += _close(run)
            run = []
        run.append(each)
    return scopes + _close(run)


def shared_token_bytes(geometry: ModelGeometry) -> int:
    """Return what each token of further passes in a scope occupies while the scope runs through a layer.

    It is the residual streams before the layer, between its halves and after it, the input and outputs of its experts,
    their routing, and packed n-gram rows: for the published model in float32 (3 x 4 + 2 + 10) x 2560 x 4 + 2,000 =
    248 kB, less than a fifth of the workspace that a token of a pass is charged; that is used for every model and type.
    """
    return -(-geometry.prefill_bytes_per_token // _SHARED_FRACTION)


def share_reads(passes: Sequence[PrefillPass], *, extra_tokens: int) -> list[ReadScope]:
    """Group consecutive passes, of any size, as far as the memory for their tokens reaches.

    Passes of a scope are computed one by one and give what they would alone; each expert is read once for all of
    them. A scope holds at most 8,192 tokens of passes up to 256 or 4,096 of larger ones; a short last pass, which
    would read as much as a long one, joins beyond that.

    Args:
        passes: A schedule in order.
        extra_tokens: Tokens beyond a scope's largest pass that there is memory for; see `shared_token_bytes`.
    """
    scopes: list[ReadScope] = []
    run: list[PrefillPass] = []
    for each in passes:
        joined = [*run, each]
        total, largest = sum(one.tokens for one in joined), max(one.tokens for one in joined)
        limit = _SMALL_SCOPE_TOKENS if largest <= min(_SHARED_SIZES) else _ORDINARY_SCOPE_TOKENS
        short = each.tokens if each.tokens <= _SHORT_PASS else 0
        if run and (total - largest > extra_tokens or total - short > limit):
            scopes.append(ReadScope(passes=tuple(run)))
            run = []
        run.append(each)
    return [*scopes, ReadScope(passes=tuple(run))] if run else scopes


def _joins(run: list[PrefillPass], each: PrefillPass, ends: frozenset[int]) -> bool:
    size = run[0].tokens
    if size not in _SHARED_SIZES or each.start in ends or (each.tokens, each.full_tokens) != (size, size):
        return False
    limit = _SMALL_SCOPE_TOKENS if size == 256 else _ORDINARY_SCOPE_TOKENS
    return run[0].full_tokens == size and (len(run) + 1) * size <= limit


def _close(run: list[PrefillPass]) -> list[ReadScope]:
    if len(run) >= _LEAST_SHARED_PASSES:
        return [ReadScope(passes=tuple(run))]
    return [ReadScope(passes=(each,)) for each in run]
