"""The pages under `docs/api/` say what the code checks."""

from pathlib import Path

import pytest

from slotstream_serve.dialects.catalog import all_dialects
from slotstream_serve.dialects.fields import FieldTable
from tools.docs.api_pages import DIALECTS, USES, api_pages

ROOT = Path(__file__).resolve().parents[2]
TABLES = [(name, table) for name, tables in DIALECTS.items() for table in tables]


def documented_fields(page: str, title: str) -> list[tuple[str, str]]:
    """Return the names and uses that a page's table states, read back from its Markdown."""
    text = (ROOT / "docs" / "api" / f"{page}.md").read_text(encoding="utf-8")
    section = text.split(f"### {title}\n", 1)[1].split("\n### ", 1)[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return [(row[0].strip("|` "), row[1]) for row in rows]


@pytest.mark.parametrize(("page", "table"), TABLES, ids=[f"{page}: {table.title}" for page, table in TABLES])
def test_a_page_lists_every_field_with_its_use_and_no_other(page: str, table: FieldTable) -> None:
    assert documented_fields(page, table.title) == [(field.name, USES[field.use]) for field in table.fields]


@pytest.mark.parametrize("path", api_pages())
def test_a_page_is_what_the_code_renders(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == api_pages()[path]()


@pytest.mark.parametrize("page", DIALECTS)
def test_every_route_of_a_dialect_is_on_its_page(page: str) -> None:
    text = (ROOT / "docs" / "api" / f"{page}.md").read_text(encoding="utf-8")
    (dialect,) = [dialect for dialect in all_dialects() if dialect.name == page.replace("-", "_")]
    paths = [*dialect.paths, *(route.path for route in getattr(dialect, "info_routes", ()))]
    assert [path for path in paths if path not in text] == []


@pytest.mark.parametrize(("page", "table"), TABLES, ids=[f"{page}: {table.title}" for page, table in TABLES])
def test_no_field_is_in_a_table_twice(page: str, table: FieldTable) -> None:
    names = [field.name for field in table.fields]
    assert len(names) == len(set(names))
