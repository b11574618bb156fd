"""The Slotstream HTTP server.

    app = create_app(engine, ServeConfig(model=facts))

Names are imported at first use, so that `import slotstream_serve.errors` and the like do not load the HTTP stack.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slotstream_serve.app import create_app
    from slotstream_serve.dialects.base import ModelFacts
    from slotstream_serve.errors import ServeError
    from slotstream_serve.facts import describe_checkpoint, with_plan
    from slotstream_serve.settings import Limits, ServeConfig

_MODULE_OF = {
    "Limits": "settings",
    "ModelFacts": "dialects.base",
    "ServeConfig": "settings",
    "ServeError": "errors",
    "create_app": "app",
    "describe_checkpoint": "facts",
    "with_plan": "facts",
}

__all__ = [
    "Limits",
    "ModelFacts",
    "ServeConfig",
    "ServeError",
    "create_app",
    "describe_checkpoint",
    "with_plan",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
