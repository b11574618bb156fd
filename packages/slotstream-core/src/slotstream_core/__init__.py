"""Run a mixture-of-experts model that does not fit in memory, by streaming its experts from disk.

    with load(directory) as engine:
        for event in engine.generate("Hello"):
            ...

Names are imported at first use, so that `import slotstream_core.errors` and the like do not load mlx.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from slotstream_core.blas import MLX, BeforeMlx

if TYPE_CHECKING:
    from slotstream_core.engine import Engine, load
    from slotstream_core.errors import SlotstreamError
    from slotstream_core.events import (
        DraftCounts,
        ExpertTraffic,
        Finished,
        GenerationEvent,
        PromptProgress,
        TextDelta,
        ThinkingDelta,
        Timings,
        Usage,
    )
    from slotstream_core.generation.control import CancelToken
    from slotstream_core.generation.sampling import AGENT, GREEDY, ORDINARY, THINKING, SamplingParams
    from slotstream_core.text.messages import ChatMessage, ToolCall

_HOMES = {
    "engine": ("Engine", "load"),
    "errors": ("SlotstreamError",),
    "events": (
        "DraftCounts",
        "ExpertTraffic",
        "Finished",
        "GenerationEvent",
        "PromptProgress",
        "TextDelta",
        "ThinkingDelta",
        "Timings",
        "Usage",
    ),
    "generation.control": ("CancelToken",),
    "generation.sampling": ("AGENT", "GREEDY", "ORDINARY", "THINKING", "SamplingParams"),
    "text.messages": ("ChatMessage", "ToolCall"),
}
if MLX not in sys.modules:
    sys.meta_path.insert(0, BeforeMlx())

_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AGENT",
    "GREEDY",
    "ORDINARY",
    "THINKING",
    "CancelToken",
    "ChatMessage",
    "DraftCounts",
    "Engine",
    "ExpertTraffic",
    "Finished",
    "GenerationEvent",
    "PromptProgress",
    "SamplingParams",
    "SlotstreamError",
    "TextDelta",
    "ThinkingDelta",
    "Timings",
    "ToolCall",
    "Usage",
    "load",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
