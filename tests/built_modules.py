"""Extension modules that a test has built, imported from where they lie."""

import importlib.util
from types import ModuleType


def built_module(name: str, path: str) -> ModuleType:
    """Import the module ``name`` from a shared object, whatever is installed under that name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
