"""No file and no function is longer than a reader can keep in mind."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("packages", "benchmarks", "tools", "tests")
FILE_LINES = 600
FUNCTION_LINES = 80


def sources(*suffixes: str) -> list[pathlib.Path]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    return [path for path in found if not {"build", "node_modules"}.intersection(path.parts)]


def test_no_file_of_source_is_too_long() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sources(".py", ".c", ".h")}
    assert len(lengths) > 400
    assert {path: length for path, length in lengths.items() if length > FILE_LINES} == {}


def test_no_function_is_too_long() -> None:
    functions = [
        (f"{path}:{node.lineno} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1)
        for path in sources(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert len(functions) > 3_000
    assert [(name, length) for name, length in functions if length > FUNCTION_LINES] == []
