"""The published model's geometry, so that it can be planned with nothing downloaded.

Sizes follow from the published tensor names, shapes and file lengths: 24,576 expert records of nine
pieces, 128 n-gram shards of 2,500,012 rows of 100 bytes, a vision tower of 449 million parameters, and
the remainder of the eleven shards as shared weights.
"""

from __future__ import annotations

from typing import Final

from slotstream_planner.errors import InvalidRequest
from slotstream_planner.geometry import Compute, ModelGeometry

__all__ = ["PUBLISHED_MODEL", "published_geometry"]

PUBLISHED_MODEL: Final = "qwen3.8-flash-next:4bit"

_RECORD: Final = {"bf16": 2_764_800, "float32": 3_072_000}
_SHARED: Final = {"bf16": 2_924_320_681, "float32": 3_390_000_000}
_VISION: Final = {"bf16": 898_000_000, "float32": 1_796_000_000}
_DRAFT: Final = {"bf16": 1_470_955_171, "float32": 1_637_100_000}


def published_geometry(name: str = PUBLISHED_MODEL, *, compute: Compute = "bf16") -> ModelGeometry:
    """Return the geometry of a complete download of the published model.

    Raises:
        InvalidRequest: No such model ships with the package.
    """
    if name != PUBLISHED_MODEL:
        raise InvalidRequest(f"no built-in model is called {name}; known is {PUBLISHED_MODEL}")
    itemsize = 4 if compute == "float32" else 2
    return ModelGeometry(
        name=PUBLISHED_MODEL,
        compute=compute,
        layers=48,
        full_attention_layers=12,
        experts=512,
        experts_per_token=10,
        record_bytes=_RECORD["bf16"],
        slot_bytes=_RECORD[compute],
        shared_bytes=_SHARED["bf16"],
        shared_resident_bytes=_SHARED[compute],
        ngram_bytes=128 * 2_500_012 * 100,
        draft_bytes=_DRAFT["bf16"],
        draft_resident_bytes=_DRAFT[compute],
        vision_bytes=_VISION["bf16"],
        vision_resident_bytes=_VISION[compute],
        correction_bytes=37_540_708,
        vocabulary=248_320,
        context_limit=262_144,
        hidden=2560,
        expert_width=640,
        kv_bytes_per_token=12 * (2 * 2 * 256 + 128) * itemsize,
        recurrent_bytes=36 * 48 * 128 * 128 * 4,
        prefill_bytes_per_token=1_300_000,
        float_router_bytes=48 * 512 * 2560 * itemsize,
        built_in=True,
    )
