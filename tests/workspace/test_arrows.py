"""The dependency arrows between packages, and what may import what."""

import ast
import pathlib

import pytest

PACKAGES = pathlib.Path(__file__).resolve().parents[2] / "packages"
ALLOWED = {
    "slotpack": set(),
    "slotstream_planner": set(),
    "slotstream_demo": set(),
    "slotstream_core": {"slotstream_planner"},
    "slotstream_serve": {"slotstream_core", "slotstream_planner"},
    "slotstream_cli": {"slotstream_serve", "slotstream_core", "slotstream_planner", "slotpack", "slotstream_demo"},
}
SOURCES = sorted(PACKAGES.glob("*/src/**/*.py"))


def imported_names(path: pathlib.Path) -> set[str]:
    """Return the top-level names a module imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


def owner(path: pathlib.Path) -> str:
    """Return the import name of the package that holds a source file."""
    return path.relative_to(PACKAGES).parts[2]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGES)))
def test_no_import_points_against_the_arrows(path: pathlib.Path) -> None:
    mine = owner(path)
    foreign = {name for name in imported_names(path) if name in ALLOWED and name != mine}
    assert foreign <= ALLOWED[mine]


def test_only_core_imports_mlx() -> None:
    users = {owner(path) for path in SOURCES if "mlx" in imported_names(path)}
    assert users <= {"slotstream_core"}


def test_every_package_is_typed() -> None:
    missing = [name for name in ALLOWED if not list(PACKAGES.glob(f"*/src/{name}/py.typed"))]
    assert missing == []
